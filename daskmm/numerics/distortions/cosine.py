"""The cosine distance, as a squared Euclidean distance between points on a sphere.

With z = x / (√2 ‖x‖) and centres of the same length, ‖z − θ‖² = 1 − cos(x, θ). The sum
Σ φ ‖z − θ‖² over such centres is least in the direction of Σ φ z, so an MM step normalises the
weighted mean: spherical k-means (Dhillon & Modha, "Concept Decompositions for Large Sparse Text
Data using Clustering", Machine Learning 42, 2001) at s = −∞, and its power means at higher s.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.distortions.base import FloatArray
from daskmm.numerics.distortions.bregman import SquaredEuclidean
from daskmm.numerics.sparse_rows import SparseRows

# A mean of unit directions that is shorter than this counts as having no direction.
_UNDIRECTED = 1e-12


class Cosine(SquaredEuclidean):
    """1 − ⟨x, θ⟩ / ‖x‖ with ‖θ‖ = 1, in the coordinates of `SphereCoordinates`."""

    title: ClassVar[str] = "the cosine distance"
    emptiness: ClassVar[str] = "of zeros, which has no direction"
    shifts: ClassVar[bool] = False
    norm: ClassVar[float] = 0.5

    @classmethod
    def empty(cls, rows: NDArray) -> NDArray[np.bool_]:
        """Return the mask of the rows that are all zeros."""
        if isinstance(rows, SparseRows):
            held = rows.row_of_entry[rows.data != 0]
            return np.asarray(np.bincount(held, minlength=len(rows)) == 0)
        empty = np.equal(rows[:, 0], 0)
        first = np.flatnonzero(empty)
        empty[first] = np.equal(rows[first], 0).all(axis=1)
        return np.asarray(empty)

    def allowed(self, centers: FloatArray, before: FloatArray) -> FloatArray:
        """Scale centres to the sphere; centres without a direction stay where they were."""
        lengths = np.sqrt(2.0 * np.square(centers).sum(axis=1, keepdims=True))
        directed = lengths > _UNDIRECTED
        if directed.all():
            return centers / lengths
        return np.where(directed, centers / np.where(directed, lengths, 1.0), before)

    def growth(self, rows: FloatArray, row_weights: FloatArray) -> tuple[float, FloatArray | None]:
        r"""Centres at the mean direction μ separate when (1 − s) λ_max(E[ttᵀ / (1 − ⟨x, μ⟩)]) > r.

        x are the rows at length 1, t their parts orthogonal to μ, and r the length of their mean:
        a shorter mean turns more easily.
        """
        x = np.sqrt(2.0) * rows
        mean = row_weights @ x / row_weights.sum()
        length = max(float(np.sqrt(mean @ mean)), _UNDIRECTED)
        along = x @ (mean / length)
        t = x - along[:, None] * (mean / length)
        distances = 1.0 - along
        directed = distances > _UNDIRECTED
        if not (np.abs(t[directed]) > _UNDIRECTED).any():  # all rows lie on a line
            return 1.0, None
        weights = row_weights[directed] / row_weights[directed].sum()
        return 1.0, t[directed] * np.sqrt(weights / (distances[directed] * length))[:, None]

    def spread(self, rows: FloatArray, row_weights: FloatArray) -> float:
        """Return the mean distance of rows from their mean direction."""
        mean = row_weights @ rows / row_weights.sum()
        return float(max(0.0, 1.0 - np.sqrt(2.0 * (mean @ mean))))

    def reported(self, distances: FloatArray) -> FloatArray:
        """Return 1 − cos."""
        return distances
