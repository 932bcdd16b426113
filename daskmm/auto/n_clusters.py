r"""Choice of the number of clusters, without labels.

k-means finds many clusters first; then the two clusters that are cheapest to join (Ward) are
merged, steps of k-means follow, and so on down to two clusters, from several starts. A partition
of n rows of p features into k clusters of shares π_j gains, over a single cluster,

.. math::

    G(k) = \tfrac12 \log \frac{|T|}{|W|} + \sum_j π_j \log π_j
           - \tfrac32 \frac{(k - 1)\, p}{n}

nats per row, where T is the covariance of all rows and W the covariance within clusters: the
classification likelihood of Gaussian clusters with a common covariance, less the penalty of
Akaike's criterion with factor 3 for the centres. The k with the largest gain is chosen if that gain
exceeds .1, and also does so after every feature is cut at three robust standard deviations from its
median (so that heavy tails do not count as clusters).

If no gain is that large, clusters may still overlap. Then the first term of G is compared with its
values on data without clusters: Gaussian rows of the same covariance, and the rows with each
feature permuted. The k that explains most beyond both is chosen if the difference exceeds .12 nats;
otherwise there are no clusters (k = 1).

Rows that are copies of a few points make as many clusters: the likelihood of a partition that
leaves no variance is without bound.

Directions with next to no variance are left out, and only as many directions are used as there are
tens of rows. Features with few distinct values, such as flags, would look like clusters, as rows
can agree in them exactly; so they are made normal, with equal values in random order.

Mixed columns are replaced by normal features that could lie behind them (see
:mod:`daskmm.numerics.latent_normals`), in the rows without missing values, with equal weights. Only
separated clusters are looked for: columns that depend on each other by degrees, without clusters,
would look like overlapping ones.

40 clusters are tried first, and twice as many as long as the answer lies at the end of the range.

References
----------
Biernacki, Celeux and Govaert, "Assessing a Mixture Model for Clustering with the Integrated
Completed Likelihood", IEEE PAMI 22, 2000.
Bozdogan, "Choosing the Number of Component Clusters in the Mixture-Model Using a New Informational
Complexity Criterion", 1993 (the factor 3).
Ward, "Hierarchical Grouping to Optimize an Objective Function", JASA 58, 1963.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import filled, nearest, spawned, thinned
from daskmm.kmeans.updates import PowerUpdate, sample_problem
from daskmm.mm.driver import Schedule, iterate
from daskmm.numerics.columns import MixedCoordinates
from daskmm.numerics.distances import squared_distances
from daskmm.numerics.information import normal_scores
from daskmm.numerics.latent_normals import latent_normals
from daskmm.numerics.likelihood import partition_likelihood, whitened, without_tails
from daskmm.numerics.sparse_rows import SparseRows, few_dense
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Variants of the rows that they are compared with: see `variant_of`.
WITHOUT_TAILS, CORRELATED, PERMUTED = "without tails", "correlated", "permuted"
NULLS = (CORRELATED, PERMUTED)
# Largest number of clusters tried at first, and least rows of the sample per cluster. More are
# tried if the answer is among the last few.
MOST_CLUSTERS, LEAST_ROWS = 40, 20
_END = 4
# Features with at most so many values, each of which has so many rows on average, are dithered.
_FEW_VALUES, _ROWS_PER_VALUE = 32, 10
# Clusters to assume in other choices while their number is not known.
SOME_CLUSTERS = 20
# Rows of the sample: the larger of a fixed number and a number per cluster.
SAMPLE_ROWS, ROWS_PER_CLUSTER = 2000, 50
# Starts on the rows as they are, and on each of their variants.
STARTS, STARTS_ON_VARIANTS = 3, 2
# Rows without missing values that are needed, of mixed columns of which values are missing.
LEAST_WHOLE = 200
# Thresholds of the rule, in nats per row.
LEAST_GAIN, LEAST_INFORMATION = 0.1, 0.12
# Share of the largest cost up to which one is rounding.
_ROUNDING = 1e-12
# Hard steps at first, and after each merge.
_FIRST_STEPS, _STEPS = 30, 8
# Relative change at which they end.
_TOL = 1e-3
# Features with less than this share of the largest weighted variance are left out.
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
        Mean squared distance to the nearest centre; the start with the lowest is the best.
    gains_without_tails : ndarray of shape (n_numbers, n_starts), float64
        The same gains of the rows with every feature cut at three robust standard deviations
        from its median; they decide whether there are clusters at all.
    information : ndarray of shape (n_numbers,), float64
        What partitions of these cut rows explain beyond partitions of rows without clusters, in
        nats per row; NaN where clusters are separated and it is not needed, or columns are mixed.
    n_rows, n_features : int
        Rows of the sample, and features used.
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
        """Gain of the start with the lowest cost, of shape (n_numbers,)."""
        return np.asarray(self.gains[np.arange(len(self.numbers)), self.costs.argmin(axis=1)])

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of the gain over the starts, of shape (n_numbers,)."""
        return np.asarray(self.gains.std(axis=1))

    @property
    def separated(self) -> bool:
        """Whether any partition gains more than partitions of noise do."""
        if not len(self.numbers):
            return False
        return bool(min(self.gain.max(), self.gains_without_tails.max()) > LEAST_GAIN)

    @property
    def n_clusters(self) -> int:
        """The number that the rule prefers; 1 means no clusters."""
        if self.separated:
            exact = self._exact
            return int(self.numbers[exact.argmax() if exact.any() else self.gain.argmax()])
        overlapping = self.information.max(initial=-np.inf) > LEAST_INFORMATION
        return int(self.numbers[self.information.argmax()]) if overlapping else 1

    @property
    def at_end(self) -> bool:
        """Whether the number is at the end of those that were tried; more may be better."""
        last = max(1, self.numbers.max(initial=1) - _END)
        return not self._exact.any() and self.n_clusters > last

    @property
    def _exact(self) -> NDArray[np.bool_]:
        """Whether rows of each cluster are alike, for each number."""
        return np.asarray(self.costs.min(axis=1) <= _ROUNDING * self.costs.max(initial=0.0))


def follow_n_clusters(
    sample: Sample,
    seed: int,
    lazy: bool,
    feature_weights: FloatArray | None = None,
    most: int | None = None,
    n_starts: int = STARTS,
    n_rows: int | None = None,
    mixed: MixedCoordinates | None = None,
) -> ClusterNumberPath:
    """Evaluate 2, 3, … clusters on a sample, by the rule of this module.

    Parameters
    ----------
    sample : Sample
        Of the first pass, in the model's coordinates.
    seed : int
    lazy : bool
        Whether to run on the active dask scheduler (one task per start) or on threads of this
        process.
    feature_weights : ndarray of shape (n_features,), optional
        Features with next to no weighted variance are left out. Not of mixed columns.
    most : int, optional
        Largest number of clusters to try; by default as many as needed. Fewer where there are less
        than 20 rows for each.
    n_starts : int
    n_rows : int, optional
        Rows of the sample to use at most.
    mixed : MixedCoordinates, optional
        Coordinates of the rows, if they are of mixed columns.
    """
    if mixed is not None:
        sample = _of_mixed(sample, mixed, seed)
    overlapping = mixed is None
    tried = min(most or MOST_CLUSTERS, MOST_CLUSTERS)
    while True:
        path = _followed(sample, seed, lazy, feature_weights, tried, n_starts, n_rows, overlapping)
        if not path.at_end or tried == most or path.numbers.max(initial=1) < tried:
            return path
        tried = min(most or 2 * tried, 2 * tried)


def _of_mixed(sample: Sample, coordinates: MixedCoordinates, seed: int) -> Sample:
    """Return normal features of the rows that have all of their values.

    Values put in place of missing ones would make clusters of their own.
    """
    whole = ~np.isnan(sample.rows).any(axis=1)
    if not whole.all() and np.count_nonzero(whole) < LEAST_WHOLE:
        raise ValueError(
            f"n_clusters='auto' of mixed columns looks at rows without missing values, of which a "
            f"sample of {len(whole):,} has {np.count_nonzero(whole)}, fewer than {LEAST_WHOLE}: "
            "give a number, or leave columns out that are often missing."
        )
    rows, weights = sample.rows[whole], sample.weights[whole]
    rng = np.random.default_rng(seed)
    return Sample(latent_normals(coordinates, rows, weights, rng), weights)


def _followed(
    sample: Sample,
    seed: int,
    lazy: bool,
    feature_weights: FloatArray | None,
    most: int,
    n_starts: int,
    n_rows: int | None,
    overlapping: bool,
) -> ClusterNumberPath:
    """Evaluate 2, 3, …, `most` clusters, overlapping ones too if asked and none are separated."""
    wanted = n_rows or max(SAMPLE_ROWS, ROWS_PER_CLUSTER * most)
    rows, weights = thinned(sample.rows, sample.weights, wanted, seed)
    if feature_weights is not None and isinstance(rows, SparseRows):
        # Of many features those few that count are made dense.
        squares = np.bincount(rows.indices, np.square(rows.data), minlength=rows.shape[1])
        kept = _heavy(feature_weights * squares)
        rows, feature_weights = rows[:, kept], feature_weights[kept]
    rows, weights = few_dense(rows, weights)
    rows = dithered(filled(rows, weights), weights, np.random.default_rng(seed))
    if feature_weights is not None:
        kept = _heavy(feature_weights * np.square(rows).mean(axis=0))
        rows = np.ascontiguousarray(rows[:, kept] * np.sqrt(feature_weights[kept]))
    most = min(most, len(rows) // LEAST_ROWS, len(np.unique(rows, axis=0)))
    most = max(most, min(2, len(rows) - 1))
    shared = (rows, weights, most)
    own = _descents("rows", n_starts, seed, shared, lazy)
    cut = _descents(WITHOUT_TAILS, STARTS_ON_VARIANTS, seed, shared, lazy)
    path = ClusterNumberPath(
        np.arange(2, most + 1),
        own.gains,
        own.costs,
        cut.gains,
        np.full(max(most - 1, 0), np.nan),
        *rows.shape,
    )
    if path.separated or not overlapping:
        return path
    best = cut.explained[np.arange(len(path.numbers)), cut.costs.argmin(axis=1)]
    nulls = [_descents(null, STARTS_ON_VARIANTS, seed, shared, lazy).explained for null in NULLS]
    return replace(path, information=best - np.hstack(nulls).max(axis=1))


def _heavy(variance: FloatArray) -> NDArray[np.bool_]:
    """Return a mask of the features that have more than next to no weighted variance."""
    return np.asarray(variance > _NEGLIGIBLE * variance.max())


def dithered(rows: FloatArray, weights: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Replace features that have few values by normal ones with the same order, mean and spread.

    Equal values are ordered at random: independent flags become independent normal features, and
    only the dependence between features is left as evidence of clusters.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
    weights : ndarray of shape (n_rows,)
    rng : Generator
    """
    n_values = [len(np.unique(column)) for column in rows.T]
    few = min(_FEW_VALUES, len(rows) // _ROWS_PER_VALUE)
    if max(n_values) <= few and len(np.unique(rows, axis=0)) <= max(n_values):
        return rows  # a few points, which one feature tells apart
    spread = rows
    for feature, column in enumerate(rows.T):
        if 1 < n_values[feature] <= few:
            spread = rows.copy() if spread is rows else spread
            ranks = np.empty((len(rows), 1))
            ranks[np.lexsort((rng.random(len(rows)), column)), 0] = np.arange(len(rows))
            scores = normal_scores(ranks, weights)[:, 0]
            mean = np.average(column, weights=weights)
            deviation = np.sqrt(np.average(np.square(column - mean), weights=weights))
            spread[:, feature] = mean + deviation * scores
    return spread


class _Descents(NamedTuple):
    """Values for 2, 3, … clusters, each of shape (n_numbers, n_starts)."""

    gains: FloatArray
    costs: FloatArray
    explained: FloatArray


def _descents(
    variant: str, n_starts: int, seed: int, shared: tuple[FloatArray, FloatArray, int], lazy: bool
) -> _Descents:
    """Run k-means with 2, 3, … clusters on a variant of the rows, from every start."""
    starts = [(start, variant) for start in spawned(seed, n_starts)]
    found: list[FloatArray] = tree_reduce(_merge_down, starts, shared, lazy, "merge-down")
    return _Descents(*np.stack(found, axis=-1))


def variant_of(rows: FloatArray, variant: str, rng: np.random.RandomState) -> FloatArray:
    """Return a variant of the rows.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
    variant : {"rows", "without tails", "correlated", "permuted"}
        The rows as they are; with every feature cut at three robust standard deviations from its
        median; and, made from these cut rows, Gaussian rows of the same covariance, or rows with
        each feature permuted, which keeps the features' distributions and removes all dependence
        between them.
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
) -> list[FloatArray]:
    """Task of one start: return gain, cost and explained part of 2, 3, … clusters, one row each.

    k-means runs with the largest number of clusters first. Then the two clusters that are cheapest
    to join (Ward) are merged and a few hard steps follow, down to two: each number starts from
    what was found with more clusters, where few are missed.
    """
    random = np.random.RandomState(seed)
    rows = variant_of(rows, variant, random)
    white = whitened(rows, weights)
    if most < 2:
        return [np.empty((3, 0))]
    problem = sample_problem(rows, weights, PowerUpdate())
    # Among many clusters some are missed more easily; twice scikit-learn's number of candidates.
    trials = None if most <= MOST_CLUSTERS else 2 * (2 + int(np.log(most)))
    centers, _ = kmeans_plusplus(
        rows, most, sample_weight=weights, random_state=random, n_local_trials=trials
    )
    steps, found = _FIRST_STEPS, []
    for n_clusters in range(most, 1, -1):
        schedule = Schedule(-np.inf, max_iter=steps, tol=_TOL, calm=1)
        run = iterate(problem, [np.asarray(centers, dtype=np.float64)], schedule)[0]
        labels = nearest(rows, run.state)
        explained, gain = partition_likelihood(white, weights, labels)
        found.append((gain, run.last, explained))
        sizes = np.bincount(labels, weights, minlength=n_clusters)
        centers, steps = joined(run.state, sizes), _STEPS
    return [np.array(found[::-1]).T]


def joined(state: CenterState, sizes: NDArray) -> FloatArray:
    """Replace the two centres that are cheapest to join by their weighted mean (Ward).

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
