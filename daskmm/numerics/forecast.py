"""Forecast the statistics of a batch from those before, and how far off a forecast is by chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

FloatArray = NDArray[np.float64]

# Level, trend and season are those of the last eight seasons; three are enough to tell them apart.
SEASONS, ENOUGH = 8, 3
# Batches differ if steps from one to the next have this mean square over their sampling variance.
_DIFFERENT = 1.5


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

    def only(self, chosen: NDArray[np.bool_]) -> Series:
        """Return the series of some of the statistics."""
        return Series(self.numbers, self.values[:, chosen], self.variances[:, chosen])

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


def deviation(
    before: Series, recent: Series, season: int, seasonal: bool, alike: bool = False
) -> Deviation:
    """Compare the mean of recent batches with its forecast from the batches before.

    The forecast is a regression on level and, if `seasonal` and for statistics with at least
    `ENOUGH` seasons, on trend and season. A batch counts by the inverse of its variance: that of
    the rows, and that between batches, which the residuals tell, moderated as in limma, unless
    batches are `alike`. Residuals that stay on one side make the error of a season's mean larger.

    References
    ----------
    Smyth, "Linear models and empirical Bayes methods for assessing differential expression in
    microarray experiments", Stat. Appl. Genet. Mol. Biol. 3, 2004.
    """
    full = seasonal & (np.isfinite(before.variances).sum(axis=0) >= ENOUGH * season)
    if full.all():
        return _deviation(before, recent, season, True, alike)
    found = _deviation(before, recent, season, False, alike)
    if full.any():
        own = _deviation(before.only(full), recent.only(full), season, True, alike)
        for values, better in zip(vars(found).values(), vars(own).values(), strict=True):
            values[full] = better
    return found


def _deviation(
    before: Series, recent: Series, season: int, seasonal: bool, alike: bool
) -> Deviation:
    last = before.numbers[-1]
    X, ahead = (_design(each.numbers, last, season, seasonal) for each in (before, recent))
    held = np.isfinite(before.variances)
    known = held.sum(axis=0)
    fit = _fitted(X, before.values, 1.0 / before.variances)
    if alike:
        between, degrees = np.zeros(len(known)), np.full(len(known), np.inf)
    else:
        degrees = np.maximum(known - X.shape[1], 0.0)
        ratios = _over(np.square(fit.residuals / np.sqrt(before.variances)).sum(axis=0), degrees)
        ratios, degrees = moderated(ratios, degrees)
        between = np.maximum(ratios - 1.0, 0.0) * _usual_variance(1.0 / before.variances)
        fit = _fitted(X, before.values, 1.0 / (before.variances + between))
    weights = 1.0 / (recent.variances + between)
    total = weights.sum(axis=0)
    off = recent.values - ahead @ fit.coefficients.T
    mean = _over(weights.T @ ahead, total[:, None])
    variance = _over(1.0, total) + np.einsum("mi,mij,mj->m", mean, fit.covariances, mean)
    if len(recent) > 1 and seasonal:
        scaled = fit.residuals / np.sqrt(before.variances + between)
        inflated, of_season = _persistence(scaled, season)
        variance, degrees = variance * inflated, np.minimum(degrees, of_season)
    compared = (total > 0) & (known > 0)
    shifts = np.where(compared, _over((weights * off).sum(axis=0), total), 0.0)
    return Deviation(shifts, np.sqrt(np.where(compared, variance, 1.0)), degrees)


def _usual_variance(weights: FloatArray) -> FloatArray:
    """Return the sampling variance with which ratios are made absolute (DerSimonian & Laird)."""
    known, total = (weights > 0).sum(axis=0), weights.sum(axis=0)
    several = total - _over(np.square(weights).sum(axis=0), total)
    return np.where(known > 1, _over(known - 1.0, several), _over(1.0, total))


def batches_differ(series: Series) -> bool:
    """Return whether batches differ by more than rows that are drawn independently.

    At least half of the steps from one batch to the next must be larger, in the mean square of all
    statistics: a shift that lasts is one step.
    """
    if len(series) < 3:
        return False
    variances = series.variances[1:] + series.variances[:-1]
    steps = np.square(np.diff(series.values, axis=0)) / variances
    told = np.isfinite(variances) & (steps.max(axis=0) > 0)
    means = _over(np.where(told, steps, 0.0).sum(axis=1), told.sum(axis=1))
    return bool(np.sort(means)[(len(means) - 1) // 2] > _DIFFERENT)


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


def _fitted(X: FloatArray, values: FloatArray, weights: FloatArray) -> _Fit:
    products = np.einsum("ni,nj,nm->mij", X, X, weights, optimize=True)
    covariances = np.linalg.pinv(products, rcond=1e-10, hermitian=True)
    coefficients = np.einsum("mij,nj,nm->mi", covariances, X, weights * values, optimize=True)
    residuals = np.where(weights > 0, values - X @ coefficients.T, 0.0)
    return _Fit(coefficients, covariances, residuals)


def _design(numbers: NDArray[np.int64], last: int, season: int, seasonal: bool) -> FloatArray:
    """Return the columns of the regression: level, trend, and all but one phase of the season."""
    level = np.ones((len(numbers), 1))
    if not seasonal:
        return level
    phases = (numbers[:, None] % season == np.arange(season - 1)) - 1.0 / season
    return np.column_stack([level, (numbers - last) / season, phases])


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
