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
from daskmm.numerics.distortions import Distortion, Tile
from daskmm.numerics.divergences import SQUARED_EUCLIDEAN, Bregman
from daskmm.numerics.power_means import power_means
from daskmm.numerics.rows import Affine, Rows, tile_rows, tiles

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
    observed : ndarray of shape (n_features,) or None
        Sum of the weights of the rows that have a value; None where none is missing.
    """

    n_positive: int
    weight: float
    mean: FloatArray
    deviations: FloatArray
    lowest: FloatArray
    highest: FloatArray
    observed: FloatArray | None = None

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
    def of_partial(cls, rows: FloatArray, weights: FloatArray | None) -> Self:
        """Moments of the values of one tile of rows; NaN are missing."""
        v = np.ones(len(rows)) if weights is None else weights
        rows, v = rows[v > 0], v[v > 0]
        held = ~np.isnan(rows)
        observed = v @ held
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            mean = np.where(observed > 0, v @ np.where(held, rows, 0.0) / observed, 0.0)
            deviations = v @ np.where(held, np.square(rows - mean), 0.0)
        lowest = np.where(held, rows, np.inf).min(axis=0, initial=np.inf)
        highest = np.where(held, rows, -np.inf).max(axis=0, initial=-np.inf)
        return cls(len(rows), float(v.sum()), mean, deviations, lowest, highest, observed)

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
        complete = self.observed is None and other.observed is None
        own, added = self.masses, other.masses
        with np.errstate(over="ignore", invalid="ignore"):
            delta = other.mean - self.mean
            share = added / np.maximum(own + added, np.finfo(float).tiny)
            mean = self.mean + delta * share
            between = delta * delta * (own * share)
            deviations = self.deviations + other.deviations + between
        return type(self)(
            self.n_positive + other.n_positive,
            total,
            mean,
            deviations,
            np.minimum(self.lowest, other.lowest),
            np.maximum(self.highest, other.highest),
            None if complete else own + added,
        )

    @property
    def masses(self) -> FloatArray:
        """Sum of the weights of the rows that have a value, per feature."""
        return np.full_like(self.mean, self.weight) if self.observed is None else self.observed

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Features that have one value only, told exactly: a mean of equal numbers is rounded."""
        return self.lowest == self.highest

    @property
    def variance(self) -> FloatArray:
        """Population variance per feature, of its values."""
        return self.deviations / np.maximum(self.masses, np.finfo(float).tiny)


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
    distortion : Distortion
    partial : bool
        Whether values may be missing (NaN), and are left out of the distances.
    relocations : int
        How many centres of emptied clusters have gone to random rows.
    """

    centers: FloatArray
    s: float
    feature_weights: FloatArray | None = None
    distortion: Distortion = SQUARED_EUCLIDEAN
    partial: bool = False
    relocations: int = 0


@dataclass(frozen=True)
class Farthest:
    """The worst-served rows, farthest first; ties in row order.

    Attributes
    ----------
    distances : ndarray of shape (n,)
    rows : ndarray of shape (n, n_features)
        In the model's coordinates, NaN where there is no value.
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

    ω is 1 for Bregman divergences; for norms it makes the majorizing function quadratic.

    Attributes
    ----------
    weights : ndarray of shape (n_clusters,)
        N_j = Σ_i v_i φ_ij.
    sums : ndarray of shape (n_clusters, n_features)
        Σ_i v_i φ_ij ω_ijl x_il over the observed values.
    denominators : ndarray of shape (n_clusters, n_features) or None
        Σ_i v_i φ_ij ω_ijl over the observed values; None where they are N_j.
    squares : ndarray of shape (n_features,) or None
        Σ_ij v_i φ_ij x_il², where features are weighted; or what a norm has in its place.
    objective, inertia, hardness : float
        Σ_i v_i M_s(d_i), Σ_i v_i min_j d_ij and Σ_i v_i × the share of the nearest centre.
    farthest : Farthest
        Filled in hard steps only.
    """

    weights: FloatArray
    sums: FloatArray
    denominators: FloatArray | None
    squares: FloatArray | None
    objective: float
    inertia: float
    hardness: float
    farthest: Farthest

    @classmethod
    def of(cls, tile: Tile, weights: FloatArray | None, state: CenterState) -> Self:
        """Sums over one tile of rows (in the model's coordinates)."""
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
    def of_block(
        cls,
        rows: NDArray,
        weights: FloatArray | None,
        coordinates: Affine | None,
        state: CenterState,
        terms: FloatArray | None = None,
    ) -> Self:
        """Sums over any number of rows by the compiled loops.

        The rows are in the input's units, or in the model's where `coordinates` is None; `terms`
        are those of `fused.row_terms`.
        """
        assert isinstance(state.distortion, Bregman)
        found = fused.block_sums(
            rows,
            weights,
            coordinates,
            state.centers,
            state.s,
            state.feature_weights,
            FARTHEST,
            state.distortion,
            state.partial,
            terms,
        )
        worst = rows[found.farthest_rows]
        return cls(
            found.weights,
            found.sums,
            found.observed,
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
        return type(self)(
            self.weights + other.weights,
            self.sums + other.sums,
            _added(self.denominators, other.denominators),
            _added(self.squares, other.squares),
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
    the rows as they are, where coordinates are a shift and a scale or a matrix.

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
    if not states:
        return CandidateSums(())
    first = states[0]
    compiled = fused.available() and first.distortion.code is not None
    if compiled and isinstance(coordinates, Affine):
        return _compiled_sums(rows, weights, coordinates, states)
    totals: CandidateSums | None = None
    k, p = first.centers.shape
    # A block without rows is one empty tile.
    for part in tiles(max(1, len(rows)), tile_rows(p, k)):
        z = coordinates.to_model(rows[part])
        v = None if weights is None else weights[part]
        if compiled:
            found = _compiled_sums(z, v, None, states)
        else:
            tile = first.distortion.tile(z, first.partial)
            found = CandidateSums(tuple(CenterSums.of(tile, v, state) for state in states))
        totals = found if totals is None else totals + found
    assert totals is not None
    return totals


def _compiled_sums(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: Affine | None,
    states: tuple[CenterState, ...],
) -> CandidateSums:
    """Sums by the compiled loops; what the rows alone decide is computed once."""
    distortion = states[0].distortion
    assert isinstance(distortion, Bregman)
    terms = fused.row_terms(rows, distortion)
    return CandidateSums(
        tuple(CenterSums.of_block(rows, weights, coordinates, state, terms) for state in states)
    )


def _added(a: FloatArray | None, b: FloatArray | None) -> FloatArray | None:
    return None if a is None or b is None else a + b


def _total(values: FloatArray, weights: FloatArray | None) -> float:
    return float(values.sum() if weights is None else weights @ values)
