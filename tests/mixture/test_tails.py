"""Mixtures of t distributions: what outliers do to them, and that all that a mixture does works."""

import dask.array as da
import numpy as np
import pytest
from scipy.stats import multivariate_t
from sklearn.metrics import adjusted_rand_score

import daskmm
from daskmm import GaussianMixture
from daskmm.numerics.gaussians import COVARIANCE_TYPES

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
CENTERS = np.array([[0.0, 0, 0], [9, 0, 2], [0, 10, -3]])


def rows_of(n=3_000, degrees=2.5, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    noise = multivariate_t(np.zeros(3), np.diag([1.0, 0.5, 2.0]), degrees, seed=seed).rvs(n)
    return CENTERS[labels] + noise, labels


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_heavy_tails_keep_outliers_from_moving_components(kind):
    X, labels = rows_of()
    normal, student = (
        GaussianMixture(3, covariance_type=kind, tails=tails, random_state=0).fit(X)
        for tails in ("normal", "student")
    )
    assert student.lower_bound_ > normal.lower_bound_ + 0.3
    assert adjusted_rand_score(labels, student.labels_) > 0.9
    if kind in ("full", "diag"):
        order = np.lexsort(np.round(student.means_).T[::-1])
        expected = CENTERS[np.lexsort(CENTERS.T[::-1])]
        np.testing.assert_allclose(student.means_[order], expected, atol=0.25)
        np.testing.assert_allclose(student.degrees_of_freedom_, 2.5, atol=0.8)


def test_the_likelihood_never_falls_and_chunks_change_nothing():
    X, _ = rows_of(800)
    model = GaussianMixture(3, tails="student", tol=0, max_iter=40, random_state=0).fit(X)
    assert (np.diff(model.lower_bounds_) >= -1e-12).all()
    means, degrees = model.means_, model.degrees_of_freedom_
    model.fit(da.from_array(X, chunks=((333, 1, 466), 3)))
    np.testing.assert_allclose(model.means_, means, rtol=1e-9)
    np.testing.assert_allclose(model.degrees_of_freedom_, degrees, rtol=1e-9)


def test_fits_with_and_without_loops_are_the_same(monkeypatch):
    X, _ = rows_of(500)
    model = GaussianMixture(2, tails="student", max_iter=5, random_state=0).fit(X)
    means = model.means_
    monkeypatch.setattr("daskmm.compiled.library.available", lambda: False)
    np.testing.assert_allclose(model.fit(X).means_, means, rtol=1e-8)


def test_updates_saving_and_samples_have_the_tails(tmp_path):
    X, _ = rows_of()
    model = GaussianMixture(3, tails="student", tol=1e-8, max_iter=500, random_state=0).fit(X)
    before = model.degrees_of_freedom_, model.covariances_
    model.partial_fit(X[:10], sample_weight=np.full(10, 1e-9))
    np.testing.assert_allclose(model.degrees_of_freedom_, before[0], rtol=1e-4)
    np.testing.assert_allclose(model.covariances_, before[1], rtol=1e-4, atol=1e-6)
    model.save(tmp_path / "model")
    again = daskmm.load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(X), model.score_samples(X))
    drawn, labels = model.sample(20_000)
    far = np.abs(drawn[labels == 0] - model.means_[0]).max(axis=1)
    deviation = np.sqrt(model.covariances_[0].diagonal().max())
    assert (far > 6 * deviation).mean() > 0.005


def test_a_warm_start_continues_with_the_degrees_that_were_learned():
    X, _ = rows_of(1_000)
    model = GaussianMixture(3, tails="student", warm_start=True, max_iter=1, random_state=0)
    first = model.fit(X).lower_bound_
    assert all(model.fit(X).lower_bound_ >= first - 1e-12 for _ in range(3))


def test_missing_values_are_refused():
    with pytest.raises(ValueError, match="takes no missing values"):
        GaussianMixture(tails="student", missing="partial").fit(np.zeros((4, 2)))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*as narrow in some direction:UserWarning")
def test_far_rows_stay_in_the_tails_and_covariance_types_can_be_compared():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=900)
    shapes = np.array([np.diag([1, 2, 0.5]), np.eye(3), [[1, 0.9, 0], [0.9, 1, 0], [0, 0, 1]]])
    X = CENTERS[labels] + np.einsum("ij,ijk->ik", rng.standard_t(4, (900, 3)), shapes[labels])
    X[:3] = np.diag([500.0, -800.0, 1000.0])
    model = GaussianMixture(3, covariance_type="auto", tails="student", random_state=0).fit(X)
    assert model.covariance_type_ == "full"
    assert model.weights_.min() > 0.25
    with pytest.warns(UserWarning, match="'spherical' was taken, the simplest"):
        GaussianMixture(8, covariance_type="auto", tails="student", random_state=0).fit(X[9:25])
