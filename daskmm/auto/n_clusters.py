"""The number of clusters, chosen without labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import filled, nearest, sample_problem, spawned, thinned
from daskmm.kmeans.updates import PowerUpdate
from daskmm.mm.driver import Schedule, iterate
from daskmm.numerics.distances import squared_distances
from daskmm.numerics.likelihood import partition_likelihood, whitened, without_tails
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# What rows are compared with: see `variant_of`.
WITHOUT_TAILS, CORRELATED, PERMUTED = "without tails", "correlated", "permuted"
NULLS = (CORRELATED, PERMUTED)
# Clusters at most, and rows of the sample for each of them at least.
MOST_CLUSTERS, LEAST_ROWS = 40, 20
# Clusters while other things are chosen, where their number is not known.
SOME_CLUSTERS = 20
# Rows to try them on: so many, or so many per cluster.
SAMPLE_ROWS, ROWS_PER_CLUSTER = 2000, 50
# Starts on the rows as they are, and on each of the variants that tell what noise does.
STARTS, STARTS_ON_VARIANTS = 3, 2
# Partitions that gain no more than this, in nats per row, are those of noise; unless they explain
# so much more than those of rows without clusters.
LEAST_GAIN, LEAST_INFORMATION = 0.1, 0.12
# Hard steps at first, and after two clusters have become one.
_FIRST_STEPS, _STEPS = 30, 8
# Relative change that ends them.
_TOL = 1e-3
# Features that have less than this share of the largest weighted variance are left out.
_NEGLIGIBLE = 1e-2


@registered
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
    information : ndarray of shape (n_numbers,), float64
        What partitions of the rows without tails explain beyond those of rows without clusters,
        in nats per row; NaN where clusters are apart, and it is not asked for.
    n_rows, n_features : int
        Rows of the sample, and features that count.
    """

    numbers: NDArray[np.int64]
    gains: FloatArray
    costs: FloatArray
    gains_without_tails: FloatArray
    information: FloatArray
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
    def separated(self) -> bool:
        """Whether any partition gains more than those of noise do."""
        if not len(self.numbers):
            return False
        return bool(min(self.gain.max(), self.gains_without_tails.max()) > LEAST_GAIN)

    @property
    def n_clusters(self) -> int:
        """The number that the rule prefers; 1 for no clusters."""
        if self.separated:
            return int(self.numbers[self.gain.argmax()])
        overlapping = self.information.max(initial=-np.inf) > LEAST_INFORMATION
        return int(self.numbers[self.information.argmax()]) if overlapping else 1


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
    rows = filled(rows, weights)
    if feature_weights is not None:
        scale = feature_weights * np.square(rows).mean(axis=0)
        kept = scale > _NEGLIGIBLE * scale.max()
        rows = np.ascontiguousarray(rows[:, kept] * np.sqrt(feature_weights[kept]))
    most = min(most, len(rows) // LEAST_ROWS)
    most = max(most, min(2, len(rows) - 1))
    shared = (rows, weights, most)
    own = _descents("rows", n_starts, seed, shared, lazy)
    cut = _descents(WITHOUT_TAILS, STARTS_ON_VARIANTS, seed, shared, lazy)
    path = ClusterNumberPath(
        np.arange(2, most + 1),
        own.gains,
        own.costs,
        cut.gains,
        np.full(most - 1, np.nan) if most > 1 else np.empty(0),
        len(rows),
        rows.shape[1],
    )
    if path.separated:
        return path
    best = cut.explained[np.arange(len(path.numbers)), cut.costs.argmin(axis=1)]
    nulls = [_descents(null, STARTS_ON_VARIANTS, seed, shared, lazy).explained for null in NULLS]
    return replace(path, information=best - np.hstack(nulls).max(axis=1))


class _Descents(NamedTuple):
    """Of all starts, each of shape (n_numbers, n_starts)."""

    gains: FloatArray
    costs: FloatArray
    explained: FloatArray


def _descents(
    variant: str, n_starts: int, seed: int, shared: tuple[FloatArray, FloatArray, int], lazy: bool
) -> _Descents:
    """k-means with 2, 3, … clusters of a variant of the rows."""
    jobs = [(start, variant) for start in spawned(seed, n_starts)]
    found: list[_Descent] = tree_reduce(_merge_down, jobs, shared, lazy, "merge-down")
    return _Descents(*(np.array(part).T for part in zip(*found, strict=True)))


class _Descent(NamedTuple):
    """Of 2, 3, … clusters."""

    gains: list[float]
    costs: list[float]
    explained: list[float]


def variant_of(rows: FloatArray, variant: str, rng: np.random.RandomState) -> FloatArray:
    """Rows to compare with.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
    variant : {"rows", "without tails", "correlated", "permuted"}
        The rows as they are; with their features cut at three robust standard deviations; and of
        these, Gaussian rows of the same covariance, or rows whose features are each permuted,
        which keeps their distributions and nothing between them.
    rng : RandomState
    """
    if variant == "rows":
        return rows
    rows = without_tails(rows)
    if variant == CORRELATED:
        _, lengths, axes = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
        noise = rng.standard_normal((len(rows), len(lengths)))
        return np.asarray(noise * (lengths / np.sqrt(len(rows))) @ axes)
    if variant == PERMUTED:
        return np.column_stack([rng.permutation(feature) for feature in rows.T])
    return rows


def _merge_down(
    seed: int, variant: str, rows: FloatArray, weights: FloatArray, most: int
) -> list[_Descent]:
    """Task of one start: k-means with 2, 3, … clusters.

    It begins with the largest number. Then the two clusters become one whose centres are the
    cheapest to join (Ward), and hard steps follow; so each number inherits what was found with
    more clusters, where few are missed.
    """
    random = np.random.RandomState(seed)
    rows = variant_of(rows, variant, random)
    white = whitened(rows, weights)
    problem = sample_problem(rows, weights, PowerUpdate())
    descent = _Descent([], [], [])
    if most < 2:
        return [descent]
    centers, _ = kmeans_plusplus(rows, most, sample_weight=weights, random_state=random)
    steps = _FIRST_STEPS
    for n_clusters in range(most, 1, -1):
        schedule = Schedule(-np.inf, max_iter=steps, tol=_TOL, calm=1)
        run = iterate(problem, [np.asarray(centers, dtype=np.float64)], schedule)[0]
        labels = nearest(rows, run.state)
        explained, gain = partition_likelihood(white, weights, labels)
        for values, value in zip(descent, (gain, run.last, explained), strict=True):
            values.insert(0, value)
        sizes = np.bincount(labels, weights, minlength=n_clusters)
        centers, steps = joined(run.state, sizes), _STEPS
    return [descent]


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
