"""Write labels beside columns of the table, as one csv or parquet file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import is_dask_array, is_dask_collection
from daskmm.data.lazy import array_of_frame, delayed_blocks
from daskmm.data.names import cell
from daskmm.engine.frames import NAME
from daskmm.engine.labels import LABEL_CHUNK_ROWS, computed_in_turn, with_counts
from daskmm.storage.atomic import written_whole
from daskmm.storage.remote import is_remote, local_path, uploaded

Append = Callable[[Any], object]
# Name of the column with the names of the clusters.
CLUSTER_NAME = "cluster_name"
# A column of text is stored as numbers if its text can be restored from them. The numbers are
# integers if all values match this pattern. They are floats if one of these functions turns each
# number into its text again: as Python and pandas do, without ".0", without exponents, or with
# equally many decimals. Values with leading zeros, a plus sign, or more digits than the type holds
# are names, and so are "-0", or "1.1" beside "1.10".
_WHOLE = r"^(0|-?[1-9]\d{0,17})$"
_FLOATS: tuple[Callable[[float], str], ...] = (
    repr,
    lambda number: repr(number).removesuffix(".0"),
    lambda number: np.format_float_positional(number, trim="-"),
    *(f"{{:.{n}f}}".format for n in range(2, 10)),
)
# Floats represent all integers below this bound.
_LARGEST_WHOLE = 2.0**53


def write_labelled(
    labels: Any,
    kept: Any,
    path: str | Path,
    replace: bool = False,
    names: Sequence[str] | None = None,
    as_text: bool = False,
    index: Any = False,
) -> tuple[NDArray[np.int64], int]:
    """Write columns of a table and the cluster of each row, in the order of the rows.

    Labels, (n_rows,), are −1 for outliers and rows without any value. `kept` is a dask DataFrame
    with the columns that are written beside them, or None. Lazy labels are then a series aligned
    with it; others are in the order of its rows. `names` of the clusters are written beside the
    labels as "cluster_name".

    The path or URL ends in ``.csv`` or ``.parquet``. It gets all rows or, after an error, stays as
    it was. In csv, text that a spreadsheet would compute gets an apostrophe before it, and control
    characters become escapes. A few partitions are in memory at a time. `as_text` says that columns
    were read as the text of csv files: those with numbers alone become numbers in parquet.
    `index` is the one by which pandas joins tables: True for that of `kept`, or a RangeIndex. It is
    the first column of a csv file.

    Return the number of rows with each label, (largest label + 1,), and of those with the label −1.

    It raises FileExistsError if the path exists and is not to be replaced; nothing is computed
    then. It raises ValueError for names that `refuse_taken` refuses, or if there are more or fewer
    labels than rows.
    """
    suffix = Path(path).suffix.lower()
    refuse_taken(kept, path, names is not None, index)
    counts, n_unlabelled, n_rows = np.zeros(0, dtype=np.int64), 0, 0
    if is_remote(path):
        whole = uploaded(str(path), "", (lambda name: not name) if replace else None)
    else:
        whole = written_whole(local_path(path), replace)
    with whole as fresh:
        with _WRITERS[suffix](fresh, index is not False) as append:
            for part in _parts(labels, kept):
                counts = with_counts(counts, part[NAME].to_numpy())
                n_unlabelled += int((part[NAME] < 0).sum())
                if not isinstance(index, bool):
                    part = part.set_axis(index[n_rows : n_rows + len(part)])
                n_rows += len(part)
                append(part if names is None else _named(part, names))
        if as_text and suffix == ".parquet":
            _store_numbers(fresh)
    return counts, n_unlabelled


def refuse_taken(kept: Any, path: str | Path, named: bool, index: Any = False) -> None:
    """Raise ValueError if a column to be written beside labels has their name, or that of names.

    The arguments are those of `write_labelled`; `named` says that clusters' names are written.
    """
    own = {NAME, CLUSTER_NAME} if named else {NAME}
    columns = set() if kept is None else {*kept.columns}
    if Path(path).suffix.lower() == ".csv" and index is not False:
        columns.update((kept._meta.index if index is True else index).names)
    if taken := sorted(own & columns):
        raise ValueError(f"The column {taken[0]!r} has the name of the labels, and cannot be kept.")


def is_labelled(path: str | Path) -> bool:
    """Return whether a path has the suffix of a file with columns."""
    return Path(path).suffix.lower() in _WRITERS


def _named(part: Any, names: Sequence[str]) -> Any:
    """Add the name of each row's cluster; it is missing for rows in no cluster."""
    import pandas as pd

    return part.assign(**{CLUSTER_NAME: pd.Categorical.from_codes(part[NAME], list(names))})


def _parts(labels: Any, kept: Any) -> Iterator[Any]:
    """Yield pandas frames of consecutive rows; a few partitions are computed together."""
    import pandas as pd

    lazy = is_dask_collection(labels)
    if kept is not None and lazy:
        yield from computed_in_turn(kept.assign(**{NAME: labels}).to_delayed())
    elif kept is not None:
        start = 0
        for part in computed_in_turn(kept.to_delayed()):
            own = labels[start : start + len(part)]
            start += len(part)
            if len(own) == len(part):
                yield part.assign(**{NAME: own})
        if start != labels.shape[0]:
            raise ValueError(f"There are {labels.shape[0]:,} labels for {start:,} rows.")
    elif lazy:
        array = labels if is_dask_array(labels) else array_of_frame(labels)
        for block in computed_in_turn(delayed_blocks(array).ravel()):
            yield pd.DataFrame({NAME: block})
    else:
        for start in range(0, max(labels.shape[0], 1), LABEL_CHUNK_ROWS):
            yield pd.DataFrame({NAME: labels[start : start + LABEL_CHUNK_ROWS]})


def _whole_numbers(part: Any) -> list[Any]:
    """Return the columns of floats that have integers alone, as integers of csv files are read."""
    found = []
    for name in part.select_dtypes("float").columns:
        if (part.columns == name).sum() > 1:  # pandas cannot select one of several
            continue
        values = part[name].to_numpy(dtype=np.float64, na_value=np.nan)
        values = values[~np.isnan(values)]
        if (values == np.trunc(values)).all() and (np.abs(values) < _LARGEST_WHOLE).all():
            found.append(name)
    return found


def _may_be_text(dtype: Any) -> bool:
    from pandas.api import types

    return isinstance(dtype, types.CategoricalDtype) or types.is_string_dtype(dtype)


@contextmanager
def _csv_writer(path: Path, indexed: bool) -> Iterator[Append]:
    with path.open("w", encoding="utf-8", newline="") as file:

        def append(part: Any) -> None:
            if indexed:
                part = part.reset_index(allow_duplicates=True)
            header = [cell(name) for name in part.columns] if file.tell() == 0 else False
            text = [name for name, dtype in part.dtypes.items() if _may_be_text(dtype)]
            part = part.assign(**{name: part[name].map(cell, na_action="ignore") for name in text})
            part = part.astype(dict.fromkeys(_whole_numbers(part), "Int64"))
            part.to_csv(file, index=False, header=header, lineterminator="\n")

        yield append


@contextmanager
def _parquet_writer(path: Path, indexed: bool) -> Iterator[Append]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writers: list[Any] = []
    empty: list[Any] = []

    def append(part: Any) -> None:
        if len(part) or writers:
            write(part)
        else:
            empty.append(part)  # only rows show how text is stored

    def write(part: Any) -> None:
        schema = writers[0].schema if writers else None
        table = pa.Table.from_pandas(part, schema=schema, preserve_index=indexed)
        if not indexed:
            table = table.replace_schema_metadata(None)  # pandas' metadata are of these rows
        if not writers:
            writers.append(pq.ParquetWriter(path, table.schema))
        writers[0].write_table(table)

    try:
        yield append
        if not writers:
            write(empty[0])
    finally:
        for writer in writers:
            writer.close()


def _store_numbers(path: Path) -> None:
    """Write a parquet file anew, with columns of text that hold numbers alone as numbers."""
    import pyarrow.parquet as pq

    with written_whole(path, replace=True) as fresh, pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        for place, field in enumerate(schema):
            if str(field.type).endswith("string"):
                kind = _kind_of_numbers(file, field.name) or field.type
                schema = schema.set(place, field.with_type(kind))
        with pq.ParquetWriter(fresh, schema) as writer:
            for group in range(file.num_row_groups):
                writer.write_table(file.read_row_group(group).cast(schema))


def _kind_of_numbers(file: Any, name: str) -> Any:
    """Return the type of the numbers that a column of text holds; None if it holds other text."""
    from pyarrow import ArrowInvalid, compute, float64, int64

    def texts() -> Iterator[Any]:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=[name]).column(0).unique().drop_null()

    def whole(text: Any) -> bool:
        return bool(compute.all(compute.match_substring_regex(text, _WHOLE), min_count=0).as_py())

    def written(as_text: Callable[[float], str], text: Any) -> bool:
        pairs = zip(text.cast(float64()).to_pylist(), text.to_pylist(), strict=True)
        return all(math.isfinite(value) and as_text(value + 0.0) == said for value, said in pairs)

    if not any(map(len, texts())):
        return None
    if all(map(whole, texts())):
        return int64()
    try:
        floats = any(all(map(partial(written, form), texts())) for form in _FLOATS)
    except ArrowInvalid:  # other text
        return None
    return float64() if floats else None


_WRITERS = {".csv": _csv_writer, ".parquet": _parquet_writer}
