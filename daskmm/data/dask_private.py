"""The private API of dask that is used; imported nowhere else.

dask offers no public way to run the nodes of one graph inside a task of another, nor to ask how
long the partitions of a DataFrame are without loading them. Last seen to work with the versions in
`SEEN_WITH`; ``tests`` check each property that is relied upon.
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
    "with_lengths",
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


def with_lengths(frame: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Return a dask DataFrame and the rows of each of its partitions, if its source says them.

    Sources are parquet files, of which only the ends are read, and pandas frames. Of what is done
    to them, each partition must keep its rows: operations by element, choices of columns, functions
    with an attribute `keeps_rows`. dask joins small partitions of files when it loads them; those
    of the returned frame are joined.
    """
    if not hasattr(_source(frame.expr), "_get_lengths"):
        return frame, None
    tuned = frame.optimize(fuse=False)
    found = _source(tuned.expr)
    joined = hasattr(found, "_fusion_buckets")
    source = found.operand("_expr") if joined else found
    # dask forgets to choose or to sort lengths with the partitions; those of filters it refuses.
    sorts = getattr(source, "_fragment_sort_index", lambda: None)
    lengths = None if source._filtered or sorts() is not None else source._get_lengths()
    if not lengths:
        return frame, None
    if joined:
        lengths = [sum(lengths[i] for i in bucket) for bucket in found._fusion_buckets]
    return tuned, tuple(lengths)


def _source(expression: Any) -> Any:
    """Return the expression at the end of those that keep the rows of each partition."""
    from dask.dataframe.dask_expr._expr import Elemwise, MapPartitions

    while isinstance(expression, Elemwise) or (
        isinstance(expression, MapPartitions) and hasattr(expression.func, "keeps_rows")
    ):
        # Others are numbers.
        expression = max(expression.dependencies(), key=lambda part: part.npartitions)
    return expression
