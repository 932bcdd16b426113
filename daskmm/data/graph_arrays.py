"""Arrays of dask that are graphs; see `daskmm.data.lazy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray


def delayed_blocks(array: da.Array, together: bool) -> NDArray[np.object_]:
    """Return the blocks of an array."""
    blocks: NDArray[np.object_] = array.to_delayed(optimize_graph=not together)
    return blocks


def array_of(graph: Mapping[Any, Any], name: str, chunks: Any, meta: Any) -> da.Array:
    """Return the array whose blocks are the tasks ``(name, i, j)`` of a graph."""
    return da.Array(HighLevelGraph.from_collections(name, graph), name, chunks, meta=meta)


def array_of_frame(frame: Any, lengths: tuple[int, ...] | None = None) -> da.Array:
    """Return a dask DataFrame or Series as an array, given the rows of each partition if known."""
    return frame.to_dask_array(lengths=lengths)


def with_chunks(array: da.Array, chunks: tuple[tuple[int, ...], ...]) -> da.Array:
    """Return an array with known sizes of its blocks."""
    return da.Array(array.dask, array.name, chunks, meta=array._meta)


def mapped(
    function: Any, table: da.Array, places: Any, shared: tuple[Any, ...], **options: Any
) -> da.Array:
    """Map a function over blocks and their places, which are one node of the graph.

    dask would search a list of them for keys and copy it into every task.
    """
    node = delayed(places.items, name=f"places-{places.token}", traverse=False)
    map_blocks: Callable[..., da.Array] = table.map_blocks
    return map_blocks(_at_place, function=function, places=node, shared=shared, **options)


def _at_place(
    block: Any,
    function: Any,
    places: list[Any],
    shared: tuple[Any, ...],
    block_id: tuple[int, ...],
) -> Any:
    return function(block, places[block_id[0]], *shared)


def array_inside(array: da.Array) -> Any:
    """Return the array-like from which `dask.array.from_array` made an array, or None."""
    roots = array.dask.dependencies.get(array.name, ())
    nodes = [node for root in roots for node in array.dask.layers[root].values()][:1]
    inside = nodes[0] if len(roots) == 1 and nodes else None
    return getattr(inside, "value", inside)
