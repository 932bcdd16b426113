"""The compiled loops behind `daskmm.numerics.fused`; importing this imports numba.

Rows are walked in tiles so small that a tile's distances, kept as (centre, row), stay in the
core's cache between the matrix product that makes them and the one that uses them up. The inner
loops run along the rows of a tile, without branches, so that they are vectorised. Matrix
products are those that scipy's BLAS offers to compiled code. Nothing here holds a lock, or
memory that two calls share, so several threads may work on blocks at once.

Everything is written for the rows' own floating type (single or double) and sums in double.
The machine code is kept beside this file, and is made again when this file changes: after a change
to `fused_tile` or `fast_math` alone, delete it.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from numba import njit, types
from numba.extending import get_cython_function_address, overload

from daskmm.numerics.fused_elements import WHITENED
from daskmm.numerics.fused_tile import (
    _EXACT,
    _part,
    add_squares,
    assign,
    complete,
    decide,
    dot,
    exact_distance,
    finish,
    keep_farthest,
    multiply,
    prepare,
    ratios,
    redo,
    redo_row,
    repeated,
    scatter,
    separate,
    separation,
    settle,
    settled,
    split,
    squared_norms,
    to_model,
    to_model_in_type,
    two_nearest,
    weigh,
)
from daskmm.numerics.power_means import TIE

for _name in ("dgemm", "sgemm"):
    _address = get_cython_function_address("scipy.linalg.cython_blas", _name)
    llvmlite.binding.add_symbol(f"daskmm_{_name}", _address)
_CALL = types.void(*[types.voidptr] * 13)
_dgemm = types.ExternalFunction("daskmm_dgemm", _CALL)
_sgemm = types.ExternalFunction("daskmm_sgemm", _CALL)

# Columns of a triangular matrix that are multiplied at a time.
_COLUMNS = 16

_NO_TRANSPOSE = np.frombuffer(b"N", dtype=np.uint8)
_TRANSPOSE = np.frombuffer(b"T", dtype=np.uint8)


def _entry(function: Callable) -> Callable:
    """Compiled, the machine code being kept on disk where there is a place for it."""
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"contract", "nsz"},
    }
    try:
        compiled: Callable = njit(cache=True, **options)(function)
    except RuntimeError:
        compiled = njit(**options)(function)
    return compiled


def _gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """BLAS' general matrix product; a name for compiled code only, which takes `_gemm_of`."""
    raise TypeError("compiled code only: numba takes _gemm_of in the place of this name")


@overload(_gemm)
def _gemm_of(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    product = _sgemm if c.dtype == types.float32 else _dgemm

    def call(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        product(
            ta.ctypes,
            tb.ctypes,
            m.ctypes,
            n.ctypes,
            k.ctypes,
            alpha.ctypes,
            a.ctypes,
            lda.ctypes,
            b.ctypes,
            ldb.ctypes,
            beta.ctypes,
            c.ctypes,
            ldc.ctypes,
        )

    return call


@_part(_EXACT)
def whiten(rows, whitening, sizes, z):
    """Products of rows with a lower triangular matrix, whose zeros are mostly left out.

    `sizes` are those of the callers: the first is how many rows there are, the fourth how wide
    they are, the last two are set here.
    """
    p, one, zero = len(whitening), np.ones(1), np.zeros(1)
    of_rows, of_matrix, of_z = rows.ravel(), whitening.ravel(), z.ravel()
    b_, p_, columns_, left_ = sizes, sizes[3:], sizes[4:], sizes[5:]
    for first in range(0, p, _COLUMNS):
        columns_[0], left_[0] = min(_COLUMNS, p - first), p - first
        matrix, x, found = of_matrix[first * (p + 1) :], of_rows[first:], of_z[first:]
        none = _NO_TRANSPOSE
        _gemm(none, none, columns_, b_, left_, one, matrix, p_, x, p_, zero, found, p_)


@_entry
def soft_sums(
    rows,
    weights,
    mean,
    scale,
    whitening,
    centers,
    w,
    code,
    terms,
    planes,
    s,
    limits,
    rounding,
    tile,
    n_j,
    sums,
    squares,
    observed,
    totals,
):
    """Add the sums of one candidate at a finite power.

    Parameters
    ----------
    rows : array of shape (n_rows, n_features), single or double, C order
        NaN are holes where `observed` is not empty.
    weights : array of shape (n_rows,), or empty where all are 1
    mean, scale : arrays of shape (n_features,)
    whitening : array of shape (n_features, n_features) or (0, 0)
        Lower triangular; what rows are multiplied by last, which is done in double precision.
    centers : array of shape (n_clusters, n_features)
    w : array of shape (n_features,)
    code : int
        Of the distortion, in `daskmm.numerics.fused_elements`.
    terms : array of shape (n_rows,), or empty where they are squared norms
        What the distances of a row have in common.
    planes : tuple
        What `daskmm.numerics.fused.CenterPlanes` holds.
    s : float
    limits : tuple of the rows' type
        Share of the norms below which a distance is cancelled; lowest exponent of a weight;
        smallest distance and largest norm that are regular.
    rounding : float of the rows' type
        Error of a product, as a share of the norms.
    tile : int
        Rows at a time.
    n_j, sums, squares, observed, totals : arrays
        Added to. `totals` are objective, inertia, hardness; `squares` and `observed` may be empty.
    """
    (n, p), k = rows.shape, len(centers)
    kind = rows.dtype
    cancelled, lowest, low, high = limits
    power, inverse_s, n_clusters = kind.type(s - 1.0), kind.type(1.0 / s), kind.type(k)
    scaled, holes = not np.all(scale == 1.0), len(observed) > 0
    # Centres are looked at in pairs; the odd one's partner is at ∞.
    factors, constants, center_norms, reaches, slack, edges, ends = planes
    z, held = np.empty((tile, p), kind), np.empty((tile if holes else 0, p), kind)
    d, part = np.zeros((k + k % 2, tile), kind), np.empty((k, p), kind)
    of_rows, of_rows_double = np.empty((7, tile), kind), np.empty((4, tile))
    distances, w_ = np.empty(k), w.astype(kind)
    means, scales = repeated(mean).astype(kind), repeated(scale).astype(kind)
    rest = (repeated(mean) - means).astype(kind)
    exact_means, exact_scales = repeated(mean), repeated(scale)
    raw = np.empty((tile if code == WHITENED else 1, p))
    whitened = np.empty_like(raw)
    sizes = np.array([tile, tile, k, p, 0, 0], dtype=np.int32)
    b_, ld_, k_, p_ = sizes, sizes[1:], sizes[2:], sizes[3:]
    zero, one = np.zeros(1, kind), np.ones(1, kind)
    for start in range(0, n, tile):
        b = min(tile, n - start)
        sizes[0] = b
        block, zb = rows[start : start + b], z[:b]
        norms, m, inverse, tie = of_rows[0, :b], of_rows[1, :b], of_rows[2, :b], of_rows[3, :b]
        total, tied, factor = of_rows[4, :b], of_rows[5, :b], of_rows[6, :b]
        v, exact = of_rows_double[0, :b], of_rows_double[1, :b]
        value, hardness = of_rows_double[2, :b], of_rows_double[3, :b]
        if len(weights):
            v[:] = weights[start : start + b]
        else:
            v[:] = 1.0
        if code == WHITENED:
            to_model(block.ravel(), exact_means, exact_scales, scaled, raw.ravel())
            whiten(raw, whitening, sizes, whitened)
            assign(whitened.ravel()[: b * p], z.ravel())
        else:
            to_model_in_type(block.ravel(), means, rest, scales, scaled, z.ravel()[: b * p])
        if holes:
            split(z.ravel()[: b * p], held.ravel()[: b * p])
        if len(terms):
            assign(terms[start : start + b], norms)
        else:
            squared_norms(zb, w_, norms)
        _gemm(_TRANSPOSE, _NO_TRANSPOSE, b_, k_, p_, one, z, p_, factors, p_, zero, d, ld_)
        if holes:
            _gemm(_TRANSPOSE, _NO_TRANSPOSE, b_, k_, p_, one, held, p_, constants, p_, one, d, ld_)
        if len(edges):
            separate(block, edges, ends[0], ends[1], d)
        m[:] = np.inf
        for j in range(0, k, 2):
            near = complete(
                d[j, :b],
                d[j + 1, :b],
                norms,
                center_norms[j],
                center_norms[j + 1],
                reaches[j],
                reaches[j + 1],
                cancelled,
                m,
            )
            if near > 0:
                redo(
                    code,
                    block,
                    whitened,
                    mean,
                    scale,
                    centers,
                    w,
                    norms,
                    reaches,
                    cancelled,
                    low,
                    j,
                    d,
                    m,
                )
        if prepare(m, norms, slack, low, high, rounding, exact, inverse, tie) > 0:
            for i in range(b):
                if m[i] != 0.0 and not (m[i] >= low and norms[i] <= high):
                    x = whitened[i % len(whitened)]
                    exact[i] = redo_row(code, block[i], x, mean, scale, centers, w, distances)
                    m[i] = ratios(distances, exact[i], d[:k, i])
                    inverse[i], tie[i] = 1.0 / m[i], TIE
        total[:] = 0.0
        tied[:] = 0.0
        for j in range(0, k, 2):
            weigh(d[j, :b], d[j + 1, :b], m, inverse, tie, power, lowest, total, tied)
        finish(total, tied, exact, v, n_clusters, inverse_s, factor, value, hardness)
        totals[0] += dot(v, value)
        totals[1] += dot(v, exact)
        totals[2] += dot(v, hardness)
        for j in range(k):
            n_j[j] += multiply(d[j, :b], factor)
        if len(squares):
            add_squares(zb, d, total, squares)
        _gemm(_NO_TRANSPOSE, _NO_TRANSPOSE, p_, k_, b_, one, z, p_, d, ld_, zero, part, p_)
        for j in range(k):
            for f in range(p):
                sums[j, f] += part[j, f]
        if holes:
            _gemm(_NO_TRANSPOSE, _NO_TRANSPOSE, p_, k_, b_, one, held, p_, d, ld_, zero, part, p_)
            for j in range(k):
                for f in range(p):
                    observed[j, f] += part[j, f]


@_entry
def hard_sums(
    rows,
    weights,
    mean,
    scale,
    whitening,
    centers,
    w,
    code,
    terms,
    planes,
    rounding,
    cancelled,
    tile,
    n_j,
    sums,
    squares,
    observed,
    totals,
    far,
    far_rows,
):
    """Add the sums of one candidate at s = −∞, and list the worst-served rows.

    Matrix products find the nearest centres, up to their rounding; near ties are decided from
    the differences in double precision.

    Parameters
    ----------
    rows, weights, mean, scale, whitening, centers, w, code, terms, planes, tile
        As in `soft_sums`.
    n_j, sums, squares, observed, totals
        As in `soft_sums`.
    rounding, cancelled : float of the rows' type
        Error of a product, and distances that are to be computed again, as a share of the norms.
    far : array of shape (n_farthest,)
        Distances of the worst-served rows so far, descending; 0 where there are none.
    far_rows : int array of shape (n_farthest,)
        Their positions.
    """
    (n, p), k = rows.shape, len(centers)
    factors, constants, center_norms, _, slack, edges, ends = planes
    kind = factors.dtype
    scaled, holes = not np.all(scale == 1.0), len(observed) > 0
    z, d = np.empty((tile, p), kind), np.zeros((k + k % 2, tile), kind)
    held, ignored, none = np.empty((tile if holes else 0, p), kind), np.zeros(k), np.zeros(0)
    exact, w_ = np.empty((tile, p)), w.astype(kind)
    raw = np.empty((tile if code == WHITENED else 0, p))
    means, scales = repeated(mean), repeated(scale)
    # Numbers of centres are kept in a type as wide as the distances.
    of_rows, of_rows_double = np.empty((4, tile), kind), np.empty((2, tile))
    sizes = np.array([tile, tile, k, p, 0, 0], dtype=np.int32)
    b_, ld_, k_, p_ = sizes, sizes[1:], sizes[2:], sizes[3:]
    zero, one = np.zeros(1, kind), np.ones(1, kind)
    inertia = weight = 0.0
    for start in range(0, n, tile):
        b = min(tile, n - start)
        sizes[0] = b
        block, norms, smallest = rows[start : start + b], of_rows[0, :b], of_rows[1, :b]
        second, nearest = of_rows[2, :b], of_rows[3, :b]
        v, served = of_rows_double[0, :b], of_rows_double[1, :b]
        if len(weights):
            v[:] = weights[start : start + b]
        else:
            v[:] = 1.0
        if code == WHITENED:
            to_model(block.ravel(), means, scales, scaled, raw.ravel())
            whiten(raw, whitening, sizes, exact)
        else:
            to_model(block.ravel(), means, scales, scaled, exact.ravel())
        if holes:
            split(exact.ravel()[: b * p], held.ravel()[: b * p])
        assign(exact.ravel()[: b * p], z.ravel())
        if len(terms):
            assign(terms[start : start + b], norms)
        else:
            squared_norms(z[:b], w_, norms)
        _gemm(_TRANSPOSE, _NO_TRANSPOSE, b_, k_, p_, one, z, p_, factors, p_, zero, d, ld_)
        if holes:
            _gemm(_TRANSPOSE, _NO_TRANSPOSE, b_, k_, p_, one, held, p_, constants, p_, one, d, ld_)
        if len(edges):
            separate(block, edges, ends[0], ends[1], d)
        smallest[:] = np.inf
        second[:] = np.inf
        nearest[:] = 0
        for j in range(0, k, 2):
            norm, other_norm = center_norms[j], center_norms[j + 1]
            two_nearest(
                d[j, :b], d[j + 1, :b], norm, other_norm, kind.type(j), smallest, second, nearest
            )
        worst = kind.type((1.0 - 1e-5) * far[-1] if len(far) else np.inf)
        if settle(smallest, second, norms, slack, rounding, cancelled, worst, served) > 0:
            for i in range(b):
                if settled(smallest[i], second[i], norms[i], slack, rounding, cancelled, worst):
                    continue
                span = norms[i] * 3 + 2 * (smallest[i] + norms[i]) + slack
                if not second[i] - smallest[i] > rounding * span:
                    limit = smallest[i] + rounding * span
                    nearest[i] = decide(
                        code,
                        block[i],
                        exact[i],
                        mean,
                        scale,
                        centers,
                        w,
                        d[:, i],
                        center_norms,
                        limit,
                    )
                center = centers[int(nearest[i])]
                served[i] = exact_distance(code, block[i], exact[i], mean, scale, center, w)
                if len(far) and v[i] > 0.0 and served[i] > far[-1]:
                    keep_farthest(served[i], start + i, far, far_rows)
        if z.itemsize < exact.itemsize:
            # The cost is to be that of a double precision score.
            for i in range(b):
                served[i] = separation(exact[i], centers[int(nearest[i])], w)
        scatter(exact[:b], nearest, v, n_j, sums, squares)
        if holes:
            scatter(held[:b], nearest, v, ignored, observed, none)
        inertia += dot(v, served)
        weight += v.sum()
    totals[0] += inertia
    totals[1] += inertia
    totals[2] += weight
