"""Jobs as the tasks of one pass: what each runs by itself, what several share, how records meet."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dask._task_spec import DataNode, GraphNode, Task, TaskRef
from dask.typing import Key

from daskmm.engine.grouping import Arguments, Grouping, closure, grouped, merge, references

# Records merged by one task.
SPLIT_EVERY = 16
# On a cluster, bytes of a kernel's shared arguments, or of a constant such as an open array, that
# are sent with every task; larger ones become a task of their own, and travel once per worker.
_INLINE_BYTES = 1 << 18

# Names of tasks begin so.
NAME = "daskmm-"
# Owner of a node that several groups need.
_SHARED = -1


def pickled_as_sent(value: Any) -> bytes:
    """As distributed pickles: functions of an interactive session by value."""
    from distributed.protocol.pickle import dumps

    return bytes(dumps(value))


def inline_or_task(value: bytes, key: str, graph: dict[Key, GraphNode]) -> Any:
    """A value as it stands in tasks: by itself or, where it is large, as a task that has it."""
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
    return merge(records)


class GroupTasks:
    """Groups of jobs as tasks, and the tasks between them.

    A node that only one group needs runs inside that group's task, when its job comes; one that
    several need is a task as it is in the graph.

    Attributes
    ----------
    cuts : tuple of tuple of int
        Jobs of each group.
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
        grouping: Grouping,
        pickled: bool,
    ) -> None:
        self.cuts = cuts = grouping.cuts
        self._nodes = nodes
        self._owner: dict[Key, int] = {}
        for number, cut in enumerate(cuts):
            self._own(number, [key for job in cut for key in references(arguments[job])])
        self._small = {
            key
            for key, owner in self._owner.items()
            if owner == _SHARED
            and isinstance(nodes[key], DataNode)
            and (not pickled or len(pickled_as_sent(nodes[key])) <= _INLINE_BYTES)
        }
        groups = [
            grouped(
                cut,
                [arguments[job] for job in cut],
                nodes,
                functools.partial(self._inside, number),
                at_hand,
            )
            for number, (cut, at_hand) in enumerate(zip(cuts, grouping.at_hand, strict=True))
        ]
        self.between = closure([key for group in groups for key in group.inputs], nodes)
        self.alone = not any(group.inputs for group in groups)
        self.groups: list[tuple[Any, tuple[Key, ...]]] = [
            (pickled_as_sent(group) if pickled else group, group.inputs) for group in groups
        ]

    def graph(
        self, name: str, run: Callable[..., Any], call: tuple[Any, ...]
    ) -> tuple[dict[Key, GraphNode], list[Key]]:
        """Tasks of a pass that call ``run(group, *call, *inputs)``, and the keys of their records.

        Where there are many, records are merged by tasks too.
        """
        graph = dict(self.between)
        records: list[Key] = []
        for number, (group, inputs) in enumerate(self.groups):
            key = (name, number)
            graph[key] = Task(key, run, group, *call, *map(TaskRef, inputs))
            records.append(key)
        return graph, _merged(records, name, graph)

    def jobs_of(self, key: Key) -> tuple[int, ...]:
        """Jobs of a task of such a graph; of the first group that needs it, if it is none."""
        match key:
            case (str(name), int(number)) if name.startswith(NAME):
                return self.cuts[number]
        return next(
            (cut for cut, group in zip(self.cuts, self.groups, strict=True) if key in group[1]), ()
        )

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
