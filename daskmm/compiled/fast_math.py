"""Compute logarithms and exponentials to base 2 by short polynomials that can be vectorised.

The functions of the C library take one number per call; these are a few dozen arithmetic
instructions without branches, which compilers vectorise. The fast versions are used only in
functions compiled by numba. The coefficients are those of minimax polynomials of the relative
error (Remez' algorithm in 60 digits); comments give their errors. They are summed in pairs
(Estrin's scheme), because a chain of dependent instructions is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

# (2/ln 2)·artanh(q)/q in q², for |q| ≤ (√2 − 1)/(√2 + 1): 1.7e-16 (double), 6.9e-10 (single).
_A0, _A1, _A2, _A3, _A4, _A5, _A6 = (
    2.885390081777927,
    0.9617966939243245,
    0.5770780172502946,
    0.4121984014728894,
    0.32061642585672007,
    0.26144310953335265,
    0.24292899858294206,
)
_B0, _B1, _B2, _B3 = np.array(
    [2.885390079788923, 0.961798847642647, 0.5767143838971124, 0.4317358806344565], np.float32
)
# 2^f for |f| ≤ 1/2: 3.0e-16 (double), 2.6e-9 (single).
_C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10 = (
    0.6931471805599516,
    0.24022650695910472,
    0.05550410866434658,
    0.009618129107380713,
    0.0013333558246480736,
    0.00015403530800819307,
    1.5252647747691453e-05,
    1.3215235634268184e-06,
    1.021050645903462e-07,
    7.111758774287794e-09,
)
_D1, _D2, _D3, _D4, _D5, _D6 = np.array(
    [
        0.6931472149680221,
        0.24022652782874862,
        0.05550310551029842,
        0.009617692975066663,
        0.0013406643892691188,
        0.000155946775080192,
    ],
    np.float32,
)

_HALF_ROOT = np.float64(np.sqrt(0.5)).view(np.int64)  # bits of √½
_HALF_ROOT_32 = np.float32(np.sqrt(0.5)).view(np.int32)
_EXPONENT = np.int64(-(1 << 52))  # mask of sign and exponent
_EXPONENT_32 = np.int32(-(1 << 23))
# Adding this rounds to an integer, which is then in the lowest bits.
_ROUND = np.float64(1.5 * 2**52)
_ROUND_32 = np.float32(1.5 * 2**23)
_ROUND_BITS = _ROUND.view(np.int64)
_ROUND_BITS_32 = _ROUND_32.view(np.int32)
_ROOT_32 = np.float32(np.sqrt(2.0))
# Products may be fused with sums; inlining lets the loops that call these be vectorised.
_INLINED: Any = {"forceinline": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}
_ONE_32, _TWO_32 = np.float32(1.0), np.float32(2.0)


def log2_1p(excess: Any) -> Any:
    """Return log2(1 + e) for e in [0, ∞], exact to rounding also for tiny e.

    The value at ∞ is 128 (single) or 1024 (double). Compiled code takes `_log2_1p`.
    """
    return np.minimum(np.log1p(excess) / np.log(2.0), np.finfo(np.asarray(excess).dtype).maxexp)


def split_exponent(value: Any) -> Any:
    """Split a normal positive double 2^n (1 + f) into n and f, with 1 + f in [√½, √2).

    Undefined for other numbers. Compiled code takes `_split_exponent`.
    """
    mantissa, n = np.frexp(value)
    small = mantissa < np.sqrt(0.5)
    return n - small, np.where(small, 2.0 * mantissa, mantissa) - 1.0


def log2_from(exponent: Any, q: Any) -> Any:
    """Return n + log2(1 + f) from n and q = f/(2 + f). Compiled code takes `_log2_from`."""
    return exponent + 2.0 * np.arctanh(q) / np.log(2.0)


def exp2(power: Any) -> Any:
    """Return 2^y for y in the exponents of normal numbers (−126 to 127, or −1022 to 1023).

    Undefined outside of them. Compiled code takes `_exp2`.
    """
    return np.exp2(power)


@overload(log2_1p, jit_options=_INLINED)
def _log2_1p(excess: Any) -> Callable:
    if excess == types.float32:
        return _log2_1p_32
    return _log2_1p_64


@overload(split_exponent, jit_options=_INLINED)
def _split_exponent(value: Any) -> Callable:
    return _split_exponent_64


@overload(log2_from, jit_options=_INLINED)
def _log2_from(exponent: Any, q: Any) -> Callable:
    return _log2_from_64


@overload(exp2, jit_options=_INLINED)
def _exp2(power: Any) -> Callable:
    if power == types.float32:
        return _exp2_32
    return _exp2_64


def _split_exponent_64(value: Any) -> Any:
    bits = np.float64(value).view(np.int64)
    above = bits - _HALF_ROOT
    n = np.int64((above >> 52) + _ROUND_BITS).view(np.float64) - _ROUND
    return n, np.int64(bits - (above & _EXPONENT)).view(np.float64) - 1.0


def _log2_from_64(exponent: Any, q: Any) -> Any:
    t = q * q
    t2 = t * t
    series = (_A0 + _A1 * t) + t2 * (_A2 + _A3 * t)
    series += (t2 * t2) * ((_A4 + _A5 * t) + t2 * _A6)
    return exponent + q * series


def _log2_1p_64(excess: Any) -> Any:
    r = 1.0 + excess
    bits = np.float64(r).view(np.int64)
    above = bits - _HALF_ROOT
    # r = 2^n · mantissa, the mantissa in [√½, √2).
    n = np.int64((above >> 52) + _ROUND_BITS).view(np.float64) - _ROUND
    f = np.int64(bits - (above & _EXPONENT)).view(np.float64) - 1.0
    # Use e near 1, because 1 + e is rounded.
    f = excess if r < 1.4142135623730951 else f
    q = f / (2.0 + f)
    t = q * q
    t2 = t * t
    series = (_A0 + _A1 * t) + t2 * (_A2 + _A3 * t)
    series += (t2 * t2) * ((_A4 + _A5 * t) + t2 * _A6)
    return n + q * series


def _log2_1p_32(excess: Any) -> Any:
    r = _ONE_32 + excess
    bits = np.float32(r).view(np.int32)
    above = np.int32(bits - _HALF_ROOT_32)
    n = np.int32((above >> 23) + _ROUND_BITS_32).view(np.float32) - _ROUND_32
    f = np.int32(bits - (above & _EXPONENT_32)).view(np.float32) - _ONE_32
    f = excess if r < _ROOT_32 else f
    q = f / (_TWO_32 + f)
    t = q * q
    return n + q * ((_B0 + _B1 * t) + (t * t) * (_B2 + _B3 * t))


def _exp2_64(power: Any) -> Any:
    shifted = np.float64(power + _ROUND)
    f = power - (shifted - _ROUND)
    f2 = f * f
    f4 = f2 * f2
    tail = (_C1 + _C2 * f) + f2 * (_C3 + _C4 * f)
    tail += f4 * ((_C5 + _C6 * f) + f2 * (_C7 + _C8 * f))
    tail += (f4 * f4) * (_C9 + _C10 * f)
    series = 1.0 + f * tail
    return np.int64(np.float64(series).view(np.int64) + (shifted.view(np.int64) << 52)).view(
        np.float64
    )


def _exp2_32(power: Any) -> Any:
    shifted = np.float32(power + _ROUND_32)
    f = power - (shifted - _ROUND_32)
    f2 = f * f
    tail = (_D1 + _D2 * f) + f2 * (_D3 + _D4 * f) + (f2 * f2) * (_D5 + _D6 * f)
    series = np.float32(_ONE_32 + f * tail)
    exponent = np.int32(np.int32(shifted.view(np.int32)) << 23)
    return np.int32(series.view(np.int32) + exponent).view(np.float32)
