"""Digests of arrays."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
from scipy.sparse import issparse


def digest(*arrays: Any) -> str:
    """Return a digest of arrays, dense or CSR, that changes with any bit, dtype or shape."""
    found = hashlib.blake2b(digest_size=16)
    parts = (
        (array.data, array.indices, array.indptr) if issparse(array) else (array,)
        for array in arrays
    )
    for array in itertools.chain.from_iterable(parts):
        values = np.ascontiguousarray(array)
        found.update(f"{values.dtype.str}{values.shape}".encode())
        found.update(values.data)
    return found.hexdigest()
