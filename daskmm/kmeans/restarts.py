"""Restarts of EWP: power k-means from fresh starts, at the feature weights that were learned.

While the weights are being learned, rows still belong to several clusters, and some clusters form
in the wrong place. A fresh start in the weighted space often finds the clusters that were missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.column_trials import ColumnTrials, trials_of
from daskmm.kmeans.empty_clusters import continued
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import Trials, spawned
from daskmm.kmeans.updates import CentersProblem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Outcome, Schedule, first_best, minimize
from daskmm.numerics.distortions.bregman import PLAIN, Metric

# A restart is kept if it lowers the weighted variance within clusters by this share.
_LOWER = 1e-6
# All later hard steps together rarely lower the cost by more than this multiple of the last step's
# gain (measured: 7). Steps end once even that gain would be too small, this many times in a row.
_FALLS_LEFT, _HOPELESS = 8.0, 3


@dataclass(frozen=True)
class Restarts:
    """Run fresh starts on a sample at given feature weights."""

    sample: Sample  # sample in the model's coordinates
    n_starts: int  # number of starts per state
    seed: int
    # Whether to run on the active dask scheduler, or on threads here; one task per restart, or per
    # state if the sample is wide.
    lazy: bool
    metric: Metric = PLAIN  # metric of the rows in the model's coordinates

    def of(self, states: Sequence[CenterState], context: FitContext) -> list[CenterState | None]:
        """Look for better centres at the same feature weights.

        The result is the best restart of each state, ready for hard steps, or None if the state is
        as good. Restarts are compared by Σ_l w_l V_l (1 − R_l), the weighted variance within
        clusters on the sample. If an interrupt stops the fit, no better state is returned.
        """
        trials = trials_of(self.sample, len(self.sample.rows), self.seed, self.metric)
        seeds = spawned(self.seed, self.n_starts)
        groups = [seeds] if trials.wide else [[seed] for seed in seeds]
        tasks = [(state, own) for state in states for own in groups]
        products = math.prod(trials.rows.shape) * len(states[0].centers)
        try:
            found: list[_Found] = tree_reduce(
                _restart, tasks, (trials,), self.lazy, "restart", products
            )
        except KeyboardInterrupt as interrupt:
            context.stop(interrupt)
            return [None for _ in states]
        better: list[CenterState | None] = []
        for first in range(0, len(found), len(groups)):
            own = found[first : first + len(groups)]
            # The same clusters in another order cost the same up to rounding.
            best = own[first_best([one.cost for one in own], own[0].before)]
            better.append(best.state if best.cost < (1.0 - _LOWER) * best.before else None)
        return better


class _Found(NamedTuple):
    """State after a restart, its cost on the sample, and the cost of the state before."""

    state: CenterState
    cost: float
    before: float


def cheaper(
    outcome: Outcome[CenterState],
    problem: CentersProblem,
    state: CenterState,
    schedule: Schedule,
    context: FitContext,
    *,
    while_promising: bool = False,
) -> Outcome[CenterState]:
    """Take hard steps from another state, and return the outcome with the lower cost.

    The given outcome, of a fit over all rows, has converged with iterations left; the schedule's
    `max_iter` limits all iterations together. If the other state is cheaper, the history of the
    best run continues with its iterations. With `while_promising`, the steps end where their cost
    will hardly fall below that of the given outcome.
    """
    later = replace(schedule, s0=-np.inf, max_iter=schedule.max_iter - outcome.n_iter)
    before, cost = len(outcome.run.history), _cost(outcome)
    race = None
    if while_promising:
        race = _MayEndBelow(cost, len(schedule.relaxations))
        # A resumed fit first replays the costs that its earlier run has seen.
        for run in context.journal.recall() or ():
            for record in run.history:
                race([record.inertia / problem.weight])
    again = minimize(problem, [state], later, context, race=race, before=before)
    return outcome if _cost(again) >= cost else continued(outcome, again)


@dataclass
class _MayEndBelow:
    """Continue a start while its hard steps may end below a cost (a `daskmm.mm.driver.Race`)."""

    cost: float  # cost below which the start must end, per unit of weight, without penalty
    # Number of first steps that are taken in any case: the cost of over-relaxed steps falls late.
    patience: int = 0
    before: float = math.inf  # cost at the step before
    hopeless: int = 0  # number of latest steps with too small a gain, in a row

    def __call__(self, costs: Sequence[float]) -> list[int]:
        (now,) = costs
        lowest = now - _FALLS_LEFT * (self.before - now)
        promising = lowest < self.cost or self.patience > 0
        self.before, self.hopeless = now, 0 if promising else self.hopeless + 1
        self.patience -= 1
        return [0] if self.hopeless < _HOPELESS else []


def _restart(
    state: CenterState, seeds: Sequence[int], trials: Trials | ColumnTrials
) -> list[_Found]:
    """Restart once per seed, and return the best (the task function)."""
    assert state.feature_weights is not None
    weights = trials.of_columns(state.feature_weights)
    labelings = trials.with_weights(weights, len(state.centers), seeds)
    before = trials.cost(trials.partition(trials.nearest(state)), weights)
    costs = [trials.cost(trials.partition(labels), weights) for labels in labelings]
    best = first_best(costs, before)
    centers = trials.means(labelings[best], state.centers)
    after = replace(state, centers=centers, s=-np.inf)
    return [_Found(after, costs[best], before)]


def _cost(outcome: Outcome[CenterState]) -> float:
    return outcome.scored.inertia + outcome.scored.penalty
