"""Choose directions along which partial distances exclude most centres of a row.

Hard steps with many centres and features spend their time on products of all rows with all
centres. Products along the leading q of p orthonormal directions, and the norms of what remains,
bound every distance from below by Cauchy–Schwarz. A centre whose bound exceeds the distance to
another centre cannot be the nearest, so its distance is not computed (`src/partial.hpp`). The
directions are the principal ones of the centres, and q is chosen on a few rows.

Some processors compute products of bfloat16 many times as fast as those of float32. Rows and
centres in float32 are rounded there, and what rounding loses bounds the distances
(`src/rounded.hpp`).

The labels and sums of a step do not depend on any of this, but lists of near centres do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled import library
from daskmm.numerics.distances import product_rounding
from daskmm.numerics.distortions.base import Distortion

FloatArray = NDArray[np.float64]

# Least numbers of centres and features for which partial distances save time; of centres also for
# products of bfloat16.
LEAST_CENTERS, LEAST_FEATURES, _LEAST_ROUNDED = 256, 64, 64
# Rows on which q is chosen, and the shares of the features that are tried.
_ROWS, _SHARES = 64, (1 / 8, 3 / 16, 1 / 4, 5 / 16, 3 / 8, 1 / 2)
# Assumed times. A distance that is computed alone takes _FULL times as long as in a product of all
# pairs. The test of a pair's bound takes as long as _TEST features of the pair in such a product.
_FULL, _TEST = 4.0, 16.0
# The time of all products of bfloat16 and the share of a number that they lose.
_ROUNDED, _LOST = 0.1, 1 / 600
# Partial distances are used if they promise to take at most this share of the time.
_WORTH = 0.9
# Features come in groups of eight.
_GROUP = 8


def principal_directions(centers: FloatArray) -> NDArray[np.float32]:
    """Return the leading principal directions of centres, at most half as many as features."""
    k, p = centers.shape
    if k < p:  # k directions span the centres
        span, within = np.linalg.qr(centers.T)
        vectors = span @ np.linalg.eigh(within @ within.T)[1]
    else:
        vectors = np.linalg.eigh(centers.T @ centers)[1]
    n_directions = min(k, p // 2) // _GROUP * _GROUP
    return np.ascontiguousarray(vectors[:, ::-1].T[:n_directions], dtype=np.float32)


def exclude_centers(centers: FloatArray, distortion: Distortion) -> bool:
    """Return whether partial distances are tried: not for few centres or features."""
    (k, p), least = centers.shape, LEAST_CENTERS
    if library.rounded_products():
        least = min(least, _LEAST_ROUNDED)
    return k >= least and p >= LEAST_FEATURES and distortion.squared


def directions_for(centers: FloatArray, distortion: Distortion) -> NDArray[np.float32] | None:
    """Return the directions of steps from some centres; None where steps hardly use any."""
    if library.rounded_products() or not exclude_centers(centers, distortion):
        return None
    return principal_directions(centers)


def fields_of_rounded(factors: NDArray, norms: NDArray, rows: NDArray) -> dict[str, Any]:
    """Return fields of `src/loops.h` for products of bfloat16; none if these save no time.

    The parameters are those of `fields_of_directions`.
    """
    rounded = library.rounded_products()
    if not rounded or factors.dtype != np.float32:
        return {}
    rows, offset = rows.astype(factors.dtype), factors.mean(axis=0)
    z, about = rows + 0.5 * offset, factors - offset
    scores = rows @ factors.T + norms
    lost = 2.0 * _LOST * np.linalg.norm(z, axis=1)[:, None] * np.linalg.norm(about, axis=1)
    near = float((scores - lost <= scores.min(axis=1)[:, None]).mean())
    return {"rounded": rounded} if _ROUNDED + _FULL * near < _WORTH else {}


def fields_of_directions(
    factors: NDArray, norms: NDArray, directions: NDArray[np.float32], rows: NDArray
) -> dict[str, Any]:
    """Return fields of `src/loops.h` for partial distances; none if these save no time.

    The number of leading directions is chosen on some rows in the model's coordinates; `factors`
    are −2 θ for each centre θ, `norms` are ‖θ‖².
    """
    (k, p), dtype = factors.shape, factors.dtype
    basis = directions.astype(dtype, copy=False)
    along = factors @ basis.T
    z = rows.astype(dtype)
    y, limits = z @ basis.T, (z @ factors.T + norms).min(axis=1)
    best, n_leading, rests = _WORTH, 0, np.empty(0)
    for share in _SHARES:
        q = int(share * p) // _GROUP * _GROUP
        if not 0 < q <= len(basis):
            continue
        remain = _remainders(z, y, q)
        left = _remainders(factors, along, q)
        bounds = y[:, :q] @ along[:, :q].T + norms - remain[:, None] * left
        near = float((bounds <= limits[:, None]).mean())
        time = q / p + q / k + _FULL * near + _TEST / p
        if time < best:
            best, n_leading, rests = time, q, left
    if not n_leading:
        return {}
    return {
        "n_leading": n_leading,
        "basis": np.ascontiguousarray(basis[:n_leading]),
        "leading": np.ascontiguousarray(along[:, :n_leading]),
        "rests": rests,
    }


def some_rows(rows: NDArray) -> NDArray:
    """Return a few rows of a block, at equal distances."""
    return rows[:: -(-len(rows) // _ROWS)]


def _remainders(vectors: NDArray, along: NDArray, q: int) -> NDArray:
    """Return upper bounds of the norms of vectors without their first q directions."""
    squares = np.einsum("ij,ij->i", vectors, vectors)
    within = np.einsum("ij,ij->i", along[:, :q], along[:, :q])
    rounding = np.asarray(4.0 * product_rounding(vectors.dtype, vectors.shape[1]), vectors.dtype)
    return np.sqrt(np.maximum(squares - within, 0.0) + rounding * squares)
