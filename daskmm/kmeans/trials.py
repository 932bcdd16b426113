"""Clusterings of a sample in memory, and of similar noise, for the choice of parameters."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.moments import Sample
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.assignment import labels_of
from daskmm.kmeans.seeding import plus_plus
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, EntropyUpdate, PowerUpdate, sample_problem
from daskmm.mm.driver import Schedule, iterate
from daskmm.numerics.annealing import critical_power
from daskmm.numerics.distortions.base import observed_mean
from daskmm.numerics.information import (
    Partition,
    cluster_sums,
    feature_gains,
    mean_of_varying,
    partition,
    weighted_variance,
)
from daskmm.numerics.latent_normals import dithered
from daskmm.numerics.rows import Coordinates
from daskmm.numerics.span import in_span, is_wide

FloatArray = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]

# Growth of the power, tolerance and largest number of iterations in the annealing of trials. Trials
# are annealed more coarsely than fits, because only the gain of the clusters counts.
_ETA, _TOL, _CALM, _MAX_ITER = 1.1, 1e-3, 2, 200
# First power in units of the critical power, for fits that learn feature weights and for fits with
# given weights.
LEARNING, KNOWING = 1.25, 2.0
# Features with less than this share of the weighted variance are left out.
_NEGLIGIBLE = 1e-9
# Number of rows of the sample: the larger of a fixed number and a number per cluster.
_ROWS, _ROWS_PER_CLUSTER = 2000, 100


def sample_rows(n_clusters: int) -> int:
    """Return the number of rows on which parameters are tried."""
    return max(_ROWS, _ROWS_PER_CLUSTER * n_clusters)


class OverStarts:
    """Mean and spread over the starts of `gains`, which has a row for each candidate."""

    gains: FloatArray

    @property
    def gain(self) -> FloatArray:
        """Mean over the starts, of shape (n_candidates,)."""
        return np.asarray(self.gains.mean(axis=1))

    @property
    def spread(self) -> FloatArray:
        """Standard deviation over the starts, of shape (n_candidates,)."""
        return np.asarray(self.gains.std(axis=1))


@dataclass(frozen=True)
class OnSample(ABC):
    """A sample on which parameters are tried, for each of its columns."""

    rows: Any  # ndarray or SparseRows of float64 in the model's coordinates, (n_rows, n_features)
    weights: FloatArray  # positive, (n_rows,)
    # Mean divergence of the rows from their mean in each column, (n_columns,); 0 for a constant
    # one.
    variance: FloatArray

    @property
    def varying(self) -> NDArray[np.bool_]:
        """Mask of the columns that are not constant."""
        return self.variance > 0

    @property
    def mean_variance(self) -> float:
        """Mean variance V of the columns that vary (1 if none does)."""
        return mean_of_varying(self.variance)

    @property
    def wide(self) -> bool:
        """Whether the columns are so many that several starts should share their preparation."""
        return False

    @property
    def equal_weights(self) -> FloatArray:
        """Equal weights, which sum to 1, for the columns that vary."""
        varying = self.varying if self.varying.any() else np.ones(len(self.variance), bool)
        return varying / np.count_nonzero(varying)

    def nearest(self, state: CenterState) -> Labels:
        """Label each row by its nearest centre, in the distance of a state."""
        return nearest(self.rows, state)

    def cost(self, found: Partition, column_weights: FloatArray) -> float:
        """Return Σ_l w_l V_l (1 − R_l), the mean weighted divergence from the cluster means."""
        return float((column_weights * self.variance) @ found.within)

    def gains(self, labels: Labels, column_weights: FloatArray, seed: int) -> FloatArray:
        """Compute the information gain of labels over the null in each column, in nats."""
        found = self.partition(labels)
        null = self.null_within(column_weights, len(found.shares), seed)
        return self.gains_over(found.within, null)

    @abstractmethod
    def partition(self, labels: Labels) -> Partition:
        """Return the share of each column's variance that hard labels leave unexplained."""

    @abstractmethod
    def null_within(self, column_weights: FloatArray, n_clusters: int, seed: int) -> FloatArray:
        """Return 1 − R⁰ of each column of a null, whose columns are independent.

        The null is clustered like the sample.
        """

    @abstractmethod
    def gains_over(self, within: FloatArray, null: FloatArray) -> FloatArray:
        """Return the information gain of a partition over a null in each column, in nats."""


@dataclass(frozen=True)
class Trials(OnSample):
    """Trials of dense rows without missing values; each feature is a column."""

    @classmethod
    def of(cls, sample: Sample, n_rows: int, seed: int) -> Trials:
        """Draw at most `n_rows` rows of a sample; missing values become the feature's mean."""
        rows, weights = thinned(sample.rows, sample.weights, n_rows, seed)
        rows = filled(rows, weights)
        return cls(rows, weights, weighted_variance(rows, weights))

    def dithered(self, seed: int) -> Trials:
        """Return the same rows with normal numbers in place of features that have few values.

        Clusters can explain all of a flag, but only .64 of a normal number that has the flag as its
        sign.
        """
        rows = dithered(self.rows, self.weights, np.random.default_rng(seed))
        return Trials(rows, self.weights, weighted_variance(rows, self.weights))

    @functools.cached_property
    def critical_power(self) -> float:
        """The critical power s_crit of equally weighted features."""
        return _critical_power(self.rows, self.weights)

    @property
    def wide(self) -> bool:
        """Whether the columns are so many that several starts should share their preparation."""
        return is_wide(*self.rows.shape)

    def starts(self, n_clusters: int, seeds: Sequence[int]) -> list[FloatArray]:
        """Return starting centres by greedy k-means++, for each seed."""
        return plus_plus(self.rows, self.weights, n_clusters, seeds)

    def learn(self, starts: Sequence[FloatArray], lam: float) -> list[CenterState]:
        """Fit EWP with a penalty λ from each start; return centres and feature weights."""
        update = EntropyUpdate(lam=lam, varying=self.varying)
        problem = sample_problem(self.rows, self.weights, update, float(self.variance.sum()))
        return annealed(problem, starts, LEARNING, self.critical_power)

    def with_weights(
        self, feature_weights: FloatArray, n_clusters: int, seeds: Sequence[int]
    ) -> list[Labels]:
        """Label rows by power k-means with given feature weights, one start per seed."""
        kept = self._matter(feature_weights)
        z = self.rows[:, kept]
        z *= np.sqrt(feature_weights[kept])
        return power_labels(z, self.weights, n_clusters, seeds)

    def of_columns(self, feature_weights: FloatArray) -> FloatArray:
        """Return the weights of columns, which are the features."""
        return feature_weights

    def means(self, labels: Labels, otherwise: FloatArray) -> FloatArray:
        """Return the mean of each cluster, and the given centre for an empty one."""
        sizes = np.bincount(labels, self.weights, minlength=len(otherwise))
        sums = cluster_sums(self.rows, self.weights, labels, len(otherwise))
        occupied = sizes > 0
        centers = otherwise.copy()
        centers[occupied] = sums[occupied] / sizes[occupied, None]
        return centers

    def partition(self, labels: Labels) -> Partition:
        """Return the share of each feature's variance that hard labels leave unexplained."""
        return partition(self.rows, self.weights, labels, self.variance)

    def null_within(self, feature_weights: FloatArray, n_clusters: int, seed: int) -> FloatArray:
        """Return 1 − R⁰_l of a null: independent Gaussian features of the sample's scale.

        The null is clustered like the sample. Features with a negligible weight are not drawn; they
        get the share that chance explains, R⁰ = (k − 1)/(n − 1).
        """
        n_rows = len(self.rows)
        kept = self._matter(feature_weights)
        null = np.full(len(kept), 1.0 - (n_clusters - 1) / max(n_rows - 1, 1))
        rows = np.random.default_rng(seed).standard_normal((n_rows, np.count_nonzero(kept)))
        scale = np.sqrt((feature_weights * self.variance)[kept])
        rows *= scale
        (labels,) = power_labels(rows, self.weights, n_clusters, [seed])
        # Shares of the variance do not depend on the scale, so the scaled rows can be used.
        null[kept] = partition(rows, self.weights, labels).within
        return null

    def gains_over(self, within: FloatArray, null: FloatArray) -> FloatArray:
        """Return the information gain of a partition over a null in each feature, in nats."""
        return feature_gains(within, null, self.varying)

    def _matter(self, feature_weights: FloatArray) -> NDArray[np.bool_]:
        share = feature_weights * self.variance
        return share >= _NEGLIGIBLE * share.sum()


def power_labels(
    rows: FloatArray, weights: FloatArray, n_clusters: int, seeds: Sequence[int]
) -> list[Labels]:
    """Label rows by power k-means, from one greedy k-means++ start per seed."""
    rows = in_span(rows)
    starts = plus_plus(rows, weights, n_clusters, seeds)
    problem = sample_problem(rows, weights, PowerUpdate())
    states = annealed(problem, starts, KNOWING, _critical_power(rows, weights))
    return [nearest(rows, state) for state in states]


def nearest(rows: Any, state: CenterState) -> Labels:
    """Label each row by its nearest centre, in the distance of a state.

    The rows are in the model's coordinates.
    """
    return labels_of(Block(rows), Coordinates.identity(rows.shape[1]), state)


def _critical_power(rows: FloatArray, weights: FloatArray) -> float:
    return critical_power(rows - weights @ rows / weights.sum(), weights)


def annealed(
    problem: CentersProblem, starts: Sequence[FloatArray], multiple: float, critical: float
) -> list[CenterState]:
    """Anneal all starts together, and return their last states.

    The first power is a multiple of the critical power (`LEARNING` or `KNOWING`).
    """
    schedule = Schedule(
        min(-1.0, multiple * critical), _ETA, 1, True, _MAX_ITER, _TOL, critical, _CALM
    )
    with one_blas_thread():  # entering this context takes as long as a step, so all steps share it
        return [run.state for run in iterate(problem, starts, schedule)]


def thinned(
    rows: FloatArray, weights: FloatArray, n_rows: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Draw at most `n_rows` rows without replacement, in their order."""
    if len(rows) <= n_rows:
        return rows, weights
    rng = np.random.default_rng(seed)
    kept = np.sort(rng.choice(len(rows), n_rows, replace=False, shuffle=False))
    return rows[kept], weights[kept]


def filled(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Replace missing values (NaN) by the mean of the feature."""
    missing = np.isnan(rows)
    return np.where(missing, observed_mean(rows, weights), rows) if missing.any() else rows


def spawned(seed: int, n_seeds: int) -> list[int]:
    """Derive independent seeds from one."""
    states = np.random.SeedSequence(seed).generate_state(n_seeds)
    return [int(state) >> 1 for state in states]
