"""Incremental EM: records of calls, which are replaced, fade and move with the components."""

import dask.array as da
import numpy as np
import pytest

import daskmm
from daskmm import GaussianMixture
from daskmm.mixture.incremental import EMRecord
from daskmm.mixture.starts import labelled_components
from daskmm.numerics.gaussians import COVARIANCE_TYPES, em_sums

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SIX = np.array([[0.0, 0, 0], [6, 0, 1], [0, 7, -2]])


def rows_of(n=600, seed=0, centers=SIX):
    rng = np.random.default_rng(seed)
    return centers[rng.integers(len(centers), size=n)] + rng.normal(size=(n, 3)) * [1, 2, 0.5]


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_sums_around_other_means_are_those_of_the_rows(kind):
    X, rng = rows_of(50), np.random.default_rng(1)
    v = rng.uniform(0.5, 2.0, len(X))
    state = labelled_components(X, v, rng.integers(2, size=len(X)), 2, kind, 1e-6)
    sums = em_sums(X, v, state)
    record = EMRecord(len(X), float(v.sum()), sums, state.means)
    moved = record.around(np.add(state.means, [[3.0, 0, 1], [0, -2, 0.5]]))
    again = moved.around(state.means)
    np.testing.assert_allclose(again.sums.scatters, sums.scatters, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(again.sums.sums, sums.sums, rtol=1e-9, atol=1e-9)
    halves = [
        EMRecord(25, float(v[part].sum()), em_sums(X[part], v[part], state), state.means)
        for part in (slice(25), slice(25, None))
    ]
    both = halves[0] + halves[1].around(moved.means)
    np.testing.assert_allclose(both.sums.scatters, sums.scatters, rtol=1e-9, atol=1e-9)
    assert both.n_rows == 50


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_the_record_of_a_fit_is_made_of_its_components(kind):
    X = rows_of()
    model = GaussianMixture(3, covariance_type=kind, tol=1e-9, max_iter=500, random_state=0).fit(X)
    before = model.means_, model.covariances_, model.weights_
    model.partial_fit(X[:5], sample_weight=np.full(5, 1e-9))
    for old, new in zip(before, (model.means_, model.covariances_, model.weights_), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-8)
    assert model.n_samples_seen_ == len(X) + 5


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_visiting_all_keys_again_converges_to_a_fit_to_all_rows(kind):
    X = rows_of(900)
    whole = GaussianMixture(3, covariance_type=kind, tol=1e-10, max_iter=500, random_state=0).fit(X)
    model = GaussianMixture(3, covariance_type=kind, random_state=0)
    for _ in range(25):
        for part in range(3):
            model.partial_fit(da.from_array(X[part::3], chunks=(100, 3)), key=part)
    assert model.score(X) == pytest.approx(whole.lower_bound_, abs=1e-5)
    order, expected = model.means_[:, 0].argsort(), whole.means_[:, 0].argsort()
    np.testing.assert_allclose(model.means_[order], whole.means_[expected], atol=2e-2)
    assert model.n_samples_seen_ == len(X)
    assert sorted(model.updates_.keyed) == ["0", "1", "2"]


def test_a_repeated_call_replaces_the_record_of_its_key():
    X, Y = rows_of(), rows_of(seed=1)
    once, twice = (GaussianMixture(3, random_state=0).fit(X) for _ in range(2))
    once.partial_fit(Y, key="monday")
    twice.partial_fit(Y + 50, key="monday").partial_fit(Y, key="monday")
    assert twice.n_samples_seen_ == once.n_samples_seen_ == len(X) + len(Y)
    assert once.updates_.total.weight == twice.updates_.total.weight


def test_with_a_half_life_components_follow_a_drift():
    forgetful, lasting = (
        GaussianMixture(3, forget=forget, random_state=0).partial_fit(rows_of())
        for forget in ("1 call", None)
    )
    for day in range(1, 7):
        rows = rows_of(seed=day, centers=np.add(SIX, [0.5 * day, 0, 0]))
        forgetful.partial_fit(rows)
        lasting.partial_fit(rows)
    weight = 600 * sum(0.5**day for day in range(7))
    assert forgetful.updates_.total.weight == pytest.approx(weight)
    assert lasting.updates_.total.weight == 600 * 7
    # The largest of the first coordinates was 6, and is 9 now.
    assert forgetful.means_[:, 0].max() == pytest.approx(8.5, abs=0.3)
    assert lasting.means_[:, 0].max() == pytest.approx(7.5, abs=0.3)


def test_a_failed_call_leaves_the_former_model():
    X = rows_of()
    model = GaussianMixture(3, random_state=0).fit(X)
    before = dict(vars(model))
    for rows, message in [
        (np.full((4, 3), np.nan), "contains NaN"),
        (X[:, :2], "2 features"),
        (X[:0], "0 sample"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.partial_fit(rows)
    with pytest.raises(ValueError, match="zero for all rows"):
        model.partial_fit(X, sample_weight=np.zeros(len(X)))
    with pytest.raises(TypeError, match="key must be"):
        model.partial_fit(X, key=["a"])
    assert all(vars(model)[name] is value for name, value in before.items())


def test_updates_go_on_from_a_saved_model(tmp_path):
    X, Y, Z = (rows_of(seed=seed) for seed in range(3))
    model = GaussianMixture(3, random_state=0).fit(X).partial_fit(Y, key="y")
    model.save(tmp_path / "model")
    again = daskmm.load(tmp_path / "model").partial_fit(Z)
    model.partial_fit(Z)
    np.testing.assert_array_equal(again.means_, model.means_)
    assert "labels_" not in vars(model)
