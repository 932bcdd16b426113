"""Fitted estimators of scikit-learn that assign rows to the same clusters."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

FloatArray = NDArray[np.float64]


def with_names(exported: BaseEstimator, model: BaseEstimator) -> BaseEstimator:
    """Give an estimator, or the first step of a pipeline, the feature names of a model."""
    if hasattr(model, "feature_names_in_"):
        first = exported[0] if isinstance(exported, Pipeline) else exported
        first.feature_names_in_ = model.feature_names_in_
    return exported


def nearest_center_pipeline(
    centers: FloatArray, mean: FloatArray, scale: FloatArray, weights: FloatArray | None
) -> BaseEstimator:
    """Return a KMeans with given centres, after a scaler if features are scaled or weighted.

    Centres are in the units of the input; distances are measured between rows ``(x − mean) /
    scale``.
    """
    if weights is None and (scale == 1).all():
        return _kmeans(centers)
    # Weighted distances are distances of features times √w. A weight of 0 is an infinite scale.
    with np.errstate(divide="ignore"):
        divisors = scale if weights is None else scale / np.sqrt(weights)
    scaler = StandardScaler().fit(np.stack([mean - 1.0, mean + 1.0]))
    scaler.mean_, scaler.scale_, scaler.var_ = mean, divisors, np.square(divisors)
    return Pipeline([("scale", scaler), ("cluster", _kmeans((centers - mean) / divisors))])


def nearest_direction_pipeline(centers: FloatArray) -> Pipeline:
    """Return a KMeans with given centres of length 1, after a step that normalises the rows."""
    normalizer = Normalizer().fit(centers)
    return Pipeline([("normalize", normalizer), ("cluster", _kmeans(centers))])


def _kmeans(centers: FloatArray) -> KMeans:
    """Fit KMeans to the centres themselves, so that each is the only row of its cluster."""
    model = KMeans(len(centers), init=centers, n_init=1, max_iter=1)
    with warnings.catch_warnings():
        # KMeans warns of centres that coincide.
        warnings.simplefilter("ignore")
        model.fit(centers)
    # The fit has rounded the centres, so they are set to the exact ones.
    model.cluster_centers_ = np.ascontiguousarray(centers)
    return model


def mixture_of(model: BaseEstimator) -> BaseEstimator:
    """Return scikit-learn's GaussianMixture with the components of a fitted mixture."""
    exported = GaussianMixture(len(model.weights_), covariance_type=model.covariance_type_)
    names = "weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"
    for name in (*names, "converged_", "n_iter_", "lower_bound_", "n_features_in_"):
        setattr(exported, name, getattr(model, name))
    return exported
