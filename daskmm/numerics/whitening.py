"""Transform rows to unit covariance, or clip or shorten the tails of their features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Directions with less than this share of the largest standard deviation count as rounding errors.
# Each direction needs at least this many rows.
_FLAT = 1e-6
_ROWS_PER_DIRECTION = 10


def whitened(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Transform rows of positive weights so that their covariance is the identity.

    The result, (n_rows, n_directions), is the principal components of unit variance, at most one
    for each ten rows; none for rows that are all equal.
    """
    share = np.sqrt(weights / weights.sum())[:, None]
    # Relative to the first row, equal rows are exactly 0.
    moved = rows - rows[:1]
    centered = share * (moved - weights @ moved / weights.sum())
    left, lengths, _ = np.linalg.svd(centered, full_matrices=False)
    if not len(lengths) or lengths[0] == 0.0:
        return np.empty((len(rows), 0))
    kept = lengths > _FLAT * lengths[0]
    kept[max(2, len(rows) // _ROWS_PER_DIRECTION) :] = False
    return np.asarray(left[:, kept] / share)


def without_tails(rows: FloatArray, width: float = 3.0) -> FloatArray:
    """Clip each feature at `width` robust standard deviations from its median.

    The robust standard deviation is 1.4826 times the median absolute deviation. If that is 0,
    because half of the values are equal, the feature is not clipped.
    """
    median, reach = median_and_reach(rows, width)
    return np.clip(rows, median - reach, median + reach)


def with_short_tails(rows: FloatArray, width: float = 5.0) -> FloatArray:
    """Put values that are far from the median of their feature on a logarithmic scale.

    A distance d from the median becomes r (1 + log(d / r)) if it exceeds r, which is `width` robust
    standard deviations. Unlike clipping, this does not pile up the values of a tail at one place,
    which would look like a cluster.
    """
    median, reach = median_and_reach(rows, width)
    apart = rows - median
    far = np.abs(apart) > reach
    scale = np.broadcast_to(reach, rows.shape)[far]
    short = rows.copy()
    short[far] = np.broadcast_to(median, rows.shape)[far] + np.sign(apart[far]) * scale * (
        1.0 + np.log(np.abs(apart[far]) / scale)
    )
    return short


def median_and_reach(rows: FloatArray, width: float) -> tuple[FloatArray, FloatArray]:
    """Return medians, and the distances from them beyond which values are far (may be infinite)."""
    median = np.median(rows, axis=0)
    deviation = 1.4826 * np.median(np.abs(rows - median), axis=0)
    return median, np.where(deviation > 0, width * deviation, np.inf)
