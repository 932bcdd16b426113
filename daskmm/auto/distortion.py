"""Choose the distortion of power k-means without labels.

Costs under different distortions cannot be compared, nor can likelihoods of counts and densities.
But each distortion leads to a partition, and a partition is judged by its information gain (see
:func:`daskmm.selection.information_gain`). Each value is first replaced by its normal score, Φ⁻¹ of
the share of the weight of smaller values, so that outliers, skewness and units do not matter: the
gain of the values themselves would favour squared distances. The rule prefers the first distortion
whose gain, averaged over the starts, is within 1 % of the largest. Clusters that differ only in
properties that ranks do not show, such as spread, cannot be judged in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.trials import OverStarts, Trials, spawned
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.information import feature_gains, normal_scores, partition, weighted_variance

FloatArray = NDArray[np.float64]
# Function that labels rows, given (distortion, rows, weights, n_clusters, seed).
Labelled = Callable[[str, FloatArray, FloatArray, int, int], NDArray[np.integer]]

# Distortions that are tried by default, if the values are in their domains.
CANDIDATES = ("sqeuclidean", "kl", "itakura-saito", "logistic", "euclidean", "manhattan")
STARTS = 4
# Gains within this share of the largest count as equally good.
_AS_GOOD = 0.01


@dataclass(frozen=True)
class DistortionChoice(OverStarts):
    """Information gain of the clusters that each distortion finds.

    Attributes
    ----------
    distortions : tuple of str
        Names of the distortions.
    gains : ndarray of shape (n_distortions, n_starts), float64
        Information gain of each start, in nats: that of the normal scores over a Gaussian null.
    chosen : int
        Index of the distortion that the rule prefers.
    n_clusters, n_rows : int
        Number of clusters, and number of rows of the sample.
    """

    distortions: tuple[str, ...]
    gains: FloatArray
    chosen: int
    n_clusters: int
    n_rows: int

    @property
    def distortion(self) -> str:
        """The chosen distortion."""
        return self.distortions[self.chosen]


def choose_distortion(
    asked: Sequence[str] | None,
    rows: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    seed: int,
    n_starts: int,
    lazy: bool,
    labelled: Labelled,
) -> DistortionChoice:
    """Cluster rows by each distortion, and apply the rule of this module.

    If `asked` is None, those of `CANDIDATES` that the values allow are tried; otherwise ValueError
    is raised if a distortion is unknown, or the values are not in its domain. Rows are a sample in
    the input's units. If `lazy`, the active dask scheduler runs one task per start, and otherwise
    threads of this process do. `labelled` labels the rows, given
    (distortion, rows, weights, n_clusters, seed).
    """
    names = _candidates(asked, rows)
    scores = normal_scores(rows, weights)
    judge = Trials(scores, weights, weighted_variance(scores, weights))
    null = judge.null_within(judge.equal_weights, n_clusters, seed)
    starts = [(name, start) for name in names for start in spawned(seed, n_starts)]
    shared = (rows, judge, null, n_clusters, labelled)
    found: list[float] = tree_reduce(_try_distortion, starts, shared, lazy, "try-distortion")
    gains = np.array(found).reshape(len(names), n_starts)
    mean = gains.mean(axis=1)
    as_good = mean >= mean.max() - _AS_GOOD * abs(mean.max())
    return DistortionChoice(names, gains, int(as_good.argmax()), n_clusters, len(rows))


def _candidates(asked: Sequence[str] | None, rows: FloatArray) -> tuple[str, ...]:
    if asked is None:
        return tuple(name for name in CANDIDATES if _defined(DISTORTIONS[name], rows))
    names = (asked,) if isinstance(asked, str) else tuple(asked)
    if not names:
        raise ValueError("distortions must not be empty.")
    for name in names:
        if name not in DISTORTIONS:
            raise ValueError(f"distortions must be among {sorted(DISTORTIONS)}; got {name!r}.")
        if not _defined(DISTORTIONS[name], rows):
            raise ValueError(
                f"distortions: {name!r} is for values {DISTORTIONS[name].domain}, and X has others."
            )
    return names


def _defined(family: type[Distortion], rows: FloatArray) -> bool:
    """Return whether all rows have distances."""
    return family.outside(rows) is None and not family.empty(rows).any()


def _try_distortion(
    name: str,
    seed: int,
    rows: FloatArray,
    judge: Trials,
    null: FloatArray,
    n_clusters: int,
    labelled: Labelled,
) -> list[float]:
    """Return the gain of the clusters of one distortion and start (a task function)."""
    labels = labelled(name, rows, judge.weights, n_clusters, seed)
    found = partition(judge.rows, judge.weights, labels)
    return [float(feature_gains(found.within, null, judge.varying).sum())]
