"""The number of clusters, chosen without labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from daskmm.mm import Schedule, iterate
from daskmm.numerics.distances import squared_distances
from daskmm.numerics.likelihood import partition_gain, whitened, without_tails
from daskmm.passes import tree_reduce
from daskmm.stats import CenterState, Sample
from daskmm.trials import nearest, sample_problem, spawned, thinned
from daskmm.updates import PowerUpdate

FloatArray = NDArray[np.float64]

# Clusters at most, and rows of the sample for each of them at least.
MOST_CLUSTERS, LEAST_ROWS = 40, 20
# Rows to try them on: so many, or so many per cluster.
SAMPLE_ROWS, ROWS_PER_CLUSTER = 2000, 50
# Starts, on the rows as they are; and on the rows without tails.
STARTS, STARTS_WITHOUT_TAILS = 3, 2
# Partitions that gain no more than this, in nats per row, are those of noise.
LEAST_GAIN = 0.05
# Hard steps at first, and after two clusters have become one.
_FIRST_STEPS, _STEPS = 30, 8
# Relative change that ends them.
_TOL = 1e-3
# Features that have less than this share of the largest weighted variance are left out.
_NEGLIGIBLE = 1e-2


@dataclass(frozen=True)
class ClusterNumberPath:
    """Classification likelihood over numbers of clusters.

    Attributes
    ----------
    numbers : ndarray of shape (n_numbers,), int64
        2, 3, … clusters.
    gains : ndarray of shape (n_numbers, n_starts), float64
        Gain over one cluster, in nats per row, of each start.
    costs : ndarray of shape (n_numbers, n_starts), float64
        Mean squared distance to the nearest centre, by which the best start is known.
    gains_without_tails : ndarray of shape (n_numbers, n_starts), float64
        The same gains where no feature is more than three robust standard deviations from its
        median: whether there are clusters at all.
    n_rows, n_features : int
        Rows of the sample, and features that count.
    """

    numbers: NDArray[np.int64]
    gains: FloatArray
    costs: FloatArray
    gains_without_tails: FloatArray
    n_rows: int
    n_features: int

    @property
    def gain(self) -> FloatArray:
        """Gain of the start of the lowest cost, of shape (n_numbers,)."""
        return np.asarray(self.gains[np.arange(len(self.numbers)), self.costs.argmin(axis=1)])

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of the gain over the starts, of shape (n_numbers,)."""
        return np.asarray(self.gains.std(axis=1))

    @property
    def has_clusters(self) -> bool:
        """Whether any partition gains more than those of noise do."""
        surely = min(self.gain.max(initial=-np.inf), self.gains_without_tails.max(initial=-np.inf))
        return bool(surely > LEAST_GAIN)

    @property
    def n_clusters(self) -> int:
        """The number that the rule prefers; 1 for no clusters."""
        return int(self.numbers[self.gain.argmax()]) if self.has_clusters else 1


def follow_n_clusters(
    sample: Sample,
    seed: int,
    lazy: bool,
    feature_weights: FloatArray | None = None,
    most: int = MOST_CLUSTERS,
    n_starts: int = STARTS,
    n_rows: int | None = None,
) -> ClusterNumberPath:
    """The path over numbers of clusters; see :func:`daskmm.selection.choose_n_clusters`.

    Parameters
    ----------
    sample : Sample
        Of the first pass, in the model's coordinates.
    seed : int
    lazy : bool
        Whether to run on the active dask scheduler, or on threads here; one task per start.
    feature_weights : ndarray of shape (n_features,), optional
        Features that have next to no weight are left out.
    most : int
        Clusters at most; fewer where there are not 20 rows for each.
    n_starts : int
    n_rows : int, optional
        Rows of the sample to use at most.
    """
    wanted = n_rows or max(SAMPLE_ROWS, ROWS_PER_CLUSTER * most)
    rows, weights = thinned(sample.rows, sample.weights, wanted, seed)
    if feature_weights is not None:
        scale = feature_weights * np.square(rows).mean(axis=0)
        kept = scale > _NEGLIGIBLE * scale.max()
        rows = np.ascontiguousarray(rows[:, kept] * np.sqrt(feature_weights[kept]))
    most = min(most, len(rows) // LEAST_ROWS)
    if most < 2:
        most = min(2, len(rows) - 1)
    numbers = np.arange(2, most + 1)
    jobs = [(start, False) for start in spawned(seed, n_starts)]
    jobs += [(start, True) for start in spawned(seed, STARTS_WITHOUT_TAILS)]
    found = tree_reduce(_merge_down, jobs, (rows, weights, most), lazy, "merge-down")
    gains, costs = (np.array(part).T for part in zip(*found, strict=True))
    return ClusterNumberPath(
        numbers,
        gains[:, :n_starts],
        costs[:, :n_starts],
        gains[:, n_starts:],
        len(rows),
        rows.shape[1],
    )


def _merge_down(
    seed: int, cut: bool, rows: FloatArray, weights: FloatArray, most: int
) -> list[tuple[list[float], list[float]]]:
    """Task of one start: gains and costs of k-means with 2, 3, … clusters.

    It begins with the largest number. Then the two clusters become one whose centres are the
    cheapest to join (Ward), and hard steps follow; so each number inherits what was found with
    more clusters, where few are missed.
    """
    if most < 2:
        return [([], [])]
    rows = without_tails(rows) if cut else rows
    white = whitened(rows, weights)
    problem = sample_problem(rows, weights, PowerUpdate())
    random = np.random.RandomState(seed)
    centers, _ = kmeans_plusplus(rows, most, sample_weight=weights, random_state=random)
    gains, costs = [], []
    steps = _FIRST_STEPS
    while True:
        schedule = Schedule(-np.inf, max_iter=steps, tol=_TOL, calm=1)
        run = iterate(problem, [np.asarray(centers, dtype=np.float64)], schedule)[0]
        labels = nearest(rows, run.state)
        gains.append(partition_gain(white, weights, labels))
        costs.append(run.last)
        if len(run.state.centers) == 2:
            return [(gains[::-1], costs[::-1])]
        sizes = np.bincount(labels, weights, minlength=len(run.state.centers))
        centers, steps = joined(run.state, sizes), _STEPS


def joined(state: CenterState, sizes: NDArray) -> FloatArray:
    """Centres, two of which have become their mean: those whose rows' cost rises least.

    Parameters
    ----------
    state : CenterState
    sizes : ndarray of shape (n_clusters,)
        Weight of each cluster.

    Returns
    -------
    ndarray of shape (n_clusters - 1, n_features)
    """
    centers = state.centers
    both = sizes[:, None] + sizes
    rise = sizes[:, None] * sizes / np.maximum(both, np.finfo(float).tiny)
    rise = rise * squared_distances(centers, centers)
    rise[np.tril_indices(len(centers))] = np.inf
    i, j = np.unravel_index(int(rise.argmin()), rise.shape)
    share = sizes[i] / both[i, j] if both[i, j] > 0 else 1.0
    mean = share * centers[i] + (1.0 - share) * centers[j]
    return np.vstack([np.delete(centers, [i, j], axis=0), mean])
