"""xarray cubes in, labels on their grid out; rows without any value."""

import warnings

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray
import zarr
from _support import ESTIMATORS, assert_same_model, computed, quick, raise_if_computes
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

import daskmm
from daskmm import KernelPowerKMeans, KMeans, PowerKMeans, plot
from daskmm.data.rasters import pixels_of

pytestmark = pytest.mark.in_turn("cls")

DIMS = ("time", "band", "y", "x")
BANDS = ["blue", "green", "red", "nir"]
GAPS = {"missing": "partial", "empty_rows": "label"}
each_class = pytest.mark.parametrize("cls", ESTIMATORS)


def scene(shape=(3, 4, 16, 20), seed=0, holes=0.1):
    """A cube of four covers in fields, with single holes, and a corner that no value covers."""
    times, bands, height, width = shape
    rng = np.random.default_rng(seed)
    colors = rng.normal(0.0, 5.0, (4, bands))
    truth = rng.integers(4, size=(height // 4, width // 4)).repeat(4, 0).repeat(4, 1)
    values = colors[truth] + rng.normal(size=(times, height, width, bands))
    values[rng.random(values.shape) < holes] = np.nan
    values[:, :4, :6] = np.nan
    return xarray.DataArray(
        np.moveaxis(values, -1, 1),
        dims=DIMS,
        coords={
            "band": BANDS,
            "wavelength": ("band", np.arange(float(bands))),
            "y": 10.0 * np.arange(height),
            "height": (("y", "x"), np.ones((height, width))),
        },
    ), truth


CUBE, TRUTH = scene()


def stacked(cube, dim="band"):
    values = cube.transpose(*(d for d in cube.dims if d != dim), dim).values
    return values.reshape(-1, values.shape[-1])


@pytest.mark.parametrize("form", [lambda cube: cube, lambda cube: cube.to_dataset(name="colors")])
def test_packed_values_are_warned_of(form):
    packed = CUBE.fillna(0).astype("int16").assign_attrs(_FillValue=0, scale_factor=0.1)
    with pytest.warns(UserWarning, match=r"packed values \(scale_factor 0.1, _FillValue 0\)"):
        quick(KMeans).fit(form(packed), feature_dim="band")


@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": 1.0, "add_offset": 0.0},  # rioxarray gives these to every cube
        {"scale_factor": (1.0, 1.0), "_FillValue": np.nan},
        {"missing_value": np.full(2, np.nan)},
    ],
)
def test_attributes_that_change_no_value_are_not_warned_of(attributes):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        pixels_of(CUBE.assign_attrs(attributes), "band")


def test_a_fill_value_of_any_text_is_told():
    with pytest.warns(UserWarning, match=r"packed values \(_FillValue none\)"):
        pixels_of(CUBE.assign_attrs(_FillValue="none"), "band")


@pytest.mark.in_turn("chunks")
@each_class
@pytest.mark.parametrize("chunks", [None, (1, 2, 7, 9), (2, 4, 16, 11), (3, 1, 3, 20)])
def test_labels_are_those_of_the_stacked_table(cls, chunks):
    table, cube = stacked(CUBE), CUBE
    if chunks is not None:
        table = da.from_array(table, chunks=(170, 4))
        cube = CUBE.chunk(dict(zip(DIMS, chunks, strict=True)))
    expected = quick(cls, **GAPS).fit(table)
    model = quick(cls, **GAPS).fit(cube, feature_dim="band")
    assert_same_model(model, expected)
    labels = model.labels_
    assert dask.is_dask_collection(labels) == (chunks is not None)
    assert labels.dims == ("time", "y", "x")
    assert list(labels.coords) == ["y", "height"]
    assert labels.dtype == np.int32
    assert labels.name == "cluster"
    np.testing.assert_array_equal(labels.values.ravel(), computed(expected.labels_))
    assert (labels.values[:, :4, :6] == -1).all()
    assert (labels.values[:, 4:] >= 0).any(axis=0).all()
    assert model.cluster_sizes_.sum() == (labels >= 0).sum()
    assert model.feature_dim_ == "band"
    assert list(model.feature_names_in_) == BANDS
    with raise_if_computes():
        predicted, distances = model.predict(CUBE.chunk(y=5)), model.transform(CUBE.chunk(x=6))
    np.testing.assert_array_equal(predicted, labels)
    assert distances.dims == ("time", "y", "x", "cluster")
    np.testing.assert_allclose(
        distances.values.reshape(-1, 4), computed(expected.transform(table)), rtol=1e-12
    )
    assert model.score(cube) == pytest.approx(-model.inertia_, rel=1e-9)
    assert model.plan(cube, feature_dim="band").n_rows == labels.size


@pytest.mark.long
@given(
    chunks=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(4, 16), st.integers(4, 20)),
    order=st.permutations(DIMS),
    large=st.booleans(),
)
def test_any_chunks_and_order_of_dimensions_give_the_same_labels(chunks, order, large):
    """Also where a sample is annealed, of which heavy tails are drawn by distance."""
    cube = CUBE.transpose(*order)
    others = [dim for dim in order if dim != "band"]
    if large:
        tails = np.random.default_rng(1).standard_t(1.2, size=cube.shape)
        cube = cube + tails
    options = {**GAPS, "sample_size": 100 if large else None}
    table = da.from_array(stacked(cube), chunks=(200, 4))
    expected = quick(KMeans, **options).fit(table)
    chunked = cube.chunk(dict(zip(DIMS, chunks, strict=True)))
    model = quick(KMeans, **options).fit(chunked, feature_dim="band")
    assert model.labels_.dims == tuple(others)
    np.testing.assert_array_equal(model.labels_.values.ravel(), expected.labels_.compute())


def test_blocks_are_those_of_the_cube():
    seen = []

    def watched(block):
        seen.append(block.shape)
        return block

    array = da.from_array(CUBE.values, chunks=(1, 4, 8, 10)).map_blocks(watched, meta=np.empty(0))
    cube = xarray.DataArray(array, dims=DIMS)
    with dask.config.set(scheduler="sync"):
        model = quick(KMeans, **GAPS, max_iter=20).fit(cube, feature_dim="band")
    assert set(seen) <= {(1, 4, 8, 10), (0, 0, 0, 0), (1, 1, 1, 1)}
    assert model.labels_.data.chunks == ((1,) * 3, (8, 8), (10, 10))
    assert sum(shape == (1, 4, 8, 10) for shape in seen) == 12 * (model.n_passes_)


def test_datasets_have_variables_as_features(tmp_path):
    expected = quick(PowerKMeans, **GAPS).fit(CUBE, feature_dim="band")
    data = CUBE.to_dataset("band")
    for X in (data, data.chunk(time=1, y=8)):
        model = quick(PowerKMeans, **GAPS, n_init=2).fit(X)
        assert list(model.feature_names_in_) == BANDS
        assert (
            adjusted_rand_score(model.labels_.values.ravel(), expected.labels_.values.ravel()) == 1
        )
    np.testing.assert_array_equal(
        expected.predict(data.rename_dims(), "variable"), expected.labels_
    )
    named = xarray.Dataset({"reflectance": CUBE})
    np.testing.assert_array_equal(expected.predict(named), expected.labels_)
    np.testing.assert_array_equal(expected.predict(CUBE[:, ::-1]), expected.labels_)
    frame = pd.DataFrame(stacked(CUBE), columns=BANDS)
    np.testing.assert_array_equal(expected.predict(frame), expected.labels_.values.ravel())
    expected.save(tmp_path / "model")
    again = daskmm.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(CUBE), expected.labels_)
    assert quick(KMeans, **GAPS).fit_predict(CUBE, feature_dim="band").dims == ("time", "y", "x")


@pytest.mark.parametrize("lazy", [False, True])
def test_weights_lie_on_the_grid(lazy):
    cube = CUBE.chunk(y=7, x=6) if lazy else CUBE
    area = xarray.DataArray(np.random.default_rng(0).integers(3, size=16), dims="y")
    on_grid = area.broadcast_like(CUBE[:, 0]).transpose("time", "y", "x")
    expected = quick(KMeans, **GAPS).fit(
        da.from_array(stacked(CUBE), chunks=(99, 4)) if lazy else stacked(CUBE),
        sample_weight=on_grid.values.ravel(),
    )
    for weights in (area, on_grid, on_grid.values, on_grid.values.ravel(), on_grid.chunk(x=3)):
        model = quick(KMeans, **GAPS).fit(cube, sample_weight=weights, feature_dim="band")
        assert_same_model(model, expected)


@each_class
@pytest.mark.parametrize("lazy", [False, True])
def test_rows_without_any_value_take_no_part(cls, lazy):
    rows = stacked(CUBE)
    empty = np.isnan(rows).all(axis=1)
    assert empty.any()
    wrap = (lambda x: da.from_array(x, chunks=(97, 4))) if lazy else (lambda x: x)
    model = quick(cls, **GAPS, init=rows[~np.isnan(rows).any(axis=1)][:4], n_init=1).fit(wrap(rows))
    expected = quick(
        cls, missing="partial", init=rows[~np.isnan(rows).any(axis=1)][:4], n_init=1
    ).fit(wrap(rows[~empty]))
    np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-9)
    assert model.inertia_ == pytest.approx(expected.inertia_, rel=1e-9)
    labels = computed(model.labels_)
    assert (labels[empty] == -1).all()
    np.testing.assert_array_equal(labels[~empty], computed(expected.labels_))
    assert np.isnan(computed(model.transform(wrap(rows)))[empty]).all()
    assert "clusters" in model._repr_html_()
    assert model.summary_["cluster_size"].sum() == (~empty).sum()


def test_rasters_update_a_model_one_after_the_other():
    months = [CUBE[:1], CUBE[1:2].chunk(y=7), CUBE[2:]]
    model, expected = quick(KMeans, **GAPS), quick(KMeans, **GAPS)
    for month in months:
        model.partial_fit(month, feature_dim="band")
        expected.partial_fit(stacked(month))
    np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-9)
    assert model.cluster_sizes_.sum() == (~np.isnan(stacked(CUBE)).all(axis=1)).sum()


def test_labels_of_empty_rows_are_written(tmp_path):
    from daskmm.engine.labelled import write_labelled
    from daskmm.engine.labels import write_labels

    labels = np.array([0, -1, 2, -1], dtype=np.int32)
    for counts, nowhere in (
        write_labels(labels, tmp_path / "labels.zarr"),
        write_labelled(labels, None, tmp_path / "l.csv"),
    ):
        np.testing.assert_array_equal(counts, [1, 0, 1])
        assert nowhere == 2


def test_cubes_and_parameters_that_cannot_be_used_are_refused():
    fit = quick(KMeans, **GAPS).fit
    with pytest.raises(ValueError, match=r"dimensions \('time', 'band', 'y', 'x'\).*'bands'"):
        fit(CUBE, feature_dim="bands")
    with pytest.raises(TypeError, match=r"feature_dim='band'.*ndarray"):
        fit(stacked(CUBE), feature_dim="band")
    with pytest.raises(ValueError, match="no dimension besides"):
        fit(CUBE[0, :, 0, 0], feature_dim="band")
    with pytest.raises(ValueError, match=r"2 of 2 variables have the dimension 'band'"):
        fit(xarray.Dataset({"a": CUBE, "b": CUBE}), feature_dim="band")
    with pytest.raises(ValueError, match="dtype <U"):
        fit(CUBE.astype(str), feature_dim="band")
    with pytest.raises(ValueError, match="without variables"):
        fit(xarray.Dataset())
    dated = xarray.Dataset({"a": CUBE, "b": CUBE.fillna(0).astype(int).astype("datetime64[ns]")})
    with pytest.raises(ValueError, match=r"X\['b'\] has dtype datetime64"):
        fit(dated)
    with pytest.raises(ValueError, match="feature_dim of the fit, 'band'"):
        fit(CUBE, feature_dim="band").predict(CUBE.rename(band="b"))
    with pytest.raises(ValueError, match=r"dimensions \('z',\) does not lie on the pixels of X"):
        fit(CUBE, feature_dim="band", sample_weight=xarray.DataArray(np.ones(5), dims="z"))
    with pytest.raises(ValueError, match=r"feature_dim='band'"):
        KernelPowerKMeans(3).fit(CUBE)
    with pytest.raises(TypeError, match=r"stack\(pixel=\(.*\)\)\.transpose"):
        KernelPowerKMeans(3).fit(CUBE.to_dataset("band"))
    with pytest.raises(ValueError, match=r"empty_rows='label'.*missing='partial'"):
        KMeans(3, empty_rows="label").fit(stacked(CUBE))
    bad = CUBE.copy()
    bad[1, 2, 9, 13] = np.inf
    with pytest.raises(ValueError, match=r"infinity: block 11, row 43 of .* \(time 1, y 9, x 13\)"):
        fit(bad.chunk(time=1, y=5, x=10), feature_dim="band")
    with pytest.raises(ValueError, match=r"without any value: .*\(time 0, y 0, x 0\).*empty_rows"):
        KMeans(3, missing="partial").fit(CUBE.chunk(y=5), feature_dim="band")
    lying = da.from_array(CUBE.values, chunks=(1, 4, 8, 10)).map_blocks(
        lambda block: block.astype(str), dtype=float, meta=np.empty((0, 0, 0, 0))
    )
    with pytest.raises(ValueError, match=r"block \d+ has dtype <U"):
        fit(xarray.DataArray(lying, dims=DIMS), feature_dim="band")
    with pytest.raises(ValueError, match=r"Only 0 row\(s\) have a value"):
        fit(np.full((20, 3), np.nan))


@pytest.mark.in_turn("chunks")
@pytest.mark.parametrize("chunks", [None, (2, 4, 7, 9)])
@pytest.mark.parametrize("of_variables", [False, True])
def test_a_run_of_a_cube_has_its_labels_in_c_order(of_variables, chunks, tmp_path):
    cube = CUBE if chunks is None else CUBE.chunk(dict(zip(DIMS, chunks, strict=True)))
    data, dim = (
        (cube.drop_vars("wavelength").to_dataset("band"), None) if of_variables else (cube, "band")
    )
    model = PowerKMeans(4, random_state=0, **GAPS).fit(data, feature_dim=dim)
    daskmm.write_run(tmp_path / "run", model, data, report=True)
    labels = zarr.open_array(tmp_path / "run" / "labels.zarr", mode="r")[:]
    np.testing.assert_array_equal(labels, np.asarray(model.labels_).ravel())
    assert (tmp_path / "run" / "report.html").exists()
    assert plot.projection(model, data).axes
    model.partial_fit(data)
    daskmm.write_run(tmp_path / "later", model, data, report=False)
    labels = zarr.open_array(tmp_path / "later" / "labels.zarr", mode="r")[:]
    np.testing.assert_array_equal(labels, np.asarray(model.predict(data)).ravel())


@pytest.mark.parametrize("shape", [(1, 41, 1), (41, 1, 1), (1, 41, 2)])
def test_strips_of_one_line_or_one_band_are_clustered(shape):
    values = np.random.default_rng(0).normal(size=shape)
    cube = xarray.DataArray(values, dims=("y", "x", "band")).chunk({"y": 1, "x": 5})
    model = KMeans(2, random_state=0).fit(cube, feature_dim="band")
    assert model.labels_.shape == cube.isel(band=0).shape
    assert np.bincount(model.labels_.values.ravel()).tolist() == model.cluster_sizes_.tolist()
