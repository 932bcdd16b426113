"""Compute the moments of a block of rows, reading it once; importing this imports numba.

Each tile is visited twice while it is in the core's cache: for its mean, then for the squared
deviations from it. Tiles are merged by the update of Chan, Golub & LeVeque. Means are kept as
differences from the mean of one tile, so that rounding is small far from 0 too. The results are
defined by `daskmm.engine.moments.Moments`.
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

# Numbers per tile. It is the same for all dtypes and memory orders, and so is the result.
_TILE_ELEMENTS = 1 << 15
# Rows are processed a few at a time: at least this many numbers.
_VECTORS = 256


class BlockMoments(NamedTuple):
    """Moments of a block, as in `daskmm.engine.moments.Moments`.

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
    """Return weighted count, mean, sum of squared deviations and range per feature.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order.
    weights : ndarray of shape (n_rows,) or None
        Sample weights, finite and not negative.

    Returns
    -------
    BlockMoments or None
        None if a value is not finite, also in a row without weight, or if its square overflows.
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
        # Rows are copied, a bounded number of whole tiles at a time.
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
    """Write the weight of each row once per feature; 0 past the last row."""
    for r in range(len(v) // n_features):
        value = weights[first + r] if first + r < len(weights) else 0.0
        for f in range(n_features):
            v[r * n_features + f] = value


@part(EXACT)
def _visit_first(x, v, origins, sums, lowest, highest):
    """Update the sums of differences from `origins`, and the range, of contiguous numbers."""
    for q in range(len(x)):
        value, held = np.float64(x[q]), v[q] > 0.0
        sums[q] += v[q] * (value - origins[q])
        lowest[q] = value if held & (value < lowest[q]) else lowest[q]
        highest[q] = value if held & (value > highest[q]) else highest[q]


@part(EXACT)
def _visit_again(x, v, means, residues, squares):
    """Add deviations from the mean, and their squares."""
    for q in range(len(x)):
        deviation = np.float64(x[q]) - means[q]
        weighted = v[q] * deviation  # 0 without weight, however large the deviation
        residues[q] += weighted
        squares[q] += weighted * deviation


@part(EXACT)
def _merge(weight, total, f, own_mean, residues, squares, mean, deviations):
    """Merge one feature of a tile of positive weight; `residues` correct its rounded mean."""
    residue = square = 0.0
    for q in range(f, len(squares), len(mean)):
        residue += residues[q]
        square += squares[q]
    share = weight / (total + weight)
    own_mean += residue / weight
    delta = own_mean - mean[f]
    # Start from the mean of larger weight: the other may be far away, with a large rounding error.
    mean[f] = (
        mean[f] + delta * share if share <= 0.5 else own_mean - delta * (total / (total + weight))
    )
    deviations[f] += max(square - residue * (residue / weight), 0.0)
    deviations[f] += delta * delta * (total * share)


@entry
def _add_moments(rows, weights, tile, totals, origin, mean, deviations, lowest, highest):
    """Add rows to the moments; return whether all their values are finite.

    Parameters
    ----------
    rows : array of shape (n_rows, n_features), single or double, C order
    weights : array of shape (n_rows,), or empty where all are 1
    tile : int
        Rows per tile.
    totals, origin, mean, deviations, lowest, highest : arrays
        Updated in place. `totals` are the number of rows of positive weight and the sum of the
        weights; `mean` is that of the differences from `origin`, the mean of the first tile or of
        the last one that outweighed all before it.
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
            # Values that are not finite give NaN even with weight 0.
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
