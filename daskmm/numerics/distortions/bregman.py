r"""Bregman divergences that are sums over features, as matrix products.

.. math:: d(x, \theta) = F(x) - F(\theta) - \langle \nabla F(\theta), x - \theta \rangle

The minimiser of a weighted sum over x is the weighted mean for every F, so k-means and power
k-means anneal with the same sums (Banerjee, Merugu, Dhillon & Ghosh, "Clustering with Bregman
Divergences", JMLR 6, 2005; Vellal, Chakraborty & Xu, "Bregman Power k-Means", ICML 2022).

The three-point identity with a reference m within the domain is

.. math:: d(x, \theta) = d(x, m) + \sum_l c_l(\theta) + \sum_l x_l g_l(\theta),
          \quad g = \nabla F(m) - \nabla F(\theta), \quad c = d(m, \theta) - m g.

Its first term, with the logarithms of the rows, is the same for all centres, and the last one is a
matrix product. Products that cancel are computed again from the definition, in a form that does not
cancel where x is near θ.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from daskmm.numerics.distances import CANCELLATION, REDO_ELEMENTS
from daskmm.numerics.distortions.base import (
    INWARDS,
    CenterUpdate,
    Distortion,
    FloatArray,
    Tile,
    observed_mean,
    over_features,
    split_holes,
)
from daskmm.numerics.sparse_rows import SparseRows, dense, has_holes

# Coefficients of t − log(1 + t) in q = t/(2 + t): t q − 2 q³ Σ_i q^(2i) / (2i + 3).
_SERIES = tuple(1.0 / (2 * i + 3) for i in range(14))
# The series is used for |t| below this.
_NEAR = 0.4


class Planes(NamedTuple):
    """Centres in the form that the matrix products take."""

    # c and g, (n_clusters, n_features); 0 where a centre is on an edge from which the divergence is
    # infinite.
    constants: FloatArray
    factors: FloatArray
    # Sum of the absolute terms of a product, to which its rounding is proportional, (n_clusters,).
    reaches: FloatArray
    # 1 where a centre is at the lower edge of the domain and 2 where it is at the upper one,
    # (n_clusters, n_features); None if no centre is at an edge. Only rows at the same edge have a
    # finite distance from it.
    edges: NDArray[np.int8] | None


def minus_log1p(t: FloatArray) -> FloatArray:
    """Compute t − log(1 + t) for t ≥ −1, accurate also for small t."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q = t / (2.0 + t)
        square = q * q
        series = np.zeros_like(q)
        for coefficient in reversed(_SERIES):
            series *= square
            series += coefficient
        return np.where(np.abs(t) < _NEAR, q * (t - 2.0 * square * series), t - np.log1p(t))


@dataclass(frozen=True, eq=False)
class Bregman(Distortion):
    """A Bregman divergence that is a sum over features."""

    # m, a point within the domain, best near the mean of the rows, (n_features,).
    reference: FloatArray

    # Ends of the domain, and whether they belong to it.
    lowest: ClassVar[float] = -np.inf
    highest: ClassVar[float] = np.inf
    closed: ClassVar[bool] = True

    @classmethod
    def around(cls, mean: FloatArray, variance: FloatArray) -> Bregman:
        """Return the divergence with its reference at the mean, or inside if that is on an edge."""
        fallback = 0.5 * cls.highest if cls.highest < np.inf else 1.0
        within = (mean > cls.lowest) & (mean < cls.highest)
        return cls(np.where(within, mean, fallback))

    @abstractmethod
    def elements(self, x: FloatArray, theta: FloatArray) -> FloatArray:
        """Compute δ(x_l, θ_l) per feature, accurately near 0, with its limits on the edges."""

    @abstractmethod
    def gradient(self, theta: FloatArray) -> FloatArray:
        """Compute ∇F inside the domain."""

    @abstractmethod
    def curvature(self, theta: FloatArray) -> FloatArray:
        """Compute the diagonal of ∇²F inside the domain."""

    def planes(self, centers: FloatArray, feature_weights: FloatArray | None = None) -> Planes:
        """Prepare centres for the matrix products."""
        m = self.reference
        edges = self._edges(centers)
        theta = centers if edges is None else np.where(edges > 0, m, centers)
        factors = self.gradient(m) - self.gradient(theta)
        constants = self.elements(np.broadcast_to(m, theta.shape), theta) - m * factors
        if edges is not None:
            # A row at the edge has distance 0 from it: its own term is subtracted.
            for edge, value in ((1, self.lowest), (2, self.highest)):
                at_edge = np.broadcast_to(np.asarray(value), m.shape)
                if (edges == edge).any():
                    own = np.broadcast_to(self.elements(at_edge, m), theta.shape)
                    constants = np.where(edges == edge, -own, constants)
        sizes = np.abs(constants) + np.abs(m * factors)
        if feature_weights is not None:
            constants, factors = constants * feature_weights, factors * feature_weights
            sizes = sizes * feature_weights
        return Planes(constants, factors, sizes.sum(axis=1), edges)

    def _edges(self, centers: FloatArray) -> NDArray[np.int8] | None:
        if self.lowest == -np.inf and self.highest == np.inf:
            return None
        lower, upper = centers <= self.lowest, centers >= self.highest
        if not (lower.any() or upper.any()):
            return None
        return (lower + 2 * upper).astype(np.int8)

    def tile(self, rows: FloatArray, partial: bool) -> Tile:
        """Prepare rows, with their divergences from the reference per feature.

        Terms of sparse rows are differences from those of zeros, which are sparse too.
        """
        if isinstance(rows, SparseRows):
            m = np.broadcast_to(self.reference, rows.shape[1:])
            zeros, at = self.elements(np.zeros_like(m), m), rows.indices
            terms = self.elements(rows.data, m[at]) - zeros[at]
            return Tile(rows, None, rows.with_data(terms), zeros)
        filled, observed = split_holes(rows, partial)
        if observed is None:
            return Tile(filled, None, self.terms(filled))
        valid = np.where(observed > 0, filled, self.reference)
        return Tile(filled, observed, self.terms(valid))

    def terms(self, rows: FloatArray) -> FloatArray:
        """Compute the divergence of rows from the reference, per feature."""
        return self.elements(rows, self.reference)

    def distances(
        self, tile: Tile, centers: FloatArray, feature_weights: FloatArray | None = None
    ) -> FloatArray:
        """Compute divergences by matrix products; where these cancel, by the definition."""
        constants, factors, reaches, edges = self.planes(centers, feature_weights)
        own = over_features(tile.terms, feature_weights)
        if tile.zeros is not None:
            whole = over_features(tile.zeros[None], feature_weights)
            own, reaches = own + whole, reaches + whole
        distances = tile.rows @ factors.T
        if tile.observed is None:
            distances += own[:, None] + constants.sum(axis=1)
        else:
            distances += tile.observed @ constants.T
            distances += own[:, None]
        if edges is not None:
            self._separate(distances, tile, edges)
        near = np.nonzero(distances < CANCELLATION * (own[:, None] + reaches))
        step = max(1, REDO_ELEMENTS // tile.rows.shape[1])
        for start in range(0, len(near[0]), step):
            i, j = (index[start : start + step] for index in near)
            terms = self.elements(dense(tile.rows[i]), centers[j])
            if tile.observed is not None:
                terms = np.where(tile.observed[i] > 0, terms, 0.0)
            distances[i, j] = over_features(terms, feature_weights)
        return distances

    def _separate(self, distances: FloatArray, tile: Tile, edges: NDArray[np.int8]) -> None:
        """Set distances to centres on an edge to ∞ for all rows that are not on it."""
        held = True if tile.observed is None else tile.observed > 0
        for edge in (1, 2):
            chosen = np.flatnonzero((edges == edge).any(axis=1))
            if len(chosen):
                apart = tile.rows > self.lowest if edge == 1 else tile.rows < self.highest
                beside = (apart if held is True else apart & held).astype(np.float32)
                counts = beside @ (edges[chosen] == edge).astype(np.float32).T
                distances[:, chosen] = np.where(counts > 0, np.inf, distances[:, chosen])

    def update(
        self,
        tile: Tile,
        phi: FloatArray,
        centers: FloatArray,
        distances: FloatArray,
        feature_weights: FloatArray | None,
    ) -> CenterUpdate:
        """Compute weighted sums: the mean is the best centre for every Bregman divergence."""
        sums = phi.T @ tile.rows
        denominators = None if tile.observed is None else phi.T @ tile.observed
        squares = None
        if feature_weights is not None:
            squares = phi.sum(axis=1) @ tile.terms
            if tile.zeros is not None:
                squares = squares + phi.sum() * tile.zeros
        return CenterUpdate(sums, denominators, squares)

    @classmethod
    def outside(cls, rows: NDArray) -> NDArray[np.bool_] | None:
        """Return the mask of values outside of the domain."""
        if cls.lowest == -np.inf or rows.size == 0:
            return None
        least = rows.min()  # NaN if any value is NaN
        above = least >= cls.lowest if cls.closed else least > cls.lowest
        if above and (cls.highest == np.inf or rows.max() <= cls.highest):
            return None
        if isinstance(rows, SparseRows):
            outside = cls.outside(rows.data)
            return None if outside is None else rows.with_data(outside)
        bad: NDArray[np.bool_] = rows < cls.lowest if cls.closed else rows <= cls.lowest
        bad |= rows > cls.highest
        return bad if bad.any() else None

    def inside(self, rows: FloatArray) -> FloatArray:
        """Move rows towards the reference, which also replaces missing values."""
        rows = dense(rows)
        filled = np.where(np.isnan(rows), self.reference, rows)
        return filled + INWARDS * (self.reference - filled)

    def off_edges(self, centers: FloatArray) -> FloatArray:
        """Move centres that lie on the edge of the domain inside."""
        edges = self._edges(centers)
        if edges is None:
            return centers
        beside = (edges > 0).any(axis=1, keepdims=True)
        return np.where(beside, self.inside(centers), centers)

    def restricted(self, features: NDArray[np.bool_]) -> Bregman:
        """Return the divergence between some of the features, by default the divergence itself."""
        return self

    def growth(self, rows: FloatArray, row_weights: FloatArray) -> tuple[float, FloatArray | None]:
        r"""Centres at the mean μ separate when (1 − s) λ_max(E[H^½ zzᵀ H^½ / d(x, μ)]) > 1.

        z is x − μ on the observed features, and H is ∇²F(μ) divided by their share. H = 2 for the
        squared Euclidean distance.
        """
        mean, held = observed_mean(rows, row_weights), None
        if has_holes(rows):
            held = ~np.isnan(rows)
            rows = np.where(held, rows, mean)
        varying = rows.min(axis=0) < rows.max(axis=0)
        if not varying.all():
            rows, mean = rows[:, varying], mean[varying]
            held = None if held is None else held[:, varying]
        own = self.restricted(varying)
        distances = own.elements(rows, mean).sum(axis=1)
        # Rows at the mean have no direction; rounding must not give them one.
        directed = distances > 1e-24 * distances.max(initial=0.0)
        if not directed.any():
            return 1.0, None
        weights = row_weights[directed] / row_weights[directed].sum()
        scale = own.curvature(mean)
        if held is not None:
            scale = scale / np.maximum(weights @ held[directed], np.finfo(float).tiny)
        z = (rows if directed.all() else rows[directed]) - mean
        z *= np.sqrt(scale)
        # Roots are taken first, as the quotient overflows for subnormal distances.
        z *= (np.sqrt(weights) / np.sqrt(distances[directed]))[:, None]
        return 1.0, z


class SquaredEuclidean(Bregman):
    """(x − θ)², whose generator is x²: the distance of k-means."""

    code: ClassVar[int | None] = 0
    title: ClassVar[str] = "the squared Euclidean distance"
    shifts: ClassVar[bool] = True
    squared: ClassVar[bool] = True

    @classmethod
    def around(cls, mean: FloatArray, variance: FloatArray) -> SquaredEuclidean:
        """Return the distance; its reference is the mean, which is 0 in the model's coordinates."""
        return cls(np.zeros_like(mean))

    def tile(self, rows: FloatArray, partial: bool) -> Tile:
        """Prepare rows, with their squares."""
        if isinstance(rows, SparseRows):
            return Tile(rows, None, rows.with_data(np.square(rows.data)))
        return super().tile(rows, partial)

    def planes(self, centers: FloatArray, feature_weights: FloatArray | None = None) -> Planes:
        """Prepare centres as θ² and −2θ: the reference is 0."""
        weighted = centers if feature_weights is None else centers * feature_weights
        squares = weighted * centers
        return Planes(squares, -2.0 * weighted, squares.sum(axis=1), None)

    def weighed(self, rows: Any, feature_weights: FloatArray) -> tuple[Any, SquaredEuclidean]:
        """Scale rows so that distances without weights equal those with feature weights."""
        roots = np.sqrt(feature_weights)
        if isinstance(rows, SparseRows):
            return rows.with_data(rows.data * roots[rows.indices]), self
        return rows * roots, self

    def elements(self, x: FloatArray, theta: FloatArray) -> FloatArray:
        """Return (x − θ)²."""
        difference = x - theta
        difference *= difference
        return difference

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return 2 θ."""
        return 2.0 * theta

    def curvature(self, theta: FloatArray) -> FloatArray:
        """Return 2."""
        return np.full_like(theta, 2.0)

    def inside(self, rows: FloatArray) -> FloatArray:
        """Return rows with missing values replaced by the reference."""
        rows = dense(rows)
        return np.where(np.isnan(rows), self.reference, rows)

    def reported(self, distances: FloatArray) -> FloatArray:
        """Return ‖x − θ‖."""
        return np.sqrt(distances)


class KullbackLeibler(Bregman):
    """x log(x/θ) − x + θ, the generalised I-divergence, whose generator is x log x.

    It is defined for x ≥ 0. It is the Kullback-Leibler divergence of probabilities, and half the
    Poisson deviance of counts.
    """

    code: ClassVar[int | None] = 1
    title: ClassVar[str] = "the I-divergence"
    domain: ClassVar[str] = "x ≥ 0"
    infinite: ClassVar[bool] = True
    lowest: ClassVar[float] = 0.0

    def elements(self, x: FloatArray, theta: FloatArray) -> FloatArray:
        """Compute the divergence, which is θ at x = 0, and ∞ at θ = 0 < x."""
        return information(x, theta)

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return log θ."""
        return np.log(theta)

    def curvature(self, theta: FloatArray) -> FloatArray:
        """Return 1/θ."""
        return 1.0 / theta


class ItakuraSaito(Bregman):
    """x/θ − log(x/θ) − 1, whose generator is −log x.

    It is defined for x > 0. It is Itakura & Saito's distance of power spectra, and half the
    deviance of gamma distributions of one shape.
    """

    code: ClassVar[int | None] = 2
    title: ClassVar[str] = "the Itakura-Saito divergence"
    domain: ClassVar[str] = "x > 0"
    lowest: ClassVar[float] = 0.0
    closed: ClassVar[bool] = False

    def elements(self, x: FloatArray, theta: FloatArray) -> FloatArray:
        """Compute the divergence."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            t = (x - theta) / theta
            # 1 + t loses all digits of an x that is far below θ.
            return np.where(t < -0.5, t - (np.log(x) - np.log(theta)), minus_log1p(t))

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return −1/θ."""
        return -1.0 / theta

    def curvature(self, theta: FloatArray) -> FloatArray:
        """Return 1/θ²."""
        return 1.0 / (theta * theta)


class Logistic(Bregman):
    """x log(x/θ) + (1 − x) log((1 − x)/(1 − θ)), whose generator is the negative binary entropy.

    It is defined for 0 ≤ x ≤ 1, and is half the deviance of binomial distributions per trial.
    """

    code: ClassVar[int | None] = 3
    title: ClassVar[str] = "the logistic divergence"
    domain: ClassVar[str] = "0 ≤ x ≤ 1"
    infinite: ClassVar[bool] = True
    lowest: ClassVar[float] = 0.0
    highest: ClassVar[float] = 1.0

    def elements(self, x: FloatArray, theta: FloatArray) -> FloatArray:
        """Compute the divergence, with its limits at the edges."""
        return information(x, theta) + information(1.0 - x, 1.0 - theta)

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return log(θ/(1 − θ))."""
        return np.log(theta) - np.log1p(-theta)

    def curvature(self, theta: FloatArray) -> FloatArray:
        """Return 1/(θ (1 − θ))."""
        return 1.0 / (theta * (1.0 - theta))


def information(x: FloatArray, theta: FloatArray) -> FloatArray:
    """Compute x log(x/θ) − x + θ for x, θ ≥ 0, accurate also where x is near θ."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        excess = (theta - x) / x
        near = np.abs(excess) < _NEAR
        far = np.where(x == 0, theta, theta - x + xlogy(x, x / theta))
        return np.where(near, x * minus_log1p(np.where(near, excess, 0.0)), far)


SQUARED_EUCLIDEAN = SquaredEuclidean(np.zeros(1))


class Metric(NamedTuple):
    """The distortion between rows, and the column of each feature (None: each is a column)."""

    distortion: Distortion = SQUARED_EUCLIDEAN
    groups: NDArray[np.int64] | None = None


PLAIN = Metric()
