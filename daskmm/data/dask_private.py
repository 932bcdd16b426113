"""All uses of dask's private API; no other module imports it.

dask has no public way to run the nodes of one graph inside a task of another graph, to make an
array expression from a graph, or to find the lengths of the partitions of a DataFrame without
loading them. The tests check each property that is used; they ran with the versions in `SEEN_WITH`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import dask

# Oldest and newest release of dask and distributed with which the tests ran.
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
    "array_from_graph",
    "convert_legacy_graph",
    "futures_in",
    "with_lengths",
]


def futures_in(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the futures in a graph, which are nodes or arguments of tasks.

    A future of distributed is an instance of a subclass of `TaskRef`.
    """
    for node in nodes:
        candidates = (*node.args, *node.kwargs.values()) if isinstance(node, Task) else (node,)
        yield from (
            item for item in candidates if isinstance(item, TaskRef) and type(item) is not TaskRef
        )


def array_from_graph(
    graph: dict[Any, Any], meta: Any, chunks: Any, keys: list[Any], name: str
) -> Any:
    """Return an array expression whose blocks are these keys of a graph."""
    from dask.array._array_expr._collection import from_graph

    return from_graph(graph, meta, chunks, keys, name)


def with_lengths(frame: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Return a dask DataFrame and the rows of each partition, if its source has them.

    Sources are parquet files, whose footers are read, and pandas frames. All operations on them
    must keep the number of rows of each partition: element-wise operations, selections of columns,
    and functions with an attribute `keeps_rows`. If few columns are read, dask joins small
    partitions of files; the returned frame has the partitions that it will load.

    The lengths are None if the source does not have these numbers, if rows are filtered, or if
    partitions are selected.
    """
    if not hasattr(_source(frame.expr), "_get_lengths"):
        return frame, None
    tuned = frame.optimize(fuse=False)
    found = _source(tuned.expr)
    joined = hasattr(found, "_fusion_buckets")
    source = found.operand("_expr") if joined else found
    # dask's lengths are wrong if partitions were selected or sorted, and None for filters.
    sorts = getattr(source, "_fragment_sort_index", lambda: None)
    lengths = None if source._filtered or sorts() is not None else source._get_lengths()
    if not lengths:
        return frame, None
    if joined:
        lengths = [sum(lengths[i] for i in bucket) for bucket in found._fusion_buckets]
    return tuned, tuple(lengths)


def _source(expression: Any) -> Any:
    """Return the last expression of a frame that may change row counts."""
    from dask.dataframe.dask_expr._expr import Elemwise, MapPartitions

    while isinstance(expression, Elemwise) or (
        isinstance(expression, MapPartitions) and hasattr(expression.func, "keeps_rows")
    ):
        # The other operands are numbers or have the same rows.
        expression = max(expression.dependencies(), key=lambda part: part.npartitions)
    return expression
