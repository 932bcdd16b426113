"""The time that a fit will still take, by clocks that are set by hand."""

import math

import numpy as np
import pytest

from daskmm.cluster._time_left import TimeLeft
from daskmm.mean_shift.blurring import BlurringRecord, Progress
from daskmm.mm.driver import IterationRecord, Run

PLAN = {"first pass": 1.0, "starting centres": 4.0, "annealing": 10.0, "passes": 5.0}


def clocked(plan=PLAN, tol=1e-4):
    left = TimeLeft(300)
    left.expect(plan, tol)
    return left


def run(powers, costs=None, stage="anneal"):
    costs = [1.0] * len(powers) if costs is None else costs
    records = zip(powers, costs, strict=True)
    history = [
        IterationRecord(
            number, "hard" if s == -math.inf else "anneal", s, cost, 1, 0, 1, 0, 0, True
        )
        for number, (s, cost) in enumerate(records, 1)
    ]
    return Run(None, stage, history)


def test_stages_to_come_are_as_slow_as_those_that_were():
    left = clocked()
    assert left.seconds(100.0) is None
    left.follow("first pass", None, 100.0)
    assert left.seconds(100.0) == pytest.approx(20.0)
    left.follow("starting centres", None, 103.0)
    left.follow("annealing", None, 115.0)
    # Three times as slow as planned so far, up to the trust that the plan enjoys.
    assert left.seconds(115.0) == pytest.approx(45.0, rel=0.1)


def test_a_stage_far_along_is_told_by_its_own_pace():
    left = clocked()
    left.follow("first pass", None, 0.0)
    left.follow("starting centres", None, 1.0)
    for done in (0.25, 0.5):
        left.follow("starting centres", done, 1.0 + 40.0 * done)
        assert left.share == done
    # 20 more of its own, and the plan of the others four to ten times over.
    assert 20.0 + 4 * 15.0 < left.seconds(21.0) < 20.0 + 10 * 15.0
    # The clock goes on while nothing is told, and never below what is to come.
    assert left.seconds(26.0) == pytest.approx(left.seconds(21.0) - 5.0)
    assert left.seconds(99.0) == pytest.approx(left.seconds(21.0) - 20.0)


def test_work_of_earlier_runs_does_not_count_in_the_speed_of_a_resumed_fit():
    left = clocked()
    left.follow("first pass", None, 0.0)
    left.follow("starting centres", [np.ones(3)], 1.0)
    left.follow("annealing", [run([-1.0, -2.0], stage="done")], 1.001)
    left.follow("passes", None, 1.002)
    assert left.seconds(1.002) == pytest.approx(5.0, rel=0.1)


def test_parts_that_no_plan_names_belong_to_the_stage_before():
    left = clocked()
    left.follow("first pass", None, 0.0)
    left.follow("scale", None, 0.5)
    assert left.stage == "first pass"
    assert TimeLeft(10).seconds(0.0) is None


def test_an_annealing_ends_where_memberships_are_hard():
    left = clocked()
    left.follow("first pass", None, 0.0)
    shares = []
    for number in (5, 20, 60, 90):
        left.follow("annealing", [run(-(1.1 ** np.arange(number)))], float(number))
        shares.append(left.share)
    # −1.1ⁿ reaches −250 after 58 iterations.
    np.testing.assert_allclose(shares[:2], [5 / 61, 20 / 61], rtol=0.05)
    assert shares == sorted(shares)
    assert shares[-1] < 1.0
    left.follow("annealing", [run([-1.0] * 9), run([-1.0] * 9, stage="done")], 99.0)
    assert 0.5 < left.share < 1.0


def test_hard_steps_end_where_their_changes_become_negligible():
    left = clocked()
    left.follow("first pass", None, 0.0)
    costs = 2.0 - np.cumsum(0.1 * np.arange(1.0, 100.0) ** -2)
    hard = [-math.inf] * 99
    for number in (9, 17):
        left.follow("passes", [run(hard[:number], costs[:number], "hard")], float(number))
        # A change of .1/n² is below 1e-4 times 1.85 from the 24th on.
        assert left.share == pytest.approx(number / 24, rel=0.15)
    # Five passes usually follow an annealing on samples.
    left.follow("passes", [run(hard[:1], costs[:1], "hard")], 19.0)
    assert left.share == pytest.approx(1 / 6)


def test_rows_of_a_mean_shift_merge_all_at_once():
    left = clocked({"first pass": 1.0, "blurring": 9.0})
    left.follow("first pass", None, 0.0)
    history, shares = [], []
    for stage, numbers in (("learn", [100, 100, 90, 1, 1]), ("blur", [100, 100, 100, 60, 1, 1])):
        for number in numbers:
            record = BlurringRecord(len(history) + 1, stage, number, 0.0, 0.0, 0.0, 1, 0.0)
            history = [*history, record]
            left.follow("blurring", Progress(None, None, 0, 1, 0, history), float(len(history)))
            shares.append(left.share)
    assert 0.05 < shares[0] < 0.2
    assert 0.3 < shares[4] < 0.6
    assert shares[-1] > 0.95
