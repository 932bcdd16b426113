"""Sums of a block at once: distances, their power means, and what is weighted by them.

The compiled loops of `daskmm.compiled.kernel`, where numba can be imported. What they
compute is defined by `daskmm.numerics.distances` and `daskmm.numerics.power_means`.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.distances import CANCELLATION
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN, Bregman, Logistic
from daskmm.numerics.power_means import FLUSHED
from daskmm.numerics.rows import TILE_BYTES, Affine, Coordinates, WhitenedCoordinates, tiles

FloatArray = NDArray[np.float64]

# Distances of a tile of rows, bytes: they are to stay in a core's cache.
_DISTANCE_BYTES = 1 << 20
# Its rows themselves.
_ROW_BYTES = 1 << 20
# Loops over fewer rows do not pay for their beginnings, with dozens of constants.
_LEAST_ROWS, _MOST_ROWS = 128, 576
# OpenBLAS multiplies matrices without copying them first where rows × features × clusters are
# fewer than this.
_SMALL_PRODUCT = 1_000_000
# Rows in a panel of `daskmm.compiled.panels`, bytes: three vectors of AVX-512.
PANEL_BYTES = 3 * 64
# Single precision is for coordinates within this range of 1; it holds their squares with room.
_SINGLE_RANGE = 1e9
# Fewer rows are not worth its rounding, which many rows average out.
_SINGLE_ROWS = 4096


class _Limits(NamedTuple):
    """Where a floating type needs help; see `daskmm.compiled.kernel.soft_sums`."""

    cancelled: float
    lowest: float
    low: float
    high: float


_LIMITS = {
    np.dtype(np.float64): _Limits(CANCELLATION, float(np.log2(FLUSHED)), 1e-290, 1e300),
    np.dtype(np.float32): _Limits(1e-3, -126.0, 1e-30, 1e30),
}


class BlockSums(NamedTuple):
    """Sums of one candidate over a block, as those of `daskmm.kmeans.sums.CenterSums`.

    Attributes
    ----------
    weights : ndarray of shape (n_clusters,)
    sums : ndarray of shape (n_clusters, n_features)
    observed : ndarray of shape (n_clusters, n_features) or None
    squares : ndarray of shape (n_features,) or None
    objective, inertia, hardness : float
    farthest_distances : ndarray of shape (n,)
        Of the worst-served rows, descending, ties in row order; hard steps only.
    farthest_rows : ndarray of int of shape (n,)
        Their positions in the block.
    """

    weights: FloatArray
    sums: FloatArray
    observed: FloatArray | None
    squares: FloatArray | None
    objective: float
    inertia: float
    hardness: float
    farthest_distances: FloatArray
    farthest_rows: NDArray[np.int64]


class CenterPlanes(NamedTuple):
    """`daskmm.numerics.distortions.bregman.Planes` as the loops take them, in the rows' type.

    Attributes
    ----------
    factors, constants : ndarray of shape (n_clusters, n_features)
        A row z is at the distance Σ factors·z + Σ constants + its own term.
    norms, reaches : ndarray of shape (n_clusters,), one more if that is odd
        Sums of the constants, unless they are summed over observed values only; and the size of
        the terms of a product. Centres are looked at in pairs: the odd one's partner is at ∞.
    slack : float
        Reach of centres that the distances of a row do not bound.
    edges : ndarray of int8 of shape (n_clusters, n_features) or (0, 0)
    ends : ndarray of shape (2,)
        Where the domain ends.
    """

    factors: NDArray
    constants: NDArray
    norms: NDArray
    reaches: NDArray
    slack: np.floating
    edges: NDArray[np.int8]
    ends: FloatArray


@functools.cache
def _kernel() -> ModuleType | None:
    # Importing numba takes longer than all the rest: only when there is something to compute.
    try:
        from daskmm.compiled import kernel as fused_kernel
    except ImportError:
        return None
    return fused_kernel


def available() -> bool:
    """Whether the compiled loops can be used."""
    return _kernel() is not None


def row_terms(rows: NDArray, distortion: Bregman) -> FloatArray | None:
    """What the distances of the rows to all centres have in common.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order, in the model's coordinates. NaN are holes.
    distortion : Bregman

    Returns
    -------
    ndarray of shape (n_rows,), or None where it costs next to nothing
    """
    if distortion.code == SQUARED_EUCLIDEAN.code:
        return None
    from daskmm.compiled import terms as fused_terms

    assert distortion.code is not None
    reference = np.broadcast_to(distortion.reference, rows.shape[1:])
    return fused_terms.row_terms(distortion.code, rows, reference)


def block_sums(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: Affine | None,
    centers: FloatArray,
    s: float,
    feature_weights: FloatArray | None,
    n_farthest: int,
    distortion: Bregman = SQUARED_EUCLIDEAN,
    partial: bool = False,
    terms: FloatArray | None = None,
) -> BlockSums:
    """Sums of one candidate over a block of rows.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order. Where many rows have no more than single precision,
        their distances and weights are computed in it, near ties between nearest centres being
        decided in double precision; sums over the rows are double.
    weights : ndarray of shape (n_rows,) or None
        Sample weights.
    coordinates : Coordinates, WhitenedCoordinates or None
        The model's; None where the rows are in them already.
    centers : ndarray of shape (n_clusters, n_features)
        In the model's coordinates.
    s : float
        The power; −∞ for a hard step.
    feature_weights : ndarray of shape (n_features,) or None
    n_farthest : int
        Worst-served rows to list in a hard step.
    distortion : Bregman
    partial : bool
        Whether NaN are holes.
    terms : ndarray of shape (n_rows,), optional
        `row_terms` of the rows.

    Returns
    -------
    BlockSums
    """
    kernel = _kernel()
    assert kernel is not None
    from daskmm.compiled.panels import PANELS_PAY
    from daskmm.compiled.tile import PLAIN, WHITENED

    k, p = centers.shape
    frame = _frame(Coordinates(np.zeros(p), np.ones(p)) if coordinates is None else coordinates)
    w = _plain(np.ones(p) if feature_weights is None else feature_weights)
    dtype = _working_dtype(rows, frame[1], centers, s)
    if s == -np.inf and (partial or terms is not None):
        # The cost is that of a double precision score, for which there is no short way here.
        dtype = np.dtype(np.float64)
    hard = s == -np.inf
    planes = _center_planes(centers, feature_weights, distortion, partial, dtype)
    code = distortion.code
    if not partial and terms is None:
        code = WHITENED if len(frame[2]) else PLAIN
    # Of a product of p factors.
    rounding = dtype.type(2.0 * np.finfo(dtype).eps * (4.0 + np.sqrt(p)))
    # Double precision has computed again what is not exact enough.
    tie = rounding if dtype == np.float32 else dtype.type(0)
    limits = tuple(dtype.type(limit) for limit in _LIMITS[dtype])
    by_panels = PANELS_PAY and code in (PLAIN, WHITENED) and _by_panels(k, p)
    tile, at_once = _tile_rows(k, p, dtype.itemsize, by_panels)
    n_j, sums, totals = np.zeros(k), np.zeros((k, p)), np.zeros(3)
    squares = np.zeros(0 if feature_weights is None else p)
    observed = np.zeros((k if partial else 0, p))
    n_listed = n_farthest if hard else 0
    far, far_rows = np.zeros(n_listed), np.zeros(n_listed, np.int64)
    # Weights may be out of single precision's range, but not their ratios that count.
    unit = 1.0
    if dtype == np.float32 and not hard and weights is not None:
        unit = float(weights.max()) or 1.0
    found = (n_j, sums, squares, observed, totals)
    # Hard steps bring rows to double precision anyway.
    held = _row_dtype(rows) if hard else dtype
    for part in _parts(rows, held):
        v = _plain(np.empty(0) if weights is None else weights[part] / unit)
        x = _plain(rows[part], held)
        own = _plain(np.empty(0) if terms is None else terms[part])
        state = (*frame, _plain(centers), w, code, own, planes)
        # A single centre has all of each row, whatever the power.
        if hard or k == 1:
            far_rows -= part.start
            kernel.hard_sums(
                x, v, *state, rounding, limits[0], tile, at_once, *found, far, far_rows
            )
            far_rows += part.start
        else:
            kernel.soft_sums(x, v, *state, float(s), limits, tie, tile, at_once, *found)
    for added in found:
        added *= unit
    listed = far > 0
    return BlockSums(
        n_j,
        sums,
        observed if partial else None,
        None if feature_weights is None else squares,
        float(totals[0]),
        float(totals[1]),
        float(totals[2]),
        far[listed],
        far_rows[listed],
    )


def _center_planes(
    centers: FloatArray,
    feature_weights: FloatArray | None,
    distortion: Bregman,
    partial: bool,
    dtype: np.dtype,
) -> CenterPlanes:
    """Centres as the products see them: as their type holds them, and so must their norms."""
    k, p = centers.shape
    held = centers.astype(dtype).astype(np.float64)
    constants, factors, sizes, edges = distortion.planes(held, feature_weights)
    norms, reaches = np.full(k + k % 2, np.inf), np.full(k + k % 2, np.inf)
    norms[:k] = 0.0 if partial else constants.sum(axis=1)
    if distortion.code == Logistic.code:
        # Terms of rows are computed with errors that are a share of 1 per feature.
        sizes = sizes + p
    reaches[:k] = sizes
    bounded = distortion.code == SQUARED_EUCLIDEAN.code and not partial
    return CenterPlanes(
        _plain(factors, dtype),
        _plain(constants if partial else np.empty((0, p)), dtype),
        _plain(norms, dtype),
        _plain(reaches, dtype),
        dtype.type(0.0 if bounded else sizes.max()),
        np.empty((0, 0), np.int8) if edges is None else edges,
        np.array([distortion.lowest, distortion.highest]),
    )


def _frame(coordinates: Affine) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean, scale and whitening matrix, which is empty where there is none."""
    whitening = np.empty((0, 0))
    if isinstance(coordinates, WhitenedCoordinates):
        whitening = coordinates.whitening
    return _plain(coordinates.mean), _plain(coordinates.scale), _plain(whitening)


def _plain(values: NDArray, dtype: np.dtype | None = None) -> NDArray:
    """The array form for which the loops are compiled: C order, read-only, native."""
    plain = np.ascontiguousarray(values, dtype=dtype or np.float64).view()
    plain.flags.writeable = False
    return plain


def _parts(rows: NDArray, dtype: np.dtype) -> list[slice]:
    """All rows at once, or few at a time where they have to be copied."""
    if rows.dtype == dtype and rows.flags.c_contiguous:
        return [slice(0, len(rows))]
    step = max(16, TILE_BYTES // (dtype.itemsize * rows.shape[1]))
    return list(tiles(len(rows), step))


def _working_dtype(rows: NDArray, scale: FloatArray, centers: FloatArray, s: float) -> np.dtype:
    """Single precision where the rows have no more of it, and where it is enough."""
    single = _row_dtype(rows) == np.float32
    for extent in (float(np.abs(centers).max()), float(scale.min()), float(scale.max())):
        single &= 1.0 / _SINGLE_RANGE < extent < _SINGLE_RANGE
    # The weights of a row sum to as much as k^(−1/s), which may be too large for it.
    single &= len(rows) >= _SINGLE_ROWS and np.log2(len(centers)) < -30.0 * s
    return np.dtype(np.float32 if single else np.float64)


def _row_dtype(rows: NDArray) -> np.dtype:
    """The narrower floating type that holds the rows exactly."""
    return np.dtype(np.float32 if np.can_cast(rows.dtype, np.float32) else np.float64)


def _tile_rows(n_clusters: int, n_features: int, itemsize: int, by_panels: bool) -> tuple[int, int]:
    """Rows per tile, whole panels, and how many of them BLAS multiplies at a time; 0 of panels."""
    rows = max(_LEAST_ROWS, _DISTANCE_BYTES // (itemsize * n_clusters))
    rows = min(rows, _ROW_BYTES // (itemsize * n_features), _MOST_ROWS)
    width = PANEL_BYTES // itemsize
    tile = max(1, rows // width) * width
    if by_panels:
        return tile, 0
    small = _SMALL_PRODUCT // (n_clusters * n_features) // 16 * 16
    return tile, min(tile, small) if small >= _LEAST_ROWS else tile


def _by_panels(n_clusters: int, n_features: int) -> bool:
    """Whether BLAS would copy its matrices, and products in panels are faster."""
    return n_clusters * n_features * _LEAST_ROWS > _SMALL_PRODUCT
