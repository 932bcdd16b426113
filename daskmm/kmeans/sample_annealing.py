"""Anneal on samples in memory, so that passes over the full data are needed for polishing only.

A fit costs passes × bytes, and annealing on a sample is as good as on all rows. Several starts are
annealed on one sample; the most promising take hard steps on a larger sample, then on all rows.
New starts are recombined from the centres of earlier ones: different starts miss different
clusters, and k-means++ among all their centres joins the best parts. Then clusters of the best run
are exchanged (`daskmm.kmeans.exchange`). Starts that are not annealed race before the exchanges:
after a few steps only the cheapest continue, and none are recombined.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.first_pass import MANY_CLUSTERS
from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce, weighted_passes
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.assignment import labels_of, map_rows
from daskmm.kmeans.cells import chosen_by_cells
from daskmm.kmeans.costs import CenterCosts
from daskmm.kmeans.exchange import EXCHANGE_STEPS, FIRST_STEPS, with_exchanged_clusters
from daskmm.kmeans.method import POLISHED, RACE_STEPS, RELAXATIONS, most_polished
from daskmm.kmeans.restarts import Restarts
from daskmm.kmeans.seeding import greedy_rows
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, Update, sample_problem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import EQUALLY_GOOD, Run, Schedule, cheapest_first, iterate
from daskmm.mm.journal import Pace
from daskmm.mm.stages import Repeat, Stage
from daskmm.numerics.distortions.bregman import PLAIN, Metric
from daskmm.numerics.rows import Coordinates, Rows
from daskmm.numerics.sparse_rows import SparseRows
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# How strongly `recombinations` prefers the centres of cheaper runs.
_PRESSURE = 5.0


def are_alike(runs: Sequence[Run[CenterState]]) -> bool:
    """Return whether all runs cost the same, so that recombining them is useless."""
    costs = [run.last for run in runs]
    return max(costs) - min(costs) <= EQUALLY_GOOD * abs(min(costs))


def cheapest(runs: Sequence[Run[CenterState]], n_kept: int) -> list[Run[CenterState]]:
    """Return the cheapest runs, the best first; runs of equal cost keep their order."""
    costs = [run.last for run in runs]
    return [runs[index] for index in cheapest_first(costs, abs(min(costs)))[:n_kept]]


def recombinations(
    runs: Sequence[Run[CenterState]], seeds: Sequence[np.random.SeedSequence]
) -> list[CenterState]:
    """Choose the centres of new hard starts among those of several runs.

    Greedy k-means++ chooses among all centres together; those of a run of cost c have the weight
    exp(−5 (c − c_min) / (c_mean − c_min)) (Baldassi, "Recombinator-k-means: An evolutionary
    algorithm that exploits k-means++ for recombination", IEEE Trans. Evol. Comput. 26, 2022).
    Distances and initial feature weights are those of the cheapest run.

    The runs ended in hard steps, and not all have the same cost. There is one new start per seed.
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

    Points of the pool, (n_points, n_features), have the weights `chances`. Distances, feature
    weights and the number of centres are those of the state `like`.
    """
    k, w = len(like.centers), like.feature_weights
    seen = pool if w is None else pool * np.sqrt(w)
    plain = like.distortion.squared
    if plain and k >= MANY_CLUSTERS:
        chosen = chosen_by_cells(seen, chances, k, seeds)
        return [replace(like, centers=pool[one], s=-np.inf) for one in chosen]
    # scikit-learn is slow to import, and tasks of workers do not need it.
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

# If threads share a sample, each block has at least this many rows per cluster, because the sums of
# each block are as large as the centres. Each block also has at least _BLOCK_ROWS rows.
_BLOCK_ROWS_PER_CLUSTER, _BLOCK_ROWS = 2.5, 2048
# A start continues if its cost exceeds the best cost by at most a share: the first share holds on
# the sample, the second after the larger sample. Starts whose costs differ by less than the last
# share are assumed to have found the same optimum, and only one of them continues.
_WORTH_POLISHING = 5e-3
_WORTH_READING = 1e-3
_SAME_OPTIMUM = 1e-6
# Share of `tol` that ends the steps on the larger sample. These steps need no pass over the data,
# and each saves a pass later: overlapping clusters, which converge slowly, need a third fewer
# passes and end at a lower cost.
_LARGER_SAMPLE_TOL = 0.1
# Largest number of generations of recombined starts. A generation that lowers the best cost by less
# than this share is the last one, since such small gains do not carry over from the sample to all
# rows.
_GENERATIONS = 4
_WORTH_ANOTHER = 1e-3
# Largest number of exchanges of clusters. They also end once one of them gains less than this
# share. A share that is smaller by a third would lower the cost by up to .06 %, in up to a seventh
# more time.
_EXCHANGES, _WORTH_EXCHANGING = 8, 3e-3
# Relaxation of the steps after the last exchange, in which most rows keep their centre.
_LAST_RELAXATIONS = RELAXATIONS[-2:]


@dataclass(frozen=True)
class SampledRows:
    """The rows to anneal on, and the steps to take on them, as tasks get them."""

    # Rows in the model's coordinates, without those that a fit with `trim` leaves out.
    sample: Sample
    update: Update  # the MM steps over the table
    spread: float  # mean squared distance of the rows from their mean
    dtype: np.dtype  # dtype of the steps over the table
    n_clusters: int
    n_passes: int = 0  # passes over the full data so far, for the records of iterations on samples

    def problem(self, n_runs: int) -> CentersProblem:
        """Return the problem of the sample's rows.

        Threads share the rows of each run if there are many clusters, for which there are few
        starts, or if there is one run.
        """
        rows = self.sample.rows.astype(self.dtype, copy=False)
        weights, n_before = self.sample.weights, self.n_passes
        least = _BLOCK_ROWS_PER_CLUSTER * self.n_clusters
        if self.n_clusters < MANY_CLUSTERS:
            least = max(least, _BLOCK_ROWS) if n_runs == 1 else len(rows)
        n_blocks = max(1, int(len(rows) / least))
        # These rows no longer include those that a fit with `trim` leaves out.
        update = replace(self.update, trim=0.0)
        return sample_problem(
            rows, weights, update, self.spread, n_before=n_before, n_blocks=n_blocks
        )


@dataclass(frozen=True)
class Search:
    """Starts on samples, and their runs so far."""

    rows: SampledRows  # the rows to anneal on
    # CenterStates, or centres in the model's coordinates, (n_clusters, n_features).
    starts: Sequence[FloatArray | CenterState]
    schedule: Schedule  # schedule of the annealing
    seed: int  # seed of recombinations and restarts
    context: FitContext
    # Whether to run one task per start on the active dask scheduler, or on threads here.
    lazy: bool = False
    larger_sample: Sample | None = None  # rows in the input's units, for hard steps
    coordinates: Rows | None = None  # the model's coordinates, for the larger sample
    # Whether to restart at the learned feature weights (see `daskmm.kmeans.restarts`).
    restarts: bool = False
    metric: Metric = PLAIN  # metric of the rows in the model's coordinates
    found: CenterState | None = None  # one more start, for hard steps alone
    # One run per start; then, for starts that are run in both ways, one each with hard steps only.
    runs: Sequence[Run[CenterState]] = ()
    generation: int = 0  # number of recombinations so far
    settled: bool = False  # whether the last recombination gained too little for another one
    exchanges: bool = False  # whether clusters are exchanged
    # Number of starts that continue after a race; 0 if all starts run to their ends.
    n_winners: int = 0
    # State after the next exchange, which is found together with the steps after the last exchange;
    # None before the first exchange.
    next_exchange: CenterState | None = None
    exhausted: bool = False  # whether the last exchange gained too little for another one
    # Runs that continue on the table after the larger sample; their histories include all samples.
    polished: Sequence[Run[CenterState]] | None = None

    @property
    def hard_schedule(self) -> Schedule:
        """Schedule of hard steps alone."""
        return Schedule(-np.inf, max_iter=self.schedule.max_iter, tol=self.schedule.tol)

    def relaxed_schedule(self, n_steps: int) -> Schedule:
        """Return the schedule of at most so many over-relaxed hard steps."""
        return replace(self.hard_schedule, max_iter=n_steps, relaxations=RELAXATIONS)

    @property
    def candidates(self) -> list[Run[CenterState]]:
        """Runs that are worth hard steps on the full data; the best one of a stopped fit."""
        if self.polished is not None:
            return list(self.polished)
        few = self.rows.n_clusters < MANY_CLUSTERS
        if few and self.context.stopped is None:
            return list(self.runs)
        best = self.worth_polishing([run.last for run in self.runs])
        return [self.runs[i] for i in (best if self.context.stopped is None else best[:1])]

    @property
    def larger_problem(self) -> CentersProblem:
        """The problem of the rows of the larger sample."""
        sample, known = self.larger_sample, self.rows
        assert sample is not None
        assert self.coordinates is not None
        return CentersProblem(
            weighted_passes(sample.rows, sample.weights),
            self.coordinates,
            float(sample.weights.sum()),
            known.update,
            known.spread,
            False,
            known.n_passes,
        )

    def worth_polishing(
        self, costs: Sequence[float], margin: float = _WORTH_POLISHING
    ) -> list[int]:
        """Return the indices of the starts that may end as the best one, the cheapest first."""
        return worth_polishing(costs, margin, most_polished(self.rows.n_clusters))


def annealed(search: Search) -> Search:
    """Anneal every start, or take the hard steps of a race from each.

    If ``update.hedged``, every start is also run with hard steps alone, because annealing from far
    above the critical power can lose small clusters that a good start had.
    """
    schedule = search.schedule
    if search.n_winners:
        schedule = replace(schedule, max_iter=min(RACE_STEPS, schedule.max_iter))
    alone = not _several(search) and search.found is None
    if search.exchanges and schedule.s0 == -np.inf and alone:
        return _until_first_exchange(search)
    wanted: list[Start] = [(start, schedule) for start in search.starts]
    if search.rows.update.hedged and schedule.s0 > -np.inf:
        wanted += [(start, search.hard_schedule) for start in search.starts]
    if search.found is not None:
        wanted.append((search.found, search.hard_schedule))
    return replace(search, runs=_run(search, wanted))


def _until_first_exchange(search: Search) -> Search:
    """Take a few hard steps from the only start, and exchange clusters after them."""
    (start,) = search.starts
    found = _between_exchanges(search, start, min(FIRST_STEPS, search.schedule.max_iter))
    if found is None:
        return replace(search, runs=[Run(search.rows.problem(1).start(start, -np.inf), "hard")])
    exhausted = found.next_start is None
    return replace(search, runs=[found.run], next_exchange=found.next_start, exhausted=exhausted)


def raced(search: Search) -> Search:
    """Continue the cheapest starts of a race by hard steps until they have converged."""
    runs = cheapest(search.runs, search.n_winners)
    schedule = replace(search.hard_schedule, max_iter=_steps_left(search))
    ended = _run(search, [(run.state, schedule) for run in runs])
    if search.context.stopped is not None:
        return search
    pairs = zip(runs, ended, strict=True)
    runs = [replace(end, history=[*run.history, *end.history]) for run, end in pairs]
    return replace(search, runs=runs)


def restarted(search: Search) -> Search:
    """Replace each run by its restart at the same feature weights, if that is cheaper."""
    return replace(search, runs=_restarted(search, search.runs, 1))


def recombined(search: Search) -> Search:
    """Keep the cheapest of the runs and of those started from their recombinations."""
    n_starts, best = len(search.starts), cheapest(search.runs, 1)[0]
    first = search.generation * n_starts
    seeds = [
        np.random.SeedSequence(search.seed, spawn_key=(first + number,))
        for number in range(n_starts)
    ]
    starts = recombinations(search.runs, seeds)
    born = _run(search, [(start, search.hard_schedule) for start in starts])
    if search.context.stopped is not None:
        return search
    born = [replace(run, history=[*best.history, *run.history]) for run in born]
    runs = cheapest([*search.runs, *born], len(search.runs))
    settled = best.last - runs[0].last <= _WORTH_ANOTHER * abs(best.last)
    return replace(search, runs=runs, generation=search.generation + 1, settled=settled)


def exchanged(search: Search) -> Search:
    """Exchange clusters of the cheapest run, take a few hard steps, and keep the cheaper state."""
    best, *others = cheapest(search.runs, len(search.runs))
    start = search.next_exchange
    if start is None:
        start = _with_exchange(search.rows, best.state)
    if start is None:
        return replace(search, exhausted=True)
    found = _between_exchanges(search, start, EXCHANGE_STEPS)
    if found is None:
        return search
    run, gain = found.run, best.last - found.run.last
    run = replace(run, history=[*best.history, *run.history])
    # The first exchange may gain little, since few steps follow it while the run before it may have
    # converged. So it ends the stage only if it gains nothing.
    first = search.next_exchange is None
    settled = gain <= (0.0 if first else _WORTH_EXCHANGING * abs(best.last))
    return replace(
        search,
        runs=[run if gain > 0 else best, *others],
        next_exchange=found.next_start,
        exhausted=settled or found.next_start is None,
    )


def converged(search: Search) -> Search:
    """Take hard steps from the cheapest run until it has converged.

    The cost of the last state is found by the next stage, which takes steps over more rows.
    """
    best, *others = cheapest(search.runs, len(search.runs))
    schedule = replace(
        search.hard_schedule,
        max_iter=_steps_left(search),
        relaxations=_LAST_RELAXATIONS,
        ends_at_means=False,
    )
    (run,) = _run(search, [(best.state, schedule)])
    if search.context.stopped is not None:
        return search
    # Later hard steps go to the means.
    state, history = replace(run.state, relaxation=1.0), [*best.history, *run.history]
    return replace(search, runs=[replace(run, state=state, history=history), *others])


def best_restarted(search: Search) -> Search:
    """Restart the cheapest run as often as there are starts.

    All starts may miss the same cluster of sparse rows with thousands of features. Neither
    recombining them nor restarting each once from the same seed finds it then.
    """
    best, *others = cheapest(search.runs, len(search.runs))
    return replace(search, runs=[*_restarted(search, [best], len(search.starts)), *others])


def on_larger_sample(search: Search) -> Search:
    """Take hard steps on the larger sample; keep the runs that are worth reading the table."""
    known, problem = search.rows, search.larger_problem
    states = [run.state for run in search.runs]
    schedule = replace(search.hard_schedule, tol=_LARGER_SAMPLE_TOL * search.schedule.tol)
    runs = iterate(problem, states, schedule, search.context, race=search.worth_polishing)
    if not runs[0].history:  # interrupted before the first iteration
        return replace(search, polished=search.runs[:1])
    ended = []
    for i in sorted(search.worth_polishing([run.last for run in runs], _WORTH_READING)):
        # If a resumed fit recalls the records, their numbers of passes are those of this fit.
        later = [replace(record, n_passes=known.n_passes) for record in runs[i].history]
        ended.append(replace(runs[i], history=[*search.runs[i].history, *later]))
    return replace(search, polished=ended)


def _several(search: Search) -> bool:
    return len(search.starts) > 1


def _recombined_enough(search: Search) -> bool:
    return not _several(search) or search.n_winners > 0 or search.settled or are_alike(search.runs)


def _exchanged_enough(search: Search) -> bool:
    return search.exhausted or not search.exchanges or _steps_left(search) < EXCHANGE_STEPS


def _steps_left(search: Search) -> int:
    """Return how many more hard steps the cheapest run may take on the sample."""
    best = cheapest(search.runs, 1)[0]
    return search.schedule.max_iter - len(best.history)


# The stages on samples; all of them end before hard steps over the table begin.
SEARCH: tuple[Stage[Search] | Repeat[Search], ...] = (
    Stage("annealing", annealed, CenterCosts.annealing),
    Stage(
        "best starts",
        raced,
        CenterCosts.best_starts,
        needed=lambda search: search.n_winners > 0 and _steps_left(search) > 0,
    ),
    Stage("restarts", restarted, CenterCosts.restarts, needed=lambda search: search.restarts),
    Repeat(
        (Stage("recombination", recombined, CenterCosts.recombination),),
        until=_recombined_enough,
        most=_GENERATIONS,
    ),
    Stage(
        "restarts of the best",
        best_restarted,
        CenterCosts.restarts_of_best,
        needed=lambda search: (
            search.restarts and _several(search) and isinstance(search.rows.sample.rows, SparseRows)
        ),
    ),
    Repeat(
        (Stage("exchange", exchanged, CenterCosts.exchange),),
        until=_exchanged_enough,
        most=_EXCHANGES,
    ),
    Stage(
        "hard steps on the sample",
        converged,
        CenterCosts.converged,
        needed=lambda search: search.exchanges and _steps_left(search) > 0,
    ),
    Stage(
        "larger sample",
        on_larger_sample,
        CenterCosts.larger_sample,
        needed=lambda search: search.larger_sample is not None,
    ),
)


def _restarted(
    search: Search, runs: Sequence[Run[CenterState]], n_restarts: int
) -> list[Run[CenterState]]:
    """Return each run, or its best restart at the same feature weights if that is cheaper."""
    rows, context = search.rows, search.context
    restarts = Restarts(rows.sample, n_restarts, search.seed, search.lazy, search.metric)
    better = restarts.of([run.state for run in runs], context)
    wanted = [(state, search.hard_schedule) for state in better if state is not None]
    born = iter(_run(search, wanted) if wanted else ())
    if context.stopped is not None:
        return list(runs)
    kept = []
    for run, state in zip(runs, better, strict=True):
        again = run if state is None else next(born)
        won = again.last < run.last
        kept.append(replace(again, history=[*run.history, *again.history]) if won else run)
    return kept


def _run(search: Search, starts: Sequence[Start]) -> list[Run[CenterState]]:
    """Run starts on the sample to their ends, or up to the last report before an interrupt.

    Each start is one task. Whenever the journal is due, the tasks return, it records the runs so
    far, and the tasks are sent again.
    """
    context = search.context
    schedules = [schedule for _, schedule in starts]
    runs: list[Any] = context.journal.recall() or [start for start, _ in starts]
    shared = (search.rows, context.journal.pace, len(starts))
    products = math.prod(search.rows.sample.rows.shape) * search.rows.n_clusters
    try:
        while active := [i for i, run in enumerate(runs) if _is_active(run, schedules[i])]:
            seconds = time.perf_counter() - context.began
            arguments = [(runs[i], schedules[i], seconds) for i in active]
            came: list[Run[CenterState]] = tree_reduce(
                _anneal, arguments, shared, search.lazy, "anneal", products
            )
            taken = dict(zip(active, came, strict=True))
            runs = [taken.get(i, run) for i, run in enumerate(runs)]
            context.journal.keep(runs, max(len(run.history) for run in came))
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
    rows: SampledRows,
    until: Pace,
    n_runs: int,
) -> list[Run[CenterState]]:
    """Run one start (the task function)."""
    context = FitContext(began=time.perf_counter() - seconds, holds_interrupts=False)
    with one_blas_thread():  # entering this context takes as long as a step on few rows
        return iterate(rows.problem(n_runs), [start], schedule, context, until=until)


@registered
@dataclass(frozen=True)
class Exchange:
    """A few hard steps, and the exchange of clusters after them."""

    run: Run[CenterState]
    # State after the exchange; None if no exchange promises to lower the cost.
    next_start: CenterState | None

    def __add__(self, later: Exchange) -> Exchange:
        return later


def _between_exchanges(
    search: Search, start: FloatArray | CenterState, n_steps: int
) -> Exchange | None:
    """Run `_exchange` as a task; return None if the user interrupted it."""
    rows, context = search.rows, search.context
    found: Exchange | None = context.journal.recall()
    if found is None:
        schedule = replace(search.relaxed_schedule(n_steps), ends_at_means=False)
        products = math.prod(rows.sample.rows.shape) * rows.n_clusters
        arguments = (start, schedule, time.perf_counter() - context.began)
        try:
            found = tree_reduce(_exchange, [arguments], (rows,), search.lazy, "exchange", products)
        except KeyboardInterrupt as interrupt:
            context.stop(interrupt)
            return None
        context.journal.keep(found, len(found.run.history))
    return found


def _exchange(
    start: FloatArray | CenterState, schedule: Schedule, seconds: float, rows: SampledRows
) -> Exchange:
    """Take a few hard steps, and exchange clusters (the task function)."""
    context = FitContext(began=time.perf_counter() - seconds, holds_interrupts=False)
    problem = rows.problem(1)
    with one_blas_thread():
        (run,) = iterate(problem, [start], schedule, context)
        state = replace(run.state, relaxation=1.0)  # other stages go to the means
        return Exchange(
            replace(run, state=state), _with_exchange(rows, state, problem.last_labels(state))
        )


def _with_exchange(
    rows: SampledRows, state: CenterState, labels: NDArray[np.int32] | None = None
) -> CenterState | None:
    """Exchange clusters of a state; None if no exchange promises to lower the cost.

    Labels are those of the state's centres unless they are given.
    """
    values = rows.sample.rows.astype(rows.dtype, copy=False)
    if labels is None:
        same = Coordinates.identity(values.shape[1])
        labels = np.asarray(map_rows(labels_of, values, same, state))
    centers = with_exchanged_clusters(values, rows.sample.weights, labels, state.centers)
    if centers is None:
        return None
    allowed = state.distortion.allowed(centers, state.centers)
    return replace(state, centers=allowed).listing()


def worth_polishing(
    costs: Sequence[float], margin: float = _WORTH_POLISHING, most: int = POLISHED
) -> list[int]:
    """Return the indices of the starts that may end as the best one, the cheapest first.

    These are at most `most` starts, whose hard costs on a sample exceed the lowest cost by no more
    than the share `margin` of it.
    """
    scale = abs(min(costs))
    order = cheapest_first(costs, scale)
    chosen = order[:1]
    for index in order[1:]:
        apart = min(abs(costs[index] - costs[other]) for other in chosen)
        if apart > _SAME_OPTIMUM * scale and costs[index] <= costs[chosen[0]] + margin * scale:
            chosen.append(index)
    return chosen[:most]
