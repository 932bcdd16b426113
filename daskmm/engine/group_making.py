"""Make groups of calls with the nodes to run for each, in the client or where they run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.typing import Key

from daskmm.data.dask_private import GraphNode, TaskRef
from daskmm.engine.block_tasks import BlockColumn, column_of
from daskmm.engine.columns import packed, unpacked
from daskmm.engine.grouping import Groups
from daskmm.engine.worker_task import Arguments, Call, Group


def make_group(
    queues: Groups,
    arguments: Sequence[Arguments],
    nodes: Mapping[Key, GraphNode],
    inside: Sequence[Callable[[Key], bool]],
    persisted: Sequence[Key],
    pickle: bool,
) -> Group | PackedGroup:
    """Return a group of calls.

    Parameters
    ----------
    queues : tuple of sequences of int
        Calls that each thread makes.
    arguments : sequence of tuple
        Own arguments of all calls of the pass.
    nodes : mapping
        Key of a node -> the node.
    inside : sequence of callable
        For each queue, whether it runs the node of a key; other nodes become inputs.
    persisted : sequence of keys
        Keys of persisted data. Every worker that has the first one has all of them, so only the
        first stays an input.
    pickle : bool
        Whether the group will be pickled, so that it may be a `PackedGroup`.
    """
    if pickle and not persisted:
        group = _packed(queues, arguments, nodes, inside)
        if group is not None:
            return group
    inputs: dict[Key, None] = {}
    calls = tuple(
        _queue(numbers, [arguments[call] for call in numbers], nodes, own, inputs)
        for numbers, own in zip(queues, inside, strict=True)
    )
    spared = set(persisted[1:])
    sent = tuple(key for key in inputs if key not in spared)
    return Group(calls, sent, tuple(key for key in inputs if key in spared), len(arguments))


def _queue(
    numbers: Sequence[int],
    arguments: Sequence[Arguments],
    nodes: Mapping[Key, GraphNode],
    inside: Callable[[Key], bool],
    inputs: dict[Key, None],
) -> tuple[Call, ...]:
    """Return calls with the nodes to run for each; add the inputs of their group."""
    met: set[Key] = set()
    orders: list[list[Key]] = []
    for own in arguments:
        order: list[Key] = []
        left = [(key, False) for key in references_of(own)]
        while left:
            key, needs_are_met = left.pop()
            if needs_are_met:
                order.append(key)
            elif key not in met:
                met.add(key)
                if inside(key):
                    left.append((key, True))
                    left.extend((need, False) for need in nodes[key].dependencies)
                else:
                    inputs[key] = None
        orders.append(order)
    spent = _spent(arguments, orders, nodes)
    return tuple(
        Call(number, own, tuple((nodes[key], next(spent)) for key in order), next(spent))
        for number, own, order in zip(numbers, arguments, orders, strict=True)
    )


def _spent(
    arguments: Sequence[Arguments], orders: Sequence[list[Key]], nodes: Mapping[Key, GraphNode]
) -> Iterator[tuple[Key, ...]]:
    """Yield the keys of values that are used for the last time, for each node and each call."""
    uses: list[Iterable[Key]] = []
    for own, order in zip(arguments, orders, strict=True):
        uses += [nodes[key].dependencies for key in order]
        uses.append(references_of(own))
    last = {key: moment for moment, keys in enumerate(uses) for key in keys}
    return iter(
        [tuple({key for key in keys if last[key] == moment}) for moment, keys in enumerate(uses)]
    )


def references_of(own: Arguments) -> list[Key]:
    """Return the keys of the references among the arguments of a call."""
    return [item.key for item in own if isinstance(item, TaskRef)]


@dataclass(frozen=True)
class PackedGroup:
    """A group whose calls visit blocks of the same arrays; unpickled, it becomes a `Group`.

    It takes a minute to make and pickle a million calls, and the nodes for each, one by one.

    Attributes
    ----------
    queues : tuple of sequences of int
        Calls that each thread makes.
    columns : list
        First arguments of all calls, second ones, and so on, each packed by `_packed_column`.
    others : dict
        Other nodes that the queues run, by key.
    inputs : tuple of keys
        Values that other tasks make for the group.
    n_calls : int
        Number of calls of the whole pass.
    """

    queues: Groups
    columns: list[Any]
    others: dict[Key, GraphNode]
    inputs: tuple[Key, ...]
    n_calls: int

    def __reduce__(self) -> tuple[Any, ...]:
        queues = [packed(list(queue)) for queue in self.queues]
        return _unpacked, (queues, self.columns, self.others, self.inputs, self.n_calls)


def _packed(
    queues: Groups,
    arguments: Sequence[Arguments],
    nodes: Mapping[Key, GraphNode],
    inside: Sequence[Callable[[Key], bool]],
) -> PackedGroup | None:
    """Return a packed group, or None unless calls need only blocks of the same arrays."""
    rows = [arguments[call] for queue in queues for call in queue]
    if len(set(map(len, rows))) != 1:
        return None
    columns = [_packed_column(column, nodes) for column in zip(*rows, strict=True)]
    blocks = [column for column in columns if isinstance(column, BlockColumn)]
    if not blocks or any(column is None for column in columns):
        return None
    starts = [0, *itertools.accumulate(map(len, queues))]
    for column in blocks:
        for has, (start, end) in zip(inside, itertools.pairwise(starts), strict=True):
            if not all(map(has, column.keys[start:end])):
                return None
    needs = dict.fromkeys(key for column in blocks for key in column.function.references.values())
    here = {key: {has(key) for has in inside} for key in needs}
    others = {key: nodes[key] for key in needs if True in here[key]}
    if any(len(answers) > 1 for answers in here.values()) or any(
        node.dependencies for node in others.values()
    ):
        return None
    inputs = tuple(key for key in needs if key not in others)
    return PackedGroup(queues, columns, others, inputs, len(arguments))


def _packed_column(column: Sequence[Any], nodes: Mapping[Key, GraphNode]) -> Any:
    """Return a column of arguments as `_unpacked_column` takes it; None if it cannot be packed."""
    kinds = set(map(type, column))
    if TaskRef in kinds:
        return column_of([item.key for item in column], nodes) if len(kinds) == 1 else None
    return packed(list(column))


def _unpacked_column(column: Any) -> Iterable[Any]:
    return map(TaskRef, column.keys) if isinstance(column, BlockColumn) else unpacked(column)


def _unpacked(
    queues: list[Any],
    columns: list[Any],
    others: dict[Key, GraphNode],
    inputs: tuple[Key, ...],
    n_calls: int,
) -> Group:
    """Return the unpacked group; `queues` are packed as well."""
    nodes = dict(others)
    numbers = [list(unpacked(queue)) for queue in queues]
    for column in columns:
        if isinstance(column, BlockColumn):
            nodes.update((task.key, task) for task in column.tasks())
    rows = zip(*map(_unpacked_column, columns), strict=True)
    calls = tuple(
        _queue(own, list(itertools.islice(rows, len(own))), nodes, nodes.__contains__, {})
        for own in numbers
    )
    return Group(calls, inputs, (), n_calls)
