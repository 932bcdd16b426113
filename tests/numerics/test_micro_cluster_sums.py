"""Kernel sums over micro-clusters against sums over their rows."""

import itertools

import numpy as np
import pytest

from daskmm.numerics.micro_clusters import TILE, MicroClusters


def normal_rows(position, scatter, mass, nodes=40):
    """Rows and weights with the moments of a normal cloud: a product of Gauss–Hermite rules."""
    x, v = np.polynomial.hermite_e.hermegauss(nodes)
    v = v / v.sum()
    rows, weights = [], []
    for some in itertools.product(range(nodes), repeat=len(position)):
        some = list(some)
        rows.append(position + np.sqrt(scatter) * x[some])
        weights.append(mass * np.prod(v[some]))
    return np.array(rows), np.array(weights)


def naive(y, clouds, w, h):
    """Mean, variance and total weight of all rows around a point, row by row."""
    rows, weights = (np.concatenate(each) for each in zip(*clouds, strict=True))
    kernel = weights * np.exp(-(w * (rows - y) ** 2).sum(axis=1) / h)
    mean = kernel @ rows / kernel.sum()
    return mean, kernel @ (rows - mean) ** 2 / kernel.sum()


def clouds(n=5, p=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)), 0.3 * rng.random((n, p)), 1.0 + rng.random(n)


def test_averages_are_those_over_normal_rows():
    mu, s, c = clouds()
    w, h = np.array([0.7, 0.3]), 0.4
    found = MicroClusters.of(mu, s, c, w, h).around(mu, np.arange(5), np.ones(5))
    rows = [normal_rows(*each) for each in zip(mu, s, c, strict=True)]
    for i, y in enumerate(mu):
        mean, variance = naive(y, rows, w, h)
        np.testing.assert_allclose(found.mean[i], mean, rtol=0, atol=1e-9)
        np.testing.assert_allclose(found.variance[i], variance, rtol=0, atol=1e-9)
        own, weights = rows[i]
        alone = weights @ np.exp(-(w * (own - y) ** 2).sum(axis=1) / h)
        everything = sum(v @ np.exp(-(w * (x - y) ** 2).sum(axis=1) / h) for x, v in rows)
        assert found.share[i] == pytest.approx(1 - alone / everything, abs=1e-9)


def test_points_without_spread_are_rows():
    mu, _, c = clouds(n=TILE + 3, p=3)
    w, h = np.array([0.7, 0.0, 0.3]), 0.4
    found = MicroClusters.of(mu, np.zeros_like(mu), c, w, h)
    around = found.around(mu, np.arange(len(mu)), np.ones(len(mu)))
    kernel = c * np.exp(-(w * (mu[:, None] - mu) ** 2).sum(axis=2) / h)
    np.testing.assert_allclose(around.mean, kernel @ mu / kernel.sum(axis=1)[:, None], atol=1e-12)
    np.testing.assert_array_equal(around.variance, 0.0)


def test_a_far_point_that_does_not_count_for_itself_meets_its_nearest():
    mu = np.array([[0.0], [1e3], [1e3 + 40.0]])
    found = MicroClusters.of(mu, np.zeros_like(mu), np.ones(3), np.ones(1), 0.1)
    around = found.around(mu, np.arange(3), np.zeros(3))
    np.testing.assert_allclose(around.mean, [[1e3], [1e3 + 40.0], [1e3]])
    np.testing.assert_array_equal(around.share, 1.0)
    alone = MicroClusters.of(mu[:1], mu[:1], np.ones(1), np.ones(1), 0.1)
    assert np.isnan(alone.around(mu[:1], np.zeros(1, int), np.zeros(1)).mean).all()
