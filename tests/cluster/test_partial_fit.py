"""``partial_fit``: inputs, keys, saved models, wrappers, and calls that fail."""

import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from _naive import entropy_step, power_k_means_step
from _support import ESTIMATORS, blobs, quick
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import daskmm
from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.cluster._partial_fit import half_life

pytestmark = pytest.mark.in_turn("cls")

FITTED = ("cluster_centers_", "cluster_sizes_", "inertia_", "n_samples_seen_")


def assert_same(a, b, rtol=1e-9):
    for name in (*FITTED, *(["feature_weights_"] if hasattr(a, "feature_weights_") else [])):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=rtol, err_msg=name)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_the_kind_of_table_and_its_chunks_do_not_matter(cls):
    X, _ = blobs(360)
    frame = pd.DataFrame(X, columns=[*"abcde"])
    expected = quick(cls).partial_fit(X[:200]).partial_fit(X[200:])
    kinds = (
        lambda part: da.from_array(X[part], chunks=(37, 2)),
        lambda part: dd.from_pandas(frame[part], npartitions=3),
        lambda part: frame[part],
        lambda part: da.from_array(X[part], chunks=50)[
            da.from_array(np.ones(len(X[part]), bool), chunks=50)
        ],
    )
    for kind in kinds:
        found = quick(cls).partial_fit(kind(slice(200))).partial_fit(kind(slice(200, None)))
        assert_same(found, expected)
        assert not hasattr(found, "labels_")
        np.testing.assert_array_equal(
            np.asarray(found.predict(kind(slice(200)))), expected.predict(X[:200])
        )


def test_each_call_is_one_pass():
    X, _ = blobs()
    model = quick(KMeans).partial_fit(X)
    before = model.n_passes_
    model.partial_fit(da.from_array(X, chunks=50))
    assert model.n_passes_ == before + 1


def test_a_key_replaces_its_record():
    X, _ = blobs(300)
    wrong = X[100:200] + 50.0
    model = quick(KMeans, init=X[:4]).partial_fit(X[:100], key="monday")
    model.partial_fit(wrong, key="tuesday").partial_fit(X[100:200], key="tuesday")
    assert model.n_samples_seen_ == 200
    assert model.cluster_sizes_.sum() == pytest.approx(200)
    assert sorted(model.updates_.keyed) == ["monday", "tuesday"]
    model.partial_fit(X[200:], key=3).partial_fit(X[200:], key=3)
    assert model.n_samples_seen_ == 300


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize("forget", [None, pytest.param("3 calls", marks=pytest.mark.long)])
def test_rows_that_belong_nowhere_are_left_out(cls, forget):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(4, 3)) * 5
    days = [centers[rng.integers(4, size=500)] + rng.normal(size=(500, 3)) for _ in range(4)]
    model = quick(cls, trim=0.06, forget=forget)
    for day in days[:3]:
        model.partial_fit(day)
    bad = days[3].copy()
    bad[::20] = rng.uniform(-60, 60, size=(25, 3))
    before = model.n_passes_
    model.partial_fit(da.from_array(bad, chunks=(170, 3)), key="bad")
    assert model.n_passes_ == before + 3
    assert model.updates_.keyed["bad"].weight == pytest.approx(0.94 * 500)
    apart = np.linalg.norm(centers[:, None] - model.cluster_centers_, axis=2).min(axis=1)
    assert apart.max() < 0.3
    # None of the rows far away is in the sample, on which better clusters are looked for.
    assert np.abs(model.updates_.reservoir.rows).max() < 25


def test_a_call_that_is_repeated_makes_nothing_fade():
    X, _ = blobs(400)
    model = quick(KMeans, init=X[:4], forget="2 calls")
    for day in range(4):
        model.partial_fit(X[100 * day : 100 * day + 100], key=day)
    weights = {key: record.weight for key, record in model.updates_.keyed.items()}
    shorter = model.updates_.shorter
    assert weights["3"] == pytest.approx(100)
    assert weights["1"] == pytest.approx(50)
    for day in (3, 1, 3):
        model.partial_fit(X[100 * day : 100 * day + 100], key=day)
        assert {key: r.weight for key, r in model.updates_.keyed.items()} == pytest.approx(weights)
        for name in ("cost", "longer_cost"):
            assert getattr(model.updates_.shorter, name) == getattr(shorter, name)
    model.partial_fit(X[100:150] + 1.0, key=1)
    assert model.updates_.keyed["1"].weight == pytest.approx(25)


@pytest.mark.long
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_the_order_of_keys_does_not_matter_once_it_has_converged(cls):
    """From one model; order, chunks and scheduler are others."""
    X, _ = blobs(400, k=4, seed=3)
    start = quick(cls).partial_fit(X[:100], key=0)
    found = []
    for order, kind, scheduler in (
        (range(4), np.asarray, None),
        ((2, 0, 3, 1), lambda a: da.from_array(a, chunks=33), "synchronous"),
        ((3, 2, 1, 0), lambda a: da.from_array(a, chunks=(41, 2)), "threads"),
    ):
        model = quick(cls)
        model.__dict__.update(vars(start))
        with dask.config.set(scheduler=scheduler):
            for _ in range(40):
                for part in order:
                    model.partial_fit(kind(X[100 * part : 100 * part + 100]), key=part)
        found.append(model)
    for other in found[1:]:
        assert_same(found[0], other)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_loaded_model_is_updated_like_the_saved_one(cls, tmp_path):
    X, _ = blobs(400)
    model = quick(cls, forget="5 calls").partial_fit(X[:200]).partial_fit(X[200:300], key="a")
    model.save(tmp_path / "model")
    again = daskmm.load(tmp_path / "model")
    assert again.get_params()["forget"] == "5 calls"
    for each in (model, again):
        each.partial_fit(X[300:], key="b").partial_fit(X[200:300], key="a")
    for name in FITTED:
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert again.updates_.n_calls == 4


def test_damage_of_saved_records_is_found(tmp_path):
    X, _ = blobs()
    quick(KMeans).partial_fit(X).save(tmp_path / "model")
    path = tmp_path / "model"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        daskmm.load(tmp_path / "model")


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_calls_go_on_from_a_fit_and_a_fit_starts_anew(cls):
    X, _ = blobs(400)
    model = quick(cls).fit(X[:200])
    model.partial_fit(X[200:])
    assert model.n_samples_seen_ == 400
    whole = quick(cls, lam=model.lam_) if cls is EntropyPowerKMeans else quick(cls)
    whole.set_params(init=model.cluster_centers_).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, whole.cluster_centers_, atol=0.05)
    model.fit(X[:200])
    assert not hasattr(model, "updates_")
    assert model.n_samples_seen_ == 200


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_failed_call_leaves_the_former_model(cls, monkeypatch):
    X, _ = blobs()
    model = quick(cls).partial_fit(X)
    before = dict(vars(model))
    bad = X.copy()
    bad[7, 2] = np.inf
    with pytest.raises(ValueError, match=r"row 7.*feature 2"):
        model.partial_fit(bad, key="bad")
    with pytest.raises(ValueError, match="X has 4 features"):
        model.partial_fit(X[:, :4])
    with pytest.raises(ValueError, match="sample_weight is zero"):
        model.partial_fit(X, sample_weight=np.zeros(len(X)))
    with pytest.raises(ValueError, match="0 sample"):
        model.partial_fit(X[:0])
    with pytest.raises(TypeError, match="key must be"):
        model.partial_fit(X, key=["a"])
    with pytest.raises(ValueError, match="overflow"):
        model.partial_fit(1e200 * X)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("daskmm.cluster._partial_fit.attributes_of_clusters", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())


def test_a_failed_first_call_leaves_the_estimator_unfitted():
    X, _ = blobs()
    model = KMeans(300)
    with pytest.raises(ValueError, match="n_samples=240 should be >= n_clusters=300"):
        model.partial_fit(X)
    assert not hasattr(model, "cluster_centers_")


def test_values_of_features_that_were_zero_before_are_accepted():
    """Centres at the edge of the domain are infinitely far from such rows."""
    rng = np.random.default_rng(0)
    X = rng.poisson(np.repeat([[1.0, 9.0, 1.0], [9.0, 1.0, 1.0]], 50, axis=0)).astype(float)
    X[:, 2] = 0
    later = X.copy()
    later[:, 2] = 1 + rng.poisson(2.0, len(X))
    model = KMeans(2, distortion="kl", random_state=0).partial_fit(X).partial_fit(later)
    np.testing.assert_allclose(
        model.cluster_sizes_ @ model.cluster_centers_, X.sum(axis=0) + later.sum(axis=0)
    )
    assert np.isfinite(model.inertia_)


@pytest.mark.parametrize(
    "forget", ["soon", "0 rows", "-3 calls", "1e", "5 days", "..rows", 0, -1.0]
)
def test_half_lives_that_make_no_sense_are_refused(forget):
    X, _ = blobs()
    with pytest.raises(ValueError, match="forget"):
        quick(KMeans, forget=forget).partial_fit(X)


def test_half_lives_are_read_from_numbers_and_texts():
    assert half_life(None) is None
    assert half_life("1 call")(99.0) == 0.5
    assert half_life("10 calls")(99.0) ** 10 == pytest.approx(0.5)
    assert half_life("1e3 rows")(2000.0) == half_life(1000)(2000.0) == 0.25


def test_incremental_of_dask_ml_updates_the_model():
    from dask_ml import wrappers

    X, truth = blobs(600)
    table = da.from_array(X, chunks=(100, 5))
    wrapped = wrappers.Incremental(quick(KMeans), shuffle_blocks=False).fit(table)
    plain = quick(KMeans)
    for block in range(6):
        plain.partial_fit(X[100 * block : 100 * block + 100])
    assert_same(wrapped.estimator_, plain)
    labels = wrapped.predict(table).compute()
    assert daskmm.metrics.adjusted_rand_score(truth, labels) == 1


def test_steps_of_a_pipeline_are_updated_and_clones_forget():
    X, truth = blobs()
    pipeline = make_pipeline(StandardScaler(), quick(KMeans))
    pipeline.fit(X)
    pipeline[-1].partial_fit(pipeline[0].transform(X))
    assert pipeline[-1].n_samples_seen_ == 2 * len(X)
    assert daskmm.metrics.adjusted_rand_score(truth, pipeline.predict(X)) == 1
    assert not hasattr(clone(pipeline[-1]), "updates_")


@pytest.mark.parametrize("init", ["k-means++", "given"])
def test_memberships_and_outliers_are_measured_by_the_rows_of_the_calls(init):
    """Typical distances and the power are those of the rows that are kept."""
    X, _ = blobs(3000)
    model = quick(KMeans, init=X[:4] if init == "given" else init).partial_fit(X[:1000])
    before = model.typical_distances_.copy(), model.membership_power_
    wide = X.mean(axis=0) + 3.0 * (X - X.mean(axis=0))
    for _ in range(4):
        model.partial_fit(wide)
    assert model.membership_power_ != before[1]
    kept = model.updates_.reservoir.rows * model.scale_ + model.mean_
    nearest, labels = model.transform(kept).min(axis=1), model.predict(kept)
    medians = [np.median(nearest[labels == j]) for j in range(4)]
    np.testing.assert_allclose(np.sqrt(model.typical_distances_), medians, rtol=0.02)
    # A few rows after a fit do not replace the profile of many.
    fitted = quick(KMeans).fit(X)
    typical = fitted.typical_distances_
    assert fitted.partial_fit(X[:10]).typical_distances_ is typical


def test_new_rows_alone_do_not_replace_the_clusters_of_a_fit():
    rng = np.random.default_rng(0)

    def table(n, first):
        return np.column_stack([rng.uniform(first, 180, n), rng.exponential(30, (n, 3))])

    fitted, later = table(3000, 0), table(1000, 150)
    model = KMeans(3, standardize=True, random_state=0).fit(fitted)
    before, cost = model.predict(fitted), model.inertia_
    model.partial_fit(later)
    assert (model.predict(fitted) == before).mean() > 0.95
    assert model.inertia_ > cost
    np.testing.assert_allclose(model.cluster_sizes_.sum(), 4000)


@pytest.mark.parametrize("distortion", ["sqeuclidean", "kl", "mahalanobis", "mixed"])
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_the_rows_of_a_fit_that_was_not_finished_keep_their_means(cls, distortion):
    if cls is EntropyPowerKMeans and distortion in ("kl", "mahalanobis"):
        pytest.skip("The distance is not one of the class.")
    rows, _ = blobs(240, p=3, k=6, offset=60.0)
    rows = pd.DataFrame(rows, columns=list("abc"))
    model = quick(cls, n_clusters=6, max_iter=1, distortion=distortion, n_init=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        labels = model.fit(rows[:180]).labels_
    labels = np.concatenate([labels, model.predict(rows[180:])])
    model.partial_fit(rows[180:])
    expected = rows.groupby(labels).mean()
    np.testing.assert_allclose(model.cluster_means_[expected.index], expected, rtol=1e-6)


@pytest.mark.parametrize("soft", [{"max_iter": 2}, {"s0": -1, "eta": 1}])
def test_sizes_after_soft_steps_add_up_to_the_rows(soft):
    X = np.random.default_rng(0).normal(size=(200, 2))
    model = PowerKMeans(6, polish=False, n_init=1, random_state=0, **soft)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X)
    for n_rows in (400, 600):
        assert model.partial_fit(X).cluster_sizes_.sum() == pytest.approx(n_rows)


@pytest.mark.parametrize("s", [-1.0, -3.0])
@pytest.mark.parametrize("cls", [PowerKMeans, EntropyPowerKMeans])
def test_a_call_after_a_soft_fit_is_a_soft_step_over_all_rows(cls, s, tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(180, 2)) + 3.0 * rng.integers(0, 3, (180, 1))
    weights = rng.uniform(0.5, 2.0, 180)
    soft = {"s0": s, "eta": 1, "polish": False, "tol": 1e-12, "max_iter": 2000, "n_init": 1}
    lam = {"lam": 1.5} if cls is EntropyPowerKMeans else {}
    model = cls(3, standardize=False, random_state=0, **soft, **lam)
    model.fit(rows[:120], sample_weight=weights[:120]).save(tmp_path / "model")
    before = model.cluster_centers_
    if cls is EntropyPowerKMeans:
        centers, feature_weights, _ = entropy_step(
            rows.tolist(), before.tolist(), model.feature_weights_.tolist(), s, 1.5, weights
        )
    else:
        centers, objective = power_k_means_step(rows.tolist(), before.tolist(), s, weights)
    model = daskmm.load(tmp_path / "model").partial_fit(rows[120:], sample_weight=weights[120:])
    np.testing.assert_allclose(model.cluster_centers_, centers, atol=1e-4)
    if cls is EntropyPowerKMeans:
        np.testing.assert_allclose(model.feature_weights_, feature_weights, atol=1e-4)
    else:
        assert model.inertia_ < objective * weights.sum() < 1.1 * model.inertia_
