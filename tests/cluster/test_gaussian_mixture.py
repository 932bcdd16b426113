"""The estimator of Gaussian mixtures."""

import pkgutil

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture as Peer

from daskmm import GaussianMixture, KMeans, load

K, P = 4, 3
ELONGATED = np.array([[4.0, 0.0, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 0.3]])


def elongated(n=2000, seed=0):
    """Rows of four groups that k-means would cut across, and the group of each."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(K, size=n)
    centers = np.arange(K)[:, None] * np.array([0.0, 3.0, 0.0])
    return centers[truth] + rng.normal(size=(n, P)) @ ELONGATED, truth


X, TRUTH = elongated()
MODEL = GaussianMixture(K, random_state=0)
FITTED = clone(MODEL).fit(X)


def test_elongated_groups_are_found():
    assert adjusted_rand_score(TRUTH, FITTED.labels_) > 0.99
    assert FITTED.converged_
    assert FITTED.lower_bound_ == pytest.approx(FITTED.score(X), abs=1e-9)
    assert FITTED.n_passes_ == 2 + FITTED.n_iter_  # first pass and labels


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_likelihoods_and_criteria_are_those_of_scikit_learn_for_the_same_components(kind):
    model = GaussianMixture(K, covariance_type=kind, random_state=0).fit(X)
    peer = Peer(K, covariance_type=kind)
    peer.weights_, peer.means_ = model.weights_, model.means_
    peer.covariances_, peer.precisions_cholesky_ = model.covariances_, model.precisions_cholesky_
    np.testing.assert_allclose(model.score_samples(X), peer.score_samples(X), rtol=1e-9)
    np.testing.assert_allclose(model.predict_proba(X), peer.predict_proba(X), atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), peer.predict(X))
    assert model.score(X) == pytest.approx(peer.score(X))
    assert model.bic(X) == pytest.approx(peer.bic(X))
    assert model.aic(X) == pytest.approx(peer.aic(X))


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_the_likelihood_is_at_least_that_of_ten_starts_of_scikit_learn(kind):
    rng = np.random.default_rng(3)
    centers = 2.5 * rng.normal(size=(6, 4))
    rows = centers[rng.integers(6, size=800)] + rng.normal(size=(800, 4))
    found = GaussianMixture(6, covariance_type=kind, random_state=0).fit(rows)
    peer = Peer(6, covariance_type=kind, n_init=10, random_state=0).fit(rows)
    assert found.score(rows) >= peer.score(rows) - 1e-3


def test_lazy_data_give_the_same_components_and_lazy_results():
    lazy = da.from_array(X, chunks=(333, 2))
    model = clone(MODEL).fit(lazy)
    np.testing.assert_allclose(model.means_, FITTED.means_, rtol=1e-9, atol=1e-12)
    for found, expected in (
        (model.labels_, FITTED.labels_),
        (model.predict(lazy), FITTED.labels_),
        (model.predict_proba(lazy), FITTED.predict_proba(X)),
        (model.score_samples(lazy), FITTED.score_samples(X)),
    ):
        assert isinstance(found, da.Array)
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-9, atol=1e-9)
    assert model.score(lazy) == pytest.approx(FITTED.score(X))


def test_labels_of_a_dask_frame_are_aligned_with_it():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    lazy = dd.from_pandas(frame, npartitions=3)
    model = clone(MODEL).fit(lazy)
    assert isinstance(model.labels_, dd.Series)
    np.testing.assert_array_equal(model.labels_.compute(), FITTED.labels_)
    swapped = frame[["c", "a", "b"]]
    np.testing.assert_array_equal(model.predict(swapped), FITTED.labels_)
    assert list(model.summary_.columns[-3:]) == ["mean_a", "mean_b", "mean_c"]


def test_units_do_not_matter():
    units = np.array([1e-3, 1.0, 1e3])
    model = GaussianMixture(K, random_state=0, reg_covar=0.0).fit(X)
    scaled = GaussianMixture(K, random_state=0, reg_covar=0.0).fit(X * units)
    assert adjusted_rand_score(model.labels_, scaled.labels_) > 0.999
    order, other = np.argsort(model.means_[:, 1]), np.argsort(scaled.means_[:, 1])
    np.testing.assert_allclose(scaled.means_[other], (model.means_ * units)[order], rtol=0.01)


def test_a_saved_model_is_the_same(tmp_path):
    FITTED.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for name in ("weights_", "means_", "covariances_", "precisions_cholesky_", "labels_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(FITTED, name))
    np.testing.assert_array_equal(again.predict_proba(X), FITTED.predict_proba(X))


def test_warm_start_continues_from_the_components_of_the_last_fit():
    model = clone(MODEL).set_params(warm_start=True, max_iter=1, tol=0.0)
    first = model.fit(X).lower_bound_
    assert model.fit(X).lower_bound_ >= first
    with pytest.raises(ValueError, match="model that warm_start continues has means"):
        model.set_params(n_components=3).fit(X)


def test_a_fit_that_has_not_converged_says_so():
    with pytest.warns(ConvergenceWarning, match="Not converged in max_iter=1 steps"):
        GaussianMixture(K, max_iter=1, tol=1e-12, random_state=0).fit(X)


def test_a_component_of_equal_rows_is_warned_of():
    rows = np.concatenate([X, np.full((50, P), 30.0)])
    with pytest.warns(UserWarning, match="as narrow in some direction as reg_covar=1e-06"):
        model = GaussianMixture(K + 1, random_state=0).fit(rows)
    assert len(set(model.labels_[-50:])) == 1


def test_without_regularization_equal_rows_are_refused():
    rows = np.repeat(X[:3], 50, axis=0)
    with pytest.raises(ValueError, match="not positive definite"):
        GaussianMixture(3, reg_covar=0.0, random_state=0).fit(rows)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights_init": [0.5, 0.5]}, "weights_init has shape"),
        ({"weights_init": [0.5, 0.5, 0.5, -0.5]}, "shares that are not negative"),
        ({"means_init": X[:3]}, "means_init has shape"),
        ({"means_init": np.full((K, P), np.nan)}, "means_init contains NaN"),
        ({"means_init": [["a"]]}, "means_init must be an array of numbers"),
        ({"precisions_init": np.ones((K, P))}, "precisions_init has shape"),
        ({"precisions_init": -np.stack([np.eye(P)] * K)}, "symmetric and positive definite"),
    ],
)
def test_starting_components_that_do_not_fit_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(K, **given).fit(X)


@pytest.mark.parametrize("name", ["weights_init", "means_init", "precisions_init"])
def test_a_start_without_a_number_of_components_is_refused(name):
    with pytest.raises(ValueError, match="need a number as n_components"):
        GaussianMixture("auto", **{name: X[:K]}).fit(X)


def test_given_means_are_where_the_components_are():
    means = np.array([X[j == TRUTH].mean(axis=0) for j in (2, 0, 3, 1)])
    model = GaussianMixture(K, means_init=means).fit(X)
    np.testing.assert_allclose(model.means_, means, atol=0.3)


def test_a_number_of_components_is_chosen():
    rng = np.random.default_rng(0)
    rows = 10.0 * np.eye(3)[rng.integers(3, size=900)] + rng.normal(size=(900, 3))
    model = GaussianMixture("auto", random_state=0)
    assert model.plan(rows).n_starts >= 1
    model.fit(rows)
    assert model.n_clusters_ == model.n_components_path_.n_clusters == 3
    with pytest.warns(UserWarning, match="Look at n_components_path_"):
        one = GaussianMixture("auto", random_state=0).fit(rng.normal(size=(500, 3)))
    assert one.n_clusters_ == 1


def test_a_plan_knows_the_cost_of_missing_values_and_what_it_cannot_know():
    rows = np.zeros((5_000, 8))
    whole, partial = (
        GaussianMixture(4, missing=missing).plan(rows).seconds for missing in ("error", "partial")
    )
    assert partial > 8 * whole
    for model in (GaussianMixture("auto"), KMeans("auto")):
        plan = model.plan(rows)
        assert plan.seconds is None
        assert "time is unknown, because the number of clusters is" in str(plan)


def test_passes_are_within_those_planned():
    lazy = da.from_array(X, chunks=(500, P))
    model = clone(MODEL).set_params(sample_size=400)
    plan = model.plan(lazy)
    assert {"first pass", "starting components", "trials", "passes"} <= set(plan.stages)
    model.fit(lazy)
    assert model.n_passes_ <= plan.max_passes
    assert abs(model.n_passes_ - plan.passes) <= 6


def test_a_callback_sees_every_step_and_can_end_the_fit():
    seen = []

    def end_at_two(record):
        seen.append(-record.objective)
        if record.iteration == 2:
            raise StopIteration

    model = clone(MODEL).set_params(callbacks=[end_at_two], tol=0.0)
    with pytest.warns(ConvergenceWarning, match="callback asked"):
        model.fit(X)
    assert model.n_iter_ == 2
    np.testing.assert_array_equal(seen, model.lower_bounds_)


@pytest.mark.parametrize("place", ["mixture.split_merge.splits", "mixture.em.MixtureProblem.steps"])
def test_an_interrupt_on_the_sample_ends_the_fit_with_the_best_components(place, monkeypatch):
    module, name = place.rsplit(".", 1)
    owner = pkgutil.resolve_name(f"daskmm.{module}")
    original, calls = getattr(owner, name), []

    def interrupted(*arguments, **options):
        calls.append(name)
        if len(calls) == (5 if name == "steps" else 1):
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)
    model = clone(MODEL)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert model.n_iter_ == 0
    assert model.lower_bound_ == pytest.approx(model.score(X))
    assert len(model.history_) > 0
    assert len(model.labels_) == len(X)


def test_sampled_rows_have_the_moments_of_the_components():
    rows, labels = FITTED.sample(50_000)
    assert rows.shape == (50_000, P)
    assert labels.dtype == np.int32
    np.testing.assert_allclose(np.bincount(labels) / 50_000, FITTED.weights_, atol=0.01)
    np.testing.assert_allclose(rows[labels == 1].mean(axis=0), FITTED.means_[1], atol=0.15)
    again, _ = FITTED.sample(50_000)
    np.testing.assert_array_equal(rows, again)
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        FITTED.sample(0)


def test_before_a_fit_there_are_no_components():
    for ask in (MODEL.predict, MODEL.score, MODEL.bic):
        with pytest.raises(NotFittedError):
            ask(X)
    assert not hasattr(MODEL, "cluster_centers_")


def test_a_value_that_is_not_finite_is_named():
    bad = da.from_array(np.where(np.arange(len(X) * P).reshape(-1, P) == 3001, np.nan, X), (500, P))
    with pytest.raises(ValueError, match="block 2, row 0 of the block"):
        clone(MODEL).fit(bad)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (lambda z, k: z * [1, 1, 1], "spherical"),
        (lambda z, k: z * [1, 5, 0.2], "tied"),
        (lambda z, k: z * np.array([[1, 5, 0.2], [4, 1, 1]])[k], "diag"),
        (lambda z, k: np.where(k[:, None], z @ [[1, 0.9, 0], [0, 0.4, 0], [0, 0, 1]], z), "full"),
    ],
)
def test_the_covariance_type_is_chosen_by_its_criterion(shape, expected):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=3_000)
    X = shape(rng.normal(size=(3_000, 3)), labels) + 12.0 * labels[:, None]
    model = GaussianMixture(2, covariance_type="auto", random_state=0).fit(X)
    assert model.covariance_type_ == expected
    assert min(model.covariance_type_bic_, key=model.covariance_type_bic_.get) == expected
    # The criterion is that of scikit-learn, on rows that are all in the sample.
    own = Peer(2, covariance_type=expected, random_state=0).fit(X).bic(X)
    assert model.covariance_type_bic_[expected] == pytest.approx(own, rel=1e-4)
    assert model.bic(X) == pytest.approx(own, rel=1e-4)


def test_starts_that_need_a_covariance_type_refuse_auto():
    X = np.random.default_rng(0).normal(size=(100, 2))
    with pytest.raises(ValueError, match="need a covariance_type"):
        GaussianMixture(covariance_type="auto", precisions_init=np.eye(2)[None]).fit(X)
