"""Code frames with columns of several kinds as numbers, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import dask
from daskmm.data.blocks import is_frame, refuse_repeated
from daskmm.data.errors import warn_user
from daskmm.data.foreign import are_decimals
from daskmm.numerics.columns import CATEGORY, FLAG, NUMBER, SEASON, Expansion
from daskmm.storage.records import registered

# Columns with more levels than this, or with a different level in nearly every row, are names or
# keys of the rows, not categories.
MOST_LEVELS = 1000
_KEYED_SHARE, _KEYED_ROWS = 0.9, 20
_TOO_MANY = (
    f"X has more than {MOST_LEVELS:,} levels in column {{!r}}. Join some, or leave the column out."
)
_PARTS = ("trend", "season")
DAYS_OF_YEAR = 365.25


@registered
@dataclass(frozen=True)
class Column:
    """A column of a coded table."""

    name: str  # name in the frame, or of a part of a date: "day:season"
    source: str  # name of the column in the frame
    kind: str  # "number", "flag", "category"; "trend" or "season" for a part of a date
    levels: tuple[Any, ...] = ()  # levels of a category, sorted
    zone: str | None = None  # time zone of a date at the fit

    @property
    def features(self) -> list[str]:
        """Names of the column's features in the model."""
        if self.kind == "category":
            return [f"{self.name}={level}" for level in self.levels]
        return [f"{self.name} {part}" for part in ("cos", "sin")] if self.is_season else [self.name]

    @property
    def is_season(self) -> bool:
        """Whether the column is the season of a date."""
        return self.kind == "season"


def expansion_of(columns: Sequence[Column]) -> Expansion:
    """Return the expansion of coded columns to features."""
    known = {"flag": FLAG, "category": CATEGORY, "season": SEASON}
    kinds = [known.get(column.kind, NUMBER) for column in columns]
    return Expansion(np.array(kinds), np.array([len(column.features) for column in columns]))


def columns_of(frame: Any, dates: Iterable[str]) -> list[Column]:
    """Return the columns of a frame, described by their dtypes.

    The frame may be an empty one with its columns; rows are read only for an error message. `dates`
    are the parts of dates to use: "day:trend", "day:season".

    It raises TypeError if a name is not text, a column has an unsupported dtype, or `dates` omits a
    column of dates; the message names all columns that cannot be used, as far as the first block
    shows. It raises ValueError if the frame has no columns, or `dates` names a column that does not
    exist.
    """
    from pandas.api import types

    refuse_repeated(frame.columns)
    wanted: dict[str, list[str]] = {}
    for entry in dates:
        source, _, part = entry.rpartition(":")
        if part not in _PARTS or source not in frame.columns:
            raise ValueError(
                f"dates: {entry!r} is not a column of X with ':trend' (time since 1970) or "
                "':season' (the day of the year)."
            )
        wanted.setdefault(source, []).append(part)
    columns: list[Column] = []
    problems: list[str] = []
    for name, dtype in frame.dtypes.items():
        if not isinstance(name, str):
            raise TypeError(
                f"distortion='mixed' needs columns whose names are text; {name!r} is none. Convert "
                "the names: X.columns = X.columns.astype(str)."
            )
        if types.is_datetime64_any_dtype(dtype):
            if name not in wanted:
                problems.append(
                    f"X has dates in column {name!r}. Choose the parts to use, metric_params="
                    f"{{'dates': ['{name}:trend', '{name}:season']}} or one of both, or leave the "
                    "column out."
                )
                continue
            parts = wanted.pop(name)
            columns += [Column(f"{name}:{part}", name, part, (), _zone(dtype)) for part in parts]
        elif types.is_bool_dtype(dtype) and not isinstance(dtype, _categorical()):
            columns.append(Column(name, name, "flag"))
        elif types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
            columns.append(Column(name, name, "number"))
        elif isinstance(dtype, _categorical()) or types.is_string_dtype(dtype):
            columns.append(Column(name, name, "category"))
        else:
            problems.append(
                f"X has column {name!r} of dtype {dtype}, which is of no known kind. Convert spans "
                "of time to numbers (.dt.total_seconds()), periods to dates (.dt.to_timestamp())."
            )
    if problems:
        raise TypeError(" ".join([*problems, *_keys_told(frame, columns)]))
    if wanted:
        name = next(iter(wanted))
        raise ValueError(
            f"dates: column {name!r} has no dates: its dtype is {frame.dtypes[name]}. Convert text "
            "and Python's dates by pandas.to_datetime (dask.dataframe.to_datetime) first; in csv "
            "files, text is read as dates."
        )
    if not columns:
        raise ValueError("Found array with 0 feature(s): X has no columns.")
    return columns


def _zone(dtype: Any) -> str | None:
    """Return the time zone of a dtype of dates."""
    zone = getattr(getattr(dtype, "pyarrow_dtype", dtype), "tz", None)
    return None if zone is None else str(zone)


def _keys_told(frame: Any, columns: Sequence[Column]) -> list[str]:
    """Return sentences about columns with too many levels, in a frame or its first block."""
    names = [column.source for column in columns if column.kind == "category"]
    part = (frame.partitions[0].compute() if is_frame(frame) else frame)[names]
    try:
        counts = part.nunique()
    except TypeError:  # lists, for example, cannot be counted
        return []
    return [_TOO_MANY.format(name) for name in counts.index[counts > MOST_LEVELS]]


def to_be_coded(X: Any, dates: Iterable[str]) -> Any:
    """Return a frame with the shape of the coded one, whose values must not be computed.

    `dates` are the parts of dates to use, as in `columns_of`.
    """
    frame = X._meta if is_frame(X) else X
    return Coding(tuple(columns_of(frame, dates)), "missing").of(X)


def _categorical() -> type:
    import pandas as pd

    return pd.CategoricalDtype


class Levels(NamedTuple):
    """Levels of a column in one block."""

    first: dict[Any, int]  # the first row with each level
    n_rows: int  # number of rows with a value
    decimals: bool = False  # whether the values are decimals, which are numbers, not levels


def levels_in(part: Any, block: int = 0) -> dict[str, Levels]:
    """Return the levels that occur in each column of a pandas frame.

    It raises ValueError if a column has more than `MOST_LEVELS` levels, or a value, such as a list,
    cannot be a level.
    """
    import pandas as pd

    found: dict[str, Levels] = {}
    keys: list[str] = []
    for name in part.columns:
        if are_decimals(part[name]):
            found[name] = Levels({}, int(part[name].notna().sum()), decimals=True)
            continue
        try:
            codes, levels = pd.factorize(part[name])
        except TypeError as error:
            raise _no_level(part[name], block) from error
        if len(levels) > MOST_LEVELS:
            keys.append(name)
        held = np.flatnonzero(codes >= 0)
        first = held[np.unique(codes[held], return_index=True)[1]]
        found[name] = Levels(dict(zip(levels.tolist(), first.tolist(), strict=True)), len(held))
    _refuse_keys(keys)
    return found


def with_levels(columns: Sequence[Column], found: Iterable[dict[str, Levels]]) -> list[Column]:
    """Return columns with the levels that were found in the blocks; decimals become numbers.

    It raises ValueError if a column has no levels or too many, or only some of its levels are text.
    """
    union: dict[str, dict[Any, int]] = {}
    found = list(found)
    decimals = {name for levels in found for name, own in levels.items() if own.decimals}
    for block, levels in enumerate(found):
        for name, own in levels.items():
            if name in decimals:
                _refuse_among_decimals(name, own.first, block)
                continue
            known = union.setdefault(name, {})
            known |= own.first
            _refuse_other_kind(name, next(iter(known), None), own.first, block)
        _refuse_keys([name for name, known in union.items() if len(known) > MOST_LEVELS])
    for name, known in union.items():
        if not known:
            raise ValueError(f"X has a column without any value: {name!r}. Leave it out.")
    return [_with_own(column, decimals, union) for column in columns]


def _with_own(column: Column, decimals: set[str], union: dict[str, dict[Any, int]]) -> Column:
    """Return a column with its levels; a column of decimals becomes one of numbers."""
    if column.kind != "category":
        return column
    if column.source in decimals:
        return replace(column, kind="number")
    levels = set(union[column.source])
    try:
        return replace(column, levels=_sorted(levels))
    except TypeError as error:
        raise TypeError(
            f"X has levels in column {column.source!r} that have no order, such as "
            f"{next(iter(levels))!r}. Convert the column to numbers or to text."
        ) from error


def keys_among(columns: Sequence[Column], found: Iterable[dict[str, Levels]]) -> list[Column]:
    """Return the columns in which nearly every row has its own level."""
    n_rows = Counter[str]()
    for levels in found:
        n_rows.update({name: own.n_rows for name, own in levels.items()})
    return [
        column
        for column in columns
        if len(column.levels) > max(_KEYED_SHARE * n_rows[column.source], _KEYED_ROWS)
    ]


def _refuse_other_kind(name: str, known: Any, levels: dict[Any, int], block: int) -> None:
    """Raise ValueError if some levels are text and others are not."""
    for level, row in levels.items():
        if isinstance(level, str) != isinstance(known, str):
            raise ValueError(
                f"X has {level!r} in column {name!r}, where {known!r} is a level too: block "
                f"{block}, row {row} of the block. All levels must be text, or none."
            )


def _refuse_among_decimals(name: str, levels: dict[Any, int], block: int) -> None:
    """Raise ValueError if a block has other values in a column of decimals."""
    for level, row in levels.items():
        if not isinstance(level, Decimal):
            raise ValueError(
                f"X has {level!r} in column {name!r}, where other values are decimals: block "
                f"{block}, row {row} of the block."
            )


def _no_level(series: Any, block: int) -> ValueError:
    """Return the error for a column with values, such as lists, that cannot be levels."""
    row = next(row for row, value in enumerate(series) if not _is_hashable(value))
    return ValueError(
        f"X has a {type(series.iloc[row]).__name__} in column {series.name!r}, which is no level "
        f"of a category: block {block}, row {row} of the block."
    )


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _refuse_keys(names: Sequence[str]) -> None:
    if names:
        raise ValueError(" ".join(_TOO_MANY.format(name) for name in names))


def _sorted(levels: set[Any]) -> tuple[Any, ...]:
    return tuple(sorted(levels, key=lambda level: (type(level).__name__, level)))


@dataclass(frozen=True)
class Coding:
    """Code frames: flags as 0 and 1, levels by index, missing values as NaN; numbers stay."""

    columns: tuple[Column, ...]  # columns of the coded frame
    # "error" or "missing": whether levels that the fit did not see raise an error or become missing
    # values.
    unknown: str = "error"
    # This tells `with_lengths` that coding does not change the number of rows of partitions.
    keeps_rows: ClassVar[bool] = True

    @cached_property
    def token(self) -> str:
        """Identifies equal codings for dask, which then hashes the levels once."""
        return str(dask.base.tokenize([astuple(column) for column in self.columns], self.unknown))

    @property
    def learned(self) -> bool:
        """Whether the data had to be searched for levels."""
        return any(column.kind == "category" for column in self.columns)

    def __dask_tokenize__(self) -> str:
        return self.token

    def __repr__(self) -> str:
        return "coded"  # dask's keys contain this

    def of(self, X: Any) -> Any:
        """Return a frame of floats, with the index and the partitions of `X`.

        `X` may have further columns. It raises ValueError if columns are missing, or if a value is
        not of its column's kind or has an unknown level. A lazy frame raises for values when its
        blocks are loaded. Messages name column, value, block and row.
        """
        sources = list(dict.fromkeys(column.source for column in self.columns))
        absent = [source for source in sources if source not in set(X.columns)]
        if absent:
            raise ValueError(f"X has no column {absent[0]!r}, which the fit had.")
        refuse_repeated(X.columns[X.columns.isin(sources)])
        self._warn_of_zones(X.dtypes)
        if not is_frame(X):
            return self(X)
        return X[sources].map_partitions(self, meta=self(X._meta[sources]))

    def _warn_of_zones(self, dtypes: Any) -> None:
        """Warn of dates that have a time zone and had none at the fit, or the other way round."""
        zones = {column.source: column.zone for column in self.columns if column.kind in _PARTS}
        for source, fitted in zones.items():
            own = _zone(dtypes[source])
            if getattr(dtypes[source], "kind", "O") == "M" and (own is None) != (fitted is None):
                warn_user(
                    f"Dates in column {source!r} have {own or 'no time zone'}, and had "
                    f"{fitted or 'no time zone'} at the fit. Both are taken as the time that a "
                    "clock shows there. If these clocks differ, convert the column, for instance "
                    "by .dt.tz_localize and .dt.tz_convert.",
                    UserWarning,
                )

    def __call__(self, part: Any, partition_info: dict[str, Any] | None = None) -> Any:
        """Code a pandas frame."""
        import pandas as pd

        block = 0 if partition_info is None else int(partition_info["number"])
        values = {column.name: self._coded(column, part, block) for column in self.columns}
        return pd.DataFrame(values, index=part.index)

    def _coded(self, column: Column, part: Any, block: int) -> NDArray[np.float64]:
        series = part[column.source]
        if column.kind == "category":
            return self._levels(column, series, block)
        try:
            return _numbers(series, column)
        except _UNREADABLE as error:
            rows = range(len(series))
            row = next((row for row in rows if not _is_readable(series, row, column)), 0)
            (value,) = series.iloc[row : row + 1].tolist()
            kind = "date" if column.kind in _PARTS else column.kind
            raise ValueError(
                f"X has {value!r} in column {column.source!r}, which is no {kind} as in the fit: "
                f"block {block}, row {row} of the block."
            ) from error

    def _levels(self, column: Column, series: Any, block: int) -> NDArray[np.float64]:
        import pandas as pd

        try:
            own, found = pd.factorize(series)
        except TypeError as error:
            raise _no_level(series, block) from error
        known = _places_of(found.astype(object), column.levels)
        # Missing values have the code −1.
        codes = np.append(known, -1)[own].astype(np.float64)
        unseen = np.flatnonzero((codes < 0) & series.notna().to_numpy())
        if len(unseen) and self.unknown == "error":
            (level,) = series.iloc[unseen[:1]].tolist()
            raise ValueError(
                f"X has the level {level!r} in column {column.source!r}, which the fit did not "
                f"see: block {block}, row {unseen[0]} of the block. To treat it as missing, "
                "give unknown='missing' to predict or partial_fit (--unknown missing to daskmm "
                "predict or update), or fit with metric_params={'unknown': 'missing'}."
            )
        codes[codes < 0] = np.nan
        return codes


def _places_of(values: Sequence[Any], levels: Sequence[Any]) -> NDArray[np.int64]:
    """Return the place of each value among the levels, and −1 for other values.

    Text is the same level as a number or flag that it spells, unless it spells the same as another
    level does: all levels of csv files are text, where other tables have numbers and flags.
    """
    import pandas as pd

    if levels and any(isinstance(value, str) != isinstance(levels[0], str) for value in values):
        spelt = [_spelt(level) for level in levels]
        if len(set(spelt)) == len(spelt):
            levels, values = spelt, [_spelt(value) for value in values]
    return np.asarray(pd.Index(levels, dtype=object).get_indexer(pd.Index(values, dtype=object)))


def _spelt(level: Any) -> Any:
    """Return the number or the flag that a level is or spells, or else the level."""
    if str(level).casefold() in ("true", "false"):
        return str(level).casefold()
    try:
        number = float(level)
    except (TypeError, ValueError):
        return level
    return number if np.isfinite(number) else level


_UNREADABLE = (TypeError, ValueError, AttributeError)


def _numbers(series: Any, column: Column) -> NDArray[np.float64]:
    """Code a column that is not a category; values of other kinds raise an `_UNREADABLE` error."""
    series = series.infer_objects()
    if not series.notna().any():
        return np.full(len(series), np.nan)
    if column.kind in _PARTS:
        return _time(series, column)
    if column.kind == "flag":
        series = series.astype("boolean")
    elif series.dtype.kind in "mM":
        raise TypeError("dates are no numbers")
    return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))


def _is_readable(series: Any, row: int, column: Column) -> bool:
    try:
        _numbers(series.iloc[row : row + 1], column)
    except _UNREADABLE:
        return False
    return True


def _time(series: Any, column: Column) -> NDArray[np.float64]:
    """Return days since 1970, or the share of the year that has passed, by the fit's clock."""
    import pandas as pd

    if str(series.dtype).startswith("date32"):  # days of Arrow, which have no time zone
        series = series.astype("timestamp[s][pyarrow]")
    if (own := _zone(series.dtype)) is not None:
        zone = column.zone or own
        if zone != own or not isinstance(series.dtype, pd.DatetimeTZDtype):
            series = series.astype(pd.DatetimeTZDtype("us", zone))
        series = series.dt.tz_localize(None)  # this takes dates of Arrow as UTC
    # With `days=1`, pandas 2 makes a timedelta without a unit, for which NumPy 2.5 issues a
    # warning.
    day = pd.Timedelta(np.timedelta64(1, "D"))
    days = ((series - pd.Timestamp(0)) / day).to_numpy(dtype=np.float64)
    if column.kind == "trend":
        return np.asarray(days)
    within, day_of_year = days - np.floor(days), series.dt.day_of_year.to_numpy(np.float64)
    # 29 February lies where 28 February does, so that later dates lie where they do in other years.
    leap = series.dt.is_leap_year.to_numpy(np.float64, na_value=np.nan)
    day_of_year -= leap * (day_of_year >= 60)
    return np.asarray((day_of_year - 1 + within) / DAYS_OF_YEAR)


def unseen_in(part: Any, columns: Sequence[Column]) -> Counter[tuple[str, Any]]:
    """Count the rows of a pandas frame for each column and level that the fit did not see."""
    found = Counter[tuple[str, Any]]()
    for column in columns:
        if column.kind == "category":
            counts = part[column.source].value_counts()
            unseen = counts[_places_of(counts.index.astype(object), column.levels) < 0]
            found.update({(column.name, level): int(n) for level, n in unseen.items() if n})
    return found
