"""The MM driver: annealing, stopping, history and callbacks.

It knows neither the data nor the algorithm: a `Problem` takes the steps, one reading of the data
for all starts together, and the driver decides at which power, and when to stop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

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


class State(Protocol):
    """State of one start: a frozen dataclass with the power `s` of its next step."""

    @property
    def s(self) -> float:
        """The power; −∞ for a hard step."""


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Step(Generic[S]):
    """What one reading of the data told of a state, and the state that follows.

    Attributes
    ----------
    state : State
        After the step, at the same power.
    objective : float
        Mean over the rows (by sample weight) of M_s at the state before.
    inertia : float
        Mean of the smallest distance at the state before.
    penalty : float
        What f adds to them.
    hardness : float
        Mean share of a row's weight that its nearest centre holds.
    cluster_weights : ndarray of shape (n_clusters,)
        Σφ per cluster; after a hard step, the sample weight it serves.
    shift : float
        Largest distance that a centre moved.
    moved : bool
        Whether anything changed at all.
    coincident_centers : int
        Centres of the state before that lie on another one.
    """

    state: S
    objective: float
    inertia: float
    penalty: float
    hardness: float
    cluster_weights: FloatArray
    shift: float
    moved: bool
    coincident_centers: int


class Problem(Protocol[S]):
    """Data and algorithm, as the driver sees them."""

    # Sum of the sample weights.
    weight: float
    # Power below which no group of coincident centres can stay together.
    splitting_power: float
    # Mean distance that is nothing but rounding.
    rounding: float
    # Whether steps are taken over all rows, in the model's own distance.
    exact: bool

    @property
    def n_passes(self) -> int:
        """Sweeps over the data so far."""

    def start(self, start: Any, s: float) -> S:
        """State at a start and a power."""

    def steps(self, states: Sequence[S]) -> list[Step[S]]:
        """One MM step of each state, in one reading of the data."""


@dataclass(frozen=True)
class IterationRecord:
    """What one MM iteration over the data saw and did.

    Attributes
    ----------
    iteration : int
        Counted from 1.
    stage : {"anneal", "hard"}
        Whether the step was taken at a finite power, or was Lloyd's.
    s : float
        The power of the step; −∞ in the hard stage.
    objective : float
        f per unit of sample weight, at the state with which the iteration began.
    inertia : float
        Σ_i min_j d_ij at that state.
    shift : float
        Largest distance that a centre moved, in the model's coordinates.
    n_passes : int
        Sweeps over the data so far.
    seconds : float
        Since the fit began.
    coincident_centers : int
        Centres of that state that lie on another one.
    exact : bool
        Whether the step was taken over all rows and in the model's own distance; False for the
        annealing on a sample, or on low-rank features.
    """

    iteration: int
    stage: str
    s: float
    objective: float
    inertia: float
    shift: float
    n_passes: int
    seconds: float
    coincident_centers: int
    exact: bool


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


@dataclass
class Run(Generic[S]):
    """One start on its way.

    Attributes
    ----------
    state : State
        Its power is that of the next step; once done, of the last.
    stage : {"anneal", "hard", "done"}
    history : list of IterationRecord
    converged : bool
    calm : int
        Iterations in a row without a change worth the name.
    last : float
        The value whose change is watched, in the last iteration.
    scored : Step or None
        The hard step at the final state, where it has been taken.
    """

    state: S
    stage: str
    history: list[IterationRecord] = field(default_factory=list)
    converged: bool = False
    calm: int = 0
    last: float = np.inf
    scored: Step[S] | None = None


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
) -> Outcome[S]:
    """Advance all starts together, one reading of the data per iteration; return the best.

    Parameters
    ----------
    problem : Problem
    starts : sequence
        What `problem` can start from.
    schedule : Schedule
    callbacks : sequence of callable
        Each called once per iteration with the record of the leading start.
    began : float, optional
        ``time.perf_counter()`` at the beginning of the fit.
    race : callable, optional
        Given the costs of all starts after each iteration, the indices of those that are worth
        another one. Of hard steps only: the others end where they are, their cost known.

    Returns
    -------
    Outcome
    """
    runs = iterate(problem, starts, schedule, callbacks, began, race)
    return _score(problem, runs)


def iterate(
    problem: Problem[S],
    starts: Sequence[Any],
    schedule: Schedule,
    callbacks: Sequence[Callback] = (),
    began: float | None = None,
    race: Race | None = None,
) -> list[Run[S]]:
    """What `minimize` does, without the choice among the starts.

    Parameters
    ----------
    problem, starts, schedule, callbacks, began, race
        As in `minimize`.

    Returns
    -------
    list of Run
    """
    began = time.perf_counter() if began is None else began
    stage = "hard" if schedule.s0 == -np.inf else "anneal"
    runs = [Run(problem.start(start, schedule.s0), stage) for start in starts]
    n_iter = 0
    while n_iter < schedule.max_iter and (active := [r for r in runs if r.stage != "done"]):
        states = [run.state for run in active]
        steps = problem.steps(states)
        n_iter += 1
        seconds = time.perf_counter() - began
        for run, step in zip(active, steps, strict=True):
            record = _record(run, step, problem, seconds)
            run.history.append(record)
            advance(run, step, schedule, problem)
        scale = max(step.inertia + abs(step.penalty) for step in steps)
        leader = active[first_best([run.last for run in active], scale)].history[-1]
        logger.debug("%s", leader)
        for callback in callbacks:
            callback(leader)
        if race is not None:
            _end_losers(runs, list(zip(active, states, steps, strict=True)), race)
    return runs


def _end_losers(runs: list[Run[S]], taken: list[tuple[Run[S], S, Step[S]]], race: Race) -> None:
    """End the starts that a race has lost, where they stood: that cost is known."""
    worth = set(race([run.last for run in runs]))
    losers = {id(run) for index, run in enumerate(runs) if index not in worth}
    for run, before, step in taken:
        if id(run) in losers and run.stage != "done":
            run.stage, run.state, run.scored = "done", before, step


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


def advance(run: Run[S], step: Step[S], schedule: Schedule, problem: Problem[S]) -> None:
    """Go on to the state after a step, and look at the schedule for its power."""
    # f_s itself is the test only where s is constant; while s falls, it never stands still.
    cost = step.objective if schedule.eta == 1.0 else step.inertia
    change = abs(run.last - (cost + step.penalty))
    run.last = cost + step.penalty
    negligible = schedule.tol * (cost + abs(step.penalty)) + problem.rounding
    run.calm = run.calm + 1 if change <= negligible else 0
    power = step.state.s
    if run.stage == "hard":
        if run.calm >= schedule.calm or not step.moved:
            # It ends where it stood: the cost of that state is known without another pass.
            run.stage, run.converged, run.scored = "done", True, step
            return
    elif run.calm >= schedule.calm and _annealed(step, schedule, problem.splitting_power):
        run.calm = 0
        run.converged = not schedule.polish
        run.stage = "hard" if schedule.polish else "done"
        power = -np.inf if schedule.polish else power
    elif len(run.history) < schedule.max_iter:
        power = schedule.power(len(run.history))
    run.state = _at_power(step.state, power)


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


def _score(problem: Problem[S], runs: list[Run[S]]) -> Outcome[S]:
    """Hard cost of the final states, in one pass where it is not known; the cheapest wins."""
    if unscored := [run for run in runs if run.scored is None]:
        steps = problem.steps([_at_power(run.state, -np.inf) for run in unscored])
        for run, step in zip(unscored, steps, strict=True):
            run.scored = step
    scored = [run.scored for run in runs if run.scored is not None]
    scale = max(step.inertia + abs(step.penalty) for step in scored)
    best = first_best([step.inertia + step.penalty for step in scored], scale)
    return Outcome(runs, best, scored[best].inertia * problem.weight, scored[best])


def first_best(values: Sequence[float], scale: float) -> int:
    """Index of the smallest value, the first of those that differ by no more than rounding.

    Starts that end alike are told apart by their order, not by the last bit of a sum.
    """
    array = np.asarray(values)
    return int(np.flatnonzero(array <= array.min() + EQUALLY_GOOD * scale)[0])
