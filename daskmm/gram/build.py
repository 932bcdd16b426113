"""Gram stores: build, resume, verify and repair them, one task per tile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._version import __version__
from daskmm.engine.passes import run_on_threads, tree_reduce
from daskmm.gram.store import (
    GramStore,
    GramStoreError,
    Manifest,
    Tile,
    create_store,
    fingerprint,
    opened,
    row_cuts,
    tile_name,
)
from daskmm.numerics.kernels import Kernel, finite_block
from daskmm.storage.strict_json import plain

__all__ = [
    "CHANGED",
    "DIAGONAL",
    "TILE_ROWS",
    "GramStore",
    "GramStoreError",
    "build",
    "checked_diagonal",
    "repair",
    "verify",
]

FloatArray = NDArray[np.float64]

# Rows of a tile: 16 MB of float32.
TILE_ROWS = 2048
# In the place of a tile, and of what is wrong with one.
DIAGONAL = "diagonal"
CHANGED = "the data have changed"


def describe_rows(rows: FloatArray, kernel: Kernel, dtype: str, tile_rows: int) -> Manifest:
    """Manifest of a store of given rows (in the model's coordinates)."""
    cuts = row_cuts(len(rows), tile_rows)
    return Manifest(
        n_rows=len(rows),
        n_features=rows.shape[1],
        tile_rows=tile_rows,
        dtype=np.dtype(dtype).name,
        kernel=plain(kernel.describe()),
        fingerprints=tuple(fingerprint(rows[cut]) for cut in cuts),
        library=__version__,
    )


def build(
    path: str | Path,
    rows: FloatArray,
    kernel: Kernel,
    *,
    dtype: str = "float32",
    tile_rows: int = TILE_ROWS,
    lazy: bool = False,
    origin: dict[str, Any] | None = None,
) -> GramStore:
    """Create a store, or go on with one that was begun: only missing tiles are written.

    Parameters
    ----------
    path : str or Path
    rows : ndarray of shape (n_rows, n_features), float64
        In the model's coordinates.
    kernel : Kernel
    dtype : {"float32", "float64"}
    tile_rows : int
    lazy : bool
        Whether tiles are made by the active dask scheduler (whose workers must see `path`).
    origin : dict, optional
        How the rows came about, ready for JSON; a new store keeps it.

    Returns
    -------
    GramStore

    Raises
    ------
    GramStoreError
        If a store of other data or another kernel is there, naming what differs.
    ValueError
        If the kernel returns values that are not finite, or a negative diagonal.
    OSError
        If a tile cannot be written (a full disk).
    """
    manifest = describe_rows(rows, kernel, dtype, tile_rows)
    if not Path(path).exists():
        create_store(Path(path), manifest, checked_diagonal(kernel, rows), origin)
    store = GramStore(path)
    if found := manifest.differences(store.manifest):
        raise GramStoreError(f"{path} holds another Gram matrix: {'; '.join(found)}.")
    fill(store, rows, kernel, store.missing(), lazy)
    return store


def fill(
    store: GramStore, rows: FloatArray, kernel: Kernel, tiles: Sequence[Tile], lazy: bool
) -> None:
    """Compute and write given tiles, in the place of what is there of them."""
    if not tiles:
        return
    for tile in tiles:
        # zarr reads a chunk at the edge before it writes it; a damaged one cannot be read.
        store.tile_path(tile).unlink(missing_ok=True)
    jobs = [(tile,) for tile in tiles]
    tree_reduce(_make_tile, jobs, (store.path, rows, kernel), lazy, "gram-tile")


def _make_tile(tile: Tile, path: Path, rows: FloatArray, kernel: Kernel) -> int:
    """Task of one tile; counts it."""
    store = opened(path)
    a, b = store.cuts(tile)
    store.write(tile, kernel_tile(kernel, rows[a], rows[b], tile))
    return 1


def kernel_tile(kernel: Kernel, x: FloatArray, y: FloatArray, tile: Tile) -> FloatArray:
    """Kernel values of one tile.

    Raises
    ------
    ValueError
        If one is not finite.
    """
    return finite_block(kernel, x, y, f" in tile {tile_name(tile)}")


def checked_diagonal(kernel: Kernel, rows: FloatArray) -> FloatArray:
    """Kernel values of each row with itself.

    Raises
    ------
    ValueError
        If one is negative or not finite.
    """
    diagonal = kernel.diagonal(rows)
    bad = np.flatnonzero(~(np.isfinite(diagonal) & (diagonal >= 0)))
    if len(bad):
        raise ValueError(
            f"kernel {kernel.name!r} returned {diagonal[bad[0]]} for row {bad[0]} with itself; "
            "a kernel's diagonal must be finite and not negative."
        )
    return diagonal


def verify(path: str | Path, rows: FloatArray | None = None) -> dict[str, str]:
    """Read every tile, and say what is wrong with which.

    Parameters
    ----------
    path : str or Path
    rows : ndarray, optional
        The data (in the model's coordinates), to be compared with those of the manifest.

    Returns
    -------
    dict
        Name of a tile (or "diagonal") → what is wrong; empty when all is well. Where data have
        changed, every tile of those rows is named.
    """
    store = GramStore(path)
    faults = {tile_name(tile): fault for tile, fault in _tile_faults(store).items()}
    if fault := _diagonal_fault(store):
        faults[DIAGONAL] = fault
    if rows is not None:
        changed = changed_tile_rows(store.manifest, rows)
        for a, b in store.tiles:
            if a in changed or b in changed:
                faults[tile_name((a, b))] = CHANGED
    return faults


def _tile_faults(store: GramStore) -> dict[Tile, str]:
    """What is wrong with which tile, all of them read."""
    jobs: list[Callable[[], str | None]] = [
        functools.partial(_fault, store, tile) for tile in store.tiles
    ]
    faults = zip(store.tiles, run_on_threads(jobs), strict=True)
    return {tile: fault for tile, fault in faults if fault}


def _diagonal_fault(store: GramStore) -> str | None:
    try:
        _ = store.diagonal
    except GramStoreError as error:
        return error.fault
    return None


def changed_tile_rows(manifest: Manifest, rows: FloatArray) -> set[int]:
    """Tile rows whose data differ from those a store was made from; all if the shape does."""
    cuts = row_cuts(manifest.n_rows, manifest.tile_rows)
    if rows.shape != (manifest.n_rows, manifest.n_features):
        return set(range(len(cuts)))
    return {
        index
        for index, cut in enumerate(cuts)
        if fingerprint(rows[cut]) != manifest.fingerprints[index]
    }


def _fault(store: GramStore, tile: Tile) -> str | None:
    try:
        values = store.read(tile)
    except GramStoreError as error:
        return error.fault
    return None if np.isfinite(values).all() else "not finite"


def repair(path: str | Path, rows: FloatArray, kernel: Kernel) -> list[str]:
    """Make missing and damaged tiles anew.

    Parameters
    ----------
    path : str or Path
    rows : ndarray of shape (n_rows, n_features), float64
        The data that the store was made from.
    kernel : Kernel

    Returns
    -------
    list of str
        Names of the tiles that were mended ("diagonal" among them, where it was).

    Raises
    ------
    GramStoreError
        If data or kernel are others than the store's.
    """
    store = GramStore(path)
    mine = describe_rows(rows, kernel, store.manifest.dtype, store.manifest.tile_rows)
    if found := mine.differences(store.manifest):
        raise GramStoreError(f"{path} cannot be repaired: {'; '.join(found)}.")
    for stray in (store.path / "tiles").glob("c/*/*.partial"):
        stray.unlink(missing_ok=True)  # of a process that was killed while it wrote
    bad = list(_tile_faults(store))
    fill(store, rows, kernel, bad, lazy=False)
    mended = [tile_name(tile) for tile in bad]
    if _diagonal_fault(store):
        store.write_diagonal(checked_diagonal(kernel, rows))
        mended.append(DIAGONAL)
    return mended
