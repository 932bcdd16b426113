"""Sweep over a symmetric matrix in tiles; each task takes the tiles between two groups of rows.

Only tiles on and above the diagonal are computed or read, once per sweep. Each also serves for its
mirror image below the diagonal.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import dask
from daskmm.gram.store import Tile
from daskmm.numerics.rows import tiles

FloatArray = NDArray[np.float64]

# Number of groups of tile rows. Each row of W is sent to this many tasks, and as many partial
# products of it are returned.
GROUPS = 16
# Number of rows of a tile that are converted to float64 at once.
_SLAB_ROWS = 128


@dataclass(frozen=True)
class RowSums:
    """Partial sums of rows of K @ right, by group of rows."""

    parts: dict[int, FloatArray]

    def __add__(self, other: Self) -> Self:
        parts = dict(self.parts)
        for group, rows in other.parts.items():
            parts[group] = parts[group] + rows if group in parts else rows
        return type(self)(parts)

    def joined(self) -> FloatArray:
        """Return all rows, in order."""
        return np.concatenate([self.parts[group] for group in sorted(self.parts)])


@dataclass(frozen=True)
class RowGroup:
    """Consecutive tile rows."""

    number: int  # index of the group
    first_tile: int  # index of its first tile row
    cuts: tuple[slice, ...]  # rows of each of its tile rows, as slices of all rows

    @property
    def rows(self) -> slice:
        """Rows of the group."""
        return slice(self.cuts[0].start, self.cuts[-1].stop)

    @property
    def tiles(self) -> list[tuple[int, slice]]:
        """Index of each tile row, and the slice of the group's rows that it has."""
        start = self.cuts[0].start
        return [
            (self.first_tile + i, slice(cut.start - start, cut.stop - start))
            for i, cut in enumerate(self.cuts)
        ]


@dataclass(frozen=True)
class Pair:
    """Two groups of rows; one task takes their tiles on and above the diagonal."""

    first: RowGroup
    second: RowGroup

    @property
    def of_one_group(self) -> bool:
        """Whether both groups are the same."""
        return self.first.number == self.second.number

    @property
    def described(self) -> str:
        """Rows and columns of the tiles, for messages."""
        first, second = self.first.rows, self.second.rows
        return f"tiles of rows {first.start}:{first.stop} and {second.start}:{second.stop}"

    @property
    def tiles(self) -> list[tuple[Tile, slice, slice]]:
        """Each tile, with its rows and columns as slices of those of the groups."""
        return [
            ((a, b), rows, columns)
            for a, rows in self.first.tiles
            for b, columns in self.second.tiles
            if b >= a
        ]

    def product(self, values: Iterable[NDArray], x: FloatArray, y: FloatArray) -> RowSums:
        """Return what the tiles between the two groups add to K @ right.

        `values` are the kernel values of each tile, in the order of `tiles`; `x` and `y` are the
        rows of `right` in the first and in the second group.
        """
        for_x = np.zeros(x.shape)
        for_y = for_x if self.of_one_group else np.zeros(y.shape)
        for ((a, b), rows, columns), tile in zip(self.tiles, values, strict=True):
            _add_tile(for_x[rows], for_y[columns], tile, x[rows], y[columns], a == b)
        return RowSums({self.first.number: for_x, self.second.number: for_y})


def _add_tile(
    for_x: FloatArray, for_y: FloatArray, values: NDArray, x: NDArray, y: NDArray, diagonal: bool
) -> None:
    """Add K_ab W_b to the rows of a and, off the diagonal, K_abᵀ W_a to those of b."""
    for slab in tiles(len(values), _SLAB_ROWS):
        # Sums are in float64, whatever the dtype of the tiles.
        wide = values[slab].astype(np.float64, copy=False)
        for_x[slab] += wide @ y
        if not diagonal:
            for_y += wide.T @ x[slab]


def row_groups(cuts: Sequence[slice], n_groups: int = GROUPS) -> list[RowGroup]:
    """Divide tile rows into at most `n_groups` groups of nearly the same size."""
    bounds = np.linspace(0, len(cuts), min(n_groups, len(cuts)) + 1).astype(int)
    return [
        RowGroup(number, int(i), tuple(cuts[i:j]))
        for number, (i, j) in enumerate(itertools.pairwise(bounds))
    ]


def pair_tasks(
    groups: Sequence[RowGroup], by_rows: tuple[FloatArray, ...], lazy: bool
) -> list[tuple[Any, ...]]:
    """Return the arguments of a sweep's tasks: a `Pair`, and the parts of each of its two groups.

    The parts are the group's rows of each array in `by_rows`, (n_rows, ...). If `lazy`, they become
    graph nodes of their own; they are sent once, and tasks that need them fetch them.
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
