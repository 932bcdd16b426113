"""Rasters on the command line: pixels of a cube on disk get one label each, in its order."""

import json
import warnings

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from daskmm.cli.main import main


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A cube of two covers, bands first, with a pixel of the sea."""
    folder = tmp_path_factory.mktemp("scene")
    cover = np.arange(12)[:, None] // 6 * np.ones(10, dtype=int)
    values = np.random.default_rng(0).normal(size=(3, 12, 10)) + 9 * cover
    values[:, 4, 5] = np.nan
    bands = ["blue", "green", "red"]
    cube = xr.DataArray(values, dims=("band", "y", "x"), coords={"band": bands}, name="colors")
    cube.to_netcdf(folder / "scene.nc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr 3 has no type of names yet
        cube.to_dataset().to_zarr(folder / "scene.zarr", zarr_format=3, consolidated=False)
    return folder, cover


def ran(capsys, *arguments):
    with dask.config.set(scheduler="sync"):
        code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr()


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("name", ["scene.nc", "scene.zarr"])
def test_a_raster_is_planned_fitted_and_predicted(name, scene, capsys, tmp_path):
    folder, cover = tmp_path, scene[1]
    source = [f"{scene[0] / name}::colors", "--feature-dim", "band"]
    model = ["-k", 2, "--missing", "partial", "--empty-rows", "label"]
    code, said = ran(capsys, "plan", *source, *model, "--json")
    assert code == 0
    assert json.loads(said.out)["n_rows"] == 120
    code, said = ran(capsys, "fit", *source, *model, "--out", folder / "run", "--quiet", "--report")
    assert code == 0, said.err
    assert (folder / "run" / "projection.png").exists()
    labels = zarr.open_array(folder / "run" / "labels.zarr", mode="r")[:].reshape(cover.shape)
    assert labels[4, 5] == -1
    assert len(set(np.unique(labels[cover == 0])) | set(np.unique(labels[cover == 1]))) == 3
    assert json.loads((folder / "run" / "summary.json").read_text())["feature_names"] == [
        "blue",
        "green",
        "red",
    ]
    out = folder / "again.zarr"
    code, said = ran(capsys, "predict", folder / "run", *source, "--out", out, "--quiet")
    assert code == 0, said.err
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[:].reshape(cover.shape), labels)


@pytest.mark.parametrize("labels", ["labels.csv", "labels.parquet"])
def test_labels_of_a_cube_are_written_as_a_table(labels, tmp_path, capsys):
    bands = np.random.default_rng(0).normal(size=(2, 12, 10))
    cube = xr.Dataset({name: (("y", "x"), band) for name, band in zip("ab", bands, strict=True)})
    cube.to_netcdf(tmp_path / "cube.nc")
    own = [tmp_path / "cube.nc", "--quiet"]
    fit = ["-k", 2, "--model", "kmeans", "--no-pictures", "--out", tmp_path / "run"]
    fit += ["--labels", tmp_path / labels]
    code, said = ran(capsys, "fit", *own, *fit)
    assert code == 0, said.err
    out = tmp_path / f"again-{labels}"
    assert ran(capsys, "predict", tmp_path / "run", *own, "--out", out)[0] == 0
    assert out.read_bytes() == (tmp_path / labels).read_bytes()
    expected = zarr.open_array(tmp_path / "run/labels.zarr", mode="r")[:]
    read = pd.read_csv if labels.endswith(".csv") else pd.read_parquet
    assert read(out)["cluster"].tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["scene.nc", "scene.zarr"])
def test_the_dimension_of_the_features_is_asked_for(name, scene, capsys):
    folder, _ = scene
    source = f"{folder / name}::colors"
    code, said = ran(capsys, "fit", source, "-k", 2, "--out", folder / "none", "--no-pictures")
    assert code == 2
    assert "--feature-dim" in said.err
