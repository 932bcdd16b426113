"""Machine code on disk: what invalidates it, and where it is kept."""

import ast
import ctypes
import errno
import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numba
import numpy as np
import pytest

import daskmm
from daskmm.compiled import compiler, moments

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import daskmm
from daskmm.compiled import moments
assert daskmm.__file__.startswith(sys.argv[1])
moments.block_moments(np.ones((3, 2)), None)
stats = moments._add_moments.stats
print(stats.cache_path)
print("compiled" if sum(stats.cache_misses.values()) else "loaded")
"""


@pytest.fixture
def fit(tmp_path):
    """A function that has a copy of the package compile or load a loop, and says which."""
    shutil.copytree(
        Path(daskmm.__file__).parent,
        tmp_path / "daskmm",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    # mtimes of whole seconds must not hide an edit from Python's own cache
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    environment.pop("XDG_CACHE_HOME", None)

    def run(said=None, **options):
        command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path)]
        options |= {"env": environment, "capture_output": True, "text": True, "timeout": 240}
        done = subprocess.run(command, check=True, **options)
        place, how = done.stdout.split()
        if said is None:
            assert Path(place).is_relative_to(tmp_path / "cache")
        else:
            assert [line for line in done.stderr.splitlines() if "compil" in line] == said
        return how

    return run


def edit(path, *changes):
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)


@pytest.mark.long
def test_code_is_compiled_anew_when_it_changes_and_not_when_its_prose_does(fit, tmp_path):
    package = tmp_path / "daskmm"
    assert fit() == "compiled"
    assert fit() == "loaded"
    for name in ("compiled/moments.py", "compiled/layout.py", "numerics/rows.py"):
        edit(
            package / name,
            ('"""', '"""Other words.\n\n'),
            ("import annotations\n", "import annotations\n# A comment.\n"),
        )
    assert fit() == "loaded"
    edit(
        package / "compiled/block_sums.py", ("b = min(tile, n - start)", "b = min(n - start, tile)")
    )
    assert fit() == "loaded"  # moments do not depend on it
    edit(package / "numerics/rows.py", ("TILE_BYTES = 4 << 20", "TILE_BYTES = 5 << 20"))
    assert fit() == "compiled"  # a constant in a module that is imported by one that is imported
    assert fit() == "loaded"


def test_digests_are_of_code_in_a_module_and_in_those_that_it_imports(tmp_path, monkeypatch):
    texts = {
        "daskmm.a": '"""A."""\nfrom daskmm.b import sizes\n\ndef f(x):\n    return x[sizes.TILE]\n'
        "\ndef g():\n    from daskmm import other\n",
        "daskmm.b": "from daskmm.b import sizes",
        "daskmm.b.sizes": "TILE = 4\n",
        "daskmm.other": "TILE = 4\n",
    }

    def digest(module="daskmm.a", **changes):
        for name, text in texts.items():
            path = tmp_path / f"{name}.py"
            path.write_text(changes.get(name.rpartition(".")[2], text))
            (found := types.ModuleType(name)).__file__ = str(path)
            monkeypatch.setitem(sys.modules, name, found)
        compiler._code.cache_clear()
        compiler.code_digest.cache_clear()
        return compiler.code_digest(module)

    first = digest()
    assert digest(a=texts["daskmm.a"].replace("A.", "More\n\nwords.")) == first
    assert digest(sizes="# Bytes.\n\nTILE = (4)  # of a cache\n") == first
    assert digest(other="TILE = 5\n") == first
    changed = {digest(a=texts["daskmm.a"].replace("x[", "-x[")), digest(sizes="TILE = 5\n")}
    assert len(changed | {first, digest("daskmm.other")}) == 4
    digest()


@pytest.mark.long
def test_digests_do_not_depend_on_what_else_was_imported():
    program = """if True:
        import sys
        from daskmm.compiled import bounds, compiler, labels
        assert "daskmm.compiled.block_sums" not in sys.modules
        print(compiler.code_digest("daskmm.compiled.bounds"))
        print(compiler.code_digest("daskmm.compiled.labels"))
    """
    command = [sys.executable, "-c", program]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    for name in ("block_sums", "bounds", "labels", "sparse"):
        importlib.import_module(f"daskmm.compiled.{name}")
    names = ("daskmm.compiled.bounds", "daskmm.compiled.labels")
    assert alone == [compiler.code_digest(name) for name in names]


def test_processes_and_versions_of_numba_do_not_touch_each_others_code(tmp_path):
    one, other = (compiler._Files(str(tmp_path), "f", "stamp") for _ in range(2))
    one.save("float32", "code for float32")
    other.save("float64", "code for float64")
    for files in (one, other):
        assert [files.load(f"float{bits}") for bits in (32, 64)] == [
            "code for float32",
            "code for float64",
        ]
    with pytest.raises(FileNotFoundError):
        one.load("int32")
    assert len(list(tmp_path.iterdir())) == 2
    assert f"numba-{numba.__version__}" in moments._add_moments._cache._files[0]._data_name(1)


def test_a_module_is_parsed_again_while_other_threads_parse(monkeypatch):
    module, parse, failures = "daskmm.compiled.compiler", ast.parse, iter(range(3))

    def parse_or_not(source):
        if next(failures, None) is not None:
            raise SystemError("AST constructor recursion depth mismatch (before=90, after=104)")
        return parse(source)

    compiler._code.cache_clear()
    found = compiler._code(module)
    compiler._code.cache_clear()
    monkeypatch.setattr(ast, "parse", parse_or_not)
    assert compiler._code(module) == found
    assert next(failures, None) is None


SUMS = """
import hashlib
import pickle
import numpy as np
from daskmm.kmeans.sums import CenterState, center_sums
from daskmm.numerics.rows import Coordinates

rows = np.random.default_rng(0).normal(size=(5000, 7)).astype(np.float32)
coordinates = Coordinates(np.zeros(7), np.ones(7))
found = center_sums(rows, None, coordinates, (CenterState(rows[:5], -3.0),))
print(hashlib.sha256(pickle.dumps(found)).hexdigest())
"""


@pytest.mark.long
def test_a_process_that_compiles_computes_the_same_bits_as_one_that_loads(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", SUMS]
    compiled, loaded = (
        subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=240, check=True
        )
        for _ in range(2)
    )
    assert len(compiled.stdout) > 64
    assert compiled.stdout == loaded.stdout


def without_privileges():
    """Let the permissions of files bind the process that is begun, even if root begins it."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_read_only_installation(fit, tmp_path):
    (tmp_path / "cache").mkdir()

    def protect(mode):
        for folder, _, _ in os.walk(tmp_path):
            os.chmod(folder, mode)

    restricted = {"preexec_fn": without_privileges}
    protect(0o555)
    try:
        assert fit([EVERY_TIME], **restricted) == "compiled"
        protect(0o755)
        assert fit([ONCE], **restricted) == "compiled"
        protect(0o555)
        assert fit([], **restricted) == "loaded"
    finally:
        protect(0o755)


# What users read while they wait

ONCE = "compiling loops for float64 rows, which takes up to half a minute, once"
EVERY_TIME = f"{ONCE[:-4]}in every process, as they cannot be kept: set NUMBA_CACHE_DIR"


def total(rows):
    return rows[0, 0] + rows[-1, -1]


@pytest.fixture
def computed(tmp_path, monkeypatch, caplog):
    """A function that compiles a loop, or loads it, and returns what was said since."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler._Nowhere, "get_cache_path", lambda self: str(tmp_path / "nowhere"))

    def run(before=lambda: None):
        compiler._say.cache_clear()
        caplog.clear()
        function = compiler.entry(total)
        before()
        assert function(np.ones((3, 2))) == 2.0
        return [record.getMessage() for record in caplog.records]

    return run


def read_only(patch):
    """Make all folders read-only for numba, which tries them by a temporary file."""

    def refuse(dir):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    patch.setattr(tempfile, "TemporaryFile", refuse)


def test_compiling_is_said_once(computed):
    assert computed() == [ONCE]
    assert computed() == []


def test_code_in_a_folder_that_cannot_be_written_is_used(computed, monkeypatch):
    assert computed() == [ONCE]
    read_only(monkeypatch)
    assert computed() == []


def test_code_that_cannot_be_kept(computed, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        found = computed(lambda: read_only(patch))
    assert found[0] == ONCE
    assert found[1].startswith(f"compiled loops cannot be kept in {tmp_path}/cache/")
    assert found[1].endswith(": Read-only file system")
    read_only(monkeypatch)
    assert computed() == [EVERY_TIME]
    monkeypatch.setattr(compiler, "_Cache", lambda function: Path("no-source").read_text())
    assert computed() == [EVERY_TIME]
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "the cluster's")
    assert computed() == []


def _doubled(x):
    return x + x


@pytest.mark.parametrize(
    "harm", [lambda code: b"", lambda code: code[: len(code) // 2]], ids=["emptied", "cut"]
)
def test_damaged_code_is_compiled_anew_and_replaced(tmp_path, monkeypatch, harm):
    monkeypatch.setattr(compiler.config, "CACHE_DIR", str(tmp_path))
    assert compiler.entry(_doubled)(3) == 6
    (file,) = tmp_path.rglob("*.nbc")
    file.write_bytes(harm(file.read_bytes()))
    damaged = file.read_bytes()
    again = compiler.entry(_doubled)
    assert again(3) == 6
    assert sum(again.stats.cache_misses.values()) == 1
    assert len(file.read_bytes()) > len(damaged)
    found = compiler.entry(_doubled)
    assert found(3) == 6
    assert sum(found.stats.cache_hits.values()) == 1
