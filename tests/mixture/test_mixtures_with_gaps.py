"""Missing values: exact EM over what rows have, beside a naive definition row by row."""

import dask.array as da
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from daskmm import GaussianMixture
from daskmm.data.blocks import Block
from daskmm.mixture.em import block_sums, stated
from daskmm.numerics import gaussians_with_gaps
from daskmm.numerics.gaussians import COVARIANCE_TYPES, Components
from daskmm.numerics.gaussians_with_gaps import patterns

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
P, K = 3, 2


def rows_with_gaps(n=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(K, size=n)
    turned = rng.normal(size=(n, P)) @ np.array([[1.5, 0.8, 0], [0, 1, -0.4], [0, 0, 0.7]])
    X = turned + 4.0 * labels[:, None]
    X[rng.random(X.shape) < 0.25] = np.nan
    X[np.isnan(X).all(axis=1), 1] = 0.5
    return X


def matrices(model):
    own = model.covariances_
    if model.covariance_type == "full":
        return own
    if model.covariance_type == "tied":
        return np.stack([own] * K)
    return np.stack([np.diag(np.broadcast_to(variances, P)) for variances in own])


def densities(model, row):
    held = ~np.isnan(row)
    return np.array(
        [
            share * multivariate_normal(mean[held], covariance[np.ix_(held, held)]).pdf(row[held])
            for share, mean, covariance in zip(
                model.weights_, model.means_, matrices(model), strict=True
            )
        ]
    )


def naive_step(model, X, v):
    """Take one EM step row by row, and return shares, means and full covariances."""
    masses, firsts, seconds = np.zeros(K), np.zeros((K, P)), np.zeros((K, P, P))
    for row, weight in zip(X, v, strict=True):
        held = ~np.isnan(row)
        joint = densities(model, row)
        for j, share in enumerate(weight * joint / joint.sum()):
            mean, covariance = model.means_[j], matrices(model)[j]
            slopes = covariance[np.ix_(~held, held)] @ np.linalg.inv(covariance[np.ix_(held, held)])
            filled, left = row.copy(), np.zeros((P, P))
            filled[~held] = mean[~held] + slopes @ (row[held] - mean[held])
            left[np.ix_(~held, ~held)] = (
                covariance[np.ix_(~held, ~held)] - slopes @ covariance[np.ix_(held, ~held)]
            )
            masses[j] += share
            firsts[j] += share * filled
            seconds[j] += share * (np.outer(filled, filled) + left)
    means = firsts / masses[:, None]
    covariances = seconds / masses[:, None, None] - means[:, :, None] * means[:, None, :]
    return masses / masses.sum(), means, covariances


def start(kind, X):
    return {
        "n_components": K,
        "covariance_type": kind,
        "means_init": np.array([np.nanmin(X, axis=0), np.nanmax(X, axis=0)]) * 0.6,
        "missing": "partial",
        "random_state": 0,
        "reg_covar": 0.0,
        "tol": 0.0,
    }


@pytest.mark.in_turn("loops")
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_a_step_takes_expectations_over_missing_values(kind, loops, monkeypatch):
    if not loops:
        monkeypatch.setattr("daskmm.compiled.library.available", lambda: False)
    X = rows_with_gaps()
    v = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    before = GaussianMixture(**start(kind, X), max_iter=3).fit(X, sample_weight=v)
    after = GaussianMixture(**start(kind, X), max_iter=4).fit(X, sample_weight=v)
    shares, means, covariances = naive_step(before, X, v)
    if kind == "tied":
        covariances = np.broadcast_to(np.einsum("k,kij", shares, covariances), (K, P, P))
    elif kind != "full":
        variances = np.diagonal(covariances, axis1=1, axis2=2)
        if kind == "spherical":
            variances = np.repeat(variances.mean(axis=1)[:, None], P, axis=1)
        covariances = np.stack([np.diag(each) for each in variances])
    np.testing.assert_allclose(after.weights_, shares, rtol=1e-9)
    np.testing.assert_allclose(after.means_, means, rtol=1e-9)
    np.testing.assert_allclose(matrices(after), covariances, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_a_row_has_the_density_of_the_values_that_it_has(kind):
    X = rows_with_gaps()
    model = GaussianMixture(**start(kind, X), max_iter=5).fit(X)
    joint = np.array([densities(model, row) for row in X])
    np.testing.assert_allclose(model.score_samples(X), np.log(joint.sum(axis=1)), rtol=1e-10)
    expected = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), expected.argmax(axis=1))


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_the_likelihood_of_rows_with_gaps_never_falls_and_chunks_change_nothing(kind):
    X = rows_with_gaps(150)
    model = GaussianMixture(**start(kind, X), max_iter=30).fit(X)
    assert (np.diff(model.lower_bounds_) >= -1e-12).all()
    means = model.means_
    lazy = model.fit(da.from_array(X, chunks=((77, 1, 72), P)))
    np.testing.assert_allclose(lazy.means_, means, rtol=1e-10)


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_rows_beyond_those_taken_at_once_count_like_the_first(kind, monkeypatch):
    X = rows_with_gaps()
    model = GaussianMixture(**start(kind, X), max_iter=5).fit(X)
    components = Components.of(kind, model.weights_, model.means_, model.covariances_)
    state = stated(components, partial=True)
    [whole] = block_sums(Block(X), (state,)).records
    labels = model.predict(X)
    monkeypatch.setattr("daskmm.numerics.gaussians_with_gaps.ROWS_AT_ONCE", 7)
    [parts] = block_sums(Block(X), (state,)).records
    for name in ("weights", "sums", "scatters", "log_likelihood"):
        found, expected = getattr(parts, name), getattr(whole, name)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(model.predict(X), labels)


def test_patterns_hold_each_row_once_with_the_features_that_it_has(monkeypatch):
    monkeypatch.setattr("daskmm.numerics.gaussians_with_gaps.ROWS_AT_ONCE", 40)
    rng = np.random.default_rng(0)
    rows = np.where(rng.random((100, 11)) < 0.08, np.nan, 1.0)
    rows[rng.random(100) < 0.3] = 1.0
    found = [(int(place), tuple(held)) for own, held in patterns(rows) for place in own]
    assert sorted(found) == [(place, tuple(~np.isnan(row))) for place, row in enumerate(rows)]
    assert len(list(patterns(rows[:40]))) == len(np.unique(np.isnan(rows[:40]), axis=0))


def test_without_gaps_fits_are_those_of_whole_rows():
    X = np.nan_to_num(rows_with_gaps(200))
    whole, partial = (
        GaussianMixture(K, missing=missing, random_state=0).fit(X)
        for missing in ("error", "partial")
    )
    np.testing.assert_array_equal(partial.means_, whole.means_)


def test_rows_without_any_value_are_refused_with_their_place():
    X = rows_with_gaps()
    model = GaussianMixture(K, missing="partial", random_state=0).fit(X)
    X[7] = np.nan
    for use in (model.fit, model.predict, model.score_samples, model.partial_fit):
        with pytest.raises(ValueError, match=r"block 0, row 7.*which KMeans, PowerKMeans and Ent"):
            use(X)


def test_the_number_and_the_type_are_chosen_among_rows_with_gaps():
    X = np.vstack([rows_with_gaps(600), np.add(rows_with_gaps(300, 1), [20, 0, 0])])
    model = GaussianMixture("auto", covariance_type="auto", missing="partial", random_state=0)
    model.fit(X)
    assert model.n_clusters_ == 4
    assert set(model.covariance_type_bic_) == set(COVARIANCE_TYPES)


def test_tiles_of_complete_rows_may_precede_rows_with_gaps(monkeypatch):
    monkeypatch.setattr(gaussians_with_gaps, "ROWS_AT_ONCE", 4)
    rows = np.arange(24.0).reshape(8, 3)
    rows[6, 1] = np.nan
    found = {tuple(held): list(places) for places, held in gaussians_with_gaps.patterns(rows[4:])}
    assert found == {(True, True, True): [0, 1, 3], (True, False, True): [2]}
    whole = [list(places) for places, held in gaussians_with_gaps.patterns(rows) if held.all()]
    assert whole == [[0, 1, 2, 3], [4, 5, 7]]
