"""Quantiles of streamed numbers, from histograms whose narrow bins are the same for all blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# A bin is the sign, exponent and 8 leading bits of the fraction of a double: 256 bins per octave.
_DROPPED_BITS = 44
_BIN_BITS = 64 - _DROPPED_BITS
# Up to this many bins between the lowest and the highest number are counted by `bincount`, which is
# faster than sorting.
_COUNTED = 1 << 18
# Largest relative difference of a number and the middle of its bin.
ERROR = 2.0**-9


@dataclass(frozen=True)
class Histogram:
    """Weights of non-negative numbers in several groups, in bins of 1/256 of an octave.

    Bins are the same for all data, so histograms of blocks add up to that of all rows, and a
    quantile is within .2 % of the exact one. Only bins that are not empty take memory.
    """

    codes: NDArray[np.int64]  # group and bin of each entry, coded as one number, sorted, (n_bins,)
    weights: FloatArray  # sum of the weights of the numbers in each bin, (n_bins,)

    @classmethod
    def of(cls, values: FloatArray, groups: NDArray, weights: FloatArray | None = None) -> Self:
        """Count numbers by group.

        Numbers are neither negative nor NaN; the weight of each is 1 by default.
        """
        bins = np.ascontiguousarray(values, dtype=np.float64).view(np.int64) >> _DROPPED_BITS
        groups = groups.astype(np.int64)
        if len(bins):
            lowest, n_groups = int(bins.min()), int(groups.max()) + 1
            width = int(bins.max()) - lowest + 1
            if n_groups * width <= _COUNTED:
                counts = np.bincount(groups * width + (bins - lowest), weights)
                found = np.flatnonzero(counts)
                codes = ((found // width) << _BIN_BITS) | (found % width + lowest)
                return cls(codes, counts[found].astype(np.float64))
        codes = (groups << _BIN_BITS) | bins
        return cls.of_codes(codes, np.ones(len(codes)) if weights is None else weights)

    @classmethod
    def of_codes(cls, codes: NDArray[np.int64], weights: FloatArray) -> Self:
        """Add up the weights of equal codes, in any order."""
        order = np.argsort(codes, kind="stable")
        codes, weights = codes[order], weights[order]
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        added = np.add.reduceat(weights, first) if len(first) else np.empty(0)
        return cls(codes[first][added > 0], added[added > 0])

    def __add__(self, other: Self) -> Self:
        codes = np.concatenate([self.codes, other.codes])
        return self.of_codes(codes, np.concatenate([self.weights, other.weights]))

    @property
    def groups(self) -> NDArray[np.int64]:
        """Group of each bin."""
        return self.codes >> _BIN_BITS

    @property
    def values(self) -> FloatArray:
        """Middle of each bin."""
        return _middles(self.codes & ((1 << _BIN_BITS) - 1))

    def quantile(self, level: float, n_groups: int) -> FloatArray:
        """Return the quantile of each group at `level`, up to the width of a bin.

        It is NaN for groups without weight.
        """
        groups, values = self.groups, self.values
        sizes = np.bincount(groups, self.weights, minlength=n_groups)
        ends = np.searchsorted(groups, np.arange(n_groups), side="right")
        starts = np.searchsorted(groups, np.arange(n_groups), side="left")
        found = np.full(n_groups, np.nan)
        for j in np.flatnonzero(sizes > 0):
            reached = np.cumsum(self.weights[starts[j] : ends[j]])
            place = np.searchsorted(reached, level * reached[-1] * (1 - 1e-12))
            found[j] = values[starts[j] + min(int(place), len(reached) - 1)]
        return found

    def pooled(self) -> Self:
        """Return the histogram of all groups together, as group 0."""
        return self.of_codes(self.codes & ((1 << _BIN_BITS) - 1), self.weights)


def binned(values: FloatArray) -> FloatArray:
    """Return the middle of the bin of each number, as `Histogram.values` has it."""
    return _middles(np.ascontiguousarray(values, dtype=np.float64).view(np.int64) >> _DROPPED_BITS)


def _middles(bins: NDArray[np.int64]) -> FloatArray:
    lower = bins << _DROPPED_BITS
    edges, middles = lower.view(np.float64), (lower | 1 << (_DROPPED_BITS - 1)).view(np.float64)
    return np.where((edges == 0) | np.isinf(edges), edges, middles)
