"""Weighted blurring mean shift against loops, the authors' outputs, and itself."""

import itertools
import pickle
import warnings
from dataclasses import replace
from functools import partial

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from _mixtures import SEPARATED, separated
from _shared import SHARED
from _support import counting_computes, fit_recording, n_examples, raise_if_computes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform
from scipy.stats import norm, truncnorm
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from daskmm import WeightedBlurringMeanShift, load, planning
from daskmm.auto.bandwidth import Followed
from daskmm.cluster import mean_shift as estimators
from daskmm.engine.resources import Worker
from daskmm.mean_shift import neighborhood
from daskmm.mean_shift.blurring import Blurring, Rows, blur, blur_rows
from daskmm.mean_shift.neighborhood import Neighborhood, Shift, kernel_sums
from daskmm.mean_shift.representatives import stragglers
from daskmm.mm.context import FitContext
from daskmm.numerics import mean_shift as numerics
from daskmm.numerics.components import close_edges, components_of
from daskmm.numerics.information import resolution
from daskmm.numerics.mean_shift import Points, ShiftedSums, add_own, add_pair, merging_groups
from daskmm.numerics.options import CONVENTIONS


def oracle_of(name):
    path = SHARED / "oracles" / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"needs {name}.npz in {SHARED}/oracles (or DASKMM_SHARED)")
    with np.load(path) as data:
        return dict(data)


def clumps(n=120, p=4, k=3, noise=2, seed=0):
    """Standardised rows around k centres in the first features, noise in the others."""
    rng = np.random.default_rng(seed)
    centers = 4 * np.eye(k, p)
    truth = np.arange(n) % k
    X = np.column_stack(
        [centers[truth] + 0.3 * rng.normal(size=(n, p)), rng.normal(size=(n, noise))]
    )
    return (X - X.mean(axis=0)) / X.std(axis=0), truth


def ones(X):
    return np.ones(len(X))


def final_positions(found):
    """Where each row ends."""
    return found.final.representatives.positions[found.final.members]


# ---------------------------------------------------------------- loops


def naive_step(Y, v, w, h, self_term):
    """One shift, pair by pair."""
    moved = np.empty_like(Y)
    for i in range(len(Y)):
        numerator, denominator = np.zeros(Y.shape[1]), 0.0
        for j in range(len(Y)):
            mass = v[j]
            if i == j and not self_term:
                mass -= min(v[i], 1.0)
            distance = sum(w[m] * (Y[i, m] - Y[j, m]) ** 2 for m in range(Y.shape[1]))
            value = mass * np.exp(-distance / h)
            numerator += value * Y[j]
            denominator += value
        moved[i] = numerator / denominator
    return moved


def naive_weights(X, Y, v, lam):
    D = [
        sum(v[i] * (X[i, m] - Y[i, m]) ** 2 for i in range(len(X))) / sum(v)
        for m in range(X.shape[1])
    ]
    w = np.exp(-np.array(D) / lam)
    return w / w.sum()


def naive(X, v, h, lam, convention, iterations):
    """All iterations, for exactly so many."""
    w = np.full(X.shape[1], 1 / X.shape[1])
    Y = X
    if convention == "auto":
        for _ in range(min(20, iterations // 2)):
            Y = naive_step(Y, v, w, h, self_term=False)
            w = naive_weights(X, Y, v, lam)
        iterations -= min(20, iterations // 2)
        Y = X
    for t in range(iterations):
        Y = naive_step(Y, v, w, h, self_term=convention == "paper" or t > 0)
        w = naive_weights(X, Y, v, lam)
    return Y, w


@pytest.mark.parametrize("merge_tol", [0.0, 1e-6])
@pytest.mark.parametrize("convention", ["paper", "auto"])
def test_positions_and_weights_are_those_of_the_printed_algorithm_in_loops(convention, merge_tol):
    X, _ = clumps(n=24, p=3, noise=1)
    v = np.random.default_rng(1).integers(1, 4, len(X)).astype(float)
    expected, weights = naive(X, v, 0.1, 0.2, convention, 6)
    found = blur_rows(X, v, Blurring(0.1, 0.2, convention, 6, merge_tol))
    # Rows that have just merged stand up to merge_tol from where they would.
    np.testing.assert_allclose(final_positions(found), expected, rtol=0, atol=1e-9 + merge_tol)
    np.testing.assert_allclose(found.feature_weights, weights, rtol=1e-9 + merge_tol)


@pytest.mark.parametrize("shares", [[1, 1], [49, 1], [1, 2, 3, 4], [5], [1] * 40])
def test_the_resolution_of_values_is_the_variance_of_truncated_normal_means(shares):
    rng = np.random.default_rng(0)
    total = 40 * sum(shares)
    values = np.repeat(np.arange(len(shares)), 40 * np.array(shares)).astype(float)
    edges = norm.ppf(np.cumsum([0, *shares]) / sum(shares))
    means = [truncnorm.mean(*pair) for pair in itertools.pairwise(edges)]
    rows = np.column_stack([values, rng.normal(size=total)])
    told, all_told = resolution(rows[rng.permutation(total)], np.ones(total))
    assert told == pytest.approx(np.array(shares) / sum(shares) @ np.square(means), abs=0.01)
    assert all_told == 1.0


def test_the_resolution_counts_integer_weights_as_copies():
    rng = np.random.default_rng(0)
    rows, copies = rng.integers(3, size=(60, 4)).astype(float), rng.integers(1, 4, 60)
    told = resolution(np.repeat(rows, copies, axis=0), np.ones(copies.sum()))
    np.testing.assert_allclose(resolution(rows, copies.astype(float)), told, rtol=0.01)


def test_values_of_weights_below_rounding_do_not_count_in_the_resolution():
    rows = np.random.default_rng(0).integers(3, size=(200, 2)).astype(float)
    weights = np.where(np.arange(200) < 5, 1e-18, 1.0)
    expected = resolution(rows[5:], weights[5:])
    np.testing.assert_allclose(resolution(rows, weights), expected, rtol=1e-6)


def test_columns_of_few_values_need_not_get_the_weight():
    X, truth = clumps(n=300, noise=0)
    rng = np.random.default_rng(1)
    flags = rng.random((300, 8)) < rng.uniform(0.02, 0.5, 8)
    model = WeightedBlurringMeanShift(random_state=0).fit(np.column_stack([X, flags]))
    assert adjusted_rand_score(truth, model.labels_) > 0.95
    assert model.feature_weights_[4:].max() < 0.05


def test_a_printed_convention_takes_values_as_they_are():
    X = np.column_stack([clumps(n=60)[0], np.arange(60) % 30 == 0])
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    w = blur_rows(X, ones(X), Blurring(0.1, 0.2, "paper", 6)).feature_weights
    _, expected = naive(X, ones(X), 0.1, 0.2, "paper", 6)
    np.testing.assert_allclose(w, expected, rtol=1e-5)


@pytest.mark.parametrize("merge_tol", [0.0, 1e-6])
@pytest.mark.parametrize("name", ["toy", "zoo"])
def test_reference_equals_the_authors_program(name, merge_tol):
    oracle = oracle_of(f"wbms_{name}")
    X, lam = oracle["X"], float(oracle["lam"]) / len(oracle["X"])
    settings_ = Blurring(float(oracle["h"]), lam, "reference", merge_tol=merge_tol)
    found = blur_rows(X, ones(X), settings_)
    np.testing.assert_allclose(final_positions(found), oracle["Y"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.feature_weights, oracle["w"], rtol=0, atol=1e-9)
    assert adjusted_rand_score(oracle["labels"], found.labels) == 1.0
    assert len(found.history) == 50


@pytest.mark.parametrize("name", ["toy", "zoo"])
def test_estimator_reproduces_the_authors_labels(name):
    oracle = oracle_of(f"wbms_{name}")
    model = WeightedBlurringMeanShift(
        float(oracle["h"]),
        float(oracle["lam"]) / len(oracle["X"]),
        convention="reference",
        standardize=False,
    ).fit(oracle["X"])
    np.testing.assert_allclose(model.feature_weights_, oracle["w"], rtol=0, atol=1e-9)
    assert adjusted_rand_score(oracle["labels"], model.labels_) == 1.0


@pytest.mark.parametrize("exact", [True, False])
def test_tile_kernel_equals_loops(exact):
    rng = np.random.default_rng(0)
    A, B, w = rng.normal(size=(5, 3)), rng.normal(size=(4, 3)), np.array([0.5, 0.2, 0.3])
    c, d, share = rng.random(5) + 0.5, rng.random(4) + 0.5, rng.random(5)
    a, b = (Points.of(Y, mass, w, 0.7) for Y, mass in ((A, c), (B, d)))
    a, b = (Points(x.left, x.right, x.masses, exact) for x in (a, b))
    sums_a, sums_b = np.ones((5, 4)), np.ones((4, 4))
    add_pair(a, b, sums_a, sums_b)
    expected_a, expected_b = np.ones((5, 4)), np.ones((4, 4))
    for i, j in itertools.product(range(5), range(4)):
        value = np.exp(-np.sum(w * (A[i] - B[j]) ** 2) / 0.7)
        expected_a[i] += value * d[j] * np.append(B[j], 1.0)
        expected_b[j] += value * c[i] * np.append(A[i], 1.0)
    np.testing.assert_allclose(sums_a, expected_a, rtol=1e-12)
    np.testing.assert_allclose(sums_b, expected_b, rtol=1e-12)
    own, expected = np.zeros((5, 4)), np.zeros((5, 4))
    add_own(a, share, own)
    for i, j in itertools.product(range(5), range(5)):
        value = share[i] if i == j else np.exp(-np.sum(w * (A[i] - A[j]) ** 2) / 0.7)
        expected[i] += value * c[j] * np.append(A[j], 1.0)
    np.testing.assert_allclose(own, expected, rtol=1e-12)


def test_rows_whose_kernel_sum_underflows_go_to_their_nearest_neighbour():
    Y = np.array([[0.0, 0.0], [50.0, 0.0], [50.0, 70.0]])
    start = Neighborhood.of(Y, np.ones(3), 0.0)
    moved, _ = start.step(np.array([0.5, 0.5]), Shift(0.1, False, 0.0, 0, False))
    np.testing.assert_allclose(
        moved.representatives.positions, [[50.0, 0.0], [0.0, 0.0], [50.0, 0.0]]
    )


@pytest.mark.parametrize("split", [1, 3, 7])
def test_shifted_sums_add_up(split, monkeypatch):
    rng = np.random.default_rng(3)
    Y, c = rng.normal(size=(7, 2)) * 30, rng.random(7) + 0.5
    points = Points.of(Y, c, np.array([0.5, 0.5]), 0.01)
    parts = [ShiftedSums.of(points, points[:split], np.arange(7))]
    if split < 7:
        parts.append(ShiftedSums.of(points, points[split:], np.arange(7) - split))
    total = sum(parts[1:], parts[0])
    exponents = -squareform(pdist(Y, "sqeuclidean")) / 2 / 0.01
    np.fill_diagonal(exponents, -np.inf)
    kernel = np.exp(exponents - exponents.max(axis=1)[:, None])
    np.testing.assert_allclose(total.largest, exponents.max(axis=1), rtol=1e-12)
    np.testing.assert_allclose(total.sums[:, -1], kernel @ c, rtol=1e-9)
    np.testing.assert_allclose(total.sums[:, :-1], kernel @ (c[:, None] * Y), rtol=1e-9)


def test_distances_that_would_cancel_are_taken_from_differences():
    # Two clumps far from the origin in units of the bandwidth: ‖y‖²/h is 1e13.
    rng = np.random.default_rng(0)
    Y = np.repeat([[1e6], [-1e6]], 4, axis=0) + rng.normal(size=(8, 1))
    points = Points.of(Y, np.ones(8), np.ones(1), 0.1)
    assert not points.exact
    expected = naive_step(Y, np.ones(8), np.ones(1), 0.1, self_term=True)
    sums = kernel_sums(points, np.ones(8), lazy=False)
    np.testing.assert_allclose(sums[:, :-1] / sums[:, -1:], expected, rtol=1e-12)


# ---------------------------------------------------------------- properties


@given(
    seed=st.integers(0, 10**6),
    tile=st.integers(1, 40),
    self_term=st.booleans(),
    h=st.sampled_from([0.01, 0.3]),
)
@settings(max_examples=n_examples(40), deadline=None)
def test_the_size_of_tiles_changes_nothing(seed, tile, self_term, h):
    X, _ = clumps(n=33, seed=seed)
    weights = np.full(X.shape[1], 1 / X.shape[1])
    start = Neighborhood.of(X, ones(X), 0.0)
    shift = Shift(h, self_term, 0.0, 0, False)
    expected, _ = start.step(weights, shift)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, "TILE", tile)
        patch.setattr(neighborhood, "TILE", tile)
        found, _ = start.step(weights, shift)
    np.testing.assert_allclose(
        found.representatives.positions, expected.representatives.positions, rtol=1e-9, atol=1e-12
    )


@given(
    seed=st.integers(0, 10**6),
    convention=st.sampled_from(CONVENTIONS),
    h=st.sampled_from([0.003, 0.05, 0.5]),
    lam=st.sampled_from([0.01, 0.1, np.inf]),
)
@settings(max_examples=n_examples(30), deadline=None)
def test_ranges_never_grow_and_weights_sum_to_one(seed, convention, h, lam):
    X, _ = clumps(n=30, seed=seed)
    records = []
    found = blur(
        Rows.of(X, ones(X), 1e-6),
        Blurring(h, lam, convention, 40),
        context=FitContext(callbacks=[records.append]),
    )
    assert found.feature_weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (found.feature_weights >= 0).all()
    box = np.linalg.norm(np.ptp(X, axis=0))
    for _, stage in itertools.groupby(records, key=lambda record: record.stage):
        stage = list(stage)
        spreads = [box, *(record.spread for record in stage)]
        assert (np.diff(spreads) <= 1e-12 * box).all()
        counts = [record.n_representatives for record in stage]
        assert (np.diff(counts) <= 0).all()
    if np.isinf(lam):
        np.testing.assert_allclose(found.feature_weights, 1 / X.shape[1], rtol=1e-12)


@pytest.mark.parametrize("self_term", [True, False])
def test_every_coordinate_stays_in_its_range(self_term):
    X, _ = clumps(n=60, seed=5)
    state = Neighborhood.of(X, ones(X), 1e-6)
    low, high = X.min(axis=0), X.max(axis=0)
    for seed in range(15):
        state, _ = state.step(
            np.full(X.shape[1], 1 / X.shape[1]), Shift(0.05, self_term, 1e-6, seed, False)
        )
        positions = state.representatives.positions
        assert (positions >= low - 1e-12).all()
        assert (positions <= high + 1e-12).all()
        low, high = positions.min(axis=0), positions.max(axis=0)


@pytest.mark.parametrize("convention", ["auto", "paper"])
def test_isolated_pairs_are_two_clusters(convention):
    X = np.array([[0.0], [1.0], [50.0], [51.0]])
    for standardize, h in ((False, 1.0), (True, 0.002)):
        model = WeightedBlurringMeanShift(h, convention=convention, standardize=standardize)
        labels = model.fit(X).labels_
        assert model.n_clusters_ == 2
        assert labels[0] == labels[1] != labels[2] == labels[3]


@given(seed=st.integers(0, 10**6), convention=st.sampled_from(CONVENTIONS))
@settings(max_examples=15, deadline=None)
def test_row_order_does_not_matter(seed, convention):
    X, _ = clumps(n=40, seed=seed)
    order = np.random.default_rng(seed).permutation(len(X))
    chosen = Blurring(0.08, 0.1, convention, 60)
    a, b = blur_rows(X, ones(X), chosen), blur_rows(X[order], ones(X), chosen)
    np.testing.assert_allclose(final_positions(a)[order], final_positions(b), atol=1e-8)
    np.testing.assert_array_equal(a.labels[order], b.labels)


@given(seed=st.integers(0, 10**6), convention=st.sampled_from(CONVENTIONS))
@settings(max_examples=15, deadline=None)
def test_integer_weights_are_copies(seed, convention):
    X, _ = clumps(n=40, seed=seed)
    copies = np.random.default_rng(seed).integers(1, 4, len(X))
    chosen = Blurring(0.08, 0.1, convention, 30)
    a = blur_rows(X, copies.astype(float), chosen)
    b = blur_rows(np.repeat(X, copies, axis=0), np.ones(copies.sum()), chosen)
    np.testing.assert_allclose(a.feature_weights, b.feature_weights, rtol=1e-9)
    np.testing.assert_allclose(
        np.repeat(final_positions(a), copies, axis=0), final_positions(b), atol=1e-9
    )
    np.testing.assert_array_equal(np.repeat(a.labels, copies), b.labels)


# ---------------------------------------------------------------- merging, D, components


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_merging_representatives_changes_no_label(convention):
    X, _ = clumps(n=200, k=4)
    on, off = (
        blur_rows(X, ones(X), Blurring(0.05, 0.1, convention, 60, tol)) for tol in (1e-6, 0.0)
    )
    np.testing.assert_array_equal(on.labels, off.labels)
    assert on.final.n < off.final.n == 200
    if convention == "reference":  # the others end when they may, which merging brings forward
        np.testing.assert_allclose(final_positions(on), final_positions(off), rtol=0, atol=1e-8)


def test_merging_groups_are_within_the_tolerance():
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(20, 3)).repeat(10, axis=0) + rng.normal(size=(200, 3)) * 1e-7
    groups = merging_groups(Y, 1e-6, seed=1)
    for group in np.unique(groups):
        assert pdist(Y[groups == group]).max(initial=0.0) <= 1e-6
    assert 20 <= len(np.unique(groups)) < 100
    order = rng.permutation(200)
    np.testing.assert_array_equal(merging_groups(Y[order], 1e-6, seed=1), groups[order])
    assert merging_groups(Y, 0.0, seed=1) is None
    # Numbers far beyond the cells that integers can count.
    assert merging_groups(np.array([[1e300], [2e300], [1e300]]), 1e-6, seed=1) is None


@pytest.mark.parametrize("self_term", [True, False])
def test_dispersion_by_representatives_is_the_direct_sum(self_term):
    X, _ = clumps(n=150)
    v = np.random.default_rng(2).integers(1, 5, len(X)).astype(float)
    state = Neighborhood.of(X, v, 1e-6)
    squares = v @ X**2
    for seed in range(12):
        shift = Shift(0.1, self_term, 1e-6, seed, False)
        state, _ = state.step(np.full(X.shape[1], 1 / X.shape[1]), shift)
        Y = state.representatives.positions[state.members]
        direct = v @ (X - Y) ** 2
        dispersion = state.representatives.dispersion(squares, v.sum())
        error = np.abs(dispersion * v.sum() - direct)
        assert (error <= 1e-12 * squares).all()
    assert state.n < len(X)
    assert state.representatives.multiplicity.sum() == pytest.approx(v.sum(), rel=1e-14)
    np.testing.assert_allclose(state.representatives.own, 1.0, rtol=1e-14)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 700), split=st.integers(0, 700))
@settings(max_examples=25, deadline=None)
def test_components_are_those_of_the_full_graph(seed, n, split):
    rng = np.random.default_rng(seed)
    Y = rng.integers(0, 6, (n, 2)) * 1e-5 * rng.choice([0.9, 1.1, 40.0]) + 3.0
    split = min(split, n)
    a, b = Y[:split], Y[split:]
    edges = np.concatenate(
        [
            close_edges(a, a, 1e-5),
            close_edges(a, b, 1e-5) + np.array([0, split]),
            close_edges(b, b, 1e-5) + split,
        ]
    )
    assert len(edges) <= 3 * (n + 1024) * (1 + n // 256)
    count, labels = components_of(n, edges)
    near = squareform(pdist(Y)) <= 1e-5 if n > 1 else np.ones((1, 1))
    expected = components_of(n, np.argwhere(near))
    assert count == expected[0]
    assert adjusted_rand_score(labels, expected[1]) == 1.0


def test_components_do_not_depend_on_merging():
    # A chain of points, each within the tolerance of the next.
    Y = np.arange(300)[:, None] * 0.9e-5
    count, _ = components_of(300, close_edges(Y, Y, 1e-5))
    assert count == 1
    assert components_of(300, close_edges(Y, Y, 0.8e-5))[0] == 300


# ---------------------------------------------------------------- the estimator


def test_a_fit_finds_clusters_and_features_and_records_each_iteration():
    X, truth = clumps(n=300, p=3, k=3, noise=6)
    seen = []
    model = WeightedBlurringMeanShift(0.05, callbacks=[seen.append])
    model.fit(10 * X + 3)
    assert model.n_clusters_ == 3
    assert adjusted_rand_score(truth, model.labels_) == 1.0
    assert model.feature_weights_[:3].sum() > 0.9
    assert seen == model.history_
    assert [record.iteration for record in seen] == list(range(1, model.n_iter_ + 1))
    assert [record.stage for record in seen][:21] == ["learn"] * 20 + ["blur"]
    assert seen[-1].n_passes == model.n_passes_ == model.n_iter_ + 2
    assert seen[0].entropy > seen[-1].entropy >= 0
    np.testing.assert_array_equal(model.predict(10 * X + 3), model.labels_)
    for label, center in enumerate(model.cluster_centers_):
        mean = (10 * X + 3)[model.labels_ == label].mean(axis=0)
        np.testing.assert_allclose(center[:3], mean[:3], atol=1.0)
    distances = model.transform(model.cluster_centers_)
    np.testing.assert_allclose(np.diag(distances), 0.0, atol=1e-7)


def test_records_cannot_be_changed():
    X, _ = clumps()
    model = WeightedBlurringMeanShift(0.05, max_iter=4)
    fit_recording(model, X)
    with pytest.raises(AttributeError):
        model.history_[0].spread = 3.0


def test_blurring_mean_shift_is_lam_inf():
    X, truth = clumps(noise=0)
    model = WeightedBlurringMeanShift(0.1, lam=np.inf).fit(X)
    assert adjusted_rand_score(truth, model.labels_) == 1.0
    np.testing.assert_allclose(model.feature_weights_, 1 / X.shape[1], rtol=1e-12)
    assert {record.stage for record in model.history_} == {"blur"}


def test_constant_features_take_no_part():
    X, _ = clumps()
    wide = np.column_stack([X, np.full(len(X), 7.0)])
    a, b = (WeightedBlurringMeanShift(0.06).fit(data) for data in (X, wide))
    np.testing.assert_allclose(b.feature_weights_, [*a.feature_weights_, 0.0], rtol=1e-9)
    np.testing.assert_array_equal(a.labels_, b.labels_)
    np.testing.assert_allclose(b.cluster_centers_[:, -1], 7.0)


def test_rows_without_weight_take_no_part_and_are_labelled():
    X, _ = clumps(n=90)
    v = np.ones(90)
    v[::4] = 0.0
    a = WeightedBlurringMeanShift(0.06).fit(X, sample_weight=v)
    b = WeightedBlurringMeanShift(0.06).fit(X[v > 0])
    np.testing.assert_allclose(a.cluster_centers_, b.cluster_centers_, atol=1e-9)
    np.testing.assert_array_equal(a.labels_[v > 0], b.labels_)
    np.testing.assert_array_equal(a.labels_[v == 0], a.predict(X[v == 0]))


def _frame(X):
    return pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])


def _zarr(X):
    array = zarr.create_array({}, shape=X.shape, dtype=X.dtype, chunks=(40, X.shape[1]))
    array[...] = X
    return array


@pytest.mark.parametrize(
    "kind",
    [
        lambda X: da.from_array(X, chunks=(37, 2)),
        lambda X: da.from_array(X, chunks=(37, -1))[da.from_array(np.ones(len(X), bool))],
        _frame,
        lambda X: dd.from_pandas(_frame(X), npartitions=3),
        _zarr,
        lambda X: X.tolist(),
    ],
    ids=["dask", "unknown rows", "pandas", "dask frame", "zarr", "list"],
)
@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_any_input_gives_the_same_model(kind, scheduler):
    X, _ = clumps(n=100)
    expected = WeightedBlurringMeanShift(0.06).fit(X)
    with dask.config.set(scheduler=scheduler):
        found = WeightedBlurringMeanShift(0.06).fit(kind(X))
    lazy = dask.is_dask_collection(found.labels_)
    assert lazy == (not isinstance(kind(X), list | pd.DataFrame))
    np.testing.assert_allclose(
        found.cluster_centers_, expected.cluster_centers_, rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(found.feature_weights_, expected.feature_weights_, rtol=1e-9)
    np.testing.assert_array_equal(np.asarray(found.labels_), expected.labels_)


def test_dask_computes_the_sweeps_of_a_fit_to_a_lazy_table(monkeypatch):
    X, _ = clumps(n=100)
    expected = WeightedBlurringMeanShift(0.06).fit(X)
    monkeypatch.setattr(numerics, "TILE", 16)
    monkeypatch.setattr(neighborhood, "TILE", 16)
    table = da.from_array(X, chunks=(50, -1))
    with counting_computes() as computes:
        found = WeightedBlurringMeanShift(0.06).fit(table)
    assert len(computes) > 2  # first pass, gathering, and iterations until one tile is left
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, atol=1e-9)
    np.testing.assert_array_equal(np.asarray(found.labels_), expected.labels_)


def test_a_distributed_cluster_gives_the_same_labels(monkeypatch):
    import distributed

    X, _ = clumps(n=100)
    expected = WeightedBlurringMeanShift(0.06).fit(X)
    monkeypatch.setattr(numerics, "TILE", 16)
    monkeypatch.setattr(neighborhood, "TILE", 16)
    with (
        dask.config.set(scheduler=None),
        distributed.LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
    ):
        found = WeightedBlurringMeanShift(0.06).fit(da.from_array(X, chunks=(30, -1)))
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, atol=1e-9)
    np.testing.assert_array_equal(np.asarray(found.labels_), expected.labels_)


def test_dask_results_are_lazy_and_pickles_carry_no_data():
    X, _ = clumps(n=100)
    table = da.from_array(X, chunks=(40, -1))
    model = WeightedBlurringMeanShift(0.06).fit(table)
    with raise_if_computes():
        labels, distances = model.predict(table), model.transform(table)
    assert labels.shape == (100,)
    assert distances.shape == (100, model.n_clusters_)
    copied = pickle.loads(pickle.dumps(model))
    assert not hasattr(copied, "labels_")
    np.testing.assert_array_equal(copied.predict(X), np.asarray(labels))


def test_saved_models_are_the_same(tmp_path):
    X, _ = clumps(noise=0)
    model = WeightedBlurringMeanShift(0.1, np.inf, random_state=3).fit(X)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    assert loaded.history_ == model.history_
    np.testing.assert_array_equal(loaded.labels_, model.labels_)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert list(loaded.get_feature_names_out()) == list(model.get_feature_names_out())


def test_plan_reads_nothing_and_bounds_the_passes():
    X, _ = clumps(n=100)
    table = da.from_array(X, chunks=(40, -1))
    model = WeightedBlurringMeanShift(0.06)
    with raise_if_computes():
        plan = model.plan(table)
    model.fit(table)
    # Rows of weight 0 get their labels in a pass of their own.
    assert model.n_passes_ <= plan.max_passes == 303
    assert plan.n_rows == 100
    assert WeightedBlurringMeanShift(convention="reference").plan(X).max_passes == 53
    assert not hasattr(WeightedBlurringMeanShift(), "n_features_in_")


@pytest.mark.parametrize("unknown", [False, True])
def test_rows_that_do_not_fit_are_refused_before_they_are_read(monkeypatch, unknown):
    monkeypatch.setattr(planning, "this_process", lambda: Worker(2, 8 * 10**8))
    monkeypatch.setattr(planning, "smallest_worker", lambda lazy: Worker(2, 8 * 10**8))
    table = da.zeros((10**5, 100), chunks=(2 * 10**4, -1))
    refusal = r"16 arrays .* 100,000 rows of 100 features, 80 MB.*n_representatives"
    exact = WeightedBlurringMeanShift(n_representatives=None)
    with raise_if_computes():
        for function in (exact.plan, exact.fit):
            with pytest.raises(ValueError, match=refusal):
                function(table)
    if unknown:
        with pytest.raises(ValueError, match=refusal):
            exact.fit(table[da.ones(10**5, chunks=2 * 10**4, dtype=bool)])
    # Wide tables have few pairs: only memory bounds them.
    assert WeightedBlurringMeanShift().plan(da.zeros((2000, 2000))).n_rows == 2000


# ---------------------------------------------------------------- defined outcomes


@pytest.mark.parametrize("name", ["bandwidth", "lam"])
@pytest.mark.parametrize("value", [0, -1.0, np.nan, "wide"])
def test_bandwidth_and_lam_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"The '{name}' parameter"):
        WeightedBlurringMeanShift(**{name: value}).fit(np.eye(4))


def test_nan_is_refused_where_it_stands():
    X, _ = clumps()
    X[17, 2] = np.nan
    with pytest.raises(ValueError, match=r"NaN.*row 17"):
        WeightedBlurringMeanShift(0.1).fit(X)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("X", [np.full((7, 3), 2.5), np.array([[1.0, 2.0, 3.0]])])
def test_constant_data_and_one_row_are_one_cluster(X, convention):
    model = WeightedBlurringMeanShift(0.1, convention=convention).fit(X)
    assert model.n_clusters_ == 1
    np.testing.assert_allclose(model.cluster_centers_, X[:1])
    np.testing.assert_allclose(model.feature_weights_, 1 / 3)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_copies_of_a_row_share_a_representative(convention):
    X, _ = clumps(n=30)
    model = WeightedBlurringMeanShift(0.08, convention=convention).fit(np.repeat(X, 3, axis=0))
    np.testing.assert_array_equal(model.labels_[::3], model.labels_[1::3])
    assert model.history_[0].n_representatives <= 30


@pytest.mark.parametrize("convention", ["auto", "paper"])
def test_a_bandwidth_at_which_nothing_moves_is_warned_of(convention):
    X, _ = clumps()
    model = WeightedBlurringMeanShift(1e-7, convention=convention)
    [message] = fit_recording(model, X)
    assert "Nothing came together" in message
    assert "bandwidth=1e-07 is too small" in message
    assert model.n_clusters_ == len(X) or convention == "auto"


def test_clusters_that_merge_in_the_first_step_are_no_failure():
    X = np.repeat(np.eye(3), 20, axis=0) * 10
    X += 1e-4 * np.random.default_rng(0).normal(size=X.shape)
    assert WeightedBlurringMeanShift(0.1).fit(X).n_clusters_ == 3


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_bandwidth_that_leaves_one_cluster_is_warned_of(convention):
    X, _ = clumps()
    model = WeightedBlurringMeanShift(50.0, convention=convention)
    [message] = fit_recording(model, X)
    assert "one cluster" in message
    assert "bandwidth=50 may be too large" in message
    assert model.n_clusters_ == 1


def test_a_fit_that_ends_at_max_iter_warns():
    X, _ = clumps()
    model = WeightedBlurringMeanShift(0.05, max_iter=3)
    messages = fit_recording(model, X)
    assert "Not converged in max_iter=3" in messages[-1]
    assert model.n_iter_ == 3


def test_attraction_across_a_narrow_gap_is_no_convergence():
    # Two points that will meet, but move by little for long.
    X = np.array([[0.0], [1.0]]) - 0.5
    found = blur_rows(X, np.ones(2), Blurring(1 / np.log(1e3), 0.1, "paper", 20))
    assert not found.converged
    assert found.history[-1].attraction > 1e-4
    assert blur_rows(X, np.ones(2), Blurring(1 / np.log(1e5), 0.1, "paper", 20)).converged


# ---------------------------------------------------------------- any number of rows


@pytest.mark.long
@pytest.mark.parametrize("n_representatives", [None, 1500])
def test_weights_that_few_rows_learn_do_not_stall_on_many(n_representatives):
    """From equal weights, the nearest neighbours of so many rows are near in noise as well."""
    X, truth, _ = separated("12 clusters in 4 of 12 features", 6000)
    model = WeightedBlurringMeanShift(
        0.0025, n_representatives=n_representatives, random_state=0
    ).fit(X)
    assert model.n_clusters_ == 12
    assert adjusted_rand_score(truth, model.labels_) > 0.99
    assert model.feature_weights_[:4].sum() > 0.99


def with_stragglers():
    """Two clusters of 300 rows, and three pairs of rows far from them and from each other."""
    rng = np.random.default_rng(0)
    X = 10.0 * np.eye(2)[np.arange(600) % 2] + 0.3 * rng.normal(size=(600, 2))
    return np.concatenate([X, np.repeat([[14.0, -3.0], [18.0, 2.0], [-4.0, 15.0]], 2, axis=0)])


def test_stragglers_join_the_cluster_with_the_nearest_mode():
    X = with_stragglers()
    model = WeightedBlurringMeanShift(0.5, np.inf, standardize=False).fit(X)
    assert model.n_clusters_ == 2
    np.testing.assert_array_equal(model.labels_[600:], model.labels_[[0, 0, 0, 0, 1, 1]])
    np.testing.assert_array_equal(model.cluster_sizes_, [304, 302])
    # They do not move the modes.
    centers = [X[0:600:2].mean(axis=0), X[1:600:2].mean(axis=0)]
    np.testing.assert_allclose(model.cluster_centers_, centers, atol=0.05)


def test_rows_far_away_stay_clusters_by_the_conventions_of_the_paper():
    for convention in ("paper", "reference"):
        found = blur_rows(with_stragglers(), np.ones(606), Blurring(0.5, np.inf, convention))
        assert (found.cluster_weights == 2.0).sum() == 3


def test_stragglers_do_not_delay_convergence():
    """Two rows are drawn by little of their kernel sums, for more than a hundred iterations."""
    X = np.repeat([[0.0], [1.0], [1.0 + np.sqrt(0.135)]], [400, 400, 2], axis=0)
    settings = Blurring(0.01, np.inf, max_iter=60)
    found = blur_rows(X, np.ones(802), settings)
    assert found.converged
    assert len(found.modes) == 2
    assert not blur_rows(X, np.ones(802), replace(settings, convention="paper")).converged


def test_a_slow_drift_is_hastened_and_what_is_isolated_stays():
    """Twenty rows need 140 plain steps to reach a cluster, and the last two clusters 1,000."""
    places = np.array([0.0, 1.0, 1.0 + np.sqrt(0.11), 3.0, 3.0 + np.sqrt(0.099)])
    X = np.repeat(places[:, None], [400, 400, 20, 400, 400], axis=0)
    settings = Blurring(0.01, np.inf, max_iter=60)
    found = blur_rows(X, np.ones(1620), settings)
    assert found.converged
    np.testing.assert_array_equal(np.sort(found.cluster_weights), [400, 400, 400, 420])
    paper = blur_rows(X, np.ones(1620), replace(settings, convention="paper", max_iter=100))
    assert not paper.converged
    assert len(paper.modes) == 5
    # Plain steps, as many as the drift needs, lead to the same clusters.
    paper = blur_rows(X, np.ones(1620), replace(settings, convention="paper", max_iter=300))
    np.testing.assert_array_equal(paper.labels, found.labels)
    np.testing.assert_allclose(paper.modes, found.modes, atol=5e-3)


@pytest.mark.parametrize(
    ("others", "largest", "expected"),
    [
        # Up to the isolated share nobody moves farther; nor does an unwatched one that gets more.
        ([2e-5, 1e-3, 5e-4, 0.2], 1e-3, [1.0, 50.0, 50.0, 1.0]),
        # All are isolated; clusters still form.
        ([2e-5, 5e-5], 5e-5, None),
        ([1e-3, 0.3], 0.3, None),
    ],
)
def test_steps_are_longer_where_all_that_happens_is_a_drift(others, largest, expected):
    found = neighborhood.strides(np.array(others), largest, 1e-4)
    assert (found is None) == (expected is None)
    if expected is not None:
        np.testing.assert_allclose(found, expected)
    assert neighborhood.strides(np.array(others), largest, np.inf) is None


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([500, 400, 3, 1], [False, False, True, True]),
        # These hold more than a tenth: clusters still form, or the bandwidth is too small.
        ([5, 4, 3, 1], [False, False, False, False]),
        ([3, 3, 3], [False, False, False]),
    ],
)
def test_only_groups_of_little_weight_in_all_are_stragglers(weights, expected):
    np.testing.assert_array_equal(stragglers(np.array(weights, float), 4.0), expected)


def test_groups_whose_rows_only_share_a_micro_cluster_are_stragglers():
    weights, met = np.array([9000, 900, 40, 40, 2.0]), np.array([2000, 3, 3, 30, 2.0])
    found = stragglers(weights, 4.0, met)
    np.testing.assert_array_equal(found, [False, False, True, False, True])


@pytest.mark.parametrize(
    ("rows", "expected"), [(100, 0.5), (1000, 5.0), (10_000, 9.2), (1e7, 16.1), (0.5, 0.0)]
)
def test_few_rows_in_any_table_may_be_stragglers(rows, expected):
    assert Blurring(0.1, 0.1).least_weight(rows) == pytest.approx(expected, abs=0.05)
    assert Blurring(0.1, 0.1, "paper").least_weight(rows) == 0.0


@pytest.mark.long
def test_a_fit_that_disagrees_with_its_path_says_so(monkeypatch):
    X, _ = clumps(n=240)
    model = WeightedBlurringMeanShift(random_state=0)
    assert fit_recording(model, X) == []
    path = model.bandwidth_path_
    assert path.n_clusters[path.chosen] == model.n_clusters_ == 3
    other = replace(path, n_clusters=path.n_clusters * 3)
    monkeypatch.setattr(estimators, "follow_bandwidths", lambda *_: Followed(other, None))
    [message] = fit_recording(model, X)
    assert "found 3 clusters, but its path found 9 on 240 rows" in message


@pytest.mark.long
@pytest.mark.parametrize("name", SEPARATED)
def test_the_clusters_of_separated_mixtures_are_found_in_ten_thousand_rows(name):
    n = 10_000  # benchmarks/sizes.py has more
    X, truth, centers = separated(name, n)
    with warnings.catch_warnings():
        # One bandwidth of the grid may be right without its neighbours.
        warnings.filterwarnings("ignore", "The automatic bandwidth is", UserWarning)
        model = WeightedBlurringMeanShift(random_state=0).fit(X)
    inside = truth >= 0
    assert adjusted_rand_score(truth[inside], model.labels_[inside]) > 0.95
    assert (model.cluster_sizes_ >= n / 1000).sum() == len(centers)


# ---------------------------------------------------------------- scikit-learn's checks


def _name(check):
    return check.func.__name__ if isinstance(check, partial) else check.__name__


def _expected_failures(estimator):
    if estimator.bandwidth != "auto":
        return {}
    return {
        "check_sample_weight_equivalence_on_dense_data": (
            "the bandwidth is chosen on a sample of the rows, which is another when rows are "
            "repeated; with a given bandwidth, integer weights equal repetition"
        )
    }


@pytest.mark.long
@parametrize_with_checks(
    [WeightedBlurringMeanShift(), WeightedBlurringMeanShift(0.05)],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_estimator_checks_pass(estimator, check):
    with warnings.catch_warnings():
        # Most checks fit a few rows of noise.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The automatic bandwidth is", UserWarning)
        check(estimator)


@pytest.mark.long
def test_the_path_of_the_bandwidth_is_kept(tmp_path):
    """By the model, its file, and the checkpoint of a fit that is killed."""
    rng = np.random.default_rng(0)
    X = 8 * np.eye(3)[np.arange(120) % 3] + rng.normal(size=(120, 3))
    model = WeightedBlurringMeanShift(random_state=0).fit(X)
    path = model.bandwidth_path_
    assert path.bandwidth == model.bandwidth_
    model.save(tmp_path / "model")
    again = load(tmp_path / "model").bandwidth_path_

    def die(record):
        raise RuntimeError

    resumed = WeightedBlurringMeanShift(random_state=0, checkpoint=tmp_path / "fit")
    with pytest.raises(RuntimeError):
        resumed.set_params(callbacks=[die]).fit(X)
    resumed.set_params(callbacks=None).fit(X)
    for other in (again, resumed.bandwidth_path_):
        for name, value in vars(path).items():
            np.testing.assert_array_equal(getattr(other, name), value)
    assert not hasattr(model.set_params(bandwidth=0.1).fit(X), "bandwidth_path_")
