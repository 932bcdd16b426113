"""Sums of a hard step whose nearest centres are known; importing this imports numba.

In late steps little changes: distances of rows to centres that stay, and sums of clusters that no
row enters or leaves, are those of the step before, to the bit. The machine code is cached on disk.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.compiler import entry
from daskmm.compiled.dispatch import BlockSums, PreparedCenters, tiling
from daskmm.compiled.divergences import exact_distance, separation
from daskmm.compiled.intrinsics import wide_vectors
from daskmm.compiled.layout import code_of, frame_of, hard_dtype, parts, plain
from daskmm.compiled.products import repeated
from daskmm.compiled.tile import assign, dot, keep_farthest, scatter, to_model_exactly
from daskmm.numerics.rows import FeatureCoordinates

FloatArray = NDArray[np.float64]

# Rows of a tile are transformed together if more than one of so many are needed.
_MANY_NEEDED = 16


def known_sums(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: FeatureCoordinates,
    prepared: PreparedCenters,
    n_farthest: int,
    labels: NDArray[np.int32],
    distances: FloatArray,
    moved: NDArray[np.bool_],
    changed: NDArray[np.bool_],
    before: tuple[FloatArray, FloatArray] | None,
) -> BlockSums:
    """Compute the sums of a hard step as `daskmm.compiled.dispatch.block_sums` does.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order, in the input's units.
    weights : ndarray of shape (n_rows,) or None
        Sample weights.
    coordinates : FeatureCoordinates
        Not whitened.
    prepared : PreparedCenters
        Of squared Euclidean distances without feature weights.
    n_farthest : int
        Number of rows farthest from their centres to list.
    labels : ndarray of int32 of shape (n_rows,)
        The nearest centres.
    distances : ndarray of shape (n_rows,)
        Squared distances to them in the step before, negative where unknown; updated.
    moved : ndarray of bool of shape (n_clusters,)
        Centres that have moved since: distances to them are computed again.
    changed : ndarray of bool of shape (n_clusters,)
        Clusters whose rows are others than in the step before: their sums are computed again.
    before : tuple of (ndarray of shape (n_clusters,), ndarray of shape (n_clusters, n_features))
        Weights and sums of that step; None if all are to be computed.

    Returns
    -------
    BlockSums
    """
    k, p = prepared.centers.shape
    if before is None:
        changed = np.ones(k, np.bool_)
        n_j, sums = np.zeros(k), np.zeros((k, p))
    else:
        n_j, sums = before[0].copy(), before[1].copy()
        n_j[changed], sums[changed] = 0.0, 0.0
    frame, code = frame_of(coordinates), code_of(coordinates)
    dtype = prepared.dtype_for(rows, frame[1], -np.inf)
    # Rows are added up in the same parts and tiles as where the nearest centres are not known.
    tile, _ = tiling(k, p, dtype, code)
    kept = hard_dtype(rows, dtype)
    totals, far, far_rows = np.zeros(2), np.zeros(n_farthest), np.zeros(n_farthest, np.int64)
    known, nothing = (plain(prepared.centers), code, moved, changed), plain(np.empty(0))
    own = plain(labels, np.dtype(np.int32))
    for some in parts(rows, kept):
        v = nothing if weights is None else plain(weights[some])
        far_rows -= some.start
        found = distances[some], n_j, sums, totals, far, far_rows
        _add_up(plain(rows[some], kept), v, *frame, *known, own[some], tile, *found)
        far_rows += some.start
    inertia, weight = map(float, totals)
    listed = far > 0
    return BlockSums(n_j, sums, None, None, inertia, inertia, weight, far[listed], far_rows[listed])


@entry
def _add_up(
    rows,
    weights,
    mean,
    scale,
    whitening,
    centers,
    code,
    moved,
    changed,
    labels,
    tile,
    distances,
    n_j,
    sums,
    totals,
    far,
    far_rows,
):
    """Add what has changed to weights and sums, and all distances to the totals."""
    wide_vectors()
    n, p = rows.shape
    exact, raw, ones, nothing = np.empty((tile, p)), np.empty((0, p)), np.ones(p), np.empty(0)
    frame = (repeated(mean), repeated(scale), not np.all(scale == 1.0), whitening)
    of_rows, needed = np.empty(tile), np.empty(tile, np.bool_)
    inertia = weight = 0.0
    for start in range(0, n, tile):
        b = min(tile, n - start)
        block, own, served = rows[start:][:b], labels[start:][:b], distances[start:][:b]
        v, count = of_rows[:b], 0
        if len(weights):
            assign(weights[start : start + b], v)
        else:
            v[:] = 1.0
        for i in range(b):
            needed[i] = moved[own[i]] or changed[own[i]] or served[i] < 0.0
            count += needed[i]
        together = count * _MANY_NEEDED > b
        if together:
            to_model_exactly(block, code, frame, raw, exact)
        for i in range(b):
            if not needed[i]:
                continue
            j = own[i]
            if not together:
                to_model_exactly(block[i : i + 1], code, frame, raw, exact[i : i + 1])
            if moved[j] or served[i] < 0.0:
                served[i] = separation(exact[i], centers[j], ones)
            if changed[j]:
                scatter(exact[i : i + 1], own[i : i + 1], v[i : i + 1], n_j, sums, nothing)
        # Rounding does not decide which rows are listed.
        worst = (1.0 - 1e-5) * far[-1] if len(far) else np.inf
        for i in range(b):
            if served[i] > worst and v[i] > 0.0:
                if not (together or needed[i]):
                    to_model_exactly(block[i : i + 1], code, frame, raw, exact[i : i + 1])
                apart = exact_distance(code, block[i], exact[i], mean, scale, centers[own[i]], ones)
                if apart > far[-1]:
                    keep_farthest(apart, start + i, far, far_rows)
        inertia += dot(v, served)
        weight += v.sum()
    totals[0] += inertia
    totals[1] += weight
