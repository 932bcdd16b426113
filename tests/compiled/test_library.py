"""How the library is found, checked and called."""

import ctypes
import importlib.util
import logging
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from compiled._blocks import identity, off_lines
from daskmm import KMeans
from daskmm.compiled import library
from daskmm.compiled.dispatch import PreparedCenters, block_sums, row_terms
from daskmm.compiled.labels import nearest_centers
from daskmm.compiled.moments import block_moments
from daskmm.numerics.distortions.bregman import KullbackLeibler

needs_library = pytest.mark.skipif(not library.available(), reason="the loops are not compiled")


# The interface


@needs_library
def test_structures_have_the_sizes_that_c_has():
    _, _, entries = library.interface()
    loops = library._library()
    for place, layout in enumerate(entries.values()):
        assert ctypes.sizeof(layout.type) == loops.daskmm_size(place)
    assert loops.daskmm_size(len(entries)) == 0


@needs_library
def test_all_entries_are_in_the_library_with_the_version_of_the_header():
    version, structures, entries = library.interface()
    loops = library._library()
    assert loops.daskmm_version() == version
    assert len(entries) == 13
    for name, layout in entries.items():
        assert getattr(loops, f"daskmm_{name}") is not None
        assert layout in structures.values()


def test_fields_are_read_in_the_order_of_the_header_with_what_their_comments_say():
    _, structures, _ = library.interface()
    layout = structures["Terms"]
    assert [name for name, _ in layout.type._fields_] == [
        *("n", "p", "code", "single_rows", "rows", "reference", "terms")
    ]
    rows, terms = layout.arrays["rows"], layout.arrays["terms"]
    assert (rows.dtypes, rows.chosen_by) == ((np.dtype("f8"), np.dtype("f4")), "single_rows")
    assert (terms.dtypes, terms.chosen_by) == ((np.dtype("f8"),), "")
    assert (rows.written, terms.written, rows.optional) == (False, True, False)
    assert structures["Moments"].arrays["weights"].optional
    assert not structures["Moments"].arrays["mean"].optional
    assert structures["Sparse"].arrays["indices"].chosen_by == "wide"


# What is refused


def terms_of(**changes):
    fields = {"n": 4, "p": 3, "code": 1, "single_rows": 0, "rows": np.ones((4, 3))}
    return fields | {"reference": np.ones(3), "terms": np.zeros(4)} | changes


def frozen(array):
    array.flags.writeable = False
    return array


REFUSED = {
    "another type": ("rows", np.ones((4, 3), np.float32)),
    "integers": ("rows", np.ones((4, 3), np.int64)),
    "another byte order": ("rows", np.ones((4, 3), np.dtype("f8").newbyteorder())),
    "another number of rows": ("rows", np.ones((5, 3))),
    "another number of features": ("rows", np.ones((4, 2))),
    "fewer dimensions": ("rows", np.ones(12)),
    "Fortran's order": ("rows", np.ones((4, 3), order="F")),
    "strides": ("rows", np.ones((8, 3))[::2]),
    "off its own lines": ("rows", off_lines(np.ones((4, 3)))),
    "a reference that is too short": ("reference", np.ones(2)),
    "output that is too long": ("terms", np.zeros(5)),
    "output of another type": ("terms", np.zeros(4, np.float32)),
    "output in reverse": ("terms", np.zeros(4)[::-1]),
    "read-only output": ("terms", frozen(np.zeros(4))),
}


class Uncalled:
    """A library of which no function may be called."""

    def __getattr__(self, name):
        pytest.fail(f"{name} was called")


@pytest.mark.parametrize("case", REFUSED)
def test_an_array_that_is_not_as_it_must_be_is_refused_by_its_name(case, monkeypatch):
    name, array = REFUSED[case]
    monkeypatch.setattr(library, "_library", Uncalled)
    with pytest.raises(ValueError, match=rf"^{name} must be an aligned.* array of float64 and"):
        library.call("row_terms", **terms_of(**{name: array}))


def test_an_array_that_is_missing_is_refused_by_its_name(monkeypatch):
    monkeypatch.setattr(library, "_library", Uncalled)
    for absent in ("rows", "terms"):
        with pytest.raises(ValueError, match=rf"^Terms\.{absent} is missing$"):
            library.call("row_terms", **terms_of(**{absent: None}))


def wrong_arrays(expected, shape, sizes):
    """Arrays that are each wrong in one way."""
    dtype = expected.dtypes[sizes[expected.chosen_by] if expected.chosen_by else 0]
    other = np.dtype(np.complex128)
    longer = (shape[0] + 1, *shape[1:])
    yield np.zeros(shape, other)
    yield np.zeros(longer, dtype)
    if shape != (1,):  # one number is contiguous
        yield np.zeros((2 * shape[0] + 2, *shape[1:]), dtype)[: 2 * shape[0] : 2]
    if len(shape) == 2:
        yield np.zeros(shape, dtype, order="F")
    if expected.written:
        yield frozen(np.zeros(shape, dtype))


@pytest.mark.parametrize("entry", library.interface()[2])
def test_every_array_of_every_entry_is_checked(entry, monkeypatch):
    layout = library.interface()[2][entry]
    sizes = {name: place + 3 for place, name in enumerate(layout.integers)}
    sizes |= dict.fromkeys(("single", "single_rows", "wide"), 1)
    fields = sizes | dict.fromkeys(layout.numbers, 0.0)
    for name, expected in layout.arrays.items():
        shape = eval(expected.shape, {}, sizes)
        chosen = expected.dtypes[1 if expected.chosen_by else 0]
        fields[name] = np.zeros(shape, chosen)
    layout.fill(fields)
    monkeypatch.setattr(library, "_library", Uncalled)
    for name, expected in layout.arrays.items():
        for wrong in wrong_arrays(expected, fields[name].shape, sizes):
            with pytest.raises(ValueError, match=rf"^{name} must be an aligned"):
                library.call(entry, **fields | {name: wrong})


def test_lack_of_memory_is_an_error_of_memory(monkeypatch):
    class Full:
        def daskmm_row_terms(self, *_):
            return 1

    monkeypatch.setattr(library, "_library", Full)
    monkeypatch.setattr(library, "level", lambda: 0)
    with pytest.raises(MemoryError, match="no memory for the arrays of a tile"):
        library.call("row_terms", **terms_of())


# Where there is no library


@pytest.fixture
def fresh(monkeypatch):
    """Have the library looked for anew, in this test and after it."""
    for name in ("DASKMM_LOOPS", "DASKMM_LOOPS_LIBRARY"):
        monkeypatch.delenv(name, raising=False)

    def forget():
        library._library.cache_clear()
        library.level.cache_clear()

    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def warnings_of_a_fit(caplog):
    X = np.arange(40.0).reshape(20, 2)
    with caplog.at_level(logging.WARNING, logger="daskmm"):
        for _ in range(2):
            centers = KMeans(2, random_state=0).fit(X).cluster_centers_
    np.testing.assert_allclose(np.sort(centers[:, 0]), [9.0, 29.0], atol=1.0)
    return [r.getMessage() for r in caplog.records if "compiled" in r.getMessage()]


def test_without_a_library_numpy_computes_and_the_remedy_is_told_once(fresh, caplog, tmp_path):
    fresh.setenv("DASKMM_LOOPS_LIBRARY", str(tmp_path / "none.so"))
    (told,) = warnings_of_a_fit(caplog)
    assert not library.available()
    assert "numpy computes in place of the compiled loops" in told
    assert "install daskmm again where there is a C++ compiler" in told


def test_a_file_that_is_no_library_is_told_with_the_remedy(fresh, caplog, tmp_path):
    file = tmp_path / "broken.so"
    file.write_bytes(b"no library")
    fresh.setenv("DASKMM_LOOPS_LIBRARY", str(file))
    (told,) = warnings_of_a_fit(caplog)
    assert "broken.so" in told
    assert "install daskmm again" in told


class Other:
    """A library of another version, or with structures of other sizes."""

    def __init__(self, version=None, larger=0):
        known, _, entries = library.interface()
        self.version = known if version is None else version
        self.sizes = [ctypes.sizeof(layout.type) for layout in entries.values()]
        self.sizes[0] += larger

    def daskmm_version(self):
        return self.version

    def daskmm_size(self, place):
        return self.sizes[place]


@pytest.mark.parametrize("other", [Other(version=99), Other(larger=8)], ids=["version", "size"])
def test_a_library_of_other_sources_is_not_used_and_the_remedy_is_told(fresh, caplog, other):
    fresh.setattr(ctypes, "CDLL", lambda _: other)
    (told,) = warnings_of_a_fit(caplog)
    assert not library.available()
    assert "was compiled from other sources" in told
    assert "install daskmm again" in told


def test_workers_do_not_repeat_the_warning(fresh, caplog, tmp_path):
    fresh.setenv("DASKMM_LOOPS_LIBRARY", str(tmp_path / "none.so"))
    fresh.setattr(multiprocessing, "parent_process", lambda: object())
    assert warnings_of_a_fit(caplog) == []
    assert not library.available()


# DASKMM_LOOPS


@needs_library
@pytest.mark.parametrize("wanted", ["", *library.LEVELS])
def test_the_variable_holds_the_library_to_an_instruction_set(fresh, wanted):
    highest = library._library().daskmm_highest_level()
    fresh.setenv("DASKMM_LOOPS", wanted)
    assert library.available()
    assert library.level() == min(highest, library.LEVELS.index(wanted or library.LEVELS[-1]))


def test_the_variable_leaves_the_work_to_numpy_without_a_warning(fresh, caplog):
    fresh.setenv("DASKMM_LOOPS", "numpy")
    assert warnings_of_a_fit(caplog) == []
    assert not library.available()


def test_another_value_of_the_variable_is_refused(fresh):
    fresh.setenv("DASKMM_LOOPS", "sse9")
    with pytest.raises(ValueError, match="one of baseline, avx2, avx512, amx, numpy, got 'sse9'"):
        library.available()


# Instruction sets


def results_of(dtype):
    """What the loops make of some rows."""
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(size=(5000, 19)).astype(dtype), rng.normal(size=(13, 19))
    v, w = rng.uniform(size=5000), rng.dirichlet(np.ones(19))
    found = {}
    for s in (-0.5, -3.0, -40.0, -np.inf):
        prepared = PreparedCenters(centers, w)
        sums = block_sums(rows, v, identity(19), prepared, s, 4)
        found |= {f"{name} at {s}": value for name, value in sums._asdict().items()}
    labels, distances, others = np.empty(5000, np.int32), np.empty(5000), np.empty(5000)
    nearest_centers(rows, identity(19), PreparedCenters(centers), labels, distances, others)
    found |= {"labels": labels, "distances": distances}
    found |= {f"moments {i}": value for i, value in enumerate(block_moments(rows, v))}
    found["terms"] = row_terms(np.abs(rows), KullbackLeibler(np.full(19, 0.7)))
    return {name: np.asarray(x, np.float64) for name, x in found.items() if x is not None}


def assert_agree(found, expected, dtype):
    allowed = 4e-7 if dtype == np.float32 else 2e-15
    for name, x in found.items():
        largest = np.abs(expected[name]).max(initial=0.0)
        difference = np.abs(x - expected[name]).max(initial=0.0)
        assert difference <= allowed * largest, (name, difference / largest)


@needs_library
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_instruction_sets_agree_to_a_few_units_in_the_last_place(monkeypatch, dtype):
    expected = results_of(dtype)
    for level in range(library._library().daskmm_highest_level() + 1):
        monkeypatch.setattr(library, "level", lambda level=level: level)
        assert_agree(results_of(dtype), expected, dtype)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_emulated_avx512_agrees_to_a_few_units_in_the_last_place(monkeypatch, dtype, emulated):
    expected = results_of(dtype)
    monkeypatch.setattr(library, "_library", lambda: emulated)
    monkeypatch.setattr(library, "level", lambda: 0)
    found = results_of(dtype)
    assert_agree(found, expected, dtype)
    assert any((found[name] != expected[name]).any() for name in found)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("module", ["dispatch", "labels", "moments", "bounds", "mixture", "sparse"])
def test_the_tests_of_the_loops_pass_with_emulated_avx512(module, emulated):
    file = os.path.join(os.path.dirname(__file__), f"test_{module}.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", file],
        env={**os.environ, "DASKMM_LOOPS": "", "DASKMM_LOOPS_LIBRARY": emulated._name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Threads and processes


def long_call():
    """A call of one loop that takes about a second."""
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(size=(60_000, 32)), PreparedCenters(rng.normal(size=(400, 32)))
    block_sums(rows, None, identity(32), centers, -2.0, 0)


@needs_library
def test_other_threads_run_while_a_loop_does():
    done, counted = threading.Event(), 0
    real, inside = library._library().daskmm_soft_sums, []

    def call(*arguments):
        before = counted
        result = real(*arguments)
        inside.append(counted - before)
        return result

    class Watched:
        daskmm_soft_sums = staticmethod(call)

    def count():
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(1e-4)

    thread = threading.Thread(target=count)
    with pytest.MonkeyPatch.context() as patch:
        level = library.level()
        patch.setattr(library, "level", lambda: level)
        patch.setattr(library, "_library", Watched)
        thread.start()
        try:
            long_call()
        finally:
            done.set()
            thread.join()
    # With Python's lock held, the counter would move once at most, as the call begins.
    assert max(inside) > 3


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_is_forked_after_a_fit_can_fit():
    X = np.random.default_rng(0).normal(size=(5000, 4))
    expected = KMeans(3, random_state=0).fit(X).inertia_
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # it must not return to pytest
        try:
            os.write(write, np.float64(KMeans(3, random_state=0).fit(X).inertia_).tobytes())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    assert np.frombuffer(found) == expected


# The file


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="the library is an ELF file on Linux only")
@pytest.mark.skipif(
    "DASKMM_LOOPS_LIBRARY" in os.environ, reason="DASKMM_LOOPS_LIBRARY names another library"
)
def test_the_library_needs_no_library_of_cpp_and_shares_no_function():
    def told(*command):
        if not shutil.which(command[0]):
            pytest.skip(f"there is no {command[0]}")
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    file = str(library.file())
    needed = re.findall(r"NEEDED.*\[(.*)\]", told("readelf", "-d", file))
    assert not [name for name in needed if "stdc++" in name or "gcc" in name]
    symbols = [line.split() for line in told("nm", "-D", "--defined-only", file).splitlines()]
    kinds = {kind for _, kind, _ in symbols}
    assert kinds == {"T"}, symbols
    assert {name for *_, name in symbols} == {
        "daskmm_version",
        "daskmm_size",
        "daskmm_highest_level",
        *(f"daskmm_{entry}" for entry in library.interface()[2]),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="object files are ELF files on Linux only")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_objects_of_the_instruction_sets_have_no_weak_symbols(build_loops, compiler, tmp_path):
    if not shutil.which("nm"):
        pytest.skip("there is no nm")
    build_loops.build(file=tmp_path / "loops.so")
    newest = max((build_loops.TOP / "build/loops").glob("*/baseline.o"), key=os.path.getmtime)
    for file in newest.parent.glob("*.o"):
        told = subprocess.run(["nm", file], capture_output=True, text=True, check=True).stdout
        assert not re.search(r" [WwVvu] ", told), file.name


def test_the_header_is_installed_beside_the_modules():
    spec = importlib.util.find_spec("daskmm.compiled")
    (folder,) = spec.submodule_search_locations
    assert os.path.exists(os.path.join(folder, "src", "loops.h"))
