"""Spherical k-means and its power means: distortion="cosine"."""

import _naive
import dask.array as da
import numpy as np
import pytest
from _support import quick
from scipy.sparse import csr_array
from sklearn.metrics import pairwise_distances_argmin

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans, load
from daskmm.compiled import library
from daskmm.numerics.annealing import critical_power
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.rows import SphereCoordinates


def directions(n=300, p=6, k=4, seed=0, noise=0.3):
    """Rows of any length around k directions, and centres to start from."""
    rng = np.random.default_rng(seed)
    around = rng.normal(size=(k, p))
    X = around[rng.integers(k, size=n)] + noise * rng.normal(size=(n, p))
    return X * rng.gamma(2, 5, (n, 1)), around + noise * rng.normal(size=(k, p))


def units(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def steps_of(cls, init, n_steps, **parameters):
    """An estimator that takes so many steps and nothing else."""
    exact = {"tol": 0, "max_iter": n_steps, "sample_size": None, "random_state": 0}
    if cls is PowerKMeans:
        exact |= {"polish": False, "s0": -1.5, "eta": 1.3}
    return cls(len(init), init=init, distortion="cosine", **exact | parameters)


@pytest.mark.parametrize("compiled", [True, False])
def test_steps_are_those_of_the_definition(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(library, "available", lambda: False)
    X, centers = directions(n=80)
    v = np.random.default_rng(1).uniform(0.5, 2, len(X))
    model = steps_of(PowerKMeans, centers, 5).fit(X, sample_weight=v)
    centers, expected = units(centers), []
    for t in range(5):
        centers, objective = _naive.cosine_step(X, centers, -1.5 * 1.3**t, v)
        expected.append(objective)
    np.testing.assert_allclose(model.cluster_centers_, centers, atol=1e-9)
    np.testing.assert_allclose(model.objective_history_, expected, rtol=1e-9)
    distances = 1 - units(X) @ centers.T
    np.testing.assert_allclose(model.transform(X), distances, atol=1e-9)
    np.testing.assert_allclose(model.inertia_, v @ distances.min(axis=1), rtol=1e-9)
    np.testing.assert_allclose(model.score(X, sample_weight=v), -model.inertia_, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_labels_of_hard_steps_are_those_of_normalised_rows(dtype):
    X, centers = directions(n=3000)
    X = X.astype(dtype)
    model = steps_of(KMeans, centers, 8).fit(X)
    np.testing.assert_allclose(np.linalg.norm(model.cluster_centers_, axis=1), 1, rtol=1e-12)
    nearest = pairwise_distances_argmin(units(X.astype(np.float64)), model.cluster_centers_)
    np.testing.assert_array_equal(model.labels_, nearest)
    np.testing.assert_array_equal(model.predict(1000 * X), nearest)
    expected = units(centers)
    for _ in range(8):
        expected, _ = _naive.cosine_step(X[:200].tolist(), expected, -np.inf)
    some = steps_of(KMeans, centers, 8).fit(X[:200])
    np.testing.assert_allclose(some.cluster_centers_, expected, atol=1e-6 if dtype == "f" else 1e-9)


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_chunks_order_and_repetition_change_nothing(cls):
    X, centers = directions()
    rng = np.random.default_rng(2)
    times = rng.integers(1, 4, len(X))
    model = steps_of(cls, centers, 6).fit(X, sample_weight=times)
    repeated = rng.permutation(np.repeat(X, times, axis=0))
    others = [
        steps_of(cls, centers, 6).fit(repeated),
        steps_of(cls, centers, 6).fit(da.from_array(repeated, chunks=(97, 4))),
    ]
    for other in others:
        np.testing.assert_allclose(other.cluster_centers_, model.cluster_centers_, atol=1e-9)
        np.testing.assert_allclose(other.inertia_, model.inertia_, rtol=1e-9)


@pytest.mark.parametrize("s0", [-1.0, -7.0])
def test_the_objective_never_rises_at_a_fixed_power(s0):
    X, centers = directions(noise=1.0)
    model = steps_of(PowerKMeans, centers, 30, s0=s0, eta=1.0).fit(X)
    assert (np.diff(model.objective_history_) <= 1e-12).all()


def test_a_very_low_power_is_lloyd():
    X, centers = directions()
    soft = steps_of(PowerKMeans, centers, 7, s0=-1e9).fit(X)
    hard = steps_of(KMeans, centers, 7).fit(X)
    np.testing.assert_allclose(soft.cluster_centers_, hard.cluster_centers_, atol=1e-6)


def test_defaults_find_clusters_of_directions_only():
    X, _ = directions(n=2000, noise=0.1)
    expected = KMeans(4, random_state=0).fit(units(X)).labels_
    for cls in (KMeans, PowerKMeans):
        labels = quick(cls, distortion="cosine").fit(X).labels_
        assert len({*zip(labels, expected, strict=True)}) == 4


def test_a_mean_without_direction_leaves_the_centre():
    before = units(np.array([[1.0, 2.0], [3.0, 4.0]])) / np.sqrt(2)
    means = np.array([[0.0, 1e-17], [0.0, -0.1]])
    after = DISTORTIONS["cosine"].around(means[0], means[0]).allowed(means, before)
    np.testing.assert_allclose(after, [before[0], [0, -np.sqrt(0.5)]], rtol=1e-15)


def test_coincident_centres_part_below_the_critical_power():
    X, _ = directions(n=400, k=1, noise=0.5)
    z = SphereCoordinates(6).to_model(X)
    distortion = DISTORTIONS["cosine"].around(z.mean(axis=0), z.var(axis=0))
    critical = critical_power(z, np.ones(len(z)), distortion)
    middle = units(units(X).sum(axis=0, keepdims=True))[0]
    tangent = np.random.default_rng(0).normal(size=6)

    def growth(s):
        apart = 1e-4 * (tangent - (tangent @ middle) * middle)
        for _ in range(30):
            centers = units(np.stack([middle + apart, middle - apart]))
            size = np.linalg.norm(centers[0] - centers[1])
            after, _ = _naive.cosine_step(X[::10], centers, s)
            ratio = np.linalg.norm(after[0] - after[1]) / size
            apart = 1e-4 * (after[0] - after[1]) / np.linalg.norm(after[0] - after[1])
        return ratio

    some = critical_power(z[::10], np.ones(40), distortion)
    middle = units(units(X[::10]).sum(axis=0, keepdims=True))[0]
    assert growth(some + 0.2) < 1 < growth(some - 0.2)
    assert critical == pytest.approx(some, abs=1)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_equal_rows_end_the_fit_at_once(cls):
    rows = np.ones((50, 3))
    model = cls(3, distortion="cosine", random_state=0).fit(rows)
    assert len(model.history_) < 50
    np.testing.assert_array_equal(model.predict(rows), model.labels_)


def test_rows_of_zeros_are_refused_by_block_and_row():
    X, centers = directions()
    X[[117, 119]] = 0
    lazy = da.from_array(X, chunks=(50, 6))
    for rows, place in ((X, "block 0, row 117"), (lazy, "block 2, row 17")):
        found = f"row of zeros.*{place}.*and 1 more row.*empty_rows='label'"
        with pytest.raises(ValueError, match=found):
            KMeans(4, distortion="cosine").fit(rows)
    model = steps_of(KMeans, centers, 2).fit(X[:100])
    for method in (model.predict, model.transform, model.score):
        with pytest.raises(ValueError, match="row 117"):
            method(X)
    with pytest.raises(ValueError, match="init has a row of zeros"):
        steps_of(KMeans, X[115:119], 2).fit(X[:100])


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_rows_of_zeros_are_labelled_and_have_no_weight(cls):
    X, _ = directions()
    X[[3, 117, 200]] = 0
    held, sparse = X.any(axis=1), csr_array(X)
    expected = quick(cls, distortion="cosine").fit(X[held])
    lazy = [da.from_array(X, chunks=(50, 6)), da.from_array(sparse, chunks=(50, -1), asarray=False)]
    for rows in (X, sparse, *lazy):
        model = quick(cls, distortion="cosine", empty_rows="label").fit(rows)
        np.testing.assert_array_equal(np.asarray(model.labels_) >= 0, held)
        np.testing.assert_array_equal(model.predict(rows), model.labels_)
        np.testing.assert_array_equal(np.isnan(model.score_samples(rows)), ~held)
        assert model.cluster_sizes_.sum() == held.sum()
        assert model.inertia_ == pytest.approx(expected.inertia_, rel=1e-9)
        assert -model.score(rows) == pytest.approx(expected.inertia_, rel=1e-9)


def test_parameters_that_do_not_suit_directions_are_refused():
    X, _ = directions()
    for parameters in ({"standardize": True}, {"missing": "partial"}):
        with pytest.raises(ValueError, match="directions of whole rows"):
            KMeans(4, distortion="cosine", **parameters).fit(X)
    with pytest.raises(ValueError, match="'distortion' parameter of EntropyPowerKMeans"):
        EntropyPowerKMeans(4, distortion="cosine").fit(X)


def test_rows_of_any_length_have_a_direction():
    x = np.array([[3.0, 4.0], [0.0, 0.0], [3e-200, 4e-200], [3e200, 4e200]])
    expected = np.array([[0.6, 0.8], [0.0, 0.0], [0.6, 0.8], [0.6, 0.8]]) / np.sqrt(2)
    np.testing.assert_allclose(SphereCoordinates(2).to_model(x), expected, rtol=1e-15)
    x = np.array([[3.0, 4.0], [3e-30, 4e-30], [3e30, 4e30]], np.float32)
    np.testing.assert_allclose(SphereCoordinates(2).to_model(x), expected[[0, 2, 3]], rtol=1e-6)


def test_saved_models_of_wide_rows_give_the_same_labels(tmp_path):
    X, _ = directions(n=60, p=900)
    model = quick(PowerKMeans, distortion="cosine").fit(X)
    np.testing.assert_allclose(np.linalg.norm(model.cluster_centers_, axis=1), 1, rtol=1e-9)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), model.labels_)
    assert again.score(X) == model.score(X)


@pytest.mark.parametrize("factors", [[1.0], [1.0, -2.0]])
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_rows_along_a_line_have_two_directions(cls, factors):
    along = np.random.default_rng(0).normal(size=200)
    model = cls(2, distortion="cosine", random_state=0).fit(np.outer(along, factors))
    assert model.inertia_ == pytest.approx(0.0, abs=1e-12)
    assert len(set(zip(along > 0, model.labels_, strict=True))) == 2


def test_rows_of_a_fit_count_as_much_as_those_of_an_update():
    X, _ = directions(n=2_000, p=30, noise=2.0)  # the mean of a cluster's directions is short
    X[1_000:, 0] += 20.0
    first, second = X[:1_000], X[1_000:]
    model = KMeans(4, distortion="cosine", random_state=0).fit(first)
    labels = np.r_[model.labels_, model.predict(second)]
    model.partial_fit(second)
    expected = units(np.array([units(X)[labels == label].sum(axis=0) for label in range(4)]))
    cosines = np.einsum("ij,ij->i", model.cluster_centers_, expected)
    assert cosines.min() > 0.999
