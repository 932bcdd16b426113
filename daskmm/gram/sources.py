"""Choose whether a fit keeps its Gram matrices in memory or in a store, or recomputes them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import da, is_dask_array
from daskmm.data.blocks import Position, positions, row_blocks
from daskmm.engine.threads import one_blas_thread
from daskmm.gram.build import build, checked_diagonal
from daskmm.gram.matrices import MEMORY_BYTES, DenseGram, GramSource, RecomputedGram, StoredGram
from daskmm.gram.store import GramStore
from daskmm.numerics.kernels import Kernel, finite_block
from daskmm.numerics.rows import Coordinates
from daskmm.storage.remote import local_path

FloatArray = NDArray[np.float64]

# A choice is a text that begins with one of these words; checkpoints hold this text.
_MEMORY, _RECOMPUTED, _STORED_FOR_NOW = "memory", "recomputed", "stored for this fit"
# Means and scales that differ by at most this share are equal up to rounding.
_SAME = 1e-12


def choose_source(gram: str | Path, n_rows: int, n_kernels: int, scratch: Path) -> str:
    """Choose where to keep the Gram matrices, and return the choice and its reason.

    The text begins with "memory", "recomputed" or "stored". `scratch` is the folder of the fit,
    which need not exist.
    """
    if isinstance(gram, Path) or gram not in ("auto", "recompute"):
        return f"stored in {local_path(gram, 'A Gram matrix')}"
    if gram == "recompute":
        return f"{_RECOMPUTED} in every sweep, as asked"
    dense = 8 * n_rows**2 * n_kernels
    if dense <= MEMORY_BYTES:
        return f"{_MEMORY}: {dense / 1e6:.0f} MB are few"
    stored = 2 * n_rows**2 * n_kernels
    free = _free_bytes(scratch)
    if free < 2 * stored:
        return f"{_RECOMPUTED}: a store would take {stored / 1e9:.1f} of {free / 1e9:.1f} GB"
    return f"{_STORED_FOR_NOW}: {stored / 1e9:.1f} GB on disk"


def kernel_rows(table: NDArray | da.Array, coordinates: Coordinates) -> FloatArray:
    """Return the rows of a table in the kernels' units, in memory, loaded block by block."""
    if not is_dask_array(table):
        return coordinates.to_model(np.asarray(table))
    from daskmm.engine.scheduled import TaskGraph, reduce_graph

    blocks = row_blocks(table)
    own = [*zip(positions(blocks.layout), blocks.parts, strict=True)]
    with one_blas_thread():
        found = reduce_graph(TaskGraph(own, table), _rows_of_block, (coordinates,), "kernel-rows")
    return np.concatenate(found)


def _rows_of_block(position: Position, rows: Any, coordinates: Coordinates) -> list[FloatArray]:
    return [coordinates.to_model(np.asarray(rows))]


def _free_bytes(path: Path) -> int:
    folder = path
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def open_sources(
    choice: str,
    gram: str | Path,
    kernels: Sequence[Kernel],
    rows: FloatArray,
    scratch: Path,
    lazy: bool,
    origin: dict[str, Any],
) -> list[GramSource]:
    """Compute, store or prepare the Gram matrix of each kernel.

    `choice` is what `choose_source` returned for the parameter `gram`. Rows are in the kernels'
    units, (n_rows, n_features). Stores that are kept during the fit are in `scratch`. If `lazy`,
    the active dask scheduler computes. `origin` describes how `rows` were computed from the data;
    new stores record it.
    """
    store = scratch / "gram" if choice.startswith(_STORED_FOR_NOW) else local_path(gram)
    sources: list[GramSource] = []
    for index, kernel in enumerate(kernels):
        if choice.startswith(_MEMORY):
            checked_diagonal(kernel, rows)
            sources.append(DenseGram(finite_block(kernel, rows, rows)))
        elif choice.startswith(_RECOMPUTED):
            sources.append(RecomputedGram(rows, kernel, lazy))
        else:
            path = store / f"kernel-{index}" if len(kernels) > 1 else store
            sources.append(StoredGram(_built(path, rows, kernel, lazy, origin), rows, kernel, lazy))
    return sources


def _built(
    path: Path, rows: FloatArray, kernel: Kernel, lazy: bool, origin: dict[str, Any]
) -> GramStore:
    """Complete the store at a path, keeping its size of tiles, or build a new one."""
    if path.exists():
        begun = GramStore(path).manifest
        tiles: dict[str, Any] = {"dtype": begun.dtype, "tile_rows": begun.tile_rows}
        return build(path, rows, kernel, lazy=lazy, **tiles)
    return build(path, rows, kernel, lazy=lazy, origin=origin)


def stored_coordinates(gram: str | Path, mine: Coordinates) -> Coordinates:
    """Return the coordinates of an existing store, if they equal `mine` up to rounding.

    With other chunks, the mean of the same rows differs in its last bits. The digests of the rows
    match only if the store's own mean is used.
    """
    path = local_path(gram)
    if gram in ("auto", "recompute") or not path.exists():
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
