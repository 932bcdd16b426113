"""Exchanges of clusters: divisions and mergers at an equal number of clusters."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from daskmm import KMeans, PowerKMeans
from daskmm.kmeans import sample_annealing
from daskmm.kmeans.exchange import _mergers, divided_in_two, with_exchanged_clusters

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
        for j in set(range(5)) - {i}:
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
