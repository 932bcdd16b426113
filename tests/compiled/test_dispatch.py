"""The sums of a block beside loops over their definitions, and beside those of numpy."""

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from _naive import exact_squared_distances, power_means, squared_distances
from _support import n_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled._blocks import forms, identity, without_loops
from daskmm import PowerKMeans
from daskmm.compiled import dispatch, layout
from daskmm.gram.nystrom import nystrom_coordinates
from daskmm.kmeans.sums import FARTHEST, CenterState, CenterSums, center_sums
from daskmm.numerics.distortions.bregman import (
    SQUARED_EUCLIDEAN,
    ItakuraSaito,
    KullbackLeibler,
    Logistic,
)
from daskmm.numerics.kernels import Kernel
from daskmm.numerics.rows import Coordinates, tiles

POWERS = (-0.2, -1.0, -3.0, -50.0, -1e4, -1e12, -math.inf)
each_power = pytest.mark.parametrize("s", POWERS)
SETTINGS = settings(max_examples=n_examples(60), derandomize=True, database=None, deadline=None)
PARTS = ("weights", "sums", "squares", "objective", "inertia", "hardness")


def naive_sums(rows, weights, state):
    """The definitions, by loops; `rows` in the model's coordinates."""
    exact = exact_squared_distances if len(rows) * len(state.centers) < 500 else squared_distances
    d = exact(rows, state.centers, state.feature_weights)
    v = np.ones(len(rows)) if weights is None else weights
    phi, value = power_means(d, state.s)
    (n, p), k = rows.shape, len(state.centers)
    mass = [[v[i] * phi[i][j] for i in range(n)] for j in range(k)]
    sums = [
        [math.fsum(mass[j][i] * rows[i][f] for i in range(n)) for f in range(p)] for j in range(k)
    ]
    squares = [
        math.fsum(mass[j][i] * rows[i][f] ** 2 for i in range(n) for j in range(k))
        for f in range(p)
    ]
    served = [(-min(d[i]), i) for i in range(n) if v[i] > 0 and min(d[i]) > 0]
    return {
        "weights": np.array([math.fsum(m) for m in mass]),
        "sums": np.array(sums),
        "squares": np.array(squares) if state.feature_weights is not None else None,
        "objective": math.fsum(v[i] * value[i] for i in range(n)),
        "inertia": math.fsum(v[i] * min(d[i]) for i in range(n)),
        "farthest": [i for _, i in sorted(served)[:FARTHEST]] if state.s == -math.inf else [],
    }


def assert_close_sums(found, expected, rtol, scale):
    """Sums may cancel: they are compared with the weights times the extent of the rows."""
    get = expected.get if isinstance(expected, dict) else lambda name: getattr(expected, name)
    for name in PARTS[: 5 if isinstance(expected, dict) else 6]:
        a, b = getattr(found, name), get(name)
        if name == "squares" and b is None:
            assert a is None
            continue
        largest = float(np.max(np.abs(b), initial=0.0))
        atol = rtol * (scale * float(np.max(get("weights"))) if name == "sums" else largest)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=name)


def by_numpy(rows, weights, coordinates, state):
    z = coordinates.to_model(rows)
    return CenterSums.of(state.distortion.tile(z, False), weights, state)


def one(rows, weights, coordinates, state):
    (sums,) = center_sums(rows, weights, coordinates, (state,)).records
    return sums


@st.composite
def problems(draw, dtypes=(np.float64,), least=0):
    """Rows with and without clusters, standardised or not, and centres near and far."""
    n, p, k = draw(st.integers(least, 40)), draw(st.integers(1, 7)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.0, 3.0, 100.0]))
    truth = spread * rng.normal(size=(k, p))
    rows = truth[rng.integers(k, size=n)] + rng.normal(size=(n, p))
    if draw(st.booleans()):
        rows = np.round(rows)  # ties, duplicates, rows on centres
    rows = rows.astype(draw(st.sampled_from(dtypes)))
    centers = truth + draw(st.sampled_from([0.0, 0.3])) * rng.normal(size=(k, p))
    if n and draw(st.booleans()):
        centers[: min(n, k)] = rows[: min(n, k)]
    if draw(st.booleans()):
        centers[-1] = centers[0]
    w = rng.dirichlet(np.ones(p)) if draw(st.booleans()) else None
    if w is not None and p > 1 and draw(st.booleans()):
        w[0] = 0.0
    v = rng.integers(0, 4, n) * 0.7 if draw(st.booleans()) else None
    coordinates = identity(p)
    if draw(st.booleans()):
        coordinates = Coordinates(rng.normal(size=p), rng.uniform(0.5, 2.0, p))
        centers = coordinates.to_model(centers)
    return rows, v, coordinates, CenterState(centers, draw(st.sampled_from(POWERS)), w)


@SETTINGS
@given(problems(least=1))
def test_sums_are_the_definitions(problem):
    rows, v, coordinates, state = problem
    z = coordinates.to_model(rows)
    found, expected = one(*problem), naive_sums(z, v, state)
    # Distances are exact to about 1e-11, which large powers multiply.
    rtol = 1e-12 * max(1.0, min(-state.s, 1e3))
    if state.s == -math.inf or state.s > -1e3:
        assert_close_sums(
            found, expected, rtol if state.s > -1e3 else 1e-12, np.abs(z).max(initial=1)
        )
    np.testing.assert_array_equal(found.farthest.rows, z[expected["farthest"]])


@SETTINGS
@given(problems(dtypes=(np.float64, np.int64, np.int32)))
def test_sums_are_those_of_numpy(problem):
    rows, _, coordinates, state = problem
    expected = by_numpy(*problem)
    found = one(*problem)
    scale = np.abs(coordinates.to_model(rows)).max(initial=1.0)
    moderate = state.s > -1e3 or state.s in (-1e12, -math.inf)
    assert_close_sums(found, expected, 1e-11 if moderate else 1e-7, scale)
    np.testing.assert_array_equal(found.farthest.rows, expected.farthest.rows)
    np.testing.assert_allclose(
        found.farthest.distances, expected.farthest.distances, rtol=1e-11, atol=0
    )


@each_power
@pytest.mark.parametrize("shape", [(700, 50, 100), (513, 8, 8), (1000, 1, 7), (129, 70, 3)])
def test_sums_over_many_tiles_are_those_of_numpy(shape, s):
    n, p, k = shape
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(n, p)) + 4.0 * rng.integers(0, 3, (n, 1))
    v, w = rng.integers(0, 3, n) * 0.3, rng.dirichlet(np.ones(p))
    coordinates = Coordinates(rows.mean(axis=0), rows.std(axis=0))
    centers = coordinates.to_model(rows[:k]) + 0.2 * rng.normal(size=(k, p))
    state = CenterState(centers, s, w)
    found = one(rows, v, coordinates, state)
    assert_close_sums(found, by_numpy(rows, v, coordinates, state), 1e-8 if s == -1e4 else 1e-10, 9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("s", [-0.5, -3.0, -50.0, -1e12])
def test_single_precision_rows_are_summed_to_single_precision(s, weighted):
    n, p, k = 6000, 12, 20
    rng = np.random.default_rng(3)
    rows = (3.0 * rng.normal(size=(k, p))[rng.integers(k, size=n)] + rng.normal(size=(n, p))) * 9
    rows = (rows + 1e3).astype(np.float32)
    v, w = (rng.integers(0, 3, n) * 0.3, rng.dirichlet(np.ones(p))) if weighted else (None, None)
    coordinates = Coordinates(rows.mean(axis=0, dtype=float), rows.std(axis=0, dtype=float))
    centers = coordinates.to_model(rows[:k] + rng.normal(size=(k, p)))
    state = CenterState(centers, s, w)
    found, expected = one(rows, v, coordinates, state), by_numpy(rows, v, coordinates, state)
    assert_close_sums(found, expected, 2e-4, 3)
    for name in ("objective", "inertia"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-6)
    # It is not the double precision road that was tested.
    assert found.objective != one(rows.astype(np.float64), v, coordinates, state).objective


@pytest.mark.parametrize(("n", "k", "p"), [(4096, 20, 50), (1100, 64, 60), (64, 1000, 68)])
@pytest.mark.parametrize("s", [-7.0, -math.inf])
def test_blocks_of_few_rows_and_many_products_are_summed_to_single_precision(n, k, p, s):
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(size=(n, p)).astype(np.float32), rng.normal(size=(k, p))
    state = CenterState(centers, s)
    assert state.prepared.dtype_for(rows, identity(p), s) == np.float32
    expected = by_numpy(rows, None, identity(p), state)
    assert_close_sums(one(rows, None, identity(p), state), expected, 2e-4, 3)


@pytest.mark.parametrize(("n", "k", "p"), [(9000, 300, 4), (3000, 60, 90), (5000, 300, 70)])
@pytest.mark.parametrize("weighted", [False, True])
def test_hard_sums_of_double_rows_are_exact_with_products_in_single_precision(n, k, p, weighted):
    rng = np.random.default_rng(n)
    rows = rng.normal(size=(k, p))[rng.integers(k, size=n)] + 0.3 * rng.normal(size=(n, p)) + 50.0
    rows[rng.integers(n, size=n // 50)] = rows[5]
    v, w = (rng.integers(0, 3, n) * 0.3, rng.dirichlet(np.ones(p))) if weighted else (None, None)
    coordinates = Coordinates(rows.mean(axis=0), rows.std(axis=0))
    centers = coordinates.to_model(rows[:k])
    centers[1] = centers[0] + 1e-9 * rng.normal(size=p)  # their rows are nearly tied
    state = CenterState(centers, -math.inf, w)
    assert state.prepared.dtype_for(rows, coordinates, -math.inf) == np.float32
    found, expected = one(rows, v, coordinates, state), by_numpy(rows, v, coordinates, state)
    assert_close_sums(found, expected, 1e-10, 9)


def test_rows_with_many_near_ties_keep_double_precision():
    rng = np.random.default_rng(1)
    # Clusters are closer to each other than single precision distinguishes at their norms.
    rows = 1e4 * rng.choice([-1.0, 1.0], (9000, 1)) + rng.normal(size=(9000, 4))
    state = CenterState(rows[:200], -math.inf)
    assert state.prepared.dtype_for(rows, identity(4), -math.inf) == np.float64
    found, expected = (of(rows, None, identity(4), state) for of in (one, by_numpy))
    assert_close_sums(found, expected, 1e-10, 9)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("k", "p"), [(301, 5), (300, 20), (256, 130)])
def test_weights_are_left_out_where_they_are_negligible(dtype, weighted, k, p):
    n = 5000
    rng = np.random.default_rng(p)
    rows = (
        rng.normal(size=(k, p))[rng.integers(k, size=n)] + 0.1 * rng.normal(size=(n, p))
    ).astype(dtype)
    v, w = (rng.integers(0, 3, n) * 0.3, rng.dirichlet(np.ones(p))) if weighted else (None, None)
    centers = rows[:k] + 0.02 * rng.normal(size=(k, p))
    centers[-1] = 30.0  # a centre that all rows are far from
    state = CenterState(centers, -7.0, w)
    for s in (-7.0, -12.0, -40.0, -100.0):
        state = replace(state, s=s, shares=None)
        expected = one(rows, v, identity(p), state)
        shares = expected.weights / (n if v is None else v.sum())
        known = one(rows, v, identity(p), replace(state, shares=shares))
        # All that is left out together; sums round as they do in another order.
        rtol = 8 * np.finfo(dtype).eps + (2e-6 if dtype == np.float32 else 1e-13)
        assert_close_sums(known, expected, rtol, np.abs(rows).max())
        means = [
            sums.sums / np.maximum(sums.weights, 1e-300)[:, None] for sums in (known, expected)
        ]
        np.testing.assert_allclose(*means, rtol=1e-4 if dtype == np.float32 else 1e-9, atol=1e-4)
        # With shares far above the true ones, weights that count are left out.
        less = one(rows, v, identity(p), replace(state, shares=np.full(k, 1e30)))
        assert (less.weights < 0.999 * expected.weights).any() == (s < -7.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint16, np.bool_, ">f4"])
def test_hard_steps_in_single_precision_are_exact(dtype):
    n, p, k = 5000, 6, 40
    rng = np.random.default_rng(4)
    rows = np.clip(50.0 + 20.0 * rng.normal(size=(n, p)), 0.0, 100.0).astype(dtype)
    coordinates = Coordinates(rows.mean(axis=0, dtype=float), np.full(p, 1.5))
    z = coordinates.to_model(rows[:k])
    z[1::2] = z[::2] + 1e-8 * rng.normal(size=(k // 2, p))  # near ties everywhere
    state = CenterState(z, -math.inf, rng.dirichlet(np.ones(p)))
    found, expected = one(rows, None, coordinates, state), by_numpy(rows, None, coordinates, state)
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert_close_sums(found, expected, 1e-12, 30)
    np.testing.assert_array_equal(found.farthest.rows, expected.farthest.rows)


# Rows and centres at the limits


def special(name):
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(40, 3))
    centers = rows[:5].copy()  # rows on centres
    if name == "coincident centres":
        centers[3:] = centers[0]
    if name == "all centres coincide":
        centers[:] = 0.25
    if name == "one row":
        rows = rows[:1]
    if name == "no rows":
        rows = rows[:0]
    if name == "constant rows":
        rows[:] = rows[7]
    if name == "rows at all centres":
        centers[:], rows[:20] = rows[7], rows[7]
    if name == "denormal distances":
        rows, centers = rows * 1e-155, centers * 1e-155
    if name == "tiny":
        rows, centers = rows * 1e-150, centers * 1e-150
    if name == "huge":
        rows, centers = rows * 1e150, centers * 1e150
    if name == "mixed":
        rows *= 10.0 ** (50.0 * rng.integers(-3, 4, (40, 1)))
        centers *= 10.0 ** (50.0 * rng.integers(-3, 4, (5, 1)))
    if name == "far centre":
        centers[2] = 1e120
    if name == "near ties":
        centers[1:] = centers[0] + 1e-9 * rng.normal(size=(4, 3))
    return rows, centers


SPECIAL = (
    "rows on centres",
    "coincident centres",
    "all centres coincide",
    "one row",
    "no rows",
    "constant rows",
    "rows at all centres",
    "denormal distances",
    "tiny",
    "huge",
    "mixed",
    "far centre",
    "near ties",
)


@each_power
@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.filterwarnings("error")
def test_special_cases_are_those_of_numpy(name, s):
    rows, centers = special(name)
    state = CenterState(centers, s, None)
    found = one(rows, None, identity(3), state)
    z = rows.copy()
    with np.errstate(under="ignore"):
        expected = CenterSums.of(state.distortion.tile(z, False), None, state)
    scale = float(np.abs(rows).max(initial=0.0))
    loose = name in ("near ties", "denormal distances") or s == -1e4
    assert_close_sums(found, expected, 1e-6 if loose else 1e-11, scale)
    assert np.isfinite(found.sums).all()
    np.testing.assert_array_equal(found.weights == 0, expected.weights == 0)
    np.testing.assert_array_equal(found.farthest.rows, expected.farthest.rows)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e25])
@pytest.mark.parametrize("s", [-1.0, -math.inf])
def test_single_precision_rows_of_any_scale_give_close_sums(scale, s):
    rng = np.random.default_rng(6)
    rows = (scale * rng.normal(size=(5000, 3))).astype(np.float32)
    rows[::7] *= np.float32(1e12)
    rows[3::7] = 0.0
    centers = rows[[0, 1, 2, 3, 5]].astype(np.float64)
    state = CenterState(centers, s)
    found, expected = one(rows, None, identity(3), state), by_numpy(rows, None, identity(3), state)
    assert_close_sums(found, expected, 1e-4, float(np.abs(rows).max()))


@pytest.mark.parametrize("factor", [1e-60, 1e60])
@pytest.mark.parametrize("s", [-2.0, -math.inf])
def test_weights_of_any_size_scale_sums_in_single_precision(factor, s):
    rng = np.random.default_rng(11)
    rows = rng.normal(size=(5000, 3)).astype(np.float32)
    v = rng.uniform(0.0, 2.0, 5000)
    state = CenterState(rng.normal(size=(4, 3)), s, rng.dirichlet(np.ones(3)))
    plain = one(rows, v, identity(3), state)
    scaled = one(rows, factor * v, identity(3), state)
    for name in PARTS:
        a, b = getattr(scaled, name), factor * getattr(plain, name)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * np.max(np.abs(b)), err_msg=name)


# What must not matter


def assert_same_bits_in_all_forms(rows, v, coordinates, state):
    expected = one(rows, v, coordinates, state)
    for form in forms(rows):
        for weights in (v, None if v is None else np.repeat(v, 2)[::2]):
            assert_same_bits(one(form, weights, coordinates, state), expected)
    swapped = rows.astype(rows.dtype.newbyteorder())
    assert_same_bits(one(swapped, v, coordinates, state), expected)


@SETTINGS
@given(
    n=st.sampled_from([0, 1, 2, 23, 24, 25, 49, 200]),
    p=st.integers(1, 40),
    k=st.integers(1, 70),
    dtype=st.sampled_from(["f4", "f8"]),
    s=st.sampled_from([-0.5, -3.0, -math.inf]),
    weighted=st.booleans(),
)
def test_memory_order_strides_alignment_and_byte_order_change_no_bit(n, p, k, dtype, s, weighted):
    rng = np.random.default_rng(n + 41 * p + k)
    rows, v = rng.normal(size=(n, p)).astype(dtype), rng.uniform(size=n) if weighted else None
    w = rng.dirichlet(np.ones(p)) if weighted else None
    coordinates = Coordinates(rng.normal(size=p), rng.uniform(0.5, 2.0, p))
    state = CenterState(rng.normal(size=(k, p)), s, w)
    assert_same_bits_in_all_forms(rows, v, coordinates, state)
    assert_close_sums(
        one(rows, v, coordinates, state), by_numpy(rows, v, coordinates, state), 1e-10, 9
    )


@pytest.mark.parametrize("dtype", [np.dtype("f4"), np.dtype("f8")])
@pytest.mark.parametrize("s", [-3.0, -math.inf])
def test_blocks_that_are_copied_in_parts_have_the_bits_of_those_that_are_not(dtype, s, monkeypatch):
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(20_011, 50)).astype(dtype)
    state = CenterState(rng.normal(size=(4, 50)), s, rng.dirichlet(np.ones(50)))
    expected = one(rows, None, identity(50), state)
    monkeypatch.setattr(layout, "TILE_BYTES", 1 << 20)
    for form in (np.asfortranarray(rows), np.repeat(rows, 2, axis=0)[::2]):
        assert_same_bits(one(form, None, identity(50), state), expected)


def sometimes_near(n, p, k, dtype):
    """Rows near centres, but for those of a few tiles; the centres, and their shares."""
    rng = np.random.default_rng(p)
    centers = 4.0 * rng.normal(size=(k, p))
    rows = centers[rng.integers(k, size=n)] + 0.1 * rng.normal(size=(n, p))
    for start in (0, 6700, 14_500):  # of which some are in tiles that end a part
        rows[start : start + 300] = rng.normal(size=(300, p))
    return rows.astype(dtype), centers, np.full(k, 1.0 / k)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [70, pytest.param(37, marks=pytest.mark.long)])
def test_copied_blocks_leave_out_the_same_negligible_weights(dtype, p):
    rows, centers, shares = sometimes_near(17_000 if p == 70 else 30_000, p, 120, dtype)
    state = CenterState(centers, -7.0, shares=shares)
    expected = one(rows, None, identity(p), state)
    everything = one(rows, None, identity(p), replace(state, shares=None))
    assert (expected.sums != everything.sums).any()
    assert_same_bits(one(np.asfortranarray(rows), None, identity(p), state), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("s", [-3.0, -math.inf])
@pytest.mark.parametrize("n_tiles", [1, 2, 5])
def test_blocks_may_be_cut_wherever_a_tile_ends(dtype, s, n_tiles, monkeypatch):
    rng = np.random.default_rng(12)
    rows, v = rng.normal(size=(7001, 9)).astype(dtype), rng.uniform(size=7001)
    state = CenterState(rng.normal(size=(11, 9)), s, rng.dirichlet(np.ones(9)))
    expected = one(rows, v, identity(9), state)

    def cut(rows, _, tile):
        return list(tiles(len(rows), n_tiles * tile))

    monkeypatch.setattr(layout, "parts", cut)
    assert_same_bits(one(rows, v, identity(9), state), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("s", [-0.7, -3.0, -math.inf])
def test_integer_weights_count_like_repeated_rows(dtype, s):
    rng = np.random.default_rng(13)
    rows, v = rng.normal(size=(4500, 6)).astype(dtype), rng.integers(0, 4, 4500)
    state = CenterState(rng.normal(size=(5, 6)), s, rng.dirichlet(np.ones(6)))
    found = one(rows, v.astype(float), identity(6), state)
    expected = one(np.repeat(rows, v, axis=0), None, identity(6), state)
    assert_close_sums(found, expected, 1e-11 if dtype == np.float64 or s == -math.inf else 1e-5, 4)


def assert_same_bits(found, expected):
    for name in PARTS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    np.testing.assert_array_equal(found.farthest.rows, expected.farthest.rows)


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_any_number_of_threads_finds_the_same_bits(n_threads):
    rng = np.random.default_rng(8)
    states = (
        CenterState(rng.normal(size=(9, 6)), -4.0),
        CenterState(rng.normal(size=(9, 6)), -math.inf),
    )
    blocks = [rng.normal(size=(3000, 6)) for _ in range(8)]

    def sums(block):
        return center_sums(block, None, identity(6), states)

    expected = [sums(block) for block in blocks]
    with ThreadPoolExecutor(n_threads) as pool:
        found = list(pool.map(sums, 5 * blocks))
    for a, b in zip(found, 5 * expected, strict=True):
        for x, y in zip(a.records, b.records, strict=True):
            assert_same_bits(x, y)


@pytest.mark.parametrize("s", [-3.0, -math.inf])
def test_nystrom_features_give_the_sums_of_numpy(s):
    rng = np.random.default_rng(9)
    rows = rng.normal(size=(300, 4))
    coordinates = nystrom_coordinates(
        rows[:50], np.ones(50), identity(4), Kernel("rbf", 2.0), n_landmarks=12, seed=0
    )
    state = CenterState(coordinates.to_model(rows[:5]) + 0.01, s)
    expected = by_numpy(rows, None, coordinates, state)
    found = one(rows, None, coordinates, state)
    assert_close_sums(found, expected, 1e-9, 1.0)
    np.testing.assert_allclose(found.farthest.rows, expected.farthest.rows, rtol=1e-9, atol=1e-12)


# Without the loops, and with them


def test_without_compiled_loops_numpy_computes_the_same():
    rng = np.random.default_rng(10)
    rows, v = rng.normal(size=(400, 3)), rng.uniform(size=400)
    states = tuple(CenterState(rows[:4].copy(), s) for s in (-2.0, -math.inf))
    compiled = center_sums(rows, v, identity(3), states)
    plain = without_loops(center_sums, rows, v, identity(3), states)
    for a, b in zip(compiled.records, plain.records, strict=True):
        assert_close_sums(a, b, 1e-11, 3.0)


def test_a_fit_uses_the_compiled_loops(monkeypatch):
    calls = []
    real = dispatch.block_sums
    monkeypatch.setattr(dispatch, "block_sums", lambda *a: calls.append(1) or real(*a))
    PowerKMeans(n_clusters=2, random_state=0).fit(np.arange(20.0).reshape(10, 2))
    assert calls


def test_centres_are_prepared_once_and_travel_as_they_were():
    centers = np.random.default_rng(0).normal(size=(40, 30))
    state = CenterState(centers, -2.0)
    small = len(pickle.dumps(state))
    prepared = state.prepared
    fields = prepared.fields(np.dtype(np.float32))
    assert prepared.fields(np.dtype(np.float32)) is fields
    assert prepared.fields(np.dtype(np.float64)) is not fields
    # A reference to the class, and names.
    assert len(pickle.dumps(state)) < small + 300
    again = pickle.loads(pickle.dumps(state))
    assert again.prepared.centers is again.centers
    np.testing.assert_array_equal(
        again.prepared.fields(np.dtype(np.float32))["factors"], fields["factors"]
    )
    assert replace(state, centers=2.0 * centers).prepared.centers[0, 0] == 2.0 * centers[0, 0]


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("k", "p"), [(2, 500), (400, 3), (37, 230), (500, 20), (3, 9000)])
def test_tiles_of_few_rows_give_the_same_sums(dtype, k, p):
    rng = np.random.default_rng(k)
    n = 200 if p > 1000 else 4500
    rows, centers = rng.normal(size=(n, p)).astype(dtype), rng.normal(size=(k, p))
    found = dispatch.block_sums(rows, None, None, dispatch.PreparedCenters(centers), -2.0, 0)
    x = rows.astype(float)
    squares = (x**2).sum(axis=1)[:, None] + (centers**2).sum(axis=1) - 2 * x @ centers.T
    nearest = squares.min(axis=1, keepdims=True)
    ratios = squares / nearest
    powers = (ratios**-2.0).mean(axis=1, keepdims=True)
    phi = powers ** (-0.5 - 1.0) * ratios**-3.0 / k
    exact = 1e-3 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(found.weights, phi.sum(axis=0), rtol=exact)
    np.testing.assert_allclose(found.sums, phi.T @ rows, rtol=exact, atol=exact * np.sqrt(n))
    np.testing.assert_allclose(found.inertia, nearest.sum(), rtol=exact)
    assert layout.tile_rows(n, k, p, rows.dtype) * rows.itemsize % (3 * 64) == 0


# Known sums


@SETTINGS
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(["f4", "f8", "i2"]))
def test_known_sums_are_those_of_the_definitions(seed, dtype):
    rng = np.random.default_rng(seed)
    n, p, k = rng.integers(0, 60), rng.integers(1, 9), rng.integers(1, 7)
    rows, v = (9.0 * rng.normal(size=(n, p))).astype(dtype), rng.integers(0, 3, n) * 0.5
    coordinates = Coordinates(rng.normal(size=p), rng.uniform(0.5, 2.0, p))
    centers, labels = rng.normal(size=(k, p)), rng.integers(k, size=n).astype(np.int32)
    z = coordinates.to_model(rows)
    exact = np.square(z - centers[labels]).sum(axis=1)
    moved, changed = rng.random(k) < 0.5, rng.random(k) < 0.5
    # Distances to centres that stay are known, but for a few; so are sums of clusters that stay.
    known = moved[labels] | (rng.random(n) < 0.2)
    distances = np.where(known, -1.0, exact)
    n_j = np.bincount(labels, v, k)
    sums = np.array([(v[:, None] * z)[labels == j].sum(axis=0) for j in range(k)])
    before = np.where(changed, np.nan, n_j), np.where(changed[:, None], np.nan, sums)
    found = dispatch.known_sums(
        rows,
        v,
        coordinates,
        dispatch.PreparedCenters(centers),
        3,
        labels,
        distances,
        moved,
        changed,
        before,
    )
    np.testing.assert_allclose(distances, exact, rtol=1e-12)
    np.testing.assert_array_equal(found.weights, n_j)
    np.testing.assert_allclose(found.sums, sums, rtol=1e-12, atol=1e-12)
    assert found.inertia == found.objective == pytest.approx(math.fsum(v * exact), rel=1e-12)
    assert found.hardness == pytest.approx(v.sum())
    farthest = [i for i in np.argsort(-exact, kind="stable") if v[i] > 0][:3]
    np.testing.assert_allclose(found.farthest_distances, exact[farthest], rtol=1e-12)
    np.testing.assert_array_equal(found.farthest_rows, farthest)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_known_sums_have_the_bits_of_sums_that_compare_all(dtype):
    rng = np.random.default_rng(14)
    rows, v = rng.normal(size=(9000, 7)).astype(dtype), rng.uniform(size=9000)
    coordinates, centers = Coordinates(rng.normal(size=7), np.ones(7)), rng.normal(size=(300, 7))
    prepared = dispatch.PreparedCenters(centers)
    expected = dispatch.block_sums(rows, v, coordinates, prepared, -math.inf, 5)
    z = coordinates.to_model(rows)
    labels = (np.square(centers).sum(axis=1) - 2.0 * z @ centers.T).argmin(axis=1).astype(np.int32)
    every, unknown = np.ones(300, np.bool_), np.full(9000, -1.0)
    for form in (rows, np.asfortranarray(rows)):
        found = dispatch.known_sums(
            form, v, coordinates, prepared, 5, labels, unknown.copy(), every, every, None
        )
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


# Terms of rows

FORMULAS = {
    KullbackLeibler: lambda x, m: x * (x / m).ln() - x + m if x else m,
    ItakuraSaito: lambda x, m: x / m - (x / m).ln() - 1,
    Logistic: lambda x, m: sum((a * (a / b).ln() if a else 0) for a, b in ((x, m), (1 - x, 1 - m))),
}


@pytest.mark.in_turn("p")
@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("p", [1, 3, 40])
def test_terms_of_rows_are_sums_of_the_formula_over_the_features(kind, dtype, p):
    rng = np.random.default_rng(p)
    reference = rng.uniform(0.2, 0.8, p)
    rows = rng.uniform(0.001, 0.999, (90, p))
    rows[:30] = np.clip(reference * (1.0 + 1e-6 * rng.normal(size=(30, p))), 0.001, 0.999)
    if kind is not Logistic:
        rows *= 10.0 ** rng.integers(-3, 4, (90, 1))
    if kind is not ItakuraSaito:
        rows[::7, 0] = 0.0
    rows[5::11, p // 2] = np.nan
    rows = rows.astype(dtype)
    found = dispatch.row_terms(rows, kind(reference))
    with localcontext(Context(prec=40)):
        expected = [
            float(
                sum(
                    FORMULAS[kind](Decimal(float(x)), Decimal(m))
                    for x, m in zip(row, reference, strict=True)
                    if x == x
                )
            )
            for row in rows
        ]
    # Logistic terms have errors relative to 1 per feature.
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14 * p * (kind is Logistic))
    for form in forms(rows):
        np.testing.assert_array_equal(dispatch.row_terms(form, kind(reference)), found)


def test_terms_that_overflow_on_the_way_are_finite():
    rows = np.array([[1e-5, 1e-3], [1e-10, 5e-324]])
    reference = np.array([1e-310, 1e-3])  # its inverse overflows
    found = dispatch.row_terms(rows, KullbackLeibler(reference))
    with localcontext(Context(prec=40)):
        expected = [
            float(
                sum(
                    FORMULAS[KullbackLeibler](Decimal(float(x)), Decimal(float(m)))
                    for x, m in zip(row, reference, strict=True)
                )
            )
            for row in rows
        ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_squared_distances_have_no_terms_of_rows_beforehand():
    assert dispatch.row_terms(np.ones((3, 2)), SQUARED_EUCLIDEAN) is None


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (KullbackLeibler, -5.0),
        (KullbackLeibler, -1e-30),
        (ItakuraSaito, 0.0),
        (ItakuraSaito, -1.0),
        (Logistic, -1e-20),
        (Logistic, 1.2),
    ],
)
@pytest.mark.parametrize("s", [-math.inf, -3.0, -1e3])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [300, 6000])
def test_sums_are_not_finite_where_a_value_lies_outside_of_the_domain(kind, bad, s, dtype, n):
    rows = np.random.default_rng(0).uniform(0.05, 0.9, size=(n, 6)).astype(dtype)
    distortion = kind(rows.mean(axis=0, dtype=np.float64))
    state = CenterState(rows[:4].astype(np.float64), s, distortion=distortion)
    assert math.isfinite(one(rows, None, identity(6), state).inertia)
    rows[177, 3] = bad
    assert not math.isfinite(one(rows, None, identity(6), state).inertia)


def test_rows_listed_as_farthest_are_exact_where_products_cancel():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(20, 64))
    apart = rng.normal(size=(1000, 64))
    apart *= ((0.5 + 1e-4 * rng.random(1000)) / np.linalg.norm(apart, axis=1))[:, None]
    rows = (centers[rng.integers(20, size=1000)] + apart).astype("f4")
    found = dispatch.block_sums(rows, None, None, dispatch.PreparedCenters(centers), -math.inf, 50)
    exact = squared_distances(rows.astype("f8"), centers).min(axis=1)
    np.testing.assert_allclose(found.farthest_distances, -np.sort(-exact)[:50], rtol=1e-12)


def test_sums_do_not_depend_on_the_block_that_shows_how_many_rows_are_in_doubt():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(64, 16))
    centers[1] = centers[0] + 1e-6
    clear = centers[rng.integers(2, 64, 6000)] + 0.1 * rng.normal(size=(6000, 16))
    doubtful = centers[rng.integers(0, 2, 6000)] + 0.1 * rng.normal(size=(6000, 16))
    seen, dtypes = [], []
    for first in (clear, doubtful):
        prepared = dispatch.PreparedCenters(centers)
        dtypes.append(prepared.dtype_for(first, None, -math.inf))
        seen.append(
            [dispatch.block_sums(x, None, None, prepared, -math.inf, 3) for x in (clear, doubtful)]
        )
    assert dtypes == [np.float32, np.float64]
    for one, other in zip(*seen, strict=True):
        for name in (*PARTS, "farthest_distances", "farthest_rows"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
