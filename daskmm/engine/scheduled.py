"""Make passes over lazy blocks by the active scheduler of dask."""

from __future__ import annotations

import functools
import operator
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dask.base import get_scheduler, named_schedulers
from dask.delayed import Delayed
from dask.typing import Key

from daskmm.data.blocks import Position, RowBlocks, positions
from daskmm.data.dask_private import Task, TaskRef
from daskmm.engine.clients import active_client, client_of
from daskmm.engine.distributed import ATTEMPTS, LostFuturesError, persist_on, reduce_on
from daskmm.engine.graph import NAME, TaskGraph
from daskmm.engine.grouping import GROUPS_PER_THREAD, consecutive_groups, without_data
from daskmm.engine.merge_tree import Arguments, merge
from daskmm.engine.resources import threads_here
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.engine.worker_task import GroupQueue, PartialSums, run_group, run_queue

__all__ = [
    "ATTEMPTS",
    "LostFuturesError",
    "TaskGraph",
    "by_processes",
    "in_memory",
    "reduce_graph",
    "reduce_loaded",
]


def reduce_graph(
    graph: TaskGraph,
    function: Callable[..., Any],
    shared: Arguments,
    name: str,
    schedule: Any = None,
) -> Any:
    """Sum ``function(*own, *shared)`` over the calls of a graph, on the active scheduler.

    Records are merged along a binary tree of the calls, so that the bits do not depend on the
    grouping of calls. On a cluster, `ClusterLostError` and `DeadlyBlockError` may be raised.
    `schedule` is a scheduler function that replaces the active one.
    """
    schedule = schedule or get_scheduler(cls=Delayed)
    if schedule is named_schedulers["processes"] and not graph.nodes:
        # All data are in this process.
        return reduce_loaded(function, graph.arguments, shared)
    client = client_of(schedule)
    name = _unique(name)
    if client is not None:
        return reduce_on(client, graph, function, shared, name)
    n_threads = threads_here()
    groups = consecutive_groups(len(graph.arguments), n_threads * GROUPS_PER_THREAD)
    tasks = graph.tasks(without_data(groups), False)
    if schedule not in (named_schedulers["threads"], named_schedulers["sync"]) or not tasks.alone:
        nodes, records = tasks.graph(name, run_group, (function, shared))
        return merge(schedule(nodes, records, **graph.processes(schedule))).total
    queue = GroupQueue([group for group, _ in tasks.groups])
    keys: list[Key] = [(name, number) for number in range(min(n_threads, len(queue)))]
    try:
        nodes = {key: Task(key, run_queue, queue, function, shared) for key in keys}
        return merge(schedule(nodes, keys)).total
    finally:
        queue.close()  # this ends the tasks of an interrupted pass, too


def reduce_loaded(
    function: Callable[..., Any], arguments: Sequence[Arguments], shared: Arguments
) -> Any:
    """Sum over data in this process, in the order of a scheduler, so that bits are equal."""
    calls = [functools.partial(function, *own, *shared) for own in arguments]
    with one_blas_thread():
        found = enumerate(run_on_threads(calls))
        return merge(PartialSums.of(call, record, len(calls)) for call, record in found).total


def in_memory(blocks: RowBlocks) -> RowBlocks:
    """Compute lazy blocks, each once, and return them in memory.

    On a cluster they become futures: blocks stay with the workers that loaded them, and are
    released with the last reference.
    """
    client = active_client()
    if client is None:
        pairs = _loaded_pairs(blocks)
    else:
        graph = TaskGraph(blocks.pairs, blocks.table, "block")
        values: dict[Key, Any] = {
            key: Delayed(key, {key: future}) for key, future in graph.futures.items()
        }
        if any(own.key in graph.nodes for owns in graph.references for own in owns):
            values |= _kept(persist_on(client, graph, _unique("keep")))
        pairs = [
            tuple(values[item.key] if isinstance(item, Delayed) else item for item in pair)
            for pair in blocks.pairs
        ]
    parts, weights = zip(*pairs, strict=True)
    return replace(blocks, parts=parts, weights=None if blocks.weights is None else weights)


def _loaded_pairs(blocks: RowBlocks) -> list[tuple[Any, ...]]:
    """Return rows and weights of each block, loaded by the active scheduler."""
    places = positions(blocks.layout)
    own = [(place, *pair) for place, pair in zip(places, blocks.pairs, strict=True)]
    found: list[tuple[Any, ...]] = reduce_graph(
        TaskGraph(own, blocks.table), _rows_and_weights, (), "keep"
    )
    return found


def _rows_and_weights(position: Position, rows: Any, weights: Any) -> list[tuple[Any, ...]]:
    return [(rows, weights)]


def _kept(places: dict[Key, tuple[Any, int]]) -> dict[Key, Delayed]:
    """Return the values in the packs of `persist_on`, by key."""
    # All values share one graph, so dask searches it only once.
    graph: dict[Key, Any] = {pack.key: pack for pack, _ in places.values()}
    taken: dict[Key, Delayed] = {}
    for number, (key, (pack, place)) in enumerate(places.items()):
        item = (f"{pack.key[0]}-item", number)
        graph[item] = Task(item, operator.getitem, TaskRef(pack.key), place)
        taken[key] = Delayed(item, graph)
    return taken


def by_processes() -> bool:
    """Return whether dask's local process scheduler is active."""
    return bool(get_scheduler(cls=Delayed) is named_schedulers["processes"])


def _unique(name: str) -> str:
    """Return a unique name for the tasks of a pass."""
    return f"{NAME}{name.strip('_').replace('_', '-')}-{uuid.uuid4().hex}"


def synchronous() -> Any:
    """Return dask's scheduler that computes in this thread."""
    return named_schedulers["sync"]
