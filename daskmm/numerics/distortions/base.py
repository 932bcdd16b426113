"""Interface of the distortions D(x, θ), and the tiles of rows on which they work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.entropy import within_dispersion
from daskmm.numerics.sparse_rows import SparseRows, has_holes, sums_of_rows

FloatArray = NDArray[np.float64]

# ε: starting centres are (1 − ε) x + ε · reference if D is infinite at the edge of its domain.
INWARDS = 0.05


@dataclass(frozen=True)
class Tile:
    """Rows of a tile, and terms that are computed once for all centres."""

    # Rows in the model's coordinates, (n_rows, n_features); 0 where a value is missing.
    rows: FloatArray
    # 1 where there is a value and 0 where it is missing, (n_rows, n_features); None if none is
    # missing.
    observed: FloatArray | None
    # Terms that the distances to all centres share, (n_rows, n_features); the rows themselves if
    # there are none.
    terms: FloatArray
    # Terms of zeros, (n_features,), which have to be added to `terms` for sparse rows, since their
    # zeros are not stored.
    zeros: FloatArray | None = None

    @property
    def originals(self) -> FloatArray:
        """Rows with NaN where values are missing."""
        if self.observed is None:
            return self.rows
        return np.where(self.observed > 0, self.rows, np.nan)


class CenterUpdate(NamedTuple):
    """Sums over a tile that give the next centres and feature weights."""

    # Σ_i φ_ij ω_ijl x_il, with the weights ω of the majorizing function, (n_clusters, n_features).
    sums: FloatArray
    # Σ_i φ_ij ω_ijl over the observed values, (n_clusters, n_features); None where they are
    # Σ_i φ_ij.
    denominators: FloatArray | None
    # Majorizing dispersion of each feature if all centres were 0, (n_features,); None without
    # feature weights.
    squares: FloatArray | None


class Distortion(ABC):
    """A distortion D(x, θ) ≥ 0 that is 0 at x = θ, in the model's coordinates."""

    # Number of the distortion in the compiled loops; None if they do not support it.
    code: ClassVar[int | None] = None
    # Power of ‖x − θ‖ to which the distortion is proportional near 0: 2 for Bregman divergences, 1
    # for norms.
    degree: ClassVar[int] = 2
    # Descriptions of the distortion, and of the values for which it is defined.
    title: ClassVar[str]
    domain: ClassVar[str] = "any number"
    # Description of the rows that have no distances, which `empty` finds.
    emptiness: ClassVar[str] = "without any value"
    # Whether rows in the domain may be infinitely far from centres at its edge.
    infinite: ClassVar[bool] = False
    # Whether the distortion stays the same when rows and centres are shifted together.
    shifts: ClassVar[bool] = False
    # Whether this is the squared Euclidean distance, for which there are faster ways.
    squared: ClassVar[bool] = False
    # Squared norm of rows in the model's coordinates; 0 if these put the mean at the origin.
    norm: ClassVar[float] = 0.0

    @classmethod
    @abstractmethod
    def around(cls, mean: FloatArray, variance: FloatArray) -> Distortion:
        """Return the distortion for rows of this mean and variance, in the model's coordinates."""

    @abstractmethod
    def tile(self, rows: FloatArray, partial: bool) -> Tile:
        """Prepare rows; NaN are missing values where `partial` is set."""

    @abstractmethod
    def distances(
        self, tile: Tile, centers: FloatArray, feature_weights: FloatArray | None
    ) -> FloatArray:
        """Compute Σ_l w_l δ_l(x_il, θ_jl) over the observed values: (n_rows, n_clusters)."""

    @abstractmethod
    def update(
        self,
        tile: Tile,
        phi: FloatArray,
        centers: FloatArray,
        distances: FloatArray,
        feature_weights: FloatArray | None,
    ) -> CenterUpdate:
        """Compute the sums of the MM step for the weights φ (times sample weights)."""

    @classmethod
    def outside(cls, rows: NDArray) -> NDArray[np.bool_] | None:
        """Return the mask of values outside of the domain; None if all are inside or NaN."""
        return None

    @classmethod
    def empty(cls, rows: NDArray) -> NDArray[np.bool_]:
        """Return the mask of the rows that have no distances: those in which all values are NaN."""
        empty = np.zeros(len(rows), dtype=np.bool_)
        if not isinstance(rows, SparseRows) and rows.dtype.kind == "f":
            # Rows whose first value is present, which are most rows, need no further test.
            first = np.flatnonzero(np.isnan(rows[:, 0]))
            empty[first] = np.isnan(rows[first]).all(axis=1)
        return empty

    @abstractmethod
    def inside(self, rows: FloatArray) -> FloatArray:
        """Move rows to nearby centres from which every row has a finite distance."""

    def off_edges(self, centers: FloatArray) -> FloatArray:
        """Move centres that lie on the edge of the domain inside."""
        return centers

    def allowed(self, centers: FloatArray, before: FloatArray) -> FloatArray:
        """Return the nearest allowed centres, or those `before` if there are none."""
        return centers

    @abstractmethod
    def growth(self, rows: FloatArray, row_weights: FloatArray) -> tuple[float, FloatArray | None]:
        """Compute how fast coincident centres separate; see `critical_power`.

        Rows are a sample, where NaN are missing values. The result is the offset and the matrix A,
        (n_rows, n_features), in s_crit = offset − 1/λ_max(AᵀA); A is None if all rows coincide.
        """

    def dispersion(self, squares: FloatArray, masses: FloatArray, means: FloatArray) -> FloatArray:
        """Compute the dispersion within clusters per feature; see `within_dispersion`."""
        return within_dispersion(squares, masses, means)

    def between(self, masses: FloatArray, means: FloatArray) -> FloatArray:
        """Compute the term that `dispersion` subtracts from the squares, per feature."""
        return np.asarray((masses * means * means).sum(axis=0))

    def spread(self, rows: FloatArray, row_weights: FloatArray) -> float:
        """Return the mean distortion of rows (NaN where missing) from their mean."""
        tile = self.tile(rows, has_holes(rows))
        mean = observed_mean(rows, row_weights)[None, :]
        return float(np.average(self.distances(tile, mean, None)[:, 0], weights=row_weights))

    def unsquared(self, distances: FloatArray) -> FloatArray:
        """Return distances, or the roots of divergences that grow like squared distances."""
        return distances if self.degree == 1 else np.sqrt(distances)

    def reported(self, distances: FloatArray) -> FloatArray:
        """Convert distances to the units that users see."""
        return distances


def over_features(terms: FloatArray, feature_weights: FloatArray | None) -> FloatArray:
    """Return the sum of each row's terms, weighted by features if these have weights."""
    return sums_of_rows(terms) if feature_weights is None else terms @ feature_weights


def split_holes(rows: FloatArray, partial: bool) -> tuple[FloatArray, FloatArray | None]:
    """Return rows with 0 in place of NaN, and the mask of values (None unless `partial`)."""
    if not partial:
        return rows, None
    held = ~np.isnan(rows)
    return np.where(held, rows, 0.0), held.astype(np.float64)


def observed_mean(rows: FloatArray, row_weights: FloatArray) -> FloatArray:
    """Return the weighted mean of each feature's values; 0 where it has none."""
    filled, observed = split_holes(rows, has_holes(rows))
    if observed is None:
        return np.asarray(row_weights @ rows / row_weights.sum())
    weight = row_weights @ observed
    return np.divide(row_weights @ filled, weight, out=np.zeros_like(weight), where=weight > 0)
