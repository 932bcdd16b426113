"""Starting components on a sample, from clusters of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from daskmm.kmeans.seeding import plus_plus
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import nearest, power_labels
from daskmm.mixture.em import MixtureState
from daskmm.numerics.gaussians import scatter

FloatArray = NDArray[np.float64]


def labelled_components(
    rows: FloatArray,
    weights: FloatArray,
    labels: NDArray[np.integer],
    n_components: int,
    covariance_type: str,
    reg_covar: float,
) -> MixtureState:
    """Return the shares, means and covariances of labelled rows, which are in the input's units.

    Covariances of few rows are singular, and covariances of a start need not be exact. So each is
    averaged with the pooled covariance of all clusters, which gets the weight of as many rows as
    there are features. A cluster without rows gets the mean and covariance of all rows.
    """
    p = rows.shape[1]
    masses = np.zeros((len(rows), n_components))
    masses[np.arange(len(rows)), labels] = weights
    own = masses.sum(axis=0)
    center = weights @ rows / weights.sum()
    means = np.where(own[:, None] > 0, masses.T @ rows / np.maximum(own, 1e-300)[:, None], center)
    _, scatters = scatter(rows, masses, means, covariance_type)
    shares = np.maximum(own, 1e-3 * weights.sum() / len(rows))
    if covariance_type == "tied":
        covariances = scatters[0] / own.sum()
    else:
        unit = weights.sum() / len(rows)
        within = scatters.sum(axis=0) / own.sum()
        sizes = own.reshape(-1, *[1] * (scatters.ndim - 1))
        covariances = (scatters + p * unit * within) / (sizes + p * unit)
    if covariance_type in ("full", "tied"):
        covariances = covariances + reg_covar * np.eye(p)
    else:
        covariances = covariances + reg_covar
    if covariance_type == "spherical":
        covariances = covariances.mean(axis=1)
    return MixtureState.of(covariance_type, shares / shares.sum(), means, covariances)


def starting_labels(
    method: str, rows: FloatArray, weights: FloatArray, n_components: int, seeds: Sequence[int]
) -> list[NDArray[np.integer]]:
    """Cluster the standardised rows of a sample, once per seed.

    The method "kmeans" takes power k-means for every other seed, beginning with the first, and
    "k-means++" for the rest, so that starts differ more; "k-means++" labels each row by the nearest
    of the rows that k-means++ draws, and "random_from_data" by the nearest of random rows.
    """
    annealed = list(seeds[::2]) if method == "kmeans" else []
    found = iter(power_labels(rows, weights, n_components, annealed) if annealed else [])
    labels = []
    for place, seed in enumerate(seeds):
        if method == "kmeans" and place % 2 == 0:
            labels.append(next(found))
            continue
        if method == "random_from_data":
            rng, chances = np.random.default_rng(seed), weights / weights.sum()
            centers = rows[rng.choice(len(rows), n_components, replace=False, p=chances)]
        else:
            [centers] = plus_plus(rows, weights, n_components, [seed])
        labels.append(nearest(rows, CenterState(centers, -np.inf)))
    return labels
