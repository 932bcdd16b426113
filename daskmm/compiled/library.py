"""Load the compiled loops, and check every array before its address is passed to them.

The loops are C++ in `src`, compiled for several instruction sets when the package is installed;
`src/loops.h` is their interface. The environment variable `DASKMM_LOOPS` chooses `baseline`,
`avx2`, `avx512` or `amx`, which is AVX-512 with products in tiles (by default the highest that the
processor has), or `numpy` for the definitions in `daskmm.numerics`, which are also used if no
library could be compiled.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import multiprocessing
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVELS = ("baseline", "avx2", "avx512", "amx")
_OUT_OF_MEMORY, _NOT_FINITE = 1, 2
_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_REMEDY = (
    "numpy computes in place of the compiled loops, which takes several times as long; install "
    "daskmm again where there is a C++ compiler, such as g++ or clang++: "
    "pip install --force-reinstall --no-deps --no-cache-dir -v daskmm"
)
# Types of the fields in `src/loops.h`; the type of an array of `void` depends on another field.
_TYPES = {"int64_t": "i8", "int32_t": "i4", "int8_t": "i1", "uint8_t": "b1"}
_TYPES |= {"double": "f8", "float": "f4"}
_CHOICES = {
    "R": ("single_rows", ("f8", "f4")),
    "T": ("single", ("f8", "f4")),
    "I": ("wide", ("i4", "i8")),
}

logger = logging.getLogger("daskmm")


class Array(NamedTuple):
    """The types that an array of a structure may have, and its shape as an expression.

    The integer `chosen_by` (0 or 1) chooses one of several types.
    """

    dtypes: tuple[np.dtype, ...]
    chosen_by: str
    shape: CodeType
    optional: bool
    written: bool

    def address(self, name: str, array: NDArray, sizes: dict[str, int]) -> int:
        """Return the address of an array; raise ValueError if type, shape or order do not match."""
        dtype, flags = self.dtypes[sizes[self.chosen_by] if self.chosen_by else 0], array.flags
        shape = eval(self.shape, _NO_NAMES, sizes)
        same_type = array.dtype is dtype or array.dtype == dtype
        fits = same_type and array.shape == shape and flags.c_contiguous and flags.aligned
        if not fits or (self.written and not flags.writeable):
            raise ValueError(
                f"{name} must be an aligned{', writeable' * self.written} array of {dtype} and "
                f"shape {shape} in C order, got {array.dtype}, {array.shape} with strides "
                f"{array.strides}"
            )
        return _address(array)


_NO_NAMES: dict[str, Any] = {"__builtins__": {}}


def _address(array: NDArray) -> int:
    """Return the address of the numbers of an array, which numpy keeps after the object's header.

    Steps over small tables pass a dozen arrays, and numpy's methods take 3.3 µs in place of 0.4 µs.
    """
    return _pointer_at(id(array) + object.__basicsize__).value or 0


_pointer_at = ctypes.c_void_p.from_address


class Layout:
    """A structure of `src/loops.h`, read from its text: integers, then numbers, then arrays."""

    def __init__(self, name: str, body: str) -> None:
        self.name = name
        self.integers: list[str] = []
        self.numbers: list[str] = []
        self.arrays: dict[str, Array] = {}
        for const, kind, names, text in _DECLARATION.findall(body):
            fields = re.findall(r"\w+", names)
            if "*" in names:
                self.arrays |= dict.fromkeys(fields, _array(kind, bool(const), text))
            else:
                (self.integers if kind == "int64_t" else self.numbers).extend(fields)
        kinds: list[tuple[str, Any]] = [(field, ctypes.c_int64) for field in self.integers]
        kinds += [(field, ctypes.c_double) for field in self.numbers]
        kinds += [(field, ctypes.c_void_p) for field in self.arrays]
        self.type = type(name, (ctypes.Structure,), {"_fields_": kinds})

    def fill(self, values: Mapping[str, Any]) -> ctypes.Structure:
        """Return the structure with these values; raise ValueError if an array does not match."""
        sizes, addresses = {name: int(values[name]) for name in self.integers}, []
        for name, expected in self.arrays.items():
            array = values.get(name)
            if array is None and not expected.optional:
                raise ValueError(f"{self.name}.{name} is missing")
            addresses.append(None if array is None else expected.address(name, array, sizes))
        return self.type(*sizes.values(), *[values[name] for name in self.numbers], *addresses)


_DECLARATION = re.compile(r"(const )?(\w+)(\*? [^;]+);\s*(?:/\*(.*?)\*/)?", re.DOTALL)
_COMMENT = re.compile(r"\s*([RTI]?)\s*\((.*?)\)( or NULL)?")


def _array(kind: str, const: bool, text: str) -> Array:
    """Read an array's type and shape from its declaration and the comment beside it."""
    found = _COMMENT.match(text)
    assert found is not None, text
    letter, shape, optional = found.groups()
    chosen_by, dtypes = _CHOICES.get(letter, ("", (_TYPES.get(kind, ""),)))
    code = compile(f"({shape},)", "loops.h", "eval")
    return Array(tuple(map(np.dtype, dtypes)), chosen_by, code, bool(optional), not const)


@functools.cache
def interface() -> tuple[int, dict[str, Layout], dict[str, Layout]]:
    """Return version, structures and entries of `src/loops.h`."""
    text = Path(__file__).with_name("src").joinpath("loops.h").read_text(encoding="utf-8")
    structures = {
        name: Layout(name, body)
        for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, re.DOTALL)
    }
    entries = re.findall(r"ENTRY\((\w+), (\w+)\)", text)
    version = re.findall(r"DASKMM_VERSION (\d+)", text)[0]
    return int(version), structures, {name: structures[kind] for name, kind in entries}


def call(entry: str, **values: Any) -> bool:
    """Run an entry of `src/loops.h` on the fields of its structure, without Python's global lock.

    Arrays that it writes are changed in place. A ValueError is raised for one whose type, shape or
    memory order does not match, a MemoryError if there is no memory for the arrays of a tile. The
    result is False if the loop ended at a value that is not finite; its output is undefined then.
    """
    library = _library()
    assert library is not None
    filled = interface()[2][entry].fill(values)
    status = getattr(library, f"daskmm_{entry}")(level(), ctypes.byref(filled))
    if status == _OUT_OF_MEMORY:
        raise MemoryError("there is no memory for the arrays of a tile")
    return status != _NOT_FINITE


def available() -> bool:
    """Return whether the compiled loops can be used."""
    return _library() is not None


@functools.cache
def level() -> int:
    """Return the index in `LEVELS` of the instruction set in use."""
    library = _library()
    assert library is not None
    highest, wanted = library.daskmm_highest_level(), os.environ.get("DASKMM_LOOPS", "")
    return min(highest, LEVELS.index(wanted)) if wanted else highest


def rounded_products() -> int:
    """Return the field `rounded` of `src/loops.h` that makes hard steps fastest."""
    return 2 if available() and LEVELS[level()] == "amx" else 0


def file() -> Path:
    """Return the path of the library, even if it does not exist."""
    named = os.environ.get("DASKMM_LOOPS_LIBRARY")
    return Path(named) if named else Path(__file__).with_name(f"libdaskmm_loops{_SUFFIX}")


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the library; None if numpy is asked for or (with a warning) loading fails."""
    wanted, choices = os.environ.get("DASKMM_LOOPS", ""), (*LEVELS, "numpy")
    if wanted and wanted not in choices:
        raise ValueError(f"DASKMM_LOOPS must be one of {', '.join(choices)}, got {wanted!r}")
    if wanted == "numpy":
        return None
    try:
        library = ctypes.CDLL(str(file()))
    except OSError as error:
        _say(f"{error}: {_REMEDY}" if file().exists() else _REMEDY)
        return None
    probe = np.zeros(3)
    assert _address(probe[1:]) == probe.ctypes.data + 8
    version, _, entries = interface()
    sizes = [ctypes.sizeof(layout.type) for layout in entries.values()]
    found = [library.daskmm_size(place) for place in range(len(sizes))]
    if library.daskmm_version() != version or found != sizes:
        _say(f"{file().name} was compiled from other sources: {_REMEDY}")
        return None
    return library


def _say(message: str) -> None:
    """Log a warning, except in worker processes."""
    if multiprocessing.parent_process() is None:
        logger.warning(message)
