"""Sparse tables: those of scipy and of the library sparse, and dask arrays with such blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from daskmm._dask import da, is_dask_array
from daskmm.numerics.sparse_rows import SparseRows, canonical

# Bytes of the index of a stored value, and the share of values that are assumed to be stored if
# this is unknown before reading.
INDEX_BYTES, _ASSUMED_SHARE = 4, 0.05
# Attribute of dask arrays for the mean number of stored values per row.
_STORED = "_daskmm_stored_per_row"


class NamedSparse(csr_array):
    """A CSR array with the names of rows and columns, from AnnData or a frame of sparse columns."""

    @classmethod
    def of(cls, matrix: Any, index: Any, columns: Any) -> NamedSparse:
        """Name the rows and columns of a sparse matrix."""
        named = cls(matrix)
        named.index, named.columns = index, columns
        return named

    def chosen(self, names: list[Any]) -> NamedSparse:
        """Return some columns by name."""
        places = self.columns.get_indexer(names)
        return self.of(csr_array(self)[:, places], self.index, self.columns[places])


def is_sparse(X: Any) -> bool:
    """Return whether a table is sparse; for a dask array, its meta decides."""
    X = X._meta if is_dask_array(X) else X
    known = issparse(X) or type(X).__module__.partition(".")[0] == "sparse"
    return known or has_sparse_columns(X)


def has_sparse_columns(X: Any) -> bool:
    """Return whether a table is a pandas frame of sparse columns only."""
    # Other frames need time to say which columns they have.
    is_pandas = type(X).__module__.partition(".")[0] == "pandas" and hasattr(X, "columns")
    dtypes = X.dtypes if is_pandas else ()
    return len(dtypes) > 0 and all(hasattr(dtype, "fill_value") for dtype in dtypes)


def taken_rows(rows: Any, places: Any) -> Any:
    """Return some rows of a table in memory: an array, a sparse one, or a pandas frame."""
    if isinstance(rows, NamedSparse):
        return NamedSparse.of(csr_array(rows)[places], rows.index[places], rows.columns)
    if hasattr(rows, "iloc"):
        return rows.iloc[places]
    return _to_scipy(rows)[places] if is_sparse(rows) else rows[places]


def joined_rows(parts: list[Any]) -> Any:
    """Return several tables of one kind, such as those of `taken_rows`, as one table."""
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        return pd.concat(parts)
    return vstack(parts, format="csr") if is_sparse(parts[0]) else np.concatenate(parts)


def stored_per_row(table: da.Array) -> float | None:
    """Return the mean number of values stored per row of a dask array; None if it is dense.

    One stored value in 20 is assumed unless `with_stored` has set the number.
    """
    if not is_sparse(table):
        return None
    return float(getattr(table, _STORED, _ASSUMED_SHARE * table.shape[1]))


def with_stored(table: da.Array, n_stored: int) -> da.Array:
    """Set the number of stored values of a sparse dask array, and return the array."""
    setattr(table, _STORED, n_stored / max(1, table.shape[0]))
    return table


def whole_sparse_rows(table: da.Array) -> da.Array:
    """Return a sparse dask array with one column of blocks."""
    if table.numblocks[1] == 1:
        return table
    # dask can join blocks of scipy's matrices.
    map_blocks: Callable[..., da.Array] = table.map_blocks
    return map_blocks(_to_scipy, meta=csr_array((0, 0), dtype=table.dtype)).rechunk({1: -1})


def _to_scipy(block: Any) -> Any:
    return csr_array(block.to_scipy_sparse() if hasattr(block, "to_scipy_sparse") else block)


def sparse_rows(matrix: Any, where: str = "") -> SparseRows:
    """Return a sparse table in memory, or a sparse or dense block, as sparse rows.

    It raises ValueError if the matrix is not two-dimensional, or its arrays are not a valid CSR or
    CSC matrix; the message names row and column, and the block by `where` (empty for a whole
    table).
    """
    if isinstance(matrix, SparseRows):
        return matrix
    if hasattr(matrix, "to_scipy_sparse"):
        matrix = matrix.to_scipy_sparse()
    if matrix.ndim != 2:
        raise ValueError(f"Expected 2D array for X, got {matrix.ndim}D array instead. Reshape it.")
    if getattr(matrix, "format", "") in ("csr", "csc"):
        _check_compressed(matrix, where)
    if matrix.dtype.kind == "f" and matrix.dtype.itemsize not in (4, 8):
        # scipy computes in these types only.
        matrix = matrix.astype(np.float32 if matrix.dtype.itemsize < 4 else np.float64)
    return canonical(matrix)


def _check_compressed(matrix: Any, where: str) -> None:
    """Raise ValueError if the arrays of a CSR or CSC matrix do not match."""
    axes = ("row", "column") if matrix.format == "csr" else ("column", "row")
    major, minor = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
    indptr, indices = matrix.indptr, matrix.indices
    place = f" ({where})" if where else ""

    def refuse(text: str) -> None:
        raise ValueError(f"X is no valid sparse matrix{place}: {text}.")

    if len(indptr) != major + 1 or indptr[0] != 0:
        refuse(f"indptr must have {major + 1} entries, the first of them 0")
    if (falls := np.flatnonzero(np.diff(indptr) < 0)).size:
        refuse(f"indptr decreases at {axes[0]} {falls[0]}")
    n = int(indptr[-1])
    if n > len(indices) or n > len(matrix.data):
        refuse(f"indptr ends at {n}, beyond {len(indices)} indices and {len(matrix.data)} values")
    if n and (indices[:n].min() < 0 or indices[:n].max() >= minor):
        entry = int(np.flatnonzero((indices[:n] < 0) | (indices[:n] >= minor))[0])
        at = int(np.searchsorted(indptr, entry, side="right")) - 1
        refuse(f"{axes[0]} {at} has an entry at {axes[1]} {indices[entry]}, of {minor} {axes[1]}s")
