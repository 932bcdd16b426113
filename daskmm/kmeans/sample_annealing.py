"""Annealing on samples in memory, so that a table is read to polish only.

A fit costs passes × bytes. An annealing decides on a sample as well as on all rows, so several
starts are annealed on one; those that might end best take hard steps on a larger one; and the
table itself is read for what is left to do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from daskmm.data.blocks import row_blocks, with_weights
from daskmm.engine.moments import Sample
from daskmm.engine.passes import Passes, tree_reduce
from daskmm.kmeans.restarts import Restarts
from daskmm.kmeans.seeding import greedy_rows
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import sample_problem
from daskmm.kmeans.updates import CentersProblem, Update
from daskmm.mm.driver import (
    EQUALLY_GOOD,
    Callback,
    IterationRecord,
    Outcome,
    Run,
    Schedule,
    cheapest_first,
    iterate,
    minimize,
)
from daskmm.mm.journal import Journal, Pace
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN
from daskmm.numerics.rows import Rows

FloatArray = NDArray[np.float64]

# How much more often centres of cheaper solutions are chosen.
_PRESSURE = 5.0


def are_alike(runs: Sequence[Run[CenterState]]) -> bool:
    """Whether all solutions cost the same, so that there is nothing to be combined."""
    costs = [run.last for run in runs]
    return max(costs) - min(costs) <= EQUALLY_GOOD * abs(min(costs))


def cheapest(runs: Sequence[Run[CenterState]], n_kept: int) -> list[Run[CenterState]]:
    """The cheapest solutions, the best first; earlier ones where they cost the same."""
    costs = [run.last for run in runs]
    return [runs[index] for index in cheapest_first(costs, abs(min(costs)))[:n_kept]]


def recombined(
    runs: Sequence[Run[CenterState]], seeds: Sequence[np.random.SeedSequence]
) -> list[CenterState]:
    """Hard starts whose centres are chosen among those of several solutions.

    Greedy k-means++ on all centres together, those of a solution of cost c counting
    exp(−5 (c − c_min) / (c_mean − c_min)) times (Baldassi, "Recombinator-k-means: An evolutionary
    algorithm that exploits k-means++ for recombination", IEEE Trans. Evol. Comput. 26, 2022).
    Distances, and the feature weights that new starts begin with, are those of the cheapest one.

    Parameters
    ----------
    runs : sequence of Run
        Ended by hard steps, not all of the same cost.
    seeds : sequence of SeedSequence
        One per start that is wanted.

    Returns
    -------
    list of CenterState
    """
    best = cheapest(runs, 1)[0].state
    k = len(best.centers)
    pool = np.concatenate([run.state.centers for run in runs])
    seen = pool if best.feature_weights is None else pool * np.sqrt(best.feature_weights)
    chances = np.repeat(_chances(np.array([run.last for run in runs])), k)
    starts = []
    for seed in seeds:
        if best.distortion.code != SQUARED_EUCLIDEAN.code:
            drawn = greedy_rows(pool, chances, k, seed, best.distortion)
            starts.append(replace(best, centers=drawn, s=-np.inf))
            continue
        rng = np.random.RandomState(np.random.MT19937(seed))
        _, chosen = kmeans_plusplus(seen, k, sample_weight=chances, random_state=rng)
        starts.append(replace(best, centers=pool[chosen], s=-np.inf))
    return starts


def _chances(costs: FloatArray) -> FloatArray:
    excess = costs - costs.min()
    return np.exp(-_PRESSURE * excess / excess.mean())


# Where to start, and how the power falls from there.
Job = tuple[FloatArray | CenterState, Schedule]

# Starts that go on: at most this many, of a cost within this share of the best one's (on samples
# of different sizes), and that differs from the others' by more than the last share.
POLISHED = 4
_WORTH_POLISHING = 5e-3
_WORTH_READING = 1e-3
_SAME_OPTIMUM = 1e-6
# Share of `tol` that ends the steps on the reserve. They cost no reading, and each one that would
# follow on the table is one fewer: overlapping clusters, where steps are small for long, end a
# third sooner there, and cheaper.
_RESERVE_TOL = 0.1
# Iterations in a row of a relative change below `tol` that end the steps over the table. One is
# enough: nothing is left to be decided there.
_CALM_READS = 1
# Times that solutions are combined to new starts; fewer when the best one's cost falls by less
# than this share: smaller gains are the sample's own.
_GENERATIONS = 4
_WORTH_ANOTHER = 1e-3
# Stages of a fit.
_SAMPLE, _RESTARTED, _GENERATION, _RESERVE = "sample", "restarted", "generation", "reserve"


@dataclass(frozen=True)
class Rehearsed:
    """A start that has been annealed on samples, and how.

    Attributes
    ----------
    state : CenterState
    history : list of IterationRecord
    """

    state: CenterState
    history: list[IterationRecord]


@dataclass(frozen=True)
class Rehearsal:
    """All that is done on samples.

    Attributes
    ----------
    sample : Sample
        Rows in the model's coordinates, to anneal on.
    reserve : Sample or None
        More rows, in the input's units, to take hard steps on.
    coordinates : Rows
    update : Update
    spread : float
        Mean squared distance of the rows from their mean.
    dtype : numpy.dtype
        Floating type that the sample is annealed in: that of the table.
    schedule : Schedule
    seed : int
        Of the choices made when solutions are combined, and of restarts.
    restarts : bool
        Whether starts are annealed once more with the feature weights that they learned.
    """

    sample: Sample
    reserve: Sample | None
    coordinates: Rows
    update: Update
    spread: float
    dtype: np.dtype
    schedule: Schedule
    seed: int
    restarts: bool = False

    @property
    def _hard_schedule(self) -> Schedule:
        return Schedule(-np.inf, max_iter=self.schedule.max_iter, tol=self.schedule.tol)

    def minimize(
        self,
        table: CentersProblem,
        starts: Sequence[FloatArray],
        callbacks: Sequence[Callback],
        began: float,
        journal: Journal,
    ) -> tuple[Outcome[CenterState], list[list[IterationRecord]]]:
        """Anneal on samples, and polish on the table.

        Parameters
        ----------
        table : CentersProblem
        starts : sequence of ndarray of shape (n_clusters, n_features)
            In the model's coordinates.
        callbacks : sequence of callable
            Called once per iteration over the table.
        began : float
            ``time.perf_counter()`` at the beginning of the fit.
        journal : Journal
            Where the iterations on samples are put down too, under names of their own.

        Returns
        -------
        outcome : Outcome
        before : list of list of IterationRecord
            What each start of the outcome went through on samples.
        """
        lazy = table.passes.blocks.layout.lazy
        rehearsed = self.run(starts, lazy, began, table.n_passes, journal)
        states = [start.state for start in rehearsed]
        schedule = replace(self._hard_schedule, calm=_CALM_READS)
        outcome = minimize(table, states, schedule, callbacks, began, worth_polishing, journal)
        return outcome, [start.history for start in rehearsed]

    def run(
        self,
        starts: Sequence[FloatArray],
        lazy: bool,
        began: float,
        n_passes: int,
        journal: Journal,
    ) -> list[Rehearsed]:
        """Anneal every start, and return those that are worth reading the table for.

        Every start is also taken by hard steps alone, where `update` allows it: annealing from
        far above the critical power can lose small clusters that a good start had.

        Parameters
        ----------
        starts : sequence of ndarray of shape (n_clusters, n_features)
            In the model's coordinates.
        lazy : bool
            Whether starts are annealed by the active dask scheduler, or by threads here; one
            task each.
        began : float
            ``time.perf_counter()`` at the beginning of the fit.
        n_passes : int
            Sweeps over the table so far.
        journal : Journal
        """
        jobs = [(start, self.schedule) for start in starts]
        if self.update.hedged and self.schedule.s0 > -np.inf:
            jobs += [(start, self._hard_schedule) for start in starts]
        tasks = _Tasks(self, lazy, began, n_passes, journal)
        runs = tasks.run(_SAMPLE, jobs)
        if self.restarts and journal.stopped is None:
            runs = self._restarted(runs, tasks)
        if len(starts) > 1:
            runs = self._combined(runs, len(starts), tasks)
        rehearsed = [Rehearsed(run.state, run.history) for run in runs]
        if journal.stopped is not None:
            return [rehearsed[i] for i in worth_polishing([run.last for run in runs])[:1]]
        if self.reserve is None:
            return rehearsed
        return self._on_reserve(rehearsed, began, n_passes, journal)

    def _combined(
        self, runs: list[Run[CenterState]], n_starts: int, tasks: _Tasks
    ) -> list[Run[CenterState]]:
        """The cheapest of these runs and of those that begin where they are combined."""
        root = np.random.SeedSequence(self.seed)
        for _ in range(_GENERATIONS):
            if tasks.journal.stopped is not None or are_alike(runs):
                break
            best = cheapest(runs, 1)[0]
            starts = recombined(runs, root.spawn(n_starts))
            jobs = [(start, self._hard_schedule) for start in starts]
            born = tasks.run(_GENERATION, jobs)
            if tasks.journal.stopped is not None:
                break
            born = [replace(run, history=[*best.history, *run.history]) for run in born]
            runs = cheapest([*runs, *born], len(runs))
            if best.last - runs[0].last <= _WORTH_ANOTHER * abs(best.last):
                break
        return runs

    def _restarted(self, runs: list[Run[CenterState]], tasks: _Tasks) -> list[Run[CenterState]]:
        """Each run, or what a restart with its feature weights led to, whichever costs less."""
        restarts = Restarts(self.sample, 1, self.seed, tasks.lazy)
        better = restarts.of([run.state for run in runs], tasks.journal)
        jobs = [(state, self._hard_schedule) for state in better if state is not None]
        born = iter(tasks.run(_RESTARTED, jobs) if jobs else ())
        if tasks.journal.stopped is not None:
            return runs
        kept = []
        for run, state in zip(runs, better, strict=True):
            again = run if state is None else next(born)
            won = again.last < run.last
            kept.append(replace(again, history=[*run.history, *again.history]) if won else run)
        return kept

    def problem(self) -> CentersProblem:
        """The sample as a table."""
        rows = self.sample.rows.astype(self.dtype, copy=False)
        return sample_problem(rows, self.sample.weights, self.update, self.spread)

    def _on_reserve(
        self, rehearsed: list[Rehearsed], began: float, n_passes: int, journal: Journal
    ) -> list[Rehearsed]:
        """Take hard steps on a larger sample."""
        assert self.reserve is not None
        blocks = with_weights(row_blocks(self.reserve.rows), self.reserve.weights)
        total = float(self.reserve.weights.sum())
        problem = CentersProblem(
            Passes(blocks), self.coordinates, total, self.update, self.spread, exact=False
        )
        states = [start.state for start in rehearsed]
        schedule = replace(self._hard_schedule, tol=_RESERVE_TOL * self.schedule.tol)
        runs = iterate(problem, states, schedule, (), began, worth_polishing, journal, _RESERVE)
        if not runs[0].history:  # an interrupt came first
            return rehearsed[:1]
        return [
            Rehearsed(runs[i].state, [*rehearsed[i].history, *_dated(runs[i].history, 0, n_passes)])
            for i in sorted(worth_polishing([run.last for run in runs], _WORTH_READING))
        ]


@dataclass(frozen=True)
class _Tasks:
    """Anneals on the sample, one task per start."""

    rehearsal: Rehearsal
    lazy: bool
    began: float
    n_passes: int
    journal: Journal

    def run(self, stage: str, jobs: Sequence[Job]) -> list[Run[CenterState]]:
        """All starts to their ends, or as far as they came before an interrupt.

        The tasks come back as often as the journal wants to know of them.
        """
        schedules = [schedule for _, schedule in jobs]
        runs: list[Any] = self.journal.recall(stage) or [start for start, _ in jobs]
        shared = (replace(self.rehearsal, reserve=None), self.journal.pace)
        try:
            while under_way := [i for i, run in enumerate(runs) if _goes_on(run, schedules[i])]:
                seconds = time.perf_counter() - self.began
                arguments = [(runs[i], schedules[i], seconds) for i in under_way]
                came: list[Run[CenterState]] = tree_reduce(
                    _rehearse, arguments, shared, self.lazy, "anneal"
                )
                after = list(runs)
                for i, run in zip(under_way, came, strict=True):
                    known = len(runs[i].history) if isinstance(runs[i], Run) else 0
                    after[i] = replace(run, history=_dated(run.history, known, self.n_passes))
                runs = after
                self.journal.keep(stage, runs, max(len(run.history) for run in came))
        except KeyboardInterrupt as interrupt:
            self.journal.stop(interrupt)
        return runs


def _goes_on(run: Any, schedule: Schedule) -> bool:
    """Whether a run, or what may become one, has not come to its end."""
    if not isinstance(run, Run):
        return True
    return run.stage != "done" and len(run.history) < schedule.max_iter


def _rehearse(
    start: FloatArray | CenterState | Run[CenterState],
    schedule: Schedule,
    seconds: float,
    rehearsal: Rehearsal,
    until: Pace,
) -> list[Run[CenterState]]:
    """Task of one start."""
    began = time.perf_counter() - seconds
    return iterate(rehearsal.problem(), [start], schedule, began=began, until=until)


def _dated(history: Sequence[IterationRecord], known: int, n_passes: int) -> list[IterationRecord]:
    """A history whose later records, from `known` on, count the passes of the fit."""
    return [
        *history[:known],
        *(replace(record, n_passes=n_passes) for record in history[known:]),
    ]


def worth_polishing(costs: Sequence[float], margin: float = _WORTH_POLISHING) -> list[int]:
    """Indices of the starts that might end best, the best first.

    Parameters
    ----------
    costs : sequence of float
        Hard costs on a sample.
    margin : float
        Share of the best cost by which others may be worse.
    """
    scale = abs(min(costs))
    order = cheapest_first(costs, scale)
    chosen = order[:1]
    for index in order[1:]:
        apart = min(abs(costs[index] - costs[other]) for other in chosen)
        if apart > _SAME_OPTIMUM * scale and costs[index] <= costs[chosen[0]] + margin * scale:
            chosen.append(index)
    return chosen[:POLISHED]
