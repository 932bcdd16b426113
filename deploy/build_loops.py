"""Compile the loops of daskmm into one library that needs no Python headers.

Run: python deploy/build_loops.py                      (rebuilds the library of this checkout)
     python deploy/build_loops.py --sanitize FILE      (with the address and undefined sanitizers)
     python deploy/build_loops.py --emulate-avx512 FILE    (AVX-512 for processors that lack it)

`build_backend.py` beside this file calls the same functions when the package is installed. The
compiler is $CXX, else c++, g++ or clang++, else zig. CXXFLAGS and LDFLAGS are respected.
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PACKAGE = TOP / "daskmm/compiled"
SOURCES = PACKAGE / "src"
NAME = "libdaskmm_loops"
FLAGS = shlex.split(
    "-std=c++17 -O3 -g0 -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-math-errno "
    "-fno-trapping-math -fno-signed-zeros -ffp-contract=fast"
)
SANITIZED = shlex.split(
    "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all "
    "-DDASKMM_GUARDED_ARRAYS=1"
)
# On other processors the baseline is all there is; on aarch64 it has NEON.
INSTRUCTIONS = {
    "baseline": [],
    "avx2": shlex.split("-mavx2 -mfma"),
    "avx512": shlex.split(
        "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mavx2 -mfma -mprefer-vector-width=512"
    ),
}
# The code for AVX-512 without its instructions, for tests: on x86-64 the compiler makes two
# registers of AVX2 of each vector.
EMULATED = ["-include", str(TOP / "tests/compiled/emulated_avx512.hpp"), "-Wno-psabi"]
# Left to itself, zig compiles for all that the processor of this machine can do.
BASELINE = ["-mcpu=baseline"]
ZIG = "ziglang>=0.13"
# Systems and processors for which ziglang has wheels.
ZIG_SYSTEMS = ("Linux", "Darwin", "Windows")
ZIG_MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
REMEDY = (
    "daskmm runs on numpy without its compiled loops, several times slower. Install a C++17 "
    "compiler, such as g++ or clang++, and then daskmm once more: "
    "pip install --force-reinstall --no-deps --no-cache-dir, and what you wrote after it."
)


class NotCompiledError(Exception):
    """No compiler was found, or it ended with an error."""


def zig(target=None):
    """Command of zig's C++ compiler, or None; without a target it is for this machine."""
    if importlib.util.find_spec("ziglang"):
        command = [sys.executable, "-m", "ziglang", "c++"]
    elif shutil.which("zig"):
        command = ["zig", "c++"]
    else:
        return None
    # Nothing is left behind in the user's home.
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(TOP / "build/loops/zig"))
    return [*command, *BASELINE, *(["-target", target] if target else [])]


def candidates(target=None):
    """Commands that may compile, in the order in which they are tried."""
    if target:
        return [zig(target)]
    if os.environ.get("CXX"):
        command = shlex.split(os.environ["CXX"], posix=os.name == "posix")
        is_zig = {"zig", "ziglang"} & {Path(word).stem for word in command}
        return [[*command, *(BASELINE if is_zig else [])]]
    # On Windows g++ does not align vectors of more than 16 bytes on the stack, and clang++ needs
    # another vendor's headers.
    names = ("c++", "g++", "clang++") if sys.platform != "win32" else ()
    return [*([name] for name in names if shutil.which(name)), zig()]


def macros(command):
    """What a compiler defines for the sources: its target, for one; None if it does not work."""
    asked = [*command, *FLAGS, "-dM", "-E", str(SOURCES / "dispatch.cpp")]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return None if done.returncode else {line.split()[1] for line in done.stdout.splitlines()}


def compiler(target=None):
    """The first compiler that works, and what it defines."""
    tried = [command for command in candidates(target) if command]
    for command in tried:
        defined = macros(command)
        if defined:
            return command, defined
    raise NotCompiledError(
        f"{' and '.join(map(shlex.join, tried))}: does not compile"
        if tried
        else "there is no C++ compiler on the PATH"
    )


def requirements(target=None):
    """What a build needs from PyPI: zig, where no compiler works here and zig has a wheel."""
    if target:
        return [ZIG]
    known = platform.system() in ZIG_SYSTEMS and platform.machine().lower() in ZIG_MACHINES
    if os.environ.get("CXX") or not known:
        return []
    try:
        compiler()
    except NotCompiledError:
        return [ZIG]
    return []


def run(command):
    """Run a compiler; what it prints is the error if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotCompiledError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


def emulation(defined):
    """What has the code for AVX-512 compiled by a compiler that defines so much."""
    return [*EMULATED, *(INSTRUCTIONS["avx2"] if "__x86_64__" in defined else [])]


def build(target=None, file=None, sanitized=False, emulated=False):
    """Compile what has changed, link, and return the path of the library.

    Parameters
    ----------
    target : str, optional
        The target in zig's words, such as ``"aarch64-linux-musl"``; this machine if not given.
    file : path, optional
        Where the library is written, instead of the one in the package.
    sanitized : bool
        Whether it checks addresses and arithmetic.
    emulated : bool
        Whether its only loops are those of AVX-512, emulated, in the place of the baseline.
    """
    command, defined = compiler(target)
    checks = SANITIZED if sanitized else []
    flags = [*shlex.split(os.environ.get("CXXFLAGS", "")), *FLAGS, *checks]
    flags += emulation(defined) if emulated else []
    made_by = repr((command, flags, INSTRUCTIONS)).encode()
    # Objects of one command are no others'.
    folder = TOP / "build/loops" / hashlib.sha256(made_by).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    sources = [*SOURCES.iterdir(), *([Path(EMULATED[1])] if emulated else [])]
    newest = max(path.stat().st_mtime for path in sources)
    sets = INSTRUCTIONS if "__x86_64__" in defined and not emulated else ["baseline"]
    units = {"dispatch": ("dispatch.cpp", [])}
    for name in sets:
        units[name] = ("kernels.cpp", [f"-DINSTRUCTIONS={name}", *INSTRUCTIONS[name]])

    def compiled(unit):
        source, own = units[unit]
        made = folder / f"{unit}.o"
        if not made.exists() or made.stat().st_mtime <= newest:
            # Another process may build the same object.
            part = str(made.with_suffix(f".{os.getpid()}.part.o"))
            run([*command, *flags, *own, "-c", str(SOURCES / source), "-o", part])
            os.replace(part, made)
        return str(made)

    # The longest compilations begin first.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, reversed(units)))
    suffix = ".dll" if "_WIN32" in defined else ".dylib" if "__APPLE__" in defined else ".so"
    linked = folder / f"{NAME}{suffix}"
    link = ["-shared", *shlex.split(os.environ.get("LDFLAGS", ""))]
    if sanitized:
        link += checks
    elif BASELINE[0] in command:
        link += ["-nostdlib++", "-s"]
    elif suffix == ".so":
        # The library needs neither the standard library of C++ nor that of the compiler.
        link += ["-s", "-static-libgcc", "-Wl,--as-needed", "-Wl,-z,defs"]
    run([*command, *objects, *link, "-o", str(linked)])
    place = Path(file) if file else PACKAGE / linked.name
    if not file:
        for other in PACKAGE.glob(f"{NAME}.*"):
            if other != place:
                other.unlink()
    # Renamed into its place: processes may use the former library meanwhile.
    copy = place.with_name(f".{place.name}.new")
    shutil.copyfile(linked, copy)
    os.replace(copy, place)
    return place


def build_or_warn(target=None):
    """Compile for an installation, which goes on without the library unless that is required.

    Fails if the environment has DASKMM_REQUIRE_LOOPS=1, or if the build is for a given target.
    """
    try:
        return build(target)
    except NotCompiledError as reason:
        # That of another version does not belong to these sources.
        for former in PACKAGE.glob(f"{NAME}.*"):
            former.unlink()
        text = f"The loops of daskmm were not compiled: {reason}\n{REMEDY}"
        if target or os.environ.get("DASKMM_REQUIRE_LOOPS") == "1":
            raise SystemExit(text) from None
        print(f"WARNING: {text}", file=sys.stderr, flush=True)
        return None


def main():
    """Rebuild the library of this checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", metavar="COMMAND", help="instead of $CXX and of those found")
    parser.add_argument("--sanitize", metavar="FILE", help="make FILE, which checks its own work")
    parser.add_argument(
        "--emulate-avx512", metavar="FILE", help="make FILE, the loops of AVX-512 for any processor"
    )
    arguments = parser.parse_args()
    if arguments.compiler:
        os.environ["CXX"] = arguments.compiler
    files = {name for name in (arguments.sanitize, arguments.emulate_avx512) if name}
    if len(files) > 1:
        parser.error("one library can be both sanitized and emulated, but then in one file")
    try:
        print(
            build(
                file=next(iter(files), None),
                sanitized=bool(arguments.sanitize),
                emulated=bool(arguments.emulate_avx512),
            )
        )
    except NotCompiledError as reason:
        sys.exit(f"{reason}\n{REMEDY}")


if __name__ == "__main__":
    main()
