"""Frames with columns of several kinds: the steps of a fit that read and describe them."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import add
from typing import Any

from daskmm._dask import dask, is_dask_array
from daskmm.data.blocks import is_frame, is_series
from daskmm.data.errors import warn_user
from daskmm.data.foreign import unwrapped
from daskmm.data.input import check_synchronous
from daskmm.data.mixed import (
    Coding,
    Column,
    columns_of,
    keys_among,
    levels_in,
    to_be_coded,
    unseen_in,
    with_levels,
)
from daskmm.data.names import listed
from daskmm.data.sparse import has_sparse_columns
from daskmm.data.validation import check_row_count
from daskmm.engine.clients import computed

_PARAMETERS = {"dates", "unknown"}
# Number of levels that plans assume of a lazy column.
_USUAL_LEVELS = 10


def checked_mixed(metric_params: dict[str, Any] | None, missing: str) -> None:
    """Raise ValueError if parameters do not fit the distortion "mixed"."""
    given = metric_params or {}
    if set(given) - _PARAMETERS or given.get("unknown", "error") not in ("error", "missing"):
        raise ValueError(
            "metric_params of distortion='mixed' are 'dates', a list such as ['day:trend', "
            f"'day:season'], and 'unknown', 'error' or 'missing'; got {metric_params!r}."
        )
    if given.get("unknown") == "missing" and missing != "partial":
        raise ValueError("metric_params={'unknown': 'missing'} needs missing='partial'.")


def learned_coding(X: Any, metric_params: dict[str, Any] | None) -> tuple[Any, Coding]:
    """Return a frame and its coding; columns of categories are read once for their levels.

    It raises TypeError or ValueError for what cannot be coded; see `daskmm.data.mixed`.
    """
    check_synchronous()
    X = _frame(X)
    given = metric_params or {}
    columns = columns_of(X, given.get("dates", ()))
    if names := [column.source for column in columns if column.kind == "category"]:
        if is_frame(X):
            parts = enumerate(X[names].to_delayed())
            found = computed(*(dask.delayed(levels_in)(part, block) for block, part in parts))
        else:
            check_row_count(len(X), 1)
            found = (levels_in(X[names]),)
        columns = with_levels(columns, found)
        for column in keys_among(columns, found):
            warn_user(
                f"X has {len(column.levels)} levels in column {column.name!r}, one for nearly "
                "every row: names and keys of rows tell no clusters apart. Leave the column out.",
                UserWarning,
            )
        for column in columns:
            _warn_of_spellings(column)
    return X, Coding(tuple(columns), given.get("unknown", "error"))


def _warn_of_spellings(column: Column) -> None:
    """Warn of levels that differ only in upper and lower case, or in spaces around them."""
    spellings: dict[str, list[str]] = {}
    for level in filter(lambda level: isinstance(level, str), column.levels):
        spellings.setdefault(level.strip().casefold(), []).append(repr(level))
    several = [listed(own) for own in spellings.values() if len(own) > 1]
    if several:
        warn_user(
            f"Levels of column {column.name!r} differ only in case or spaces and count as several "
            f"levels: {listed(several, separator='; ')}.",
            UserWarning,
        )


def planned(X: Any, metric_params: dict[str, Any] | None) -> tuple[Any, int]:
    """Return a stand-in for a coded frame, with its shape, and its number of levels, for planning.

    An array counts as a frame that has been coded. Columns that a fit would refuse raise its error.
    """
    if is_dask_array(X):
        return X, 0
    X, dates = _frame(X), (metric_params or {}).get("dates", ())
    stand_in = to_be_coded(X, dates)
    columns = columns_of(X._meta if is_frame(X) else X, dates)
    names = [column.source for column in columns if column.kind == "category"]
    return stand_in, sum(_n_levels(X[name]) for name in names)


def _n_levels(series: Any) -> int:
    """Return the number of levels of a column; lazy ones are assumed where they are unknown."""
    if is_series(series):
        categories = getattr(series.dtype, "categories", None)
        return _USUAL_LEVELS if categories is None or not series.cat.known else len(categories)
    try:
        return int(series.nunique())
    except TypeError:  # lists, for example, which a fit refuses
        return 0


def coded(X: Any, coding: Coding) -> Any:
    """Return a frame coded as in the fit; see `Coding.of`."""
    return coding.of(_frame(X))


def _frame(X: Any) -> Any:
    X = unwrapped(X.sparse.to_dense() if has_sparse_columns(X) else X)
    if not (hasattr(X, "columns") and hasattr(X, "dtypes")):
        raise TypeError(
            "distortion='mixed' takes DataFrames, whose columns have kinds (pandas, dask, polars); "
            f"X is a {type(X).__name__}."
        )
    return X


def unseen_levels(X: Any, columns: tuple[Column, ...]) -> dict[tuple[str, Any], int]:
    """Count the rows of a frame for each column and level that the fit did not see."""
    names = [column.source for column in columns if column.kind == "category"]
    if not names:
        return {}
    X = _frame(X)
    if not is_frame(X):
        return unseen_in(X, columns)
    found = computed(*(dask.delayed(unseen_in)(part, columns) for part in X[names].to_delayed()))
    return reduce(add, found, Counter[tuple[str, Any]]())
