"""Options of the command line for the parameters of the estimators.

Names, types, defaults and help texts are those of the estimators' signatures and docstrings. They
are read from the source files, because importing the estimators takes seconds, for which help texts
and errors of options need not wait.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import runpy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from daskmm.numerics.options import KERNELS

_SOURCES = Path(__file__).parents[1] / "cluster"
_BASES = ("_estimator.py", "_centers.py", "_kernels.py")
# Parameters without an option: the commands set them, only a later fit in the same process needs
# them, or they are options of 'daskmm update'.
_LEFT_OUT = ("checkpoint", "verbose", "warm_start", "forget")
# These choices leave out "precomputed", which needs a matrix that a command line cannot give.
_CHOICES = {"kernel": KERNELS}
_FLAGS = {"n_clusters": ("-k", "--n-clusters"), "random_state": ("--seed",)}
# Defaults of the commands that differ from those of the estimators.
_REMARKS = {
    "n_clusters": "required",
    "n_components": "or -k, required",
    "random_state": "default 0",
}
_ENTRY = re.compile(r"^(\w+(?:, \w+)*)(?: : (.*))?\n((?:    .*\n)*)", re.MULTILINE)
_NUMBERS: dict[str, Callable[[str], float]] = {"int": int, "float": float}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an estimator: its type as documented, its default, and a sentence on it."""

    name: str
    kind: str
    default: Any
    sentence: str

    @property
    def words(self) -> list[str]:
        """Words that describe the type; values that are quoted keep their quotation marks."""
        return re.findall(r'"[^"]+"|\w+', self.kind)

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that the parameter accepts; empty if it accepts other values too."""
        if not self.kind.startswith("{"):
            return ()
        return _CHOICES.get(self.name, tuple(re.findall(r'"([^"]+)"', self.kind)))

    @property
    def has_option(self) -> bool:
        """Whether a value can be written on a command line."""
        known = {"bool", "str", "path", *_NUMBERS}
        writable = bool(self.choices) or not known.isdisjoint(self.words)
        return writable and self.name not in _LEFT_OUT

    @property
    def remark(self) -> str:
        """Remark that the help text adds in parentheses."""
        if self.name in _REMARKS or self.default is None:
            return _REMARKS.get(self.name, "")
        default = self.default
        if isinstance(default, bool):
            default = "yes" if default else "no"
        elif isinstance(default, float):
            default = f"{default:g}"
        others = [choice for choice in self.choices if choice != default]
        return f"default {default}" + (f", or {', '.join(others)}" if others else "")


def add_model_options(command: argparse.ArgumentParser, estimators: Mapping[str, str]) -> None:
    """Add an option for each parameter of each model, in groups by the models that have it.

    `estimators` maps the name of a model to the name of its class. Options that are not given are
    absent from the parsed arguments.
    """
    found: dict[str, dict[str, Parameter]] = {}
    for model, estimator in estimators.items():
        for name, parameter in parameters_of(estimator).items():
            if parameter.has_option:
                found.setdefault(name, {})[model] = parameter
    for models in sorted(dict.fromkeys(map(tuple, found.values())), key=len, reverse=True):
        those = f"--model {', '.join(models)}" if len(models) < len(estimators) else "every model"
        group = command.add_argument_group(
            f"parameters of {those}", argument_default=argparse.SUPPRESS
        )
        for name, of in found.items():
            if tuple(of) == models:
                _add_option(group, name, of)


def _add_option(group: Any, name: str, of: dict[str, Parameter]) -> None:
    """Add the option of a parameter; `of` has its `Parameter` for each model that takes it."""
    flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
    options: dict[str, Any] = {"dest": name, "help": _help(of).replace("%", "%%")}
    words = list(dict.fromkeys(word for each in of.values() for word in each.words))
    if "bool" in words:
        options["action"] = argparse.BooleanOptionalAction
    elif choices := dict.fromkeys(choice for each in of.values() for choice in each.choices):
        options |= {"choices": tuple(choices), "metavar": "NAME"}
    else:
        options |= {"type": _converter(words), "metavar": _metavar(words)}
    group.add_argument(*flags, **options)


def _help(of: dict[str, Parameter]) -> str:
    """Return one text for all models that have a parameter; it says where they differ."""
    sentences = {each.sentence for each in of.values()}
    remarks = {model: each.remark for model, each in of.items()}
    if len(sentences) == 1:
        return _with_remark(sentences.pop(), _by_model(remarks))
    return _by_model({m: _with_remark(each.sentence, each.remark) for m, each in of.items()})


def _with_remark(sentence: str, remark: str) -> str:
    return f"{sentence} ({remark})" if remark else sentence


def _by_model(texts: dict[str, str]) -> str:
    """Join the different texts, each after the names of its models; a single text has no names."""
    models: dict[str, list[str]] = {}
    for model, text in texts.items():
        models.setdefault(text, []).append(model)
    if len(models) == 1:
        return next(iter(models))
    return "; ".join(f"{', '.join(those)}: {text}" for text, those in models.items())


def _converter(words: Iterable[str]) -> Callable[[str], Any]:
    """Return a function that converts a text to a value: a number, a quoted word, or any text."""
    numbers = [_NUMBERS[word] for word in ("int", "float") if word in words]
    quoted = [word for word in words if word.startswith('"')]
    any_text = not {"str", "path"}.isdisjoint(words)

    def convert(text: str) -> Any:
        for number in numbers:
            try:
                return number(text)
            except ValueError:
                pass
        if any_text or f'"{text}"' in quoted:
            return text
        raise ValueError(text)

    # argparse puts this name into the message for a value that is refused.
    convert.__name__ = " or ".join([*quoted, *(number.__name__ for number in numbers)])
    return convert


def _metavar(words: Iterable[str]) -> str:
    value = {"int": "N", "float": "X", "path": "PATH"}
    letter = next(value[word] for word in value if word in words)
    return f"auto|{letter}" if '"auto"' in words else letter


@cache
def parameters_of(estimator: str) -> dict[str, Parameter]:
    """Return the parameters of an estimator, from its source."""
    defaults = {
        line.target.id: line.value.value
        for source in reversed(_with_bases(estimator))
        if any("dataclass" in ast.unparse(decorator) for decorator in source.decorator_list)
        for line in source.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and isinstance(line.value, ast.Constant)
    }
    return {
        name: Parameter(name, kind, defaults[name], sentence)
        for name, (kind, sentence) in _documented(estimator).items()
    }


@cache
def _sources() -> dict[str, ast.ClassDef]:
    """Return the classes of estimators and their bases."""
    return {
        node.name: node
        for files in ("[a-z]*.py", *_BASES)
        for path in _SOURCES.glob(files)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def _with_bases(estimator: str) -> list[ast.ClassDef]:
    """Return a class and its base classes, as far as they are among the sources."""
    source = _sources().get(estimator)
    if source is None:
        return []
    names = [base.id for base in source.bases if isinstance(base, ast.Name)]
    return [source, *(each for name in names for each in _with_bases(name))]


@cache
def _documented(estimator: str) -> dict[str, tuple[str, str]]:
    """Return type and first sentence of each documented parameter."""
    insert = runpy.run_path(str(_SOURCES / "_docs.py"))["with_shared_texts"]
    source, *bases = _with_bases(estimator)
    found = {
        name: each for base in reversed(bases) for name, each in _documented(base.name).items()
    }
    text = inspect.cleandoc(insert(ast.get_docstring(source, clean=False) or ""))
    section = text.partition("Parameters\n----------\n")[2].partition("\nAttributes\n")[0]
    for names, kind, lines in _ENTRY.findall(section):
        elsewhere = re.match(r" *As in `(\w+)`", lines)
        for name in names.split(", "):
            if elsewhere:
                found[name] = _documented(elsewhere[1])[name]
            else:
                found[name] = kind.partition(", default=")[0], _first_sentence(lines)
    return found


def _first_sentence(lines: str) -> str:
    """Return the first sentence of a description as the text of an option."""
    sentence = " ".join(lines.split()).partition(". ")[0].removesuffix(".").replace("`", "")
    return sentence[:1].lower() + sentence[1:]
