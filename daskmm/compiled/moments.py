"""Compute the moments of a block of rows, reading it once.

The definition of the results is `daskmm.engine.moments.Moments`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.layout import call_in_parts, plain, row_dtype

FloatArray = NDArray[np.float64]

# Numbers per tile, the same for all dtypes and memory orders, so that results are equal.
_TILE_ELEMENTS = 1 << 15


def block_moments(
    rows: NDArray, weights: FloatArray | None
) -> tuple[int, float, FloatArray, FloatArray, FloatArray, FloatArray] | None:
    """Return the attributes of `daskmm.engine.moments.Moments` of rows that miss no value.

    The result is None if a value, even in a row without weight, is not finite, or its square
    overflows.
    """
    p = rows.shape[1]
    tile = max(1, _TILE_ELEMENTS // p)
    totals, origin, mean, deviations = np.zeros(2), np.zeros(p), np.zeros(p), np.zeros(p)
    lowest, highest = np.full(p, np.inf), np.full(p, -np.inf)
    fields = {"totals": totals, "origin": origin, "mean": mean, "deviations": deviations}
    fields |= {"lowest": lowest, "highest": highest}
    of_rows = {"weights": None if weights is None else plain(weights)}
    if not call_in_parts("moments", rows, row_dtype(rows), tile, of_rows, fields):
        return None
    mean += origin
    if not (np.isfinite(mean).all() and np.isfinite(deviations).all()):
        return None
    return int(totals[0]), float(totals[1]), mean, deviations, lowest, highest
