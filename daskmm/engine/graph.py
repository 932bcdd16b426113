"""The dask graph of a pass: few tasks, each of many calls, in which no value is made twice."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from dask import config, multiprocessing
from dask.base import is_dask_collection, named_schedulers
from dask.blockwise import Blockwise
from dask.delayed import Delayed
from dask.typing import Key

from daskmm._dask import cpu_count
from daskmm.data.dask_private import (
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    convert_legacy_graph,
    futures_in,
)
from daskmm.engine.group_making import make_group, references_of
from daskmm.engine.grouping import Grouping
from daskmm.engine.merge_tree import SPLIT_EVERY, Arguments, merge
from daskmm.engine.worker_task import n_records, packed, pickled

# Arguments and constants (such as an open array) of more bytes become tasks of their own on a
# cluster: they are sent once per worker, not with every task.
_INLINE_BYTES = 1 << 18

# A task leaves records unmerged so that the bits of a total do not depend on the grouping. This is
# the largest number of large records per thread that it may leave: more would fill the memory of a
# worker, and take long to send.
_FEW_RECORDS = 2

# Prefix of the names of tasks.
NAME = "daskmm-"
# Owner of a node that several groups need.
_SHARED = -1
# Numbers in the names of tasks count down from here: `dask.order` starts with the last name, and
# the first groups, which are the largest, should start first.
_COUNTDOWN = 10**9 - 1


class TaskGraph:
    """The calls of a pass, and the nodes that make their arguments.

    A graph is built once and run many times: tasks are kept from pass to pass. Each call has its
    own arguments, which may be Delayed of the collection `source`. If that was persisted on a
    cluster, it holds the futures; optimised graphs only contain their keys. `noun` is the word for
    a call in messages, if its arguments have no attribute `described`. `spare` returns a graph of
    the same calls that loads the data again instead of using the persisted data of this graph.
    """

    def __init__(
        self,
        arguments: Sequence[Arguments],
        source: Any = None,
        noun: str = "task",
        spare: Callable[[], TaskGraph] | None = None,
    ) -> None:
        self._noun = noun
        self._spare = spare
        delayed = [item for own in arguments for item in own if isinstance(item, Delayed)]
        raw: dict[Key, Any] = {}
        for graph in {id(item.dask): item.dask for item in delayed}.values():
            raw.update(graph)
        self.futures = {
            future.key: future for future in (*futures_in(raw.values()), *futures_of(source))
        }
        # The graph contains only the key of a future; its value is computed elsewhere.
        elsewhere: dict[Key, Any] = {key: TaskRef(key) for key in self.futures}
        self.nodes: dict[Key, GraphNode] = {
            key: _named(key, node.substitute(elsewhere) if isinstance(node, Task) else node)
            for key, node in convert_legacy_graph(raw).items()
        }
        # These are the own arguments of each call, with a `TaskRef` for each Delayed.
        self.arguments = [
            tuple(TaskRef(item.key) if isinstance(item, Delayed) else item for item in own)
            for own in arguments
        ]
        self.latest: GroupTasks | None = None
        # This is the client of a cluster whose workers hold all data of the latest tasks.
        self.home: Any = None
        self.seconds = math.inf  # duration of the latest pass over a cluster
        self._pool: Any = None
        self._latest_of: tuple[Grouping, bool] | None = None

    @functools.cached_property
    def spare(self) -> TaskGraph:
        """The graph from which other workers make calls that a slow worker gives up."""
        return self if self._spare is None else self._spare()

    def tasks(self, grouping: Grouping, pickle: bool) -> GroupTasks:
        """Return the tasks of a grouping; the latest ones are kept."""
        if self.latest is None or self._latest_of != (grouping, pickle):
            self.latest = GroupTasks(self.nodes, self.arguments, grouping, pickle)
        self._latest_of, self.home = (grouping, pickle), None
        return self.latest

    @functools.cached_property
    def is_shuffled(self) -> bool:
        """Whether calls need partitions that workers shuffle."""
        return bool(_shuffled(self.nodes))

    @property
    def kept_by_user(self) -> bool:
        """Whether the user persisted data, in any distribution over the workers."""
        return bool(self.futures) and self._spare is None

    def processes(self, schedule: Any) -> dict[str, Any]:
        """Return options of dask's process scheduler, with processes that live as long as this.

        Without these options dask starts processes for each pass, which takes seconds. There are no
        options for other schedulers, or if dask's configuration says how to start processes.
        """
        configured = config.get("pool", None) or config.get("multiprocessing.initializer", None)
        if schedule is not named_schedulers["processes"] or configured is not None:
            return {}
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                config.get("num_workers", None) or cpu_count(),
                mp_context=multiprocessing.get_context(),
                initializer=multiprocessing.initialize_worker_process,
            )
        return {"pool": self._pool}

    @property
    def references(self) -> list[list[TaskRef]]:
        """References among the arguments of each call."""
        return [[item for item in own if isinstance(item, TaskRef)] for own in self.arguments]

    def described(self, call: int) -> str:
        """Return the name of a call for messages, as its arguments or `noun` describe it."""
        found = [own.described for own in self.arguments[call] if hasattr(own, "described")]
        return str(found[0]) if found else f"{self._noun} {call}"

    @functools.cached_property
    def futures_of_calls(self) -> list[list[Key]]:
        """Futures that each call needs, except the futures that most calls need.

        The latter (a mean, a model) do not determine where the work should be done.
        """
        needed: list[list[Key]] = []
        for own in self.arguments:
            keys = dict.fromkeys(references_of(own))
            nodes = _closure(keys, self.nodes).values()
            keys.update(dict.fromkeys(key for node in nodes for key in node.dependencies))
            needed.append([key for key in keys if key in self.futures])
        users = Counter(key for keys in needed for key in keys)
        most = max(2, len(needed) // 2)
        return [[key for key in keys if users[key] <= most] for keys in needed]


class GroupTasks:
    """Groups of calls as tasks, and the tasks that they share.

    A node that only one group needs runs inside that group's task, right before its call; one that
    several groups need remains a task of its own, and so do the nodes of a shuffle between workers:
    dask's scheduler decides on which worker each of its partitions arrives.
    """

    def __init__(
        self,
        nodes: dict[Key, GraphNode],
        arguments: Sequence[Arguments],
        grouping: Grouping,
        pickle: bool,
    ) -> None:
        self.calls = grouping.groups  # numbers of the calls of each group
        self._n_calls = len(arguments)
        self._nodes = nodes
        self._owner: dict[Key, int] = {}
        self._own(_SHARED, _shuffled(nodes))
        queues = grouping.queues
        self._n_queues = [len(own) for own in queues]
        # Queues have consecutive numbers; each owns the nodes that only its own calls need.
        firsts = [0, *itertools.accumulate(map(len, queues))]
        for number, calls in enumerate(itertools.chain.from_iterable(queues)):
            self._own(number, [key for call in calls for key in references_of(arguments[call])])
        self._small = {
            key
            for key, owner in self._owner.items()
            if owner == _SHARED
            and isinstance(nodes[key], DataNode)
            and (not pickle or len(pickled(nodes[key])) <= _INLINE_BYTES)
        }
        inside = [functools.partial(self._inside, number) for number in range(firsts[-1])]
        groups = [
            make_group(own, arguments, nodes, inside[first : first + len(own)], persisted)
            for own, persisted, first in zip(queues, grouping.persisted, firsts, strict=False)
        ]
        self._shared = _closure([key for group in groups for key in group.inputs], nodes)
        self.alone = not any(group.inputs for group in groups)
        # These are the groups, pickled for a cluster, with the keys of their inputs.
        self.groups: list[tuple[Any, tuple[Key, ...]]] = [
            (packed(group) if pickle else group, group.inputs) for group in groups
        ]

    @functools.cached_property
    def are_scattered(self) -> bool:
        """Whether many records stay unmerged because few calls of a group are neighbours."""
        return any(
            n_records(calls, self._n_calls) > _FEW_RECORDS * n_queues
            for calls, n_queues in zip(self.calls, self._n_queues, strict=True)
        )

    def graph(
        self, name: str, run: Callable[..., Any], call: tuple[Any, ...]
    ) -> tuple[dict[Key, GraphNode], list[Key]]:
        """Return the tasks ``run(group, *call, *inputs)`` of a pass, and the keys of its records.

        If there are many records, tasks merge them too.
        """
        graph, records = self.runs(name, run, call)
        # dask first starts the tasks of the merge with the most records, in any order. The largest
        # tasks should start first, so one merge joins only these, and no other merge has more
        # records.
        least = max(map(len, self.calls), default=0) // 2
        n_large = next((n for n, calls in enumerate(self.calls) if len(calls) <= least), 0)
        return graph, _merged(records, name, graph, SPLIT_EVERY, SPLIT_EVERY, n_large)

    def runs(
        self, name: str, run: Callable[..., Any], call: tuple[Any, ...]
    ) -> tuple[dict[Key, GraphNode], list[Key]]:
        """Return the tasks ``run(group, *call, *inputs)``, and their keys."""
        graph = dict(self._shared)
        records: list[Key] = []
        for number, (group, inputs) in enumerate(self.groups):
            key = (name, _COUNTDOWN - number)
            needs = map(TaskRef, inputs)
            # These tasks are spread over the workers; dask would give all tasks with one input to
            # the worker that holds it.
            spread = all(need in self._nodes for need in inputs)
            graph[key] = Task(key, run, group, *call, *needs, _data_producer=spread)
            records.append(key)
        return graph, records

    def graph_of_total(
        self, name: str, run: Callable[..., Any], call: tuple[Any, ...]
    ) -> tuple[dict[Key, GraphNode], list[Key]]:
        """Return tasks as `graph` does, and merge large records in pairs until one key is left."""
        graph, records = self.runs(name, run, call)
        return graph, _merged(records, name, graph, 2, 1)

    def calls_of(self, keys: Iterable[Key]) -> list[int]:
        """Return the calls of tasks, sorted; for a shared task, those of a group that needs it."""
        return sorted({call for key in keys for call in self._calls_of_task(key)})

    def _calls_of_task(self, key: Key) -> Sequence[int]:
        match key:
            case (str(name), int(number)) if name.startswith(NAME):
                return self.calls[_COUNTDOWN - number]
        return next(
            (own for own, group in zip(self.calls, self.groups, strict=True) if key in group[1]), ()
        )

    def _own(self, number: int, keys: list[Key]) -> None:
        """Assign nodes and their dependencies to a group; nodes of several groups become shared."""
        while keys:
            key = keys.pop()
            owner = self._owner.get(key)
            if key not in self._nodes or owner in (number, _SHARED):
                continue
            self._owner[key] = number if owner is None else _SHARED
            keys.extend(self._nodes[key].dependencies)

    def _inside(self, number: int, key: Key) -> bool:
        return self._owner.get(key) == number or key in self._small


def inline_or_task(value: bytes, key: str, graph: dict[Key, GraphNode]) -> Any:
    """Return a value as an argument of tasks; a large one becomes a task in `graph`."""
    if len(value) <= _INLINE_BYTES:
        return value
    graph[key] = DataNode(key, value)
    return TaskRef(key)


def _merged(
    records: list[Key],
    name: str,
    graph: dict[Key, GraphNode],
    width: int,
    most: int,
    n_first: int = 0,
) -> list[Key]:
    """Add tasks that merge `width` records until at most `most` are left; return their keys.

    The first `n_first` records are merged among themselves, down to one.
    """
    level = 0
    while len(records) > most:
        level += 1
        merged: list[Key] = []
        # Each task that merges first records gets equally many, and no other task gets more.
        n_tasks = -(-n_first // width)
        starts = [n_first * task // n_tasks for task in range(n_tasks)]
        others = max(2, n_first // n_tasks) if n_tasks else width
        starts += [*range(n_first, len(records), others), len(records)]
        for start, end in itertools.pairwise(starts):
            some = records[start:end]
            if len(some) == 1:  # a task for one record might move it to another worker
                merged += some
                continue
            key = (f"{name}-merge", level, _COUNTDOWN - start)
            graph[key] = Task(key, _merge_all, *map(TaskRef, some))
            merged.append(key)
        records, n_first = merged, n_tasks if n_tasks > 1 else 0
    return records


def _merge_all(*records: Any) -> Any:
    return merge(records)


def futures_of(source: Any) -> list[Any]:
    """Return the futures of a collection that was persisted on a cluster."""
    distributed = sys.modules.get("distributed")
    if distributed is None or not is_dask_collection(source):
        return []
    # Blockwise layers have no futures of persisted data, and may be large.
    layers = getattr(source.__dask_graph__(), "layers", {"": source.__dask_graph__()}).values()
    persisted = [dict(layer) for layer in layers if not isinstance(layer, Blockwise)]
    return list(distributed.futures_of(persisted))


def _named(key: Key, node: GraphNode) -> GraphNode:
    """Return a node with its key in the graph; dask's `isin` stores values under another one."""
    return node if node.key == key else node.substitute({}, key=key)


def _shuffled(nodes: Mapping[Key, GraphNode]) -> list[Key]:
    """Return the keys of the partitions that a shuffle between workers makes."""
    barriers = {key for key, node in nodes.items() if node.block_fusion}
    return [key for key, node in nodes.items() if barriers & node.dependencies] if barriers else []


def _closure(keys: Iterable[Key], nodes: Mapping[Key, GraphNode]) -> dict[Key, GraphNode]:
    found: dict[Key, GraphNode] = {}
    left = list(keys)
    while left:
        key = left.pop()
        if key in nodes and key not in found:
            found[key] = nodes[key]
            left.extend(nodes[key].dependencies)
    return found
