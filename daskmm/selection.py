"""Choices without labels, each on a sample drawn in one pass over the data.

The modules of :mod:`daskmm.auto` that apply the rules describe them and their sources.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar

from daskmm._dask import da, is_dask_array
from daskmm.auto import distortion as distortion_rule
from daskmm.auto import n_clusters as number_rule
from daskmm.auto.distortion import DistortionChoice
from daskmm.auto.n_clusters import ClusterNumberPath, follow_n_clusters
from daskmm.cluster import PowerKMeans
from daskmm.data.blocks import float_dtype
from daskmm.data.input import read_weighted
from daskmm.data.lazy import in_memory
from daskmm.engine.first_pass import Survey, first_pass
from daskmm.engine.moments import Sample
from daskmm.engine.passes import weighted_passes
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.trials import Trials, sample_rows, spawned, thinned
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.rows import Coordinates

__all__ = [
    "ClusterNumberPath",
    "DistortionChoice",
    "choose_distortion",
    "choose_n_clusters",
    "information_gain",
]


def information_gain(
    X: Any,
    labels: Any,
    *,
    sample_weight: Any = None,
    standardize: bool = False,
    n_draws: int = 3,
    sample_size: int = 4000,
    random_state: int | np.random.RandomState | None = None,
) -> float:
    r"""Measure how much more a partition explains than clusters of pure noise would, in nats.

    Parameters
    ----------
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        The rows, which are read once.
    labels : array-like or dask Array of shape (n_samples,), or fitted estimator
        Integer cluster labels of the rows, or a model with centres that predicts them. With a
        model, the null has its scale and feature weights.
    sample_weight : array-like or dask Array of shape (n_samples,), optional
        Sample weights, not negative; all 1 by default.
    standardize : bool, default=False
        Whether the null is clustered with standardised features. It is ignored for a model, whose
        own scale is used.
    n_draws : int, default=3
        Number of draws of the null, over which the gain is averaged.
    sample_size : int, default=4000
        Largest number of rows to use. The first pass draws 10,000 rows (fewer if rows are wide),
        which is an upper bound.
    random_state : int, RandomState instance or None, default=None
        Seed of the sample and the null.

    Returns
    -------
    float
        The gain in nats, about 0 for clusters that explain no more than clusters of noise do.

    Raises
    ------
    ValueError, TypeError
        If a parameter or the data cannot be used.

    Notes
    -----
    Let R_l be the share of the variance of feature l that lies between the cluster means, and R⁰_l
    the same share for independent Gaussian features with as many rows and the same scale, which
    power k-means divides into as many clusters. Then

    .. math::

        IG = \sum_l \tfrac12 \log \frac{\max(1 - R^0_l, .001)}{\max(1 - R_l, .001)}

    over all features that are not constant. The sum is not weighted, so the gain cannot be raised
    by putting all weight on one easy feature, and it does not depend on the units of the features
    (except through the model that is judged).
    """
    check_scalar(n_draws, "n_draws", Integral, min_val=1)
    check_scalar(sample_size, "sample_size", Integral, min_val=1)
    model = labels if hasattr(labels, "predict") else None
    clusters = labels if model is None else model.predict(X)
    table, weights = read_weighted(BaseEstimator(), X, sample_weight, reset=True)
    seed = _seed(random_state)
    with one_blas_thread():
        passes = weighted_passes(_with_column(table, clusters), weights)
        survey = first_pass(passes, 1, False, seed)
        drawn = survey.coordinates.to_input(survey.sample.rows)
        joined, row_weights = thinned(drawn, survey.sample.weights, int(sample_size), seed)
        if model is not None:
            coordinates = Coordinates(model.mean_, model.scale_)
        else:
            deviation = np.sqrt(survey.variance[:-1])
            scale = np.where((deviation > 0) & standardize, deviation, 1.0)
            coordinates = Coordinates(survey.coordinates.mean[:-1], scale)
        sample = Sample(coordinates.to_model(joined[:, :-1]), row_weights)
        trials = Trials.of(sample, len(joined), seed)
        feature_weights = getattr(model, "feature_weights_", trials.equal_weights)
        found = np.rint(joined[:, -1]).astype(np.int64)
        draws = spawned(seed, n_draws)
        gains = [trials.gains(found, feature_weights, draw).sum() for draw in draws]
        return float(np.mean(gains))


def choose_n_clusters(
    X: Any,
    *,
    sample_weight: Any = None,
    max_clusters: int | None = None,
    feature_weights: ArrayLike | None = None,
    standardize: bool = False,
    sample_size: int | None = None,
    random_state: int | np.random.RandomState | None = None,
) -> ClusterNumberPath:
    """Choose the number of clusters, on a sample.

    `KMeans`, `PowerKMeans` and `EntropyPowerKMeans` do this themselves with
    ``n_clusters="auto"``, and keep the path as ``n_clusters_path_``. Draw it with
    :func:`daskmm.plot.n_clusters_path`. The rule is described in :mod:`daskmm.auto.n_clusters`.

    Parameters
    ----------
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        The rows, which are read once.
    sample_weight : array-like or dask Array of shape (n_samples,), optional
        Sample weights, not negative; all 1 by default.
    max_clusters : int, optional
        Largest number to choose. By default only the sample bounds it: a cluster needs a dozen of
        its rows.
    feature_weights : array-like of shape (n_features,), optional
        Weights of the features in the distance, not negative. `EntropyPowerKMeans` uses the
        weights that it learns with 20 clusters; they hardly depend on the number of clusters.
    standardize : bool, default=False
        Whether to divide each feature by its standard deviation.
    sample_size : int, optional
        Largest number of rows to use; by default 10,000.
    random_state : int, RandomState instance or None, default=None
        Seed of the sample and of the starts of k-means. The path does not depend on the chunks of
        `X`.

    Returns
    -------
    ClusterNumberPath
        The overlaps at each number. Its ``n_clusters`` is the choice, 1 if no gap in density
        divides the rows.

    Raises
    ------
    ValueError, TypeError
        If a parameter or the data cannot be used.
    """
    if max_clusters is not None:
        check_scalar(max_clusters, "max_clusters", Integral, min_val=2)
    _check_sizes(sample_size, 2)
    survey, _, seed = _survey(X, sample_weight, 1, standardize, random_state)
    weights = None
    if feature_weights is not None:
        weights = np.asarray(feature_weights, dtype=np.float64)
        expected = survey.variance.shape
        if weights.shape != expected or not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(f"feature_weights must be {expected[0]} numbers, not negative.")
    with one_blas_thread():
        return follow_n_clusters(
            survey.sample, seed, weights, max_clusters, sample_size or number_rule.SAMPLE_ROWS
        )


def choose_distortion(
    X: Any,
    n_clusters: int,
    *,
    distortions: Sequence[str] | None = None,
    sample_weight: Any = None,
    n_init: int = distortion_rule.STARTS,
    standardize: bool = False,
    sample_size: int | None = None,
    random_state: int | np.random.RandomState | None = None,
) -> DistortionChoice:
    """Choose the distortion of `PowerKMeans` and `KMeans`, on a sample.

    Draw the choice with :func:`daskmm.plot.distortion_choice`. The rule is described in
    :mod:`daskmm.auto.distortion`.

    Parameters
    ----------
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        The rows, which are read once.
    n_clusters : int
        Number of clusters.
    distortions : sequence of str, optional
        Names that `PowerKMeans` knows, in order of preference. By default "sqeuclidean", "kl",
        "itakura-saito", "logistic", "euclidean" and "manhattan", as far as the values are in their
        domains.
    sample_weight : array-like or dask Array of shape (n_samples,), optional
        Sample weights, not negative; all 1 by default.
    n_init : int, default=4
        Number of starts per distortion.
    standardize : bool, default=False
        Whether to divide features by their standard deviations, for distortions that allow it.
    sample_size : int, optional
        Largest number of rows to use; by default 2,000, or 100 per cluster if that is more.
    random_state : int, RandomState instance or None, default=None
        Seed of the sample, the starts and the null. The choice does not depend on the chunks of
        `X`.

    Returns
    -------
    DistortionChoice

    Raises
    ------
    ValueError, TypeError
        If a parameter or the data cannot be used, or the values are not in the domain of a
        distortion that was asked for.
    """
    _check_sizes(sample_size, n_clusters, n_clusters=n_clusters, n_init=n_init)
    survey, lazy, seed = _survey(X, sample_weight, n_clusters, False, random_state)
    size = sample_size or sample_rows(n_clusters)
    rows, weights = thinned(survey.sample.rows, survey.sample.weights, size, seed)
    with one_blas_thread(), warnings.catch_warnings():
        # Starts that lose clusters have a lower gain, so no warning is needed.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return distortion_rule.choose_distortion(
            distortions,
            survey.coordinates.to_input(rows),
            weights,
            int(n_clusters),
            seed,
            int(n_init),
            lazy,
            partial(_labelled, standardize=bool(standardize)),
        )


def _labelled(
    distortion: str,
    rows: NDArray[np.float64],
    weights: NDArray[np.float64],
    n_clusters: int,
    seed: int,
    standardize: bool,
) -> NDArray[np.integer]:
    """Cluster rows by power k-means, from one start."""
    model = PowerKMeans(
        n_clusters,
        n_init=1,
        distortion=distortion,
        standardize=standardize and DISTORTIONS[distortion].shifts and distortion != "mahalanobis",
        random_state=seed,
    )
    return np.asarray(model.fit(rows, sample_weight=weights).labels_)


def _check_sizes(sample_size: Any, least: int, **counts: Any) -> None:
    for name, value in counts.items():
        check_scalar(value, name, Integral, min_val=1)
    if sample_size is not None:
        check_scalar(sample_size, "sample_size", Integral, min_val=least)


def _seed(random_state: int | np.random.RandomState | None) -> int:
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _survey(
    X: Any, sample_weight: Any, n_clusters: int, standardize: bool, random_state: Any
) -> tuple[Survey, bool, int]:
    """Make the first pass; return its result, whether the data are lazy, and a seed."""
    seed = _seed(random_state)
    passes = weighted_passes(*read_weighted(BaseEstimator(), X, sample_weight, reset=True))
    with one_blas_thread():
        survey = first_pass(passes, n_clusters, bool(standardize), seed, by_distance=True)
    return survey, passes.blocks.layout.lazy, seed


def _with_column(table: NDArray | da.Array, labels: Any) -> NDArray | da.Array:
    """Append the labels of the rows to a table, as its last feature.

    Raises
    ------
    ValueError
        If there is not one label per row.
    """
    dtype = float_dtype(table.dtype)
    if not is_dask_array(table):
        values = in_memory(labels)
        if values.shape != (len(table),):
            raise ValueError(f"labels have shape {values.shape}; X has {len(table)} rows.")
        return np.column_stack([table.astype(dtype, copy=False), values.astype(dtype)])
    column = labels if is_dask_array(labels) else da.from_array(np.asarray(labels), -1)
    if not np.isnan([*table.shape, *column.shape]).any():
        if column.shape != table.shape[:1]:
            raise ValueError(f"labels have shape {column.shape}; X has {table.shape[0]} rows.")
        column = column.rechunk((table.chunks[0],))
    elif column.numblocks != table.numblocks[:1]:
        raise ValueError("labels cannot be matched to X: its row counts are unknown.")
    return da.concatenate(
        [table.astype(dtype), column.astype(dtype)[:, None]], axis=1, allow_unknown_chunksizes=True
    ).rechunk({1: -1})
