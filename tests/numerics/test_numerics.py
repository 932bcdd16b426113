"""Definitions of numpy alone against naive ones, also where floats are at their limits."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse
from _naive import critical_power as naive_critical_power
from _naive import (
    exact_squared_distances,
    power_mean,
)
from _naive import power_means as naive_power_means
from _naive import squared_distances as naive_squared_distances
from _support import n_examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daskmm.data.sparse import sparse_rows
from daskmm.numerics.annealing import critical_power
from daskmm.numerics.distances import squared_distances as plain_distances
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN
from daskmm.numerics.distortions.norms import weighted_median
from daskmm.numerics.entropy import negative_entropy, softmin_weights, within_dispersion
from daskmm.numerics.exponentials import exponentiate
from daskmm.numerics.power_means import power_means
from daskmm.numerics.rows import Coordinates, SphereCoordinates, tile_rows, tiles

POWERS = (-0.2, -1.0, -3.0, -50.0, -1e4, -1e12)
each_power = pytest.mark.parametrize("s", POWERS)
SETTINGS = settings(max_examples=n_examples(80), derandomize=True, database=None, deadline=None)

# An exponent of −700 has an absolute error of a few units of 1e-13, and so has its exp.
RELATIVE = 3e-12
# Weights of fewer digits, or about to lose some when multiplied, may as well be zeros.
TINY = 1e-290


def phi_of(row, s):
    """φ and M_s of one row by the kernel, every floating point complaint being an error."""
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        means = power_means(np.array([row], dtype=np.float64), s)
    return means.phi[0], means.value[0], means


def check_row(row, s):
    phi, value, means = phi_of(row, s)
    expected_phi, expected_value = power_mean(row, s)
    np.testing.assert_allclose(phi, expected_phi, rtol=RELATIVE, atol=TINY)
    np.testing.assert_allclose(value, expected_value, rtol=1e-14)
    assert means.smallest[0] == min(row)
    k = len(row)
    assert 1 - RELATIVE <= phi.sum() <= k ** (-1 / s) * (1 + RELATIVE)
    assert 0 < means.hardness[0] <= 1 + 1e-15
    # What is too small for any float is exactly 0.
    assert all(p == 0 for p, q in zip(phi, expected_phi, strict=True) if q == 0)


HAND_PICKED = {
    "one centre": [3.0],
    "small integers": [1.0, 2.0, 3.0, 4.0],
    "smallest last": [4.0, 3.0, 2.0, 1.0],
    "all tied": [7.0] * 5,
    "two tied of three": [2.0, 2.0, 5.0],
    "near tie": [1.0, 1.0 + 1e-12, 2.0],
    "nearer tie": [1.0, 1.0 + 2.0**-52, 1.5],
    "near tie of large numbers": [1e300, 1e300 * (1 + 1e-12)],
    "near tie of small numbers": [1e-300, 1e-300 * (1 + 1e-12), 1e-299],
    "near tie of three": [5.0, 5.0 * (1 + 3e-9), 5.0 * (1 + 1e-6)],
    "as wide as the papers' powers meet": [1e-300, 1.0, 1e300],
    "wide, unsorted": [1e300, 1e-300, 1e-150, 1e150],
    "large": [1e300, 2e300, 1e299],
    "small": [1e-300, 2e-300, 3e-300],
    "subnormal": [5e-310, 1e-309, 1.0],
    "one zero": [0.0, 1.0, 2.0],
    "zero last": [1e300, 1e-300, 0.0],
    "two zeros": [0.0, 3.0, 0.0, 1e-300],
    "all zeros": [0.0, 0.0, 0.0],
    "an infinity": [1.0, math.inf, 2.0],
    "an infinity beside the largest": [1e300, math.inf],
    "a zero and an infinity": [0.0, math.inf, 1.0],
    "all but one infinite": [math.inf, math.inf, 4.0],
    "all infinite": [math.inf, math.inf],
    "many": [1.0 + 0.01 * j for j in range(60)],
}


@each_power
@pytest.mark.parametrize("row", HAND_PICKED.values(), ids=HAND_PICKED)
def test_phi_and_power_mean_are_right_for_hand_picked_rows(row, s):
    check_row(row, s)


exponents = st.floats(-300, 300)
distances = exponents.map(lambda e: 10.0**e)


@each_power
@SETTINGS
@given(row=st.lists(distances | st.just(0.0) | st.just(math.inf), min_size=1, max_size=7))
def test_phi_and_power_mean_are_right_for_rows_of_any_magnitude(s, row):
    check_row(row, s)


@each_power
@SETTINGS
@given(
    smallest=distances.filter(lambda d: d < 1e290),
    ratios=st.lists(st.floats(0, 3).map(lambda e: 10.0**e), max_size=6),
    near=st.lists(st.floats(-15, -3).map(lambda e: 1 + 10.0**e), max_size=3),
)
@example(smallest=1.0, ratios=[], near=[1 + 1e-12])
def test_phi_and_power_mean_are_right_for_comparable_and_nearly_tied_distances(
    s, smallest, ratios, near
):
    check_row([smallest * r for r in [*near, 1.0, *ratios]], s)


@each_power
def test_phi_of_many_rows_equal_the_naive_ones(s):
    rng = np.random.default_rng(0)
    d = rng.chisquare(3, size=(40, 6))
    d[3, 2] = d[7, :2] = 0.0
    d[9] = 1.0
    means = power_means(d, s)
    phi, value = naive_power_means(d, s)
    np.testing.assert_allclose(means.phi, phi, rtol=RELATIVE, atol=TINY)
    np.testing.assert_allclose(means.value, value, rtol=1e-13)


@each_power
def test_phi_does_not_depend_on_scale(s):
    d = np.random.default_rng(1).chisquare(3, size=(30, 5))
    for factor in (2.0**-900, 2.0**900):  # exact
        scaled = power_means(factor * d, s)
        np.testing.assert_array_equal(scaled.phi, power_means(d, s).phi)


@each_power
def test_phi_is_the_gradient_of_the_power_mean(s):
    d = np.random.default_rng(2).uniform(1.0, 1.0 + 10.0 / abs(s), size=(20, 4))
    step = 1e-6 / max(1.0, abs(s))
    phi = power_means(d, s).phi
    for j in range(4):
        e = step * np.eye(4)[j]
        slope = (power_means(d + e, s).value - power_means(d - e, s).value) / (2 * step)
        np.testing.assert_allclose(phi[:, j], slope, atol=max(1e-8, 1e-16 / step * 20))


def test_zeros_share_the_weight_as_the_limit_says():
    for s in POWERS:
        one = power_means(np.array([[0.0, 1.0, 2.0]]), s).phi[0]
        np.testing.assert_allclose(one, [3 ** (-1 / s), 0, 0], rtol=1e-14)
        two = power_means(np.array([[0.0, 1.0, 0.0]]), s).phi[0]
        each = (1 / 3) * (2 / 3) ** (1 / s - 1)
        np.testing.assert_allclose(two, [each, 0, each], rtol=1e-14)


def test_a_tie_of_zeros_is_the_limit_of_a_tie_of_small_distances():
    for s in POWERS:
        zeros = power_means(np.array([[0.0, 0.0, 1.0]]), s).phi
        small = power_means(np.array([[1e-300, 1e-300, 1.0]]), s).phi
        np.testing.assert_allclose(zeros, small, rtol=1e-12, atol=1e-50)


def test_weights_too_small_for_a_float_are_exactly_zero():
    # r^s = 1e-400, and so on.
    assert power_means(np.array([[1.0, 1e4]]), -100.0).phi[0, 1] == 0.0
    assert power_means(np.array([[1e-300, 1e300]]), -0.2).phi[0, 1] == 0.0
    assert power_means(np.array([[1.0, 1.001]]), -1e12).phi[0, 1] == 0.0
    # r^(s−1) is lost where r^s is not; no clamp may stand in for it.
    assert power_means(np.array([[1e-200, 1e100]]), -1.0).phi[0, 1] == 0.0


def test_power_means_warn_of_nothing_and_leave_their_input_alone():
    d = np.array([[0.0, 1.0], [math.inf, math.inf], [1e-300, 1e300], [1.0, 1.0], [0.0, 0.0]])
    before = d.copy()
    with warnings.catch_warnings(), np.errstate(divide="warn", invalid="warn", over="warn"):
        warnings.simplefilter("error")
        for s in (*POWERS, -math.inf):
            power_means(d, s)
    np.testing.assert_array_equal(d, before)


def test_power_means_of_no_rows_are_empty():
    for s in (-1.0, -math.inf):
        means = power_means(np.empty((0, 3)), s)
        assert means.phi.shape == (0, 3)
        assert means.value.shape == means.smallest.shape == means.hardness.shape == (0,)


def test_the_limit_of_falling_powers_is_the_hard_assignment():
    d = np.random.default_rng(3).chisquare(3, size=(200, 6))
    hard = power_means(d, -math.inf)
    np.testing.assert_array_equal(hard.phi.argmax(axis=1), d.argmin(axis=1))
    np.testing.assert_array_equal(hard.phi.sum(axis=1), 1.0)
    np.testing.assert_array_equal(hard.value, d.min(axis=1))
    np.testing.assert_array_equal(hard.hardness, 1.0)
    errors = [np.abs(power_means(d, s).phi - hard.phi).max() for s in (-1e2, -1e4, -1e8, -1e12)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-11
    np.testing.assert_allclose(power_means(d, -1e12).value, hard.value, rtol=1e-11)


def test_the_hard_assignment_of_a_tie_is_the_first():
    phi = power_means(np.array([[2.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), -math.inf).phi
    np.testing.assert_array_equal(phi, [[0, 1, 0], [1, 0, 0]])


def test_hardness_counts_tied_centres_as_one():
    d = np.array([[1.0, 1.0 + 1e-9, 100.0], [1.0, 1.1, 1.2], [0.0, 0.0, 1.0]])
    hardness = power_means(d, -20.0).hardness
    np.testing.assert_allclose(hardness[[0, 2]], 1.0)
    shares = d[1] ** -20.0
    np.testing.assert_allclose(hardness[1], shares[0] / shares.sum())


# Distances


def squared_distances(rows, centers, feature_weights=None):
    """Return plain distances, or those of the distortion if features are weighted."""
    if feature_weights is None:
        return plain_distances(rows, centers)
    tile = SQUARED_EUCLIDEAN.tile(rows, False)
    return SQUARED_EUCLIDEAN.distances(tile, centers, feature_weights)


def check_distances(rows, centers, feature_weights=None, rtol=1e-10):
    found = squared_distances(rows, centers, feature_weights)
    expected = exact_squared_distances(rows, centers, feature_weights)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=0)
    assert (found >= 0).all()


WEIGHTINGS = {
    "unweighted": lambda p: None,
    "weighted": lambda p: np.linspace(0.1, 2.0, p),
    "with zero weights": lambda p: np.where(np.arange(p) % 2, 0.0, 1.0 / p),
    "one feature": lambda p: np.eye(p)[p // 2],
    "over many magnitudes": lambda p: np.logspace(-12, 0, p),
}
each_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS)


@each_weighting
def test_squared_distances_are_the_sums_of_the_definition(weighting):
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(size=(30, 7)), rng.normal(size=(5, 7))
    w = weighting(7)
    check_distances(rows, centers, w)
    np.testing.assert_allclose(
        squared_distances(rows, centers, w), naive_squared_distances(rows, centers, w), rtol=1e-10
    )


@each_weighting
@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5, 1e-8, 1e-12, 2.0**-52])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
def test_squared_distances_of_rows_near_a_centre_keep_their_digits(weighting, gap, offset):
    # ‖x‖² − 2xᵀθ + ‖θ‖² loses all digits of the small distances here.
    rng = np.random.default_rng(1)
    centers = rng.normal(size=(4, 6)) + offset
    rows = np.repeat(centers, 5, axis=0) * (1 + gap * rng.normal(size=(20, 6)))
    check_distances(rows, centers, weighting(6))


@each_weighting
def test_squared_distance_of_a_row_on_a_centre_is_exactly_zero(weighting):
    rng = np.random.default_rng(2)
    centers = rng.normal(size=(6, 9)) * np.logspace(-5, 5, 6)[:, None]
    found = squared_distances(np.vstack([centers, np.zeros((1, 9))]), centers, weighting(9))
    np.testing.assert_array_equal(np.diag(found), 0.0)
    assert squared_distances(np.zeros((1, 3)), np.zeros((1, 3)))[0, 0] == 0.0


def test_squared_distances_ignore_features_of_weight_zero_however_large():
    rng = np.random.default_rng(3)
    rows, centers = rng.normal(size=(20, 4)), rng.normal(size=(3, 4))
    rows[:, 1] *= 1e12
    check_distances(rows, centers, np.array([1.0, 0.0, 0.5, 0.25]))


def test_squared_distances_where_more_of_them_cancel_than_are_redone_at_once(monkeypatch):
    from daskmm.numerics import distances
    from daskmm.numerics.distortions import bregman

    for module in (distances, bregman):
        monkeypatch.setattr(module, "REDO_ELEMENTS", 40)
    rng = np.random.default_rng(4)
    centers = rng.normal(size=(3, 8))
    rows = np.repeat(centers, 11, axis=0) + 1e-7 * rng.normal(size=(33, 8))
    check_distances(rows, centers)
    check_distances(rows, centers, np.linspace(0, 1, 8))


@SETTINGS
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(1, 12)),
    spread=st.floats(-9, 3).map(lambda e: 10.0**e),
    weighted=st.booleans(),
)
def test_squared_distances_equal_the_naive_ones_near_and_far(seed, shape, spread, weighted):
    n, k, p = shape
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=p)
    rows = centre + spread * rng.normal(size=(n, p))
    centers = centre + spread * rng.normal(size=(k, p))
    check_distances(rows, centers, rng.dirichlet(np.full(p, 0.3)) if weighted else None)


def test_squared_distances_leave_their_arguments_alone():
    rng = np.random.default_rng(5)
    rows, centers = rng.normal(size=(9, 3)), rng.normal(size=(2, 3))
    copies = rows.copy(), centers.copy()
    squared_distances(rows, centers)
    np.testing.assert_array_equal(rows, copies[0])
    np.testing.assert_array_equal(centers, copies[1])


# Entropy weights


def test_softmin_weights_are_those_of_the_definition():
    dispersion = np.array([0.3, 1.0, 0.1, 2.5])
    expected = [math.exp(-d / 0.7) for d in dispersion]
    found = softmin_weights(dispersion, 0.7)
    np.testing.assert_allclose(found, np.array(expected) / sum(expected), rtol=1e-14)


@pytest.mark.parametrize("lam", [1e-300, 1e-12, 1e-3, 1e3, 1e300])
def test_softmin_weights_sum_to_one_for_any_lam(lam):
    # exp(−D/λ) alone is 0 everywhere for small λ, and 0/0 follows.
    dispersion = np.array([5.0, 5.0 + 1e-6, 7.0, 900.0])
    w = softmin_weights(dispersion, lam)
    np.testing.assert_allclose(w.sum(), 1.0, rtol=1e-15)
    assert (np.diff(w) <= 0).all()
    if lam <= 1e-12:
        np.testing.assert_array_equal(w, [1, 0, 0, 0])
    if lam == 1e300:
        np.testing.assert_allclose(w, 0.25)


def test_softmin_weights_of_constant_features_are_zero():
    varying = np.array([False, True, True])
    w = softmin_weights(np.array([0.0, 1.0, 1.0]), 0.5, varying)
    np.testing.assert_array_equal(w, [0.0, 0.5, 0.5])
    # The smallest D that counts is that of the features that do.
    w = softmin_weights(np.array([0.0, 1e3, 1e3 + 1]), 1e-3, varying)
    np.testing.assert_array_equal(w, [0.0, 1.0, 0.0])


def test_softmin_weights_where_all_features_are_constant_are_equal():
    w = softmin_weights(np.zeros(4), 0.5, np.zeros(4, dtype=bool))
    np.testing.assert_array_equal(w, 0.25)


def test_negative_entropy_equals_the_naive_sum():
    assert negative_entropy(np.array([1.0, 0.0, 0.0])) == 0.0
    np.testing.assert_allclose(negative_entropy(np.full(8, 1 / 8)), -math.log(8), rtol=1e-15)
    w = np.array([0.5, 0.0, 0.3, 0.2])
    expected = sum(v * math.log(v) for v in w if v > 0)
    np.testing.assert_allclose(negative_entropy(w), expected, rtol=1e-15)


def test_within_dispersion_is_the_sum_of_squared_deviations():
    rng = np.random.default_rng(6)
    rows, phi = rng.normal(size=(40, 5)), rng.random((40, 3))
    centers = (phi.T @ rows) / phi.sum(axis=0)[:, None]
    expected = [
        sum(phi[i, j] * (rows[i, f] - centers[j, f]) ** 2 for i in range(40) for j in range(3))
        for f in range(5)
    ]
    found = within_dispersion(phi.sum(axis=1) @ rows**2, phi.sum(axis=0)[:, None], centers)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_within_dispersion_is_never_negative():
    # All rows on their centre: what rounding leaves may not become a negative dispersion.
    rng = np.random.default_rng(7)
    centers = rng.normal(size=(50, 200))
    counts = rng.uniform(0.1, 3, 50)
    found = within_dispersion(counts @ centers**2 * (1 - 1e-15), counts[:, None], centers)
    np.testing.assert_array_equal(found, 0.0)


# The critical power


def test_the_critical_power_of_isotropic_rows_is_1_minus_half_of_p():
    for p in (2, 3, 10, 40):
        rows = np.vstack([np.eye(p), -np.eye(p)])
        np.testing.assert_allclose(critical_power(rows, np.ones(2 * p)), 1 - p / 2, atol=1e-9)


def test_critical_power_of_gaussian_rows_is_a_little_above_that_of_isotropic_directions():
    rows = np.random.default_rng(8).normal(size=(20_000, 4))
    found = critical_power(rows, np.ones(len(rows)))
    assert -1.0 <= found < -0.95


@pytest.mark.parametrize("p", [1, 3, pytest.param(600, marks=pytest.mark.long)])
def test_the_critical_power_of_rows_on_a_line_is_one_half(p):
    rng = np.random.default_rng(9)
    rows = rng.normal(size=(700, 1)) * rng.normal(size=p) + 5.0
    np.testing.assert_allclose(critical_power(rows, np.ones(700)), 0.5, rtol=1e-6)


@pytest.mark.in_turn("weighted")
@pytest.mark.parametrize(
    ("n", "p"),
    [
        (200, 3),
        (40, 30),
        (30, 40),
        (5, 900),
        (900, 5),
        pytest.param(600, 700, marks=pytest.mark.long),
        pytest.param(700, 600, marks=pytest.mark.long),
    ],
    ids=lambda size: str(size),
)
@pytest.mark.parametrize("weighted", [False, True], ids=["equal rows", "weighted rows"])
def test_critical_power_is_that_of_the_whole_spectrum(n, p, weighted):
    # More than 512 of both take an iterative solver.
    rng = np.random.default_rng(10)
    rows = rng.normal(size=(n, p)) * np.linspace(1, 3, p) + rng.normal(size=p)
    v = rng.integers(1, 4, n).astype(float) if weighted else np.ones(n)
    accuracy = 1e-9 if min(n, p) <= 512 else 1e-5
    np.testing.assert_allclose(
        critical_power(rows, v), naive_critical_power(rows, v), rtol=accuracy
    )


def test_the_critical_power_of_many_equal_features_is_found():
    # An operator that is a multiple of the identity stops an iterative solver at once.
    p = 520
    rows = np.vstack([np.eye(p), -np.eye(p)])
    np.testing.assert_allclose(critical_power(rows, np.ones(2 * p)), 1 - p / 2, rtol=1e-6)


def test_critical_power_counts_integer_weights_as_repetition():
    rng = np.random.default_rng(11)
    rows = rng.normal(size=(60, 4)) * [1, 2, 3, 4]
    v = rng.integers(0, 4, 60)
    repeated = np.repeat(rows, v, axis=0)
    np.testing.assert_allclose(
        critical_power(rows, v.astype(float)),
        critical_power(repeated, np.ones(len(repeated))),
        rtol=1e-12,
    )


def test_critical_power_leaves_out_rows_at_the_mean():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -0.5], [0.0, 0.0]])
    np.testing.assert_allclose(critical_power(rows, np.ones(5)), 0.0, atol=1e-12)


def test_the_critical_power_of_coinciding_rows_is_one_half():
    assert critical_power(np.full((7, 3), 0.1), np.ones(7)) == 0.5


# Tiles and coordinates


@pytest.mark.parametrize(("n", "size"), [(0, 4), (1, 4), (4, 4), (5, 4), (12, 5), (3, 100)])
def test_tiles_cover_all_rows_once_and_in_order(n, size):
    parts = list(tiles(n, size))
    covered = [i for part in parts for i in range(n)[part]]
    assert covered == list(range(n))
    assert all(0 < part.stop - part.start <= size for part in parts)


def test_tiles_are_bounded_in_bytes_however_wide_the_rows():
    assert tile_rows(5, 3) * 8 * (3 * 5 + 5 * 3) <= 4 << 20
    assert tile_rows(10**7, 10**4) == 16
    assert tile_rows(1, 1) > 10_000


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, np.bool_])
def test_coordinates_are_float64_and_go_there_and_back(dtype):
    rows = np.array([[1, 0], [0, 1], [1, 1]], dtype=dtype)
    coordinates = Coordinates(np.array([0.5, 2.0]), np.array([2.0, 0.25]))
    z = coordinates.to_model(rows)
    assert z.dtype == np.float64
    np.testing.assert_allclose(z, (rows.astype(float) - [0.5, 2.0]) / [2.0, 0.25])
    np.testing.assert_allclose(coordinates.to_input(z), rows.astype(float))


@given(
    values=st.lists(st.integers(-5, 5), min_size=1, max_size=12),
    data=st.data(),
)
def test_weighted_medians_are_those_of_repeated_values(values, data):
    same = st.lists(st.integers(1, 4), min_size=len(values), max_size=len(values))
    times = data.draw(same)
    expected = np.median(np.repeat(values, times))
    for unit in (1.0, 0.1):  # of which sums are rounded
        found = weighted_median(np.array(values, dtype=float), unit * np.array(times))
        assert found == expected


def test_directions_of_sparse_rows_are_those_of_dense_ones():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(7, 5)) * (rng.random((7, 5)) < 0.7)
    X[1] = 0.0
    X[2] *= 1e200
    X[3] *= 1e-200
    X[4], X[4, 1] = 0.0, -1e300
    X[6], X[6, :2] = 0.0, (3e-310, -4e-310)
    table = scipy.sparse.csr_array(X)
    table.data[table.indptr[5]] = 0.0  # explicit
    dense, sphere = table.toarray(), SphereCoordinates(5)
    for some in ([0, 5], [0, 1, 5], [*range(7)]):
        z = sphere.to_model(sparse_rows(table[some]))
        found = scipy.sparse.csr_array((z.data, z.indices, z.indptr), shape=z.shape).toarray()
        np.testing.assert_allclose(found, sphere.to_model(dense[some]), rtol=1e-14)
        lengths = np.linalg.norm(found, axis=1)
        np.testing.assert_allclose(lengths[np.any(dense[some], axis=1)], math.sqrt(0.5))


def test_exponentials_have_no_subnormal_numbers():
    exponents = np.concatenate(
        [np.linspace(-800.0, -600.0, 5001), np.linspace(-40.0, 700.0, 1001), [-np.inf, np.nan, 0.0]]
    )
    expected = np.exp(exponents)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = exponentiate(exponents)
    assert found is exponents
    low = expected < 1e-298
    assert (found[low] <= expected[low]).all()
    assert (found[expected < 2e-300] == 0.0).all()
    assert not ((found > 0.0) & (found < np.finfo(float).tiny)).any()
    np.testing.assert_array_equal(found[expected > 1e-283], expected[expected > 1e-283])
    np.testing.assert_allclose(found[~low], expected[~low], rtol=0.03)
    assert np.isnan(found[-2])
    assert found[-1] == 1.0
