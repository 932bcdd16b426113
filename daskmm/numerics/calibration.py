"""Choose the power at which memberships are probabilities, from distances alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import softmax

FloatArray = NDArray[np.float64]

# Range of powers at which power means are accurate; below the lowest power, memberships are hard.
_HOTTEST, _COLDEST = -0.2, -1e9
# Largest number of rounds of the estimate of the dispersion, and the relative change that ends
# them.
_ROUNDS, _CHANGE = 50, 1e-3


def calibrated_power(distances: FloatArray, apart: FloatArray, weights: FloatArray) -> float:
    r"""Choose the power s at which normalised φ come closest to posterior probabilities.

    The clusters are assumed to have equal weights and the same spread, symmetric around their
    centres, so that the posterior is :math:`q_j \propto \exp(-d_j / \tau)`; τ is 2σ² for spherical
    normal clusters, and twice the dispersion of an exponential family for half its deviance.

    1. τ is estimated. The log odds of two normal clusters have a variance of twice their mean. With
       l the centre next to j, the log odds of rows of j are :math:`(d_l - d_j)/\tau` with the mean
       :math:`D_{jl}/\tau`, so :math:`\tau = \sum q_{ij} (d_{il} - d_{ij} - D_{jl})^2 / 2 \sum
       q_{ij} D_{jl}`, which is iterated until τ converges. Only the spread along the lines between
       centres counts, so directions in which clusters do not differ have no influence.
    2. s is fitted. The normalised φ are ∝ d_j^(s−1), a logistic model of log d with one
       coefficient, which minimises the cross-entropy with the posteriors, a convex function. Near
       the boundary of two clusters, at distance d, this is s − 1 ≈ −d/τ.

    Distances of some rows to the centres, (n_rows, n_clusters), are finite and in the model's
    distance, as are those of each centre (first index) to the others, `apart`. The power is at most
    −0.2; it is −∞ (hard memberships) if no row is uncertain, or no two centres differ. The
    one coefficient on all log odds is the temperature of Guo, Pleiss, Sun & Weinberger, "On
    Calibration of Modern Neural Networks", ICML 2017.
    """
    others = np.where(apart > 0, apart, np.inf)
    nearest = others.argmin(axis=1)
    gaps = others.min(axis=1)
    kept = distances.min(axis=1, initial=np.inf) > 0
    if not (np.isfinite(gaps).all() and kept.any()):
        return -np.inf
    unit = gaps.max()
    distances, gaps = distances / unit, gaps / unit  # squares neither overflow nor underflow
    tau = _dispersion(distances, nearest, gaps, weights)
    kept &= weights > 0
    d, v = distances[kept], weights[kept]
    if not (tau > 0 and len(d)):
        return -np.inf
    logs = np.log(d / d.min(axis=1, keepdims=True))
    wanted = v @ np.einsum("ij,ij->i", softmax(-d / tau, axis=1), logs)

    def excess(log_slope: float) -> float:
        # The logarithm for the nearest centre is 0, so nothing overflows.
        odds = np.exp(-np.exp(log_slope) * logs)
        return float(v @ (np.einsum("ij,ij->i", odds, logs) / odds.sum(axis=1)) - wanted)

    hot, cold = np.log(1.0 - _HOTTEST), np.log(1.0 - _COLDEST)
    if excess(hot) <= 0:
        return _HOTTEST
    if excess(cold) >= 0:
        return -np.inf
    return float(1.0 - np.exp(brentq(excess, hot, cold, xtol=1e-4)))


def _dispersion(
    distances: FloatArray, nearest: NDArray[np.intp], gaps: FloatArray, weights: FloatArray
) -> float:
    """Estimate τ, beginning with hard memberships."""
    deviations = np.square(distances[:, nearest] - distances - gaps)
    posterior = np.zeros_like(distances)
    posterior[np.arange(len(distances)), distances.argmin(axis=1)] = 1.0
    tau = 0.0
    for _ in range(_ROUNDS):
        masses = weights @ posterior
        before, tau = (
            tau,
            float(weights @ (posterior * deviations).sum(axis=1) / (2.0 * (masses @ gaps))),
        )
        if abs(tau - before) <= _CHANGE * tau:
            break
        posterior = softmax(-distances / tau, axis=1)
    return tau
