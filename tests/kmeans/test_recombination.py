"""Starts made of what several solutions found."""

import dask.array as da
import numpy as np
import pytest
from sklearn.cluster import KMeans as ScikitKMeans

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.kmeans.sample_annealing import are_alike, cheapest, recombinations
from daskmm.kmeans.sums import CenterState
from daskmm.mm.driver import Run

TRUE = np.array([[0.0, 0.0], [0.0, 50.0], [50.0, 0.0], [50.0, 50.0]])


def ended(centers, cost, feature_weights=None):
    return Run(CenterState(np.asarray(centers), -np.inf, feature_weights), "done", last=cost)


def seeds(n):
    return np.random.SeedSequence(0).spawn(n)


def mixture(n_clusters, seed, n_rows=24_000, p=20):
    rng = np.random.default_rng(seed)
    centers = 3.0 * rng.normal(size=(n_clusters, p))
    return centers[rng.integers(n_clusters, size=n_rows)] + rng.normal(size=(n_rows, p))


def test_runs_that_each_found_half_of_the_clusters_recombine_to_all():
    # Each has found two clusters, and cut both.
    left = ended([TRUE[0], TRUE[1], TRUE[0] + 0.1, TRUE[1] + 0.1], 10.0)
    right = ended([TRUE[2], TRUE[3], TRUE[2] + 0.1, TRUE[3] + 0.1], 10.1)
    poor = ended([TRUE[0], TRUE[0] + 0.2, TRUE[0] - 0.2, TRUE[1]], 20.0)
    for start in recombinations([left, right, poor], seeds(10)):
        nearest = np.abs(TRUE[:, None] - start.centers).max(axis=2).min(axis=1)
        assert nearest.max() < 1.0


def test_recombined_starts_are_hard_and_have_the_weights_of_the_cheapest():
    cheap, dear = np.array([0.9, 0.1]), np.array([0.1, 0.9])
    runs = [ended(TRUE[:2], 2.0, dear), ended(TRUE[2:], 1.0, cheap)]
    for start in recombinations(runs, seeds(3)):
        assert start.s == -np.inf
        np.testing.assert_array_equal(start.feature_weights, cheap)
        assert {tuple(center) for center in start.centers} <= {tuple(row) for row in TRUE}


def test_weights_decide_which_centres_are_apart():
    # In the second feature, which does not count, all centres are far from each other.
    weights = np.array([1.0, 0.0])
    first = ended([[0.0, 0.0], [0.0, 100.0]], 1.0, weights)
    second = ended([[1.0, 0.0], [1.0, 100.0]], 2.0, weights)
    for start in recombinations([first, second], seeds(10)):
        assert set(start.centers[:, 0]) == {0.0, 1.0}


def test_runs_of_equal_cost_are_alike_and_keep_their_order():
    runs = [ended(TRUE, cost) for cost in (2.0, 1.0, 1.0 + 1e-12, 3.0)]
    assert not are_alike(runs)
    assert are_alike(runs[1:3])
    assert [run.last for run in cheapest(runs, 3)] == [1.0, 1.0 + 1e-12, 2.0]
    assert are_alike([ended(TRUE, -1.0), ended(TRUE, -1.0)])


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
@pytest.mark.long
def test_all_of_many_separated_clusters_are_found(cls):
    rows = mixture(60, seed=0)
    model = cls(60, sample_size=6000, random_state=0).fit(da.from_array(rows, chunks=(5000, -1)))
    peer = ScikitKMeans(60, n_init=8, random_state=0).fit(rows)
    assert model.inertia_ <= peer.inertia_
    # The variance is 1 in each feature where each cluster has a centre of its own.
    assert model.inertia_ / rows.size < 1.005
    assert model.n_passes_ <= 7


@pytest.mark.long
def test_the_same_seed_gives_the_same_model():
    rows = mixture(30, seed=1, n_rows=6000)
    for cls in (PowerKMeans, EntropyPowerKMeans):
        first, second = (cls(30, sample_size=1500, random_state=3).fit(rows) for _ in range(2))
        np.testing.assert_array_equal(first.cluster_centers_, second.cluster_centers_)
        assert first.history_[0].iteration == 1


def test_a_fit_from_one_start_recombines_nothing(monkeypatch):
    def fail(*arguments):
        raise AssertionError("nothing to be combined")

    monkeypatch.setattr("daskmm.kmeans.sample_annealing.recombinations", fail)
    rows = mixture(10, seed=2, n_rows=3000)
    KMeans(10, n_init=1, sample_size=1000, random_state=0).fit(rows)
    KMeans(10, init=rows[:10], sample_size=1000).fit(rows)
