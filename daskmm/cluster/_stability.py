"""Stability of clusters: whether fits to resampled rows find them again."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state

from daskmm.data.sparse import taken_rows
from daskmm.metrics.agreement import contingency_matrix

FloatArray = NDArray[np.float64]


def stability(
    model: BaseEstimator, rows: Any, labels: NDArray, n_bootstraps: int, random_state: Any
) -> FloatArray:
    """Return how well fits to bootstrap samples of rows find each cluster of a fitted model again.

    Estimators with its parameters, and with the values that it chose for "auto", are fitted to the
    resamples. The result is, for each cluster, the mean over the resamples of the largest Jaccard
    similarity with a cluster that was found; NaN for clusters without rows.
    """
    rng, k = check_random_state(random_state), vars(model)["n_clusters_"]
    found = np.full((n_bootstraps, k), np.nan)
    for similarities in found:
        drawn = rng.randint(len(labels), size=len(labels))
        with warnings.catch_warnings():
            # The fit of the model has already given warnings about its rows.
            warnings.simplefilter("ignore", UserWarning)
            again = _as_chosen(model, int(rng.randint(2**31 - 1))).fit(taken_rows(rows, drawn))
        occurring = np.unique(labels[drawn])
        table = contingency_matrix(labels[drawn], again.labels_)
        union = table.sum(axis=1, keepdims=True) + table.sum(axis=0) - table
        similarities[occurring] = (table / union).max(axis=1)
    seen = ~np.isnan(found)
    total = np.where(seen, found, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        mean: FloatArray = total / seen.sum(axis=0)
    return mean


def _as_chosen(model: Any, seed: int) -> Any:
    """Return an unfitted estimator with the values that a fitted one chose; only starts vary."""
    known: dict[str, Any] = {
        "n_clusters": model.n_clusters_,
        "random_state": seed,
        "callbacks": None,
        "checkpoint": None,
        "verbose": 0,
    }
    chosen = vars(model)
    if not isinstance(model.init, str):
        known["init"] = "k-means++"
    if "standardize_path_" in chosen:
        known["standardize"] = model.standardize_path_.standardize
    if "lam_" in chosen:
        known["lam"] = float(model.lam_)
    if isinstance(model.max_cluster_size, Integral):  # resamples have other weights
        mean = model.cluster_sizes_.sum() / model.n_clusters_
        known["max_cluster_size"] = max(1.0, float(model.max_cluster_size / mean))
    return clone(model).set_params(**known)
