r"""Multivariate t distributions as components: constants, weights of rows, degrees of freedom.

A t distribution is a mixture of normal ones with the same mean and covariances
:math:`\Sigma / u`. Given a row at the squared distance :math:`\delta`, the expected
:math:`u = (\nu + p) / (\nu + \delta)` is its weight in the mean and in :math:`\Sigma`, so that far
rows have little influence (Peel & McLachlan, "Robust mixture modelling using the t distribution",
Statistics and Computing 10, 2000).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

FloatArray = NDArray[np.float64]

# Range of the degrees of freedom ν. Variances are infinite up to 2, and from 200 on the
# distribution is as good as normal.
LEAST, MOST = 0.5, 200.0
# Number of halvings of the range of log ν.
_HALVINGS = 60


def log_constants(degrees: FloatArray, n_features: int) -> FloatArray:
    """Return the logarithm of the density at the mean, for a Σ of determinant 1."""
    both = 0.5 * (degrees + n_features)
    constants = gammaln(both) - gammaln(0.5 * degrees)
    return np.asarray(constants - 0.5 * n_features * np.log(degrees * math.pi))


def log_kernels(squares: FloatArray, degrees: FloatArray, n_features: int) -> FloatArray:
    """Return log densities relative to those at the means, given squared distances δ.

    The distances are of shape (n_rows, n_components), and the degrees of freedom ν of
    (n_components,).
    """
    return np.asarray(-0.5 * (degrees + n_features) * np.log1p(squares / degrees))


def pulls(squares: FloatArray, degrees: FloatArray, n_features: int) -> FloatArray:
    """Return u = (ν + p) / (ν + δ) for the parameters of `log_kernels`."""
    return np.asarray((degrees + n_features) / (degrees + squares))


def updated_degrees(
    logs: FloatArray, weights: FloatArray, before: FloatArray, n_features: int
) -> FloatArray:
    """Return the degrees of freedom that maximise the expected log-likelihood.

    `logs` are Σ w γ (log u − u) of each component at the degrees of freedom before the step, and
    `weights` are Σ w γ; components without weight keep their degrees of freedom.
    """
    both = 0.5 * (before + n_features)
    held = weights > 0
    mean = np.divide(logs, weights, out=np.zeros_like(logs), where=held)
    # Expected log u − u, given the rows.
    expected = mean + digamma(both) - np.log(both)
    low, high = np.full_like(before, math.log(LEAST)), np.full_like(before, math.log(MOST))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        half = 0.5 * np.exp(middle)
        # The slope falls with ν, and is 0 at the maximum.
        slope = 1.0 + np.log(half) - digamma(half) + expected
        low, high = np.where(slope > 0, middle, low), np.where(slope > 0, high, middle)
    return np.where(held, np.exp(0.5 * (low + high)), before)


def expected_logs(weights: FloatArray, degrees: FloatArray, n_features: int) -> FloatArray:
    """Return Σ w γ (log u − u) of components whose degrees of freedom are the updated ones."""
    both, half = 0.5 * (degrees + n_features), 0.5 * degrees
    slope = 1.0 + np.log(half) - digamma(half) + digamma(both) - np.log(both)
    return np.asarray(-weights * slope)
