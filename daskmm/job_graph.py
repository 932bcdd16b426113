"""Jobs on dask: few tasks per pass, each with many jobs, and no value made twice."""

from __future__ import annotations

import functools
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dask import config
from dask._task_spec import DataNode, GraphNode, Task, TaskRef, convert_legacy_graph
from dask.base import get_scheduler, is_dask_collection, named_schedulers
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from dask.typing import Key
from dask.utils import ensure_dict

from daskmm.job_groups import (
    Arguments,
    GroupQueue,
    closure,
    grouped,
    merge_pairwise,
    references,
    run_group,
    run_pickled,
    run_queue,
)

# Records merged by one task.
SPLIT_EVERY = 16
# Tasks per thread that jobs are grouped into, at least, where there are so many: few cost little,
# many share the work evenly. A task costs .1 ms on threads and 2 on a cluster.
GROUPS_PER_THREAD = 8
_GROUPS_PER_CLUSTER_THREAD = 4
# On a cluster, bytes of a kernel's shared arguments, or of a constant such as an open array, that
# are sent with every task; larger ones become a task of their own, and travel once per worker.
_INLINE_BYTES = 1 << 18

# Owner of a node that several groups need.
_SHARED = -1
Cuts = tuple[tuple[int, ...], ...]


class JobGraph:
    """Jobs, and the graph of what they need.

    Built once and run many times: what does not change from pass to pass is kept.

    Parameters
    ----------
    arguments : sequence of tuple
        Of each job; may hold Delayed.
    source : dask collection, optional
        What the Delayed were taken from. If it was persisted on a cluster, it knows the futures,
        which optimised graphs only refer to.
    """

    def __init__(self, arguments: Sequence[Arguments], source: Any = None) -> None:
        delayed = [item for own in arguments for item in own if isinstance(item, Delayed)]
        raw: dict[Key, Any] = {}
        for graph in {id(item.dask): item.dask for item in delayed}.values():
            raw.update(ensure_dict(graph))
        # A future is to a graph what a key is that is made elsewhere.
        self._futures = {
            future.key: future for future in (*_futures_in(raw.values()), *futures_of(source))
        }
        elsewhere: dict[Key, Any] = {key: TaskRef(key) for key in self._futures}
        self._nodes: dict[Key, GraphNode] = {
            key: node.substitute(elsewhere) if isinstance(node, Task) else node
            for key, node in convert_legacy_graph(raw).items()
        }
        self._arguments = [
            tuple(TaskRef(item.key) if isinstance(item, Delayed) else item for item in own)
            for own in arguments
        ]
        self._kept: tuple[tuple[Cuts, bool], _Tasks] | None = None

    def reduce(self, kernel: Callable[..., Any], shared: Arguments, name: str) -> Any:
        """Sum of ``kernel(*own, *shared)`` over all jobs, in one compute on the active scheduler.

        Merged in pairs in the order of the jobs, so that the bits do not depend on how jobs are
        grouped; except where blocks are held by the workers of a cluster, one group by each.

        Parameters
        ----------
        kernel : callable
        shared : tuple
        name : str
            Of the tasks, as dask's dashboard shows them.
        """
        schedule = get_scheduler(cls=Delayed)
        client = client_of(schedule)
        tasks = self._tasks(client)
        name = f"daskmm-{name}-{uuid.uuid4().hex}"
        if schedule in (named_schedulers["threads"], named_schedulers["sync"]) and tasks.alone:
            queue = GroupQueue([group for group, _ in tasks.groups])
            return _reduce_queue(schedule, queue, kernel, shared, name)
        graph = dict(tasks.between)
        if client is None:
            call: tuple[Any, ...] = (kernel, shared)
        else:
            call = (_inline_or_task(_pickled((kernel, shared)), f"{name}-shared", graph),)
        records: list[Key] = []
        for number, (group, inputs) in enumerate(tasks.groups):
            key = (name, number)
            run = run_group if client is None else run_pickled
            graph[key] = Task(key, run, group, *call, *map(TaskRef, inputs))
            records.append(key)
        return merge_pairwise(_run(schedule, graph, _merged(records, name, graph)))

    def values(self) -> dict[Key, Any]:
        """What the Delayed among the arguments stand for, by key and by one compute.

        On a cluster, futures, which keep the values where they were made.
        """
        schedule = get_scheduler(cls=Delayed)
        keys = [key for own in self._arguments for key in references(own) if key in self._nodes]
        options = {} if client_of(schedule) is None else {"sync": False}
        made = _run(schedule, closure(keys, self._nodes), keys, **options) if keys else ()
        return self._futures | dict(zip(keys, made, strict=True))

    def _tasks(self, client: Any) -> _Tasks:
        cuts = self._cuts(client)
        sign = (cuts, client is None)
        if self._kept is None or self._kept[0] != sign:
            self._kept = (sign, _Tasks(self._nodes, self._arguments, cuts, client is not None))
        return self._kept[1]

    def _cuts(self, client: Any) -> Cuts:
        """Which jobs are grouped."""
        n_jobs = len(self._arguments)
        if client is None:
            return aligned_cuts(n_jobs, _threads_here() * GROUPS_PER_THREAD)
        threads: dict[str, int] = client.nthreads()
        if not self._futures:
            return aligned_cuts(n_jobs, sum(threads.values()) * _GROUPS_PER_CLUSTER_THREAD)
        found = client.who_has(list(self._futures.values()))
        holders = [
            next((workers for key in keys if (workers := found.get(key))), ())
            for keys in self._futures_of_jobs
        ]
        return _cuts_by_holder(holders, threads)

    @functools.cached_property
    def _futures_of_jobs(self) -> list[list[Key]]:
        """Futures that each job needs, but for those that most jobs need.

        The latter (a mean, a model) do not say where the work should be done.
        """
        needed: list[list[Key]] = []
        for own in self._arguments:
            nodes = closure(references(own), self._nodes).values()
            keys = dict.fromkeys(references(own))
            keys.update(dict.fromkeys(key for node in nodes for key in node.dependencies))
            needed.append([key for key in keys if key in self._futures])
        users = Counter(key for keys in needed for key in keys)
        most = max(2, len(needed) // 2)
        return [[key for key in keys if users[key] <= most] for keys in needed]


def _threads_here() -> int:
    return int(config.get("num_workers", None) or CPU_COUNT)


def _reduce_queue(
    schedule: Callable[..., Any],
    queue: GroupQueue,
    kernel: Callable[..., Any],
    shared: Arguments,
    name: str,
) -> Any:
    """Sum over groups, by one task for each thread of this process."""
    keys: list[Key] = [(name, number) for number in range(min(_threads_here(), len(queue)))]
    graph = {key: Task(key, run_queue, queue, kernel, shared) for key in keys}
    try:
        records = {
            number: record for found in schedule(graph, keys) for number, record in found.items()
        }
    finally:
        queue.close()  # where the pass was interrupted
    return merge_pairwise(records[number] for number in range(len(queue)))


def _run(
    schedule: Callable[..., Any], graph: dict[Key, GraphNode], keys: list[Key], **options: Any
) -> Any:
    if client_of(schedule) is None:
        return schedule(graph, keys, **options)
    # A plain dict would be tokenized, all of it, before it is sent.
    layers = HighLevelGraph.from_collections(str(keys[0]), graph, dependencies=())
    return schedule(layers, keys, **options)


def client_of(schedule: Callable[..., Any]) -> Any:
    """The distributed client that a scheduler function belongs to, or None."""
    distributed = sys.modules.get("distributed")
    owner = getattr(schedule, "__self__", None)
    return owner if distributed is not None and isinstance(owner, distributed.Client) else None


def futures_of(source: Any) -> list[Any]:
    """Futures of a collection that was persisted on a cluster."""
    distributed = sys.modules.get("distributed")
    if distributed is None or not is_dask_collection(source):
        return []
    return list(distributed.futures_of(source))


def _pickled(value: Any) -> bytes:
    """As distributed pickles: functions of an interactive session by value."""
    from distributed.protocol.pickle import dumps

    return bytes(dumps(value))


def _futures_in(nodes: Iterable[Any]) -> Iterator[Any]:
    """Futures that stand in a graph, for a node or among the arguments of one."""
    for node in nodes:
        candidates = (*node.args, *node.kwargs.values()) if isinstance(node, Task) else (node,)
        yield from (item for item in candidates if _is_future(item))


def _is_future(item: Any) -> bool:
    return isinstance(item, TaskRef) and type(item) is not TaskRef


def aligned_cuts(n_jobs: int, least: int) -> Cuts:
    """Groups of 2^j consecutive jobs: at least so many, less than twice as many, if there are."""
    size = 1
    while n_jobs >= 2 * size * max(least, 1):
        size *= 2
    return tuple(tuple(range(start, min(start + size, n_jobs))) for start in range(0, n_jobs, size))


def _cuts_by_holder(holders: Sequence[Sequence[str]], threads: Mapping[str, int]) -> Cuts:
    """A group for each thread of each worker, of the jobs whose data it holds.

    Jobs whose data nobody holds (any more) are grouped as if they were streamed.
    """
    held: dict[str, list[int]] = {}
    lost: list[int] = []
    for job, workers in enumerate(holders):
        known = [worker for worker in workers if worker in threads]
        if known:
            worker = min(known, key=lambda name: (len(held.get(name, ())), name))
            held.setdefault(worker, []).append(job)
        else:
            lost.append(job)
    cuts = [
        tuple(lost[place] for place in cut)
        for cut in aligned_cuts(len(lost), sum(threads.values()) * _GROUPS_PER_CLUSTER_THREAD)
    ]
    for worker, jobs in held.items():
        size = -(-len(jobs) // threads[worker])
        cuts += [tuple(jobs[start : start + size]) for start in range(0, len(jobs), size)]
    return tuple(sorted(cuts))


def _inline_or_task(value: bytes, key: str, graph: dict[Key, GraphNode]) -> Any:
    if len(value) <= _INLINE_BYTES:
        return value
    graph[key] = DataNode(key, value)
    return TaskRef(key)


def _merged(records: list[Key], name: str, graph: dict[Key, GraphNode]) -> list[Key]:
    """Add tasks that merge records, until at most SPLIT_EVERY are left; their keys."""
    level = 0
    while len(records) > SPLIT_EVERY:
        level += 1
        merged: list[Key] = []
        for start in range(0, len(records), SPLIT_EVERY):
            key = (f"{name}-merge", level, start)
            graph[key] = Task(key, _merge_all, *map(TaskRef, records[start : start + SPLIT_EVERY]))
            merged.append(key)
        records = merged
    return records


def _merge_all(*records: Any) -> Any:
    return merge_pairwise(records)


class _Tasks:
    """Groups of jobs as tasks, and the tasks between them.

    A node that only one group needs runs inside that group's task, when its job comes; one that
    several need is a task as it is in the graph.

    Attributes
    ----------
    groups : list of (JobGroup or bytes, tuple of keys)
        Pickled for a cluster; with the keys of its inputs.
    between : dict
        Nodes that several groups need, and all that these need.
    alone : bool
        Whether no group has inputs.
    """

    def __init__(
        self,
        nodes: dict[Key, GraphNode],
        arguments: Sequence[Arguments],
        cuts: Cuts,
        pickled: bool,
    ) -> None:
        self._nodes = nodes
        self._owner: dict[Key, int] = {}
        for number, cut in enumerate(cuts):
            self._own(number, [key for job in cut for key in references(arguments[job])])
        self._small = {
            key
            for key, owner in self._owner.items()
            if owner == _SHARED
            and isinstance(nodes[key], DataNode)
            and (not pickled or len(_pickled(nodes[key])) <= _INLINE_BYTES)
        }
        groups = [
            grouped([arguments[job] for job in cut], nodes, functools.partial(self._inside, number))
            for number, cut in enumerate(cuts)
        ]
        self.between = closure([key for group in groups for key in group.inputs], nodes)
        self.alone = not any(group.inputs for group in groups)
        self.groups: list[tuple[Any, tuple[Key, ...]]] = [
            (_pickled(group) if pickled else group, group.inputs) for group in groups
        ]

    def _own(self, number: int, keys: list[Key]) -> None:
        """Give a group what these keys need; what another has already, both share."""
        while keys:
            key = keys.pop()
            owner = self._owner.get(key)
            if key not in self._nodes or owner in (number, _SHARED):
                continue
            self._owner[key] = number if owner is None else _SHARED
            keys.extend(self._nodes[key].dependencies)

    def _inside(self, number: int, key: Key) -> bool:
        return self._owner.get(key) == number or key in self._small
