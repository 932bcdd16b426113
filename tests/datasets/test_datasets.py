"""Simulated data: lazy, reproducible, independent of chunks, and distributed as they say."""

import tracemalloc
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from sklearn.preprocessing import StandardScaler

from daskmm.datasets import (
    make_ewp_simulation1,
    make_ewp_simulation2,
    make_power_kmeans_blobs,
    make_rings,
    make_vmf,
    make_wbms_simulation1,
    make_wbms_simulation2,
    make_wbms_toy,
)


def make_ring(n_samples=1000, n_clusters=10, **parameters):
    """One circle, with the number of clusters where the others have it."""
    return make_rings(n_samples, radii=(1.0,), blobs_per_ring=n_clusters, **parameters)


def make_toy(n_samples=200, n_clusters=2, **parameters):
    """The toy, whose clusters are always two, with their number where the others have it."""
    return make_wbms_toy(n_samples, **parameters)


GAUSSIAN = [
    make_ewp_simulation1,
    make_ewp_simulation2,
    make_power_kmeans_blobs,
    make_wbms_simulation1,
    make_wbms_simulation2,
]
MAKERS = [*GAUSSIAN, make_ring, make_vmf, make_toy]


def rows_and_labels(make, *args, **kwargs) -> tuple[np.ndarray, np.ndarray]:
    return dask.compute(*make(*args, **kwargs), scheduler="synchronous")


@pytest.mark.parametrize(
    ("make", "shape", "n_clusters"),
    [
        (make_ewp_simulation1, (1000, 22), 100),
        (make_ewp_simulation2, (2000, 100), 20),
        (make_power_kmeans_blobs, (2500, 2), 50),
        (make_rings, (1000, 2), 10),
        (make_vmf, (1000, 3), 10),
        (make_wbms_simulation1, (200, 20), 10),
        (make_wbms_simulation2, (100, 20), 4),
        (make_wbms_toy, (200, 32), 2),
    ],
)
def test_defaults_have_the_shapes_of_the_papers(make, shape, n_clusters):
    X, y = make(random_state=0)
    assert isinstance(X, da.Array)
    assert isinstance(y, da.Array)
    assert X.shape == shape
    assert y.shape == shape[:1]
    rows, labels = dask.compute(X, y)
    assert (X.dtype, y.dtype) == (rows.dtype, labels.dtype) == (np.float64, np.int64)
    assert rows.shape == shape
    np.testing.assert_array_equal(np.unique(labels), np.arange(n_clusters))


@pytest.mark.parametrize("make", MAKERS)
def test_building_computes_nothing(make):
    def refuse(graph, keys, **kwargs):
        raise AssertionError("computed")

    with dask.config.set(scheduler=refuse):
        X, y = make(10**9, random_state=0, chunks=10**6)
        assert X.numblocks == (1000, 1)
        assert y.numblocks == (1000,)
    # One block in the middle does not need those before it.
    assert len(y.blocks[500].compute(scheduler="synchronous")) == 10**6


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MAKERS), st.integers(0, 2**64), st.data())
def test_rows_do_not_depend_on_chunks(make, seed, data):
    n_samples = data.draw(st.sampled_from([20, 999, 1000, 2500]))
    cuts = sorted(data.draw(st.sets(st.integers(1, n_samples - 1), max_size=6)))
    chunks = tuple(int(rows) for rows in np.diff([0, *cuts, n_samples]))
    expected = rows_and_labels(make, n_samples, 7, random_state=seed)
    X, y = make(n_samples, 7, random_state=seed, chunks=chunks)
    assert X.chunks[0] == y.chunks[0] == chunks
    for got, want in zip(dask.compute(X, y, scheduler="synchronous"), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_chunks_do_not_share_keys():
    """Arrays of other chunks or seeds may meet in one graph."""
    arrays = [
        make_power_kmeans_blobs(random_state=seed, chunks=chunks)[0]
        for seed in (0, 1)
        for chunks in (500, 1000)
    ]
    assert len({X.name for X in arrays}) == 4
    first, second = dask.compute(arrays[0], arrays[1])
    np.testing.assert_array_equal(first, second)


def test_wide_rows_have_short_strips():
    """A block of a few wide rows is not made by way of a thousand of them."""
    n_features = 50_000
    X, _ = make_power_kmeans_blobs(1000, 5, n_features, random_state=0, chunks=20)
    whole, _ = make_power_kmeans_blobs(60, 5, n_features, random_state=0, chunks=60)
    np.testing.assert_array_equal(X[:40].compute(), whole[:40].compute())
    tracemalloc.start()
    X.blocks[7].compute(scheduler="synchronous")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 20 * n_features * 8


def test_auto_chunks_are_about_16_megabytes():
    X, y = make_power_kmeans_blobs(10**7, n_features=10)
    assert X.chunks[0] == y.chunks[0] == (200_000,) * 50
    X, _ = make_ewp_simulation1(10**4, n_noise=10**5 - 20)
    assert max(X.chunks[0]) * X.shape[1] * 8 <= 16e6


def test_chunks_are_numbers_of_rows():
    X, _ = make_power_kmeans_blobs(random_state=0, chunks=1000)
    assert X.chunks == ((1000, 1000, 500), (2,))
    X, _ = make_power_kmeans_blobs(random_state=0, chunks=[2000, 500])
    assert X.chunks == ((2000, 500), (2,))


@pytest.mark.parametrize("make", MAKERS)
def test_equal_seeds_give_equal_rows_and_others_do_not(make):
    first, again, other = (rows_and_labels(make, 150, 9, random_state=s)[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(first, rows_and_labels(make, 150, 9, random_state=np.int64(1))[0])
    fresh = [rows_and_labels(make, 150, 9)[0] for _ in range(2)]
    assert not np.array_equal(*fresh)


@pytest.mark.parametrize("generator", [np.random.RandomState, np.random.default_rng])
def test_random_state_objects_are_drawn_from(generator):
    state = generator(5)
    X, _ = make_power_kmeans_blobs(random_state=state)
    again, _ = make_power_kmeans_blobs(random_state=generator(5))
    later, _ = make_power_kmeans_blobs(random_state=state)
    np.testing.assert_array_equal(X.compute(), X.compute())
    np.testing.assert_array_equal(X.compute(), again.compute())
    assert not np.array_equal(X.compute(), later.compute())


@pytest.mark.parametrize("n_samples", [50, 999, 1000, 3333])
@pytest.mark.parametrize("n_clusters", [1, 7, 50])
def test_clusters_are_balanced_and_shuffled(n_samples, n_clusters):
    _, y = rows_and_labels(make_power_kmeans_blobs, n_samples, n_clusters, random_state=0)
    sizes = np.bincount(y, minlength=n_clusters)
    assert sizes.max() - sizes.min() <= 1
    if n_clusters > 1:
        assert not np.array_equal(y, np.arange(n_samples) % n_clusters)


def test_clusters_may_be_more_than_the_rows_of_a_strip():
    _, y = rows_and_labels(make_power_kmeans_blobs, 2400, 2400, random_state=0)
    np.testing.assert_array_equal(np.sort(y), np.arange(2400))


def test_the_mixture_has_the_statistics_of_the_paper():
    X, y = rows_and_labels(
        make_ewp_simulation2, 20_000, 20, 4, 3, cluster_std=0.1, random_state=0, chunks=1700
    )
    means = np.stack([X[y == j].mean(axis=0) for j in range(20)])
    residuals = X - means[y]
    np.testing.assert_allclose(residuals[:, :4].std(axis=0), 0.1, rtol=0.03)
    np.testing.assert_allclose(X[:, 4:].std(axis=0), 1, rtol=0.03)
    np.testing.assert_allclose(X[:, 4:].mean(axis=0), 0, atol=0.03)
    # Spherical, and noise that knows nothing of clusters or rows before.
    assert np.abs(np.corrcoef(residuals.T) - np.eye(7)).max() < 0.04
    assert np.abs(means[:, 4:]).max() < 5 / np.sqrt(1000)
    assert abs(np.corrcoef(X[:-1000, 5], X[1000:, 5])[0, 1]) < 0.04


def test_centres_of_ewp_simulation_1_are_a_grid():
    X, y = rows_and_labels(make_ewp_simulation1, 20_000, random_state=0, chunks=1700)
    means = np.stack([X[y == j].mean(axis=0) for j in range(100)])
    grid = np.stack([np.arange(100) % 10, np.arange(100) // 10], axis=1) / 10
    np.testing.assert_allclose(means[:, :2], grid, atol=0.005)
    np.testing.assert_allclose((X - means[y])[:, :2].std(axis=0), 0.015, rtol=0.03)
    assert 0 <= X[:, 2:].min() < 0.01 < 1.99 < X[:, 2:].max() <= 2
    np.testing.assert_allclose(X[:, 2:].var(axis=0), 1 / 3, rtol=0.05)
    # Any number of clusters and features: different points of a grid.
    X, y = rows_and_labels(make_ewp_simulation1, 30, 30, 3, 1, cluster_std=0, random_state=0)
    assert len(np.unique(X[:, :3], axis=0)) == 30


def test_centers_are_uniform_on_the_unit_hypercube():
    X, y = rows_and_labels(
        make_power_kmeans_blobs, 2000, 2000, 5, scale=1, cluster_std=0, random_state=0
    )
    assert X.min() >= 0
    assert X.max() < 1
    np.testing.assert_allclose(X.mean(axis=0), 0.5, atol=0.03)
    np.testing.assert_allclose(X.var(axis=0), 1 / 12, atol=0.005)
    assert len(np.unique(X, axis=0)) == len(np.unique(y)) == 2000


def test_sides_of_the_hypercube_are_drawn_as_the_paper_says():
    make = partial(rows_and_labels, make_power_kmeans_blobs, 500, 500, 3, cluster_std=0)
    sides = [make(random_state=seed)[0].max() for seed in range(40)]
    assert 30 * 0.98 <= min(sides) <= 33
    assert 57 <= max(sides) < 60
    with pytest.raises(ValueError, match="scale"):
        make_power_kmeans_blobs(scale=(60.0, 30.0))


def test_rows_of_a_cluster_share_a_center_across_strips():
    X, y = rows_and_labels(make_power_kmeans_blobs, 5000, 3, cluster_std=0, random_state=4)
    for j in range(3):
        assert len(np.unique(X[y == j], axis=0)) == 1


def test_rings_are_ten_blobs_on_two_circles():
    X, y = rows_and_labels(make_rings, 20_000, random_state=0, chunks=1700)
    means = np.stack([X[y == j].mean(axis=0) for j in range(10)])
    np.testing.assert_allclose(np.hypot(*means.T), np.repeat([2.0, 5.0], 5), atol=0.03)
    turns = np.arctan2(means[:, 1], means[:, 0]) / (2 * np.pi) % 1
    # A fifth of a turn apart on both circles; an angle of 0 may come out just below 1.
    apart = (turns - np.tile(np.arange(5) / 5, 2) + 0.5) % 1 - 0.5
    np.testing.assert_allclose(apart, 0, atol=0.005)
    residuals = X - means[y]
    np.testing.assert_allclose(residuals.std(axis=0), 0.35, rtol=0.02)
    assert abs(np.corrcoef(residuals.T)[0, 1]) < 0.03


def test_radii_and_numbers_of_blobs_may_be_chosen():
    X, y = rows_and_labels(
        make_rings, 300, radii=[0, 1, 3], blobs_per_ring=4, cluster_std=0, random_state=0
    )
    np.testing.assert_allclose(np.hypot(*X.T), np.array([0, 1, 3])[y // 4], atol=1e-12)
    assert len(np.unique(np.round(X[y >= 4], 9), axis=0)) == 8


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"radii": ()}, "at least one circle"),
        ({"radii": (1.0, -1.0)}, "radii"),
        ({"radii": (1.0, np.inf)}, "radii must be finite"),
        ({"blobs_per_ring": 0}, "blobs_per_ring"),
        ({"cluster_std": -1}, "cluster_std"),
        ({"n_samples": 9}, "the number of blobs must be at most n_samples=9; got 10"),
        ({"n_samples": 0}, "n_samples"),
        ({"chunks": (500, 499)}, "chunks must sum"),
    ],
)
def test_bad_parameters_of_rings_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        make_rings(**parameters)


@pytest.mark.parametrize("n_features", [2, 3, 6])
@pytest.mark.parametrize("concentration", [0.5, 20.0])
def test_vmf_clusters_have_the_distribution(n_features, concentration):
    n_clusters = 4
    X, y = rows_and_labels(
        make_vmf, 40_000, n_clusters, n_features, concentration=concentration, random_state=1
    )
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, rtol=1e-12)
    # Mean resultant length I_{p/2}(κ) / I_{p/2−1}(κ).
    half = n_features / 2
    expected = ive(half, concentration) / ive(half - 1, concentration)
    for j in range(n_clusters):
        mean = X[y == j].mean(axis=0)
        length = np.linalg.norm(mean)
        assert length == pytest.approx(expected, abs=0.02)
        # Symmetric about the mean direction: equal variance in all directions across it.
        across = X[y == j] - np.outer(X[y == j] @ mean, mean) / length**2
        spread = np.linalg.eigvalsh(np.cov(across.T))[1:]
        np.testing.assert_allclose(
            spread, (across**2).sum() / len(across) / (n_features - 1), rtol=0.06
        )


def test_mean_directions_are_uniform_on_the_sphere():
    X, y = rows_and_labels(make_vmf, 3000, 3000, 4, concentration=1e9, random_state=0)
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=0.04)
    np.testing.assert_allclose(X.T @ X / 3000, np.eye(4) / 4, atol=0.02)
    assert len(np.unique(y)) == 3000


def test_rows_of_a_vmf_cluster_share_a_direction_across_strips():
    X, y = rows_and_labels(make_vmf, 5000, 3, concentration=1e12, random_state=4, chunks=777)
    for j in range(3):
        assert np.ptp(X[y == j], axis=0).max() < 1e-4


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"concentration": 0}, "concentration must be positive"),
        ({"concentration": -1.0}, "concentration"),
        ({"concentration": np.inf}, "concentration must be finite"),
        ({"n_features": 1}, "n_features"),
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_samples": 5}, "n_clusters must be at most n_samples=5"),
    ],
)
def test_bad_parameters_of_vmf_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        make_vmf(**parameters)


@pytest.mark.parametrize(
    ("make", "sizes", "standardize", "low", "high"),
    [
        (make_ewp_simulation1, (1000, 100), False, 0.45, 0.65),
        (make_ewp_simulation2, (2000, 20), True, 0.10, 0.28),
        pytest.param(*(make_ewp_simulation2, (5000, 50), True, 0.11, 0.19), marks=pytest.mark.long),
    ],
)
def test_noise_hides_the_clusters_from_k_means(make, sizes, standardize, low, high):
    """As hard as the papers' simulations, and easy once the features are known."""
    X, y = rows_and_labels(make, *sizes, random_state=0)
    if standardize:
        X = StandardScaler().fit_transform(X)
    k_means = KMeans(sizes[1], n_init=1, random_state=0)
    assert low < normalized_mutual_info_score(y, k_means.fit_predict(X)) < high
    n_informative = 2 if make is make_ewp_simulation1 else 5
    labels = k_means.fit_predict(X[:, :n_informative])
    assert normalized_mutual_info_score(y, labels) > 0.95


@pytest.mark.parametrize("make", GAUSSIAN)
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_samples": 10, "n_clusters": 11}, "n_clusters must be at most n_samples=10; got 11"),
        ({"cluster_std": -0.1}, "cluster_std"),
        ({"cluster_std": np.nan}, "cluster_std must be finite"),
        ({"random_state": -1}, "random_state"),
        ({"n_samples": 500, "chunks": (250, 200)}, "chunks must sum to n_samples=500.*450"),
        ({"n_samples": 500, "chunks": (500, 0)}, "chunks"),
        ({"chunks": 0}, "chunks"),
        ({"chunks": "many"}, "chunks"),
        ({"chunks": None}, "chunks"),
    ],
)
def test_bad_values_of_simulations_are_refused(make, parameters, message):
    with pytest.raises(ValueError, match=message):
        make(**parameters)


def test_bad_numbers_of_features_are_refused():
    with pytest.raises(ValueError, match="n_informative"):
        make_ewp_simulation1(n_informative=0)
    with pytest.raises(ValueError, match="n_noise"):
        make_ewp_simulation2(n_noise=-1)
    with pytest.raises(ValueError, match="n_features"):
        make_power_kmeans_blobs(n_features=0)


@pytest.mark.parametrize(
    "parameters", [{"n_samples": 10.5}, {"n_clusters": "3"}, {"random_state": "seed"}]
)
def test_parameters_of_wrong_types_are_refused_by_name(parameters):
    with pytest.raises(TypeError, match=next(iter(parameters))):
        make_power_kmeans_blobs(**parameters)


def test_toy_is_two_clusters_in_a_plane_before_noise():
    X, y = rows_and_labels(make_wbms_toy, 20_000, 4, separation=3.0, random_state=0, chunks=1700)
    means = np.stack([X[y == j].mean(axis=0) for j in range(2)])
    np.testing.assert_allclose(means[0], 0, atol=0.05)
    np.testing.assert_allclose(means[1], [3, 3, 0, 0, 0, 0], atol=0.05)
    residuals = X - means[y]
    np.testing.assert_allclose(residuals.std(axis=0), 1, rtol=0.03)
    assert np.abs(np.corrcoef(residuals.T) - np.eye(6)).max() < 0.04


def test_standardised_toy_is_the_published_one():
    """Centres at ±2.5 / √(1 + 2.5²), as in the authors' example of 5 between them."""
    X, y = rows_and_labels(make_wbms_toy, 20_000, random_state=0)
    means = cluster_means(StandardScaler().fit_transform(X), y)[:, :2]
    np.testing.assert_allclose(np.abs(means), 2.5 / np.sqrt(1 + 2.5**2), atol=0.02)


def cluster_means(X, labels):
    return np.stack([X[labels == label].mean(axis=0) for label in np.unique(labels)])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_samples": 1}, "the number of clusters must be at most n_samples=1; got 2"),
        ({"n_noise": -1}, "n_noise"),
        ({"separation": -1.0}, "separation"),
        ({"separation": np.nan}, "separation must be finite"),
        ({"chunks": (100, 50)}, "chunks must sum to n_samples=200.*150"),
    ],
)
def test_bad_parameters_of_the_toy_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        make_wbms_toy(**parameters)


@pytest.mark.parametrize(
    ("make", "n_informative"), [(make_wbms_simulation1, 5), (make_wbms_simulation2, 2)]
)
def test_wbms_simulations_have_few_informative_features(make, n_informative):
    X, y = rows_and_labels(make, 4000, random_state=0)
    residuals = X - cluster_means(X, y)[y]
    np.testing.assert_allclose(residuals[:, :n_informative].std(axis=0), 0.02, rtol=0.06)
    np.testing.assert_allclose(residuals[:, n_informative:].std(axis=0), 1, rtol=0.06)
