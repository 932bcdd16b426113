"""Choices without labels: paths over a parameter, on a sample, in one reading of the data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar

from daskmm.auto.bandwidth import BandwidthPath, bandwidth_path, choose_bandwidth
from daskmm.auto.distortion import STARTS as DISTORTION_STARTS
from daskmm.auto.distortion import DistortionChoice, candidates, preferred
from daskmm.auto.lam import STARTS, LamPath, follow_lam, sample_rows
from daskmm.auto.n_clusters import MOST_CLUSTERS, ClusterNumberPath, follow_n_clusters
from daskmm.auto.n_clusters import STARTS as NUMBER_STARTS
from daskmm.cluster import PowerKMeans
from daskmm.data.blocks import float_dtype
from daskmm.data.input import read_weighted
from daskmm.engine.first_pass import Survey, first_pass
from daskmm.engine.moments import Sample
from daskmm.engine.passes import one_blas_thread, tree_reduce, weighted_passes
from daskmm.kmeans.trials import Trials, spawned, thinned
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.information import gain_over, normal_scores, partition, weighted_variance
from daskmm.numerics.rows import Coordinates

__all__ = [
    "BandwidthPath",
    "ClusterNumberPath",
    "DistortionChoice",
    "LamPath",
    "bandwidth_path",
    "choose_bandwidth",
    "choose_distortion",
    "choose_n_clusters",
    "information_gain",
    "lam_path",
]

# Rows on which a partition is judged.
GAIN_ROWS = 4000


def information_gain(
    X: Any,
    labels: Any,
    *,
    sample_weight: Any = None,
    standardize: bool = False,
    n_draws: int = 3,
    sample_size: int = GAIN_ROWS,
    random_state: int | np.random.RandomState | None = None,
) -> float:
    r"""How much more a partition explains than clusters of pure noise would, in nats.

    Parameters
    ----------
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        Visited once.
    labels : array-like or dask Array of shape (n_samples,), or fitted estimator
        Clusters of the rows, integers; or a model with centres, which predicts them, and whose
        scale and feature weights the null then has.
    sample_weight : array-like or dask Array of shape (n_samples,), optional
    standardize : bool, default=False
        For labels: whether the null is clustered with all features on one scale. A model
        decides by itself.
    n_draws : int, default=3
        Draws of the null, whose gain is averaged.
    sample_size : int, default=4000
        Rows to use at most. More than the first pass draws (10,000, fewer where rows are wide)
        are not to be had.
    random_state : int, RandomState instance or None, default=None
        Draws the sample and the null.

    Returns
    -------
    float
        About 0 for clusters that noise has too.

    Raises
    ------
    ValueError, TypeError
        If a parameter or the data cannot be used.

    Notes
    -----
    With R_l the share of the variance of feature l that lies between the clusters' means, and
    R⁰_l the same of independent Gaussian features of as many rows and the same scale, cut into
    as many clusters by power k-means,

    .. math::

        IG = \sum_l \tfrac12 \log \frac{\max(1 - R^0_l, .001)}{\max(1 - R_l, .001)}

    over all features that vary. They are not weighted, so that the gain cannot be won by
    putting all weight on an easy one. It does not depend on the scale of any feature, other
    than by what a model makes of it.
    """
    check_scalar(n_draws, "n_draws", Integral, min_val=1)
    check_scalar(sample_size, "sample_size", Integral, min_val=1)
    model = labels if hasattr(labels, "predict") else None
    clusters = labels if model is None else model.predict(X)
    table, weights = read_weighted(BaseEstimator(), X, sample_weight, reset=True)
    passes = weighted_passes(_with_column(table, clusters), weights)
    seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    with one_blas_thread():
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
    with one_blas_thread():
        gains = [
            trials.gain(np.rint(joined[:, -1]).astype(np.int64), feature_weights, one)
            for one in spawned(seed, n_draws)
        ]
    return float(np.mean(gains))


def lam_path(
    X: Any,
    n_clusters: int,
    *,
    sample_weight: Any = None,
    lams: ArrayLike | None = None,
    n_init: int = STARTS,
    standardize: bool = True,
    sample_size: int | None = None,
    random_state: int | np.random.RandomState | None = None,
) -> LamPath:
    r"""Follow entropy-weighted power k-means over a grid of penalties, on a sample.

    `EntropyPowerKMeans` does so by itself with ``lam="auto"``, and keeps the path as
    ``lam_path_``. Look at it with :func:`daskmm.plot.lam_path`.

    Parameters
    ----------
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        Visited once.
    n_clusters : int
    sample_weight : array-like or dask Array of shape (n_samples,), optional
    lams : array-like of shape (n_lams,), optional
        Penalties λ per unit of sample weight, positive; ``inf`` keeps the weights of the
        features equal. By default .1, .2, .35, .5 and 1 times the mean variance of the features
        (which is 1 when they are standardised), and ``inf``.
    n_init : int, default=3
        Starts of each.
    standardize : bool, default=True
    sample_size : int, optional
        Rows to use at most: 2,000, or 100 per cluster if that is more, by default.
    random_state : int, RandomState instance or None, default=None
        Draws the sample, the starts and the null. The path does not depend on the chunks of
        `X`.

    Returns
    -------
    LamPath

    Raises
    ------
    ValueError, TypeError
        If a parameter or the data cannot be used.

    Notes
    -----
    **The rule.** For each λ and start: EWP learns weights w; power k-means with these weights
    starts afresh, and of both partitions that with the lower :math:`\sum_l w_l V_l (1 - R_l)`
    is kept, where R_l is the share of the variance V_l of feature l that lies between the
    clusters' means. Independent Gaussian features of variances :math:`w_l V_l`, with the weights
    of the first start, are clustered in the same way, into as many clusters, and have shares R⁰_l.
    What the clusters explain of all features, without regard to the weights, beyond what those of
    noise explain,

    .. math::

        IG(λ) = \sum_l \tfrac12 \log \frac{\max(1 - R^0_l, .001)}{\max(1 - R_l, .001)}

    nats, is averaged over the starts. The *largest* λ wins that is as good as the best:

    .. math::

        IG(λ) \ge \max IG - \max\{\min(3 σ,\ .07 \max IG),\ .05\},

    with σ the standard deviation of a start, the median over all λ (a single start has none, and
    goes by the other two). Features are weighted only as much as it tells clearly more.
    """
    check_scalar(n_clusters, "n_clusters", Integral, min_val=1)
    check_scalar(n_init, "n_init", Integral, min_val=1)
    if sample_size is not None:
        check_scalar(sample_size, "sample_size", Integral, min_val=n_clusters)
    grid = None if lams is None else _checked_lams(lams)
    survey, lazy, seed = _survey(X, sample_weight, n_clusters, standardize, random_state)
    with one_blas_thread():
        return follow_lam(
            survey.sample, int(n_clusters), seed, lazy, grid, int(n_init), sample_size
        )


def choose_n_clusters(
    X: Any,
    *,
    sample_weight: Any = None,
    most: int = MOST_CLUSTERS,
    feature_weights: ArrayLike | None = None,
    n_init: int = NUMBER_STARTS,
    standardize: bool = False,
    sample_size: int | None = None,
    random_state: int | np.random.RandomState | None = None,
) -> ClusterNumberPath:
    r"""Choose the number of clusters, on a sample.

    `KMeans`, `PowerKMeans` and `EntropyPowerKMeans` do so by themselves with
    ``n_clusters="auto"``, and keep the path as ``n_clusters_path_``. Look at it with
    :func:`daskmm.plot.n_clusters_path`.

    Parameters
    ----------
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        Visited once.
    sample_weight : array-like or dask Array of shape (n_samples,), optional
    most : int, default=40
        Numbers from 2 to this one are tried, as far as there are 20 rows for each cluster.
    feature_weights : array-like of shape (n_features,), optional
        Weights of the features in the distance, not negative. `EntropyPowerKMeans` takes those
        that it learns for 20 clusters, which are much the same for any number.
    n_init : int, default=3
        Starts.
    standardize : bool, default=False
    sample_size : int, optional
        Rows to use at most: 2,000, or 50 for each of `most` clusters if that is more, by
        default.
    random_state : int, RandomState instance or None, default=None
        Draws the sample, the starts and what they are compared with. The path does not depend
        on the chunks of `X`.

    Returns
    -------
    ClusterNumberPath
        Its ``n_clusters`` is the choice: 1 where there are no clusters.

    Raises
    ------
    ValueError, TypeError
        If a parameter or the data cannot be used.

    Notes
    -----
    **The rule.** k-means finds many clusters first; then the two that are cheapest to join
    (Ward) become one, steps of k-means follow, and so on down to two, from several starts. A
    partition of n rows of p features into k clusters of shares π_j, with the covariance T of
    all rows and W of those within clusters, gains

    .. math::

        G(k) = \tfrac12 \log \frac{|T|}{|W|} + \sum_j π_j \log π_j
               - \tfrac32 \frac{(k - 1)\, p}{n}

    nats per row over one cluster: the classification likelihood of Gaussian clusters of one
    covariance, less what Akaike's criterion with a factor of 3 charges for their centres. The
    k of the largest gain wins, if it gains .1, also where no feature is more than three robust
    standard deviations from its median, so that tails make no clusters. Where clusters
    overlap so much that none does, the first term is compared with that of rows without
    clusters: Gaussian ones of the same covariance, and the rows with each feature permuted.
    The k that explains most beyond both of them wins, if it is .12 nats; else there are no
    clusters. Directions of next to no variance are left out, and all but one for ten rows.

    Features of few different values, most of all rare ones, are clusters by themselves to this
    rule, and so there are many.

    References
    ----------
    Biernacki, Celeux and Govaert, "Assessing a Mixture Model for Clustering with the Integrated
    Completed Likelihood", IEEE PAMI 22, 2000.
    Bozdogan, "Choosing the Number of Component Clusters in the Mixture-Model Using a New
    Informational Complexity Criterion", 1993 (the factor of 3).
    Ward, "Hierarchical Grouping to Optimize an Objective Function", JASA 58, 1963.
    """
    check_scalar(most, "most", Integral, min_val=2)
    check_scalar(n_init, "n_init", Integral, min_val=1)
    if sample_size is not None:
        check_scalar(sample_size, "sample_size", Integral, min_val=2)
    survey, lazy, seed = _survey(X, sample_weight, 1, standardize, random_state)
    weights = None
    if feature_weights is not None:
        weights = np.asarray(feature_weights, dtype=np.float64)
        expected = survey.variance.shape
        if weights.shape != expected or not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(f"feature_weights must be {expected[0]} numbers, not negative.")
    with one_blas_thread():
        return follow_n_clusters(
            survey.sample, seed, lazy, weights, int(most), int(n_init), sample_size
        )


def _survey(
    X: Any, sample_weight: Any, n_clusters: int, standardize: bool, random_state: Any
) -> tuple[Survey, bool, int]:
    """The first pass, whether the data are lazy, and a seed."""
    seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    table, weights = read_weighted(BaseEstimator(), X, sample_weight, reset=True)
    passes = weighted_passes(table, weights)
    with one_blas_thread():
        survey = first_pass(passes, n_clusters, bool(standardize), seed)
    return survey, passes.blocks.layout.lazy, seed


def _checked_lams(lams: ArrayLike) -> Sequence[float]:
    grid = np.asarray(lams, dtype=np.float64)
    if grid.ndim != 1 or not len(grid) or not (grid > 0).all():
        raise ValueError(f"lams must be positive numbers; got {lams!r}.")
    return [float(lam) for lam in np.unique(grid)]


def _with_column(table: NDArray | da.Array, labels: Any) -> NDArray | da.Array:
    """A table with the rows' labels as its last feature.

    Raises
    ------
    ValueError
        If there is not one label per row.
    """
    dtype = float_dtype(table.dtype)
    if not isinstance(table, da.Array):
        values = np.asarray(labels)
        if values.shape != (len(table),):
            raise ValueError(f"labels have shape {values.shape}; X has {len(table)} rows.")
        return np.column_stack([table.astype(dtype, copy=False), values.astype(dtype)])
    column = labels if isinstance(labels, da.Array) else da.from_array(np.asarray(labels), -1)
    if not np.isnan([*table.shape, *column.shape]).any():
        if column.shape != table.shape[:1]:
            raise ValueError(f"labels have shape {column.shape}; X has {table.shape[0]} rows.")
        column = column.rechunk((table.chunks[0],))
    elif column.numblocks != table.numblocks[:1]:
        raise ValueError("labels cannot be matched to X: its row counts are unknown.")
    return da.concatenate(
        [table.astype(dtype), column.astype(dtype)[:, None]], axis=1, allow_unknown_chunksizes=True
    ).rechunk({1: -1})


def choose_distortion(
    X: Any,
    n_clusters: int,
    *,
    distortions: Sequence[str] | None = None,
    sample_weight: Any = None,
    n_init: int = DISTORTION_STARTS,
    standardize: bool = False,
    sample_size: int | None = None,
    random_state: int | np.random.RandomState | None = None,
) -> DistortionChoice:
    r"""Choose the distortion of `PowerKMeans` and `KMeans`, on a sample.

    Look at the choice with :func:`daskmm.plot.distortion_choice`.

    Parameters
    ----------
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        Visited once.
    n_clusters : int
    distortions : sequence of str, optional
        Names that `PowerKMeans` knows. By default "sqeuclidean", "kl", "itakura-saito",
        "logistic", "euclidean" and "manhattan", as far as the values are in their domains.
    sample_weight : array-like or dask Array of shape (n_samples,), optional
    n_init : int, default=4
        Starts of each.
    standardize : bool, default=False
        Whether features are divided by their standard deviations for those distortions that do
        not need them as they are.
    sample_size : int, optional
        Rows to use at most: 2,000, or 100 per cluster if that is more, by default.
    random_state : int, RandomState instance or None, default=None
        Draws the sample, the starts and the null. The choice does not depend on the chunks of
        `X`.

    Returns
    -------
    DistortionChoice

    Raises
    ------
    ValueError, TypeError
        If a parameter or the data cannot be used, also by a distortion that was asked for.

    Notes
    -----
    **The rule.** Costs of different distortions cannot be compared, nor can likelihoods of counts
    and densities. But each distortion leads to a partition, and a partition is judged by what it
    tells of all features. Their values are replaced by normal scores first, Φ⁻¹ of the share of
    the weight below, which outliers, skewness and units have no part in. With R_l the share of
    the variance of the scores of feature l that lies between the clusters, and R⁰_l that of
    independent Gaussian features clustered alike,

    .. math::

        IG = \sum_l \tfrac12 \log \frac{\max(1 - R^0_l, .001)}{\max(1 - R_l, .001)}

    nats, averaged over the starts. The first distortion wins, in the order of `distortions`, whose
    gain is within 1 % of the largest. Clusters that differ in what ranks do not show, such as their
    spread alone, cannot be judged so.
    """
    check_scalar(n_clusters, "n_clusters", Integral, min_val=1)
    check_scalar(n_init, "n_init", Integral, min_val=1)
    if sample_size is not None:
        check_scalar(sample_size, "sample_size", Integral, min_val=n_clusters)
    seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    passes = weighted_passes(*read_weighted(BaseEstimator(), X, sample_weight, reset=True))
    with one_blas_thread():
        survey = first_pass(passes, n_clusters, False, seed)
        size = sample_size or sample_rows(n_clusters)
        rows, weights = thinned(survey.sample.rows, survey.sample.weights, size, seed)
        rows = survey.coordinates.to_input(rows)
        names = candidates(distortions, rows)
        scores = normal_scores(rows, weights)
        judge = Trials(scores, weights, weighted_variance(scores, weights))
        null = judge.null_within(judge.equal_weights, n_clusters, seed)
        jobs = [(name, start) for name in names for start in spawned(seed, n_init)]
        shared = (rows, judge, null, n_clusters, bool(standardize))
        lazy = passes.blocks.layout.lazy
        with warnings.catch_warnings():
            # Starts that lose clusters gain less, which is all that counts here.
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = np.array(tree_reduce(_try_distortion, jobs, shared, lazy, "try-distortion"))
    gains = found.reshape(len(names), n_init)
    return DistortionChoice(names, gains, preferred(gains), int(n_clusters), len(rows))


def _try_distortion(
    name: str,
    seed: int,
    rows: NDArray[np.float64],
    judge: Trials,
    null: NDArray[np.float64],
    n_clusters: int,
    standardize: bool,
) -> list[float]:
    """Task of one distortion and start: the gain of its clusters."""
    model = PowerKMeans(
        n_clusters,
        n_init=1,
        distortion=name,
        standardize=standardize and DISTORTIONS[name].shifts and name != "mahalanobis",
        random_state=seed,
    )
    labels = model.fit(rows, sample_weight=judge.weights).labels_
    found = partition(judge.rows, judge.weights, np.asarray(labels))
    return [gain_over(found.within, null, judge.varying)]
