"""Multiply kernel matrices, K @ W, wherever they are kept: one sweep per product.

A matrix in memory is multiplied at once. Others are swept in tiles: each task takes the tiles
between two groups of tile rows, on and above the diagonal, and uses each of them for both sides.
"""

from __future__ import annotations

import itertools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import dask
import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import tree_reduce
from daskmm.gram.build import TILE_ROWS, kernel_tile
from daskmm.gram.store import GramStore, Tile, opened, row_cuts
from daskmm.numerics.kernels import Kernel, finite_block
from daskmm.numerics.rows import tiles

FloatArray = NDArray[np.float64]

# Below this many bytes (as float64) the whole matrix is kept in memory.
MEMORY_BYTES = 512 << 20
# Groups of tile rows: each row of W is sent to this many tasks, and as many partial products of it
# come back.
GROUPS = 16
# Rows of a tile that are converted to float64 at once.
_SLAB_ROWS = 128


class GramSource(ABC):
    """A symmetric kernel matrix that can be multiplied.

    Parameters
    ----------
    diagonal : ndarray of shape (n_rows,)

    Attributes
    ----------
    diagonal : ndarray of shape (n_rows,)
    """

    def __init__(self, diagonal: FloatArray) -> None:
        self.diagonal = diagonal
        self._n_sweeps = 0

    @property
    def n_sweeps(self) -> int:
        """Number of sweeps over the whole matrix so far."""
        return self._n_sweeps

    def add(self, n_sweeps: int) -> None:
        """Count sweeps that were not products: those of earlier runs of a fit, or single reads."""
        self._n_sweeps += n_sweeps

    def product(self, right: FloatArray) -> FloatArray:
        """Return K @ right, in one sweep."""
        self.add(1)
        return self._product(right)

    @abstractmethod
    def _product(self, right: FloatArray) -> FloatArray: ...

    @abstractmethod
    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return K among some rows."""

    @abstractmethod
    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return K between all rows and some, of shape (n_rows, len(rows))."""


def sweeps_of(grams: Sequence[GramSource]) -> int:
    """Return the number of sweeps over matrices that are multiplied together."""
    return max((gram.n_sweeps for gram in grams), default=0)


class DenseGram(GramSource):
    """A kernel matrix in memory."""

    def __init__(self, matrix: FloatArray) -> None:
        super().__init__(np.diag(matrix).astype(np.float64))
        self.matrix = matrix

    def _product(self, right: FloatArray) -> FloatArray:
        return self.matrix @ right

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return K among some rows."""
        return self.matrix[np.ix_(rows, rows)]

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return K between all rows and some."""
        return self.matrix[:, rows]


class FactoredGram(GramSource):
    """A kernel matrix of low rank, Z Zᵀ, in memory."""

    def __init__(self, factor: FloatArray) -> None:
        super().__init__(np.einsum("il,il->i", factor, factor))
        self.factor = factor

    def _product(self, right: FloatArray) -> FloatArray:
        return self.factor @ (self.factor.T @ right)

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return K among some rows."""
        return self.factor[rows] @ self.factor[rows].T

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return K between all rows and some."""
        return self.factor @ self.factor[rows].T


class TiledGram(GramSource):
    """A kernel matrix of known rows that is swept in tiles.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        In the kernel's units.
    kernel : Kernel
    diagonal : ndarray of shape (n_rows,)
    tile_rows : int
    lazy : bool
        Whether to sweep on the active dask scheduler.
    """

    def __init__(
        self, rows: FloatArray, kernel: Kernel, diagonal: FloatArray, tile_rows: int, lazy: bool
    ) -> None:
        super().__init__(diagonal)
        self.rows = rows
        self.kernel = kernel
        self.groups = row_groups(row_cuts(len(rows), tile_rows))
        self.lazy = lazy

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return K among some rows."""
        return finite_block(self.kernel, self.rows[rows], self.rows[rows])

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return K between all rows and some, computed a tile row at a time."""
        chosen = self.rows[rows]
        cuts = row_cuts(len(self.rows), TILE_ROWS)
        return np.concatenate([finite_block(self.kernel, self.rows[cut], chosen) for cut in cuts])


class StoredGram(TiledGram):
    """A kernel matrix in a Gram store, which is read once per sweep."""

    def __init__(self, store: GramStore, rows: FloatArray, kernel: Kernel, lazy: bool) -> None:
        super().__init__(rows, kernel, store.diagonal, store.manifest.tile_rows, lazy)
        self.store = store

    def _product(self, right: FloatArray) -> FloatArray:
        return swept(_stored_pair, self.groups, (right,), (self.store.path,), self.lazy)


class RecomputedGram(TiledGram):
    """A kernel matrix whose tiles are computed anew in every sweep."""

    def __init__(self, rows: FloatArray, kernel: Kernel, diagonal: FloatArray, lazy: bool) -> None:
        super().__init__(rows, kernel, diagonal, TILE_ROWS, lazy)

    def _product(self, right: FloatArray) -> FloatArray:
        arrays = (right, self.rows)
        return swept(_recomputed_pair, self.groups, arrays, (self.kernel,), self.lazy)


def _stored_pair(
    pair: Pair, first: tuple[FloatArray], second: tuple[FloatArray], path: Path
) -> RowSums:
    store = opened(path)
    return pair.product(lambda tile, rows, columns: store.read(tile), first[0], second[0])


def _recomputed_pair(
    pair: Pair,
    first: tuple[FloatArray, FloatArray],
    second: tuple[FloatArray, FloatArray],
    kernel: Kernel,
) -> RowSums:
    (right_x, x), (right_y, y) = first, second

    def values(tile: Tile, rows: slice, columns: slice) -> FloatArray:
        return kernel_tile(kernel, x[rows], y[columns], tile)

    return pair.product(values, right_x, right_y)


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
    """Consecutive tile rows.

    Attributes
    ----------
    number : int
    first_tile : int
        Index of its first tile row.
    cuts : tuple of slice
        Rows of each of its tile rows, as slices of all rows.
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
        """Index of each tile row, and its rows as a slice of the group's."""
        start = self.cuts[0].start
        return [
            (self.first_tile + i, slice(cut.start - start, cut.stop - start))
            for i, cut in enumerate(self.cuts)
        ]


@dataclass(frozen=True)
class Pair:
    """Two groups whose tiles on and above the diagonal are one task."""

    first: RowGroup
    second: RowGroup

    @property
    def described(self) -> str:
        """Rows and columns of the tiles, in words."""
        first, second = self.first.rows, self.second.rows
        return f"tiles of rows {first.start}:{first.stop} and {second.start}:{second.stop}"

    def product(
        self, values_of: Callable[[Tile, slice, slice], NDArray], x: FloatArray, y: FloatArray
    ) -> RowSums:
        """Return what the tiles between the groups add to K @ right.

        Parameters
        ----------
        values_of : callable
            Returns the kernel values of a tile, given the tile, and its rows and columns as slices
            of their groups.
        x, y : ndarray
            Rows of `right` of the first and the second group.
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
    """Return the arguments of a sweep's tasks.

    Parameters
    ----------
    groups : sequence of RowGroup
    by_rows : tuple of ndarray of shape (n_rows, ...)
        Each task gets the rows of its two groups.
    lazy : bool
        Whether the rows become graph nodes of their own: sent once, and fetched by the tasks that
        need them.

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


def swept(
    product_of: Callable[..., RowSums],
    groups: Sequence[RowGroup],
    by_rows: tuple[FloatArray, ...],
    shared: tuple[Any, ...],
    lazy: bool,
) -> FloatArray:
    """Return K @ right from the products of all pairs of groups, computed in parallel.

    Parameters
    ----------
    product_of : callable
        Takes the arguments of `pair_tasks`, then `shared`.
    groups, by_rows, lazy
        As in `pair_tasks`.
    shared : tuple
    """
    tasks = pair_tasks(groups, by_rows, lazy)
    sums: RowSums = tree_reduce(product_of, tasks, shared, lazy, "gram-sweep")
    return sums.joined()
