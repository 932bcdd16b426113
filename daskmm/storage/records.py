"""Files of numbers, arrays and records of them: written whole or not at all, read without code.

A file is a line that names format and version, a header (JSON), the bytes of the arrays, and a
digest of all of it. What does not agree with its digest is never used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import struct
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskmm.storage.atomic import flush_folder

T = TypeVar("T")

_VERSION = 1
_FIRST_LINE = re.compile(rb"daskmm state (\d+)\n")
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 16
# Numbers and truth values; never objects.
_KINDS = "fiub"


# Dataclasses that files may hold, by name.
_REGISTERED: dict[str, type] = {}


class DamagedStateError(ValueError):
    """A file that is not as it was written."""


def registered(kind: type[T]) -> type[T]:
    """Class decorator: files may hold records of this dataclass, known by its name."""
    _REGISTERED[kind.__name__] = kind
    return kind


def write_state(path: Path, value: Any) -> None:
    """Write a value, durably, in the place of what was there.

    The file is complete and on the disk before it takes its name: a crash at any moment leaves
    the former one, or none.

    Parameters
    ----------
    path : Path
        In a folder that exists.
    value : None, bool, int, float, str, Path, ndarray, or list, tuple, dict or dataclass of such

    Raises
    ------
    TypeError
        If something else is in it.
    OSError
        If it cannot be written (a full disk); the former file stays.
    """
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    try:
        with fresh.open("wb") as file:
            for piece in _pieces(value):
                found.update(piece)
                file.write(piece)
            file.write(found.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        flush_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def _pieces(value: Any) -> Iterator[Any]:
    arrays: list[NDArray] = []
    tree = _encoded(value, arrays)
    shapes = [[array.dtype.str, list(array.shape)] for array in arrays]
    header = json.dumps({"value": tree, "arrays": shapes}).encode()
    yield b"daskmm state %d\n" % _VERSION
    yield _LENGTH.pack(len(header))
    yield header
    for array in arrays:
        yield np.ascontiguousarray(array).tobytes()


def read_state(path: Path) -> Any:
    """Read what `write_state` wrote.

    Parameters
    ----------
    path : Path

    Raises
    ------
    DamagedStateError
        If the file is not as it was written.
    ValueError
        If it is of a newer version.
    """
    data = path.read_bytes()
    first = _FIRST_LINE.match(data)
    if first is not None and int(first[1]) > _VERSION:
        raise ValueError(
            f"{path} has version {int(first[1])} of the format; this library reads {_VERSION}."
        )
    body, expected = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if first is None or hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != expected:
        raise DamagedStateError(f"{path} is damaged")
    try:
        return _unpacked(body, first.end())
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"{path} holds what this version of daskmm cannot read: {error}"
        ) from error


def _unpacked(body: bytes, place: int) -> Any:
    """The value of a file that agrees with its digest."""
    (length,) = _LENGTH.unpack_from(body, place)
    place += _LENGTH.size
    header = json.loads(body[place : place + length])
    place += length
    arrays = []
    for name, shape in header["arrays"]:
        dtype = np.dtype(name)
        if dtype.kind not in _KINDS:
            raise TypeError(f"arrays of {dtype}")
        array = np.frombuffer(body, dtype, int(np.prod(shape)), place)
        place += array.nbytes
        arrays.append(array.reshape(shape).copy())
    return _decoded(header["value"], arrays)


def _encoded(value: Any, arrays: list[NDArray]) -> Any:
    """JSON for a value; arrays are put aside."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value  # floats come back exactly, infinities too
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, list) and value and all(_is_flat(item, type(value[0])) for item in value):
        return {"table": type(value[0]).__name__, "columns": _columns(value, arrays)}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_encoded(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"dict": {str(key): _encoded(item, arrays) for key, item in value.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        encoded = {name: _encoded(item, arrays) for name, item in fields.items()}
        return {"record": type(value).__name__, "fields": encoded}
    raise TypeError(f"A file cannot hold a {type(value).__name__}.")


def _is_flat(item: Any, kind: type) -> bool:
    """Whether something is a record of numbers and words."""
    return (
        type(item) is kind
        and dataclasses.is_dataclass(item)
        and all(isinstance(v, float | int | str | None) for v in vars(item).values())
    )


def _columns(records: Sequence[Any], arrays: list[NDArray]) -> dict[str, Any]:
    """Records alike by their fields: there can be thousands."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(records[0]):
        values = [getattr(record, field.name) for record in records]
        columns[field.name] = values
        if all(type(v) is float for v in values):
            arrays.append(np.array(values))
            columns[field.name] = {"array": len(arrays) - 1}
    return columns


def _decoded(value: Any, arrays: Sequence[NDArray]) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "path" in value:
        return Path(value["path"])
    if "table" in value:
        columns = [
            arrays[column["array"]].tolist() if isinstance(column, dict) else column
            for column in value["columns"].values()
        ]
        kind = _REGISTERED[value["table"]]
        return [
            kind(**dict(zip(value["columns"], row, strict=True)))
            for row in zip(*columns, strict=True)
        ]
    if "record" in value:
        fields = {k: _decoded(v, arrays) for k, v in value["fields"].items()}
        return _REGISTERED[value["record"]](**fields)
    if "dict" in value:
        return {k: _decoded(v, arrays) for k, v in value["dict"].items()}
    kind = tuple if "tuple" in value else list
    return kind(_decoded(item, arrays) for item in value[kind.__name__])
