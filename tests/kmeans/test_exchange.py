"""Exchanges of clusters: divisions and mergers at an equal number of clusters."""

import inspect

import dask
import dask.array as da
import numpy as np
import pytest
from sklearn.datasets import load_digits

from daskmm import KMeans, PowerKMeans
from daskmm.kmeans import sample_annealing
from daskmm.kmeans.exchange import _mergers, divided_in_two, with_exchanged_clusters
from daskmm.mm.checkpoint import Checkpoint

RNG = np.random.default_rng(0)


def cost(rows, centers, weights):
    return weights @ np.square(rows[:, None] - centers).sum(axis=2).min(axis=1)


def nearest(rows, centers):
    return np.square(rows[:, None] - centers).sum(axis=2).argmin(axis=1)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_gain_of_a_division_is_the_fall_of_the_cost_to_the_means_of_its_parts(dtype):
    rows = RNG.normal(size=(60, 3)).astype(dtype)
    weights, labels = RNG.uniform(0.5, 2.0, 60), RNG.integers(4, size=60)
    means = np.array([np.average(rows[labels == j], 0, weights[labels == j]) for j in range(4)])
    parts = divided_in_two(rows, weights, labels, means)
    for j in range(4):
        own, v = rows[labels == j].astype(float), weights[labels == j]
        both = np.stack([parts.first[j], parts.second[j]])
        fall = cost(own, means[[j]], v) - cost(own, both, v)
        assert 0 < parts.gains[j] <= fall * (1 + 1e-5)
        assert parts.gains[j] > 0.5 * fall


def test_the_cost_of_a_merger_is_the_rise_of_the_cost_to_the_mean_of_both():
    rows, labels = RNG.normal(size=(50, 4)), np.repeat(np.arange(5), 10)
    means = np.array([rows[labels == j].mean(axis=0) for j in range(5)])
    found = {(i, j): rise for rise, i, j in _mergers(means, np.full(5, 10.0))}
    for i in range(5):
        for j in range(i + 1, 5):
            pair = rows[(labels == i) | (labels == j)]
            rise = cost(pair, pair.mean(axis=0)[None], np.ones(20))
            rise -= sum(np.square(rows[labels == own] - means[own]).sum() for own in (i, j))
            assert found[i, j] == pytest.approx(rise)


def test_a_centre_moves_from_a_divided_group_to_two_groups_with_one_centre():
    groups = np.array([[0.0, 0.0], [50.0, 0.0], [50.0, 9.0], [0.0, 50.0]])
    rows = np.concatenate([group + RNG.normal(size=(200, 2)) for group in groups])
    centers = np.array([[-1.0, 0.0], [1.0, 0.0], [50.0, 4.5], [0.0, 50.0]])
    moved = with_exchanged_clusters(rows, np.ones(800), nearest(rows, centers), centers)
    assert np.abs(groups[:, None] - moved).max(axis=2).min(axis=1).max() < 0.5


def test_clusters_of_separate_groups_are_not_exchanged():
    groups = 50.0 * RNG.normal(size=(6, 3))
    rows = np.concatenate([group + RNG.normal(size=(50, 3)) for group in groups])
    labels = np.repeat(np.arange(6), 50)
    assert with_exchanged_clusters(rows, np.ones(300), labels, groups) is None
    assert with_exchanged_clusters(rows, np.ones(300), labels % 2, groups[:2]) is None


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_exchanges_lower_the_cost_of_real_images_by_more_than_half_a_percent(cls, monkeypatch):
    X = load_digits().data
    settings = {"n_init": 1, "random_state": 0, "standardize": False}
    found = cls(60, **settings).fit(X)
    monkeypatch.setattr(sample_annealing, "with_exchanged_clusters", lambda *arguments: None)
    assert found.inertia_ < 0.995 * cls(60, **settings).fit(X).inertia_


def test_empty_clusters_and_equal_rows_are_exchanged_without_a_warning():
    rows = np.repeat([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]], 20, axis=0)
    centers = np.array([[0.5, 0.0], [9.0, 9.0], [9.0, 9.0], [30.0, 0.0]])
    moved = with_exchanged_clusters(rows, np.ones(60), nearest(rows, centers), centers)
    assert np.isfinite(moved).all()
    assert cost(rows, moved, np.ones(60)) == 0.0


def test_exchanges_count_among_the_iterations_that_the_sample_may_have():
    X = load_digits().data
    few = KMeans(60, n_init=1, random_state=0, max_iter=12, tol=0.0).fit(X)
    assert sum(not record.exact for record in few.history_) <= 12


@pytest.mark.parametrize("unit", [1e-30, 1e20])
def test_costs_scale_with_the_weights_of_rows_in_single_precision(unit):
    X = RNG.normal(size=(3000, 4)).astype("f4")
    settings = {"random_state": 0, "standardize": False}
    weights = RNG.uniform(0.5, 2.0, 3000)
    one, other = (
        KMeans(150, **settings).fit(X, sample_weight=scale * weights).inertia_
        for scale in (1.0, unit)
    )
    assert other / unit == pytest.approx(one, rel=1e-3)


def test_large_values_in_single_precision_are_exchanged_without_a_warning():
    X = RNG.normal(size=(3000, 4)).astype("f4")
    settings = {"random_state": 0, "standardize": False}
    costs = [KMeans(150, **settings).fit(np.float32(u) * X).inertia_ / u**2 for u in (1.0, 2.0**50)]
    assert costs[1] == pytest.approx(costs[0], rel=1e-3)


@pytest.mark.parametrize("stage", ["exchanged", "converged"])
def test_an_interrupt_of_a_stage_on_the_sample_keeps_a_model(stage, monkeypatch):
    whole = sample_annealing.tree_reduce

    def interrupted(*arguments):
        if any(frame.function == stage for frame in inspect.stack(0)):
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(sample_annealing, "tree_reduce", interrupted)
    model = KMeans(40, random_state=0, n_init=1)
    with pytest.raises(KeyboardInterrupt):
        model.fit(load_digits().data)
    assert len(model.cluster_centers_) == 40


@pytest.mark.in_turn("call")
@pytest.mark.parametrize("call", [5, 3, 8])
def test_a_fit_that_is_killed_between_exchanges_resumes_to_the_same_bits(call, tmp_path):
    X, settings = load_digits().data, {"random_state": 0, "n_init": 1}
    whole = KMeans(60, **settings).fit(X)
    entered, keep = [], Checkpoint.keep

    def killed(self, *arguments, **options):
        keep(self, *arguments, **options)
        entered.append(self)
        if len(entered) == call:
            raise RuntimeError("killed")

    settings |= {"checkpoint": str(tmp_path / "kept"), "checkpoint_every": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "keep", killed)
        with pytest.raises(RuntimeError, match="killed"):
            KMeans(60, **settings).fit(X)
    resumed = KMeans(60, **settings).fit(X)
    np.testing.assert_array_equal(resumed.cluster_centers_, whole.cluster_centers_)


@pytest.mark.long
@pytest.mark.parametrize("chunks", [400, 1797])
def test_fits_with_exchanges_do_not_depend_on_chunks_or_the_scheduler(chunks):
    # Integers have ties, which rounding decides.
    X = load_digits().data + RNG.normal(0.0, 0.1, (1797, 64))
    settings = {"random_state": 0, "n_init": 1}
    whole = KMeans(60, **settings).fit(X)
    for scheduler in ("threads", "synchronous"):
        with dask.config.set(scheduler=scheduler):
            found = KMeans(60, **settings).fit(da.from_array(X, chunks=(chunks, 64)))
        np.testing.assert_allclose(found.cluster_centers_, whole.cluster_centers_, atol=1e-9)
