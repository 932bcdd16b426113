"""Gram stores: the upper triangle of a kernel matrix on disk, in tiles with checksums.

A store is a zarr group of two arrays. "tiles" has the shape (n, n) and one chunk per tile, and only
its upper triangle is written; "diagonal" has the shape (n,). The attributes of the group hold the
manifest, which describes the data and the kernel from which the tiles were computed. The file of a
chunk contains the little-endian values and their CRC32C.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from daskmm.storage.arrays import CHECKSUM_BYTES, create_array
from daskmm.storage.atomic import written_whole
from daskmm.storage.locks import remedy
from daskmm.storage.remote import local_path

if TYPE_CHECKING:
    import zarr

FloatArray = NDArray[np.float64]
Tile = tuple[int, int]

FORMAT = "daskmm-gram"
VERSION = 1

# Error numbers for a path where there is nothing, or no store. Errors of zarr itself have no
# number.
_ELSE = {None, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}


class GramStoreError(ValueError):
    """A Gram store cannot be used as it is; the message says what is wrong and what to do."""

    # "missing" or "damaged" for the fault of a tile or of the diagonal; empty for other faults.
    fault = ""


@dataclass(frozen=True)
class Manifest:
    """The data and the kernel from which a store was computed."""

    n_rows: int
    n_features: int
    tile_rows: int  # rows and columns of a tile
    dtype: str  # dtype of the stored values
    kernel: dict[str, Any]  # description of the kernel, by `Kernel.describe`
    # Digest of the rows (in the model's coordinates) of each row of tiles.
    fingerprints: tuple[str, ...]
    library: str  # version of daskmm that created the store

    def differences(self, other: Manifest) -> list[str]:
        """Return in words how another manifest differs, except in the library's version."""
        here, there = self._named_values(), other._named_values()
        found = [
            f"{name} is {there.get(name)} there and {here.get(name)} here"
            for name in dict.fromkeys([*here, *there])
            if here.get(name) != there.get(name)
        ]
        if not found:
            pairs = zip(self.fingerprints, other.fingerprints, strict=True)
            changed = ", ".join(f"{index}/*" for index, (a, b) in enumerate(pairs) if a != b)
            if changed:
                found.append(f"the data have changed (rows of tiles {changed})")
        return found

    def _named_values(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("n_rows", "n_features", "tile_rows")}
        kernel = {f"the kernel's {name}": value for name, value in self.kernel.items()}
        return {**values, "dtype": self.dtype, **kernel}


def fingerprint(rows: FloatArray) -> str:
    """Return a digest of rows that changes with any bit."""
    return hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=16).hexdigest()


def row_cuts(n_rows: int, tile_rows: int) -> list[slice]:
    """Return the slice of the matrix's rows that each row of tiles covers."""
    return [slice(s, min(s + tile_rows, n_rows)) for s in range(0, n_rows, tile_rows)]


class GramStore:
    """An open store.

    Opening raises FileNotFoundError if there is nothing at the path, GramStoreError if it is no
    Gram store, or has a newer version of the format, and OSError if the disk cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = local_path(
            path, "A Gram matrix"
        ).absolute()  # a worker may have another working directory
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path} does not exist.")
        self.group, attributes = self._open_group()
        with _readable(self.path, "has a damaged description"):
            described = dict(attributes["manifest"])
            described["fingerprints"] = tuple(described["fingerprints"])
            self.manifest = Manifest(**described)
            self.tiles_array = self._array("tiles")
        self.origin: dict[str, Any] | None = attributes.get("origin")

    def _open_group(self) -> tuple[zarr.Group, dict[str, Any]]:
        import zarr  # zarr is slow to import

        with _readable(self.path, "is not a Gram store"):
            group = zarr.open_group(self.path, mode="r+")
            attributes: dict[str, Any] = group.attrs.asdict()
        if attributes.get("format") != FORMAT:
            raise GramStoreError(f"{self.path} is not a Gram store.")
        if attributes.get("version") != VERSION:
            raise GramStoreError(
                f"{self.path} has version {attributes.get('version')} of the Gram format; this "
                f"library reads {VERSION}."
            )
        return group, attributes

    def _array(self, name: str) -> zarr.Array:
        import zarr

        return zarr.open_array(self.path / name, mode="r+")

    @functools.cached_property
    def diagonal(self) -> FloatArray:
        """Kernel value of each row with itself.

        It raises GramStoreError if a value is missing or damaged, and OSError if the disk cannot be
        read.
        """
        try:
            with _readable(self.path, "has a damaged diagonal"):
                values: FloatArray = np.asarray(self._array("diagonal")[...])
        except GramStoreError as error:
            raise self._unusable("the diagonal", f"damaged ({error.__cause__})") from error
        if not np.isfinite(values).all():
            raise self._unusable("the diagonal", "missing")
        return values

    @functools.cached_property
    def _cuts(self) -> list[slice]:
        return row_cuts(self.manifest.n_rows, self.manifest.tile_rows)

    @property
    def tiles(self) -> list[Tile]:
        """Row and column, counted in tiles, of all tiles of the upper triangle, row by row."""
        side = len(self._cuts)
        return [(a, b) for a in range(side) for b in range(a, side)]

    def missing(self) -> list[Tile]:
        """Return the tiles that have not been written, or not completely.

        zarr before 3.1.3 wrote in place, so a killed process left part of a tile.
        """
        side = min(self.manifest.tile_rows, self.manifest.n_rows)
        whole = side**2 * np.dtype(self.manifest.dtype).itemsize + CHECKSUM_BYTES
        return [tile for tile in self.tiles if self._size(tile) != whole]

    def tile_path(self, tile: Tile) -> Path:
        """Return the path of the file of a tile."""
        return self.path / "tiles" / "c" / str(tile[0]) / str(tile[1])

    def _size(self, tile: Tile) -> int:
        try:
            return self.tile_path(tile).stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, tile: Tile) -> NDArray:
        """Return the values of a tile, without padding.

        It raises GramStoreError if the tile is missing or damaged, and OSError if the disk cannot
        be read.
        """
        side = self.tiles_array.chunks[0]
        dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
        try:
            # The file is read directly, because zarr copies every tile twice.
            with self.tile_path(tile).open("rb") as file:
                body, checksum = file.read(side**2 * dtype.itemsize), file.read()
        except FileNotFoundError:
            raise self._unusable(f"tile {tile_name(tile)}", "missing") from None
        except OSError as error:
            raise _unread(f"tile {tile_name(tile)} of {self.path}", error) from error
        if len(checksum) != CHECKSUM_BYTES:
            raise self._unusable(f"tile {tile_name(tile)}", "damaged (wrong length)")
        if google_crc32c.value(body) != int.from_bytes(checksum, "little"):
            raise self._unusable(f"tile {tile_name(tile)}", "damaged (wrong checksum)")
        rows, columns = self.cuts(tile)
        values = np.frombuffer(body, dtype).reshape(side, side)
        return values[: rows.stop - rows.start, : columns.stop - columns.start]

    def write(self, tile: Tile, values: FloatArray) -> None:
        """Write a tile; the former one stays until the new one is complete.

        It raises ValueError if a value is beyond the range of the store's dtype, and OSError if the
        tile cannot be written, for example to a full disk.
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
                f"({error.strerror or error}). Tiles that are complete are kept: "
                f"{remedy(error)} and run the same command again to resume.",
            ) from error

    def write_diagonal(self, values: FloatArray) -> None:
        """Write the kernel value of each row with itself."""
        with _readable(self.path, "has a damaged diagonal"):
            self._array("diagonal")[...] = values

    def cuts(self, tile: Tile) -> tuple[slice, slice]:
        """Return the rows and the columns of the matrix in a tile."""
        return self._cuts[tile[0]], self._cuts[tile[1]]

    def _unusable(self, part: str, fault: str) -> GramStoreError:
        error = GramStoreError(
            f"{part} of {self.path} is {fault}. A kernel fit with this path as `gram` computes "
            "it again."
        )
        error.fault = fault.split()[0]
        return error


@contextmanager
def _readable(path: Path, otherwise: str) -> Iterator[None]:
    """Raise errors of JSON, codecs or zarr as GramStoreError.

    Errors of the disk or of memory are not errors of the store.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in _ELSE:
            raise _unread(str(path), error) from error
        raise GramStoreError(f"{path} {otherwise}: {error}") from error


def _unread(what: str, error: OSError) -> OSError:
    return OSError(error.errno, f"{what} could not be read ({error.strerror or error}).")


def tile_name(tile: Tile) -> str:
    """Return the name of a tile, row/column, as in its path."""
    return f"{tile[0]}/{tile[1]}"


def opened(path: Path) -> GramStore:
    """Return the store at a path; it is opened again only if another store has replaced it."""
    state = (path / "zarr.json").stat()
    with _OPENING:  # threads that begin together would open it several times
        return _opened(path, state.st_ino, state.st_mtime_ns)


_OPENING = threading.Lock()


@functools.lru_cache(maxsize=8)
def _opened(path: Path, inode: int, changed: int) -> GramStore:
    return GramStore(path)


def create_store(
    path: Path, manifest: Manifest, diagonal: FloatArray, origin: dict[str, Any] | None
) -> None:
    """Create a store without tiles.

    It raises FileExistsError if the path exists, and OSError if it cannot be written, for example
    to a full disk.
    """
    import zarr

    attributes: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    attributes["manifest"] = {**asdict(manifest), "fingerprints": list(manifest.fingerprints)}
    if origin is not None:
        attributes["origin"] = origin
    n = manifest.n_rows
    side = min(manifest.tile_rows, n)
    try:
        with written_whole(path) as fresh:
            group = zarr.create_group(fresh)
            create_array(fresh / "tiles", (n, n), (side, side), manifest.dtype)
            create_array(fresh / "diagonal", (n,), (n,), "float64")[...] = diagonal
            group.attrs.update(attributes)
    except FileExistsError:
        raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path} could not be written ({error.strerror or error}): {remedy(error)}, and run "
            "the same command again.",
        ) from error
