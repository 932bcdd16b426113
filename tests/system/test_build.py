"""What an installation does with and without a compiler; what an sdist and a wheel hold."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest
from _local import ROOT

SOURCES = ROOT / "daskmm/compiled/src"
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.name == "nt", reason="paths are those of POSIX"),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what an installation reads, as a build writes beside the sources."""
    place = tmp_path_factory.mktemp("build") / "daskmm"
    unwanted = shutil.ignore_patterns("libdaskmm_loops.*", "__pycache__")
    for folder in ("daskmm", "deploy", "notebooks"):
        shutil.copytree(ROOT / folder, place / folder, ignore=unwanted)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, place)
    return place


def pip(*arguments, **variables):
    """Run pip with a PATH on which there is no compiler."""
    known = {name: value for name, value in os.environ.items() if name not in ("CXX", "PYTHONPATH")}
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(
        [str(part) for part in command],
        env={**known, "PATH": os.devnull, "DASKMM_REQUIRE_LOOPS": "0", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def wheel_of(checkout, folder, **variables):
    """Build a wheel; return what pip says, and the wheel or None."""
    code, told = pip("wheel", "-v", "--no-deps", "-w", folder, checkout, **variables)
    wheels = list(folder.glob("*.whl"))
    assert (code == 0) == (len(wheels) == 1), told
    return told, wheels[0] if wheels else None


def libraries(wheel):
    with zipfile.ZipFile(wheel) as file:
        assert {name.split("/")[0].split("-")[0] for name in file.namelist()} == {"daskmm"}
        sources = [name for name in file.namelist() if name.endswith((".cpp", ".hpp", ".h"))]
        assert sources == ["daskmm/compiled/src/loops.h"]  # which describes the library
        return [name for name in file.namelist() if "libdaskmm_loops" in name]


def test_where_nothing_compiles_the_installation_succeeds_and_says_what_to_do(checkout, tmp_path):
    told, wheel = wheel_of(checkout, tmp_path, CXX="false")
    assert "The loops of daskmm were not compiled: false: does not compile" in told
    assert "Install a C++17 compiler" in told
    assert wheel.name.endswith("-py3-none-any.whl")
    assert libraries(wheel) == []


def test_a_source_that_does_not_compile_is_shown_and_leaves_no_former_library(checkout, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(checkout, broken)
    former = broken / "daskmm/compiled/libdaskmm_loops.so"
    former.write_bytes(b"of another version")
    (broken / "daskmm/compiled/src/kernels.cpp").write_text("#error no such loop\n")
    told, wheel = wheel_of(broken, tmp_path / "out", PATH=os.environ["PATH"])
    assert "no such loop" in told
    assert libraries(wheel) == []
    assert not former.exists()


def test_a_library_that_is_required_but_cannot_be_compiled_is_an_error(checkout, tmp_path):
    told, wheel = wheel_of(checkout, tmp_path, CXX="false", DASKMM_REQUIRE_LOOPS="1")
    assert "Install a C++17 compiler" in told
    assert wheel is None


def test_without_a_compiler_zig_is_asked_for_and_compiles(checkout, tmp_path):
    code, told = pip("download", "-q", "--no-deps", "-d", tmp_path / "zig", "ziglang>=0.13")
    if code:
        pytest.skip(f"ziglang cannot be downloaded: {told[-200:]}")
    told, wheel = wheel_of(checkout, tmp_path, DASKMM_REQUIRE_LOOPS="1")
    assert "Collecting ziglang" in told
    assert "py3-none-any" not in wheel.name
    assert len(libraries(wheel)) == 1
    place = tmp_path / "environment"
    venv.create(place, system_site_packages=False, with_pip=False)
    code, told = pip("--python", place, "install", "--no-deps", wheel)
    assert code == 0, told
    loaded = "import ctypes, sys, glob; ctypes.CDLL(*glob.glob(sys.argv[1]))"
    library = f"{place}/lib/python*/site-packages/{libraries(wheel)[0]}"
    subprocess.run([place / "bin/python", "-c", loaded, library], check=True)


def test_an_sdist_has_the_sources_and_what_compiles_them(checkout, tmp_path):
    pytest.importorskip("build")
    (checkout / "daskmm/compiled/libdaskmm_loops.so").write_bytes(b"of this machine")
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, checkout]
    subprocess.run(command, check=True, capture_output=True)
    (checkout / "daskmm/compiled/libdaskmm_loops.so").unlink()
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {str(path.relative_to(ROOT)) for path in SOURCES.iterdir()}
    assert wanted | {"deploy/build_loops.py", "deploy/build_backend.py"} <= names
    assert not [name for name in names if "libdaskmm_loops" in name]
