"""What a release is made of: one version, packages that ask for the same, a light import."""

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from _local import ROOT

import daskmm

_spec = importlib.util.spec_from_file_location("release", ROOT / "deploy/release.py")
release = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(release)
RECIPE = yaml.safe_load((ROOT / "deploy/conda/recipe.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_everywhere():
    assert release.check_names(None, None).startswith(release.version())


def test_a_tag_of_another_version_is_refused():
    with pytest.raises(release.BrokenLinkError, match=r"the tag is v99, the version"):
        release.check_names(None, "v99")


def test_the_recipe_asks_for_what_the_wheel_asks_for():
    wheel = {re.sub(r"\[.*\]", "", needed) for needed in PROJECT["dependencies"]}
    conda = {needed.replace(" ", "") for needed in RECIPE["requirements"]["run"]}
    # conda's "dask" brings everything that may be used with it.
    assert {needed.replace("dask-core", "dask") for needed in conda} == wheel | {
        "python>=${{python_min}}"
    }
    assert f">={RECIPE['context']['python_min']}" == PROJECT["requires-python"]
    assert RECIPE["build"]["python"]["entry_points"] == [
        f"{name} = {place}" for name, place in PROJECT["scripts"].items()
    ]
    assert RECIPE["about"]["summary"] == PROJECT["description"]


def test_workflows_run_what_exists():
    extras = PROJECT["optional-dependencies"].keys()
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        text = path.read_text()
        assert set(re.findall(r'"\.\[(\w+)\]"', text)) <= extras, path.name
        for file in re.findall(r"(?:python|bash) ([\w.]+/[\w./]+)", text):
            assert (ROOT / file).exists(), (path.name, file)
        for links in re.findall(r"--(?:only|skip) ([\w ]+)", text):
            assert set(links.split()) <= release.LINKS.keys(), path.name


TOOLS = platform.machine() == "x86_64" and all(map(shutil.which, ("g++", "nm", "objdump")))


@pytest.mark.skipif(not TOOLS, reason="needs x86-64, g++, nm and objdump")
@pytest.mark.parametrize(
    ("source", "flags", "message"),
    [
        ('extern "C" double daskmm_sum_avx2(double x) { return x + 1; }', "-mavx2", None),
        (
            'extern "C" double daskmm_sum_avx512(double x) { return x + 1; }',
            "",
            "exports daskmm_sum",
        ),
        (
            "inline int shared() { return 1; } int (*daskmm_shared_avx2)() = shared;",
            "",
            "_Z6shared",
        ),
        (
            "typedef double V __attribute__((vector_size(64)));\n"
            'extern "C" void daskmm_add_avx2(V *x) { *x += *x; }',
            "-mavx512f -mprefer-vector-width=512",
            "a foreign instruction: .*zmm",
        ),
    ],
)
def test_objects_of_one_instruction_set_are_inspected(source, flags, message, tmp_path):
    made = tmp_path / "avx2.o"
    command = ["g++", "-O2", "-fPIC", *flags.split(), "-x", "c++", "-c", "-", "-o", made]
    subprocess.run(command, input=source, text=True, check=True)
    if message is None:
        assert release.inspect_object(made, "manylinux_2_17_x86_64")
        return
    with pytest.raises(release.BrokenLinkError, match=message):
        release.inspect_object(made, "manylinux_2_17_x86_64")


def imported_by(*lines):
    """Modules that are there after each of some lines, which one process runs in their order."""
    # Where it is installed, dask imports it.
    program = ["import sys; sys.modules['sparse'] = None"]
    for line in lines:
        program += [line, "print(*sys.modules)"]
    command = [sys.executable, "-c", "\n".join(program)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return [set(modules.split()) for modules in told.stdout.splitlines()]


def test_imports_are_light_and_modules_are_attributes():
    # What the tasks of workers call.
    tasks = (
        "from daskmm.kmeans import assignment, sample_annealing, trials, updates\n"
        "from daskmm.gram import build, matrices\n"
        "from daskmm.mean_shift import blurring"
    )
    attributes = "daskmm.metrics.adjusted_rand_score, daskmm.selection, daskmm.load"
    found = imported_by("import daskmm", tasks, attributes, "from daskmm import *")
    later = {"matplotlib", "distributed"}
    assert found[0].isdisjoint({"sklearn", "dask", "scipy", "zarr", *later})
    assert found[1].isdisjoint({"sklearn", "zarr", "daskmm.metrics", *later})
    assert "daskmm.metrics" in found[2]
    assert found[3].isdisjoint(later)
    assert set(dir(daskmm)) >= {*daskmm.__all__, "plot"}
    with pytest.raises(AttributeError, match="'daskmm' has no attribute 'nothing'"):
        daskmm.nothing  # noqa: B018


@pytest.mark.long
def test_workflows_and_forms_obey_their_schemas():
    pytest.importorskip("check_jsonschema", reason="needs the extra manifests")
    assert release.check_schemas(None, None)
