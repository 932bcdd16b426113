"""The private API of dask and distributed that the engine uses; imported nowhere else.

dask offers no public way to run the nodes of one graph inside a task of another. Last seen to work
with the versions in `SEEN_WITH`; ``tests`` check each property that is relied upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import dask

# Oldest and newest release of dask and distributed that the tests ran with.
SEEN_WITH = ("2025.5.0", "2026.8.0")

try:
    from dask._task_spec import DataNode, GraphNode, Task, TaskRef, convert_legacy_graph
except ImportError as error:
    raise ImportError(
        f"daskmm was tested with dask {SEEN_WITH[0]} to {SEEN_WITH[1]}; dask {dask.__version__} "
        f"has another dask._task_spec: {error}"
    ) from error

__all__ = [
    "DataNode",
    "GraphNode",
    "Task",
    "TaskRef",
    "convert_legacy_graph",
    "futures_in",
    "pickled",
]


def futures_in(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the futures in a graph, be they nodes or arguments of tasks.

    A future of distributed is a `TaskRef` of a subclass.
    """
    for node in nodes:
        candidates = (*node.args, *node.kwargs.values()) if isinstance(node, Task) else (node,)
        yield from (
            item for item in candidates if isinstance(item, TaskRef) and type(item) is not TaskRef
        )


def pickled(value: Any) -> bytes:
    """Pickle as distributed does: functions of an interactive session by value."""
    from distributed.protocol.pickle import dumps

    return bytes(dumps(value))
