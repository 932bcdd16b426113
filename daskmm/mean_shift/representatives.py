"""Representatives: points that stand for rows that have merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.mean_shift import group_sums, merging_groups
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Largest share of the weight that stragglers may have, all together and each.
_STRAGGLING, STRAGGLING_EACH = 0.1, 0.005


def stragglers(
    weights: FloatArray, least: float, met: FloatArray | None = None
) -> NDArray[np.bool_]:
    """Return the mask of the groups of rows that are stragglers, far from all others.

    They are the groups with less than the least weight, if together they have little weight. If
    they have more, clusters are still forming, or the bandwidth is far too small. `met` is the
    weight that the kernel has merged in each group, without rows that only share its micro-cluster.
    A group is a straggler also if this part of its weight is less than the least weight.
    """
    small = weights < least
    if met is not None:
        small |= (met < least) & (weights < STRAGGLING_EACH * weights.sum())
    few = weights[small].sum() <= _STRAGGLING * weights.sum()
    return small if few else np.zeros(len(weights), dtype=bool)


@registered
@dataclass(frozen=True)
class Representatives:
    """Rows that have merged, as one point each."""

    positions: FloatArray  # y_r in the model's coordinates, (n, n_features)
    row_sums: FloatArray  # Σ v_i x_i over the merged rows, (n, n_features)
    multiplicity: FloatArray  # c_r = Σ v_i over these rows, positive, (n,)
    # Part of c_r that is left out if rows are not their own neighbours: one copy of the row,
    # min(v_i, 1), averaged over the rows.
    own: FloatArray

    @classmethod
    def of(cls, rows: FloatArray, weights: FloatArray) -> Self:
        """Return one representative per row, given positive sample weights."""
        return cls(rows, rows * weights[:, None], weights, np.minimum(weights, 1.0))

    def __len__(self) -> int:
        return len(self.positions)

    def own_share(self, self_term: bool) -> FloatArray:
        """Return the share of its own rows that each representative counts as neighbours."""
        if self_term:
            return np.ones(len(self))
        return (self.multiplicity - self.own) / self.multiplicity

    def moved(self, kernel_sums: FloatArray) -> Self:
        """Return the representatives moved to their means; one without neighbours does not move.

        Rows of `kernel_sums` are Σ_j K_ij c_j y_j and, last, Σ_j K_ij c_j, in any scale per row.
        """
        sums, total = kernel_sums[:, :-1], kernel_sums[:, -1:]
        positions = np.divide(sums, total, out=self.positions.copy(), where=total > 0)
        return type(self)(positions, self.row_sums, self.multiplicity, self.own)

    def farther(self, old: FloatArray, strides: FloatArray | None) -> Self:
        """Return the representatives with their steps from `old` multiplied by `strides`."""
        if strides is None:
            return self
        positions = old + strides[:, None] * (self.positions - old)
        return type(self)(positions, self.row_sums, self.multiplicity, self.own)

    def merged(self, tol: float, seed: int) -> tuple[Self, NDArray[np.intp]]:
        """Merge representatives within `tol`; return the result and the new index of each.

        A merged representative is at the mean of those it replaces.
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

    def dispersion(self, row_squares: FloatArray, weight: float) -> FloatArray:
        """Return D_l = (1/n) Σ_i v_i (x_il − y_il)², clipped at 0.

        `row_squares` are Σ_i v_i x_il², and `weight` is n = Σ_i v_i.
        """
        y = self.positions
        cross = np.einsum("rl,rl->l", y, self.row_sums)
        squares = self.multiplicity @ (y * y)
        return np.maximum(row_squares - 2.0 * cross + squares, 0.0) / weight

    @property
    def diagonal(self) -> float:
        """Length of the diagonal of the bounding box, an upper bound of all distances."""
        return float(np.linalg.norm(np.ptp(self.positions, axis=0)))
