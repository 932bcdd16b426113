"""Mutants, which are small changes of the code, and the quick test that notices each.

Run: python tests/benchmarks/mutants.py RESULTS [--count N] [--seed S] [--numbers I ...]

N mutants are drawn, as many from each of ``ROOMS``, there first the kind of change and then its
place. Each is tested in a copy of the last commit, at first for about a minute by the files of its
room that name its module (all files of the room where none does). Those that survive are applied
all at once to the other quick tests (or to those of ``--rest``, which spares time), and the tests
that fail are run with each of them alone. A test that hangs fails.

Rows are appended to the file RESULTS as they are known; a run that was stopped goes on from there.
"""

import argparse
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {
    "numerics": ["numerics/**/*.py"],
    "mm": ["mm/*.py"],
    "engine": ["engine/*.py"],
    "storage": ["storage/*.py"],
    "data": ["data/validation.py", "data/input.py"],
}
COMPARED = {
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")},
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not")},
    **{ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in")},
}
COMPUTED = {
    **{ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")},
    **{ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*")},
}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
# Of the first tests of a mutant, and of those of all that are left; these take 20 minutes.
FEW, MANY = 70, 3600


def nodes(node):
    """Nodes below ``node``, without annotations, messages, log lines and lists of names."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if field in ("annotation", "returns") or isinstance(child, ast.Raise | ast.JoinedStr):
                continue
            if isinstance(child, ast.Call) and ast.unparse(child.func).startswith("logger."):
                continue
            if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "__all__":
                continue
            if isinstance(child, ast.AST):
                yield child
                yield from nodes(child)


def edits(source):
    """Kind, start, end and new text of each mutant of a module, in bytes."""
    starts = [0, *(match.end() for match in re.finditer(b"\n", source))]

    def whole(node):
        first = starts[node.lineno - 1] + node.col_offset
        return first, starts[node.end_lineno - 1] + node.end_col_offset

    def text(node):
        return source[slice(*whole(node))].decode()

    def between(left, right, old, new):
        at = source.index(old.encode(), whole(left)[1], whole(right)[0])
        return at, at + len(old), new

    for node in nodes(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                for a, op, b in zip([left, *others], ops, others, strict=False):
                    yield "comparison", *between(a, b, *COMPARED[type(op)])
            case ast.BinOp(left=a, op=op, right=b) | ast.AugAssign(target=a, op=op, value=b):
                if type(op) in COMPUTED:
                    yield "arithmetic", *between(a, b, *COMPUTED[type(op)])
            case ast.Constant(value=bool() | int() | float() as value):
                new = not value if isinstance(value, bool) else value + 1
                yield "constant", *whole(node), repr(new)
            case ast.BoolOp(op=op, values=[a, b, *_]):
                change = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield "and, or", *between(a, b, *change)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield "not", *whole(node), text(operand)
            case ast.Return(value=ast.AST() as value) if text(value) != "None":
                yield "return", *whole(value), "None"
            case ast.Call(func=function) if (name := text(function).split(".")[-1]) in EXTREMES:
                _, end = whole(function)
                yield "min, max", end - len(name), end, EXTREMES[name]
            case ast.If(test=test) | ast.IfExp(test=test):
                yield "condition", *whole(test), f"not ({text(test)})"


def draw(count, seed):
    """Mutants ``(room, file, start, end, new)``; none lies within another."""
    rng, drawn = random.Random(seed), []
    for room, patterns in ROOMS.items():
        kinds, n_drawn = {}, 0
        for path in sorted(path for each in patterns for path in (ROOT / "daskmm").glob(each)):
            for kind, *edit in edits(path.read_bytes()):
                mutant = room, str(path.relative_to(ROOT)), *edit
                kinds.setdefault(kind, []).append(mutant)
        while n_drawn < count // len(ROOMS):
            _, path, start, end, _ = mutant = rng.choice(kinds[rng.choice(sorted(kinds))])
            if not any(path == p and start < e and s < end for _, p, s, e, _ in drawn):
                drawn.append(mutant)
                n_drawn += 1
    return drawn


def mutate(copy, mutants):
    """Write the mutated files into the copy, and all others as they were."""
    subprocess.run(["git", "checkout", "-q", "."], cwd=copy, check=True)
    for _, path, start, end, new in sorted(mutants, key=lambda mutant: -mutant[2]):
        source = (copy / path).read_bytes()
        (copy / path).write_bytes(source[:start] + new.encode() + source[end:])


def failures(copy, tests, *options, seconds=MANY):
    """Names of the quick tests that fail; none if they do not end in time."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "--tb=no", "--timeout=90"]
    command += ["-p", "no:cacheprovider", *options, *map(str, tests)]
    known = os.environ | {"PYTHONPATH": str(copy)}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            command, cwd=copy, env=known, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return []
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", out.read(), re.M)
    return failed or (["pytest does not start"] if code in (2, 3, 4) else [])


def own_tests(room, path):
    """Files of tests of a room that name the module, or the whole room."""
    names = "|".join(Path(path).with_suffix("").parts[2:])
    files = sorted((ROOT / "tests" / room).glob("test_*.py"))
    naming = re.compile(rf"^(?:from|import) .*\b(?:{names})\b", re.M)
    return [f.relative_to(ROOT) for f in files if naming.search(f.read_text())] or [f"tests/{room}"]


def shown(mutant):
    """Place, line and mutated line of a mutant."""
    _, path, start, end, new = mutant
    source = (ROOT / path).read_bytes()
    first, last = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end)
    line = source[first:last].decode()
    mutated = (source[first:start] + new.encode() + source[end:last]).decode()
    place = f"{path}:{source.count(bytes([10]), 0, start) + 1}"
    return place, " ".join(line.split()), " ".join(mutated.split())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--numbers", type=int, nargs="*", help="only these of the mutants")
    parser.add_argument("--rest", nargs="*", default=["tests"], help="tests of those that are left")
    given = parser.parse_args()
    mutants = dict(enumerate(draw(given.count, given.seed)))
    rows = given.results.read_text().splitlines() if given.results.exists() else []
    known = {(number, stage): killed for number, stage, killed, *_ in map(json.loads, rows)}
    copy = Path(f"{given.results.resolve()}.copy")
    if not copy.exists():
        subprocess.run(["git", "worktree", "add", "-q", "--detach", copy], cwd=ROOT, check=True)
        subprocess.run([sys.executable, copy / "deploy/build_loops.py"], check=True)
        if failures(copy, ["tests/numerics/test_span.py"]):
            sys.exit("Without a mutant tests fail.")

    def test(number, stage, tests, *options, seconds=MANY):
        mutate(copy, [mutants[number]])
        failed = failures(copy, tests, "-x", *options, seconds=seconds) if tests else []
        killed = known[number, stage] = failed[0] if failed else ""
        place, line, mutated = shown(mutants[number])
        with given.results.open("a") as file:
            file.write(json.dumps([number, stage, killed, place, line, mutated]) + "\n")
        print(
            f"| {number} | {place} | `{line}` | `{mutated}` | {killed or 'survived'} |", flush=True
        )

    for number in given.numbers or mutants:
        if (number, "own") not in known:
            tests = own_tests(*mutants[number][:2])
            test(number, "own", tests, "--timeout=40", seconds=FEW)
    left = [n for n in given.numbers or mutants if not known[n, "own"] and (n, "rest") not in known]
    if left:
        mutate(copy, [mutants[number] for number in left])
        failed = failures(copy, given.rest, "--maxfail=100")
        for number in left:
            test(number, "rest", failed)


if __name__ == "__main__":
    main()
