"""The sample of rows seen so far, and better clusters found on it."""

import dask.array as da
import numpy as np
import pytest
from scipy.optimize import brentq

from daskmm import EntropyPowerKMeans, KMeans
from daskmm.kmeans.renewal import Reservoir, capacity, divided, renewed
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import PowerUpdate
from daskmm.metrics import adjusted_rand_score


def mixture(n, rng, n_centers=6, seed=1):
    centers = np.random.default_rng(seed).normal(0, 12, (n_centers, 3))
    truth = rng.integers(n_centers, size=n)
    return centers[truth] + rng.normal(size=(n, 3)), truth


@pytest.mark.long
def test_the_sample_is_drawn_by_weight_and_fades():
    """Shares of three calls in the sample are those of their weights."""
    shares = np.zeros(3)
    for repeat in range(8):
        model = KMeans(2, n_init=1, random_state=0, forget="1 call")
        for call in range(3):
            rng = np.random.default_rng((repeat, call))
            rows = rng.random((3000, 1))
            model.partial_fit(rows, sample_weight=np.full(3000, 1.0 + call), key=call)
        sample = model.updates_.reservoir
        assert len(sample.rows) == capacity(2, 1) == sample.size
        _, counts = np.unique(sample.origins, return_counts=True)
        shares += np.sort(counts)
    # Rows are drawn without replacement: a row of weight v is there with 1 − exp(−tv).
    weights = np.array([0.25, 1.0, 3.0])
    t = brentq(lambda t: 3000 * (1 - np.exp(-t * weights)).sum() - 2000, 0, 9)
    np.testing.assert_allclose(shares / shares.sum(), 1.5 * (1 - np.exp(-t * weights)), atol=0.025)


def test_the_sample_does_not_depend_on_chunks_and_knows_keys():
    X, _ = mixture(5000, np.random.default_rng(0))
    found = []
    for chunks in (5000, 700):
        model = KMeans(6, n_init=1, random_state=0).partial_fit(X[:1000], key="a")
        model.partial_fit(da.from_array(X[1000:], chunks=(chunks, 3)), key="b")
        found.append(model.updates_.reservoir)
    np.testing.assert_allclose(found[0].rows, found[1].rows, rtol=1e-12)
    np.testing.assert_array_equal(found[0].origins, found[1].origins)
    model.partial_fit(X[1000:1200], key="b")
    kept = model.updates_.reservoir.rows + model.mean_
    assert not np.isclose(kept[:, None, 0], X[None, 1200:, 0], rtol=1e-12).any()


@pytest.mark.parametrize("cls", [KMeans, pytest.param(EntropyPowerKMeans, marks=pytest.mark.long)])
def test_clusters_that_the_first_rows_did_not_show_are_found_later(cls):
    rng = np.random.default_rng(0)
    X, truth = mixture(20_000, rng)
    early = np.flatnonzero(truth < 3)[:300]
    more = {"lam": "0.5*variance"} if cls is EntropyPowerKMeans else {}
    model = cls(6, standardize=False, random_state=0, **more).partial_fit(X[early])
    for first in range(0, 20_000, 1000):
        model.partial_fit(X[first : first + 1000])
    assert adjusted_rand_score(truth, model.predict(X)) > 0.99
    whole = cls(6, standardize=False, random_state=0, **more).fit(X)
    if cls is KMeans:
        assert -model.score(X) <= 1.005 * whole.inertia_
        # The records were divided, and still count all rows and their sums.
        total = model.updates_.total
        assert total.weight == pytest.approx(20_300)
        np.testing.assert_allclose(
            total.sums.sum(axis=0) + total.weight * model.mean_,
            X.sum(axis=0) + X[early].sum(axis=0),
            rtol=1e-9,
        )
        assert model.inertia_ == pytest.approx(-model.score(X), rel=0.05)


def test_records_are_divided_as_the_rows_are():
    """Where the sample holds all rows, divided records are those of the new labels."""
    rng = np.random.default_rng(0)
    X, _ = mixture(400, rng, 4)
    before, after = (CenterState(centers, -np.inf) for centers in (X[:4] * 0.1, X[4:8]))
    better = divided(X, before, after, 0.0)

    def sums(state):
        labels = np.square(X[:, None] - state.centers).sum(axis=2).argmin(axis=1)
        ones = np.eye(4)[labels]
        return ones.sum(axis=0)[:, None], ones.T @ X

    masses, totals = better.divide(*sums(before))
    expected = sums(better.state)
    np.testing.assert_allclose(masses, expected[0], rtol=1e-9)
    np.testing.assert_allclose(totals, expected[1], rtol=1e-9, atol=1e-9)
    whole = Reservoir(400, X, np.zeros(400), np.zeros(400, np.int64))
    best = CenterState(KMeans(4, random_state=0).fit(X).cluster_centers_, -np.inf)
    assert renewed(whole, best, PowerUpdate(), 1) is None


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_clusters_follow_a_jump_and_stay_if_the_data_do_not_change(seed):
    """Of 20 clusters that overlap: two half-lives later as if only new rows had been fitted."""
    draws = [np.random.default_rng((seed, each)).normal(0, 2, (20, 8)) for each in range(2)]
    rng = np.random.default_rng(seed)

    def rows(centers, n=2000):
        truth = rng.integers(20, size=n)
        return centers[truth] + rng.normal(size=(n, 8)), truth

    model = KMeans(20, random_state=seed, forget="10 calls")
    for _ in range(20):
        model.partial_fit(rows(draws[0])[0])
    X, _ = rows(draws[0], 40_000)
    assert -model.score(X) <= 1.01 * KMeans(20, random_state=0).fit(X).inertia_
    for _ in range(20):
        model.partial_fit(rows(draws[1])[0])
    X, truth = rows(draws[1], 40_000)
    alone = KMeans(20, random_state=0).fit(X)
    ideal = adjusted_rand_score(truth, alone.labels_)
    assert adjusted_rand_score(truth, model.predict(X)) >= min(0.95, ideal - 0.015)
    assert -model.score(X) <= 1.02 * alone.inertia_
