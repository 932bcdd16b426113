"""Build, resume, verify and repair Gram stores, by one task per pair of row groups."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._version import __version__
from daskmm.engine.passes import run_on_threads, tree_reduce
from daskmm.gram.pairs import Pair, groups_of, pair_tasks
from daskmm.gram.rows import KernelRows, StreamedRows, Stretch, loaded, over_rows
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
from daskmm.numerics.kernels import Kernel, check_function, finite_block
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

# Rows of a tile, which is 16 MB in float32.
TILE_ROWS = 2048
# Name of a tile while zarr writes it.
_PARTIAL = re.compile(r"\d+\.[0-9a-f]+\.partial")
# Number of rows with which functions are tested for being kernels.
_TESTED_ROWS = 200
# Name of the diagonal, used like the name of a tile; and fault of tiles whose rows have changed.
DIAGONAL = "diagonal"
CHANGED = "the data have changed"


def describe_rows(rows: KernelRows, kernel: Kernel, dtype: str, tile_rows: int) -> Manifest:
    """Return the manifest of a store of given rows in the model's coordinates."""
    return Manifest(
        n_rows=len(rows),
        n_features=rows.shape[1],
        tile_rows=tile_rows,
        dtype=np.dtype(dtype).name,
        kernel=plain(kernel.describe()),
        fingerprints=_digests(rows, tile_rows),
        library=__version__,
    )


def _digests(rows: KernelRows, tile_rows: int) -> tuple[str, ...]:
    """Return the digest of each tile row."""
    groups = groups_of(rows, row_cuts(len(rows), tile_rows))
    found = over_rows(_digests_of, rows, [group.rows for group in groups], tile_rows)
    return tuple(itertools.chain.from_iterable(found))


def _digests_of(rows: FloatArray, tile_rows: int) -> list[str]:
    return [fingerprint(rows[cut]) for cut in row_cuts(len(rows), tile_rows)]


def build(
    path: str | Path,
    rows: KernelRows,
    kernel: Kernel,
    *,
    dtype: str = "float32",
    tile_rows: int = TILE_ROWS,
    lazy: bool = False,
    origin: dict[str, Any] | None = None,
) -> GramStore:
    """Create a store, or complete one by computing its missing tiles.

    Parameters
    ----------
    path : str or Path
        Local path of the store.
    rows : ndarray of shape (n_rows, n_features), float64, or StreamedRows
        Rows in the model's coordinates.
    kernel : Kernel
        The kernel.
    dtype : {"float32", "float64"}
        Type of the stored values.
    tile_rows : int
        Rows and columns of a tile.
    lazy : bool
        Whether to compute on the active dask scheduler, whose workers must see `path`.
    origin : dict, optional
        JSON that describes how the rows were computed from the data, for a new store.

    Raises
    ------
    GramStoreError
        If the path has a store of other data or another kernel; the message lists the differences.
    ValueError
        If the kernel returns values that are not finite, or a negative diagonal.
    OSError
        If a tile cannot be written, for example to a full disk.
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
    store: GramStore, rows: KernelRows, kernel: Kernel, tiles: Sequence[Tile], lazy: bool
) -> None:
    """Compute and write given tiles, in place of damaged ones."""
    if not tiles:
        return
    for tile in tiles:
        # zarr reads a chunk at the edge before it writes it; reading a damaged chunk would fail.
        store.tile_path(tile).unlink(missing_ok=True)
    groups = groups_of(rows, row_cuts(len(rows), store.manifest.tile_rows))
    wanted = frozenset(tiles)
    tasks = [
        task
        for task in pair_tasks(groups, (rows,), lazy)
        if any(tile in wanted for tile, _, _ in task[0].tiles)
    ]
    tree_reduce(_make_tiles, tasks, (store.path, kernel, wanted), lazy, "gram-tiles")


def _make_tiles(
    pair: Pair,
    first: tuple[FloatArray | Stretch],
    second: tuple[FloatArray | Stretch],
    path: Path,
    kernel: Kernel,
    wanted: frozenset[Tile],
) -> int:
    """Compute and write the wanted tiles between two groups of rows; return their number."""
    x = loaded(first[0])
    y = x if pair.of_one_group else loaded(second[0])
    chosen = [each for each in pair.tiles if each[0] in wanted]
    for tile, rows, columns in chosen:
        _make_tile(tile, path, x[rows], y[columns], kernel)
    return len(chosen)


def _make_tile(tile: Tile, path: Path, x: FloatArray, y: FloatArray, kernel: Kernel) -> None:
    """Compute and write one tile."""
    opened(path).write(tile, kernel_tile(kernel, x, y, tile))


def kernel_tile(kernel: Kernel, x: FloatArray, y: FloatArray, tile: Tile) -> FloatArray:
    """Return the kernel values of one tile.

    Raises
    ------
    ValueError
        If a value is not finite.
    """
    return finite_block(kernel, x, y, f" in tile {tile_name(tile)}")


def checked_diagonal(kernel: Kernel, rows: KernelRows) -> FloatArray:
    """Return the kernel value of each row with itself.

    Raises
    ------
    ValueError
        If one is negative or not finite, or if a function is visibly no kernel on some rows.
    """
    if isinstance(rows, StreamedRows):
        cuts = [group.rows for group in groups_of(rows, row_cuts(len(rows), TILE_ROWS))]
        diagonal = np.concatenate(over_rows(kernel.diagonal, rows, cuts))
    else:
        diagonal = kernel.diagonal(rows)
    bad = np.flatnonzero(~(np.isfinite(diagonal) & (diagonal >= 0)))
    if len(bad):
        raise ValueError(
            f"kernel {kernel.name!r} returned {diagonal[bad[0]]} for row {bad[0]} with itself; "
            "a kernel's diagonal must be finite and not negative."
        )
    if kernel.function is not None:
        check_function(kernel, _some(rows))
    return diagonal


def _some(rows: KernelRows) -> FloatArray:
    """Return at most a few hundred rows: evenly spaced, or the first ones of streamed rows."""
    if isinstance(rows, StreamedRows):
        return loaded(rows[slice(0, min(len(rows), _TESTED_ROWS))])
    return rows[:: max(1, len(rows) // _TESTED_ROWS)]


def verify(path: str | Path, rows: KernelRows | None = None) -> dict[str, str]:
    """Read every tile and return the faults found.

    Parameters
    ----------
    path : str or Path
        Path of the store.
    rows : ndarray or StreamedRows, optional
        The data in the model's coordinates, which are compared with the digests in the manifest.

    Returns
    -------
    dict
        Name of a faulty tile (or "diagonal") -> its fault. All tiles of rows that have changed are
        faulty.
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


def changed_tile_rows(manifest: Manifest, rows: KernelRows) -> set[int]:
    """Return the tile rows whose data differ from the store's; all rows if the shape differs."""
    if rows.shape != (manifest.n_rows, manifest.n_features):
        return set(range(len(row_cuts(manifest.n_rows, manifest.tile_rows))))
    pairs = zip(_digests(rows, manifest.tile_rows), manifest.fingerprints, strict=True)
    return {index for index, (mine, theirs) in enumerate(pairs) if mine != theirs}


def _fault(store: GramStore, tile: Tile) -> str | None:
    try:
        values = store.read(tile)
    except GramStoreError as error:
        return error.fault
    return None if np.isfinite(values).all() else "not finite"


def repair(path: str | Path, rows: KernelRows, kernel: Kernel) -> list[str]:
    """Compute missing and damaged tiles again.

    Parameters
    ----------
    path : str or Path
        Path of the store.
    rows : ndarray of shape (n_rows, n_features), float64, or StreamedRows
        The data from which the store was built.
    kernel : Kernel
        The kernel of the store.

    Returns
    -------
    list of str
        Names of the repaired tiles, with "diagonal" if it was damaged.

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
        if _PARTIAL.fullmatch(stray.name):  # a process was killed while it wrote this
            stray.unlink(missing_ok=True)
    bad = list(_tile_faults(store))
    fill(store, rows, kernel, bad, lazy=False)
    mended = [tile_name(tile) for tile in bad]
    if _diagonal_fault(store):
        store.write_diagonal(checked_diagonal(kernel, rows))
        mended.append(DIAGONAL)
    return mended
