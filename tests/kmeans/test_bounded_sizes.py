"""Bounds of the sizes of clusters."""

import dask.array as da
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
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


def test_rows_have_their_nearest_centre_and_the_cost_is_theirs(unequal):
    model = fitted(KMeans, unequal, 1.5)
    scaled, centers = unequal / model.scale_, model.cluster_centers_ / model.scale_
    distances = np.square(scaled[:, None] - centers).sum(axis=2)
    np.testing.assert_array_equal(model.labels_, distances.argmin(axis=1))
    assert model.inertia_ == pytest.approx(distances.min(axis=1).sum())
    np.testing.assert_array_equal(model.predict(unequal), model.labels_)


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


def test_the_smallest_of_all_rounds_is_kept_where_the_bound_is_out_of_reach(unequal):
    with pytest.warns(ConvergenceWarning, match="is not met"):
        tight = fitted(KMeans, unequal, 1.01)
    free = fitted(KMeans, unequal, None)
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
