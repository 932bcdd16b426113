"""Moments of a block of rows in one reading of it; importing this imports numba.

Rows are walked in tiles so small that a tile is still in the core's cache when it is visited the
second time: for the sums of squared deviations from the mean that the first visit found. Tiles
are merged by Chan, Golub & LeVeque's update, their means being kept as differences from that of
one of them, so that rounding is small far from 0 too. What is computed is defined by
`daskmm.engine.moments.Moments`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.compiler import EXACT, entry, part
from daskmm.compiled.layout import plain
from daskmm.numerics.rows import TILE_BYTES, tiles

FloatArray = NDArray[np.float64]

# Numbers per tile; their number alone decides what is merged with what, so that the result does
# not depend on the type or the order in which the rows are kept.
_TILE_ELEMENTS = 1 << 15
# Rows are walked a few at a time, so that there are this many numbers at least.
_VECTORS = 256


class BlockMoments(NamedTuple):
    """Moments of a block, as those of `daskmm.engine.moments.Moments`.

    Attributes
    ----------
    n_positive : int
    weight : float
    mean, deviations, lowest, highest : ndarray of shape (n_features,)
    """

    n_positive: int
    weight: float
    mean: FloatArray
    deviations: FloatArray
    lowest: FloatArray
    highest: FloatArray


def block_moments(rows: NDArray, weights: FloatArray | None) -> BlockMoments | None:
    """Weighted count, mean, sum of squared deviations and range per feature.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order.
    weights : ndarray of shape (n_rows,) or None
        Sample weights, finite and not negative.

    Returns
    -------
    BlockMoments or None
        None where a value is not finite, also in a row without weight, or where its square
        overflows.
    """
    n, p = rows.shape
    single = np.result_type(rows.dtype, np.float32) == np.float32
    dtype = np.dtype(np.float32 if single else np.float64)
    tile = max(1, _TILE_ELEMENTS // p)
    totals, origin, mean, deviations = np.zeros(2), np.zeros(p), np.zeros(p), np.zeros(p)
    lowest, highest = np.full(p, np.inf), np.full(p, -np.inf)
    found = (totals, origin, mean, deviations, lowest, highest)
    step = n
    if rows.dtype != dtype or not rows.flags.c_contiguous:
        # They are copied, a bounded number of whole tiles at a time.
        step = max(1, TILE_BYTES // (dtype.itemsize * p * tile)) * tile
    for some in tiles(n, max(1, step)):
        v = plain(np.empty(0) if weights is None else weights[some])
        if not _add_moments(plain(rows[some], dtype), v, tile, *found):
            return None
    mean += origin
    if not (np.isfinite(mean).all() and np.isfinite(deviations).all()):
        return None
    return BlockMoments(int(totals[0]), float(totals[1]), mean, deviations, lowest, highest)


@part(EXACT)
def _spread(weights, first, n_features, v):
    """Weights of some rows, each repeated for its features; 0 past the last row."""
    for r in range(len(v) // n_features):
        value = weights[first + r] if first + r < len(weights) else 0.0
        for f in range(n_features):
            v[r * n_features + f] = value


@part(EXACT)
def _visit_first(x, v, origins, sums, lowest, highest):
    """Sums of differences, and range, of numbers that lie side by side in some rows."""
    for q in range(len(x)):
        value, held = np.float64(x[q]), v[q] > 0.0
        sums[q] += v[q] * (value - origins[q])
        lowest[q] = value if held & (value < lowest[q]) else lowest[q]
        highest[q] = value if held & (value > highest[q]) else highest[q]


@part(EXACT)
def _visit_again(x, v, means, residues, squares):
    """Sums of deviations and of their squares."""
    for q in range(len(x)):
        deviation = np.float64(x[q]) - means[q]
        weighted = v[q] * deviation  # 0 without weight, however large the deviation
        residues[q] += weighted
        squares[q] += weighted * deviation


@part(EXACT)
def _merge(weight, total, f, own_mean, residues, squares, mean, deviations):
    """Add one feature of a tile of positive weight, whose mean is rounded, to all before it."""
    residue = square = 0.0
    for q in range(f, len(squares), len(mean)):
        residue += residues[q]
        square += squares[q]
    share = weight / (total + weight)
    own_mean += residue / weight
    delta = own_mean - mean[f]
    # From the mean that counts for more: the other may be far away, and its rounding large.
    mean[f] = (
        mean[f] + delta * share if share <= 0.5 else own_mean - delta * (total / (total + weight))
    )
    deviations[f] += max(square - residue * (residue / weight), 0.0)
    deviations[f] += delta * delta * (total * share)


@entry
def _add_moments(rows, weights, tile, totals, origin, mean, deviations, lowest, highest):
    """Add rows to the moments; returns whether all their values are finite.

    Parameters
    ----------
    rows : array of shape (n_rows, n_features), single or double, C order
    weights : array of shape (n_rows,), or empty where all are 1
    tile : int
        Rows at a time.
    totals, origin, mean, deviations, lowest, highest : arrays
        Added to. `totals` are the number of rows of positive weight and the sum of the weights;
        `mean` is that of the differences from `origin`, the mean of the first tile or of the
        last that outweighed all before it.
    """
    n, p = rows.shape
    length = -(-_VECTORS // p) * p
    v, sums, means = np.ones(length), np.empty(length), np.empty(length)
    residues, squares = np.empty(length), np.empty(length)
    low, high = np.full(length, np.inf), np.full(length, -np.inf)
    for start in range(0, n, tile):
        x, own = rows[start : start + tile].ravel(), weights[start : start + tile]
        n_positive, weight = min(tile, n - start), float(min(tile, n - start))
        if len(weights):
            n_positive, weight = np.count_nonzero(own), own.sum()
        sums[:] = 0.0
        for q in range(length):
            means[q] = origin[q % p]
        for q in range(0, len(x), length):
            if len(weights):
                _spread(own, q // p, p, v)
            _visit_first(x[q : q + length], v, means, sums, low, high)
        for f in range(p):
            total = sums[f::p].sum()
            # A weight of 0 makes NaN of what is not finite.
            if not np.isfinite(total):
                return False
            if weight > 0.0:
                means[f::p] = origin[f] + total / weight
        if weight == 0.0:
            continue
        if weight > totals[1]:
            for f in range(p):
                mean[f] = mean[f] + (origin[f] - means[f]) if totals[1] > 0.0 else 0.0
                origin[f] = means[f]
        residues[:] = 0.0
        squares[:] = 0.0
        for q in range(0, len(x), length):
            if len(weights):
                _spread(own, q // p, p, v)
            _visit_again(x[q : q + length], v, means, residues, squares)
        for f in range(p):
            own_mean = means[f] - origin[f]
            _merge(weight, totals[1], f, own_mean, residues, squares, mean, deviations)
        totals[0] += n_positive
        totals[1] += weight
    for q in range(length):
        lowest[q % p] = min(lowest[q % p], low[q])
        highest[q % p] = max(highest[q % p], high[q])
    return True
