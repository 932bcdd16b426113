"""Any table the user may have, as row blocks that a pass can visit."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray

# Blocks that a table in memory is cut into: at least this many elements each, and at most
# this many blocks. Fixed numbers, so that results do not depend on the machine.
_MEMORY_ELEMENTS = 1 << 16
_MEMORY_BLOCKS = 64
# Bytes of a zarr store read by one task: whole chunks of it, about this much, and more only
# where there would be more blocks than this.
_ZARR_BLOCK_BYTES = 16 << 20
_ZARR_BLOCKS = 1024


@dataclass(frozen=True)
class RowBlocks:
    """Rows of a table in blocks, in memory (views) or lazy (dask).

    Attributes
    ----------
    parts : tuple
        Per block, an ndarray of shape (rows, n_features), or a Delayed that yields one.
    weights : tuple or None
        Per block, the sample weights alike.
    rows : tuple of int or None
        Rows per block; None while unknown.
    n_features : int
    dtype : numpy.dtype
        Of the input.
    lazy : bool
        Whether the parts are Delayed.
    """

    parts: tuple[Any, ...]
    weights: tuple[Any, ...] | None
    rows: tuple[int, ...] | None
    n_features: int
    dtype: np.dtype
    lazy: bool

    @property
    def starts(self) -> tuple[int, ...]:
        """Global index of each block's first row; zeros while row counts are unknown."""
        if self.rows is None:
            return (0,) * len(self.parts)
        return tuple(int(start) for start in np.cumsum((0, *self.rows))[:-1])

    @property
    def n_rows(self) -> int | None:
        """Rows in all, where known."""
        return None if self.rows is None else sum(self.rows)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row as it is read."""
        return self.n_features * self.dtype.itemsize


def is_lazy(X: Any) -> bool:
    """Whether `X` is a dask collection or a zarr array, whose results are lazy."""
    return dask.is_dask_collection(X) or _is_zarr(X)


def _is_zarr(X: Any) -> bool:
    zarr = sys.modules.get("zarr")
    return zarr is not None and isinstance(X, zarr.Array)


def float_dtype(dtype: np.dtype) -> np.dtype:
    """Floating dtype that stands for an input dtype.

    float32 stays; float16, bool and integers of 8 or 16 bits become float32, all else float64.
    """
    if dtype == np.float32 or (dtype.kind in "fiub" and dtype.itemsize <= 2):
        return np.dtype(np.float32)
    return np.dtype(np.float64)


def as_dask_array(X: Any, name: str = "X") -> da.Array:
    """A dask or zarr table as a two-dimensional dask array with whole rows in each block.

    Parameters
    ----------
    X : dask Array, dask DataFrame or zarr Array
    name : str
        The argument's name, for messages.

    Raises
    ------
    TypeError
        If the collection is of another kind.
    ValueError
        If it has no numeric dtype, is not two-dimensional, or has no features.
    """
    if _is_zarr(X):
        X = _zarr_to_dask(X, name)
    elif hasattr(X, "to_dask_array") and hasattr(X, "dtypes"):
        check_columns(X.dtypes, name)
        dtype = np.result_type(*(getattr(d, "numpy_dtype", d) for d in X.dtypes))
        X = X.astype(dtype).to_dask_array()
    if not isinstance(X, da.Array):
        raise TypeError(
            f"{name} must be a numpy array, a dask array or DataFrame, a pandas DataFrame or a "
            f"zarr array; got {type(X).__name__}."
        )
    if X.ndim != 2:
        raise ValueError(
            f"Expected 2D array for {name}, got {X.ndim}D array instead. Reshape your data: one "
            "row per sample, one column per feature."
        )
    if X.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} has dtype {X.dtype}.")
    if X.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} has dtype {X.dtype}, which is not numeric. Convert it with "
            f"{name}.astype('float64') first."
        )
    if X.shape[1] == 0:
        raise ValueError(
            f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required: "
            f"{name} has no columns."
        )
    if X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    return X


def check_columns(dtypes: Any, name: str = "X") -> None:
    """Refuse a frame with columns that are not numbers, naming them.

    Raises
    ------
    ValueError
        If a column has no numeric or boolean dtype.
    """
    text = [
        f"{column!r} ({dtype})"
        for column, dtype in dtypes.items()
        if np.dtype(getattr(dtype, "numpy_dtype", _numpy_or_object(dtype))).kind not in "fiubc"
    ]
    if text:
        raise ValueError(
            f"{name} has columns that are not numeric: {', '.join(text)}. Drop or encode them."
        )


def _numpy_or_object(dtype: Any) -> Any:
    return dtype if isinstance(dtype, np.dtype) else object


def _zarr_to_dask(store: Any, name: str) -> da.Array:
    """Whole rows and whole chunks of a zarr array per block."""
    if store.ndim != 2:
        raise ValueError(
            f"Expected 2D array for {name}, got {store.ndim}D array instead. Reshape your data."
        )
    chunk_rows = (getattr(store, "shards", None) or store.chunks)[0]
    row_bytes = max(1, store.shape[1] * store.dtype.itemsize)
    wanted = max(_ZARR_BLOCK_BYTES, store.shape[0] * row_bytes // _ZARR_BLOCKS)
    rows = max(1, wanted // (chunk_rows * row_bytes)) * chunk_rows
    return da.from_array(store, chunks=(rows, store.shape[1]), name=False)


def memory_blocks(X: NDArray, sample_weight: NDArray | None) -> RowBlocks:
    """Views of a table in memory.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    sample_weight : ndarray of shape (n_rows,) or None
    """
    n_rows, n_features = X.shape
    size = max(1, _MEMORY_ELEMENTS // n_features, -(-n_rows // _MEMORY_BLOCKS))
    cuts = [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
    return RowBlocks(
        tuple(X[cut] for cut in cuts),
        None if sample_weight is None else tuple(sample_weight[cut] for cut in cuts),
        tuple(cut.stop - cut.start for cut in cuts),
        n_features,
        X.dtype,
        lazy=False,
    )


def lazy_blocks(X: da.Array, sample_weight: Any = None) -> RowBlocks:
    """Blocks of a dask array of whole rows.

    Parameters
    ----------
    X : dask Array of shape (n_rows, n_features)
        One column of blocks; row counts may be unknown.
    sample_weight : array-like or dask array of shape (n_rows,), optional
        Chunked in any way. With unknown row counts on either side, the blocks must correspond.

    Raises
    ------
    ValueError
        If the weights have another shape than the rows.
    """
    counts = X.chunks[0]
    known = not np.isnan(counts).any()
    weights = None
    if sample_weight is not None:
        weights = tuple(_weight_array(sample_weight, X).to_delayed().ravel())
    return RowBlocks(
        tuple(X.to_delayed().ravel()),
        weights,
        tuple(int(count) for count in counts) if known else None,
        X.shape[1],
        X.dtype,
        lazy=True,
    )


def _weight_array(sample_weight: Any, X: da.Array) -> da.Array:
    """Sample weights as a dask array chunked like the rows of `X`."""
    if hasattr(sample_weight, "to_dask_array"):
        sample_weight = sample_weight.to_dask_array()
    elif not isinstance(sample_weight, da.Array):
        sample_weight = da.from_array(np.asarray(sample_weight), chunks=-1)
    if sample_weight.ndim != 1:
        raise ValueError(f"sample_weight must be 1D, got {sample_weight.ndim}D.")
    if np.isnan(X.shape[0]) or np.isnan(sample_weight.shape[0]):
        if sample_weight.numblocks[0] != X.numblocks[0]:
            raise ValueError(
                "sample_weight cannot be matched to X: row counts are unknown and X has "
                f"{X.numblocks[0]} blocks, sample_weight {sample_weight.numblocks[0]}. Call "
                "compute_chunk_sizes() on both."
            )
        return sample_weight
    if sample_weight.shape[0] != X.shape[0]:
        raise ValueError(
            f"sample_weight has {sample_weight.shape[0]} entries, X has {X.shape[0]} rows."
        )
    return sample_weight.rechunk((X.chunks[0],))
