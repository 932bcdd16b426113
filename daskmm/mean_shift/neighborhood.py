"""Blurring passes: every representative to the mean of its neighbours, by pairs of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import tree_reduce
from daskmm.mean_shift.representatives import Representatives, Spread, attraction
from daskmm.numerics.components import close_edges, components_of
from daskmm.numerics.mean_shift import (
    LEAST_SUM,
    TILE,
    Points,
    ShiftedSums,
    add_block_own,
    add_block_pair,
)
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]
Labels = NDArray[np.int32]

# Records of one pass, each as large as all positions: enough to even out the work of threads.
_JOBS = 32


@dataclass(frozen=True)
class Shift:
    """One iteration to be taken.

    Attributes
    ----------
    bandwidth : float
        h.
    self_term : bool
        Whether a row counts for itself.
    merge_tol : float
        Distance within which representatives become one.
    seed : int
        Of the grid that finds them.
    lazy : bool
        Whether to compute on the active dask scheduler, or on threads here.
    """

    bandwidth: float
    self_term: bool
    merge_tol: float
    seed: int
    lazy: bool


class Neighborhood(Protocol):
    """All representatives, wherever they are kept."""

    @property
    def n(self) -> int:
        """How many there are."""

    @property
    def files(self) -> tuple[str, ...]:
        """What they take on disk, by names within the folder of the fit."""

    def within(self, start: Neighborhood) -> Self:
        """The same, on the disk where a resumed fit has its rows."""

    def step(self, weights: FloatArray, shift: Shift) -> tuple[Neighborhood, Spread]:
        """Move all by one iteration, and merge."""

    def components(self, tol: float, lazy: bool) -> tuple[int, Labels]:
        """Components of the graph of representatives within `tol`: their number, and of each."""

    def row_labels(self, labels: Labels) -> Labels:
        """Labels of the rows, from those of the representatives."""

    def modes(self, labels: Labels, n_labels: int) -> tuple[FloatArray, FloatArray]:
        """Weighted mean position, and sum of sample weights, of the representatives of a label."""


@registered
@dataclass(frozen=True)
class MemoryNeighborhood:
    """Representatives in memory.

    Attributes
    ----------
    representatives : Representatives
    members : ndarray of shape (n_rows,), int
        Representative of each row.
    """

    representatives: Representatives
    members: NDArray[np.intp]

    @classmethod
    def of(cls, rows: FloatArray, weights: FloatArray, merge_tol: float) -> Self:
        """Rows where they are, those within `merge_tol` merged.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, n_features)
            In the model's coordinates.
        weights : ndarray of shape (n_rows,)
            Sample weights, positive.
        merge_tol : float
        """
        return cls(*Representatives.of(rows, weights).merged(merge_tol, seed=0))

    @property
    def n(self) -> int:
        """Representatives."""
        return len(self.representatives)

    @property
    def files(self) -> tuple[str, ...]:
        """None."""
        return ()

    def within(self, start: Neighborhood) -> Self:
        """The same."""
        return self

    def step(self, weights: FloatArray, shift: Shift) -> tuple[MemoryNeighborhood, Spread]:
        """Move all by one iteration, and merge."""
        old = self.representatives
        points = Points.of(old.positions, old.multiplicity, weights, shift.bandwidth)
        sums = kernel_sums(points, old.own_share(shift.self_term), shift.lazy)
        moved = move(old, sums, shift, lambda lost: _shifted_sums(points, lost, shift.lazy))
        return MemoryNeighborhood(moved.new, moved.groups[self.members]), moved.spread

    def components(self, tol: float, lazy: bool) -> tuple[int, Labels]:
        """Components of the graph of representatives within `tol`: their number, and of each."""
        positions = self.representatives.positions
        return components_of(self.n, close_edges(positions, positions, tol))

    def row_labels(self, labels: Labels) -> Labels:
        """Labels of the rows, from those of the representatives."""
        return labels[self.members]

    def modes(self, labels: Labels, n_labels: int) -> tuple[FloatArray, FloatArray]:
        """Weighted mean position, and sum of sample weights, of the representatives of a label."""
        sums = np.zeros((n_labels, self.representatives.positions.shape[1]))
        weight = np.zeros(n_labels)
        add_to_means(self.representatives, labels, sums, weight)
        return sums / weight[:, None], weight


@dataclass(frozen=True)
class Moved:
    """Representatives after an iteration.

    Attributes
    ----------
    new : Representatives
    groups : ndarray of int
        The new one of each old one.
    spread : Spread
    """

    new: Representatives
    groups: NDArray[np.intp]
    spread: Spread


def move(
    old: Representatives,
    sums: FloatArray,
    shift: Shift,
    shifted_sums: Callable[[NDArray[np.intp]], FloatArray],
) -> Moved:
    """Take representatives to their means, and merge.

    Parameters
    ----------
    old : Representatives
    sums : ndarray of shape (n, n_features + 1)
        Their kernel sums; those that underflowed are overwritten.
    shift : Shift
    shifted_sums : callable
        Kernel sums of given ones, each in a scale of its own.

    Returns
    -------
    Moved
    """
    pull = attraction(sums, old.multiplicity) if shift.self_term else 1.0
    lost = np.flatnonzero(sums[:, -1] < LEAST_SUM)
    if len(lost):
        sums[lost] = shifted_sums(lost)
    new, groups = old.moved(sums).merged(shift.merge_tol, shift.seed)
    return Moved(new, groups, Spread.of(new, pull))


def add_to_means(
    some: Representatives, labels: Labels, sums: FloatArray, weight: FloatArray
) -> None:
    """Add representatives to the weighted sum of positions and of weights of their labels."""
    np.add.at(sums, labels, some.positions * some.multiplicity[:, None])
    np.add.at(weight, labels, some.multiplicity)


def kernel_sums(points: Points, own_share: FloatArray, lazy: bool) -> FloatArray:
    """Σ_j K_ij c_j y_j and Σ_j K_ij c_j of all representatives.

    Parameters
    ----------
    points : Points
    own_share : ndarray of shape (n,)
        As in `numerics.mean_shift.add_own`.
    lazy : bool

    Returns
    -------
    ndarray of shape (n, n_features + 1)
    """
    jobs = [(strips,) for strips in _balanced_strips(len(points))]
    shared = (points, own_share)
    total: FloatArray = tree_reduce(
        _sums_of_strips, jobs, shared, lazy and len(jobs) > 1, "blurring"
    )
    return total


def _balanced_strips(n: int) -> list[list[slice]]:
    """Strips of tiles, long and short ones together, for jobs of about equal work."""
    strips = [slice(start, min(start + TILE, n)) for start in range(0, n, TILE)]
    # A strip meets all that follow it; a pair of the i-th and the i-th last is as long as any.
    pairs = [
        strips[i : i + 1] + strips[len(strips) - 1 - i : len(strips) - i][: 2 * i + 1 < len(strips)]
        for i in range((len(strips) + 1) // 2)
    ]
    n_jobs = min(_JOBS, len(pairs))
    return [list(itertools.chain(*pairs[job::n_jobs])) for job in range(n_jobs)]


def _sums_of_strips(strips: list[slice], points: Points, own_share: FloatArray) -> FloatArray:
    """Share of the kernel sums that some strips of tiles bring, on both of their sides."""
    total = np.zeros(points.masses.shape)
    for rows in strips:
        later = slice(rows.stop, len(points))
        add_block_own(points[rows], own_share[rows], total[rows])
        add_block_pair(points[rows], points[later], total[rows], total[later])
    return total


def _shifted_sums(points: Points, lost: NDArray[np.intp], lazy: bool) -> FloatArray:
    """Kernel sums of rows that underflowed, without the self term, each in a scale of its own."""
    jobs = [(lost[start : start + TILE],) for start in range(0, len(lost), TILE)]
    found: list[FloatArray] = tree_reduce(
        _shifted_block, jobs, (points,), lazy and len(jobs) > 1, "blurring-shifted"
    )
    return np.concatenate(found)


def _shifted_block(lost: NDArray[np.intp], points: Points) -> list[FloatArray]:
    return [ShiftedSums.of(points[lost], points, lost).sums]
