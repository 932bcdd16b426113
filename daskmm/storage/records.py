"""Store values of numbers, arrays and records as JSON and arrays, and in state files.

`encode` returns JSON and sets the arrays aside; `decode` is its inverse. A saved model keeps both
in a zarr group. A state file, as in a checkpoint, has a line with format and version, the JSON, the
bytes of the arrays, and a digest of all of these. Reading a file runs no code from it: records are
made only of classes that are registered here by name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskmm.storage.atomic import written_whole

T = TypeVar("T")

_VERSION = 1
_FIRST_LINE = re.compile(rb"daskmm state (\d+)\n")
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 16
# Kinds of numpy dtypes that are stored as bytes: numbers and booleans, never objects.
_KINDS = "fiub"
# Dataclasses that a file may contain, by name.
_REGISTERED: dict[str, type] = {}


def registered(kind: type[T]) -> type[T]:
    """Class decorator: allow files to contain this dataclass, by its name and field names."""
    _REGISTERED[kind.__name__] = kind
    return kind


def encode(
    value: Any, put: Callable[[str, NDArray], Any], name: str = "value", *, tables: bool = False
) -> Any:
    """Return a value as JSON, with its arrays set aside.

    Parameters
    ----------
    value : None, bool, int, float, str, Path, ndarray, or list, tuple, dict or dataclass of such
        The value. Other things that numpy can convert, such as a DataFrame, are stored as arrays.
    put : callable
        Takes a name that is unique within the value and an array of numbers; stores the array
        and returns a JSON object with the key "array" from which `decode` finds it again.
    name : str
        Name of the value.
    tables : bool
        Whether to store lists of plain records by field, which is faster for thousands of them.

    Raises
    ------
    TypeError
        If the value contains anything else.
    """

    def inner(item: Any, key: Any) -> Any:
        return encode(item, put, f"{name}-{key}", tables=tables)

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}  # exact, and valid JSON for infinities too
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, list) and tables and _alike(value):
        return {"table": type(value[0]).__name__, "columns": _columns(value, put, name)}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [inner(item, i) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        return {"dict": {str(key): inner(item, key) for key, item in value.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: inner(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
        return {"record": type(value).__name__, "fields": fields}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in _KINDS:
            return put(name, value)
        if all(isinstance(item, str) for item in value.flat):
            return {"strings": value.tolist()}
    elif hasattr(value, "__array__"):
        return encode(np.asarray(value), put, name)
    raise TypeError(f"A file cannot contain a {type(value).__name__} ({name}).")


def _alike(values: list[Any]) -> bool:
    """Return whether a list holds records of one class whose fields are numbers and strings."""
    return (
        len(values) > 0
        and dataclasses.is_dataclass(values[0])
        and all(
            type(item) is type(values[0])
            and all(isinstance(v, float | int | str | None) for v in vars(item).values())
            for item in values
        )
    )


def _columns(records: list[Any], put: Callable[[str, NDArray], Any], name: str) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(records[0]):
        values = [getattr(record, field.name) for record in records]
        floats = all(type(v) is float for v in values)
        columns[field.name] = put(f"{name}-{field.name}", np.array(values)) if floats else values
    return columns


def decode(node: Any, get: Callable[[dict[str, Any]], NDArray]) -> Any:
    """Return the value of JSON that `encode` returned.

    Parameters
    ----------
    node : JSON value
        The JSON.
    get : callable
        Takes what `put` returned for an array, and returns the array.

    Raises
    ------
    KeyError, TypeError
        If a record's class is not registered or has other fields, or a node is of unknown kind.
    """
    match node:
        case {"array": _}:
            return get(node)
        case {"float": text}:
            return float.fromhex(text)
        case {"path": text}:
            return Path(text)
        case {"strings": items}:
            return np.asarray(items, dtype=object)
        case {"list": items}:
            return [decode(item, get) for item in items]
        case {"tuple": items}:
            return tuple(decode(item, get) for item in items)
        case {"dict": items}:
            return {key: decode(item, get) for key, item in items.items()}
        case {"record": kind, "fields": fields}:
            return _REGISTERED[kind](**{key: decode(item, get) for key, item in fields.items()})
        case {"table": kind, "columns": columns}:
            lists = [get(c).tolist() if isinstance(c, dict) else c for c in columns.values()]
            rows = zip(*lists, strict=True)
            return [_REGISTERED[kind](**dict(zip(columns, row, strict=True))) for row in rows]
        case dict():
            raise TypeError(f"an object of {', '.join(node)}")
    return node  # None, bool, int, str


class DamagedStateError(ValueError):
    """A state file that differs from what was written."""


def write_state(path: Path, value: Any) -> None:
    """Write a value to a state file, which replaces a former one.

    A crash at any moment leaves the former file, or none.

    Raises
    ------
    TypeError
        If a file cannot contain the value.
    OSError
        If the file cannot be written, for example to a full disk; the former one stays.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with written_whole(path, replace=True) as fresh, fresh.open("wb") as file:
        for piece in _pieces(value):
            digest.update(piece)
            file.write(piece)
        file.write(digest.digest())


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield the content of a state file without its digest."""
    arrays: list[NDArray] = []

    def put(name: str, array: NDArray) -> dict[str, Any]:
        arrays.append(array)
        return {"array": len(arrays) - 1}

    tree = encode(value, put, tables=True)
    shapes = [[array.dtype.str, list(array.shape)] for array in arrays]
    header = json.dumps({"value": tree, "arrays": shapes}).encode()
    yield b"daskmm state %d\n" % _VERSION
    yield _LENGTH.pack(len(header))
    yield header
    for array in arrays:
        yield array.tobytes()


def read_state(path: Path) -> Any:
    """Read a value that `write_state` wrote.

    Raises
    ------
    DamagedStateError
        If the file differs from what was written.
    ValueError
        If it was written by a newer version of the library.
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
            f"{path} has content that this version of daskmm cannot read: {error}"
        ) from error


def _unpacked(body: bytes, place: int) -> Any:
    """Return the value of a state file whose digest has been checked."""
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
    return decode(header["value"], lambda node: arrays[node["array"]])
