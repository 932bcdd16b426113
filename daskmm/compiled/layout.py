"""Choose dtypes, tile sizes and memory layout for the compiled loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled import library
from daskmm.numerics.distances import CANCELLATION
from daskmm.numerics.power_means import FLUSHED
from daskmm.numerics.rows import (
    TILE_BYTES,
    FeatureCoordinates,
    SphereCoordinates,
    WhitenedCoordinates,
    tiles,
)

FloatArray = NDArray[np.float64]

# Codes of squared Euclidean distances without missing values, which have their own loops.
PLAIN, WHITENED, ON_SPHERE = -1, -2, -3
# For this many centres or more, hard steps compute the distance to the nearest one from
# differences, which gives the same cost as steps with known nearest centres.
SCORED = 256
# Weights left out of a cluster sum to at most NEGLIGIBLE units in its last place, provided that
# its weight does not fall by more than a factor of WANING within the step. The rounding of
# distances from products changes weights by more than that.
NEGLIGIBLE, WANING = 8, 256
# No weights are left out for clusters below this share of the mean cluster weight: such clusters
# may shrink by any factor.
_SMALL = 1e-3
# Bytes of the distances of a tile, which fit into a core's cache.
_DISTANCE_BYTES = 1 << 20
# Bytes of the rows of a tile. The cache holds them several times: as they are, in double precision,
# and transposed. With many centres, products take most of the time, and prefer larger tiles.
_ROW_BYTES, _ROW_BYTES_OF_MANY = 1 << 18, 1 << 20
# Range of the rows per tile. With fewer rows, setting up the loops, which load dozens of constants,
# would dominate.
_LEAST_ROWS, _MOST_ROWS = 128, 576
# For each group of this many tiles, it is decided again whether to look for negligible weights
# (`RETRIED` in `src/weights.hpp`); blocks are then cut between groups only.
GROUPED = 8
# Tiles are whole panels of three vectors of rows (`src/products.hpp`), in any instruction set and
# precision.
_PANEL_ROWS = 3 * 64 // 4
# Single precision is used if centres and scales are within this factor of 1, so that their squares
# fit.
_SINGLE_RANGE = 1e9
# Soft steps over blocks of fewer rows are computed in double precision, since rounding averages out
# only over many rows. But blocks of at least 64 rows use single precision, which takes a third of
# the time, if their distances to all centres take this many multiplications.
_FEW_ROWS, _LEAST_SINGLE, _MANY_PRODUCTS = 4096, 64, 1 << 22
# Hard steps, whose results do not depend on the precision, are faster in single precision from this
# many centres or features on. Rows in double precision need more products, since a few of them are
# tried first; a row takes as long as its features and _OTHER_WORK more.
_SINGLE_CENTERS, _SINGLE_FEATURES = 16, 8
_SINGLE_PRODUCTS, _OTHER_WORK = 1 << 23, 8
# Limits of a floating type's regular range; `src/loops.h` describes each. The least weights are so
# large that products with rows are not subnormal: some processors take a hundred cycles for each
# subnormal number.
LIMITS = {
    np.dtype(np.float64): {
        "cancelled": CANCELLATION,
        "lowest": float(np.log2(FLUSHED)),
        "low": 1e-290,
        "high": 1e300,
    },
    np.dtype(np.float32): {"cancelled": 1e-3, "lowest": -100.0, "low": 1e-30, "high": 1e30},
}


def relevant_from(shares: FloatArray, dtype: np.dtype) -> FloatArray:
    """Return, for each cluster, the weight r^(s−1) below which a row's weight is negligible.

    r is the ratio of a distance to the row's smallest distance, so the nearest centre has weight 1;
    `shares` are the clusters' shares of the weight in the step before.
    """
    unit = NEGLIGIBLE * float(np.finfo(dtype).eps) / WANING
    weights = np.where(shares * len(shares) < _SMALL, 0.0, unit * shares)
    return np.maximum(weights, 2.0 ** LIMITS[dtype]["lowest"])


def have_waned(before: FloatArray, shares: FloatArray) -> bool:
    """Return whether a cluster's share fell so much that omitted weights may have mattered."""
    fell = (shares < before / WANING) & (before * len(before) >= _SMALL)
    return bool(fell.any())


def frame_of(coordinates: FeatureCoordinates) -> dict[str, Any]:
    """Return the fields of the loops that map rows to the model's coordinates."""
    code, whitening = PLAIN, None
    if isinstance(coordinates, WhitenedCoordinates):
        code, whitening = WHITENED, plain(coordinates.whitening)
    elif isinstance(coordinates, SphereCoordinates):
        code = ON_SPHERE
    return {
        "mean": plain(coordinates.mean),
        "scale": plain(coordinates.scale),
        "scaled": bool((coordinates.scale != 1.0).any()),
        "whitening": whitening,
        "code": code,
    }


def plain(values: NDArray, dtype: np.dtype | None = None) -> NDArray:
    """Return an array in the form that the loops need: C order, native byte order, aligned."""
    held = np.ascontiguousarray(values, dtype=dtype or np.float64)
    return held if held.flags.aligned else held.copy()


def is_plain(values: NDArray, dtype: np.dtype) -> bool:
    """Return whether `plain` returns an array unchanged."""
    flags = values.flags
    return values.dtype == dtype and flags.c_contiguous and flags.aligned


def parts(rows: NDArray, dtype: np.dtype, unit: int) -> list[slice]:
    """Return one slice of all rows or, if rows must be copied, several slices of whole units."""
    if is_plain(rows, dtype):
        return [slice(0, len(rows))]
    step = max(1, TILE_BYTES // (dtype.itemsize * rows.shape[1] * unit)) * unit
    return list(tiles(len(rows), step))


def call_in_parts(
    entry: str,
    rows: NDArray,
    dtype: np.dtype,
    tile: int,
    of_rows: Mapping[str, NDArray | None],
    fields: dict[str, Any],
    grouped: int = 1,
) -> bool:
    """Run a loop over rows; return False if it ended at a value that is not finite.

    Rows of another type or memory order than the loop takes are copied, a few whole tiles at a
    time; groups of `grouped` tiles are not divided. Rows are in the same tiles in any memory order,
    so the sums are the same. `of_rows` are the fields with a number for each row.
    """
    shared = fields | {"p": rows.shape[1], "tile": tile, "single_rows": dtype == np.float32}
    for some in parts(rows, dtype, grouped * tile):
        x = plain(rows[some], dtype)
        own = {name: array[some] for name, array in of_rows.items() if array is not None}
        if not library.call(entry, **shared, **own, n=len(x), first_row=some.start, rows=x):
            return False
    return True


def working_dtype(
    rows: NDArray, scale: FloatArray, shape: tuple[int, ...], extent: float, s: float
) -> np.dtype:
    """Return single precision if it suffices and saves time; otherwise double.

    It suffices for soft steps if the rows have no more precision, and for all hard steps. `shape`
    is that of the centres, `extent` their largest absolute coordinate.
    """
    k, p = shape
    held_single = row_dtype(rows) == np.float32
    if s == -np.inf:
        needed = _LEAST_SINGLE
        if held_single:
            suits = k >= _SINGLE_CENTERS or p >= _SINGLE_FEATURES
        else:
            suits = k > 1 and len(rows) * k * (p + _OTHER_WORK) >= _SINGLE_PRODUCTS
    else:
        needed = min(_FEW_ROWS, max(_LEAST_SINGLE, _MANY_PRODUCTS // (k * p)))
        # The weights of a row sum to up to k^(−1/s), which may be too large for single precision.
        suits = held_single and np.log2(k) < -30.0 * s
    if len(rows) < needed or not suits:
        return np.dtype(np.float64)
    extents = (extent, float(scale.min()), float(scale.max()))
    single = all(1.0 / _SINGLE_RANGE < extent < _SINGLE_RANGE for extent in extents)
    return np.dtype(np.float32 if single else np.float64)


def row_dtype(rows: NDArray) -> np.dtype:
    """Return the narrowest floating type, float32 or float64, that holds the rows."""
    return np.dtype(np.float32 if np.can_cast(rows.dtype, np.float32) else np.float64)


def tile_rows(n_rows: int, n_clusters: int, n_features: int, dtype: np.dtype) -> int:
    """Return the rows per tile, in whole panels, of a block of `n_rows` rows of this dtype."""
    rows = max(_LEAST_ROWS, _DISTANCE_BYTES // (dtype.itemsize * n_clusters))
    most = _ROW_BYTES if n_clusters < SCORED else _ROW_BYTES_OF_MANY
    rows = min(rows, most // (dtype.itemsize * n_features), _MOST_ROWS)
    # Panels are widest in single precision.
    return _PANEL_ROWS * min(max(1, rows // _PANEL_ROWS), max(1, -(-n_rows // _PANEL_ROWS)))
