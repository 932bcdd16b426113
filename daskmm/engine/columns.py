"""Pack lists of similar values by columns; constants and ranges take a few bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

# Types whose equal values have the same bits, unlike floats: 0.0 == -0.0.
_PLAIN = (int, str, bool, type(None))
_ENDS = ("start", "stop", "step")


class Constant(NamedTuple):
    """A repeated value."""

    value: Any
    number: int


class Columns(NamedTuple):
    """Tuples of one kind and length, or slices, stored part by part."""

    kind: type
    parts: list[Any]


def packed(values: Sequence[Any]) -> Any:
    """Return a list as a range, `Constant` or `Columns` if possible, or as it is."""
    first = values[0] if values else None
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return values
    (kind,) = kinds
    if kind in _PLAIN and all(value == first for value in values):
        return Constant(first, len(values))
    if kind is int:
        step = values[1] - values[0]
        regular = range(values[0], values[0] + step * len(values), step) if step else ()
        return regular if len(regular) == len(values) and list(regular) == values else values
    if kind is slice:
        return Columns(kind, [packed([getattr(each, name) for each in values]) for name in _ENDS])
    if issubclass(kind, tuple) and (kind is tuple or hasattr(kind, "_make")):
        lengths = set(map(len, values))
        if lengths == {0}:
            return Constant(first, len(values))
        if len(lengths) == 1:
            return Columns(kind, [packed(list(part)) for part in zip(*values, strict=True)])
    return values


def unpacked(column: Any) -> Iterable[Any]:
    """Return the values of a list that was packed."""
    if isinstance(column, Constant):
        return itertools.repeat(column.value, column.number)
    if not isinstance(column, Columns):
        return column
    rows = zip(*map(unpacked, column.parts), strict=True)
    if column.kind is tuple:
        return rows
    if column.kind is slice:
        return itertools.starmap(slice, rows)
    return map(column.kind._make, rows)  # type: ignore[attr-defined]
