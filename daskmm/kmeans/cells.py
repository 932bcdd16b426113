"""Greedy k-means++ for many clusters, within coarse cells of the rows.

Greedy k-means++ computes 2 + log k times as many distances as a hard step, and memory rather than
the processor limits its speed. It costs next to nothing within a cell: centres compete only for
the rows of their cell, and each cell gets centres in proportion to the cost of its rows. A few hard
steps within the cells follow. The border of a cell may cut a cluster. Such a cluster is whole in
another partition of the rows into cells, so the centres are chosen among those of several
partitions. This choice is made within large cells, whose borders run between the centres of one
partition, so its time is proportional to the number of clusters.

Distances within a cell are computed in single precision about its mean. Coarse cells are formed in
single precision about the mean of all rows, or in double if single cannot distinguish the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from daskmm.compiled import library
from daskmm.engine.passes import tree_reduce
from daskmm.numerics.distances import product_rounding, squared_distances
from daskmm.numerics.rows import tile_rows, tiles

FloatArray = NDArray[np.float64]

# Number of partitions of the rows, each into CELLS·√k cells, and number of hard steps within a
# cell.
PARTITIONS, CELLS, STEPS_IN_CELLS = 4, 3, 8
# Coarse cells are formed in single precision if rows differ enough. As many rows as there are cells
# are drawn, and the squared distance to the nearest of them is computed for _PROBES other rows. The
# median must be at least the share _RESOLVED of the largest squared distance from the mean.
_RESOLVED, _PROBES = 1e-4, 64
# Two partitions do as well with at least this many features, in half of the time.
_WIDE, _PARTITIONS_OF_WIDE = 128, 2
# Largest number of rows per cluster among which candidates are sought. Twice as many take twice the
# time and lower the cost by .1 % before the same steps follow.
_ROWS_PER_CLUSTER = 32
# Number of rows per cell from which the centres of coarse cells are found, and of hard steps that
# find them.
_ROWS_PER_CELL, _STEPS_TO_CELLS = 100, 5
# Up to this many centres, a dense matrix of weights is multiplied faster than a sparse one is made.
_FEW_CENTERS = 128
# Largest number of clusters per cell when centres are chosen among those of all partitions.
CLUSTERS_PER_CELL = 128


def partitions_for(n_features: int) -> int:
    """Return the number of partitions of the rows in which candidates are sought."""
    return PARTITIONS if n_features < _WIDE else _PARTITIONS_OF_WIDE


def candidates_by_cells(
    rows: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    seed: int,
    n_partitions: int = PARTITIONS,
) -> tuple[FloatArray, FloatArray]:
    """Return candidates for the centres, and the weight of the rows nearest to each.

    Rows are in the model's coordinates, have no missing values and positive weights, and are more
    than `PARTITIONS` per cluster. There are at most `n_partitions` candidates per cluster, in the
    order of the partitions, and fewer than one per cluster if too few rows are distinct. Their
    weights are positive.
    """
    weights = weights.astype(np.float64, copy=False)  # users' weights may be integers
    if len(rows) > _ROWS_PER_CLUSTER * n_clusters:
        n_rows, drawn = _ROWS_PER_CLUSTER * n_clusters, np.random.default_rng([seed, len(rows)])
        some = np.sort(drawn.choice(len(rows), n_rows, replace=False))
        rows, weights = rows[some], weights[some]
    generators = [(rng,) for rng in np.random.default_rng(seed).spawn(n_partitions)]
    seen = _in_single(rows, CELLS * math.isqrt(n_clusters), np.random.default_rng(seed))
    found = tree_reduce(
        _candidates_of_partition, generators, (rows, seen, weights, n_clusters), False, "seed"
    )
    return np.concatenate([c for c, _ in found]), np.concatenate([w for _, w in found])


def chosen_by_cells(
    candidates: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    seeds: Sequence[int | np.random.SeedSequence],
) -> list[NDArray[np.intp]]:
    """Choose among candidates by greedy k-means++ within large cells, once for each seed.

    There are at least `n_clusters` candidates, of positive weight; those of the first partition or
    fit come first. The result is the indices of the chosen candidates, (n_clusters,), for each
    seed.
    """
    n_cells = -(-n_clusters // CLUSTERS_PER_CELL)
    cell = np.zeros(len(candidates), np.int64)
    if n_cells > 1:
        rng = np.random.default_rng(seeds[0])
        seen = _in_single(candidates, n_cells, rng)
        first = seen[:n_clusters]
        coarse = _coarse(first, weights[:n_clusters], n_cells, rng)
        # Each candidate goes to the cell of the nearest candidate of the first partition, so
        # candidates for one cluster stay together. Costs were 3 % higher when each candidate was
        # assigned to a cell by itself.
        cell = nearest_centers(first, coarse)[nearest_centers(seen, first)]
    cells = _Cells.of(candidates, weights, cell)
    found = []
    for seed in seeds:
        places = _greedy(cells, n_clusters, np.random.default_rng(seed))
        if len(places) < n_clusters:  # every candidate coincides with a chosen one
            others = np.setdiff1d(np.arange(len(candidates)), places)
            places = np.concatenate([places, others[: n_clusters - len(places)]])
        found.append(cells.order[places])
    return found


@dataclass(frozen=True)
class _Cells:
    """Rows sorted by their coarse cell."""

    order: NDArray[np.intp]  # index of each row before sorting, (n_rows,)
    # Rows minus the mean of their cell, in units of the largest range of a feature,
    # (n_rows, n_features).
    rows: NDArray[np.float32]
    weights: FloatArray  # weights of the rows, (n_rows,)
    norms: NDArray[np.float32]  # squared norms of the rows, (n_rows,)
    slices: list[slice]  # rows of each cell; none is empty

    @classmethod
    def of(cls, rows: FloatArray, weights: FloatArray, cell: NDArray[np.int64]) -> Self:
        """Sort rows by the index of their cell."""
        order = np.argsort(cell, kind="stable")
        sizes = np.bincount(cell)
        ends = np.concatenate([[0], np.cumsum(sizes[sizes > 0])]).tolist()
        slices = [slice(*ends_of) for ends_of in itertools.pairwise(ends)]
        unit = float(np.ptp(rows, axis=0).max()) or 1.0
        about_means = np.empty(rows.shape, np.float32)
        for each in slices:
            own = rows[order[each]]
            about_means[each] = (own - own.mean(axis=0)) / unit
        norms = np.einsum("ij,ij->i", about_means, about_means)
        return cls(order, about_means, weights[order], norms, slices)

    @property
    def rounding(self) -> float:
        """Largest rounding error of a distance, relative to the norms."""
        return float(product_rounding(self.rows.dtype, self.rows.shape[1]))

    def distances(self, cell: slice, candidates: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the squared distances of the rows of a cell from some rows of the cell."""
        sizes = self.norms[cell, None] + self.norms[candidates]
        distances = sizes - 2.0 * (self.rows[cell] @ self.rows[candidates].T)
        # Smaller differences are rounding errors. If they counted as costs, most centres would go
        # to heavy rows, and to cells with a far row.
        distances[distances <= self.rounding * sizes] = 0.0
        return distances


def _in_single(rows: FloatArray, n_cells: int, rng: np.random.Generator) -> NDArray:
    """Return centred, scaled rows in float32 if they differ enough; else the rows themselves."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = rows.mean(axis=0)
        largest = max((rows.max(axis=0) - mean).max(), (mean - rows.min(axis=0)).max()) or 1.0
        z = np.empty(rows.shape, np.float32)
        for tile in tiles(len(rows), tile_rows(rows.shape[1], 1)):
            z[tile] = (rows[tile] - mean) / largest
        drawn = np.concatenate([rng.choice(len(rows), n) for n in (n_cells, _PROBES)])
        some = (rows[drawn] - mean) / largest
        nearest = squared_distances(some[n_cells:], some[:n_cells]).min(axis=1)
        norms = np.einsum("ij,ij->i", z, z, dtype=np.float64)
        resolved = np.median(nearest) >= _RESOLVED * norms.max()
        return z if resolved else rows.astype(np.float64, copy=False)


def _candidates_of_partition(
    rng: np.random.Generator,
    rows: FloatArray,
    seen: NDArray,
    weights: FloatArray,
    n_clusters: int,
) -> list[tuple[FloatArray, FloatArray]]:
    """Run greedy k-means++ and a few hard steps within the cells of one partition of the rows.

    The result is a list of one tuple: about `n_clusters` centres, and the positive weights of the
    rows nearest to them.
    """
    coarse = _coarse(seen, weights, CELLS * math.isqrt(n_clusters), rng)
    cells = _Cells.of(rows, weights, nearest_centers(seen, coarse))
    nearest, n_centers = np.empty(len(rows), np.int64), 0
    chosen = np.sort(_greedy(cells, n_clusters, rng))
    for cell in cells.slices:
        own, v = cells.rows[cell], cells.weights[cell]
        first, end = np.searchsorted(chosen, (cell.start, cell.stop))
        found = _stepped(own, v, cells.rows[chosen[first:end]], STEPS_IN_CELLS)
        nearest[cells.order[cell]] = n_centers + nearest_centers(own, found)
        n_centers += len(found)
    mass, sums = _sums(rows, weights, nearest, n_centers)
    held = mass > 0
    return [(sums[held] / mass[held, None], mass[held])]


def _greedy(cells: _Cells, n_clusters: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Run greedy k-means++ with distances within the cells only.

    The first row of each cell is drawn by weight. Then, as in k-means++, a cell is drawn with
    probability proportional to the cost of its rows, and the best of the rows drawn in it becomes a
    centre.

    At least one row of each cell is chosen, and fewer than `n_clusters` rows if every row coincides
    with a chosen one.
    """
    trials = 2 + int(np.log(n_clusters))
    uniforms = rng.random((n_clusters, 1 + trials))
    if not library.available():
        return _greedy_by_numpy(cells, uniforms)
    chosen = np.empty(n_clusters, np.int64)
    library.call(
        "greedy_choice",
        n=len(cells.rows),
        p=cells.rows.shape[1],
        k=n_clusters,
        n_cells=len(cells.slices),
        n_trials=trials,
        rounding=cells.rounding,
        rows=cells.rows,
        norms=cells.norms,
        weights=cells.weights,
        ends=np.array([cell.stop for cell in cells.slices]),
        uniforms=uniforms,
        chosen=chosen,
    )
    return chosen[chosen >= 0]


def _greedy_by_numpy(cells: _Cells, uniforms: FloatArray) -> NDArray[np.int64]:
    """Make the choice of `_greedy`, given the random numbers of each centre."""
    slices = cells.slices
    first = [
        cell.start + _drawn(cells.weights[cell], own[1:2])
        for cell, own in zip(slices, uniforms, strict=False)
    ]
    chosen = [int(one[0]) for one in first]
    smallest = np.concatenate(
        [cells.distances(cell, one)[:, 0] for cell, one in zip(slices, first, strict=True)]
    )
    rates = cells.weights * smallest
    costs = np.array([rates[cell].sum() for cell in slices])
    for own in uniforms[len(slices) :]:
        if not costs.sum() > 0:  # every row coincides with a centre
            break
        index = int(_drawn(costs, own[:1])[0])
        cell = slices[index]
        drawn = cell.start + _drawn(rates[cell], own[1:])
        reduced = np.minimum(cells.distances(cell, drawn), smallest[cell, None])
        best = int(np.argmin(cells.weights[cell] @ reduced))
        chosen.append(int(drawn[best]))
        smallest[cell] = reduced[:, best]
        rates[cell] = cells.weights[cell] * reduced[:, best]
        costs[index] = rates[cell].sum()
    return np.array(chosen)


def _coarse(rows: NDArray, weights: FloatArray, n_cells: int, rng: np.random.Generator) -> NDArray:
    """Return the centres of coarse cells, found by hard steps on a few of the rows."""
    some = np.sort(rng.choice(len(rows), min(len(rows), _ROWS_PER_CELL * n_cells), False))
    first = rows[rng.choice(some, n_cells, replace=False)]
    return _stepped(rows[some], weights[some], first, _STEPS_TO_CELLS)


def _stepped(rows: NDArray, weights: FloatArray, centers: NDArray, n_steps: int) -> NDArray:
    """Take hard steps; centres without rows stay where they are.

    The driver and its records would take too long for hundreds of cells with few rows each.
    """
    nearest = np.full(len(rows), -1, np.int64)
    for _ in range(n_steps):
        before, nearest = nearest, nearest_centers(rows, centers)
        if np.array_equal(before, nearest):
            break
        mass, sums = _sums(rows, weights, nearest, len(centers))
        has_rows = mass > 0
        centers = centers.copy()
        centers[has_rows] = sums[has_rows] / mass[has_rows, None]
    return centers


def _sums(
    rows: NDArray, weights: FloatArray, nearest: NDArray[np.int64], n_centers: int
) -> tuple[FloatArray, NDArray]:
    """Return the weight of the rows of each centre, and their weighted sum.

    For rows in single precision, both are divided by the largest weight, which may be beyond the
    range of single precision.
    """
    v: NDArray = weights
    if rows.dtype == np.float32:
        v = (weights / weights.max()).astype(rows.dtype)
    mass: FloatArray = np.bincount(nearest, v, n_centers).astype(np.float64, copy=False)
    if n_centers > _FEW_CENTERS:
        of_rows = csr_array((v, nearest, np.arange(len(rows) + 1)), (len(rows), n_centers))
        return mass, of_rows.T @ rows
    by_center = np.zeros((n_centers, len(rows)), rows.dtype)
    by_center[nearest, np.arange(len(rows))] = v
    return mass, by_center @ rows


def _drawn(rates: FloatArray, uniforms: FloatArray) -> NDArray[np.intp]:
    """Draw indices with probability proportional to their rates, with replacement."""
    reached = np.cumsum(rates)
    drawn = np.searchsorted(reached, uniforms * reached[-1], side="right")
    return np.minimum(drawn, len(reached) - 1)


def nearest_centers(rows: NDArray, centers: NDArray) -> NDArray[np.int64]:
    """Return the index of the nearest centre of each row, up to rounding."""
    norms, nearest = np.einsum("ij,ij->i", centers, centers), np.empty(len(rows), np.int64)
    doubled = (-2.0 * centers).T
    for tile in tiles(len(rows), tile_rows(rows.shape[1], len(centers))):
        distances = rows[tile] @ doubled
        distances += norms
        nearest[tile] = distances.argmin(axis=1)
    return nearest
