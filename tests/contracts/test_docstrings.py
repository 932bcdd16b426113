"""Every documented parameter and attribute has a text."""

import ast
import inspect
import itertools
import re
from pathlib import Path

import daskmm

PACKAGE = Path(daskmm.__file__).parent
SECTIONS = ("Parameters", "Attributes")


def without_text(docstring):
    """Return the lines that document a parameter or attribute and have no text below."""
    found, section = [], ""
    for line, below in itertools.pairwise([*docstring.split("\n"), ""]):
        if set(below) == {"-"}:
            section = line
        # Names in brackets stand for texts that estimators share.
        elif section in SECTIONS and line and not line.startswith((" ", "-", "[")):
            found += [line] * (not below.startswith("    "))
    return found


def test_lines_without_text_are_found():
    sections = "Fit.\n\n{}\n----------\na : int\n{}b, c\n    As in `fit`.\n\nNotes\n-----\nNo.\n"
    assert without_text(sections.format("Parameters", "    Number.\n")) == []
    for section in SECTIONS:
        assert without_text(sections.format(section, "")) == ["a : int"]


def test_every_documented_parameter_has_a_text():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    missing = [
        f"{file.relative_to(PACKAGE)}: {getattr(node, 'name', 'module')}: {line}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, documented)
        for line in without_text(ast.get_docstring(node) or "")
    ]
    assert not missing, "\n".join(missing)


def test_methods_of_estimators_have_the_texts_that_they_share():
    public = [getattr(daskmm, name) for name in daskmm.__all__]
    estimators = [each for each in public if inspect.isclass(each)]
    left = [
        f"{cls.__name__}.{name}: {line}"
        for cls in estimators
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        for line in re.findall(r"^ *\[[a-z_, ]+\]$", method.__doc__ or "", re.MULTILINE)
    ]
    assert len(estimators) > 7
    assert left == []
