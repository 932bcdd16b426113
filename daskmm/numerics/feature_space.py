"""Distances to cluster means in feature space, from products with the Gram matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def feature_distances(
    product: FloatArray, memberships: FloatArray, diagonal: FloatArray
) -> FloatArray:
    """Compute the squared distances in feature space of all rows to all cluster means.

    d_ij = K_ii − 2 (K W)_ij + (Wᵀ K W)_jj, clipped at 0. The columns of W sum to 1, and θ_j = Σ_i
    W_ij φ(x_i) are the means. `product` is K W, one sweep over the Gram matrix; the result is of
    shape (n_rows, n_clusters).

    This is eq. 7 of Paul, Chakraborty, Das & Xu, "Kernel k-Means, By All Means", 2020.
    """
    norms = np.einsum("ij,ij->j", memberships, product)
    distances = -2.0 * product
    distances += diagonal[:, None]
    distances += norms
    return np.maximum(distances, 0.0, out=distances)


def normalized_memberships(phi: FloatArray, previous: FloatArray) -> FloatArray:
    """Compute W_ij = φ_ij / Σ_i φ_ij; a cluster whose Σφ is 0 keeps its mean.

    `phi` are the φ times the sample weights, and `previous` is W before the step.

    It is a step of Algorithm 1 in Paul, Chakraborty, Das & Xu, "Kernel k-Means, By All Means",
    2020: w below (6).
    """
    total = phi.sum(axis=0)
    occupied = total > 0
    memberships = previous.copy()
    memberships[:, occupied] = phi[:, occupied] / total[occupied]
    return memberships


def one_hot(labels: NDArray[np.int_], n_clusters: int) -> FloatArray:
    """Return memberships of hard labels; columns sum to 1, or 0 for an empty cluster."""
    counts = np.bincount(labels, minlength=n_clusters)
    memberships = np.zeros((len(labels), n_clusters))
    memberships[np.arange(len(labels)), labels] = 1.0 / counts[labels]
    return memberships


def critical_power_of_gram(gram: FloatArray, row_weights: FloatArray) -> float:
    """Return the power above which all means in feature space fall onto the grand mean.

    s_crit = 1 − 1/(2 λ_max) as in `critical_power`, with the largest eigenvalue of the centred
    Gram matrix of a sample whose rows are normalised in feature space.
    """
    v = row_weights / row_weights.sum()
    means = gram @ v
    centred = gram - means[:, None] - means + v @ means
    norms = np.sqrt(np.maximum(np.diag(centred), 0.0))
    directed = norms > 1e-7 * norms.max(initial=0.0)
    if not directed.any():
        return 0.5
    weights = np.sqrt(v[directed] / v[directed].sum()) / norms[directed]
    directions = centred[np.ix_(directed, directed)] * weights[:, None] * weights
    return 1.0 - 1.0 / (2.0 * float(np.linalg.eigvalsh(directions)[-1]))
