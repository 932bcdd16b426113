"""Annealing on a sample, and a handful of readings of the table."""

import dask
import dask.array as da
import numpy as np
import pytest
from _support import ESTIMATORS, CountingSource, blobs, computed, fit_recording
from sklearn.cluster import KMeans as ScikitKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from daskmm import EntropyPowerKMeans, KernelPowerKMeans, KMeans, PowerKMeans
from daskmm.data.blocks import Layout
from daskmm.datasets import make_ewp_simulation2
from daskmm.engine.first_pass import MANY_CLUSTERS, sample_sizes
from daskmm.kmeans.sample_annealing import most_polished, worth_polishing

pytestmark = pytest.mark.in_turn("cls")

N, K = 3000, 6
X, TRUTH = blobs(N, 5, K, seed=3)
each_estimator = pytest.mark.parametrize("cls", ESTIMATORS)


def sampled(cls, **parameters):
    settings = {"n_clusters": K, "sample_size": 300, "random_state": 0}
    if cls is EntropyPowerKMeans:
        settings["lam"] = "0.5*variance"
    else:
        settings["standardize"] = False
    return cls(**settings | parameters)


def lazy(rows=X, chunks=700):
    return da.from_array(rows, chunks=(chunks, -1))


@pytest.fixture(params=["no reserve", "reserve"])
def reserve(request, monkeypatch):
    if request.param == "reserve":
        monkeypatch.setattr("daskmm.engine.first_pass.LARGER_SAMPLE_BYTES", 1000 * 8 * X.shape[1])


@each_estimator
def test_a_fit_on_samples_reads_the_table_a_few_times(cls, reserve):
    source = CountingSource(X)
    model = sampled(cls).fit(source.as_dask((700, -1)))
    assert set(source.reads.values()) == {model.n_passes_}
    assert model.n_passes_ <= 7
    assert model.n_passes_ == model.n_iter_ + 1
    assert adjusted_rand_score(TRUTH, computed(model.labels_)) > 0.99
    assert model.inertia_ == pytest.approx(-model.score(X), rel=1e-12)


def test_a_fit_with_landmarks_reads_the_table_a_few_times(reserve):
    source = CountingSource(X)
    model = sampled(KernelPowerKMeans, n_landmarks=10 * K).fit(source.as_dask((700, -1)))
    assert set(source.reads.values()) == {model.n_passes_}
    assert model.n_passes_ <= 7
    assert adjusted_rand_score(TRUTH, computed(model.labels_)) > 0.99
    whole = sampled(KernelPowerKMeans, n_landmarks=10 * K, sample_size=None).fit(X)
    assert all(record.exact for record in whole.history_)
    assert model.inertia_ <= whole.inertia_ * 1.01


@each_estimator
def test_records_of_the_history_say_whether_a_step_was_on_a_sample(cls, reserve):
    model = sampled(cls).fit(X)
    exact = [record for record in model.history_ if record.exact]
    before = model.history_[: len(model.history_) - len(exact)]
    assert before
    assert not any(record.exact for record in before)
    assert len(exact) <= model.n_iter_
    assert model.objective_history_.tolist() == [record.objective for record in exact]
    assert [record.n_passes for record in before] == [1] * len(before)
    seconds = [record.seconds for record in model.history_]
    assert seconds == sorted(seconds)
    assert np.isfinite([record.objective for record in model.history_]).all()


@each_estimator
def test_callbacks_get_no_iterations_on_samples(cls):
    records = []
    model = sampled(cls, callbacks=[records.append]).fit(X)
    assert len(records) == model.n_iter_
    assert all(record.exact for record in records)


@pytest.mark.in_turn("chunks")
@each_estimator
@pytest.mark.parametrize("chunks", [N, 999, 64])
def test_fits_annealed_on_samples_do_not_depend_on_chunks(cls, chunks, reserve):
    model = sampled(cls).fit(X)
    other = sampled(cls).fit(lazy(chunks=chunks))
    np.testing.assert_allclose(other.cluster_centers_, model.cluster_centers_, rtol=1e-9)
    assert other.inertia_ == pytest.approx(model.inertia_, rel=1e-9)
    np.testing.assert_array_equal(computed(other.labels_), model.labels_)


@each_estimator
@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_fits_annealed_on_samples_do_not_depend_on_the_scheduler(cls, scheduler):
    settings = {"n_init": 2} if cls is KMeans else {"n_init": 2, "eta": 1.3}
    model = sampled(cls, **settings).fit(X)
    with dask.config.set(scheduler=scheduler):
        other = sampled(cls, **settings).fit(lazy(chunks=1000))
    np.testing.assert_allclose(other.cluster_centers_, model.cluster_centers_, rtol=1e-9)


@pytest.mark.in_turn("persist")
@each_estimator
@pytest.mark.parametrize("persist", [True, "auto"])
def test_data_kept_in_memory_are_read_once(cls, persist):
    source = CountingSource(X)
    model = sampled(cls, persist=persist).fit(source.as_dask((700, -1)))
    assert set(source.reads.values()) == {1}
    streamed = sampled(cls).fit(lazy(chunks=700))
    np.testing.assert_array_equal(model.cluster_centers_, streamed.cluster_centers_)
    assert model.n_passes_ == streamed.n_passes_
    np.testing.assert_array_equal(computed(model.labels_), computed(streamed.labels_))


def test_data_with_landmarks_are_kept_too():
    source = CountingSource(X)
    sampled(KernelPowerKMeans, n_landmarks=10 * K, persist=True).fit(source.as_dask((700, -1)))
    assert set(source.reads.values()) == {1}


@pytest.mark.parametrize("persist", [None, "always", 2])
def test_a_bad_persist_is_refused(persist):
    with pytest.raises(ValueError, match="persist"):
        sampled(KMeans, persist=persist).fit(X)


@each_estimator
def test_the_scale_of_weights_changes_nothing(cls, reserve):
    weights = np.random.default_rng(0).integers(0, 4, N)
    one = sampled(cls).fit(X, sample_weight=weights)
    other = sampled(cls).fit(X, sample_weight=64.0 * weights)
    np.testing.assert_allclose(other.cluster_centers_, one.cluster_centers_, rtol=1e-9)
    assert other.inertia_ == pytest.approx(64.0 * one.inertia_, rel=1e-9)


@pytest.mark.parametrize(("n_features", "samples"), [(131, False), (132, True)])
def test_few_clusters_of_many_values_are_found_on_the_sample(n_features, samples):
    rows = np.random.default_rng(0).normal(size=(2000, n_features))
    model = KMeans(3, random_state=0).fit(rows)
    assert model.history_[0].exact == (not samples)


@pytest.mark.parametrize(("init", "races"), [("k-means++", True), ("random", False)])
def test_starts_race_unless_they_are_random_rows(init, races):
    rows = np.random.default_rng(0).normal(size=(3000, 3))
    stages = KMeans(6, init=init, sample_size=300).plan(rows, measure=True).stages
    assert ("best starts" in stages) == races
    assert ("recombination" in stages) == (not races)


@each_estimator
def test_all_rows_are_annealed_without_a_sample_size(cls):
    model = sampled(cls, sample_size=None).fit(X)
    assert all(record.exact for record in model.history_)
    usual = sampled(cls, sample_size="auto").fit(X)
    np.testing.assert_array_equal(usual.cluster_centers_, model.cluster_centers_)
    if cls is not KMeans:
        printed = sampled(cls, polish=False, tol=0.0, max_iter=5).fit(X)
        assert len(printed.objective_history_) == printed.n_iter_ == 5


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans, EntropyPowerKMeans, KernelPowerKMeans])
@pytest.mark.parametrize("size", [0, -5, 2.5, "all", K - 1])
def test_a_bad_sample_size_is_refused(cls, size):
    extra = {"n_landmarks": 10 * K} if cls is KernelPowerKMeans else {}
    with pytest.raises(ValueError, match="sample_size"):
        sampled(cls, sample_size=size, **extra).fit(X)


@pytest.mark.long
def test_the_usual_sample_of_a_large_table_is_good_enough():
    rows, _ = blobs(30_000, 4, 20, seed=1)
    model = PowerKMeans(20, random_state=0).fit(lazy(rows, 7000))
    assert not model.history_[0].exact
    assert model.n_passes_ <= 7
    peer = ScikitKMeans(20, n_init=8, random_state=0).fit(rows)
    assert model.inertia_ <= 1.002 * peer.inertia_


@pytest.mark.long
def test_features_are_found_on_a_sample():
    rows, truth = make_ewp_simulation2(n_samples=12_000, n_clusters=20, random_state=0)
    model = EntropyPowerKMeans(20, sample_size=2000, random_state=0).fit(rows)
    assert model.n_passes_ <= 10
    assert normalized_mutual_info_score(truth.compute(), model.labels_.compute()) > 0.9
    assert set(np.argsort(model.feature_weights_)[-5:]) == set(range(5))


@pytest.mark.long
def test_the_cost_of_overlapping_clusters_is_near_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(12, 3))
    rows = centers[rng.integers(12, size=20_000)] + rng.normal(size=(20_000, 3))
    model = PowerKMeans(12, sample_size=1000, random_state=0)
    fit_recording(model, lazy(rows, 3000))
    peer = ScikitKMeans(12, n_init=8, random_state=0).fit(rows)
    assert model.inertia_ <= 1.01 * peer.inertia_


@pytest.mark.parametrize(
    ("costs", "worth"),
    [
        ([3.0], [0]),
        ([3.0, 1.0, 2.0], [1]),
        ([1.0, 1.0, 1.0 + 1e-9], [0]),
        ([1.004, 1.0, 1.002, 1.1], [1, 2, 0]),
        ([1.001, 1.002, 1.003, 1.0, 1.004], [3, 0, 1, 2]),
        ([-1.0, -0.999, -0.5], [0, 1]),
        ([0.0, 0.0], [0]),
    ],
)
def test_the_cheapest_different_starts_are_worth_polishing(costs, worth):
    assert worth_polishing(costs) == worth
    assert len(worth) <= most_polished(8)
    assert worth_polishing(costs, most=most_polished(MANY_CLUSTERS)) == worth[:1]


@each_estimator
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_the_cost_of_single_precision_rows_is_that_of_their_score(cls, dtype):
    rows = np.tile(np.round(100 * X), (4, 1)).astype(dtype)
    model = sampled(cls).fit(rows)
    assert model.inertia_ == pytest.approx(-model.score(rows), rel=1e-12)


@pytest.mark.parametrize(
    ("n_rows", "p", "k", "dtype", "rows"),
    [
        (200_000, 20, 20, "f4", 0),  # two readings of the table would cost as much
        (1_000_000, 20, 20, "f4", 104_857),
        (1_000_000, 20, 100, "f4", 300_000),
        (500_000, 20, 100, "f4", 250_000),  # half of the table
        (10**9, 50, 100, "f4", 125_829),  # the memory that it may take
        (20_000_000, 64, 1000, "f4", 400_000),
        (20_000_000, 64, 4096, "f8", 1_048_576),  # the memory, too
        (20_000_000, 64, 4096, "f2", 1_638_400),
        (20_000_000, 768, 10_000, "f4", 200_000),  # twice the sample
    ],
)
def test_many_clusters_have_a_larger_sample(n_rows, p, k, dtype, rows):
    layout = Layout((n_rows,), 1, p, np.dtype(dtype), lazy=True)
    assert sample_sizes(layout, k, None, with_larger=True).larger == rows
    assert sample_sizes(layout, k, None, with_larger=False).larger == 0


@pytest.mark.parametrize(
    ("n_rows", "p", "k", "rows"),
    [
        (500_000, 20, 100, 250_000),
        (1_000_000, 64, 1000, 0),  # bounds make later steps as cheap
        (2_000_000, 64, 1000, 400_000),
    ],
)
def test_a_larger_sample_of_many_clusters_in_memory_is_much_smaller_than_the_table(
    n_rows, p, k, rows
):
    layout = Layout((n_rows,), 1, p, np.dtype("float32"), lazy=False)
    assert sample_sizes(layout, k, None, with_larger=True).larger == rows


def test_plans_of_many_clusters_count_more_reads():
    rows = da.zeros((10_000_000, 16), chunks=(100_000, 16))
    few, many = (KMeans(k).plan(rows) for k in (MANY_CLUSTERS - 1, MANY_CLUSTERS))
    assert few.passes < many.passes <= 10


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_far_rows_of_tables_hardly_larger_than_a_sample_have_near_centres(cls):
    rng = np.random.default_rng(0)
    rows, _ = blobs(11_000, 4, 10, seed=1)
    rows[rng.choice(len(rows), 5, replace=False)] = 1e4 * rng.normal(size=(5, 4))
    best = ScikitKMeans(15, n_init=8, random_state=0).fit(rows).inertia_
    assert cls(15, random_state=0).fit(rows).inertia_ <= 1.001 * best


@each_estimator
def test_small_tables_of_many_clusters_are_their_own_sample(cls):
    rows, truth = blobs(1600, 5, 16, seed=2)
    source = CountingSource(rows)
    model = cls(16, random_state=0).fit(source.as_dask((500, -1)))
    assert set(source.reads.values()) == {model.n_passes_}
    assert model.n_passes_ <= 3
    assert not model.history_[0].exact
    assert adjusted_rand_score(truth, computed(model.labels_)) > 0.99
    # Given centres serve all rows already.
    given = cls(16, init=rows[:16]).fit(rows)
    assert all(record.exact for record in given.history_)


def test_a_table_that_is_its_own_sample_takes_one_step_after_converged_steps_on_the_sample():
    rows, _ = blobs(6000, 5, 300, seed=2)
    model = KMeans(300, random_state=0).fit(rows)
    assert model.n_iter_ == 1
    assert model.inertia_ == pytest.approx(-model.score(rows), rel=1e-9)


def test_steps_over_a_table_in_memory_compare_near_centres_and_end_near_the_means():
    rows = np.random.default_rng(0).normal(size=(40_000, 6))
    model = KMeans(300, random_state=0, sample_size=10_000).fit(rows)
    labels = model.labels_
    means = np.array([rows[labels == j].mean(axis=0) for j in range(300)])
    gains = np.bincount(labels) * np.square(means - model.cluster_centers_).sum(axis=1)
    assert gains.sum() < model.tol * model.inertia_
    assert model.inertia_ == pytest.approx(-model.score(rows), rel=1e-9)


def test_steps_on_a_sample_that_is_the_table_count_as_iterations():
    rows = np.random.default_rng(0).normal(size=(3000, 5))
    for most in (6, 10):
        model = KMeans(60, n_init=1, max_iter=most, tol=1e-9, random_state=0)
        with pytest.warns(ConvergenceWarning):
            model.fit(rows)
        assert sum(not record.exact for record in model.history_) == most
        assert model.n_iter_ == 1


def test_steps_over_the_table_are_hard_after_an_annealing_that_ended_early():
    rows = np.round(np.random.default_rng(0).normal(size=(88, 2)))
    model = EntropyPowerKMeans(60, lam=1.0, max_iter=2, eta=1.5, standardize=False, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(rows)
    assert model.s_ == -np.inf
    assert model.cluster_sizes_.sum() == len(rows)
