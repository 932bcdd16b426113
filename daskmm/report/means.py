"""Means of the clusters and of all rows, column by column, and how far apart they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daskmm.cluster._naming import value_shares, values_of_rows, variances_of
from daskmm.plot.figures import cluster_means

FloatArray = NDArray[np.float64]

# The reports' names for means of a sample of the rows, of all rows without and with the weights of
# the fit, and of a mixture that estimates missing values.
_OF_SAMPLE, _WITHOUT_WEIGHTS = "mean of sampled rows", "mean without weights"
_ESTIMATED, WEIGHTED = "estimated mean", "weighted mean"
# A cluster has a mean of sampled rows if there are at least this many.
_LEAST_ROWS = 10
# Largest share of the rows that rounding may put into other clusters.
_ROUNDED = 0.01


class Sampled(NamedTuple):
    """A random sample of the rows of the data, with their clusters.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        Rows in the input's units; mixed columns are coded.
    labels : ndarray of shape (n_rows,), int32
        Cluster of each row.
    """

    rows: NDArray
    labels: NDArray[np.int32]


@dataclass(frozen=True)
class Means:
    """Means of the features, in the input's units; a mixed column may have several features."""

    # "mean", "mean of sampled rows", "mean without weights", "weighted mean", "estimated
    # mean", "centre" or "direction".
    what: str
    # Means of the clusters; NaN where a cluster has no value, (n_clusters, n_features).
    clusters: FloatArray
    overall: FloatArray  # mean of all rows, or of the clusters' centres, (n_features,)
    # Variance of all rows, or of most; if it is unknown, the same number for all features,
    # (n_features,).
    variance: FloatArray
    # Share of each feature's values that each cluster has, (n_clusters, n_features).
    shares: FloatArray
    known: bool  # whether the variance is that of all rows
    starts: NDArray[np.int64]  # first feature of each column, (n_columns,)

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of each column, or of the clusters' means if it is unknown."""
        variance = self.variance if self.known else _moments(self.clusters, self.shares)[1]
        return np.asarray(np.sqrt(np.add.reduceat(variance, self.starts)))

    @property
    def away(self) -> FloatArray:
        """Squared distance of the clusters from the mean, over the variance, by column."""
        squares = np.nan_to_num(np.square(self.clusters - self.overall))
        total = np.add.reduceat(self.variance, self.starts)
        found = np.add.reduceat(squares, self.starts, axis=1)
        return np.divide(found, total, out=np.zeros_like(found), where=total > 0)

    @property
    def explained(self) -> FloatArray:
        """Share of each column's variance that lies between the clusters, if it is known."""
        between = self.shares[:, self.starts] * self.away
        return np.minimum(between.sum(axis=0), 1.0)

    def features(self, column: int) -> slice:
        """Return the features of a column."""
        ends = np.append(self.starts[1:], len(self.overall))
        return slice(int(self.starts[column]), int(ends[column]))


def means_of(model: Any, sizes: ArrayLike, sampled: Sampled | None) -> Means | None:
    """Return the means of a fitted model's clusters.

    The means are those of the model, if it has means of rows, or else of the sample, or else the
    centres. Kernels without a sample and precomputed kernels have no means.
    """
    if not (hasattr(model, "mean_") or hasattr(model, "columns_")):
        return None
    if sampled is not None:
        kept = sampled.labels >= 0  # rows without any value have no cluster
        sampled = Sampled(sampled.rows[kept], sampled.labels[kept])
    rows = None if sampled is None else _features_of(model, sampled.rows)
    cosine = getattr(model, "distortion", None) == "cosine"
    exact, what = has_means_of_fit(model), "mean"
    # `cluster_sizes_` have the weights of the rows, which the means of a sample do not have.
    counts = np.asarray(sizes, dtype=np.float64)
    sizes = np.asarray(model.cluster_sizes_ if exact else sizes, dtype=np.float64)
    if exact or (rows is None and hasattr(model, "cluster_centers_")):
        clusters = np.array(values_of_rows(model), dtype=np.float64)
        if not exact:
            what = "direction" if cosine else "centre"
        elif not hasattr(model, "covariances_") and _has_weights(model, counts):
            what = WEIGHTED
    elif sampled is None or rows is None:
        return None
    else:
        clusters = cluster_means(rows, sampled.labels, len(sizes))
        if len(rows) < counts.sum():
            what = _OF_SAMPLE
            clusters[np.bincount(sampled.labels, minlength=len(sizes)) < _LEAST_ROWS] = np.nan
        elif _has_weights(model, sizes):
            what = _WITHOUT_WEIGHTS
    starts = np.arange(clusters.shape[1])
    if hasattr(model, "columns_"):
        expansion = model.coordinates_.expansion
        clusters = np.where((model.value_shares_ == 0)[:, expansion.groups], np.nan, clusters)
        starts = expansion.starts
    shares = _shares_of_values(model, sizes, clusters, rows, sampled)
    overall, between = _moments(clusters, shares)
    if hasattr(model, "covariances_"):  # `cluster_sizes_` come from a later step than the means
        overall = model.weights_ @ model.means_ if hasattr(model, "updates_") else model.mean_
        if model.missing == "partial" and (rows is None or np.isnan(rows).any()):
            what, overall = _ESTIMATED, model.weights_ @ model.means_
    variance = variances_of(model, overall)
    # Trimmed fits and `partial_fit` scale features by the variance of other rows than all.
    others = getattr(model, "trim", False) or "updates_" in vars(model)
    if sampled is None or rows is None:
        # The variance explained is that between means; medians and modes do not give it.
        known = variance is not None and not others and what in ("mean", WEIGHTED)
        if variance is None:
            variance = np.full(len(overall), between.max())
        return Means(what, clusters, overall, variance, shares, known, starts)
    if others or "labels_" not in vars(model) or _has_weights(model, sizes):
        variance = None
    if variance is None:
        # The sample may have too few or too many rows of a cluster, so clusters count by their
        # shares of all rows.
        own = sampled.labels
        weights = (sizes / np.maximum(np.bincount(own, minlength=len(sizes)), 1))[own]
        mean, within = _moments(rows - clusters[own], weights[:, None])
        variance = between + within + np.square(mean)
    return Means(what, clusters, overall, variance, shares, what != _ESTIMATED, starts)


def has_means_of_fit(model: Any) -> bool:
    """Return whether reports have the means of the fit, rather than means of a sample."""
    return hasattr(model, "cluster_means_") and getattr(model, "distortion", None) != "cosine"


def _has_weights(model: Any, sizes: FloatArray) -> bool:
    """Return whether rows of the fit had weights, given the number of rows with each label."""
    more = np.asarray(getattr(model, "cluster_sizes_", sizes)) - sizes
    # Weights may sum to the number of rows. Rows of earlier calls may have had other labels.
    off = np.abs(more).sum() if "labels_" in vars(model) else abs(more.sum())
    return not getattr(model, "trim", False) and bool(off > _ROUNDED * sizes.sum())


def _shares_of_values(
    model: Any, sizes: NDArray, clusters: FloatArray, rows: FloatArray | None, sampled: Any
) -> FloatArray:
    """Return the share of each feature's values that each cluster has."""
    held = value_shares(model)
    if held is None and rows is not None and np.isnan(rows).any():
        held = cluster_means((~np.isnan(rows)).astype(float), sampled.labels, len(sizes))
    counts = sizes[:, None] * np.ones_like(clusters)
    counts *= 1.0 if held is None else np.nan_to_num(held)
    return np.asarray(counts / np.maximum(counts.sum(axis=0), np.finfo(float).tiny))


def _features_of(model: Any, rows: NDArray) -> FloatArray:
    if hasattr(model, "columns_"):
        return np.asarray(model.coordinates_.expansion.expand(rows))
    return np.asarray(rows, dtype=np.float64)


def _moments(rows: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute mean and variance of the values that are there, with weights of rows or values."""
    held = ~np.isnan(rows)
    values, share = np.where(held, rows, 0.0), held * weights
    share /= np.maximum(share.sum(axis=0), np.finfo(float).tiny)
    mean = (share * values).sum(axis=0)
    return mean, (share * np.square(values - mean)).sum(axis=0)
