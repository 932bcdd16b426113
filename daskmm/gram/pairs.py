"""One sweep over a Gram matrix as tasks between two groups of tile rows."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import dask
import numpy as np
from numpy.typing import NDArray

from daskmm.gram.store import Tile
from daskmm.numerics.rows import tiles

FloatArray = NDArray[np.float64]

# Groups of tile rows: each row of W is sent to this many tasks, and as many shares of its
# product come back.
GROUPS = 16
# Rows of a tile that are widened to float64 at once.
_SLAB_ROWS = 128


@dataclass(frozen=True)
class RowSums:
    """Rows of K @ right, by their group; a task brings those that its tiles touch."""

    parts: dict[int, FloatArray]

    def __add__(self, other: Self) -> Self:
        parts = dict(self.parts)
        for group, rows in other.parts.items():
            parts[group] = parts[group] + rows if group in parts else rows
        return type(self)(parts)

    def joined(self) -> FloatArray:
        """All rows, in order."""
        return np.concatenate([self.parts[group] for group in sorted(self.parts)])


@dataclass(frozen=True)
class RowGroup:
    """Consecutive tile rows.

    Attributes
    ----------
    number : int
    first_tile : int
        Index of its first tile row.
    cuts : tuple of slice
        Rows of each of its tile rows, counted over all rows.
    """

    number: int
    first_tile: int
    cuts: tuple[slice, ...]

    @property
    def rows(self) -> slice:
        """Rows of the group."""
        return slice(self.cuts[0].start, self.cuts[-1].stop)

    @property
    def tiles(self) -> list[tuple[int, slice]]:
        """Its tile rows: index, and rows counted from the beginning of the group."""
        start = self.cuts[0].start
        return [
            (self.first_tile + i, slice(cut.start - start, cut.stop - start))
            for i, cut in enumerate(self.cuts)
        ]


@dataclass(frozen=True)
class Pair:
    """Two groups, the second not before the first; a task takes the tiles between them."""

    first: RowGroup
    second: RowGroup

    @property
    def described(self) -> str:
        """The tiles in words."""
        first, second = self.first.rows, self.second.rows
        return f"tiles of rows {first.start}:{first.stop} and {second.start}:{second.stop}"

    def product(
        self, values_of: Callable[[Tile, slice, slice], NDArray], x: FloatArray, y: FloatArray
    ) -> RowSums:
        """What the tiles between the groups bring to K @ right, on both of their sides.

        Parameters
        ----------
        values_of : callable
            Kernel values of a tile, given it and its rows as counted within either group.
        x, y : ndarray
            Rows of `right` in the first and the second group.
        """
        one_group = self.first.number == self.second.number
        for_x = np.zeros(x.shape)
        for_y = for_x if one_group else np.zeros(y.shape)
        for a, rows in self.first.tiles:
            for b, columns in self.second.tiles:
                if b >= a:
                    values = values_of((a, b), rows, columns)
                    _add_tile(for_x[rows], for_y[columns], values, x[rows], y[columns], a == b)
        return RowSums({self.first.number: for_x, self.second.number: for_y})


def _add_tile(
    for_x: FloatArray, for_y: FloatArray, values: NDArray, x: NDArray, y: NDArray, diagonal: bool
) -> None:
    """K_ab W_b for the rows of a and, off the diagonal, K_abᵀ W_a for those of b."""
    for slab in tiles(len(values), _SLAB_ROWS):
        # Widened a slab at a time: sums in float64 whatever the tiles are kept in.
        wide = values[slab].astype(np.float64, copy=False)
        for_x[slab] += wide @ y
        if not diagonal:
            for_y += wide.T @ x[slab]


def row_groups(cuts: Sequence[slice], n_groups: int = GROUPS) -> list[RowGroup]:
    """Tile rows in at most `n_groups` groups of nearly the same number."""
    bounds = np.linspace(0, len(cuts), min(n_groups, len(cuts)) + 1).astype(int)
    return [
        RowGroup(number, int(i), tuple(cuts[i:j]))
        for number, (i, j) in enumerate(itertools.pairwise(bounds))
    ]


def pair_jobs(
    groups: Sequence[RowGroup], by_rows: tuple[FloatArray, ...], lazy: bool
) -> list[tuple[Any, ...]]:
    """Arguments of a sweep's tasks: a `Pair`, and the rows of either group of some arrays.

    Parameters
    ----------
    groups : sequence of RowGroup
    by_rows : tuple of ndarray of shape (n_rows, ...)
    lazy : bool
        Whether the rows travel as graph nodes of their own: sent once, and fetched by the tasks
        that need them.

    Returns
    -------
    list of (Pair, tuple of ndarray, tuple of ndarray)
    """
    parts: list[Any] = [tuple(array[group.rows] for array in by_rows) for group in groups]
    if lazy:
        parts = [
            dask.delayed(part, name=f"daskmm-gram-rows-{uuid.uuid4().hex}", traverse=False)
            for part in parts
        ]
    return [
        (Pair(a, b), parts[a.number], parts[b.number])
        for a, b in itertools.combinations_with_replacement(groups, 2)
    ]
