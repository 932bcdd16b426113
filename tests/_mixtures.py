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
