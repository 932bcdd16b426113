"""Shares of features along directions of other features, against plain numpy."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from daskmm.numerics.held_out import Standardized
from daskmm.numerics.sparse_rows import canonical


def rows_and_weights(n=400, p=60):
    """Sparse features, of which the first 20 have a factor in common, and one constant."""
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(n, 1))
    held = rng.uniform(size=(n, p)) < 0.3
    rows = held * (rng.normal(2, 1, (n, p)) + 2 * factor * (np.arange(p) < 20))
    rows[:, -1] = 3.0
    return rows, rng.uniform(0.5, 2.0, n)


def naive_shares(rows, weights, halves, feature_weights, number):
    share = weights / weights.sum()
    scale = np.sqrt(share @ np.square(rows - share @ rows))
    scale[scale < 1e-9] = np.inf
    z = np.sqrt(share)[:, None] * (rows - share @ rows) / scale
    shares, chances = np.zeros(rows.shape[1]), []
    for own, others in (halves, halves[::-1]):
        left = np.linalg.svd(z[:, own] * np.sqrt(feature_weights[own]), full_matrices=False)[0]
        shares[others] = np.square(left[:, :number].T @ z[:, others]).sum(axis=0)
        chances.append(share @ np.square(left[:, :number]).sum(axis=1))
    return shares, np.mean(chances)


@pytest.mark.parametrize("even", [True, False])
def test_shares_equal_those_of_naive_loops(even):
    rows, weights = rows_and_weights()
    feature_weights = np.ones(60) if even else np.where(np.arange(60) < 20, 1.0, 0.01)
    table = Standardized(canonical(csr_array(rows)), weights)
    np.testing.assert_array_equal(table.varying, np.arange(60) < 59)
    halves = np.array_split(np.random.default_rng(5).permutation(np.arange(59)), 2)
    found = table.halves(feature_weights, 1, np.random.default_rng(5))
    expected, chance = naive_shares(rows, weights, halves, feature_weights, 1)
    # Directions that are nearly as long as others are not told apart in a few iterations.
    np.testing.assert_allclose(found.shares, expected, atol=0.03 if even else 2e-3)
    np.testing.assert_allclose(found.chance, chance, rtol=0.02)
    assert found.shares[-1] == 0
    limit = found.limit(59)
    assert (found.shares[:20] > limit).sum() >= 18
    assert (found.shares[20:] > limit).sum() <= 3


def test_chance_is_exceeded_by_one_independent_feature():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2000, 300)) * (rng.uniform(size=(2000, 300)) < 0.3)
    found = Standardized(canonical(csr_array(rows)), np.ones(2000)).halves(np.ones(300), 8, rng)
    assert 0.9 < found.shares.mean() / found.chance < 1.1
    assert (found.shares > found.limit(300)).sum() <= 4


def test_fewer_features_than_directions():
    rows, weights = rows_and_weights()
    table = Standardized(canonical(csr_array(rows)), weights)
    found = table.halves(1.0 * (np.arange(60) < 4), 8, np.random.default_rng(0))
    assert 1 <= found.n_directions <= 4
    assert found.limit(59) < 1
    # Without any weight all features count alike.
    even, none = (table.halves(w, 3, np.random.default_rng(0)) for w in (np.ones(60), np.zeros(60)))
    np.testing.assert_array_equal(even.shares, none.shares)
