"""Names of features and files, and lists and counts for messages."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Text for features that all have at most an equal share of the weight.
ALIKE = "weighted alike"
# Largest number of items of a list in a message.
_MOST_ITEMS = 6
# Largest number of features that are listed with what clusters explain of them.
_EXPLAINED = 5
# Formulas in a spreadsheet begin with one of these characters. Signed numbers, with either decimal
# mark, are no formulas.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_SIGNED_NUMBER = re.compile(r"[+-]*[\d.,]*([eE][+-]?\d+)?%?")
# Pattern of a feature's number in error messages.
_FEATURE = re.compile(r"\bfeature (\d+)")


def feature_names(model: Any) -> list[str]:
    """Return the feature names of a fitted model, or their numbers, counted from 0."""
    names = getattr(model, "feature_names_in_", None)
    return [str(name) for name in (range(model.n_features_in_) if names is None else names)]


@contextmanager
def features_named(owner: Any) -> Iterator[None]:
    """Add the name of a column to errors that name a feature by its number.

    `owner` is a frame, or an estimator, which may get its names within the context.
    """
    try:
        yield
    except ValueError as error:
        names = getattr(owner, "feature_names_in_", getattr(owner, "columns", None))
        if names is not None and _FEATURE.search(str(error)):
            text = _FEATURE.sub(lambda found: f"{found[0]} ({names[int(found[1])]!r})", str(error))
            error.args = (text,)
        raise


def n_clusters_of(model: Any) -> int:
    """Return the number of clusters of a fitted model, given or found."""
    return int(model.n_clusters_ if hasattr(model, "n_clusters_") else model.n_clusters)


def features_found(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the features with more than an equal share of the weight, heaviest first.

    There are none if all features have the same weight, as with λ = ∞.
    """
    order = np.argsort(-weights, kind="stable")
    # The tolerance keeps weights that are equal up to rounding from being listed.
    return order[weights[order] > (1 + 1e-9) / len(weights)]


def is_standardised(model: Any) -> bool:
    """Return whether features were divided by their standard deviations.

    Estimators that learn feature weights also scale features by the shares of rows that have a
    value, and that is no standardisation.
    """
    return bool(getattr(model, "standardize", True)) and bool(np.any(model.scale_ != 1.0))


def variance_of(model: Any) -> NDArray[np.float64] | None:
    """Return the variance of each feature over the rows of the fit; None if it is not known."""
    if hasattr(model, "_variance"):
        return np.asarray(model._variance)
    return np.square(np.asarray(model.scale_)) if is_standardised(model) else None


def features_explained(model: Any) -> list[str]:
    """Return the features with the largest gains beyond noise, each with its gain in nats.

    There are at most five, and none for a model without `feature_gains_`.
    """
    gains = getattr(model, "feature_gains_", np.zeros(0))
    order = np.argsort(-gains, kind="stable")[:_EXPLAINED]
    names = feature_names(model)
    return [f"{names[index]} ({gains[index]:.2g} nats)" for index in order if gains[index] > 0]


def listed(items: Sequence[str], most: int = _MOST_ITEMS, separator: str = ", ") -> str:
    """Join the first items of a list, and add the number of further items."""
    shown, more = separator.join(items[:most]), len(items) - most
    return f"{shown} … and {more:,} more" if more > 0 else shown


def printable(text: object) -> str:
    """Return text with the escapes of unprintable characters, which could drive a terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in str(text)
    )


def spaced(text: object) -> str:
    """Return text with spaces in place of unprintable characters."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


def printable_lines(text: str) -> str:
    """Return `printable` lines of a text."""
    return "\n".join(map(printable, text.split("\n")))


def cell(value: Any) -> Any:
    """Return a value for a csv file that is safe in a terminal and in a spreadsheet.

    Control characters are written as their escapes. Text that a spreadsheet would compute gets an
    apostrophe before it, as OWASP advises, unless it is a number such as "-5.3".
    """
    if not isinstance(value, str):
        return value
    text = value if value.isprintable() else printable_lines(value)
    risky = value.startswith(_FORMULA) and not _SIGNED_NUMBER.fullmatch(value)
    return f"'{text}" if risky else text


def shell_word(text: object) -> str:
    """Quote a name for a suggested command, on one printable line."""
    name = str(text)
    if name.isprintable():
        return shlex.quote(name)
    # bash and zsh read these escapes; shlex would leave control characters as they are.
    return "$'" + "".join(map(_escaped_in_shell, name)) + "'"


def _escaped_in_shell(letter: str) -> str:
    if letter.isprintable() and letter not in "'\\":
        return letter
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(letter))


def counted(number: int, noun: str) -> str:
    """Format a count: "1 row", "2,000 rows"."""
    ending = "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def refuse_unknown(path: str, kind: str, names: Iterable[Any], known: Collection[Any]) -> None:
    """Raise ValueError if a file lacks some names of a kind, such as "column"."""
    if missing := sorted({*names} - {*known}):
        raise ValueError(
            f"{path} has no {kind} {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, known)) or 'none with names'}."
        )


def refuse_other_columns(
    path: str, names: Collection[Any], first: Collection[Any], chosen: Collection[Any] | None
) -> None:
    """Raise ValueError if a file of a table has other columns than the first file.

    If columns are `chosen`, it is enough that the file has those.
    """
    further, absent = (
        listed([repr(name) for name in (Counter(own) - Counter(other)).elements()])
        for own, other in ((names, first), (chosen or first, names))
    )
    if absent or (further and chosen is None):
        said = [f"has {further}, which the first file lacks"] if further else []
        said += [f"lacks {absent}, which the first file has"] if absent else []
        raise ValueError(
            f"Files of a table need the same columns: {path} {', and '.join(said)}. Or choose "
            "columns that all files have (columns=, on the command line --columns)."
        )
