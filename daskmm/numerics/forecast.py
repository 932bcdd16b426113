"""Forecast the statistics of a batch from those before, and how far off a forecast is by chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

FloatArray = NDArray[np.float64]

# Level, trend and season are those of the last eight seasons; three are enough to tell them apart.
SEASONS, ENOUGH = 8, 3
# Batches differ if this share of the statistics varies more than rows that are drawn independently
# do, each with probability `_CHANCE`.
_SHARE, _CHANCE = 1 / 8, 1e-3


@dataclass(frozen=True)
class Series:
    """Statistics of consecutive batches.

    Attributes
    ----------
    numbers : ndarray of int of shape (n_batches,)
        Numbers of the batches, such as days; a season is a cycle of these numbers.
    values, variances : ndarray of shape (n_batches, n_statistics)
        The statistics, and their variances if rows are independent draws; infinite where a
        statistic is not known.
    """

    numbers: NDArray[np.int64]
    values: FloatArray
    variances: FloatArray

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, key: slice) -> Series:
        return Series(self.numbers[key], self.values[key], self.variances[key])

    def __add__(self, other: Series) -> Series:
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        return Series(*(np.concatenate(pair) for pair in parts))


@dataclass(frozen=True)
class Deviation:
    """How far the mean of some batches is from its forecast.

    Attributes
    ----------
    shifts, errors : ndarray of shape (n_statistics,)
        The deviations, and their standard errors.
    degrees : ndarray of shape (n_statistics,)
        Degrees of freedom of the errors; infinite if only rows vary.
    """

    shifts: FloatArray
    errors: FloatArray
    degrees: FloatArray

    @property
    def p_values(self) -> FloatArray:
        """Probabilities of larger deviations by chance."""
        return 2.0 * stats.t.sf(np.abs(self.shifts) / self.errors, self.degrees)

    def limits(self, p_values: FloatArray) -> FloatArray:
        """Return the deviations that have these p-values."""
        return stats.t.isf(np.minimum(p_values, 1.0) / 2.0, self.degrees) * self.errors


def deviation(before: Series, recent: Series, season: int, seasonal: bool) -> Deviation:
    """Compare the mean of recent batches with its forecast from the batches before.

    The forecast is a regression on level and, if `seasonal` and for statistics with at least
    `ENOUGH` seasons, on trend and season. A batch counts by the inverse of its variance: that of
    the rows, and that between batches, which the residuals tell, moderated as in limma. Residuals
    that stay on one side for a season make the error of a season's mean larger.

    References
    ----------
    Smyth, "Linear models and empirical Bayes methods for assessing differential expression in
    microarray experiments", Stat. Appl. Genet. Mol. Biol. 3, 2004.
    """
    held = np.isfinite(before.variances)
    known = held.sum(axis=0)
    full = seasonal & (known >= ENOUGH * season)
    last = before.numbers[-1]
    X, ahead = (_design(each.numbers, last, season) for each in (before, recent))
    used = np.ones((len(known), X.shape[1]))
    used[~full, 1:] = 0.0
    variances = np.where(held, before.variances, 1.0)
    fit = _fitted(X, used, before.values, held / variances)
    degrees = np.maximum(known - used.sum(axis=1), 0.0)
    ratios = _over(np.square(fit.residuals / np.sqrt(variances)).sum(axis=0), degrees)
    ratios, degrees = moderated(ratios, degrees)
    usual = _over(known, (held / variances).sum(axis=0))
    between = np.maximum(ratios - 1.0, 0.0) * usual
    weights = held / (variances + between)
    fit = _fitted(X, used, before.values, weights)
    variances = recent.variances + between
    weigh = np.where(
        np.isfinite(variances), 1.0 / np.where(np.isfinite(variances), variances, 1.0), 0.0
    )
    total = weigh.sum(axis=0)
    off = recent.values - np.einsum("ni,mi->nm", ahead, fit.coefficients)
    mean = _over(weigh.T @ ahead, total[:, None]) * used
    variance = _over(1.0, total) + np.einsum("mi,mij,mj->m", mean, fit.covariances, mean)
    if len(recent) > 1 and full.any():
        inflated, of_season = _persistence((fit.residuals * np.sqrt(weights))[:, full], season)
        variance[full] *= inflated
        degrees[full] = np.minimum(degrees[full], of_season)
    known_now = (total > 0) & (known > 0)
    shifts = np.where(known_now, _over((weigh * off).sum(axis=0), total), 0.0)
    return Deviation(shifts, np.sqrt(np.where(known_now, variance, 1.0)), degrees)


def batches_differ(series: Series) -> bool:
    """Return whether batches differ by more than rows that are drawn independently."""
    held = np.isfinite(series.variances)
    weights = held / np.where(held, series.variances, 1.0)
    level = _over((weights * series.values).sum(axis=0), weights.sum(axis=0))
    degrees = np.maximum(held.sum(axis=0) - 1.0, 0.0)
    excess = (weights * np.square(series.values - level)).sum(axis=0)
    tested = degrees > 0
    return bool(tested.any()) and bool(
        (stats.chi2.sf(excess[tested], degrees[tested]) < _CHANCE).mean() > _SHARE
    )


def moderated(ratios: FloatArray, degrees: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Move ratios of variances towards what they have in common, the more the less they differ.

    Returns
    -------
    ratios, degrees : ndarray of shape (n_statistics,)
        The posterior, and its degrees of freedom; 1 and infinite without any information.
    """
    told = (degrees > 0) & (ratios > 0)
    if told.sum() < 3:
        return np.where(told, ratios, 1.0), np.where(told, degrees, np.inf)
    half = degrees[told] / 2.0
    logs = np.log(ratios[told]) - special.digamma(half) + np.log(half)
    extra = logs.var(ddof=1) - special.polygamma(1, half).mean()
    if extra <= 1e-6:
        return np.full_like(ratios, np.exp(logs.mean())), np.full_like(degrees, np.inf)
    prior = 2.0 * _inverse_trigamma(extra)
    common = np.exp(logs.mean() + special.digamma(prior / 2.0) - np.log(prior / 2.0))
    found = (prior * common + degrees * ratios) / (prior + degrees)
    return found, prior + degrees


def _inverse_trigamma(value: float) -> float:
    """Return the argument at which the trigamma function has a value, by Newton's method."""
    found = 0.5 + 1.0 / value
    for _ in range(50):
        at = float(special.polygamma(1, found))
        found += at * (1.0 - at / value) / float(special.polygamma(2, found))
    return found


@dataclass(frozen=True)
class _Fit:
    """Regression of each statistic, with its own weights."""

    coefficients: FloatArray
    covariances: FloatArray
    residuals: FloatArray


def _fitted(X: FloatArray, used: FloatArray, values: FloatArray, weights: FloatArray) -> _Fit:
    products = np.einsum("ni,nj,nm->mij", X, X, weights, optimize=True)
    products *= used[:, :, None] * used[:, None, :]
    covariances = np.linalg.pinv(products, rcond=1e-10, hermitian=True)
    right = np.einsum("ni,nm->mi", X, weights * values) * used
    coefficients = np.einsum("mij,mj->mi", covariances, right)
    residuals = np.where(weights > 0, values - np.einsum("ni,mi->nm", X, coefficients), 0.0)
    return _Fit(coefficients, covariances, residuals)


def _design(numbers: NDArray[np.int64], last: int, season: int) -> FloatArray:
    """Return the columns of the regression: level, trend, and all but one phase of the season."""
    phases = np.arange(season - 1)
    ahead = (numbers - last) / season
    return np.column_stack(
        [np.ones(len(numbers)), ahead, (numbers[:, None] % season == phases) - 1.0 / season]
    )


def _persistence(residuals: FloatArray, season: int) -> tuple[FloatArray, FloatArray]:
    """Return how much larger the variance of the means of a season is than that of white noise.

    Also return the degrees of freedom of these ratios.
    """
    totals = np.cumsum(np.vstack([np.zeros(residuals.shape[1]), residuals]), axis=0)
    of_seasons = np.square(totals[season:] - totals[:-season]).mean(axis=0) / season
    ratios = _over(of_seasons, np.square(residuals).mean(axis=0))
    ratios, degrees = moderated(ratios, np.full(len(ratios), len(residuals) / season))
    return np.maximum(ratios, 1.0), degrees


def _over(a: FloatArray | float, b: FloatArray) -> FloatArray:
    """Divide, with 0 where the divisor is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(np.shape(a), b.shape)), where=b != 0)
