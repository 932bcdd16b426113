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
from daskmm.storage.remote import local_path
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
# Reported in place of a tile's name, and as a fault of tiles.
DIAGONAL = "diagonal"
CHANGED = "the data have changed"


def describe_rows(rows: FloatArray, kernel: Kernel, dtype: str, tile_rows: int) -> Manifest:
    """Return the manifest of a store of given rows (in the model's coordinates)."""
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
    """Create a store, or complete one: only missing tiles are computed.

    Parameters
    ----------
    path : str or Path
    rows : ndarray of shape (n_rows, n_features), float64
        In the model's coordinates.
    kernel : Kernel
    dtype : {"float32", "float64"}
    tile_rows : int
    lazy : bool
        Whether to compute on the active dask scheduler, whose workers must see `path`.
    origin : dict, optional
        How the rows were computed from the data, as JSON; kept in a new store.

    Returns
    -------
    GramStore

    Raises
    ------
    GramStoreError
        If the path holds a store of other data or another kernel; the message says what differs.
    ValueError
        If the kernel returns values that are not finite, or a negative diagonal.
    OSError
        If a tile cannot be written (a full disk).
    """
    manifest = describe_rows(rows, kernel, dtype, tile_rows)
    path = local_path(path, "A Gram matrix")
    if not path.exists():
        create_store(path, manifest, checked_diagonal(kernel, rows), origin)
    store = GramStore(path)
    if found := manifest.differences(store.manifest):
        raise GramStoreError(f"{path} holds another Gram matrix: {'; '.join(found)}.")
    fill(store, rows, kernel, store.missing(), lazy)
    return store


def fill(
    store: GramStore, rows: FloatArray, kernel: Kernel, tiles: Sequence[Tile], lazy: bool
) -> None:
    """Compute and write given tiles, replacing damaged ones."""
    if not tiles:
        return
    for tile in tiles:
        # zarr reads a chunk at the edge before it writes it; a damaged one cannot be read.
        store.tile_path(tile).unlink(missing_ok=True)
    jobs = [(tile,) for tile in tiles]
    tree_reduce(_make_tile, jobs, (store.path, rows, kernel), lazy, "gram-tile")


def _make_tile(tile: Tile, path: Path, rows: FloatArray, kernel: Kernel) -> int:
    """Compute and write one tile; return 1, to count it."""
    store = opened(path)
    a, b = store.cuts(tile)
    store.write(tile, kernel_tile(kernel, rows[a], rows[b], tile))
    return 1


def kernel_tile(kernel: Kernel, x: FloatArray, y: FloatArray, tile: Tile) -> FloatArray:
    """Return the kernel values of one tile.

    Raises
    ------
    ValueError
        If a value is not finite.
    """
    return finite_block(kernel, x, y, f" in tile {tile_name(tile)}")


def checked_diagonal(kernel: Kernel, rows: FloatArray) -> FloatArray:
    """Return the kernel value of each row with itself.

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
    """Read every tile and return the faults found.

    Parameters
    ----------
    path : str or Path
    rows : ndarray, optional
        The data (in the model's coordinates), compared with the digests in the manifest.

    Returns
    -------
    dict
        Fault by name of tile (or "diagonal"); empty if there is none. Every tile of rows that
        have changed is named.
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
    """Read all tiles; return the faults found."""
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
    """Return the tile rows whose data differ from the store's; all if the shape differs."""
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
    """Compute missing and damaged tiles again.

    Parameters
    ----------
    path : str or Path
    rows : ndarray of shape (n_rows, n_features), float64
        The data that the store was built from.
    kernel : Kernel

    Returns
    -------
    list of str
        Names of the repaired tiles, "diagonal" among them if it was damaged.

    Raises
    ------
    GramStoreError
        If the data or the kernel differ from the store's.
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
