"""Find the nearest centres of the rows of a block with the loop of hard steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.dispatch import NO_SUMS, PreparedCenters
from daskmm.compiled.layout import call_in_parts, frame_of, row_dtype, tile_rows
from daskmm.numerics.distances import product_rounding
from daskmm.numerics.rows import FeatureCoordinates

FloatArray = NDArray[np.float64]


def nearest_centers(
    rows: NDArray,
    coordinates: FeatureCoordinates,
    prepared: PreparedCenters,
    labels: NDArray[np.int32],
    distances: FloatArray | None = None,
    others: FloatArray | None = None,
    lists: NDArray[np.int32] | None = None,
    guesses: NDArray[np.int32] | None = None,
) -> bool:
    """Write the nearest centre of each row, and its distance, to the given arrays.

    `rows`, `coordinates` and `prepared` are those of `dispatch.block_sums`; distances are squared
    Euclidean, between complete rows. `labels` get the first of the nearest centres, decided in
    double precision for all dtypes, and `distances` get Σ_l w_l (z_l − θ_l)² to it. `others` get
    lower bounds of the distances to all other centres, which hold in spite of rounding. `lists`,
    (n_rows, n_listed), get centres near each row, including the nearest; a centre may be repeated.
    Partial distances exclude more centres if `guesses`, (n_rows,), are near the rows. Fewer centres
    are listed then.

    The result is False, and labels and distances are undefined, if a row is not finite in the
    model's coordinates, or its squared norm overflows.
    """
    dtype, tile, fields = _fields(rows, coordinates, prepared)
    fields["n_listed"] = 0 if lists is None else lists.shape[1]
    fields |= prepared.leading(dtype, rows, coordinates)
    of_rows = {"labels": labels, "distances": distances, "others": others, "lists": lists}
    of_rows["guesses"] = guesses
    return call_in_parts("nearest_centers", rows, row_dtype(rows), tile, of_rows, fields)


def choose_directions(
    blocks: Sequence[NDArray], coordinates: FeatureCoordinates, prepared: PreparedCenters
) -> None:
    """Choose the directions of partial distances on the first block, before threads need them.

    Lists of near centres depend on the number of directions.
    """
    if len(blocks):
        dtype, _, _ = _fields(blocks[0], coordinates, prepared)
        prepared.leading(dtype, blocks[0], coordinates)


def nearest_listed(
    rows: NDArray,
    coordinates: FeatureCoordinates,
    prepared: PreparedCenters,
    labels: NDArray[np.int32],
    lists: NDArray[np.int32],
) -> None:
    """Write the nearest centre of each row among its present one and those listed for the row.

    The parameters are those of `nearest_centers`; `labels` are the present centres, and `lists` is
    only read.
    """
    _, tile, fields = _fields(rows, coordinates, prepared)
    fields["n_listed"] = lists.shape[1]
    of_rows = {"labels": labels, "lists": lists}
    call_in_parts("nearest_listed", rows, row_dtype(rows), tile, of_rows, fields)


def _fields(
    rows: NDArray, coordinates: FeatureCoordinates, prepared: PreparedCenters
) -> tuple[np.dtype, int, dict[str, Any]]:
    """Return the dtype of the distances, the rows per tile, and fields of `src/loops.h`."""
    k, p = prepared.centers.shape
    frame = frame_of(coordinates)
    dtype = prepared.dtype_for(rows, coordinates, -np.inf)
    tile = tile_rows(len(rows), k, p, row_dtype(rows))
    fields = frame | prepared.fields(dtype) | NO_SUMS | {"rounding": product_rounding(dtype, p)}
    return dtype, tile, fields
