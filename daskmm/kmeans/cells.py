"""Greedy k-means++ for many clusters, within coarse cells of the rows.

Greedy k-means++ computes 2 + log k times as many distances as a hard step, at the speed of memory
rather than of the processor. Within a cell it costs next to nothing: centres compete for the rows
of their cell only, and cells for centres by the cost of their rows, as k-means++ draws rows. A few
hard steps within the cells follow. What the border of a cell cuts is whole in another partition of
the rows into cells, so the centres are chosen among those of several partitions. Thousands of
centres are chosen within cells, too: large ones, whose borders cut between the centres of one
partition, so that the time grows as the number of clusters does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.empty_clusters import left_in_place
from daskmm.kmeans.updates import PowerUpdate, sample_problem
from daskmm.mm.driver import Schedule, iterate
from daskmm.numerics.rows import tile_rows, tiles

FloatArray = NDArray[np.float64]

# Partitions of the rows into _CELLS·√k cells each, and hard steps within a cell.
PARTITIONS, _CELLS, _STEPS_IN_CELLS = 4, 3, 8
# Rows per cell on which the cells are formed, and hard steps that form them.
_ROWS_PER_CELL, _STEPS_TO_CELLS = 100, 5
# Clusters per cell where centres are chosen among those of all partitions.
CLUSTERS_PER_CELL = 1024


def candidates_by_cells(
    rows: FloatArray, weights: FloatArray, n_clusters: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Return candidates for the centres, and the weight of the rows that each stands for.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        In the model's coordinates, without missing values; more than `PARTITIONS` per cluster.
    weights : ndarray of shape (n_rows,)
        Positive.
    n_clusters : int
    seed : int

    Returns
    -------
    centers : ndarray of shape (n_candidates, n_features)
        At most `PARTITIONS` per cluster, one partition after the other; fewer than one if so few
        rows are distinct.
    weights : ndarray of shape (n_candidates,)
        Positive.
    """
    found = []
    for rng in np.random.default_rng(seed).spawn(PARTITIONS):
        cell = nearest_centers(rows, _coarse(rows, weights, _CELLS * math.isqrt(n_clusters), rng))
        found.append(_within_cells(_Cells.of(rows, weights, cell), n_clusters, rng))
    return np.concatenate([c for c, _ in found]), np.concatenate([w for _, w in found])


def chosen_by_cells(
    candidates: FloatArray, weights: FloatArray, n_clusters: int, seed: int
) -> FloatArray:
    """Choose among candidates by greedy k-means++ within large cells.

    Parameters
    ----------
    candidates : ndarray of shape (n_candidates, n_features)
        At least `n_clusters`, as `candidates_by_cells` returns them.
    weights : ndarray of shape (n_candidates,)
        Positive.
    n_clusters : int
        At least two times `CLUSTERS_PER_CELL`.
    seed : int

    Returns
    -------
    ndarray of shape (n_clusters, n_features)
    """
    rng = np.random.default_rng(seed)
    first = candidates[:n_clusters]
    coarse = _coarse(first, weights[:n_clusters], n_clusters // CLUSTERS_PER_CELL, rng)
    # Candidates for one cluster stay together, as the nearest of the first partition is the same.
    cells = _Cells.of(
        candidates, weights, nearest_centers(first, coarse)[nearest_centers(candidates, first)]
    )
    chosen = np.concatenate(_greedy(cells, n_clusters, rng))
    if len(chosen) < n_clusters:  # every candidate coincides with one of them
        others = np.setdiff1d(np.arange(len(candidates)), chosen)
        chosen = np.concatenate([chosen, others[: n_clusters - len(chosen)]])
    return cells.rows[chosen]


@dataclass(frozen=True)
class _Cells:
    """Rows sorted by the coarse cell that they lie in.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_features)
    weights : ndarray of shape (n_rows,)
    norms : ndarray of shape (n_rows,)
        Sums of squares.
    slices : list of slice
        Rows of each cell; none is empty.
    """

    rows: FloatArray
    weights: FloatArray
    norms: FloatArray
    slices: list[slice]

    @classmethod
    def of(cls, rows: FloatArray, weights: FloatArray, cell: NDArray[np.int64]) -> Self:
        """Sort rows by the index of their cell."""
        order = np.argsort(cell, kind="stable")
        sizes = np.bincount(cell)
        ends = np.concatenate([[0], np.cumsum(sizes[sizes > 0])]).tolist()
        norms = np.einsum("ij,ij->i", rows, rows)[order]
        slices = [slice(*ends_of) for ends_of in itertools.pairwise(ends)]
        return cls(rows[order], weights[order], norms, slices)

    def distances(self, cell: slice, candidates: Sequence[int]) -> FloatArray:
        """Return the squared distances of the rows of a cell from some rows."""
        distances = self.rows[cell] @ (-2.0 * self.rows[candidates]).T
        distances += self.norms[cell, None] + self.norms[candidates]
        return np.maximum(distances, 0.0, out=distances)


def _within_cells(
    cells: _Cells, n_clusters: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Run greedy k-means++ and a few hard steps, with distances within the cells only.

    Returns
    -------
    centers : ndarray of shape (about n_clusters, n_features)
    weights : ndarray of shape (about n_clusters,)
        Of the rows nearest to them; positive.
    """
    parts = list(zip(cells.slices, _greedy(cells, n_clusters, rng), strict=True))
    found = tree_reduce(_stepped_in_cell, parts, (cells,), False, "seed")
    centers = np.concatenate([one for one, _ in found])
    mass = np.concatenate([one for _, one in found])
    return centers[mass > 0], mass[mass > 0]


def _greedy(cells: _Cells, n_clusters: int, rng: np.random.Generator) -> list[list[int]]:
    """Run greedy k-means++ with distances within the cells only.

    As in k-means++, a cell is drawn with probability proportional to the cost of its rows. The
    best of the rows drawn in it becomes a centre.

    Returns
    -------
    list of list of int
        Rows chosen in each cell, at least one; fewer than `n_clusters` in all if every row
        coincides with one of them.
    """
    slices = cells.slices
    chosen = [[int(rng.integers(cell.start, cell.stop))] for cell in slices]
    smallest = np.concatenate(
        [cells.distances(cell, rows)[:, 0] for cell, rows in zip(slices, chosen, strict=True)]
    )
    rates = cells.weights * smallest
    costs = np.array([rates[cell].sum() for cell in slices])
    trials = 2 + int(np.log(n_clusters))
    for _ in range(n_clusters - len(slices)):
        total = costs.sum()
        if not total > 0:  # every row coincides with a centre
            break
        index = int(rng.choice(len(costs), p=costs / total))
        cell = slices[index]
        reached = np.cumsum(rates[cell])
        drawn = np.searchsorted(reached, rng.random(trials) * reached[-1], side="right")
        drawn = cell.start + np.minimum(drawn, len(reached) - 1)
        served = np.minimum(cells.distances(cell, drawn), smallest[cell, None])
        best = int(np.argmin(cells.weights[cell] @ served))
        chosen[index].append(int(drawn[best]))
        smallest[cell] = served[:, best]
        rates[cell] = cells.weights[cell] * served[:, best]
        costs[index] = rates[cell].sum()
    return chosen


def _coarse(
    rows: FloatArray, weights: FloatArray, n_cells: int, rng: np.random.Generator
) -> FloatArray:
    """Return the centres of coarse cells, by hard steps on a few of the rows."""
    some = np.sort(rng.choice(len(rows), min(len(rows), _ROWS_PER_CELL * n_cells), False))
    first = rows[rng.choice(some, n_cells, replace=False)]
    return _stepped(rows[some], weights[some], first, _STEPS_TO_CELLS)


def _stepped_in_cell(
    cell: slice, chosen: list[int], cells: _Cells
) -> list[tuple[FloatArray, FloatArray]]:
    """Return the centres of one cell after hard steps, and the weights of their rows."""
    rows, weights = cells.rows[cell], cells.weights[cell]
    centers = _stepped(rows, weights, cells.rows[chosen], _STEPS_IN_CELLS)
    mass = np.bincount(nearest_centers(rows, centers), weights, len(centers))
    return [(centers, mass.astype(np.float64, copy=False))]


def _stepped(
    rows: FloatArray, weights: FloatArray, centers: FloatArray, n_steps: int
) -> FloatArray:
    """Take hard steps; centres without rows stay where they are."""
    update, schedule = PowerUpdate(relocation=left_in_place), Schedule(-np.inf, max_iter=n_steps)
    (run,) = iterate(sample_problem(rows, weights, update, 1.0), [centers], schedule)
    return run.state.centers


def nearest_centers(rows: FloatArray, centers: FloatArray) -> NDArray[np.int64]:
    """Return the index of the nearest centre of each row, up to rounding."""
    norms, nearest = np.einsum("ij,ij->i", centers, centers), np.empty(len(rows), np.int64)
    for tile in tiles(len(rows), tile_rows(rows.shape[1], len(centers))):
        nearest[tile] = (norms - 2.0 * rows[tile] @ centers.T).argmin(axis=1)
    return nearest
