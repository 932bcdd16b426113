"""Memberships, calibrated probabilities, and rows that belong to no cluster."""

import pickle

import dask.array as da
import numpy as np
import pytest
from _mixtures import calibration_error, matched, mixture
from _naive import power_means
from _support import ESTIMATORS, blobs, computed, quick, raise_if_computes
from scipy.special import softmax

from daskmm import KMeans, PowerKMeans, load
from daskmm.kmeans import belonging
from daskmm.numerics import calibration

pytestmark = pytest.mark.in_turn("cls")

X, _ = blobs()
each_estimator = pytest.mark.parametrize("cls", ESTIMATORS)


@pytest.mark.parametrize("separation", [2.0, 3.0, 4.5])
@pytest.mark.parametrize("p", [2, pytest.param(10, marks=pytest.mark.long)])
def test_probabilities_are_calibrated_on_rows_held_out(p, separation):
    rows, truth, centers = mixture(12_000, 6, p, separation, seed=p)
    model = PowerKMeans(6, standardize=False, random_state=0, n_init=4).fit(rows[:4000])
    held, actual = rows[4000:], truth[4000:]
    found = model.predict_proba(held)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found.argmax(axis=1), model.predict(held))
    right = matched(centers, model.cluster_centers_)[found.argmax(axis=1)] == actual
    assert calibration_error(found.max(axis=1), right) <= 0.05
    # A mixture of normal clusters at the same centres, whose variance has been fitted.
    squares = np.square(rows[:, None] - model.cluster_centers_).sum(axis=2)
    variance = 1.0
    for _ in range(50):
        posterior = softmax(-squares[:4000] / (2 * variance), axis=1)
        variance = (posterior * squares[:4000]).sum() / (4000 * p)
    posterior = softmax(-squares[4000:] / (2 * variance), axis=1)
    assert np.abs(found - posterior).mean() <= 0.05


def test_directions_in_which_clusters_do_not_differ_do_not_change_certainty():
    rows, _, _ = mixture(3000, 4, 2, 3.0, seed=0)
    noise = 0.2 * np.random.default_rng(1).normal(size=(3000, 1)) * np.ones(20)
    model = KMeans(4, standardize=False, random_state=0).fit(rows)
    wide = KMeans(4, standardize=False, random_state=0).fit(np.hstack([rows, noise]))
    shift = np.abs(
        wide.predict_proba(np.hstack([rows, noise])).max(axis=1)
        - model.predict_proba(rows).max(axis=1)
    )
    assert shift.mean() < 0.02


@each_estimator
def test_raw_memberships_are_the_weights_of_the_step(cls):
    model = quick(cls).fit(X)
    distances = np.square(model.transform(X))
    expected, _ = power_means(distances, -3.0)
    np.testing.assert_allclose(model.memberships(X, power=-3), expected, rtol=1e-6, atol=1e-12)
    hard = model.memberships(X, power=-np.inf)
    np.testing.assert_array_equal(hard.argmax(axis=1), model.labels_)
    with pytest.raises(ValueError, match="power must be a negative number"):
        model.memberships(X, power=1.0)


@each_estimator
def test_lazy_rows_give_lazy_results_equal_to_those_in_memory(cls):
    model, rows = quick(cls).fit(X), da.from_array(X, chunks=(70, -1))
    for name in ("predict_proba", "memberships", "score_samples"):
        method = getattr(model, name)
        with raise_if_computes():
            found = method(rows)
        np.testing.assert_allclose(computed(found), method(X), rtol=1e-12)
    with raise_if_computes():
        found = model.predict(rows, outliers=0.1)
    np.testing.assert_array_equal(computed(found), model.predict(X, outliers=0.1))


def test_clusters_of_equal_rows_and_single_clusters_have_certain_members():
    rows = np.repeat([[0.0], [1.0]], 5, axis=0)
    model = KMeans(2, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.predict_proba(rows).max(axis=1), 1.0)
    np.testing.assert_array_equal(model.score_samples(rows), 0.0)
    assert (KMeans(1).fit(rows).predict_proba(rows) == 1.0).all()


@pytest.mark.parametrize("distortion", ["kl", "cosine", "mahalanobis", "manhattan"])
def test_every_distortion_has_memberships_and_outliers(distortion):
    rows = np.abs(X) + 1.0
    lazy = da.from_array(rows, chunks=(100, -1))
    for data in (rows, lazy):
        model = KMeans(4, distortion=distortion, random_state=0).fit(data)
        found = model.predict_proba(rows)
        np.testing.assert_array_equal(found.argmax(axis=1), model.predict(rows))
        assert (model.predict(rows, outliers=0.1) == -1).mean() == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("seed", range(2))
def test_uniform_contamination_is_found(seed):
    rows, _, _ = mixture(4750, 8, 10, 3.5, seed)
    rng = np.random.default_rng(seed)
    noise = rng.uniform(rows.min(axis=0), rows.max(axis=0), (250, 10))
    both, bad = np.vstack([rows, noise]), np.arange(5000) >= 4750
    model = PowerKMeans(8, standardize=False, random_state=0, n_init=4).fit(both)
    flagged = model.predict(both, outliers=0.05) == -1
    assert flagged.mean() == pytest.approx(0.05, abs=0.002)
    assert (flagged & bad).sum() >= 0.9 * flagged.sum()
    assert (flagged & bad).sum() >= 0.9 * bad.sum()


@pytest.mark.parametrize("seed", range(2))
def test_uniform_contamination_is_found_nearly_as_well_as_by_the_true_density(seed):
    """In 3 dimensions noise lies among the clusters: the true density finds no nine of ten."""
    rows, _, centers = mixture(4750, 8, 3, 3.5, seed)
    noise = np.random.default_rng(seed).uniform(rows.min(axis=0), rows.max(axis=0), (250, 3))
    both, bad = np.vstack([rows, noise]), np.arange(5000) >= 4750
    density = np.exp(-np.square(both[:, None] - centers).sum(axis=2) / 2).sum(axis=1)
    best = bad[np.argsort(density)[:250]].mean()
    assert best < 0.9
    # The density is that of round clusters in these units.
    model = PowerKMeans(8, random_state=0, standardize=False).fit(both)
    flagged = model.predict(both, outliers=0.05) == -1
    assert (flagged & bad).sum() >= (best - 0.02) * bad.sum()
    assert (flagged & bad).sum() >= (best - 0.02) * flagged.sum()


@each_estimator
def test_scores_are_distances_in_medians_of_the_cluster(cls):
    model = quick(cls).fit(X)
    nearest = model.transform(X).min(axis=1)
    medians = [np.median(nearest[model.labels_ == j]) for j in range(4)]
    np.testing.assert_allclose(
        model.score_samples(X), -nearest / np.take(medians, model.labels_), rtol=0.05
    )


@pytest.mark.parametrize("share", [0, 1.0, -0.1, "auto"])
def test_a_share_of_outliers_lies_between_0_and_1(share):
    with pytest.raises(ValueError, match="outliers must be a share"):
        quick(KMeans).fit(X).predict(X, outliers=share)


def test_saved_models_keep_memberships_and_outliers(tmp_path):
    model = quick(KMeans).fit(X)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(X), model.score_samples(X))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_the_power_of_memberships_is_chosen_when_it_is_first_asked_for(monkeypatch):
    chosen = []

    def counted(*arguments):
        chosen.append(calibration.calibrated_power(*arguments))
        return chosen[-1]

    monkeypatch.setattr(belonging, "calibrated_power", counted)
    model = quick(KMeans).fit(X)
    assert not chosen
    proba = model.predict_proba(X)
    np.testing.assert_array_equal(model.predict_proba(X), proba)
    assert [model.membership_power_] == chosen
    # Copies and updated models keep that of the fit, whoever asked for it.
    copied, updated = pickle.loads(pickle.dumps(quick(KMeans).fit(X))), quick(KMeans).fit(X)
    updated.partial_fit(X[:50] + 100.0)
    assert copied.membership_power_ == updated.membership_power_ == chosen[0]
    # A new fit chooses anew.
    assert model.fit(10 * X[:40] ** 3).membership_power_ not in chosen[:1]


@pytest.mark.parametrize("dtype", ["f8", "i2"])
def test_rows_that_are_tied_at_the_limit_are_no_outliers(dtype):
    rows = np.repeat([3, 5, 9], [66, 24, 6])[:, None].astype(dtype)
    model = KMeans(1, standardize=False).fit(rows)
    for share, n_outliers in ((0.05, 0), (0.1, 6), (0.2, 6), (0.4, 30)):
        assert (model.predict(rows, outliers=share) == -1).sum() == n_outliers


def test_copies_in_single_precision_are_no_outliers_among_many_clusters():
    rng = np.random.default_rng(0)
    centers = 10 * rng.normal(size=(300, 8))
    rows = centers[rng.integers(0, 300, 9000)] + rng.normal(size=(9000, 8))
    copies = np.repeat(10 * rng.normal(size=(30, 8)), 30, axis=0)
    rows = np.concatenate([rows, copies]).astype(np.float32)
    model = KMeans(330, random_state=0, n_init=1, standardize=False).fit(rows)
    outlying = model.predict(rows, outliers=0.05) == -1
    assert outlying.mean() <= 0.05
    assert outlying[9000:].mean() < 0.01
