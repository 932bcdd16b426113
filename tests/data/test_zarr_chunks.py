"""zarr stores that lack chunks, and chunks and shards that are damaged."""

import json
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

from daskmm import KMeans
from daskmm.cli.main import main
from daskmm.data import zarr_chunks
from daskmm.data.files import open_data
from daskmm.data.input import read_table

ROWS = np.random.default_rng(0).normal(5.0, 1.0, (400, 3))
FORMS = {
    "chunks": {"chunks": (50, 3)},
    "format 2": {"chunks": (50, 3), "zarr_format": 2},
    "shards": {"chunks": (25, 3), "shards": (50, 3)},
    "raw shards": {"chunks": (25, 3), "shards": (50, 3), "compressors": None},
}
KEYS = {"chunks": "c/2/0", "format 2": "2.0", "shards": "c/2/0", "raw shards": "c/2/0"}


def stored(path, form="chunks", rows=ROWS, **options):
    return zarr.create_array(path, data=rows, **FORMS[form], **options)


def opened_by_path(path):
    return open_data(path, chunks=200)


def opened_by_zarr(path):
    return zarr.open_array(path, mode="r")


def values_of(X):
    """Return the values that a fit would see."""
    with dask.config.set(scheduler="sync"):
        return read_table(KMeans(2), X, reset=True).compute()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opened", [opened_by_path, opened_by_zarr, da.from_zarr])
def test_chunks_that_are_not_in_the_store_are_counted_and_the_first_is_named(
    tmp_path, form, opened
):
    path, key = tmp_path / "x.zarr", KEYS[form]
    stored(path, form)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values_of(opened(path))
    (path / key).unlink()
    (path / key.replace("2", "6")).unlink()
    said = rf"2 of 8 (chunk|shard)s are not in the store .* as 0\.0.*{key} \(from row 100"
    with pytest.warns(UserWarning, match=rf"x\.zarr.*: {said}"):
        values_of(opened(path))


def test_zeros_that_zarr_left_out_are_read_as_such(tmp_path):
    rows = ROWS.copy()
    rows[150:200] = 0
    stored(tmp_path / "x.zarr", rows=rows)
    with pytest.warns(UserWarning, match=r"1 of 8 chunks.*this may be right"):
        X = open_data(tmp_path / "x.zarr")
    np.testing.assert_array_equal(X.compute(), rows)


def test_chunks_that_are_read_as_nan_are_refused_by_the_first_pass(tmp_path):
    stored(tmp_path / "x.zarr", fill_value=np.nan)
    (tmp_path / "x.zarr" / "c/2/0").unlink()
    with pytest.raises(ValueError, match=r"contains NaN.*row 100 of the data"):
        KMeans(2).fit(open_data(tmp_path / "x.zarr"))


@pytest.mark.parametrize("opened", [opened_by_path, opened_by_zarr, da.from_zarr])
@pytest.mark.parametrize("form", FORMS)
def test_an_empty_file_is_named_before_anything_is_read(tmp_path, form, opened):
    stored(tmp_path / "x.zarr", form)
    (tmp_path / "x.zarr" / KEYS[form]).write_bytes(b"")
    with pytest.raises(ValueError, match=rf"x\.zarr.*{KEYS[form]} is damaged: its file is empty"):
        values_of(opened(tmp_path / "x.zarr"))


@pytest.mark.parametrize("opened", [opened_by_path, opened_by_zarr])
@pytest.mark.parametrize(
    ("form", "n_bytes"), [("shards", 0), ("shards", 8), ("raw shards", 0), ("chunks", 8)]
)
def test_a_file_that_was_cut_meanwhile_is_named_when_it_is_read(tmp_path, form, n_bytes, opened):
    stored(tmp_path / "x.zarr", form)
    X, file = opened(tmp_path / "x.zarr"), tmp_path / "x.zarr" / KEYS[form]
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr_chunks, "check_chunks", lambda *_: None)
        file.write_bytes(file.read_bytes()[:n_bytes])
        with pytest.raises(ValueError, match=rf"{KEYS[form]} is damaged"):
            values_of(X)


def test_stores_elsewhere_are_listed_where_they_can_be(monkeypatch):
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, name="inner/x", shape=(400, 3), chunks=(50, 3), dtype="f8")
    array[:200] = ROWS[:200]
    with pytest.warns(UserWarning, match=r"4 of 8 chunks .* c/4/0 \(from row 200 on\)"):
        values_of(array)

    async def nothing(self, prefix):
        for name in ():
            yield name

    monkeypatch.setattr(zarr.storage.MemoryStore, "list_prefix", nothing)
    zarr_chunks.check_chunks(array, "X")
    monkeypatch.setattr(zarr.storage.MemoryStore, "list_prefix", None)
    zarr_chunks.check_chunks(array, "X")


def test_many_chunks_are_looked_for_in_evenly_spread_places(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_chunks, "_MOST_LOOKS", 3)
    stored(tmp_path / "x.zarr")
    (tmp_path / "x.zarr" / "c/7/0").unlink()
    with pytest.warns(UserWarning, match=r"1 of 3 that were looked for chunks"):
        open_data(tmp_path / "x.zarr")


@pytest.mark.filterwarnings("ignore:.*zarr v")
def test_sparse_groups_that_lack_chunks_are_warned_of(tmp_path):
    anndata = pytest.importorskip("anndata")
    from scipy.sparse import csr_array

    anndata.AnnData(csr_array(ROWS)).write_zarr(tmp_path / "cells.zarr")
    (found,) = [
        file for file in (tmp_path / "cells.zarr" / "X" / "data").rglob("*0") if file.is_file()
    ]
    found.unlink()
    with pytest.warns(UserWarning, match=r"cells\.zarr::X \(data\): 1 of 1 chunks"):
        open_data(tmp_path / "cells.zarr")


@pytest.mark.filterwarnings("ignore:.*zarr v")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_cubes_that_lack_chunks_are_warned_of_where_these_are_not_read_as_nan(
    tmp_path, zarr_format
):
    xarray = pytest.importorskip("xarray")
    values = np.ones((4, 5, 3), dtype="i2")
    cube = xarray.DataArray(values, dims=("y", "x", "band"), name="colors")
    options = {"encoding": {"colors": {"chunks": (2, 5, 3)}}, "zarr_format": zarr_format}
    cube.to_dataset().to_zarr(tmp_path / "i.zarr", consolidated=False, **options)
    cube.astype("f4").to_dataset().to_zarr(tmp_path / "f.zarr", consolidated=False, **options)
    for name in ("i.zarr", "f.zarr"):
        (tmp_path / name / "colors" / ("1.0.0" if zarr_format == 2 else "c/1/0/0")).unlink()
    with pytest.warns(UserWarning, match=r"i\.zarr::colors: 1 of 2 chunks .* read as 0"):
        open_data(f"{tmp_path}/i.zarr::colors", feature_dim="band")
    table = open_data(f"{tmp_path}/f.zarr::colors", feature_dim="band")
    assert np.isnan(table.compute()[10:]).all()


def test_commands_warn_of_missing_chunks_in_a_line_and_in_the_summary(tmp_path, capsys):
    stored(tmp_path / "x.zarr")
    (tmp_path / "x.zarr" / "c/2/0").unlink()
    arguments = ["-k", "2", "--quiet", "--no-pictures"]
    assert main(["fit", f"{tmp_path}/x.zarr", *arguments, "--out", f"{tmp_path}/run"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"daskmm: warning: {tmp_path}/x.zarr: 1 of 8 chunks are not in the store"
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["warnings"] == [line.removeprefix("daskmm: warning: ")]
    assert (
        main(["predict", f"{tmp_path}/run", f"{tmp_path}/x.zarr", "--out", f"{tmp_path}/l.csv"])
        == 0
    )
    assert "warning: " in capsys.readouterr().err
