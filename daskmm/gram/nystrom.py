"""Nyström features, which approximate a kernel's feature space by a few landmark rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from daskmm.gram.matrices import GramSource
from daskmm.numerics.kernels import Kernel, check_function, finite_block
from daskmm.numerics.rows import Coordinates

FloatArray = NDArray[np.float64]

# Eigenvalues of the landmarks' Gram matrix below this share of the largest are rounding errors.
_RANK = 1e-10
# Landmarks are drawn from at most this many rows or, if that is more, this many per landmark.
_CANDIDATES = 4000
_CANDIDATES_PER_ROW = 4


@dataclass(frozen=True)
class NystromCoordinates:
    """Map from rows to Nyström features: z = k(x, L) U Λ^(−1/2) − mean, with K_LL = U Λ Uᵀ.

    Squared distances between features approximate squared distances in feature space. They are
    exact between landmarks (Williams & Seeger, NIPS 2000).
    """

    rows: Coordinates  # map from the input's units to the kernel's units
    kernel: Kernel
    landmarks: FloatArray  # landmarks in the kernel's units, (n_landmarks, n_features)
    whitening: FloatArray  # U Λ^(−1/2), (n_landmarks, rank)
    mean: FloatArray  # mean of the features, (rank,); without it, products would cancel

    def to_model(self, rows: NDArray) -> FloatArray:
        """Return the features of rows in the input's units."""
        return self.features(self.rows.to_model(rows))

    def features(self, rows: FloatArray) -> FloatArray:
        """Return the features of rows in the kernel's units."""
        z = finite_block(self.kernel, rows, self.landmarks) @ self.whitening
        z -= self.mean
        return z


def whitening_of(gram: FloatArray) -> FloatArray:
    """Return U Λ^(−1/2) of a Gram matrix, without directions of rounding errors."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > _RANK * values[-1]
    whitening: FloatArray = vectors[:, kept] / np.sqrt(values[kept])
    return whitening


def _check_rank(rank: int) -> None:
    """Raise ValueError if rows have no features."""
    if rank == 0:
        raise ValueError(
            "kernel is 0 for each row with itself, so that all rows coincide in its feature space "
            "and have no clusters. Linear kernels of equal rows are an example."
        )


def nystrom_coordinates(
    sample: FloatArray,
    weights: FloatArray,
    rows: Coordinates,
    kernel: Kernel,
    n_landmarks: int,
    seed: int,
) -> NystromCoordinates:
    """Choose landmarks among the rows of a sample by k-means++.

    The sample is in the kernel's units, to which `rows` maps from the input's units. It raises
    ValueError if the sample has fewer rows than landmarks, or if the values of a function between
    them show that it is no kernel.
    """
    if n_landmarks > len(sample):
        raise ValueError(
            f"n_landmarks={n_landmarks} is more than n_samples={len(sample)}, rows to choose from."
        )
    rng = np.random.RandomState(seed)
    landmarks, _ = kmeans_plusplus(sample, n_landmarks, sample_weight=weights, random_state=rng)
    check_function(kernel, landmarks)
    whitening = whitening_of(finite_block(kernel, landmarks, landmarks))
    _check_rank(whitening.shape[1])
    raw = NystromCoordinates(rows, kernel, landmarks, whitening, np.zeros(whitening.shape[1]))
    mean = np.average(raw.features(sample), axis=0, weights=weights)
    return NystromCoordinates(rows, kernel, landmarks, whitening, mean)


def kernel_plus_plus(
    gram: GramSource, weights: FloatArray, n_rows: int, rng: np.random.RandomState
) -> NDArray[np.int64]:
    """Draw rows by k-means++ in feature space (Arthur & Vassilvitskii 2007, without trials).

    The rows of a large table are drawn from a uniform sample of a few thousand. They are distinct;
    if fewer than `n_rows` rows have a positive weight, all of those are returned.
    """
    eligible = np.flatnonzero(weights > 0)
    if n_rows >= len(eligible):
        return eligible
    wanted = max(_CANDIDATES, _CANDIDATES_PER_ROW * n_rows)
    if wanted < len(eligible):
        eligible = np.sort(rng.choice(eligible, wanted, replace=False))
    among, v = gram.submatrix(eligible), weights[eligible]
    norms = np.diag(among)
    chosen = [int(rng.choice(len(v), p=v / v.sum()))]
    nearest = np.full(len(v), np.inf)
    while len(chosen) < n_rows:
        last = chosen[-1]
        distances = norms - 2.0 * among[:, last] + norms[last]
        nearest = np.minimum(nearest, np.maximum(distances, 0.0))
        nearest[chosen] = 0.0
        mass = nearest * v
        if mass.sum() == 0.0:  # all others coincide with a chosen row
            break
        chosen.append(int(rng.choice(len(v), p=mass / mass.sum())))
    return eligible[chosen]


def nystrom_factors(grams: Sequence[GramSource], landmarks: NDArray[np.int64]) -> list[FloatArray]:
    """Return Nyström features Z of all rows for each kernel: K ≈ Z Zᵀ, exactly for landmarks.

    `landmarks` are the indices of rows. ValueError is raised if there are no features.
    """
    factors = [gram.columns(landmarks) @ whitening_of(gram.submatrix(landmarks)) for gram in grams]
    _check_rank(sum(factor.shape[1] for factor in factors))
    return factors
