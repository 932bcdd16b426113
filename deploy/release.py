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
import tarfile
import tempfile
import zipfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PYTHONS = {"oldest": "3.11", "newest": "3.13"}
MOST_BYTES = 2_000_000
# Tags of the wheels, and what zig calls these platforms.
PLATFORMS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}
# Every system has these: the libraries of C and of mathematics.
SYSTEM_LIBRARIES = re.compile(
    r"lib[cm]\.so(\.6)?|ld-linux-[\w-]+\.so\.\d|/usr/lib/libSystem\.B\.dylib"
    r"|KERNEL32\.dll|ntdll\.dll|api-ms-win-crt-[\w-]+\.dll"
)
# Instructions that an object must not have, as a disassembler writes them (AT&T): those with three
# operands begin with v; the others are registers that only AVX-512 has.
FOREIGN = {
    "dispatch": r":\s+v[a-z]",
    "baseline": r":\s+v[a-z]",
    "avx2": r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])",
}
SCHEMAS = {
    "vendor.github-workflows": "workflows/*.yml",
    "custom.github-workflows-require-timeout": "workflows/*.yml",
    "vendor.github-issue-forms": "ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.github-issue-config": "ISSUE_TEMPLATE/config.yml",
    "vendor.dependabot": "dependabot.yml",
    "vendor.citation-file-format": "CITATION.cff",
}
ELSEWHERE = (
    "tests on macOS, Windows and aarch64, and the workflows themselves: by GitHub, on a push",
    "tests of the wheels for these: by the workflow Release, before it publishes",
    "loading the wheels for musl: by the same workflow, in a container of Alpine",
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
    """Sdist and wheels are built, described well, complete and small."""
    module("build", "--sdist", "--outdir", dist, TOP)
    (sdist,) = dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        for name in PLATFORMS:
            tree = unpacked(sdist, f"{folder}/{name}")
            wheel = zig_wheel(tree, name, dist, cache=f"{folder}/zig")
            print(f"{'':8} {wheel.name}, {inspected(tree, wheel, name)}", flush=True)
            shutil.rmtree(tree)
    wheels = sorted(dist.glob("*.whl"))
    module("twine", "check", "--strict", sdist, *wheels)
    module("check_wheel_contents", *wheels)
    largest = max(wheel.stat().st_size for wheel in wheels)
    if largest > MOST_BYTES:
        raise BrokenLinkError(f"a wheel takes {largest:,} bytes; at most {MOST_BYTES:,}")
    return (
        f"{len(wheels)} wheels of at most {largest / 1e3:.0f} kB, and the sdist they are built from"
    )


def unpacked(sdist, folder):
    """The folder of sources that an sdist becomes."""
    with tarfile.open(sdist) as file:
        # The first releases of Python 3.11 have no filters.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        file.extractall(folder, **safe)
    (tree,) = Path(folder).iterdir()
    return tree


def zig_wheel(tree, name, dist, cache):
    """Build the wheel of a platform by zig."""
    if importlib.util.find_spec("uv") is None:
        raise NotHereError("uv is not installed (extra release)")
    module(
        *("uv", "build", "--quiet", "--wheel", tree, "--out-dir", dist),
        *("-C", f"target={PLATFORMS[name]}", f"-C=--build-option=--plat-name={name}"),
        ZIG_GLOBAL_CACHE_DIR=cache,
    )
    (wheel,) = dist.glob(f"*-py3-none-{name}.whl")
    return wheel


def inspected(tree, wheel, name):
    """Look at symbols, instructions and needed libraries; return what could not be looked at."""
    with zipfile.ZipFile(wheel) as file:
        (library,) = (member for member in file.namelist() if "libdaskmm_loops" in member)
        library = Path(file.extract(library, tree / "wheel"))
    objects = sorted(tree.glob("build/loops/*/*.o"))
    unseen = [path.name for path in objects if not inspect_object(path, name)]
    headers = looked("objdump", "--private-headers", library)
    if headers is None:
        unseen.append(library.name)
    else:
        pattern = r"NEEDED\s+(\S+)|DLL Name: (\S+)|LC_LOAD_DYLIB\s+cmdsize \d+\s+name (\S+)"
        needed = {"".join(found) for found in re.findall(pattern, headers)}
        more = sorted(each for each in needed if not SYSTEM_LIBRARIES.fullmatch(each))
        if more:
            raise BrokenLinkError(f"{name}: {library.name} needs {', '.join(more)}")
    # For musl, which has no versions of symbols, auditwheel wants musl's own system.
    if "manylinux" in name and f'"{name}"' not in module("auditwheel", "show", wheel):
        raise BrokenLinkError(f"{wheel.name} does not deserve its tag, says auditwheel show")
    return f"not inspected: {', '.join(unseen)}" if unseen else "inspected"


def inspect_object(path, name):
    """Look at symbols and instructions; return whether the tools here know such files."""
    own = path.stem
    symbols = looked("nm", "--extern-only", "--defined-only", path)
    text = looked("objdump", "--disassemble", "--no-show-raw-insn", path)
    if not symbols or not text:
        return False
    entries = re.findall(r"^[0-9a-f]+ (\S) (\S+)$", symbols, re.MULTILINE)
    for kind, symbol in entries:
        entry = re.fullmatch(r"_?daskmm_\w*" + ("" if own == "dispatch" else own), symbol)
        # The linker would keep one of several weak ones, of any instruction set.
        if kind in "VWu" or not entry:
            raise BrokenLinkError(f"{name}: {path.name} exports {symbol} ({kind})")
    if not entries:
        raise BrokenLinkError(f"{name}: {path.name} exports nothing")
    foreign = re.compile(FOREIGN.get(own, "(?!)") if "x86_64" in PLATFORMS[name] else "(?!)")
    found = next(filter(foreign.search, text.splitlines()), None)
    if found:
        raise BrokenLinkError(f"{name}: {path.name} has a foreign instruction: {found.strip()}")
    return True


def looked(tool, *arguments):
    """What a tool for object files prints; None if it does not know the kind of file."""
    # GNU's tools know the files of this machine alone, LLVM's all.
    command = shutil.which(f"llvm-{tool}") or shutil.which(tool)
    if command is None:
        return None
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout


def built_wheel(dist):
    """The wheel of this run that fits this machine."""
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    here = set(sys_tags())
    for wheel in sorted(dist.glob("*.whl")):
        if here & parse_wheel_filename(wheel.name)[3]:
            return wheel
    raise NotHereError("no wheel for this machine was built")


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
        told = run(where[1], "-W", "error", smoke, cwd=folder, PYTHONPATH="")
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
        "--platforms",
        nargs="+",
        choices=PLATFORMS,
        default=list(PLATFORMS),
        metavar="TAG",
        help=f"build wheels for these alone, of {', '.join(PLATFORMS)}",
    )
    parser.add_argument(
        "--tag", help="the tag of this release; its section in CHANGELOG has a date"
    )
    parser.add_argument("--out", type=Path, help="folder for wheel and sdist")
    arguments = parser.parse_args()
    for name in set(PLATFORMS) - set(arguments.platforms):
        del PLATFORMS[name]
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
