"""Every documented parameter and attribute has a text."""

import ast
import itertools
from pathlib import Path

import pytest

import daskmm

PACKAGE = Path(daskmm.__file__).parent
# Folders and modules whose docstrings are complete. Add others once theirs are.
DONE = (
    "auto/bandwidth.py",
    "auto/distortion.py",
    "auto/lam.py",
    "compiled",
    "data",
    "datasets",
    "engine",
    "gram",
    "kmeans/assignment.py",
    "kmeans/belonging.py",
    "kmeans/bounds.py",
    "kmeans/cells.py",
    "kmeans/column_trials.py",
    "kmeans/drift.py",
    "kmeans/empty_clusters.py",
    "kmeans/incremental.py",
    "kmeans/renewal.py",
    "kmeans/seeding.py",
    "kmeans/sums.py",
    "kmeans/trials.py",
    "kmeans/trimming.py",
    "kmeans/updates.py",
    "mean_shift",
    "metrics",
    "numerics",
    "plot",
    "report",
    "storage",
)
SECTIONS = ("Parameters", "Attributes")


def without_text(docstring):
    """Return the lines that document a parameter or attribute and have no text below."""
    found, section = [], ""
    for line, below in itertools.pairwise([*docstring.split("\n"), ""]):
        if set(below) == {"-"}:
            section = line
        elif section in SECTIONS and line and not line.startswith((" ", "-")):
            found += [line] * (not below.startswith("    "))
    return found


def test_lines_without_text_are_found():
    sections = "Fit.\n\n{}\n----------\na : int\n{}b, c\n    As in `fit`.\n\nNotes\n-----\nNo.\n"
    assert without_text(sections.format("Parameters", "    Number.\n")) == []
    for section in SECTIONS:
        assert without_text(sections.format(section, "")) == ["a : int"]


@pytest.mark.parametrize("part", DONE)
def test_every_documented_parameter_has_a_text(part):
    place = PACKAGE / part
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    assert files
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    missing = [
        f"{file.relative_to(PACKAGE)}: {getattr(node, 'name', 'module')}: {line}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, documented)
        for line in without_text(ast.get_docstring(node) or "")
    ]
    assert not missing, "\n".join(missing)
