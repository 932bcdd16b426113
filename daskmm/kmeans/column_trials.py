"""Trials of parameters on wide sparse rows, and on columns of several kinds.

These are the trials of `daskmm.kmeans.trials` with a Bregman divergence. They take O(nnz·k) for
sparse rows; a column of several features has one share and one weight. The null is the same table
with its rows shuffled and every column rolled by a random number of rows. This keeps the values of
each column and removes all dependence between columns.

A cluster of the rows with one rare word explains this word completely. This counts for more than
small differences in a hundred features. So wide sparse columns can also be split into two halves:
clusters are found with one half and judged by the other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.moments import Sample
from daskmm.kmeans.seeding import greedy_rows
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import (
    KNOWING,
    LEARNING,
    Labels,
    OnSample,
    Trials,
    annealed,
    nearest,
    spawned,
    thinned,
)
from daskmm.kmeans.updates import EntropyUpdate, PowerUpdate, sample_problem
from daskmm.numerics.annealing import critical_power
from daskmm.numerics.distortions.base import Tile
from daskmm.numerics.distortions.bregman import PLAIN, Bregman, Metric, SquaredEuclidean
from daskmm.numerics.distortions.mixed import Mixed
from daskmm.numerics.information import Partition, feature_gains
from daskmm.numerics.sparse_rows import (
    SparseRows,
    canonical,
    dense,
    fit_dense,
    has_holes,
    rolled_columns,
)

FloatArray = NDArray[np.float64]


def trials_of(
    sample: Sample, n_rows: int, seed: int, metric: Metric = PLAIN
) -> Trials | ColumnTrials:
    """Draw at most `n_rows` rows of the sample of a first pass, to try parameters on."""
    if metric.groups is None:
        rows, weights = thinned(sample.rows, sample.weights, n_rows, seed)
        if fit_dense(rows):
            return Trials.of(Sample(dense(rows), weights), n_rows, seed)
    assert isinstance(metric.distortion, SquaredEuclidean | Mixed)
    return ColumnTrials.of(sample, n_rows, seed, metric.distortion, metric.groups)


@dataclass(frozen=True)
class ColumnTrials(OnSample):
    """Trials of sparse rows, or of columns of one or several features; NaN are missing values."""

    distortion: SquaredEuclidean | Mixed  # distortion in the model's coordinates
    groups: NDArray[np.int64]  # column of each feature, (n_features,)

    @classmethod
    def of(
        cls,
        sample: Sample,
        n_rows: int,
        seed: int,
        distortion: SquaredEuclidean | Mixed,
        groups: NDArray[np.int64] | None,
    ) -> ColumnTrials:
        """Draw at most `n_rows` rows of a sample."""
        rows, weights = thinned(sample.rows, sample.weights, n_rows, seed)
        own = np.arange(rows.shape[1]) if groups is None else groups
        variance = _dispersion(rows, weights, np.zeros(len(rows), np.int64), distortion, own)
        # Variances that are rounding errors are set to 0.
        variance[variance <= 1e-12 * variance.max(initial=0.0)] = 0.0
        return cls(rows, weights, variance, distortion, own)

    @functools.cached_property
    def critical_power(self) -> float:
        """The critical power s_crit of equally weighted columns."""
        return critical_power(self.rows, self.weights, self.distortion)

    def starts(self, n_clusters: int, seeds: Sequence[int]) -> list[FloatArray]:
        """Return starting centres by greedy k-means++, for each seed."""
        return [
            greedy_rows(self.rows, self.weights, n_clusters, seed, self.distortion)
            for seed in seeds
        ]

    def learn(self, starts: Sequence[FloatArray], lam: float) -> list[CenterState]:
        """Fit EWP with a penalty λ from each start; return centres and feature weights."""
        update = EntropyUpdate(
            self.distortion,
            has_holes(self.rows),
            lam=lam,
            varying=self.varying[self.groups],
            groups=self.groups,
        )
        problem = sample_problem(self.rows, self.weights, update, float(self.variance.sum()))
        return annealed(problem, starts, LEARNING, self.critical_power)

    def with_weights(
        self, column_weights: FloatArray, n_clusters: int, seeds: Sequence[int]
    ) -> list[Labels]:
        """Label rows by power k-means with given column weights, one start per seed."""
        return self._labelled(self.rows, column_weights, n_clusters, seeds)

    def of_columns(self, feature_weights: FloatArray) -> FloatArray:
        """Return the weights of columns, given those of their features."""
        return feature_weights[np.unique(self.groups, return_index=True)[1]]

    def partition(self, labels: Labels) -> Partition:
        """Return the share of each column's variance that hard labels leave unexplained."""
        return self._partition(self.rows, labels)

    def means(self, labels: Labels, otherwise: FloatArray) -> FloatArray:
        """Return the mean of each cluster, and the given centre for an empty one."""
        sums, masses, _ = _sums(self.rows, self.weights, labels, len(otherwise), self.distortion)
        return np.divide(sums, masses, out=otherwise.copy(), where=masses > 0)

    def null_within(self, column_weights: FloatArray, n_clusters: int, seed: int) -> FloatArray:
        """Return 1 − R⁰_g of a null: independent columns with the same values, clustered too."""
        shuffle, fresh = spawned(seed, 2)
        rng = np.random.default_rng(shuffle)
        shifts = rng.integers(len(self.rows), size=len(self.variance))[self.groups]
        rows = rolled_columns(self.rows, rng.permutation(len(self.rows)), shifts)
        (labels,) = self._labelled(rows, column_weights, n_clusters, [fresh])
        return self._partition(rows, labels).within

    def gains_over(self, within: FloatArray, null: FloatArray) -> FloatArray:
        """Return the information of a partition about each column beyond a null, in nats."""
        entropies = None
        if isinstance(self.distortion, Mixed):
            entropies = self.of_columns(self.distortion.entropies)
        return feature_gains(within, null, self.varying, entropies)

    def halves(self, seed: int) -> list[tuple[NDArray[np.int64], ColumnTrials]]:
        """Divide the varying features at random between two tables of the same sparse rows.

        Each half has its features and its table. The table is dense if it fits into little memory.
        """
        order = np.random.default_rng(seed).permutation(np.flatnonzero(self.varying))
        found = []
        for own in np.array_split(order, 2):
            rows = canonical(self.rows[:, own])
            # Each thread copies the halves; `daskmm.planning` expects 64 MB of dense rows for this.
            held = dense(rows) if fit_dense(rows, 8) else rows
            sample = Sample(held, self.weights)
            distortion = SquaredEuclidean.around(np.zeros(len(own)), self.variance[own])
            found.append((own, ColumnTrials.of(sample, len(rows), 0, distortion, None)))
        return found

    def gain_held_out(self, labels: Labels) -> float:
        """Compute the gain of labels that were found without these columns, in nats.

        No null is clustered: c clusters explain (c − 1)/(n − 1) of an independent column.
        """
        found = self.partition(labels)
        rows = self.weights.sum() ** 2 / np.square(self.weights).sum()
        chance = min((len(found.shares) - 1) / max(rows - 1.0, 1.0), 1.0)
        return float(self.gains_over(found.within, np.full(len(found.within), 1.0 - chance)).sum())

    @property
    def divisible(self) -> bool:
        """Whether clusters can be judged by other columns, as in wide sparse tables."""
        return isinstance(self.rows, SparseRows) and int(np.count_nonzero(self.varying)) > 3

    def _labelled(
        self, rows: Any, column_weights: FloatArray, n_clusters: int, seeds: Sequence[int]
    ) -> list[Labels]:
        rows, distortion = self.distortion.weighed(rows, column_weights[self.groups])
        weights, partial = self.weights, has_holes(rows)
        starts = [greedy_rows(rows, weights, n_clusters, seed, distortion) for seed in seeds]
        spread = distortion.spread(rows, weights)
        problem = sample_problem(rows, weights, PowerUpdate(distortion, partial), spread)
        critical = critical_power(rows, weights, distortion)
        states = annealed(problem, starts, KNOWING, critical)
        # Rows of null data may lack all values; such a row is equally near to all centres.
        return [np.maximum(nearest(rows, replace(state, gaps=True)), 0) for state in states]

    def _partition(self, rows: Any, labels: Labels) -> Partition:
        left = _dispersion(rows, self.weights, labels, self.distortion, self.groups)
        within = np.ones_like(left)
        varying = self.varying
        within[varying] = np.minimum(left[varying] / self.variance[varying], 1.0)
        sizes = np.bincount(labels, self.weights)
        return Partition(within, sizes[sizes > 0] / self.weights.sum())


def _sums(
    rows: Any, weights: FloatArray, labels: Labels, n_clusters: int, distortion: Bregman
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return sums, masses and squares of the rows of each cluster, as in `CenterSums`."""
    tile: Tile = distortion.tile(rows, has_holes(rows))
    phi = np.zeros((len(weights), n_clusters))
    phi[np.arange(len(weights)), labels] = weights
    nothing = np.empty((0, 0))
    found = distortion.update(tile, phi, nothing, nothing, np.ones(1))
    masses = phi.sum(axis=0)[:, None] if found.denominators is None else found.denominators
    assert found.squares is not None
    return found.sums, np.broadcast_to(masses, found.sums.shape), found.squares


def _dispersion(
    rows: Any,
    weights: FloatArray,
    labels: Labels,
    distortion: Bregman,
    groups: NDArray[np.int64],
) -> FloatArray:
    """Return the mean divergence of the rows from the means of their clusters, per column."""
    n_clusters = int(labels.max()) + 1
    sums, masses, squares = _sums(rows, weights, labels, n_clusters, distortion)
    means = np.divide(sums, masses, out=np.zeros_like(sums), where=masses > 0)
    # If a cluster has no value of a feature, its mean in this feature does not matter.
    means = np.where(masses > 0, means, distortion.inside(np.full((1, sums.shape[1]), np.nan)))
    left = distortion.dispersion(squares, masses, means) / weights.sum()
    return np.asarray(np.bincount(groups, left), dtype=np.float64)
