"""Fits that go on from a fitted model: ``init=model`` and ``warm_start=True``."""

import dask.array as da
import numpy as np
import pytest
from _support import ANNEALED, ESTIMATORS, blobs, quick
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator

import daskmm
from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

pytestmark = pytest.mark.in_turn("cls")


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_fit_that_goes_on_stays_where_it_was(cls, lazy):
    X, _ = blobs(400)
    X = da.from_array(X, chunks=130) if lazy else X
    first = quick(cls, tol=1e-9).fit(X)
    fixed = {"lam": first.lam_} if cls is EntropyPowerKMeans else {}
    again = quick(cls, init=first, **fixed).fit(X)
    warm = quick(cls, tol=1e-9, warm_start=True, **fixed).fit(X).fit(X)
    for model in (again, warm):
        np.testing.assert_allclose(model.cluster_centers_, first.cluster_centers_, rtol=1e-6)
        np.testing.assert_allclose(model.inertia_, first.inertia_, rtol=1e-6)
        assert model.n_iter_ <= 4
        assert {record.s for record in model.history_} == {-np.inf}


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_fit_to_other_rows_keeps_the_numbers_of_the_clusters(cls):
    """Clusters keep their numbers, which a fit from seeds does not."""
    X, truth = blobs(800)
    first = quick(cls).fit(X[:400])
    again = quick(cls, init=first).fit(X[400:])
    assert np.mean(first.predict(X[400:]) == again.labels_) == 1.0
    assert daskmm.metrics.adjusted_rand_score(truth[400:], again.labels_) == 1.0


@pytest.mark.parametrize("cls", ANNEALED)
def test_without_polish_annealing_goes_on(cls):
    X, _ = blobs()
    settings = {"polish": False, "max_iter": 5, "tol": 0.0}
    first = quick(cls, **settings).fit(X)
    again = quick(cls, init=first, **settings).fit(X)
    assert again.history_[0].s == pytest.approx(first.s_)
    assert again.s_ < first.s_


@pytest.mark.long
def test_a_warm_start_keeps_the_chosen_number_of_clusters():
    X, _ = blobs(50_000, p=3, k=5)
    model = PowerKMeans("auto", max_clusters=8, random_state=0, warm_start=True, eta=1.3).fit(X)
    n_clusters, centers = model.n_clusters_, model.cluster_centers_
    model.fit(X)
    assert model.n_clusters_ == n_clusters == len(model.cluster_centers_)
    assert not hasattr(model, "n_clusters_path_")
    np.testing.assert_allclose(model.cluster_centers_, centers, atol=0.02)


def test_models_that_cannot_be_continued_are_refused():
    X, _ = blobs()
    with pytest.raises(NotFittedError):
        quick(KMeans, init=KMeans()).fit(X)
    with pytest.raises(ValueError, match="init has shape"):
        quick(KMeans, init=quick(KMeans, n_clusters=3).fit(X)).fit(X)
    with pytest.raises(ValueError, match="init has shape"):
        quick(KMeans, init=quick(KMeans).fit(X[:, :4])).fit(X)
    with pytest.raises(ValueError, match="that warm_start continues"):
        quick(KMeans, warm_start=True).fit(X).set_params(n_clusters=3).fit(X)
    with pytest.raises(ValueError, match="'init' parameter"):
        quick(KMeans, init=object()).fit(X)


def test_clones_saved_models_and_checkpoints_keep_the_given_model(tmp_path):
    X, _ = blobs()
    first = quick(KMeans).fit(X)
    model = clone(quick(KMeans, init=FrozenEstimator(first), checkpoint=tmp_path / "state")).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, first.cluster_centers_)
    model.save(tmp_path / "model")
    again = daskmm.load(tmp_path / "model")
    np.testing.assert_array_equal(again.init, first.cluster_centers_)
    other = quick(KMeans).fit(X[:100])
    with pytest.raises(ValueError, match="init is"):
        quick(KMeans, init=other, checkpoint=tmp_path / "state").fit(X)
