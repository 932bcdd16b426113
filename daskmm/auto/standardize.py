"""Choice between features as they are and standardised features, without labels.

A sample is clustered by power k-means from several starts, once with the features in their own
units and once standardised. The information gain (see :func:`daskmm.selection.information_gain`)
counts all features alike and without units, so it can compare the two. Features are standardised
if the mean gain is then larger by 7 % and by .1 nats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.auto.lam import STARTS, sample_rows
from daskmm.engine.first_pass import Survey
from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.column_trials import ColumnTrials, trials_of
from daskmm.kmeans.trials import Trials, spawned
from daskmm.numerics.rows import Coordinates
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# By how much the gain of standardised features must be larger: a share of it, and nats.
_CLEARLY, _CLEAR_NATS = 0.07, 0.1


@registered
@dataclass(frozen=True)
class ScaleChoice:
    """Information gain of clusters of the features as they are, and of standardised features.

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
        """Whether the gain of standardised features is clearly larger."""
        before, after = self.gains_as_they_are.mean(), self.gains_standardized.mean()
        return bool(after > before + max(_CLEARLY * after, _CLEAR_NATS))


def choose_scale(
    survey: Survey, n_clusters: int, seed: int, lazy: bool
) -> tuple[Survey, ScaleChoice]:
    """Choose a scale, and return the result of the first pass in it.

    Parameters
    ----------
    survey : Survey
        Of standardised features.
    n_clusters : int
    seed : int
    lazy : bool
        Whether to run on the active dask scheduler (one task per start) or on threads of this
        process.
    """
    own = _in_own_units(survey)
    size = sample_rows(n_clusters)
    scales = [trials_of(one.sample, size, seed, one.metric) for one in (own, survey)]
    starts = [(trials, start) for trials in scales for start in spawned(seed, STARTS)]
    gains = np.array(tree_reduce(_try_scale, starts, (n_clusters,), lazy, "try-scale"))
    choice = ScaleChoice(gains[:STARTS], gains[STARTS:], n_clusters, len(scales[0].rows))
    return survey if choice.standardize else own, choice


def _in_own_units(survey: Survey) -> Survey:
    """Return what the first pass finds for features that are not standardised."""
    scale = survey.coordinates.scale
    rows = Coordinates(np.zeros_like(scale), 1.0 / scale).to_model(survey.sample.rows)
    variance = survey.variance * scale**2
    return replace(
        survey,
        coordinates=Coordinates(survey.coordinates.mean, np.ones_like(scale)),
        variance=variance,
        sample=Sample(rows, survey.sample.weights),
        spread=float(variance.sum()),
    )


def _try_scale(trials: Trials | ColumnTrials, seed: int, n_clusters: int) -> list[float]:
    """Task of one start: return its gain."""
    fresh, null = spawned(seed, 2)
    weights = trials.equal_weights
    (labels,) = trials.with_weights(weights, n_clusters, [fresh])
    return [trials.gain(labels, weights, null)]
