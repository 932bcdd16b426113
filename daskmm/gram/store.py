"""The file format of Gram stores: the upper triangle of a kernel matrix in checksummed tiles.

One tile is one whole chunk of a zarr array of shape (n, n). Tiles below the diagonal are never
written. A tile that is missing reads as NaN, one that was damaged fails its checksum, and the
manifest tells from which data and kernel they came.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec

FloatArray = NDArray[np.float64]
Tile = tuple[int, int]

FORMAT = "daskmm-gram"
VERSION = 1
_CHECKSUM_BYTES = 4
_CHECKSUM_BYTES = 4


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
        mine, theirs = self._named_values(), other._named_values()
        for name in dict.fromkeys([*mine, *theirs]):
            if mine.get(name) != theirs.get(name):
                found.append(f"{name} is {theirs.get(name)} there and {mine.get(name)} here")
        if not found:
            pairs = zip(self.fingerprints, other.fingerprints, strict=True)
            changed = [str(index) for index, (a, b) in enumerate(pairs) if a != b]
            if changed:
                tiles = ", ".join(f"{index}/*" for index in changed)
                found.append(f"the data have changed (rows of tiles {tiles})")
        return found

    def _named_values(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("n_rows", "n_features", "tile_rows")}
        kernel = {f"the kernel's {name}": value for name, value in self.kernel.items()}
        return {**values, "dtype": self.dtype, **kernel}


def fingerprint(rows: FloatArray) -> str:
    """Digest of some rows, bit by bit."""
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
        self.path = Path(path).absolute()  # workers may stand in another folder
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path} does not exist.")
        self.group, attributes = self._open_group()
        try:
            described = dict(attributes["manifest"])
            described["fingerprints"] = tuple(described["fingerprints"])
            self.manifest = Manifest(**described)
            self.tiles_array = _array_of(self.group, "tiles")
        except Exception as error:  # json, codecs, zarr: whatever is wrong with what it says
            raise GramStoreError(f"{self.path} has a damaged description: {error}") from error
        self.origin: dict[str, Any] | None = attributes.get("origin")

    def _open_group(self) -> tuple[zarr.Group, dict[str, Any]]:
        try:
            group = zarr.open_group(self.path, mode="r+")
            attributes: dict[str, Any] = group.attrs.asdict()
        except Exception as error:  # json, codecs, zarr: whatever is wrong, it is no store
            raise GramStoreError(f"{self.path} is not a Gram store: {error}") from error
        if attributes.get("format") != FORMAT:
            raise GramStoreError(f"{self.path} is not a Gram store.")
        if attributes.get("version") != VERSION:
            raise GramStoreError(
                f"{self.path} has version {attributes.get('version')} of the Gram format; this "
                f"library reads {VERSION}."
            )
        return group, attributes

    @functools.cached_property
    def diagonal(self) -> FloatArray:
        """Kernel values of each row with itself.

        Raises
        ------
        GramStoreError
            If they are missing or damaged.
        """
        try:
            values: FloatArray = np.asarray(_array_of(self.group, "diagonal")[...])
        except Exception as error:
            raise self._unusable("the diagonal", f"damaged ({error})") from error
        if not np.isfinite(values).all():
            raise self._unusable("the diagonal", "missing")
        return values

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
        """Tiles that have not been written, or not to their end.

        zarr before 3.1.3 wrote in place, so that a process that was killed left part of a tile.
        """
        side = min(self.manifest.tile_rows, self.manifest.n_rows)
        whole = side**2 * np.dtype(self.manifest.dtype).itemsize + _CHECKSUM_BYTES
        return [tile for tile in self.tiles if self._size(tile) != whole]

    def tile_path(self, tile: Tile) -> Path:
        """File of a tile."""
        return self.path / "tiles" / "c" / str(tile[0]) / str(tile[1])

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of the tiles that are there."""
        return sum(self._size(tile) for tile in self.tiles)

    def _size(self, tile: Tile) -> int:
        try:
            return self.tile_path(tile).stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, tile: Tile) -> NDArray:
        """Values of one tile, of the rows that exist.

        Raises
        ------
        GramStoreError
            If it is missing or damaged.
        """
        side = self.tiles_array.chunks[0]
        dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
        try:
            # A chunk file is the little-endian values and their CRC32C. Read as such, it is
            # checked and used where it lies; zarr's own way copies every tile twice.
            with self.tile_path(tile).open("rb") as file:
                body, checksum = file.read(side**2 * dtype.itemsize), file.read()
        except FileNotFoundError:
            raise self._unusable(f"tile {tile_name(tile)}", "missing") from None
        if len(checksum) != _CHECKSUM_BYTES:
            raise self._unusable(f"tile {tile_name(tile)}", "damaged (not of its length)")
        if google_crc32c.value(body) != int.from_bytes(checksum, "little"):
            raise self._unusable(f"tile {tile_name(tile)}", "damaged (wrong checksum)")
        rows, columns = self.cuts(tile)
        values = np.frombuffer(body, dtype).reshape(side, side)
        return values[: rows.stop - rows.start, : columns.stop - columns.start]

    def write(self, tile: Tile, values: FloatArray) -> None:
        """Write one whole tile; the former one stays until the new one is complete.

        Raises
        ------
        ValueError
            If a value is beyond the range of the store's dtype.
        OSError
            If it cannot be written (a full disk).
        """
        rows, columns = self.cuts(tile)
        with np.errstate(over="ignore"):
            stored = values.astype(self.manifest.dtype)
        if np.isinf(stored).any():
            row, column = (int(index) for index in np.argwhere(np.isinf(stored))[0])
            raise ValueError(
                f"tile {tile_name(tile)}, entry ({row}, {column}) is {values[row, column]:.3g}, "
                f"beyond the range of {self.manifest.dtype}. Store the matrix as float64, or "
                "scale the data."
            )
        try:
            self.tiles_array[rows, columns] = stored
        except OSError as error:
            raise OSError(
                error.errno,
                f"tile {tile_name(tile)} of {self.path} could not be written "
                f"({error.strerror or error}). Tiles that are complete are kept: free space and "
                "run the same command again to go on.",
            ) from error

    def write_diagonal(self, values: FloatArray) -> None:
        """Write the kernel values of each row with itself."""
        _array_of(self.group, "diagonal")[...] = values

    def cuts(self, tile: Tile) -> tuple[slice, slice]:
        """Rows and columns of a tile."""
        cuts = row_cuts(self.manifest.n_rows, self.manifest.tile_rows)
        return cuts[tile[0]], cuts[tile[1]]

    def _unusable(self, part: str, fault: str) -> GramStoreError:
        return GramStoreError(
            f"{part} of {self.path} is {fault}. Run: daskmm gram repair {self.path} INPUT"
        )


def _array_of(group: zarr.Group, name: str) -> zarr.Array:
    array = group[name]
    if not isinstance(array, zarr.Array):
        raise TypeError(f"{name} is not an array.")
    return array


def tile_name(tile: Tile) -> str:
    """Name of a tile, as in the store: row/column."""
    return f"{tile[0]}/{tile[1]}"


def opened(path: Path) -> GramStore:
    """The store at a path, opened once as long as it is the same one."""
    state = (path / "zarr.json").stat()
    return _opened(path, state.st_ino, state.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _opened(path: Path, inode: int, changed: int) -> GramStore:
    return GramStore(path)


def create_store(
    path: Path, manifest: Manifest, diagonal: FloatArray, origin: dict[str, Any] | None
) -> None:
    """Make a store without tiles, beside its place, and rename it into it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        group = zarr.create_group(fresh)
        # What was never written reads as NaN, never as zeros.
        options: dict[str, Any] = {
            "serializer": BytesCodec(),
            "compressors": [Crc32cCodec()],
            "fill_value": np.nan,
        }
        n = manifest.n_rows
        side = min(manifest.tile_rows, n)
        group.create_array(
            "tiles", shape=(n, n), chunks=(side, side), dtype=manifest.dtype, **options
        )
        kept = group.create_array("diagonal", shape=(n,), chunks=(n,), dtype="float64", **options)
        kept[...] = diagonal
        described = {**asdict(manifest), "fingerprints": list(manifest.fingerprints)}
        attributes: dict[str, Any] = {"format": FORMAT, "version": VERSION, "manifest": described}
        if origin is not None:
            attributes["origin"] = origin
        group.attrs.update(attributes)
        fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
