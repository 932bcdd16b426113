"""Types, sizes and memory layout that the compiled loops are called with; numpy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.distances import CANCELLATION
from daskmm.numerics.power_means import FLUSHED
from daskmm.numerics.rows import TILE_BYTES, Affine, WhitenedCoordinates, tiles

FloatArray = NDArray[np.float64]

# Squared Euclidean distances without holes, which have loops of their own; the same in whitened
# coordinates.
PLAIN, WHITENED = -1, -2
SQUARED, INFORMATION, ITAKURA_SAITO = 0, 1, 2
# Distances of a tile of rows, bytes: they are to stay in a core's cache.
_DISTANCE_BYTES = 1 << 20
# Its rows themselves.
_ROW_BYTES = 1 << 20
# Loops over fewer rows do not pay for their beginnings, with dozens of constants.
_LEAST_ROWS, _MOST_ROWS = 128, 576
# OpenBLAS multiplies matrices without copying them first where rows × features × clusters are
# fewer than this.
_SMALL_PRODUCT = 1_000_000
# Bytes of a vector of AVX-512, which are those of a cache line; vectors that a panel's rows fill.
VECTOR_BYTES = 64
PANEL_VECTORS = 3
PANEL_BYTES = PANEL_VECTORS * VECTOR_BYTES
# Single precision is for coordinates within this range of 1; it holds their squares with room.
_SINGLE_RANGE = 1e9
# Fewer rows are not worth its rounding, which many rows average out.
_SINGLE_ROWS = 4096


class Limits(NamedTuple):
    """Where a floating type needs help; see `daskmm.compiled.block_sums.soft_sums`."""

    cancelled: float
    lowest: float
    low: float
    high: float


LIMITS = {
    np.dtype(np.float64): Limits(CANCELLATION, float(np.log2(FLUSHED)), 1e-290, 1e300),
    np.dtype(np.float32): Limits(1e-3, -126.0, 1e-30, 1e30),
}


def frame_of(coordinates: Affine) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean, scale and whitening matrix, which is empty where there is none."""
    whitening = np.empty((0, 0))
    if isinstance(coordinates, WhitenedCoordinates):
        whitening = coordinates.whitening
    return plain(coordinates.mean), plain(coordinates.scale), plain(whitening)


def plain(values: NDArray, dtype: np.dtype | None = None) -> NDArray:
    """The array form for which the loops are compiled: C order, read-only, native."""
    array = np.ascontiguousarray(values, dtype=dtype or np.float64).view()
    array.flags.writeable = False
    return array


def parts(rows: NDArray, dtype: np.dtype) -> list[slice]:
    """All rows at once, or few at a time where they have to be copied."""
    if rows.dtype == dtype and rows.flags.c_contiguous:
        return [slice(0, len(rows))]
    step = max(16, TILE_BYTES // (dtype.itemsize * rows.shape[1]))
    return list(tiles(len(rows), step))


def working_dtype(rows: NDArray, scale: FloatArray, centers: FloatArray, s: float) -> np.dtype:
    """Single precision where the rows have no more of it, and where it is enough."""
    single = row_dtype(rows) == np.float32
    for extent in (float(np.abs(centers).max()), float(scale.min()), float(scale.max())):
        single &= 1.0 / _SINGLE_RANGE < extent < _SINGLE_RANGE
    # The weights of a row sum to as much as k^(−1/s), which may be too large for it.
    single &= len(rows) >= _SINGLE_ROWS and np.log2(len(centers)) < -30.0 * s
    return np.dtype(np.float32 if single else np.float64)


def row_dtype(rows: NDArray) -> np.dtype:
    """The narrower floating type that holds the rows exactly."""
    return np.dtype(np.float32 if np.can_cast(rows.dtype, np.float32) else np.float64)


def tile_rows(n_clusters: int, n_features: int, itemsize: int, by_panels: bool) -> tuple[int, int]:
    """Rows per tile, whole panels, and how many of them BLAS multiplies at a time; 0 of panels."""
    rows = max(_LEAST_ROWS, _DISTANCE_BYTES // (itemsize * n_clusters))
    rows = min(rows, _ROW_BYTES // (itemsize * n_features), _MOST_ROWS)
    width = PANEL_BYTES // itemsize
    tile = max(1, rows // width) * width
    if by_panels:
        return tile, 0
    small = _SMALL_PRODUCT // (n_clusters * n_features) // 16 * 16
    return tile, min(tile, small) if small >= _LEAST_ROWS else tile


def takes_panels(n_clusters: int, n_features: int) -> bool:
    """Whether BLAS would copy its matrices, and products in panels are faster."""
    return n_clusters * n_features * _LEAST_ROWS > _SMALL_PRODUCT
