"""Faults made on purpose: whether the quick tests find them.

Run: python tests/benchmarks/mutants.py [--number N] [--seed S] [--rooms ROOM ...] [--coverage FILE]

First all quick tests run once, and note which of them execute each line (needs pytest-cov; kept in
the file, and taken from there if it exists). Then, in rooms whose code is plain Python, operators
and constants are drawn at random and changed one at a time, in a copy of the checkout, and the
tests run that execute the changed line, those of the same room first. Prints a row for each mutant.
What no test finds is looked at by eye: many changes make no difference that could be seen.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
ROOMS = ("numerics", "mm", "engine", "storage", "data")

OTHER = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def places(tree):
    """Yield functions that change the tree at one place each, with the node they change."""
    for scope in ast.walk(tree):
        # What runs at import, such as a constant or a type, is left alone.
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in scope.body:
                for node in ast.walk(statement):
                    yield from _changes(node)


def _changes(node):
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        yield node, lambda: node.ops.__setitem__(0, OTHER[type(node.ops[0])]())
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OTHER:
        yield node, lambda: setattr(node, "op", OTHER[type(node.op)]())
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield node, lambda: setattr(node, "value", node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield node, lambda: setattr(node, "value", not node.value)


def drawn(room, number, rng):
    """Return (path, source, line, before, after) of mutants of a room."""
    found = []
    files = sorted((TOP / "daskmm" / room).rglob("*.py"))
    sources = {path: path.read_text() for path in files}
    counts = {path: sum(1 for _ in places(ast.parse(text))) for path, text in sources.items()}
    everywhere = [(path, index) for path, n in counts.items() for index in range(n)]
    for path, index in rng.sample(everywhere, number):
        tree = ast.parse(sources[path])
        node, change = list(places(tree))[index]
        before = ast.unparse(node)
        change()
        mutant = ast.unparse(ast.fix_missing_locations(tree))
        found.append((path.relative_to(TOP), mutant, node.lineno, before, ast.unparse(node)))
    return found


def tests_by_line(file):
    """Return a function from a path and line to the quick tests that execute it."""
    from coverage import CoverageData

    if not file.exists():
        command = [sys.executable, "-m", "pytest", "-q", "--cov=daskmm", "--cov-context=test"]
        environment = os.environ | {"COVERAGE_FILE": str(file.resolve())}
        subprocess.run([*command, "--cov-report="], cwd=TOP, env=environment, check=False)
    data = CoverageData(str(file))
    data.read()
    by_path = {Path(path).parts[-3:]: path for path in data.measured_files()}

    def tests(path, line):
        contexts = data.contexts_by_lineno(by_path[path.parts[-3:]])
        return sorted({name.split("|")[0] for name in contexts.get(line, ()) if name})

    return tests


def first_failure(copy, tests):
    """Return the first of the tests that fails, or None."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *tests], cwd=copy, capture_output=True, text=True)
    if done.returncode in (0, 5):
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0].split("::", 1)[-1] if lines else f"exit {done.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=ROOMS)
    parser.add_argument("--coverage", type=Path, default=Path("mutants.coverage"))
    parser.add_argument("--most", type=int, default=150, help="tests that run for a mutant")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    executing = tests_by_line(arguments.coverage)
    print("| where | was | is | tests | found by |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "daskmm"
        shutil.copytree(TOP, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
        for room in arguments.rooms:
            for path, mutant, line, before, after in drawn(
                room, arguments.number // len(arguments.rooms), rng
            ):
                tests = executing(path, line)
                rng.shuffle(tests)
                own = [test for test in tests if test.startswith(f"tests/{room}/")]
                tests = [*own, *(test for test in tests if test not in set(own))]
                (copy / path).write_text(mutant)
                failed = first_failure(copy, tests[: arguments.most]) if tests else "not executed"
                shutil.copy(TOP / path, copy / path)
                where = f"{path.relative_to('daskmm')}:{line}"
                print(f"| {where} | `{before}` | `{after}` | {len(tests)} | {failed} |", flush=True)


if __name__ == "__main__":
    main()
