"""Libraries that tests compile: parts of the loops, and the loops of AVX-512, emulated."""

import ctypes
import importlib.util

import pytest
from _local import ROOT

from daskmm.compiled import library

# The loops of AVX-512, made of what the processor has.
EMULATED = "emulated avx512"


@pytest.fixture(scope="session")
def build_loops():
    """The module that compiles the loops."""
    place = ROOT / "deploy/build_loops.py"
    spec = importlib.util.spec_from_file_location("build_loops", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def compiler(build_loops):
    """A command that compiles C++, and what it defines."""
    try:
        return build_loops.compiler()
    except build_loops.NotCompiledError as error:
        pytest.skip(f"there is no C++ compiler: {error}")


@pytest.fixture(scope="session")
def needs_level(compiler):
    """Skip what this processor, or this compiler, does not have the instructions of."""
    loops = library._library()
    highest = loops.daskmm_highest_level() if loops else 0

    def skip_without(level):
        if level != EMULATED:
            needed = library.LEVELS.index(level)
        else:
            needed = 1 if "__x86_64__" in compiler[1] else 0
        if needed > highest:
            pytest.skip(f"this processor, or the library, does not have {level}")

    return skip_without


@pytest.fixture(scope="session")
def emulated(build_loops, needs_level, tmp_path_factory):
    """The library whose loops are those of AVX-512, emulated."""
    needs_level(EMULATED)
    file = tmp_path_factory.mktemp("emulated") / "emulated.so"
    return ctypes.CDLL(str(build_loops.build(file=file, emulated=True)))
