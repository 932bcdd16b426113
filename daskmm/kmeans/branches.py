"""Divide the clusters of a table into smaller ones, on rows that one pass draws.

A pass draws rows of every cluster and sums its cost. Each cluster is then divided by hard steps on
its own rows, which are in memory, so a level of a tree of clusters costs one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block, float_dtype
from daskmm.engine.first_pass import row_uniforms
from daskmm.engine.passes import Passes, tree_reduce
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.assignment import labels_of, nearest_of
from daskmm.kmeans.cells import chosen_by_cells
from daskmm.kmeans.seeding import greedy_rows
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import PowerUpdate, sample_problem
from daskmm.mm.driver import Schedule, iterate
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.information import weighted_variance
from daskmm.numerics.rows import Rows, pieces
from daskmm.numerics.sparse_rows import dense

FloatArray = NDArray[np.float64]

# Rows drawn per new cluster. More rows would take more memory, and hardly lower the cost of a tree.
ROWS_PER_CLUSTER = 48
# Starting centres are chosen among at most this many rows, or two per new cluster. Twice as many
# would take a sixth of a level's time, and hardly lower the cost of a tree.
_SEED_ROWS = 1536
# At most _MAX_ITER hard steps divide a cluster. A relative change below _TOL ends them. They move
# centres by _RELAXATIONS times the way to the means, squared distances provided.
_MAX_ITER, _TOL, _RELAXATIONS = 8, 1e-3, (1.5, 1.8)


@dataclass(frozen=True)
class Drawn:
    """Rows drawn of some blocks, sorted by cluster and key."""

    labels: NDArray[np.int32]  # cluster of each row, (n_drawn,)
    # Random numbers, (n_drawn,); each cluster keeps its rows with the smallest keys.
    keys: FloatArray
    rows: NDArray  # rows in the model's coordinates, (n_drawn, n_features)
    weights: FloatArray  # sample weights of the rows, (n_drawn,)

    def kept(self, most: int, n_clusters: int) -> Self:
        """Return at most so many rows of each cluster, those with the smallest keys."""
        order = np.lexsort((self.keys, self.labels))
        sizes = np.bincount(self.labels, minlength=n_clusters)
        ranks = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = order[ranks < most]
        return type(self)(self.labels[kept], self.keys[kept], self.rows[kept], self.weights[kept])

    def of_cluster(self, label: int, name: str) -> NDArray:
        """Return a field of the rows of a cluster."""
        own = slice(*np.searchsorted(self.labels, [label, label + 1]))
        return np.asarray(getattr(self, name)[own])


@dataclass(frozen=True)
class DrawnRows:
    """Rows drawn of each cluster, with totals of all of its rows."""

    any_order: ClassVar[bool] = True
    # Rows of several groups of blocks. They are merged only once their number has doubled, since
    # each merge copies them.
    drawn: tuple[Drawn, ...]
    # Weight, and weighted sum of the distances from the centre, of all rows of each cluster,
    # (n_clusters,).
    weights: FloatArray
    costs: FloatArray
    most: int  # largest number of rows to keep of a cluster

    def __add__(self, other: Self) -> Self:
        drawn = (*self.drawn, *other.drawn)
        if sum(len(each.keys) for each in drawn) > 2 * self.most * len(self.weights):
            drawn = (self._merged(drawn),)
        weights, costs = self.weights + other.weights, self.costs + other.costs
        return type(self)(drawn, weights, costs, self.most)

    def _merged(self, drawn: Sequence[Drawn]) -> Drawn:
        labels, keys, rows, weights = (
            np.concatenate([getattr(each, name) for each in drawn])
            for name in ("labels", "keys", "rows", "weights")
        )
        return Drawn(labels, keys, rows, weights).kept(self.most, len(self.weights))

    def of_cluster(self, label: int) -> tuple[NDArray, FloatArray]:
        """Return the rows of a cluster in random order, and their weights."""
        keys, rows, weights = (
            np.concatenate([each.of_cluster(label, name) for each in self.drawn])
            for name in ("keys", "rows", "weights")
        )
        kept = np.argsort(keys, kind="stable")[: self.most]
        return rows[kept], weights[kept]

    @classmethod
    def of_block(
        cls,
        block: Block,
        coordinates: Rows,
        state: CenterState,
        most: int,
        seed: int,
    ) -> Self:
        """Draw rows of each cluster from one block (the block function of the pass)."""
        labels, distances = nearest_of(block, coordinates, state)
        rows, v = block.rows, block.masses
        k, within = len(state.centers), np.maximum(labels, 0)
        counted = np.where(labels < 0, 0.0, v)
        numbers = np.flatnonzero(counted > 0)
        keys = row_uniforms((seed, 0), block.numbers[numbers])
        few = Drawn(labels[numbers], keys, numbers, v[numbers]).kept(most, k)
        dtype, tiles_of = float_dtype(rows.dtype), pieces(rows[few.rows], 1)
        z = [dense(coordinates.to_model(some)).astype(dtype, copy=False) for _, some in tiles_of]
        drawn = replace(few, rows=np.concatenate(z))
        return cls(
            (drawn,),
            np.bincount(within, counted, k).astype(np.float64),
            np.bincount(within, counted * distances, k).astype(np.float64),
            most,
        )


def divided(
    passes: Passes,
    coordinates: Rows,
    state: CenterState,
    n_clusters: int,
    by: str,
    seed: int,
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Divide each cluster on rows of its own, in one pass, so that there are `n_clusters` parts.

    `by` says how the parts are shared out among clusters: in proportion to the cost ("cost") or to
    the weight ("size") of their rows, or equally ("equal"). The result has the new centres in the
    model's coordinates, (n_found, n_features), and the cluster that each of them is a part of.
    There are fewer than `n_clusters` if some clusters have fewer distinct rows than they should
    have parts.
    """
    k = len(state.centers)
    # The pass draws rows before the number of parts of each cluster is known. No cluster draws more
    # than twice the mean number of rows.
    most = 2 * ROWS_PER_CLUSTER * -(-n_clusters // k)
    found = passes.reduce(DrawnRows.of_block, coordinates, state, most, seed)
    parts = shared_out(_shares(found, by), n_clusters)
    tasks = [(label, int(parts[label]), state.centers[label]) for label in range(k)]
    products = sum(float(each.rows.size) for each in found.drawn) * n_clusters / k
    shared = found, state.distortion, seed
    pieces = tree_reduce(_parts_of, tasks, shared, False, "divide", products)
    return np.concatenate([c for c, _ in pieces]), np.concatenate([p for _, p in pieces])


def shared_out(shares: FloatArray, n_parts: int) -> NDArray[np.int64]:
    """Divide a number of parts in proportion to shares, at least one each (largest remainders)."""
    k = len(shares)
    wanted = shares / shares.sum() * (n_parts - k)
    parts = np.floor(wanted).astype(np.int64)
    first = np.argsort(parts - wanted, kind="stable")[: n_parts - k - int(parts.sum())]
    parts[first] += 1
    return parts + 1


def _shares(found: DrawnRows, by: str) -> FloatArray:
    """Return the share of the parts that each cluster gets."""
    shares = {"cost": found.costs, "size": found.weights}.get(by)
    return np.ones(len(found.costs)) if shares is None or not shares.sum() > 0 else shares


def _parts_of(
    label: int,
    n_parts: int,
    center: FloatArray,
    found: DrawnRows,
    distortion: Distortion,
    seed: int,
) -> Sequence[tuple[FloatArray, NDArray[np.int64]]]:
    """Divide one cluster by hard steps on its rows (the task function)."""
    drawn = found.of_cluster(label)
    centers = parts_of(*drawn, n_parts, center, distortion, seed + label)
    return [(centers, np.full(len(centers), label))]


def parts_of(
    rows: FloatArray,
    weights: FloatArray,
    n_parts: int,
    center: FloatArray,
    distortion: Distortion,
    seed: int,
) -> FloatArray:
    """Return the centres of the parts of a cluster, which hard steps on its rows find.

    Rows are in random order and in the coordinates of the distortion, (n_rows, n_features). There
    are fewer than `n_parts` if fewer rows are distinct; an undivided cluster keeps its `center`.
    """
    most = max(_SEED_ROWS, 2 * n_parts)
    distinct = distinct_rows(rows[:most])
    if len(distinct) <= n_parts:
        distinct = distinct_rows(rows)
    if n_parts == 1 or len(distinct) <= 1:
        return center[None]
    if len(distinct) <= n_parts:
        return distortion.inside(rows[distinct].astype(np.float64))
    few = np.sort(distinct)[:most]
    some, own = rows[few], weights[few]
    schedule = Schedule(-np.inf, max_iter=_MAX_ITER, tol=_TOL)
    if distortion.squared:
        start = some[chosen_by_cells(some, own, n_parts, [seed])[0]]
        schedule = replace(schedule, relaxations=_RELAXATIONS)
    else:
        start = greedy_rows(some, own, n_parts, seed, distortion)
    spread = float(weighted_variance(some, own).sum())
    problem = sample_problem(rows, weights, PowerUpdate(distortion), spread)
    with one_blas_thread():  # entering this context takes as long as a step, so steps share it
        return iterate(problem, [start.astype(np.float64)], schedule)[0].state.centers


def distinct_rows(rows: NDArray) -> NDArray[np.intp]:
    """Return the first index of each distinct row; rows are compared by a random projection."""
    direction = np.random.default_rng(0).normal(size=rows.shape[1])
    return np.unique(rows @ direction, return_index=True)[1]


def labels_along_tree(
    block: Block,
    coordinates: Rows,
    leaves: CenterState,
    above: NDArray[np.int64],
    levels: Sequence[CenterState],
    parents: Sequence[NDArray[np.int64]],
) -> NDArray[np.int32]:
    """Walk down a tree of clusters with each row of one block, to the nearest part at each level.

    `levels` has the clusters of each level; the last level has the leaves. `parents` has, for each
    level below the first, the cluster of the level above that contains each cluster. `above` is the
    cluster of the wanted level that contains each leaf.
    """
    labels = labels_of(block, coordinates, levels[0])
    for state, own in zip(levels[1:], parents, strict=True):
        after = labels.copy()
        for parent in np.unique(labels[labels >= 0]):
            some, parts = np.flatnonzero(labels == parent), np.flatnonzero(own == parent)
            among = replace(state, centers=state.centers[parts])
            own_rows = replace(block, rows=block.rows[some], weights=None)
            after[some] = parts[labels_of(own_rows, coordinates, among)]
        labels = after
    return np.where(labels < 0, labels, above[labels]).astype(np.int32)
