"""Compute divergences of rows from a reference: the term that distances to all centres share.

Logarithms and series are computed without branches, so that loops over them are vectorised.
Importing this module imports numba; the machine code is cached on disk.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.compiler import EXACT, REORDERED, entry, part
from daskmm.compiled.fast_math import log2_from, split_exponent
from daskmm.compiled.layout import (
    INFORMATION,
    ITAKURA_SAITO,
    PLAIN,
    SQUARED,
    parts,
    plain,
    row_dtype,
)
from daskmm.compiled.products import repeated

FloatArray = NDArray[np.float64]

_LOG_2 = float(np.log(2.0))
# t − log(1 + t) = t q − 2 q³ Σ_i q^(2i) / (2i + 3) with q = t/(2 + t), for |q| below this.
_NEAR = 0.1
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
    """Compute Σ_i u^i / (2i + 3), u < 0.0295: log((1 + q)/(1 − q)) = 2q + 2q³ series(q²)."""
    u2 = u * u
    low = (_C0 + _C1 * u) + u2 * (_C2 + _C3 * u)
    return low + (u2 * u2) * ((_C4 + _C5 * u) + u2 * _C6)


@part(EXACT)
def _information(x, theta):
    """Return the I-divergence x log(x/θ) − x + θ."""
    if x == 0.0:
        return theta
    difference = theta - x
    q = difference / (theta + x)
    if abs(q) < _NEAR:
        return q * (difference - 2.0 * x * q * q * series(q * q))
    return difference + x * math.log(x / theta) if theta > 0.0 else np.inf


@part(EXACT)
def _itakura_saito(x, theta):
    """Return x/θ − log(x/θ) − 1."""
    difference = x - theta
    q, t = difference / (theta + x), difference / theta
    if abs(q) < _NEAR:
        return q * (t - 2.0 * q * q * series(q * q))
    return t - math.log(x / theta) if x > 0.0 else np.inf


@part(EXACT)
def element(code, x, theta):
    """Return δ(x, θ) of the divergence with this code."""
    if code == SQUARED:
        return (x - theta) * (x - theta)
    if code == INFORMATION:
        return _information(x, theta)
    if code == ITAKURA_SAITO:
        return _itakura_saito(x, theta)
    return _information(x, theta) + _information(1.0 - x, 1.0 - theta)


@part(REORDERED)
def distance(row, mean, scale, center, w):
    """Return Σ_l w_l (z_l − θ_l)² of a row in the input's units, from the differences."""
    total = 0.0
    for f in range(len(row)):
        difference = (np.float64(row[f]) - mean[f]) / scale[f] - center[f]
        total += w[f] * difference * difference
    return total


@part(EXACT)
def exact_distance(code, row, z, mean, scale, center, w):
    """Compute a distance by the definition; `z` is the whitened or normalised row."""
    if code == PLAIN:
        return distance(row, mean, scale, center, w)
    if code < PLAIN:
        return separation(z, center, w)
    return distortion(code, row, mean, scale, center, w)


@part(EXACT)
def distortion(code, row, mean, scale, center, w):
    """Return Σ_l w_l δ(z_l, θ_l) over the values that are not NaN."""
    total = 0.0
    for f in range(len(row)):
        z = (np.float64(row[f]) - mean[f]) / scale[f]
        if z == z:
            total += w[f] * element(code, z, center[f])
    return total


@part(REORDERED)
def separation(z, center, w):
    """Return Σ_l w_l (z_l − θ_l)² of a row in the model's coordinates."""
    total = 0.0
    for f in range(len(z)):
        difference = z[f] - center[f]
        total += w[f] * difference * difference
    return total


def row_terms(code: int, rows: NDArray, reference: FloatArray) -> FloatArray:
    """Return the divergence of each row from the reference, over its values that are not NaN.

    Parameters
    ----------
    code : int
        Code of a divergence other than the squared Euclidean.
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order, within the domain.
    reference : ndarray of shape (n_features,)
        In the interior of the domain.

    Returns
    -------
    ndarray of shape (n_rows,), float64
    """
    terms = np.empty(len(rows))
    dtype = row_dtype(rows)
    for some in parts(rows, dtype):
        _fill(code, plain(rows[some], dtype), plain(reference), terms[some])
    return terms


@entry
def _fill(code, rows, reference, terms):
    """Write the divergences of some rows to `terms`."""
    n, p = rows.shape
    values, theta = rows.ravel(), repeated(reference)
    inverse, elements = 1.0 / theta, np.empty(len(theta))
    # For the logistic divergence only, whose θ are below 1.
    logs, rest = np.log(theta) / _LOG_2, np.log1p(-theta) / _LOG_2
    for start in range(0, n * p, len(theta)):
        x = values[start : start + len(theta)]
        if code == INFORMATION:
            _information_all(x, theta, inverse, elements)
        elif code == ITAKURA_SAITO:
            _itakura_saito_all(x, theta, inverse, elements)
        else:
            _logistic_all(x, logs, rest, elements)
        first = start // p
        for i in range(len(x) // p):
            terms[first + i] = _total(elements[i * p : i * p + p])
    for i in range(n):
        # A ratio overflowed: distances from an interior reference are finite.
        if not np.isfinite(terms[i]):
            terms[i] = 0.0
            for f in range(p):
                x = np.float64(rows[i, f])
                terms[i] += element(code, x, reference[f]) if x == x else 0.0


@part(REORDERED)
def _total(values):
    total = 0.0
    for q in range(len(values)):
        total += values[q]
    return total


@part(EXACT, inlined=True)
def _logarithm(x, theta, inverse_theta):
    """Return r = x/θ, r − 1, n, q and c with log r = n log 2 + 2 q (1 + c).

    n is 0 if r is within a factor √2 of 1; r − 1 is exact to rounding there.
    """
    ratio, excess = x * inverse_theta, (x - theta) * inverse_theta
    n, f = split_exponent(ratio)
    f = excess if n == 0.0 else f
    q = f / (2.0 + f)
    return ratio, excess, n, q, q * q * series(q * q)


@part(EXACT)
def _information_all(x, theta, inverse_theta, out):
    """Compute the divergence of each of some contiguous numbers; 0 for NaN."""
    for k in range(len(x)):
        value = np.float64(x[k])
        ratio, excess, n, q, c = _logarithm(value, theta[k], inverse_theta[k])
        near = q * (excess + 2.0 * ratio * c)
        far = ratio * (n * _LOG_2 + 2.0 * q * (1.0 + c)) - excess
        found = theta[k] * (near if n == 0.0 else far)
        found = found if value > 0.0 else theta[k]
        out[k] = found if value == value else 0.0


@part(EXACT)
def _itakura_saito_all(x, theta, inverse_theta, out):
    """Compute as `_information_all`."""
    for k in range(len(x)):
        value = np.float64(x[k])
        _, excess, n, q, c = _logarithm(value, theta[k], inverse_theta[k])
        near = q * (excess - 2.0 * c)
        far = excess - (n * _LOG_2 + 2.0 * q * (1.0 + c))
        found = near if n == 0.0 else far
        out[k] = found if value == value else 0.0


@part(EXACT)
def _logistic_all(x, log_theta, log_rest, out):
    """Compute as `_information_all`, but less exactly near θ, from log2 θ and log2(1 − θ)."""
    for k in range(len(x)):
        value = np.float64(x[k])
        rest = 1.0 - value
        exponent, f = split_exponent(value)
        exponent_rest, f_rest = split_exponent(rest)
        g, g_rest = 2.0 + f, 2.0 + f_rest
        # One division serves both logarithms; log 0 comes out finite here.
        inverse = 1.0 / (g * g_rest)
        log = log2_from(exponent, f * g_rest * inverse) - log_theta[k]
        log_of_rest = log2_from(exponent_rest, f_rest * g * inverse) - log_rest[k]
        found = _LOG_2 * (value * log + rest * log_of_rest)
        out[k] = found if value == value else 0.0
