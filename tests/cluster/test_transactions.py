"""A fit or an update changes its estimator once, at the end, or not at all."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from _support import ANNEALED, ESTIMATORS, blobs, quick

import daskmm
from daskmm import (
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)

# Rows of the data, an estimator each, small enough for a fit in a fraction of a second.
MODELS = [
    KMeans(4, random_state=0),
    PowerKMeans(4, standardize=False, random_state=0),
    EntropyPowerKMeans(4, lam=0.5, random_state=0),
    KernelPowerKMeans(4, random_state=0),
    KernelPowerKMeans(4, n_landmarks=20, random_state=0),
    MultiKernelPowerKMeans(4, kernels=["rbf", "linear"], random_state=0),
    GaussianMixture(4, random_state=0),
    WeightedBlurringMeanShift(0.3, random_state=0),
]


def attributes(model):
    """Attributes as bytes, of a copy without lazy labels."""
    return {name: pickle.dumps(value) for name, value in vars(model).items()}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_fit_that_is_refused_leaves_the_former_model(model):
    X, _ = blobs(300)
    X = X - X.min() + 1.0
    table = pd.DataFrame(X, columns=list("abcdef")[: X.shape[1]])
    model.fit(table)
    before, labels = attributes(model), model.labels_.copy()
    swapped = table[table.columns[::-1]].copy()
    swapped.iloc[7, 0] = np.nan
    for refused in (swapped, np.c_[X, np.full(len(X), np.inf)], X[:0], "table.csv", X.astype("U9")):
        with pytest.raises((ValueError, TypeError)):
            model.fit(refused)
        assert attributes(model) == before
    np.testing.assert_array_equal(model.labels_, labels)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_an_interrupt_before_the_first_iteration_leaves_the_former_model(model, monkeypatch):
    X, _ = blobs(300)
    model.fit(X)
    before = attributes(model)

    def interrupted(block):
        raise KeyboardInterrupt

    lazy = da.from_array(X, chunks=(150, -1)).map_blocks(interrupted, meta=X[:0])
    with pytest.raises(KeyboardInterrupt):
        model.fit(lazy)
    assert attributes(model) == before


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_an_interrupt_between_iterations_replaces_the_whole_model(cls):
    X, _ = blobs(400)
    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    model = quick(cls).fit(X[:, :3]).bootstrap(X[:, :3], n_bootstraps=1)

    def interrupt(record):
        raise KeyboardInterrupt

    model.set_params(callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        model.fit(table)
    assert model.n_features_in_ == X.shape[1] == len(model.feature_names_in_)
    assert model.cluster_centers_.shape[1] == X.shape[1]
    # Nothing remains of the first model.
    assert not hasattr(model, "stability_")
    np.testing.assert_array_equal(model.predict(table), model.labels_)


def test_nothing_of_a_former_fit_remains():
    X, _ = blobs(500)
    model = PowerKMeans("auto", random_state=0).fit(X)
    assert hasattr(model, "n_clusters_path_")
    assert hasattr(model, "standardize_path_")
    model.set_params(n_clusters=3, standardize=False).fit(X)
    fresh = PowerKMeans(3, standardize=False, random_state=0).fit(X)
    assert vars(model).keys() == vars(fresh).keys()


def test_parameters_that_a_callback_sets_are_kept():
    X, _ = blobs(300)
    model = quick(KMeans)
    model.set_params(callbacks=[lambda record: model.set_params(verbose=0, trim=0.0, tol=0.5)])
    assert model.fit(X).tol == 0.5


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_partial_fits_from_four_threads_count_every_row(cls):
    X, _ = blobs(2_000)
    model = quick(cls).fit(X[:200])
    parts = np.array_split(X[200:], 20)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(model.partial_fit, parts))
    assert model.n_samples_seen_ == 2_000
    assert model.cluster_sizes_.sum() == pytest.approx(2_000)


def test_a_first_partial_fit_from_four_threads_counts_every_row():
    X, _ = blobs(2_000)
    model = quick(KMeans)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(model.partial_fit, np.array_split(X, 10)))
    assert model.n_samples_seen_ == 2_000


def test_threads_predict_by_one_model_while_another_thread_fits():
    """Labels are those of the first or of the second model, never of a mixture."""
    X, _ = blobs(400)
    model, rows = quick(EntropyPowerKMeans, lam=0.5), X[::7]
    models = [pickle.loads(pickle.dumps(model.fit(scale * X))) for scale in (1.0, 50.0)]
    allowed = {each.predict(rows).tobytes() for each in models}

    def fit():
        for scale in (1.0, 50.0) * 5:
            model.fit(scale * X)

    with ThreadPoolExecutor(3) as pool:
        fits = pool.submit(fit)
        while not fits.done():
            assert {each.tobytes() for each in pool.map(model.predict, [rows] * 2)} <= allowed
        fits.result()


@pytest.mark.parametrize("cls", ANNEALED)
@pytest.mark.parametrize("first", [True, False], ids=["fitted", "unfitted"])
def test_a_warm_start_that_was_interrupted_resumes_to_the_same_bits(cls, first, tmp_path):
    X, _ = blobs(400)
    settings = {"polish": False, "max_iter": 12, "tol": 0.0, "warm_start": True}
    twin, model = quick(cls, **settings), quick(cls, **settings)
    if first:
        twin.fit(X[:200])
        model.fit(X[:200])
    twin.fit(X)

    def interrupt(record):
        if record.iteration == 4:
            raise KeyboardInterrupt

    model.set_params(checkpoint=tmp_path / "state", callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert model.s_ != twin.s_
    model.set_params(callbacks=None).fit(X)
    np.testing.assert_array_equal(model.cluster_centers_, twin.cluster_centers_)
    assert model.s_ == twin.s_
    assert len(model.history_) == len(twin.history_)


def test_a_copy_of_an_estimator_has_a_lock_of_its_own(tmp_path):
    X, _ = blobs(200)
    model = quick(KMeans).fit(X)
    model.save(tmp_path / "model")
    for copied in (pickle.loads(pickle.dumps(model)), daskmm.load(tmp_path / "model")):
        copied.partial_fit(X)
        assert copied.n_samples_seen_ == 400
    assert model.n_samples_seen_ == 200
