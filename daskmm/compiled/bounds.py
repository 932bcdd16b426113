"""Hamerly bounds: skip rows whose nearest centre cannot have changed.

Each row keeps its nearest centre and a lower bound of its distance to all others (Hamerly, "Making
k-means even faster", SDM 2010). When centres move, the bound falls by the longest distance that
another centre has moved, except centres that are too far from the row's own centre to become its
nearest (Ryšavý & Hamerly, "Geometric methods to accelerate k-means algorithms", SDM 2016). A row
whose bounds leave doubt is compared with the centres near its own centre. Another centre cannot be
nearer if its distance from the row's own centre is more than twice the row's distance from it
(Newling & Fleuret, "Fast k-means with accurate bounds", ICML 2016).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled import library
from daskmm.compiled.dispatch import PreparedCenters
from daskmm.compiled.labels import nearest_centers
from daskmm.compiled.layout import call_in_parts, frame_of, plain, row_dtype
from daskmm.numerics.rows import FeatureCoordinates

FloatArray = NDArray[np.float64]

# Balls around each centre have radii that grow by √2; the last one holds all centres.
_SHELLS = 8
# Bounds are lowered, and moved distances raised, by this share, which exceeds all rounding.
_DOUBT = 1e-9
# At most this many centres, or this share of all centres, are listed around each centre. A distance
# to a single centre takes several times as long as one of the distances to all centres at once.
_LISTED, _SHARE_LISTED = 32, 1 / 16
# Up to this number of rows in doubt, preparing a matrix product takes longer than single
# comparisons.
_FEW = 64


class Moves(NamedTuple):
    """Distances that the centres around each centre have moved, and its nearest centres.

    Attributes
    ----------
    reach : ndarray of shape (n_clusters, n_shells)
        Radii of balls around each centre, ascending; the last ball holds all centres.
    farthest : ndarray of shape (n_clusters, n_shells)
        The longest distance that another centre within the ball has moved.
    ways : ndarray of shape (n_clusters,)
        The distance that the centre itself has moved.
    around : ndarray of int32 of shape (n_clusters, n_listed)
        The other centres, the nearest first; −1 where the list has ended.
    apart : ndarray of shape (n_clusters, n_listed + 1)
        Lower bounds of their distances from the centre; the entry after the last listed centre
        bounds those of all other centres.
    """

    reach: FloatArray
    farthest: FloatArray
    ways: FloatArray
    around: NDArray[np.int32]
    apart: FloatArray

    @classmethod
    def of(cls, n_clusters: int) -> Self:
        """Return uninitialised arrays for the moves around `n_clusters` centres."""
        listed = n_listed(n_clusters)
        return cls(
            np.empty((n_clusters, _SHELLS)),
            np.empty((n_clusters, _SHELLS)),
            np.empty(n_clusters),
            np.empty((n_clusters, listed), np.int32),
            np.empty((n_clusters, listed + 1)),
        )


def n_listed(n_clusters: int) -> int:
    """Return the largest number of centres that are listed around each centre."""
    return min(_LISTED, int(_SHARE_LISTED * n_clusters))


class Moving(NamedTuple):
    """Centres sorted by how far they moved, the farthest first.

    Attributes
    ----------
    centers : ndarray of shape (n_clusters, n_features)
        The centres after the move.
    norms : ndarray of shape (n_clusters,)
        Their squared norms.
    ways : ndarray of shape (n_clusters,)
        The distances that they moved.
    """

    centers: FloatArray
    norms: FloatArray
    ways: FloatArray

    @classmethod
    def between(cls, before: FloatArray, centers: FloatArray) -> tuple[Self, NDArray[np.intp]]:
        """Sort centres by how far they have moved; also return the order."""
        ways = (1.0 + _DOUBT) * np.sqrt(np.square(centers - before).sum(axis=1))
        order = np.argsort(-ways, kind="stable")
        norms = np.einsum("ij,ij->i", centers, centers)
        return cls(centers[order], norms[order], ways[order]), order


def add_moves(moving: Moving, order: NDArray[np.intp], own: slice, found: Moves) -> None:
    """Fill `found` for the centres at order[own]."""
    squares = moving.centers[own] @ (-2.0 * moving.centers.T)
    rounding = (moving.centers.shape[1] + 4) * np.finfo(np.float64).eps
    n, k = squares.shape
    library.call(
        "fill_moves",
        n=n,
        k=k,
        first=own.start,
        n_shells=_SHELLS,
        n_listed=n_listed(k),
        squares=squares,
        norms=(1.0 - rounding) * moving.norms,
        ways=moving.ways,
        order=np.ascontiguousarray(order, np.int64),
        reach=found.reach,
        farthest=found.farthest,
        own_ways=found.ways,
        around=found.around,
        apart=found.apart,
    )


def update_nearest(
    rows: NDArray,
    coordinates: FeatureCoordinates,
    prepared: PreparedCenters,
    moved: Moves | None,
    labels: NDArray[np.int32],
    lower: FloatArray,
    upper: FloatArray,
    lists: NDArray[np.int32] | None = None,
) -> int | None:
    """Update the nearest centres of some rows, and their bounds.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Rows in the input's units, in any numeric dtype and memory order.
    coordinates : FeatureCoordinates
        The model's coordinates, which must not be whitened: whitening rounds a row by its place in
        the block.
    prepared : PreparedCenters
        The centres, for squared Euclidean distances without feature weights.
    moved : Moves or None
        How the centres have moved since labels and bounds were computed; None if they have not been
        computed.
    labels : ndarray of int32 of shape (n_rows,)
        Nearest centres as in `daskmm.compiled.labels.nearest_centers`; updated.
    lower : ndarray of shape (n_rows,)
        Lower bounds of the distance to any other centre; updated.
    upper : ndarray of shape (n_rows,)
        Upper bounds of the distance to the nearest centre; updated.
    lists : ndarray of int32 of shape (n_rows, n_listed), optional
        Output, where `moved` is None: near centres of each row, the nearest one among them.

    Returns
    -------
    int or None
        Number of rows that were compared with all centres; None if a row is not finite in the
        model's coordinates or its squared norm overflows; labels are undefined then.
    """
    doubtful, dtype = np.ones(len(rows), np.bool_), row_dtype(rows)
    shared = _fields(coordinates, prepared)
    if moved is not None:
        known: dict[str, NDArray]
        known = {"labels": labels, "lower": lower, "upper": upper, "doubtful": doubtful}
        fields = shared | moved._asdict() | {"n_listed": moved.around.shape[1]}
        call_in_parts("update_bounds", rows, dtype, 1, known, fields)
    at = np.flatnonzero(doubtful)
    if len(at) == 0:
        return 0
    some = rows if len(at) == len(rows) else rows[at]
    # A distance of ∞ means that the next step has to compute it.
    found, near, squares = np.empty(len(at), np.int32), np.full(len(at), np.inf), np.empty(len(at))
    known = {"labels": found, "lower": squares, "upper": near}
    few = len(at) <= _FEW and lists is None
    few = few and call_in_parts("compare_all", some, dtype, 1, known, shared)
    if not few and not nearest_centers(some, coordinates, prepared, found, None, squares, lists):
        return None
    labels[at] = found
    lower[at] = (1.0 - _DOUBT) * np.sqrt(np.maximum(squares, 0.0))
    upper[at] = (1.0 + _DOUBT) * np.sqrt(near)
    return len(at)


def _fields(coordinates: FeatureCoordinates, prepared: PreparedCenters) -> dict[str, Any]:
    """Return the fields of loops over rows, except those of centres that have moved."""
    centers = plain(prepared.centers)
    sizes = {"k": len(centers), "n_shells": _SHELLS, "n_listed": 0, "doubt": _DOUBT}
    return sizes | frame_of(coordinates) | {"centers": centers}
