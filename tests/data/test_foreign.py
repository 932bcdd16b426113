"""Tables of polars, xarray and anndata."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone

from daskmm import KMeans, PowerKMeans, WeightedBlurringMeanShift
from daskmm.data.foreign import unwrapped
from daskmm.metrics import silhouette_score

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(120, 3)) + 5 * RNG.integers(3, size=(120, 1))
NAMES = ["a", "b", "c"]
EXPECTED = KMeans(3, standardize=False, random_state=0).fit(ROWS)


def fitted(X, **options):
    model = KMeans(3, standardize=False, random_state=0, **options).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, EXPECTED.cluster_centers_)
    np.testing.assert_array_equal(np.asarray(model.labels_), EXPECTED.labels_)
    return model


def test_polars_frames_are_clustered_by_column_names():
    import polars

    frame = polars.DataFrame({name: ROWS[:, i] for i, name in enumerate(NAMES)})
    for X in (frame, frame.lazy()):
        model = fitted(X)
        assert list(model.feature_names_in_) == NAMES
        among_others = frame.select("c", polars.lit("text").alias("city"), "a", "b")
        np.testing.assert_array_equal(model.predict(among_others), EXPECTED.labels_)
        assert model.transform(X).shape == (120, 3)
    assert model.set_output(transform="polars").transform(frame).columns == [
        "kmeans0",
        "kmeans1",
        "kmeans2",
    ]
    with pytest.raises(ValueError, match="not numeric: 'city'"):
        KMeans(3).fit(among_others)
    holes = frame.with_columns(polars.when(polars.col("a") > 0).then(1).alias("b"))
    with pytest.raises(ValueError, match="contains NaN"):
        KMeans(3).fit(holes)
    KMeans(3, missing="partial", random_state=0).fit(holes)


@pytest.mark.parametrize("lazy", [False, True])
def test_xarray_arrays_give_lazy_labels_if_they_are_lazy(lazy):
    import xarray

    array = xarray.DataArray(ROWS, dims=("sample", "feature"), coords={"feature": NAMES})
    array = array.chunk({"sample": 50}) if lazy else array
    model = fitted(array)
    assert isinstance(model.labels_, da.Array) == lazy
    assert isinstance(model.predict(array), da.Array) == lazy
    assert isinstance(model.transform(array), da.Array) == lazy
    assert model.plan(array).n_rows == 120
    raster = xarray.DataArray(np.zeros((3, 4, 5)), dims=("band", "y", "x"))
    with pytest.raises(ValueError, match=r"\('band', 'y', 'x'\).*feature_dim.*stack"):
        KMeans(3).fit(raster)
    with pytest.raises(TypeError, match="to_dataarray"):
        WeightedBlurringMeanShift(0.5).fit(xarray.Dataset({"a": array}))


def test_anndata_objects_are_clustered_by_their_names(tmp_path):
    import anndata

    data = anndata.AnnData(ROWS, var=pd.DataFrame(index=NAMES))
    assert list(fitted(data).feature_names_in_) == NAMES
    np.testing.assert_array_equal(fitted(data).predict(data[::-1]), EXPECTED.labels_[::-1])
    assert isinstance(
        fitted(anndata.AnnData(da.from_array(ROWS, chunks=(50, -1)))).labels_, da.Array
    )
    data.write_h5ad(tmp_path / "data.h5ad")
    fitted(anndata.read_h5ad(tmp_path / "data.h5ad", backed="r"))
    with pytest.raises(ValueError, match="without X"):
        PowerKMeans(3).fit(anndata.AnnData(obs=data.obs))


def test_frames_of_sparse_columns_are_sparse_rows_with_names():
    rows = csr_array(ROWS)
    frame = pd.DataFrame.sparse.from_spmatrix(rows, columns=NAMES)
    model, expected = (KMeans(3, random_state=0).fit(X) for X in (frame, rows))
    assert list(model.feature_names_in_) == NAMES
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(model.predict(frame[NAMES[::-1]]), expected.labels_)
    named = frame.set_axis([f"row {i}" for i in range(len(frame))])
    assert model.set_output(transform="pandas").transform(named).index.equals(named.index)
    with pytest.raises(TypeError, match=r"by Weighted.*X\.sparse\.to_dense"):
        WeightedBlurringMeanShift(0.5).fit(frame)
    with pytest.raises(TypeError, match="partial_fit takes dense rows"):
        KMeans(3).partial_fit(frame)
    with pytest.raises(ValueError, match="fill value is not 0"):
        KMeans(3).fit(frame.astype(pd.SparseDtype(float, 1.0)))


def test_sparse_columns_of_mixed_models_or_beside_others_are_read_as_dense_ones():
    kinds = pd.Series(np.repeat(["a", "b", "c"], 20))
    mixed = KMeans(3, distortion="mixed", random_state=0)
    dense = clone(mixed).fit(pd.get_dummies(kinds))
    frame = pd.get_dummies(kinds, sparse=True)
    mixed.fit(frame).partial_fit(frame)
    assert [column.kind for column in mixed.columns_] == ["flag"] * 3
    np.testing.assert_array_equal(mixed.predict(frame), dense.labels_)
    assert float(silhouette_score(frame, mixed)) == 1.0

    frame["z"] = pd.arrays.SparseArray(kinds.map({"a": 0.0, "b": 2.0, "c": 5.0}))
    frame["one"] = 1.0
    for model in (KMeans(3, random_state=0), clone(mixed)):
        model.fit(frame)
        np.testing.assert_array_equal(model.predict(frame[frame.columns[::-1]]), model.labels_)


def test_objects_that_need_no_conversion_are_returned_unchanged():
    for X in (ROWS, pd.DataFrame(ROWS), da.zeros((3, 3)), [[1.0]], None):
        assert unwrapped(X) is X
