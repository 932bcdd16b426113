"""Mergeable records: what one block of rows tells, and how two blocks' tellings add up.

Every record has a neutral element (the record of no rows) and ``+``. They are merged in block
order, so the same chunks give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics import fused
from daskmm.numerics.distances import squared_distances
from daskmm.numerics.power_means import power_means
from daskmm.numerics.rows import Coordinates, Rows, tile_rows, tiles

FloatArray = NDArray[np.float64]

# Worst-served rows kept per candidate for empty clusters; more empty ones wait an iteration.
FARTHEST = 16


@dataclass(frozen=True)
class Moments:
    """Weighted count, mean, sum of squared deviations and range per feature.

    Squares of very large values overflow to infinity, silently: the first pass reports them.

    Attributes
    ----------
    n_positive : int
        Rows of positive weight.
    weight : float
        Sum of the sample weights.
    mean, deviations : ndarray of shape (n_features,)
        Weighted mean, and Σ w (x − mean)².
    lowest, highest : ndarray of shape (n_features,)
        Over the rows of positive weight.
    """

    n_positive: int
    weight: float
    mean: FloatArray
    deviations: FloatArray
    lowest: FloatArray
    highest: FloatArray

    @classmethod
    def empty(cls, n_features: int) -> Self:
        """Moments of no rows."""
        zeros, infinities = np.zeros(n_features), np.full(n_features, np.inf)
        return cls(0, 0.0, zeros, zeros, infinities, -infinities)

    @classmethod
    def of(cls, rows: FloatArray, weights: FloatArray | None) -> Self:
        """Moments of one tile of rows, by two passes over it."""
        total = float(len(rows)) if weights is None else float(weights.sum())
        if total == 0.0:
            return cls.empty(rows.shape[1])
        if weights is not None and not weights.all():
            rows, weights = rows[weights > 0], weights[weights > 0]
        lowest, highest = rows.min(axis=0), rows.max(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            if weights is None:
                mean = rows.mean(axis=0)
                deviations = np.square(rows - mean).sum(axis=0)
            else:
                mean = weights @ rows / total
                deviations = weights @ np.square(rows - mean)
        return cls(len(rows), total, mean, deviations, lowest, highest)

    @classmethod
    def of_block(cls, rows: NDArray, weights: FloatArray | None) -> Self | None:
        """Moments of any number of rows, of any dtype, by the compiled loops.

        None where a value is not finite, or its square overflows.
        """
        from daskmm.numerics.fused_moments import block_moments

        found = block_moments(rows, weights)
        return None if found is None else cls(*found)

    def __add__(self, other: Self) -> Self:
        """Chan, Golub & LeVeque's pairwise update."""
        total = self.weight + other.weight
        if other.weight == 0.0:
            return self
        if self.weight == 0.0:
            return other
        with np.errstate(over="ignore", invalid="ignore"):
            delta = other.mean - self.mean
            mean = self.mean + delta * (other.weight / total)
            between = delta * delta * (self.weight * other.weight / total)
            deviations = self.deviations + other.deviations + between
        return type(self)(
            self.n_positive + other.n_positive,
            total,
            mean,
            deviations,
            np.minimum(self.lowest, other.lowest),
            np.maximum(self.highest, other.highest),
        )

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Features that have one value only, told exactly: a mean of equal numbers is rounded."""
        return self.lowest == self.highest

    @property
    def variance(self) -> FloatArray:
        """Population variance per feature."""
        return self.deviations / self.weight


@dataclass(frozen=True)
class Sample:
    """Rows picked from the data, in row order, with their sample weights."""

    rows: NDArray
    weights: FloatArray

    def __add__(self, other: Self) -> Self:
        return type(self)(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.weights, other.weights]),
        )


@dataclass(frozen=True)
class CenterState:
    """State of one candidate: all that a block needs to know to take part in an MM step.

    Attributes
    ----------
    centers : ndarray of shape (n_clusters, n_features)
        In the model's coordinates.
    s : float
        The power; −∞ for a hard (Lloyd) step.
    feature_weights : ndarray of shape (n_features,) or None
        EWP's weights; None where features are not weighted.
    """

    centers: FloatArray
    s: float
    feature_weights: FloatArray | None = None


@dataclass(frozen=True)
class Farthest:
    """The worst-served rows, farthest first; ties in row order.

    Attributes
    ----------
    distances : ndarray of shape (n,)
    rows : ndarray of shape (n, n_features)
        In the model's coordinates.
    """

    distances: FloatArray
    rows: FloatArray

    @classmethod
    def empty(cls, n_features: int) -> Self:
        """No rows."""
        return cls(np.empty(0), np.empty((0, n_features)))

    @classmethod
    def of(cls, distances: FloatArray, rows: FloatArray, weights: FloatArray | None) -> Self:
        """Worst-served of one tile; rows without weight or with distance 0 do not count."""
        served = distances if weights is None else np.where(weights > 0, distances, 0.0)
        order = np.argsort(-served, kind="stable")[:FARTHEST]
        order = order[served[order] > 0]
        return cls(served[order], rows[order])

    def __add__(self, other: Self) -> Self:
        distances = np.concatenate([self.distances, other.distances])
        order = np.argsort(-distances, kind="stable")[:FARTHEST]
        return type(self)(distances[order], np.concatenate([self.rows, other.rows])[order])


@dataclass(frozen=True)
class CenterSums:
    """Sums of one candidate over rows, weighted by φ and by the sample weights v.

    Attributes
    ----------
    weights : ndarray of shape (n_clusters,)
        N_j = Σ_i v_i φ_ij.
    sums : ndarray of shape (n_clusters, n_features)
        Σ_i v_i φ_ij x_i.
    squares : ndarray of shape (n_features,) or None
        Σ_ij v_i φ_ij x_il², where features are weighted.
    objective, inertia, hardness : float
        Σ_i v_i M_s(d_i), Σ_i v_i min_j d_ij and Σ_i v_i × the share of the nearest centre.
    farthest : Farthest
        Filled in hard steps only.
    """

    weights: FloatArray
    sums: FloatArray
    squares: FloatArray | None
    objective: float
    inertia: float
    hardness: float
    farthest: Farthest

    @classmethod
    def empty(cls, state: CenterState) -> Self:
        """Sums over no rows."""
        k, p = state.centers.shape
        squares = None if state.feature_weights is None else np.zeros(p)
        return cls(np.zeros(k), np.zeros((k, p)), squares, 0.0, 0.0, 0.0, Farthest.empty(p))

    @classmethod
    def of(
        cls, rows: FloatArray, squared: FloatArray, weights: FloatArray | None, state: CenterState
    ) -> Self:
        """Sums over one tile of rows (in the model's coordinates)."""
        distances = squared_distances(rows, state.centers, state.feature_weights, squared)
        means = power_means(distances, state.s)
        phi = means.phi
        if weights is not None:
            phi *= weights[:, None]
        squares = None if state.feature_weights is None else phi.sum(axis=1) @ squared
        hard = state.s == -np.inf
        return cls(
            phi.sum(axis=0),
            phi.T @ rows,
            squares,
            _total(means.value, weights),
            _total(means.smallest, weights),
            _total(means.hardness, weights),
            Farthest.of(means.smallest, rows, weights) if hard else Farthest.empty(rows.shape[1]),
        )

    @classmethod
    def of_block(
        cls,
        rows: NDArray,
        weights: FloatArray | None,
        coordinates: Coordinates | None,
        state: CenterState,
    ) -> Self:
        """Sums over any number of rows by the compiled loops.

        The rows are in the input's units, or in the model's where `coordinates` is None.
        """
        found = fused.block_sums(
            rows,
            weights,
            coordinates,
            state.centers,
            state.s,
            state.feature_weights,
            FARTHEST,
        )
        worst = rows[found.farthest_rows]
        return cls(
            found.weights,
            found.sums,
            found.squares,
            found.objective,
            found.inertia,
            found.hardness,
            Farthest(
                found.farthest_distances,
                worst if coordinates is None else coordinates.to_model(worst),
            ),
        )

    def __add__(self, other: Self) -> Self:
        squares = None
        if self.squares is not None and other.squares is not None:
            squares = self.squares + other.squares
        return type(self)(
            self.weights + other.weights,
            self.sums + other.sums,
            squares,
            self.objective + other.objective,
            self.inertia + other.inertia,
            self.hardness + other.hardness,
            self.farthest + other.farthest,
        )


@dataclass(frozen=True)
class CandidateSums:
    """`CenterSums` of several candidates that met the same rows in one reading."""

    candidates: tuple[CenterSums, ...]

    def __add__(self, other: Self) -> Self:
        return type(self)(
            tuple(a + b for a, b in zip(self.candidates, other.candidates, strict=True))
        )


def candidate_sums(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: Rows,
    states: tuple[CenterState, ...],
) -> CandidateSums:
    """Sums of every candidate over one block of rows.

    The block is walked in tiles, so temporaries are bounded whatever the block's size; each
    tile is brought to the model's coordinates once for all candidates. The compiled loops walk
    the rows as they are, where coordinates are a mere shift and scale.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        A block in the input's units and dtype.
    weights : ndarray of shape (n_rows,) or None
        Sample weights.
    coordinates : Rows
    states : tuple of CenterState

    Returns
    -------
    CandidateSums
    """
    compiled = fused.available()
    if compiled and isinstance(coordinates, Coordinates):
        return CandidateSums(
            tuple(CenterSums.of_block(rows, weights, coordinates, state) for state in states)
        )
    totals = [CenterSums.empty(state) for state in states]
    if not totals:
        return CandidateSums(())
    k, p = states[0].centers.shape
    for tile in tiles(len(rows), tile_rows(p, k)):
        z = coordinates.to_model(rows[tile])
        v = None if weights is None else weights[tile]
        if compiled:
            parts = [CenterSums.of_block(z, v, None, state) for state in states]
        else:
            squared = z * z
            parts = [CenterSums.of(z, squared, v, state) for state in states]
        totals = [total + part for total, part in zip(totals, parts, strict=True)]
    return CandidateSums(tuple(totals))


def _total(values: FloatArray, weights: FloatArray | None) -> float:
    return float(values.sum() if weights is None else weights @ values)
