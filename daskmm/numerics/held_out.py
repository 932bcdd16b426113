"""Compute the share of each feature's variance that other features predict.

A feature must not predict itself: a cluster of the rows with one word explains this word
completely, and so does a principal axis that points at it. So the features are split at random into
two halves, and directions of one half predict the features of the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.stats import chi2

from daskmm.numerics.sparse_rows import SparseRows

FloatArray = NDArray[np.float64]

# Number of subspace iterations, and of directions beyond the wanted ones, which speed up
# convergence.
_ITERATIONS, _FURTHER = 4, 8
# Features whose weight is below this share of the largest do not determine directions.
_NEGLIGIBLE = 1e-4


class HeldOut(NamedTuple):
    """Shares of the features' variance along the leading directions of other features."""

    shares: FloatArray  # share of each feature's variance, (n_features,); 0 for a constant feature
    chance: float  # expected share for a feature that is independent of all others
    n_directions: int

    def limit(self, n_features: int) -> float:
        """Return the share that one of `n_features` independent features is expected to exceed.

        The share of a feature without long tails is chance · χ² / n_directions, with n_directions
        degrees of freedom.
        """
        tail = chi2.isf(1.0 / n_features, self.n_directions)
        return float(self.chance / self.n_directions * tail)


class Standardized:
    """Sparse rows whose features are standardised to mean 0 and variance 1 without dense rows.

    Rows are in the model's coordinates, and their weights are positive.
    """

    def __init__(self, rows: SparseRows, row_weights: FloatArray) -> None:
        share = row_weights / row_weights.sum()
        mean = np.asarray(share @ rows)
        squares = np.bincount(
            rows.indices, share[rows.row_of_entry] * np.square(rows.data), rows.shape[1]
        )
        variance = squares - np.square(mean)
        varying = variance > 1e-12 * squares
        factor = np.where(varying, 1.0 / np.sqrt(np.where(varying, variance, 1.0)), 0.0)
        root = np.sqrt(share)
        data = rows.data * factor[rows.indices] * root[rows.row_of_entry]
        self.varying = varying
        # The matrix is `held` − `root` `offset`ᵀ.
        self.held = csr_array(rows.with_data(data.astype(np.float32)))
        self.root, self.offset = root, mean * factor

    def halves(
        self, feature_weights: FloatArray, n_directions: int, rng: np.random.Generator
    ) -> HeldOut:
        """Compute which share of the variance of each half of the features the other half predicts.

        `feature_weights` weigh the features that determine directions.
        """
        varying = np.flatnonzero(self.varying)
        shares, chances, number = np.zeros(len(self.offset)), [], n_directions
        first, second = np.array_split(rng.permutation(varying), 2)
        for own, others in ((first, second), (second, first)):
            weights = feature_weights[own]
            if not weights.any():
                weights = np.ones(len(own))
            used = weights > _NEGLIGIBLE * weights.max()
            found = self._directions(own[used], weights[used], n_directions, rng)
            number = min(number, found.shape[1])
            along = self.held.T @ found - np.outer(self.offset, self.root @ found)
            shares[others] = np.square(along[others]).sum(axis=1)
            chances.append(np.square(self.root) @ np.square(found).sum(axis=1))
        return HeldOut(shares, float(np.mean(chances)), number)

    def _directions(
        self,
        features: NDArray[np.int64],
        weights: FloatArray,
        number: int,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Return the leading left singular vectors of some features, as columns."""
        roots = np.sqrt(weights)
        held = csr_array(self.held[:, features] @ diags_array(roots.astype(np.float32)))
        offset = self.offset[features] * roots
        size = min(number + _FURTHER, *held.shape)
        basis = rng.normal(size=(len(features), size))
        for _ in range(_ITERATIONS):
            left, _ = np.linalg.qr(held @ basis - np.outer(self.root, offset @ basis))
            basis = held.T @ left - np.outer(offset, self.root @ left)
        basis, _ = np.linalg.qr(basis)
        left, _, _ = np.linalg.svd(
            held @ basis - np.outer(self.root, offset @ basis), full_matrices=False
        )
        return np.asarray(left[:, :number])
