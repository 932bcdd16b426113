"""Compile the loops and cache their machine code on disk; importing this imports numba.

This module uses private names of numba, those of `numba.core.caching`; `intrinsics` is the only
other one that does. Run with numba 0.68.1.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core import caching

# Products may be fused with sums. `REORDERED` also lets the compiler reorder sums, which must not
# happen where a number is rounded by adding and subtracting a large one.
EXACT = frozenset({"contract", "nsz"})
REORDERED = EXACT | {"reassoc"}


def part(flags: frozenset[str], inlined: bool = False) -> Callable:
    """Return a decorator that compiles a function for calls from compiled functions only.

    Parameters
    ----------
    flags : frozenset of str
        `EXACT` or `REORDERED`.
    inlined : bool
        Whether to inline all calls; loops that contain other calls are not vectorised.
    """
    return njit(nogil=True, error_model="numpy", fastmath=set(flags), forceinline=inlined)


def entry(function: Callable) -> Callable:
    """Compile a function for calls from Python, and cache its machine code on disk if possible."""
    compiled: Any = njit(nogil=True, error_model="numpy", fastmath=set(EXACT))(function)
    # Without a writable folder, or without the sources, each process compiles anew.
    with contextlib.suppress(OSError, RuntimeError):
        compiled._cache = _Cache(function)
    return compiled


class _Cache(caching.FunctionCache):
    """Cache machine code on disk, in the folder that numba chooses (`NUMBA_CACHE_DIR` is honoured).

    numba's own key is the text of the function's file and the function's line number: editing a
    docstring invalidates it, changing a function in another file does not. Here the key is what
    `code_digest` returns; numba adds its version, the processor and the types of the arguments.
    """

    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        digest = code_digest(function.__module__)
        name = f"{function.__module__}.{function.__qualname__}-{digest[:16]}"
        self._cache_file = caching.IndexDataCacheFile(
            cache_path=self._cache_path,
            filename_base=f"{name}.{sys.implementation.cache_tag}",
            source_stamp=digest,
        )


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
    """Return the syntax tree of a module as text, and the modules of this library it imports."""
    tree = _WithoutDocstrings().visit(ast.parse(inspect.getsource(sys.modules[module])))
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            # A name imported from a package may itself be a module.
            names += [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
    ours = [name for name in names if name.startswith("daskmm.") and name in sys.modules]
    return ast.dump(tree), ours


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Drop statements that are only a constant."""
        return None if isinstance(node.value, ast.Constant) else node
