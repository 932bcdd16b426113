"""Make the tasks of blocks where they run, from the one task that dask has for all of them.

A blockwise layer of dask has one task, and rules that give the arguments of each block. Without
this module, dask would make and send a million tasks for a table of a million blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.blockwise import Blockwise, blockwise_token
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArrayBlockIdDep, ArrayChunkShapeDep, ArraySliceDep, ArrayValuesDep
from dask.typing import Key

from daskmm.data.dask_private import GraphNode, Task, TaskRef
from daskmm.engine.columns import packed, unpacked

# Rules that give values, not keys of other tasks.
_RULES = (ArrayBlockIdDep, ArrayChunkShapeDep, ArraySliceDep, ArrayValuesDep)
# Axis of a rule with one block for all.
_BROADCAST = -1


@dataclass(frozen=True)
class BlockFunction:
    """The common part of the tasks of all blocks.

    Attributes
    ----------
    task : Task
        The task, which refers to its arguments by names.
    constants : dict
        Name of an argument -> its value.
    references : dict
        Name of an argument -> key of its value.
    rules : dict
        Name of an argument -> (its rule, axes of the block's index that the rule takes). Rules know
        all blocks, and are not pickled.
    """

    task: Task
    constants: dict[Key, Any]
    references: dict[Key, Key]
    rules: dict[Key, tuple[Any, tuple[int, ...]]]

    def __call__(self, own: Sequence[Any], *inputs: Any) -> Any:
        """Return a block, given the values of its rules and of the references."""
        values = dict(self.constants)
        values.update(zip(self.rules, own, strict=True))
        values.update(zip(self.references, inputs, strict=True))
        return self.task(values)

    def own(self, key: Key) -> tuple[Any, ...]:
        """Return the values of the rules for a block."""
        assert isinstance(key, tuple)
        return tuple(
            rule[tuple(0 if axis == _BROADCAST else key[1 + axis] for axis in axes)]
            for rule, axes in self.rules.values()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        names = dict.fromkeys(self.rules, (None, ()))
        return BlockFunction, (self.task, self.constants, self.references, names)


class BlockTask(GraphNode):
    """The task of one block.

    Parameters
    ----------
    key : tuple
        Name of the array, and index of the block.
    function : BlockFunction
        The common part of the tasks.
    needs : frozenset of keys
        The references of the function.
    own : tuple, optional
        Values of the rules for the block; needed if the function was unpickled.
    """

    __slots__ = ("_own", "function")

    def __init__(
        self,
        key: Key,
        function: BlockFunction,
        needs: frozenset[Key],
        own: tuple[Any, ...] | None = None,
    ) -> None:
        self.key = key
        self.function = function
        self._dependencies = needs
        self._own = own

    @property
    def own(self) -> tuple[Any, ...]:
        """Values of the rules for the block."""
        return self.function.own(self.key) if self._own is None else self._own

    def __call__(self, values: Mapping[Key, Any]) -> Any:
        """Return the block."""
        return self.function(self.own, *map(values.__getitem__, self.function.references.values()))

    def substitute(self, subs: Any, key: Key | None = None) -> Any:
        """Return an ordinary task, with other keys for its dependencies."""
        inputs = map(TaskRef, self.function.references.values())
        return Task(self.key, self.function, self.own, *inputs).substitute(subs, key=key)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockTask, (self.key, self.function, self._dependencies, self.own)


@dataclass(frozen=True)
class BlockColumn:
    """Tasks of blocks of one function, which are pickled fast, in few bytes if they are regular."""

    function: BlockFunction
    keys: Sequence[Key]
    own: Sequence[tuple[Any, ...]]

    def tasks(self) -> list[BlockTask]:
        """Return the tasks."""
        needs = frozenset(self.function.references.values())
        pairs = zip(self.keys, self.own, strict=True)
        return [BlockTask(key, self.function, needs, own) for key, own in pairs]

    def __reduce__(self) -> tuple[Any, ...]:
        return _block_column, (self.function, packed(self.keys), packed(self.own))


def _block_column(function: BlockFunction, keys: Any, own: Any) -> BlockColumn:
    return BlockColumn(function, list(unpacked(keys)), list(unpacked(own)))


def column_of(keys: list[Key], nodes: Mapping[Key, GraphNode]) -> BlockColumn | None:
    """Return the tasks of some keys, or None unless all have the same function."""
    tasks = [nodes.get(key) for key in keys]
    first = tasks[0]
    if not isinstance(first, BlockTask):
        return None
    own = [
        task.own
        for task in tasks
        if isinstance(task, BlockTask) and task.function is first.function
    ]
    return BlockColumn(first.function, keys, own) if len(own) == len(keys) else None


def nodes_of(graph: Any) -> tuple[dict[Key, BlockTask], dict[Key, Any]]:
    """Return the tasks of blocks in a graph, and all other nodes."""
    if not isinstance(graph, HighLevelGraph):
        return {}, dict(graph)
    blocks: dict[Key, BlockTask] = {}
    others: dict[Key, Any] = {}
    for layer in graph.layers.values():
        if isinstance(layer, Blockwise) and (function := _block_function(layer)) is not None:
            needs = frozenset(function.references.values())
            blocks.update((key, BlockTask(key, function, needs)) for key in _keys(layer))
        else:
            others.update(dict(layer))
    return blocks, others


def _keys(layer: Blockwise) -> list[Key]:
    places = layer.output_blocks or itertools.product(
        *(range(layer.dims[index]) for index in layer.output_indices)
    )
    return [(layer.output, *place) for place in places]


def _block_function(layer: Blockwise) -> BlockFunction | None:
    """Return the common part of a layer's tasks, or None if dask must make them."""
    constants: dict[Key, Any] = {}
    references: dict[Key, Key] = {}
    rules: dict[Key, tuple[Any, tuple[int, ...]]] = {}
    axes = {index: axis for axis, index in enumerate(layer.output_indices)}
    for number, (argument, indices) in enumerate(layer.indices):
        name = blockwise_token(number)
        if name not in layer.task.dependencies:
            continue
        if indices is not None:
            rule = layer.io_deps.get(argument) if isinstance(argument, str) else None
            if not isinstance(rule, _RULES) or not axes.keys() >= set(indices):
                return None
            blocks = zip(indices, layer.numblocks[str(argument)], strict=True)
            rules[name] = rule, tuple(_BROADCAST if n == 1 else axes[i] for i, n in blocks)
        elif type(argument) is TaskRef:
            references[name] = argument.key
        elif isinstance(argument, (GraphNode, TaskRef)):
            return None  # a future, or a nested task
        else:
            constants[name] = argument
    known = constants.keys() | references.keys() | rules.keys()
    return (
        BlockFunction(layer.task, constants, references, rules)
        if (layer.task.dependencies == known)
        else None
    )
