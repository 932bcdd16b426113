"""The release chain: every link that can run on this machine, and a list of those that cannot.

Run: python deploy/release.py --dry-run     (needs the extra "release", the pages also "docs")

Without --dry-run, a tag is set when all links hold. The workflow "Release" publishes a tag that is
pushed; see CONTRIBUTING, "Releases".
"""

import argparse
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PYTHONS = {"oldest": "3.11", "newest": "3.13"}
MOST_BYTES = 1_000_000
SCHEMAS = {
    "vendor.github-workflows": "workflows/*.yml",
    "custom.github-workflows-require-timeout": "workflows/*.yml",
    "vendor.github-issue-forms": "ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.github-issue-config": "ISSUE_TEMPLATE/config.yml",
    "vendor.dependabot": "dependabot.yml",
    "vendor.citation-file-format": "CITATION.cff",
}
ELSEWHERE = (
    "tests on macOS and Windows, and the workflows themselves: by GitHub, on a push",
    "publishing to PyPI: by the workflow Release, for a tag that is pushed",
    "publishing the pages: by the workflow Documentation, on a push to main",
    "solving and building the conda package: by rattler-build, where its channels are reached",
)


class BrokenLinkError(Exception):
    """A link that does not hold."""


class NotHereError(Exception):
    """A link that cannot run on this machine."""


def run(*command, cwd=TOP, **environment):
    """Run a command and return what it prints; its last lines are the error if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BrokenLinkError(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}")
    return done.stdout


def module(name, *arguments, **options):
    """Run a module of this environment as a command."""
    if importlib.util.find_spec(name) is None:
        raise NotHereError(f"{name} is not installed (extras release and docs)")
    return run(sys.executable, "-m", name, *arguments, **options)


def version():
    """Version of the library, from its one place."""
    return re.search(r'__version__ = "(.+)"', (TOP / "daskmm/_version.py").read_text())[1]


def check_names(dist, tag):
    """The version is the same wherever it stands; the changelog has a section for it."""
    expected = version()
    for path, pattern in {
        ".github/CITATION.cff": r"^version: (\S+)",
        "deploy/conda/recipe.yaml": r'^  version: "(\S+)"',
        "CHANGELOG.md": r"^## \[([\d.]+)\]",
    }.items():
        found = re.search(pattern, (TOP / path).read_text(), re.MULTILINE)
        if found is None or found[1] != expected:
            raise BrokenLinkError(
                f"{path} has version {found and found[1]}, daskmm/_version.py {expected}"
            )
    dated = re.search(
        rf"^## \[{re.escape(expected)}\] – \d{{4}}-\d\d-\d\d$",
        (TOP / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    if tag and tag != f"v{expected}":
        raise BrokenLinkError(f"the tag is {tag}, the version {expected}")
    if tag and not dated:
        raise BrokenLinkError(f"CHANGELOG.md: the section of {expected} has no date")
    return expected + ("" if dated else ", whose section in CHANGELOG has no date yet")


def check_recipe(dist, tag):
    """The conda recipe asks for what the wheel asks for, and can be rendered."""
    if importlib.util.find_spec("rattler_build") is None:
        raise NotHereError("py-rattler-build is not installed (extra release)")
    from rattler_build import Stage0Recipe

    (rendered,) = Stage0Recipe.from_file(TOP / "deploy/conda/recipe.yaml").render()
    recipe = rendered.recipe.to_dict()
    return f"{recipe['package']['name']} {recipe['package']['version']} rendered"


def check_schemas(dist, tag):
    """Workflows, forms and the citation are valid by their schemas."""
    for schema, pattern in SCHEMAS.items():
        files = sorted((TOP / ".github").glob(pattern))
        module("check_jsonschema", "--builtin-schema", schema, *files)
    return f"{len(SCHEMAS)} schemas"


def check_wheel(dist, tag):
    """Wheel and sdist are built, described well, complete and small."""
    module("build", "--outdir", dist, TOP)
    module("twine", "check", "--strict", *dist.iterdir())
    wheel = built_wheel(dist)
    module("check_wheel_contents", wheel)
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise BrokenLinkError(f"the wheel takes {size:,} bytes; at most {MOST_BYTES:,}")
    return f"{wheel.name}, {size / 1e3:.0f} kB; sdist from which it was built"


def built_wheel(dist):
    """The wheel of this run."""
    wheels = sorted(dist.glob("*.whl"))
    if not wheels:
        raise NotHereError("no wheel was built")
    return wheels[0]


def python_of(minor):
    """Path of an interpreter."""
    roots = [os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")]
    found = [shutil.which(f"python{minor}")]
    found += sorted(glob.glob(f"{roots[0]}/versions/{minor}.*/bin/python"))
    for python in filter(None, found):
        told = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if told.stdout.startswith(f"Python {minor}."):
            return python
    raise NotHereError(f"there is no Python {minor}")


def installed(dist, age):
    """Install the wheel into an empty environment, and use it."""
    python, wheel = python_of(PYTHONS[age]), built_wheel(dist)
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", "--without-pip", folder)
        where = ("--python", f"{folder}/{'Scripts' if os.name == 'nt' else 'bin'}/python")
        oldest = ("--resolution", "lowest-direct") if age == "oldest" else ()
        module("uv", "pip", "install", *where, *oldest, "-r", TOP / "pyproject.toml")
        module("uv", "pip", "install", *where, "--no-deps", wheel)
        module("uv", "pip", "check", *where)
        run(where[1], "-m", "daskmm", "--help", cwd=folder, PYTHONPATH="")
        smoke = TOP / "deploy/conda/smoke.py"
        told = run(
            where[1], "-W", "error", smoke, cwd=folder, PYTHONPATH="", NUMBA_CACHE_DIR=folder
        )
    return told.splitlines()[-1]


def check_oldest(dist, tag):
    """The wheel works with the oldest Python and dependencies that it allows."""
    return installed(dist, "oldest")


def check_newest(dist, tag):
    """The wheel works with the newest ones."""
    return installed(dist, "newest")


def check_pages(dist, tag):
    """The documentation is built without a warning."""
    with tempfile.TemporaryDirectory() as folder:
        module("sphinx", "-q", "-W", "-j", "2", TOP / "docs", folder, PYTHONPATH=str(TOP))
        return f"{len(list(Path(folder).rglob('*.html')))} pages"


LINKS = {
    "names": check_names,
    "schemas": check_schemas,
    "recipe": check_recipe,
    "wheel": check_wheel,
    "oldest": check_oldest,
    "newest": check_newest,
    "pages": check_pages,
}


def main():
    """Run the links in turn; exit with 1 if one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="set no tag")
    parser.add_argument("--only", nargs="+", choices=LINKS, default=list(LINKS), metavar="LINK")
    parser.add_argument("--skip", nargs="+", choices=LINKS, default=[], metavar="LINK")
    parser.add_argument(
        "--tag", help="the tag of this release; its section in CHANGELOG has a date"
    )
    parser.add_argument("--out", type=Path, help="folder for wheel and sdist")
    arguments = parser.parse_args()
    tag = arguments.tag or (None if arguments.dry_run else f"v{version()}")
    broken = []
    with tempfile.TemporaryDirectory() as folder:
        dist = (arguments.out or Path(folder)).resolve()
        for name in (name for name in LINKS if name in arguments.only):
            if name in arguments.skip:
                continue
            try:
                print(f"{name:8}", LINKS[name](dist, tag), flush=True)
            except NotHereError as reason:
                print(f"{name:8} not run here: {reason}", flush=True)
            except BrokenLinkError as reason:
                print(f"{name:8} BROKEN: {reason}", flush=True)
                broken.append(name)
    print("\nNot on this machine:", *ELSEWHERE, sep="\n- ", end="\n\n")
    if broken:
        sys.exit(f"broken: {', '.join(broken)}")
    if not arguments.dry_run:
        run("git", "tag", "--annotate", tag, "--message", f"daskmm {version()}")
        print(f"tagged {tag}; publish it by: git push origin {tag}")


if __name__ == "__main__":
    main()
