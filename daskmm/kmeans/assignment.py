"""Labels, distances and cost of the rows of a table, given centres."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import da, dask, is_dask_array
from daskmm.compiled import library
from daskmm.compiled.labels import nearest_centers
from daskmm.compiled.sparse import fast_rows
from daskmm.data.blocks import (
    Block,
    Position,
    float_dtype,
    layout_of,
    positions,
    row_blocks,
    with_known_rows,
)
from daskmm.data.grids import Grid
from daskmm.data.lazy import Places, mapped
from daskmm.data.validation import (
    check_domain,
    check_empty,
    check_finite,
    check_infinite,
    checked_rows,
)
from daskmm.engine.passes import Passes
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.rows import (
    Coordinates,
    FeatureCoordinates,
    LiftedCoordinates,
    Rows,
    pieces,
)
from daskmm.numerics.sparse_rows import SparseRows

FloatArray = NDArray[np.float64]


def blockwise(
    block: Block,
    coordinates: Rows,
    state: CenterState,
    finish: Callable[[FloatArray], NDArray],
    out: NDArray,
    gap: float = np.nan,
) -> NDArray:
    """Fill `out` with ``finish(distances)`` of each tile of a block; return `out`.

    Rows that have no distances (`Distortion.empty`) get `gap` if the state allows such rows. A
    value that is not finite, or outside of the distortion's domain, raises ValueError, whose
    message names block and row.
    """
    distortion, partial = state.distortion, state.partial
    rows, position = block.rows, block.position
    coordinates, state = unshifted(rows, coordinates, state)
    for part, some in pieces(rows, len(state.centers)):
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # the checks report errors
                z = fast_rows(coordinates.to_model(some))
                tile = distortion.tile(z, partial)
                # Testing the sum of all terms is faster. It may overflow though the sums of single
                # rows do not.
                finite = np.isfinite(tile.terms.sum()) or np.isfinite(tile.terms.sum(axis=1)).all()
        except ValueError:
            # A callable kernel may refuse values itself, but cannot name the row.
            check_finite(some.astype(np.float64), position, part.start)
            raise
        if not finite:  # `some` has the table's columns, `z` has features
            check = check_infinite if partial else check_finite
            check(some.astype(np.float64), position, part.start)
        check_domain(z, position, part.start, distortion, partial)
        if not finite:
            raise ValueError(
                f"Input X has values so large that their squares overflow float64, in the tile "
                f"from {position.of_row(part.start)}."
            )
        out[part] = finish(distortion.distances(tile, state.centers, state.feature_weights))
    if state.gaps:
        out[distortion.empty(rows)] = gap
    else:
        check_empty(Block(rows, position=position), distortion)
    return out


def unshifted(rows: NDArray, coordinates: Rows, state: CenterState) -> tuple[Rows, CenterState]:
    """Return coordinates that keep sparse rows sparse, without a shift, and the state in them.

    They differ from the given ones if the rows are sparse and the model was fitted to dense rows.
    """
    shifted = isinstance(coordinates, Coordinates) and coordinates.mean.any()
    if not (shifted and isinstance(rows, SparseRows)):
        return coordinates, state
    assert isinstance(coordinates, Coordinates)
    scale = coordinates.scale
    centers = coordinates.to_input(state.centers) / scale
    return Coordinates(np.zeros_like(scale), scale), replace(state, centers=centers)


def labels_of(block: Block, coordinates: Rows, state: CenterState) -> NDArray[np.int32]:
    """Return the nearest centre of each row of one block, the first in a tie.

    Distances include the offsets of the state. The label of rows that have no distances is −1, if
    the state allows such rows.
    """
    if state.offsets is not None:
        return labels_of(block, LiftedCoordinates(coordinates), state.lifted)
    out = np.empty(len(block.rows), dtype=np.int32)
    if _compiled_nearest(block.rows, coordinates, state, out, None):
        return out
    return blockwise(block, coordinates, state, lambda d: d.argmin(axis=1), out, -1)


def nearest_of(
    block: Block, coordinates: Rows, state: CenterState
) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the nearest centre of each row of one block, as `labels_of`, and its distance.

    The distance includes no offset. Rows that have no distances have label −1 and distance 0, if
    the state allows such rows.
    """
    if state.offsets is not None:
        labels, smallest = nearest_of(block, LiftedCoordinates(coordinates), state.lifted)
        return labels, np.maximum(smallest - state.offsets[labels], 0.0)
    n = len(block.rows)
    labels, smallest = np.empty(n, dtype=np.int32), np.empty(n)
    if not _compiled_nearest(block.rows, coordinates, state, labels, smallest):
        both = np.empty((n, 2))
        blockwise(block, coordinates, state, _first_smallest, both, -1.0)
        labels, smallest = both[:, 0].astype(np.int32), np.maximum(both[:, 1], 0.0)
    return labels, smallest


def _first_smallest(distances: FloatArray) -> FloatArray:
    nearest = distances.argmin(axis=1)[:, None]
    return np.hstack([nearest, np.take_along_axis(distances, nearest, axis=1)])


def _compiled_nearest(
    rows: NDArray,
    coordinates: Rows,
    state: CenterState,
    labels: NDArray[np.int32],
    smallest: FloatArray | None,
) -> bool:
    """Fill in labels and smallest distances by the compiled loops; return whether that worked.

    The result is False without compiled loops, for coordinates of other kinds than
    `FeatureCoordinates` and `LiftedCoordinates`, for distances other than squared Euclidean ones
    between complete rows, and if a value must be refused (`blockwise` then raises the error).
    """
    plain = state.plain and not isinstance(rows, SparseRows)
    plain = plain and not state.distortion.empty(rows).any()
    if plain and library.available() and isinstance(coordinates, LiftedCoordinates):
        same = Coordinates.identity(state.centers.shape[1])
        return all(
            nearest_centers(
                coordinates.to_model(rows[part]),
                same,
                state.prepared,
                labels[part],
                None if smallest is None else smallest[part],
            )
            for part in coordinates.tiles(rows)
        )
    if not (plain and library.available() and isinstance(coordinates, FeatureCoordinates)):
        return False
    return nearest_centers(rows, coordinates, state.prepared, labels, smallest)


def distances_of(block: Block, coordinates: Rows, state: CenterState) -> NDArray:
    """Return the distances of one block as users see them (unsquared, in a floating dtype)."""
    out = np.empty((len(block.rows), len(state.centers)), dtype=float_dtype(block.rows.dtype))
    with np.errstate(over="ignore"):  # an error is raised below
        blockwise(block, coordinates, state, state.distortion.reported, out)
    far = np.flatnonzero(np.isinf(out).any(axis=1))
    if len(far) and not state.distortion.infinite:
        raise ValueError(
            f"Input X has values so large that distances overflow {out.dtype}, in "
            f"{block.position.of_row(int(far[0]))}. Pass X.astype('float64')."
        )
    return out


def squared_distances_of(block: Block, coordinates: Rows, state: CenterState) -> FloatArray:
    """Return the squared distances of one block, in float64."""
    out = np.empty((len(block.rows), len(state.centers)))
    return blockwise(block, coordinates, state, lambda d: d, out)


def unsquared_distances_of(block: Block, coordinates: Rows, state: CenterState) -> FloatArray:
    """Return the distances of one block, or the roots of divergences, in float64."""
    return state.distortion.unsquared(squared_distances_of(block, coordinates, state))


def map_rows(
    function: Callable[..., NDArray],
    X: NDArray | da.Array,
    *shared: Any,
    columns: int | None = None,
    dtype: Any = np.int32,
    grid: Grid | None = None,
) -> NDArray | da.Array:
    """Concatenate ``function(block, *shared)`` of all blocks; lazily for dask arrays.

    The block function is one such as `labels_of` or `distances_of`, and the table consists of whole
    rows. The result is one-dimensional unless a number of `columns` is given; `grid` is that of a
    table of pixels.
    """
    if is_dask_array(X):
        return _map_lazy(function, X, shared, columns, np.dtype(dtype), grid)
    if len(X) == 0:
        return np.empty((0,) if columns is None else (0, columns), dtype=dtype)
    blocks = row_blocks(X)
    places = positions(blocks.layout)
    tasks = [
        functools.partial(function, Block(part, position=place), *shared)
        for part, place in zip(blocks.parts, places, strict=True)
    ]
    with one_blas_thread():
        return np.concatenate(list(run_on_threads(tasks)))


def _map_lazy(
    function: Callable[..., NDArray],
    X: da.Array,
    shared: tuple[Any, ...],
    columns: int | None,
    dtype: np.dtype,
    grid: Grid | None,
) -> da.Array:
    shape: dict[str, Any] = (
        {"drop_axis": 1, "meta": np.empty(0, dtype=dtype)}
        if columns is None
        else {"chunks": (X.chunks[0], (columns,)), "meta": np.empty((0, 0), dtype=dtype)}
    )
    places = Places(dask.base.tokenize(X.chunks, X.dtype, grid), positions(layout_of(X, grid)))
    return mapped(_at_place, X, places, (function, *shared), dtype=dtype, **shape)


def _at_place(
    rows: Any, place: Position, function: Callable[..., NDArray], *shared: Any
) -> NDArray:
    return function(Block(checked_rows(rows, place), position=place), *shared)


def training_labels(
    passes: Passes, *shared: Any, function: Callable[..., NDArray] = labels_of
) -> NDArray | da.Array:
    """Return the labels of the training rows, lazily unless the rows are in memory."""
    table, layout = passes.blocks.table, passes.blocks.layout
    if is_dask_array(table):
        return map_rows(function, with_known_rows(table, layout), *shared, grid=layout.grid)
    passes.add(1)
    return map_rows(function, table, *shared)


def cost(passes: Passes, coordinates: Rows, state: CenterState) -> float:
    """Compute Σ_i v_i min_j d_ij in one pass."""
    return float(passes.reduce(_block_cost, coordinates, state))


def _block_cost(block: Block, coordinates: Rows, state: CenterState) -> float:
    _, smallest = nearest_of(block, coordinates, state)
    return float(smallest.sum() if block.weights is None else block.weights @ smallest)
