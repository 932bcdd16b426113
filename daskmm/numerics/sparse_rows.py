"""Sparse rows: a scipy CSR array that block functions accept in place of dense rows.

Scaling keeps rows sparse and shifting does not, so models do not shift sparse rows. Sums and
distances are products of CSR arrays. Code that needs dense rows calls `dense` on a few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

FloatArray = NDArray[np.float64]

# Largest number of bytes of dense copies of sparse rows, where an estimate from some rows suffices.
FEW_BYTES = 64 << 20
_FEW_ROWS = 128


class SparseRows(csr_array):
    """Rows as a CSR array with a length, in canonical form: indices sorted, each at most once."""

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(self, *_: Any, **__: Any) -> NDArray:
        raise TypeError("Sparse rows are made dense by daskmm.numerics.sparse_rows.dense only.")

    def __getitem__(self, key: Any) -> Any:
        """Return slices of rows as views, anything else as scipy does."""
        if not isinstance(key, slice) or key.step not in (None, 1):
            return super().__getitem__(key)
        start, stop, _ = key.indices(len(self))
        indptr = self.indptr[start : max(start, stop) + 1]
        own = slice(indptr[0], indptr[-1])
        return made_of(self.data[own], self.indices[own], indptr - indptr[0], self.shape[1])

    @property
    def row_of_entry(self) -> NDArray[np.int64]:
        """Row of each stored value."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def with_data(self, data: NDArray) -> SparseRows:
        """Return rows with other values stored at the same places."""
        return made_of(data, self.indices, self.indptr, self.shape[1])


def made_of(data: NDArray, indices: NDArray, indptr: NDArray, n_features: int) -> SparseRows:
    """Return rows that share the arrays of a CSR array in canonical form."""
    rows = SparseRows((data, indices, indptr), shape=(len(indptr) - 1, n_features))
    rows.has_canonical_format = True
    return rows


def canonical(matrix: Any) -> SparseRows:
    """Return a sparse matrix or array of any format as rows; it is copied only to change it."""
    rows = SparseRows(matrix)
    if not rows.has_canonical_format:
        rows = SparseRows(rows, copy=True)
        rows.sum_duplicates()
    return rows


def zeroed(rows: SparseRows, left_out: NDArray[np.bool_]) -> SparseRows:
    """Return rows with the values of some features set to 0 and no longer stored."""
    kept = ~left_out[rows.indices]
    ends = np.concatenate([[0], np.cumsum(kept)]).astype(rows.indptr.dtype)
    return made_of(rows.data[kept], rows.indices[kept], ends[rows.indptr], rows.shape[1])


def sums_of_rows(rows: Any) -> FloatArray:
    """Return the sum of each row, sparse or not."""
    if not isinstance(rows, SparseRows):
        return np.asarray(rows.sum(axis=1))
    sums = np.zeros(len(rows))
    held = np.diff(rows.indptr) > 0
    if held.any():
        sums[held] = np.add.reduceat(rows.data, rows.indptr[:-1][held])
    return sums


def dense(rows: Any) -> NDArray:
    """Return rows, sparse or not, as an array."""
    return np.asarray(rows.toarray() if isinstance(rows, SparseRows) else rows)


def stacked(blocks: Sequence[Any]) -> Any:
    """Concatenate rows, all sparse or all dense."""
    if not isinstance(blocks[0], SparseRows):
        return np.concatenate(blocks)
    ends = np.cumsum([0, *(block.nnz for block in blocks)])
    indptr = [block.indptr[:-1] + end for block, end in zip(blocks, ends[:-1], strict=True)]
    return made_of(
        np.concatenate([block.data for block in blocks]),
        np.concatenate([block.indices for block in blocks]),
        np.concatenate([*indptr, ends[-1:]]),
        blocks[0].shape[1],
    )


def has_holes(rows: Any) -> bool:
    """Return whether dense rows have missing values (NaN); sparse rows never have."""
    return not isinstance(rows, SparseRows) and bool(np.isnan(rows).any())


def rolled_columns(rows: Any, order: NDArray[np.int64], shifts: NDArray[np.int64]) -> Any:
    """Return rows in another order, with each feature then rolled by its own number of rows.

    `order` has the new position of each row, and `shifts` the number of rows by which each feature
    is rolled: value l of row i ends in row ``(order[i] + shifts[l]) % n_rows``.
    """
    n = len(rows)
    if isinstance(rows, SparseRows):
        to = (order[rows.row_of_entry] + shifts[rows.indices]) % n
        return canonical(csr_array((rows.data, (to, rows.indices)), shape=rows.shape))
    moved = np.empty_like(rows)
    moved[(order[:, None] + shifts) % n, np.arange(rows.shape[1])] = rows
    return moved


def fit_dense(rows: Any, n_copies: int = 1) -> bool:
    """Return whether rows are dense, or `n_copies` dense copies take at most 64 MB."""
    n_bytes = 8 * rows.shape[0] * rows.shape[1] * n_copies
    return not isinstance(rows, SparseRows) or n_bytes <= FEW_BYTES


def few_dense(rows: Any, weights: FloatArray) -> tuple[NDArray, FloatArray]:
    """Return dense rows unchanged, and sparse ones as evenly spaced dense rows of at most 64 MB."""
    if not isinstance(rows, SparseRows):
        return rows, weights
    most = max(_FEW_ROWS, FEW_BYTES // (8 * rows.shape[1]))
    if len(rows) > most:
        kept = np.linspace(0, len(rows) - 1, most).astype(np.int64)
        rows, weights = rows[kept], weights[kept]
    return dense(rows), weights


def first_entry(mask: Any) -> tuple[int, int]:
    """Return row and column of the first true entry of a dense or sparse mask."""
    if isinstance(mask, csr_array):
        entry = int(np.flatnonzero(mask.data)[0])
        row = int(np.searchsorted(mask.indptr, entry, side="right")) - 1
        return row, int(mask.indices[entry])
    row, column = (int(index) for index in np.argwhere(mask)[0])
    return row, column
