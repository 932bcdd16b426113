"""Costs of the stages of a fit of centres.

The cost of a stage is its number of steps times the cost of a step. The latter is measured by
running the block function on simulated rows, on all threads at once; a measurement takes some tens
of milliseconds per shape and process. The number of iterations of a stage is not known beforehand:
the numbers here are typical ones.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Layout, Position, float_dtype, visited_together
from daskmm.engine.first_pass import MANY_CLUSTERS, SampleSizes
from daskmm.engine.speed import fastest, loading_seconds, product_seconds
from daskmm.kmeans.bounded_sizes import MOST_ROUNDS, STEPS, STEPS_STREAMED
from daskmm.kmeans.cells import (
    CELLS,
    CLUSTERS_PER_CELL,
    PARTITIONS,
    STEPS_IN_CELLS,
    n_partitions,
)
from daskmm.kmeans.method import Method, most_polished
from daskmm.kmeans.seeding import ROUNDS
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import sample_rows
from daskmm.kmeans.updates import block_sums
from daskmm.mm.driver import Schedule
from daskmm.mm.stages import Cost
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import SquaredEuclidean
from daskmm.numerics.rows import Coordinates

FloatArray = NDArray[np.float64]

# Power at which memberships have become hard, and number of hard steps from there to convergence.
LAST_POWER = -250.0
LAST_STEPS = 3
# Number of hard steps until convergence, from seeds and on the larger sample.
HARD_STEPS, _LARGER_STEPS = 30, 60
# Number of generations of recombined starts, and of hard steps in each; number of starts that take
# steps on the larger sample and over the table.
_GENERATIONS, _RECOMBINED_STEPS, _SURVIVORS = 1.5, 14, 3
# If there are many clusters, each has few rows, and annealing begins at a power near the last one.
# Number of steps from seeds, divided by the root of the rows per cluster (measured: 1 to 3.5 for
# hard steps, 2 to 6 for an annealing), and number of steps of the one generation of recombined
# starts.
_STEPS_OF_MANY, _RECOMBINED_STEPS_OF_MANY = 3.0, 4
# Mean seconds of hard steps with lists and bounds of near centres, as a share of those without
# (measured: .25 to .45).
_BOUNDED = 0.35
# Factor of the seconds for distances within cells, which are in single precision.
_IN_CELLS = 0.2
# Number of passes over the table after annealing on samples: with a larger sample, with a larger
# sample and many clusters, and without a larger sample. With many clusters, samples have few rows
# per cluster, so more steps over the table follow.
_READS, _READS_OF_MANY, _MORE_READS = 5, 7, 10
# Number of iterations of a trial (`daskmm.kmeans.trials`), and of trials for all penalties together
# (`auto.lam`).
TRIAL_STEPS, _LAM_TRIALS = 40, 42
# Seconds that a thread takes per value in the first pass, and per distance in k-means||.
VALUE_SECONDS, _SEEDING_SECONDS = 1.5e-9, 4e-9
# Seconds per centre that is drawn within a cell, without its distances.
_DRAW_SECONDS = 1.5e-4
# Number of rows of a measured block in double precision and in single precision (which is used for
# many rows only), and largest number of multiplications in it.
_ROWS, MANY_ROWS, _PRODUCTS = 1024, 4096, 1 << 29
# Largest numbers of rounds of exact medians, of updates of the Mahalanobis matrix, and of refits of
# a fit with empty clusters.
MEDIAN_ROUNDS, TURNS, REFITS = 20, 20, 10
# Number of rounds in which clusters that are too large are divided.
_TYPICAL_ROUNDS = 3
# Number of passes of a trimmed hard step.
_TRIMMED_PASSES = 3


@dataclass(frozen=True)
class CenterCosts:
    """Costs of the stages of a fit of centres; each method is the cost of one stage."""

    layout: Layout  # of a table whose number of rows may be unknown
    sizes: SampleSizes | None  # rows of the samples; None if the number of rows is unknown
    method: Method
    threads: int  # of a worker

    # What is known

    @property
    def _n(self) -> int:
        return self.layout.n_rows or 0

    @property
    def _sample(self) -> int:
        return 0 if self.sizes is None else self.sizes.sample

    @property
    def _larger(self) -> int:
        return 0 if self.sizes is None else self.sizes.larger

    @property
    def _width(self) -> int:
        # A stored value of sparse rows is assumed to cost as much as a value of dense rows.
        return self.method.n_landmarks or self.layout.width

    @cached_property
    def _hard(self) -> float:
        return self._step(-math.inf)

    @cached_property
    def _soft(self) -> float:
        soft = self._step(-8.0)
        # In about half of an annealing's steps most weights are negligible; these cost as much as
        # hard steps.
        return (soft + self._hard) / 2 if self.method.many else soft

    @cached_property
    def _trial(self) -> float:
        return self._sample * TRIAL_STEPS * self._step(-8.0, many=False, dtype="float64")

    def _step(self, s: float, many: bool | None = None, dtype: str | None = None) -> float:
        own = self.method
        many = min(self._n, self._sample) >= MANY_ROWS if many is None else many
        dtype = str(float_dtype(self.layout.dtype)) if dtype is None else dtype
        shape = (own.n_clusters, self._width)
        how = (own.family, own.weighted, own.partial)
        return step_seconds(s, many, dtype, *shape, *how, self.threads)

    @cached_property
    def _product(self) -> float:
        return product_seconds()

    @property
    def _to_features(self) -> float:
        p, width = self.layout.width, self._width
        return self.method.n_landmarks * (p + width) * self._product

    @property
    def _visits(self) -> int:
        return min(self.threads, len(visited_together(self.layout)))

    @property
    def _bounded(self) -> bool:
        own, layout = self.method, self.layout
        plain = own.family is SquaredEuclidean and not (own.partial or own.weighted)
        return own.many and plain and not (layout.lazy or layout.sparse)

    @property
    def _hard_steps(self) -> int:
        own = self.method
        if not own.many:
            return HARD_STEPS
        return min(HARD_STEPS, math.ceil(_STEPS_OF_MANY * math.sqrt(self._sample / own.n_clusters)))

    @property
    def _annealing(self) -> int:
        own, steps = self.method, annealing_steps(self.method.schedule)
        chosen = own.schedule.critical_multiple is not None
        return min(steps, self._hard_steps) if own.many and chosen else steps

    @property
    def _polishing(self) -> int:
        few = min(self._hard_steps, self.method.schedule.max_iter)
        return LAST_STEPS if self._annealing else few

    @property
    def _at_once(self) -> int:
        # Threads share the rows of each start where there are many clusters.
        own = self.method
        return self.threads if own.many else min(self.threads, own.n_starts + own.n_hedged)

    def _pass_over(self, states: float, step: float) -> float:
        visited = self._n * (states * step + self._to_features) / self._visits
        return loading_seconds(self.layout, self.threads) + visited

    # Stages

    def survey(self) -> Cost:
        """Return the cost of the first pass, and of a second one if rows have heavy tails."""

        def seconds() -> float:
            p, width = self.layout.width, self._width
            products = min(self._sample, p) * p + width * (width + p) * (width != p)
            values = self._n * p * VALUE_SECONDS / self._visits
            loading = loading_seconds(self.layout, self.threads)
            return loading + values + self._sample * products * self._product

        return Cost(1, 1 + self.method.by_distance, seconds)

    def number(self) -> Cost:
        """Return the cost of the choice of the number of clusters, whose seconds are unknown."""
        return Cost()

    def lam(self) -> Cost:
        """Return the cost of the choice of λ."""

        def seconds() -> float:
            rows = min(1.0, sample_rows(self.method.n_clusters) / self._sample)
            return _LAM_TRIALS * rows * self._trial / min(self.threads, 6)

        return Cost(seconds=seconds) if self.method.tries_lam else Cost()

    def starts(self) -> Cost:
        """Return the cost of finding starting centres."""
        own = self.method
        if own.init == "k-means||":
            return Cost(ROUNDS + 1, ROUNDS + 1, self._seeding_in_rounds)
        if own.init != "k-means++":
            return Cost()
        return Cost(
            seconds=lambda: (
                own.n_starts * _plus_plus(self._sample, own.n_clusters, self._width, self.threads)
            )
        )

    def _seeding_in_rounds(self) -> float:
        distances = ROUNDS**2 * self._n * self.method.n_starts * self.method.n_clusters
        each = self._width * self._product + _SEEDING_SECONDS
        return self._pass_over(0, self._hard) * ROUNDS + distances * each / self._visits

    def annealing(self) -> Cost:
        """Return the cost of annealing all starts on the sample."""

        def seconds() -> float:
            own = self.method
            steps = self._annealing * self._soft + self._polishing * self._hard
            work = own.n_starts * steps + own.n_hedged * self._hard_steps * self._hard
            return self._sample * work / self._at_once

        return Cost(seconds=seconds)

    def restarts(self) -> Cost:
        """Return the cost of restarts at the learned feature weights."""
        starts = self.method.n_starts
        if not self.method.restarts:
            return Cost()
        return Cost(seconds=lambda: self._trial * starts / min(self.threads, starts))

    def recombination(self) -> Cost:
        """Return the cost of recombined starts."""
        own = self.method
        if own.n_starts == 1:
            return Cost()

        def seconds() -> float:
            generations, steps = _GENERATIONS, _RECOMBINED_STEPS
            if own.many:
                generations, steps = 1, _RECOMBINED_STEPS_OF_MANY
            born = generations * own.n_starts
            pool = (own.n_starts + own.n_hedged) * own.n_clusters
            chosen = _chosen(pool, own.n_clusters, self.layout.width)
            return born * (steps * self._sample * self._hard / self._at_once + chosen)

        return Cost(seconds=seconds)

    def restarts_of_best(self) -> Cost:
        """Return the cost of restarting the best run of sparse rows once per start."""
        return self.restarts() if self.method.n_starts > 1 and self.layout.sparse else Cost()

    def larger_sample(self) -> Cost:
        """Return the cost of hard steps on the larger sample."""
        if not self._larger:
            return Cost()

        def seconds() -> float:
            own = self.method
            steps = min(_LARGER_STEPS, self._hard_steps)
            states = own.n_starts + own.n_hedged + self._survivors * steps
            return self._larger * states * (self._hard + self._to_features) / self.threads

        return Cost(seconds=seconds)

    @property
    def _survivors(self) -> int:
        own = self.method
        return min(_SURVIVORS, own.n_starts, most_polished(own.n_clusters))

    def polishing(self) -> Cost:
        """Return the cost of hard steps over the table after annealing on samples."""
        own = self.method

        def seconds() -> float:
            reads = typical_reads(own.n_clusters) if self._larger else _MORE_READS
            first = own.n_starts + own.n_hedged
            if self._larger or own.many:
                first = self._survivors
            later = self._pass_over(self._survivors, self._later)
            reads = min(reads, own.schedule.max_iter)
            return self._pass_over(first, self._hard) + (reads - 1) * later

        return Cost(*self._iterations(typical_reads(own.n_clusters)), seconds)

    def passes(self) -> Cost:
        """Return the cost of annealing over the table."""
        own = self.method

        def seconds() -> float:
            polishing = self._polishing
            if self._annealing and self._bounded and own.n_starts == 1:
                polishing += self._hard_steps // 2  # some hard steps from the start, too
            annealing = self._annealing * self._pass_over(own.n_starts, self._soft)
            return annealing + polishing * self._pass_over(own.n_starts, self._later)

        return Cost(*self._iterations(annealing_steps(own.schedule) or HARD_STEPS), seconds)

    @property
    def _later(self) -> float:
        return self._hard * (_BOUNDED if self._bounded else 1.0)

    def _iterations(self, typical: int) -> tuple[int, int]:
        """Return typical and most passes of iterations; one more scores unconverged runs."""
        most = self.method.schedule.max_iter
        each = _TRIMMED_PASSES if self.method.trim else 1
        return min(typical, most), each * (most + 1)

    def rival(self) -> Cost:
        """Return the cost of hard steps from another start in the iterations that are left.

        Few fits take these steps. If the other start loses, they do not count as iterations.
        """
        most = self.method.schedule.max_iter
        each = _TRIMMED_PASSES if self.method.trim else 1
        return Cost(most=each * most if most > 1 else 0)

    def restarts_over_table(self) -> Cost:
        """Return the cost of a restart at the learned feature weights, over the table."""
        return replace(self.restarts(), most=self.rival().most)

    def split(self) -> Cost:
        """Return the cost of moving coincident centres: one pass besides the iterations left."""
        return Cost(most=min(1, self.method.schedule.max_iter - 1))

    def bounded_sizes(self) -> Cost:
        """Return the cost of dividing clusters that are too large."""
        each = 1 + (STEPS_STREAMED if self.layout.lazy else STEPS)

        def seconds() -> float:
            return _TYPICAL_ROUNDS * each * self._pass_over(1, self._hard)

        return Cost(_TYPICAL_ROUNDS * each, MOST_ROUNDS * each, seconds)

    def refits(self) -> Cost:
        """Return the cost of fits until one has no empty cluster, which few fits need."""
        fit = self.polishing() if self.method.on_sample else self.passes()
        again = self.starts().most + fit.most
        return Cost(most=REFITS * again)

    def turns(self) -> Cost:
        """Return the cost of learning the Mahalanobis matrix: two passes besides its iterations."""
        return Cost(most=2 * TURNS + self.rival().most)

    def medians(self) -> Cost:
        """Return the cost of exact medians."""
        return Cost(most=MEDIAN_ROUNDS)

    def labels(self) -> Cost:
        """Return the cost of the labels of rows in memory; those of lazy rows are lazy."""
        if self.layout.lazy:
            return Cost()

        def seconds() -> float:
            # Bounds give most labels; distances on the sample are computed in double precision.
            if self._bounded:
                return 2 * self._sample * self._hard / self.threads
            return self._pass_over(1, self._hard)

        return Cost(1, 1, seconds)


def annealing_steps(schedule: Schedule) -> int:
    """Return how many iterations an annealing typically takes; 0 for Lloyd's algorithm."""
    if schedule.s0 == -math.inf:
        return 0
    if schedule.eta == 1.0:
        return min(HARD_STEPS, schedule.max_iter)
    if schedule.tol == 0.0:
        return schedule.max_iter
    powers = math.log(max(LAST_POWER / schedule.s0, schedule.eta)) / math.log(schedule.eta)
    return min(math.ceil(powers) * schedule.anneal_every, schedule.max_iter)


def typical_reads(n_clusters: int) -> int:
    """Return how many passes over the table typically follow annealing on samples."""
    return _READS_OF_MANY if n_clusters >= MANY_CLUSTERS else _READS


def _plus_plus(n_rows: int, n_clusters: int, n_features: int, threads: int) -> float:
    """Return the seconds of k-means++ for one start (within cells of the rows for many centres)."""
    if n_clusters < MANY_CLUSTERS or n_rows <= PARTITIONS * n_clusters:
        return n_rows * n_clusters * seeding_seconds(n_clusters, n_features)
    n_cells = CELLS * math.isqrt(n_clusters)
    rivals = n_clusters / n_cells
    steps = n_rows * (STEPS_IN_CELLS * rivals + 2 * n_cells) * n_features * product_seconds()
    drawing = _IN_CELLS * n_rows * rivals * seeding_seconds(n_clusters, n_features)
    partition = steps + drawing + n_clusters * _DRAW_SECONDS
    partitions = n_partitions(n_features)
    choosing = _chosen(partitions * n_clusters, n_clusters, n_features)
    return partition * partitions / min(threads, partitions) + choosing


def _chosen(n_candidates: int, n_clusters: int, n_features: int) -> float:
    """Return the seconds of choosing centres among candidates (within cells for many)."""
    drawing = n_candidates * seeding_seconds(n_clusters, n_features)
    if n_clusters < MANY_CLUSTERS:
        return n_clusters * drawing
    to_cells = n_candidates * n_clusters * n_features * product_seconds()
    return to_cells + _IN_CELLS * CLUSTERS_PER_CELL * drawing + n_clusters * _DRAW_SECONDS


@functools.cache
def step_seconds(
    s: float,
    many: bool,
    dtype: str,
    n_clusters: int,
    n_features: int,
    family: type[Distortion],
    weighted: bool,
    partial: bool,
    threads: int,
) -> float:
    """Measure the seconds that a thread takes for a step of one start, per row."""
    n_rows = MANY_ROWS if many and dtype == "float32" else _ROWS
    p = min(n_features, 4096)
    k = min(n_clusters, max(16, _PRODUCTS // (n_rows * p)))
    # These values are in the domain of every distortion.
    rows = np.random.default_rng(0).uniform(0.2, 0.8, (n_rows, p)).astype(dtype)
    origin = 0.5 * family.shifts
    coordinates = Coordinates(np.full(p, origin), np.ones(p))
    centers = np.resize(rows, (k, p)).astype(np.float64) - origin
    distortion = family.around(centers.mean(axis=0), np.full(p, 0.03))
    weights = np.full(p, 1.0 / p) if weighted else None
    states = (CenterState(centers, s, weights, distortion, partial),)
    position = Position(0, 0, False, (None, p))
    seconds = fastest(lambda: block_sums(rows, None, position, coordinates, states), threads)
    return seconds / n_rows * (n_clusters / k) * (n_features / p)


@functools.cache
def seeding_seconds(n_clusters: int, n_features: int) -> float:
    """Measure the seconds of k-means++ per row and centre; draws of more centres try more rows."""
    from sklearn.cluster import kmeans_plusplus  # tasks of workers do not wait for its import

    p, trials = min(n_features, 1024), 2 + int(math.log(n_clusters))
    rows: FloatArray = np.random.default_rng(0).random((MANY_ROWS, p))
    seconds = fastest(lambda: kmeans_plusplus(rows, 16, random_state=0, n_local_trials=trials))
    return seconds / MANY_ROWS / 16 * n_features / p
