"""Sums over the rows of a block for an MM step, which can be added.

N_j = Σ_i φ_ij and Σ_i φ_ij x_i give the centres (`daskmm.kmeans.updates`), Σ_ij φ_ij x_il² the
feature weights. Records are added in block order, so the same chunks give the same bits.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from daskmm.compiled import dispatch, library
from daskmm.compiled.sparse import fast_rows
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.distortions.base import Distortion, Tile
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN, Bregman, SquaredEuclidean
from daskmm.numerics.power_means import power_means
from daskmm.numerics.rows import (
    Coordinates,
    FeatureCoordinates,
    LiftedCoordinates,
    Rows,
    SphereCoordinates,
    WhitenedCoordinates,
    pieces,
)
from daskmm.numerics.sparse_rows import SparseRows, dense, stacked
from daskmm.numerics.sums import Sums
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Number of farthest rows that are recorded for empty clusters. If there are more empty clusters,
# the others wait for the next iteration.
FARTHEST = 16


for _family in DISTORTIONS.values():
    registered(_family)


@registered
@dataclass(frozen=True)
class CenterState:
    """State of one start, as block functions take it for an MM step."""

    centers: FloatArray  # centres in the model's coordinates, (n_clusters, n_features)
    s: float  # the power; −∞ for a hard (Lloyd) step
    # EWP's weights, (n_features,); None where features are not weighted.
    feature_weights: FloatArray | None = None
    distortion: Distortion = SQUARED_EUCLIDEAN  # distortion in the model's coordinates
    partial: bool = False  # whether values may be missing (NaN); they are left out of the distances
    gaps: bool = False  # whether rows without any value are allowed, and labelled −1
    # Share of each cluster in the weight at the step before, (n_clusters,). Soft steps leave out
    # weights that are negligible beside that of the cluster; None if they leave out nothing.
    shares: FloatArray | None = None
    relaxation: float = 1.0  # how far the step moves the centres, relative to the way to the means
    n_relaxed: int = 0  # number of steps so far that moved centres beyond the means
    # Directions of partial distances, (n_directions, n_features); None where they are the principal
    # ones of the centres.
    directions: NDArray[np.float32] | None = None
    # Offsets that are added to the squared distances where rows choose their centres, not
    # negative, (n_clusters,); None where rows choose the nearest centre.
    offsets: FloatArray | None = None

    @property
    def plain(self) -> bool:
        """Whether distances are squared Euclidean ones without offsets, between complete rows."""
        return self.distortion.squared and not self.partial and self.offsets is None

    @property
    def counts_values_apart(self) -> bool:
        """Whether sums for a step do not say how many rows of each cluster have a value."""
        return self.partial and self.distortion.degree == 1

    @property
    def near(self) -> bool:
        """Whether the step compares rows in memory with centres near them only, if these are known.

        Over-relaxed steps do so, except those at which all centres are compared.
        """
        return self.relaxation > 1.0 and self.is_turn_of_lists

    @property
    def is_turn_of_lists(self) -> bool:
        """Whether to compare listed centres only; all if `n_relaxed` is 0, 2, 6, 14, 30, …."""
        return bool((self.n_relaxed + 2) & (self.n_relaxed + 1))

    def listing(self) -> CenterState:
        """Return the state with a next step that compares all centres and lists the near ones."""
        return replace(self, n_relaxed=2)

    @functools.cached_property
    def lifted(self) -> CenterState:
        """The state without offsets, in `LiftedCoordinates`, whose distances include them."""
        assert self.offsets is not None
        assert isinstance(self.distortion, SquaredEuclidean)
        w = self.feature_weights
        return replace(
            self,
            centers=np.column_stack([self.centers, np.sqrt(self.offsets)]),
            feature_weights=None if w is None else np.append(w, 1.0),
            distortion=type(self.distortion)(SQUARED_EUCLIDEAN.reference),
            directions=None,
            offsets=None,
        )

    @functools.cached_property
    def prepared(self) -> dispatch.PreparedCenters:
        """The centres as the compiled loops take them."""
        assert isinstance(self.distortion, Bregman)
        return dispatch.PreparedCenters(
            self.centers, self.feature_weights, self.distortion, self.partial, self.directions
        )


@dataclass(frozen=True)
class Farthest:
    """Rows farthest from their centres, the farthest first; ties in row order."""

    distances: FloatArray  # distances to the centres, (n,)
    # Rows (ndarray or SparseRows) in the model's coordinates, (n, n_features); NaN are missing
    # values.
    rows: Any

    @classmethod
    def empty(cls, n_features: int) -> Self:
        """Return the record of no rows."""
        return cls(np.empty(0), np.empty((0, n_features)))

    @classmethod
    def of(cls, distances: FloatArray, rows: FloatArray, weights: FloatArray | None) -> Self:
        """Select the farthest rows of a tile, among those with a positive weight and distance."""
        weighted = distances if weights is None else np.where(weights > 0, distances, 0.0)
        far = np.flatnonzero((weighted > 0) & (weighted >= _least_of_farthest(weighted)))
        order = far[np.argsort(-weighted[far], kind="stable")[:FARTHEST]]
        return cls(weighted[order], rows[order])

    def __add__(self, other: Self) -> Self:
        if not len(other.distances):
            return self
        if not len(self.distances):
            return other
        distances = np.concatenate([self.distances, other.distances])
        order = np.argsort(-distances, kind="stable")[:FARTHEST]
        rows = [self.rows, other.rows]
        # Tiles of sparse rows with few zeros are dense.
        sparse = all(isinstance(each, SparseRows) for each in rows)
        return type(self)(
            distances[order], stacked(rows if sparse else list(map(dense, rows)))[order]
        )


@dataclass(frozen=True)
class MeanSums(Sums):
    """Sums over rows that give centres and feature weights, with φ and the sample weights v.

    ω is 1 for Bregman divergences; for norms it makes the majorizing function quadratic.
    """

    weights: FloatArray  # N_j = Σ_i v_i φ_ij, (n_clusters,)
    sums: FloatArray  # Σ_i v_i φ_ij ω_ijl x_il over the observed values, (n_clusters, n_features)
    # Σ_i v_i φ_ij ω_ijl over the observed values, (n_clusters, n_features); None where they are
    # N_j.
    denominators: FloatArray | None
    # Σ_ij v_i φ_ij x_il², or its counterpart for norms, (n_features,); None where features are not
    # weighted.
    squares: FloatArray | None

    @property
    def masses(self) -> FloatArray:
        """Denominators of the means, of shape (n_clusters, n_features) or (n_clusters, 1)."""
        return self.weights[:, None] if self.denominators is None else self.denominators

    def __add__(self, other: Self) -> Self:
        found = super().__add__(other)
        if (self.denominators is None) == (other.denominators is None):
            return found
        return replace(found, denominators=self.masses + other.masses)


@dataclass(frozen=True)
class CenterSums(MeanSums):
    """Sums of one start over rows, with what they say about the step."""

    # Records may be added in any order, because the sums are then equal up to rounding, and the
    # farthest rows differ only in a tie.
    any_order: ClassVar[bool] = True
    # Σ_i v_i M_s(d_i), Σ_i v_i min_j d_ij and Σ_i v_i × the share of the nearest centre.
    objective: float
    inertia: float
    hardness: float
    farthest: Farthest  # the farthest rows; empty in soft steps

    @property
    def finite(self) -> bool:
        """Whether all values of the rows were finite, as far as these totals show."""
        return math.isfinite(self.inertia) and bool(np.isfinite(self.sums).all())

    def without(self, offsets: FloatArray) -> Self:
        """Return the sums of a hard step in `LiftedCoordinates` without the last coordinate."""
        added, far = float(self.weights @ offsets), self.farthest
        return replace(
            self,
            sums=self.sums[:, :-1],
            squares=None if self.squares is None else self.squares[:-1],
            objective=self.objective - added,
            inertia=max(self.inertia - added, 0.0),
            farthest=Farthest(far.distances, dense(far.rows)[:, :-1]),
        )

    @classmethod
    def of(cls, tile: Tile, weights: FloatArray | None, state: CenterState) -> Self:
        """Compute the sums over one tile of rows in the model's coordinates, with numpy."""
        distortion, centers, w = state.distortion, state.centers, state.feature_weights
        distances = distortion.distances(tile, centers, w)
        means = power_means(distances, state.s)
        phi = means.phi
        if weights is not None:
            phi *= weights[:, None]
        hard = state.s == -np.inf
        return cls(
            phi.sum(axis=0),
            *distortion.update(tile, phi, centers, distances, w),
            _total(means.value, weights),
            _total(means.smallest, weights),
            _total(means.hardness, weights),
            Farthest.of(means.smallest, tile.originals, weights)
            if hard
            else Farthest.empty(centers.shape[1]),
        )

    @classmethod
    def of_block_sums(
        cls, found: dispatch.BlockSums, rows: NDArray, coordinates: FeatureCoordinates | None
    ) -> Self:
        """Return the sums of the compiled loops, with the farthest of the block's rows."""
        farthest = Farthest.empty(rows.shape[1])
        if len(found.farthest_rows):
            worst = rows[found.farthest_rows]
            worst = worst if coordinates is None else coordinates.to_model(worst)
            farthest = Farthest(found.farthest_distances, worst)
        return cls(*found[:7], farthest)


class _Addable(Protocol):
    def __add__(self, other: Any, /) -> Any: ...


T = TypeVar("T", bound=_Addable)


@dataclass(frozen=True)
class PerStart(Generic[T]):
    """One record per start, all over the same rows."""

    records: tuple[T, ...]
    # Whether records show values that are not finite, or whose squares overflow.
    shows: bool = False

    @property
    def any_order(self) -> bool:
        """Whether all of the records may be added in any order."""
        return all(getattr(record, "any_order", False) for record in self.records)

    @property
    def finite(self) -> bool | None:
        """Whether all values of the rows were finite; None if the records do not show that."""
        return (
            all(getattr(record, "finite", True) for record in self.records) if self.shows else None
        )

    def __add__(self, other: Self) -> Self:
        return type(self)(tuple(a + b for a, b in zip(self.records, other.records, strict=True)))


def center_sums(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: Rows,
    states: tuple[CenterState, ...],
) -> PerStart[CenterSums]:
    """Compute the sums over one block of rows for every start.

    The compiled loops take the rows as they are if the coordinates are a shift and a scale, or a
    matrix. Otherwise the block is processed in tiles, which limit the temporaries; each tile is
    transformed to the model's coordinates once for all starts.

    A block is an ndarray or SparseRows in the input's units and dtype; all states have the same
    distortion.
    """
    if not states:
        return PerStart(())
    first = states[0]
    if first.offsets is not None:
        return _sums_with_offsets(rows, weights, LiftedCoordinates(coordinates), states)
    compiled = library.available() and first.distortion.code is not None
    if compiled and isinstance(coordinates, FeatureCoordinates) and not issparse(rows):
        found = _compiled_sums(rows, weights, coordinates, states)
        return replace(found, shows=showing(coordinates, first))
    totals: PerStart[CenterSums] | None = None
    # A block without rows is one empty tile, whose sums are zeros.
    for part, some in pieces(rows, len(first.centers)):
        z = fast_rows(coordinates.to_model(some))
        v = None if weights is None else weights[part]
        if compiled and not issparse(z):
            found = _compiled_sums(z, v, None, states)
        else:
            tile = first.distortion.tile(z, first.partial)
            found = PerStart(tuple(CenterSums.of(tile, v, state) for state in states))
        totals = found if totals is None else totals + found
    assert totals is not None
    return replace(totals, shows=showing(coordinates, first))


def _sums_with_offsets(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: LiftedCoordinates,
    states: tuple[CenterState, ...],
) -> PerStart[CenterSums]:
    lifted, p = tuple(state.lifted for state in states), states[0].centers.shape[1]
    totals: PerStart[CenterSums] | None = None
    for part in coordinates.tiles(rows):
        v, z = None if weights is None else weights[part], coordinates.to_model(rows[part])
        found = center_sums(z, v, Coordinates.identity(p + 1), lifted)
        totals = found if totals is None else totals + found
    assert totals is not None
    records = [
        record.without(state.offsets)
        for record, state in zip(totals.records, states, strict=True)
        if state.offsets is not None
    ]
    return PerStart(tuple(records), shows=showing(coordinates.inner, states[0]))


def showing(coordinates: Rows, state: CenterState) -> bool:
    """Return whether sums show values that are not finite, or whose squares overflow."""
    by_feature = isinstance(coordinates, Coordinates | WhitenedCoordinates | SphereCoordinates)
    return by_feature and isinstance(state.distortion, Bregman)


def _compiled_sums(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: FeatureCoordinates | None,
    states: tuple[CenterState, ...],
) -> PerStart[CenterSums]:
    """Compute the sums with the compiled loops; terms of the rows alone are computed once.

    The rows are in the input's units, or in the model's coordinates if `coordinates` is None.
    """
    distortion = states[0].distortion
    assert isinstance(distortion, Bregman)
    terms, records = dispatch.row_terms(rows, distortion), []
    for state in states:
        found = dispatch.block_sums(
            rows, weights, coordinates, state.prepared, state.s, FARTHEST, terms, state.shares
        )
        records.append(CenterSums.of_block_sums(found, rows, coordinates))
    return PerStart(tuple(records))


def _least_of_farthest(distances: FloatArray) -> float:
    """Return the distance of the last of the farthest rows."""
    last = len(distances) - FARTHEST
    return float(np.partition(distances, last)[last]) if last > 0 else 0.0


def _total(values: FloatArray, weights: FloatArray | None) -> float:
    return float(values.sum() if weights is None else weights @ values)
