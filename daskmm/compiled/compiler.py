"""Compile the loops and cache their machine code on disk; importing this imports numba.

This module uses private names of numba, those of `numba.core`; `intrinsics` is the only other one
that does. Run with numba 0.68.1.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import hashlib
import inspect
import logging
import multiprocessing
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numba
from numba import config, njit, types
from numba.core import caching
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

# Products may be fused with sums. `REORDERED` also lets the compiler reorder sums, which must not
# happen where a number is rounded by adding and subtracting a large one.
EXACT = frozenset({"contract", "nsz"})
REORDERED = EXACT | {"reassoc"}

# Attempts to parse a module.
_PARSINGS = 20

logger = logging.getLogger("daskmm")


def part(flags: frozenset[str], inlined: bool = False) -> Callable:
    """Return a decorator that compiles a function for calls from compiled functions only.

    Parameters
    ----------
    flags : frozenset of str
        `EXACT` or `REORDERED`.
    inlined : bool
        Whether to inline all calls; loops that contain other calls are not vectorised.
    """
    return njit(
        nogil=True,
        error_model="numpy",
        fastmath=set(flags),
        forceinline=inlined,
        pipeline_class=_PartCompiler,
    )


def entry(function: Callable) -> Callable:
    """Compile a function for calls from Python, and cache its machine code on disk if possible."""
    compiled: Any = njit(nogil=True, error_model="numpy", fastmath=set(EXACT))(function)
    try:
        compiled._cache = _Cache(function)
    except (OSError, RuntimeError):  # without the sources
        compiled._cache = _NoCache()
    return compiled


class _PartCompiler(Compiler):
    """Compile a part to intermediate code only, from which entries are made."""

    def __init__(self, typing_context: Any, context: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing_context, context, _PartLibrary(context.codegen(), "part"), *rest)
        # Functions that Python or C would call.
        self.state.flags.no_cpython_wrapper = self.state.flags.no_cfunc_wrapper = True


class _PartLibrary(JITCodeLibrary):
    """Intermediate code that is linked into entries, and not turned into machine code itself.

    By default, numba loads the machine code of each part too. An entry that has just been compiled
    then calls that code instead of its own copy, which was optimised in its context, and sums are
    rounded differently than in a process that loads the entry from the cache.
    """

    @property
    def codegen(self) -> _PartLibrary:
        """Return what `set_env` is called of."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: the globals of Python that numba sets here are in machine code only."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return what is called from Python in place of the function: it raises TypeError."""
        raising = ctypes.pythonapi.PyErr_BadArgument
        return ctypes.cast(raising, ctypes.c_void_p).value or 0


class _NoCache(caching.NullCache):
    """No cache: each process compiles anew."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        """Find nothing, and say that code is going to be compiled."""
        _announce(sig, kept=False)


# Their names are others in other versions of numba.
_GIVEN, _BESIDE_SOURCES, *_ = caching.CompileResultCacheImpl._locator_classes


class _Nowhere(_BESIDE_SOURCES):  # type: ignore[misc, valid-type]
    """The last choice: code is read from the folder of the sources, and cannot be kept there."""

    @classmethod
    def from_function(cls, py_func: Callable, py_file: str) -> _Nowhere:
        """Take the folder as it is."""
        return cls(py_func, py_file)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes: ClassVar[list[Any]] = [  # type: ignore[misc]
        *caching.CompileResultCacheImpl._locator_classes,
        _Nowhere,
    ]


class _Files(caching.IndexDataCacheFile):
    """Machine code of a function on disk: one file per signature, named after it.

    numba numbers these files, and keeps an index of them. Processes that compile at the same time
    may take the same number, or lose what others have added to the index; and another version of
    numba that shares the folder begins a new index.
    """

    def save(self, key: Any, data: Any) -> None:
        """Write the code for a signature."""
        self._save_data(self._name_of(key), data)

    def load(self, key: Any) -> Any:
        """Return the code for a signature; raise FileNotFoundError if there is none."""
        return self._load_data(self._name_of(key))

    def _name_of(self, key: Any) -> str:
        number = int(hashlib.sha256(repr(key).encode()).hexdigest()[:16], 16)
        return str(self._data_name(number))


class _Cache(caching.FunctionCache):
    """Cache machine code on disk, in the first folder that can be written.

    Folders are `NUMBA_CACHE_DIR`, that of the sources and that of the user. Code in the first, or
    without it in the second, is used also where it cannot be written, as in images of containers.

    numba's own key is the text of the function's file and the function's line number: editing a
    docstring invalidates it, changing a function in another file does not. Here the key is what
    `code_digest` returns and the versions of Python and numba; numba adds the processor and the
    types of the arguments.
    """

    _impl_class = _Implementation

    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        digest = code_digest(function.__module__)
        name = f"{function.__module__}.{function.__qualname__}-{digest[:16]}"
        versions = f"{sys.implementation.cache_tag}.numba-{numba.__version__}"
        locator: Any = _GIVEN if getattr(config, "CACHE_DIR", None) else _BESIDE_SOURCES
        readable = locator(function, inspect.getfile(function)).get_cache_path()
        self._files = [
            _Files(
                cache_path=path,
                filename_base=f"{name}.{versions}",
                source_stamp=digest,
            )
            for path in dict.fromkeys([self._cache_path, readable])
        ]
        self._cache_file = self._files[0]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled code for arguments of given types; None if it has to be compiled."""
        target_context.refresh()
        key = self._index_key(sig, target_context.codegen())
        for file in self._files:
            with contextlib.suppress(Exception):  # not there, or damaged: it is written anew
                return self._impl.rebuild(target_context, file.load(key))
        _announce(sig, kept=not isinstance(self._impl.locator, _Nowhere))
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code; where that is not possible, the fit goes on without."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            if not isinstance(self._impl.locator, _Nowhere):
                _say(f"compiled loops cannot be kept in {self.cache_path}: {error.strerror}")


def _announce(sig: Any, kept: bool) -> None:
    """Say that loops are compiled for a type of rows; parts of them that have no rows are quick."""
    how = "once" if kept else "in every process, as they cannot be kept: set NUMBA_CACHE_DIR"
    if isinstance(sig[0], types.Array):
        _say(f"compiling loops for {sig[0].dtype} rows, which takes up to half a minute, {how}")


@functools.cache
def _say(message: str) -> None:
    """Log a message once, and not in workers, which are many."""
    if multiprocessing.parent_process() is None:
        logger.warning(message)


@functools.cache
def code_digest(module: str) -> str:
    """Return a digest of the code of a module and of all modules of this library that it imports.

    Comments, docstrings, formatting and line numbers do not change it. The modules must have been
    imported.
    """
    codes: dict[str, str] = {}
    found = [module]
    while found:
        name = found.pop()
        if name not in codes:
            codes[name], imported = _code(name)
            found += imported
    return hashlib.sha256(repr(sorted(codes.items())).encode()).hexdigest()


@functools.cache
def _code(module: str) -> tuple[str, list[str]]:
    """Return the syntax tree of a module as text, and the modules of this library it imports.

    Imports within functions do not count: compiled code cannot make them, and whether they have
    been made depends on what a process did before.
    """
    tree = _WithoutDocstrings().visit(_parsed(inspect.getsource(sys.modules[module])))
    names = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            # A name imported from a package may itself be a module.
            names += [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
    ours = [name for name in names if name.startswith("daskmm.") and name in sys.modules]
    return ast.dump(tree), ours


def _parsed(source: str) -> ast.Module:
    """Return the syntax tree of a module; try again if Python fails by mistake.

    Python 3.11 has one counter of the depth of trees for all threads, and raises SystemError when
    two of them parse at the same time (python/cpython issue 106905).
    """
    for _ in range(_PARSINGS - 1):
        with contextlib.suppress(SystemError):
            return ast.parse(source)
    return ast.parse(source)


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Drop statements that are only a constant."""
        return None if isinstance(node.value, ast.Constant) else node
