"""Nearest centres and costs of the rows of a block beside their definitions, and those of numpy."""

import math

import numpy as np
import pytest
from _naive import exact_squared_distances
from _support import n_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled._blocks import forms, identity, message, placed, sampled, without_loops
from daskmm.compiled.dispatch import PreparedCenters
from daskmm.compiled.labels import nearest_centers
from daskmm.kmeans.assignment import _block_cost, labels_of
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.distances import product_rounding
from daskmm.numerics.rows import Coordinates

SETTINGS = settings(max_examples=n_examples(80), derandomize=True, database=None, deadline=None)


def nearest(problem):
    """Label and distance of each row, by the definitions in rational arithmetic."""
    rows, coordinates, state = problem
    d = exact_squared_distances(coordinates.to_model(rows), state.centers, state.feature_weights)
    return [list(row).index(min(row)) for row in d], [min(row) for row in d]


@st.composite
def served(draw):
    n, p, k = draw(st.integers(1, 40)), draw(st.integers(1, 7)), draw(st.integers(1, 6))
    rows, rng = sampled(draw, n, p)
    wide = rows.astype(np.float64)
    coordinates = identity(p)
    if draw(st.booleans()):
        coordinates = Coordinates(np.floor(wide.mean(axis=0)), 2.0 ** rng.integers(-1, 3, p))
    centers = coordinates.to_model(wide[rng.integers(n, size=k)])  # rows on centres, twins
    if draw(st.booleans()):
        centers += draw(st.sampled_from([1e-9, 0.5, 30.0])) * rng.normal(size=(k, p))
    w = rng.dirichlet(np.ones(p)) if draw(st.booleans()) else None
    if w is not None and p > 1 and draw(st.booleans()):
        w[0] = 0.0
    return rows, coordinates, CenterState(centers, -np.inf, w)


@SETTINGS
@given(served())
def test_labels_and_costs_are_the_definitions(problem):
    rows, coordinates, state = problem
    labels, smallest = nearest(problem)
    found = labels_of(placed(rows), coordinates, state)
    assert found.dtype == np.int32
    z = coordinates.to_model(rows)
    for i in np.flatnonzero(found != labels):
        # Ties up to the rounding of a distance.
        pair = exact_squared_distances(
            z[[i]], state.centers[[labels[i], found[i]]], state.feature_weights
        )
        assert pair[0][1] <= pair[0][0] * (1 + 1e-14)
    v = np.arange(len(rows)) % 3 / 2
    for weights in (None, v):
        expected = math.fsum(np.ones(len(rows)) * smallest if weights is None else v * smallest)
        cost = _block_cost(placed(rows, weights), coordinates, state)
        assert cost == pytest.approx(expected, rel=1e-13, abs=0)


def clustered(n, p, k, dtype):
    rng = np.random.default_rng(4)
    centers = 3.0 * rng.normal(size=(k, p))
    rows = centers[rng.integers(k, size=n)] + rng.normal(size=(n, p))
    rows = (50.0 + 5.0 * rows).astype(dtype)
    coordinates = Coordinates(np.full(p, 50.25), np.linspace(4.0, 6.0, p))
    return rows, coordinates, centers


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i2", "i8", ">f4"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(9_000, 1, 4), (6_001, 20, 17), (5_000, 70, 40)])
def test_labels_over_many_tiles_are_those_of_numpy(shape, weighted, dtype):
    rows, coordinates, centers = clustered(*shape, dtype)
    w = np.random.default_rng(5).dirichlet(np.ones(shape[1])) if weighted else None
    state = CenterState(centers, -np.inf, w)
    found = labels_of(placed(rows), coordinates, state)
    arguments = (coordinates, state)
    np.testing.assert_array_equal(found, without_loops(labels_of, placed(rows), *arguments))
    expected = without_loops(_block_cost, placed(rows), *arguments)
    assert _block_cost(placed(rows), *arguments) == pytest.approx(expected, rel=1e-11)
    for form in forms(rows):
        np.testing.assert_array_equal(labels_of(placed(form), *arguments), found)


@given(
    n=st.sampled_from([1, 2, 23, 24, 25, 200]),
    p=st.integers(1, 40),
    k=st.integers(1, 70),
    dtype=st.sampled_from(["f4", "f8", ">f8"]),
)
def test_distances_and_bounds_are_right_and_the_same_in_all_forms(n, p, k, dtype):
    rng = np.random.default_rng(n + 41 * p + k)
    rows, centers = rng.normal(size=(n, p)).astype(dtype), rng.normal(size=(k, p))
    d = np.square(rows[:, None].astype(float) - centers).sum(axis=2)

    def found(form):
        labels, (distances, others) = np.empty(n, np.int32), np.empty((2, n))
        prepared = PreparedCenters(centers)
        assert nearest_centers(form, identity(p), prepared, labels, distances, others)
        return labels, distances, others

    labels, distances, others = found(rows)
    np.testing.assert_array_equal(labels, d.argmin(axis=1))
    np.testing.assert_allclose(distances, d.min(axis=1), rtol=1e-12)
    second = np.sort(d, axis=1)[:, 1] if k > 1 else np.full(n, np.inf)
    assert (others <= second).all()
    single = PreparedCenters(centers).dtype_for(rows, identity(p), -np.inf) == np.float32
    rounding = product_rounding(np.dtype(np.float32 if single else np.float64), p)
    norms = np.square(rows.astype(float)).sum(axis=1)
    lost = 2.0 * rounding * (3.0 * norms + 2.0 * second)
    assert k == 1 or (others >= second - lost).all()
    for form in forms(rows):
        for a, b in zip(found(form), (labels, distances, others), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_blocks_that_are_copied_in_parts_have_the_same_labels(dtype):
    rows, coordinates, centers = clustered(20_011, 50, 12, dtype)
    arguments = coordinates, CenterState(centers, -np.inf)
    expected = labels_of(placed(rows), *arguments)
    np.testing.assert_array_equal(labels_of(placed(np.asfortranarray(rows)), *arguments), expected)


def test_near_ties_in_single_precision_are_told_in_double():
    rows, coordinates, centers = clustered(6_000, 8, 20, np.float32)
    centers[1::2] = centers[::2] + 1e-9 * np.random.default_rng(6).normal(size=(10, 8))
    z = coordinates.to_model(rows)
    expected = ((z[:, None, :] - centers) ** 2).sum(axis=2).argmin(axis=1)
    state = CenterState(centers, -np.inf)
    np.testing.assert_array_equal(labels_of(placed(rows), coordinates, state), expected)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rows_between_tied_centres_go_to_the_first(dtype):
    rng = np.random.default_rng(7)
    rows = rng.integers(-3, 4, size=(5_000, 2)).astype(dtype)
    centers = np.array([[4.0, 0.0], [0.0, 4.0], [-4.0, 0.0], [0.0, -4.0], [4.0, 0.0]])
    d = ((rows[:, None, :].astype(float) - centers) ** 2).sum(axis=2)  # exact
    coordinates = identity(2)
    found = labels_of(placed(rows), coordinates, CenterState(centers, -np.inf))
    np.testing.assert_array_equal(found, d.argmin(axis=1))


@pytest.mark.parametrize("scale", [1e-160, 1e-30, 1e30, 1e150])
def test_labels_and_cost_are_right_for_rows_of_any_size(scale):
    rng = np.random.default_rng(8)
    rows = rng.integers(-9, 10, size=(5_000, 3)).astype(float)
    centers = rng.normal(size=(6, 3))
    coordinates = identity(3)
    expected = labels_of(placed(rows), coordinates, CenterState(centers, -np.inf))
    exponent = round(math.log2(scale))
    # A power of 2, so that ties stay what they are.
    rows, centers = np.ldexp(rows, exponent), np.ldexp(centers, exponent)
    state = CenterState(centers, -np.inf)
    found = labels_of(placed(rows), coordinates, state)
    if scale > 1e-100:  # below, squares are denormal
        np.testing.assert_array_equal(found, expected)
    d = np.ldexp(((rows[:, None, :] - centers) / 2.0**exponent) ** 2, 2 * exponent).sum(axis=2)
    assert _block_cost(placed(rows), coordinates, state) == pytest.approx(
        d.min(axis=1).sum(), rel=1e-11 if scale > 1e-100 else 1e-2
    )
    if 1e-38 < scale < 1e38:
        narrow = labels_of(placed(rows.astype(np.float32)), coordinates, state)
        np.testing.assert_array_equal(narrow, expected)


@pytest.mark.parametrize("function", [labels_of, _block_cost])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e160])
@pytest.mark.parametrize("w", [None, np.array([1.0, 0.0, 0.0])], ids=["", "feature weights"])
def test_rows_that_overflow_or_are_not_finite_are_refused_in_the_words_of_numpy(
    function, dtype, bad, w
):
    if dtype == "f4" and bad == 1e160:
        return
    rows = np.random.default_rng(9).normal(size=(6_000, 3)).astype(dtype)
    rows[5_432, 1] = bad
    arguments = (
        placed(rows),
        identity(3),
        CenterState(np.eye(3), -np.inf, w),
    )
    found = message(function, *arguments)
    assert ("squares overflow" if bad == 1e160 else "row 5432 of the block") in found
    assert found == message(without_loops, function, *arguments)


def test_no_rows_have_no_labels():
    rows = np.empty((0, 2))
    arguments = (identity(2), CenterState(np.eye(2), -np.inf))
    assert labels_of(placed(rows), *arguments).shape == (0,)
    assert _block_cost(placed(rows), *arguments) == 0.0


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nearest_centers_are_exact_where_squares_underflow_in_single_precision(dtype):
    rng = np.random.default_rng(0)
    centers = 1e-23 * rng.normal(size=(256, 95))
    centers[0] = 1e-3
    own = rng.integers(1, 256, 577).astype(np.int32)
    rows = centers[own].astype(dtype)
    prepared, labels = PreparedCenters(centers), np.empty(len(rows), np.int32)
    assert prepared.dtype_for(rows, identity(95), -np.inf) == np.float32
    assert nearest_centers(rows, identity(95), prepared, labels)
    np.testing.assert_array_equal(labels, own)


@pytest.mark.parametrize("p", [8, 64])
def test_bounds_of_other_centers_hold_where_squares_overflow_in_single_precision(p):
    rng = np.random.default_rng(0)
    rows, centers = 1e25 * rng.normal(size=(300, p)).astype("f4"), rng.normal(size=(300, p))
    labels, others = np.empty(len(rows), np.int32), np.empty(len(rows))
    assert nearest_centers(rows, identity(p), PreparedCenters(centers), labels, others=others)
    distances = ((rows.astype("f8")[:, None] - centers) ** 2).sum(axis=2)
    distances[np.arange(len(rows)), labels] = np.inf
    assert (others <= distances.min(axis=1)).all()
