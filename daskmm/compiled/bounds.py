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

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.dispatch import PreparedCenters
from daskmm.compiled.labels import nearest_centers
from daskmm.compiled.layout import call_in_parts, frame_of, plain, row_dtype
from daskmm.numerics.rows import FeatureCoordinates

FloatArray = NDArray[np.float64]

# Number of balls around each centre, whose radii grow by √2, and the radius of the last one, which
# holds all centres. It is finite, since ∞ − ∞ is NaN.
_SHELLS, _NO_END = 8, 1e300
# Bounds are lowered, and moved distances raised, by this share, which exceeds all rounding.
DOUBT = 1e-9
# At most this many centres, or this share of all centres, are listed around each centre. A distance
# to a single centre takes several times as long as one of the distances to all centres at once.
_LISTED, _SHARE_LISTED = 32, 1 / 16


class Moves(NamedTuple):
    """How far the centres around each centre have moved, and which centres are nearest to it."""

    # Radii of balls around each centre, ascending, (n_clusters, n_shells); the last ball holds all
    # centres.
    reach: FloatArray
    # The longest distance that another centre within the ball has moved, (n_clusters, n_shells).
    farthest: FloatArray
    ways: FloatArray  # the distance that the centre itself has moved, (n_clusters,)
    # The other centres that are nearest to the centre, the nearest first, (n_clusters, n_listed).
    around: NDArray[np.int32]
    # Lower bounds of the distances of these nearest centres, (n_clusters, n_listed + 1); the last
    # entry bounds the distances of all other centres.
    apart: FloatArray

    @classmethod
    def of(cls, n_clusters: int) -> Self:
        """Return uninitialised arrays for the moves around `n_clusters` centres."""
        shape, n = (n_clusters, _SHELLS), min(_LISTED, int(_SHARE_LISTED * n_clusters))
        around, apart = np.empty((n_clusters, n), np.int32), np.empty((n_clusters, n + 1))
        return cls(np.empty(shape), np.empty(shape), np.empty(n_clusters), around, apart)


class Moving(NamedTuple):
    """Centres after a move, their squared norms, and the distances that they moved.

    They are sorted by these distances, the longest first.
    """

    centers: FloatArray
    norms: FloatArray
    ways: FloatArray

    @classmethod
    def between(cls, before: FloatArray, centers: FloatArray) -> tuple[Self, NDArray[np.intp]]:
        """Sort centres by how far they have moved; also return the order."""
        ways = (1.0 + DOUBT) * np.sqrt(np.square(centers - before).sum(axis=1))
        order = np.argsort(-ways, kind="stable")
        norms = np.einsum("ij,ij->i", centers, centers)
        return cls(centers[order], norms[order], ways[order]), order


def add_moves(moving: Moving, order: NDArray[np.intp], own: slice, found: Moves) -> None:
    """Fill `found` for the centres at order[own]."""
    rounding = (moving.centers.shape[1] + 4) * np.finfo(np.float64).eps
    norms, at = (1.0 - rounding) * moving.norms, order[own]
    squares = moving.centers[own] @ (-2.0 * moving.centers.T)
    squares += norms
    squares += norms[own, None]
    np.maximum(squares, 0.0, out=squares)  # rounding makes distances of equal centres negative
    lines = np.arange(len(squares))
    squares[lines, lines + own.start] = np.inf
    n_listed = found.around.shape[1]
    near = np.argpartition(squares, n_listed, axis=1)[:, : n_listed + 1]
    near = np.take_along_axis(near, np.take_along_axis(squares, near, 1).argsort(axis=1), 1)
    listed = np.take_along_axis(squares, near, 1)
    found.around[at], found.apart[at] = order[near[:, :-1]], np.sqrt(listed)
    radii = listed[:, :1] * 2.0 ** np.arange(_SHELLS)
    radii[:, -1] = np.inf
    found.reach[at], found.ways[at] = np.minimum(np.sqrt(radii), _NO_END), moving.ways[own]
    # Centres are sorted by how far they moved, so the first one within a ball has moved farthest.
    # The smallest ball ends at the nearest centre, so no other centre lies in it.
    moved = moving.ways[: max(1, np.count_nonzero(moving.ways))]
    found.farthest[at, 0] = 0.0
    for shell in range(1, _SHELLS):
        within = squares[:, : len(moved)] < radii[:, shell, None]
        first = within.argmax(axis=1)
        found.farthest[at, shell] = np.where(within[lines, first], moved[first], 0.0)


def update_nearest(
    rows: NDArray,
    coordinates: FeatureCoordinates,
    prepared: PreparedCenters,
    moved: Moves | None,
    labels: NDArray[np.int32],
    lower: FloatArray,
    upper: FloatArray,
    lists: NDArray[np.int32] | None = None,
    known: bool = False,
) -> int | None:
    """Update the nearest centres of some rows, and their bounds.

    `rows`, `coordinates` and `prepared` are those of `daskmm.compiled.labels.nearest_centers`,
    without feature weights. Rows must not be whitened, because whitening rounds a row by its place
    in the block. `moved` says how the centres have moved since labels and bounds were computed;
    None if they have not been computed.

    `labels` are updated, and so are the bounds of the distances to any other centre (`lower`) and
    to the nearest one (`upper`). Where `moved` is None, centres near each row, including the
    nearest, are written to `lists`, (n_rows, n_listed). `known` says whether `labels` are those of
    an earlier step nevertheless, which saves comparisons unless centres are listed.

    The result is the number of rows that were compared with all centres. It is None, and labels are
    undefined, if a row is not finite in the model's coordinates or its squared norm overflows.
    """
    doubtful = np.ones(len(rows), np.bool_)
    if moved is not None:
        of_rows: dict[str, NDArray | None]
        of_rows = {"labels": labels, "lower": lower, "upper": upper, "doubtful": doubtful}
        fields = frame_of(coordinates) | moved._asdict() | {"centers": plain(prepared.centers)}
        fields |= {"k": len(moved.ways), "n_shells": _SHELLS, "n_listed": moved.around.shape[1]}
        fields["doubt"] = DOUBT
        call_in_parts("update_bounds", rows, row_dtype(rows), 1, of_rows, fields)
    at = np.flatnonzero(doubtful)
    if len(at) == 0:
        return 0
    some = rows if len(at) == len(rows) else rows[at]
    found, others = np.empty(len(at), np.int32), np.empty(len(at))
    before = labels[at] if known and lists is None else None
    if not nearest_centers(some, coordinates, prepared, found, None, others, lists, before):
        return None
    labels[at] = found
    lower[at] = (1.0 - DOUBT) * np.sqrt(np.maximum(others, 0.0))
    upper[at] = np.inf  # so the next step computes the distance
    return len(at)
