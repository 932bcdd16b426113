"""Find the nearest centres of a block of rows; importing this imports numba.

The loop is that of a hard step of `daskmm.compiled.block_sums`, with results per row. The machine
code is cached on disk.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.compiler import REORDERED, entry, part
from daskmm.compiled.divergences import exact_distance
from daskmm.compiled.intrinsics import wide_vectors
from daskmm.compiled.layout import PLAIN, code_of, frame_of, parts, plain, tile_rows, working_dtype
from daskmm.compiled.products import aligned, products, repeated, room, squared_norms, transpose
from daskmm.compiled.tile import (
    assign,
    decide,
    dot,
    settle,
    settled,
    to_model_exactly,
    two_nearest,
)
from daskmm.numerics.rows import FeatureCoordinates

FloatArray = NDArray[np.float64]


def nearest_centers(
    rows: NDArray,
    coordinates: FeatureCoordinates,
    centers: FloatArray,
    feature_weights: FloatArray | None,
    labels: NDArray[np.int32],
    distances: FloatArray | None = None,
) -> bool:
    """Write the nearest centre of each row, and its distance, to the given arrays.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order, in the input's units.
    coordinates : FeatureCoordinates
    centers : ndarray of shape (n_clusters, n_features)
        In the model's coordinates.
    feature_weights : ndarray of shape (n_features,) or None
    labels : ndarray of int32 of shape (n_rows,)
        The first of the nearest centres, decided in double precision for any dtype of the rows.
    distances : ndarray of shape (n_rows,), optional
        Σ_l w_l (z_l − θ_l)² to that centre.

    Returns
    -------
    bool
        False if a row is not finite in the model's coordinates, or its squared norm overflows;
        labels and distances are undefined then.
    """
    k, p = centers.shape
    w = plain(np.ones(p) if feature_weights is None else feature_weights)
    model = (*frame_of(coordinates), plain(centers), w, code_of(coordinates))
    dtype = working_dtype(rows, coordinates.scale, centers, -np.inf)
    # Error bound of a product of p factors.
    rounding = dtype.type(2.0 * np.finfo(dtype).eps * (4.0 + np.sqrt(p)))
    tile, at_once = tile_rows(k, p, dtype.itemsize, False)
    near = np.empty(0) if distances is None else distances
    return all(
        _fill(plain(rows[some], dtype), *model, rounding, tile, at_once, labels[some], near[some])
        for some in parts(rows, dtype)
    )


@part(REORDERED)
def _weighted_centers(centers, w, factors, norms):
    """Compute −2 w θ, the right factor of the products, and the norms Σ w θ²."""
    for j in range(len(centers)):
        norm = 0.0
        for f in range(len(w)):
            # The norm must be that of the rounded centre that the product uses.
            factors[j, f] = centers[j, f]
            norm += w[f] * np.float64(factors[j, f]) * np.float64(factors[j, f])
            factors[j, f] = -2.0 * w[f] * centers[j, f]
        norms[j] = norm


@entry
def _fill(
    rows, mean, scale, whitening, centers, w, code, rounding, tile, at_once, labels, distances
):
    """Write labels and, if wanted, distances of some rows; return whether all are finite.

    Parameters
    ----------
    rows, mean, scale, whitening, centers, w, code, rounding, tile, at_once
        As in `daskmm.compiled.block_sums.hard_sums`.
    labels : int array of shape (n_rows,)
    distances : array of shape (n_rows,) or (0,)
    """
    wide_vectors()
    (n, p), k = rows.shape, len(centers)
    kind = rows.dtype
    scaled = not np.all(scale == 1.0)
    # Centres are processed in pairs; an odd number is filled up by a centre at ∞.
    factors, center_norms = np.empty((k, p), kind), np.full(k + k % 2, np.inf).astype(kind)
    _weighted_centers(centers, w, factors, center_norms)
    (z, by_feature), d = room(tile, p, kind, tile), aligned(k + k % 2, tile, kind)
    exact, w_ = np.empty((tile, p)), w.astype(kind)
    raw = np.empty((tile if code < PLAIN else 0, p))
    frame = (repeated(mean), repeated(scale), scaled, whitening)
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
        transpose(z, b, by_feature)
        squared_norms(by_feature[0], w_, norms)
        products(by_feature[0], b, at_once, factors, d)
        smallest[:] = np.inf
        second[:] = np.inf
        nearest[:] = 0
        for j in range(0, k, 2):
            two_nearest(d, j, center_norms, smallest, second, nearest)
        if settle(smallest, second, norms, slack, rounding, cancelled, worst, served) > 0:
            for i in range(b):
                if settled(smallest[i], second[i], norms[i], slack, rounding, cancelled, worst):
                    continue
                span = norms[i] * 3 + 2 * (smallest[i] + norms[i])
                limit = smallest[i] + rounding * span
                nearest[i] = decide(
                    code, block[i], exact[i], mean, scale, centers, w, d[:, i], center_norms, limit
                )
        assign(nearest, labels[start : start + b])
        for i in range(min(b, len(distances) - start)):
            center = centers[labels[start + i]]
            distances[start + i] = exact_distance(code, block[i], exact[i], mean, scale, center, w)
    return True
