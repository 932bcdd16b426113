"""Where a kernel estimator keeps its Gram matrices, and why there."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from daskmm.gram import build, checked_diagonal
from daskmm.gram_store import GramStore
from daskmm.journal import Journal
from daskmm.numerics.kernels import Kernel, finite_block
from daskmm.numerics.rows import Coordinates
from daskmm.sweeps import (
    MEMORY_BYTES,
    DenseGram,
    GramSource,
    RecomputedGram,
    StoredGram,
    free_bytes,
)

logger = logging.getLogger("daskmm")
FloatArray = NDArray[np.float64]

# Relative difference of means and scales that is rounding.
_SAME = 1e-12
# How `gram_` begins.
_MEMORY, _RECOMPUTED, _STORED_FOR_NOW = "memory", "recomputed", "stored for this fit"


class GramKeeping:
    """Mixin: memory, recomputation, or a store, by the parameter `gram`."""

    gram: str | Path
    standardize: bool

    gram_: str
    mean_: FloatArray
    scale_: FloatArray
    X_fit_: FloatArray
    kernels_: list[Kernel]

    def _n_kernels(self) -> int:
        return 1

    def _stored_coordinates(self, mine: Coordinates) -> Coordinates:
        """Those of a store that is there already, where they differ by no more than rounding.

        The mean of the same rows in other chunks differs in its last bits; the store's own lets
        its tiles be recognised.
        """
        path = Path(self.gram)
        if self.gram in ("auto", "recompute") or self._n_kernels() > 1 or not path.exists():
            return mine
        origin = GramStore(path).origin
        if origin is None:
            return mine
        stored = Coordinates(np.array(origin["mean"]), np.array(origin["scale"]))
        if stored.mean.shape != mine.mean.shape:
            return mine
        near = np.abs(stored.mean - mine.mean) <= _SAME * (mine.scale + np.abs(mine.mean))
        alike = np.abs(stored.scale - mine.scale) <= _SAME * mine.scale
        return stored if near.all() and alike.all() else mine

    def _gram_sources(self, scratch: Path, lazy: bool, journal: Journal) -> list[GramSource]:
        """Where each kernel's matrix is kept; `gram_` says why, and a resumed fit stays with it."""
        n_rows = len(self.X_fit_)
        self.gram_ = journal.once("gram", lambda: self._gram_choice(n_rows, scratch))
        logger.info("gram: %s", self.gram_)
        return [
            self._gram_source(kernel, index, scratch, lazy)
            for index, kernel in enumerate(self.kernels_)
        ]

    def _gram_source(self, kernel: Kernel, index: int, scratch: Path, lazy: bool) -> GramSource:
        rows = self.X_fit_
        diagonal = checked_diagonal(kernel, rows)
        if self.gram_.startswith(_MEMORY):
            return DenseGram(finite_block(kernel, rows, rows))
        if self.gram_.startswith(_RECOMPUTED):
            return RecomputedGram(rows, kernel, diagonal, lazy)
        path = scratch / "gram" if self.gram_.startswith(_STORED_FOR_NOW) else Path(self.gram)
        if len(self.kernels_) > 1:
            path = path / f"kernel-{index}"
        return StoredGram(self._store(path, kernel, lazy), rows, kernel, lazy)

    def _store(self, path: Path, kernel: Kernel, lazy: bool) -> GramStore:
        """A store completed, as it was begun, or a new one."""
        origin = {
            "standardize": bool(self.standardize),
            "columns": None,
            "mean": self.mean_.tolist(),
            "scale": self.scale_.tolist(),
            "bandwidth": "given",
            "root_mean_squared_distance": kernel.bandwidth,
        }
        if not path.exists():
            return build(path, self.X_fit_, kernel, lazy=lazy, origin=origin)
        begun = GramStore(path).manifest
        dtype, tile_rows = begun.dtype, begun.tile_rows
        return build(path, self.X_fit_, kernel, dtype=dtype, tile_rows=tile_rows, lazy=lazy)

    def _gram_choice(self, n_rows: int, scratch: Path) -> str:
        """Where to keep the matrices, in words."""
        if isinstance(self.gram, Path) or self.gram not in ("auto", "recompute"):
            return f"stored in {self.gram}"
        if self.gram == "recompute":
            return f"{_RECOMPUTED} in every sweep, as asked"
        dense = 8 * n_rows**2 * self._n_kernels()
        if dense <= MEMORY_BYTES:
            return f"{_MEMORY}: {dense / 1e6:.0f} MB are few"
        stored = 2 * n_rows**2 * self._n_kernels()
        free = free_bytes(scratch)
        if free < 2 * stored:
            return f"{_RECOMPUTED}: a store would take {stored / 1e9:.1f} of {free / 1e9:.1f} GB"
        return f"{_STORED_FOR_NOW}: {stored / 1e9:.1f} GB on disk"
