"""Find the nearest centres of the rows of a block with the loop of hard steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.dispatch import NO_SUMS, PreparedCenters
from daskmm.compiled.layout import call_in_parts, frame_of, tile_rows
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
) -> bool:
    """Write the nearest centre of each row, and its distance, to the given arrays.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Rows in the input's units, in any numeric dtype and memory order.
    coordinates : FeatureCoordinates
        The model's coordinates.
    prepared : PreparedCenters
        The centres, for squared Euclidean distances between complete rows.
    labels : ndarray of int32 of shape (n_rows,)
        Output: the first of the nearest centres, decided in double precision for all dtypes.
    distances : ndarray of shape (n_rows,), optional
        Output: the distance Σ_l w_l (z_l − θ_l)² to that centre.
    others : ndarray of shape (n_rows,), optional
        Output: lower bounds of the distances to all other centres, which hold in spite of rounding.

    Returns
    -------
    bool
        False if a row is not finite in the model's coordinates, or its squared norm overflows;
        labels and distances are undefined then.
    """
    k, p = prepared.centers.shape
    frame = frame_of(coordinates)
    dtype = prepared.dtype_for(rows, frame["scale"], -np.inf)
    tile = tile_rows(len(rows), k, p, dtype)
    fields = frame | prepared.fields(dtype) | NO_SUMS
    fields["rounding"] = product_rounding(dtype, p)
    if others is None:
        fields |= prepared.leading(dtype, rows, coordinates)
    of_rows = {"labels": labels, "distances": distances, "others": others}
    return call_in_parts("nearest_centers", rows, dtype, tile, of_rows, fields)
