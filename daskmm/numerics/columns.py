"""Coded tables with columns of several kinds, their features, and the model's coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Kinds of columns in a coded table. Their values are a number, a flag (0 or 1), the index of a
# level, or a share of the year.
NUMBER, FLAG, CATEGORY, SEASON = range(4)


@dataclass(frozen=True)
class Expansion:
    """Map from coded columns to features."""

    kinds: NDArray[np.int64]  # NUMBER, FLAG, CATEGORY or SEASON, (n_columns,)
    # Number of features of each column, (n_columns,): levels of a category, 2 for a season, else 1.
    sizes: NDArray[np.int64]

    @property
    def groups(self) -> NDArray[np.int64]:
        """Column of each feature."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def starts(self) -> NDArray[np.int64]:
        """First feature of each column."""
        return np.cumsum(self.sizes) - self.sizes

    def expand(
        self, rows: NDArray, absent: FloatArray | None = None, present: FloatArray | None = None
    ) -> FloatArray:
        """Return coded rows as features, which are NaN where the code is NaN.

        `absent` is the value of the features of levels that a row does not have (0 by default), and
        `present` that of its own level (1 by default).
        """
        out = np.empty((len(rows), int(self.sizes.sum())))
        for column, (kind, start, size) in enumerate(
            zip(self.kinds, self.starts, self.sizes, strict=True)
        ):
            code = np.asarray(rows[:, column], dtype=np.float64)
            own = out[:, start : start + size]
            if kind == CATEGORY:
                held = np.flatnonzero(~np.isnan(code))
                level = code[held].astype(np.intp)
                own[...] = 0.0 if absent is None else absent[start : start + size]
                if len(held) < len(code):
                    own[np.isnan(code)] = np.nan
                own[held, level] = 1.0 if present is None else present[start + level]
            elif kind == SEASON:
                own[:, 0], own[:, 1] = np.cos(2 * np.pi * code), np.sin(2 * np.pi * code)
            else:
                own[:, 0] = code
        return out


@dataclass(frozen=True)
class MixedCoordinates:
    """Coordinates z = (x − mean) / scale + shift of the features x of coded rows."""

    expansion: Expansion  # the features of the coded columns
    # Parameters of the coordinates, (n_features,). Numbers are standardised; flags and levels,
    # whose means are shares, are smoothed.
    mean: FloatArray
    scale: FloatArray
    shift: FloatArray

    def to_model(self, rows: NDArray) -> FloatArray:
        """Transform coded rows to the model's coordinates: a new float64 array."""
        absent, present = self.from_input(np.array([[0.0], [1.0]]))
        found = self.expansion.expand(rows, absent, present)
        others = self.expansion.kinds[self.expansion.groups] != CATEGORY
        mean, scale, shift = self.mean[others], self.scale[others], self.shift[others]
        found[:, others] = (found[:, others] - mean) / scale + shift
        return found

    def from_input(self, features: FloatArray) -> FloatArray:
        """Transform means and shares to the model's coordinates."""
        return (features - self.mean) / self.scale + self.shift

    def to_input(self, centers: FloatArray) -> FloatArray:
        """Transform centres to means and shares."""
        found = (centers - self.shift) * self.scale + self.mean
        is_share = np.isin(self.expansion.kinds, (FLAG, CATEGORY))[self.expansion.groups]
        return np.where(is_share, found.clip(0.0, 1.0), found)  # clipping removes rounding errors
