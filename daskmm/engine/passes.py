"""Passes: map a function over all blocks and tree-reduce the records, in block order."""

from __future__ import annotations

import functools
import operator
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.base import get_scheduler, named_schedulers
from dask.delayed import Delayed
from dask.system import CPU_COUNT
from dask.typing import Key
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from daskmm.data.blocks import Position, RowBlocks, positions, row_blocks
from daskmm.data.validation import (
    checked_rows,
    checked_weights,
    needs_row_counts,
    one_dimensional,
    with_weights,
)
from daskmm.engine.dask_private import Task
from daskmm.engine.distributed import (
    ATTEMPTS,
    LostFuturesError,
    client_of,
    computed,
    persist_on,
    reduce_on,
)
from daskmm.engine.graph import NAME, TaskGraph
from daskmm.engine.grouping import GROUPS_PER_THREAD, grouped_anywhere
from daskmm.engine.resources import memory_bytes, threads_here
from daskmm.engine.worker_task import Arguments, GroupQueue, merge, run_group, run_queue

Persist = bool | Literal["auto"]

# With persist="auto", data are persisted if this many times their size fits into memory.
_ROOM = 3


class Passes:
    """Makes passes over the blocks of one table, and counts them."""

    def __init__(self, blocks: RowBlocks) -> None:
        self.blocks = blocks
        self._n_passes = 0
        self._graph_of: tuple[RowBlocks, TaskGraph] | None = None
        # The lazy blocks, while they are persisted.
        self._streamed: RowBlocks | None = None

    @property
    def n_passes(self) -> int:
        """Number of passes so far; each loaded every block once."""
        return self._n_passes

    def add(self, n_passes: int) -> None:
        """Count passes made otherwise: by the run that is resumed, or without `reduce`."""
        self._n_passes += n_passes

    def reduce(self, function: Callable[..., Any], *shared: Any) -> Any:
        """Sum ``function(rows, weights, position, *shared)`` over all blocks.

        Blocks in memory are visited by threads of this process. Lazy ones go to the active dask
        scheduler in one compute, as a few tasks that load their blocks one by one.

        Parameters
        ----------
        function : callable
            Pure; returns a record with ``+``, also for a block without rows.
        *shared
            The same for every block.

        Returns
        -------
        record
            Merged in block order: the same blocks give the same bits.
        """
        self._n_passes += 1
        visit = functools.partial(_visit_block, function)
        if not self.blocks.layout.lazy:
            return _reduce_here(visit, self._arguments(), shared)
        name = function.__name__
        with one_blas_thread():
            for _ in range(ATTEMPTS - 1):
                try:
                    return reduce_graph(self._graph(), visit, shared, name)
                except LostFuturesError:
                    if self._streamed is None:
                        raise  # the caller persisted the data; they cannot be rebuilt here
                    # The cluster was restarted and has forgotten what it held.
                    streamed = replace(self._streamed, layout=self.blocks.layout)
                    self.blocks = _in_memory(streamed)
            return reduce_graph(self._graph(), visit, shared, name)

    def count_rows(self) -> None:
        """Count the rows of each block, where they are unknown, by a pass of its own."""
        if self.blocks.layout.rows is None:
            rows = tuple(self.reduce(_block_length))
            self.blocks = replace(self.blocks, layout=replace(self.blocks.layout, rows=rows))

    def weigh(self, sample_weight: Any) -> None:
        """Give every row a sample weight from now on.

        Rows are counted first where that is needed to cut the weights into blocks. Raise
        ValueError if they do not match the rows; their values are tested in every pass.

        Parameters
        ----------
        sample_weight : array-like, dask Array or dask Series of shape (n_rows,), number, or None
        """
        if sample_weight is None:
            return
        weights = one_dimensional(sample_weight, lazy=isinstance(self.blocks.table, da.Array))
        if needs_row_counts(weights):
            self.count_rows()
        self.blocks = with_weights(self.blocks, weights)

    @contextmanager
    def persisted(self, persist: Persist) -> Iterator[None]:
        """Keep the blocks and their weights in memory within the context.

        On a cluster its workers hold them, else this process does. They are released at the end,
        and blocks are streamed again. Enter it once the rows have their weights.

        Parameters
        ----------
        persist : bool or "auto"
            "auto" persists data of less than a third of the memory there is. Unknown rows are
            counted for that, by a pass of its own.
        """
        if persist == "auto" and self.blocks.layout.lazy:
            self.count_rows()
        streamed = self.blocks
        if streamed.layout.lazy and (_fits(streamed) if persist == "auto" else persist):
            with one_blas_thread():
                self.blocks = _in_memory(streamed)
            self._streamed = streamed
        try:
            yield
        finally:
            layout = self.blocks.layout
            self.blocks, self._graph_of = replace(streamed, layout=layout), None
            self._streamed = None

    def _graph(self) -> TaskGraph:
        if self._graph_of is None or self._graph_of[0] is not self.blocks:
            self._graph_of = self.blocks, TaskGraph(self._arguments(), self.blocks.table)
        return self._graph_of[1]

    def _arguments(self) -> list[tuple[Any, Any, Position]]:
        blocks = self.blocks
        places = positions(blocks.layout)
        return [(*own, place) for own, place in zip(blocks.pairs, places, strict=True)]


def weighted_passes(table: NDArray | da.Array, sample_weight: Any) -> Passes:
    """Return passes over a table with sample weights (or None), as `Passes.weigh` takes them."""
    passes = Passes(row_blocks(table))
    passes.weigh(sample_weight)
    return passes


def weights_in_memory(sample_weight: Any, n_rows: int) -> NDArray[np.float64]:
    """Return one checked sample weight per row, computed if they are lazy; 1 for None."""
    if sample_weight is None:
        return np.ones(n_rows)
    weights = one_dimensional(sample_weight, lazy=True)
    if weights.ndim == 0:
        weights = np.full(n_rows, weights)
    return checked_weights(computed(weights)[0], n_rows, Position(0, 0))


def _visit_block(
    function: Callable[..., Any], rows: Any, weights: Any, position: Position, *shared: Any
) -> Any:
    """Call a block function on rows and weights that have been checked."""
    rows = checked_rows(rows, position)
    if weights is not None:
        weights = checked_weights(weights, len(rows), position)
    return function(rows, weights, position, *shared)


def _block_length(rows: Any, weights: Any, position: Position) -> list[int]:
    return [len(rows)]


def tree_reduce(
    function: Callable[..., Any],
    arguments: Sequence[Arguments],
    shared: Arguments,
    lazy: bool,
    name: str,
) -> Any:
    """Sum ``function(*own, *shared)`` over the tuples in `arguments`, merged in order.

    Parameters
    ----------
    function : callable
    arguments : sequence of tuple
        Own arguments of each call; may hold Delayed where `lazy`.
    shared : tuple
        Arguments of all calls.
    lazy : bool
        Whether to run on the active dask scheduler, in one compute, or on threads here.
    name : str
        Of the tasks, as dask's dashboard shows them.
    """
    if not lazy:
        return _reduce_here(function, arguments, shared)
    with one_blas_thread():
        return reduce_graph(TaskGraph(arguments), function, shared, name)


def reduce_graph(
    graph: TaskGraph, function: Callable[..., Any], shared: Arguments, name: str
) -> Any:
    """Sum ``function(*own, *shared)`` over the calls of a graph, on the active scheduler.

    Records are merged by halves in the order of the calls, so that the bits do not depend on how
    calls are grouped. On a cluster, `ClusterLostError` and `DeadlyBlockError` may be raised.
    """
    schedule = get_scheduler(cls=Delayed)
    client = client_of(schedule)
    name = _unique(name)
    if client is not None:
        return reduce_on(client, graph, function, shared, name)
    n_threads = threads_here()
    tasks = graph.tasks(
        grouped_anywhere(len(graph.arguments), n_threads * GROUPS_PER_THREAD), False
    )
    if schedule not in (named_schedulers["threads"], named_schedulers["sync"]) or not tasks.alone:
        nodes, records = tasks.graph(name, run_group, (function, shared))
        return merge(schedule(nodes, records)).total
    queue = GroupQueue([group for group, _ in tasks.groups])
    keys: list[Key] = [(name, number) for number in range(min(n_threads, len(queue)))]
    try:
        nodes = {key: Task(key, run_queue, queue, function, shared) for key in keys}
        return merge(schedule(nodes, keys)).total
    finally:
        queue.close()  # also if the pass was interrupted


def _in_memory(blocks: RowBlocks) -> RowBlocks:
    """Compute lazy blocks, each once, and return them in memory.

    On a cluster they are futures: blocks stay with the workers that loaded them, and are released
    with the last reference.
    """
    graph = TaskGraph(blocks.pairs, blocks.table, "block")
    keys = graph.delayed_keys()
    values: dict[Key, Any] = dict(graph.futures)
    if keys:
        schedule = get_scheduler(cls=Delayed)
        client = client_of(schedule)
        if client is None:
            made = schedule(graph.closure(keys), keys)
        else:
            made = persist_on(client, graph, _unique("keep"))
        values |= zip(keys, made, strict=True)

    def held(item: Any) -> Any:
        if not isinstance(item, Delayed):
            return item
        value = values[item.key]
        is_future = hasattr(value, "client") and hasattr(value, "release")
        return Delayed(item.key, {item.key: value}) if is_future else value

    parts, weights = zip(*((held(rows), held(own)) for rows, own in blocks.pairs), strict=True)
    return replace(blocks, parts=parts, weights=None if blocks.weights is None else weights)


def _fits(blocks: RowBlocks) -> bool:
    layout = blocks.layout
    row_bytes = layout.bytes_per_row + (0 if blocks.weights is None else 8)
    return (layout.n_rows or 0) * row_bytes * _ROOM < memory_bytes()


def _unique(name: str) -> str:
    """Return a name for the tasks of one pass."""
    return f"{NAME}{name.strip('_').replace('_', '-')}-{uuid.uuid4().hex}"


def _reduce_here(
    function: Callable[..., Any], arguments: Sequence[Arguments], shared: Arguments
) -> Any:
    calls = [functools.partial(function, *own, *shared) for own in arguments]
    with one_blas_thread():
        # Merged as they come, so that few records are alive at once.
        return merge(run_on_threads(calls))


def run_on_threads(calls: Sequence[Callable[[], Any]]) -> Iterator[Any]:
    """Yield the results of some calls, in order, from as many threads as there are cores."""
    if len(calls) == 1:
        yield calls[0]()
        return
    with ThreadPoolExecutor(min(CPU_COUNT, len(calls))) as pool:
        yield from pool.map(operator.call, calls)


class _OneBlasThread:
    """Limits BLAS to one thread while anybody is inside.

    The limit holds for the process: the first to enter sets it, the last to leave lifts it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    @functools.cached_property
    def _threadpools(self) -> ThreadpoolController:
        return ThreadpoolController()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = self._threadpools.limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


_ONE_BLAS_THREAD = _OneBlasThread()


def one_blas_thread() -> _OneBlasThread:
    """Limit BLAS to one thread within a context, since blocks already occupy all cores."""
    return _ONE_BLAS_THREAD
