"""Sweeps over a Gram matrix: K·W, wherever K is kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from daskmm.gram import TILE_ROWS, kernel_tile
from daskmm.gram_store import GramStore, Tile, opened, row_cuts
from daskmm.numerics.kernels import Kernel, finite_block
from daskmm.numerics.rows import tiles
from daskmm.passes import tree_reduce

FloatArray = NDArray[np.float64]

# Below this many bytes (as float64) the whole matrix is kept in memory.
MEMORY_BYTES = 512 << 20
# Rows of a tile that are widened to float64 at once.
_SLAB_ROWS = 128


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
        self.diagonal = store.diagonal
        self.lazy = lazy
        self.n_sweeps = 0

    def product(self, right: FloatArray) -> FloatArray:
        """K @ right, tile rows in parallel."""
        self.n_sweeps += 1
        strips = [(a,) for a in range(self.store.n_tile_rows)]
        total: FloatArray = tree_reduce(
            _stored_strip, strips, (self.store.path, right), self.lazy, "gram-sweep"
        )
        return total


class RecomputedGram(_Rows):
    """A kernel matrix that is made anew, tile by tile, in every sweep."""

    def __init__(self, rows: FloatArray, kernel: Kernel, diagonal: FloatArray, lazy: bool) -> None:
        super().__init__(rows, kernel)
        self.diagonal = diagonal
        self.lazy = lazy
        self.n_sweeps = 0

    def product(self, right: FloatArray) -> FloatArray:
        """K @ right, tile rows in parallel."""
        self.n_sweeps += 1
        strips = [(a,) for a in range(len(row_cuts(len(self.rows), TILE_ROWS)))]
        shared = (self.rows, self.kernel, right)
        total: FloatArray = tree_reduce(_recomputed_strip, strips, shared, self.lazy, "gram-sweep")
        return total


def _stored_strip(a: int, path: Path, right: NDArray) -> FloatArray:
    """Share of K @ right that the tiles of one tile row bring, on both of their sides."""
    store = opened(path)
    cuts = row_cuts(store.manifest.n_rows, store.manifest.tile_rows)
    total = np.zeros(right.shape)
    for b in range(a, len(cuts)):
        _add_tile(total, store.read((a, b)), right, cuts, (a, b))
    return total


def _recomputed_strip(a: int, rows: FloatArray, kernel: Kernel, right: FloatArray) -> FloatArray:
    cuts = row_cuts(len(rows), TILE_ROWS)
    total = np.zeros(right.shape)
    for b in range(a, len(cuts)):
        values = kernel_tile(kernel, rows[cuts[a]], rows[cuts[b]], (a, b))
        _add_tile(total, values, right, cuts, (a, b))
    return total


def _add_tile(
    total: FloatArray, values: NDArray, right: NDArray, cuts: list[slice], tile: Tile
) -> None:
    """K_ab W_b for the rows of a, and K_abᵀ W_a for those of b."""
    a, b = tile
    for slab in tiles(len(values), _SLAB_ROWS):
        # Widened a slab at a time: sums in float64 whatever the tiles are kept in.
        wide = values[slab].astype(np.float64, copy=False)
        rows = slice(cuts[a].start + slab.start, cuts[a].start + slab.stop)
        total[rows] += wide @ right[cuts[b]]
        if a != b:
            total[cuts[b]] += wide.T @ right[rows]


def precomputed(matrix: Any) -> DenseGram:
    """A kernel matrix that the user has (numpy, dask or zarr).

    Raises
    ------
    ValueError
        If it is not square, not symmetric, not finite, or has a negative diagonal.
    """
    if isinstance(matrix, da.Array):
        matrix = matrix.compute()
    K = np.asarray(matrix, dtype=np.float64)
    if K.ndim != 2 or K.shape[0] != K.shape[1]:
        raise ValueError(f"A precomputed Gram matrix must be square, got shape {K.shape}.")
    if not np.isfinite(K).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(K))[0])
        raise ValueError(f"The Gram matrix contains NaN or infinity at ({row}, {column}).")
    if (np.diag(K) < 0).any():
        row = int(np.flatnonzero(np.diag(K) < 0)[0])
        raise ValueError(f"The Gram matrix has a negative diagonal entry, {K[row, row]}, at {row}.")
    apart = np.abs(K - K.T)
    if apart.max(initial=0.0) > 1e-6 * np.abs(K).max(initial=0.0):
        row, column = (int(i) for i in np.unravel_index(apart.argmax(), K.shape))
        raise ValueError(
            f"The Gram matrix is not symmetric: entries ({row}, {column}) and ({column}, {row}) "
            f"differ by {apart[row, column]:.3g}."
        )
    return DenseGram(K)


def free_bytes(path: Path) -> int:
    """Free space of the disk that a path is on."""
    folder = path
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
