"""Find the rows whose nearest centre cannot have changed; importing this imports numba.

A row knows its nearest centre, and a lower bound of its distance to all others (Hamerly, "Making
k-means even faster", SDM 2010). When centres move, the bound falls by the farthest way that one of
them went; but only centres that are near the row's own count, if all others are too far from that
one to matter (Ryšavý & Hamerly, "Geometric methods to accelerate k-means algorithms", SDM 2016).
Where the bound leaves doubt, the row is compared with the centres around its own: those that are
farther from its own centre than twice the row is cannot be nearer (Newling & Fleuret, "Fast k-means
with accurate bounds", ICML 2016). The machine code is cached on disk.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.compiler import EXACT, REORDERED, entry, part
from daskmm.compiled.dispatch import PreparedCenters
from daskmm.compiled.divergences import exact_distance, separation
from daskmm.compiled.intrinsics import wide_vectors
from daskmm.compiled.labels import nearest_centers
from daskmm.compiled.layout import code_of, frame_of, parts, plain, row_dtype
from daskmm.compiled.products import repeated
from daskmm.compiled.tile import to_model_exactly
from daskmm.numerics.rows import FeatureCoordinates

FloatArray = NDArray[np.float64]

# Balls around each centre, each √2 times as large as the one before. The last one holds all
# centres: its radius is a large number, as ∞ − ∞ is NaN.
_SHELLS, _NO_END = 8, 1e300
# Bounds are lowered, and ways raised, by this share: more than all rounding.
_DOUBT = 1e-9
# Rows per tile. They are transformed together if more than 1/_MANY_DOUBTFUL of them are in doubt.
_TILE, _MANY_DOUBTFUL = 256, 4
# Centres listed around each centre, at most: so many, or this share of all. Distances to single
# centres take several times as long as those to all at once.
_LISTED, _SHARE_LISTED = 32, 1 / 16
# Halvings, on the scale of logarithms, of the interval in which the radius of the list is sought:
# from the nearest centre, or this share of the mean, to the mean of the squared distances.
_HALVINGS, _NEAREST = 12, 1e-12
# With so few rows in doubt, preparing the comparison by products takes longer than they do.
_FEW = 64


class Moves(NamedTuple):
    """How far the centres around each centre have moved, and which centres are nearest to it.

    Attributes
    ----------
    reach : ndarray of shape (n_clusters, n_shells)
        Radii of balls around each centre, ascending; the last one holds all.
    farthest : ndarray of shape (n_clusters, n_shells)
        The longest way of another centre within the ball.
    ways : ndarray of shape (n_clusters,)
        How far the centre itself moved.
    around : ndarray of int32 of shape (n_clusters, n_listed)
        The nearest other centres, the nearest first; −1 where the list has ended.
    apart : ndarray of shape (n_clusters, n_listed + 1)
        Lower bounds of their distances; where the list has ended, of those of all other centres.
    """

    reach: FloatArray
    farthest: FloatArray
    ways: FloatArray
    around: NDArray[np.int32]
    apart: FloatArray

    @classmethod
    def of(cls, n_clusters: int) -> Self:
        """Return room for the moves around so many centres."""
        listed = n_listed(n_clusters)
        return cls(
            np.empty((n_clusters, _SHELLS)),
            np.empty((n_clusters, _SHELLS)),
            np.empty(n_clusters),
            np.empty((n_clusters, listed), np.int32),
            np.empty((n_clusters, listed + 1)),
        )


def n_listed(n_clusters: int) -> int:
    """Return how many centres are listed around each centre, at most."""
    return min(_LISTED, int(_SHARE_LISTED * n_clusters))


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
    rounding = (moving.centers.shape[1] + 4) * np.finfo(np.float64).eps
    _fill(squares, (1.0 - rounding) * moving.norms, moving.ways, own.start, order, found)


@entry
def _fill(squares, norms, ways, first, order, found):
    """Write what is around some centres, given their products with all centres."""
    wide_vectors()
    k, last = len(ways), _SHELLS - 1
    for i in range(len(squares)):
        row, at = squares[i], order[first + i]
        reach, farthest = found.reach[at], found.farthest[at]
        square = least = _complete(row, norms, norms[first + i], first + i)
        for shell in range(last):
            reach[shell] = np.sqrt(square)
            square *= 2.0
        reach[last] = _NO_END
        # Largest ball first: what is within a smaller one comes later in the order. The smallest
        # one ends at the nearest centre, so no other lies in it.
        j = 0
        farthest[0] = 0.0
        for shell in range(last, 0, -1):
            square = reach[shell] * reach[shell]
            while j < k and ways[j] > 0.0 and not row[j] < square:
                j += 1
            farthest[shell] = ways[j] if j < k else 0.0
        found.ways[at] = ways[first + i]
        _list_nearest(row, least, order, found.around[at], found.apart[at])


@part(EXACT)
def _list_nearest(row, square, order, around, apart):
    """List the nearest centres, given the squared distances of all, and the least of them."""
    wide_vectors()
    size, high = len(around), _mean(row)
    low = max(square, _NEAREST * high)
    if _count_below(row, low) > size:  # coincident centres
        low = high = 0.0
    for _ in range(_HALVINGS):
        middle = np.sqrt(low * high)
        if _count_below(row, middle) > size:
            high = middle
        else:
            low = middle
    count = 0
    for j in range(len(row)):
        if row[j] < low:
            # By insertion, the nearest first.
            at, own = count, row[j]
            while at > 0 and apart[at - 1] > own:
                apart[at], around[at] = apart[at - 1], around[at - 1]
                at -= 1
            apart[at], around[at] = own, order[j]
            count += 1
    around[count:] = -1
    apart[count:] = low
    for t in range(len(apart)):
        apart[t] = np.sqrt(apart[t])


@part(REORDERED)
def _mean(row):
    """Return the mean, without those that are infinite."""
    wide_vectors()
    total = 0.0
    for j in range(len(row)):
        total += row[j] if row[j] < np.inf else 0.0
    return total / len(row)


@part(REORDERED)
def _count_below(row, limit):
    """Return how many numbers are below a limit."""
    wide_vectors()
    count = 0.0
    for j in range(len(row)):
        count += 1.0 if row[j] < limit else 0.0
    return count


@part(REORDERED)
def _complete(row, norms, norm, own):
    """Turn products into squared distances, that to itself into ∞; return the least."""
    wide_vectors()
    for j in range(len(row)):
        # Rounding makes negative numbers of coincident centres.
        square = row[j] + norms[j] + norm
        row[j] = square if square > 0.0 else 0.0
    row[own] = np.inf
    least = row[0]
    for j in range(len(row)):
        least = row[j] if row[j] < least else least
    return least


def update_nearest(
    rows: NDArray,
    coordinates: FeatureCoordinates,
    prepared: PreparedCenters,
    moved: Moves | None,
    labels: NDArray[np.int32],
    lower: FloatArray,
    upper: FloatArray,
) -> int | None:
    """Bring the nearest centres of some rows, and their bounds, up to date.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Of any numeric dtype, in any order, in the input's units.
    coordinates : FeatureCoordinates
        Not whitened: products of matrices would round rows by their place.
    prepared : PreparedCenters
        Of squared Euclidean distances without feature weights.
    moved : Moves or None
        From the centres at which labels and bounds hold; None if there are none.
    labels : ndarray of int32 of shape (n_rows,)
        Updated to those of `daskmm.compiled.labels.nearest_centers`.
    lower : ndarray of shape (n_rows,)
        Lower bounds of the distance to any other centre; updated.
    upper : ndarray of shape (n_rows,)
        Upper bounds of the distance to the nearest centre; updated.

    Returns
    -------
    int or None
        Number of rows that were compared with all centres; None if a row is not finite in the
        model's coordinates or its squared norm overflows: labels are undefined then.
    """
    doubtful, kept = np.ones(len(rows), np.bool_), row_dtype(rows)
    frame, code, means = frame_of(coordinates), code_of(coordinates), plain(prepared.centers)
    if moved is not None:
        for some in parts(rows, kept):
            known = labels[some], lower[some], upper[some]
            _test(plain(rows[some], kept), *frame, means, code, moved, *known, doubtful[some])
    at = np.flatnonzero(doubtful)
    if len(at) == 0:
        return 0
    some_rows = rows if len(at) == len(rows) else rows[at]
    # Distances that are not known yet are computed in the next step.
    found, near, squares = np.empty(len(at), np.int32), np.full(len(at), np.inf), np.empty(len(at))
    few = len(at) <= _FEW and _scan(
        plain(some_rows, kept), *frame, means, code, found, near, squares
    )
    if not few and not nearest_centers(some_rows, coordinates, prepared, found, None, squares):
        return None
    labels[at] = found
    lower[at] = (1.0 - _DOUBT) * np.sqrt(np.maximum(squares, 0.0))
    upper[at] = (1.0 + _DOUBT) * np.sqrt(near)
    return len(at)


@entry
def _test(rows, mean, scale, whitening, centers, code, moved, labels, lower, upper, doubtful):
    """Bring labels and bounds up to date, and tell which rows have to be compared with all."""
    wide_vectors()
    (n, p), ways = rows.shape, moved.ways
    exact, raw, ones = np.empty((_TILE, p)), np.empty((0, p)), np.ones(p)
    frame = (repeated(mean), repeated(scale), not np.all(scale == 1.0), whitening)
    for start in range(0, n, _TILE):
        block = rows[start : start + _TILE]
        left = 0
        for i in range(start, start + len(block)):
            upper[i] += ways[labels[i]]
            bound = _lowered(lower[i], upper[i], labels[i], moved)
            doubtful[i] = not upper[i] < (1.0 - _DOUBT) * bound
            left += doubtful[i]
            lower[i] = lower[i] if doubtful[i] else bound
        if left == 0:
            continue
        one_by_one = left * _MANY_DOUBTFUL < len(block)
        if not one_by_one:
            to_model_exactly(block, code, frame, raw, exact)
        for i in range(start, start + len(block)):
            if not doubtful[i]:
                continue
            at, own = i - start, labels[i]
            if one_by_one:
                to_model_exactly(block[at : at + 1], code, frame, raw, exact[at : at + 1])
            z = exact[at]
            square = separation(z, centers[own], ones)
            distance = np.sqrt(square)
            bound = _lowered(lower[i], distance, own, moved)
            found = distance < (1.0 - _DOUBT) * bound
            if not found and 2.0 * distance < (1.0 - 4.0 * _DOUBT) * moved.apart[own, -1]:
                nearest, least, bound = _search_around(z, square, own, centers, moved, ones)
                if nearest >= 0:
                    found, labels[i], distance = True, nearest, np.sqrt(least)
            lower[i], upper[i] = bound, (1.0 + _DOUBT) * distance
            doubtful[i] = not found


@part(REORDERED)
def _lowered(lower, distance, own, moved):
    """Return the bound of the distance to other centres after they moved."""
    wide_vectors()
    reach, farthest = moved.reach[own], moved.farthest[own]
    bound = -_NO_END
    for shell in range(_SHELLS):
        # Centres within the ball, and those beyond.
        inside, beyond = lower - farthest[shell], reach[shell] - distance
        least = inside if inside < beyond else beyond
        bound = least if least > bound else bound
    return bound


@part(EXACT)
def _search_around(z, square, own, centers, moved, ones):
    """Compare a row with the centres listed around its own, which exclude all others.

    Returns
    -------
    nearest : int
        −1 where two centres are as near up to rounding.
    least : float
        Squared distance to it.
    bound : float
        Lower bound of the distance to any other centre.
    """
    wide_vectors()
    around, apart, distance = moved.around[own], moved.apart[own], np.sqrt(square)
    least, second, nearest, limit = square, np.inf, np.int64(own), np.inf
    t = 0
    while t < len(around) and around[t] >= 0 and apart[t] < limit:
        j = np.int64(around[t])
        found = separation(z, centers[j], ones)
        if found < second:
            if found < least:
                least, second, nearest = found, least, j
            else:
                second = found
            # Centres as far from the row's as this are not among the two nearest.
            limit = (1.0 + _DOUBT) * (distance + np.sqrt(second))
        t += 1
    if not least < (1.0 - _DOUBT) * second:
        return np.int64(-1), least, 0.0
    beyond = apart[t] - (1.0 + _DOUBT) * distance
    return nearest, least, (1.0 - _DOUBT) * min(np.sqrt(second), beyond)


@entry
def _scan(rows, mean, scale, whitening, centers, code, labels, distances, others):
    """Compute for few rows what `nearest_centers` does for many; return whether all are finite."""
    wide_vectors()
    (n, p), k = rows.shape, len(centers)
    exact, raw, ones = np.empty((n, p)), np.empty((0, p)), np.ones(p)
    frame = (repeated(mean), repeated(scale), not np.all(scale == 1.0), whitening)
    to_model_exactly(rows, code, frame, raw, exact)
    apart = np.empty(k)
    for i in range(n):
        least, second, nearest = np.inf, np.inf, 0
        for j in range(k):
            apart[j] = found = separation(exact[i], centers[j], ones)
            if found < least:
                least, second, nearest = found, least, j
            elif found < second:
                second = found
        if not np.isfinite(least):
            return False
        if not least < (1.0 - _DOUBT) * second:
            best, second = np.inf, least
            for j in range(k):
                if apart[j] <= (1.0 + _DOUBT) * least:
                    found = exact_distance(code, rows[i], exact[i], mean, scale, centers[j], ones)
                    if found < best:
                        best, nearest = found, j
        labels[i], distances[i], others[i] = nearest, apart[nearest], second
    return True
