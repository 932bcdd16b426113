"""Steps on kept rows between the reads of a streamed table."""

import dask.array as da
import numpy as np
import pytest
from _naive import squared_distances
from _support import CountingSource

from daskmm import KMeans, PowerKMeans
from daskmm.kmeans.between_reads import StreamedProblem, steps_between_reads
from daskmm.kmeans.method import Method
from daskmm.kmeans.updates import PowerUpdate, sample_problem

N, P, K = 600, 3, 7


def cost_and_sums(rows, centers):
    """Cost, and weight and sum of each cluster, by all distances."""
    distances = squared_distances(rows, centers)
    labels = distances.argmin(axis=1)
    weights = np.bincount(labels, minlength=len(centers)).astype(float)
    sums = np.array([rows[labels == j].sum(axis=0) for j in range(len(centers))])
    return distances.min(axis=1).sum(), weights, sums


def naive_centers(rows, kept, centers):
    """Centres after a read and the steps on kept rows."""
    share = len(rows) / len(kept)
    cost, weights, sums = cost_and_sums(rows, centers)
    _, kept_weights, kept_sums = cost_and_sums(kept, centers)

    def estimated(after):
        # All rows by the kept ones, and what these lack while no row changes its cluster.
        lacking = (weights - share * kept_weights) @ (after**2).sum(axis=1)
        lacking -= 2 * (after * (sums - share * kept_sums)).sum()
        return share * cost_and_sums(kept, after)[0] + lacking

    after, last = sums / weights[:, None], estimated(centers)
    for _ in range(steps_between_reads(len(rows), len(kept))):
        now = estimated(after)
        if last - now < 1e-4 * cost:
            break
        _, some_weights, some_sums = cost_and_sums(kept, after)
        w = weights + share * (some_weights - kept_weights)
        s = sums + share * (some_sums - kept_sums)
        w, s = (
            np.where((w < weights / 2).reshape(-1, *[1] * (x.ndim - 1)), y, x)
            for x, y in ((w, weights), (s, sums))
        )
        after, last = s / w[:, None], now
    return after


@pytest.mark.parametrize("seed", range(5))
def test_a_step_ends_where_naive_steps_on_kept_rows_end(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(N, P))
    kept, centers = rows[: N // 4], rows[rng.choice(N, K, replace=False)]
    problem = StreamedProblem.of(
        sample_problem(rows, np.ones(N), PowerUpdate()),
        sample_problem(kept, np.ones(len(kept)), PowerUpdate()),
    )
    (step,) = problem.steps([problem.start(centers, -np.inf)])
    after = naive_centers(rows, kept, centers)
    np.testing.assert_allclose(step.state.centers, after, rtol=1e-9)
    assert step.inertia * N == pytest.approx(cost_and_sums(rows, centers)[0], rel=1e-12)
    assert step.shift == pytest.approx(np.linalg.norm(after - centers, axis=1).max(), rel=1e-9)


def overlapping(n_rows):
    rng = np.random.default_rng(0)
    centers = 0.6 * rng.normal(size=(256, 8))
    return (centers[rng.integers(256, size=n_rows)] + rng.normal(size=(n_rows, 8))).astype("f4")


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
@pytest.mark.parametrize("order", ["drawn", "sorted"])
def test_overlapping_clusters_are_read_half_as_often_at_the_same_cost(cls, order, monkeypatch):
    monkeypatch.setattr("daskmm.engine.first_pass.LARGER_SAMPLE_BYTES", 1 << 20)
    rows = overlapping(100_000)
    if order == "sorted":
        rows = rows[np.argsort(rows[:, 0])]
    settings = {"n_clusters": 256, "n_init": 1, "sample_size": 6000, "random_state": 0}
    source = CountingSource(rows)
    model = cls(**settings).fit(source.as_dask((10_000, -1)))
    with monkeypatch.context() as patch:
        patch.setattr(Method, "steps_between_reads", False)
        plain = cls(**settings).fit(da.from_array(rows, chunks=(10_000, -1)))
    assert set(source.reads.values()) == {model.n_passes_}
    assert model.n_passes_ <= plain.n_passes_ / 2
    assert model.inertia_ <= 1.001 * plain.inertia_
    assert model.inertia_ == pytest.approx(-model.score(rows), rel=1e-9)
    assert [record.n_passes for record in model.history_ if record.exact] == [
        *range(2, model.n_passes_ + 1)
    ]


@pytest.mark.parametrize(
    ("n_rows", "n_kept", "n_steps"), [(100, 100, 1), (100, 50, 2), (100, 40, 2), (10**6, 10, 7)]
)
def test_steps_after_a_read_compare_as_many_rows_as_the_read_at_most(n_rows, n_kept, n_steps):
    assert steps_between_reads(n_rows, n_kept) == n_steps


def test_a_read_that_costs_more_is_followed_by_no_steps_on_kept_rows():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(N, P))
    whole, kept = (
        sample_problem(some, np.ones(len(some)), PowerUpdate()) for some in (rows, rows[:90])
    )
    problem = StreamedProblem.of(whole, kept)
    centers = rows[:K]
    problem.steps(
        [problem.start(rows.mean(axis=0) + 0.8 * (centers - centers.mean(axis=0)), -np.inf)]
    )
    (step,) = problem.steps([problem.start(centers + 9.0, -np.inf)])
    (plain,) = whole.steps([problem.start(centers + 9.0, -np.inf)])
    np.testing.assert_array_equal(step.state.centers, plain.state.centers)


def test_fits_with_steps_between_reads_do_not_depend_on_chunks(monkeypatch):
    monkeypatch.setattr("daskmm.engine.first_pass.LARGER_SAMPLE_BYTES", 1 << 20)
    rows = overlapping(60_000).astype(float)
    settings = {"n_clusters": 256, "n_init": 1, "sample_size": 6000, "random_state": 0}
    few, many = (
        KMeans(**settings).fit(da.from_array(rows, chunks=(size, -1))) for size in (7000, 60_000)
    )
    np.testing.assert_allclose(few.cluster_centers_, many.cluster_centers_, rtol=1e-9)
