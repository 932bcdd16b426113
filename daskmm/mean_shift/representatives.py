"""Representatives of rows that have come together, and what a block of them tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.mean_shift import group_sums, merging_groups
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]


@registered
@dataclass(frozen=True)
class Representatives:
    """Rows that have come together, as one point each.

    Attributes
    ----------
    positions : ndarray of shape (n, n_features)
        Where they are, in the model's coordinates.
    row_sums : ndarray of shape (n, n_features)
        Σ v_i x_i over the rows that each stands for.
    multiplicity : ndarray of shape (n,)
        c = Σ v_i over them, positive.
    own : ndarray of shape (n,)
        Part of c that a row does not count when it does not count itself: one copy of the row,
        min(v_i, 1), on average over the rows.
    """

    positions: FloatArray
    row_sums: FloatArray
    multiplicity: FloatArray
    own: FloatArray

    @classmethod
    def of(cls, rows: FloatArray, weights: FloatArray) -> Self:
        """One representative per row.

        Parameters
        ----------
        rows : ndarray of shape (n, n_features)
        weights : ndarray of shape (n,)
            Sample weights, positive.
        """
        return cls(rows, rows * weights[:, None], weights, np.minimum(weights, 1.0))

    def __len__(self) -> int:
        return len(self.positions)

    def own_share(self, self_term: bool) -> FloatArray:
        """Share of its multiplicity that counts for a representative itself."""
        if self_term:
            return np.ones(len(self))
        return (self.multiplicity - self.own) / self.multiplicity

    def moved(self, kernel_sums: FloatArray) -> Self:
        """The same representatives at their means; one that meets no other stays.

        Parameters
        ----------
        kernel_sums : ndarray of shape (n, n_features + 1)
            Σ_j K_ij c_j y_j and Σ_j K_ij c_j, in any scale per row.
        """
        sums, total = kernel_sums[:, :-1], kernel_sums[:, -1:]
        positions = np.divide(sums, total, out=self.positions.copy(), where=total > 0)
        return type(self)(positions, self.row_sums, self.multiplicity, self.own)

    def merged(self, tol: float, seed: int) -> tuple[Self, NDArray[np.intp]]:
        """Fewer representatives, where some are within `tol`, and the new one of each.

        A new one stands at the mean of those it replaces.
        """
        groups = merging_groups(self.positions, tol, seed)
        if groups is None:
            return self, np.arange(len(self))
        weights = self.multiplicity
        multiplicity = group_sums(weights, groups)
        positions = group_sums(self.positions * weights[:, None], groups) / multiplicity[:, None]
        alone = np.bincount(groups)[groups] == 1
        positions[groups[alone]] = self.positions[alone]
        own = group_sums(self.own * weights, groups) / multiplicity
        return type(self)(positions, group_sums(self.row_sums, groups), multiplicity, own), groups


@dataclass(frozen=True)
class Spread:
    """What a block of representatives tells of a state.

    Attributes
    ----------
    n : int
        Representatives.
    cross, squares : ndarray of shape (n_features,)
        Σ_r y_rl Σ_{i∈r} v_i x_il and Σ_r c_r y_rl².
    lowest, highest : ndarray of shape (n_features,)
        Of the positions.
    attraction : float
        Largest share of a kernel sum that comes from other representatives; of the iteration
        that led here.
    """

    n: int
    cross: FloatArray
    squares: FloatArray
    lowest: FloatArray
    highest: FloatArray
    attraction: float

    @classmethod
    def of(cls, representatives: Representatives, attraction: float) -> Self:
        """Sums over some representatives."""
        y = representatives.positions
        if len(y) == 0:
            zeros, infinities = np.zeros(y.shape[1]), np.full(y.shape[1], np.inf)
            return cls(0, zeros, zeros, infinities, -infinities, attraction)
        return cls(
            len(y),
            np.einsum("rl,rl->l", y, representatives.row_sums),
            representatives.multiplicity @ (y * y),
            y.min(axis=0),
            y.max(axis=0),
            attraction,
        )

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.n + other.n,
            self.cross + other.cross,
            self.squares + other.squares,
            np.minimum(self.lowest, other.lowest),
            np.maximum(self.highest, other.highest),
            max(self.attraction, other.attraction),
        )

    def dispersion(self, row_squares: FloatArray, weight: float) -> FloatArray:
        """D_l = (1/n) Σ_i v_i (x_il − y_il)², by representatives; clipped at 0.

        Parameters
        ----------
        row_squares : ndarray of shape (n_features,)
            Σ_i v_i x_il².
        weight : float
            n = Σ_i v_i.
        """
        return np.maximum(row_squares - 2.0 * self.cross + self.squares, 0.0) / weight

    @property
    def diagonal(self) -> float:
        """Diagonal of the box that holds all positions: none are farther apart."""
        return float(np.linalg.norm(self.highest - self.lowest))


def attraction(kernel_sums: FloatArray, multiplicity: FloatArray) -> float:
    """Largest share of a kernel sum (self term included) that comes from others."""
    total = kernel_sums[:, -1]
    return float(((total - multiplicity) / total).max(initial=0.0))
