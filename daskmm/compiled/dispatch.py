"""Call the compiled loops of `daskmm.compiled.block_sums`, if numba can be imported.

They compute distances, their power means and the weighted sums of a block together. The results
are defined by `daskmm.numerics.distances` and `daskmm.numerics.power_means`.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.layout import (
    LIMITS,
    PLAIN,
    code_of,
    frame_of,
    hard_dtype,
    parts,
    plain,
    relevant_from,
    takes_panels,
    tile_rows,
    working_dtype,
)
from daskmm.numerics.distances import product_rounding
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN, Bregman, Logistic
from daskmm.numerics.rows import Coordinates, FeatureCoordinates
from daskmm.numerics.sparse_rows import SparseRows

FloatArray = NDArray[np.float64]

_DOUBLE = np.dtype(np.float64)


class BlockSums(NamedTuple):
    """Sums of one set of centres over a block, as in `daskmm.kmeans.sums.CenterSums`.

    Attributes
    ----------
    weights : ndarray of shape (n_clusters,)
    sums : ndarray of shape (n_clusters, n_features)
    observed : ndarray of shape (n_clusters, n_features) or None
    squares : ndarray of shape (n_features,) or None
    objective, inertia, hardness : float
    farthest_distances : ndarray of shape (n,)
        Largest distances to the nearest centre, descending, ties in row order; hard steps only.
    farthest_rows : ndarray of int of shape (n,)
        Positions of these rows in the block.
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
    """`daskmm.numerics.distortions.bregman.Planes` in the form and type that the loops take.

    Attributes
    ----------
    factors, constants : ndarray of shape (n_clusters, n_features)
        The distance of a row z is Σ factors·z + Σ constants + its own term.
    norms, reaches : ndarray of shape (n_clusters,), one more if that is odd
        Sums of the constants (0 if they are summed over observed values only), and the size of
        the terms of a product. Centres are processed in pairs: an odd number is filled up by ∞.
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


class PreparedCenters:
    """Centres in the forms that the loops take, made once for all blocks of a step.

    There is one form for each dtype. What was made does not travel between processes.

    Parameters
    ----------
    centers : ndarray of shape (n_clusters, n_features)
        In the model's coordinates; not to be changed later.
    feature_weights : ndarray of shape (n_features,), optional
    distortion : Bregman
    partial : bool
        Whether NaN are missing values.
    """

    def __init__(
        self,
        centers: FloatArray,
        feature_weights: FloatArray | None = None,
        distortion: Bregman = SQUARED_EUCLIDEAN,
        partial: bool = False,
    ) -> None:
        self.centers = centers
        self.feature_weights = feature_weights
        self.distortion = distortion
        self.partial = partial
        self._planes: dict[np.dtype, CenterPlanes] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.centers, self.feature_weights, self.distortion, self.partial)

    @functools.cached_property
    def _extent(self) -> float:
        return float(np.abs(self.centers).max())

    def dtype_for(self, rows: NDArray, scale: FloatArray, s: float) -> np.dtype:
        """Return the `working_dtype` of a step at power `s` on a block of rows."""
        return working_dtype(rows, scale, self.centers.shape, self._extent, s)

    def planes(self, dtype: np.dtype) -> CenterPlanes:
        """Return the planes of the centres as rounded to `dtype`."""
        found = self._planes.get(dtype)
        if found is None:
            # Threads that come at the same time make the same.
            found = self._planes[dtype] = _center_planes(self, dtype)
        return found


@functools.cache
def _loops() -> ModuleType | None:
    # Importing numba is slow; do it on the first computation.
    try:
        from daskmm.compiled import block_sums
    except ImportError:
        return None
    return block_sums


def available() -> bool:
    """Return whether the compiled loops can be used."""
    return _loops() is not None


def fast_rows(rows: Any) -> Any:
    """Return rows whose products with matrices are compiled; others than sparse unchanged."""
    if not isinstance(rows, SparseRows) or not available():
        return rows
    from daskmm.compiled import sparse

    return sparse.fast(rows)


def row_terms(rows: NDArray, distortion: Bregman) -> FloatArray | None:
    """Return the term of each row that its distances to all centres share.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order, in the model's coordinates. NaN are missing.
    distortion : Bregman

    Returns
    -------
    ndarray of shape (n_rows,), or None where it costs next to nothing
    """
    if distortion.code == SQUARED_EUCLIDEAN.code:
        return None
    from daskmm.compiled import divergences

    assert distortion.code is not None
    reference = np.broadcast_to(distortion.reference, rows.shape[1:])
    return divergences.row_terms(distortion.code, rows, reference)


def block_sums(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: FeatureCoordinates | None,
    prepared: PreparedCenters,
    s: float,
    n_farthest: int,
    terms: FloatArray | None = None,
    shares: FloatArray | None = None,
) -> BlockSums:
    """Compute the sums of one set of centres over a block of rows.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order. Distances and weights of rows of at most single
        precision are computed in it, unless they are few (`daskmm.compiled.layout.working_dtype`);
        near ties between nearest centres are decided, and sums over rows are taken, in double
        precision.
    weights : ndarray of shape (n_rows,) or None
        Sample weights.
    coordinates : FeatureCoordinates or None
        The model's; None if the rows are already in them.
    prepared : PreparedCenters
        The centres, with feature weights, distortion and treatment of missing values.
    s : float
        The power; −∞ for a hard step.
    n_farthest : int
        Number of rows farthest from their centres to list in a hard step.
    terms : ndarray of shape (n_rows,), optional
        `row_terms` of the rows.
    shares : ndarray of shape (n_clusters,), optional
        Shares of the clusters in the weight. At a finite power, weights that are negligible next
        to them may be left out; where `daskmm.compiled.layout.have_waned`, some may count.

    Returns
    -------
    BlockSums
    """
    loops = _loops()
    assert loops is not None
    centers, feature_weights = prepared.centers, prepared.feature_weights
    distortion, partial = prepared.distortion, prepared.partial
    (k, p), hard = centers.shape, s == -np.inf
    frame = frame_of(Coordinates(np.zeros(p), np.ones(p)) if coordinates is None else coordinates)
    w = plain(np.ones(p) if feature_weights is None else feature_weights)
    is_plain = not partial and terms is None
    # The cost of a hard step must equal that of scoring, which is exact for such rows.
    exact = hard and not is_plain
    dtype = _DOUBLE if exact else prepared.dtype_for(rows, frame[1], s)
    planes = prepared.planes(dtype)
    code = distortion.code
    if is_plain:
        code = PLAIN if coordinates is None else code_of(coordinates)
    assert code is not None
    rounding, limits = _precision(dtype, p)
    # In double precision, inexact distances have been recomputed.
    tie = rounding if dtype == np.float32 else dtype.type(0)
    tile, at_once = tiling(k, p, dtype, code)
    n_j, sums, totals = np.zeros(k), np.zeros((k, p)), np.zeros(3)
    squares = np.zeros(0 if feature_weights is None else p)
    observed = np.zeros((k if partial else 0, p))
    n_listed = n_farthest if hard else 0
    far, far_rows = np.zeros(n_listed), np.zeros(n_listed, np.int64)
    found = (n_j, sums, squares, observed, totals)
    unit = 1.0 if hard else _unit(weights, dtype)
    ratio_limits = _ratio_limits(None if hard or partial else shares, s, dtype)
    held = hard_dtype(rows, dtype) if hard else dtype
    for some in parts(rows, held):
        v = _nothing(_DOUBLE) if weights is None else plain(weights[some] / unit)
        x = plain(rows[some], held)
        own = _nothing(_DOUBLE) if terms is None else plain(terms[some])
        state = (*frame, plain(centers), w, code, own, planes)
        # A single centre gets the full weight of each row at any power.
        if hard or k == 1:
            far_rows -= some.start
            hard_args = rounding, limits[0], tile, at_once, *found, far, far_rows
            loops.hard_sums(x, v, *state, *hard_args)
            far_rows += some.start
        else:
            soft_args = limits, ratio_limits, tie, tile, at_once, *found
            loops.soft_sums(x, v, *state, float(s), *soft_args)
    if unit != 1.0:
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


def _unit(weights: FloatArray | None, dtype: np.dtype) -> float:
    """Return what weights are divided by in soft steps.

    They may exceed the range of single precision; their relevant ratios do not.
    """
    if dtype == np.float64 or weights is None:
        return 1.0
    return float(weights.max()) or 1.0


def _ratio_limits(shares: FloatArray | None, s: float, dtype: np.dtype) -> NDArray:
    """Return, per cluster, the ratio to a row's smallest distance from which weights do not count.

    Without `shares`, or where the weights of a row may grow too large, all count: an empty array.
    """
    # Weights of all rows together are at most k^(−1/s) times the largest.
    if shares is None or np.log2(len(shares)) > -s:
        return _nothing(dtype)
    return plain(relevant_from(shares, dtype) ** (1.0 / (s - 1.0)), dtype)


@functools.cache
def _nothing(dtype: np.dtype) -> NDArray:
    """Return an empty array in the form that the loops take."""
    return plain(np.empty(0, dtype), dtype)


@functools.cache
def _precision(dtype: np.dtype, n_features: int) -> tuple[np.floating, tuple[np.floating, ...]]:
    """Return the error bound of a row's product with a centre, and the `Limits` of the type."""
    rounding = dtype.type(product_rounding(dtype, n_features))
    return rounding, tuple(dtype.type(limit) for limit in LIMITS[dtype])


def tiling(n_clusters: int, n_features: int, dtype: np.dtype, code: int) -> tuple[int, int]:
    """Return the rows per tile, and per product of BLAS; 0 where panels are faster."""
    from daskmm.compiled import intrinsics

    by_panels = intrinsics.PANELS_PAY and code <= PLAIN and takes_panels(n_clusters, n_features)
    return tile_rows(n_clusters, n_features, dtype.itemsize, by_panels)


def _center_planes(prepared: PreparedCenters, dtype: np.dtype) -> CenterPlanes:
    """Return the planes of centres as rounded to `dtype`; norms must match the rounded ones."""
    centers, distortion, partial = prepared.centers, prepared.distortion, prepared.partial
    k, p = centers.shape
    held = centers
    if dtype != np.float64:
        held = centers.astype(dtype).astype(np.float64)
    constants, factors, sizes, edges = distortion.planes(held, prepared.feature_weights)
    norms, reaches = np.full(k + k % 2, np.inf), np.full(k + k % 2, np.inf)
    norms[:k] = 0.0 if partial else constants.sum(axis=1)
    if distortion.code == Logistic.code:
        # Row terms have errors relative to 1 per feature.
        sizes = sizes + p
    reaches[:k] = sizes
    bounded = distortion.code == SQUARED_EUCLIDEAN.code and not partial
    return CenterPlanes(
        plain(factors, dtype),
        plain(constants if partial else np.empty((0, p)), dtype),
        plain(norms, dtype),
        plain(reaches, dtype),
        dtype.type(0.0 if bounded else sizes.max()),
        np.empty((0, 0), np.int8) if edges is None else edges,
        np.array([distortion.lowest, distortion.highest]),
    )
