"""Power means of distances and their derivatives, the weights of the MM step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.exponentials import exponentiate

# Two centres whose distances to a row differ by less than this share are tied.
TIE = 1e-6
# Weights below this are exactly 0.
FLUSHED = 1e-290


class PowerMeans(NamedTuple):
    """Power means of the distances of some rows, and the weights of the MM step."""

    phi: NDArray[np.float64]  # weights φ_ij of the majorizing quadratic, (n_rows, n_clusters)
    value: NDArray[np.float64]  # the power mean M_s of each row's distances, (n_rows,)
    smallest: NDArray[np.float64]  # the smallest distance of each row, M_s at s = −∞, (n_rows,)
    # Share of a row's weight that its nearest centre has, where tied centres count as one,
    # (n_rows,). It lies in (0, 1], and is 1 for a hard assignment.
    hardness: NDArray[np.float64]


def power_means(distances: NDArray[np.float64], s: float) -> PowerMeans:
    r"""Compute the power mean of each row's distances, and its gradient.

    .. math:: M_s(d) = \Big(\tfrac1k \sum_j d_j^s\Big)^{1/s}, \qquad
              \varphi_j = \frac{\partial M_s}{\partial d_j}
                        = \tfrac1k\, d_j^{s-1} \Big(\tfrac1k \sum_l d_l^s\Big)^{1/s-1},

    Both are computed from the ratios r = d / min d ≥ 1, which never overflow: φ depends only on the
    ratios. The logarithm of a ratio is computed as log1p((d − m)/m), with m = min d, which is
    accurate for near ties, so that a power of −1e12 still distinguishes them. The φ of a row sum to
    a number between 1 and k^(−1/s) and must not be normalised.

    Distances, (n_rows, n_clusters), are not negative (squared, for k-means); zeros and infinities
    are allowed. A power of −∞ gives the hard assignment to the nearest centre (the first in a tie).

    Xu & Lange, "Power k-Means Clustering", ICML 2019, have the gradient (5), the limits (6), and
    Algorithm 1, of which this is step 3.
    """
    if s == -np.inf:
        return _hard(distances)
    n_clusters = distances.shape[1]
    smallest = distances.min(axis=1)
    m = smallest[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        excess = (distances - m) / m
    irregular = ~((smallest > 0) & (smallest < np.inf))
    if irregular.any():
        # All of the weight of such a row goes to the centres at its smallest distance.
        excess[irregular] = np.where(distances[irregular] == m[irregular], 0.0, np.inf)
    powers = np.log1p(excess)
    powers *= s
    exponentiate(powers)  # r^s; underflow is an exact zero
    total = powers.sum(axis=1)
    hardness = np.where(excess <= TIE, powers, 0.0).sum(axis=1) / total
    log_mean = np.log(total / n_clusters)
    excess += 1.0
    powers /= excess  # r^(s−1)
    powers *= (np.exp((1.0 / s - 1.0) * log_mean) / n_clusters)[:, None]
    # Subnormal weights have lost their digits: a mean of such rows would be noise.
    powers[powers < FLUSHED] = 0.0
    return PowerMeans(powers, smallest * np.exp(log_mean / s), smallest, hardness)


def _hard(distances: NDArray[np.float64]) -> PowerMeans:
    """Compute the limit of `power_means` at s = −∞: Lloyd's assignment."""
    nearest = distances.argmin(axis=1)
    rows = np.arange(len(distances))
    phi = np.zeros_like(distances)
    phi[rows, nearest] = 1.0
    smallest = distances[rows, nearest]
    return PowerMeans(phi, smallest, smallest, np.ones_like(smallest))
