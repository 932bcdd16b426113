"""Store values of numbers, arrays and records in files of the safetensors format.

`encode` returns JSON and sets the arrays aside; `decode` is its inverse. Saved models, checkpoints
and monitors are such files: a JSON header with the value and the places of the arrays, and the
bytes of the arrays. The header also has a version and a digest of the whole file. Reading a file
runs no code from it: records are made only of classes that are registered here by name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskmm.storage.atomic import written_whole

T = TypeVar("T")

_VERSION = 1
# The file begins with the length of the header, and the header begins with a digest of the file.
# These zeros take the place of the digest while it is computed.
_LENGTH = struct.Struct("<Q")
_BEGINNING, _ZEROS = b'{"__metadata__": {"digest": "', b"0" * 32
_DIGEST = slice(_LENGTH.size + len(_BEGINNING), _LENGTH.size + len(_BEGINNING) + len(_ZEROS))
# Names that the format has for types of arrays.
_TYPES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "|b1": "BOOL"}
_TYPES |= {f"<{kind}{n}": f"{kind.upper()}{8 * n}" for kind in "iu" for n in (2, 4, 8)}
_TYPES |= {"|i1": "I8", "|u1": "U8"}
# Errors of reading a header that is damaged.
_UNREADABLE = (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError)
# Kinds of numpy dtypes that are stored as bytes: numbers and booleans, never objects.
_KINDS = "fiub"
# Dataclasses that a file may contain, by name.
_REGISTERED: dict[str, type] = {}
# Functions that import the modules in which further classes are registered.
_IMPORTS: list[Callable[[], object]] = []


def known_after(import_modules: Callable[[], object]) -> None:
    """Let files contain the records of modules that this function imports."""
    _IMPORTS.append(import_modules)


def _class_of(name: str) -> type:
    """Return a registered class; KeyError is raised if there is none after all imports."""
    if name not in _REGISTERED:
        for import_modules in _IMPORTS:
            import_modules()
    return _REGISTERED[name]


def registered(kind: type[T]) -> type[T]:
    """Class decorator: allow files to contain this dataclass, by its name and field names."""
    _REGISTERED[kind.__name__] = kind
    return kind


def encode(value: Any, put: Callable[[str, NDArray], Any], name: str = "") -> Any:
    """Return a value as JSON, with its arrays set aside.

    The value is None, a bool, number, text, Path or array, or a list, tuple, dict or dataclass of
    such. Other things that numpy can convert, such as a DataFrame, are stored as arrays; anything
    else raises TypeError. ``put(name, array)`` stores an array of numbers, and returns a JSON
    object with the key "array" from which `decode` finds it again.
    """

    def inner(item: Any, key: Any) -> Any:
        return encode(item, put, f"{name}-{key}" if name else str(key))

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}  # this text is exact, and valid JSON for infinities too
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, list) and _alike(value):
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

    `get` takes what `put` returned for an array, and returns the array. KeyError or TypeError is
    raised if a record's class is not registered or has other fields, or a node is of unknown kind.
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
            return _class_of(kind)(**{key: decode(item, get) for key, item in fields.items()})
        case {"table": kind, "columns": columns}:
            lists = [get(c).tolist() if isinstance(c, dict) else c for c in columns.values()]
            rows = zip(*lists, strict=True)
            return [_class_of(kind)(**dict(zip(columns, row, strict=True))) for row in rows]
        case dict():
            raise TypeError(f"an object of {', '.join(node)}")
    return node  # None, bool, int, str


class DamagedStateError(ValueError):
    """A file that differs from what was written, or was not written here."""


def write_state(path: Path, value: Any, kind: str = "state") -> None:
    """Write a value that `encode` takes to a file, which replaces a former one.

    A crash at any moment leaves the former file, or none. `kind` is what `kind_of` returns for the
    file. It raises TypeError if a file cannot contain the value, and OSError if the file cannot be
    written, for example to a full disk; the former one stays.
    """
    arrays: dict[str, NDArray] = {}

    def put(name: str, array: NDArray) -> dict[str, Any]:
        while name in arrays or name == "__metadata__":
            name += "'"
        little = array.dtype.newbyteorder("<")
        # Numbers of extended precision, which few platforms have, are stored in double precision.
        arrays[name] = array.astype(little if little.str in _TYPES else "<f8", copy=False)
        return {"array": name}

    content = json.dumps(encode(value, put))
    header: dict[str, Any] = {
        "__metadata__": {
            "digest": _ZEROS.decode(),
            "format": "daskmm",
            "version": str(_VERSION),
            "kind": kind,
            "value": content,
        }
    }
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        described = {"dtype": _TYPES[array.dtype.str], "shape": list(array.shape)}
        header[name] = {**described, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head, bodies = _LENGTH.pack(len(text)) + text, [*map(_bytes_of, arrays.values())]
    digest = _digest_of([head, *bodies])
    with written_whole(path, replace=True) as fresh, fresh.open("wb") as file:
        file.write(head[: _DIGEST.start] + digest + head[_DIGEST.stop :])
        for body in bodies:
            file.write(body)


def _bytes_of(array: NDArray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _digest_of(pieces: Iterable[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=len(_ZEROS) // 2)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest().encode()


def kind_of(path: Path) -> str | None:
    """Return what the file at a path holds; None if it was not written by `write_state`."""
    try:
        with path.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            beginning = file.read(len(_BEGINNING))
            if beginning != _BEGINNING:
                return None
            header = json.loads(beginning + file.read(length - len(beginning)))
            return str(header["__metadata__"]["kind"])
    except (OSError, *_UNREADABLE):
        return None


def read_state(path: Path) -> Any:
    """Read a value that `write_state` wrote.

    It raises DamagedStateError if the file differs from what was written, and ValueError if it was
    written by a newer version of the library.
    """
    data = path.read_bytes()
    try:
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        header = json.loads(data[_LENGTH.size : start])
        about = header.pop("__metadata__")
        version = int(about["version"])
    except _UNREADABLE as error:
        raise DamagedStateError(f"{path} is damaged") from error
    if version > _VERSION:
        raise ValueError(
            f"{path} has version {version} of the format; this library reads {_VERSION}."
        )
    whole = memoryview(data)
    if data[_DIGEST] != _digest_of([whole[: _DIGEST.start], _ZEROS, whole[_DIGEST.stop :]]):
        raise DamagedStateError(f"{path} is damaged")
    dtypes = {name: dtype for dtype, name in _TYPES.items()}

    def get(node: dict[str, Any]) -> NDArray:
        described = header[node["array"]]
        first, last = described["data_offsets"]
        values = np.frombuffer(whole[start + first : start + last], dtypes[described["dtype"]])
        return values.reshape(described["shape"]).copy()

    try:
        return decode(json.loads(about["value"]), get)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"{path} has content that this version of daskmm cannot read: {error}"
        ) from error
