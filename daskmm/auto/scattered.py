"""Rows far from all others, which belong to no group and would take the cells of k-means."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.distances import squared_distances
from daskmm.numerics.whitening import median_and_reach

FloatArray = NDArray[np.float64]

# A row can be scattered if it has a value this many robust standard deviations from the median. If
# such rows have more than this share of the weight, tails are heavy, and no row is scattered.
_REACH, _MOST = 5.0, 0.05
# A row is scattered if its neighbour of rank _NEIGHBOR is _TIMES as far away as that of a typical
# row. The typical distance is the median over at most _SOME rows.
_NEIGHBOR, _TIMES, _SOME = 10, 8.0, 500


def scattered(rows: FloatArray, weights: FloatArray) -> NDArray[np.bool_]:
    """Return a mask of the rows that are far from most rows and from each other.

    A small group of similar rows is not scattered. Rows have no missing values.
    """
    median, reach = median_and_reach(rows, _REACH)
    far = (np.abs(rows - median) > reach).any(axis=1)
    none = np.zeros(len(rows), dtype=np.bool_)
    if not far.any() or weights[far].sum() > _MOST * weights.sum() or len(rows) <= _NEIGHBOR:
        return none
    spread = rows.std(axis=0)
    unit = np.where(np.isfinite(reach), reach / _REACH, np.where(spread > 0, spread, 1.0))
    z = (rows - median) / unit
    near = np.flatnonzero(~far)
    usual = np.median(_to_neighbor(z, near[:: -(-len(near) // _SOME)]))
    if usual > 0:
        none[far] = _to_neighbor(z, np.flatnonzero(far)) > _TIMES**2 * usual
    return none


def _to_neighbor(rows: FloatArray, chosen: NDArray[np.int64]) -> FloatArray:
    """Return the squared distance of each chosen row to its neighbour of rank `_NEIGHBOR`."""
    apart = squared_distances(rows[chosen], rows)
    return np.asarray(np.partition(apart, _NEIGHBOR, axis=1)[:, _NEIGHBOR])
