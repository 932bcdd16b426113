"""Mean shift of micro-clusters: kernel sums between points and Gaussian clouds of rows.

A micro-cluster stands for rows that are spread around its position, with variance s_l of feature l.
For such a row x and a point y, with t_l = 2 w_l s_l / (h + 2 w_l s_l),

    E exp(−Σ_l w_l (x_l − y_l)² / h) = Π_l √(1 − t_l) exp(−(1 − t_l) w_l (μ_l − y_l)² / h),

and weighted by the kernel, the row has mean (1 − t_l) μ_l + t_l y_l and variance (1 − t_l) s_l.
Kernel sums over rows are therefore sums over micro-clusters; they are exact if the rows of
micro-clusters are normally distributed. Every term is a product of a factor of the point and a
factor of the micro-cluster, so the sums are matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.exponentials import exponentiate
from daskmm.numerics.rows import tiles

FloatArray = NDArray[np.float64]

# Points per tile, whose kernel values with a few thousand micro-clusters stay in a core's cache.
TILE = 64


class Neighbours(NamedTuple):
    """Rows around each point, weighted by the kernel."""

    # Weighted mean and variance of the rows, (n, n_features); NaN if all weights are 0. The
    # variance is 0 in features in which no micro-cluster has a variance.
    mean: FloatArray
    variance: FloatArray
    share: FloatArray  # share of the weight outside of the point's own micro-cluster, (n,)


@dataclass(frozen=True)
class MicroClusters:
    """Micro-clusters, prepared for kernel sums."""

    # Factors of the exponents, to be multiplied by (y², y, 1) of a point y, (n, 2 n_features + 1).
    right: FloatArray
    # Exponent for a point at the micro-cluster's own position: Σ_l ½ log(1 − t_l), (n,).
    largest: FloatArray
    # Factors of the kernel values, (n, 1 + n_features + 4 n_spread): c, c (1 − t) μ; and for the
    # features with a spread c t, c ((1 − t) s + (1 − t)² μ²), 2 c (1 − t) t μ and c t².
    masses: FloatArray
    # Features in which a micro-cluster has a positive variance, (n_features,).
    spread: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        positions: FloatArray,
        scatter: FloatArray,
        multiplicity: FloatArray,
        feature_weights: FloatArray,
        bandwidth: float,
    ) -> MicroClusters:
        """Prepare micro-clusters.

        Positions μ are centred near the origin; `scatter` are the variances s of the rows around
        them, (n, n_features); the multiplicity c of a micro-cluster is the sum of its rows' sample
        weights.
        """
        wide = 2.0 * feature_weights * scatter
        pull = wide / (bandwidth + wide)
        slope = feature_weights / (bandwidth + wide)
        largest = -0.5 * np.log1p(wide / bandwidth).sum(axis=1)
        constant = largest - np.einsum("il,il->i", slope, np.square(positions))
        right = np.column_stack([-slope, 2.0 * slope * positions, constant])
        spread = np.asarray(scatter.any(axis=0))
        stay, t = 1.0 - pull, pull[:, spread]
        kept = (stay * positions)[:, spread]
        squares = stay[:, spread] * scatter[:, spread] + np.square(kept)
        masses = np.column_stack(
            [np.ones(len(positions)), stay * positions, t, squares, 2.0 * kept * t, np.square(t)]
        )
        return cls(right, largest, masses * multiplicity[:, None], spread)

    def around(
        self, points: FloatArray, own: NDArray[np.intp], own_share: FloatArray
    ) -> Neighbours:
        """Average the rows around points at positions of micro-clusters.

        `own` is the index of the micro-cluster at each point; `own_share` is the share of its
        kernel value that counts in the sums.
        """
        found = [
            self._around(points[tile], own[tile], own_share[tile])
            for tile in tiles(len(points), TILE)
        ]
        return Neighbours(*(np.concatenate(each) for each in zip(*found, strict=True)))

    def _around(self, y: FloatArray, own: NDArray[np.intp], own_share: FloatArray) -> Neighbours:
        rows, p = np.arange(len(y)), y.shape[1]
        kernel = np.column_stack([np.square(y), y, np.ones(len(y))]) @ self.right.T
        # Rounding must not raise exponents of near points that are far from the origin.
        np.minimum(kernel, self.largest, out=kernel)
        with np.errstate(divide="ignore"):
            kernel[rows, own] = self.largest[own] + np.log(own_share)
        # The nearest neighbour sets the scale of each point, so that sums over far neighbours do
        # not underflow.
        kernel -= np.maximum(kernel.max(axis=1), -np.finfo(np.float64).max)[:, None]
        exponentiate(kernel)
        itself = kernel[rows, own] * self.masses[own, 0]
        sums = kernel @ self.masses
        total = sums[:, :1]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean, rest = sums[:, 1 : p + 1] / total, sums[:, p + 1 :] / total
            share = 1.0 - itself / total[:, 0]
        pull, squares, cross, twice = np.split(rest, 4, axis=1)
        near = y[:, self.spread]
        mean[:, self.spread] += pull * near
        variance = np.zeros_like(mean)
        second = squares + cross * near + twice * np.square(near)
        variance[:, self.spread] = np.maximum(second - np.square(mean[:, self.spread]), 0.0)
        return Neighbours(mean, variance, share)
