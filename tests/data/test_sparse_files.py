"""Sparse tables on disk are opened by rows, and damaged ones are refused by name."""

import json

import anndata
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

from daskmm import KMeans
from daskmm.cli.main import main
from daskmm.data.blocks import layout_of
from daskmm.data.files import open_data

RNG = np.random.default_rng(0)
ROWS = RNG.poisson(2.0, (300, 20)) * (RNG.random((300, 20)) < 0.2).astype(np.float32)
MATRIX = scipy.sparse.csr_matrix(ROWS)
# anndata warns of what its next versions will write.
pytestmark = pytest.mark.filterwarnings("ignore:.*zarr v")


def annotated():
    names = pd.DataFrame(index=[f"cell {i}" for i in range(300)])
    genes = pd.DataFrame(index=[f"gene {i}" for i in range(20)])
    return anndata.AnnData(MATRIX, obs=names, var=genes, layers={"counts": MATRIX * 2})


def matrix_of(table):
    return scipy.sparse.vstack([block.compute() for block in table.to_delayed().ravel()])


@pytest.mark.parametrize("chunks", ["auto", 64])
def test_groups_that_anndata_writes_are_opened_in_blocks(tmp_path, chunks):
    annotated().write_zarr(tmp_path / "data.zarr")
    for name, times in (("", 1), ("::X", 1), ("::layers/counts", 2)):
        table = open_data(f"{tmp_path / 'data.zarr'}{name}", chunks=chunks)
        assert isinstance(table, da.Array)
        assert table.numblocks[0] == (1 if chunks == "auto" else 5)
        assert layout_of(table).stored == pytest.approx(MATRIX.nnz / 300)
        np.testing.assert_array_equal(matrix_of(table).toarray(), times * ROWS)
    # Blocks are read from the store, and no entry of the graph holds the rows.
    assert max(len(str(task)) for task in dict(table.dask).values()) < 5000


def test_npz_files_of_scipy_are_opened_in_blocks(tmp_path):
    for kind in ("csr", "csc"):
        path = tmp_path / f"{kind}.npz"
        scipy.sparse.save_npz(path, MATRIX.asformat(kind))
        table = open_data(path, chunks=70)
        assert table.chunks[0] == (70, 70, 70, 70, 20)
        np.testing.assert_array_equal(matrix_of(table).toarray(), ROWS)


def test_anndata_objects_in_memory_and_backed_are_clustered(tmp_path):
    data = annotated()
    model = KMeans(3, init=ROWS[:3], standardize=False).fit(data)
    assert list(model.feature_names_in_) == list(data.var_names)
    expected = KMeans(3, init=ROWS[:3], standardize=False).fit(ROWS).labels_
    labels = model.set_output(transform="pandas").predict(data)
    assert list(labels.index) == list(data.obs_names)
    np.testing.assert_array_equal(labels, expected)
    data.write_h5ad(tmp_path / "data.h5ad")
    backed = anndata.read_h5ad(tmp_path / "data.h5ad", backed="r")
    lazy = KMeans(3, init=ROWS[:3], standardize=False).fit(backed)
    assert isinstance(lazy.labels_, da.Array)
    np.testing.assert_array_equal(lazy.labels_, expected)


def test_what_is_stored_by_columns_is_refused(tmp_path):
    data = annotated()
    data.X = data.X.tocsc()
    data.write_zarr(tmp_path / "data.zarr")
    with pytest.raises(ValueError, match=r"data.zarr::X is stored by columns.*tocsr"):
        open_data(f"{tmp_path / 'data.zarr'}::X")


def test_damaged_groups_are_refused(tmp_path):
    path = tmp_path / "data.zarr"
    annotated().write_zarr(path)
    group = zarr.open_group(path, path="X")
    group["indices"][100] = 25
    with pytest.raises(ValueError, match=r"column 25, of 20 columns"):
        KMeans(3).fit(open_data(path))
    group["indptr"][5] = 10**6
    with pytest.raises(ValueError, match=r"data.zarr::X is no CSR matrix: indptr"):
        open_data(f"{path}::X")


@pytest.mark.in_turn("version")
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("index", [None, "symbol"])
def test_names_of_variables_are_those_of_features(tmp_path, monkeypatch, version, index):
    data, path = annotated(), tmp_path / "data.zarr"
    data.var.index.name = index
    data.layers["dense"] = ROWS.astype("float64")
    data.obsm["positions"] = ROWS[:, :20].astype("float64")
    with anndata.settings.override(zarr_write_format=version):
        data.write_zarr(path)
    for name in ("", "::X", "::layers/counts", "::layers/dense"):
        table = open_data(f"{path}{name}")
        model = KMeans(3, init=ROWS[:3], standardize=False).fit(table)
        assert list(model.feature_names_in_) == list(data.var_names)
        assert model.predict(open_data(f"{path}::layers/dense")).shape == (300,)
    plain = KMeans(3, init=ROWS[:3], standardize=False).fit(open_data(f"{path}::obsm/positions"))
    assert not hasattr(plain, "feature_names_in_")
    plain.predict(open_data(path))  # without a warning, which would be an error
    others = annotated()
    others.var_names = others.var_names[::-1]
    others.write_zarr(tmp_path / "others.zarr")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(open_data(tmp_path / "others.zarr"))


@pytest.mark.filterwarnings("ignore:Suffix used")
def test_names_that_stand_twice_are_numbered_as_anndata_does(tmp_path):
    data = annotated()
    data.var_names = ["a", "a", "a-1", *"bcdbaefghijklmnob"]
    data.write_zarr(tmp_path / "data.zarr")
    data.var_names_make_unique()
    model = KMeans(3, init=ROWS[:3], standardize=False).fit(open_data(tmp_path / "data.zarr"))
    assert list(model.feature_names_in_) == list(data.var_names)


def test_names_that_cannot_be_read_are_left_out(tmp_path):
    annotated().write_zarr(tmp_path / "data.zarr")
    group = zarr.open_group(tmp_path / "data.zarr")
    group["var"].attrs["_index"] = "nothing"
    model = KMeans(3, init=ROWS[:3], standardize=False).fit(open_data(tmp_path / "data.zarr"))
    assert not hasattr(model, "feature_names_in_")


def test_files_of_anndata_are_refused_with_a_remedy(tmp_path):
    annotated().write_h5ad(tmp_path / "cells.h5ad")
    with pytest.raises(ValueError, match=r"read_h5ad\('.*cells.h5ad'\).write_zarr.*cells.zarr::X"):
        open_data(tmp_path / "cells.h5ad")


@pytest.mark.long
def test_a_run_of_an_anndata_store_names_its_genes(tmp_path):
    annotated().write_zarr(tmp_path / "cells.zarr")
    source, run = f"{tmp_path / 'cells.zarr'}::layers/counts", tmp_path / "run"
    fit = ["fit", source, "-k", "3", "--model", "kmeans", "--report", "--quiet"]
    assert main([*fit, "--out", str(run)]) == 0
    assert "mean_gene 7" in pd.read_csv(run / "centers.csv").columns
    assert json.loads((run / "summary.json").read_text())["feature_names"][3] == "gene 3"
    assert "gene " in (run / "report.html").read_text()
    assert main(["predict", str(run), source, "--quiet", "--out", str(tmp_path / "l.csv")]) == 0
