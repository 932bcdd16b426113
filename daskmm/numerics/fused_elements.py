"""Divergences of single numbers in compiled code; importing this imports numba.

What is computed is defined by the ``elements`` of the classes in `daskmm.numerics.divergences`,
whose codes tell them apart.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np

from daskmm.numerics.compiling import EXACT, part

# Squared Euclidean distances without holes, which have loops of their own; the same in whitened
# coordinates.
PLAIN, WHITENED = -1, -2
SQUARED, INFORMATION, ITAKURA_SAITO = 0, 1, 2
# t − log(1 + t) = t q − 2 q³ Σ_i q^(2i) / (2i + 3) with q = t/(2 + t), for |q| below this.
NEAR = 0.1
# The sum in q², for |q| ≤ (√2 − 1)/(√2 + 1): minimax polynomial of the relative error, 4.6e-16.
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = (
    0.3333333333333335,
    0.19999999999949558,
    0.14285714313066922,
    0.11111105555665937,
    0.09091445347844856,
    0.07665836588539468,
    0.0730850468457676,
)


@part(EXACT, inlined=True)
def series(u):
    """Σ_i u^i / (2i + 3) for u < 0.0295, so that log((1 + q)/(1 − q)) = 2q + 2q³ series(q²)."""
    u2 = u * u
    low = (_C0 + _C1 * u) + u2 * (_C2 + _C3 * u)
    return low + (u2 * u2) * ((_C4 + _C5 * u) + u2 * _C6)


@part(EXACT)
def _information(x, theta):
    """I-divergence x log(x/θ) − x + θ."""
    if x == 0.0:
        return theta
    difference = theta - x
    q = difference / (theta + x)
    if abs(q) < NEAR:
        return q * (difference - 2.0 * x * q * q * series(q * q))
    return difference + x * math.log(x / theta) if theta > 0.0 else np.inf


@part(EXACT)
def _itakura_saito(x, theta):
    """x/θ − log(x/θ) − 1."""
    difference = x - theta
    q, t = difference / (theta + x), difference / theta
    if abs(q) < NEAR:
        return q * (t - 2.0 * q * q * series(q * q))
    return t - math.log(x / theta) if x > 0.0 else np.inf


@part(EXACT)
def element(code, x, theta):
    """δ(x, θ) of the divergence of a code."""
    if code == SQUARED:
        return (x - theta) * (x - theta)
    if code == INFORMATION:
        return _information(x, theta)
    if code == ITAKURA_SAITO:
        return _itakura_saito(x, theta)
    return _information(x, theta) + _information(1.0 - x, 1.0 - theta)
