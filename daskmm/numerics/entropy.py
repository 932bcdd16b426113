"""Entropy-regularised feature weights (EWP)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def within_dispersion(squares: FloatArray, masses: FloatArray, centers: FloatArray) -> FloatArray:
    """Compute the weighted dispersion of each feature within clusters, at the best centres.

    D_l = Σ_ij φ_ij (x_il − θ_jl)² = Σ_ij φ_ij x_il² − Σ_j N_jl θ_jl², where N_jl is the sum of φ_ij
    over the rows with a value, and θ_jl = Σ_i φ_ij x_il / N_jl are the new centres (Chakraborty,
    Paul, Das & Xu, "Entropy Weighted Power k-Means Clustering", AISTATS 2020, Algorithm 1). It is
    clipped at 0, since rounding might make it negative.

    `squares` are the sums Σ_ij φ_ij x_il², (n_features,), and `masses` are N_jl,
    (n_clusters, n_features) or (n_clusters, 1).
    """
    return np.maximum(squares - (masses * centers * centers).sum(axis=0), 0.0)


def softmin_weights(
    dispersion: FloatArray, lam: float, varying: NDArray[np.bool_] | None = None
) -> FloatArray:
    """Compute feature weights w_l ∝ exp(−D_l / λ), which sum to 1.

    This is eq. 11 of Chakraborty et al. 2020. The units of D and `lam` agree: both are per sample,
    or both are summed. Features that are not `varying` are left out with weight 0; otherwise their
    D = 0 would give them all of the weight. The smallest D is subtracted first, so small λ cannot
    underflow to 0/0.
    """
    if varying is None or varying.all() or not varying.any():
        weights = np.exp((dispersion.min() - dispersion) / lam)
    else:
        weights = np.zeros_like(dispersion)
        kept = dispersion[varying]
        weights[varying] = np.exp((kept.min() - kept) / lam)
    return np.asarray(weights / weights.sum())


def negative_entropy(weights: FloatArray) -> float:
    """Compute Σ_l w_l log w_l, with 0·log 0 = 0 (nats)."""
    positive = weights[weights > 0]
    return float(positive @ np.log(positive))
