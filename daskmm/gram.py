"""Gram store: the upper triangle of a kernel matrix in checksummed zarr tiles.

One tile is one whole chunk of an array of shape (n, n), written by one task and renamed into
place. Tiles below the diagonal are never written. A tile that is missing reads as NaN, one that
was damaged fails its checksum, and the manifest tells from which data and kernel they came.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec

from daskmm.numerics.kernels import Kernel
from daskmm.passes import run_on_threads, tree_reduce

FloatArray = NDArray[np.float64]
Tile = tuple[int, int]

FORMAT = "daskmm-gram"
VERSION = 1
# Rows of a tile: 16 MB of float32.
TILE_ROWS = 2048


class GramStoreError(ValueError):
    """A Gram store that cannot be used as it is; the message names tiles and the mend."""


@dataclass(frozen=True)
class Manifest:
    """What a store was made from.

    Attributes
    ----------
    n_rows, n_features : int
    tile_rows : int
    dtype : str
        Of the tiles.
    kernel : dict
        `Kernel.describe`.
    fingerprints : tuple of str
        Of the rows of each tile row (in the model's coordinates).
    library : str
        Version that began the store.
    """

    n_rows: int
    n_features: int
    tile_rows: int
    dtype: str
    kernel: dict[str, Any]
    fingerprints: tuple[str, ...]
    library: str

    def differences(self, other: Manifest) -> list[str]:
        """What differs from another manifest, in words; the library's version may."""
        found = []
        for name in ("n_rows", "n_features", "tile_rows", "dtype", "kernel"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found.append(f"{name} is {theirs} there and {mine} here")
        if not found:
            pairs = zip(self.fingerprints, other.fingerprints, strict=True)
            changed = [str(index) for index, (a, b) in enumerate(pairs) if a != b]
            if changed:
                tiles = ", ".join(f"{index}/*" for index in changed)
                found.append(f"the data have changed (rows of tiles {tiles})")
        return found


def describe_rows(rows: FloatArray, kernel: Kernel, dtype: str, tile_rows: int) -> Manifest:
    """Manifest of a store of given rows (in the model's coordinates)."""
    import daskmm

    cuts = row_cuts(len(rows), tile_rows)
    return Manifest(
        n_rows=len(rows),
        n_features=rows.shape[1],
        tile_rows=tile_rows,
        dtype=np.dtype(dtype).name,
        kernel=json.loads(json.dumps(kernel.describe())),
        fingerprints=tuple(_fingerprint(rows[cut]) for cut in cuts),
        library=daskmm.__version__,
    )


def _fingerprint(rows: FloatArray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=16).hexdigest()


def row_cuts(n_rows: int, tile_rows: int) -> list[slice]:
    """Rows of each tile row."""
    return [slice(s, min(s + tile_rows, n_rows)) for s in range(0, n_rows, tile_rows)]


class GramStore:
    """An open store.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    GramStoreError
        If it is not a Gram store, or of a newer version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path} does not exist.")
        try:
            group = zarr.open_group(self.path, mode="r+")
            attributes: dict[str, Any] = group.attrs.asdict()
        except Exception as error:
            raise GramStoreError(f"{self.path} is not a Gram store: {error}") from error
        if attributes.get("format") != FORMAT:
            raise GramStoreError(f"{self.path} is not a Gram store.")
        if attributes.get("version") != VERSION:
            raise GramStoreError(
                f"{self.path} has version {attributes.get('version')} of the Gram format; this "
                f"library reads {VERSION}."
            )
        manifest = dict(attributes["manifest"])
        manifest["fingerprints"] = tuple(manifest["fingerprints"])
        self.manifest = Manifest(**manifest)
        self.tiles_array = _open_array(group, "tiles")
        self.diagonal: FloatArray = np.asarray(_open_array(group, "diagonal")[...])

    @property
    def n_tile_rows(self) -> int:
        """Tiles along a side."""
        return -(-self.manifest.n_rows // self.manifest.tile_rows)

    @property
    def tiles(self) -> list[Tile]:
        """Coordinates of all tiles of the upper triangle, row by row."""
        side = self.n_tile_rows
        return [(a, b) for a in range(side) for b in range(a, side)]

    def missing(self) -> list[Tile]:
        """Tiles that have not been written."""
        return [tile for tile in self.tiles if not self.tile_path(tile).exists()]

    def tile_path(self, tile: Tile) -> Path:
        """File of a tile."""
        return self.path / "tiles" / "c" / str(tile[0]) / str(tile[1])

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of the tiles that are there."""
        found = [self.tile_path(tile) for tile in self.tiles]
        return sum(path.stat().st_size for path in found if path.exists())

    def read(self, tile: Tile) -> NDArray:
        """Values of one tile, of the rows that exist.

        Raises
        ------
        GramStoreError
            If it is missing or damaged.
        """
        rows, columns = self._cuts(tile)
        try:
            values = np.asarray(self.tiles_array[rows, columns])
        except Exception as error:
            raise GramStoreError(
                f"tile {tile_name(tile)} of {self.path} is damaged ({error}). Run: daskmm gram "
                f"repair {self.path}"
            ) from error
        if np.isnan(values[0, 0]):
            raise GramStoreError(
                f"tile {tile_name(tile)} of {self.path} is missing. Run: daskmm gram repair "
                f"{self.path}"
            )
        return values

    def write(self, tile: Tile, values: FloatArray) -> None:
        """Write one whole tile; the former one stays until the new one is complete."""
        rows, columns = self._cuts(tile)
        try:
            self.tiles_array[rows, columns] = values.astype(self.manifest.dtype)
        except OSError as error:
            raise OSError(
                error.errno,
                f"tile {tile_name(tile)} of {self.path} could not be written "
                f"({error.strerror or error}). Tiles that are complete are kept: free space and "
                "run the same command again to go on.",
            ) from error

    def _cuts(self, tile: Tile) -> tuple[slice, slice]:
        cuts = row_cuts(self.manifest.n_rows, self.manifest.tile_rows)
        return cuts[tile[0]], cuts[tile[1]]


def _open_array(group: zarr.Group, name: str) -> zarr.Array:
    array = group[name]
    if not isinstance(array, zarr.Array):
        raise GramStoreError(f"{name} is not an array.")
    return array


def tile_name(tile: Tile) -> str:
    """Name of a tile, as in the store: row/column."""
    return f"{tile[0]}/{tile[1]}"


def build(
    path: str | Path,
    rows: FloatArray,
    kernel: Kernel,
    *,
    dtype: str = "float32",
    tile_rows: int = TILE_ROWS,
    lazy: bool = False,
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
        _create(Path(path), manifest, checked_diagonal(kernel, rows))
    store = GramStore(path)
    if found := manifest.differences(store.manifest):
        raise GramStoreError(f"{path} holds another Gram matrix: {'; '.join(found)}.")
    fill(store, rows, kernel, store.missing(), lazy)
    return store


def fill(
    store: GramStore, rows: FloatArray, kernel: Kernel, tiles: Sequence[Tile], lazy: bool
) -> None:
    """Compute and write given tiles."""
    if not tiles:
        return
    jobs = [(tile,) for tile in tiles]
    tree_reduce(_make_tile, jobs, (store.path, rows, kernel), lazy, "gram-tile")


def _make_tile(tile: Tile, path: Path, rows: FloatArray, kernel: Kernel) -> int:
    """Task of one tile; counts it."""
    store = _opened(path)
    a, b = store._cuts(tile)
    store.write(tile, kernel_tile(kernel, rows[a], rows[b], tile))
    return 1


def kernel_tile(kernel: Kernel, x: FloatArray, y: FloatArray, tile: Tile) -> FloatArray:
    """Kernel values of one tile.

    Raises
    ------
    ValueError
        If one is not finite.
    """
    values = kernel.block(x, y)
    if not np.isfinite(values).all():
        row, column = (int(index) for index in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(
            f"kernel {kernel.name!r} returned {values[row, column]} in tile {tile_name(tile)}, "
            f"entry ({row}, {column})."
        )
    return values


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


@functools.lru_cache(maxsize=8)
def _opened(path: Path) -> GramStore:
    return GramStore(path)


def _create(path: Path, manifest: Manifest, diagonal: FloatArray) -> None:
    """An empty store, made beside its place and renamed into it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        group = zarr.create_group(fresh)
        codecs: dict[str, Any] = {"serializer": BytesCodec(), "compressors": [Crc32cCodec()]}
        n = manifest.n_rows
        side = min(manifest.tile_rows, n)
        group.create_array(
            "tiles",
            shape=(n, n),
            chunks=(side, side),
            dtype=manifest.dtype,
            fill_value=np.nan,
            **codecs,
        )
        group.create_array("diagonal", shape=(n,), chunks=(n,), dtype="float64", **codecs)[...] = (
            diagonal
        )
        described = {**vars(manifest), "fingerprints": list(manifest.fingerprints)}
        group.attrs.update({"format": FORMAT, "version": VERSION, "manifest": described})
        fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def verify(path: str | Path, rows: FloatArray | None = None) -> dict[Tile, str]:
    """Read every tile, and say what is wrong with which.

    Parameters
    ----------
    path : str or Path
    rows : ndarray, optional
        The data (in the model's coordinates), to be compared with those of the manifest.

    Returns
    -------
    dict
        Tile → what is wrong; empty when all is well. Where data have changed, every tile of
        those rows is named.
    """
    store = GramStore(path)
    jobs: list[Callable[[], str | None]] = [
        functools.partial(_fault, store, tile) for tile in store.tiles
    ]
    faults = dict(zip(store.tiles, run_on_threads(jobs), strict=True))
    if rows is not None:
        changed = changed_tile_rows(store.manifest, rows)
        for a, b in store.tiles:
            if a in changed or b in changed:
                faults[a, b] = "the data have changed"
    return {tile: fault for tile, fault in faults.items() if fault}


def changed_tile_rows(manifest: Manifest, rows: FloatArray) -> set[int]:
    """Tile rows whose data differ from those a store was made from; all if the shape does."""
    cuts = row_cuts(manifest.n_rows, manifest.tile_rows)
    if rows.shape != (manifest.n_rows, manifest.n_features):
        return set(range(len(cuts)))
    return {
        index
        for index, cut in enumerate(cuts)
        if _fingerprint(rows[cut]) != manifest.fingerprints[index]
    }


def _fault(store: GramStore, tile: Tile) -> str | None:
    if not store.tile_path(tile).exists():
        return "missing"
    try:
        values = store.read(tile)
    except GramStoreError:
        return "damaged"
    return None if np.isfinite(values).all() else "not finite"


def repair(path: str | Path, rows: FloatArray, kernel: Kernel) -> list[Tile]:
    """Make missing and damaged tiles anew.

    Parameters
    ----------
    path : str or Path
    rows : ndarray of shape (n_rows, n_features), float64
        The data that the store was made from.
    kernel : Kernel

    Returns
    -------
    list of tile
        Those that were mended.

    Raises
    ------
    GramStoreError
        If data or kernel are others than the store's.
    """
    store = GramStore(path)
    mine = describe_rows(rows, kernel, store.manifest.dtype, store.manifest.tile_rows)
    if found := mine.differences(store.manifest):
        raise GramStoreError(f"{path} cannot be repaired: {'; '.join(found)}.")
    bad = list(verify(path))
    for tile in bad:
        store.tile_path(tile).unlink(missing_ok=True)
    fill(store, rows, kernel, bad, lazy=False)
    return bad
