"""Find the nearest centres of a block of rows; importing this imports numba.

The loop is that of a hard step of `daskmm.compiled.block_sums`, with results per row. The machine
code is cached on disk.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.compiler import entry
from daskmm.compiled.dispatch import PreparedCenters, tiling
from daskmm.compiled.divergences import exact_distance
from daskmm.compiled.intrinsics import wide_vectors
from daskmm.compiled.layout import (
    PANEL_BYTES,
    PLAIN,
    code_of,
    frame_of,
    parts,
    plain,
)
from daskmm.compiled.products import aligned, panel_room, repeated, room
from daskmm.compiled.tile import (
    assign,
    decide,
    dot,
    search,
    settle,
    settled,
    to_model_exactly,
)
from daskmm.numerics.distances import product_rounding
from daskmm.numerics.rows import FeatureCoordinates

FloatArray = NDArray[np.float64]


def nearest_centers(
    rows: NDArray,
    coordinates: FeatureCoordinates,
    prepared: PreparedCenters,
    labels: NDArray[np.int32],
    distances: FloatArray | None = None,
    others: FloatArray | None = None,
) -> bool:
    """Write the nearest centre of each row, and its distance, to the given arrays.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order, in the input's units.
    coordinates : FeatureCoordinates
    prepared : PreparedCenters
        Of squared Euclidean distances between complete rows.
    labels : ndarray of int32 of shape (n_rows,)
        The first of the nearest centres, decided in double precision for any dtype of the rows.
    distances : ndarray of shape (n_rows,), optional
        Σ_l w_l (z_l − θ_l)² to that centre.
    others : ndarray of shape (n_rows,), optional
        Lower bounds of the same to all other centres, certain in spite of rounding.

    Returns
    -------
    bool
        False if a row is not finite in the model's coordinates, or its squared norm overflows;
        labels and distances are undefined then.
    """
    centers, feature_weights = prepared.centers, prepared.feature_weights
    k, p = centers.shape
    w = plain(np.ones(p) if feature_weights is None else feature_weights)
    code = code_of(coordinates)
    dtype = prepared.dtype_for(rows, coordinates.scale, -np.inf)
    model = (*frame_of(coordinates), plain(centers), w, code, prepared.planes(dtype))
    tiles = (dtype.type(product_rounding(dtype, p)), *tiling(k, p, dtype, code))
    near = np.empty(0) if distances is None else distances
    bounds = np.empty(0) if others is None else others
    return all(
        _fill(plain(rows[some], dtype), *model, *tiles, labels[some], near[some], bounds[some])
        for some in parts(rows, dtype)
    )


@entry
def _fill(
    rows,
    mean,
    scale,
    whitening,
    centers,
    w,
    code,
    planes,
    rounding,
    tile,
    at_once,
    labels,
    distances,
    others,
):
    """Write labels and, if wanted, distances of some rows; return whether all are finite.

    Parameters
    ----------
    rows, mean, scale, whitening, centers, w, code, planes, rounding, tile, at_once
        As in `daskmm.compiled.block_sums.hard_sums`.
    labels : int array of shape (n_rows,)
    distances, others : array of shape (n_rows,) or (0,)
    """
    wide_vectors()
    (n, p), k = rows.shape, len(centers)
    kind = rows.dtype
    scaled = not np.all(scale == 1.0)
    factors, _, center_norms, _, _, _, _ = planes
    by_panels = at_once == 0
    z, by_feature = room(tile, p, kind, PANEL_BYTES // factors.itemsize if by_panels else tile)
    padded, _ = panel_room(factors, by_panels)
    d = aligned(max(k + k % 2, len(padded)), tile, kind)
    missing, terms = np.empty((0, p), kind), np.empty(0)
    exact, w_ = np.empty((tile, p)), w.astype(kind)
    raw = np.empty((tile if code < PLAIN else 0, p))
    frame = (repeated(mean), repeated(scale), scaled, whitening)
    shared = terms, planes, w_, at_once, padded
    of_rows, served = np.empty((4, tile), kind), np.empty(tile)
    # Distances need not be exact here, only the choice of the nearest centre.
    cancelled, worst, slack = kind.type(-1), kind.type(np.inf), kind.type(0)
    for start in range(0, n, tile):
        b = min(tile, n - start)
        block, norms, smallest = rows[start : start + b], of_rows[0, :b], of_rows[1, :b]
        second, nearest = of_rows[2, :b], of_rows[3, :b]
        values = exact.ravel()[: b * p]
        to_model_exactly(block, code, frame, raw, exact)
        if not np.isfinite(dot(values, values)):
            for i in range(b):
                if not np.isfinite(dot(exact[i], exact[i])):
                    return False
        assign(values, z.ravel())
        found = smallest, second, nearest
        search(block, z, missing, by_feature, shared, of_rows[0], d, found)
        if settle(smallest, second, norms, slack, rounding, cancelled, worst, served) > 0:
            for i in range(b):
                if settled(smallest[i], second[i], norms[i], slack, rounding, cancelled, worst):
                    continue
                span = norms[i] * 3 + 2 * (smallest[i] + norms[i])
                limit = smallest[i] + rounding * span
                nearest[i] = decide(
                    code, block[i], exact[i], mean, scale, centers, w, d[:, i], center_norms, limit
                )
                second[i] = smallest[i]  # may be the distance to another centre
        for i in range(min(b, len(others) - start)):
            # Centres at a distance d from a row have norms of at most 2 ‖z‖² + 2 d.
            d2 = np.float64(second[i]) + np.float64(norms[i])
            others[start + i] = d2 - np.float64(rounding) * (3.0 * np.float64(norms[i]) + 2.0 * d2)
        assign(nearest, labels[start : start + b])
        for i in range(min(b, len(distances) - start)):
            center = centers[labels[start + i]]
            distances[start + i] = exact_distance(code, block[i], exact[i], mean, scale, center, w)
    return True
