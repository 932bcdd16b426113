"""Weighted blurring mean shift on pairs of blocks of representatives.

A representative stands for rows that have merged. It has a position and a multiplicity, the sum of
the sample weights of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.distances import squared_distances
from daskmm.numerics.exponentials import exponentiate
from daskmm.numerics.rows import tiles

FloatArray = NDArray[np.float64]

# Representatives per side of a tile. Its kernel values stay in a core's cache from the exponents
# to the products.
TILE = 192
# A kernel sum below this has lost terms to underflow and is computed again with a shift.
LEAST_SUM = 1e-280
# Exponents from a matrix product have rounding errors of about 1e-16 times the largest ‖y‖²_w / h.
# If that ratio exceeds this limit, distances that cancel are computed from differences.
_LARGEST_EXPONENT = 1e6


@dataclass(frozen=True)
class Points:
    """Representatives, prepared for tiles."""

    # left_i · right_j is the exponent −‖y_i − y_j‖²_w / h, (n, n_features + 2).
    left: FloatArray
    right: FloatArray
    # Multiplicity times position, and multiplicity: the factors of kernel values,
    # (n, n_features + 1).
    masses: FloatArray
    exact: bool  # whether the product of `left` and `right` is exact enough

    @classmethod
    def of(
        cls,
        positions: FloatArray,
        multiplicity: FloatArray,
        feature_weights: FloatArray,
        bandwidth: float,
    ) -> Points:
        """Prepare representatives.

        Positions are in the model's coordinates, centred near the origin. The multiplicity of a
        representative is the sum of its rows' sample weights.
        """
        n, p = positions.shape
        left, right = np.empty((n, p + 2)), np.empty((n, p + 2))
        np.multiply(positions, np.sqrt(feature_weights / bandwidth), out=left[:, :p])
        norms = np.einsum("il,il->i", left[:, :p], left[:, :p])
        np.multiply(left[:, :p], 2.0, out=right[:, :p])
        left[:, p], left[:, p + 1] = -norms, 1.0
        right[:, p], right[:, p + 1] = 1.0, -norms
        masses = np.empty((n, p + 1))
        np.multiply(positions, multiplicity[:, None], out=masses[:, :p])
        masses[:, p] = multiplicity
        return cls(left, right, masses, bool(norms.max(initial=0.0) <= _LARGEST_EXPONENT))

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, rows: slice | NDArray) -> Points:
        return Points(self.left[rows], self.right[rows], self.masses[rows], self.exact)

    def exponents(self, other: Points) -> FloatArray:
        """Return −‖y_i − y_j‖²_w / h for all pairs, an array of shape (len(self), len(other))."""
        if self.exact and other.exact:
            return self.left @ other.right.T
        mine, others = self.left[:, :-2], other.left[:, :-2]
        return -squared_distances(np.ascontiguousarray(mine), np.ascontiguousarray(others))


def add_pair(a: Points, b: Points, sums_a: FloatArray, sums_b: FloatArray) -> None:
    """Add the kernel sums between two tiles of different representatives.

    Each kernel value is computed once and used for both sides. The sums are the numerator and
    denominator of (3) in Chakraborty, Paul & Das, AAAI 2021.

    Σ_j K_ij c_j y_j and, in the last column, Σ_j K_ij c_j are added to `sums_a` and `sums_b`,
    (len(a), n_features + 1) and (len(b), n_features + 1).
    """
    kernel = exponentiate(a.exponents(b))
    sums_a += kernel @ b.masses
    sums_b += kernel.T @ a.masses


def add_own(a: Points, own_share: FloatArray | float, sums: FloatArray) -> None:
    """Add the kernel sums within one tile of representatives to its sums, as in `add_pair`.

    `own_share` is the share of its own multiplicity that counts in the sum of a representative: 1
    if rows are their own neighbours, and less if they are not.
    """
    kernel = exponentiate(a.exponents(a))
    np.fill_diagonal(kernel, own_share)
    sums += kernel @ a.masses


def add_block_pair(a: Points, b: Points, sums_a: FloatArray, sums_b: FloatArray) -> None:
    """Apply `add_pair` to blocks of any length, tile by tile."""
    for rows in tiles(len(a), TILE):
        for others in tiles(len(b), TILE):
            add_pair(a[rows], b[others], sums_a[rows], sums_b[others])


def add_block_own(a: Points, own_share: FloatArray, sums: FloatArray) -> None:
    """Apply `add_own` to a block of any length, tile by tile."""
    for rows in tiles(len(a), TILE):
        add_own(a[rows], own_share[rows], sums[rows])
        later = slice(rows.stop, len(a))
        add_block_pair(a[rows], a[later], sums[rows], sums[later])


@dataclass(frozen=True)
class ShiftedSums:
    """Kernel sums of some representatives, each divided by exp(its largest exponent)."""

    largest: FloatArray  # largest exponent so far, (n,); −∞ before the first
    sums: FloatArray  # sums as in `add_pair`, divided by exp(`largest`), (n, n_features + 1)

    @classmethod
    def empty(cls, n: int, n_features: int) -> ShiftedSums:
        """Return empty sums."""
        return cls(np.full(n, -np.inf), np.zeros((n, n_features + 1)))

    @classmethod
    def of(cls, rows: Points, others: Points, own: NDArray[np.intp]) -> ShiftedSums:
        """Compute the kernel sums of `rows` over `others`.

        `own` is the index of each row among the others, −1 if absent; a row is not its own
        neighbour.
        """
        total = cls.empty(len(rows), rows.masses.shape[1] - 1)
        for tile in tiles(len(others), TILE):
            exponents = rows.exponents(others[tile])
            here = np.flatnonzero((own >= tile.start) & (own < tile.stop))
            exponents[here, own[here] - tile.start] = -np.inf
            largest = exponents.max(axis=1)
            exponents -= _finite(largest)[:, None]
            total = total + cls(largest, exponentiate(exponents) @ others.masses[tile])
        return total

    def __add__(self, other: ShiftedSums) -> ShiftedSums:
        largest = np.maximum(self.largest, other.largest)
        mine = np.exp(self.largest - _finite(largest))[:, None]
        others = np.exp(other.largest - _finite(largest))[:, None]
        return ShiftedSums(largest, self.sums * mine + other.sums * others)


def _finite(largest: FloatArray) -> FloatArray:
    """Replace −∞ by 0, because −∞ − (−∞) is NaN."""
    return np.where(np.isneginf(largest), 0.0, largest)


def merging_groups(positions: FloatArray, tol: float, seed: int) -> NDArray[np.intp] | None:
    """Find groups of points that are at most a tolerance apart from each other.

    Points of a group lie in one cell of a grid whose diagonal is the tolerance. Each seed shifts
    the grid, so that the same edge does not keep close points apart in every iteration. The groups
    do not depend on the order of the points. A tolerance of 0 merges nothing.

    The result is the group of each point, from 0; None if no two points share one.
    """
    n, p = positions.shape
    if tol == 0.0 or n == 0:
        return None
    rng = np.random.default_rng(seed)
    cell = tol / np.sqrt(p)
    places = np.floor(positions / cell + rng.random(p))
    if np.abs(places).max() >= 2.0**62:  # cells are smaller than rounding
        return None
    cells = places.astype(np.int64)
    factors = rng.integers(np.iinfo(np.int64).max, size=p) | 1
    _, first, groups = np.unique(cells @ factors, return_index=True, return_inverse=True)
    # Sums of different cells are hardly ever equal, as they have 64 bits; if they are, nothing is
    # merged.
    if len(first) == n or (cells != cells[first[groups]]).any():
        return None
    return groups


def group_sums(values: FloatArray, groups: NDArray[np.intp]) -> FloatArray:
    """Sum the rows (or entries) of `values` in each group."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sums: FloatArray = np.add.reduceat(values[order], starts, axis=0)
    return sums
