"""Tables as estimators read them: rows that are no numbers, columns by name."""

import asyncio
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr

import daskmm
from daskmm import KMeans
from daskmm.data.errors import warn_user
from daskmm.data.input import by_name, read_table, read_weighted


@pytest.mark.parametrize("value", ["seven", [1, 2]])
def test_the_first_row_that_is_no_number_is_named(value):
    rows = np.ones((5, 2), dtype=object)
    rows[3, 1] = value
    with pytest.raises((TypeError, ValueError), match="row 3 cannot be read as numbers"):
        read_table(KMeans(), rows, True)


def test_columns_are_taken_by_the_names_that_are_known():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [5.0, 6.0]})
    model = KMeans(2, random_state=0).fit(frame[["c", "a"]])
    assert list(by_name(model, frame).columns) == ["c", "a"]
    assert by_name(model, frame[["c", "a"]]).equals(frame[["c", "a"]])
    rows = frame.to_numpy()
    assert by_name(model, rows) is rows
    assert by_name(KMeans(2), frame) is frame


def test_a_frame_and_its_weights_are_read_together():
    frame = pd.DataFrame({"a": np.arange(6.0), "b": np.ones(6), "w": np.arange(1.0, 7.0)})
    lazy = dd.from_pandas(frame, npartitions=2)
    estimator = KMeans()
    rows, weights = read_weighted(estimator, lazy[["a", "b"]], lazy["w"], True)
    np.testing.assert_array_equal(rows.compute(), frame[["a", "b"]])
    np.testing.assert_array_equal(weights.compute(), frame["w"])
    assert estimator.feature_names_in_.tolist() == ["a", "b"]


def test_weights_with_the_index_of_the_rows_in_another_order_are_refused():
    frame = pd.DataFrame({"a": np.arange(6.0)}, index=list("uvwxyz"))
    weights = pd.Series(np.arange(1.0, 7.0), index=frame.index)
    with pytest.raises(ValueError, match="index of X in another order"):
        read_weighted(KMeans(), frame, weights[::-1], True)
    for matched in (weights, weights.reset_index(drop=True), weights[::-1].to_numpy()):
        assert read_weighted(KMeans(), frame, matched, True)[1] is matched
    pairs = pd.MultiIndex.from_product([[2020, 2021], list("abc")])
    spans = pd.timedelta_range("1s", periods=6)
    numbers = pd.Index(range(6), dtype="int64[pyarrow]")
    for index in (pairs, spans, numbers):  # weights are numbered from 0, or have dates
        for other in (pd.RangeIndex(6), pd.date_range("2020-01-01", periods=6)):
            apart = weights.set_axis(other)
            assert read_weighted(KMeans(), frame.set_axis(index), apart, True)[1] is apart
        with pytest.raises(ValueError, match="index of X in another order"):
            read_weighted(KMeans(), frame.set_axis(index), weights.set_axis(index)[::-1], True)
    twice = frame.set_axis([0] * 6)
    assert read_weighted(KMeans(), twice, weights, True)[1] is weights


def test_tables_that_are_no_tables_of_numbers_are_refused_with_what_to_do():
    records = np.zeros(3, dtype=[("a", float), ("b", float)])
    with pytest.raises(ValueError, match=r"structured array.*pandas\.DataFrame\(X\)"):
        read_table(KMeans(), records, True)
    with pytest.raises(TypeError, match="X is a zarr Group"):
        read_table(KMeans(), zarr.open_group({}, mode="w"), True)


def test_warnings_point_at_files_whose_folder_begins_with_the_name_of_the_library():
    path = str(Path(daskmm.__file__).parent) + "_jobs/fit.py"
    code = compile("warn_user('look', UserWarning)", path, "exec")
    with pytest.warns(UserWarning, match="look") as found:
        exec(code, {"warn_user": warn_user})
    assert found[0].filename == path


def test_a_fit_on_an_asynchronous_client_is_refused_with_what_to_do():
    distributed = pytest.importorskip("distributed")
    rows = np.random.default_rng(0).normal(size=(60, 2))
    table = da.from_array(rows, chunks=(20, 2))
    frame = pd.DataFrame(rows, columns=["a", "b"])

    async def fits():
        local = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
        async with (
            distributed.LocalCluster(**local, asynchronous=True, dashboard_address=":0") as cluster,
            distributed.Client(cluster, asynchronous=True),
        ):
            said = r"Client is asynchronous.*await asyncio\.to_thread\(model\.fit, X\)"
            for X, distortion in ((rows, "sqeuclidean"), (table, "sqeuclidean"), (frame, "mixed")):
                with pytest.raises(RuntimeError, match=said):
                    KMeans(2, distortion=distortion).fit(X)
            model = KMeans(2, n_init=1, random_state=0)
            return await asyncio.to_thread(model.fit, table)

    with dask.config.set(scheduler=None):
        assert len(asyncio.run(fits()).cluster_centers_) == 2
