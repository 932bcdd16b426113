"""Multiply kernel matrices, as K @ W; the matrices are in memory, stored or recomputed.

A matrix in memory is multiplied at once, others in tiles (`daskmm.gram.pairs`).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import tree_reduce
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.gram.build import TILE_ROWS, checked_diagonal, kernel_tile, mend
from daskmm.gram.pairs import Pair, RowSums, pair_tasks, row_groups
from daskmm.gram.store import GramStore, GramStoreError, opened, row_cuts
from daskmm.numerics.kernels import Kernel, finite_block

FloatArray = NDArray[np.float64]

# The whole matrix is kept in memory if it has at most this many bytes as float64.
MEMORY_BYTES = 512 << 20


class GramSource(ABC):
    """A symmetric kernel matrix K that can be multiplied."""

    def __init__(self, diagonal: FloatArray) -> None:
        self.diagonal = diagonal  # diagonal of K, (n_rows,)
        self.n_sweeps = 0  # sweeps over the whole matrix so far

    def product(self, right: FloatArray) -> FloatArray:
        """Return K @ right, in one sweep."""
        self.n_sweeps += 1
        return self._product(right)

    @abstractmethod
    def _product(self, right: FloatArray) -> FloatArray: ...

    @abstractmethod
    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return the submatrix of K of some rows."""

    @abstractmethod
    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return some columns of K, of shape (n_rows, len(rows))."""


class Grams(list[GramSource]):
    """Matrices that are multiplied together, one per kernel, with a count of their sweeps."""

    _n_before = 0

    @property
    def n_passes(self) -> int:
        """Sweeps over all matrices so far."""
        return self._n_before + max((gram.n_sweeps for gram in self), default=0)

    def add(self, n_passes: int) -> None:
        """Count passes of earlier runs of a fit."""
        self._n_before += n_passes


class DenseGram(GramSource):
    """A kernel matrix in memory."""

    def __init__(self, matrix: FloatArray) -> None:
        super().__init__(np.diag(matrix).astype(np.float64))
        self.matrix = matrix

    def _product(self, right: FloatArray) -> FloatArray:
        return self.matrix @ right

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return the submatrix of K of some rows."""
        return self.matrix[np.ix_(rows, rows)]

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return some columns of K."""
        return self.matrix[:, rows]


class FactoredGram(GramSource):
    """A kernel matrix of low rank, Z Zᵀ, in memory."""

    def __init__(self, factor: FloatArray) -> None:
        super().__init__(np.einsum("il,il->i", factor, factor))
        self.factor = factor

    def _product(self, right: FloatArray) -> FloatArray:
        return self.factor @ (self.factor.T @ right)

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return the submatrix of K of some rows."""
        return self.factor[rows] @ self.factor[rows].T

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return some columns of K."""
        return self.factor @ self.factor[rows].T


class TiledGram(GramSource):
    """A kernel matrix of known rows that is swept in tiles of `tile_rows` rows and columns.

    Rows are in the kernel's units, (n_rows, n_features). If `lazy`, the active dask scheduler
    sweeps.
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
        """Return the submatrix of K of some rows."""
        chosen = self.rows[rows]
        return finite_block(self.kernel, chosen, chosen)

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return some columns of K, computed tile by tile."""
        chosen, cuts = self.rows[rows], row_cuts(len(self.rows), TILE_ROWS)
        tiles = [
            functools.partial(finite_block, self.kernel, self.rows[cut], chosen) for cut in cuts
        ]
        with one_blas_thread():
            return np.concatenate([*run_on_threads(tiles)])


class StoredGram(TiledGram):
    """A kernel matrix in a Gram store, which is read once per sweep; faulty tiles are mended."""

    def __init__(self, store: GramStore, rows: FloatArray, kernel: Kernel, lazy: bool) -> None:
        super().__init__(rows, kernel, store.diagonal, store.manifest.tile_rows, lazy)
        self.store = store

    def _product(self, right: FloatArray) -> FloatArray:
        try:
            return self._swept(right)
        except GramStoreError as error:
            if not error.fault:
                raise
        mend(self.store, self.rows, self.kernel, self.lazy)
        return self._swept(right)

    def _swept(self, right: FloatArray) -> FloatArray:
        tasks, shared = pair_tasks(self.groups, (right,), self.lazy), (self.store.path,)
        sums: RowSums = tree_reduce(_stored_pair, tasks, shared, self.lazy, "gram-sweep")
        return sums.joined()


class RecomputedGram(TiledGram):
    """A kernel matrix whose tiles are computed anew in every sweep."""

    def __init__(self, rows: FloatArray, kernel: Kernel, lazy: bool) -> None:
        super().__init__(rows, kernel, checked_diagonal(kernel, rows), TILE_ROWS, lazy)

    def _product(self, right: FloatArray) -> FloatArray:
        tasks = pair_tasks(self.groups, (right, self.rows), self.lazy)
        sums: RowSums = tree_reduce(
            _recomputed_pair, tasks, (self.kernel,), self.lazy, "gram-sweep"
        )
        return sums.joined()


def _stored_pair(
    pair: Pair, first: tuple[FloatArray], second: tuple[FloatArray], path: Path
) -> RowSums:
    store = opened(path)
    return pair.product((store.read(tile) for tile, _, _ in pair.tiles), first[0], second[0])


def _recomputed_pair(
    pair: Pair,
    first: tuple[FloatArray, FloatArray],
    second: tuple[FloatArray, FloatArray],
    kernel: Kernel,
) -> RowSums:
    x, y = first[1], second[1]
    values = (kernel_tile(kernel, x[rows], y[cut], tile) for tile, rows, cut in pair.tiles)
    return pair.product(values, first[0], second[0])
