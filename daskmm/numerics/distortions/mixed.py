"""Divergence of rows with columns of several kinds, on a common scale.

A column is a group of the model's features: one for a number or a flag, one per level for a
category, cosine and sine for the season of a date. The divergence is squared Euclidean for numbers
and seasons, logistic for flags, and the Kullback-Leibler divergence between shares of levels for
categories. Each is divided by the mean divergence of the rows from their mean, so that every column
adds 1 to the mean distance of the rows from their mean.

The features of a category are not the indicator (0, …, 1, …, 0) but (1 − ε) times it plus ε times
the shares of all rows, and features of flags are smoothed in the same way. So no centre is
infinitely far from a row, and means are smoothed shares. Centres are reported without smoothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.columns import CATEGORY, FLAG, NUMBER, Expansion, MixedCoordinates
from daskmm.numerics.distortions.base import INWARDS, FloatArray
from daskmm.numerics.distortions.bregman import Bregman, information

_Function = Callable[[FloatArray], FloatArray]

# Scale of the coordinates of flags and levels, which smooths their values.
_SMOOTHING = 1.0 / (1.0 - INWARDS)
# Shares may exceed their bounds by this rounding error.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Mixed(Bregman):
    """Sum of divergences of several kinds, each multiplied by the factor of its feature."""

    # NUMBER (also for seasons and constant features), FLAG or CATEGORY, (n_features,).
    kinds: NDArray[np.int64]
    factors: FloatArray  # factor of each feature's divergence, (n_features,)

    title: ClassVar[str] = "the divergence of mixed columns"
    shifts: ClassVar[bool] = True

    @classmethod
    def around(cls, mean: FloatArray, variance: FloatArray) -> Bregman:
        """Return the divergence of numbers alone; `measured` returns that of other kinds."""
        return cls(np.zeros_like(mean), np.full(len(mean), NUMBER), np.ones_like(mean))

    def elements(self, x: FloatArray, theta: FloatArray) -> FloatArray:
        """Compute each feature's divergence."""
        x, theta = np.broadcast_arrays(x, theta)
        found = np.square(x - theta)
        # A flag has two levels, but the second one has no feature.
        flags, levels = np.flatnonzero(self.kinds == FLAG), np.flatnonzero(self.kinds == CATEGORY)
        shares = np.concatenate([flags, levels])
        a, b = x[..., shares], theta[..., shares]
        n_flags = len(flags)
        all_levels = [np.concatenate([t, 1.0 - t[..., :n_flags]], axis=-1) for t in (a, b)]
        terms = information(*all_levels)
        terms[..., :n_flags] += terms[..., len(shares) :]
        found[..., shares] = terms[..., : len(shares)]
        found *= self.factors
        return found

    def terms(self, rows: FloatArray) -> FloatArray:
        """Compute the divergence of rows from the reference, per feature.

        The feature of a flag or level takes three values in the rows of a table: without it, with
        it, and the reference where it is missing. Logarithms are taken once for each of them.
        """
        share, m = self._is_share, self.reference
        values = np.stack([_smoothed(0.0, m), _smoothed(1.0, m)])
        low, high = np.where(share, values, np.nan)
        of_low, of_high = self.elements(values, m)
        there = rows == high
        found = np.where(there, of_high, of_low)
        n_other = len(rows) * np.count_nonzero(share)
        n_other -= np.count_nonzero(there) + np.count_nonzero(rows == low)
        if n_other:
            missing = rows == np.where(share, m, np.nan)
            if n_other > np.count_nonzero(missing):  # means of rows have further values
                return self.elements(rows, m)
            found[missing] = 0.0
        found[:, ~share] = self.factors[~share] * np.square(rows[:, ~share] - m[~share])
        return found

    @property
    def _is_share(self) -> NDArray[np.bool_]:
        """Mask of the features of flags and levels."""
        return (self.kinds == FLAG) | (self.kinds == CATEGORY)

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return 2 θ, log(θ/(1 − θ)) or log θ by kind, times the factors."""
        return self._by_kind(
            theta, lambda t: 2.0 * t, lambda t: np.log(t) - np.log1p(-t), lambda t: np.log(t)
        )

    def curvature(self, theta: FloatArray) -> FloatArray:
        """Return 2, 1/(θ (1 − θ)) or 1/θ by kind, times the factors."""
        return self._by_kind(
            theta,
            lambda t: np.full_like(t, 2.0),
            lambda t: 1.0 / (t * (1.0 - t)),
            lambda t: 1.0 / t,
        )

    def _by_kind(
        self, theta: FloatArray, number: _Function, flag: _Function, level: _Function
    ) -> FloatArray:
        found = np.asarray(number(theta))
        for kind, function in ((FLAG, flag), (CATEGORY, level)):
            own = self.kinds == kind
            found[..., own] = function(theta[..., own])
        return found * self.factors

    def restricted(self, features: NDArray[np.bool_]) -> Self:
        """Return the divergence between some of the features."""
        return replace(
            self,
            reference=self.reference[features],
            kinds=self.kinds[features],
            factors=self.factors[features],
        )

    def weighed(self, rows: Any, feature_weights: FloatArray) -> tuple[Any, Mixed]:
        """Return rows and the divergence in which features are weighted."""
        return rows, replace(self, factors=self.factors * feature_weights)

    @property
    def entropies(self) -> FloatArray:
        """Mean divergence, in nats, of all rows from their mean in the column of each feature.

        It is NaN for numbers and constant features.
        """
        return np.where(self._is_share, 1.0 / self.factors, np.nan)

    def inside(self, rows: FloatArray) -> FloatArray:
        """Return rows with missing values replaced by the reference; all are inside the domain."""
        return np.where(np.isnan(rows), self.reference, rows)

    def allowed(self, centers: FloatArray, before: FloatArray) -> FloatArray:
        """Clip centres to shares that rows can have; estimated sums may lead beyond them.

        Shares of none or all rows are exact, so that rows are at the same distance of all clusters
        with this share, whatever the order of sums.
        """
        is_share = self._is_share
        least = np.where(is_share, _smoothed(0.0, self.reference), -np.inf)
        most = np.where(is_share, _smoothed(1.0, self.reference), np.inf)
        found = np.where(centers <= least + _ROUNDING, least, centers)
        return np.where(centers >= most - _ROUNDING, most, found)

    def dispersion(self, squares: FloatArray, masses: FloatArray, means: FloatArray) -> FloatArray:
        """Compute D_l = Σ_i φ_ij d(x_il, m_l) − Σ_j N_jl d(θ_jl, m_l), with the reference m."""
        return np.maximum(squares - self.between(masses, means), 0.0)

    def between(self, masses: FloatArray, means: FloatArray) -> FloatArray:
        """Compute Σ_j N_jl d(θ_jl, m_l)."""
        return np.asarray((masses * self.elements(means, self.reference)).sum(axis=0))


def measured(
    expansion: Expansion,
    mean: FloatArray,
    variance: FloatArray,
    shares: FloatArray,
    weigh_shares: bool,
) -> tuple[MixedCoordinates, Mixed, FloatArray]:
    """Return coordinates and divergence for rows of given moments, and the spread of each feature.

    The moments, (n_features,), are those of the observed values, and `shares` are the shares of the
    rows that have a value. `weigh_shares` says whether a column with missing values counts as much
    as a complete one. The spread is the mean divergence of the rows from their mean, where missing
    values count as 0; the features of a column sum to 1, or to the share of rows with a value.
    """
    groups = expansion.groups
    kinds = expansion.kinds[groups]
    is_share = (kinds == FLAG) | (kinds == CATEGORY)
    deviation = np.sqrt(np.bincount(groups, variance))[groups]
    deviation[deviation == 0] = 1.0
    scale = np.where(is_share, _SMOOTHING, deviation)
    shift = np.where(is_share, mean, 0.0)
    coordinates = MixedCoordinates(expansion, mean, scale, shift)
    constant = is_share & ((mean <= 0) | (mean >= 1))
    kinds = np.where(constant | ~is_share, NUMBER, kinds)
    plain = Mixed(shift, kinds, np.ones(len(kinds)))
    # A row has a flag or level with probability `mean`.
    with_it = plain.elements(_smoothed(1.0, mean), shift)
    without = plain.elements(_smoothed(0.0, mean), shift)
    expected = np.where(
        is_share, mean * with_it + (1 - mean) * without, variance / np.square(scale)
    )
    expected[constant] = 0.0
    whole = np.bincount(groups, expected)[groups]
    factors = 1.0 / np.where(whole > 0, whole, 1.0)
    if weigh_shares:
        factors = factors / shares
    return coordinates, replace(plain, factors=factors), shares * expected * factors


def _smoothed(x: float, share: FloatArray) -> FloatArray:
    """Return the coordinate of rows with a flag or level (x = 1) or without it (x = 0)."""
    return (x - share) / _SMOOTHING + share
