"""Features that number the rows, as identifiers do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# With at least this many rows, integers that grow from row to row are taken for identifiers.
_LEAST_NUMBERED = 30
# With at least this many rows, so are integers that differ in all rows, in any order.
_LEAST_DISTINCT = 2000
# Largest difference of an integer from the nearest one.
_ROUNDING = 1e-6


def numbering_features(rows: NDArray) -> list[int]:
    """Return the features whose integers grow from row to row, or differ in all of many rows.

    There are none if all features are like that: then no feature stands out as an identifier.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Sample of the rows, in their order in the table.
    """
    if len(rows) < _LEAST_NUMBERED:
        return []
    found = [column for column in range(rows.shape[1]) if _numbers(rows[:, column])]
    return found if len(found) < rows.shape[1] else []


def _numbers(values: NDArray) -> bool:
    few = values[:_LEAST_NUMBERED]
    if not _are_integers(few) or len(np.unique(few)) < len(few):
        return False
    ordered = values if len(values) < _LEAST_DISTINCT else np.sort(values)
    return bool((ordered[1:] > ordered[:-1]).all()) and _are_integers(values)


def _are_integers(values: NDArray) -> bool:
    values = values.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore"):
        return bool((np.abs(values - np.rint(values)) <= _ROUNDING).all())
