"""The binary tree along which the records of a pass are merged.

The calls of a pass are halved again and again. Each range of calls that this gives is a subtree,
and its record is the sum of the records of its two halves. So neither the bits of a total nor the
order of concatenated records depend on which task made which call. A group of calls that is a
subtree has one record; other groups have a few.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

Arguments = tuple[Any, ...]
# Most records that one task merges.
SPLIT_EVERY = 16


def merge(records: Iterable[Any]) -> Any:
    """Sum records in order."""
    return functools.reduce(operator.add, records)


def subtree_starts(n_calls: int, least: int) -> list[int]:
    """Return the first call of each of at least `least` subtrees, or of as many as there are calls.

    The subtrees have equal depth, and their sizes differ by one at most.
    """
    ranges = [(0, n_calls)] if n_calls else []
    while len(ranges) < min(least, n_calls):
        halved = [(start, (start + stop) // 2, stop) for start, stop in ranges]
        ranges = [
            half
            for start, middle, stop in halved
            for half in ((start, middle), (middle, stop))
            if half[0] < half[1]
        ]
    return [start for start, _ in ranges]


def sibling(start: int, stop: int, n_calls: int) -> tuple[int, int] | None:
    """Return the sibling of a subtree, with which it forms a larger one; None for the root."""
    low, high, other = 0, n_calls, None
    while (low, high) != (start, stop):
        if not low <= start < stop <= high or high - low < 2:
            raise ValueError(f"[{start}, {stop}) is no subtree of {n_calls} calls")
        middle = (low + high) // 2
        if start < middle:
            high, other = middle, (middle, high)
        else:
            low, other = middle, (low, middle)
    return other
