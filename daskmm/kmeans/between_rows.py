"""Distances between rows of a sample, as a fitted model measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from daskmm.kmeans.assignment import unshifted
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.columns import MixedCoordinates
from daskmm.numerics.rows import Rows, tiles
from daskmm.numerics.sparse_rows import FEW_BYTES, dense

FloatArray = NDArray[np.float64]


def distances_between(
    rows: NDArray, coordinates: Rows, state: CenterState
) -> Callable[[slice], FloatArray]:
    """Return a function that computes the distances of some of the rows to all of them.

    The distance of two rows is that of a row to a centre in the place of the other, or the root of
    a divergence. If values are missing, it is summed over the features that both rows have, and
    scaled up to the weight of all features. Rows without a common feature are at the mean distance.
    """
    distortion, partial = state.distortion, state.partial
    coordinates, state = unshifted(rows, coordinates, state)
    z = coordinates.to_model(rows)
    n, p = z.shape
    weights = np.ones(p) if state.feature_weights is None else state.feature_weights
    held = ~np.isnan(z) if partial else None
    shares = weights
    if isinstance(coordinates, MixedCoordinates):
        expansion = coordinates.expansion
        shares = weights / expansion.sizes[expansion.groups]

    def between(part: slice) -> FloatArray:
        tile = distortion.tile(z[part], partial)
        out = np.empty((tile.rows.shape[0], n))
        for some, seen in _groups(held, n, p):
            others = dense(z[some])
            if seen is not None:
                others = np.where(seen, others, distortion.inside(others))
            if distortion.infinite:
                others = distortion.inside(others)
            own = state.feature_weights if seen is None else weights * seen
            out[:, some] = distortion.distances(tile, others, own)
        if held is not None:
            common = (held[part] * shares) @ held.T.astype(np.float64)
            known = common > 0
            np.divide(out * shares.sum(), common, out=out, where=known)
            out[~known] = out[known].mean() if known.any() else 0.0
        return distortion.unsquared(out)

    return between


def _groups(
    held: NDArray[np.bool_] | None, n_rows: int, n_features: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_] | None]]:
    """Yield groups of rows that have the same features, and these features; None for all."""
    patterns: NDArray[np.bool_] | list[None] = [None]
    pattern_of = np.zeros(n_rows, dtype=np.int64)
    if held is not None:
        patterns, pattern_of = np.unique(held, axis=0, return_inverse=True)
    for number, seen in enumerate(patterns):
        members = np.flatnonzero(pattern_of == number)
        for part in tiles(len(members), max(1, FEW_BYTES // (8 * n_features))):
            yield members[part], seen
