"""The MM driver: annealing, stopping, history and callbacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.rows import Coordinates
from daskmm.passes import Passes, Position
from daskmm.stats import CandidateSums, CenterState, CenterSums, candidate_sums
from daskmm.updates import coincident_centers

FloatArray = NDArray[np.float64]

logger = logging.getLogger("daskmm")

# A relative change below the tolerance has to be seen this many times in a row.
CALM_ITERATIONS = 3
# Memberships are nearly hard when nearest centres hold this share of the weight.
HARDNESS = 0.99
# Convergence is tested only this far past the critical power, and past this power.
MARGIN = 2.0
LEAST_POWER = -2.0


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
        Centres that lie on another one after the step.
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


Callback = Callable[[IterationRecord], object]


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
    """

    s0: float
    eta: float = 1.0
    anneal_every: int = 1
    polish: bool = False
    max_iter: int = 300
    tol: float = 1e-4
    critical_power: float = 0.5

    def power(self, iteration: int) -> float:
        """The power of annealing iteration `iteration`, counted from 0."""
        with np.errstate(over="ignore"):
            return float(self.s0 * np.float64(self.eta) ** (iteration // self.anneal_every))


class Model(Protocol):
    """What differs between the centre-based algorithms: the state's update and its penalty."""

    def start(self, centers: FloatArray, s: float) -> CenterState:
        """State at given centres and power."""

    def update(self, sums: CenterSums, state: CenterState, weight: float) -> CenterState:
        """State that minimises the majorizing function given by `sums`."""

    def penalty(self, state: CenterState) -> float:
        """What the objective adds to the mean of the power means."""


@dataclass
class Run:
    """One start on its way.

    Attributes
    ----------
    state : CenterState
        Its power is that of the next step; once done, of the last.
    stage : {"anneal", "hard", "done"}
    history : list of IterationRecord
    converged : bool
    calm : int
        Iterations in a row without a change worth the name.
    last : float
        The value whose change is watched, in the last iteration.
    """

    state: CenterState
    stage: str
    history: list[IterationRecord] = field(default_factory=list)
    converged: bool = False
    calm: int = 0
    last: float = np.inf


@dataclass(frozen=True)
class Outcome:
    """The best start, scored.

    Attributes
    ----------
    run : Run
    objective : float
        Hard objective per unit of sample weight at the final state.
    inertia : float
        Σ_i min_j d_ij at the final state.
    cluster_weights : ndarray of shape (n_clusters,)
        Sample weight of the rows nearest to each centre.
    n_iter : int
        Iterations over the data.
    """

    run: Run
    objective: float
    inertia: float
    cluster_weights: FloatArray
    n_iter: int


def minimize(
    passes: Passes,
    model: Model,
    coordinates: Coordinates,
    weight: float,
    starts: Sequence[FloatArray],
    schedule: Schedule,
    callbacks: Sequence[Callback] = (),
    began: float | None = None,
) -> Outcome:
    """Advance all starts together, one reading of the data per iteration; return the best.

    Parameters
    ----------
    passes : Passes
    model : Model
    coordinates : Coordinates
    weight : float
        Sum of the sample weights.
    starts : sequence of ndarray of shape (n_clusters, n_features)
    schedule : Schedule
    callbacks : sequence of callable
        Each called once per iteration with the record of the leading start.
    began : float, optional
        ``time.perf_counter()`` at the beginning of the fit.

    Returns
    -------
    Outcome
    """
    began = time.perf_counter() if began is None else began
    stage = "hard" if schedule.s0 == -np.inf else "anneal"
    runs = [Run(model.start(centers, schedule.s0), stage) for centers in starts]
    n_iter = 0
    while n_iter < schedule.max_iter and (active := [r for r in runs if r.stage != "done"]):
        states = tuple(run.state for run in active)
        sums: CandidateSums = passes.reduce(mm_step, coordinates, states)
        n_iter += 1
        seconds = time.perf_counter() - began
        for run, candidate in zip(active, sums.candidates, strict=True):
            advance(run, candidate, model, schedule, weight, passes.n_passes, seconds)
        leader = min(active, key=lambda run: run.last).history[-1]
        logger.debug("%s", leader)
        for callback in callbacks:
            callback(leader)
    return _score(passes, model, coordinates, weight, runs, n_iter)


def advance(
    run: Run,
    sums: CenterSums,
    model: Model,
    schedule: Schedule,
    weight: float,
    n_passes: int,
    seconds: float,
) -> None:
    """Take one MM step with the sums that a pass brought, then look at the schedule."""
    before, history = run.state, run.history
    state = model.update(sums, before, weight)
    penalty = model.penalty(before)
    objective, inertia = sums.objective / weight, sums.inertia / weight
    shift = float(np.sqrt(np.square(state.centers - before.centers).sum(axis=1).max()))
    coincident = coincident_centers(state.centers, state.feature_weights, inertia)
    record = IterationRecord(
        iteration=len(history) + 1,
        stage=run.stage,
        s=before.s,
        objective=objective + penalty,
        inertia=sums.inertia,
        shift=shift,
        n_passes=n_passes,
        seconds=seconds,
        coincident_centers=coincident,
    )
    history.append(record)
    run.state = state
    # f_s itself is the test only where s is constant; while s falls, it never stands still.
    cost = objective if schedule.eta == 1.0 else inertia
    change = abs(run.last - (cost + penalty))
    run.last = cost + penalty
    run.calm = run.calm + 1 if change <= schedule.tol * (cost + abs(penalty)) else 0
    if run.stage == "hard":
        if run.calm >= CALM_ITERATIONS or _unmoved(before, state):
            run.stage, run.converged = "done", True
    elif _annealed(run, record, schedule, sums.hardness / weight):
        run.calm = 0
        run.converged = not schedule.polish
        run.stage = "hard" if schedule.polish else "done"
        if schedule.polish:
            run.state = replace(state, s=-np.inf)
    elif len(history) < schedule.max_iter:
        run.state = replace(state, s=schedule.power(len(history)))


def _unmoved(before: CenterState, after: CenterState) -> bool:
    """Whether a step changed nothing at all, so that no later one will."""
    if not np.array_equal(before.centers, after.centers):
        return False
    if before.feature_weights is None or after.feature_weights is None:
        return True
    return np.array_equal(before.feature_weights, after.feature_weights)


def _annealed(run: Run, record: IterationRecord, schedule: Schedule, hardness: float) -> bool:
    """Whether the annealing has nothing left to decide.

    The objective also stands still while centres sit together at a mean, so a small change
    counts only well past the critical power, when memberships are nearly hard. While centres
    coincide, only beyond the power at which no group of them can stay together: 1 − p/2.
    """
    if schedule.tol == 0.0 or run.calm < CALM_ITERATIONS:
        return False
    if schedule.eta == 1.0:
        return True
    threshold = min(MARGIN * schedule.critical_power, LEAST_POWER)
    if record.coincident_centers:
        threshold = min(threshold, MARGIN * (1.0 - run.state.centers.shape[1] / 2.0))
    return record.s <= threshold and hardness >= HARDNESS


def _score(
    passes: Passes,
    model: Model,
    coordinates: Coordinates,
    weight: float,
    runs: list[Run],
    n_iter: int,
) -> Outcome:
    """Hard cost of every start's final state, in one pass; the cheapest wins."""
    states = tuple(replace(run.state, s=-np.inf) for run in runs)
    sums: CandidateSums = passes.reduce(mm_step, coordinates, states)
    objectives = [
        candidate.inertia / weight + model.penalty(run.state)
        for candidate, run in zip(sums.candidates, runs, strict=True)
    ]
    best = int(np.argmin(objectives))
    winner = sums.candidates[best]
    return Outcome(runs[best], objectives[best], winner.inertia, winner.weights, n_iter)


def mm_step(
    rows: NDArray,
    weights: NDArray | None,
    position: Position,
    coordinates: Coordinates,
    states: tuple[CenterState, ...],
) -> CandidateSums:
    """Kernel of an iteration: `candidate_sums` of one block."""
    return candidate_sums(rows, weights, coordinates, states)
