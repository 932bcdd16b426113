"""Fit centres: the stages of a fit after the first pass, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from daskmm.data.blocks import float_dtype
from daskmm.engine.first_pass import MANY_CLUSTERS, Survey
from daskmm.engine.passes import Passes
from daskmm.kmeans.assignment import labels_of, map_rows
from daskmm.kmeans.bounds import Bounds
from daskmm.kmeans.empty_clusters import RandomRows, split_coincident
from daskmm.kmeans.mahalanobis import learn_metric
from daskmm.kmeans.medians import with_exact_medians
from daskmm.kmeans.restarts import Restarts, cheaper, refined
from daskmm.kmeans.sample_annealing import SampleAnnealing
from daskmm.kmeans.seeding import given_centers, starting_centers
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, PowerUpdate, Update, sample_problem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import IterationRecord, Outcome, Run, Schedule, minimize
from daskmm.mm.journal import draw_seeds
from daskmm.numerics.annealing import critical_power
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN
from daskmm.numerics.rows import Coordinates, WhitenedCoordinates
from daskmm.numerics.span import is_wide, span_of
from daskmm.numerics.sparse_rows import SparseRows

FloatArray = NDArray[np.float64]

# Fits, at most, until one has no empty cluster (empty_cluster="restart").
_RESTARTS = 10
# Rows around which the first power of many clusters is chosen: so many, or so many per feature.
_ROWS_NEARBY, _ROWS_PER_FEATURE = 10_000, 20
# Names of stages in the journal.
_SPAN = "span"
_FOUND, _HEDGE = "found", "hedge"


@dataclass(frozen=True)
class Method:
    """Choices of a fit, all made before its first stage.

    Attributes
    ----------
    n_clusters : int
    init : str or ndarray of shape (n_clusters, n_features)
        Name of a seeding method, or centres in the input's units.
    schedule : Schedule
    update : Update
    on_sample : bool
        Whether to anneal on the sample, with passes over the full data for hard steps only.
    restarts : bool
        Whether to restart at the learned feature weights (see `daskmm.kmeans.restarts`).
    empty_cluster : {"farthest", "random", "restart", "error"}
    learns_metric : bool
        Whether to learn the matrix of the Mahalanobis distance.
    feature_weights : ndarray of shape (n_features,) or None
        Of given centres, where weights are learned: equal by default.
    found : CenterState or None
        Clusters that the choice of a parameter found: hard steps from them are one more start.
    """

    n_clusters: int
    init: str | FloatArray
    schedule: Schedule
    update: Update
    on_sample: bool
    restarts: bool
    empty_cluster: str
    learns_metric: bool
    feature_weights: FloatArray | None = None
    found: CenterState | None = None


class CentersFit(NamedTuple):
    """Result of `fit_centers`.

    Attributes
    ----------
    survey : Survey
        Of the first pass, in the coordinates of the model.
    outcome : Outcome
    before : list of list of IterationRecord
        For each start of the outcome, its history on samples; empty if there was none.
    n_split : int
        Number of coincident centres that were moved.
    bounds : Bounds or None
        Of the rows in memory at the outcome's state, if they are known.
    """

    survey: Survey
    outcome: Outcome[CenterState]
    before: list[list[IterationRecord]]
    n_split: int
    bounds: Bounds | None = None


def fit_centers(
    passes: Passes,
    survey: Survey,
    method: Method,
    seeds: list[int],
    rng: np.random.RandomState,
    context: FitContext,
) -> CentersFit:
    """Fit centres: seeding, annealing (on samples or all rows), restarts, final treatment.

    Parameters
    ----------
    passes : Passes
    survey : Survey
        Of the first pass, in the coordinates of the model.
    method : Method
    seeds : list of int
        The seed of the first pass, then one per start.
    rng : RandomState
        Draws more seeds for ``empty_cluster="restart"``.
    context : FitContext

    Raises
    ------
    ValueError
        If given centres are outside of the distortion's domain or overflow, or if a cluster became
        empty and ``empty_cluster="error"``.
    """
    problem = CentersProblem(
        passes, survey.coordinates, survey.weight, method.update, survey.spread
    )
    first, *drawn = seeds
    outcome, before = _advanced(problem, survey, method, first, drawn, context)
    if not method.on_sample and method.restarts and context.stopped is None:
        restarts = Restarts(survey.sample, len(outcome.runs), first, False, survey.metric)
        outcome = refined(outcome, problem, restarts, method.schedule, context)
    if not method.on_sample and method.found is not None and context.stopped is None:
        outcome = cheaper(outcome, problem, method.found, method.schedule, context, _FOUND)
    for _ in range(_RESTARTS if method.empty_cluster == "restart" else 0):
        complete = outcome.scored.cluster_weights.all()
        if complete or context.stopped is not None or not isinstance(method.init, str):
            break
        drawn = draw_seeds(context.journal, rng, len(drawn))
        outcome, before = _advanced(problem, survey, method, first, drawn, context)
    if context.stopped is not None:
        return CentersFit(survey, outcome, before, 0)
    return _finished(problem, survey, outcome, before, method, context)


def _advanced(
    problem: CentersProblem,
    survey: Survey,
    method: Method,
    seed: int,
    seeds: list[int],
    context: FitContext,
) -> tuple[Outcome[CenterState], list[list[IterationRecord]]]:
    """Find a start for each of the seeds; anneal them on samples, with `seed`, or over all rows."""
    starts = context.journal.once(
        "starts", lambda: _starts(problem.passes, survey, method, seeds, context)
    )
    dtype = float_dtype(problem.passes.blocks.layout.dtype)
    schedule = _from_nearby(method.schedule, starts[0], survey, method.update, dtype)
    if method.on_sample:
        annealing = _on_sample(problem, survey, method, schedule, seed)
        return annealing.minimize(problem, starts, context)
    runs = _in_span(problem, starts, schedule, context)
    outcome = minimize(problem, runs or starts, schedule, context)
    annealed = method.update.hedged and schedule.s0 > -np.inf and schedule.polish
    one_of_many = len(starts) == 1 and method.n_clusters >= MANY_CLUSTERS
    in_memory = not problem.passes.blocks.layout.lazy
    # A later stage splits coincident centres, in the iterations that are left.
    distinct = not outcome.scored.coincident_centers
    if annealed and one_of_many and in_memory and distinct and context.stopped is None:
        # Fits on samples do this, too. The steps take little of a fit, and where clusters are far
        # apart they sometimes end .2 % lower.
        hard = problem.start(starts[0], -np.inf)
        outcome = cheaper(outcome, problem, hard, schedule, context, _HEDGE, while_promising=True)
    return outcome, []


def _starts(
    passes: Passes, survey: Survey, method: Method, drawn: list[int], context: FitContext
) -> Sequence[FloatArray | CenterState]:
    """Return the given start, or starting centres for each seed, in the model's coordinates."""
    if not isinstance(method.init, str):
        given = given_centers(method.init, survey)
        if method.feature_weights is None:
            return [given]
        state = method.update.start(given, method.schedule.s0)
        return [replace(state, feature_weights=method.feature_weights)]
    centers: list[FloatArray] = []
    at_once = 1
    if method.init == "k-means||" or is_wide(*survey.sample.rows.shape):
        at_once = len(drawn)  # starts share passes, or the space that the rows span
    elif method.n_clusters >= MANY_CLUSTERS:
        at_once = CPU_COUNT  # each start has a thread
    for first in range(0, len(drawn), at_once):
        seeds = np.asarray(drawn[first : first + at_once])
        centers += starting_centers(method.init, passes, survey, method.n_clusters, seeds)
        context.follow("starts", len(centers) / len(drawn))
    return centers


def _from_nearby(
    schedule: Schedule, start: FloatArray, survey: Survey, update: Update, dtype: np.dtype
) -> Schedule:
    """Return the schedule with a lower first power for many clusters, if it may be chosen.

    At s_crit all centres fall onto the mean, but neighbouring ones fall onto each other below it
    already. Where there are hundreds of clusters this undoes good starts and takes steps that gain
    nothing, so the critical power is that of the rows around the nearest centre of a start.
    """
    plain = update.hedged and survey.distortion.code == SQUARED_EUCLIDEAN.code
    multiple = schedule.critical_multiple
    if multiple is None or not plain or survey.partial or len(start) < MANY_CLUSTERS:
        return schedule
    if isinstance(survey.sample.rows, SparseRows):
        return schedule
    n_rows, p = survey.sample.rows.shape
    step = max(1, n_rows // max(_ROWS_NEARBY, _ROWS_PER_FEATURE * p))
    rows, weights = survey.sample.rows[::step], survey.sample.weights[::step]
    # In the table's dtype, if it holds them: single precision takes a third of the time.
    hard, same = update.start(start, -np.inf), Coordinates.identity(p)
    fits = np.abs(rows).max(initial=0.0) < np.finfo(dtype).max
    nearest = map_rows(labels_of, rows.astype(dtype, copy=False) if fits else rows, same, hard)
    nearby = critical_power(rows - start[nearest], weights)
    return replace(schedule, s0=min(schedule.s0, multiple * nearby))


def _in_span(
    problem: CentersProblem, starts: list[FloatArray], schedule: Schedule, context: FitContext
) -> list[Run[CenterState]] | None:
    """Run all starts in the space that the rows and the starts span; return their runs.

    Its steps are those over the table up to rounding. Return None if the table is not wide or not
    in memory, or if more than squared distances of rows from their means counts.
    """
    blocks, update = problem.passes.blocks, problem.update
    n_rows, p = blocks.layout.n_rows, blocks.layout.n_features
    plain = isinstance(update, PowerUpdate) and not (update.partial or update.trim)
    plain = plain and update.distortion.code == SQUARED_EUCLIDEAN.code
    streamed = blocks.layout.lazy or blocks.layout.sparse
    if not plain or isinstance(update.relocation, RandomRows) or streamed:
        return None
    assert n_rows is not None
    if not is_wide(n_rows + sum(map(len, starts)), p):
        return None
    if (known := context.journal.recall(_SPAN)) is not None:
        return list(known)
    rows = np.concatenate([*map(problem.coordinates.to_model, blocks.parts), *starts])
    span = span_of(rows)
    if span is None:
        return None
    z, *seeds = np.split(span.coordinates, n_rows + len(starts[0]) * np.arange(len(starts)))
    weights = np.ones(n_rows) if blocks.weights is None else np.concatenate(blocks.weights)
    distortion = type(update.distortion).around(np.zeros(z.shape[1]), np.zeros(z.shape[1]))
    alike = PowerUpdate(distortion, relocation=update.relocation)
    inner = sample_problem(z, weights, alike, problem.spread, True, problem.n_passes)
    found = minimize(inner, seeds, schedule, context.apart()).runs
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
        context.journal.keep(_SPAN, runs, max(len(run.history) for run in runs))
    return runs


def _on_sample(
    problem: CentersProblem, survey: Survey, method: Method, schedule: Schedule, seed: int
) -> SampleAnnealing:
    """Set up the annealing on samples, in the floating dtype that the table's steps use."""
    mixed = isinstance(survey.coordinates, WhitenedCoordinates)
    dtype = np.dtype(np.float64) if mixed else float_dtype(problem.passes.blocks.layout.dtype)
    return SampleAnnealing(
        survey.sample,
        survey.larger_sample,
        survey.coordinates,
        method.update,
        survey.spread,
        dtype,
        schedule,
        seed,
        method.n_clusters,
        problem.n_passes,
        method.restarts,
        survey.metric,
        method.found,
    )


def _finished(
    problem: CentersProblem,
    survey: Survey,
    outcome: Outcome[CenterState],
    before: list[list[IterationRecord]],
    method: Method,
    context: FitContext,
) -> CentersFit:
    """Treat empty clusters and coincident centres; learn the matrix; compute exact medians."""
    empty = np.flatnonzero(outcome.scored.cluster_weights == 0)
    if len(empty) and method.empty_cluster == "error":
        raise ValueError(
            f"{len(empty)} of {method.n_clusters} clusters became empty (first: cluster "
            f"{empty[0]}), which empty_cluster='error' refuses. Ask for fewer clusters, or "
            "set empty_cluster to 'farthest'."
        )
    outcome, n_split = split_coincident(problem, outcome, method.schedule, context)
    if method.learns_metric:
        coordinates, outcome = learn_metric(problem, outcome, method.schedule, context)
        rows = coordinates.to_model(survey.coordinates.to_input(survey.sample.rows))
        sample = replace(survey.sample, rows=rows)
        survey = replace(survey, coordinates=coordinates, sample=sample)
    lazy = problem.passes.blocks.layout.lazy
    trimmed = problem.update.trim > 0
    if problem.degree == 1 and not (lazy or trimmed) and outcome.run.state.s == -np.inf:
        outcome = with_exact_medians(problem, outcome)
    return CentersFit(survey, outcome, before, n_split, problem.bounds_at(outcome.run.state))
