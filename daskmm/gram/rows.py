"""Rows for kernels, in memory, and entries of lazy matrices."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from daskmm.data.blocks import Position, positions, row_blocks
from daskmm.engine.distributed import computed
from daskmm.engine.graph import TaskGraph
from daskmm.engine.passes import one_blas_thread, reduce_graph, run_on_threads
from daskmm.numerics.rows import Coordinates

FloatArray = NDArray[np.float64]


def entries(
    blocks: NDArray[np.object_],
    chunks: tuple[tuple[int, ...], ...],
    wanted: tuple[NDArray[np.int_] | None, NDArray[np.int_] | None],
) -> FloatArray:
    """Return the entries of a lazy matrix in some rows and columns (None for all).

    Only the blocks that contain such entries are loaded. dask's expressions do not support index
    arrays.
    """
    axes = [
        np.arange(sum(sizes)) if index is None else np.asarray(index)
        for sizes, index in zip(chunks, wanted, strict=True)
    ]
    ends = [np.cumsum([0, *sizes]) for sizes in chunks]
    found = np.empty([len(index) for index in axes])
    owners = [
        np.searchsorted(e, index, side="right") - 1 for e, index in zip(ends, axes, strict=True)
    ]
    places, parts = [], []
    for i, j in itertools.product(*(np.unique(owner) for owner in owners)):
        rows, columns = np.flatnonzero(owners[0] == i), np.flatnonzero(owners[1] == j)
        inside = np.ix_(axes[0][rows] - ends[0][i], axes[1][columns] - ends[1][j])
        places.append(np.ix_(rows, columns))
        parts.append(delayed(operator.getitem)(blocks[i, j], inside))
    for place, part in zip(places, computed(*parts), strict=True):
        found[place] = part
    return found


def kernel_rows(table: NDArray | da.Array, coordinates: Coordinates) -> FloatArray:
    """Return the rows of a table in the kernels' units, in memory, loaded block by block."""
    if not isinstance(table, da.Array):
        return coordinates.to_model(np.asarray(table))
    blocks = row_blocks(table)
    own = [*zip(positions(blocks.layout), blocks.parts, strict=True)]
    with one_blas_thread():
        found = reduce_graph(TaskGraph(own, table), _rows_of_block, (coordinates,), "kernel-rows")
    return np.concatenate(found)


def _rows_of_block(position: Position, rows: Any, coordinates: Coordinates) -> list[FloatArray]:
    return [coordinates.to_model(np.asarray(rows))]


def over_rows(
    function: Callable[..., Any], rows: FloatArray, cuts: Iterable[slice], *shared: Any
) -> list[Any]:
    """Return ``function(rows[cut], *shared)`` for each slice in `cuts`, in order."""
    with one_blas_thread():
        return [*run_on_threads([functools.partial(function, rows[cut], *shared) for cut in cuts])]
