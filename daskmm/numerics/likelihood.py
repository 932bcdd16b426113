"""Classification likelihood of a partition of rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.information import cluster_sums

FloatArray = NDArray[np.float64]

# Least share of a direction's variance that is counted as within the clusters.
LEAST_WITHIN = 1e-3
# Cost of each coordinate of a centre, in nats (AIC3).
PER_PARAMETER = 1.5
# Directions with less than this share of the largest standard deviation are rounding errors, and
# there are at least this many rows for each direction.
_FLAT = 1e-6
_ROWS_PER_DIRECTION = 10


def whitened(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Transform rows so that their covariance is the identity.

    Weights are positive.

    Returns
    -------
    ndarray of shape (n_rows, n_directions)
        Principal components of unit variance, at most one for each ten rows; none for rows that
        are all equal.
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


class Likelihood(NamedTuple):
    """Gain of a partition over one cluster, in nats per row.

    Attributes
    ----------
    explained : float
        ½ log |T|/|W|, with the covariances of all rows and of those within clusters.
    gain : float
        The same, less the entropy of the clusters' shares and the cost of their centres.
    """

    explained: float
    gain: float


def partition_likelihood(
    white: FloatArray, weights: FloatArray, labels: NDArray[np.integer]
) -> Likelihood:
    r"""Compute the classification likelihood of a partition over one cluster, in nats per row.

    .. math::

        \tfrac12 \log \frac{|T|}{|W|} + \sum_j π_j \log π_j - \frac{1.5 (k - 1) p}{n}

    The rows are those of `whitened`; weights are positive, and labels begin at 0.

    Returns
    -------
    Likelihood
        0 and 0 for one cluster.
    """
    sizes = np.bincount(labels, weights)
    sums = cluster_sums(white, weights, labels, len(sizes))
    occupied = sizes > 0
    shares = sizes[occupied] / weights.sum()
    between = (sums[occupied] / weights.sum()) / np.sqrt(shares)[:, None]
    within = np.clip(1.0 - np.linalg.svd(between, compute_uv=False) ** 2, LEAST_WITHIN, 1.0)
    explained = float(-0.5 * np.log(within).sum())
    parameters = (len(shares) - 1) * white.shape[1]
    gain = explained + float(shares @ np.log(shares)) - PER_PARAMETER * parameters / len(white)
    return Likelihood(explained, gain)


def without_tails(rows: FloatArray, width: float = 3.0) -> FloatArray:
    """Clip each feature at some robust standard deviations from its median.

    The robust deviation is 1.4826 times the median absolute one; where that is 0, because half of
    the values are equal, the feature is not clipped. `width` is the number of robust standard
    deviations.
    """
    median = np.median(rows, axis=0)
    deviation = 1.4826 * np.median(np.abs(rows - median), axis=0)
    reach = np.where(deviation > 0, width * deviation, np.inf)
    return np.clip(rows, median - reach, median + reach)
