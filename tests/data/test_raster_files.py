"""NetCDF files and zarr groups of xarray: their pixels are rows, in the order of the file."""

import pickle
import sys

import numpy as np
import pytest
import xarray as xr
import zarr

from daskmm import KMeans
from daskmm.data.blocks import as_dask_array
from daskmm.data.files import open_data
from daskmm.data.variables import header_of

BANDS = ["blue", "green", "red"]


def cube(text=True):
    values = np.random.default_rng(0).normal(size=(7, 3, 5)).astype("float32")
    values[2, 0, 1] = np.nan
    coords = {"band": BANDS if text else [1, 2, 3], "y": np.arange(7.0)}
    return xr.DataArray(values, dims=("y", "band", "x"), coords=coords, name="colors")


def rows_of(data):
    return data.transpose("y", "x", "band").values.reshape(-1, 3)


@pytest.fixture(params=["h5netcdf", "scipy"])
def path(request, tmp_path):
    """The same cube as NetCDF 4, in stored chunks and packed, and as NetCDF 3."""
    place = tmp_path / "scene.nc"
    packed = {"dtype": "float32", "chunksizes": (2, 3, 5)} if request.param == "h5netcdf" else {}
    cube().to_netcdf(place, engine=request.param, encoding={"colors": packed})
    return place


def test_a_variable_with_features_along_a_dimension_is_opened(path):
    table = open_data(f"{path}::colors", feature_dim="band")
    np.testing.assert_array_equal(table, rows_of(cube()))
    assert list(header_of(table)) == BANDS
    assert pickle.loads(pickle.dumps(table)).sum().compute().shape == ()
    some = open_data(path, feature_dim="band", columns=["red", "blue"])
    np.testing.assert_array_equal(some, rows_of(cube())[:, [2, 0]])


def test_strips_are_whole_stored_chunks_along_the_first_dimension(path):
    table = open_data(f"{path}::colors", feature_dim="band", chunks=1)
    stored = xr.open_dataset(path)["colors"].encoding.get("chunksizes", (1,))[0]
    assert table.chunks[0] == (10, 10, 10, 5) if stored == 2 else (5,) * 7
    np.testing.assert_array_equal(table, rows_of(cube()))


@pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 specification")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_groups_of_xarray_are_opened(zarr_format, tmp_path):
    path = tmp_path / "scene.zarr"
    stored = {"colors": {"chunks": (2, 3, 5)}}
    cube().to_dataset().to_zarr(path, encoding=stored, zarr_format=zarr_format, consolidated=False)
    table = open_data(f"{path}::colors", feature_dim="band", chunks=1)
    np.testing.assert_array_equal(table, rows_of(cube()))
    assert table.chunks[0] == (10, 10, 10, 5)
    assert list(header_of(table)) == BANDS
    assert pickle.loads(pickle.dumps(table)).sum().compute().shape == ()
    some = open_data(path, feature_dim="band", columns=["red", "blue"])
    np.testing.assert_array_equal(some, rows_of(cube())[:, [2, 0]])
    with pytest.raises(ValueError, match="no variable 'heights'; it has 'colors'"):
        open_data(f"{path}::heights", feature_dim="band")
    with pytest.raises(ValueError, match="not feature_dim 'time'"):
        open_data(f"{path}::colors", feature_dim="time")


def test_zarr_without_names_of_dimensions_is_no_cube(tmp_path):
    zarr.save_group(tmp_path / "rows.zarr", X=np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"rows\.zarr.* cannot be read as a cube with named dim"):
        open_data(f"{tmp_path / 'rows.zarr'}::X", feature_dim="band")


def test_variables_are_features(tmp_path):
    path = tmp_path / "scene.nc"
    data = cube().to_dataset(dim="band")
    data["crs"] = xr.Variable((), 0)
    data["blue"].encoding["grid_mapping"] = "crs"
    data.to_netcdf(path)
    np.testing.assert_array_equal(open_data(path), rows_of(cube()))
    table = open_data(path, columns=["red", "green"])
    np.testing.assert_array_equal(table, rows_of(cube())[:, [2, 1]])
    assert list(header_of(table)) == ["red", "green"]


def test_packed_values_are_unpacked(tmp_path):
    path = tmp_path / "scene.nc"
    packed = {"dtype": "int16", "scale_factor": 1e-3, "_FillValue": -32768}
    cube(text=False).to_netcdf(path, encoding={"colors": packed})
    table = as_dask_array(open_data(f"{path}::colors", feature_dim="band"), str(path))
    np.testing.assert_allclose(table, rows_of(cube()), atol=1e-3)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_variables_of_a_zarr_group_are_features(zarr_format, tmp_path):
    path = tmp_path / "scene.zarr"
    packed = {"dtype": "int16", "scale_factor": 1e-3, "_FillValue": -32768}
    data = cube().to_dataset(dim="band")
    data.to_zarr(
        path,
        encoding=dict.fromkeys(BANDS, packed),
        zarr_format=zarr_format,
        consolidated=False,
    )
    np.testing.assert_allclose(open_data(path), rows_of(cube()), atol=1e-3)
    assert list(header_of(open_data(path, columns=["red", "green"]))) == ["red", "green"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_packed_values_are_refused_unless_xarray_unpacks_them(zarr_format, tmp_path):
    table = cube(text=False).isel(y=0).transpose("x", "band")
    packed = {"dtype": "int16", "scale_factor": 1e-3, "_FillValue": -32768}
    for name, encoding in ("packed", packed), ("filled", {"_FillValue": -9999.0}), ("plain", {}):
        table.to_dataset().to_zarr(
            tmp_path / name,
            encoding={"colors": encoding},
            zarr_format=zarr_format,
            consolidated=False,
        )
    with pytest.raises(ValueError, match=r"packed values \(scale_factor 0.001.*'x' or 'band'"):
        open_data(f"{tmp_path / 'packed'}::colors")
    np.testing.assert_allclose(
        open_data(f"{tmp_path / 'packed'}::colors", feature_dim="band"), table, atol=1e-3
    )
    stored = zarr.open_array(tmp_path / "packed" / "colors", mode="r")
    with pytest.warns(UserWarning, match=r"packed values .* are taken as they are stored"):
        KMeans(2, random_state=0).fit(stored)
    if zarr_format == 3:
        with pytest.raises(ValueError, match=r"packed values .*_FillValue -9999\.0"):
            open_data(f"{tmp_path / 'filled'}::colors")
    np.testing.assert_array_equal(open_data(f"{tmp_path / 'plain'}::colors"), table)


def test_wrong_dimensions_variables_and_chunks_are_refused(path, tmp_path):
    for arguments, message in [
        ({}, "dimensions y, band, x. Choose that of the features"),
        ({"feature_dim": "time"}, "not feature_dim 'time'"),
        ({"feature_dim": "band", "columns": ["nir"]}, "no feature 'nir'; it has 'blue', 'green'"),
        ({"feature_dim": "band", "chunks": 0}, "at least 1; got 0"),
        ({"feature_dim": "band", "keep": ["id"]}, "no columns to keep"),
    ]:
        with pytest.raises(ValueError, match=message):
            open_data(f"{path}::colors", **arguments)
    with pytest.raises(ValueError, match="no variable 'heights'; it has 'colors'"):
        open_data(f"{path}::heights", feature_dim="band")
    (tmp_path / "broken.nc").write_bytes(b"CDF?")
    with pytest.raises(ValueError, match="cannot be read as NetCDF"):
        open_data(tmp_path / "broken.nc")
    np.save(tmp_path / "rows.npy", np.zeros((3, 2)))
    with pytest.raises(ValueError, match="no NetCDF file and no zarr group; feature_dim"):
        open_data(tmp_path / "rows.npy", feature_dim="band")


def test_missing_packages_are_named_with_their_extra(path, monkeypatch):
    if path.read_bytes()[:4] == b"\x89HDF":
        monkeypatch.setattr(xr.backends, "list_engines", lambda: {"scipy": None})
        with pytest.raises(ImportError, match=r"pip install 'daskmm\[netcdf\]'"):
            open_data(path, feature_dim="band")
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"pip install 'daskmm\[netcdf\]'"):
        open_data(path, feature_dim="band")
