"""Mixtures of normal clusters, and what memberships found in them; for tests and benchmarks."""

import numpy as np
from scipy.optimize import linear_sum_assignment


def mixture(n, k, p, separation, seed):
    """Rows of normal clusters of unit variance whose centres are just so far apart, or farther."""
    rng = np.random.default_rng(seed)
    centers, wide = [], separation
    while len(centers) < k:
        center = rng.normal(size=p) * wide / np.sqrt(p) * 1.5
        if all(np.linalg.norm(center - other) >= separation for other in centers):
            centers.append(center)
        wide *= 1.005
    truth = rng.integers(k, size=n)
    return np.array(centers)[truth] + rng.normal(size=(n, p)), truth, np.array(centers)


def matched(centers, found):
    """For each centre that was found, the nearest true one, one to one."""
    squares = np.square(centers[:, None] - found).sum(axis=2)
    return np.argsort(linear_sum_assignment(squares)[1])


def calibration_error(confidence, correct, bins=15):
    """Mean difference of confidence and accuracy over bins of confidence."""
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    apart = np.bincount(number, confidence, bins) - np.bincount(number, correct, bins)
    return np.abs(apart).sum() / len(confidence)


def _parted(rng, k, p, apart, wide=1.0):
    """Centres, uniform in a box, at least so far apart (the box grows until they fit)."""
    centers = []
    while len(centers) < k:
        center = rng.uniform(size=p) * wide
        if all(np.linalg.norm(center - other) >= apart for other in centers):
            centers.append(center)
        wide *= 1.001
    return np.array(centers)


def _with_noise(rng, rows, n_noise):
    """The rows with further columns of standard normal noise."""
    return np.hstack([rows, rng.normal(size=(len(rows), n_noise))])


def _equal(rng, n, k):
    """Labels of clusters of equal sizes, in random order."""
    return rng.permutation(np.arange(n) % k)


def twelve_of_four(n, rng, draw):
    """Twelve clusters of deviation .02, uniform in 4 features, and 8 features of noise."""
    centers = rng.uniform(size=(12, 4))
    truth = _equal(draw, n, 12)
    return _with_noise(draw, centers[truth] + 0.02 * draw.normal(size=(n, 4)), 8), truth, centers


def heavy_tails(n, rng, draw):
    """Thirty clusters in 6 features, t with 3 degrees of freedom."""
    centers = _parted(rng, 30, 6, 15.0, 15.0)
    truth = _equal(draw, n, 30)
    spread = np.sqrt(3 / draw.chisquare(3, size=(n, 1)))
    return centers[truth] + spread * draw.normal(size=(n, 6)), truth, centers


def unequal_sizes(n, rng, draw):
    """Four clusters of sizes 1 : 3.7 : 13.6 : 50 in 3 features, and 3 features of noise."""
    centers = _parted(rng, 4, 3, 8.0, 8.0)
    shares = np.geomspace(1, 50, 4)
    ends = np.round(n * np.cumsum(shares) / shares.sum()).astype(int)
    truth = draw.permutation(np.searchsorted(ends, np.arange(n), side="right"))
    return _with_noise(draw, centers[truth] + draw.normal(size=(n, 3)), 3), truth, centers


def ellipses(n, rng, draw):
    """Eight clusters with axes of 1 to 3 deviations in any direction, in 5 features."""
    centers = _parted(rng, 8, 5, 16.0, 16.0)
    turned = [np.linalg.qr(rng.normal(size=(5, 5)))[0] for _ in range(8)]
    shapes = np.array([axes * np.geomspace(1, 3, 5) for axes in turned])
    truth = _equal(draw, n, 8)
    rows = np.einsum("nij,nj->ni", shapes[truth], draw.normal(size=(n, 5)))
    return centers[truth] + rows, truth, centers


def much_noise(n, rng, draw):
    """Five clusters in 3 features, and 40 features of noise."""
    centers = _parted(rng, 5, 3, 9.0, 9.0)
    truth = _equal(draw, n, 5)
    return _with_noise(draw, centers[truth] + draw.normal(size=(n, 3)), 40), truth, centers


def different_scales(n, rng, draw):
    """Twenty clusters in 6 features in units from .001 to 1,000."""
    centers = _parted(rng, 20, 6, 10.0, 10.0)
    truth = _equal(draw, n, 20)
    units = np.geomspace(1e-3, 1e3, 6)
    return (centers[truth] + draw.normal(size=(n, 6))) * units, truth, centers * units


def with_outliers(n, rng, draw):
    """Ten clusters in 4 features, 2 features of noise, and 1 % of outliers (labelled -1)."""
    centers = _parted(rng, 10, 4, 10.0, 10.0)
    truth = _equal(draw, n, 10)
    rows = centers[truth] + draw.normal(size=(n, 4))
    out = draw.choice(n, n // 100, replace=False)
    low, high = centers.min(axis=0), centers.max(axis=0)
    rows[out] = low + (draw.uniform(size=(len(out), 4)) * 2 - 0.5) * (high - low)
    truth[out] = -1
    return _with_noise(draw, rows, 2), truth, centers


def three_clusters(n, rng, draw):
    """Three clusters in 2 features, and 2 features of noise."""
    centers = _parted(rng, 3, 2, 7.0, 7.0)
    truth = _equal(draw, n, 3)
    return _with_noise(draw, centers[truth] + draw.normal(size=(n, 2)), 2), truth, centers


# Separated mixtures whose clusters can be known at any number of rows from 1,000 on.
SEPARATED = {
    "12 clusters in 4 of 12 features": twelve_of_four,
    "30 clusters, t with 3 degrees": heavy_tails,
    "4 clusters, sizes 1:50": unequal_sizes,
    "8 ellipses": ellipses,
    "5 clusters in 3 of 43 features": much_noise,
    "20 clusters, units 1e-3 to 1e3": different_scales,
    "10 clusters, 1 % outliers": with_outliers,
    "3 clusters in 2 of 4 features": three_clusters,
}


def separated(name, n, seed=0):
    """Rows, labels and centres (of the informative features, which come first).

    The centres are those of the seed, whatever the number of rows.
    """
    return SEPARATED[name](n, np.random.default_rng(seed), np.random.default_rng([seed, n]))
