"""Operations on dask arrays for which the two kinds of them have no common methods.

dask's arrays are graphs or, with its configuration ``array.query-planning``, expressions. A process
has one of the two kinds, which is fixed once `dask.array` is imported. `graph_arrays` and
`expression_arrays` implement these operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import da, dask, is_dask_array, is_dask_collection


class Places(NamedTuple):
    """The places of the blocks of a table, and a token that identifies this list of places."""

    token: str
    items: list[Any]


def _engine() -> Any:
    """Return the module for the kind of arrays that this process has."""
    kind = "expression_arrays" if hasattr(da.Array, "expr") else "graph_arrays"
    return import_module(f"daskmm.data.{kind}")


def array_of(graph: Mapping[Any, Any], name: str, chunks: Any, meta: Any) -> da.Array:
    """Return the array whose blocks are the tasks ``(name, i, j)`` of a graph."""
    return _engine().array_of(graph, name, chunks, meta)


def array_of_frame(frame: Any, lengths: tuple[int, ...] | None = None) -> da.Array:
    """Return a dask DataFrame or Series as an array, given the rows of each partition if known."""
    return _engine().array_of_frame(frame, lengths)


def array_inside(array: da.Array) -> Any:
    """Return the array-like from which `dask.array.from_array` made an array, or None."""
    return _engine().array_inside(array)


def with_chunks(array: da.Array, chunks: tuple[tuple[int, ...], ...]) -> da.Array:
    """Return an array with known sizes of its blocks."""
    return _engine().with_chunks(array, chunks)


def delayed_blocks(array: da.Array, together: bool = False) -> NDArray[np.object_]:
    """Return the blocks of an array as Delayed, in an array with the same dimensions.

    With `together`, graphs are not optimized, so that blocks of several arrays load a shared source
    only once.
    """
    blocks: NDArray[np.object_] = _engine().delayed_blocks(array, together)
    return blocks


def delayed_rows(table: da.Array) -> tuple[Any, ...]:
    """Return the blocks of a table with one column of blocks as Delayed."""
    return tuple(delayed_blocks(table).ravel())


def with_rows(table: da.Array, rows: tuple[int, ...]) -> da.Array:
    """Return a table whose blocks are known to have these numbers of rows."""
    return with_chunks(table, (rows, table.chunks[1]))


def mapped(
    function: Any, table: da.Array, places: Places, shared: tuple[Any, ...], **options: Any
) -> da.Array:
    """Return ``function(block, place, *shared)`` for each block of rows and its place.

    `options` are those of `map_blocks`.
    """
    return _engine().mapped(function, table, places, shared, **options)


def in_memory(values: Any) -> NDArray:
    """Return values as a numpy array; a dask collection is computed.

    `numpy.asarray` computes only arrays that are graphs, and dask cannot compute arrays that are
    expressions of unknown size.
    """
    if is_dask_array(values) and np.isnan(values.shape).any():
        return np.concatenate(dask.compute(*delayed_rows(values)))
    return np.asarray(values.compute() if is_dask_collection(values) else values)


def sized(array: da.Array) -> da.Array:
    """Return an array with known sizes of its blocks, which are computed if they are unknown."""
    if not np.isnan(array.shape).any():
        return array
    blocks = delayed_blocks(array)
    shapes = np.empty(blocks.shape, dtype=object)
    shapes.ravel()[:] = dask.compute(*map(dask.delayed(np.shape), blocks.ravel()))
    chunks = tuple(
        tuple(int(shape[axis]) for shape in np.moveaxis(shapes, axis, 0).reshape(n, -1)[:, 0])
        for axis, n in enumerate(blocks.shape)
    )
    return with_chunks(array, chunks)
