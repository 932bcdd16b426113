"""Rows of a table served by given centres: labels, distances and cost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from daskmm.compiled import dispatch
from daskmm.data.blocks import Position, float_dtype, layout_of, positions, row_blocks
from daskmm.data.validation import check_domain, check_finite, checked_rows
from daskmm.engine.passes import Passes, one_blas_thread, run_on_threads
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN
from daskmm.numerics.rows import Affine, Rows, tile_rows, tiles

FloatArray = NDArray[np.float64]
TileKernel = Callable[[FloatArray], NDArray]


def nearest_center(distances: FloatArray) -> NDArray[np.int32]:
    """Index of the nearest centre per row, the first when tied."""
    return distances.argmin(axis=1).astype(np.int32)


def blockwise(
    rows: NDArray,
    position: Position,
    coordinates: Rows,
    state: CenterState,
    finish: TileKernel,
    out: NDArray,
) -> NDArray:
    """Fill `out` with what `finish` makes of each tile's distances to the centres.

    Raises
    ------
    ValueError
        If a value is not finite, or not in the domain, naming block and row.
    """
    k, p = state.centers.shape
    distortion, partial = state.distortion, state.partial
    for part in tiles(len(rows), tile_rows(p, k)):
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # reported by the checks
                z = coordinates.to_model(rows[part])
                tile = distortion.tile(z, partial)
                finite = np.isfinite(tile.terms.sum(axis=1)).all()
        except ValueError:
            # Kernel functions refuse what is not finite too, but do not know where it stands.
            check_finite(rows[part].astype(np.float64), position, part.start)
            raise
        if not finite and not partial:
            check_finite(rows[part].astype(np.float64), position, part.start)
        check_domain(z, position, part.start, distortion, partial)
        if not finite:
            raise ValueError(
                f"Input X has values so large that their squares overflow float64, in the tile "
                f"from {position.of_row(part.start)}."
            )
        out[part] = finish(distortion.distances(tile, state.centers, state.feature_weights))
    return out


def labels_of(
    rows: NDArray, position: Position, coordinates: Rows, state: CenterState
) -> NDArray[np.int32]:
    """Labels of one block."""
    out = np.empty(len(rows), dtype=np.int32)
    if _compiled_nearest(rows, coordinates, state, out, None):
        return out
    return blockwise(rows, position, coordinates, state, nearest_center, out)


def _compiled_nearest(
    rows: NDArray,
    coordinates: Rows,
    state: CenterState,
    labels: NDArray[np.int32],
    smallest: FloatArray | None,
) -> bool:
    """Fill in labels and smallest distances by the compiled loops.

    Returns whether they could: not where numba is absent, coordinates are more than a shift and
    a scale or a matrix, distances are not squared Euclidean ones between whole rows, or values are
    to be refused, which `blockwise` does in words.
    """
    plain = state.distortion.code == SQUARED_EUCLIDEAN.code and not state.partial
    if not (plain and dispatch.available() and isinstance(coordinates, Affine)):
        return False
    from daskmm.compiled.labels import nearest_centers

    centers, w = state.centers, state.feature_weights
    return nearest_centers(rows, coordinates, centers, w, labels, smallest)


def distances_of(
    rows: NDArray, position: Position, coordinates: Rows, state: CenterState
) -> NDArray:
    """Reported distances of one block, in the floating dtype that stands for its own."""
    out = np.empty((len(rows), len(state.centers)), dtype=float_dtype(rows.dtype))
    with np.errstate(over="ignore"):  # found below
        blockwise(rows, position, coordinates, state, state.distortion.reported, out)
    far = np.flatnonzero(~np.isfinite(out).all(axis=1))
    if len(far) and not state.distortion.infinite:
        raise ValueError(
            f"Input X has values so large that distances overflow {out.dtype}, in "
            f"{position.of_row(int(far[0]))}. Pass X.astype('float64')."
        )
    return out


def squared_distances_of(
    rows: NDArray, position: Position, coordinates: Rows, state: CenterState
) -> FloatArray:
    """Squared distances of one block, float64."""
    out = np.empty((len(rows), len(state.centers)))
    return blockwise(rows, position, coordinates, state, lambda d: d, out)


def map_rows(
    kernel: Callable[..., NDArray],
    X: NDArray | da.Array,
    *shared: Any,
    columns: int | None = None,
    dtype: Any = np.int32,
) -> NDArray | da.Array:
    """``kernel(rows, position, *shared)`` of every block, side by side.

    Parameters
    ----------
    kernel : callable
        `labels_of` or `distances_of`.
    X : ndarray, or dask array of whole rows
    *shared
        The same for every block.
    columns : int, optional
        Columns of the result; one-dimensional when absent.
    dtype : dtype
        Of the result.

    Returns
    -------
    ndarray, or dask array that computes nothing until asked
    """
    if isinstance(X, da.Array):
        return _map_lazy(kernel, X, shared, columns, np.dtype(dtype))
    blocks = row_blocks(X)
    places = positions(blocks.layout)
    jobs = [
        functools.partial(kernel, part, place, *shared)
        for part, place in zip(blocks.parts, places, strict=True)
    ]
    with one_blas_thread():
        return np.concatenate(list(run_on_threads(jobs)))


def _map_lazy(
    kernel: Callable[..., NDArray],
    X: da.Array,
    shared: tuple[Any, ...],
    columns: int | None,
    dtype: np.dtype,
) -> da.Array:
    places = positions(layout_of(X))
    shape: dict[str, Any] = (
        {"drop_axis": 1, "meta": np.empty(0, dtype=dtype)}
        if columns is None
        else {"chunks": (X.chunks[0], (columns,)), "meta": np.empty((0, 0), dtype=dtype)}
    )
    map_blocks: Callable[..., da.Array] = X.map_blocks
    return map_blocks(_at_block, kernel=kernel, places=places, shared=shared, dtype=dtype, **shape)


def _at_block(
    rows: Any,
    kernel: Callable[..., NDArray],
    places: list[Position],
    shared: tuple[Any, ...],
    block_id: tuple[int, ...],
) -> NDArray:
    place = places[block_id[0]]
    return kernel(checked_rows(rows, place), place, *shared)


def training_labels(
    table: NDArray | da.Array, passes: Passes, coordinates: Rows, state: CenterState
) -> NDArray | da.Array:
    """Labels of the rows that were clustered: by one more pass in memory, lazily otherwise."""
    if isinstance(table, da.Array):
        rows = passes.blocks.layout.rows
        assert rows is not None
        # Rows have been counted by now, also where the chunks did not tell.
        table = da.Array(table.dask, table.name, (rows, (table.shape[1],)), meta=table._meta)
    else:
        passes.add(1)
    return map_rows(labels_of, table, coordinates, state)


def cost(passes: Passes, coordinates: Rows, state: CenterState) -> float:
    """Σ_i v_i min_j d_ij by one pass."""
    return float(passes.reduce(_block_cost, coordinates, state))


def _block_cost(
    rows: NDArray,
    weights: NDArray | None,
    position: Position,
    coordinates: Rows,
    state: CenterState,
) -> float:
    smallest, labels = np.empty(len(rows)), np.empty(len(rows), dtype=np.int32)
    if not _compiled_nearest(rows, coordinates, state, labels, smallest):
        blockwise(rows, position, coordinates, state, lambda d: d.min(axis=1), smallest)
    return float(smallest.sum() if weights is None else weights @ smallest)
