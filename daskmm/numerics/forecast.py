"""Forecast the statistics of a batch from earlier batches, with the error of the forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

FloatArray = NDArray[np.float64]

# Number of last seasons from which level, trend and season are estimated, and number of seasons
# that are enough to tell these three apart.
SEASONS, ENOUGH = 8, 3
# Batches count as different if the variance of a statistic is this many times that of independent
# rows.
_DIFFERENT = 2.0
# Variance of the logarithm of a squared step. It would be 4.93 if steps were independent, but
# consecutive steps have a batch in common.
_OF_STEP = 6.5
# Squared steps below this value count as this value.
_LEAST_STEP = 1e-6


@dataclass(frozen=True)
class Series:
    """Statistics of consecutive batches."""

    # Numbers of the batches, such as days, (n_batches,); a season is a cycle of these numbers.
    numbers: NDArray[np.int64]
    # The statistics, and their variances if rows are independent draws, (n_batches, n_statistics);
    # the variance is infinite if a statistic is not known.
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
    """How far the mean of some batches is from its forecast."""

    # The deviations, and their standard errors, (n_statistics,).
    shifts: FloatArray
    errors: FloatArray
    # Degrees of freedom of the errors, (n_statistics,); infinite if only rows vary.
    degrees: FloatArray

    @property
    def p_values(self) -> FloatArray:
        """Probability of a larger deviation by chance, for each statistic."""
        return 2.0 * stats.t.sf(np.abs(self.shifts) / self.errors, self.degrees)

    def limits(self, p_values: FloatArray) -> FloatArray:
        """Return the deviations that have these p-values."""
        return stats.t.isf(np.minimum(p_values, 1.0) / 2.0, self.degrees) * self.errors


@dataclass(frozen=True)
class Between:
    """How much batches differ, beyond the sampling error of their rows."""

    # Variance between batches, and degrees of freedom of its estimate, (n_statistics,).
    variances: FloatArray
    degrees: FloatArray
    # Whether some statistic varies clearly more than rows that are drawn independently.
    differs: bool

    @classmethod
    def nothing(cls, n_statistics: int) -> Between:
        """Return no variance between batches, as for rows that are drawn independently."""
        return cls(np.zeros(n_statistics), np.full(n_statistics, np.inf), False)

    @classmethod
    def of_steps(cls, series: Series) -> Between:
        """Estimate the variance from the mean logarithm of the steps from one batch to the next.

        The largest step is left out, since a lasting shift shows as a single step.
        """
        if len(series) < 3:
            return cls.nothing(series.values.shape[1])
        variances = series.variances[1:] + series.variances[:-1]
        held = np.isfinite(variances)
        steps = np.square(np.diff(series.values, axis=0)) / variances
        told = (held.sum(axis=0) > 1) & (steps.max(axis=0) > 0)
        logs = np.log(np.maximum(steps, _LEAST_STEP), where=held, out=np.zeros_like(steps))
        largest = np.where(held, logs, -np.inf).max(axis=0, initial=-np.inf)
        n_steps = np.where(told, held.sum(axis=0) - 1.0, 1.0)
        mean = (logs.sum(axis=0) - np.where(told, largest, 0.0)) / n_steps
        half = _inverse_trigamma(_OF_STEP / n_steps)
        mean += special.digamma(half) - np.log(half) - special.digamma(0.5) + np.log(0.5)
        found = cls._of_ratios(np.where(told, np.exp(mean), 0.0), 2.0 * told * half, series)
        # Rows count as independent draws unless some statistic varies more.
        return found if found.differs else replace(found, degrees=np.full_like(half, np.inf))

    @classmethod
    def _of_ratios(cls, ratios: FloatArray, degrees: FloatArray, series: Series) -> Between:
        """Moderate ratios of the variance to that of independent rows."""
        ratios, degrees = moderated(ratios, degrees)
        usual = _usual_variance(1.0 / series.variances)
        differs = bool((ratios > _DIFFERENT).any())
        return cls(np.maximum(ratios - 1.0, 0.0) * usual, degrees, differs)


def deviation(
    before: Series,
    recent: Series,
    season: int,
    seasonal: bool,
    between: Between | None = None,
    apart: Sequence[NDArray[np.bool_]] = (),
) -> Deviation:
    """Compare the mean of recent batches with its forecast from the batches before.

    The forecast is a regression on level and, if `seasonal` and for statistics with at least
    `ENOUGH` seasons, on trend and season. A batch is weighted by the inverse of its variance, which
    is the sum of the sampling variance of its rows and the variance between batches. The residuals
    give the latter, unless it is given. Residuals that stay on one side for some time make the
    error of a season's mean larger. These variances are moderated over all statistics together;
    where trend and season are estimated, they are moderated within each mask of `apart`.
    """
    full = seasonal & (np.isfinite(before.variances).sum(axis=0) >= ENOUGH * season)
    found = _deviation(before, recent, season, False, between)
    for own in (full, *(full & each for each in apart)):
        if own.any():
            some = _deviation(before.only(own), recent.only(own), season, True, between)
            for values, better in zip(vars(found).values(), vars(some).values(), strict=True):
                values[own] = better
    return found


def _deviation(
    before: Series, recent: Series, season: int, seasonal: bool, between: Between | None
) -> Deviation:
    last = before.numbers[-1]
    X, ahead = (_design(each.numbers, last, season, seasonal) for each in (before, recent))
    known = np.isfinite(before.variances).sum(axis=0)
    if between is None:
        fit = _fitted(X, before.values, 1.0 / before.variances)
        degrees = np.maximum(known - X.shape[1], 0.0)
        squares = np.square(fit.residuals / np.sqrt(before.variances)).sum(axis=0)
        between = Between._of_ratios(_over(squares, degrees), degrees, before)
    fit = _fitted(X, before.values, 1.0 / (before.variances + between.variances))
    weights = 1.0 / (recent.variances + between.variances)
    total, degrees = weights.sum(axis=0), between.degrees
    off = recent.values - ahead @ fit.coefficients.T
    mean = _over(weights.T @ ahead, total[:, None])
    variance = _over(1.0, total) + np.einsum("mi,mij,mj->m", mean, fit.covariances, mean)
    if len(recent) > 1 and seasonal:
        scaled = fit.residuals / np.sqrt(before.variances + between.variances)
        inflated, of_season = _persistence(scaled, season)
        variance, degrees = variance * inflated, np.minimum(degrees, of_season)
    compared = (total > 0) & (known > 0)
    shifts = np.where(compared, _over((weights * off).sum(axis=0), total), 0.0)
    return Deviation(shifts, np.sqrt(np.where(compared, variance, 1.0)), degrees)


def _usual_variance(weights: FloatArray) -> FloatArray:
    """Return the sampling variance that turns ratios into variances (DerSimonian & Laird)."""
    known, total = (weights > 0).sum(axis=0), weights.sum(axis=0)
    several = total - _over(np.square(weights).sum(axis=0), total)
    return np.where(known > 1, _over(known - 1.0, several), _over(1.0, total))


def moderated(ratios: FloatArray, degrees: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Move ratios of variances towards their common value, by more if they differ less.

    The result is the posterior ratios, and their degrees of freedom; 1 and infinite without any
    information (Smyth, "Linear models and empirical Bayes methods for assessing differential
    expression in microarray experiments", Stat. Appl. Genet. Mol. Biol. 3, 2004).
    """
    told = (degrees > 0) & (ratios > 0)
    if told.sum() < 3:
        return np.where(told, ratios, 1.0), np.where(told, degrees, np.inf)
    half = degrees[told] / 2.0
    logs = np.log(ratios[told]) - special.digamma(half) + np.log(half)
    extra = logs.var(ddof=1) - special.polygamma(1, half).mean()
    if extra <= 1e-6:
        return np.full_like(ratios, np.exp(logs.mean())), np.full_like(degrees, np.inf)
    prior = float(2.0 * _inverse_trigamma(np.asarray(extra)))
    common = np.exp(logs.mean() + special.digamma(prior / 2.0) - np.log(prior / 2.0))
    found = (prior * common + degrees * ratios) / (prior + degrees)
    return found, prior + degrees


def _inverse_trigamma(values: FloatArray) -> FloatArray:
    """Return the inverse of the trigamma function at these values, by Newton's method."""
    found = 0.5 + 1.0 / values
    for _ in range(50):
        at = special.polygamma(1, found)
        found = found + at * (1.0 - at / values) / special.polygamma(2, found)
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
    """Return the variance of means over a season, relative to that of white noise.

    Also return the degrees of freedom of these ratios.
    """
    totals = np.cumsum(np.vstack([np.zeros(residuals.shape[1]), residuals]), axis=0)
    of_seasons = np.square(totals[season:] - totals[:-season]).mean(axis=0) / season
    ratios = _over(of_seasons, np.square(residuals).mean(axis=0))
    ratios, degrees = moderated(ratios, np.full(len(ratios), len(residuals) / season))
    return np.maximum(ratios, 1.0), degrees


def _over(a: FloatArray | float, b: FloatArray) -> FloatArray:
    """Divide numbers; the result is 0 where the divisor is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(np.shape(a), b.shape)), where=b != 0)
