"""Columns of several kinds: coded tables, their features, and the model's coordinates of these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Kinds of columns in a coded table: a number; 0 or 1; the number of a level; a part of the year.
NUMBER, FLAG, CATEGORY, SEASON = range(4)


@dataclass(frozen=True)
class Expansion:
    """How coded columns become features.

    Attributes
    ----------
    kinds : ndarray of int of shape (n_columns,)
    sizes : ndarray of int of shape (n_columns,)
        Features of each column: levels of a category, 2 for a season, else 1.
    """

    kinds: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def groups(self) -> NDArray[np.int64]:
        """Column of each feature."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def starts(self) -> NDArray[np.int64]:
        """First feature of each column."""
        return np.cumsum(self.sizes) - self.sizes

    def expand(self, rows: NDArray) -> FloatArray:
        """Return coded rows as features: (n_rows, n_features), NaN where the code is."""
        out = np.empty((len(rows), int(self.sizes.sum())))
        for column, (kind, start, size) in enumerate(
            zip(self.kinds, self.starts, self.sizes, strict=True)
        ):
            code = np.asarray(rows[:, column], dtype=np.float64)
            own = out[:, start : start + size]
            if kind == CATEGORY:
                own[...] = np.where(np.isnan(code), np.nan, 0.0)[:, None]
                held = np.flatnonzero(~np.isnan(code))
                own[held, code[held].astype(np.intp)] = 1.0
            elif kind == SEASON:
                own[:, 0], own[:, 1] = np.cos(2 * np.pi * code), np.sin(2 * np.pi * code)
            else:
                own[:, 0] = code
        return out


@dataclass(frozen=True)
class MixedCoordinates:
    """Coordinates z = (x − mean) / scale + shift of the features x of coded rows.

    Attributes
    ----------
    expansion : Expansion
    mean, scale, shift : ndarray of shape (n_features,)
        Numbers are standardised; of flags and levels, whose mean is a share, z is the smoothed x.
    """

    expansion: Expansion
    mean: FloatArray
    scale: FloatArray
    shift: FloatArray

    def to_model(self, rows: NDArray) -> FloatArray:
        """Transform coded rows to the model's coordinates: a new float64 array."""
        return self.from_input(self.expansion.expand(rows))

    def from_input(self, features: FloatArray) -> FloatArray:
        """Transform means and shares to the model's coordinates."""
        return (features - self.mean) / self.scale + self.shift

    def to_input(self, centers: FloatArray) -> FloatArray:
        """Transform centres to means and shares."""
        return (centers - self.shift) * self.scale + self.mean
