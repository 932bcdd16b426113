"""Drift of partitions that arrive one after the other."""

import re

import dask.array as da
import numpy as np
import pytest
from _support import ESTIMATORS, blobs, counting_computes, quick
from scipy import stats

import daskmm
from daskmm import KMeans
from daskmm.cluster._monitor import Monitor
from daskmm.numerics.drift import ClusterSums, center_shifts, cost_p_values, share_p_values


def stream(k=20, p=8, seed=0, separation=8.0):
    """A function that draws rows of k normal clusters with correlated features."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(k, p)) * separation / np.sqrt(2)
    mix = np.linalg.qr(rng.normal(size=(p, p)))[0] * np.linspace(0.3, 1.0, p)

    def draw(n, shift=0.0, cluster=0):
        truth = rng.integers(k, size=n)
        rows = centers[truth] + rng.normal(size=(n, p)) @ mix
        direction = mix[-1] * shift  # along the direction of standard deviation 1
        return rows + np.where(truth == cluster, 1.0, 0.0)[:, None] * direction

    return draw, centers


def false_alarms(runs, looks, rows):
    """Share of streams without drift in which any look finds one."""
    alarms = 0
    for seed in range(runs):
        draw, centers = stream(k=5, p=4, seed=seed, separation=4.0)
        reference = draw(5000)
        model = KMeans(5, init=centers, random_state=0).fit(reference)
        watch = daskmm.monitor(model, reference)
        alarms += any(watch.look(draw(rows)).drifted for _ in range(looks))
    return alarms / runs


def test_a_quiet_stream_raises_no_alarm():
    assert false_alarms(runs=2, looks=25, rows=400) == 0


@pytest.mark.long
def test_false_alarms_over_two_hundred_looks_are_rare():
    assert false_alarms(runs=10, looks=200, rows=500) <= 0.05


@pytest.mark.parametrize("seed", range(3))
def test_a_small_shift_of_one_cluster_is_found(seed):
    draw, centers = stream(seed=seed)
    reference = draw(100_000)
    model = KMeans(20, init=centers, max_iter=20).fit(reference)
    watch = daskmm.monitor(model, reference)
    assert not any(watch.look(draw(10_000)).drifted for _ in range(5))
    look = watch.look(draw(40_000, shift=0.3, cluster=7))
    assert look.drifted
    assert re.match(r"centre of cluster 7 \(0\.\d+ standard deviations away, p = ", look.reasons[0])
    assert look.shifts[7] == pytest.approx(0.3, abs=0.1)


def test_one_bad_partition_does_not_spoil_those_that_follow():
    draw, centers = stream(k=5, p=4)
    reference = draw(5000)
    watch = daskmm.monitor(KMeans(5, init=centers, max_iter=20).fit(reference), reference)
    assert watch.look(draw(2000) + 0.5).drifted
    assert not watch.look(draw(2000)).drifted


def test_slow_drift_is_found_in_all_partitions_together():
    draw, centers = stream(k=5, p=4)
    reference = draw(50_000)
    model = KMeans(5, init=centers, max_iter=20).fit(reference)
    watch = daskmm.monitor(model, reference)
    found = [watch.look(draw(200, shift=0.5, cluster=2)).drifted for _ in range(60)]
    assert not found[0]
    assert found[-1]


def test_changes_of_shares_and_of_spread_are_told_apart():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=4000)
    rows = rng.normal(size=(4000, 3)) + 20.0 * truth[:, None]
    model = KMeans(2, random_state=0).fit(rows)
    low = model.predict(np.zeros((1, 3)))[0]
    wide = daskmm.monitor(model, rows).look(
        rows + rng.normal(size=rows.shape) * (truth == 0)[:, None]
    )
    assert wide.p_values[1, low] < 0.05 < wide.p_values[0].min()
    fewer = daskmm.monitor(model, rows).look(rows[(truth == 0) | (rng.random(4000) < 0.5)])
    assert (fewer.p_values[0] < 0.05).all()
    assert fewer.p_values[1:].min() > 0.05
    assert fewer.table.loc[low, "share"] == pytest.approx(2 / 3, abs=0.03)


def test_sums_are_those_of_loops_and_add_up():
    rng = np.random.default_rng(0)
    rows, labels, distances = rng.normal(size=(50, 3)), rng.integers(-1, 4, 50), rng.random(50)
    whole = ClusterSums.of(rows, labels, distances, 4)
    parts = ClusterSums.of(rows[:20], labels[:20], distances[:20], 4) + ClusterSums.of(
        rows[20:], labels[20:], distances[20:], 4
    )
    for name in ("counts", "sums", "products", "distances", "squares"):
        np.testing.assert_allclose(getattr(whole, name), getattr(parts, name))
    for j in range(4):
        own = rows[labels == j]
        np.testing.assert_allclose(whole.products[j], sum(np.outer(row, row) for row in own))
        assert whole.counts[j] == len(own)


def test_p_values_of_one_cluster_are_the_textbooks():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(80, 1)), rng.normal(0.3, 1.0, size=(60, 1))
    sums = [ClusterSums.of(rows, np.zeros(len(rows), int), rows[:, 0], 1) for rows in (a, b)]
    expected = stats.ttest_ind(a[:, 0], b[:, 0]).pvalue
    assert cost_p_values(*sums)[0] == pytest.approx(expected)
    assert center_shifts(*sums)[1][0] == pytest.approx(expected)  # T² of one feature is t²
    assert share_p_values(*sums)[0] == pytest.approx(1.0)


def test_p_values_without_drift_are_uniform():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        sums = []
        for n in (400, 100):
            labels = rng.integers(3, size=n)
            rows = rng.normal(size=(n, 5)) @ np.diag([1, 1, 0.1, 5, 0])
            sums.append(ClusterSums.of(rows, labels, rng.gamma(5, size=n), 3))
        found.append([f(*sums)[0] for f in (share_p_values, cost_p_values)])
        found[-1].append(center_shifts(*sums)[1][0])
    below = (np.array(found) < 0.1).mean(axis=0)
    np.testing.assert_allclose(below[1:], 0.1, atol=0.05)
    assert below[0] <= 0.15


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_lazy_partitions_take_one_pass_and_give_the_same(cls):
    X, _ = blobs(800)
    model = quick(cls).fit(X[:400])
    here = daskmm.monitor(model, X[:400])
    there = daskmm.monitor(model, da.from_array(X[:400], chunks=(90, -1)))
    with counting_computes() as computes:
        lazy = there.look(da.from_array(X[400:], chunks=(70, -1)))
    assert len(computes) == 1
    whole = here.look(X[400:])
    np.testing.assert_allclose(lazy.p_values, whole.p_values, rtol=1e-6)
    np.testing.assert_allclose(lazy.shifts, whole.shifts, rtol=1e-6)


def test_a_monitor_goes_on_after_it_was_saved(tmp_path):
    X, _ = blobs(900)
    model = quick(KMeans).fit(X[:300])
    one = daskmm.monitor(model, X[:300])
    one.look(X[300:600])
    one.save(tmp_path / "monitor")
    two = Monitor.load(tmp_path / "monitor", model)
    np.testing.assert_array_equal(one.look(X[600:]).p_values, two.look(X[600:]).p_values)
    assert [look.number for look in two.looks] == [1, 2]


def test_a_model_that_has_changed_needs_another_reference(tmp_path):
    X, _ = blobs(1200)
    model = quick(KMeans).fit(X[:300])
    watch = daskmm.monitor(model, X[:300])
    watch.look(X[300:600])
    moved = X[600:] + 0.5
    model.partial_fit(moved[:300])
    watch.save(tmp_path / "monitor")
    for each in (watch, Monitor.load(tmp_path / "monitor", model)):
        with pytest.raises(ValueError, match="renew"):
            each.look(moved[300:])
    other = daskmm.monitor(model, moved[:300])
    look = watch.renew(moved[:300]).look(moved[300:])
    # The level that looks have spent stays spent.
    assert look.number == 2
    np.testing.assert_allclose(
        look.p_values, np.minimum(3 * other.look(moved[300:]).p_values, 1.0), rtol=1e-12
    )
    assert not look.drifted


@pytest.mark.long
def test_false_alarms_over_many_references_are_rare():
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(40):
        kind = rng.integers(3, size=2000)
        X = rng.normal(size=(2000, 3)) + 6.0 * kind[:, None]
        model = KMeans(3, n_init=1, random_state=0, forget="2 calls").fit(X[:500])
        watch = daskmm.monitor(model, X[:500])
        looks = []
        for start in range(500, 2000, 250):
            night = X[start : start + 250]
            looks.append(watch.look(night).drifted)
            model.partial_fit(night)
            watch.renew(night)
        alarms += any(looks)
    assert alarms <= 4  # 2 in the mean, at most


def test_wrong_models_and_levels_are_refused():
    X, _ = blobs()
    with pytest.raises(ValueError, match="level must be a probability"):
        daskmm.monitor(quick(KMeans).fit(X), X, level=5)
    shift = daskmm.WeightedBlurringMeanShift(bandwidth=0.1).fit(X[:50])
    with pytest.raises(TypeError, match="not WeightedBlurringMeanShift"):
        daskmm.monitor(shift, X)


def test_wide_rows_are_watched_in_random_directions():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 60)) + 10 * rng.integers(2, size=(3000, 1))
    model = KMeans(2, random_state=0).fit(rows[:1500])
    watch = daskmm.monitor(model, rows[:1500])
    assert watch.reference.sums.shape == (2, 32)
    assert not watch.look(rows[1500:]).drifted
    assert watch.look(rows[1500:] + 0.3).drifted
