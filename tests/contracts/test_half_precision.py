"""float16 is read as it is, half the bytes of float32, and computed as float32: the same bits."""

import dask.array as da
import numpy as np
import pytest

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.data.files import open_data

rng = np.random.default_rng(16)
HALF = (rng.normal(size=(900, 4)) + 8.0 * rng.integers(3, size=(900, 1))).astype(np.float16)
SINGLE = HALF.astype(np.float32)


def assert_same_bits(half, single, of_half=HALF, of_single=SINGLE):
    np.testing.assert_array_equal(half.cluster_centers_, single.cluster_centers_)
    np.testing.assert_array_equal(np.asarray(half.labels_), np.asarray(single.labels_))
    labels = np.asarray(half.predict(of_half))
    np.testing.assert_array_equal(labels, np.asarray(single.predict(of_single)))
    assert half.inertia_ == single.inertia_
    assert half.score(of_half) == single.score(of_single)
    distances = np.asarray(half.transform(of_half))
    np.testing.assert_array_equal(distances, np.asarray(single.transform(of_single)))
    assert distances.dtype == np.float32


def chunked(rows):
    return da.from_array(rows, chunks=(250, -1))


@pytest.mark.in_turn("form")
@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, chunked])
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans, EntropyPowerKMeans])
def test_arrays_in_half_precision_give_the_bits_of_single(cls, form):
    half, single = (cls(3, n_init=2, random_state=0).fit(form(X)) for X in (HALF, SINGLE))
    assert_same_bits(half, single, form(HALF), form(SINGLE))


@pytest.mark.parametrize("distortion", ["kl", "manhattan", "mahalanobis"])
def test_distortions_of_half_precision_are_those_of_single(distortion):
    positive = abs(HALF) + np.float16(1)
    half, single = (
        KMeans(3, n_init=2, random_state=0, distortion=distortion).fit(X)
        for X in (positive, positive.astype(np.float32))
    )
    assert half.inertia_ == single.inertia_
    np.testing.assert_array_equal(half.cluster_centers_, single.cluster_centers_)


def write(path, rows):
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".parquet":
        import pandas as pd

        pd.DataFrame(rows, columns=list("abcd")).to_parquet(path)
    else:
        import zarr

        store = zarr.create_array(path, shape=rows.shape, chunks=(250, 4), dtype=rows.dtype)
        store[:] = rows


@pytest.mark.in_turn("persist")
@pytest.mark.parametrize("suffix", [".zarr", ".npy", ".parquet"])
@pytest.mark.parametrize("persist", [False, True])
def test_files_in_half_precision_are_read_as_they_are(tmp_path, suffix, persist):
    models, tables = [], []
    for name, rows in (("half", HALF), ("single", SINGLE)):
        path = (tmp_path / name).with_suffix(suffix)
        write(path, rows)
        X = open_data(str(path))
        tables.append(X)
        models.append(KMeans(3, n_init=2, random_state=0, persist=persist).fit(X))
        if suffix != ".parquet":
            assert X.dtype == rows.dtype
            assert KMeans(3).plan(X).bytes_per_pass == rows.nbytes
    assert_same_bits(*models, *tables)


@pytest.mark.parametrize("form", [np.asarray, chunked])
def test_values_beyond_half_precision_are_found_as_infinities(form):
    with np.errstate(over="ignore"):
        X = np.where(np.arange(len(HALF))[:, None] == 700, np.float32(70_000), HALF)
        X = X.astype(np.float16)
    with pytest.raises(ValueError, match=r"infinity: .*row 700 of the data"):
        KMeans(3).fit(form(X))


def test_sums_of_the_largest_values_do_not_overflow():
    X = np.full((5000, 4), 60_000, np.float16)
    X[::2] *= -1
    half, single = (KMeans(2, random_state=0).fit(Y) for Y in (X, X.astype(np.float32)))
    assert half.inertia_ == single.inertia_ == 0.0
    np.testing.assert_array_equal(half.cluster_centers_, single.cluster_centers_)
