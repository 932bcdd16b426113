"""How loops are compiled, and where their machine code is kept; importing this imports numba."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# Products may be fused with sums. Sums may be reordered where that is said, which must not be
# where a number is rounded by adding and subtracting a large one.
EXACT = frozenset({"contract", "nsz"})
REORDERED = EXACT | {"reassoc"}


def processor_has(*features: str) -> bool:
    """Whether this processor has all of some features, in LLVM's names."""
    there = llvmlite.binding.get_host_cpu_features()
    return all(there.get(feature) for feature in features)


def everywhere(builder: Any, number: Any, vector: ir.VectorType) -> Any:
    """Write the instructions that put a single number at all places of a vector."""
    undefined, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    order = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(
        builder.insert_element(undefined, number, first), undefined, order
    )


def part(flags: frozenset[str], inlined: bool = False) -> Callable:
    """Decorator of functions that compiled ones call.

    Parameters
    ----------
    flags : frozenset of str
        `EXACT` or `REORDERED`.
    inlined : bool
        Whether to put it in the place of its calls; loops with other calls are not vectorised.
    """
    return njit(nogil=True, error_model="numpy", fastmath=set(flags), forceinline=inlined)


def entry(function: Callable) -> Callable:
    """Compiled, the machine code being kept on disk where there is a place for it.

    numba makes it again when the file of the function has changed, and knows nothing of the files
    of its parts. So the name under which it is kept tells what was in all of them.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(EXACT)}
    try:
        function.__qualname__ += f"_{_sources()}"
        compiled: Callable = njit(cache=True, **options)(function)
    except (OSError, RuntimeError):
        compiled = njit(**options)(function)
    return compiled


@functools.cache
def _sources() -> str:
    """Digest of the modules of this folder."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


@intrinsic
def _wide_vectors(typing):  # type: ignore[no-untyped-def]
    """Have the compiler use the widest vectors of the processor in the function that calls this.

    For Intel's processors it prefers vectors of 256 bits, as some slow down where wider ones are
    used now and then. Loops that use nothing else are faster with 512: steps at a finite power
    by a tenth to a quarter.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        # The attributes' own method knows none that has a value.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


wide_vectors: Any = _wide_vectors
