"""Digests of arrays."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike


def digest(*arrays: ArrayLike) -> str:
    """Digest of some arrays, bit by bit."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        values = np.ascontiguousarray(array)
        found.update(f"{values.dtype.str}{values.shape}".encode())
        found.update(values.tobytes())
    return found.hexdigest()
