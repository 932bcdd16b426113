"""The distortion whose clusters tell most of the features' ranks, chosen without labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar

from daskmm.cluster import PowerKMeans
from daskmm.cluster._input import read_weighted, weighted_passes
from daskmm.lam_path import sample_rows
from daskmm.metric import DISTORTIONS
from daskmm.numerics.information import gain_over, normal_scores, partition, weighted_variance
from daskmm.passes import one_blas_thread, tree_reduce
from daskmm.survey import first_pass
from daskmm.trials import OverStarts, Trials, spawned, thinned

FloatArray = NDArray[np.float64]

# Tried by default, as far as the values are in their domains.
CANDIDATES = ("sqeuclidean", "kl", "itakura-saito", "logistic", "euclidean", "manhattan")
STARTS = 4
# The first of them wins whose gain is the best but for this share.
_AS_GOOD = 0.01


@dataclass(frozen=True)
class DistortionChoice(OverStarts):
    """What the clusters that each distortion finds tell of the features' ranks.

    Attributes
    ----------
    distortions : tuple of str
    gains : ndarray of shape (n_distortions, n_starts), float64
        Information gain of the normal scores over a Gaussian null, in nats, of each start.
    chosen : int
        Index of the distortion that the rule prefers.
    n_clusters, n_rows : int
        Clusters, and rows of the sample.
    """

    distortions: tuple[str, ...]
    gains: FloatArray
    chosen: int
    n_clusters: int
    n_rows: int

    @property
    def distortion(self) -> str:
        """The chosen one."""
        return self.distortions[self.chosen]


def choose_distortion(
    X: Any,
    n_clusters: int,
    *,
    distortions: Sequence[str] | None = None,
    sample_weight: Any = None,
    n_init: int = STARTS,
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
        names = _candidates(distortions, rows)
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
    mean = gains.mean(axis=1)
    chosen = int(np.flatnonzero(mean >= mean.max() - _AS_GOOD * abs(mean.max()))[0])
    return DistortionChoice(names, gains, chosen, int(n_clusters), len(rows))


def _candidates(asked: Sequence[str] | None, rows: FloatArray) -> tuple[str, ...]:
    """Names to try.

    Raises
    ------
    ValueError
        If one that was asked for is unknown, or the values are not in its domain.
    """
    if asked is None:
        return tuple(name for name in CANDIDATES if DISTORTIONS[name].outside(rows) is None)
    names = (asked,) if isinstance(asked, str) else tuple(asked)
    if not names:
        raise ValueError("distortions must not be empty.")
    for name in names:
        if name not in DISTORTIONS:
            raise ValueError(f"distortions must be among {sorted(DISTORTIONS)}; got {name!r}.")
        if DISTORTIONS[name].outside(rows) is not None:
            raise ValueError(
                f"distortions: {name!r} is for values {DISTORTIONS[name].domain}, and X has others."
            )
    return names


def _try_distortion(
    name: str,
    seed: int,
    rows: FloatArray,
    judge: Trials,
    null: FloatArray,
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
