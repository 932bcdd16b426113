"""Tables of every kind, most of which are read through the Arrow stream that they offer."""

import datetime
import decimal

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from daskmm import KMeans, PowerKMeans, metrics
from daskmm.data import arrow

RNG = np.random.default_rng(0)
TRUTH = RNG.integers(3, size=120)
ROWS = RNG.normal(size=(120, 3)) + 6 * TRUTH[:, None]
NAMES = ["a", "b", "c"]
FRAME = pd.DataFrame(ROWS, columns=NAMES)
TABLE = pa.Table.from_pandas(FRAME)
DAYS = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(120), "D")
KINDS = pa.table(
    {
        "number": ROWS[:, 0],
        "whole": pa.array([None, *range(119)], pa.int32()),
        "price": pa.array([decimal.Decimal("1.50") + 20 * int(i) for i in TRUTH]),
        "city": pa.array(["Oslo", "Rome", None] * 40).dictionary_encode(),
        "name": pa.array(["x", "y", "z", None] * 30),
        "flag": pa.array([True, None, False] * 40),
        "sure": pa.array([True, False] * 60),
        "day": pa.array(DAYS.date),
        "when": pa.array(DAYS.tz_localize("Europe/Oslo")),
    }
)


def of_polars(rows=TABLE):
    return pytest.importorskip("polars").from_arrow(rows)


def of_duckdb(rows=TABLE):
    connection = pytest.importorskip("duckdb").connect()
    # DuckDB keeps instants, and shows them by the clock of the connection.
    connection.sql("SET TimeZone = 'Europe/Oslo'")
    connection.register("rows", rows)
    return connection.sql("SELECT * FROM rows")


def of_ibis(rows=TABLE):
    return pytest.importorskip("ibis").memtable(rows)


def of_nanoarrow(kind, rows=TABLE):
    return getattr(pytest.importorskip("nanoarrow"), kind)(rows.combine_chunks().to_batches()[0])


def of_modin(rows=TABLE):
    frame = rows.to_pandas(date_as_object=False, types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
    return pytest.importorskip("modin.pandas").DataFrame(frame)


EVERY = {
    "list": ROWS.tolist,
    "pandas": lambda: FRAME,
    "pandas, columns of two levels": lambda: FRAME.set_axis(
        pd.MultiIndex.from_tuples([("x", "a"), ("x", "b"), ("y", "c")]), axis=1
    ),
    "dask array": lambda: da.from_array(ROWS, chunks=(50, -1)),
    "dask frame": lambda: dd.from_pandas(FRAME, npartitions=3),
    "modin": of_modin,
    "polars": of_polars,
    "polars, lazy": lambda: of_polars().lazy(),
    "DuckDB": of_duckdb,
    "ibis": of_ibis,
    "pyarrow Table": lambda: TABLE,
    "pyarrow RecordBatch": lambda: TABLE.to_batches()[0],
    "pyarrow Dataset": lambda: pyarrow.dataset.dataset(TABLE),
    "nanoarrow": lambda: of_nanoarrow("Array"),
}
ONCE = {
    "pyarrow RecordBatchReader": lambda: TABLE.to_reader(max_chunksize=50),
    "pyarrow Scanner": lambda: pyarrow.dataset.dataset(TABLE).scanner(),
    "nanoarrow ArrayStream": lambda: of_nanoarrow("ArrayStream"),
}


def model(**options):
    return KMeans(3, standardize=False, random_state=0, **options)


EXPECTED = model().fit(ROWS)


@pytest.mark.parametrize("kind", EVERY)
def test_each_kind_of_table_gives_the_labels_of_numpy(kind):
    X = EVERY[kind]()
    found = model().fit(X)
    np.testing.assert_array_equal(np.asarray(found.labels_), EXPECTED.labels_)
    np.testing.assert_array_equal(np.asarray(found.predict(X)), EXPECTED.labels_)
    if kind not in ("list", "dask array"):
        names = ["x_a", "x_b", "y_c"] if "levels" in kind else NAMES
        assert list(found.feature_names_in_) == names
    expected = metrics.calinski_harabasz_score(ROWS, TRUTH)
    assert metrics.calinski_harabasz_score(X, TRUTH) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ONCE)
def test_streams_are_read_once_and_refused_afterwards(kind):
    X = ONCE[kind]()
    found = model().fit(X)
    np.testing.assert_array_equal(found.labels_, EXPECTED.labels_)
    if kind != "pyarrow Scanner":
        with pytest.raises(ValueError, match=r"read once.*table = pyarrow\.table"):
            found.predict(X)
    np.testing.assert_array_equal(found.predict(ONCE[kind]()), EXPECTED.labels_)


@pytest.mark.parametrize("kind", ["polars", "polars, lazy", "DuckDB", "pyarrow Table"])
def test_columns_are_found_among_others(kind):
    nested = pa.array([[1]] * 120)
    more = TABLE.select(["c", "a"]).append_column("list", nested).append_column("b", TABLE["b"])
    X = {
        "polars": of_polars,
        "polars, lazy": lambda rows: of_polars(rows).lazy(),
        "DuckDB": of_duckdb,
        "pyarrow Table": lambda rows: rows,
    }[kind](more)
    np.testing.assert_array_equal(model().fit(TABLE).predict(X), EXPECTED.labels_)
    with pytest.raises(ValueError, match=r"nested values: 'list' \((large_)?list"):
        model().fit(X)


def test_numbers_of_every_type_become_floats():
    types = ["int8", "uint16", "float", "halffloat", "int64", "uint64", "decimal", "null"]
    for name in types:
        kind = pa.decimal128(30, 2) if name == "decimal" else pa.type_for_alias(name)
        values = pa.nulls(3) if name == "null" else pa.array([1, 2, None]).cast(kind)
        frame = arrow.frame_of(pa.table({"a": values}))
        narrow = name in ("int8", "uint16", "float", "halffloat", "null")
        assert frame["a"].dtype == (np.float32 if narrow else np.float64), name
        expected = [np.nan] * 3 if name == "null" else [1.0, 2.0, np.nan]
        np.testing.assert_array_equal(frame["a"], expected)


@pytest.mark.parametrize("kind", [lambda rows: rows, of_polars, of_duckdb, of_ibis, of_modin])
def test_columns_of_several_kinds_give_the_labels_of_a_pandas_frame(kind):
    settings = {
        "distortion": "mixed",
        "missing": "partial",
        "n_init": 1,
        "random_state": 0,
        "metric_params": {"dates": ["day:trend", "when:season"]},
    }
    pandas = KINDS.to_pandas(date_as_object=False).astype({"flag": "boolean", "price": float})
    expected = PowerKMeans(3, **settings).fit(pandas)
    found = PowerKMeans(3, **settings).fit(kind(KINDS))
    assert found.columns_ == expected.columns_
    assert {column.name: column.kind for column in found.columns_} == {
        "number": "number",
        "whole": "number",
        "price": "number",
        "city": "category",
        "name": "category",
        "flag": "flag",
        "sure": "flag",
        "day:trend": "trend",
        "when:season": "season",
    }
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_array_equal(found.predict(kind(KINDS)), expected.labels_)


def test_what_is_no_number_is_refused_by_name():
    for name in ("city", "name", "day", "when"):
        with pytest.raises(ValueError, match=f"not numeric: '{name}'"):
            model().fit(KINDS.select(["number", name]))
    np.testing.assert_array_equal(
        model().fit(KINDS.select(["number", "sure"])).labels_,
        model().fit(KINDS.select(["number", "sure"]).to_pandas()).labels_,
    )
    times = pa.table({"a": pa.array([datetime.time(1)] * 9)})
    with pytest.raises(ValueError, match="not numeric: 'a'"):
        model().fit(times)
    with pytest.raises(ValueError, match="contains NaN"):
        model().fit(KINDS.select(["whole"]))


def test_objects_that_are_no_table_are_refused():
    with pytest.raises(ValueError, match="Expected 2D array for X, got a ChunkedArray"):
        model().fit(TABLE["a"])
    with pytest.raises(ValueError, match="several columns named 'a'"):
        model().fit(pa.table([[1.0], [2.0]], names=["a", "a"]))
    with pytest.raises(ValueError, match="0 feature"):
        model().fit(pa.table({}))


def test_large_tables_are_spooled_to_a_file(monkeypatch):
    monkeypatch.setattr(arrow, "MEMORY_BYTES", 1000)
    frame = arrow.frame_of(TABLE.to_reader(max_chunksize=7))
    owner = frame.to_numpy()
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert isinstance(owner, np.memmap)
    np.testing.assert_array_equal(frame, ROWS)
    np.testing.assert_array_equal(model().fit(TABLE).labels_, EXPECTED.labels_)


def test_labels_and_distances_are_of_the_kind_that_is_asked_for():
    polars = pytest.importorskip("polars")
    X = of_polars()
    asked = model().set_output(transform="polars").fit(X)
    for labels in (asked.predict(X), asked.fit_predict(X)):
        assert isinstance(labels, polars.Series)
        np.testing.assert_array_equal(labels, EXPECTED.labels_)
    assert X.with_columns(asked.predict(X)).columns == [*NAMES, "cluster"]
    asked.set_output(transform="pandas")
    for labels in (asked.predict(X), asked.fit_predict(X)):
        assert isinstance(labels, pd.Series)
