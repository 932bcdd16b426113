"""Find chunks of zarr arrays that are absent from the store, or damaged.

zarr does not store chunks that hold only the fill value, and reads every absent chunk as if it held
the fill value, even in an incomplete copy or in a shard whose file is empty.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import is_dask_array
from daskmm.data.errors import warn_user
from daskmm.data.lazy import array_inside

if TYPE_CHECKING:
    import zarr

# Largest number of chunks that are looked up, which takes a second on a local disk and some seconds
# elsewhere. If there are more chunks, this many are sampled evenly on a local disk, and none are
# looked up in other stores.
_MOST_LOOKS = 100_000
_METADATA = ("zarr.json", ".zarray")
# Attributes of arrays whose values are packed, or marked as missing by a number, and the value of
# each that changes nothing.
_PACKING = {
    "scale_factor": 1.0,
    "add_offset": 0.0,
    "_FillValue": np.nan,
    "missing_value": np.nan,
}


def is_zarr(X: Any) -> bool:
    """Return whether `X` is a zarr array, without importing zarr (the import is slow)."""
    zarr = sys.modules.get("zarr")
    return zarr is not None and isinstance(X, zarr.Array)


def is_zarr_group(X: Any) -> bool:
    """Return whether `X` is a zarr group, without importing zarr."""
    zarr = sys.modules.get("zarr")
    return zarr is not None and isinstance(X, zarr.Group)


def check_chunks(array: zarr.Array, described: str) -> None:
    """Check that the chunks of an array (or its shards) are in its store, without reading them.

    It warns if chunks are absent and the fill value is not NaN, with their number and the first of
    them, and raises ValueError if the file of a chunk on a local disk is empty. Messages call the
    array `described`.
    """
    unit = array.shards or array.chunks
    grid = tuple(math.ceil(n / size) for n, size in zip(array.shape, unit, strict=True))
    n_chunks = math.prod(grid)
    looked = np.linspace(0, n_chunks - 1, min(n_chunks, _MOST_LOOKS)).astype(np.int64)
    axes = (axis.tolist() for axis in np.unravel_index(looked, grid)) if n_chunks else ()
    places = list(zip(*axes, strict=True))
    keys = [array.metadata.encode_chunk_key(place) for place in places]
    if (folder := _folder(array.store)) is not None:
        sizes = _sizes_on_disk(folder / array.path, keys)
    else:
        sizes = _listed(array, keys) if n_chunks <= _MOST_LOOKS else []
    kind = "chunk" if array.shards is None else "shard"
    if 0 in sizes:
        raise ValueError(
            f"{described}: {kind} {keys[sizes.index(0)]} is damaged: its file is empty."
        )
    fill = 0 if array.fill_value is None else array.fill_value
    n_absent = sizes.count(None)
    if not n_absent or fill != fill:
        return
    first = sizes.index(None)
    start = places[first][0] * unit[0]
    among = f"{n_chunks:,}" if n_chunks == len(sizes) else f"{len(sizes):,} that were looked for"
    warn_user(
        f"{described}: {n_absent:,} of {among} {kind}s are not in the store and are read as "
        f"{fill}, the fill value: the first is {keys[first]} (from row {start} on). zarr leaves "
        "out what is equal to the fill value, so this may be right. If these rows should hold "
        "other values, the store is incomplete: copy or write it again.",
        UserWarning,
    )


def _folder(store: Any) -> Path | None:
    """Return the folder of a store on a local disk."""
    from zarr.storage import LocalStore

    if isinstance(store, LocalStore):
        return store.root
    # dask.array.from_zarr opens local paths by fsspec.
    system = getattr(store, "fs", None)
    system = getattr(system, "sync_fs", system)
    return Path(store.path) if getattr(system, "local_file", False) else None


def _sizes_on_disk(folder: Path, keys: Sequence[str]) -> list[int | None]:
    """Return the bytes of each file; None for absent files."""
    sizes: list[int | None] = []
    for key in keys:
        try:
            sizes.append(os.stat(f"{folder}/{key}").st_size)
        except (FileNotFoundError, NotADirectoryError):
            sizes.append(None)
    return sizes


def _listed(array: zarr.Array, keys: Sequence[str]) -> list[int | None]:
    """Return 1 for each chunk that the store lists, else None; [] if it cannot be listed.

    If the list does not even contain the metadata of the array, the store cannot be listed.
    """
    from zarr.core.sync import sync

    prefix = f"{array.path}/" if array.path else ""

    async def names() -> set[str]:
        return {name async for name in array.store.list_prefix(prefix)}

    try:
        found = sync(names())
    except Exception:  # stores have their own errors, and may forbid listing
        return []
    if not any(f"{prefix}{name}" in found for name in _METADATA):
        return []
    return [1 if f"{prefix}{key}" in found else None for key in keys]


def packing_of(attributes: Mapping[str, Any]) -> str:
    """Return how xarray packed values with these attributes, in words; "" if they are as stored."""
    told = {name: attributes[name] for name in _PACKING if name in attributes}
    if isinstance(fill := told.get("_FillValue"), str):  # floats are stored so in zarr 3
        with contextlib.suppress(ValueError):  # other text is told as it is
            told["_FillValue"] = np.frombuffer(base64.b64decode(fill), "<f8", 1).tolist()[0]
    return ", ".join(
        f"{name} {value}"
        for name, value in told.items()
        if not _all_are(np.asarray(value), _PACKING[name])
    )


def _all_are(values: NDArray, number: float) -> bool:
    """Return whether all values are a number, which may be NaN."""
    equal = values != values if np.isnan(number) else values == number
    return bool(np.all(equal))


def check_chunks_of(X: Any) -> None:
    """Call `check_chunks` for a zarr array, or for the array of ``dask.array.from_zarr``.

    It warns if xarray packed the values of the array.
    """
    if is_dask_array(X):
        X = array_inside(X)
    if is_zarr(X):
        check_chunks(X, f"X ({X.store_path})")
        if packed := packing_of(X.attrs):
            warn_user(
                f"X ({X.store_path}) has packed values ({packed}), which are taken as they are "
                "stored. xarray.open_zarr unpacks them.",
                UserWarning,
            )


@dataclass(frozen=True)
class StoredArray:
    """Array-like of a zarr array; reading a damaged chunk raises an error that names it."""

    array: zarr.Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return np.dtype(self.array.dtype)

    def __getitem__(self, index: Any) -> NDArray:
        return read(self.array, index)


def read(array: zarr.Array, index: Any) -> NDArray:
    """Return a slice of an array.

    It raises ValueError if a chunk cannot be decoded, or a shard is an empty file; the message
    names it.
    """
    try:
        values = np.asarray(array[index])
    except Exception as error:  # stores and codecs have their own errors
        if (key := _undecodable(array, index)) is None:
            raise
        raise ValueError(f"{key} is damaged: {error}") from error
    # An empty chunk raises an error, but an empty shard is read as the fill value.
    for piece in _pieces(array, index) if array.shards is not None else ():
        part = values[piece.within]
        if _is_filled(part, array.fill_value) and _size(array, piece.key) == 0:
            raise ValueError(f"{piece.key} is damaged: its file is empty.")
    return values


class _Piece(NamedTuple):
    """The part of a slice in one stored object: its key, place in the array, place in the slice."""

    key: str
    inside: tuple[slice, ...]
    within: tuple[slice, ...]


def _pieces(array: zarr.Array, index: Any) -> Iterator[_Piece]:
    """Yield the part of a slice in each stored object; nothing for other kinds of index."""
    cuts = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(cut, slice) and cut.step in (None, 1) for cut in cuts):
        return
    unit = array.shards or array.chunks
    spans = [cut.indices(n)[:2] for cut, n in zip(cuts, array.shape, strict=False)]
    spans += [(0, n) for n in array.shape[len(cuts) :]]
    covered = [range(i // n, math.ceil(j / n)) for (i, j), n in zip(spans, unit, strict=True)]
    for place in itertools.product(*covered):
        ends = [
            (max(number * n, i), min((number + 1) * n, j))
            for number, n, (i, j) in zip(place, unit, spans, strict=True)
        ]
        within = [
            slice(i - first, j - first) for (i, j), (first, _) in zip(ends, spans, strict=True)
        ]
        inside = [slice(i, j) for i, j in ends]
        yield _Piece(array.metadata.encode_chunk_key(place), tuple(inside), tuple(within))


def _is_filled(values: NDArray, fill: Any) -> bool:
    """Return whether all values are the fill value; the first value is compared first."""
    fill = np.asarray(0 if fill is None else fill, dtype=values.dtype)
    first = values[(slice(0, 1),) * values.ndim]
    some = (first, values)
    return all(np.array_equal(each, np.full_like(each, fill), equal_nan=True) for each in some)


def _size(array: zarr.Array, key: str) -> int | None:
    """Return the bytes of a stored object; None if it is absent."""
    from zarr.core.sync import sync

    try:
        return sync(array.store.getsize(f"{array.path}/{key}".lstrip("/")))
    except FileNotFoundError:
        return None


def _undecodable(array: zarr.Array, index: Any) -> str | None:
    """Return the key of the first stored object of a slice that exists but cannot be decoded."""
    for piece in _pieces(array, index):
        try:
            there = _size(array, piece.key) is not None
        except Exception:  # the store cannot be reached
            return None
        try:
            array[piece.inside]
        except Exception:
            return piece.key if there else None
    return None
