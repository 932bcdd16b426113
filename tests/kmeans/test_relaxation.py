"""Over-relaxed hard steps of many clusters."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from daskmm import KMeans
from daskmm.kmeans.method import RELAXATIONS
from daskmm.kmeans.updates import PowerUpdate, sample_problem
from daskmm.mm.driver import Schedule, minimize


@pytest.fixture(scope="module")
def digits():
    return load_digits().data.astype(np.float32)


@pytest.fixture(scope="module")
def of_256(digits):
    return KMeans(256, n_init=1, sample_size=None, random_state=0).fit(digits)


def test_many_clusters_are_relaxed_and_few_are_not(digits, of_256):
    few = KMeans(255, n_init=1, sample_size=None, random_state=0).fit(digits)
    assert of_256.inertia_ < 0.998 * few.inertia_  # one cluster more lowers the cost by .001


@pytest.mark.in_turn("seed")
@pytest.mark.parametrize("seed", range(3))
def test_the_cost_of_relaxed_steps_never_rises(digits, seed):
    start = {"init": "random", "n_init": 1, "random_state": seed}
    model = KMeans(300, sample_size=None, **start).fit(digits)
    costs = [record.inertia for record in model.history_]
    assert np.diff(costs).max() <= 1e-9 * costs[0]


def test_the_cost_of_relaxed_steps_never_rises_on_the_sphere():
    # Rows of a cluster differ much, so the mean of their directions is short.
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 30))[rng.integers(0, 500, 4_000)]
    rows = (rows + 1.5 * rng.normal(size=rows.shape)).astype(np.float32)
    model = KMeans(
        300, distortion="cosine", init="random", n_init=1, sample_size=None, random_state=0
    ).fit(rows)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    sums = [units[model.labels_ == label].sum(axis=0) for label in range(300)]
    lengths = np.linalg.norm(sums, axis=1)
    costs = [record.inertia for record in model.history_]
    assert np.diff(costs).max() <= 1e-6 * costs[0]
    assert model.inertia_ == pytest.approx(len(rows) - lengths.sum(), rel=0.01)


def test_converged_centres_are_the_means_of_their_clusters(digits):
    model = KMeans(256, n_init=1, random_state=0, tol=0.0).fit(digits)
    means = [digits[model.labels_ == label].mean(axis=0) for label in range(256)]
    np.testing.assert_allclose(model.cluster_centers_, means, atol=1e-5)


def test_relaxed_steps_end_lower_than_those_to_the_means(digits):
    rows, weights, lower = digits.astype(np.float64), np.ones(len(digits)), 0
    for seed in range(5):
        start = rows[np.random.default_rng(seed).choice(len(rows), 256, replace=False)]
        plain, relaxed = (
            minimize(
                sample_problem(rows, weights, PowerUpdate()),
                [start],
                Schedule(-np.inf, relaxations=factors),
            )
            for factors in ((), RELAXATIONS)
        )
        lower += relaxed.inertia < plain.inertia
    assert lower == 5


def test_the_last_iteration_goes_to_the_means():
    schedule = Schedule(-np.inf, max_iter=20, relaxations=RELAXATIONS)
    factors = [schedule.relaxation(n, 20 - n) for n in range(20)]
    assert factors[: len(RELAXATIONS)] == list(RELAXATIONS)
    assert factors[-2:] == [1.5, 1.0]
    assert [schedule.relaxation(n, 3 - n) for n in range(3)] == [1.5, 1.5, 1.0]


@pytest.mark.long
def test_a_killed_fit_resumes_with_the_factors_that_are_left(digits, of_256, tmp_path):
    settings = {"sample_size": None, "random_state": 0, "n_init": 1}
    settings |= {"checkpoint": str(tmp_path / "kept")}
    calls = []

    def killed(record):
        calls.append(record)
        if len(calls) == 6:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        KMeans(256, **settings, callbacks=[killed]).fit(digits)
    resumed = KMeans(256, **settings).fit(digits)
    assert resumed.inertia_ == of_256.inertia_
    np.testing.assert_array_equal(resumed.cluster_centers_, of_256.cluster_centers_)
