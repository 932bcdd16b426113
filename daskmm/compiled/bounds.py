"""Find the rows whose nearest centre cannot have changed; importing this imports numba.

A row knows its nearest centre, and a lower bound of its distance to all others (Hamerly, "Making
k-means even faster", SDM 2010). When centres move, the bound falls by the farthest way that one of
them went; but only centres that are near the row's own count, if all others are too far from that
one to matter (Ryšavý & Hamerly, "Geometric methods to accelerate k-means algorithms", SDM 2016).
The machine code is cached on disk.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.compiler import REORDERED, entry, part
from daskmm.compiled.divergences import separation
from daskmm.compiled.intrinsics import wide_vectors
from daskmm.compiled.labels import nearest_centers
from daskmm.compiled.layout import code_of, frame_of, parts, plain, row_dtype
from daskmm.compiled.products import repeated
from daskmm.compiled.tile import to_model_exactly
from daskmm.numerics.rows import FeatureCoordinates

FloatArray = NDArray[np.float64]

# Balls around each centre, each √2 times as large as the one before; the last has no end.
_SHELLS = 8
# Bounds are lowered, and ways raised, by this share: more than all rounding.
_DOUBT = 1e-9
# Rows per tile.
_TILE = 256


class Moves(NamedTuple):
    """How far the centres around each centre have moved.

    Attributes
    ----------
    reach : ndarray of shape (n_clusters, n_shells)
        Radii of balls around each centre, ascending; the last is infinite.
    farthest : ndarray of shape (n_clusters, n_shells)
        The longest way of another centre within the ball.
    """

    reach: FloatArray
    farthest: FloatArray

    @classmethod
    def of(cls, n_clusters: int) -> Self:
        """Return room for the moves around so many centres."""
        return cls(np.empty((n_clusters, _SHELLS)), np.empty((n_clusters, _SHELLS)))


class Moving(NamedTuple):
    """Centres sorted by how far they moved, the farthest first.

    Attributes
    ----------
    centers : ndarray of shape (n_clusters, n_features)
    norms, ways : ndarray of shape (n_clusters,)
        Sums of squares, and how far the centres moved.
    """

    centers: FloatArray
    norms: FloatArray
    ways: FloatArray

    @classmethod
    def between(cls, before: FloatArray, centers: FloatArray) -> tuple[Self, NDArray[np.intp]]:
        """Sort centres by their way from those before; return the order, too."""
        ways = (1.0 + _DOUBT) * np.sqrt(np.square(centers - before).sum(axis=1))
        order = np.argsort(-ways, kind="stable")
        norms = np.einsum("ij,ij->i", centers, centers)
        return cls(centers[order], norms[order], ways[order]), order


def add_moves(moving: Moving, order: NDArray[np.intp], own: slice, found: Moves) -> None:
    """Write to `found` what centres moved around some of the centres, those at order[own]."""
    squares = moving.centers[own] @ (-2.0 * moving.centers.T)
    reach, farthest = np.empty((2, len(squares), _SHELLS))
    rounding = (moving.centers.shape[1] + 4) * np.finfo(np.float64).eps
    _fill(squares, (1.0 - rounding) * moving.norms, moving.ways, own.start, reach, farthest)
    found.reach[order[own]], found.farthest[order[own]] = reach, farthest


@entry
def _fill(squares, norms, ways, first, reach, farthest):
    """Write radii and ways of some centres, given their products with all centres."""
    wide_vectors()
    k, last = len(ways), reach.shape[1] - 1
    for i in range(len(squares)):
        row = squares[i]
        square = max(_complete(row, norms, norms[first + i], first + i), 0.0)
        for shell in range(last):
            reach[i, shell] = np.sqrt(square)
            square *= 2.0
        reach[i, last] = np.inf
        # Largest ball first: what is within a smaller one comes later in the order.
        j = 0
        for shell in range(last, -1, -1):
            square = reach[i, shell] * reach[i, shell]
            while j < k and ways[j] > 0.0 and not row[j] < square:
                j += 1
            farthest[i, shell] = ways[j] if j < k else 0.0


@part(REORDERED)
def _complete(row, norms, norm, own):
    """Turn products into squared distances, that to itself into ∞; return the least."""
    wide_vectors()
    for j in range(len(row)):
        row[j] += norms[j] + norm
    row[own] = np.inf
    least = row[0]
    for j in range(len(row)):
        least = row[j] if row[j] < least else least
    return least


def update_nearest(
    rows: NDArray,
    coordinates: FeatureCoordinates,
    centers: FloatArray,
    moved: Moves | None,
    labels: NDArray[np.int32],
    lower: FloatArray,
) -> int | None:
    """Bring the nearest centres of some rows, and their bounds, up to date.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order, in the input's units.
    coordinates : FeatureCoordinates
        Not whitened: products of matrices would round rows by their place.
    centers : ndarray of shape (n_clusters, n_features)
        In the model's coordinates.
    moved : Moves or None
        From the centres at which labels and bounds hold; None if there are none.
    labels : ndarray of int32 of shape (n_rows,)
        Updated to those of `daskmm.compiled.labels.nearest_centers`.
    lower : ndarray of shape (n_rows,)
        Lower bounds of the distance to any other centre; updated.

    Returns
    -------
    int or None
        Number of rows that were compared with all centres; None if a row is not finite in the
        model's coordinates or its squared norm overflows: labels are undefined then.
    """
    doubtful = np.ones(len(rows), np.bool_)
    if moved is not None:
        kept = row_dtype(rows)
        frame, code = frame_of(coordinates), code_of(coordinates)
        for some in parts(rows, kept):
            x = plain(rows[some], kept)
            _test(
                x, *frame, plain(centers), code, *moved, labels[some], lower[some], doubtful[some]
            )
    at = np.flatnonzero(doubtful)
    if len(at):
        found, squares = np.empty(len(at), np.int32), np.empty(len(at))
        some_rows = rows if len(at) == len(rows) else rows[at]
        if not nearest_centers(some_rows, coordinates, centers, None, found, None, squares):
            return None
        labels[at] = found
        lower[at] = (1.0 - _DOUBT) * np.sqrt(np.maximum(squares, 0.0))
    return len(at)


@entry
def _test(rows, mean, scale, whitening, centers, code, reach, farthest, labels, lower, doubtful):
    """Lower the bounds of rows, and tell for which rows they do not exclude another centre."""
    wide_vectors()
    (n, p), n_shells = rows.shape, reach.shape[1]
    exact, raw, ones = np.empty((_TILE, p)), np.empty((0, p)), np.ones(p)
    frame = (repeated(mean), repeated(scale), not np.all(scale == 1.0), whitening)
    for start in range(0, n, _TILE):
        block = rows[start : start + _TILE]
        to_model_exactly(block, code, frame, raw, exact)
        for i in range(len(block)):
            own = labels[start + i]
            distance = np.sqrt(separation(exact[i], centers[own], ones))
            bound, before = -np.inf, lower[start + i]
            for shell in range(n_shells):
                # Centres within the ball, and those beyond.
                inside = before - farthest[own, shell]
                beyond = reach[own, shell] - distance
                bound = max(bound, min(inside, beyond))
            lower[start + i] = bound
            doubtful[start + i] = not distance < (1.0 - _DOUBT) * bound
