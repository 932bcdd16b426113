"""Build, resume and mend Gram stores, by one task per pair of row groups."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._version import __version__
from daskmm.engine.passes import tree_reduce
from daskmm.engine.threads import run_on_threads
from daskmm.gram.pairs import Pair, pair_tasks, row_groups
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
    "TILE_ROWS",
    "GramStore",
    "GramStoreError",
    "build",
    "checked_diagonal",
    "mend",
]

logger = logging.getLogger("daskmm")
FloatArray = NDArray[np.float64]

# Rows of a tile, which is 16 MB in float32.
TILE_ROWS = 2048
# Name of a tile while zarr writes it.
_PARTIAL = re.compile(r"\d+\.[0-9a-f]+\.partial")
# Number of rows with which functions are tested for being kernels.
_TESTED_ROWS = 200


def describe_rows(rows: FloatArray, kernel: Kernel, dtype: str, tile_rows: int) -> Manifest:
    """Return the manifest of a store of given rows in the model's coordinates."""
    digests = [functools.partial(fingerprint, rows[cut]) for cut in row_cuts(len(rows), tile_rows)]
    return Manifest(
        n_rows=len(rows),
        n_features=rows.shape[1],
        tile_rows=tile_rows,
        dtype=np.dtype(dtype).name,
        kernel=plain(kernel.describe()),
        fingerprints=tuple(run_on_threads(digests)),
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
    """Create a store, or complete one by computing its missing tiles and a faulty diagonal.

    Rows are in the model's coordinates, (n_rows, n_features). Tiles have `tile_rows` rows and
    columns of `dtype`, "float32" or "float64". If `lazy`, the active dask scheduler computes them,
    whose workers must see `path`. `origin` is JSON that describes how the rows were computed from
    the data, for a new store.

    It raises GramStoreError if the path has a store of other data or another kernel (the message
    lists the differences), ValueError if the kernel returns values that are not finite, or a
    negative diagonal, and OSError if a tile cannot be written, for example to a full disk.
    """
    manifest = describe_rows(rows, kernel, dtype, tile_rows)
    path = local_path(path, "A Gram matrix")
    if not path.exists():
        create_store(path, manifest, checked_diagonal(kernel, rows), origin)
    store = GramStore(path)
    if found := manifest.differences(store.manifest):
        raise GramStoreError(f"{path} holds another Gram matrix: {'; '.join(found)}.")
    if diagonal_fault(store):
        store.write_diagonal(checked_diagonal(kernel, rows))
    fill(store, rows, kernel, store.missing(), lazy)
    return store


def fill(
    store: GramStore, rows: FloatArray, kernel: Kernel, tiles: Sequence[Tile], lazy: bool
) -> None:
    """Compute and write given tiles, in place of damaged ones."""
    if not tiles:
        return
    for tile in tiles:
        # zarr reads a chunk at the edge before it writes it; reading a damaged chunk would fail.
        store.tile_path(tile).unlink(missing_ok=True)
    groups = row_groups(row_cuts(len(rows), store.manifest.tile_rows))
    wanted = frozenset(tiles)
    tasks = [
        task
        for task in pair_tasks(groups, (rows,), lazy)
        if any(tile in wanted for tile, _, _ in task[0].tiles)
    ]
    tree_reduce(_make_tiles, tasks, (store.path, kernel, wanted), lazy, "gram-tiles")


def _make_tiles(
    pair: Pair,
    first: tuple[FloatArray],
    second: tuple[FloatArray],
    path: Path,
    kernel: Kernel,
    wanted: frozenset[Tile],
) -> int:
    """Compute and write the wanted tiles between two groups of rows; return their number."""
    x, y = first[0], second[0]
    chosen = [each for each in pair.tiles if each[0] in wanted]
    for tile, rows, columns in chosen:
        opened(path).write(tile, kernel_tile(kernel, x[rows], y[columns], tile))
    return len(chosen)


def kernel_tile(kernel: Kernel, x: FloatArray, y: FloatArray, tile: Tile) -> FloatArray:
    """Return the kernel values of one tile; it raises ValueError if a value is not finite."""
    return finite_block(kernel, x, y, f" in tile {tile_name(tile)}")


def checked_diagonal(kernel: Kernel, rows: FloatArray) -> FloatArray:
    """Return the kernel value of each row with itself.

    It raises ValueError if one is negative or not finite, or if a function is visibly no kernel on
    some rows.
    """
    diagonal = kernel.diagonal(rows)
    bad = np.flatnonzero(~(np.isfinite(diagonal) & (diagonal >= 0)))
    if len(bad):
        raise ValueError(
            f"kernel {kernel.name!r} returned {diagonal[bad[0]]} for row {bad[0]} with itself; "
            "a kernel's diagonal must be finite and not negative."
        )
    if kernel.function is not None:
        check_function(kernel, rows[:: max(1, len(rows) // _TESTED_ROWS)])
    return diagonal


def tile_faults(store: GramStore) -> dict[Tile, str]:
    """Read all tiles; return the faults found."""
    jobs: list[Callable[[], str | None]] = [
        functools.partial(_fault, functools.partial(store.read, tile)) for tile in store.tiles
    ]
    faults = zip(store.tiles, run_on_threads(jobs), strict=True)
    return {tile: fault for tile, fault in faults if fault}


def diagonal_fault(store: GramStore) -> str | None:
    """Return the fault of the diagonal, if it has one."""
    return _fault(lambda: store.diagonal)


def _fault(read: Callable[[], object]) -> str | None:
    try:
        read()
    except GramStoreError as error:
        return error.fault
    return None


def mend(store: GramStore, rows: FloatArray, kernel: Kernel, lazy: bool) -> None:
    """Compute missing and damaged tiles of a store again, given its data and its kernel."""
    bad = list(tile_faults(store))
    for stray in (store.path / "tiles").glob("c/*/*.partial"):
        if _PARTIAL.fullmatch(stray.name):  # a process was killed while it wrote this
            stray.unlink(missing_ok=True)
    fill(store, rows, kernel, bad, lazy)
    names = ", ".join(map(tile_name, bad))
    logger.warning("tiles %s of %s were faulty, and have been computed again", names, store.path)
