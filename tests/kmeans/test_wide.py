"""Fits to tables of many more features than rows, in the space of the rows and without it."""

import numpy as np
import pytest

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.kmeans import fit
from daskmm.numerics import span


def table(n=90, p=1000, informative=60, k=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    X[:, :informative] += 1.5 * rng.standard_normal((k, informative))[rng.integers(k, size=n)]
    return X


def assert_same_fit(found, expected):
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_allclose(found.inertia_, expected.inertia_, rtol=1e-12)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, atol=1e-11)
    assert (found.n_iter_, found.n_passes_) == (expected.n_iter_, expected.n_passes_)
    np.testing.assert_allclose(found.objective_history_, expected.objective_history_, rtol=1e-9)


CASES = {
    "k-means": lambda **given: KMeans(3, random_state=0, **given),
    "power k-means": lambda **given: PowerKMeans(3, random_state=0, **given),
    "without hard steps": lambda **given: PowerKMeans(3, polish=False, random_state=0, **given),
    "given centres": lambda **given: KMeans(3, init=2 * table(3, seed=1), **given),
    "EWP": lambda **given: EntropyPowerKMeans(3, n_init=2, random_state=0, **given),
}


@pytest.mark.in_turn("case")
@pytest.mark.parametrize("case", CASES)
def test_a_fit_is_that_with_all_features(case, monkeypatch):
    X, weights = table(), np.random.default_rng(2).integers(1, 4, 90)
    told = [], []
    found = CASES[case](callbacks=[told[0].append]).fit(X, sample_weight=weights)
    monkeypatch.setattr(span, "_LEAST_FEATURES", 10_000)
    expected = CASES[case](callbacks=[told[1].append]).fit(X, sample_weight=weights)
    assert_same_fit(found, expected)
    assert [one.n_passes for one in told[0]] == [one.n_passes for one in told[1]]


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if case != "given centres"])
def test_a_fit_to_8000_features_is_that_with_all_of_them(case, monkeypatch):
    X = table(100, 8000, 300)
    found = CASES[case]().fit(X)
    monkeypatch.setattr(span, "_LEAST_FEATURES", 100_000)
    assert_same_fit(found, CASES[case]().fit(X))


def test_few_distinct_rows_and_features_without_variance_do_no_harm():
    X = np.repeat(table(4), 20, axis=0)
    X[:, :500] = 7.0
    model = KMeans(4, random_state=0).fit(X)
    assert len(set(model.labels_)) == 4
    assert model.inertia_ <= 1e-20
    assert KMeans(1, random_state=0).fit(np.ones((20, 1000))).inertia_ == 0.0


def test_a_fit_that_was_stopped_has_a_model_and_goes_on(tmp_path):
    X = table()
    whole = PowerKMeans(3, random_state=0).fit(X)

    def interrupt(record):
        if record.iteration == 3:
            raise KeyboardInterrupt

    model = PowerKMeans(3, random_state=0, checkpoint=tmp_path / "c", callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert model.n_iter_ == 3
    model.set_params(callbacks=None)
    np.testing.assert_array_equal(model.fit(X).cluster_centers_, whole.cluster_centers_)
    # Of a completed fit no step is taken again.
    model.set_params(callbacks=[lambda record: 1 / 0])
    np.testing.assert_array_equal(model.fit(X).cluster_centers_, whole.cluster_centers_)
    assert model.n_iter_ == whole.n_iter_


def test_rows_are_not_moved_to_a_span_for_distances_that_need_their_features(monkeypatch):
    monkeypatch.setattr(fit, "span_of", lambda rows: 1 / 0)
    X = np.abs(table(40)) + 0.1
    KMeans(3, n_init=1, random_state=0, distortion="kl").fit(X)
