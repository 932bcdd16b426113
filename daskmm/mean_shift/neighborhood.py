"""Take one blurring step: kernel sums over all pairs of representatives, moving and merging."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import tree_reduce
from daskmm.mean_shift.representatives import Representatives
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

# Representatives drift if none gets more than this share of its kernel sum from others. Then steps
# are lengthened so that the longest covers the second share of the distance to the others.
_DRIFTING, _STRIDE = 0.01, 0.05
# Number of tasks of a sweep. Each task returns sums as large as all positions; this number suffices
# to keep threads equally busy.
_TASKS = 32


@dataclass(frozen=True)
class Shift:
    """Parameters of one step."""

    bandwidth: float
    self_term: bool  # whether a row is its own neighbour
    merge_tol: float
    seed: int  # seed of the grid that finds representatives to merge
    lazy: bool  # whether the active dask scheduler computes, and not threads of this process
    # Mask of the representatives on which convergence depends; all by default.
    watched: NDArray[np.bool_] | None = None
    # Share of a kernel sum from others up to which a representative is isolated. Representatives
    # with little more than this share take longer steps towards the others; by default there are
    # none.
    isolated: float = np.inf


@registered
@dataclass(frozen=True)
class Neighborhood:
    """Representatives of all rows."""

    representatives: Representatives
    members: NDArray[np.intp]  # index of each row's representative, (n_rows,)
    passes_per_step: ClassVar[int] = 1  # sweeps over all pairs

    @classmethod
    def of(cls, rows: FloatArray, weights: FloatArray, merge_tol: float) -> Self:
        """Return the representatives of rows that have not moved.

        Rows are in the model's coordinates, and have positive sample weights.
        """
        return cls(*Representatives.of(rows, weights).merged(merge_tol, seed=0))

    @property
    def n(self) -> int:
        """Number of representatives."""
        return len(self.representatives)

    def step(self, weights: FloatArray, shift: Shift) -> tuple[Neighborhood, float]:
        """Move every representative to the mean of its neighbours, and merge.

        The result is the representatives after the step, and the largest share of a kernel sum from
        other representatives, among those on which convergence depends; it is 1 if rows are not
        their own neighbours.
        """
        old = self.representatives
        points = Points.of(old.positions, old.multiplicity, weights, shift.bandwidth)
        sums = kernel_sums(points, old.own_share(shift.self_term), shift.lazy)
        others = from_others(sums[:, -1], old.multiplicity)
        pull = attraction(others, shift)
        underflowed = np.flatnonzero(sums[:, -1] < LEAST_SUM)
        if len(underflowed):
            sums[underflowed] = _shifted_sums(points, underflowed, shift.lazy)
        moved = old.moved(sums)
        moved = moved.farther(old.positions, strides(others, pull, shift.isolated))
        new, groups = moved.merged(shift.merge_tol, shift.seed)
        return Neighborhood(new, groups[self.members]), pull

    def met(self, start: Neighborhood, weights: FloatArray, bandwidth: float) -> FloatArray:
        """Return the weight of the rows that have merged into each representative.

        `start` has the representatives before the first step.
        """
        return self.representatives.multiplicity

    def components(self, tol: float) -> tuple[int, Labels]:
        """Return the number of connected components within `tol`, and the component of each."""
        positions = self.representatives.positions
        return components_of(self.n, close_edges(positions, positions, tol))

    def modes(self, labels: Labels, n_labels: int) -> tuple[FloatArray, FloatArray]:
        """Return the weighted mean position and the sample weight of each label."""
        some = self.representatives
        sums, weight = np.zeros((n_labels, some.positions.shape[1])), np.zeros(n_labels)
        np.add.at(sums, labels, some.positions * some.multiplicity[:, None])
        np.add.at(weight, labels, some.multiplicity)
        return sums / weight[:, None], weight


def from_others(total: FloatArray, multiplicity: FloatArray) -> FloatArray:
    """Return the share of each kernel sum (self term included) that others contribute."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (total - multiplicity) / total


def attraction(others: FloatArray, shift: Shift) -> float:
    """Return the largest share from others; 1 if rows are not their own neighbours."""
    if not shift.self_term:
        return 1.0
    some = others if shift.watched is None else others[shift.watched]
    return float(some.max(initial=0.0))


def strides(others: FloatArray, largest: float, isolated: float) -> FloatArray | None:
    """Return factors for the steps of representatives that drift; None if none drifts.

    A representative that gets a small share a of its kernel sum from others moves by that share of
    its distance to them, and needs about 1 / (2 a log(1 / a)) steps to reach them. As long as no
    other representatives merge, one longer step replaces many short ones. Steps of isolated
    representatives are not lengthened, so that they stay isolated.

    `others` are the shares of the kernel sums that others contribute, and `largest` is the largest
    among the representatives on which convergence depends; `isolated` is as in `Shift`.
    """
    if not isolated < largest <= _DRIFTING:
        return None
    drifting = (others > isolated) & (others <= largest)
    return np.where(drifting, _STRIDE / largest, 1.0)


def kernel_sums(points: Points, own_share: FloatArray, lazy: bool) -> FloatArray:
    """Compute Σ_j K_ij c_j y_j and Σ_j K_ij c_j of all representatives.

    `own_share` is as in `numerics.mean_shift.add_own`; the result has shape (n, n_features + 1).
    """
    tasks = [(strips,) for strips in _balanced_strips(len(points))]
    shared = (points, own_share)
    total: FloatArray = tree_reduce(
        _sums_of_strips, tasks, shared, lazy and len(tasks) > 1, "blurring"
    )
    return total


def _balanced_strips(n: int) -> list[list[slice]]:
    """Divide strips of tiles among tasks of nearly equal work."""
    strips = [slice(start, min(start + TILE, n)) for start in range(0, n, TILE)]
    # A strip is combined with all later strips, so the i-th and the i-th last strip together take
    # as much work as any other such pair.
    pairs = [
        strips[i : i + 1] + strips[len(strips) - 1 - i : len(strips) - i][: 2 * i + 1 < len(strips)]
        for i in range((len(strips) + 1) // 2)
    ]
    n_tasks = min(_TASKS, len(pairs))
    return [list(itertools.chain(*pairs[task::n_tasks])) for task in range(n_tasks)]


def _sums_of_strips(strips: list[slice], points: Points, own_share: FloatArray) -> FloatArray:
    """Compute what some strips of tiles add to the kernel sums of their rows and columns."""
    total = np.zeros(points.masses.shape)
    for rows in strips:
        later = slice(rows.stop, len(points))
        add_block_own(points[rows], own_share[rows], total[rows])
        add_block_pair(points[rows], points[later], total[rows], total[later])
    return total


def _shifted_sums(points: Points, rows: NDArray[np.intp], lazy: bool) -> FloatArray:
    """Compute underflowed kernel sums anew, without self term, each in its own scale."""
    tasks = [(rows[start : start + TILE],) for start in range(0, len(rows), TILE)]
    found: list[FloatArray] = tree_reduce(
        _shifted_block, tasks, (points,), lazy and len(tasks) > 1, "blurring-shifted"
    )
    return np.concatenate(found)


def _shifted_block(rows: NDArray[np.intp], points: Points) -> list[FloatArray]:
    return [ShiftedSums.of(points[rows], points, rows).sums]
