"""How clearly rows belong to their cluster, by the model's own distances or probabilities."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.data.blocks import Block
from daskmm.kmeans.assignment import unsquared_distances_of
from daskmm.metrics.quality import relative_margins
from daskmm.report.means import Sampled

FloatArray = NDArray[np.float64]

# A row is clearly in its cluster if its centre is at most half as far as the next one, or if its
# probability is at least this large.
_SILHOUETTE, _PROBABILITY = 0.5, 0.9
# Clusters are compared by the share of such rows if it is at least this large.
_LEAST_CLEAR = 0.005
# The share is computed for clusters with at least this many rows in the sample.
_LEAST_ROWS = 10


@dataclass(frozen=True)
class Separation:
    """Separation of the clusters in a sample."""

    # Mean of (b − a) / b, where a is the distance to the row's own centre and b that to the nearest
    # other centre: the simplified silhouette; for mixtures, the mean probability.
    score: float
    clear: float  # share of the rows that are clearly in their cluster
    # Share of each cluster's rows that are clearly in it; NaN for few rows in the sample,
    # (n_clusters,).
    clear_by_cluster: FloatArray
    by_probability: bool  # whether the model is a mixture

    @property
    def tells(self) -> bool:
        """Whether some rows are clearly in their cluster; in many dimensions there may be none."""
        return self.clear >= _LEAST_CLEAR


def separation_of(model: Any, sampled: Sampled | None) -> Separation | None:
    """Measure the separation; None without a sample, for kernels and for a single cluster."""
    if sampled is None or not len(sampled.rows) or not hasattr(model, "cluster_centers_"):
        return None
    k = len(model.cluster_centers_)
    if k < 2:
        return None
    by_probability = hasattr(model, "predict_proba") and hasattr(model, "covariances_")
    if by_probability:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
            scores = model.predict_proba(sampled.rows).max(axis=1)
    else:
        scores = _silhouettes(model, sampled)
    clear = scores >= (_PROBABILITY if by_probability else _SILHOUETTE)
    counts = np.bincount(sampled.labels, minlength=k)
    sums = np.bincount(sampled.labels, clear, minlength=k)
    shares = np.where(counts >= _LEAST_ROWS, sums / np.maximum(counts, 1), np.nan)
    return Separation(float(scores.mean()), float(clear.mean()), shares, by_probability)


def _silhouettes(model: Any, sampled: Sampled) -> FloatArray:
    fitted = FittedCenters.of(model)
    rows, labels = sampled
    distances = unsquared_distances_of(Block(rows), fitted.coordinates, fitted.state)
    own = np.take_along_axis(distances, labels[:, None], axis=1)[:, 0]
    np.put_along_axis(distances, labels[:, None], np.inf, axis=1)
    return relative_margins(own, distances.min(axis=1))
