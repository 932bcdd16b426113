"""Greedy k-means++ within cells, against k-means++ on all rows."""

import numpy as np
import pytest
from sklearn.cluster import kmeans_plusplus

from daskmm import KMeans
from daskmm.compiled import library
from daskmm.engine.first_pass import MANY_CLUSTERS
from daskmm.kmeans.cells import (
    CLUSTERS_PER_CELL,
    PARTITIONS,
    _Cells,
    _greedy,
    _greedy_by_numpy,
    _in_single,
    _stepped,
    candidates_by_cells,
    chosen_by_cells,
)
from daskmm.numerics.distances import squared_distances

K = MANY_CLUSTERS
needs_library = pytest.mark.skipif(not library.available(), reason="needs the compiled loops")
PLAIN = {"n_init": 1, "standardize": False, "random_state": 0}


def mixture(spread, n_rows=4000, p=8):
    rng = np.random.default_rng(0)
    centers = spread * rng.normal(size=(K, p))
    return centers[rng.integers(K, size=n_rows)] + rng.normal(size=(n_rows, p))


def cost(X, centers):
    return squared_distances(X, centers).min(axis=1).sum()


@pytest.mark.in_turn("spread")
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
def test_candidates_are_means_of_the_rows_that_they_stand_for(spread):
    X = mixture(spread)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    centers, mass = candidates_by_cells(X, weights, K, 0)
    assert (mass > 0).all()
    assert 0.9 * PARTITIONS * K <= len(centers) <= PARTITIONS * K
    # Each partition assigns every row once.
    np.testing.assert_allclose(mass.sum(), PARTITIONS * weights.sum())
    np.testing.assert_allclose(mass @ centers / mass.sum(), np.average(X, 0, weights), atol=0.05)
    again, _ = candidates_by_cells(X, weights, K, 0)
    np.testing.assert_array_equal(centers, again)
    assert len(candidates_by_cells(X, weights, K, 1)[0]) > 0


def test_steps_within_a_cell_are_those_of_lloyd():
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(300, 4)), rng.uniform(0.5, 2.0, 300)
    centers = np.concatenate([X[:6], np.full((1, 4), 99.0)])  # the last one has no rows
    expected = centers.copy()
    for _ in range(3):
        labels = squared_distances(X, expected).argmin(axis=1)
        for j in range(6):
            expected[j] = np.average(X[labels == j], 0, weights[labels == j])
    np.testing.assert_allclose(_stepped(X, weights, centers, 3), expected, rtol=1e-12)
    ended = _stepped(X, weights, centers, 200)
    np.testing.assert_array_equal(_stepped(X, weights, ended, 1), ended)


@pytest.mark.parametrize("p", [3, 200])
def test_distances_within_cells_are_those_of_the_definition(p):
    rng = np.random.default_rng(0)
    cell = rng.integers(3, size=90)
    X = 1e6 + 100.0 * cell[:, None] + rng.normal(size=(90, p))
    cells = _Cells.of(X, np.ones(90), cell)
    unit = np.ptp(X, axis=0).max()
    for own in cells.slices:
        chosen = np.array([own.start, own.stop - 1])
        expected = squared_distances(X[cells.order[own]], X[cells.order[chosen]])
        found = unit**2 * cells.distances(own, chosen)
        np.testing.assert_allclose(found, expected, atol=1e-5 * expected.max())


@needs_library
@pytest.mark.parametrize("n_cells", [1, 7])
@pytest.mark.parametrize("p", [1, 3, 64])
def test_compiled_choices_within_cells_are_those_of_numpy(n_cells, p):
    rng = np.random.default_rng(p)
    X = rng.normal(size=(400, p))
    X[::3] = X[0]  # rows that coincide with a chosen one have no cost
    cells = _Cells.of(X, rng.uniform(0.5, 2.0, 400), rng.integers(n_cells, size=400))
    for n_clusters in (n_cells, 40, 400):
        uniforms = np.random.default_rng(0).random((n_clusters, 3 + int(np.log(n_clusters))))
        found = _greedy(cells, n_clusters, np.random.default_rng(0))
        expected = _greedy_by_numpy(cells, uniforms)
        # Either of two rows that coincide may be chosen.
        np.testing.assert_array_equal(cells.rows[found[:40]], cells.rows[expected[:40]])
        # Later draws may fall on another row by rounding.
        assert len(found) == len(expected) == len(set(found.tolist()))


@pytest.mark.parametrize(("far", "single"), [(10.0, True), (1e4, False)])
def test_cells_that_single_precision_cannot_tell_apart_are_formed_in_double(far, single):
    rng = np.random.default_rng(0)
    X = far * rng.integers(2, size=(500, 1)) + rng.normal(size=(500, 4))
    seen = _in_single(X, 20, rng)
    assert seen.dtype == (np.float32 if single else np.float64)
    if single:
        z = X - X.mean(axis=0)
        np.testing.assert_allclose(seen, z / np.abs(z).max(), atol=1e-7)
    for odd in (np.full((500, 4), 3.0), 1e200 * X):
        assert np.isfinite(_in_single(odd, 20, rng)).all()


@pytest.mark.in_turn("scale")
@pytest.mark.parametrize("scale", [1e-150, 1e-9, 1e9, 1e150])
@pytest.mark.parametrize("what", ["rows", "weights"])
def test_candidates_do_not_depend_on_the_unit(scale, what):
    X = mixture(2.0, 2000)
    expected, mass = candidates_by_cells(X, np.ones(len(X)), K, 0)
    of_rows, of_weights = (scale, 1.0) if what == "rows" else (1.0, scale**0.6)
    found, other = candidates_by_cells(of_rows * X, np.full(len(X), of_weights), K, 0)
    together = [cost(X, each) for each in (expected, found / of_rows)]
    assert together[1] == pytest.approx(together[0], rel=0.02)
    assert other.sum() == pytest.approx(of_weights * mass.sum())


def test_rows_of_hardly_any_weight_do_not_move_candidates():
    X = mixture(2.0, 2000)
    light = np.arange(len(X)) % 2 == 0
    centers, mass = candidates_by_cells(X, np.where(light, 1e-90, 1e90), K, 0)
    heavy = centers[mass > 1e80]
    assert np.isfinite(centers).all()
    assert cost(X[~light], heavy) < 1.2 * cost(X, candidates_by_cells(X, np.ones(len(X)), K, 0)[0])


def _tight(noise):
    rng = np.random.default_rng(1)
    means = 5.0 * rng.normal(size=(300, 5))
    return means[rng.integers(300, size=8000)] + noise * rng.normal(size=(8000, 5))


def test_few_heavy_rows_do_not_attract_all_centres():
    X, weights = _tight(0.05), np.ones(8000)
    weights[:60] = 1e8
    candidates, mass = candidates_by_cells(X, weights, 300, 0)
    (chosen,) = chosen_by_cells(candidates, mass, 300, [0])
    assert len(np.unique(chosen)) == 300
    exact, _ = kmeans_plusplus(X, 300, sample_weight=weights, random_state=0)
    # It was 6.3 where rounding counted as cost; 1.6 with distances in double precision.
    assert cost(X[60:], candidates[chosen]) < 2.0 * cost(X[60:], exact)


@pytest.mark.in_turn("far")
@pytest.mark.parametrize("far", [1e12, 1e9, 1e7, 1e3])
def test_a_far_row_does_not_attract_all_centres(far):
    X = _tight(0.3)
    X[0] = far
    candidates, _ = candidates_by_cells(X, np.ones(8000), 300, 0)
    assert len(candidates) > 0.9 * PARTITIONS * 300
    usual, _ = candidates_by_cells(X[1:], np.ones(7999), 300, 0)
    assert cost(X[1:], candidates) < 1.5 * cost(X[1:], usual)


@pytest.mark.long
@pytest.mark.in_turn("spread")
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
def test_starts_are_as_good_as_those_of_k_means_plus_plus(spread):
    X = mixture(spread)
    options = {"max_iter": 3, "tol": 0.0, "sample_size": None}
    ours = KMeans(K, n_init=1, random_state=0, **options).fit(X)
    exact = [kmeans_plusplus(X, K, random_state=seed)[0] for seed in range(3)]
    costs = [cost(X, KMeans(K, init=one, **options).fit(X).cluster_centers_) for one in exact]
    assert cost(X, ours.cluster_centers_) < 1.03 * np.mean(costs)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_few_distinct_rows_give_distinct_candidates():
    X = np.repeat(mixture(1.0, 300), 10, axis=0)
    model = KMeans(K, **PLAIN).fit(X)
    assert model.cluster_centers_.shape == (K, 8)
    X = np.repeat(mixture(1.0, 50), 30, axis=0)
    centers, mass = candidates_by_cells(X, np.ones(len(X)), K, 0)
    assert len(np.unique(centers.round(9), axis=0)) == 50
    assert (mass > 0).all()
    assert KMeans(K, **PLAIN).fit(X).inertia_ < 1e-20
    assert KMeans(K, **PLAIN).fit(np.ones((1500, 2))).inertia_ == 0.0


@pytest.mark.parametrize("k", [CLUSTERS_PER_CELL // 2, 8 * CLUSTERS_PER_CELL])
def test_centres_are_chosen_among_candidates(k):
    rng = np.random.default_rng(4)
    places = 100.0 * rng.normal(size=(k, 5))
    candidates = np.concatenate([p + rng.normal(size=(k, 5)) for p in [places] * PARTITIONS])
    weights = rng.uniform(1, 2, len(candidates))
    found, other = (
        candidates[chosen] for chosen in chosen_by_cells(candidates, weights, k, [0, 1])
    )
    assert found.shape == (k, 5)
    assert not np.array_equal(found, other)
    np.testing.assert_array_equal(
        chosen_by_cells(candidates, weights, k, [0])[0],
        chosen_by_cells(candidates, weights, k, [0, 1])[0],
    )
    nearest = squared_distances(found, places).argmin(axis=1)
    one_each = kmeans_plusplus(candidates, k, sample_weight=weights, random_state=0)[0]
    expected = squared_distances(one_each, places).argmin(axis=1)
    assert len(np.unique(nearest)) >= 0.98 * len(np.unique(expected))


def test_heavy_candidates_are_chosen():
    rng = np.random.default_rng(0)
    candidates, weights = rng.normal(size=(4 * K, 5)), np.full(4 * K, 1e-9)
    heavy = rng.choice(4 * K, K, replace=False)
    weights[heavy] = 1.0
    (chosen,) = chosen_by_cells(candidates, weights, K, [0])
    assert np.isin(chosen, heavy).mean() > 0.9


def test_thousands_of_centres_are_chosen_among_few_distinct_candidates():
    k = 8 * CLUSTERS_PER_CELL
    candidates = np.repeat(np.arange(10.0)[:, None], k // 4, axis=0)
    (chosen,) = chosen_by_cells(candidates, np.ones(len(candidates)), k, [0])
    assert len(np.unique(chosen)) == k
    assert len(np.unique(candidates[chosen])) == 10


def test_integer_weights_of_many_clusters_equal_the_same_weights_as_floating_point():
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(2000, 4)), np.arange(2000) % 3
    models = [
        KMeans(260, random_state=0).fit(rows, sample_weight=v) for v in (weights, 1.0 * weights)
    ]
    np.testing.assert_array_equal(models[0].cluster_centers_, models[1].cluster_centers_)
