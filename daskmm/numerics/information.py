"""Compute how much of the features a partition of the rows explains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import ndtri

FloatArray = NDArray[np.float64]

# Least share of a feature's variance that counts as within the clusters.
LEAST_WITHIN = 1e-3


@dataclass(frozen=True)
class Partition:
    """Shares of the clusters, and the variance that they leave unexplained."""

    # 1 − R_l, the share of each feature's variance that is within the clusters, (n_features,); 1
    # for a constant feature.
    within: FloatArray
    shares: FloatArray  # share of the weight of each cluster that is not empty, (n_occupied,)


def weighted_variance(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the population variance of each feature; exactly 0 for a constant one.

    Weights are positive.
    """
    mean = weights @ rows / weights.sum()
    variance = weights @ np.square(rows - mean) / weights.sum()
    return np.where(np.ptp(rows, axis=0) > 0, variance, 0.0)


def mean_of_varying(variance: FloatArray) -> float:
    """Return the mean variance V of the features that vary (1 if none does)."""
    varying = variance > 0
    return float(variance[varying].mean()) if varying.any() else 1.0


def normal_scores(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Compute Φ⁻¹ of the share of weight below each value, plus half of the share at the value.

    Weights are positive, and scores of a constant feature are 0.
    """
    scores = np.empty(rows.shape)
    for feature, values in enumerate(rows.T):
        _, places = np.unique(values, return_inverse=True)
        at = np.bincount(places, weights)
        below = np.cumsum(at) - at
        scores[:, feature] = ndtri((below + 0.5 * at) / weights.sum())[places]
    return scores


def resolution(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the share of a normal number's variance that the values of each feature determine.

    Values are taken for normal numbers that were rounded and kept their order. A value with the
    share s of the weight says that its number lies between two quantiles, and the means of the
    numbers given the values have the variance Σ (φ(z_below) − φ(z_above))² / s. An even flag has
    .64 of the variance of distinct values, a flag of 2 % has .12; a constant feature has 0. Weights
    are positive.
    """
    told = np.empty(rows.shape[1])
    for feature, values in enumerate(rows.T):
        order = np.lexsort((weights, values))
        below = np.concatenate([[0.0], np.cumsum(weights[order]) / weights.sum()])
        density = np.exp(-0.5 * np.square(ndtri(np.minimum(below, 1.0))))
        edges = np.flatnonzero(np.diff(values[order], prepend=np.nan, append=np.nan))
        distinct = _variance_of_means(density, below)
        found = _variance_of_means(density[edges], below[edges])
        told[feature] = found / max(distinct, np.finfo(float).tiny)
    return told


def _variance_of_means(density: FloatArray, below: FloatArray) -> float:
    """Return Σ (φ(z_below) − φ(z_above))² / s over intervals of shares between quantiles.

    The share of a tiny weight may be rounded to 0; such an interval does not count.
    """
    shares, squares = np.diff(below), np.square(np.diff(density))
    return float(np.divide(squares, shares, out=np.zeros_like(shares), where=shares > 0).sum())


def partition(
    rows: FloatArray,
    weights: FloatArray,
    labels: NDArray[np.integer],
    variance: FloatArray | None = None,
) -> Partition:
    """Compute the share of each feature's variance that a partition leaves unexplained.

    Weights are positive; `variance` is the `weighted_variance` of the rows, if the caller has it.
    """
    order = np.argsort(labels, kind="stable")
    ends = np.flatnonzero(np.diff(labels[order])) + 1
    left, sizes = np.zeros(rows.shape[1]), []
    # Clusters are visited one at a time, so that not all rows are copied at once.
    for members in np.split(order, ends):
        own, part = weights[members], rows[members]
        sizes.append(own.sum())
        part = part - own @ part / sizes[-1]
        left += own @ np.square(part, out=part)
    left /= weights.sum()
    total = weighted_variance(rows, weights) if variance is None else variance
    within = np.ones_like(total)
    varying = (total > 0) & (len(sizes) > 1)
    within[varying] = np.minimum(left[varying] / total[varying], 1.0)
    return Partition(within, np.array(sizes) / weights.sum())


def cluster_sums(
    rows: FloatArray, weights: FloatArray, labels: NDArray[np.integer], n_clusters: int
) -> FloatArray:
    """Return the weighted sum of the rows of each cluster, (n_clusters, n_features)."""
    # A sparse product adds the rows in the order of np.add.at, in a fourteenth of the time.
    member = csr_array((weights, labels, np.arange(len(labels) + 1)), (len(labels), n_clusters))
    return np.asarray(member.T @ rows)


def feature_gains(
    within: FloatArray,
    null: FloatArray,
    varying: NDArray[np.bool_],
    entropies: FloatArray | None = None,
) -> FloatArray:
    """Compute gains over a null, ½ log[max(1 − R⁰_l, .001) / max(1 − R_l, .001)], in nats.

    `within` and `null` are 1 − R_l of the partition, and 1 − R⁰_l of a partition of rows that have
    no clusters. Features that are not `varying` gain 0. `entropies` are H_l of flags and
    categories, NaN for numbers: clusters explain H_l R_l nats of flags and categories, and
    −½ log(1 − R_l) nats of numbers.
    """
    ratio = np.maximum(null, LEAST_WITHIN) / np.maximum(within, LEAST_WITHIN)
    gains = 0.5 * np.log(ratio)
    if entropies is not None:
        gains = np.where(np.isnan(entropies), gains, entropies * (null - within))
    return np.where(varying, gains, 0.0)
