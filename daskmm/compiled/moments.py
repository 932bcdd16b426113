"""Compute the moments of a block of rows, reading it once.

Each tile is visited twice while it is in the core's cache: for its mean, then for the squared
deviations from it. Tiles are merged by the update of Chan, Golub & LeVeque. Means are kept as
differences from the mean of one tile, so that rounding is small far from 0 too. The results are
defined by `daskmm.engine.moments.Moments`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled import library
from daskmm.compiled.layout import is_plain, plain
from daskmm.numerics.rows import TILE_BYTES, tiles

FloatArray = NDArray[np.float64]

# Numbers per tile. It is the same for all dtypes and memory orders, and so is the result.
_TILE_ELEMENTS = 1 << 15


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
    step = n
    if not is_plain(rows, dtype):
        # Rows are copied, a bounded number of whole tiles at a time.
        step = max(1, TILE_BYTES // (dtype.itemsize * p * tile)) * tile
    for some in tiles(n, max(1, step)):
        x = plain(rows[some], dtype)
        finite = library.call(
            "moments",
            n=len(x),
            p=p,
            tile=tile,
            single_rows=single,
            rows=x,
            weights=None if weights is None else plain(weights[some]),
            totals=totals,
            origin=origin,
            mean=mean,
            deviations=deviations,
            lowest=lowest,
            highest=highest,
        )
        if not finite:
            return None
    mean += origin
    if not (np.isfinite(mean).all() and np.isfinite(deviations).all()):
        return None
    return BlockMoments(int(totals[0]), float(totals[1]), mean, deviations, lowest, highest)
