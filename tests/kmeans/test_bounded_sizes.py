"""Bounds of the sizes of clusters."""

import dask.array as da
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans, load
from daskmm.engine.moments import Sample
from daskmm.kmeans.bounded_sizes import _pairs_to_merge, largest_weight, with_divided_clusters
from daskmm.kmeans.sums import CenterState

SHARES = (0.4, 0.3, 0.1, 0.1, 0.05, 0.05)


@pytest.fixture(scope="module")
def unequal():
    """Rows of six clusters of very different sizes."""
    rng = np.random.default_rng(0)
    places = 8.0 * rng.normal(size=(len(SHARES), 4))
    return places[rng.choice(len(SHARES), 3000, p=SHARES)] + rng.normal(size=(3000, 4))


@pytest.fixture(scope="module")
def overlapping():
    """Rows of one group with a long tail."""
    return np.exp(0.6 * np.random.default_rng(0).normal(size=(1200, 4)))


def fitted(estimator, rows, bound, **settings):
    if estimator is EntropyPowerKMeans:
        settings["lam"] = "0.5*variance"
    return estimator(6, n_init=2, random_state=0, max_cluster_size=bound, **settings).fit(rows)


@pytest.mark.parametrize("estimator", [KMeans, PowerKMeans, EntropyPowerKMeans])
@pytest.mark.parametrize("bound", [1.5, 750])
def test_no_cluster_is_larger_than_the_bound(unequal, estimator, bound):
    model = fitted(estimator, unequal, bound)
    most = bound * len(unequal) / 6 if isinstance(bound, float) else bound
    sizes = np.bincount(model.labels_, minlength=6)
    assert sizes.max() <= most
    assert fitted(estimator, unequal, None).cluster_sizes_.max() > most
    np.testing.assert_array_equal(model.cluster_sizes_, sizes)


def squared_distances(model, rows):
    scaled, centers = rows / model.scale_, model.cluster_centers_ / model.scale_
    return np.square(scaled[:, None] - centers).sum(axis=2)


def test_rows_have_their_nearest_centre_above_twice_the_mean_size(unequal):
    model = fitted(KMeans, unequal, 2.2)
    assert fitted(KMeans, unequal, None).cluster_sizes_.max() > 2.2 * len(unequal) / 6
    distances = squared_distances(model, unequal)
    assert not hasattr(model, "offsets_")
    np.testing.assert_array_equal(model.labels_, distances.argmin(axis=1))
    assert model.inertia_ == pytest.approx(distances.min(axis=1).sum())
    np.testing.assert_array_equal(model.predict(unequal), model.labels_)


@pytest.mark.parametrize("estimator", [KMeans, PowerKMeans])
def test_offsets_bound_sizes_at_a_cost_without_them(overlapping, estimator):
    model = estimator(12, random_state=0, max_cluster_size=1.2).fit(overlapping)
    distances = squared_distances(model, overlapping)
    labels = (distances + model.offsets_).argmin(axis=1)
    assert model.offsets_.min() == 0.0
    probabilities = model.predict_proba(overlapping)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), labels)
    expected = (distances + model.offsets_) ** (model.membership_power_ - 1.0)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-6, atol=1e-12)
    assert np.bincount(labels).max() <= 1.2 * len(overlapping) / 12
    np.testing.assert_array_equal(model.labels_, labels)
    np.testing.assert_array_equal(model.predict(overlapping), labels)
    of_rows = np.take_along_axis(distances, labels[:, None], axis=1)
    assert model.inertia_ == pytest.approx(of_rows.sum())
    assert model.score(overlapping) == pytest.approx(-model.inertia_)
    np.testing.assert_allclose(np.square(model.transform(overlapping)), distances)


def test_offsets_cost_little_more_than_the_best_assignment_to_their_centres(overlapping):
    model = KMeans(12, random_state=0, max_cluster_size=1.2).fit(overlapping)
    distances, most = squared_distances(model, overlapping), len(overlapping) // 10
    _, places = linear_sum_assignment(np.repeat(distances, most, axis=1))
    best = np.take_along_axis(distances, places[:, None] // most, axis=1).sum()
    assert best <= model.inertia_ <= 1.01 * best


@pytest.mark.parametrize("chunk", [100, 600])
def test_streamed_rows_beyond_the_sample_keep_a_tight_bound(chunk):
    rows = np.exp(0.5 * np.random.default_rng(1).normal(size=(9000, 4)))
    model = KMeans(10, n_init=1, random_state=0, sample_size=2000, max_cluster_size=1.2)
    table = da.from_array(rows, chunks=(15 * chunk, 4))
    most = model.plan(table).max_passes
    model.fit(table)
    sizes = np.bincount(model.labels_.compute(), minlength=10)
    assert sizes.max() <= 1.2 * len(rows) / 10
    np.testing.assert_array_equal(sizes, model.cluster_sizes_)
    assert model.n_passes_ <= most


@pytest.mark.parametrize("settings", [{"distortion": "cosine"}, {"lam": "0.5*variance"}])
def test_offsets_bound_angles_and_weighted_distances(overlapping, settings):
    estimator = EntropyPowerKMeans if "lam" in settings else KMeans
    model = estimator(12, random_state=0, max_cluster_size=1.2, **settings).fit(overlapping)
    assert np.bincount(model.predict(overlapping)).max() <= 1.2 * len(overlapping) / 12
    assert hasattr(model, "offsets_")


def test_rows_without_direction_have_no_cluster_beside_offsets(overlapping):
    rows = overlapping.copy()
    rows[[5, 77]] = 0.0
    model = KMeans(
        12, random_state=0, max_cluster_size=1.2, distortion="cosine", empty_rows="label"
    ).fit(rows)
    assert hasattr(model, "offsets_")
    np.testing.assert_array_equal(np.flatnonzero(model.labels_ < 0), [5, 77])
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    assert model.score(rows) == pytest.approx(-model.inertia_)
    model.set_params(empty_rows="error")
    with pytest.raises(ValueError, match=r"of zeros.* row 5 of"):
        model.predict(rows)


def test_offsets_of_sparse_rows_are_those_of_dense_ones(overlapping):
    rows = np.where(overlapping > 1.0, overlapping, 0.0)
    settings = {"random_state": 0, "max_cluster_size": 1.2, "standardize": False}
    model = KMeans(12, **settings).fit(csr_array(rows))
    assert np.bincount(model.predict(rows)).max() <= 1.2 * len(rows) / 12
    np.testing.assert_array_equal(model.predict(csr_array(rows)), model.predict(rows))


def test_saved_models_keep_their_offsets_and_updates_drop_them(overlapping, tmp_path):
    model = KMeans(12, random_state=0, max_cluster_size=1.2).fit(overlapping)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(overlapping), model.labels_)
    with pytest.raises(ValueError, match="no offsets"):
        model.to_sklearn()
    later = model.partial_fit(overlapping[:100])
    distances = squared_distances(later, overlapping)
    np.testing.assert_array_equal(later.predict(overlapping), distances.argmin(axis=1))


def test_streamed_rows_keep_the_bound_within_the_planned_passes(unequal):
    rows = da.from_array(unequal, chunks=(500, 4))
    model = KMeans(6, random_state=0, max_cluster_size=1.5)
    most = model.plan(rows).max_passes
    model.fit(rows)
    assert np.bincount(model.labels_.compute()).max() <= 1.5 * len(unequal) / 6
    assert model.n_passes_ <= most


def test_weights_count_in_sizes(unequal):
    weights = np.where(np.arange(len(unequal)) % 2, 2.0, 1.0)
    model = KMeans(6, random_state=0, max_cluster_size=1.5).fit(unequal, sample_weight=weights)
    sizes = np.bincount(model.labels_, weights, minlength=6)
    assert sizes.max() <= 1.5 * weights.sum() / 6


def test_one_cluster_holds_all_rows_though_sums_of_weights_are_rounded():
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(70_001, 2)), 1e3 * rng.random(70_001) ** 4
    model = KMeans(1, random_state=0, max_cluster_size=1.0).fit(rows, sample_weight=weights)
    assert model.cluster_sizes_[0] == pytest.approx(weights.sum())


def test_a_bound_that_holds_anyway_changes_nothing(unequal):
    bounded, free = fitted(KMeans, unequal, len(unequal)), fitted(KMeans, unequal, None)
    np.testing.assert_array_equal(bounded.cluster_centers_, free.cluster_centers_)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["student", "lognormal"])
@pytest.mark.filterwarnings("ignore:.*far from all others")
def test_far_clusters_of_few_rows_take_those_that_others_may_not_have(kind, seed):
    rng = np.random.default_rng(seed)
    draws = {"student": rng.standard_t(2, (2000, 3)), "lognormal": rng.lognormal(0, 1.5, (2000, 3))}
    model = KMeans(4, max_cluster_size=1.3, random_state=0).fit(draws[kind])
    assert model.cluster_sizes_.max() <= 1.3 * 500


def test_identical_rows_are_warned_of():
    rows = np.repeat([[0.0], [5.0], [6.0]], [50, 5, 5], axis=0)
    with pytest.warns(ConvergenceWarning, match=r"max_cluster_size=1\.5 is not met.* size 50"):
        KMeans(3, random_state=0, max_cluster_size=1.5, standardize=False).fit(rows)


def test_a_bound_below_the_mean_size_is_refused(unequal):
    with pytest.raises(ValueError, match=r"max_cluster_size=100 is too small: .* 500 each"):
        fitted(KMeans, unequal, 100)


@pytest.mark.parametrize(
    "settings", [{"distortion": "manhattan"}, {"trim": 0.1}, {"missing": "partial"}]
)
def test_fits_whose_sizes_cannot_be_bounded_are_refused(unequal, settings):
    with pytest.raises(ValueError, match=r"max_cluster_size=2\.0 needs complete rows"):
        fitted(KMeans, unequal, 2.0, **settings)
    with pytest.raises(ValueError, match=r"max_cluster_size=2\.0 needs complete rows"):
        KMeans(6, max_cluster_size=2.0, **settings).plan(unequal)


@pytest.mark.long
def test_a_resumed_fit_ends_as_an_uninterrupted_one(unequal, tmp_path):
    def stop_at(record):
        if record.iteration == last:
            raise KeyboardInterrupt

    whole = fitted(KMeans, unequal, 1.5)
    for last in range(whole.n_iter_ - 3, whole.n_iter_):
        path = tmp_path / f"{last}.daskmm"
        with pytest.raises(KeyboardInterrupt):
            fitted(KMeans, unequal, 1.5, checkpoint=path, callbacks=[stop_at])
        again = fitted(KMeans, unequal, 1.5, checkpoint=path)
        np.testing.assert_array_equal(again.cluster_centers_, whole.cluster_centers_)


@pytest.mark.long
def test_the_smallest_of_all_rounds_is_kept_where_the_bound_is_out_of_reach(unequal):
    rows = np.concatenate([unequal[:1500], np.repeat(unequal[:1], 600, axis=0)])
    with pytest.warns(ConvergenceWarning, match="is not met"):
        tight = fitted(KMeans, rows, 1.2)
    free = fitted(KMeans, rows, None)
    assert tight.cluster_sizes_.max() < 0.9 * free.cluster_sizes_.max()
    np.testing.assert_array_equal(tight.cluster_sizes_, np.bincount(tight.labels_))


def test_integers_are_sizes_and_numbers_are_multiples_of_the_mean():
    assert largest_weight(2, 100.0, 10) == 2.0
    assert largest_weight(np.int64(2), 100.0, 10) == 2.0
    assert largest_weight(2.0, 100.0, 10) == 20.0
    assert largest_weight(np.float32(2.0), 100.0, 10) == 20.0
    assert largest_weight(None, 100.0, 10) == np.inf


def test_the_cheapest_mergers_are_those_of_a_naive_search():
    rng = np.random.default_rng(1)
    centers, weights = rng.normal(size=(8, 3)), rng.integers(1, 9, size=8).astype(float)
    best, first = np.inf, None
    for i in range(8):
        for j in range(i):
            cost = weights[i] * weights[j] / (weights[i] + weights[j])
            cost *= np.square(centers[i] - centers[j]).sum()
            if cost < best and weights[i] + weights[j] <= 9.5:
                best, first = cost, {i, j}
    [pair] = _pairs_to_merge(CenterState(centers, -np.inf), weights, 10.0, 1)
    assert set(pair) == first


def test_a_division_keeps_the_number_of_clusters_and_the_mean_of_merged_ones():
    rows = np.array([[0.0], [1.0], [0.1], [0.9], [10.0], [12.0]])
    state = CenterState(np.array([[0.5], [10.0], [12.0]]), -np.inf)
    after = with_divided_clusters(
        state, np.array([4.0, 1.0, 1.0]), 3.0, Sample(rows, np.ones(6)), 0
    )
    np.testing.assert_allclose(np.sort(after.centers.ravel()), [0.05, 0.95, 11.0], atol=1e-3)


def test_a_division_of_rows_in_order_sees_all_of_their_groups():
    rng = np.random.default_rng(0)
    groups = np.repeat([0.0, 10.0], [5000, 1000])  # the first rows are of one group
    rows = np.append(groups, [100.0, 101.0])[:, None] + 0.1 * rng.normal(size=(6002, 1))
    state = CenterState(np.array([[5.0], [100.0], [101.0]]), -np.inf)
    sample = Sample(rows, np.ones(len(rows)))
    after = with_divided_clusters(state, np.array([6000.0, 1.0, 1.0]), 5500.0, sample, 0)
    np.testing.assert_allclose(np.sort(after.centers.ravel()), [0.0, 10.0, 100.5], atol=0.05)


def test_plans_name_the_time_of_offsets(unequal):
    times = KMeans(6, max_cluster_size=1.2).plan(unequal, measure=True).stages
    assert {"large clusters", "offsets"} <= set(times)
    assert "" not in times


def test_plans_count_the_auctions_of_offsets():
    rows = np.random.default_rng(0).normal(size=(100_000, 8))  # 20,000 of them in the sample
    took = {k: KMeans(k, max_cluster_size=1.2).plan(rows).stages["offsets"] for k in (20, 200)}
    # Each of eight auctions takes 20 µs per row of the sample, and before it .03 µs per cluster.
    assert took[20] > 8 * 10_000 * (2e-5 + 20 * 3e-8)
    assert took[200] > 8 * 20_000 * (2e-5 + 200 * 3e-8)
