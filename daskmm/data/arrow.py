"""Read tables that offer an Arrow stream: polars, pyarrow, DuckDB, ibis and others.

A stream is read once, batch by batch. Columns of numbers become one array of floats, which is kept
in a temporary file if it is large; a table with other columns becomes a pandas frame in memory.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import dask
from daskmm.data.names import listed

# Arrays of more bytes are written to a temporary file.
MEMORY_BYTES = 256 << 20
# Names of types whose rows can be read only once.
_READ_ONCE = ("RecordBatchReader", "ArrayStream", "Scanner")
_REMEDY = (
    "A stream can be read once, and some calls read X again: read it into a table first, "
    "table = pyarrow.table(X)."
)


# How to get batches from types without an Arrow stream. A method identifies each type: polars'
# LazyFrame, pyarrow's Dataset (which would read four files ahead by itself) and pyarrow's Scanner.
_STREAMS: dict[str, Any] = {
    "collect_batches": lambda X: itertools.chain([X.head(0).collect()], X.collect_batches()),
    "scanner": lambda X: [X.scanner(fragment_readahead=1).to_reader()],
    "to_reader": lambda X: [X.to_reader()],
}


def is_arrow(X: Any) -> bool:
    """Return whether a table is read through an Arrow stream.

    Objects of pandas and xarray also offer one, but are not read through it.
    """
    pandas, kind = sys.modules.get("pandas"), type(X)
    if pandas is not None and isinstance(X, pandas.DataFrame | pandas.Series):
        return False
    if kind.__module__.partition(".")[0] == "xarray":
        return False
    return any(hasattr(kind, name) for name in ("__arrow_c_stream__", *_STREAMS))


def frame_of(X: Any, names: Sequence[str] | None = None) -> Any:
    """Return a table as a pandas frame.

    The table has an Arrow stream, or is a polars LazyFrame, a pyarrow Dataset or a Scanner. `names`
    are the columns to return. All are returned by default, and if the table has none of these.

    It raises ValueError if the table has no columns, repeated names or nested values, or if a
    stream was read before, and ImportError without pandas or pyarrow.
    """
    try:
        import pandas as pd
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(
            f"A {type(X).__name__} is read by pyarrow and pandas: pip install pyarrow pandas."
        ) from error

    schema, batches = _opened(X)
    wanted = schema.names if names is None else names
    known = [name for name in wanted if name in schema.names] or schema.names
    _check(schema, known)
    chosen = pa.schema([schema.field(name) for name in known])
    some = (batch.select(known) for batch in batches)
    if all(_is_number(field.type) for field in chosen):
        frame = pd.DataFrame(_rows(some, chosen), columns=known, copy=False)
    else:
        frame = _mixed(pa.Table.from_batches(some, chosen))
    if not len(frame) and type(X).__name__ in _READ_ONCE:
        raise ValueError(f"X is a {type(X).__name__} without rows. {_REMEDY}")
    return frame


def _opened(X: Any) -> tuple[Any, Iterator[Any]]:
    """Return the schema of a table and an iterator of its batches."""
    import pyarrow as pa

    kind = type(X)
    makers = [make for name, make in _STREAMS.items() if hasattr(kind, name)]
    parts = iter([X] if hasattr(kind, "__arrow_c_stream__") else makers[0](X))
    try:
        first = pa.RecordBatchReader.from_stream(next(parts))
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"Expected 2D array for X, got a {type(X).__name__} instead, which has no columns: "
            f"{error}"
        ) from error
    except RuntimeError as error:
        raise ValueError(f"X cannot be read: {error}. {_REMEDY}") from error
    return first.schema, _batches(first, parts)


def _batches(first: Any, others: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    yield from first
    for part in others:
        yield from pa.RecordBatchReader.from_stream(part)


def _check(schema: Any, names: Sequence[str]) -> None:
    """Raise ValueError for repeated and nested columns among those of these names."""
    import pyarrow as pa

    repeated = sorted({name for name in names if schema.names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"X has several columns named {listed(list(map(repr, repeated)))}. Rename them."
        )
    nested = [
        f"{name!r} ({schema.field(name).type})"
        for name in names
        if pa.types.is_nested(schema.field(name).type)
    ]
    if nested:
        raise ValueError(
            f"X has columns with nested values: {listed(nested)}. Make a column of each value, or "
            "leave them out."
        )


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)


def _is_narrow(kind: Any) -> bool:
    """Return whether values of a type of numbers are computed in float32, as in `float_dtype`."""
    from pyarrow import types

    return types.is_null(kind) or kind.bit_width <= (32 if types.is_floating(kind) else 16)


def _rows(batches: Iterable[Any], schema: Any) -> NDArray:
    """Return columns of numbers as an array, with NaN for nulls; a large one is in a file."""
    dtype = np.dtype(np.float32 if all(_is_narrow(f.type) for f in schema) else np.float64)
    blocks = (_block(batch, dtype) for batch in batches)
    kept = [np.empty((0, len(schema)), dtype=dtype)]
    n_bytes = 0
    for block in blocks:
        kept.append(block)
        n_bytes += block.nbytes
        if n_bytes > MEMORY_BYTES:
            return _spooled(itertools.chain(kept, blocks), len(schema), dtype)
    return np.concatenate(kept)


def _block(batch: Any, dtype: np.dtype) -> NDArray:
    block = np.empty((batch.num_rows, batch.num_columns), dtype=dtype)
    for column, values in enumerate(batch.columns):
        block[:, column] = _floats(values, dtype).to_numpy(zero_copy_only=False)
    return block


def _spooled(blocks: Iterable[NDArray], n_features: int, dtype: np.dtype) -> NDArray:
    """Return rows in a temporary file, which is removed with the array."""
    n_rows = 0
    with tempfile.TemporaryFile(dir=dask.config.get("temporary-directory", None)) as file:
        for block in blocks:
            file.write(block.data)
            n_rows += len(block)
        file.flush()
        return np.memmap(file, dtype, "r+", shape=(n_rows, n_features))


def _floats(values: Any, dtype: Any = np.float64) -> Any:
    import pyarrow as pa

    return values.cast(pa.from_numpy_dtype(dtype), safe=False)


def _mixed(table: Any) -> Any:
    """Return a table with columns of several kinds as a pandas frame."""
    from pyarrow import types

    for place, field in enumerate(table.schema):
        if types.is_decimal(field.type) or types.is_null(field.type):
            table = table.set_column(place, field.name, _floats(table.column(place)))
    frame = table.to_pandas(date_as_object=False, ignore_metadata=True)
    flags = [field.name for field in table.schema if types.is_boolean(field.type)]
    holes = [name for name in flags if frame[name].dtype == object]
    return frame.astype(dict.fromkeys(holes, "boolean"))
