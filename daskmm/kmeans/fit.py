"""Fit centres: the stages of a fit after its choices, in order."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import cpu_count
from daskmm.data.blocks import float_dtype
from daskmm.engine.first_pass import MANY_CLUSTERS, Survey
from daskmm.kmeans.assignment import labels_of, map_rows
from daskmm.kmeans.between_reads import WORTH_A_READ, StreamedProblem
from daskmm.kmeans.bounded_sizes import (
    MOST_ROUNDS,
    UNDIVIDED,
    largest_weight,
    with_offsets,
    with_smaller_clusters,
)
from daskmm.kmeans.bounds import Bounds
from daskmm.kmeans.costs import REFITS, TURNS, CenterCosts
from daskmm.kmeans.empty_clusters import split_coincident
from daskmm.kmeans.exchange import EXCHANGE_STEPS, FIRST_STEPS, LEAST_CLUSTERS
from daskmm.kmeans.mahalanobis import turned
from daskmm.kmeans.medians import with_exact_medians
from daskmm.kmeans.method import GIVEN, RELAXATIONS, Method
from daskmm.kmeans.restarts import Restarts, cheaper
from daskmm.kmeans.sample_annealing import SEARCH, SampledRows, Search
from daskmm.kmeans.seeding import given_centers, starting_centers
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, PowerUpdate, Update, sample_problem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import IterationRecord, Outcome, Run, Schedule, minimize
from daskmm.mm.journal import draw_seeds
from daskmm.mm.stages import MADE_LATER, Repeat, Stage
from daskmm.numerics.annealing import critical_power
from daskmm.numerics.rows import Coordinates, WhitenedCoordinates
from daskmm.numerics.span import is_wide, span_of
from daskmm.numerics.sparse_rows import SparseRows

FloatArray = NDArray[np.float64]

# Number of rows from which the first power for many clusters is chosen: this many, or this many per
# feature if that is more.
_ROWS_NEARBY, _ROWS_PER_FEATURE = 10_000, 20
# After annealing on samples, the steps over the full data end once this many iterations in a row
# have a relative change below `tol`. One is enough: only annealing can stand still for a while.
_CALM_READS = 1
# Fewest iterations that leave time for several exchanges of clusters.
_STEPS_OF_EXCHANGES = FIRST_STEPS + 4 * EXCHANGE_STEPS
# Clusters are more even if the largest one has at most this share of its former size. Offsets that
# bound sizes are learned again, at the new means, while that lowers the cost to this share.
_MORE_EVEN, _CHEAPER = 0.95, 0.999
# Relative error of sums of weights, which depend on the order of the rows.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class CentersFit:
    """A fit of centres so far."""

    problem: CentersProblem  # steps over all rows, in the model's coordinates
    survey: Survey  # survey in the model's coordinates
    method: Method  # this has the number of clusters and the schedule that are used
    seeds: list[int]  # the seed of the first pass, then one per start
    rng: np.random.RandomState  # this draws more seeds for ``empty_cluster="restart"``
    context: FitContext
    # Centres to start from, in the input's units, (n_clusters, n_features); None if none are given.
    given: FloatArray | None = None
    # Feature weights of the given centres where weights are learned, (n_features,); equal by
    # default.
    feature_weights: FloatArray | None = None
    # Clusters that the choice of a parameter found: hard steps from them are one more start.
    found: CenterState | None = None
    # CenterStates, or starting centres in the model's coordinates, (n_clusters, n_features).
    starts: Sequence[Any] = ()
    # Schedule of the method, possibly with a lower first power.
    schedule: Schedule = field(default_factory=lambda: Schedule(-np.inf))
    search: Search | None = None  # runs on samples
    runs: Sequence[Run[CenterState]] = ()  # runs in the space that the rows span
    result: Outcome[CenterState] = MADE_LATER  # the best of the runs over all rows
    # For each start of the outcome, its history on samples; empty if there was none.
    before: Sequence[list[IterationRecord]] = ()
    n_split: int = 0  # number of coincident centres that were moved
    # Whether it gains nothing to learn the matrix, or the offsets that bound sizes, once more.
    settled: bool = False
    # The cheapest outcome that meets the bound of sizes, or else the one whose largest cluster is
    # smallest, once sizes have been bounded.
    most_even: Outcome[CenterState] | None = None
    divided: bool = False  # whether no cluster that is too large can be divided further

    @property
    def lazy(self) -> bool:
        """Whether the table is streamed."""
        return self.problem.passes.blocks.layout.lazy

    @property
    def most(self) -> float:
        """Largest weight that a cluster may have."""
        method = self.method
        most = largest_weight(method.max_cluster_size, self.survey.weight, method.n_clusters)
        return most * (1.0 + _ROUNDING)

    @property
    def bounds(self) -> Bounds | None:
        """Bounds of the rows in memory at the outcome's state, if they are known."""
        stopped = self.context.stopped is not None
        return None if stopped else self.problem.bounds_at(self.result.run.state)


# Stages


def _seeded(fit: CentersFit) -> CentersFit:
    """Find starting centres for each seed, or take the given ones."""
    return replace(fit, starts=fit.context.journal.once(lambda: _starts(fit)))


def _reseeded(fit: CentersFit) -> CentersFit:
    """Replace the seeds of all starts by new ones."""
    drawn = draw_seeds(fit.context.journal, fit.rng, len(fit.seeds) - 1)
    return replace(fit, seeds=[fit.seeds[0], *drawn])


def _scheduled(fit: CentersFit) -> CentersFit:
    """Lower the first power for many clusters, and over-relax their hard steps."""
    dtype = float_dtype(fit.problem.passes.blocks.layout.dtype)
    update = fit.problem.update
    schedule = _from_nearby(fit.method.schedule, fit.starts[0], fit.survey, update, dtype)
    plain = isinstance(update, PowerUpdate) and update.distortion.squared
    if fit.method.many and plain and not update.trim:
        schedule = replace(schedule, relaxations=RELAXATIONS)
    return replace(fit, schedule=schedule)


def _sampled(fit: CentersFit) -> CentersFit:
    """Set up the search on samples, in the floating dtype that the table's steps use."""
    survey, problem = fit.survey, fit.problem
    dtype = float_dtype(problem.passes.blocks.layout.dtype)
    exact = isinstance(problem.coordinates, WhitenedCoordinates) or fit.method.n_landmarks > 0
    if exact or not _fits(survey.core.rows, dtype):
        dtype = np.dtype(np.float64)
    sample = survey.core
    if fit.method.exchanges:  # each exchange would convert all rows again
        sample = replace(sample, rows=sample.rows.astype(dtype, copy=False))
    rows = SampledRows(
        sample,
        problem.update,
        problem.spread,
        dtype,
        fit.method.n_clusters,
        problem.n_passes,
    )
    search = Search(
        rows,
        fit.starts,
        fit.schedule,
        fit.seeds[0],
        fit.context,
        fit.lazy,
        survey.larger_sample,
        problem.coordinates,
        fit.method.restarts,
        survey.metric,
        fit.found,
        exchanges=fit.method.exchanges and fit.method.n_clusters >= LEAST_CLUSTERS,
        n_winners=fit.method.n_winners,
    )
    return replace(fit, search=search)


def _on_samples(stage: Stage[Search] | Repeat[Search]) -> Stage[CentersFit] | Repeat[CentersFit]:
    """Return the stage of a fit that runs a stage of its search on samples."""

    def of(fit: CentersFit) -> Search:
        assert fit.search is not None
        return fit.search

    if isinstance(stage, Repeat):
        inner = [_on_samples(each) for each in stage.stages]
        return Repeat(inner, lambda fit: stage.until(of(fit)), stage.most)
    return Stage(
        stage.name,
        lambda fit: replace(fit, search=stage.run(of(fit))),
        stage.cost,
        lambda fit: stage.needed(of(fit)),
    )


def _polished(fit: CentersFit) -> CentersFit:
    """Take hard steps over the table from the best runs on samples."""
    search = fit.search
    assert search is not None
    runs = search.candidates
    # The cost of a run on all rows shows after one step whether it has converged.
    whole = len(fit.survey.core.rows) == fit.survey.n_rows
    schedule = replace(search.hard_schedule, calm=_CALM_READS)
    if whole:  # the sample is the table, so its steps count
        n_left = schedule.max_iter - max(len(run.history) for run in runs)
        schedule = replace(schedule, max_iter=max(1, n_left))
    if not fit.lazy and not (whole and runs[0].converged):
        schedule = replace(schedule, relaxations=search.schedule.relaxations[-1:])
    relaxation = schedule.relaxation(0, schedule.max_iter)
    starts = [
        Run(
            # A run that reached `max_iter` while it was annealed has the power of its last step.
            replace(run.state.listing(), s=-np.inf, relaxation=relaxation),
            "hard",
            last=run.last if whole else np.inf,
        )
        for run in runs
    ]
    problem = fit.problem
    if fit.lazy and fit.method.steps_between_reads and search.larger_sample is not None:
        problem = StreamedProblem.of(problem, search.larger_problem)
        schedule = replace(schedule, tol=WORTH_A_READ * schedule.tol)
    outcome = minimize(problem, starts, schedule, fit.context, race=search.worth_polishing)
    return replace(fit, result=outcome, before=[run.history for run in runs])


def _annealed(fit: CentersFit) -> CentersFit:
    """Anneal all starts over the table."""
    outcome = minimize(fit.problem, fit.runs or fit.starts, fit.schedule, fit.context)
    return replace(fit, result=outcome)


def _hedged(fit: CentersFit) -> CentersFit:
    """Also take hard steps from the starting centres.

    Fits on samples do this as well. The steps take little of a fit, and where clusters are far
    apart they sometimes end .2 % lower.
    """
    hard = fit.problem.start(fit.starts[0], -np.inf)
    outcome = cheaper(
        fit.result, fit.problem, hard, fit.schedule, fit.context, while_promising=True
    )
    return replace(fit, result=outcome)


def _restarted(fit: CentersFit) -> CentersFit:
    """Restart once at the learned feature weights, and keep the cheaper outcome."""
    outcome, survey = fit.result, fit.survey
    restarts = Restarts(survey.core, len(outcome.runs), fit.seeds[0], False, survey.metric)
    (better,) = restarts.of([outcome.run.state], fit.context)
    if better is None:
        return fit
    after = cheaper(outcome, fit.problem, better, fit.method.schedule, fit.context)
    return replace(fit, result=after)


def _from_found(fit: CentersFit) -> CentersFit:
    """Take hard steps from the clusters that the choice of a parameter found."""
    assert fit.found is not None
    outcome = cheaper(fit.result, fit.problem, fit.found, fit.method.schedule, fit.context)
    return replace(fit, result=outcome)


def _complete(fit: CentersFit) -> CentersFit:
    """Refuse empty clusters."""
    empty = np.flatnonzero(fit.result.scored.cluster_weights == 0)
    if len(empty):
        raise ValueError(
            f"{len(empty)} of {fit.method.n_clusters} clusters became empty (first: cluster "
            f"{empty[0]}), which empty_cluster='error' refuses. Ask for fewer clusters, or "
            "set empty_cluster to 'farthest'."
        )
    return fit


def _split(fit: CentersFit) -> CentersFit:
    """Move coincident centres, and take hard steps once more."""
    outcome, n_split = split_coincident(fit.problem, fit.result, fit.method.schedule, fit.context)
    return replace(fit, result=outcome, n_split=n_split)


def _turned(fit: CentersFit) -> CentersFit:
    """Learn the matrix of the Mahalanobis distance from the clusters; find the clusters anew."""
    after = turned(fit.problem, fit.result, fit.method.schedule, fit.context)
    if after is None:
        return replace(fit, settled=True)
    problem, outcome, settled = after
    return replace(fit, problem=problem, result=outcome, settled=settled)


def _in_learned_metric(fit: CentersFit) -> CentersFit:
    """Convert the sample to the coordinates of the learned matrix."""
    survey, coordinates = fit.survey, fit.problem.coordinates
    assert isinstance(coordinates, WhitenedCoordinates)
    rows = coordinates.to_model(survey.coordinates.to_input(survey.sample.rows))
    sample = replace(survey.sample, rows=rows)
    return replace(fit, survey=replace(survey, coordinates=coordinates, sample=sample))


def _with_smaller_clusters(fit: CentersFit, undivided: float = 1.0) -> CentersFit:
    """Divide clusters that weigh more than this multiple of the mean, and take hard steps."""
    most = max(fit.most, undivided * fit.survey.weight / fit.method.n_clusters)
    after = with_smaller_clusters(
        fit.problem, fit.result, fit.survey.core, most, fit.seeds[0], fit.context
    )
    return replace(fit, divided=True) if after is None else _bounded(fit, after)


def _with_offsets(fit: CentersFit) -> CentersFit:
    """Learn offsets that bound sizes, at the means of the clusters."""
    after = with_offsets(fit.problem, fit.result, fit.survey.core, fit.most, fit.context)
    settled = _largest(fit.result) <= fit.most and after.inertia > _CHEAPER * fit.result.inertia
    return replace(_bounded(fit, after), settled=settled)


def _bounded(fit: CentersFit, after: Outcome[CenterState]) -> CentersFit:
    """Keep the better outcome of a round that bounds sizes."""
    best = fit.result if fit.most_even is None else fit.most_even
    if _largest(best) <= fit.most:
        better = _largest(after) <= fit.most and after.inertia < best.inertia
    else:
        # Clusters that are only a little more even are not worth a higher cost, unless they meet
        # the bound.
        better = _largest(after) <= max(fit.most, _MORE_EVEN * _largest(best))
    return replace(fit, result=after, most_even=after if better else best)


def _most_even(fit: CentersFit) -> CentersFit:
    """Take the best of all rounds, which need not be the last one."""
    assert fit.most_even is not None
    return replace(fit, result=fit.most_even)


def _largest(outcome: Outcome[CenterState]) -> float:
    return float(outcome.scored.cluster_weights.max())


def _at_medians(fit: CentersFit) -> CentersFit:
    """Replace centres by exact medians."""
    return replace(fit, result=with_exact_medians(fit.problem, fit.result))


# Conditions on results


def _iterations_are_left(fit: CentersFit) -> bool:
    outcome = fit.result
    return outcome.run.converged and outcome.n_iter < fit.method.schedule.max_iter


def _is_distinct(fit: CentersFit) -> bool:
    # A later stage splits coincident centres, in the iterations that are left.
    return _iterations_are_left(fit) and not fit.result.scored.coincident_centers


def _has_other_start(fit: CentersFit) -> bool:
    return fit.found is not None and _iterations_are_left(fit)


def _has_no_large_cluster(fit: CentersFit) -> bool:
    mean = fit.survey.weight / fit.method.n_clusters
    return fit.divided or _largest(fit.result) <= max(fit.most, UNDIVIDED * mean)


def _has_settled_sizes(fit: CentersFit) -> bool:
    offset = fit.result.run.state.offsets is not None
    return fit.settled or (_largest(fit.result) <= fit.most and not offset)


def _has_bounded_sizes(fit: CentersFit) -> bool:
    best = fit.result if fit.most_even is None else fit.most_even
    return fit.divided or _largest(best) <= fit.most


def _was_divided(fit: CentersFit) -> bool:
    return fit.most_even is not None


def _has_no_empty_cluster(fit: CentersFit) -> bool:
    return bool(fit.result.scored.cluster_weights.all())


def _may_turn(fit: CentersFit) -> bool:
    return fit.result.n_iter < fit.method.schedule.max_iter


def _learned_metric(fit: CentersFit) -> bool:
    return fit.problem.coordinates is not fit.survey.coordinates


def _ends_in_hard_steps(fit: CentersFit) -> bool:
    return fit.result.run.state.s == -np.inf


# The list


def center_stages(method: Method, lazy: bool) -> list[Stage[CentersFit] | Repeat[CentersFit]]:
    """Return the stages of a fit of centres, after the choices made on its sample.

    `lazy` says whether the table is streamed.
    """
    fitted = [*_SEEDED, *_SAMPLED] if method.on_sample else _over_table(method, lazy)
    stages = list(fitted)
    if not method.on_sample and method.restarts:
        costs = CenterCosts.restarts_over_table
        stages.append(Stage("restarts over the table", _restarted, costs, _iterations_are_left))
    if not method.on_sample and method.tries_lam:
        costs = CenterCosts.rival
        stages.append(Stage("clusters of the choice", _from_found, costs, _has_other_start))
    if method.empty_cluster == "restart" and method.init != GIVEN:
        again = (Stage("seeds", _reseeded), *fitted)
        stages.append(Repeat(again, _has_no_empty_cluster, REFITS, CenterCosts.refits))
    if method.empty_cluster == "error":
        stages.append(Stage("empty clusters", _complete))
    stages.append(Stage("coincident centres", _split, CenterCosts.split))
    if method.max_cluster_size is not None:
        stages += _BOUNDED_SIZES
    if method.learns_metric:
        turn = Stage("metric", _turned, needed=_may_turn)
        stages.append(Repeat((turn,), lambda fit: fit.settled, TURNS, CenterCosts.turns))
        stages.append(
            Stage("learned metric", _in_learned_metric, needed=_learned_metric, after_stop=True)
        )
    if method.family.degree == 1 and not (lazy or method.trim):
        stages.append(Stage("medians", _at_medians, CenterCosts.medians, _ends_in_hard_steps))
    return stages


def landmark_stages(method: Method) -> list[Stage[CentersFit] | Repeat[CentersFit]]:
    """Return the stages of a fit on Nyström features, whose starting centres are known."""
    if method.on_sample:
        return list(_SAMPLED)
    return [Stage("passes", _annealed, CenterCosts.passes, after_stop=True)]


_SEEDED: tuple[Stage[CentersFit], ...] = (
    Stage("starting centres", _seeded, CenterCosts.starts),
    Stage("first power", _scheduled),
)
_SAMPLED: tuple[Stage[CentersFit] | Repeat[CentersFit], ...] = (
    Stage("samples", _sampled),
    *map(_on_samples, SEARCH),
    Stage("passes", _polished, CenterCosts.polishing, after_stop=True),
)


_BOUNDED_SIZES: tuple[Stage[CentersFit] | Repeat[CentersFit], ...] = (
    Repeat(
        (
            Stage(
                "large clusters",
                functools.partial(_with_smaller_clusters, undivided=UNDIVIDED),
                CenterCosts.divisions,
            ),
        ),
        _has_no_large_cluster,
        MOST_ROUNDS,
    ),
    Repeat(
        (Stage("offsets", _with_offsets, CenterCosts.offsets),), _has_settled_sizes, MOST_ROUNDS
    ),
    # Offsets between clusters that are far apart would be as large as their distances.
    Repeat(
        (Stage("bounded sizes", _with_smaller_clusters, CenterCosts.more_divisions),),
        _has_bounded_sizes,
        MOST_ROUNDS,
    ),
    Stage("most even sizes", _most_even, needed=_was_divided, after_stop=True),
)


def _over_table(method: Method, lazy: bool) -> list[Stage[CentersFit] | Repeat[CentersFit]]:
    stages: list[Stage[CentersFit] | Repeat[CentersFit]] = [
        *_SEEDED,
        Stage("span", _in_span, needed=_spans_little),
        Stage("passes", _annealed, CenterCosts.passes, after_stop=True),
    ]
    if _is_hedged(method) and not lazy:
        costs = CenterCosts.rival
        stages.append(Stage("hard steps from the start", _hedged, costs, _is_distinct))
    return stages


def _is_hedged(method: Method) -> bool:
    annealed = method.anneals and method.schedule.polish and method.hedged
    return annealed and method.n_starts == 1 and method.many


# What stages compute


def _starts(fit: CentersFit) -> Sequence[FloatArray | CenterState]:
    """Return the given start, or starting centres for each seed, in the model's coordinates."""
    passes, survey, method, drawn = fit.problem.passes, fit.survey, fit.method, fit.seeds[1:]
    if fit.given is not None:
        given = given_centers(fit.given, survey)
        if fit.feature_weights is None:
            return [given]
        state = fit.problem.update.start(given, method.schedule.s0)
        return [replace(state, feature_weights=fit.feature_weights)]
    # Several exchanges end alike from any start, so a fast one is chosen.
    exchanges = method.exchanges and method.schedule.max_iter >= _STEPS_OF_EXCHANGES
    centers: list[FloatArray] = []
    at_once = 1
    if method.init == "k-means||" or is_wide(*survey.core.rows.shape):
        at_once = len(drawn)  # starts share passes, or the space that the rows span
    elif method.n_clusters >= MANY_CLUSTERS:
        at_once = cpu_count()  # each start has a thread
    for first in range(0, len(drawn), at_once):
        seeds = np.asarray(drawn[first : first + at_once])
        found = starting_centers(method.init, passes, survey, method.n_clusters, seeds, exchanges)
        centers += [np.asarray(each, dtype=np.float64) for each in found]
        fit.context.follow("starting centres", len(centers) / len(drawn))
    return centers


def _from_nearby(
    schedule: Schedule, start: FloatArray, survey: Survey, update: Update, dtype: np.dtype
) -> Schedule:
    """Return the schedule with a lower first power for many clusters, if it may be chosen.

    At s_crit all centres merge at the mean, but neighbouring centres merge at lower powers already.
    With hundreds of clusters this undoes good starts and takes steps that gain nothing. So the
    critical power is computed from the differences between rows and the nearest centre of a start.
    """
    plain = update.hedged and survey.distortion.squared
    multiple = schedule.critical_multiple
    if multiple is None or not plain or survey.partial or len(start) < MANY_CLUSTERS:
        return schedule
    if isinstance(survey.sample.rows, SparseRows):
        return schedule
    core = survey.core
    n_rows, p = core.rows.shape
    step = max(1, n_rows // max(_ROWS_NEARBY, _ROWS_PER_FEATURE * p))
    rows, weights = core.rows[::step], core.weights[::step]
    # Rows take the table's dtype if it can hold them: single precision takes a third of the time.
    hard, same = update.start(start, -np.inf), Coordinates.identity(p)
    seen = rows.astype(dtype, copy=False) if _fits(rows, dtype) else rows
    nearest = map_rows(labels_of, seen, same, hard)
    nearby = critical_power(rows - start[nearest], weights)
    return replace(schedule, s0=min(schedule.s0, multiple * nearby))


def _fits(rows: Any, dtype: np.dtype) -> bool:
    """Return whether a floating dtype can hold all values of some rows, dense or sparse."""
    values = rows.data if isinstance(rows, SparseRows) else rows
    largest = np.finfo(dtype).max
    return bool(values.max(initial=0.0) < largest and values.min(initial=0.0) > -largest)


def _spans_little(fit: CentersFit) -> bool:
    """Return whether rows and starts lie in a space of few dimensions, where steps take less time.

    The table has to be wide and in memory, and only squared distances of rows from their means may
    count.
    """
    blocks, update = fit.problem.passes.blocks, fit.problem.update
    n_rows, p = blocks.layout.n_rows, blocks.layout.n_features
    plain = isinstance(update, PowerUpdate) and not (update.partial or update.trim)
    plain = plain and update.distortion.squared
    streamed = blocks.layout.lazy or blocks.layout.sparse
    if not plain or streamed:
        return False
    assert n_rows is not None
    return is_wide(n_rows + sum(map(len, fit.starts)), p)


def _in_span(fit: CentersFit) -> CentersFit:
    """Run all starts in the space that the rows and the starts span.

    Its steps are those over the table up to rounding.
    """
    problem, starts, context = fit.problem, fit.starts, fit.context
    if (known := context.journal.recall()) is not None:
        return replace(fit, runs=list(known))
    blocks, update = problem.passes.blocks, problem.update
    n_rows = blocks.layout.n_rows
    assert n_rows is not None
    assert isinstance(update, PowerUpdate)
    rows = np.concatenate([*map(problem.coordinates.to_model, blocks.parts), *starts])
    span = span_of(rows)
    if span is None:
        return replace(fit, runs=())
    z, *seeds = np.split(span.coordinates, n_rows + len(starts[0]) * np.arange(len(starts)))
    weights = np.ones(n_rows) if blocks.weights is None else np.concatenate(blocks.weights)
    distortion = type(update.distortion).around(np.zeros(z.shape[1]), np.zeros(z.shape[1]))
    alike = PowerUpdate(distortion, relocates=update.relocates)
    inner = sample_problem(z, weights, alike, problem.spread, True, problem.n_passes)
    found = minimize(inner, seeds, fit.schedule, context.apart()).runs
    problem.passes.add(inner.passes.n_passes)
    centers = span.to_features(np.concatenate([run.state.centers for run in found]), rows)
    runs = []
    for run, own in zip(found, np.split(centers, len(found)), strict=True):
        assert run.scored is not None
        after = span.to_features(run.scored.state.centers, rows)
        scored = replace(run.scored, state=replace(run.scored.state, centers=after))
        runs.append(replace(run, state=replace(run.state, centers=own), scored=scored))
    # Coordinates in the span are not kept: rounding may choose another basis on another machine.
    if context.stopped is None:
        context.journal.keep(runs, max(len(run.history) for run in runs))
    return replace(fit, runs=runs)
