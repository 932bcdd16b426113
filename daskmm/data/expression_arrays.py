"""Arrays of dask that are expressions; see `daskmm.data.lazy`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np
from dask import core
from dask.delayed import Delayed
from numpy.typing import NDArray

from daskmm.data.dask_private import array_from_graph


def delayed_blocks(array: Any, together: bool) -> NDArray[np.object_]:
    """Return the blocks of an array."""
    array = array if together else array.optimize()
    graph = array.__dask_graph__()
    blocks = np.empty(array.numblocks, dtype=object)
    blocks.ravel()[:] = [Delayed(key, graph) for key in core.flatten(array.__dask_keys__())]
    return blocks


def array_of(graph: Mapping[Any, Any], name: str, chunks: Any, meta: Any) -> Any:
    """Return the array whose blocks are the tasks ``(name, i, j)`` of a graph."""
    keys = [(name, *place) for place in itertools.product(*(range(len(c)) for c in chunks))]
    return array_from_graph(dict(graph), meta, chunks, keys, name)


def array_of_frame(frame: Any, lengths: tuple[int, ...] | None = None) -> Any:
    """Return a dask DataFrame or Series as an array, given the rows of each partition if known."""
    tuned = frame.optimize(fuse=False)
    name, ends = f"values-{tuned._name}", (0,) * (frame.ndim - 1)
    graph = dict(tuned.__dask_graph__())
    for number, key in enumerate(tuned.__dask_keys__()):
        graph[(name, number, *ends)] = (_values, key)
    rows = (float("nan"),) * tuned.npartitions if lengths is None else tuple(lengths)
    chunks = (rows,) if frame.ndim == 1 else (rows, (len(frame.columns),))
    return array_of(graph, name, chunks, _values(frame._meta))


def _values(frame: Any) -> NDArray:
    values: NDArray = frame.to_numpy()
    return values


def with_chunks(array: Any, chunks: tuple[tuple[int, ...], ...]) -> Any:
    """Return an array with known sizes of its blocks."""
    return array.map_blocks(_unchanged, chunks=chunks, meta=array._meta)


def _unchanged(block: Any) -> Any:
    return block


def mapped(function: Any, table: Any, places: Any, shared: tuple[Any, ...], **options: Any) -> Any:
    """Map a function over blocks and their places, which are blocks of a second array."""
    column = np.empty((len(places.items), 1), dtype=object)
    column[:, 0] = [_Place(place) for place in places.items]
    there = da.from_array(column, chunks=1)
    return table.map_blocks(_at_place, there, function=function, shared=shared, **options)


class _Place:
    """A place as one object that numpy does not take for a sequence."""

    def __init__(self, place: Any) -> None:
        self.place = place


def _at_place(
    block: Any, places: NDArray[np.object_], function: Any, shared: tuple[Any, ...]
) -> Any:
    return function(block, places[0, 0].place, *shared)


def array_inside(array: Any) -> Any:
    """Return the array-like from which `dask.array.from_array` made an array, or None."""
    return getattr(array.expr, "array", None)
