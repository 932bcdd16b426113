"""The MM driver: annealing, stopping, history and callbacks.

It knows neither the data nor the algorithm: a `Problem` takes the steps, one reading of the data
for all starts together, and the driver decides at which power, and when to stop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from daskmm.mm.journal import Journal, Pace
from daskmm.mm.problem import IterationRecord, Problem, Run, S, Step

__all__ = [
    "TABLE",
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

# A relative change below the tolerance has to be seen this many times in a row.
CALM_ITERATIONS = 3
# Memberships are nearly hard when nearest centres hold this share of the weight.
HARDNESS = 0.99
# Convergence is tested only this far past the critical power, and past this power.
MARGIN = 2.0
LEAST_POWER = -2.0
# Share of the objective's terms by which equally good starts may differ.
EQUALLY_GOOD = 1e-9
# The stage of a fit whose iterations read the table itself.
TABLE = "table"


Callback = Callable[[IterationRecord], object]
Race = Callable[[Sequence[float]], Sequence[int]]


@dataclass(frozen=True)
class Schedule:
    """How the power falls, and when to stop.

    Attributes
    ----------
    s0 : float
        First power; −∞ for Lloyd's algorithm.
    eta : float
        Factor of the power, ≥ 1; 1 keeps it constant.
    anneal_every : int
        Iterations per value of the power.
    polish : bool
        Whether Lloyd steps follow the annealing.
    max_iter : int
        Iterations over the data, polish included.
    tol : float
        Relative change that counts as none.
    critical_power : float
        s_crit; the objective stands still above it, which is no convergence.
    calm : int
        Iterations in a row without a change worth the name that end a stage.
    """

    s0: float
    eta: float = 1.0
    anneal_every: int = 1
    polish: bool = False
    max_iter: int = 300
    tol: float = 1e-4
    critical_power: float = 0.5
    calm: int = CALM_ITERATIONS

    def power(self, iteration: int) -> float:
        """The power of annealing iteration `iteration`, counted from 0."""
        with np.errstate(over="ignore"):
            return float(self.s0 * np.float64(self.eta) ** (iteration // self.anneal_every))


@dataclass(frozen=True)
class Outcome(Generic[S]):
    """The best start, scored.

    Attributes
    ----------
    runs : list of Run
        All starts, in order.
    best : int
        Index of the best one.
    inertia : float
        Σ_i min_j d_ij at its final state.
    scored : Step
        The hard step there.
    """

    runs: list[Run[S]]
    best: int
    inertia: float
    scored: Step[S]

    @property
    def run(self) -> Run[S]:
        """The best start."""
        return self.runs[self.best]

    @property
    def n_iter(self) -> int:
        """Iterations over the data."""
        return max(len(run.history) for run in self.runs)


def minimize(
    problem: Problem[S],
    starts: Sequence[Any],
    schedule: Schedule,
    callbacks: Sequence[Callback] = (),
    began: float | None = None,
    race: Race | None = None,
    journal: Journal | None = None,
    stage: str = TABLE,
) -> Outcome[S]:
    """Advance all starts together, one reading of the data per iteration; return the best.

    Parameters
    ----------
    problem : Problem
    starts : sequence
        What `problem` can start from, or runs to go on with.
    schedule : Schedule
    callbacks : sequence of callable
        Each called once per iteration with the record of the leading start. One that raises
        StopIteration ends the fit after this iteration.
    began : float, optional
        ``time.perf_counter()`` at the beginning of the fit.
    race : callable, optional
        Given the costs of all starts after each iteration, the indices of those that are worth
        another one. Of hard steps only: the others end where they are, their cost known.
    journal : Journal, optional
        Where to put down what each iteration has led to, and what is gone on from.
    stage : str
        Its name there.

    Returns
    -------
    Outcome
    """
    runs = iterate(problem, starts, schedule, callbacks, began, race, journal, stage=stage)
    return _score(problem, runs, journal, stage)


def iterate(
    problem: Problem[S],
    starts: Sequence[Any],
    schedule: Schedule,
    callbacks: Sequence[Callback] = (),
    began: float | None = None,
    race: Race | None = None,
    journal: Journal | None = None,
    stage: str = TABLE,
    until: Pace | None = None,
) -> list[Run[S]]:
    """What `minimize` does, without the choice among the starts.

    Parameters
    ----------
    problem, starts, schedule, callbacks, began, race
        As in `minimize`.
    journal : Journal, optional
        Without one, an interrupt is not held back.
    stage : str
        The name under which it knows these runs.
    until : Pace, optional
        Leave off after so much work, all runs where they are.

    Returns
    -------
    list of Run
        Those of the last whole iteration, where the user interrupts one.
    """
    began = time.perf_counter() if began is None else began
    kept = Journal() if journal is None else journal
    runs = [_on_its_way(problem, start, schedule) for start in kept.recall(stage) or starts]
    n_iter = first = max(len(run.history) for run in runs)
    entered = time.monotonic()
    try:
        while n_iter < schedule.max_iter and kept.stopped is None:
            active = [index for index, run in enumerate(runs) if run.stage != "done"]
            if not active or (
                until is not None and n_iter > first and until.due(n_iter - first, entered)
            ):
                break
            steps = problem.steps([runs[index].state for index in active])
            n_iter += 1
            taken = dict(zip(active, steps, strict=True))
            # All at once: whatever interrupts it, the runs are those of one iteration.
            runs = _after(runs, taken, schedule, problem, time.perf_counter() - began, race)
            kept.keep(stage, runs)
            scale = max(step.inertia + abs(step.penalty) for step in steps)
            leader = runs[active[first_best([runs[index].last for index in active], scale)]]
            logger.debug("%s", leader.history[-1])
            kept.tell(leader.history[-1], callbacks)
    except KeyboardInterrupt as interrupt:
        if journal is None:
            raise
        journal.stop(interrupt)
    return runs


def _on_its_way(problem: Problem[S], start: Any, schedule: Schedule) -> Run[S]:
    """A run that begins, or one that is gone on with."""
    if not isinstance(start, Run):
        stage = "hard" if schedule.s0 == -np.inf else "anneal"
        return Run(problem.start(start, schedule.s0), stage)
    s = start.state.s
    if start.stage == "anneal" and len(start.history) < schedule.max_iter:
        # Where it had come to its last iteration, and is now allowed more, s has not fallen yet.
        s = schedule.power(len(start.history))
    return replace(start, state=problem.start(start.state, s))


def _after(
    runs: Sequence[Run[S]],
    taken: dict[int, Step[S]],
    schedule: Schedule,
    problem: Problem[S],
    seconds: float,
    race: Race | None,
) -> list[Run[S]]:
    """All runs after an iteration, in which some took a step."""
    after = list(runs)
    for index, step in taken.items():
        run = runs[index]
        record = _record(run, step, problem, seconds)
        told = replace(run, history=[*run.history, record], scored=None)
        after[index] = advanced(told, step, schedule, problem)
    if race is not None:
        # The losers end where they stood: that cost is known.
        for index in set(taken) - set(race([run.last for run in after])):
            if after[index].stage != "done":
                lost, step = runs[index].state, taken[index]
                after[index] = replace(after[index], stage="done", state=lost, scored=step)
    return after


def _record(run: Run[S], step: Step[S], problem: Problem[S], seconds: float) -> IterationRecord:
    return IterationRecord(
        iteration=len(run.history) + 1,
        stage=run.stage,
        s=run.state.s,
        objective=step.objective + step.penalty,
        inertia=step.inertia * problem.weight,
        shift=step.shift,
        n_passes=problem.n_passes,
        seconds=seconds,
        coincident_centers=step.coincident_centers,
        exact=problem.exact,
    )


def advanced(run: Run[S], step: Step[S], schedule: Schedule, problem: Problem[S]) -> Run[S]:
    """A run at the state after a step, with the power that the schedule says."""
    # f_s itself is the test only where s is constant; while s falls, it never stands still.
    cost = step.objective if schedule.eta == 1.0 else step.inertia
    change = abs(run.last - (cost + step.penalty))
    negligible = schedule.tol * (cost + abs(step.penalty)) + problem.rounding
    calm = run.calm + 1 if change <= negligible else 0
    run = replace(run, last=cost + step.penalty, calm=calm)
    power = step.state.s
    if run.stage == "hard":
        if calm >= schedule.calm or not step.moved:
            # It ends where it stood: the cost of that state is known without another pass.
            return replace(run, stage="done", converged=True, scored=step)
    elif calm >= schedule.calm and _annealed(step, schedule, problem.splitting_power):
        stage = "hard" if schedule.polish else "done"
        power = -np.inf if schedule.polish else power
        run = replace(run, calm=0, converged=not schedule.polish, stage=stage)
    elif len(run.history) < schedule.max_iter:
        power = schedule.power(len(run.history))
    return replace(run, state=_at_power(step.state, power))


def _at_power(state: S, s: float) -> S:
    return replace(state, s=s)  # type: ignore[type-var]


def _annealed(step: Step[S], schedule: Schedule, splitting_power: float) -> bool:
    """Whether the annealing has nothing left to decide, now that the objective stands still.

    It also does so while centres sit together at a mean. So this counts only well past the
    critical power, when memberships are nearly hard; and while centres coincide, only beyond
    the power at which they would have parted.
    """
    if schedule.tol == 0.0:
        return False
    if schedule.eta == 1.0:
        return True
    threshold = min(MARGIN * schedule.critical_power, LEAST_POWER)
    if step.coincident_centers:
        threshold = min(threshold, MARGIN * splitting_power)
    return step.state.s <= threshold and step.hardness >= HARDNESS


def _score(
    problem: Problem[S], runs: list[Run[S]], journal: Journal | None, stage: str
) -> Outcome[S]:
    """Hard cost of the final states, in one pass where it is not known; the cheapest wins."""
    if unscored := [index for index, run in enumerate(runs) if run.scored is None]:
        if journal is not None and isinstance(journal.stopped, KeyboardInterrupt):
            logger.warning(
                "Interrupted; one more reading of the data tells what the model costs. Interrupt "
                "again to do without the model."
            )
        steps = problem.steps([_at_power(runs[index].state, -np.inf) for index in unscored])
        runs = list(runs)
        for index, step in zip(unscored, steps, strict=True):
            runs[index] = replace(runs[index], scored=step)
        if journal is not None and journal.stopped is None:
            journal.keep(stage, runs, iterations=0)
    scored = [run.scored for run in runs if run.scored is not None]
    scale = max(step.inertia + abs(step.penalty) for step in scored)
    best = first_best([step.inertia + step.penalty for step in scored], scale)
    return Outcome(runs, best, scored[best].inertia * problem.weight, scored[best])


def cheapest_first(costs: Sequence[float], scale: float) -> list[int]:
    """Indices by increasing cost; those that differ by rounding alone keep their order.

    Starts that end alike are told apart by their order, not by the last bit of a sum.

    Parameters
    ----------
    costs : sequence of float
    scale : float
        Size of the terms that costs are sums of.
    """
    array = np.asarray(costs)
    unit = EQUALLY_GOOD * scale or 1.0
    steps = np.round((array - array.min()) / unit)
    return [int(index) for index in np.argsort(steps, kind="stable")]


def first_best(values: Sequence[float], scale: float) -> int:
    """Index of the smallest value, the first of those that differ by no more than rounding."""
    return cheapest_first(values, scale)[0]
