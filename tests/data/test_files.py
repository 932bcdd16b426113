"""Tables opened from disk, and labels written to it."""

import shutil
import sys

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr

from daskmm import KMeans
from daskmm.data.files import has_columns, open_data
from daskmm.engine import labels as output_module
from daskmm.engine.labels import write_labels


@pytest.fixture
def table():
    return np.random.default_rng(0).normal(size=(1000, 3))


def write_zarr(path, table, **options):
    array = zarr.create_array(path, shape=table.shape, dtype=table.dtype, **options)
    array[...] = table


def write_frame(path, table, **options):
    pd.DataFrame(table, columns=["a", "b", "c"]).to_csv(path, index=False, **options)


def test_npy_is_read_block_by_block(tmp_path, table):
    np.save(tmp_path / "x.npy", table)
    X = open_data(tmp_path / "x.npy", chunks=300)
    assert X.chunks == ((300, 300, 300, 100), (3,))
    np.testing.assert_array_equal(X.compute(), table)
    assert not isinstance(X.blocks[0].compute(), np.memmap)


def test_npy_in_fortran_order_is_opened(tmp_path, table):
    np.save(tmp_path / "x.npy", np.asfortranarray(table))
    np.testing.assert_array_equal(open_data(tmp_path / "x.npy", chunks=99).compute(), table)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_array_is_read_in_whole_chunks(tmp_path, table, zarr_format):
    write_zarr(tmp_path / "x.zarr", table, chunks=(64, 2), zarr_format=zarr_format)
    X = open_data(tmp_path / "x.zarr", chunks=100)
    assert X.chunks[0][0] == 128
    assert X.numblocks[1] == 1
    np.testing.assert_array_equal(X.compute(), table)


def test_zarr_shards_are_the_unit(tmp_path, table):
    write_zarr(tmp_path / "x.zarr", table, chunks=(50, 3), shards=(200, 3))
    assert open_data(tmp_path / "x.zarr", chunks=1).chunks[0][0] == 200


def test_blocks_are_of_moderate_size(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((300_000, 10)))
    X = open_data(tmp_path / "x.npy")
    assert max(X.chunks[0]) * 80 == 16_000_000
    assert open_data(tmp_path / "x.npy", chunks=10**9).chunks == ((300_000,), (10,))


def test_the_only_table_of_a_zarr_group_is_opened(tmp_path, table):
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_array("label", shape=(5,), dtype="i4")
    write_zarr(tmp_path / "g.zarr" / "x", table)
    np.testing.assert_array_equal(open_data(tmp_path / "g.zarr").compute(), table)
    group.create_group("deep").create_array("z", data=2 * table)
    write_zarr(tmp_path / "g.zarr" / "y", 3 * table)
    with pytest.raises(ValueError, match=r"several two-dimensional arrays: x, y.*::x"):
        open_data(tmp_path / "g.zarr")
    np.testing.assert_array_equal(open_data(f"{tmp_path}/g.zarr::y").compute(), 3 * table)
    deep = open_data(tmp_path / "g.zarr", component="deep/z")
    np.testing.assert_array_equal(deep.compute(), 2 * table)
    with pytest.raises(ValueError, match=r"no array named 'w'; it has label, x, y"):
        open_data(f"{tmp_path}/g.zarr::w")


def test_the_table_of_an_npz_is_opened(tmp_path, table):
    np.savez(tmp_path / "one.npz", table=table, labels=np.arange(3))
    np.testing.assert_array_equal(open_data(tmp_path / "one.npz").compute(), table)
    np.savez_compressed(tmp_path / "named.npz", X=table, other=2 * table)
    np.testing.assert_array_equal(open_data(tmp_path / "named.npz").compute(), table)
    other = open_data(tmp_path / "named.npz", component="other")
    np.testing.assert_array_equal(other.compute(), 2 * table)
    np.savez(tmp_path / "two.npz", A=table, B=table)
    with pytest.raises(ValueError, match=r"several .* A, B"):
        open_data(tmp_path / "two.npz")


def test_csv_files_and_patterns_are_opened(tmp_path, table):
    write_frame(tmp_path / "part-0.csv", table[:400])
    write_frame(tmp_path / "part-1.csv", table[400:])
    X = open_data(tmp_path / "part-0.csv")
    assert list(X.columns) == ["a", "b", "c"]
    np.testing.assert_allclose(X.compute().to_numpy(), table[:400])
    X = open_data(f"{tmp_path}/part-*.csv", columns=["c", "a"])
    np.testing.assert_allclose(X.compute().to_numpy(), table[:, [2, 0]])
    labels = KMeans(3, random_state=0).fit(open_data(f"{tmp_path}/part-*.csv")).labels_
    assert len(labels) == 1000


def test_relative_patterns_of_csv_files_are_opened(tmp_path, table, monkeypatch):
    write_frame(tmp_path / "part-0.csv", table)
    monkeypatch.chdir(tmp_path)
    assert len(open_data("part-*.csv")) == 1000
    with pytest.raises(FileNotFoundError, match="No file matches"):
        open_data("other-*.csv")


def test_csv_without_header_loses_no_row(tmp_path, table):
    write_frame(tmp_path / "x.csv", table, header=False)
    X = open_data(tmp_path / "x.csv")
    np.testing.assert_allclose(X.compute().to_numpy(), table)
    assert not hasattr(KMeans(2, random_state=0).fit(X), "feature_names_in_")


def test_csv_integers_may_become_fractions(tmp_path):
    rows = ["a,b"] + ["1,2"] * 5 + ["1.5,"]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    X = open_data(tmp_path / "x.csv")
    assert set(X.dtypes) == {np.dtype(float)}
    with pytest.raises(ValueError, match=r"NaN: block 0, row 5"):
        KMeans(2).fit(X)


def test_text_columns_of_csv_are_refused_unless_left_out(tmp_path):
    frame = pd.DataFrame({"age": [1.0, 2.0, 4.0], "city": ["x", "y", "z"]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(ValueError, match=r"x\.csv has columns that are not numeric: 'city'"):
        open_data(tmp_path / "x.csv")
    assert list(open_data(tmp_path / "x.csv", columns=["age"]).columns) == ["age"]
    with pytest.raises(ValueError, match=r"no column 'size'; it has 'age', 'city'"):
        open_data(tmp_path / "x.csv", columns=["size"])


def test_csv_with_the_index_that_pandas_writes_is_refused(tmp_path, table):
    pd.DataFrame(table, columns=["a", "b", "c"]).to_csv(tmp_path / "x.csv")
    with pytest.raises(ValueError, match="index=False"):
        open_data(tmp_path / "x.csv")


def test_an_empty_csv_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("")
    with pytest.raises(ValueError, match=r"x\.csv cannot be read as csv"):
        open_data(tmp_path / "x.csv")


# dask calls pandas in a way that pandas 3.1 deprecates.
@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_parquet_files_and_folders_are_opened(tmp_path, table):
    frame = pd.DataFrame(table.astype("f4"), columns=["a", "b", "c"])
    (tmp_path / "folder").mkdir()
    frame.to_parquet(tmp_path / "folder" / "part-0.parquet")
    frame.to_parquet(tmp_path / "folder" / "part-1.parquet")
    one = open_data(tmp_path / "folder" / "part-0.parquet")
    assert set(one.dtypes) == {np.dtype("f4")}
    np.testing.assert_array_equal(one.compute().to_numpy(), table.astype("f4"))
    assert len(open_data(tmp_path / "folder", columns=["b"])) == 2000
    assert len(open_data(f"{tmp_path}/folder/*.parquet")) == 2000
    (tmp_path / "bad.parquet").write_text("not parquet")
    with pytest.raises(ValueError, match=r"bad\.parquet cannot be read as parquet"):
        open_data(tmp_path / "bad.parquet")


def test_missing_extra_is_named(tmp_path, table, monkeypatch):
    write_frame(tmp_path / "x.csv", table)
    monkeypatch.setitem(sys.modules, "dask.dataframe", None)
    monkeypatch.delattr(dask, "dataframe", raising=False)
    with pytest.raises(ImportError, match=r"daskmm\[dataframe\]"):
        open_data(tmp_path / "x.csv")


@pytest.mark.parametrize("name", ["x.npy", "x.zarr", "x.csv", "no/x.parquet", "x.zarr::a"])
def test_paths_that_do_not_exist_are_refused(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_data(tmp_path / name)


def test_unknown_formats_are_refused_with_a_list_of_formats(tmp_path):
    (tmp_path / "x.doc").write_text("1 2 3")
    with pytest.raises(ValueError, match=r"unknown format. Give .*parquet"):
        open_data(tmp_path / "x.doc")
    with pytest.raises(ValueError, match="unknown format"):
        open_data(tmp_path)


@pytest.mark.parametrize("shape", [(-300, 2), (3, -2), (2**70, 2), (2**40, 2), (True, 2)])
def test_npy_with_a_shape_that_no_array_has_is_refused_with_its_path(tmp_path, shape):
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(48))
    with pytest.raises(ValueError, match=r"x\.npy cannot be read as npy"):
        open_data(path)


def test_a_zarr_store_that_cannot_be_read_is_named(tmp_path, table):
    (tmp_path / "empty.zarr").mkdir()
    write_zarr(tmp_path / "broken.zarr", table)
    (tmp_path / "broken.zarr" / "zarr.json").write_text('{"zarr_format": 3')
    for name in ("empty", "broken"):
        with pytest.raises(ValueError, match=rf"{name}\.zarr cannot be read as zarr"):
            open_data(tmp_path / f"{name}.zarr")


def test_damaged_chunk_is_named(tmp_path, table):
    options = {"serializer": zarr.codecs.BytesCodec(), "compressors": zarr.codecs.Crc32cCodec()}
    write_zarr(tmp_path / "x.zarr", table, chunks=(500, 3), **options)
    chunk = tmp_path / "x.zarr" / "c" / "1" / "0"
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(data)
    X = open_data(tmp_path / "x.zarr", chunks=500)
    with pytest.raises(ValueError, match=r"x\.zarr: rows 500 to 1000 cannot be read"):
        KMeans(2).fit(X)


def test_damaged_files_are_named(tmp_path):
    for name in ("x.npy", "x.npz"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ValueError, match="cannot be read as"):
            open_data(tmp_path / name)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(5), r"1 dimension\(s\).*reshape"),
        (np.zeros((2, 2, 2)), r"3 dimension\(s\)"),
        (np.array([["a", "b"]]), "not numeric"),
        (np.zeros((2, 2), dtype=complex), "not numeric"),
        (np.array([[1, None]], dtype=object), "x.npy"),
    ],
)
def test_arrays_that_are_no_table_are_refused(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ValueError, match=message):
        open_data(tmp_path / "x.npy")


def test_arguments_that_do_not_fit_are_refused(tmp_path, table):
    np.save(tmp_path / "x.npy", table)
    write_frame(tmp_path / "x.csv", table)
    with pytest.raises(ValueError, match="no named columns"):
        open_data(tmp_path / "x.npy", columns=["a"])
    with pytest.raises(ValueError, match="chunks"):
        open_data(tmp_path / "x.npy", chunks=0)
    with pytest.raises(ValueError, match="chunks"):
        open_data(tmp_path / "x.csv", chunks=10)


def test_a_table_without_rows_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((0, 3)))
    with pytest.raises(ValueError, match=r"0 sample"):
        KMeans(2).fit(open_data(tmp_path / "x.npy"))


@pytest.mark.parametrize("chunk", [7, 100, 1000, 5000])
def test_labels_are_written_in_whole_chunks(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(output_module, "LABEL_CHUNK_ROWS", chunk)
    monkeypatch.setattr(output_module, "BLOCKS_TOGETHER", 3)
    labels = np.random.default_rng(0).integers(9, size=1000).astype("i4")
    lazy = da.from_array(labels, chunks=((300, 1, 0, 299, 400),))
    sizes, _ = write_labels(lazy, tmp_path / "labels.zarr")
    np.testing.assert_array_equal(sizes, np.bincount(labels))
    stored = zarr.open_array(tmp_path / "labels.zarr", mode="r")
    np.testing.assert_array_equal(stored[...], labels)
    assert (stored.chunks, stored.dtype, stored.fill_value) == ((min(chunk, 1000),), "i4", -1)
    assert stored.metadata.zarr_format == 3
    assert "Crc32c" in str(stored.metadata.codecs)


def test_labels_of_unknown_chunks_and_in_memory_are_written(tmp_path):
    labels = np.arange(10, dtype="i4")
    lazy = da.from_array(labels, chunks=4)
    write_labels(lazy[lazy < 7], tmp_path / "lazy.zarr")
    write_labels(labels, tmp_path / "memory.zarr")
    write_labels(labels[:0], tmp_path / "none.zarr")
    assert zarr.open_array(tmp_path / "lazy.zarr")[...].tolist() == list(range(7))
    assert zarr.open_array(tmp_path / "memory.zarr")[...].tolist() == list(range(10))
    assert zarr.open_array(tmp_path / "none.zarr").shape == (0,)


def test_labels_refuse_an_existing_path_before_computing(tmp_path):
    def fail(block):
        raise AssertionError("computed")

    lazy = da.zeros(5, dtype="i4").map_blocks(fail, meta=np.empty(0, "i4"))
    (tmp_path / "labels.zarr").mkdir()
    with pytest.raises(FileExistsError, match=r"labels\.zarr exists"):
        write_labels(lazy, tmp_path / "labels.zarr")
    shutil.rmtree(tmp_path / "labels.zarr")
    with pytest.raises(AssertionError, match="computed"):
        write_labels(lazy, tmp_path / "labels.zarr")
    assert not list(tmp_path.iterdir())


def test_paths_that_are_easily_misread_are_read_right(tmp_path, table, monkeypatch):
    write_frame(tmp_path / "a::b.csv", table)
    np.testing.assert_allclose(open_data(tmp_path / "a::b.csv").compute().to_numpy(), table)
    assert has_columns(f"{tmp_path}/a::b.csv")
    np.save(tmp_path / "x.npy", table)
    np.testing.assert_array_equal(open_data(f"file://{tmp_path}/x.npy").compute(), table)
    write_frame(tmp_path / "x.csv", table)
    np.testing.assert_allclose(open_data(f"file://{tmp_path}/x.csv").compute().to_numpy(), table)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="path of the data is empty"):
        open_data("")


def test_a_table_in_nested_groups_is_found(tmp_path, table):
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_group("deep").create_group("deeper").create_array("x", data=table)
    np.testing.assert_array_equal(open_data(tmp_path / "g.zarr").compute(), table)
    group.create_group("other").create_array("y", data=table)
    with pytest.raises(ValueError, match=r"several two-dimensional arrays: deep/deeper/x, other/y"):
        open_data(tmp_path / "g.zarr")
    found = open_data(f"{tmp_path}/g.zarr::other/y")
    np.testing.assert_array_equal(found.compute(), table)
