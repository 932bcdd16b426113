"""Compute the moments of a block of rows, reading it once.

Each tile is visited twice while it is in the core's cache: for its mean, then for the squared
deviations from it. Tiles are merged by the update of Chan, Golub & LeVeque. Means are kept as
differences from the mean of one tile, which keeps rounding errors small far from 0. The reference
definition of the results is `daskmm.engine.moments.Moments`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.layout import call_in_parts, plain

FloatArray = NDArray[np.float64]

# Numbers per tile, the same for all dtypes and memory orders, so that results are equal.
_TILE_ELEMENTS = 1 << 15


class BlockMoments(NamedTuple):
    """Moments of a block, as in `daskmm.engine.moments.Moments`.

    Attributes
    ----------
    n_positive : int
        Number of rows with a positive weight.
    weight : float
        Sum of the weights.
    mean, deviations, lowest, highest : ndarray of shape (n_features,)
        Weighted mean, sum of squared deviations from it, least and largest value per feature.
    """

    n_positive: int
    weight: float
    mean: FloatArray
    deviations: FloatArray
    lowest: FloatArray
    highest: FloatArray


def block_moments(rows: NDArray, weights: FloatArray | None) -> BlockMoments | None:
    """Return weighted count, mean, sum of squared deviations and range of each feature.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Rows in any numeric dtype and memory order.
    weights : ndarray of shape (n_rows,) or None
        Sample weights, finite and not negative.

    Returns
    -------
    BlockMoments or None
        None if a value, even in a row without weight, is not finite or its square overflows.
    """
    p = rows.shape[1]
    single = np.result_type(rows.dtype, np.float32) == np.float32
    dtype, tile = np.dtype(np.float32 if single else np.float64), max(1, _TILE_ELEMENTS // p)
    totals, origin, mean, deviations = np.zeros(2), np.zeros(p), np.zeros(p), np.zeros(p)
    lowest, highest = np.full(p, np.inf), np.full(p, -np.inf)
    fields = {"totals": totals, "origin": origin, "mean": mean, "deviations": deviations}
    fields |= {"lowest": lowest, "highest": highest}
    of_rows = {"weights": None if weights is None else plain(weights)}
    if not call_in_parts("moments", rows, dtype, tile, of_rows, fields):
        return None
    mean += origin
    if not (np.isfinite(mean).all() and np.isfinite(deviations).all()):
        return None
    return BlockMoments(int(totals[0]), float(totals[1]), mean, deviations, lowest, highest)
