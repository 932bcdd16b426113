r"""Manhattan and Euclidean distances (not squared), minimised by majorization.

Their best centres are medians and geometric medians, which cannot be computed from sums over
blocks. But :math:`t \le t^2 / (2a) + a / 2` with equality at a = t, so each MM step is a weighted
mean with ω = 1/(2a), where a is the distance to the previous centre (Weiszfeld's step), and the
steps converge to the median. If a is below the smoothing ε, it is replaced by ε; the objective then
rises by at most ε/2 per value.

References
----------
Weiszfeld, "Sur le point pour lequel la somme des distances de n points donnés est minimum", Tohoku
Mathematical Journal 43, 1937. Hunter & Lange, "A Tutorial on MM Algorithms", 2004.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daskmm.numerics.distortions.base import (
    INWARDS,
    CenterUpdate,
    Distortion,
    FloatArray,
    Tile,
    over_features,
    split_holes,
)
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN

# ε as a share of the rows' spread. A centre that lies on a row but should move starts with tiny
# steps, and each step is longer than the last by a factor, the number of rows that attract it.
SMOOTHING = 1e-6
# ε if all rows are equal; its inverse is finite.
_SMALLEST = 1e-100


@dataclass(frozen=True, eq=False)
class Norm(Distortion):
    """Base of the two distances."""

    # Smoothing ε of each feature, (n_features,); the Euclidean distance uses the norm of this
    # vector.
    smoothing: FloatArray

    degree: ClassVar[int] = 1
    shifts: ClassVar[bool] = True

    @classmethod
    def around(cls, mean: FloatArray, variance: FloatArray) -> Norm:
        """Return the distance with ε as a share of the standard deviations."""
        deviations = np.sqrt(variance)
        usual = float(deviations.max()) or _SMALLEST / SMOOTHING
        return cls(SMOOTHING * np.where(deviations > 0, deviations, usual))

    def inside(self, rows: FloatArray) -> FloatArray:
        """Move rows towards the mean (the origin), since steps that start on a row are short."""
        return (1.0 - INWARDS) * np.where(np.isnan(rows), 0.0, rows)

    def off_edges(self, centers: FloatArray) -> FloatArray:
        """Move given centres as `inside` does, since they are often rows."""
        return self.inside(centers)


class Manhattan(Norm):
    """``Σ_l w_l |x_l − θ_l|``, whose best centres are medians."""

    title: ClassVar[str] = "the Manhattan distance"

    def tile(self, rows: FloatArray, partial: bool) -> Tile:
        """Prepare rows and the mask of their values."""
        filled, observed = split_holes(rows, partial)
        return Tile(filled, observed, filled)

    def distances(
        self, tile: Tile, centers: FloatArray, feature_weights: FloatArray | None
    ) -> FloatArray:
        """Compute distances from the differences, centre by centre."""
        distances = np.empty((len(tile.rows), len(centers)))
        for j, center in enumerate(centers):
            apart = np.abs(tile.rows - center)
            if tile.observed is not None:
                apart *= tile.observed
            distances[:, j] = over_features(apart, feature_weights)
        return distances

    def update(
        self,
        tile: Tile,
        phi: FloatArray,
        centers: FloatArray,
        distances: FloatArray,
        feature_weights: FloatArray | None,
    ) -> CenterUpdate:
        """Compute sums with ω = 1/(2a), ``a = max(|x_il − θ_jl|, ε_l)``; add a/2 to squares."""
        sums, denominators = np.zeros_like(centers), np.zeros_like(centers)
        squares = None if feature_weights is None else np.zeros(centers.shape[1])
        for j, center in enumerate(centers):
            a = np.maximum(np.abs(tile.rows - center), self.smoothing)
            omega = 0.5 / a
            if tile.observed is not None:
                omega *= tile.observed
                a *= tile.observed
            denominators[j] = phi[:, j] @ omega
            sums[j] = phi[:, j] @ (omega * tile.rows)
            if squares is not None:
                squares += phi[:, j] @ (omega * tile.rows * tile.rows + 0.5 * a)
        return CenterUpdate(sums, denominators, squares)

    def growth(self, rows: FloatArray, row_weights: FloatArray) -> tuple[float, FloatArray | None]:
        r"""Centres at the median separate when (1 − s) λ_max(E[σσᵀ/d]) > 1 in a scaled metric.

        σ are the signs of x − median. The scale of feature l is twice the density of its values at
        the median, which is the curvature of E|x − θ| there.
        """
        rows, observed = split_holes(rows, True)
        assert observed is not None
        held = observed > 0
        weights = row_weights / row_weights.sum()
        varying = np.zeros(rows.shape[1], dtype=bool)
        signs, distances = np.zeros_like(rows), np.zeros(len(rows))
        for f in range(rows.shape[1]):
            values = rows[held[:, f], f]
            if len(values) and values.min() < values.max():
                varying[f] = True
                deviations = np.where(held[:, f], rows[:, f] - np.median(values), 0.0)
                distances += np.abs(deviations)
                curvature = 2.0 * _central_density(values) * float(weights @ observed[:, f])
                signs[:, f] = np.sign(deviations) / np.sqrt(curvature)
        directed = distances > 0
        if not directed.any():
            return 1.0, None
        share = np.sqrt(weights[directed] / distances[directed])
        return 1.0, signs[directed][:, varying] * share[:, None]


class Euclidean(Norm):
    """‖x − θ‖, whose best centres are geometric medians."""

    title: ClassVar[str] = "the Euclidean distance"

    def tile(self, rows: FloatArray, partial: bool) -> Tile:
        """Prepare rows and their squares."""
        return SQUARED_EUCLIDEAN.tile(rows, partial)

    def distances(
        self, tile: Tile, centers: FloatArray, feature_weights: FloatArray | None
    ) -> FloatArray:
        """Compute the roots of squared distances."""
        return np.sqrt(SQUARED_EUCLIDEAN.distances(tile, centers, feature_weights))

    def update(
        self,
        tile: Tile,
        phi: FloatArray,
        centers: FloatArray,
        distances: FloatArray,
        feature_weights: FloatArray | None,
    ) -> CenterUpdate:
        """Compute sums with ω_ij = 1/(2 max(d_ij, ε))."""
        omega = phi * (0.5 / np.maximum(distances, np.linalg.norm(self.smoothing)))
        if tile.observed is None:
            masses = np.repeat(omega.sum(axis=0)[:, None], centers.shape[1], axis=1)
        else:
            masses = omega.T @ tile.observed
        return CenterUpdate(omega.T @ tile.rows, masses, None)

    def growth(self, rows: FloatArray, row_weights: FloatArray) -> tuple[float, FloatArray | None]:
        r"""Centres at the geometric median separate when (2 − s) λ_max(E[uuᵀ/d]) > E[1/d].

        u are the directions of the rows from the median, in their observed features.
        """
        tile = self.tile(rows, True)
        assert tile.observed is not None
        weights = row_weights / row_weights.sum()
        center = geometric_median(tile, weights, self)
        z = (tile.rows - center) * tile.observed
        distances = np.linalg.norm(z, axis=1)
        directed = distances > 1e-12 * distances.max(initial=0.0)
        if not directed.any():
            return 2.0, None
        share = weights[directed] / distances[directed]
        measure = np.maximum(share @ tile.observed[directed], np.finfo(float).tiny)
        u = z[directed] / distances[directed][:, None] / np.sqrt(measure)
        return 2.0, u * np.sqrt(share)[:, None]


def geometric_median(
    tile: Tile, weights: FloatArray, distortion: Euclidean, most_steps: int = 200
) -> FloatArray:
    """Minimise the weighted sum of Euclidean distances, by Weiszfeld's steps.

    Steps end when the median moves by less than 1e-10 of the mean distance.
    """
    observed = np.ones_like(tile.rows) if tile.observed is None else tile.observed
    masses = np.maximum(weights @ observed, np.finfo(float).tiny)
    center = (weights @ tile.rows / masses)[None, :]
    for _ in range(most_steps):
        distances = distortion.distances(tile, center, None)
        step = distortion.update(tile, weights[:, None], center, distances, None)
        assert step.denominators is not None
        found = np.divide(
            step.sums, step.denominators, out=center.copy(), where=step.denominators > 0
        )
        moved = float(np.abs(found - center).max())
        center = found
        if moved <= 1e-10 * float(weights @ distances[:, 0]) / float(weights.sum()):
            break
    return center[0]


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """Return the middle of the values that minimise ``Σ_i w_i |x_i − θ|``.

    Weights are positive.
    """
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    half = 0.5 * below[-1]
    first = int(np.searchsorted(below, half * (1 - 1e-12)))
    # If exactly half of the weight lies below, all numbers up to the next value are medians.
    last = first + 1 if below[first] <= half * (1 + 1e-12) and first + 1 < len(order) else first
    return float(0.5 * (values[order[first]] + values[order[last]]))


def _central_density(values: FloatArray) -> float:
    """Estimate the density at the median from the width of the middle quarter or half."""
    for share in (0.25, 0.5):
        low, high = np.quantile(values, [0.5 - share / 2, 0.5 + share / 2])
        if high > low:
            return share / float(high - low)
    return 1.0 / float(np.sqrt(2.0 * np.pi) * values.std())
