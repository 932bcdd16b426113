"""Make groups of calls, each with the graph nodes that it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dask.typing import Key

from daskmm.data.dask_private import GraphNode, TaskRef
from daskmm.engine.grouping import Groups
from daskmm.engine.merge_tree import Arguments
from daskmm.engine.worker_task import Call, Group


def make_group(
    queues: Groups,
    arguments: Sequence[Arguments],
    nodes: Mapping[Key, GraphNode],
    inside: Sequence[Callable[[Key], bool]],
    persisted: Sequence[Key],
) -> Group:
    """Return a group of calls, given those that each thread makes (`queues`).

    `arguments` are the own arguments of all calls of the pass, and `nodes` maps keys to nodes.
    `inside` says for each queue whether it runs the node of a key; other nodes become inputs.
    `persisted` are keys of persisted data. Every worker that has the first one has all of them, so
    only the first stays an input.
    """
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
    """Return calls with the graph nodes that each of them runs; add what they need to `inputs`."""
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
    """For each node and each call, yield the keys of the values that are not used later."""
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
