"""Rows for kernels: in memory, or loaded again in each task."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from daskmm.data.blocks import Layout, Position, positions, row_blocks, with_known_rows
from daskmm.data.lazy import delayed_blocks
from daskmm.engine.changes import have_finite_squares
from daskmm.engine.distributed import computed
from daskmm.engine.graph import TaskGraph, futures_of
from daskmm.engine.passes import one_blas_thread, reduce_graph, tree_reduce
from daskmm.numerics.rows import Coordinates
from daskmm.numerics.sparse_rows import first_entry

FloatArray = NDArray[np.float64]

# Lazy rows of at most this many bytes (as float64) are loaded into memory.
GATHERED_BYTES = 512 << 20
# Bytes of consecutive lazy rows that a task loads at once.
STRETCH_BYTES = 64 << 20
# Two sums of the same rows differ by less than this share of the root of their sum of squares.
_SAME = 1e-6


@dataclass(frozen=True)
class Stretch:
    """Consecutive rows of a lazy table, which a task loads."""

    table: da.Array  # rows in the kernels' units, (n_rows, n_features)
    held: bool  # whether a cluster holds their blocks
    rows: slice  # numbers of the rows in the whole table
    # Sums of the rows, (2, n_features), as `totals_of` returns them; None before the rows are first
    # read.
    known: FloatArray | None = None

    def load(self) -> FloatArray:
        """Load the rows, in this thread unless a cluster holds them.

        ValueError is raised if they have changed since the first pass or an earlier read.
        """
        try:
            found = np.asarray(self.table.compute(scheduler=None if self.held else "sync"))
        except Exception as error:
            error.add_note(
                f"This error was raised while rows {self.rows.start} to {self.rows.stop - 1} were "
                "read."
            )
            raise
        self._check(found)
        return found

    def _check(self, found: FloatArray) -> None:
        first, n = self.rows.start, self.rows.stop - self.rows.start
        changed = f"X has changed since the first pass, in rows {first} to {first + n - 1}: "
        if len(found) != n:
            raise ValueError(f"{changed}they are {len(found)} rows now.")
        if not have_finite_squares(found):
            with np.errstate(over="ignore", invalid="ignore"):
                row, feature = first_entry(~np.isfinite(np.square(found)))
            raise ValueError(
                f"{changed}row {first + row} of the data has {found[row, feature]:.6g} in "
                f"feature {feature}, in the kernel's units. It was finite, with its square."
            )
        if self.known is not None:
            sums, squares = self.known
            allowed = _SAME * (np.sqrt(n * squares) + np.abs(sums))
            if not (np.abs(totals_of(found)[0] - sums) <= allowed).all():
                raise ValueError(f"{changed}their sum is different.")


class StreamedRows:
    """Rows of a lazy table, which are never in memory together."""

    def __init__(self, table: da.Array) -> None:
        self.table = table  # rows in the kernels' units, (n_rows, n_features), float64
        self.n_reads = 0  # reads of the whole table, not counting sweeps of recomputed matrices
        self._held = bool(futures_of(table))
        # Sums of all rows, (n_features,); None before they are first read.
        self.sums: FloatArray | None = None
        self._known: dict[tuple[int, int], FloatArray] = {}
        self._stretches: dict[tuple[int, int], Stretch] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and features."""
        n_rows, n_features = self.table.shape
        return n_rows, n_features

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Stretch | FloatArray:
        """Return consecutive rows, to be loaded later, or the loaded rows of an index array."""
        if not isinstance(rows, slice):
            self.n_reads += 1
            blocks = delayed_blocks(self.table, together=self._held)
            return entries(blocks, self.table.chunks, (rows, None))
        key = (rows.start, rows.stop)
        if key not in self._stretches:
            # Optimising leaves out the graph nodes of other rows, but a cluster's futures would be
            # lost.
            table = self.table[rows]
            some = table if self._held else dask.optimize(table)[0]
            self._stretches[key] = Stretch(some, self._held, rows, self._known.get(key))
        return self._stretches[key]

    def expect(self, cuts: Sequence[slice], totals: Sequence[FloatArray]) -> None:
        """Keep the sums of the rows of each cut; a later read with other sums raises an error."""
        if self.sums is None:
            self.sums = np.sum([sums for sums, _ in totals], axis=0)
        for cut, found in zip(cuts, totals, strict=True):
            key = (cut.start, cut.stop)
            self._known[key] = found
            self._stretches.pop(key, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_stretches": {}}


def entries(
    blocks: NDArray[np.object_],
    chunks: tuple[tuple[int, ...], ...],
    wanted: tuple[NDArray[np.int_] | None, NDArray[np.int_] | None],
) -> FloatArray:
    """Return the entries of a lazy matrix in some rows and columns (None for all).

    Only the blocks that contain such entries are loaded. dask's expressions do not support index
    arrays.
    """
    axes = [
        np.arange(sum(sizes)) if index is None else np.asarray(index)
        for sizes, index in zip(chunks, wanted, strict=True)
    ]
    ends = [np.cumsum([0, *sizes]) for sizes in chunks]
    found = np.empty([len(index) for index in axes])
    owners = [
        np.searchsorted(e, index, side="right") - 1 for e, index in zip(ends, axes, strict=True)
    ]
    places, parts = [], []
    for i, j in itertools.product(*(np.unique(owner) for owner in owners)):
        rows, columns = np.flatnonzero(owners[0] == i), np.flatnonzero(owners[1] == j)
        inside = np.ix_(axes[0][rows] - ends[0][i], axes[1][columns] - ends[1][j])
        places.append(np.ix_(rows, columns))
        parts.append(delayed(operator.getitem)(blocks[i, j], inside))
    for place, part in zip(places, computed(*parts), strict=True):
        found[place] = part
    return found


KernelRows = FloatArray | StreamedRows


def kernel_rows(table: NDArray | da.Array, layout: Layout, coordinates: Coordinates) -> KernelRows:
    """Return the rows of a table in the kernels' units, in memory unless there are too many.

    The layout must have known numbers of rows.
    """
    if not isinstance(table, da.Array) or not are_streamed(layout):
        return coordinates.to_model(_gathered(table))
    map_blocks: Callable[..., da.Array] = with_known_rows(table, layout).map_blocks
    return StreamedRows(map_blocks(coordinates.to_model, dtype=np.float64, meta=np.empty((0, 0))))


def _gathered(table: NDArray | da.Array) -> NDArray:
    """Return all rows of a table in memory, loaded block by block."""
    if not isinstance(table, da.Array):
        return np.asarray(table)
    blocks = row_blocks(table)
    own = [*zip(positions(blocks.layout), blocks.parts, strict=True)]
    with one_blas_thread():
        found = reduce_graph(TaskGraph(own, table), _rows_of_block, (), "kernel-rows")
    return np.concatenate(found)


def _rows_of_block(position: Position, rows: Any) -> list[NDArray]:
    return [np.asarray(rows)]


def opened_rows(rows: FloatArray | da.Array) -> KernelRows:
    """Return rows in the kernels' units as an array or as `StreamedRows`."""
    return StreamedRows(rows) if isinstance(rows, da.Array) else rows


def are_streamed(layout: Layout) -> bool:
    """Return whether the rows of a table with this layout are too many for memory."""
    return layout.lazy and 8 * (layout.n_rows or 0) * layout.n_features > GATHERED_BYTES


def loaded(part: FloatArray | Stretch) -> FloatArray:
    """Return consecutive rows in memory."""
    return part.load() if isinstance(part, Stretch) else part


def totals_of(rows: FloatArray) -> FloatArray:
    """Return the sum and the sum of squares of each feature."""
    return np.array([rows.sum(axis=0), np.einsum("il,il->l", rows, rows)])


def over_rows(
    function: Any, rows: KernelRows, cuts: Iterable[slice], *shared: Any
) -> tuple[Any, ...]:
    """Return ``function(rows[cut], *shared)`` for each cut, in order; the rows are read once."""
    cuts = list(cuts)
    tasks = [(rows[cut],) for cut in cuts]
    lazy = isinstance(rows, StreamedRows)
    found: list[Any] = tree_reduce(_of_part, tasks, (function, shared), lazy, "kernel-rows")
    if isinstance(rows, StreamedRows):
        rows.n_reads += 1
        rows.expect(cuts, [totals for _, totals in found])
    return tuple(value for value, _ in found)


def _of_part(part: FloatArray | Stretch, function: Any, shared: tuple[Any, ...]) -> list[Any]:
    rows = loaded(part)
    totals = None
    if isinstance(part, Stretch):
        totals = totals_of(rows) if part.known is None else part.known
    return [(function(rows, *shared), totals)]
