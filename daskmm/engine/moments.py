"""Records of the first pass, which can be merged: moments of features, and samples of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.moments import block_moments
from daskmm.numerics.sparse_rows import SparseRows, stacked

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Weighted count, mean, sum of squared deviations and range per feature.

    Squares of very large values overflow to infinity without a warning; the first pass raises then.
    """

    n_positive: int  # number of rows of positive weight
    weight: float  # sum of the sample weights
    mean: FloatArray  # weighted mean, (n_features,)
    deviations: FloatArray  # Σ w (x − mean)², (n_features,)
    lowest: FloatArray  # least values of the rows of positive weight, (n_features,)
    highest: FloatArray  # largest values of these rows, (n_features,)
    # Sum of the weights of the rows with a value, (n_features,); None if no value is missing.
    observed: FloatArray | None = None

    @classmethod
    def empty(cls, n_features: int) -> Self:
        """Return the moments of no rows."""
        zeros, infinities = np.zeros(n_features), np.full(n_features, np.inf)
        return cls(0, 0.0, zeros, zeros, infinities, -infinities)

    @classmethod
    def of(cls, rows: FloatArray, weights: FloatArray | None) -> Self:
        """Compute the moments of one tile of rows, by the two-pass formula."""
        total = float(len(rows)) if weights is None else float(weights.sum())
        if total == 0.0:
            return cls.empty(rows.shape[1])
        if weights is not None and not weights.all():
            rows, weights = rows[weights > 0], weights[weights > 0]
        lowest, highest = rows.min(axis=0), rows.max(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            if weights is None:
                mean = rows.mean(axis=0)
                deviations = np.square(rows - mean).sum(axis=0)
            else:
                mean = weights @ rows / total
                deviations = weights @ np.square(rows - mean)
        return cls(len(rows), total, mean, deviations, lowest, highest)

    @classmethod
    def of_partial(cls, rows: FloatArray, weights: FloatArray | None) -> Self:
        """Compute the moments of one tile of rows in which NaN are missing values."""
        v = np.ones(len(rows)) if weights is None else weights
        rows, v = rows[v > 0], v[v > 0]
        held = ~np.isnan(rows)
        observed = v @ held
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            mean = np.where(observed > 0, v @ np.where(held, rows, 0.0) / observed, 0.0)
            deviations = v @ np.where(held, np.square(rows - mean), 0.0)
        lowest = np.where(held, rows, np.inf).min(axis=0, initial=np.inf)
        highest = np.where(held, rows, -np.inf).max(axis=0, initial=-np.inf)
        return cls(len(rows), float(v.sum()), mean, deviations, lowest, highest, observed)

    @classmethod
    def of_sparse(cls, rows: SparseRows, weights: FloatArray | None) -> Self:
        """Compute the moments of sparse rows; zeros that are not stored count as one value."""
        n_rows, p = rows.shape
        v = np.ones(n_rows) if weights is None else weights
        total, n_positive = float(v.sum()), int(np.count_nonzero(v))
        if total == 0.0:
            return cls.empty(p)
        each = np.repeat(v, np.diff(rows.indptr))
        held = each > 0
        at, x, each = rows.indices[held], rows.data[held].astype(np.float64), each[held]
        counts = np.bincount(at, minlength=p)
        # A feature with fewer stored values than rows has zeros.
        lowest = np.where(counts < n_positive, 0.0, np.inf)
        highest = np.where(counts < n_positive, 0.0, -np.inf)
        np.minimum.at(lowest, at, x)
        np.maximum.at(highest, at, x)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.bincount(at, each * x, minlength=p) / total
            zeros = np.where(counts < n_positive, total - np.bincount(at, each, minlength=p), 0.0)
            deviations = zeros * np.square(mean)
            deviations += np.bincount(at, each * np.square(x - mean[at]), minlength=p)
        return cls(n_positive, total, mean, deviations, lowest, highest)

    @classmethod
    def of_block(cls, rows: NDArray, weights: FloatArray | None) -> Self | None:
        """Compute the moments of any number of rows of any dtype by the compiled loops.

        The result is None if a value is not finite, or its square overflows.
        """
        found = block_moments(rows, weights)
        return None if found is None else cls(*found)

    def __add__(self, other: Self) -> Self:
        """Merge by the pairwise update of Chan, Golub & LeVeque (1983)."""
        total = self.weight + other.weight
        complete = self.observed is None and other.observed is None
        if other.weight == 0.0 or self.weight == 0.0:
            heavier = self if other.weight == 0.0 else other
            # Later passes see the missing values of rows without weight, so they must be expected.
            return heavier if complete else replace(heavier, observed=heavier.masses)
        own, added = self.masses, other.masses
        with np.errstate(over="ignore", invalid="ignore"):
            delta = other.mean - self.mean
            share = added / np.maximum(own + added, np.finfo(float).tiny)
            mean = self.mean + delta * share
            between = delta * delta * (own * share)
            deviations = self.deviations + other.deviations + between
        return type(self)(
            self.n_positive + other.n_positive,
            total,
            mean,
            deviations,
            np.minimum(self.lowest, other.lowest),
            np.maximum(self.highest, other.highest),
            None if complete else own + added,
        )

    @property
    def masses(self) -> FloatArray:
        """Sum of the weights of the rows with a value, per feature."""
        return np.full_like(self.mean, self.weight) if self.observed is None else self.observed

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Mask of features with a single value; exact, unlike a test of the rounded variance."""
        return self.lowest == self.highest

    @property
    def variance(self) -> FloatArray:
        """Population variance of the observed values, per feature."""
        return self.deviations / np.maximum(self.masses, np.finfo(float).tiny)


@dataclass(frozen=True)
class Sample:
    """Rows drawn from the data, sparse or dense, in row order, with their sample weights."""

    rows: NDArray
    weights: FloatArray

    def __add__(self, other: Self) -> Self:
        return type(self)(
            stacked([self.rows, other.rows]),
            np.concatenate([self.weights, other.weights]),
        )
