"""Whether features are to be standardised, chosen without labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.auto.lam import STARTS, sample_rows
from daskmm.engine.first_pass import Survey
from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.trials import Trials, spawned
from daskmm.numerics.annealing import critical_power
from daskmm.numerics.rows import Coordinates
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Standardised features tell clearly more if they tell more by this share, and by these nats.
_CLEARLY, _CLEAR_NATS = 0.07, 0.1


@registered
@dataclass(frozen=True)
class ScaleChoice:
    """Information gain of clusters of the features as they are, and of standardised ones.

    Attributes
    ----------
    gains_as_they_are, gains_standardized : ndarray of shape (n_starts,), float64
        Gain over the null, in nats, of each start.
    n_clusters, n_rows : int
        Clusters, and rows of the sample.
    """

    gains_as_they_are: FloatArray
    gains_standardized: FloatArray
    n_clusters: int
    n_rows: int

    @property
    def standardize(self) -> bool:
        """Whether standardised features tell clearly more."""
        before, after = self.gains_as_they_are.mean(), self.gains_standardized.mean()
        return bool(after > before + max(_CLEARLY * after, _CLEAR_NATS))


def compare_scales(survey: Survey, n_clusters: int, seed: int, lazy: bool) -> ScaleChoice:
    """Cluster a sample of the features in their own units and on one scale.

    The gain counts features alike and in no units, so it compares partitions that were found on
    different scales. Both are found by power k-means, from several starts.

    Parameters
    ----------
    survey : Survey
        Of standardised features.
    n_clusters : int
    seed : int
    lazy : bool
        Whether to run on the active dask scheduler, or on threads here; one task per start.
    """
    own = in_own_units(survey).sample
    samples = [Trials.of(one, sample_rows(n_clusters), seed) for one in (own, survey.sample)]
    jobs = [(trials, start) for trials in samples for start in spawned(seed, STARTS)]
    gains = np.array(tree_reduce(_try_scale, jobs, (n_clusters,), lazy, "try-scale"))
    return ScaleChoice(gains[:STARTS], gains[STARTS:], n_clusters, len(samples[0].rows))


def in_own_units(survey: Survey) -> Survey:
    """What the first pass would have found, had the features not been standardised."""
    scale = survey.coordinates.scale
    rows, variance = survey.sample.rows * scale, survey.variance * scale**2
    return replace(
        survey,
        coordinates=Coordinates(survey.coordinates.mean, np.ones_like(scale)),
        variance=variance,
        sample=Sample(rows, survey.sample.weights),
        critical_power=critical_power(rows, survey.sample.weights, survey.distortion),
        spread=float(variance.sum()),
    )


def _try_scale(trials: Trials, seed: int, n_clusters: int) -> list[float]:
    """Task of one start: its gain."""
    fresh, null = spawned(seed, 2)
    weights = trials.equal_weights
    (labels,) = trials.with_weights(weights, n_clusters, [fresh])
    return [trials.gain(labels, weights, null)]
