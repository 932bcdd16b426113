"""Passes: map a function over all blocks and tree-reduce the records, in block order."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import LazyModule, da, is_dask_array
from daskmm.data.blocks import (
    Block,
    Layout,
    Position,
    RowBlocks,
    float_dtype,
    joined,
    positions,
    row_blocks,
    visited_together,
)
from daskmm.data.errors import warn_user
from daskmm.data.grids import Grid
from daskmm.data.lazy import delayed_rows
from daskmm.data.validation import (
    checked_rows,
    checked_weights,
    needs_row_counts,
    one_dimensional,
    with_weights,
)
from daskmm.engine.changes import Totals, Watch, compare, have_finite_squares
from daskmm.engine.clients import active_client, computed
from daskmm.engine.merge_tree import Arguments, merge
from daskmm.engine.moments import Moments
from daskmm.engine.resources import memory_bytes
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.rows import Coordinates
from daskmm.numerics.sparse_rows import stacked

if TYPE_CHECKING:
    from daskmm.engine import scheduled
else:
    scheduled = LazyModule("daskmm.engine.scheduled")

Persist = bool | Literal["auto"]

# Data are persisted with persist="auto" if this many times their size fits into memory.
_ROOM = 3
# Bytes of the largest table that is loaded once into this process if loading it in each pass costs
# more.
LOADED_ONCE_BYTES = 64 << 20
# If a step has fewer products (rows × features × clusters), Python's work between compiled loops
# takes longer than the loops, and threads mostly wait for each other.
_FEW_PRODUCTS = 1 << 18

_SHUFFLED = (
    "Workers shuffle the rows of X again in every pass, as after set_index or merge, which takes "
    "most of the time of a fit. Write X to parquet files and fit to these{}."
)


class Passes:
    """Makes passes over the blocks of one table, and counts them.

    Empty rows of the distortion `family` (`Distortion.empty`) have weight 0; it is None if no row
    may be empty.
    """

    def __init__(self, blocks: RowBlocks, family: type[Distortion] | None = None) -> None:
        # The table gets row counts, weights and persisted blocks in the course of a fit.
        self.blocks = blocks
        self.known: Totals | None = None  # totals of the first pass; None before its end
        self._family = family
        self._watch: Watch | None = None
        self._some: NDArray[np.float64] | None = None
        self._n_passes = 0
        self._graph_of: tuple[RowBlocks, scheduled.TaskGraph] | None = None
        self._loaded_of: tuple[RowBlocks, list[Arguments]] | None = None
        # These are the lazy blocks, while they are persisted.
        self._streamed: RowBlocks | None = None

    @property
    def n_passes(self) -> int:
        """Number of passes so far, each of which loaded every block once."""
        return self._n_passes

    def add(self, n_passes: int) -> None:
        """Count passes that were made without `reduce`, or by a run that is resumed."""
        self._n_passes += n_passes

    def reduce(self, function: Callable[..., Any], *shared: Any) -> Any:
        """Sum ``function(block, *shared)`` over all blocks.

        The function is pure and returns a record with ``+``, also for a block without rows. Records
        are added in block order: the same blocks give the same bits. Threads of this process visit
        blocks in memory. The active dask scheduler visits lazy blocks in one compute, as a few
        tasks that load their blocks one by one; small blocks are visited together. Small tables are
        loaded into this process once if loading them in each pass costs more.

        It raises ValueError if a block cannot be used, or has changed since the first pass.
        """
        self._n_passes += 1
        layout, watch = self.blocks.layout, self._watch
        if cheaper_loaded_once(layout, _data_bytes(self.blocks)):
            return scheduled.reduce_loaded(function, self._loaded(), shared)
        if not layout.lazy:
            visit = functools.partial(_visit_blocks, self._family, watch, function)
            found = _reduce_here(visit, _arguments(self.blocks), shared)
        else:
            found = self._reduce_lazy(function, shared, watch)
        if watch is None:
            return found
        if self.known is None:
            self._some = found.some
        else:
            self.known.compare_some(found.some, self._n_passes)
        return found.record

    def watch(self, family: type[Distortion], partial: bool) -> None:
        """Begin the first pass, which tests all values; from now on every pass sums a few rows.

        Values must be in the domain of the distortion; with `partial`, NaN are missing values.
        """
        self._watch, self.known = Watch(family, partial), None

    def expect(self, moments: Moments) -> None:
        """End the first pass, which found these moments; later passes raise if data change."""
        assert self._watch is not None
        eps = float(np.finfo(float_dtype(self.blocks.layout.dtype)).eps)
        self._watch = replace(self._watch, later=True)
        self.known = Totals(moments, eps, self._some)

    def check_gathered(
        self, rows: NDArray[np.float64], weights: NDArray[np.float64], coordinates: Coordinates
    ) -> None:
        """Raise ValueError unless the given rows are those that the first pass read.

        All rows of the table are given, in the model's coordinates, with their sample weights.
        """
        assert self._watch is not None
        place = joined(positions(self.blocks.layout))._replace(sparse=False)
        if not have_finite_squares(checked_rows(rows, place)):
            self._watch.refuse_bad(Block(rows, weights, place))
        assert self.known is not None
        known, allowed = self.known.of_rows(coordinates)
        compare(known, np.append(weights @ rows, weights.sum()), allowed, self._n_passes + 1)

    def _reduce_lazy(
        self,
        function: Callable[..., Any],
        shared: Arguments,
        watch: Watch | None = None,
        schedule: Any = None,
    ) -> Any:
        """Sum over blocks that the active scheduler, or `schedule`, loads or holds."""
        visit = functools.partial(_visit_blocks, self._family, watch, function)
        name = function.__name__
        with one_blas_thread():
            for _ in range(scheduled.ATTEMPTS - 1):
                try:
                    return scheduled.reduce_graph(self._graph(), visit, shared, name, schedule)
                except scheduled.LostFuturesError:
                    if self._streamed is None:
                        raise  # the caller persisted the data, which cannot be rebuilt here
                    # The restarted cluster has lost the persisted blocks.
                    streamed = replace(self._streamed, layout=self.blocks.layout)
                    self.blocks = scheduled.in_memory(streamed)
            return scheduled.reduce_graph(self._graph(), visit, shared, name, schedule)

    def _loaded(self) -> list[Arguments]:
        """Return the checked block of each call, loaded on first use."""
        if self._loaded_of is None or self._loaded_of[0] is not self.blocks:
            # Starting processes takes longer than reading a small table here.
            here = scheduled.synchronous() if scheduled.by_processes() else None
            self._loaded_of = self.blocks, self._reduce_lazy(_as_list, (), schedule=here)
        return self._loaded_of[1]

    def count_rows(self) -> None:
        """Count the rows of each block in a pass of its own, if they are unknown."""
        if self.blocks.layout.rows is None:
            rows = tuple(self.reduce(_block_length))
            self.blocks = replace(self.blocks, layout=replace(self.blocks.layout, rows=rows))

    def weigh(self, sample_weight: Any) -> None:
        """Give every row a sample weight from now on.

        Rows are counted first if the weights cannot be cut into blocks otherwise. ValueError is
        raised if they do not match the rows; every pass tests their values.
        """
        if sample_weight is None:
            return
        weights = one_dimensional(sample_weight, lazy=is_dask_array(self.blocks.table))
        if needs_row_counts(weights):
            self.count_rows()
        self.blocks = with_weights(self.blocks, weights)

    @contextmanager
    def persisted(self, persist: Persist) -> Iterator[None]:
        """Keep the blocks and their weights in memory within the context.

        The workers of a cluster hold them; without a cluster, this process does. At the end of the
        context they are released, and blocks are streamed again. Set weights (`weigh`) before.
        "auto" persists data of less than a third of the available memory, for which unknown rows
        are counted in a pass of its own.
        """
        if persist == "auto" and self.blocks.layout.lazy:
            self.count_rows()
        streamed = self.blocks
        layout = streamed.layout
        wanted = layout.lazy and not cheaper_loaded_once(layout, _data_bytes(streamed))
        if wanted and (_fits(streamed) if persist == "auto" else persist):
            with one_blas_thread():
                self.blocks = scheduled.in_memory(streamed)
            self._streamed = streamed
        elif wanted and self._graph().is_shuffled:
            other = "" if persist == "auto" else ", or keep X in their memory by persist='auto'"
            warn_user(_SHUFFLED.format(other), UserWarning)
        try:
            yield
        finally:
            layout = self.blocks.layout
            self.blocks, self._graph_of = replace(streamed, layout=layout), None
            self._streamed = self._loaded_of = None

    def _graph(self) -> scheduled.TaskGraph:
        if self._graph_of is None or self._graph_of[0] is not self.blocks:
            spare = None
            if self._streamed is not None:
                streamed = replace(self._streamed, layout=self.blocks.layout)
                spare = functools.partial(_graph_of, streamed)
            self._graph_of = self.blocks, _graph_of(self.blocks, spare)
        return self._graph_of[1]


def weighted_passes(
    table: NDArray | da.Array,
    sample_weight: Any,
    grid: Grid | None = None,
    family: type[Distortion] | None = None,
) -> Passes:
    """Return passes over a table with sample weights (or None), as `Passes.weigh` takes them.

    With `family`, rows that have no distances by this distortion have no weight.
    """
    passes = Passes(row_blocks(table, grid), family)
    if family is None or is_dask_array(table):
        passes.weigh(sample_weight)
        return passes
    if (empty := family.empty(table)).any():
        sample_weight = np.where(empty, 0.0, weights_in_memory(sample_weight, len(table)))
    passes.weigh(sample_weight)
    return passes


def weights_in_memory(sample_weight: Any, n_rows: int) -> NDArray[np.float64]:
    """Return one checked sample weight per row; lazy ones are computed, and None means 1."""
    if sample_weight is None:
        return np.ones(n_rows)
    weights = one_dimensional(sample_weight, lazy=True)
    if is_dask_array(weights):
        weights = np.concatenate(computed(*delayed_rows(weights)))
    elif weights.ndim == 0:
        weights = np.full(n_rows, weights)
    return checked_weights(weights, n_rows, Position(0, 0))


def _visit_blocks(
    family: type[Distortion] | None,
    watch: Watch | None,
    function: Callable[..., Any],
    position: Position,
    *arguments: Any,
) -> Any:
    """Check the rows and weights of one or several blocks, join them, call a block function."""
    pieces = position.pieces or (position,)
    own, shared = arguments[: 2 * len(pieces)], arguments[2 * len(pieces) :]
    rows = [checked_rows(part, place) for part, place in zip(own[::2], pieces, strict=True)]
    weights = [
        checked_weights(part, len(block), place)
        for part, block, place in zip(own[1::2], rows, pieces, strict=True)
        if part is not None
    ]
    if len(pieces) > 1:
        rows, weights = [stacked(rows)], [np.concatenate(weights)] if weights else []
    if family is not None and (empty := family.empty(rows[0])).any():
        weights = [np.where(empty, 0.0, weights[0] if weights else 1.0)]
    block = Block(rows[0], weights[0] if weights else None, position)
    return function(block, *shared) if watch is None else watch.call(function, block, *shared)


def _graph_of(
    blocks: RowBlocks, spare: Callable[[], scheduled.TaskGraph] | None = None
) -> scheduled.TaskGraph:
    return scheduled.TaskGraph(_arguments(blocks), blocks.table, spare=spare)


def _arguments(blocks: RowBlocks) -> list[Arguments]:
    """Return the arguments of each call: its position, then rows and weights of its blocks."""
    pairs, places = blocks.pairs, positions(blocks.layout)
    return [
        (
            joined(places[span.start : span.stop]),
            *itertools.chain.from_iterable(pairs[span.start : span.stop]),
        )
        for span in visited_together(blocks.layout)
    ]


def _as_list(block: Block) -> list[Arguments]:
    return [(block,)]


def _block_length(block: Block) -> list[int]:
    return [len(block.rows)]


def tree_reduce(
    function: Callable[..., Any],
    arguments: Sequence[Arguments],
    shared: Arguments,
    lazy: bool,
    name: str,
    products: float = np.inf,
) -> Any:
    """Sum ``function(*own, *shared)`` over the tuples in `arguments`, merged in order.

    The function returns a record with ``+``. If `lazy`, own arguments may be Delayed, and the
    active dask scheduler runs the calls in one compute, as tasks of the given name; otherwise
    threads here do. `products` is the number of rows × features × clusters in the steps of the
    calls. If it is small, calls run one after the other on this thread, unless there is a cluster.
    """
    few = products < _FEW_PRODUCTS
    if not lazy or (few and active_client() is None):
        return _reduce_here(function, arguments, shared, in_turn=few)
    with one_blas_thread():
        return scheduled.reduce_graph(scheduled.TaskGraph(arguments), function, shared, name)


def _fits(blocks: RowBlocks) -> bool:
    return _data_bytes(blocks) * _ROOM < memory_bytes()


def _data_bytes(blocks: RowBlocks) -> int:
    """Return the size of rows and weights; 0 if unknown."""
    layout = blocks.layout
    return (layout.n_rows or 0) * (layout.bytes_per_row + (0 if blocks.weights is None else 8))


def cheaper_loaded_once(layout: Layout, n_bytes: int) -> bool:
    """Return whether to load a lazy table once, as it is small and each loading costs much.

    Opening a block costs a tenth of a millisecond, and sending data to other processes costs more
    than visiting them.
    """
    if not layout.lazy or layout.n_rows is None or n_bytes > LOADED_ONCE_BYTES:
        return False
    return scheduled.by_processes() or len(visited_together(layout)) < layout.n_blocks


def _reduce_here(
    function: Callable[..., Any],
    arguments: Sequence[Arguments],
    shared: Arguments,
    in_turn: bool = False,
) -> Any:
    calls = [functools.partial(function, *own, *shared) for own in arguments]
    with one_blas_thread():
        # Records are merged as they come, so that few are alive at once.
        return merge((call() for call in calls) if in_turn else run_on_threads(calls))
