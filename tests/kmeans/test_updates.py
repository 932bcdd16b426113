"""Steps of power k-means and EWP (centres and feature weights) against the papers' formulas."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from _naive import (
    entropy_step,
    lloyd_step,
    power_k_means_step,
)

from daskmm.compiled import library
from daskmm.engine.first_pass import MANY_CLUSTERS
from daskmm.kmeans.sums import FARTHEST, CenterState, CenterSums, Farthest, center_sums
from daskmm.kmeans.updates import (
    EntropyUpdate,
    PowerUpdate,
    coincident_centers,
    moved_centers,
    relocated,
    repeated_centers,
    sample_problem,
)
from daskmm.numerics.distortions.bregman import (
    SQUARED_EUCLIDEAN,
    KullbackLeibler,
    SquaredEuclidean,
)
from daskmm.numerics.rows import Coordinates

POWERS = (-0.2, -1.0, -3.0, -50.0, -1e4, -1e12)
each_power = pytest.mark.parametrize("s", POWERS)


def problem(n=50, p=4, k=3, seed=15):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, p)) * np.linspace(0.5, 2, p)
    return rows, rows[:k] + 0.1, rng.integers(0, 4, n).astype(float), rng.dirichlet(np.ones(p))


def identity(p):
    return Coordinates(np.zeros(p), np.ones(p))


@each_power
@pytest.mark.parametrize("weighted", [False, True], ids=["equal rows", "weighted rows"])
def test_a_step_of_power_k_means_is_that_of_the_paper(s, weighted):
    rows, centers, v, _ = problem()
    v = v if weighted else None
    total = len(rows) if v is None else v.sum()
    state = CenterState(centers, s)
    (sums,) = center_sums(rows, v, identity(4), (state,)).records
    expected, objective = power_k_means_step(rows, centers, s, v)
    found = PowerUpdate().update(sums, state, total).centers
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(sums.objective / total, objective, rtol=1e-12)


@each_power
@pytest.mark.parametrize("weighted", [False, True], ids=["equal rows", "weighted rows"])
def test_a_step_of_ewp_is_that_of_the_paper(s, weighted):
    rows, centers, v, w = problem()
    v = v if weighted else None
    total = len(rows) if v is None else v.sum()
    state, lam = CenterState(centers, s, w), 0.4
    (sums,) = center_sums(rows, v, identity(4), (state,)).records
    update = EntropyUpdate(lam=lam, varying=np.ones(4, dtype=bool))
    expected, weights, objective = entropy_step(rows, centers, w, s, lam, v)
    found = update.update(sums, state, total)
    np.testing.assert_allclose(found.centers, expected, rtol=1e-10)
    np.testing.assert_allclose(found.feature_weights, weights, rtol=1e-10)
    f = sums.objective / total + update.penalty(state)
    np.testing.assert_allclose(f, objective, rtol=1e-12)


@pytest.mark.parametrize("s", [-1e12, -math.inf])
def test_a_step_at_very_low_powers_is_lloyds(s):
    rows, centers, v, _ = problem(n=200)
    state = CenterState(centers, s)
    (sums,) = center_sums(rows, v, identity(4), (state,)).records
    found = PowerUpdate().update(sums, state, v.sum()).centers
    np.testing.assert_allclose(found, lloyd_step(rows, centers, v), rtol=1e-10)


def test_sums_over_blocks_and_tiles_are_the_sums_over_all_rows(monkeypatch):
    rows, centers, v, w = problem(n=100)
    states = (CenterState(centers, -2.0, w), CenterState(centers[::-1], -math.inf, w))
    whole = center_sums(rows, v, identity(4), states)
    monkeypatch.setattr("daskmm.numerics.rows.tile_rows", lambda p, k: 7)
    cuts = [0, 0, 1, 30, 30, 100]
    pairs = itertools.pairwise(cuts)
    parts = [center_sums(rows[a:b], v[a:b], identity(4), states) for a, b in pairs]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged + part
    for a, b in zip(merged.records, whole.records, strict=True):
        for name in ("weights", "sums", "squares", "objective", "inertia", "hardness"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-12, err_msg=name)
        np.testing.assert_array_equal(a.farthest.rows, b.farthest.rows)


def sums_with(cluster_weights, sums, farthest=None):
    p = np.shape(sums)[1]
    return CenterSums(
        np.asarray(cluster_weights, dtype=float),
        np.asarray(sums, dtype=float),
        None,
        None,
        0.0,
        0.0,
        0.0,
        Farthest.empty(p) if farthest is None else farthest,
    )


def test_a_centre_without_weight_keeps_its_place():
    state = CenterState(np.array([[1.0, 2.0], [3.0, 4.0]]), -5.0)
    sums = sums_with([0.0, 2.0], [[0.0, 0.0], [4.0, 2.0]])
    np.testing.assert_array_equal(moved_centers(sums, state), [[1, 2], [2, 1]])
    # Soft steps record no farthest rows, so nothing is relocated.
    np.testing.assert_array_equal(PowerUpdate().update(sums, state, 2.0).centers, [[1, 2], [2, 1]])


def test_a_centre_whose_weights_all_underflow_keeps_its_place():
    rng = np.random.default_rng(16)
    rows = rng.normal(size=(30, 2))
    state = CenterState(np.array([[0.0, 0.0], [1e8, 1e8]]), -50.0)
    (sums,) = center_sums(rows, None, identity(2), (state,)).records
    assert sums.weights[1] == 0
    np.testing.assert_array_equal(moved_centers(sums, state)[1], [1e8, 1e8])


def test_empty_centres_go_to_the_farthest_rows_one_each():
    farthest = Farthest(np.array([9.0, 5.0, 4.0]), np.array([[9.0], [5.0], [4.0]]))
    centers = np.array([[0.0], [1.0], [2.0], [3.0]])
    found = relocated(
        centers, sums_with([0, 1, 0, 2], np.zeros((4, 1)), farthest), SQUARED_EUCLIDEAN
    )
    np.testing.assert_array_equal(found.ravel(), [9, 1, 5, 3])
    # With fewer rows to go to than centres, the rest stay where they are.
    few = Farthest(np.array([9.0]), np.array([[9.0]]))
    found = relocated(centers, sums_with([0, 1, 0, 0], np.zeros((4, 1)), few), SQUARED_EUCLIDEAN)
    np.testing.assert_array_equal(found.ravel(), [9, 1, 2, 3])
    np.testing.assert_array_equal(centers.ravel(), [0, 1, 2, 3])


def test_the_first_of_coincident_centres_is_not_counted():
    centers = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1e-6], [5.0, 5.0]])
    assert coincident_centers(CenterState(centers, -1.0), 1.0) == 2
    assert coincident_centers(CenterState(centers, -1.0), 1e-6) == 1
    assert coincident_centers(CenterState(centers[[0, 1, 4]], -1.0), 1.0) == 0
    # Apart in features that do not count is not apart.
    assert coincident_centers(CenterState(centers[:2], -1.0, np.array([0.0, 1.0])), 1.0) == 1
    assert coincident_centers(CenterState(centers[:1], -1.0), 1.0) == 0
    # Where every row lies on its centre, only centres at the same place coincide.
    assert coincident_centers(CenterState(centers, -1.0), 0.0) == 1


@pytest.mark.parametrize("few", [0, 1 << 14])
@pytest.mark.parametrize("cls", [SquaredEuclidean, KullbackLeibler])
def test_coincident_centers_of_many_tiles_or_pairs_are_found(monkeypatch, cls, few):
    monkeypatch.setattr("daskmm.kmeans.updates.tile_rows", lambda *_: 7)
    monkeypatch.setattr("daskmm.kmeans.updates._FEW_ELEMENTS", few)
    centers = np.random.default_rng(0).uniform(0.1, 3.0, size=(50, 3))
    distortion = cls.around(centers.mean(axis=0), centers.var(axis=0))
    for rows, same_as in (([20], [3]), ([6, 7], [5, 6]), ([49, 48, 30], [0, 0, 29])):
        repeated = centers.copy()
        repeated[rows] = repeated[same_as]
        apart = np.abs(repeated[:, None] - repeated).sum(axis=2)
        expected = np.tril(apart == 0, -1).any(axis=1)
        for weights in (None, np.array([0.5, 0.3, 0.2])):
            state = CenterState(repeated, -1.0, weights, distortion=distortion)
            np.testing.assert_array_equal(repeated_centers(state, 1.0), expected)
    assert not repeated_centers(CenterState(centers, -1.0, distortion=distortion), 1.0).any()


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gap", [0.9e-4, 1.1e-4, 1e-2])
def test_coincident_centres_far_from_the_origin_are_told_apart_exactly(offset, weighted, gap):
    rng = np.random.default_rng(0)
    centers = offset + rng.normal(size=(6, 3))
    centers = np.vstack([centers, centers[2] + np.array([gap, 0.0, 0.0])])
    state = CenterState(centers, -1.0, np.array([1.0, 0.5, 2.0]) if weighted else None)
    assert coincident_centers(state, 1.0) == (gap < 1e-4)


@pytest.mark.parametrize("weighted", [False, True], ids=["equal rows", "weighted rows"])
def test_merged_farthest_rows_are_those_of_all_rows(weighted):
    rng = np.random.default_rng(14)
    distances = rng.integers(0, 12, 90).astype(float)  # many ties and zeros
    rows = np.arange(90.0)[:, None]
    v = rng.integers(0, 2, 90).astype(float) if weighted else None
    total = Farthest.empty(1)
    for part in np.array_split(np.arange(90), [0, 3, 20, 20, 71]):
        total = total + Farthest.of(distances[part], rows[part], None if v is None else v[part])
    counted = np.flatnonzero(distances > 0) if v is None else np.flatnonzero(distances * v > 0)
    order = sorted(counted, key=lambda i: (-distances[i], i))[:FARTHEST]
    np.testing.assert_array_equal(total.rows.ravel(), order)
    np.testing.assert_array_equal(total.distances, distances[order])


def test_farthest_rows_are_none_where_every_row_is_on_its_centre():
    assert len(Farthest.of(np.zeros(5), np.ones((5, 2)), None).rows) == 0


def many_clusters():
    rng = np.random.default_rng(4)
    truth = rng.normal(size=(MANY_CLUSTERS, 6))
    rows = np.repeat(truth, 20, axis=0) + 0.05 * rng.normal(size=(20 * MANY_CLUSTERS, 6))
    centers = truth + 0.1 * rng.normal(size=truth.shape)
    centers[0], centers[1] = 9.0, -9.0  # far from all rows
    return rows, centers


@pytest.mark.parametrize(
    "update", [PowerUpdate(), EntropyUpdate(lam=0.4, varying=np.ones(6, bool))]
)
def test_steps_of_many_clusters_are_those_with_all_weights_all_along(update):
    rows, centers = many_clusters()
    problem = sample_problem(rows, np.ones(len(rows)), update)
    state = expected = problem.start(centers, -12.0)
    known = []
    for s in (-12.0, -20.0, -40.0, -100.0, -110.0):
        state, expected = replace(state, s=s), replace(expected, s=s)
        known.append(state.shares is not None)
        tile = expected.distortion.tile(rows, False)
        sums = CenterSums.of(tile, None, expected)
        expected = update.update(sums, expected, len(rows))
        (step,) = problem.steps([state])
        state = step.state
        np.testing.assert_allclose(state.centers, expected.centers, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(step.objective * len(rows), sums.objective, rtol=1e-10)
        if state.feature_weights is not None:
            np.testing.assert_allclose(state.feature_weights, expected.feature_weights, rtol=1e-8)
    assert known == [False, True, True, True, True]


def test_a_step_is_taken_with_all_weights_where_clusters_have_lost_theirs():
    rows, centers = many_clusters()
    problem = sample_problem(rows, np.ones(len(rows)), PowerUpdate())
    state = problem.start(centers, -50.0)
    (expected,) = problem.sums([state])
    shares = expected.weights / len(rows)
    (found,) = problem.sums([replace(state, shares=shares)])
    assert problem.passes.n_passes == 2
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-12)
    one_fell = shares.copy()
    one_fell[5] *= 257
    (found, other) = problem.sums([replace(state, shares=one_fell), replace(state, shares=shares)])
    assert problem.passes.n_passes == 4
    np.testing.assert_array_equal(found.weights, expected.weights)
    np.testing.assert_allclose(other.weights, expected.weights, rtol=1e-12)
    # Nothing is left out of clusters far from all rows, so they may fall as far as they like.
    far = shares.copy()
    far[:2] *= 1e6
    (found,) = problem.sums([replace(state, shares=far)])
    assert problem.passes.n_passes == 5
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-12)


@pytest.mark.parametrize("why", ["missing values", "no compiled loops"])
def test_no_step_is_taken_twice_where_all_weights_are_computed(why, monkeypatch):
    rows, centers = many_clusters()
    if why == "no compiled loops":
        monkeypatch.setattr(library, "available", lambda: False)
    update = PowerUpdate(partial=why == "missing values")
    problem = sample_problem(rows, np.ones(len(rows)), update)
    (step,) = problem.steps([problem.start(centers, -50.0)])
    assert step.state.shares is None


def test_few_clusters_and_hard_steps_do_not_know_the_weights_of_clusters():
    rows, centers = many_clusters()
    problem = sample_problem(rows, np.ones(len(rows)), PowerUpdate())
    for start, s in ((centers[:100], -5.0), (centers, -math.inf)):
        (step,) = problem.steps([problem.start(start, s)])
        assert step.state.shares is None


def test_numbers_beyond_single_precision_change_no_coincidence():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(300, 4))
    # Everything is near next to such a limit.
    assert repeated_centers(CenterState(centers, -1.0), 1e50).sum() == 299
    centers[:, 0], centers[297] = 0.0, centers[3]
    centers[299, 0], centers[298, 0] = 1e40, -1e40
    for weights in (np.array([0.0, 1.0, 1.0, 1.0]), None):
        assert repeated_centers(CenterState(centers, -1.0, weights), 1.0).sum() == 1
