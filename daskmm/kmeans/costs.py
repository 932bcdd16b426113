"""Costs of the stages of a fit of centres.

A stage takes a typical number of steps, which is given here. The seconds of a step are measured:
all threads run the block function on simulated rows at once, for some tens of milliseconds.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block, Layout, float_dtype, visited_together
from daskmm.engine.first_pass import SampleSizes
from daskmm.engine.speed import fastest, loading_seconds, product_seconds
from daskmm.kmeans.between_reads import steps_between_reads
from daskmm.kmeans.bounded_sizes import MOST_ROUNDS, STEPS, STEPS_STREAMED
from daskmm.kmeans.exchange import EXCHANGE_STEPS, FIRST_STEPS
from daskmm.kmeans.method import RACE_STEPS, Method, most_polished
from daskmm.kmeans.seeding import ROUNDS
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import sample_rows
from daskmm.kmeans.updates import block_sums
from daskmm.mm.driver import Schedule
from daskmm.mm.stages import Cost
from daskmm.numerics.distortions.bregman import SquaredEuclidean
from daskmm.numerics.distortions.mixed import Mixed
from daskmm.numerics.rows import Coordinates

FloatArray = NDArray[np.float64]

# Power at which memberships have become hard, and number of hard steps from there to convergence.
LAST_POWER = -250.0
LAST_STEPS = 3
# Number of hard steps until convergence, from seeds and on the larger sample (measured: 55 to 150).
# With many clusters there are fewer: this number times the root of the rows per cluster (measured:
# 1 to 6).
HARD_STEPS, _LARGER_STEPS, _STEPS_OF_MANY = 30, 80, 3.0
# Number of hard steps of recombined starts, per start, and number of starts that take steps on the
# larger sample and over the table.
_RECOMBINED_STEPS, _RECOMBINED_STEPS_OF_MANY, _SURVIVORS = 25, 12, 3
# Number of exchanges of clusters, and of hard steps after the last one.
_EXCHANGES, _LAST_STEPS_OF_SAMPLE = 4, 10
# Mean seconds of hard steps with lists and bounds of near centres, as a share of those without
# (measured: .25 to .45).
_BOUNDED = 0.35
# Number of passes over the table after annealing on samples. With many clusters, samples have few
# rows per cluster, so more steps over the table follow.
READS, _READS_OF_MANY = 5, 7
# Number of iterations of a trial (`daskmm.kmeans.trials`), and of trials for all penalties together
# (`auto.lam`), which are more for mixed columns.
TRIAL_STEPS, _LAM_TRIALS, _LAM_TRIALS_MIXED = 40, 42, 102
# Seconds that a thread takes per value in the first pass.
VALUE_SECONDS = 4e-9
# Times in units of a hard step: of greedy k-means++ for each candidate that a draw tries, and of
# k-means++ within cells for many centres (measured: 17 to 40).
_SEEDING_STEPS, _SEEDING_STEPS_OF_MANY = 2.0, 25.0
# Number of rows of a measured block in double and in single precision (which is used for many rows
# only), and the largest number of multiplications in it.
_ROWS, _MANY_ROWS, _PRODUCTS = 1024, 4096, 1 << 29
# Largest numbers of rounds of exact medians, of updates of the Mahalanobis matrix, and of refits of
# a fit with empty clusters.
MEDIAN_ROUNDS, TURNS, REFITS = 20, 20, 10
# Typical numbers of rounds in which clusters are divided, and of rounds of offsets, and typical and
# largest number of passes of a trimmed hard step.
_TYPICAL_ROUNDS, _OFFSET_ROUNDS, _TRIMMED_PASSES = 3, 8, (2, 3)
# Seconds per row of the sample in an auction of offsets, and before it per row and cluster.
_AUCTION_SECONDS, _NEAR_SECONDS = 2e-5, 3e-8


@dataclass(frozen=True)
class CenterCosts:
    """Costs of the stages of a fit of centres; each method is the cost of one stage."""

    layout: Layout  # layout of a table whose number of rows may be unknown
    sizes: SampleSizes | None  # rows of the samples; None if the number of rows is unknown
    method: Method
    threads: int  # number of threads of a worker

    # What is known

    @property
    def _sample(self) -> int:
        return 0 if self.sizes is None else self.sizes.sample

    @property
    def _larger(self) -> int:
        return 0 if self.sizes is None else self.sizes.larger

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
        return TRIAL_STEPS * self._step(-8.0, "float64")

    def _step(self, s: float, dtype: str = "") -> float:
        # A stored value of sparse rows is assumed to cost as much as a value of dense rows.
        width = self.method.n_landmarks or self.layout.width + self.layout.n_levels
        dtype = dtype or str(float_dtype(self.layout.dtype))
        return step_seconds(s, dtype, width, self.method, self.threads)

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
        own = self.method
        steps = RACE_STEPS if own.n_winners else self._hard_steps
        if own.exchanges and own.n_starts == 1:
            steps = FIRST_STEPS
        few = min(steps, own.schedule.max_iter)
        return LAST_STEPS if self._annealing else few

    @property
    def _survivors(self) -> int:
        own = self.method
        return min(_SURVIVORS, own.n_winners or own.n_starts, most_polished(own.n_clusters))

    def _on_sample(self, seconds_per_row: float) -> float:
        # Threads share the rows of each start where there are many clusters.
        own = self.method
        at_once = self.threads if own.many else min(self.threads, own.n_starts + own.n_hedged)
        return self._sample * seconds_per_row / at_once

    def _pass_over(self, seconds_per_row: float) -> float:
        """Return the seconds of a pass over the table, which loads its blocks."""
        layout, width = self.layout, self.method.n_landmarks
        if width:  # kernel values of the landmarks, and the features computed from them
            seconds_per_row += width * (layout.width + width) * product_seconds()
        visits = min(self.threads, len(visited_together(layout)))
        return (
            loading_seconds(layout, self.threads) + (layout.n_rows or 0) * seconds_per_row / visits
        )

    # Stages

    def survey(self) -> Cost:
        """Return the cost of the first pass, and of a second one if rows have heavy tails."""
        most = 1 + self.method.by_distance
        return Cost(1, most, lambda: self._pass_over(self.layout.width * VALUE_SECONDS))

    def number(self) -> Cost:
        """Return the cost of the choice of the number of clusters, whose seconds are unknown."""
        return Cost()

    def lam(self) -> Cost:
        """Return the cost of the choice of λ."""
        rows = min(sample_rows(self.method.n_clusters), self._sample)
        mixed = self.method.family is Mixed
        trials = _LAM_TRIALS_MIXED if mixed else _LAM_TRIALS
        tried = trials * rows / min(self.threads, 6)
        return Cost(seconds=lambda: tried * self._trial) if self.method.tries_lam else Cost()

    def starts(self) -> Cost:
        """Return the cost of finding starting centres."""
        own, n_passes = self.method, ROUNDS + 1
        if own.init == "k-means||":
            states = own.n_starts * ROUNDS  # the number of candidates grows from round to round
            return Cost(n_passes, n_passes, lambda: n_passes * self._pass_over(states * self._hard))
        if own.init != "k-means++":
            return Cost()
        if own.many:
            steps = own.n_starts * _SEEDING_STEPS_OF_MANY
            return Cost(seconds=lambda: self._on_sample(steps * self._hard))
        steps = own.n_starts * _SEEDING_STEPS * (2 + math.log(own.n_clusters))
        return Cost(seconds=lambda: self._sample * steps * self._step(-math.inf, "float64"))

    def annealing(self) -> Cost:
        """Return the cost of annealing all starts on the sample."""
        own = self.method

        def of_starts() -> float:
            annealed = self._annealing * self._soft + self._polishing * self._hard
            return own.n_starts * annealed + own.n_hedged * self._hard_steps * self._hard

        return Cost(seconds=lambda: self._on_sample(of_starts()))

    def best_starts(self) -> Cost:
        """Return the cost of hard steps of the starts that continue after a race."""
        steps = self.method.n_winners * self._hard_steps
        return Cost(seconds=lambda: self._on_sample(steps * self._hard)) if steps else Cost()

    def restarts(self) -> Cost:
        """Return the cost of restarts at the learned feature weights."""
        starts = self.method.n_starts
        rows = self._sample * starts / min(self.threads, starts)
        return Cost(seconds=lambda: rows * self._trial) if self.method.restarts else Cost()

    def recombination(self) -> Cost:
        """Return the cost of recombined starts."""
        own = self.method
        steps = own.n_starts * (_RECOMBINED_STEPS_OF_MANY if own.many else _RECOMBINED_STEPS)
        if own.n_starts == 1 or own.n_winners:
            return Cost()
        return Cost(seconds=lambda: self._on_sample(steps * self._hard))

    def exchange(self) -> Cost:
        """Return the cost of exchanges of clusters, with the hard steps after each of them."""
        return self._steps_of_best(_EXCHANGES * (EXCHANGE_STEPS + 1))

    def converged(self) -> Cost:
        """Return the cost of hard steps on the sample after the last exchange."""
        return self._steps_of_best(_LAST_STEPS_OF_SAMPLE)

    def _steps_of_best(self, n_steps: int) -> Cost:
        rows = self._sample * n_steps / self.threads
        return Cost(seconds=lambda: rows * self._hard) if self.method.exchanges else Cost()

    def restarts_of_best(self) -> Cost:
        """Return the cost of restarting the best run of sparse rows once per start."""
        return self.restarts() if self.method.n_starts > 1 and self.layout.sparse else Cost()

    def larger_sample(self) -> Cost:
        """Return the cost of hard steps on the larger sample."""
        own = self.method
        steps = self._hard_steps if own.many else _LARGER_STEPS
        starts = own.n_winners or own.n_starts + own.n_hedged
        rows = self._larger * (starts + self._survivors * steps)
        return Cost(seconds=lambda: rows * self._hard / self.threads) if self._larger else Cost()

    def polishing(self) -> Cost:
        """Return the cost of hard steps over the table after annealing on samples."""
        own, rows = self.method, self.layout.n_rows or 0
        reads = _READS_OF_MANY if own.many else READS
        if own.many and not self._larger and self._sample < rows:
            reads = max(reads, self._hard_steps)  # the fit converges over the table
        typical, most = self._iterations(reads)
        kept = 0.0
        if self.layout.lazy and own.steps_between_reads and self._larger:
            kept = self._larger * steps_between_reads(rows, self._larger) / self.threads

        def seconds() -> float:
            step = self._survivors * self._hard
            return typical * (self._pass_over(step) + kept * step)

        return Cost(typical, most, seconds)

    def passes(self) -> Cost:
        """Return the cost of annealing over the table."""
        own, hard = self.method, _BOUNDED if self._bounded else 1.0

        def seconds() -> float:
            annealing = self._annealing * self._pass_over(own.n_starts * self._soft)
            return annealing + self._polishing * self._pass_over(own.n_starts * hard * self._hard)

        return Cost(*self._iterations(annealing_steps(own.schedule) or HARD_STEPS), seconds)

    def _iterations(self, typical: int) -> tuple[int, int]:
        """Return typical and largest number of passes; the latter has one that scores the end."""
        most = self.method.schedule.max_iter
        usual, each = _TRIMMED_PASSES if self.method.trim else (1, 1)
        return usual * min(typical, most), each * (most + 1)

    def rival(self) -> Cost:
        """Return the cost of hard steps from another start in the iterations that are left.

        Few fits take these steps. If the other start loses, they do not count as iterations.
        """
        most = self.method.schedule.max_iter
        each = _TRIMMED_PASSES[1] if self.method.trim else 1
        return Cost(most=each * most if most > 1 else 0)

    def restarts_over_table(self) -> Cost:
        """Return the cost of a restart at the learned feature weights, over the table."""
        return replace(self.restarts(), most=self.rival().most)

    def split(self) -> Cost:
        """Return the cost of moving coincident centres: one pass, and the remaining iterations."""
        return Cost(most=min(1, self.method.schedule.max_iter - 1))

    def divisions(self) -> Cost:
        """Return the cost of dividing clusters that are far too large."""
        each = 1 + (STEPS_STREAMED if self.layout.lazy else STEPS)
        typical = _TYPICAL_ROUNDS * each
        return Cost(typical, MOST_ROUNDS * each, lambda: typical * self._pass_over(self._hard))

    def offsets(self) -> Cost:
        """Return the cost of learning offsets that bound sizes."""
        auction = self._sample * (self.method.n_clusters * _NEAR_SECONDS + _AUCTION_SECONDS)
        return Cost(
            _OFFSET_ROUNDS,
            MOST_ROUNDS,
            lambda: _OFFSET_ROUNDS * (auction + self._pass_over(self._hard)),
        )

    def more_divisions(self) -> Cost:
        """Return the cost of further divisions, which few fits need."""
        return Cost(most=self.divisions().most)

    def refits(self) -> Cost:
        """Return the cost of fits until one has no empty cluster, which few fits need."""
        fit = self.polishing() if self.method.on_sample else self.passes()
        return Cost(most=REFITS * (self.starts().most + fit.most))

    def turns(self) -> Cost:
        """Return the cost of learning the Mahalanobis matrix: two passes besides its iterations."""
        return Cost(most=2 * TURNS + self.rival().most)

    def medians(self) -> Cost:
        """Return the cost of exact medians."""
        return Cost(most=MEDIAN_ROUNDS)

    def labels(self) -> Cost:
        """Return the cost of the labels of rows in memory, and of counting values.

        Labels of lazy rows are lazy.
        """
        counts = self.method.partial and self.method.family.degree == 1  # of values by cluster
        n_passes = counts + (not self.layout.lazy)
        if not n_passes:
            return Cost()
        states = 0.0 if self._bounded else n_passes  # bounds know most labels already
        return Cost(n_passes, n_passes, lambda: self._pass_over(states * self._hard))


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


@functools.cache
def step_seconds(s: float, dtype: str, n_features: int, method: Method, threads: int) -> float:
    """Measure the seconds that a thread takes for a step of one start, per row."""
    p, family, n = min(n_features, 4096), method.family, _MANY_ROWS if dtype == "float32" else _ROWS
    k = min(method.n_clusters, max(16, _PRODUCTS // (n * p)))
    # These values are in the domain of every distortion.
    rows = np.random.default_rng(0).uniform(0.2, 0.8, (n, p)).astype(dtype)
    origin = 0.5 * family.shifts
    coordinates = Coordinates(np.full(p, origin), np.ones(p))
    centers = np.resize(rows, (k, p)).astype(np.float64) - origin
    distortion = family.around(centers.mean(axis=0), np.full(p, 0.03))
    weights = np.full(p, 1.0 / p) if method.weighted else None
    states = (CenterState(centers, s, weights, distortion, method.partial),)
    seconds = fastest(lambda: block_sums(Block(rows), coordinates, states), threads)
    return seconds / n * (method.n_clusters / k) * (n_features / p)
