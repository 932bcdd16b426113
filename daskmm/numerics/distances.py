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


def squared_distances(rows: FloatArray, centers: FloatArray) -> FloatArray:
    """Compute squared Euclidean distances Σ_l (x_il − θ_jl)².

    The matrix product ‖x‖² − 2 xᵀθ + ‖θ‖² gives them. Distances that cancel are computed again from
    the differences, so that each has a relative error of about 1e-11 and a row that lies on a
    centre has a distance of exactly 0.

    Rows and centres have the same coordinates, and are centred near the origin. The distances,
    (n_rows, n_clusters), are never negative.
    """
    scale = (rows * rows).sum(axis=1)[:, None] + np.einsum("jl,jl->j", centers, centers)
    distances = rows @ centers.T
    distances *= -2.0
    distances += scale
    scale *= CANCELLATION
    near_rows, near_centers = np.nonzero(distances < scale)
    # The differences of a bounded number of pairs are in memory at a time.
    step = max(1, REDO_ELEMENTS // rows.shape[1])
    for start in range(0, len(near_rows), step):
        i, j = near_rows[start : start + step], near_centers[start : start + step]
        distances[i, j] = np.square(rows[i] - centers[j]).sum(axis=1)
    return distances
