"""Choice between features as they are and standardised features, without labels.

A sample is clustered by power k-means from several starts, once with the features in their own
units and once standardised. The information gain (see :func:`daskmm.selection.information_gain`)
counts all features alike and has no units, so it can compare the two. All starts of a scale have
the same null. Features are standardised if this makes the median gain over the starts larger by at
least 5 % and .05 nats. (The median is used because one start in a bad local optimum would change
the mean.)

A far row may form a separate cluster in one scale and not in the other, so the gains are computed
without outliers. Per feature, the range between the 2 % and 98 % quantiles is widened by half of
its length at both ends. Rows outside of the range of any feature (at most the farthest 5 %) are
left out, and features are divided by the standard deviation of the other rows. If these standard
deviations hardly differ, as those of embeddings and of pixels do, nothing is tried: the features
remain as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.auto.lam import STARTS
from daskmm.engine.conversion import converted
from daskmm.engine.first_pass import Survey
from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.trials import Trials, filled, sample_rows, spawned, thinned
from daskmm.numerics.rows import Coordinates
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# A feature's range goes from one quantile to another; the share _TAIL of the values lies beyond
# each. The range is widened by _WIDENING of its length at each end. At most the share _MOST_FAR of
# the rows is left out.
_TAIL, _WIDENING, _MOST_FAR = 0.02, 0.5, 0.05
# Largest number of clusters in trials: with more, trials take longer than the fit.
_MOST_CLUSTERS = 32
# Standard deviations hardly differ if the largest is within this factor of all but a few small
# ones. Some embeddings have a few features that are 0 up to noise.
_ALIKE, _FEW_SMALL = 2.0, 0.05
# How much larger the gain of standardised features must be: as a share of the gain, and in nats.
_CLEARLY, _CLEAR_NATS = 0.05, 0.05


@registered
@dataclass(frozen=True)
class ScaleChoice:
    """Information gain of the clusters of features as they are, and of standardised features."""

    # Gain of each start over the null, in nats, (n_starts,); empty if the standard deviations
    # hardly differ.
    gains_as_they_are: FloatArray
    gains_standardized: FloatArray
    # Number of clusters (at most 32), and number of rows of the sample.
    n_clusters: int
    n_rows: int

    @property
    def standardize(self) -> bool:
        """Whether the gain of standardised features is clearly larger."""
        if not len(self.gains_standardized):
            return False
        before, after = np.median(self.gains_as_they_are), np.median(self.gains_standardized)
        return bool(after > before + max(_CLEARLY * after, _CLEAR_NATS))

    def __str__(self) -> str:
        """Say what was chosen, and why."""
        if not len(self.gains_standardized):
            return "as they are: standard deviations of the features hardly differ"
        return (
            f"{'standardised' if self.standardize else 'as they are'}: clusters gain "
            f"{np.median(self.gains_standardized):.3g} nats on standardised features, "
            f"{np.median(self.gains_as_they_are):.3g} on features as they are"
        )


def choose_scale(
    survey: Survey, n_clusters: int, seed: int, lazy: bool
) -> tuple[Survey, ScaleChoice]:
    """Choose a scale, and return the result of the first pass in that scale.

    The survey is in standardised features. If `lazy`, the active dask scheduler runs one task per
    start, and otherwise threads of this process do.
    """
    n_clusters = min(n_clusters, _MOST_CLUSTERS)
    scales = _trials(survey.core, survey.coordinates.scale, sample_rows(n_clusters), seed)
    deviations = np.sqrt(scales[0].variance[scales[0].varying])
    if not len(deviations) or _are_alike(deviations):
        none = np.empty(0)
        return _in_own_units(survey), ScaleChoice(none, none, n_clusters, len(scales[0].rows))
    # A step over few rows spends most of its time outside of the compiled loops, so all starts take
    # their steps together.
    seeds = [spawned(start, 2) for start in spawned(seed, STARTS)]
    fresh, null = [start for start, _ in seeds], seeds[0][1]
    runs = [(trials, *run) for trials in scales for run in ((fresh, False), ([null], True))]
    products = math.prod(scales[0].rows.shape) * n_clusters
    shares = tree_reduce(_unexplained, runs, (n_clusters,), lazy, "try-scale", products)
    before, after = (
        np.array([trials.gains_over(each, of_null).sum() for each in within])
        for trials, (*within, of_null) in zip(scales, np.array_split(shares, 2), strict=True)
    )
    choice = ScaleChoice(before, after, n_clusters, len(scales[0].rows))
    return survey if choice.standardize else _in_own_units(survey), choice


def _are_alike(deviations: FloatArray) -> bool:
    """Return whether standard deviations hardly differ."""
    small = np.quantile(deviations, _FEW_SMALL, method="lower")
    return bool(deviations.max() <= _ALIKE * small)


def _in_own_units(survey: Survey) -> Survey:
    """Convert the result of the first pass to features that are not standardised.

    The rows of its sample are overwritten, since new memory would take longer than the conversion.
    """
    scale = survey.coordinates.scale
    given = survey.sample.rows
    rows = converted(given, lambda tile: tile * scale, given.dtype, given)
    variance = survey.variance * scale**2
    return replace(
        survey,
        coordinates=Coordinates(survey.coordinates.mean, np.ones_like(scale)),
        variance=variance,
        sample=Sample(rows, survey.sample.weights),
        spread=float(variance.sum()),
    )


def _trials(sample: Sample, scale: FloatArray, n_rows: int, seed: int) -> tuple[Trials, Trials]:
    """Draw rows of a standardised sample without outliers; return them in both scales.

    `scale` holds the units of the features, which the first of the two results has. Missing values
    become the mean of the feature.
    """
    rows, weights = thinned(sample.rows, sample.weights, n_rows, seed)
    rows = (rows * scale).astype(rows.dtype, copy=False)  # as in `_in_own_units`
    rows = filled(rows.astype(np.float64, copy=False), weights)
    near = ~far_rows(rows, weights)
    own = Trials.of(Sample(rows[near], weights[near]), n_rows, seed)
    deviations = np.sqrt(np.where(own.varying, own.variance, 1.0))
    return own, Trials(own.rows / deviations, own.weights, own.variance / deviations**2)


def far_rows(rows: FloatArray, weights: FloatArray) -> NDArray[np.bool_]:
    """Return a mask of the rows that lie far outside the range of most values in some feature.

    Weights are positive; a row of integer weight v counts like v copies of it.
    """
    low, high = _quantiles(rows, weights, (_TAIL, 1.0 - _TAIL))
    length = high - low
    for feature in np.flatnonzero(length == 0):
        # If most rows share a value, as for a rare flag, use the typical distance of the others
        # from it.
        apart = np.abs(rows[:, feature] - low[feature])
        others = apart > 0
        if others.any():
            ((length[feature],),) = _quantiles(apart[others, None], weights[others], (0.5,))
            low[feature] -= length[feature]
            high[feature] += length[feature]
    length[length == 0] = 1.0
    excess = (np.maximum(low - rows, rows - high) / length).max(axis=1)
    ((worst,),) = _quantiles(excess[:, None], weights, (1.0 - _MOST_FAR,))
    return np.asarray((excess > _WIDENING) & (excess > worst))


def _quantiles(
    values: FloatArray, weights: FloatArray, levels: tuple[float, ...]
) -> list[FloatArray]:
    """Return quantiles of each column at each level, which are always values of the column."""
    order = np.argsort(values, axis=0)
    mass = np.cumsum(weights[order], axis=0)
    found = []
    for level in levels:
        # A sum of weights may differ from a share of the total by rounding.
        place = (mass >= level * mass[-1] * (1.0 - 1e-12)).argmax(axis=0)
        row = np.take_along_axis(order, place[None, :], axis=0)
        found.append(np.take_along_axis(values, row, axis=0)[0])
    return found


def _unexplained(
    trials: Trials, seeds: Sequence[int], of_null: bool, n_clusters: int
) -> list[FloatArray]:
    """Return the shares of the variance that are left within clusters, per start (a task function).

    The clusters are those of the rows or, if `of_null`, of noise.
    """
    weights = trials.equal_weights
    if of_null:
        return [trials.null_within(weights, n_clusters, seed) for seed in seeds]
    found = trials.with_weights(weights, n_clusters, seeds)
    return [trials.partition(labels).within for labels in found]
