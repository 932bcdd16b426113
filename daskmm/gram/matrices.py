"""Sweeps over a Gram matrix: K·W, wherever K is kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import tree_reduce
from daskmm.gram.build import TILE_ROWS, kernel_tile
from daskmm.gram.pairs import Pair, RowSums, pair_jobs, row_groups
from daskmm.gram.store import GramStore, Tile, opened, row_cuts
from daskmm.numerics.kernels import Kernel, finite_block
from daskmm.storage.digests import digest

FloatArray = NDArray[np.float64]

# Below this many bytes (as float64) the whole matrix is kept in memory.
MEMORY_BYTES = 512 << 20


class GramSource(Protocol):
    """A symmetric kernel matrix that can be multiplied.

    Attributes
    ----------
    diagonal : ndarray of shape (n_rows,)
    n_sweeps : int
        Readings of the whole matrix so far.
    """

    diagonal: FloatArray
    n_sweeps: int

    def product(self, right: FloatArray) -> FloatArray:
        """K @ right, by one sweep."""

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """K among some rows."""

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """K between all rows and some, (n_rows, len(rows))."""


class DenseGram:
    """A kernel matrix in memory."""

    def __init__(self, matrix: FloatArray) -> None:
        self.matrix = matrix
        self.diagonal = np.diag(matrix).astype(np.float64)
        self.n_sweeps = 0

    def product(self, right: FloatArray) -> FloatArray:
        """K @ right."""
        self.n_sweeps += 1
        return self.matrix @ right

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """K among some rows."""
        return self.matrix[np.ix_(rows, rows)]

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """K between all rows and some."""
        return self.matrix[:, rows]


class FactoredGram:
    """A kernel matrix of low rank, Z Zᵀ, in memory."""

    def __init__(self, factor: FloatArray) -> None:
        self.factor = factor
        self.diagonal = np.einsum("il,il->i", factor, factor)
        self.n_sweeps = 0

    def product(self, right: FloatArray) -> FloatArray:
        """Z (Zᵀ right)."""
        self.n_sweeps += 1
        return self.factor @ (self.factor.T @ right)

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """K among some rows."""
        return self.factor[rows] @ self.factor[rows].T

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """K between all rows and some."""
        return self.factor @ self.factor[rows].T


class _Rows:
    """Access to parts of a kernel matrix whose rows are known."""

    def __init__(self, rows: FloatArray, kernel: Kernel) -> None:
        self.rows = rows
        self.kernel = kernel

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """K among some rows."""
        return finite_block(self.kernel, self.rows[rows], self.rows[rows])

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """K between all rows and some, a tile row at a time."""
        chosen = self.rows[rows]
        cuts = row_cuts(len(self.rows), TILE_ROWS)
        return np.concatenate([finite_block(self.kernel, self.rows[cut], chosen) for cut in cuts])


class StoredGram(_Rows):
    """A kernel matrix in a Gram store; each tile serves both of its sides."""

    def __init__(self, store: GramStore, rows: FloatArray, kernel: Kernel, lazy: bool) -> None:
        super().__init__(rows, kernel)
        self.store = store
        self.groups = row_groups(row_cuts(store.manifest.n_rows, store.manifest.tile_rows))
        self.diagonal = store.diagonal
        self.lazy = lazy
        self.n_sweeps = 0

    def product(self, right: FloatArray) -> FloatArray:
        """K @ right, pairs of row groups in parallel."""
        self.n_sweeps += 1
        jobs = pair_jobs(self.groups, (right,), self.lazy)
        shared = (self.store.path,)
        sums: RowSums = tree_reduce(_stored_pair, jobs, shared, self.lazy, "gram-sweep")
        return sums.joined()


class RecomputedGram(_Rows):
    """A kernel matrix that is made anew, tile by tile, in every sweep."""

    def __init__(self, rows: FloatArray, kernel: Kernel, diagonal: FloatArray, lazy: bool) -> None:
        super().__init__(rows, kernel)
        self.groups = row_groups(row_cuts(len(rows), TILE_ROWS))
        self.diagonal = diagonal
        self.lazy = lazy
        self.n_sweeps = 0

    def product(self, right: FloatArray) -> FloatArray:
        """K @ right, pairs of row groups in parallel."""
        self.n_sweeps += 1
        jobs = pair_jobs(self.groups, (right, self.rows), self.lazy)
        sums: RowSums = tree_reduce(_recomputed_pair, jobs, (self.kernel,), self.lazy, "gram-sweep")
        return sums.joined()


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


def free_bytes(path: Path) -> int:
    """Free space of the disk that a path is on."""
    folder = path
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


# Rows of a precomputed Gram matrix that are looked at.
_GRAM_ROWS = 256


def described_gram(gram: GramSource, weights: NDArray[np.float64]) -> dict[str, Any]:
    """What tells a precomputed Gram matrix from another: its diagonal, and some of its rows."""
    n_rows = len(weights)
    some = np.linspace(0, n_rows - 1, min(n_rows, _GRAM_ROWS)).astype(np.int64)
    return {
        "shape": [n_rows, n_rows],
        "rows": digest(gram.diagonal, weights, gram.submatrix(some)),
    }
