"""Bounds of the distances of rows beside distances to all centres, and what moved around each."""

import math

import numpy as np
import pytest
from _support import n_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled._blocks import forms, identity
from daskmm.compiled.bounds import Moves, Moving, add_moves, update_nearest
from daskmm.compiled.dispatch import PreparedCenters
from daskmm.numerics.rows import Coordinates

SETTINGS = settings(max_examples=n_examples(30), derandomize=True, database=None, deadline=None)
ALMOST = 1e-8  # more than all rounding of the distances of centres, which come from products


def distances_between(rows, centers):
    """Each row's distances to all centres, from the differences."""
    return np.sqrt(np.square(rows[:, None].astype(float) - centers).sum(axis=2))


def moves_between(before, centers, n_parts=1):
    """What moved around each centre, found for some of the centres at a time."""
    moving, order = Moving.between(before, centers)
    found = Moves.of(len(centers))
    for some in np.array_split(np.arange(len(centers)), n_parts):
        if len(some):
            add_moves(moving, order, slice(some[0], some[-1] + 1), found)
    return found


@st.composite
def moved_centers(draw):
    """Centres before and after a step: on a lattice or not, some of which stay, some coincide."""
    k, p = draw(st.sampled_from([2, 3, 16, 40, 100, 150])), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    before = rng.normal(size=(k, p))
    if draw(st.booleans()):
        before = np.round(2.0 * before)
    before += draw(st.sampled_from([0.0, 10.0]))
    way = draw(st.sampled_from([0.0, 1e-3, 0.5]))
    centers = before + way * rng.normal(size=(k, p)) * (rng.random((k, 1)) < 0.5)
    return before, centers, rng


# What moved around each centre


@SETTINGS
@given(moved_centers(), st.sampled_from([1, 3]))
def test_the_longest_way_within_each_ball_is_not_longer_than_said(problem, n_parts):
    before, centers, _ = problem
    k = len(centers)
    found = moves_between(before, centers, n_parts)
    ways = np.array([math.dist(a, b) for a, b in zip(before, centers, strict=True)])
    np.testing.assert_allclose(found.ways, ways, rtol=1e-8)
    assert (found.ways >= ways).all()
    apart = distances_between(centers, centers) + np.diag(np.full(k, np.inf))
    extent = np.abs(centers).max() + 1e-300
    for j in range(k):
        nearest = apart[j].min()
        balls = nearest * np.sqrt(2.0) ** np.arange(found.reach.shape[1] - 1)
        np.testing.assert_allclose(found.reach[j, :-1], balls, rtol=1e-6, atol=1e-6 * extent)
        assert found.reach[j, -1] > 1e100  # all are in the last one
        assert found.farthest[j, 0] == 0.0  # none is in the first one
        assert (np.diff(found.farthest[j]) >= 0).all()
        for reach, farthest in zip(found.reach[j], found.farthest[j], strict=True):
            inside = apart[j] < reach * (1 - ALMOST) - ALMOST * extent
            assert ways[inside].max(initial=0.0) <= farthest
            close = apart[j] < reach * (1 + ALMOST) + ALMOST * extent
            assert farthest <= found.ways[close].max(initial=0.0)


@SETTINGS
@given(moved_centers(), st.sampled_from([1, 3]))
def test_the_list_of_a_center_excludes_all_that_it_does_not_name(problem, n_parts):
    before, centers, _ = problem
    found = moves_between(before, centers, n_parts)
    k, length = found.around.shape
    assert k == len(centers)
    apart = distances_between(centers, centers) + np.diag(np.full(k, np.inf))
    extent = np.abs(centers).max() + 1e-300
    for j in range(k):
        named = found.around[j]
        assert len(set(named)) == length
        assert j not in named
        # The nearest first, with lower bounds of the distances of those that come later, too.
        assert (np.diff(found.apart[j]) >= 0).all()
        left = apart[j].copy()
        for place in range(length + 1):
            assert found.apart[j][place] <= left.min() * (1 + ALMOST) + ALMOST * extent
            if place < length:
                left[named[place]] = np.inf
        np.testing.assert_allclose(
            found.apart[j][:length], apart[j][named], rtol=1e-6, atol=1e-6 * extent
        )


def test_at_most_a_sixteenth_of_the_centers_and_no_more_than_32_are_listed():
    assert [Moves.of(k).around.shape[1] for k in (2, 16, 400, 1000)] == [0, 1, 25, 32]


# Rows


def assert_are_bounds(rows, centers, labels, lower, upper):
    """Labels are the nearest centres, up to rounding; the bounds hold."""
    d = distances_between(rows, centers)
    own = d[np.arange(len(rows)), labels]
    others = d.copy()
    others[np.arange(len(rows)), labels] = np.inf
    second = others.min(axis=1)
    assert (own <= second * (1 + 1e-12)).all()
    assert (upper >= own * (1 - 1e-12)).all()
    assert (lower <= second * (1 + 1e-12)).all()


@st.composite
def rows_of(draw, centers, rng):
    n = draw(st.sampled_from([0, 1, 63, 64, 65, 300]))
    at = centers[rng.integers(len(centers), size=n)]
    rows = at + draw(st.sampled_from([0.0, 0.01, 1.0])) * rng.normal(size=at.shape)
    return rows.astype(draw(st.sampled_from(["f4", "f8"])))


@SETTINGS
@given(st.data(), moved_centers())
def test_bounds_hold_and_labels_are_the_nearest_centers_step_after_step(data, problem):
    before, centers, rng = problem
    p = centers.shape[1]
    rows = data.draw(rows_of(before, rng))
    coordinates = identity(p)
    if data.draw(st.booleans()):
        coordinates = Coordinates(rng.normal(size=p), rng.uniform(0.5, 2.0, p))
        before, centers = coordinates.to_model(before), coordinates.to_model(centers)
    z = coordinates.to_model(rows)
    labels, (lower, upper) = np.empty(len(rows), np.int32), np.empty((2, len(rows)))
    known = labels, lower, upper
    n_searched = update_nearest(rows, coordinates, PreparedCenters(before), None, *known)
    assert n_searched == len(rows)
    assert_are_bounds(z, before, *known)
    for _ in range(3):
        moved = moves_between(before, centers)
        n_searched = update_nearest(rows, coordinates, PreparedCenters(centers), moved, *known)
        assert 0 <= n_searched <= len(rows)
        assert_are_bounds(z, centers, *known)
        centers, before = centers + 0.5 * (centers - before), centers


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_few_rows_that_change_are_found_without_comparing_the_others(dtype):
    rng = np.random.default_rng(1)
    centers = 20.0 * rng.normal(size=(200, 4))
    rows = (centers[np.arange(6000) % 200] + rng.normal(size=(6000, 4))).astype(dtype)
    labels, lower, upper = np.empty(6000, np.int32), np.empty(6000), np.empty(6000)
    update_nearest(rows, identity(4), PreparedCenters(centers), None, labels, lower, upper)
    after = centers + 1e-3 * rng.normal(size=centers.shape)
    after[3] = centers[7] + 0.5  # this one leaves its rows
    moved = moves_between(centers, after)
    found = labels.copy()
    n_searched = update_nearest(
        rows, identity(4), PreparedCenters(after), moved, found, lower, upper
    )
    assert 0 < n_searched < 300
    assert (found[labels == 3] != 3).all()
    assert (found[labels == 7] == 3).any()
    d = (np.square(rows[:, None].astype(float) - after)).sum(axis=2)
    np.testing.assert_array_equal(found, d.argmin(axis=1))


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f4"])
def test_the_form_of_the_rows_changes_no_bound(dtype):
    rng = np.random.default_rng(2)
    before = rng.normal(size=(64, 3))
    centers = before + 0.2 * rng.normal(size=(64, 3))
    rows = rng.normal(size=(700, 3)).astype(dtype)
    moved = moves_between(before, centers)

    def updated(form):
        known = np.empty(700, np.int32), np.empty(700), np.empty(700)
        update_nearest(form, identity(3), PreparedCenters(before), None, *known)
        update_nearest(form, identity(3), PreparedCenters(centers), moved, *known)
        return known

    expected = updated(rows)
    for form in forms(rows):
        for a, b in zip(updated(form), expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n", [10, 1000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_rows_that_overflow_or_are_not_finite_give_no_bounds(n, bad):
    rows, centers = np.random.default_rng(3).normal(size=(n, 2)), np.eye(2)
    rows[7, 1] = bad
    known = np.empty(n, np.int32), np.empty(n), np.empty(n)
    assert update_nearest(rows, identity(2), PreparedCenters(centers), None, *known) is None
