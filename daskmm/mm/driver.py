"""The MM driver: annealing, stopping, history and callbacks.

The driver knows neither the data nor the algorithm. A `Problem` takes the steps, in one pass over
the data for all starts together; the driver chooses their power, and decides when to stop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from daskmm.mm.context import FitContext
from daskmm.mm.journal import Pace
from daskmm.mm.problem import IterationRecord, Problem, Run, S, Step

__all__ = [
    "Callback",
    "IterationRecord",
    "Outcome",
    "Problem",
    "Run",
    "Schedule",
    "Step",
    "cheapest_first",
    "first_best",
    "iterate",
    "minimize",
]

logger = logging.getLogger("daskmm")

# Number of iterations in a row whose relative change must be below the tolerance.
CALM_ITERATIONS = 3
# Memberships are nearly hard when the nearest centres have this share of the weight.
HARDNESS = 0.99
# Convergence is tested only if the power is below this multiple of the critical power, and below
# the second value.
MARGIN = 2.0
LEAST_POWER = -2.0
# If hard steps follow, up to this share of the centres may coincide at the end of the annealing.
FEW_COINCIDENT = 0.01
# Costs that differ by less than this share of the objective's terms count as equal.
EQUALLY_GOOD = 1e-9

# The last iterations before `max_iter`, this many, use the last factor of `relaxations`. The very
# last one goes to the means.
_LAST_RELAXED = 4

Callback = Callable[[IterationRecord], object]
Race = Callable[[Sequence[float]], Sequence[int]]


@dataclass(frozen=True)
class Schedule:
    """How the power falls, and when to stop."""

    s0: float  # first power; −∞ for Lloyd's algorithm
    eta: float = 1.0  # factor of the power, ≥ 1; 1 keeps it constant
    anneal_every: int = 1  # iterations per value of the power
    polish: bool = False  # whether Lloyd steps follow the annealing
    max_iter: int = 300  # iterations over the data, polish included
    tol: float = 1e-4  # relative change of the objective below which it counts as unchanged
    # s_crit; above it the objective can be stationary though the fit has not converged.
    critical_power: float = 0.5
    # `s0` divided by s_crit if `s0` was chosen as a multiple of it; None if `s0` was given.
    critical_multiple: float | None = None
    # Number of iterations in a row with a negligible change after which a stage ends.
    calm: int = CALM_ITERATIONS
    # Factors ω ≤ 2, one per hard step: how far it moves the centres, relative to the way to the
    # means. The last factor holds until changes are negligible; then steps to the means follow.
    # Without factors, all steps go to the means.
    relaxations: tuple[float, ...] = ()
    # Whether the last iteration moves centres to the means, if earlier ones move them further.
    ends_at_means: bool = True

    def relaxation(self, n_hard: int, n_left: int) -> float:
        """Return ω of the next hard step, given the hard steps so far and the iterations left."""
        if not self.relaxations or (n_left <= 1 and self.ends_at_means):
            return 1.0
        last = len(self.relaxations) - 1
        return self.relaxations[last if n_left <= _LAST_RELAXED else min(n_hard, last)]

    def power(self, iteration: int) -> float:
        """Return the power of an annealing iteration, counted from 0."""
        with np.errstate(over="ignore"):
            return float(self.s0 * np.float64(self.eta) ** (iteration // self.anneal_every))


@dataclass(frozen=True)
class Outcome(Generic[S]):
    """All starts of a fit and the best of them, with its hard cost."""

    runs: list[Run[S]]  # all starts, in order
    best: int  # index of the best start
    inertia: float  # Σ_i min_j d_ij at the final state of the best start
    scored: Step[S]  # the hard step at the final state of the best start

    @property
    def run(self) -> Run[S]:
        """Run of the best start."""
        return self.runs[self.best]

    @property
    def n_iter(self) -> int:
        """Number of iterations over the data."""
        return max(len(run.history) for run in self.runs)


def minimize(
    problem: Problem[S],
    starts: Sequence[Any],
    schedule: Schedule,
    context: FitContext | None = None,
    *,
    race: Race | None = None,
    before: int = 0,
) -> Outcome[S]:
    """Advance all starts together, one pass over the data per iteration; return the best.

    Starts are whatever `problem` can start from, or runs to continue. Callbacks of the context are
    called once per iteration over the full data (`problem.exact`) with the record of the best start
    so far; one that raises StopIteration ends the fit. Without a context, an interrupt is raised at
    once. `before` is the number of iterations of earlier stages, from which the numbers that
    callbacks get continue.

    A race takes the costs of all starts after each iteration, and returns the indices of the starts
    that are worth another iteration. The others end at their present state, whose cost is known.
    Only hard steps may have a race.
    """
    if context is None:
        context = FitContext(holds_interrupts=False)
    runs = iterate(problem, starts, schedule, context, race=race, before=before)
    return _score(problem, runs, context)


def iterate(
    problem: Problem[S],
    starts: Sequence[Any],
    schedule: Schedule,
    context: FitContext | None = None,
    *,
    race: Race | None = None,
    until: Pace | None = None,
    before: int = 0,
) -> list[Run[S]]:
    """Advance all starts as `minimize` does, without choosing among them.

    After the amount of work `until`, all runs are returned, even if they have not ended. If the
    user interrupted an iteration, they are returned as they were before it.
    """
    if context is None:
        context = FitContext(holds_interrupts=False)
    found = context.journal.recall()
    runs = [_started(problem, start, schedule) for start in found or starts]
    n_iter = first = max(len(run.history) for run in runs)
    resumable = runs
    entered = time.monotonic()
    try:
        while n_iter < schedule.max_iter and context.stopped is None:
            active = [index for index, run in enumerate(runs) if run.stage != "done"]
            due = until is not None and n_iter > first and until.due(n_iter - first, entered)
            if not active or (due and resumable is runs):
                break
            steps = problem.steps([runs[index].state for index in active])
            n_iter += 1
            taken = dict(zip(active, steps, strict=True))
            # All runs are assigned at once, so that an interrupt never leaves runs of different
            # iterations.
            runs = _after(runs, taken, schedule, problem, time.perf_counter() - context.began, race)
            if all(runs[i].stage == "done" or step.resumable for i, step in taken.items()):
                resumable = runs
            context.journal.keep(resumable)
            if problem.exact or logger.isEnabledFor(logging.DEBUG):
                scale = max(step.inertia + abs(step.penalty) for step in steps)
                # The best start may have ended, while others go on.
                best = runs[first_best([run.last for run in runs], scale)].history[-1]
                now = runs[active[0]].history[-1]
                record = replace(best, iteration=n_iter, n_passes=now.n_passes, seconds=now.seconds)
                logger.debug("%s", record)
                if problem.exact:
                    context.tell(record, before)
    except KeyboardInterrupt as interrupt:
        context.stop(interrupt)
    return runs


def _started(problem: Problem[S], start: Any, schedule: Schedule) -> Run[S]:
    """Start a run, or resume one."""
    if not isinstance(start, Run):
        stage = "hard" if schedule.s0 == -np.inf else "anneal"
        state = problem.start(start, schedule.s0)
        if stage == "hard" and schedule.relaxations:
            state = _relaxed(state, schedule.relaxation(0, schedule.max_iter))
        return Run(state, stage)
    s = start.state.s
    if start.stage == "anneal" and len(start.history) < schedule.max_iter:
        # If the run stopped at `max_iter`, which has been raised since, its state still has the
        # power of its last step.
        s = schedule.power(len(start.history))
    return replace(start, state=problem.start(start.state, s))


def _to_score(state: S) -> S:
    """Return a state at which a hard step finds the exact cost; over-relaxed ones may not."""
    state = _at_power(state, -np.inf)
    return _relaxed(state, 1.0) if getattr(state, "relaxation", 1.0) > 1.0 else state


def _relaxed(state: S, relaxation: float) -> S:
    """Return the state of a step that moves the centres by this share of the way to the means."""
    return replace(state, relaxation=relaxation)  # type: ignore[type-var]


def _after(
    runs: Sequence[Run[S]],
    taken: dict[int, Step[S]],
    schedule: Schedule,
    problem: Problem[S],
    seconds: float,
    race: Race | None,
) -> list[Run[S]]:
    """Return all runs after an iteration, in which some of them took a step."""
    after = list(runs)
    for index, step in taken.items():
        after[index] = advanced(runs[index], step, schedule, problem, seconds)
    if race is not None:
        # Runs that lose end at the state before the step, whose cost is known.
        for index in set(taken) - set(race([run.last for run in after])):
            if after[index].stage != "done":
                lost, step = runs[index].state, taken[index]
                scored = step if step.complete else None
                after[index] = replace(after[index], stage="done", state=lost, scored=scored)
    return after


def _record(run: Run[S], step: Step[S], problem: Problem[S], seconds: float) -> IterationRecord:
    return IterationRecord(
        iteration=len(run.history) + 1,
        stage=problem.hard_stage if run.stage == "hard" else run.stage,
        s=run.state.s,
        objective=step.objective + step.penalty,
        inertia=step.inertia * problem.weight,
        shift=step.shift,
        n_passes=problem.n_passes,
        seconds=seconds,
        coincident_centers=step.coincident_centers,
        exact=problem.exact,
    )


def advanced(
    run: Run[S], step: Step[S], schedule: Schedule, problem: Problem[S], seconds: float
) -> Run[S]:
    """Record a step, and advance a run to the state after it, at the power of the schedule."""
    history = [*run.history, _record(run, step, problem, seconds)]
    # f_s is tested only if s is constant, because it changes while s falls.
    cost = step.objective if schedule.eta == 1.0 else step.inertia
    change = abs(run.last - (cost + step.penalty))
    negligible = schedule.tol * (cost + abs(step.penalty)) + problem.rounding
    calm = run.calm + 1 if change <= negligible else 0
    last, stage, converged, power = cost + step.penalty, run.stage, run.converged, step.state.s
    if stage == "hard":
        if schedule.relaxations and step.moved and step.state.relaxation > 1.0:  # type: ignore[attr-defined]
            n_hard = sum(record.stage == problem.hard_stage for record in history)
            factor = schedule.relaxation(n_hard, schedule.max_iter - len(history))
            if calm >= schedule.calm and n_hard > len(schedule.relaxations):
                if not schedule.ends_at_means:
                    return Run(step.state, "done", history, True, calm, last)
                # A run has converged only once its centres are the means.
                factor, calm = 1.0, schedule.calm - 1
            return Run(_relaxed(step.state, factor), stage, history, False, calm, last)
        if calm >= schedule.calm or not step.moved:
            # The run ends at the state before the step, whose cost is known without another pass.
            return Run(run.state, "done", history, True, calm, last, scored=step)
    elif calm >= schedule.calm and _annealed(step, schedule, problem.splitting_power):
        stage, calm, converged = "hard" if schedule.polish else "done", 0, not schedule.polish
        power = -np.inf if schedule.polish else power
    elif len(history) < schedule.max_iter:
        power = schedule.power(len(history))
    state = _at_power(step.state, power)
    if stage == "hard" and schedule.relaxations:
        state = _relaxed(state, schedule.relaxation(0, schedule.max_iter - len(history)))
    return Run(state, stage, history, converged, calm, last)


def _at_power(state: S, s: float) -> S:
    if state.s == s:
        return state
    return replace(state, s=s)  # type: ignore[type-var]


def _annealed(step: Step[S], schedule: Schedule, splitting_power: float) -> bool:
    """Return whether the annealing is complete, given that the objective is stationary.

    The objective is also stationary while centres coincide at a mean. So the annealing is complete
    only if the power is well below the critical one and memberships are nearly hard. If more than a
    few centres coincide, the power must also be below the one at which they would have separated. A
    few centres, such as two centres of a single row, may never separate; the hard steps move them.
    """
    if schedule.tol == 0.0:
        return False
    if schedule.eta == 1.0:
        return True
    threshold = min(MARGIN * schedule.critical_power, LEAST_POWER)
    few = FEW_COINCIDENT * len(step.cluster_weights) if schedule.polish else 0.0
    if step.coincident_centers > few:
        threshold = min(threshold, MARGIN * splitting_power)
    return step.state.s <= threshold and step.hardness >= HARDNESS


def _score(problem: Problem[S], runs: list[Run[S]], context: FitContext) -> Outcome[S]:
    """Return the start of lowest hard cost; unknown costs of final states take one pass."""
    if unscored := [index for index, run in enumerate(runs) if run.scored is None]:
        if context.interrupted:
            logger.warning(
                "Interrupted: one more pass over the data computes the cost of the model. "
                "Interrupt again to end without a model."
            )
        steps = problem.steps([_to_score(runs[index].state) for index in unscored])
        runs = list(runs)
        for index, step in zip(unscored, steps, strict=True):
            runs[index] = replace(runs[index], scored=step)
        if context.stopped is None:
            context.journal.keep(runs, iterations=0)
    scored = [run.scored for run in runs if run.scored is not None]
    scale = max(step.inertia + abs(step.penalty) for step in scored)
    costs = [step.inertia + step.penalty for step in scored]
    best = first_best(costs, scale)
    if _has_lost(runs[best]):
        # Steps never raise the cost, so the cheapest run that went on is as good up to rounding.
        others = [index for index, run in enumerate(runs) if not _has_lost(run)]
        winner = min(others, key=costs.__getitem__, default=best)
        runs = list(runs)
        runs[best] = replace(runs[best], converged=runs[winner].converged)
    return Outcome(runs, best, scored[best].inertia * problem.weight, scored[best])


def _has_lost(run: Run[S]) -> bool:
    """Return whether a race ended a run."""
    return run.stage == "done" and not run.converged


def cheapest_first(costs: Sequence[float], scale: float) -> list[int]:
    """Return indices by increasing cost; costs equal up to rounding keep their order.

    Differences are compared with `scale`, the size of the terms of which the costs are sums.
    """
    array = np.asarray(costs)
    unit = EQUALLY_GOOD * scale or 1.0
    steps = np.round((array - array.min()) / unit)
    return [int(index) for index in np.argsort(steps, kind="stable")]


def first_best(values: Sequence[float], scale: float) -> int:
    """Return the index of the smallest value, the first of those equal up to rounding."""
    return cheapest_first(values, scale)[0]
