"""Move centres whose cluster is empty, or that coincide with another centre."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, repeated_centers
from daskmm.mm.context import FitContext
from daskmm.mm.driver import EQUALLY_GOOD, Outcome, Run, Schedule, minimize

FloatArray = NDArray[np.float64]


def split_coincident(
    problem: CentersProblem,
    outcome: Outcome[CenterState],
    schedule: Schedule,
    context: FitContext,
) -> tuple[Outcome[CenterState], int]:
    """Move coincident centres as if their clusters were empty, and take hard steps once more.

    Nothing is done unless the schedule ends in hard steps and iterations are left. The new outcome
    is returned if it costs less, the given one otherwise, with the number of centres that were
    moved.
    """
    left = schedule.max_iter - outcome.n_iter
    coincident = outcome.scored.coincident_centers
    if not (coincident and schedule.polish and schedule.tol > 0 and left > 0):
        return outcome, 0
    before = replace(outcome.run.state, s=-np.inf)
    sums = problem.sums([before])[0]
    spare = repeated_centers(before, problem.yardstick(sums))
    # Clusters of coincident centres count as empty: their rows cost almost the same at the centres
    # with which these coincide.
    emptied = replace(sums, weights=np.where(spare, 0.0, sums.weights))
    centers = problem.update.placed(before.centers, emptied, before)
    n_split = int((centers != before.centers).any(axis=1).sum())
    if not n_split:
        return outcome, 0
    hard = Schedule(-np.inf, max_iter=left, tol=schedule.tol)
    polished = minimize(problem, [replace(before, centers=centers)], hard, context)
    costs = [step.inertia + step.penalty for step in (outcome.scored, polished.scored)]
    scale = max(abs(step.inertia) + abs(step.penalty) for step in (outcome.scored, polished.scored))
    # If no more rows than centres are distinct, the gain is a rounding error.
    if costs[0] - costs[1] <= max(EQUALLY_GOOD * scale, problem.rounding):
        return outcome, 0
    return continued(outcome, polished), n_split


def continued(outcome: Outcome[CenterState], then: Outcome[CenterState]) -> Outcome[CenterState]:
    """Return an outcome whose best run continues with that of a later outcome."""
    first, second = outcome.run, then.run
    later = [
        replace(record, iteration=len(first.history) + record.iteration)
        for record in second.history
    ]
    run = Run(second.state, second.stage, [*first.history, *later], second.converged)
    runs = [run if index == outcome.best else other for index, other in enumerate(outcome.runs)]
    return Outcome(runs, outcome.best, then.inertia, then.scored)
