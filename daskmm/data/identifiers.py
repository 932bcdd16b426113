"""Features that number the rows, as identifiers do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Integers that grow from row to row are taken for identifiers if there are at least this many rows.
_LEAST_NUMBERED = 30
# Integers that differ in all rows are identifiers in any order if there are at least this many
# rows.
_LEAST_DISTINCT = 2000
# Growing identifiers take at least one in this many integers; times grow in longer steps.
_LONGEST_STEP = 10
# Integers in any order are identifiers if all differ although chance would make this many equal
# pairs.
_EXPECTED_PAIRS = 10
# Largest difference of an integer from the nearest one.
_ROUNDING = 1e-6


def numbering_features(rows: NDArray, n_rows: int) -> list[int]:
    """Return the features whose integers grow from row to row, or differ in all of many rows.

    `rows` are a sample of the table's `n_rows` rows, in their order. If all features are like that,
    none is returned, since none stands out as an identifier.
    """
    if len(rows) < _LEAST_NUMBERED:
        return []
    found = [column for column in range(rows.shape[1]) if _numbers(rows[:, column], n_rows)]
    return found if len(found) < rows.shape[1] else []


def _numbers(values: NDArray, n_rows: int) -> bool:
    few = values[:_LEAST_NUMBERED]
    if not _are_integers(few) or len(np.unique(few)) < len(few) or not _are_integers(values):
        return False
    n, span = len(values), float(values.max()) - float(values.min())
    if (values[1:] > values[:-1]).all():
        return span <= _LONGEST_STEP * n_rows
    if n < _LEAST_DISTINCT or span > n * n / (2 * _EXPECTED_PAIRS):
        return False
    return len(np.unique(values)) == n


def _are_integers(values: NDArray) -> bool:
    # All floats beyond this bound are integers.
    bound = 2 / np.finfo(values.dtype if values.dtype.kind == "f" else np.float64).eps
    values = values.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore"):
        held = (np.abs(values) < bound).all()
        return bool(held and (np.abs(values - np.rint(values)) <= _ROUNDING).all())
