"""Distortions: distances, updates, descent, refusals and what every fit owes to its parameters."""

import math
import pickle
import warnings
from decimal import Decimal, localcontext

import dask.array as da
import numpy as np
import pytest
from _naive import power_means
from _support import computed, fit_recording
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

import daskmm
from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.compiled import dispatch
from daskmm.data.blocks import Block
from daskmm.kmeans.assignment import labels_of
from daskmm.kmeans.sums import CenterState, CenterSums, center_sums
from daskmm.kmeans.updates import PowerUpdate
from daskmm.numerics.annealing import critical_power
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.distortions.bregman import information
from daskmm.numerics.rows import Coordinates, WhitenedCoordinates

# Naive formulas of one pair of numbers, their limits at the edges included.


def xlog(x, y):
    if x == 0.0:
        return 0.0
    return math.inf if y == 0.0 else x * math.log(x / y)


FORMULAS = {
    "sqeuclidean": lambda x, t: (x - t) ** 2,
    "kl": lambda x, t: xlog(x, t) - x + t,
    "itakura-saito": lambda x, t: x / t - math.log(x / t) - 1.0,
    "logistic": lambda x, t: xlog(x, t) + xlog(1.0 - x, 1.0 - t),
}
each = pytest.mark.parametrize("name", FORMULAS)


def naive_distances(name, rows, centers):
    """Σ_l δ(x_il, θ_jl) over the values that are not NaN, by loops."""
    delta = FORMULAS[name]
    return np.array(
        [
            [
                math.fsum(delta(x, t) for x, t in zip(row, c, strict=True) if not math.isnan(x))
                if all(math.isnan(x) or delta(x, t) < math.inf for x, t in zip(row, c, strict=True))
                else math.inf
                for c in centers
            ]
            for row in rows
        ]
    )


def rows_of(name, n, p, rng, k=4):
    """Rows of a mixture in the domain, zeros among them where it has an edge, and its means."""
    if name == "kl":
        truth = rng.gamma(1.0, 4.0, (k, p))
        return rng.poisson(truth[rng.integers(k, size=n)]).astype(float), truth
    if name == "logistic":
        truth = rng.beta(0.7, 0.7, (k, p))
        return rng.binomial(5, truth[rng.integers(k, size=n)]) / 5, truth
    if name == "itakura-saito":
        truth = rng.lognormal(0.0, 1.0, (k, p))
        return truth[rng.integers(k, size=n)] * rng.gamma(3.0, 1 / 3, (n, p)) + 1e-12, truth
    truth = 3.0 * rng.normal(size=(k, p))
    return truth[rng.integers(k, size=n)] + rng.normal(size=(n, p)), truth


def distortion_of(name, rows):
    return DISTORTIONS[name].around(np.nanmean(rows, axis=0), np.nanvar(rows, axis=0))


def identity(p):
    return Coordinates(np.zeros(p), np.ones(p))


def perforated(rows, share, rng):
    """A copy with holes, a value left in every row."""
    rows = rows.copy()
    holes = rng.random(rows.shape) < share
    holes[np.arange(len(rows)), rng.integers(rows.shape[1], size=len(rows))] = False
    rows[holes] = np.nan
    return rows


# Distances


@each
@pytest.mark.parametrize("partial", [False, True])
def test_block_distances_are_those_of_the_formula(name, partial):
    rng = np.random.default_rng(0)
    rows, centers = rows_of(name, 60, 7, rng)
    if partial:
        rows = perforated(rows, 0.3, rng)
    distortion = distortion_of(name, rows)
    found = distortion.distances(distortion.tile(rows, partial), centers, None)
    expected = naive_distances(name, rows, centers)
    # A small distance by the formula itself has lost digits.
    near = np.nonzero(expected < 1e-3)
    for i, j in zip(*near, strict=True):
        expected[i, j] = exact_distances(name, rows[i : i + 1], centers[j : j + 1])[0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def exact_distances(name, rows, centers):
    """As `naive_distances` with 60 digits, of rows and centres off the edges."""

    def exact(x, t):
        x, t = Decimal(float(x)), Decimal(float(t))
        if name == "sqeuclidean":
            return (x - t) ** 2
        if name == "itakura-saito":
            return x / t - (x / t).ln() - 1
        found = x * (x / t).ln() - x + t
        return found if name == "kl" else found + (1 - x) * ((1 - x) / (1 - t)).ln() + x - t

    with localcontext() as context:
        context.prec = 60
        return np.array(
            [
                [
                    float(sum(exact(x, t) for x, t in zip(row, c, strict=True) if x == x))
                    for c in centers
                ]
                for row in rows
            ]
        )


@each
def test_distances_of_nearly_equal_points_keep_their_digits(name):
    rng = np.random.default_rng(1)
    for shift in (1e-3, 1e-6, 1e-9):
        rows = rng.uniform(0.2, 0.8, (6, 5))
        centers = rows[:3] * (1.0 + shift * rng.normal(size=(3, 5)))
        expected = exact_distances(name, rows, centers)
        distortion = distortion_of(name, rows)
        found = distortion.distances(distortion.tile(rows, False), centers, None)
        np.testing.assert_allclose(found, expected, rtol=1e-7 if shift == 1e-9 else 1e-9)


@pytest.mark.parametrize("name", ["kl", "logistic"])
def test_centres_at_an_edge_are_infinitely_far_from_rows_that_are_not(name):
    rng = np.random.default_rng(2)
    rows, centers = rows_of(name, 80, 4, rng)
    centers[0, 1], centers[2, 0] = 0.0, 0.0
    if name == "logistic":
        centers[1, 2] = 1.0
    expected = naive_distances(name, rows, centers)
    assert np.isinf(expected).any()
    assert np.isfinite(expected[:, 0]).any()
    distortion = distortion_of(name, rows)
    tile = distortion.tile(rows, False)
    np.testing.assert_allclose(distortion.distances(tile, centers, None), expected, rtol=1e-12)
    for s in (-1.0, -7.0, -np.inf):
        state = CenterState(centers, s, None, distortion)
        phi, values = power_means(expected, s)
        sums = CenterSums.of(tile, None, state)
        np.testing.assert_allclose(sums.weights, phi.sum(axis=0), rtol=1e-10)
        np.testing.assert_allclose(sums.objective, values.sum(), rtol=1e-11)


def test_information_is_exact_at_the_edges_and_near_equality():
    x = np.array([0.0, 0.0, 1.0, 3.0, 1.0])
    theta = np.array([0.0, 2.0, 0.0, 3.0, 1.0 + 1e-9])
    expected = [0.0, 2.0, np.inf, 0.0, 5e-19]
    np.testing.assert_allclose(information(x, theta), expected, rtol=1e-6)


@each
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("s", [-1.0, -6.0, -np.inf])
def test_compiled_sums_are_those_of_numpy(name, partial, dtype, s):
    rng = np.random.default_rng(3)
    rows, centers = rows_of(name, 5000, 6, rng)
    rows = (perforated(rows, 0.2, rng) if partial else rows).astype(dtype)
    if name in ("kl", "logistic"):
        centers[0, 1] = 0.0
    weights = rng.uniform(0.0, 2.0, len(rows))
    distortion = distortion_of(name, rows.astype(float))
    states = tuple(CenterState(c, s, None, distortion, partial) for c in (centers, centers * 0.9))
    found = center_sums(rows, weights, identity(6), states).records
    tile = distortion.tile(rows.astype(float), partial)
    rtol = 1e-10 if dtype == np.float64 else 1e-5
    for state, ours in zip(states, found, strict=True):
        theirs = CenterSums.of(tile, weights, state)
        for field in ("weights", "sums", "denominators", "objective", "inertia", "hardness"):
            a, b = getattr(ours, field), getattr(theirs, field)
            if b is None:
                assert a is None
            else:
                np.testing.assert_allclose(a, b, rtol, rtol * np.abs(b).max(), err_msg=field)
        farthest = ours.farthest
        np.testing.assert_allclose(farthest.distances, theirs.farthest.distances, rtol=rtol)
        np.testing.assert_array_equal(farthest.rows, theirs.farthest.rows)


# Updates


def objective(name, rows, weights, centers, s):
    return float(weights @ power_means(naive_distances(name, rows, centers), s)[1])


@pytest.mark.parametrize("name", ["kl", "itakura-saito", "logistic"])
def test_terms_that_all_centres_share_keep_their_digits(name):
    rng = np.random.default_rng(11)
    reference = rng.uniform(0.2, 0.8, 5)
    distortion = type(distortion_of(name, np.ones((2, 5))))(reference)
    shifts = 10.0 ** rng.uniform(-9.0, 0.0, (300, 5)) * rng.choice([-0.9, 0.2], (300, 5))
    rows = reference * (1.0 + shifts)
    if name != "logistic":
        rows = np.concatenate([rows, reference * 10.0 ** rng.uniform(-9.0, 9.0, (300, 5))])
    expected = exact_distances(name, rows, reference[None])[:, 0]
    # Those of the logistic divergence are exact up to a share of 1.
    close = {"rtol": 0, "atol": 1e-15 * 5} if name == "logistic" else {"rtol": 1e-14}
    np.testing.assert_allclose(dispatch.row_terms(rows, distortion), expected, **close)


def test_ratios_to_the_reference_may_overflow():
    rows = np.array([[1e200, 0.0], [3.0, 1e-200], [1e-200, 2e-200]])
    for reference in (np.array([1e-200, 1.0]), np.array([1e-310, 1e-310])):
        distortion = DISTORTIONS["kl"](reference)
        expected = distortion.elements(rows, reference).sum(axis=1)
        assert np.isfinite(expected).any()
        np.testing.assert_allclose(dispatch.row_terms(rows, distortion), expected, rtol=1e-12)


@pytest.mark.in_turn("p")
@pytest.mark.parametrize("p", [3, 16, 37])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("s", [-4.0, -np.inf])
def test_whitened_rows_are_summed_as_if_they_came_whitened(p, dtype, s, monkeypatch):
    monkeypatch.setattr("daskmm.numerics.rows.TILE_BYTES", 1 << 15)
    rng = np.random.default_rng(12)
    mixing = rng.normal(size=(p, p)) + 2.0 * np.eye(p)
    rows = (rng.normal(size=(400, p)) @ mixing + 7.0).astype(dtype)
    weights = rng.uniform(0.0, 2.0, len(rows))
    coordinates = WhitenedCoordinates.of(
        rows.mean(axis=0, dtype=float), np.linalg.inv(np.cov(rows.T))
    )
    z = (rows - coordinates.mean) @ coordinates.whitening
    centers = z[:4] + 1e-3
    state = CenterState(centers, s)
    (found,) = center_sums(rows, weights, coordinates, (state,)).records
    phi, values = power_means(((z[:, None] - centers) ** 2).sum(axis=2), s)
    phi *= weights[:, None]
    rtol = 1e-5 if dtype == np.float32 and s > -np.inf else 1e-11
    np.testing.assert_allclose(found.weights, phi.sum(axis=0), rtol=rtol)
    np.testing.assert_allclose(found.sums, phi.T @ z, rtol=rtol, atol=10 * rtol * len(rows))
    np.testing.assert_allclose(found.objective, weights @ values, rtol=rtol)
    labels = labels_of(Block(rows), coordinates, state)
    np.testing.assert_array_equal(labels, ((z[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1))


@pytest.mark.in_turn("partial")
@each
@pytest.mark.parametrize("partial", [False, True])
def test_the_update_minimises_the_majorizing_function(name, partial):
    rng = np.random.default_rng(4)
    rows, centers = rows_of(name, 25, 3, rng, k=2)
    rows = perforated(rows, 0.25, rng) if partial else rows
    weights = rng.uniform(0.5, 2.0, len(rows))
    distortion = distortion_of(name, rows)
    state = CenterState(centers, -3.0, None, distortion, partial)
    phi, _ = power_means(naive_distances(name, rows, centers), -3.0)

    def majorizer(flat):
        theta = flat.reshape(centers.shape)
        return float((weights[:, None] * phi * naive_distances(name, rows, theta)).sum())

    sums = center_sums(rows, weights, identity(3), (state,)).records[0]
    after = PowerUpdate(distortion, partial).update(sums, state, weights.sum()).centers
    bounds = {"kl": (1e-9, None), "itakura-saito": (1e-9, None), "logistic": (1e-9, 1 - 1e-9)}
    found = minimize(
        majorizer,
        centers.ravel(),
        method="L-BFGS-B",
        bounds=[bounds.get(name, (None, None))] * centers.size,
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 500},
    )
    np.testing.assert_allclose(after.ravel(), found.x, rtol=1e-4, atol=1e-5)
    assert majorizer(after.ravel()) <= found.fun * (1 + 1e-6)


@pytest.mark.in_turn("partial")
@each
@pytest.mark.parametrize("partial", [False, True])
@settings(
    max_examples=12,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32 - 1), s=st.sampled_from([-0.3, -1.0, -4.0, -40.0]))
def test_steps_at_a_fixed_power_never_raise_the_objective(name, partial, seed, s):
    rng = np.random.default_rng(seed)
    rows, _ = rows_of(name, 40, 3, rng, k=3)
    rows = perforated(rows, 0.3, rng) if partial else rows
    weights = rng.uniform(0.1, 2.0, len(rows))
    model = PowerKMeans(
        3, s0=s, eta=1, tol=0, max_iter=8, polish=False, distortion=name, n_init=1,
        missing="partial" if partial else "error", standardize=False, random_state=seed % 1000,
    )  # fmt: skip
    fit_recording(model, rows, sample_weight=weights)
    history = model.objective_history_
    assert (np.diff(history) <= 1e-11 * np.abs(history[:-1])).all()


@each
def test_at_minus_infinity_it_is_hard_bregman_clustering(name):
    rng = np.random.default_rng(5)
    rows, truth = rows_of(name, 120, 4, rng)
    centers = 0.7 * truth + 0.3 * rows.mean(axis=0)
    expected = centers.copy()
    for _ in range(6):
        labels = naive_distances(name, rows, expected).argmin(axis=1)
        expected = np.array([rows[labels == j].mean(axis=0) for j in range(4)])
    hard = KMeans(4, init=centers, distortion=name, tol=0, max_iter=6)
    fit_recording(hard, rows)
    np.testing.assert_allclose(hard.cluster_centers_, expected, rtol=1e-10, atol=1e-13)
    soft = PowerKMeans(
        4, init=centers, distortion=name, s0=-1e9, eta=1, tol=0, polish=False, max_iter=6
    )
    fit_recording(soft, rows)
    np.testing.assert_allclose(soft.cluster_centers_, expected, rtol=1e-6, atol=1e-9)


# The critical power


@each
@pytest.mark.parametrize("partial", [False, True])
def test_coincident_centres_part_just_below_the_critical_power_and_not_above(name, partial):
    rng = np.random.default_rng(6)
    rows, _ = rows_of(name, 400, 3, rng)
    rows = perforated(rows, 0.2, rng) if partial else rows
    ones = np.ones(len(rows))
    mean = np.nanmean(rows, axis=0)
    distortion = distortion_of(name, rows)
    critical = critical_power(rows, ones, distortion)
    apart = 1e-6 * rng.normal(size=(2, 3)) * mean
    apart -= apart.mean(axis=0)
    growth = {}
    for s in (critical - 0.15, critical + 0.15):
        state = CenterState(mean + apart, s, None, distortion, partial)
        update = PowerUpdate(distortion, partial)
        sizes = []
        for _ in range(60):
            tile = distortion.tile(rows, partial)
            state = update.update(CenterSums.of(tile, None, state), state, len(rows))
            difference = state.centers[0] - state.centers[1]
            sizes.append(np.abs(difference).max())
            # Kept in the linear regime.
            middle = state.centers.mean(axis=0)
            centers = mean + (state.centers - middle) * (1e-6 / sizes[-1])
            state = CenterState(centers, s, None, distortion, partial)
        growth[s] = sizes[-1] / 1e-6 / 2 * 2
    below, above = growth[critical - 0.15], growth[critical + 0.15]
    assert above < 1.0 < below


@pytest.mark.parametrize("name", ["kl", "logistic", "itakura-saito"])
def test_the_critical_power_is_that_of_the_features_that_vary(name):
    rows, _ = rows_of(name, 50, 3, np.random.default_rng(25))
    # Curvature is infinite at an edge, where all values of a feature may be.
    alike = np.insert(rows, 1, 1.0 if name == "itakura-saito" else 0.0, axis=1)
    found, expected = (
        critical_power(each, np.ones(50), distortion_of(name, each)) for each in (alike, rows)
    )
    assert found == pytest.approx(expected, rel=1e-12)


# Estimators


@pytest.mark.in_turn("partial")
@each
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
@pytest.mark.parametrize("partial", [False, True])
def test_fits_are_consistent_whatever_the_chunks(name, cls, partial, tmp_path):
    rng = np.random.default_rng(7)
    rows, _ = rows_of(name, 150, 4, rng)
    rows = perforated(rows, 0.2, rng) if partial else rows
    weights = rng.integers(1, 4, len(rows)).astype(float)
    parameters = {"n_init": 1, "random_state": 0, "distortion": name}
    parameters["missing"] = "partial" if partial else "error"
    if cls is PowerKMeans:
        parameters["eta"] = 1.4
    model = cls(3, **parameters).fit(rows, sample_weight=weights)
    assert model.score(rows, sample_weight=weights) == pytest.approx(-model.inertia_, rel=1e-9)
    distances = naive_distances(name, rows, model.cluster_centers_)
    assert weights @ distances.min(axis=1) == pytest.approx(model.inertia_, rel=1e-9)
    np.testing.assert_array_equal(model.labels_, distances.argmin(axis=1))
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    shown = np.sqrt(distances) if name == "sqeuclidean" else distances
    np.testing.assert_allclose(model.transform(rows), shown, rtol=1e-9)
    for chunks in ((40, 2), (11, 4)):
        lazy = cls(3, **parameters).fit(da.from_array(rows, chunks), sample_weight=weights)
        np.testing.assert_allclose(lazy.cluster_centers_, model.cluster_centers_, rtol=1e-9)
        np.testing.assert_array_equal(computed(lazy.labels_), model.labels_)
        assert lazy.inertia_ == pytest.approx(model.inertia_, rel=1e-9)
    model.save(tmp_path / "model")
    for again in (daskmm.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert again.get_params()["distortion"] == name
        np.testing.assert_array_equal(again.predict(rows), model.labels_)
        np.testing.assert_allclose(again.transform(rows), shown, rtol=1e-9)


@pytest.mark.parametrize(("one", "other"), [("kl", "poisson"), ("gamma", "itakura-saito")])
def test_two_names_of_a_distortion_give_the_same_centres(one, other):
    rows, _ = rows_of("itakura-saito", 80, 3, np.random.default_rng(8))
    fits = [
        PowerKMeans(3, distortion=name, n_init=1, random_state=0).fit(rows) for name in (one, other)
    ]
    np.testing.assert_array_equal(fits[0].cluster_centers_, fits[1].cluster_centers_)


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@pytest.mark.parametrize("name", ["kl", "logistic"])
def test_starting_centres_are_at_a_finite_distance_from_every_row(name, init):
    rows, _ = rows_of(name, 200, 6, np.random.default_rng(9))
    assert (rows == 0).any()
    seen = []
    model = KMeans(4, init=init, distortion=name, max_iter=1, tol=0, callbacks=[seen.append])
    fit_recording(model, da.from_array(rows, (60, 6)))
    assert np.isfinite([record.objective for record in model.history_]).all()


def test_given_centres_with_zeros_are_drawn_inside():
    rows, _ = rows_of("kl", 100, 4, np.random.default_rng(10))
    init = rows[:3].copy()
    init[0, 0] = 0.0
    model = KMeans(3, init=init, distortion="kl", max_iter=1, tol=0)
    fit_recording(model, rows)
    assert np.isfinite(model.objective_history_).all()
    init[0, 0] = -1.0
    with pytest.raises(ValueError, match="init has values outside of the domain"):
        KMeans(3, init=init, distortion="kl").fit(rows)


OUTSIDE = {
    "kl": -1e-9,
    "poisson": -2.0,
    "itakura-saito": 0.0,
    "gamma": -1.0,
    "logistic": 1.0000001,
}


@pytest.mark.in_turn("cls")
@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_values_outside_of_the_domain_are_refused_with_block_and_row(name, cls):
    rng = np.random.default_rng(11)
    rows = rng.uniform(0.1, 0.9, (40, 3))
    model = cls(2, distortion=name, random_state=0).fit(rows)
    bad = rows.copy()
    bad[27, 1] = OUTSIDE[name]
    lazy = da.from_array(bad, chunks=(10, 3))
    where = r"block 2, row 7 of the block \(row 27 of the data\), feature 1"
    with pytest.raises(ValueError, match=where):
        cls(2, distortion=name, random_state=0).fit(lazy)
    with pytest.raises(ValueError, match=where):
        model.predict(lazy).compute()
    with pytest.raises(ValueError, match=where):
        model.score(lazy)
    # Also in rows without weight, which take part in distances too.
    weights = np.ones(40)
    weights[27] = 0.0
    with pytest.raises(ValueError, match="row 27"):
        cls(2, distortion=name, random_state=0).fit(bad, sample_weight=weights)
    bad[27, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        cls(2, distortion=name, random_state=0).fit(bad)


@pytest.mark.parametrize("name", ["kl", "itakura-saito", "logistic"])
def test_features_of_divergences_cannot_be_standardised(name):
    rows = np.random.default_rng(12).uniform(0.1, 0.9, (30, 2))
    with pytest.raises(ValueError, match="standardize=True would take"):
        KMeans(2, distortion=name, standardize=True).fit(rows)


def test_features_that_are_always_zero_do_not_matter():
    rows, _ = rows_of("kl", 120, 4, np.random.default_rng(13))
    wide = np.hstack([rows, np.zeros((120, 2))])
    init = rows[:3] + 1.0
    parameters = {"distortion": "kl", "eta": 1.2}
    model = PowerKMeans(3, init=init, **parameters).fit(rows)
    other = PowerKMeans(3, init=np.hstack([init, np.zeros((3, 2))]), **parameters)
    wider = other.fit(wide)
    np.testing.assert_allclose(wider.inertia_, model.inertia_, rtol=1e-6)
    np.testing.assert_array_equal(wider.cluster_centers_[:, 4:], 0.0)


def test_a_large_table_is_annealed_on_a_sample_in_its_divergence():
    rows, _ = rows_of("kl", 9000, 5, np.random.default_rng(14))
    model = PowerKMeans(4, distortion="kl", sample_size=500, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(da.from_array(rows, (2000, 5)))
        whole = PowerKMeans(4, distortion="kl", sample_size=None, n_init=4, random_state=0)
        whole.fit(rows)
    assert model.n_passes_ < 20
    assert model.inertia_ <= 1.02 * whole.inertia_


# Norms


NORMS = {
    "manhattan": lambda x, c: np.nansum(np.abs(x - c)),
    "euclidean": lambda x, c: math.sqrt(np.nansum((x - c) ** 2)),
}
each_norm = pytest.mark.parametrize("name", NORMS)


def heavy_rows(n, p, rng, k=3):
    """Rows of a mixture with heavy tails, off the origin."""
    truth = 8.0 * rng.normal(size=(k, p))
    return truth[rng.integers(k, size=n)] + rng.standard_t(2, (n, p)) + 3.0


def norm_distances(name, rows, centers):
    return np.array([[NORMS[name](x, c) for c in centers] for x in rows])


@each_norm
@pytest.mark.parametrize("partial", [False, True])
def test_distances_of_norms_are_those_of_the_formula(name, partial):
    rng = np.random.default_rng(20)
    rows = heavy_rows(50, 5, rng)
    centers = rows[:4].copy()
    rows = perforated(rows, 0.3, rng) if partial else rows
    distortion = distortion_of(name, rows)
    found = distortion.distances(distortion.tile(rows, partial), centers, None)
    np.testing.assert_allclose(found, norm_distances(name, rows, centers), rtol=1e-12, atol=1e-12)


@pytest.mark.in_turn("seed")
@each_norm
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_steps_of_norms_converge_to_the_numerical_minimiser(name, partial, seed):
    rng = np.random.default_rng(seed)
    rows = heavy_rows(25, 3, rng)
    rows = perforated(rows, 0.2, rng) if partial else rows
    weights = rng.uniform(0.5, 2.0, len(rows))
    distortion = distortion_of(name, rows)
    update = PowerUpdate(distortion, partial)
    state = CenterState(np.nanmean(rows, axis=0)[None, :], -np.inf, None, distortion, partial)
    for _ in range(2000):
        sums = CenterSums.of(distortion.tile(rows, partial), weights, state)
        state = update.update(sums, state, weights.sum())

    def cost(theta):
        return float(weights @ norm_distances(name, rows, theta[None, :])[:, 0])

    if name == "manhattan":
        best = np.array(
            [
                min(
                    (x for x in rows[:, f] if x == x),
                    key=lambda x, f=f: np.nansum(weights * np.abs(rows[:, f] - x)),
                )
                for f in range(3)
            ]
        )
        least = cost(best)
    else:
        found = minimize(cost, state.centers[0], method="Nelder-Mead", options={"xatol": 1e-10})
        least = found.fun
    assert cost(state.centers[0]) <= least * (1 + 1e-6)


@pytest.mark.in_turn("s")
@each_norm
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("s", [-0.7, -3.0, -30.0])
def test_steps_of_norms_never_raise_the_objective(name, partial, s):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = heavy_rows(60, 3, rng)
        rows = perforated(rows, 0.3, rng) if partial else rows
        model = PowerKMeans(
            3, s0=s, eta=1, tol=0, max_iter=30, polish=False, distortion=name, n_init=1,
            missing="partial" if partial else "error", random_state=seed,
        )  # fmt: skip
        fit_recording(model, rows, sample_weight=rng.uniform(0.1, 2.0, 60))
        history = model.objective_history_
        # The smoothing is 1e-6 of the spread.
        assert (np.diff(history) <= 1e-7 * np.abs(history[:-1])).all()


def test_entropy_weighted_manhattan_steps_never_raise_the_objective():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = perforated(heavy_rows(80, 4, rng), 0.2, rng)
        model = EntropyPowerKMeans(
            3, s0=-2, eta=1, tol=0, max_iter=30, polish=False, distortion="manhattan", n_init=1,
            missing="partial", random_state=seed,
        )  # fmt: skip
        fit_recording(model, rows)
        history = model.objective_history_
        assert (np.diff(history) <= 1e-7 * np.abs(history).max()).all()


def test_entropy_weighted_manhattan_finds_the_features_and_ignores_outliers():
    rng = np.random.default_rng(21)
    truth = rng.integers(3, size=900)
    rows = rng.standard_t(3, (900, 10))
    rows[:, :3] += np.array([[0, 6, 0], [6, 0, 0], [0, 0, 8.0]])[truth]
    model = EntropyPowerKMeans(3, distortion="manhattan", random_state=0).fit(rows)
    assert set(np.argsort(model.feature_weights_)[-3:]) == {0, 1, 2}
    assert adjusted_rand_score(truth, model.labels_) > 0.9


@pytest.mark.in_turn("cls")
@each_norm
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_centres_of_norms_are_exact_medians_of_data_in_memory(name, cls):
    rng = np.random.default_rng(22)
    rows = heavy_rows(120, 3, rng)
    weights = rng.uniform(0.5, 2.0, len(rows))
    model = cls(3, distortion=name, random_state=0, n_init=2).fit(rows, sample_weight=weights)
    distances = norm_distances(name, rows, model.cluster_centers_)
    assert weights @ distances.min(axis=1) == pytest.approx(model.inertia_, rel=1e-9)
    assert model.score(rows, sample_weight=weights) == pytest.approx(-model.inertia_, rel=1e-9)
    np.testing.assert_allclose(model.transform(rows), distances, rtol=1e-9, atol=1e-9)
    for j, center in enumerate(model.cluster_centers_):
        own, v = rows[model.labels_ == j], weights[model.labels_ == j]
        if name == "manhattan":
            for f in range(3):
                below, above = v[own[:, f] < center[f] - 1e-9], v[own[:, f] > center[f] + 1e-9]
                assert max(below.sum(), above.sum()) <= 0.5 * v.sum() * (1 + 1e-9)
        else:
            directions = (own - center) / np.linalg.norm(own - center, axis=1)[:, None]
            assert np.abs(v @ directions).max() <= max(1e-6 * v.sum(), v.max())
    lazy = [
        cls(3, distortion=name, random_state=0, n_init=2).fit(
            da.from_array(rows, chunks), sample_weight=weights
        )
        for chunks in ((40, 3), (13, 2))
    ]
    np.testing.assert_allclose(lazy[0].cluster_centers_, lazy[1].cluster_centers_, rtol=1e-8)
    assert model.inertia_ <= lazy[0].inertia_ * (1 + 1e-9)
    assert lazy[0].inertia_ <= model.inertia_ * (1 + 1e-3)


@each_norm
def test_the_critical_power_of_norms_does_not_depend_on_the_origin(name):
    rows = np.random.default_rng(26).normal(size=(60, 3)) * [1.0, 2.0, 0.5]
    distortion, ones = distortion_of(name, rows), np.ones(60)
    found = critical_power(rows, ones, distortion)
    assert found < 1.0
    elsewhere = np.add(rows, [5.0, -3.0, 7.0])
    assert critical_power(elsewhere, ones, distortion) == pytest.approx(found, rel=1e-6)


@pytest.mark.in_turn("name")
@each_norm
def test_coincident_centres_of_norms_part_below_the_critical_power(name):
    rng = np.random.default_rng(23)
    rows = rng.normal(size=(1500, 4)) * [1.0, 2.0, 1.0, 0.5]
    distortion = distortion_of(name, rows)
    critical = critical_power(rows, np.ones(len(rows)), distortion)
    apart = {}
    for s in (critical * 0.6, critical * 2.0):
        init = 0.3 * np.random.default_rng(1).normal(size=(2, 4))
        model = PowerKMeans(
            2, init=init, s0=s, eta=1, tol=0, polish=False, max_iter=400, distortion=name
        )
        fit_recording(model, rows)
        apart[s] = np.abs(np.diff(model.cluster_centers_, axis=0)).max()
    # Signs are coarse: centres that are nearly together do not part in proportion.
    small = 0.2 if name == "manhattan" else 0.01
    assert apart[critical * 0.6] < small < 0.4 < apart[critical * 2.0]


# Mahalanobis


def anisotropic(n, rng):
    """Parallel, long clusters that lie side by side."""
    truth = rng.integers(3, size=n)
    spread = np.array([[6.0, 0.0], [0.0, 0.4]])
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    centers = np.array([[0.0, 0.0], [0.0, 3.0], [0.0, -3.0]]) @ turn
    return rng.normal(size=(n, 2)) @ spread @ turn + centers[truth], truth, turn


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_a_given_matrix_gives_the_k_means_of_whitened_rows(cls, tmp_path):
    rng = np.random.default_rng(24)
    rows, truth, turn = anisotropic(400, rng)
    precision = turn.T @ np.diag([1 / 36, 1 / 0.16]) @ turn
    parameters = {"distortion": "mahalanobis", "metric_params": {"VI": precision}}
    model = cls(3, random_state=0, **parameters).fit(rows)
    assert adjusted_rand_score(truth, model.labels_) > 0.95
    np.testing.assert_allclose(model.precision_, precision, rtol=1e-12)
    apart = rows[:, None] - model.cluster_centers_
    distances = np.einsum("ijk,kl,ijl->ij", apart, precision, apart)
    assert model.inertia_ == pytest.approx(distances.min(axis=1).sum(), rel=1e-10)
    assert model.score(rows) == pytest.approx(-model.inertia_, rel=1e-10)
    np.testing.assert_allclose(model.transform(rows), np.sqrt(distances), rtol=1e-9)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    lazy = cls(3, random_state=0, **parameters).fit(da.from_array(rows, (90, 1)))
    np.testing.assert_allclose(lazy.inertia_, model.inertia_, rtol=1e-9)
    model.save(tmp_path / "model")
    again = daskmm.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(rows), model.labels_)


@pytest.mark.in_turn("cls")
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_a_learned_matrix_is_the_pooled_scatter_and_finds_long_clusters(cls):
    rng = np.random.default_rng(25)
    rows, truth, _ = anisotropic(600, rng)
    model = cls(3, distortion="mahalanobis", tol=1e-9, random_state=0).fit(rows)
    assert np.linalg.det(model.precision_) == pytest.approx(1.0, rel=1e-9)
    # Hard steps from the covariance of all rows often end before.
    least = 0.4 if cls is KMeans else 0.95
    assert adjusted_rand_score(truth, model.labels_) > least
    assert adjusted_rand_score(truth, cls(3, random_state=0).fit(rows).labels_) < 0.3
    within = rows - model.cluster_centers_[model.labels_]
    scatter = within.T @ within
    best = np.linalg.inv(scatter) * np.sqrt(np.linalg.det(scatter))
    np.testing.assert_allclose(model.precision_, best, rtol=1e-4)
    assert model.score(rows) == pytest.approx(-model.inertia_, rel=1e-9)
    weights = np.full(600, 2.0)
    lazy = cls(3, distortion="mahalanobis", tol=1e-9, random_state=0)
    lazy.fit(da.from_array(rows, (100, 2)), sample_weight=weights)
    assert adjusted_rand_score(truth, computed(lazy.labels_)) > least


def test_matrices_that_define_no_distance_are_refused():
    rows = np.random.default_rng(26).normal(size=(30, 2))
    for wrong in (
        {"VI": np.eye(3)},
        {"VI": -np.eye(2)},
        {"VI": np.array([[1.0, 0.5], [0.0, 1.0]])},
        {"V": np.eye(2)},
    ):
        with pytest.raises(ValueError, match="VI"):
            KMeans(2, distortion="mahalanobis", metric_params=wrong).fit(rows)
    with pytest.raises(ValueError, match="mixes all features"):
        KMeans(2, distortion="mahalanobis", standardize=True).fit(rows)
    with pytest.raises(ValueError, match="mixes all features"):
        KMeans(2, distortion="mahalanobis", missing="partial").fit(rows)
    with pytest.raises(ValueError, match="metric_params"):
        KMeans(2, metric_params={"VI": np.eye(2)}).fit(rows)


@pytest.mark.parametrize(
    ("name", "missing"), [("kl", "partial"), ("euclidean", "error"), ("manhattan", "partial")]
)
def test_a_fit_with_any_distortion_resumes_to_the_same_model(name, missing, tmp_path):
    rng = np.random.default_rng(30)
    rows, _ = rows_of("kl", 200, 4, rng)
    rows = perforated(rows, 0.2, rng) if missing == "partial" else rows
    X = da.from_array(rows, (60, 4))
    parameters = {"distortion": name, "missing": missing, "random_state": 0, "n_init": 2}
    parameters["eta"] = 1.3
    expected = PowerKMeans(3, **parameters).fit(X)
    path = tmp_path / "checkpoint"

    def stop(record):
        if record.iteration == 7:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        PowerKMeans(3, checkpoint=path, callbacks=[stop], **parameters).fit(X)
    resumed = PowerKMeans(3, checkpoint=path, **parameters).fit(X)
    np.testing.assert_array_equal(resumed.cluster_centers_, expected.cluster_centers_)
    assert resumed.inertia_ == expected.inertia_


def test_rows_that_no_cluster_can_hold_are_infinitely_far_and_still_have_a_label():
    rows = np.array([[5.0, 0.0], [7.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    model = KMeans(2, distortion="kl", random_state=0).fit(rows)
    odd = np.array([[3.0, 1.0], [6.0, 0.0]])
    assert np.isinf(model.transform(odd)[0]).all()
    assert np.isfinite(model.transform(odd)[1]).all()
    assert model.predict(odd)[0] in (0, 1)
    assert model.score(odd) == -np.inf


def test_itakura_saito_is_exact_for_values_far_below_a_centre():
    x, theta = np.array([1e-30, 1e-18, 0.4, 0.6]), np.array([1.0, 1e10, 1.0, 1.0])
    found = DISTORTIONS["itakura-saito"](np.ones(1)).elements(x, theta)
    with localcontext() as context:
        context.prec = 60
        ratios = [Decimal(a) / Decimal(b) for a, b in zip(x.tolist(), theta.tolist(), strict=True)]
        expected = [float(ratio - ratio.ln() - 1) for ratio in ratios]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_norms_are_smoothed_by_a_share_of_the_deviations():
    norms = DISTORTIONS["manhattan"], DISTORTIONS["euclidean"]
    for norm in norms:
        two = norm.around(np.zeros(2), np.array([4.0, 16.0])).smoothing
        np.testing.assert_allclose(two[1], 2 * two[0])
        # A constant feature takes the largest; where all are constant it is tiny and positive.
        np.testing.assert_allclose(
            norm.around(np.zeros(2), np.array([0.0, 16.0])).smoothing, two[1]
        )
        assert 0 < norm.around(np.zeros(2), np.zeros(2)).smoothing.max() < 1e-99
