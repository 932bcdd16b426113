"""The MM update of a centre-based state from the sums over all rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.distances import squared_distances
from daskmm.numerics.entropy import negative_entropy, softmin_weights, within_dispersion
from daskmm.stats import CenterState, CenterSums

FloatArray = NDArray[np.float64]

# Centres closer than 1e-4 of the root mean square distance of the rows to theirs coincide.
COINCIDENT = 1e-8


@dataclass(frozen=True)
class PowerUpdate:
    """Power k-means: θ_j = Σ_i φ_ij x_i / Σ_i φ_ij (Xu & Lange 2019, Algorithm 1).

    Lloyd's algorithm is the same with hard φ.
    """

    def start(self, centers: FloatArray, s: float) -> CenterState:
        """State at given centres."""
        return CenterState(centers, s)

    def update(self, sums: CenterSums, state: CenterState, weight: float) -> CenterState:
        """Weighted means; clusters emptied by a hard step go to the worst-served rows."""
        return replace(state, centers=relocated(moved_centers(sums, state), sums))

    def penalty(self, state: CenterState) -> float:
        """No penalty."""
        return 0.0


@dataclass(frozen=True)
class EntropyUpdate:
    """EWP: the centres of power k-means, then w ∝ exp(−D/λ) with the new centres.

    Chakraborty, Paul, Das & Xu 2020, Algorithm 1.

    Attributes
    ----------
    lam : float
        λ per unit of sample weight.
    varying : ndarray of bool of shape (n_features,)
        Features that are not constant; the others get weight 0.
    """

    lam: float
    varying: NDArray[np.bool_]

    def start(self, centers: FloatArray, s: float) -> CenterState:
        """State at given centres, with equal weights."""
        equal = softmin_weights(np.zeros(centers.shape[1]), self.lam, self.varying)
        return CenterState(centers, s, equal)

    def update(self, sums: CenterSums, state: CenterState, weight: float) -> CenterState:
        """Centres as in power k-means, weights by their dispersion per unit of sample weight."""
        assert sums.squares is not None
        means = moved_centers(sums, state)
        dispersion = within_dispersion(sums.squares, sums.weights, means) / weight
        return replace(
            state,
            centers=relocated(means, sums),
            feature_weights=softmin_weights(dispersion, self.lam, self.varying),
        )

    def penalty(self, state: CenterState) -> float:
        """λ Σ_l w_l log w_l."""
        assert state.feature_weights is not None
        return self.lam * negative_entropy(state.feature_weights)


def moved_centers(sums: CenterSums, state: CenterState) -> FloatArray:
    """Weighted means of the clusters; a centre whose Σφ is 0 keeps its place."""
    occupied = sums.weights > 0
    moved = state.centers.copy()
    moved[occupied] = sums.sums[occupied] / sums.weights[occupied, None]
    return moved


def relocated(centers: FloatArray, sums: CenterSums) -> FloatArray:
    """Centres of empty clusters moved to the worst-served rows, one each.

    Such rows are known after hard steps only. A centre that serves no row may go anywhere
    without raising the objective.
    """
    rows = sums.farthest.rows
    empty = np.flatnonzero(sums.weights == 0)[: len(rows)]
    moved = centers.copy()
    moved[empty] = rows[: len(empty)]
    return moved


def coincident_centers(
    centers: FloatArray, feature_weights: FloatArray | None, mean_distance: float
) -> int:
    """Centres that lie where another one does.

    Parameters
    ----------
    centers : ndarray of shape (n_clusters, n_features)
    feature_weights : ndarray of shape (n_features,) or None
    mean_distance : float
        Mean squared distance of the rows to their nearest centre, the yardstick.

    Returns
    -------
    int
        0 when all are apart; otherwise the number of centres that could be dropped.
    """
    apart = squared_distances(centers, centers, feature_weights)
    same = np.tril(apart <= COINCIDENT * mean_distance, -1)
    return int(same.any(axis=1).sum())
