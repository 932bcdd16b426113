"""A fresh start with the feature weights that an annealing learned.

Weights are learned while rows belong to all clusters, and by the time that the clusters form,
some have formed in the wrong place. With the weights fixed, power k-means anneals once more in
the space that they make, and often finds the clusters that were missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.empty_clusters import continued
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import Trials, nearest, spawned
from daskmm.kmeans.updates import CentersProblem
from daskmm.mm.driver import Callback, IterationRecord, Outcome, Schedule, first_best, minimize
from daskmm.mm.journal import Journal

# A restart is kept when the weighted variance within its clusters is lower by this share.
_LOWER = 1e-6
# Where a journal has the steps that follow.
_RESTARTED = "restarted table"


@dataclass(frozen=True)
class Restarts:
    """Fresh starts on a sample, with feature weights as they are.

    Attributes
    ----------
    sample : Sample
        Rows in the model's coordinates.
    n_starts : int
        Restarts of each state.
    seed : int
    lazy : bool
        Whether to run on the active dask scheduler, or on threads here; one task per restart.
    """

    sample: Sample
    n_starts: int
    seed: int
    lazy: bool

    def of(self, states: Sequence[CenterState], journal: Journal) -> list[CenterState | None]:
        """Better centres for the same feature weights, where a restart finds them.

        Parameters
        ----------
        states : sequence of CenterState
            With feature weights.
        journal : Journal
            Asked to stop by an interrupt, which finds nothing better.

        Returns
        -------
        list of CenterState or None
            Hard states, each the best of its restarts by Σ_l w_l V_l (1 − R_l), the weighted
            variance within clusters on the sample; None where the state was as good.
        """
        trials = Trials.of(self.sample, len(self.sample.rows), self.seed)
        seeds = spawned(self.seed, self.n_starts)
        jobs = [(state, own) for state in states for own in seeds]
        try:
            found: list[_Found] = tree_reduce(_restart, jobs, (trials,), self.lazy, "restart")
        except KeyboardInterrupt as interrupt:
            journal.stop(interrupt)
            return [None for _ in states]
        better: list[CenterState | None] = []
        for first in range(0, len(found), self.n_starts):
            own = found[first : first + self.n_starts]
            # The same clusters in another order cost the same but for rounding.
            best = own[first_best([one.cost for one in own], own[0].before)]
            better.append(best.state if best.cost < (1.0 - _LOWER) * best.before else None)
        return better


class _Found(NamedTuple):
    """A state after a restart, its cost on the sample, and that of the state before."""

    state: CenterState
    cost: float
    before: float


def refined(
    outcome: Outcome[CenterState],
    problem: CentersProblem,
    restarts: Restarts,
    schedule: Schedule,
    callbacks: Sequence[Callback],
    journal: Journal,
) -> Outcome[CenterState]:
    """The outcome of a fit, or what hard steps make of a restart, whichever costs less.

    Parameters
    ----------
    outcome : Outcome
    problem : CentersProblem
        Of all rows.
    restarts : Restarts
    schedule : Schedule
        Of the fit; the iterations that are left of its `max_iter` are taken at most.
    callbacks : sequence of callable
    journal : Journal
        Of the fit, where these iterations are put down too.

    Returns
    -------
    Outcome
        If the restart won, the best run's history goes on where it had ended.
    """
    left = schedule.max_iter - outcome.n_iter
    if left < 1 or not outcome.run.converged:
        return outcome
    (better,) = restarts.of([outcome.run.state], journal)
    if better is None:
        return outcome
    later = replace(schedule, s0=-np.inf, max_iter=left)
    heard = [_from(callback, len(outcome.run.history)) for callback in callbacks]
    again = minimize(
        problem, [better], later, heard, journal.began, journal=journal, stage=_RESTARTED
    )
    if _cost(again, problem) >= _cost(outcome, problem):
        return outcome
    return continued(outcome, again)


def _restart(state: CenterState, seed: int, trials: Trials) -> list[_Found]:
    """Task of one restart."""
    weights = state.feature_weights
    assert weights is not None
    k = len(state.centers)
    (labels,) = trials.with_weights(weights, k, [seed])
    before, found = (trials.partition(own) for own in (nearest(trials.rows, state), labels))
    sizes = np.bincount(labels, trials.weights, minlength=k)
    sums = np.zeros_like(state.centers)
    np.add.at(sums, labels, trials.weights[:, None] * trials.rows)
    occupied = sizes > 0
    centers = state.centers.copy()
    centers[occupied] = sums[occupied] / sizes[occupied, None]
    after = replace(state, centers=centers, s=-np.inf)
    return [_Found(after, trials.cost(found, weights), trials.cost(before, weights))]


def _cost(outcome: Outcome[CenterState], problem: CentersProblem) -> float:
    return outcome.scored.inertia + problem.update.penalty(outcome.run.state)


def _from(callback: Callback, offset: int) -> Callback:
    """A callback to which iterations are counted from a later one on."""

    def call(record: IterationRecord) -> object:
        return callback(replace(record, iteration=record.iteration + offset))

    return call
