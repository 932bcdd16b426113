"""Micro-clusters: a few thousand weighted points, with variances, that represent all rows.

Rows are assigned to centres in the metric that a sample has learned, in which features of noise
have no weight, since micro-clusters that mix clusters would be useless for the mean shift. Half of
the centres are rows of the sample. The others are drawn in two passes by their distance from the
centres so far, so that rows far from all others become separate micro-clusters, and clusters
without rows in the sample are found. Hard steps move the centres to the means of their rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from daskmm.compiled import dispatch, library
from daskmm.compiled.labels import nearest_centers
from daskmm.data.blocks import Block
from daskmm.data.validation import check_finite
from daskmm.engine.first_pass import Survey, row_uniforms
from daskmm.engine.passes import Passes, tree_reduce
from daskmm.mean_shift.blurring import Rows
from daskmm.mean_shift.neighborhood import Neighborhood, Shift, attraction, strides
from daskmm.mean_shift.representatives import Representatives
from daskmm.numerics.distances import squared_distances
from daskmm.numerics.mean_shift import group_sums
from daskmm.numerics.micro_clusters import TILE, MicroClusters, Neighbours
from daskmm.numerics.rows import Coordinates, tile_rows, tiles
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]
Labels = NDArray[np.int32]

# Number of passes that draw rows as further centres, and of hard steps.
DRAWS, STEPS = 2, 1
PASSES = DRAWS + STEPS + 1
# Features may be left out of distances between rows and centres if they contribute less than this
# share of the bandwidth to the mean squared distance.
_NEGLIGIBLE = 0.02
# Squared distance, in bandwidths, beyond which all rows are drawn with the same rate: the kernel is
# below 1e-13 there.
_FAR = 30.0


@dataclass(frozen=True)
class Cells:
    """Centres that divide the rows into cells, in a weighted metric of some features."""

    features: NDArray[np.intp]  # indices of the features, (n_used,)
    coordinates: Coordinates  # the model's coordinates of these features
    weights: FloatArray  # weights of these features
    centers: FloatArray  # centres in these coordinates, (n_cells, n_used)

    @functools.cached_property
    def prepared(self) -> dispatch.PreparedCenters:
        """The centres as the compiled loops take them."""
        return dispatch.PreparedCenters(self.centers, self.weights)

    @classmethod
    def of(
        cls, centers: FloatArray, survey: Survey, feature_weights: FloatArray, bandwidth: float
    ) -> Self:
        """Return the cells around some rows, given in the model's coordinates."""
        spread = feature_weights * survey.variance
        order = np.argsort(spread)
        negligible = np.cumsum(spread[order]) <= _NEGLIGIBLE * bandwidth
        used = np.sort(order[~negligible])
        if not len(used):
            used = order[-1:]
        frame = survey.coordinates
        some = Coordinates(frame.mean[used], frame.scale[used])
        return cls(used, some, feature_weights[used], np.ascontiguousarray(centers[:, used]))

    def nearest(self, block: Block) -> tuple[Labels, FloatArray]:
        """Return the cell of each row, and the squared distance to its centre."""
        some, n = np.ascontiguousarray(block.rows[:, self.features]), len(block.rows)
        labels, distances = np.empty(n, dtype=np.int32), np.empty(n)
        written = library.available() and nearest_centers(
            some, self.coordinates, self.prepared, labels, distances
        )
        if written:
            return labels, distances
        root = np.sqrt(self.weights)
        for tile in tiles(n, tile_rows(len(self.features), len(self.centers))):
            check_finite(some[tile].astype(np.float64), block.position, tile.start)
            z = self.coordinates.to_model(some[tile])
            found = squared_distances(z * root, self.centers * root)
            labels[tile], distances[tile] = found.argmin(axis=1), found.min(axis=1)
        return labels, distances


def followed(block: Block, cells: Cells, labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the label of each row's cell (the block function for the labels of a fit)."""
    return labels[cells.nearest(block)[0]]


@registered
@dataclass(frozen=True)
class ScatteredNeighborhood(Neighborhood):
    """Micro-clusters during blurring.

    The rows of a micro-cluster approach each other as it moves: near μ a step is y ↦ m(μ) + J (y −
    μ), where J_l = 2 w_l V_l / h and V is the kernel-weighted variance of the rows around μ, so
    that variances s become J² s.
    """

    # Variances s of the rows of each micro-cluster; 0 in features of negligible weight.
    scatter: FloatArray
    passes_per_step: ClassVar[int] = 0  # no rows are visited

    def step(self, weights: FloatArray, shift: Shift) -> tuple[ScatteredNeighborhood, float]:
        """Move every micro-cluster to the mean of the rows around it, and merge."""
        old, h = self.representatives, shift.bandwidth
        ready = MicroClusters.of(old.positions, self.scatter, old.multiplicity, weights, h)
        # No row is its own neighbour. The row that is left out is taken to lie at its
        # micro-cluster's position.
        with np.errstate(over="ignore"):  # own terms of wide micro-clusters are negligible
            alone = np.exp(-ready.largest) * old.own / old.multiplicity
        share = np.ones(self.n) if shift.self_term else np.maximum(1.0 - alone, 0.0)
        around = _around(ready, old.positions, share)
        pull = attraction(around.share, shift)
        there = np.isfinite(around.mean)
        moved = replace(old, positions=np.where(there, around.mean, old.positions))
        moved = moved.farther(old.positions, strides(around.share, pull, shift.isolated))
        closer = np.minimum(2.0 * weights / h * np.where(there, around.variance, 0.0), 1.0)
        scatter = np.square(closer) * self.scatter
        new, groups = moved.merged(shift.merge_tol, shift.seed)
        if new is not moved:
            mass = old.multiplicity[:, None]
            scatter = group_sums(scatter * mass, groups) / new.multiplicity[:, None]
        return ScatteredNeighborhood(new, groups[self.members], scatter), pull

    def met(self, start: Neighborhood, weights: FloatArray, bandwidth: float) -> FloatArray:
        """Return the weight of the rows that the kernel has merged into each representative.

        For each cell, one row counts, and so do the other rows within reach of a kernel at the
        cell's centre.
        """
        if not isinstance(start, ScatteredNeighborhood):
            return self.representatives.multiplicity
        cells = start.representatives
        seen = np.exp(-0.5 * np.log1p(2.0 * weights / bandwidth * start.scatter).sum(axis=1))
        near = cells.own + (cells.multiplicity - cells.own) * seen
        return group_sums(near, self.members)


def _around(ready: MicroClusters, points: FloatArray, own_share: FloatArray) -> Neighbours:
    """Average the rows around all points, on threads of this process."""
    indices = np.arange(len(points))
    tasks = [(indices[tile],) for tile in tiles(len(points), 4 * TILE)]
    found = tree_reduce(_around_some, tasks, (ready, points, own_share), False, "blurring")
    return Neighbours(*(np.concatenate(each) for each in zip(*found, strict=True)))


def _around_some(
    indices: NDArray[np.intp], ready: MicroClusters, points: FloatArray, own_share: FloatArray
) -> list[Neighbours]:
    return [ready.around(points[indices], indices, own_share[indices])]


@registered
@dataclass(frozen=True)
class Compressed:
    """A table as micro-clusters."""

    positions: FloatArray  # means of the rows, in the model's coordinates, (n, n_features)
    # Variances of the rows around these means; 0 in features of negligible weight.
    scatter: FloatArray
    multiplicity: FloatArray  # multiplicities as in `Representatives`, (n,)
    own: FloatArray
    centers: FloatArray  # centres of their cells, (n, n_used)

    def rows(self, survey: Survey, feature_weights: FloatArray) -> Rows:
        """Return the rows for `blur`, with fixed feature weights."""
        mass = self.multiplicity
        some = Representatives(self.positions, self.positions * mass[:, None], mass, self.own)
        start = ScatteredNeighborhood(some, np.arange(len(mass)), self.scatter)
        squares = survey.weight * survey.variance
        return Rows(start, squares, survey.weight, survey.varying, feature_weights, learned=True)


@dataclass(frozen=True)
class Compression:
    """State of the compression of all rows to micro-clusters."""

    passes: Passes
    survey: Survey
    feature_weights: FloatArray  # feature weights of the metric
    bandwidth: float
    n_drawn: int  # rows that each draw adds to the centres
    seed: int
    centers: FloatArray  # centres so far, (n_centers, n_features)
    n_draws: int = 0  # number of draws so far
    made: Compressed | None = None  # result of the last step

    @classmethod
    def of(
        cls,
        passes: Passes,
        survey: Survey,
        feature_weights: FloatArray,
        bandwidth: float,
        n_representatives: int,
        seed: int,
    ) -> Self:
        """Take rows of the sample as the first half of the `n_representatives` centres."""
        rng = np.random.default_rng(seed)
        n_drawn = n_representatives // (2 * DRAWS)
        sample = survey.sample.rows
        first = min(n_representatives - DRAWS * n_drawn, len(sample))
        centers = sample[np.sort(rng.choice(len(sample), first, replace=False))]
        return cls(passes, survey, feature_weights, bandwidth, n_drawn, seed, centers)

    def _cells(self, centers: FloatArray) -> Cells:
        return Cells.of(centers, self.survey, self.feature_weights, self.bandwidth)

    def drawn(self) -> FloatArray:
        """Draw rows by their distance from the centres, in one pass; add them to the centres."""
        key = (self.seed, self.n_draws)
        cells = self._cells(self.centers)
        found: _Farther = self.passes.reduce(_farther, cells, self.bandwidth, self.n_drawn, key)
        rows = self.survey.coordinates.to_model(found.rows)
        return np.concatenate([self.centers, rows])

    def moved(self) -> Compressed:
        """Return the micro-clusters of the rows nearest to each centre, in one pass."""
        cells = self._cells(self.centers)
        sums: _CellSums = self.passes.reduce(_cell_sums, cells, self.survey.coordinates)
        return sums.compressed(cells)

    def after(self) -> Self:
        """Return the compression around the micro-clusters of the last step."""
        assert self.made is not None
        return replace(self, centers=self.made.positions)

    @property
    def result(self) -> tuple[Compressed, Cells]:
        """Micro-clusters, and the cells to which the rows belong."""
        assert self.made is not None
        return self.made, replace(self._cells(self.centers), centers=self.made.centers)


@dataclass(frozen=True)
class _Farther:
    """Rows drawn by their distance from the nearest centre.

    Keys are exponential random numbers with the rows' rates. The rows with the smallest keys are a
    draw without replacement (Efraimidis & Spirakis 2006) that does not depend on the blocks.
    """

    rows: NDArray
    keys: FloatArray
    n_drawn: int

    def __add__(self, other: Self) -> Self:
        return self.smallest(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.keys, other.keys]),
            self.n_drawn,
        )

    @classmethod
    def smallest(cls, rows: NDArray, keys: FloatArray, n_drawn: int) -> Self:
        """Return the rows with the smallest keys, in row order."""
        if len(keys) > n_drawn:
            first = np.sort(np.argpartition(keys, n_drawn)[:n_drawn])
            rows, keys = rows[first], keys[first]
        return cls(rows, keys, n_drawn)


def _farther(
    block: Block,
    cells: Cells,
    bandwidth: float,
    n_drawn: int,
    key: tuple[int, int],
) -> _Farther:
    """Draw rows of one block."""
    _, distances = cells.nearest(block)
    rates = np.square(np.minimum(distances / bandwidth, _FAR))
    if block.weights is not None:
        rates *= block.weights
    some = np.flatnonzero(rates > 0)
    uniform = row_uniforms(key, block.position.start + some)
    return _Farther.smallest(block.rows[some], -np.log(uniform) / rates[some], n_drawn)


class _CellSums(NamedTuple):
    """Sums over the rows of each cell, with deviations from its centre."""

    multiplicity: FloatArray
    own: FloatArray
    sums: FloatArray
    deviations: FloatArray
    squares: FloatArray

    def __add__(self, other: Self) -> Self:  # type: ignore[override]
        return type(self)(*(a + b for a, b in zip(self, other, strict=True)))

    def compressed(self, cells: Cells) -> Compressed:
        """Return the micro-clusters of the cells that have rows."""
        there = self.multiplicity > 0
        mass = self.multiplicity[there]
        positions = self.sums[there] / mass[:, None]
        off = self.deviations[there] / mass[:, None]
        scatter = np.zeros_like(positions)
        inner = self.squares[there] / mass[:, None] - np.square(off)
        # Rounding errors would give copies of one row a positive variance.
        inner[inner < 1e-12 * (np.square(off) + np.square(cells.centers[there]))] = 0.0
        scatter[:, cells.features] = inner
        own = self.own[there] / mass
        return Compressed(positions, scatter, mass, own, cells.centers[there])


def _cell_sums(
    block: Block,
    cells: Cells,
    coordinates: Coordinates,
) -> _CellSums:
    """Compute the record of one block."""
    labels, _ = cells.nearest(block)
    rows, v = block.rows, block.masses
    (n, p), (k, used) = rows.shape, cells.centers.shape
    sums, deviations, squares = np.zeros((k, p)), np.zeros((k, used)), np.zeros((k, used))
    for tile in tiles(n, tile_rows(p, 1)):
        own, z = labels[tile], coordinates.to_model(rows[tile])
        spread = csr_array((v[tile], own, np.arange(len(own) + 1)), (len(own), k)).T
        off = z[:, cells.features] - cells.centers[own]
        sums += spread @ z
        deviations += spread @ off
        squares += spread @ np.square(off)
    mass: FloatArray = np.bincount(labels, v, k).astype(np.float64)
    alone: FloatArray = np.bincount(labels, v * np.minimum(v, 1.0), k).astype(np.float64)
    return _CellSums(mass, alone, sums, deviations, squares)
