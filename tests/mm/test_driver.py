"""The driver's rules: when a stage ends, and which run is the best."""

from dataclasses import dataclass

import numpy as np
import pytest

from daskmm.mm.driver import (
    EQUALLY_GOOD,
    Outcome,
    Schedule,
    advanced,
    cheapest_first,
    first_best,
    iterate,
    minimize,
)
from daskmm.mm.journal import Pace
from daskmm.mm.problem import Run, Step


@dataclass(frozen=True)
class Power:
    s: float


class Problem:
    splitting_power = -1.0
    hard_stage = "hard"
    rounding = 0.0
    weight, n_passes, exact = 1.0, 0, True

    def start(self, start, s):
        return Power(s)

    def steps(self, states):
        self.n_passes += 1
        return [step(state.s, 5.0 / self.n_passes) for state in states]


def step(s, inertia, hardness=1.0, moved=True, n_clusters=2, coincident=0):
    return Step(
        state=Power(s),
        objective=inertia,
        inertia=inertia,
        penalty=0.0,
        hardness=hardness,
        cluster_weights=np.ones(n_clusters),
        shift=0.1,
        moved=moved,
        coincident_centers=coincident,
    )


def test_each_stage_needs_calm_steps_of_its_own():
    schedule = Schedule(-2.0, 1.1, polish=True, tol=1e-3, critical_power=-1.0, calm=2)
    run = Run(Power(-50.0), "anneal", last=5.0)
    seen = []
    for inertia in (5.0, 5.0, 5.0, 4.0, 4.0, 4.0):
        run = advanced(run, step(run.state.s, inertia), schedule, Problem(), 0.0)
        seen.append((run.stage, run.calm, run.state.s == -np.inf))
    assert seen == [
        ("anneal", 1, False),
        ("hard", 0, True),
        ("hard", 1, True),
        ("hard", 0, True),
        ("hard", 1, True),
        ("done", 2, True),
    ]
    assert run.converged


@pytest.mark.parametrize(
    ("s", "hardness", "ends"), [(-50.0, 1.0, True), (-50.0, 0.1, False), (-1.01, 1.0, False)]
)
def test_an_annealing_ends_when_memberships_are_hard_and_the_power_is_low(s, hardness, ends):
    schedule = Schedule(-1.0, 1.1, polish=False, tol=1e-3, critical_power=-1.0, calm=1)
    before, last = Run(Power(s), "anneal", last=5.0), step(s, 5.0, hardness)
    run = advanced(before, last, schedule, Problem(), 0.0)
    assert (run.stage, run.converged) == (("done", True) if ends else ("anneal", False))


@pytest.mark.parametrize(
    ("n_clusters", "coincident", "polish", "ends"),
    [(99, 1, True, False), (300, 3, True, True), (300, 4, True, False), (300, 3, False, False)],
)
def test_few_of_many_centres_that_coincide_are_left_to_hard_steps(
    n_clusters, coincident, polish, ends
):
    schedule = Schedule(-1.0, 1.1, polish=polish, tol=1e-3, critical_power=-1.0, calm=1)
    problem = Problem()
    problem.splitting_power = -30.0
    for s, ended in ((-50.0, ends), (-60.1, True)):
        last = step(s, 5.0, n_clusters=n_clusters, coincident=coincident)
        run = advanced(Run(Power(s), "anneal", last=5.0), last, schedule, problem, 0.0)
        assert (run.stage != "anneal") == ended


def test_a_hard_step_that_moves_nothing_is_the_last():
    run = Run(Power(-np.inf), "hard", last=9.0)
    last = step(-np.inf, 5.0, moved=False)
    ended = advanced(run, last, Schedule(-np.inf, calm=3), Problem(), 0.0)
    assert (ended.stage, ended.scored, ended.state) == ("done", last, run.state)


def test_a_change_that_is_only_rounding_counts_as_none():
    problem, schedule = Problem(), Schedule(-np.inf, tol=1e-9, calm=3)
    problem.rounding = 0.1
    run = Run(Power(-np.inf), "hard", last=5.0)
    assert advanced(run, step(-np.inf, 4.95), schedule, problem, 0.0).calm == 1
    assert advanced(run, step(-np.inf, 4.85), schedule, problem, 0.0).calm == 0


class Noise(Problem):
    """Costs of two starts that differ by rounding: 2 and 3 at first, 4 for the first one later."""

    def steps(self, states):
        self.n_passes += 1
        costs = [2e-20, 3e-20] if len(states) == 2 else [4e-20]
        return [step(-np.inf, cost, moved=self.n_passes < 3) for cost in costs]


def test_a_start_that_lost_by_rounding_alone_has_converged():
    for max_iter, converged in ((300, True), (2, False)):
        schedule = Schedule(-np.inf, max_iter=max_iter, tol=0.0)
        outcome = minimize(Noise(), [None, None], schedule, race=lambda costs: [0])
        assert outcome.best == 1
        assert outcome.run.converged == converged


def test_a_continued_run_takes_as_many_iterations_as_its_pace_says():
    schedule = Schedule(-np.inf, tol=0.0, max_iter=20)
    (run,) = iterate(Problem(), [None], schedule, until=Pace(iterations=4))
    assert len(run.history) == 4
    (run,) = iterate(Problem(), [run], schedule, until=Pace(iterations=4))
    assert len(run.history) == 8
    (run,) = iterate(Problem(), [run], schedule)
    assert len(run.history) == 20


def test_costs_that_differ_by_rounding_keep_their_order():
    costs = [2.0, 1.0 + 1e-15, 1.0, 1.5]
    assert cheapest_first(costs, 1.0) == [1, 2, 3, 0]
    assert first_best(costs, 1.0) == 1
    assert cheapest_first([0.0, 0.0], 0.0) == [0, 1]


def test_costs_equal_to_the_lowest_up_to_rounding_keep_their_order():
    costs = EQUALLY_GOOD * np.array([0.4, 0.0, 100.8])
    assert cheapest_first(costs, 1.0) == [0, 1, 2]


def test_a_fit_has_as_many_iterations_as_its_longest_run():
    lengths = (2, 5, 3)
    runs = [Run(Power(-1.0), "done", history=[None] * length) for length in lengths]
    assert Outcome(runs, 0, 1.0, step(-1.0, 1.0)).n_iter == 5
