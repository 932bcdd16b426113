"""Divergences of whole rows from a reference, which distances to all centres have in common.

Logarithms and series of all numbers are computed without branches, so that loops over them are
vectorised. Importing this imports numba. The machine code is kept on disk: after a change to
`fused_elements` or `fused_tile` alone, delete it.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.fast_math import log2_from, split_exponent
from daskmm.numerics.fused import _parts, _plain
from daskmm.numerics.fused_elements import (
    INFORMATION,
    ITAKURA_SAITO,
    NEAR,
    part,
    series,
)
from daskmm.numerics.fused_kernel import _entry
from daskmm.numerics.fused_tile import repeated

FloatArray = NDArray[np.float64]

_LOG_2 = float(np.log(2.0))


def row_terms(code: int, rows: NDArray, reference: FloatArray) -> FloatArray:
    """Divergence of each row from the reference, over its values that are not NaN.

    Parameters
    ----------
    code : int
        Of a divergence other than the squared Euclidean.
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order, within the domain.
    reference : ndarray of shape (n_features,)
        Within the domain, off its edges.

    Returns
    -------
    ndarray of shape (n_rows,), float64
    """
    terms = np.empty(len(rows))
    single = np.result_type(rows.dtype, np.float32) == np.float32
    dtype = np.dtype(np.float32 if single else np.float64)
    for some in _parts(rows, dtype):
        _fill(code, _plain(rows[some], dtype), _plain(reference), terms[some])
    return terms


@_entry
def _fill(code, rows, reference, terms):
    """Divergences of some rows."""
    n, p = rows.shape
    values, theta = rows.ravel(), repeated(reference)
    logs, rest, elements = np.log(theta), np.log1p(-theta), np.empty(len(theta))
    inverse = 1.0 / theta
    for start in range(0, n * p, len(theta)):
        x = values[start : start + len(theta)]
        if code == INFORMATION:
            _information_all(x, theta, logs, elements)
        elif code == ITAKURA_SAITO:
            _itakura_saito_all(x, theta, inverse, logs, elements)
        else:
            _logistic_all(x, logs, rest, elements)
        first = start // p
        for i in range(len(x) // p):
            total = 0.0
            for f in range(p):
                total += elements[i * p + f]
            terms[first + i] = total


@part(inlined=True)
def _fast_information(x, theta, log_theta, exponent, f, inverse):
    """I-divergence without branches; θ > 0, and `inverse` is 1/((2 + f) (θ + x))."""
    difference, total = theta - x, theta + x
    q = difference * (2.0 + f) * inverse
    near = q * (difference - 2.0 * x * q * q * series(q * q))
    log = _LOG_2 * log2_from(exponent, f * total * inverse)
    far = difference + x * (log - log_theta)
    found = near if abs(q) < NEAR else far
    return found if x > 0.0 else theta


@part()
def _information_all(x, theta, log_theta, out):
    """Divergences of numbers that lie end to end; 0 of NaN."""
    for q in range(len(x)):
        value = np.float64(x[q])
        exponent, f = split_exponent(value)
        inverse = 1.0 / ((2.0 + f) * (theta[q] + value))
        found = _fast_information(value, theta[q], log_theta[q], exponent, f, inverse)
        out[q] = found if value == value else 0.0


@part()
def _itakura_saito_all(x, theta, inverse_theta, log_theta, out):
    """As `_information_all`."""
    for q in range(len(x)):
        value, other = np.float64(x[q]), theta[q]
        difference, total = value - other, value + other
        t = difference * inverse_theta[q]
        exponent, f = split_exponent(value)
        g = 2.0 + f
        inverse = 1.0 / (g * total)
        ratio = difference * g * inverse
        near = ratio * (t - 2.0 * ratio * ratio * series(ratio * ratio))
        far = t - (_LOG_2 * log2_from(exponent, f * total * inverse) - log_theta[q])
        found = near if abs(ratio) < NEAR else far
        out[q] = found if value == value else 0.0


@part()
def _logistic_all(x, log_theta, log_rest, out):
    """As `_information_all`, but for digits of numbers near θ; `log_rest` is log(1 − θ)."""
    for q in range(len(x)):
        value = np.float64(x[q])
        rest = 1.0 - value
        exponent, f = split_exponent(value)
        exponent_rest, f_rest = split_exponent(rest)
        g, g_rest = 2.0 + f, 2.0 + f_rest
        # One division for both logarithms; that of 0 is finite here.
        inverse = 1.0 / (g * g_rest)
        log = _LOG_2 * log2_from(exponent, f * g_rest * inverse)
        log_of_rest = _LOG_2 * log2_from(exponent_rest, f_rest * g * inverse)
        found = value * (log - log_theta[q]) + rest * (log_of_rest - log_rest[q])
        out[q] = found if value == value else 0.0
