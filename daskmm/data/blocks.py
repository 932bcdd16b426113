"""Cut tables of any supported kind into blocks of rows."""

from __future__ import annotations

import bisect
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import da, is_dask_array, is_dask_collection
from daskmm.data.grids import Grid, Window
from daskmm.data.lazy import array_of_frame, delayed_rows, with_rows
from daskmm.data.names import listed
from daskmm.data.sparse import INDEX_BYTES, is_sparse, stored_per_row, whole_sparse_rows
from daskmm.data.zarr_chunks import StoredArray, is_zarr
from daskmm.numerics.span import is_wide
from daskmm.numerics.sparse_rows import SparseRows

# A table in memory is cut into at most this many blocks of at least this many elements. The numbers
# are constants, so that results do not depend on the machine.
_MEMORY_ELEMENTS = 1 << 18
_MEMORY_BLOCKS = 64
# A row takes as long as its elements and this many more.
_ROW_ELEMENTS = 8
# Blocks have at least this many rows, which suits sums in single precision, as long as this makes
# at least _FEW_BLOCKS blocks. The number of blocks is a multiple of _FEW_BLOCKS, which suits most
# numbers of threads.
_MEMORY_ROWS = 16384
_FEW_BLOCKS = 16
# Blocks of wide tables have at least this many rows, since the sums of a block take as much memory
# as a few of its rows.
_WIDE_ROWS = 128
# A pass visits small consecutive lazy blocks in one call, of at most _JOINED_ELEMENTS elements
# together. At least _JOINED_BLOCKS calls remain, to keep as many threads busy. Results depend on
# which blocks are visited together, so the rule depends on the chunks only.
_JOINED_ELEMENTS, _JOINED_BLOCKS = 1 << 16, 64
# Blocks of sparse rows in memory have at least this many entries for each feature.
_SPARSE_ENTRIES_PER_FEATURE = 20
# A block of a zarr store is one or more whole chunks, of about this many bytes together. Blocks are
# larger if there would be more than _ZARR_BLOCKS of them, and smaller if there would be fewer than
# _FEW_BLOCKS.
_ZARR_BLOCK_BYTES = 16 << 20
_ZARR_BLOCKS = 1024


@dataclass(frozen=True)
class Layout:
    """Division of a table into blocks of rows."""

    rows: tuple[int, ...] | None  # number of rows of each block; None if unknown
    n_blocks: int
    n_features: int
    dtype: np.dtype  # dtype of the input
    lazy: bool  # whether dask makes the blocks; otherwise they are views of an array in memory
    # Grid of lazy pixels, whose blocks are windows of the grid instead of consecutive rows; None
    # for other tables.
    grid: Grid | None = None
    # Mean number of stored values per sparse row, known or assumed; None for dense rows.
    stored: float | None = None
    # Number of levels of categories, which are features beside those of `width`, in plans.
    n_levels: int = 0
    # Seconds that a thread takes to load and decode a byte of lazy rows, assumed or measured.
    byte_seconds: float = 1e-9

    @property
    def sparse(self) -> bool:
        """Whether rows are sparse."""
        return self.stored is not None

    @property
    def width(self) -> int:
        """Numbers in memory per row: features, or stored values, with indices counting half."""
        return self.n_features if self.stored is None else 1 + int(1.5 * self.stored)

    @property
    def n_rows(self) -> int | None:
        """Number of rows, or None if unknown."""
        return None if self.rows is None else sum(self.rows)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row of the input."""
        if self.stored is not None:
            return 8 + int(self.stored * (self.dtype.itemsize + INDEX_BYTES))
        return self.n_features * self.dtype.itemsize


@dataclass(frozen=True)
class RowBlocks:
    """A table as blocks of rows, which are either views of an array in memory or lazy."""

    table: NDArray | da.Array  # (n_rows, n_features)
    layout: Layout
    # Each block is an ndarray, (rows, n_features), or a Delayed that yields one.
    parts: tuple[Any, ...]
    # Sample weights of each block: an ndarray or a Delayed; None without weights.
    weights: tuple[Any, ...] | None = None

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """Rows and weights of each block; weights are None if there are none."""
        weights = self.weights or (None,) * len(self.parts)
        return list(zip(self.parts, weights, strict=True))


def is_lazy(X: Any) -> bool:
    """Return whether `X` is a dask collection or a zarr array, whose results are lazy."""
    return is_dask_collection(X) or is_zarr(X)


def float_dtype(dtype: np.dtype) -> np.dtype:
    """Return the floating dtype in which an input dtype is computed.

    float32 is kept; float16, bool and integers of 8 or 16 bits become float32, all others float64.
    """
    narrow = dtype.itemsize <= 2 or (dtype.kind == "f" and dtype.itemsize == 4)
    return np.dtype(np.float32 if narrow else np.float64)


def is_frame(X: Any) -> bool:
    """Return whether `X` is a dask DataFrame."""
    return _is_of_dataframe(X, "DataFrame")


def is_series(X: Any) -> bool:
    """Return whether `X` is a dask Series."""
    return _is_of_dataframe(X, "Series")


def _is_of_dataframe(X: Any, kind: str) -> bool:
    # If dask.dataframe has not been imported, `X` cannot be one of its objects.
    module = sys.modules.get("dask.dataframe")
    return module is not None and isinstance(X, getattr(module, kind))


def frame_and_weights(X: Any, sample_weight: Any) -> tuple[da.Array, da.Array]:
    """Return a dask DataFrame and a series of sample weights as arrays.

    Both come from one expression, so that columns of one frame are loaded once. ValueError is
    raised if their partitions differ in number or length.
    """
    if X.npartitions != sample_weight.npartitions:
        raise ValueError(
            "sample_weight cannot be matched to X: row counts are unknown, and X has "
            f"{X.npartitions} partitions, sample_weight {sample_weight.npartitions}."
        )
    import dask.dataframe as dd

    dtype = common_dtype(X.dtypes)
    meta = _weighted(X._meta.astype(dtype), np.empty(0))
    both = _frame_to_array(
        dd.map_partitions(
            _with_weight, X.astype(dtype), sample_weight, meta=meta, align_dataframes=False
        )
    )
    return both[:, :-1].astype(dtype), both[:, -1]


def _frame_to_array(frame: Any) -> da.Array:
    """Return a dask DataFrame as an array, with row counts if its source has them."""
    from daskmm.data.dask_private import with_lengths

    sized, lengths = with_lengths(frame)
    return array_of_frame(sized, lengths)


def _weighted(frame: Any, weights: NDArray) -> Any:
    """Append a column of weights to a pandas frame."""
    return frame.set_axis(range(frame.shape[1]), axis=1).assign(sample_weight=weights)


def _with_weight(frame: Any, weights: Any) -> Any:
    values = weights.to_numpy(dtype=np.float64, na_value=np.nan)
    if len(values) != len(frame):
        raise ValueError(
            f"sample_weight has {len(values)} entries in a partition where X has {len(frame)} rows."
        )
    return _weighted(frame, values)


_with_weight.keeps_rows = True  # type: ignore[attr-defined]


def as_dask_array(X: Any, name: str = "X") -> da.Array:
    """Return a dask Array, dask DataFrame or zarr Array as a dask array of blocks of whole rows.

    TypeError is raised for other collections, and ValueError for tables that are not numeric, not
    two-dimensional or without features; messages call the table `name`.
    """
    if is_zarr(X):
        X = _zarr_to_dask(X, name)
    elif is_frame(X):
        check_columns(X.dtypes, name)
        X = _frame_to_array(X.astype(common_dtype(X.dtypes)))
    elif is_series(X):
        raise ValueError(f"Expected 2D array for {name}, got a Series instead. Use a DataFrame.")
    if not is_dask_array(X):
        raise TypeError(
            f"{name} must be a numpy array, a dask array or DataFrame, a pandas DataFrame or a "
            f"zarr array; got {type(X).__name__}."
        )
    if X.ndim != 2:
        raise ValueError(
            f"Expected 2D array for {name}, got {X.ndim}D array instead. Reshape your data: one "
            "row per sample, one column per feature."
        )
    check_dtype(X.dtype, name)
    if np.isnan(X.shape[1]):
        raise ValueError(f"{name} has an unknown number of columns. Call compute_chunk_sizes().")
    if X.shape[1] == 0:
        raise ValueError(no_features(X.shape, name))
    if is_sparse(X):
        X = whole_sparse_rows(X)
    elif X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    return X


def check_dtype(dtype: np.dtype, name: str) -> None:
    """Raise ValueError if a dtype is not numeric."""
    if dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} has dtype {dtype}.")
    if dtype.names is not None:
        raise ValueError(
            f"{name} is a structured array. Convert it to a table: pandas.DataFrame({name})."
        )
    if dtype.kind not in "fiub":
        raise ValueError(
            f"{name} has dtype {dtype}, which is not numeric. Convert it with "
            f"{name}.astype('float64') first."
        )


def refuse_masked(array: Any, name: str, where: str = "") -> None:
    """Raise ValueError for the first masked value of an array."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        row = int(np.argwhere(np.ma.getmaskarray(array))[0, 0])
        place = f"row {row}" if not where else f"{where}, row {row} of the block"
        raise ValueError(
            f"{name} has masked values ({place}). Fill them (NaN in X counts as "
            "missing if missing='partial'), or leave such rows out."
        )


def refuse_other_order(X: Any, values: Any, name: str) -> None:
    """Raise ValueError if a pandas series has the index of a pandas frame in another order.

    Values of rows, such as weights or labels, are matched by their positions.
    """
    own: Any = getattr(X, "index", None)
    other: Any = getattr(values, "index", None)
    if not (hasattr(own, "equals") and hasattr(other, "equals")) or len(own) != len(other):
        return
    if own.equals(other) or own.nlevels != other.nlevels:
        return
    if not (own.is_unique and other.is_unique):
        return
    places = own.get_indexer(other)  # −1 for entries that X does not have, of other types too
    if (places >= 0).all() and (places != np.arange(len(own))).any():
        raise ValueError(
            f"{name} has the index of X in another order. Give {name}.reindex(X.index) to match "
            f"rows by the index, or {name}.to_numpy() to match them by their order."
        )


def no_features(shape: Any, name: str) -> str:
    """Return the message for a table without columns."""
    return (
        f"Found array with 0 feature(s) (shape={shape}) while a minimum of 1 is required: "
        f"{name} has no columns."
    )


def common_dtype(dtypes: Any) -> np.dtype:
    """Return one numpy dtype for all columns; nullable columns become float64, with NaN for NA."""
    return np.result_type(*(d if isinstance(d, np.dtype) else np.float64 for d in dtypes))


def refuse_repeated(columns: Any, name: str = "X") -> None:
    """Raise ValueError if column names, in a pandas index, are repeated."""
    twice = columns[columns.duplicated()].unique()
    if len(twice):
        raise ValueError(
            f"{name} has several columns named {listed([*map(repr, twice)])}. Rename them, or keep "
            f"the first of each: {name}.loc[:, ~{name}.columns.duplicated()]."
        )


def check_columns(dtypes: Any, name: str = "X") -> None:
    """Raise ValueError if a frame has no columns, repeated names or columns without numbers."""
    if len(dtypes) == 0:
        raise ValueError(no_features("(n, 0)", name))
    refuse_repeated(dtypes.index, name)
    text = [
        f"{column!r} ({dtype})"
        for column, dtype in dtypes.items()
        if np.dtype(getattr(dtype, "numpy_dtype", _numpy_or_object(dtype))).kind not in "fiubc"
        and not str(dtype).startswith("decimal")  # Arrow's decimals become floats
    ]
    if text:
        raise ValueError(
            f"{name} has columns that are not numeric: {listed(text)}. Drop or encode them, or "
            "cluster parquet files or DataFrames by KMeans, PowerKMeans or EntropyPowerKMeans with "
            'distortion="mixed" (--distortion mixed).'
        )


def _numpy_or_object(dtype: Any) -> Any:
    return dtype if isinstance(dtype, np.dtype) else object


def _zarr_to_dask(store: Any, name: str) -> da.Array:
    """Return a zarr array as dask blocks of whole rows and whole chunks."""
    if store.ndim != 2:
        raise ValueError(
            f"Expected 2D array for {name}, got {store.ndim}D array instead. Reshape your data."
        )
    chunk_rows = (getattr(store, "shards", None) or store.chunks)[0]
    row_bytes = max(1, store.shape[1] * store.dtype.itemsize)
    n_bytes = store.shape[0] * row_bytes
    wanted = min(max(_ZARR_BLOCK_BYTES, n_bytes // _ZARR_BLOCKS), n_bytes // _FEW_BLOCKS)
    rows = max(1, wanted // (chunk_rows * row_bytes)) * chunk_rows
    meta = np.empty((0, 0), dtype=store.dtype)
    return da.from_array(StoredArray(store), (rows, store.shape[1]), name=False, meta=meta)


def layout_of(table: NDArray | da.Array, grid: Grid | None = None, least_rows: int = 1) -> Layout:
    """Return the layout of a table: the chunks of a dask array, or fixed rules for one in memory.

    `grid` is the grid of a table of pixels; `least_rows` is the least number of rows of a block in
    memory.
    """
    n_features = table.shape[1]
    if is_dask_array(table):
        counts = table.chunks[0]
        rows = None if np.isnan(counts).any() else tuple(int(count) for count in counts)
        stored = stored_per_row(table)
        return Layout(rows, len(counts), n_features, table.dtype, True, grid, stored)
    n_rows = len(table)
    n_blocks = _FEW_BLOCKS * max(1, n_rows // (_FEW_BLOCKS * _MEMORY_ROWS))
    enough = -(-n_rows // n_blocks)
    per_row, stored = _ROW_ELEMENTS + n_features, None
    if isinstance(table, SparseRows):
        stored = table.nnz / max(1, n_rows)
        per_row = _ROW_ELEMENTS + int(stored)
        # The work per block for the centres should be small compared with the work for its rows.
        enough = max(enough, _SPARSE_ENTRIES_PER_FEATURE * n_features // per_row)
    elif is_wide(n_rows, n_features):
        enough = max(enough, _WIDE_ROWS)
    size = max(least_rows, _MEMORY_ELEMENTS // per_row, enough, -(-n_rows // _MEMORY_BLOCKS))
    rows = tuple(min(size, n_rows - start) for start in range(0, n_rows, size))
    return Layout(rows, len(rows), n_features, table.dtype, False, stored=stored)


def row_blocks(
    table: NDArray | da.Array, grid: Grid | None = None, least_rows: int = 1
) -> RowBlocks:
    """Cut a table into blocks; a dask array must have one column of blocks. See `layout_of`."""
    layout = layout_of(table, grid, least_rows)
    if is_dask_array(table):
        return RowBlocks(table, layout, delayed_rows(table))
    return RowBlocks(table, layout, cut_rows(table, layout.rows))


def with_known_rows(table: da.Array, layout: Layout) -> da.Array:
    """Return a table whose chunks have the numbers of rows that a pass has counted."""
    assert layout.rows is not None
    return with_rows(table, layout.rows)


def cut_rows(array: NDArray, rows: tuple[int, ...] | None) -> tuple[NDArray, ...]:
    """Cut an array in memory into views with these numbers of rows."""
    if rows == (len(array),):
        return (array,)  # a slice of sparse rows would be a copy
    ends = np.cumsum([0, *(rows or ())])
    return tuple(array[start:stop] for start, stop in itertools.pairwise(ends))


class Position(NamedTuple):
    """Place and expected shape of a block."""

    block: int  # number of the block
    start: int  # number of rows in the blocks before it
    known: bool = True  # whether `start` is known
    # Expected rows and features; None if unknown.
    shape: tuple[int | None, int | None] = (None, None)
    # Positions of the blocks that this one joins, which are visited together.
    pieces: tuple[Position, ...] = ()
    window: Window | None = None  # place of the rows on a grid of pixels
    sparse: bool = False  # whether rows are sparse

    def numbers(self, n_rows: int) -> NDArray[np.int64]:
        """Return an index for each row in the whole table that does not depend on the blocks."""
        if self.window is None:
            return self.start + np.arange(n_rows)
        if not self.pieces:
            return self.window.numbers()
        return np.concatenate([piece.numbers(piece.shape[0] or 0) for piece in self.pieces])

    @property
    def described(self) -> str:
        """Name of the block or blocks, for messages."""
        last = self.pieces[-1].block if self.pieces else self.block
        return f"block {self.block}" if last == self.block else f"blocks {self.block} to {last}"

    def of_row(self, row: int) -> str:
        """Return the name of a row of the block, for messages."""
        if self.pieces:
            end = bisect.bisect_right(self.pieces, self.start + row, key=lambda each: each.start)
            piece = self.pieces[end - 1]
            return piece.of_row(self.start + row - piece.start)
        place = f"block {self.block}, row {row} of the block"
        if self.window is not None:
            return f"{place} ({self.window.described(row)})"
        return f"{place} (row {self.start + row} of the data)" if self.known else place


_FIRST = Position(0, 0)  # position of a table that is one block


@dataclass(frozen=True)
class Block:
    """Rows that are visited together, their sample weights, and their place in the table."""

    rows: Any  # an ndarray or SparseRows in the input's units and dtype, (n, n_features)
    weights: NDArray[np.float64] | None = None  # (n,); None if all are 1
    position: Position = _FIRST

    @property
    def masses(self) -> NDArray[np.float64]:
        """Sample weights, also if all are 1."""
        if self.weights is None:
            return np.ones(len(self.rows))
        return np.asarray(self.weights, dtype=np.float64)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Index of each row in the whole table, which does not depend on the blocks."""
        return self.position.numbers(len(self.rows))


def positions(layout: Layout) -> list[Position]:
    """Return the position of each block of a table."""
    p = layout.n_features
    if layout.rows is None:
        return [
            Position(block, 0, False, (None, p), sparse=layout.sparse)
            for block in range(layout.n_blocks)
        ]
    starts = itertools.accumulate(layout.rows, initial=0)
    windows = itertools.repeat(None) if layout.grid is None else layout.grid.windows()
    return [
        Position(block, start, True, (n, p), (), window, layout.sparse)
        for block, (start, n, window) in enumerate(zip(starts, layout.rows, windows, strict=False))
    ]


def visited_together(layout: Layout) -> list[range]:
    """Return ranges of consecutive blocks; a pass visits the blocks of each range in one call."""
    most = layout.n_blocks // _JOINED_BLOCKS
    if layout.rows is None or not layout.lazy or most < 2:
        return [range(block, block + 1) for block in range(layout.n_blocks)]
    spans = []
    start = elements = 0
    for block, rows in enumerate(layout.rows):
        more = rows * layout.width
        if block > start and (elements + more > _JOINED_ELEMENTS or block - start == most):
            spans.append(range(start, block))
            start, elements = block, 0
        elements += more
    return [*spans, range(start, layout.n_blocks)]


def joined(places: Sequence[Position]) -> Position:
    """Return the joint position of blocks that are visited together; their rows are known."""
    first = places[0]
    if len(places) == 1:
        return first
    rows = sum(place.shape[0] or 0 for place in places)
    return first._replace(shape=(rows, first.shape[1]), pieces=tuple(places))
