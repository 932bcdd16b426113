"""Compiled moments, labels and costs of a block against the definitions and the numpy ones."""

import math
from fractions import Fraction

import numpy as np
import pytest
from _naive import exact_squared_distances
from hypothesis import given, settings
from hypothesis import strategies as st

from daskmm import KMeans
from daskmm.compiled import library
from daskmm.data.blocks import Position
from daskmm.engine.first_pass import _block_moments
from daskmm.engine.moments import Moments
from daskmm.kmeans.assignment import _block_cost, labels_of
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.rows import Coordinates

SETTINGS = settings(max_examples=80, derandomize=True, database=None, deadline=None)
INTEGERS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
FLOATS = [np.dtype(name) for name in ("f4", "f8", "f2", ">f4", ">f8")]
DTYPES = [*FLOATS, *INTEGERS, np.dtype(bool)]
FIELDS = ("n_positive", "weight", "mean", "deviations", "lowest", "highest")
PLACE = Position(3, 1000)


def forms(rows):
    """The same rows in other memory orders, strided, reversed and read-only."""
    wide = np.zeros((2 * rows.shape[0], 3 * rows.shape[1]), rows.dtype)
    wide[::2, ::3] = rows
    frozen = rows.copy()
    frozen.flags.writeable = False
    backwards = np.ascontiguousarray(rows[::-1, ::-1])[::-1, ::-1]
    return [np.asfortranarray(rows), wide[::2, ::3], frozen, backwards]


def without_numba(function, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        return function(*arguments)


def message(function, *arguments):
    with pytest.raises(ValueError) as caught:
        function(*arguments)
    return str(caught.value)


def sampled(draw, n, p):
    """Rows of any numeric dtype: near or far from 0, with few or many distinct values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    offset = draw(st.sampled_from([0.0, 50.0, 1e6]))
    dtype = draw(st.sampled_from(DTYPES))
    rows = draw(st.sampled_from([0.0, 1.0, 9.0])) * rng.normal(size=(n, p)) + offset
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        rows = np.clip(np.round(rows), max(info.min, -(2**52)), min(info.max, 2**52))
    if dtype == np.float16:
        rows = np.clip(rows, -6e4, 6e4)
    rows = rows.astype(dtype)
    return draw(st.sampled_from([rows, *forms(rows)])), rng


# Moments


def naive_moments(rows, weights):
    """The definitions in rational arithmetic."""
    held = [i for i in range(len(rows)) if weights is None or weights[i] > 0]
    v = [Fraction(1) if weights is None else Fraction(float(weights[i])) for i in held]
    columns = [[Fraction(float(rows[i, f])) for i in held] for f in range(rows.shape[1])]
    total = sum(v)
    means = [sum(a * b for a, b in zip(v, x, strict=True)) / total for x in columns]
    deviations = [
        sum(a * (b - mean) ** 2 for a, b in zip(v, x, strict=True))
        for x, mean in zip(columns, means, strict=True)
    ]
    parts = (means, deviations, map(min, columns), map(max, columns))
    return Moments(len(held), float(total), *(np.array([float(x) for x in part]) for part in parts))


def assert_close_moments(found, expected, rtol=1e-13):
    assert found.n_positive == expected.n_positive
    assert found.weight == pytest.approx(expected.weight, rel=rtol)
    np.testing.assert_array_equal(found.lowest, expected.lowest)
    np.testing.assert_array_equal(found.highest, expected.highest)
    extent = np.maximum(np.abs(expected.lowest), np.abs(expected.highest))
    extent = np.where(np.isfinite(extent), extent, 0.0)
    assert (np.abs(found.mean - expected.mean) <= rtol * extent).all()
    allowed = rtol * expected.deviations + expected.weight * (1e-14 * extent) ** 2
    assert (np.abs(found.deviations - expected.deviations) <= allowed).all()


@st.composite
def weighted_rows(draw, least=1):
    n, p = draw(st.integers(least, 60)), draw(st.integers(1, 9))
    rows, rng = sampled(draw, n, p)
    v = draw(st.sampled_from([None, 0.0, 0.7, 1e-200, 1e200]))
    return rows, None if v is None else v * rng.integers(0, 3, n)


@SETTINGS
@given(weighted_rows())
def test_moments_are_the_definitions(problem):
    rows, v = problem
    found = Moments.of_block(rows, v)
    if v is None or v.any():
        assert_close_moments(found, naive_moments(rows, v))
    else:
        assert_same_bits(found, Moments.empty(rows.shape[1]))


def assert_same_bits(found, expected):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("weighted", [False, True], ids=["equal rows", "weighted rows"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u8"])
@pytest.mark.parametrize("shape", [(70_000, 1), (30_001, 7), (2_000, 50), (150, 700), (3, 40_000)])
def test_moments_over_many_tiles_are_those_of_numpy(shape, dtype, weighted):
    rng = np.random.default_rng(0)
    # Rows that drift, so that no tile's mean is that of another.
    rows = 100.0 + 20.0 * rng.normal(size=shape) + np.linspace(0, 5e3, shape[0])[:, None]
    rows = np.abs(rows).astype(dtype)
    v = rng.integers(0, 3, shape[0]) * 0.3 if weighted else None
    found = Moments.of_block(rows, v)
    assert_close_moments(found, without_numba(_block_moments, rows, v, PLACE), 1e-12)
    # Neither dtype nor order decides about a bit.
    for form in (*forms(rows), rows.astype(np.float64)):
        assert_same_bits(Moments.of_block(form, v), found)


@pytest.mark.parametrize("value", [0.1, -1e8 / 3, 1e-300, 3e100])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_constant_features_have_no_range_and_hardly_deviate(value, dtype):
    if dtype == "f4" and abs(value) > 1e30:
        return
    rows = np.random.default_rng(1).normal(size=(40_000, 3)).astype(dtype)
    rows[:, 1] = value
    found = Moments.of_block(rows, None)
    np.testing.assert_array_equal(found.constant, [False, True, False])
    assert found.lowest[1] == rows[0, 1]
    assert found.variance[1] <= (1e-15 * value) ** 2


@pytest.mark.parametrize("offset", [1e6, 1e9, -1e12])
def test_moments_far_from_the_origin_do_not_cancel(offset):
    rng = np.random.default_rng(2)
    rows = offset + rng.integers(-500, 500, size=(100_000, 2)).astype(float)
    centred = rows - offset  # exact
    found = Moments.of_block(rows, None)
    expected = [math.fsum((x - math.fsum(x) / len(x)) ** 2) for x in centred.T]
    np.testing.assert_allclose(found.deviations, expected, rtol=1e-12)
    np.testing.assert_allclose(found.mean, centred.mean(axis=0) + offset, rtol=1e-15)


@pytest.mark.parametrize("light", [1e-300, 1e-20, 1e-3])
def test_outlying_rows_that_come_first_but_hardly_weigh(light):
    rng = np.random.default_rng(10)
    rows = rng.normal(size=(3_000, 50))
    v = rng.uniform(size=3_000)
    rows[:700] += 1e15
    v[:700] *= light
    exact = naive_moments(rows[:, :2], v)
    found = Moments.of_block(rows, v)
    np.testing.assert_allclose(found.mean[:2], exact.mean, rtol=1e-11)
    np.testing.assert_allclose(found.deviations[:2], exact.deviations, rtol=1e-11)


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_no_rows_and_of_no_weight_are_empty(weighted):
    v = np.empty(0) if weighted else None
    assert_same_bits(Moments.of_block(np.empty((0, 3)), v), Moments.empty(3))
    rows = np.array([[1e300, 1.0], [-1e300, 2.0]])
    assert_same_bits(Moments.of_block(rows, np.zeros(2)), Moments.empty(2))


def test_rows_without_weight_do_not_count_however_large():
    rng = np.random.default_rng(3)
    rows, v = rng.normal(size=(40_000, 5)), rng.uniform(size=40_000)
    rows[::7], v[::7] = 1e300 * rows[::7], 0.0
    rows[:30_000:3], v[:30_000:3] = -1e200, 0.0
    assert_close_moments(Moments.of_block(rows, v), Moments.of(rows[v > 0], v[v > 0]), 1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("weights", ["none", "positive", "zero in the row", "zero in the tile"])
@pytest.mark.parametrize("row", [0, 20_000, 29_999])
def test_what_is_not_finite_is_refused_in_the_same_words(bad, dtype, weights, row):
    rows = np.ones((30_000, 3), dtype)
    rows[row, 1] = bad
    v = None if weights == "none" else np.full(30_000, 2.0)
    if weights == "zero in the row":
        v[row] = 0.0
    if weights == "zero in the tile":
        v[row - row % 10_000 : row - row % 10_000 + 10_000] = 0.0
    assert Moments.of_block(rows, v) is None
    found = message(_block_moments, rows, v, PLACE)
    assert f"block 3, row {row} of the block (row {1000 + row} of the data), feature 1" in found
    assert found == message(without_numba, _block_moments, rows, v, PLACE)


@pytest.mark.parametrize("largest", [1e155, 1e200, 1.7e308])
def test_squares_that_overflow_are_left_to_numpy(largest):
    rows = np.array([[largest, 1.0], [-largest, 2.0], [largest, 3.0]])
    assert Moments.of_block(rows, None) is None
    found = _block_moments(rows, None, PLACE)
    assert_same_bits(found, without_numba(_block_moments, rows, None, PLACE))
    with pytest.raises(ValueError, match=r"squares overflow float64 \(feature 0\)"):
        KMeans(1).fit(rows)


# Labels and costs


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
    coordinates = Coordinates(np.zeros(p), np.ones(p))
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
    found = labels_of(rows, PLACE, coordinates, state)
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
        cost = _block_cost(rows, weights, PLACE, coordinates, state)
        assert cost == pytest.approx(expected, rel=1e-13, abs=0)


def clustered(n, p, k, dtype):
    rng = np.random.default_rng(4)
    centers = 3.0 * rng.normal(size=(k, p))
    rows = centers[rng.integers(k, size=n)] + rng.normal(size=(n, p))
    rows = (50.0 + 5.0 * rows).astype(dtype)
    coordinates = Coordinates(np.full(p, 50.25), np.linspace(4.0, 6.0, p))
    return rows, coordinates, centers


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i2", "i8", ">f4"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(9_000, 1, 4), (6_001, 20, 17), (5_000, 70, 40)])
def test_labels_over_many_tiles_are_those_of_numpy(shape, weighted, dtype):
    rows, coordinates, centers = clustered(*shape, dtype)
    w = np.random.default_rng(5).dirichlet(np.ones(shape[1])) if weighted else None
    state = CenterState(centers, -np.inf, w)
    found = labels_of(rows, PLACE, coordinates, state)
    arguments = (PLACE, coordinates, state)
    np.testing.assert_array_equal(found, without_numba(labels_of, rows, *arguments))
    expected = without_numba(_block_cost, rows, None, *arguments)
    assert _block_cost(rows, None, *arguments) == pytest.approx(expected, rel=1e-11)
    for form in forms(rows):
        np.testing.assert_array_equal(labels_of(form, *arguments), found)


def test_near_ties_in_single_precision_are_told_in_double():
    rows, coordinates, centers = clustered(6_000, 8, 20, np.float32)
    centers[1::2] = centers[::2] + 1e-9 * np.random.default_rng(6).normal(size=(10, 8))
    z = coordinates.to_model(rows)
    expected = ((z[:, None, :] - centers) ** 2).sum(axis=2).argmin(axis=1)
    state = CenterState(centers, -np.inf)
    np.testing.assert_array_equal(labels_of(rows, PLACE, coordinates, state), expected)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_first_of_tied_centres_serves(dtype):
    rng = np.random.default_rng(7)
    rows = rng.integers(-3, 4, size=(5_000, 2)).astype(dtype)
    centers = np.array([[4.0, 0.0], [0.0, 4.0], [-4.0, 0.0], [0.0, -4.0], [4.0, 0.0]])
    d = ((rows[:, None, :].astype(float) - centers) ** 2).sum(axis=2)  # exact
    coordinates = Coordinates(np.zeros(2), np.ones(2))
    found = labels_of(rows, PLACE, coordinates, CenterState(centers, -np.inf))
    np.testing.assert_array_equal(found, d.argmin(axis=1))


@pytest.mark.parametrize("scale", [1e-160, 1e-30, 1e30, 1e150])
def test_labels_of_rows_of_any_size(scale):
    rng = np.random.default_rng(8)
    rows = rng.integers(-9, 10, size=(5_000, 3)).astype(float)
    centers = rng.normal(size=(6, 3))
    coordinates = Coordinates(np.zeros(3), np.ones(3))
    expected = labels_of(rows, PLACE, coordinates, CenterState(centers, -np.inf))
    exponent = round(math.log2(scale))
    # A power of 2, so that ties stay what they are.
    rows, centers = np.ldexp(rows, exponent), np.ldexp(centers, exponent)
    state = CenterState(centers, -np.inf)
    found = labels_of(rows, PLACE, coordinates, state)
    if scale > 1e-100:  # below, squares are denormal
        np.testing.assert_array_equal(found, expected)
    d = np.ldexp(((rows[:, None, :] - centers) / 2.0**exponent) ** 2, 2 * exponent).sum(axis=2)
    assert _block_cost(rows, None, PLACE, coordinates, state) == pytest.approx(
        d.min(axis=1).sum(), rel=1e-11 if scale > 1e-100 else 1e-2
    )
    if 1e-38 < scale < 1e38:
        narrow = labels_of(rows.astype(np.float32), PLACE, coordinates, state)
        np.testing.assert_array_equal(narrow, expected)


@pytest.mark.parametrize(
    "function", [labels_of, lambda rows, *rest: _block_cost(rows, None, *rest)]
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e160])
@pytest.mark.parametrize("w", [None, np.array([1.0, 0.0, 0.0])], ids=["", "feature weights"])
def test_rows_that_cannot_be_served_are_refused_in_the_same_words(function, dtype, bad, w):
    if dtype == "f4" and bad == 1e160:
        return
    rows = np.random.default_rng(9).normal(size=(6_000, 3)).astype(dtype)
    rows[5_432, 1] = bad
    arguments = (
        rows,
        PLACE,
        Coordinates(np.zeros(3), np.ones(3)),
        CenterState(np.eye(3), -np.inf, w),
    )
    found = message(function, *arguments)
    assert ("squares overflow" if bad == 1e160 else "row 5432 of the block") in found
    assert found == message(without_numba, function, *arguments)


def test_no_rows_have_no_labels():
    rows = np.empty((0, 2))
    arguments = (PLACE, Coordinates(np.zeros(2), np.ones(2)), CenterState(np.eye(2), -np.inf))
    assert labels_of(rows, *arguments).shape == (0,)
    assert _block_cost(rows, None, *arguments) == 0.0
