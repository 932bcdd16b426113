"""The first power of an annealing to many clusters."""

import numpy as np
import pytest

from daskmm import KMeans, PowerKMeans
from daskmm.engine.first_pass import MANY_CLUSTERS
from daskmm.kmeans.method import RELAXATIONS


def first_power(k, **parameters):
    rng = np.random.default_rng(0)
    # Neighbours differ in all features, the whole table mostly in one.
    places = rng.normal(size=(k, 6)) * [50, 1, 1, 1, 1, 1]
    X = (places[:, None] + 0.2 * rng.normal(size=(k, 12, 6))).reshape(-1, 6)
    settings = {"n_init": 1, "sample_size": None, "standardize": False, "random_state": 0}
    model = PowerKMeans(k, **settings, **parameters).fit(X)
    return model.history_[0].s


def test_the_first_power_is_chosen_around_the_starting_centres_of_many_clusters():
    assert first_power(MANY_CLUSTERS // 4) == -1
    # Isotropic noise of 6 features: about 2·(1 − 6 / 2).
    assert first_power(MANY_CLUSTERS) == pytest.approx(-4, abs=1)


def test_a_first_power_that_is_given_is_kept():
    assert first_power(MANY_CLUSTERS, s0=-1.5) == -1.5


def fits(X):
    """KMeans and PowerKMeans, one start each, on all rows."""
    settings = {"n_init": 1, "sample_size": None, "standardize": False, "random_state": 0}
    return (cls(300, **settings).fit(X) for cls in (KMeans, PowerKMeans))


@pytest.mark.in_turn("seed")
@pytest.mark.parametrize("seed", range(3))
def test_one_start_of_many_clusters_ends_no_higher_than_its_hard_steps(seed):
    rng = np.random.default_rng(seed)
    X = 3.0 * rng.normal(size=(300, 8))[rng.integers(300, size=9000)]
    hard, annealed = fits(X + 0.6 * rng.normal(size=X.shape))
    assert annealed.inertia_ <= hard.inertia_


@pytest.mark.long
def test_hard_steps_that_will_not_end_lower_are_few():
    X = np.random.default_rng(0).normal(size=(9000, 8)) * np.linspace(1.0, 0.1, 8)
    hard, annealed = fits(X)
    assert annealed.inertia_ < 0.99 * hard.inertia_
    # Besides the first pass and that of the labels; over-relaxed steps are taken in any case.
    most = 8 + len(RELAXATIONS)
    assert annealed.n_passes_ - len(annealed.history_) - 2 <= most < hard.n_iter_


def test_hard_steps_whose_cost_falls_late_are_not_ended_early():
    rng = np.random.default_rng(373)
    noise, p, n = rng.uniform(0.3, 1.0), int(rng.integers(4, 12)), int(rng.choice([2000, 5000]))
    centers = rng.normal(size=(256, p))
    X = 3.0 * centers[rng.integers(256, size=n)] + noise * rng.normal(size=(n, p))
    settings = {"n_init": 1, "sample_size": None, "standardize": False, "random_state": 0}
    hard, annealed = (cls(256, **settings).fit(X) for cls in (KMeans, PowerKMeans))
    assert annealed.inertia_ <= hard.inertia_


@pytest.mark.long
@pytest.mark.parametrize("left", [2, 4])
def test_a_resumed_fit_ends_hard_steps_where_an_unstopped_one_does(tmp_path, left):
    X = np.random.default_rng(0).normal(size=(6000, 8)) * np.linspace(1.0, 0.1, 8)
    calls = []

    def fit(callback, name):
        settings = {"n_init": 1, "standardize": False, "random_state": 0, "sample_size": None}
        settings |= {"checkpoint": str(tmp_path / name), "callbacks": [callback]}
        return PowerKMeans(300, **settings).fit(X)

    def die(record):
        calls.pop()
        if len(calls) == left:
            raise RuntimeError("killed")

    whole = fit(calls.append, "whole")
    costs = [record.inertia for record in calls]
    assert len(calls) - len(whole.history_) >= 3  # hard steps that did not win
    with pytest.raises(RuntimeError, match="killed"):
        fit(die, "killed")
    later = []
    resumed = fit(later.append, "killed")
    assert resumed.inertia_ == whole.inertia_
    # Steps over listed centres are taken again from the last step over all centres.
    assert len(later) >= left
    assert [record.inertia for record in later] == costs[-len(later) :]


def test_rows_that_exceed_single_precision_once_centred_have_finite_centres():
    rng = np.random.default_rng(0)
    low = rng.random((6000, 1)) < 0.1
    X = np.where(low, -rng.uniform(0.8, 1.0, (6000, 4)), rng.uniform(0.8, 1.0, (6000, 4)))
    model = PowerKMeans(300, n_init=1, standardize=False, random_state=0)
    model.fit((3e38 * X).astype("f4"))
    assert np.isfinite(model.cluster_centers_).all()


def test_many_clusters_of_large_values_in_single_precision_cost_what_small_ones_do():
    rows = np.random.default_rng(0).normal(size=(6000, 8)).astype(np.float32)
    large, small = (
        KMeans(300, n_init=1, random_state=0, standardize=False).fit(scale * rows).inertia_
        for scale in (np.float32(1e17), np.float32(1.0))
    )
    assert large / 1e34 == pytest.approx(small, rel=5e-3)
