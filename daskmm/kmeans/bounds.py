"""Compare rows in memory with few of many centres.

Hard steps with thousands of centres compare every row with all centres, though few rows change
their centre in late steps. Bounds of distances (Hamerly 2010; `daskmm.compiled.bounds`) save the
comparisons of all other rows, without changing a bit of the sums.

Over-relaxed steps move centres too far for such bounds. Most of them compare each row with the
centres that were near it at the last step over all centres; a row keeps its centre or goes to a
nearer one, so the cost cannot rise (a partial E-step: Neal & Hinton, "A view of the EM algorithm
that justifies incremental, sparse, and other variants", 1998; lists of near centres: Wang et al.,
"Fast approximate k-means via cluster closures", CVPR 2012). Steps to the means compare all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled import dispatch, library
from daskmm.compiled.bounds import DOUBT, Moves, Moving, add_moves, update_nearest
from daskmm.compiled.labels import choose_directions, nearest_listed
from daskmm.compiled.layout import SCORED
from daskmm.compiled.partial import exclude_centers
from daskmm.data.blocks import Block, Layout
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.kmeans.assignment import labels_of
from daskmm.kmeans.sums import FARTHEST, CenterState, CenterSums
from daskmm.numerics.rows import (
    FeatureCoordinates,
    Rows,
    WhitenedCoordinates,
    tile_rows,
    tiles,
)

FloatArray = NDArray[np.float64]

# Number of centres listed for each row. With twice as many, fits end at the same cost (within .01
# %); with half as many, they end .05 % higher.
_LISTED = 8
# Bytes of the bounds and of the list, per row and start, and of the moves per centre.
BOUND_BYTES, _LIST_BYTES, _MOVES_BYTES = 28, 4 * _LISTED, 528
# Bounds are used if those of all starts take at most this many times the bytes of the rows. The
# sums of a block are kept if they take at most this share of the bytes of its rows.
_SHARE_OF_BOUNDS, _SHARE_KEPT = 1.5, 0.25
# Least number of centres, and of rows per centre, for which bounds save time. With fewer rows, the
# distances between centres would cost too much.
LEAST_CLUSTERS, _ROWS_PER_CLUSTER = SCORED, 16
# Least number of parts into which centres are divided to compute their moves.
_PARTS = 8
# Bounds are dropped for a number of steps if they leave more than this share of the rows to be
# compared with all centres. The number of steps doubles each time.
_IN_DOUBT = 0.7


def bounds_bytes(n_rows: int, row_bytes: int, n_clusters: int, n_starts: int) -> int:
    """Return the largest memory that the bounds of rows in memory take."""
    if n_clusters < LEAST_CLUSTERS:
        return 0
    known = n_starts * (BOUND_BYTES + _LIST_BYTES)
    per_row = max(BOUND_BYTES, min(known, int(_SHARE_OF_BOUNDS * row_bytes)))
    per_row += int(n_starts * _SHARE_KEPT * row_bytes)
    return n_rows * per_row + n_starts * n_clusters * _MOVES_BYTES


def moves(before: FloatArray, centers: FloatArray) -> Moves:
    """Compare centres with those of the step before, both of shape (n_clusters, n_features)."""
    k, p = centers.shape
    (moving, order), found = Moving.between(before, centers), Moves.of(k)
    size = min(tile_rows(p, k), -(-k // _PARTS))
    with one_blas_thread():
        for _ in run_on_threads(
            [functools.partial(add_moves, moving, order, own, found) for own in tiles(k, size)]
        ):
            pass
    return found


@dataclass
class Bounds:
    """Nearest centres and bounds of all rows, for one start."""

    labels: NDArray[np.int32]  # nearest centre of each row, (n_rows,)
    # Bounds of the distance to any other centre, and to the nearest one, (n_rows,).
    lower: FloatArray
    upper: FloatArray
    # Squared distances to the nearest centres, at the centres `summed`, (n_rows,); negative for a
    # row whose nearest centre has changed.
    distances: FloatArray
    # Centres at which the bounds hold; None before the first step.
    prepared: dispatch.PreparedCenters | None = None
    moved: Moves | None = None  # how centres have moved since then
    # Numbers of rows of each block that were compared with all centres in the present step.
    searched: list[int] = field(default_factory=list)
    # Centres of the last step, (n_clusters, n_features); None before its end.
    summed: FloatArray | None = None
    # Whether each centre has moved since the last step, (n_clusters,).
    stale: NDArray[np.bool_] = field(default_factory=lambda: np.ones(0, np.bool_))
    # First row of a block -> whether rows have entered or left each cluster since the last step,
    # (n_clusters,).
    changed: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    # First row of a block -> weights and sums of its clusters in the last step.
    kept: dict[int, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    # Centres near each row at the last step over all centres, (n_rows, n_listed); None if they are
    # not listed.
    lists: NDArray[np.int32] | None = None
    # Whether the present step compares rows with the centres of their lists only.
    near: bool = False

    @classmethod
    def of(cls, n_rows: int, listed: bool) -> Bounds:
        """Return bounds that exclude nothing, with room for lists or without."""
        lists = np.empty((n_rows, _LISTED), np.int32) if listed else None
        unknown = np.full(n_rows, -1.0)
        labels, lower, upper = np.zeros(n_rows, np.int32), np.zeros(n_rows), np.zeros(n_rows)
        return cls(labels, lower, upper, unknown, lists=lists)

    @property
    def separation(self) -> float:
        """Lower bound of the squared distance between two centres; 0 where none is known."""
        return 0.0 if self.moved is None else float(self.moved.apart[:, 0].min()) ** 2

    def holds_at(self, centers: FloatArray) -> bool:
        """Return whether the last step began at these centres, as the same array."""
        return self.prepared is not None and self.prepared.centers is centers

    def expect(
        self, prepared: dispatch.PreparedCenters, *, near: bool = False, afresh: bool = False
    ) -> None:
        """Prepare a step at new centres, over the listed ones (`near`) or over all."""
        before = None if near or afresh or self.near else self.prepared
        self.moved = None if before is None else moves(before.centers, prepared.centers)
        self.near = near and self.prepared is not None
        self.prepared, self.searched = prepared, []
        if self.summed is None:
            self.stale = np.ones(len(prepared.centers), np.bool_)
        else:
            self.stale = (self.summed != prepared.centers).any(axis=1)

    def nearest(self, block: Block, coordinates: Rows) -> NDArray[np.int32] | None:
        """Return the nearest centres of a block; None if they must be found without bounds."""
        rows, start = block.rows, block.position.start
        own = slice(start, start + len(rows))
        assert self.prepared is not None
        assert isinstance(coordinates, FeatureCoordinates)
        before = self.labels[own].copy()
        found = self._update(own, rows, coordinates, self.prepared)
        if found is None:
            self.lower[own], self.upper[own] = -np.inf, np.inf  # all centres are compared again
            self.distances[own] = -1.0
            if self.lists is not None:
                self.lists[own] = -1
            self.kept.pop(start, None)
            self.changed.pop(start, None)
            self.searched.append(len(rows))
            return None
        if start not in self.changed:
            self.changed[start] = np.zeros(len(self.prepared.centers), np.bool_)
        changed, others = self.changed[start], before != self.labels[own]
        changed[before[others]] = changed[self.labels[own][others]] = True
        self.distances[own][others] = -1.0
        self.searched.append(found)
        return self.labels[own]

    def _update(
        self,
        own: slice,
        rows: NDArray,
        coordinates: FeatureCoordinates,
        prepared: dispatch.PreparedCenters,
    ) -> int | None:
        """Update labels, bounds and lists of a block as `update_nearest` does."""
        labels, lists = self.labels[own], None if self.lists is None else self.lists[own]
        if self.near:
            assert lists is not None
            if lists[0, 0] < 0:
                return None
            nearest_listed(rows, coordinates, prepared, labels, lists)
            return 0
        bounds, known = (labels, self.lower[own], self.upper[own]), self.summed is not None
        listed = None if self.moved else lists
        return update_nearest(rows, coordinates, prepared, self.moved, *bounds, listed, known)

    def sums(self, block: Block, coordinates: Rows) -> CenterSums | None:
        """Compute the sums of a block at the centres given to `expect`.

        The result is None if its nearest centres must be found without bounds.
        """
        labels, start, rows = self.nearest(block, coordinates), block.position.start, block.rows
        if labels is None:
            return None
        assert self.prepared is not None
        assert isinstance(coordinates, FeatureCoordinates)
        centers = self.prepared.centers
        found = dispatch.known_sums(
            rows,
            block.weights,
            coordinates,
            self.prepared,
            FARTHEST,
            labels,
            self.distances[start : start + len(rows)],
            self.stale,
            self.changed.pop(start),
            self.kept.pop(start, None),
        )
        if _SHARE_KEPT * rows.nbytes >= centers.nbytes:
            self.kept[start] = found.weights, found.sums
        return CenterSums.of_block_sums(found, rows, coordinates)

    def labels_of(self, block: Block, coordinates: Rows, state: CenterState) -> NDArray[np.int32]:
        """Return nearest centres, as `assignment.labels_of` does, at centres near the last ones.

        The bounds of Hamerly (2010) exclude other centres for most rows; the others are compared
        with all centres.
        """
        assert self.prepared is not None
        own = slice(block.position.start, block.position.start + len(block.rows))
        way = np.sqrt(np.square(state.centers - self.prepared.centers).sum(axis=1).max())
        known = self.summed is self.prepared.centers and not self.near
        distances = np.where(self.distances[own] < 0, np.inf, self.distances[own])
        farthest = (1.0 - DOUBT) * self.lower[own] - 2.0 * way if known else -np.inf
        labels = self.labels[own].copy()
        close = np.flatnonzero(~(np.sqrt(distances) < farthest))
        if len(close):
            some = replace(block, rows=block.rows[close], weights=None)
            labels[close] = labels_of(some, coordinates, state)
        return labels


@dataclass
class _Start:
    """Bounds of a start between two of its steps."""

    bounds: Bounds | None
    # Number of steps that remain without bounds, and number of such steps after the next failure.
    left: int = 0
    pause: int = 1


class KeptBounds:
    """Keeps the bounds of every start of a problem from one hard step to the next.

    A start is identified by its centres, which are the array that the step before made.
    """

    def __init__(self, layout: Layout, coordinates: Rows) -> None:
        self._coordinates = coordinates
        self._possible = (
            isinstance(coordinates, FeatureCoordinates)
            and not isinstance(coordinates, WhitenedCoordinates)
            and not (layout.lazy or layout.sparse)
            and library.available()
        )
        self._n_rows, self._row_bytes = layout.n_rows or 0, layout.bytes_per_row
        self._starts: list[tuple[FloatArray, _Start]] = []
        self._present: list[_Start | None] = []

    def at(self, centers: FloatArray) -> Bounds | None:
        """Return the bounds of the start whose last step began at these centres, or None."""
        known = [start.bounds for _, start in self._starts if start.bounds is not None]
        return next((own for own in known if own.holds_at(centers)), None)

    def last_labels(self, centers: FloatArray) -> NDArray[np.int32] | None:
        """Return the nearest centres of all rows in the step that led to these centres, or None."""
        known = [start.bounds for after, start in self._starts if after is centers]
        found = known[0] if known else None
        return None if found is None or (found.distances < 0).any() else found.labels

    def choose_directions(self, blocks: Sequence[NDArray]) -> None:
        """Choose the directions of partial distances for the present step of each start."""
        for bounds in self.present(len(self._present)):
            if bounds is None or bounds.prepared is None or bounds.near:
                continue
            assert isinstance(self._coordinates, FeatureCoordinates)
            choose_directions(blocks, self._coordinates, bounds.prepared)

    def present(self, n_starts: int) -> tuple[Bounds | None, ...]:
        """Return the bounds of each start in the present step; None for a step without bounds."""
        if not self._present:  # rows are trimmed
            return (None,) * n_starts
        return tuple(None if start is None else start.bounds for start in self._present)

    def before(self, states: Sequence[CenterState]) -> tuple[Bounds | None, ...]:
        """Return the bounds of each state for the next step; None for a step without bounds."""
        most = max(BOUND_BYTES, int(_SHARE_OF_BOUNDS * self._row_bytes)) // len(states)
        bounded, listed = most >= BOUND_BYTES, most >= BOUND_BYTES + _LIST_BYTES
        self._present = [self._of(state, listed) if bounded else None for state in states]
        return self.present(len(states))

    def _of(self, state: CenterState, listed: bool) -> _Start | None:
        k = len(state.centers)
        plain = state.plain and state.feature_weights is None
        if not (self._possible and plain and state.s == -np.inf):
            return None
        if k < LEAST_CLUSTERS or self._n_rows < _ROWS_PER_CLUSTER * k:
            return None
        start = next(
            (
                self._starts.pop(number)[1]
                for number, (centers, _) in enumerate(self._starts)
                if centers is state.centers
            ),
            _Start(None),
        )
        listed = listed and state.relaxation > 1.0
        if start.left and not listed:
            start.left -= 1
            return start
        if start.bounds is None or (listed and start.bounds.lists is None):
            start.bounds = Bounds.of(self._n_rows, listed)
        # Partial distances exclude more centres than the bounds of the step before do.
        afresh = listed or exclude_centers(state.centers, state.distortion)
        start.bounds.expect(state.prepared, near=listed and state.near, afresh=afresh)
        return start

    def after(self, centers: Sequence[FloatArray]) -> None:
        """Keep the bounds of each state for a later step at its new centres."""
        self._starts = []
        for own, start in zip(centers, self._present, strict=True):
            if start is None:
                continue
            self._starts.append((own, start))
            bounds = start.bounds
            if bounds is not None and bounds.prepared is not None:
                bounds.summed = bounds.prepared.centers
            if bounds is not None and bounds.moved is not None:
                bounds.moved = None
                if sum(bounds.searched) > _IN_DOUBT * self._n_rows:
                    start.bounds, start.left, start.pause = None, start.pause, 2 * start.pause
                else:
                    start.pause = 1
        self._present = []
