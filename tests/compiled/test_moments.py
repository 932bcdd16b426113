"""The moments of a block beside their definitions, and beside those of numpy."""

import math
from fractions import Fraction

import numpy as np
import pytest
from _support import n_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled._blocks import forms, message, placed, sampled, without_loops
from daskmm import KMeans
from daskmm.engine.first_pass import _block_moments
from daskmm.engine.moments import Moments
from daskmm.numerics.rows import TILE_BYTES

SETTINGS = settings(max_examples=n_examples(80), derandomize=True, database=None, deadline=None)
FIELDS = ("n_positive", "weight", "mean", "deviations", "lowest", "highest")


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
    assert_close_moments(found, without_loops(_block_moments, placed(rows, v), False), 1e-12)
    # Neither dtype nor order decides about a bit.
    for form in (*forms(rows), rows.astype(np.float64)):
        assert_same_bits(Moments.of_block(form, v), found)


@pytest.mark.parametrize("weighted", [False, True], ids=["equal rows", "weighted rows"])
def test_blocks_that_are_copied_in_parts_have_the_bits_of_those_that_are_not(weighted):
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(20_011, 50)) + np.linspace(0, 50, 20_011)[:, None]
    assert rows.nbytes > TILE_BYTES
    v = rng.uniform(size=20_011) if weighted else None
    found = Moments.of_block(np.asfortranarray(rows), v)
    assert_same_bits(found, Moments.of_block(rows, v))


@pytest.mark.parametrize("p", [1, 3, 31, 300])
def test_integer_weights_count_like_repeated_rows(p):
    rng = np.random.default_rng(p)
    rows, v = rng.normal(size=(700, p)), rng.integers(0, 4, 700)
    found = Moments.of_block(rows, v.astype(float))
    expected = Moments.of_block(np.repeat(rows, v, axis=0), None)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=0, atol=1e-14)
    np.testing.assert_allclose(found.deviations, expected.deviations, rtol=1e-13)
    assert (found.n_positive, found.weight) == ((v > 0).sum(), v.sum())


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
def test_far_rows_of_hardly_any_weight_that_come_first_cost_no_digits(light):
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
    found = message(_block_moments, placed(rows, v), False)
    assert f"block 3, row {row} of the block (row {1000 + row} of the data), feature 1" in found
    assert found == message(without_loops, _block_moments, placed(rows, v), False)


@pytest.mark.parametrize("largest", [1e155, 1e200, 1.7e308])
def test_squares_that_overflow_are_left_to_numpy(largest):
    rows = np.array([[largest, 1.0], [-largest, 2.0], [largest, 3.0]])
    assert Moments.of_block(rows, None) is None
    found = _block_moments(placed(rows), False)
    assert_same_bits(found, without_loops(_block_moments, placed(rows), False))
    with pytest.raises(ValueError, match=r"squares overflow float64 \(feature 0\)"):
        KMeans(1).fit(rows)
