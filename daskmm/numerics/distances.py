"""Squared Euclidean distances of a tile of rows to a set of centres."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

# A distance from a matrix product that is below this share of ‖x‖² + ‖θ‖² has lost four digits or
# more to cancellation; it is computed again from the differences.
CANCELLATION = 1e-4
# Number of differences (rows × features) in memory at once during this computation.
REDO_ELEMENTS = 1 << 18

FloatArray = NDArray[np.float64]


@functools.cache
def product_rounding(dtype: np.dtype, n_features: int) -> float:
    """Return a bound of the error of an inner product, as a share of the squared norms' sum.

    It is 2 (4 + √p) units in the last place for p features: signs of rounding errors are random.
    """
    return 2.0 * float(np.finfo(dtype).eps) * (4.0 + math.sqrt(n_features))


def squared_distances(
    rows: FloatArray,
    centers: FloatArray,
    feature_weights: FloatArray | None = None,
    squared_rows: FloatArray | None = None,
) -> FloatArray:
    """Compute weighted squared Euclidean distances Σ_l w_l (x_il − θ_jl)².

    The matrix product ‖x‖² − 2 xᵀθ + ‖θ‖² gives them. Distances that cancel are computed again from
    the differences, so that each has a relative error of about 1e-11 and a row that lies on a
    centre has a distance of exactly 0.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), float64
        Rows, centred near the origin.
    centers : ndarray of shape (n_clusters, n_features), float64
        Centres in the same coordinates.
    feature_weights : ndarray of shape (n_features,), optional
        Weights w, not negative; all 1 when absent.
    squared_rows : ndarray of shape (n_rows, n_features), optional
        ``rows ** 2``, if the caller has it.

    Returns
    -------
    ndarray of shape (n_rows, n_clusters), float64
        Distances, never negative.
    """
    squares = rows * rows if squared_rows is None else squared_rows
    if feature_weights is None:
        row_norms = squares.sum(axis=1)
        weighted_centers = centers
    else:
        row_norms = squares @ feature_weights
        weighted_centers = centers * feature_weights
    center_norms = np.einsum("jl,jl->j", weighted_centers, centers)
    distances = rows @ weighted_centers.T
    distances *= -2.0
    scale = row_norms[:, None] + center_norms
    distances += scale
    scale *= CANCELLATION
    near_rows, near_centers = np.nonzero(distances < scale)
    _from_differences(distances, rows, centers, feature_weights, near_rows, near_centers)
    return distances


def _from_differences(
    distances: FloatArray,
    rows: FloatArray,
    centers: FloatArray,
    feature_weights: FloatArray | None,
    near_rows: NDArray[np.intp],
    near_centers: NDArray[np.intp],
) -> None:
    """Compute the given entries of `distances` again, a bounded number of differences at a time."""
    step = max(1, REDO_ELEMENTS // rows.shape[1])
    for start in range(0, len(near_rows), step):
        i = near_rows[start : start + step]
        j = near_centers[start : start + step]
        differences = rows[i] - centers[j]
        differences *= differences
        if feature_weights is None:
            distances[i, j] = differences.sum(axis=1)
        else:
            distances[i, j] = differences @ feature_weights
