"""Operations on dask arrays for which the two kinds of them have no common methods.

dask's arrays are graphs or, with its configuration ``array.query-planning``, expressions. A process
has one of the two kinds, which is fixed once `dask.array` is imported. `graph_arrays` and
`expression_arrays` implement these operations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from daskmm.data import expression_arrays, graph_arrays


class Places(NamedTuple):
    """The places of the blocks of a table, and a token that identifies this list of places."""

    token: str
    items: list[Any]


_engine: Any = expression_arrays if hasattr(da.Array, "expr") else graph_arrays
array_of = _engine.array_of
array_of_frame = _engine.array_of_frame
array_inside = _engine.array_inside
with_chunks = _engine.with_chunks


def delayed_blocks(array: da.Array, together: bool = False) -> NDArray[np.object_]:
    """Return the blocks of an array as Delayed, in an array with the same dimensions.

    With `together`, graphs are not optimized, so that blocks of several arrays load a shared source
    only once.
    """
    blocks: NDArray[np.object_] = _engine.delayed_blocks(array, together)
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
    return _engine.mapped(function, table, places, shared, **options)


def in_memory(values: Any) -> NDArray:
    """Return values as a numpy array; a dask collection is computed.

    `numpy.asarray` computes only arrays that are graphs, and dask cannot compute arrays that are
    expressions of unknown size.
    """
    if isinstance(values, da.Array) and np.isnan(values.shape).any():
        return np.concatenate(dask.compute(*delayed_rows(values)))
    return np.asarray(values.compute() if dask.is_dask_collection(values) else values)


def sized(array: da.Array) -> da.Array:
    """Return an array with known sizes of its blocks, which are computed if they are unknown."""
    if not np.isnan(array.shape).any():
        return array
    blocks = delayed_blocks(array)
    shapes = np.empty(blocks.shape, dtype=object)
    shapes.ravel()[:] = dask.compute(*map(delayed(np.shape), blocks.ravel()))
    chunks = tuple(
        tuple(int(shape[axis]) for shape in np.moveaxis(shapes, axis, 0).reshape(n, -1)[:, 0])
        for axis, n in enumerate(blocks.shape)
    )
    return with_chunks(array, chunks)
