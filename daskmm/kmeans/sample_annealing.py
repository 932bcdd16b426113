"""Anneal on samples in memory, so that passes over the full data are needed for polishing only.

A fit costs passes × bytes, and annealing on a sample is as good as on all rows. Several starts are
annealed on one sample; the most promising take hard steps on a larger sample, then on all rows.
New starts are recombined from the centres of earlier ones: different starts miss different
clusters, and k-means++ among all their centres joins the best parts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.first_pass import MANY_CLUSTERS
from daskmm.engine.moments import Sample
from daskmm.engine.passes import one_blas_thread, tree_reduce, weighted_passes
from daskmm.kmeans.cells import chosen_by_cells
from daskmm.kmeans.restarts import Restarts
from daskmm.kmeans.seeding import greedy_rows
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, Update, sample_problem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import (
    EQUALLY_GOOD,
    IterationRecord,
    Outcome,
    Run,
    Schedule,
    cheapest_first,
    iterate,
    minimize,
)
from daskmm.mm.journal import Pace
from daskmm.numerics.distortions.bregman import PLAIN, SQUARED_EUCLIDEAN, Metric
from daskmm.numerics.rows import Rows
from daskmm.numerics.sparse_rows import SparseRows

FloatArray = NDArray[np.float64]

# How strongly `recombined` prefers the centres of cheaper runs.
_PRESSURE = 5.0


def most_polished(n_clusters: int) -> int:
    """Return how many starts are polished on the full data, at most."""
    return 1 if n_clusters >= MANY_CLUSTERS else _POLISHED


def are_alike(runs: Sequence[Run[CenterState]]) -> bool:
    """Return whether all runs cost the same, so that recombining them is useless."""
    costs = [run.last for run in runs]
    return max(costs) - min(costs) <= EQUALLY_GOOD * abs(min(costs))


def cheapest(runs: Sequence[Run[CenterState]], n_kept: int) -> list[Run[CenterState]]:
    """Return the cheapest runs, the best first; runs of equal cost keep their order."""
    costs = [run.last for run in runs]
    return [runs[index] for index in cheapest_first(costs, abs(min(costs)))[:n_kept]]


def recombined(
    runs: Sequence[Run[CenterState]], seeds: Sequence[np.random.SeedSequence]
) -> list[CenterState]:
    """Choose the centres of new hard starts among those of several runs.

    Greedy k-means++ on all centres together, those of a run of cost c weighted by
    exp(−5 (c − c_min) / (c_mean − c_min)) (Baldassi, "Recombinator-k-means: An evolutionary
    algorithm that exploits k-means++ for recombination", IEEE Trans. Evol. Comput. 26, 2022).
    Distances and initial feature weights are those of the cheapest run.

    Parameters
    ----------
    runs : sequence of Run
        Ended by hard steps, not all of the same cost.
    seeds : sequence of SeedSequence
        One per new start.

    Returns
    -------
    list of CenterState
    """
    best = cheapest(runs, 1)[0].state
    pool = np.concatenate([run.state.centers for run in runs])
    chances = np.repeat(_chances(np.array([run.last for run in runs])), len(best.centers))
    return drawn_starts(pool, chances, best, seeds)


def drawn_starts(
    pool: FloatArray,
    chances: FloatArray,
    like: CenterState,
    seeds: Sequence[np.random.SeedSequence],
) -> list[CenterState]:
    """Choose centres of hard starts among points, by greedy k-means++, one start per seed.

    Parameters
    ----------
    pool : ndarray of shape (n_points, n_features)
    chances : ndarray of shape (n_points,)
        Weights of the points.
    like : CenterState
        Has the distances, the feature weights and the number of centres.
    seeds : sequence of SeedSequence
    """
    k, w = len(like.centers), like.feature_weights
    seen = pool if w is None else pool * np.sqrt(w)
    plain = like.distortion.code == SQUARED_EUCLIDEAN.code
    if plain and k >= MANY_CLUSTERS:
        chosen = chosen_by_cells(seen, chances, k, seeds)
        return [replace(like, centers=pool[one], s=-np.inf) for one in chosen]
    # Slow to import, and not needed by the tasks of workers.
    from sklearn.cluster import kmeans_plusplus

    starts = []
    for seed in seeds:
        if not plain:
            drawn = greedy_rows(pool, chances, k, seed, like.distortion)
            starts.append(replace(like, centers=drawn, s=-np.inf))
            continue
        rng = np.random.RandomState(np.random.MT19937(seed))
        _, indices = kmeans_plusplus(seen, k, sample_weight=chances, random_state=rng)
        starts.append(replace(like, centers=pool[indices], s=-np.inf))
    return starts


def _chances(costs: FloatArray) -> FloatArray:
    excess = costs - costs.min()
    return np.exp(-_PRESSURE * excess / excess.mean())


# Centres or state to start from, and how the power falls from there.
Start = tuple[FloatArray | CenterState, Schedule]

# Fewest rows per cluster in a block of a sample that threads share: the sums of each block are as
# large as the centres.
_BLOCK_ROWS_PER_CLUSTER = 2.5
# At most this many starts continue, those whose cost is within a share of the best one's: on the
# sample, and after the larger sample. Costs that differ by less than the last share are taken for
# the same optimum, of which one start continues. Of many clusters the best start alone continues:
# four of them lower the cost by .04 % at most, and the fit takes up to half as long again
# (tests/benchmarks/README.md).
_POLISHED = 4
_WORTH_POLISHING = 5e-3
_WORTH_READING = 1e-3
_SAME_OPTIMUM = 1e-6
# Share of `tol` that ends the steps on the larger sample. They need no pass over the data, and
# each saves one later: overlapping clusters, whose steps stay small for long, need a third fewer
# passes, and end at a lower cost.
LARGER_SAMPLE_TOL = 0.1
# Iterations in a row with a relative change below `tol` that end the steps over the full data. One
# is enough: the annealing, which can stand still for a while, is over.
_CALM_READS = 1
# Generations of recombined starts, at most; the last is the one that lowers the best cost by less
# than this share (smaller gains do not carry over from the sample to all rows).
_GENERATIONS = 4
_WORTH_ANOTHER = 1e-3
# Names of stages in the journal; they are stored in checkpoints.
_SAMPLE, _RESTARTED, _GENERATION, _LARGER_SAMPLE = "sample", "restarted", "generation", "reserve"


class Annealed(NamedTuple):
    """State of a start after annealing on samples, and its history there."""

    state: CenterState
    history: list[IterationRecord]


@dataclass(frozen=True)
class SampleAnnealing:
    """Anneal starts on samples, then polish the best of them on the full data.

    Attributes
    ----------
    sample : Sample
        Rows in the model's coordinates, to anneal on.
    larger_sample : Sample or None
        For hard steps, in the input's units.
    coordinates : Rows
    update : Update
    spread : float
        Mean squared distance of the rows from their mean.
    dtype : numpy.dtype
        Floating dtype of the rows to anneal on: that of the table's steps.
    schedule : Schedule
    seed : int
        For recombinations and restarts.
    n_clusters : int
    n_passes : int
        Passes over the full data so far, for the records of iterations on samples.
    restarts : bool
        Whether to restart at the learned feature weights (see `daskmm.kmeans.restarts`).
    metric : Metric
        Of the rows in the model's coordinates.
    found : CenterState or None
        One more start, for hard steps alone.
    """

    sample: Sample
    larger_sample: Sample | None
    coordinates: Rows
    update: Update
    spread: float
    dtype: np.dtype
    schedule: Schedule
    seed: int
    n_clusters: int
    n_passes: int = 0
    restarts: bool = False
    metric: Metric = PLAIN
    found: CenterState | None = None

    @property
    def _hard_schedule(self) -> Schedule:
        return Schedule(-np.inf, max_iter=self.schedule.max_iter, tol=self.schedule.tol)

    def _worth_polishing(
        self, costs: Sequence[float], margin: float = _WORTH_POLISHING
    ) -> list[int]:
        return worth_polishing(costs, margin, most_polished(self.n_clusters))

    def minimize(
        self, table: CentersProblem, starts: Sequence[FloatArray], context: FitContext
    ) -> tuple[Outcome[CenterState], list[list[IterationRecord]]]:
        """Anneal on samples, then take hard steps over the full data.

        Parameters
        ----------
        table : CentersProblem
        starts : sequence of ndarray of shape (n_clusters, n_features)
            In the model's coordinates.
        context : FitContext
            Its journal records iterations on samples too, in stages of their own; its callbacks
            are called for those over the full data only.

        Returns
        -------
        outcome : Outcome
        before : list of list of IterationRecord
            For each start of the outcome, its history on samples.
        """
        lazy = table.passes.blocks.layout.lazy
        annealed = self.run(starts, lazy, context)
        schedule = replace(self._hard_schedule, calm=_CALM_READS)
        states = [start.state for start in annealed]
        outcome = minimize(table, states, schedule, context, race=self._worth_polishing)
        return outcome, [start.history for start in annealed]

    def run(
        self, starts: Sequence[FloatArray | CenterState], lazy: bool, context: FitContext
    ) -> list[Annealed]:
        """Anneal every start; return those that are worth polishing on the full data.

        If ``update.hedged``, every start is also run with hard steps alone: annealing from far
        above the critical power can lose small clusters that a good start had.

        Parameters
        ----------
        starts : sequence of ndarray of shape (n_clusters, n_features)
            In the model's coordinates.
        lazy : bool
            Whether to anneal on the active dask scheduler, or on threads here; one task per start.
        context : FitContext
        """
        tasks = _Tasks(self, lazy, context)
        wanted: list[Start] = [(start, self.schedule) for start in starts]
        if self.update.hedged and self.schedule.s0 > -np.inf:
            wanted += [(start, self._hard_schedule) for start in starts]
        if self.found is not None:
            wanted.append((self.found, self._hard_schedule))
        runs = tasks.run(_SAMPLE, wanted)
        if self.restarts and context.stopped is None:
            runs = self._restarted(_RESTARTED, runs, 1, tasks)
        if len(starts) > 1:
            runs = self._combined(runs, len(starts), tasks)
            runs = self._best_restarted(runs, len(starts), tasks)
        annealed = [Annealed(run.state, run.history) for run in runs]
        if context.stopped is not None:
            return [annealed[i] for i in self._worth_polishing([run.last for run in runs])[:1]]
        if self.larger_sample is None:
            if self.n_clusters < MANY_CLUSTERS:
                return annealed
            # One goes on; its cost on the sample tells which.
            return [annealed[i] for i in self._worth_polishing([run.last for run in runs])]
        return self._on_larger_sample(annealed, context)

    def _combined(
        self, runs: list[Run[CenterState]], n_starts: int, tasks: _Tasks
    ) -> list[Run[CenterState]]:
        """Return the cheapest of these runs and of those started from their recombinations."""
        root = np.random.SeedSequence(self.seed)
        for _ in range(_GENERATIONS):
            if tasks.context.stopped is not None or are_alike(runs):
                break
            best = cheapest(runs, 1)[0]
            starts = recombined(runs, root.spawn(n_starts))
            born = tasks.run(_GENERATION, [(start, self._hard_schedule) for start in starts])
            if tasks.context.stopped is not None:
                break
            born = [replace(run, history=[*best.history, *run.history]) for run in born]
            runs = cheapest([*runs, *born], len(runs))
            if best.last - runs[0].last <= _WORTH_ANOTHER * abs(best.last):
                break
        return runs

    def _best_restarted(
        self, runs: list[Run[CenterState]], n_restarts: int, tasks: _Tasks
    ) -> list[Run[CenterState]]:
        """Restart the cheapest run as often as there are starts, if rows are sparse.

        Their thousands of features hide a cluster from all starts alike, so that recombining them
        finds it no more than one restart of each does, all from the same seed.
        """
        sparse = isinstance(self.sample.rows, SparseRows)
        if not (self.restarts and sparse) or tasks.context.stopped is not None:
            return runs
        best, *others = cheapest(runs, len(runs))
        return [*self._restarted(_GENERATION, [best], n_restarts, tasks), *others]

    def _restarted(
        self, stage: str, runs: list[Run[CenterState]], n_restarts: int, tasks: _Tasks
    ) -> list[Run[CenterState]]:
        """Return each run, or its best restart at the same feature weights if that is cheaper."""
        restarts = Restarts(self.sample, n_restarts, self.seed, tasks.lazy, self.metric)
        better = restarts.of([run.state for run in runs], tasks.context)
        wanted = [(state, self._hard_schedule) for state in better if state is not None]
        born = iter(tasks.run(stage, wanted) if wanted else ())
        if tasks.context.stopped is not None:
            return runs
        kept = []
        for run, state in zip(runs, better, strict=True):
            again = run if state is None else next(born)
            won = again.last < run.last
            kept.append(replace(again, history=[*run.history, *again.history]) if won else run)
        return kept

    def problem(self) -> CentersProblem:
        """Return the problem of the sample's rows.

        Of many clusters there are few starts, often one: threads share the rows of each.
        """
        rows = self.sample.rows.astype(self.dtype, copy=False)
        weights, n_before = self.sample.weights, self.n_passes
        n_blocks = 1
        if self.n_clusters >= MANY_CLUSTERS:
            n_blocks = max(1, int(len(rows) / (_BLOCK_ROWS_PER_CLUSTER * self.n_clusters)))
        return sample_problem(
            rows, weights, self.update, self.spread, n_before=n_before, n_blocks=n_blocks
        )

    def _on_larger_sample(self, annealed: list[Annealed], context: FitContext) -> list[Annealed]:
        """Take hard steps on the larger sample."""
        sample = self.larger_sample
        assert sample is not None
        passes = weighted_passes(sample.rows, sample.weights)
        total = float(sample.weights.sum())
        problem = CentersProblem(
            passes, self.coordinates, total, self.update, self.spread, False, self.n_passes
        )
        states = [start.state for start in annealed]
        schedule = replace(self._hard_schedule, tol=LARGER_SAMPLE_TOL * self.schedule.tol)
        runs = iterate(
            problem, states, schedule, context, race=self._worth_polishing, stage=_LARGER_SAMPLE
        )
        if not runs[0].history:  # interrupted before the first iteration
            return annealed[:1]
        ended = []
        for i in sorted(self._worth_polishing([run.last for run in runs], _WORTH_READING)):
            # Those that were recalled, too, count after the passes of this run.
            later = [replace(record, n_passes=self.n_passes) for record in runs[i].history]
            ended.append(Annealed(runs[i].state, [*annealed[i].history, *later]))
        return ended


@dataclass(frozen=True)
class _Tasks:
    """Run starts on the sample, one task per start."""

    annealing: SampleAnnealing
    lazy: bool
    context: FitContext

    def run(self, stage: str, starts: Sequence[Start]) -> list[Run[CenterState]]:
        """Run all starts to their ends, or up to the last report before an interrupt.

        Tasks return at the pace of the journal, which records the runs so far, and are sent again.
        """
        context = self.context
        schedules = [schedule for _, schedule in starts]
        runs: list[Any] = context.journal.recall(stage) or [start for start, _ in starts]
        shared = (replace(self.annealing, larger_sample=None), context.journal.pace)
        products = math.prod(self.annealing.sample.rows.shape) * self.annealing.n_clusters
        try:
            while active := [i for i, run in enumerate(runs) if _is_active(run, schedules[i])]:
                seconds = time.perf_counter() - context.began
                arguments = [(runs[i], schedules[i], seconds) for i in active]
                came: list[Run[CenterState]] = tree_reduce(
                    _anneal, arguments, shared, self.lazy, "anneal", products
                )
                taken = dict(zip(active, came, strict=True))
                runs = [taken.get(i, run) for i, run in enumerate(runs)]
                context.journal.keep(stage, runs, max(len(run.history) for run in came))
        except KeyboardInterrupt as interrupt:
            context.stop(interrupt)
        return runs


def _is_active(run: Any, schedule: Schedule) -> bool:
    """Return whether a start has not been run yet, or its run has not ended."""
    if not isinstance(run, Run):
        return True
    return run.stage != "done" and len(run.history) < schedule.max_iter


def _anneal(
    start: FloatArray | CenterState | Run[CenterState],
    schedule: Schedule,
    seconds: float,
    annealing: SampleAnnealing,
    until: Pace,
) -> list[Run[CenterState]]:
    """Run one start (the task function)."""
    context = FitContext(began=time.perf_counter() - seconds, holds_interrupts=False)
    with one_blas_thread():  # once, as setting the limit takes as long as a step on few rows
        return iterate(annealing.problem(), [start], schedule, context, until=until)


def worth_polishing(
    costs: Sequence[float], margin: float = _WORTH_POLISHING, most: int = _POLISHED
) -> list[int]:
    """Return the indices of the starts that may end as the best one, the cheapest first.

    Parameters
    ----------
    costs : sequence of float
        Hard costs on a sample.
    margin : float
        Share of the best cost by which others may exceed it.
    most : int
        Number of starts, at most.
    """
    scale = abs(min(costs))
    order = cheapest_first(costs, scale)
    chosen = order[:1]
    for index in order[1:]:
        apart = min(abs(costs[index] - costs[other]) for other in chosen)
        if apart > _SAME_OPTIMUM * scale and costs[index] <= costs[chosen[0]] + margin * scale:
            chosen.append(index)
    return chosen[:most]
