"""Digests of arrays."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike


def digest(*arrays: ArrayLike) -> str:
    """Return a digest of arrays, which changes with any bit, dtype or shape."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        values = np.ascontiguousarray(array)
        found.update(f"{values.dtype.str}{values.shape}".encode())
        found.update(values.data)
    return found.hexdigest()
