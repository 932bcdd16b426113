"""Libraries that tests compile: parts of the loops, and the loops of AVX-512, emulated."""

import ctypes
import importlib.util

import pytest
from _local import ROOT

from daskmm.compiled import library

_loops = library._library()
# The instruction sets of this processor for which the loops are compiled.
LEVELS = library.LEVELS[: min(_loops.daskmm_highest_level() + 1, 3) if _loops else 1]


def pytest_generate_tests(metafunc):
    """Give what takes `parts` those of each instruction set, and the emulated ones."""
    if "parts" in metafunc.fixturenames:
        metafunc.parametrize("parts", [*LEVELS, "emulated avx512"], indirect=True, scope="session")


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
def needs_emulation(compiler):
    """Skip what is compiled for AVX2 in place of AVX-512 where the processor does not have it."""
    if "__x86_64__" in compiler[1] and "avx2" not in LEVELS:
        pytest.skip("this processor, or the library, does not have AVX2")


@pytest.fixture(scope="session")
def emulated(build_loops, needs_emulation, tmp_path_factory):
    """The library whose loops are those of AVX-512, emulated."""
    file = tmp_path_factory.mktemp("emulated") / "emulated.so"
    return ctypes.CDLL(str(build_loops.build(file=file, emulated=True)))
