"""Read sparse tables on disk: CSR groups of zarr and HDF5 as anndata writes them, and npz.

A table consists of the three arrays of a CSR matrix: values, column indices, and the places where
rows begin. The places are read when the table is opened, and each block gets its part of them, so
that a task reads only the values and indices of its rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from daskmm._dask import da, dask
from daskmm.data.lazy import array_of
from daskmm.data.sparse import INDEX_BYTES, with_stored
from daskmm.data.variables import variable_names, with_names
from daskmm.data.zarr_chunks import StoredArray, check_chunks
from daskmm.storage.remote import patiently
from daskmm.storage.zarr_stores import zarr_store

_ARRAYS = ("data", "indices", "indptr")
# Approximate bytes of values and indices per block, and largest number of blocks; blocks are larger
# if there would be more of them.
_BLOCK_BYTES, _MOST_BLOCKS = 16_000_000, 1024
_BY_COLUMNS = (
    "{} is stored by columns (CSC), so that its rows cannot be read alone. Write it by rows: "
    "X.tocsr(), or anndata's adata.X = adata.X.tocsr()."
)


class SparseSource(Protocol):
    """A CSR matrix on disk that any process can open."""

    @property
    def described(self) -> str:
        """Path and name of the matrix, for messages."""

    def arrays(self) -> dict[str, Any]:
        """Open the arrays "data", "indices" and "indptr" for slicing."""


def lazy_rows(source: SparseSource, n_features: int, chunks: int | str = "auto") -> da.Array:
    """Return a sparse matrix on disk as a dask array of CSR blocks of whole rows.

    `chunks` are rows per block; "auto" makes blocks of about 16 MB.
    """
    arrays = source.arrays()
    indptr = np.asarray(arrays["indptr"][:]).astype(np.int64, copy=False)
    dtype = np.dtype(arrays["data"].dtype)
    if indptr.ndim != 1 or not len(indptr) or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise ValueError(f"{source.described} is no CSR matrix: indptr does not increase from 0.")
    if indptr[-1] > min(arrays["data"].shape[0], arrays["indices"].shape[0]):
        raise ValueError(
            f"{source.described} is no CSR matrix: indptr ends at {indptr[-1]}, beyond its values."
        )
    if dtype.kind not in "fiub":
        raise ValueError(f"{source.described} has dtype {dtype}, which is not numeric.")
    ends = _block_ends(indptr, dtype.itemsize + INDEX_BYTES, chunks)
    tasks = [
        (_read_rows, source, indptr[start : stop + 1], n_features)
        for start, stop in itertools.pairwise(ends)
    ]
    token = dask.base.tokenize(source.described, n_features, ends, indptr)
    return _array_of(tasks, ends, n_features, dtype, int(indptr[-1]), token)


def _array_of(
    tasks: Sequence[Any],
    ends: NDArray[np.int64],
    n_features: int,
    dtype: np.dtype,
    n_stored: int,
    token: str,
) -> da.Array:
    """Return a dask array of CSR blocks; one task makes each block."""
    name = f"sparse-{token}"
    graph: Any = {(name, block, 0): task for block, task in enumerate(tasks)}
    chunks = (tuple(int(size) for size in np.diff(ends)), (n_features,))
    table = array_of(graph, name, chunks, csr_array((0, 0), dtype=dtype))
    return with_stored(table, n_stored)


def _block_ends(indptr: NDArray[np.int64], entry_bytes: int, chunks: int | str) -> NDArray:
    """Return the first row of each block, and the number of rows."""
    n_rows = len(indptr) - 1
    if isinstance(chunks, int) and chunks >= 1:
        return np.append(np.arange(0, n_rows, chunks), n_rows)
    wanted = max(_BLOCK_BYTES // entry_bytes, int(indptr[-1]) // _MOST_BLOCKS, 1)
    cuts = np.searchsorted(indptr, np.arange(wanted, indptr[-1], wanted))
    return np.unique(np.concatenate([[0], cuts, [n_rows]]))


def _read_rows(source: SparseSource, indptr: NDArray[np.int64], n_features: int) -> Any:
    """Read the rows of a block; the pass checks them."""
    span = slice(int(indptr[0]), int(indptr[-1]))

    def read() -> tuple[NDArray, NDArray]:
        arrays = source.arrays()
        return np.asarray(arrays["data"][span]), np.asarray(arrays["indices"][span])

    try:
        data, indices = patiently(read, source.described)
    except Exception as error:  # stores and codecs have their own errors
        raise ValueError(
            f"{source.described}: values {span.start} to {span.stop} cannot be read: {error}"
        ) from error
    matrix = csr_array((len(indptr) - 1, n_features), dtype=data.dtype)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr - indptr[0]
    return matrix


@dataclass(frozen=True)
class _ZarrGroup:
    path: str
    component: str

    @property
    def described(self) -> str:
        return f"{self.path}::{self.component}" if self.component else self.path

    def group(self) -> Any:
        import zarr  # zarr is slow to import

        return zarr.open_group(zarr_store(self.path), path=self.component, mode="r")

    def arrays(self) -> dict[str, Any]:
        group = self.group()
        return {name: StoredArray(group[name]) for name in _ARRAYS}

    def check(self) -> None:
        """Warn if chunks are not in the store."""
        for name, stored in self.arrays().items():
            check_chunks(stored.array, f"{self.described} ({name})")


def open_sparse_group(path: str, component: str | None, chunks: int | str) -> da.Array | None:
    """Open a CSR group of a zarr store, by default the root or its X; None if neither is one.

    ValueError is raised if the group is stored by columns.
    """
    for name in ("", "X") if component is None else (component,):
        source = _ZarrGroup(path, name)
        try:
            attributes = dict(source.group().attrs)
            kind, shape = attributes.get("encoding-type"), attributes.get("shape")
        except Exception:  # there is no group; other functions report it
            continue
        if kind == "csc_matrix":
            raise ValueError(_BY_COLUMNS.format(source.described))
        if kind == "csr_matrix" and shape is not None:
            source.check()
            rows = lazy_rows(source, int(shape[1]), chunks)
            return with_names(rows, variable_names(path, name))
    return None


@dataclass(frozen=True)
class _H5Group:
    path: str
    name: str

    @property
    def described(self) -> str:
        return f"{self.path}::{self.name}"

    def arrays(self) -> dict[str, Any]:
        return {name: _H5Array(self.path, f"{self.name}/{name}") for name in _ARRAYS}


@dataclass(frozen=True)
class _H5Array:
    """Array of an HDF5 file that is opened for each read."""

    path: str
    name: str

    def __getitem__(self, span: slice) -> NDArray:
        import h5py

        with h5py.File(self.path, "r") as file:
            return np.asarray(file[self.name][span])

    @property
    def shape(self) -> tuple[int, ...]:
        import h5py

        with h5py.File(self.path, "r") as file:
            return tuple(file[self.name].shape)

    @property
    def dtype(self) -> np.dtype:
        return self[:0].dtype


def open_h5_rows(path: str, name: str) -> da.Array:
    """Open a CSR group of an HDF5 file that anndata has written."""
    import h5py

    with h5py.File(path, "r") as file:
        attributes = dict(file[name].attrs)
    source = _H5Group(str(Path(path).absolute()), name)
    if attributes.get("encoding-type", attributes.get("h5sparse_format")) in ("csc_matrix", "csc"):
        raise ValueError(_BY_COLUMNS.format(source.described))
    shape: Any = attributes.get("shape", attributes.get("h5sparse_shape"))
    return lazy_rows(source, int(shape[1]))


def open_sparse_npz(path: str, chunks: int | str) -> da.Array | None:
    """Read a file that `scipy.sparse.save_npz` wrote; None if it holds no sparse matrix."""
    from scipy.sparse import load_npz

    try:
        with np.load(path) as arrays:
            if not {"data", "shape", "format"} <= set(arrays.files):
                return None
    except Exception:  # this is no zip file, or an array; other functions report that
        return None
    try:
        rows = csr_array(load_npz(path))
    except Exception as error:
        raise ValueError(f"{path} cannot be read as a sparse matrix: {error}") from error
    ends = _block_ends(
        rows.indptr.astype(np.int64), rows.data.itemsize + rows.indices.itemsize, chunks
    )
    blocks = [rows[start:stop] for start, stop in itertools.pairwise(ends)]
    token = dask.base.tokenize(path, ends, rows.data)
    return _array_of(blocks, ends, rows.shape[1], rows.dtype, rows.nnz, token)
