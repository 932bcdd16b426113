"""Lazy input of both kinds of dask arrays: graphs, and expressions where dask plans queries.

A process has one kind. This module uses what both offer, and a test runs it with the other.
"""

import os
import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr
from _support import ESTIMATORS, blobs, quick

from daskmm import (
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    metrics,
    monitor,
    selection,
)
from daskmm.cli.main import main
from daskmm.data.files import open_data
from daskmm.data.lazy import array_inside, array_of, delayed_blocks, in_memory, sized, with_rows
from daskmm.datasets import make_ewp_simulation2
from daskmm.engine.labelled import write_labelled
from daskmm.engine.labels import write_labels

IS_PLANNED = hasattr(da.Array, "expr")
X, TRUTH = blobs()
NAMES = list("abcde")
FRAME = pd.DataFrame(X, columns=NAMES)
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
OTHERS = {
    KernelPowerKMeans: {"n_clusters": 4},
    MultiKernelPowerKMeans: {"n_clusters": 4, "eta": 1.3},
    WeightedBlurringMeanShift: {"bandwidth": 0.06},
    GaussianMixture: {"n_components": 4},
}
# Tests of other modules that count reads.
ALSO = [
    "test_dask_input.py::test_a_pass_is_one_compute_that_loads_every_block_once",
    "test_dask_input.py::test_weights_taken_from_the_data_do_not_read_them_twice",
    "test_dask_input.py::test_assignment_reads_every_block_once",
    "test_frames.py::test_labels_do_not_read_the_frame_a_second_time",
    "test_frames.py::test_rows_of_files_are_not_counted_by_a_pass",
    "test_frames.py::test_labels_of_frames_are_written_compared_and_not_pickled",
]
EVERY = [*ESTIMATORS, *OTHERS]
# The quick tests of other modules have the same input if dask does not plan queries.
once = (lambda test: test) if IS_PLANNED else pytest.mark.long


def lazy(values=X, rows=60, columns=-1):
    return da.from_array(values, chunks=(rows, columns) if values.ndim == 2 else rows)


def frame():
    return dd.from_pandas(FRAME, npartitions=4)


FORMS = {
    "array": lazy,
    "column chunks": lambda: lazy(columns=2),
    "mapped": lambda: lazy().map_blocks(np.negative).map_blocks(np.negative),
    "sum": lambda: lazy() / 2 + lazy() / 2,
    "zero-length chunks": lambda: da.from_array(X, chunks=((0, 90, 0, 150, 0), (5,))),
    "frame": frame,
    "frame without divisions": lambda: dd.from_pandas(FRAME, npartitions=4, sort=False),
    "filtered frame": lambda: dd.from_pandas(
        pd.concat([FRAME, FRAME + 1e6]), npartitions=4, sort=False
    ).query("a < 1e5"),
    "zarr": lambda: zarr_of(X),
}


def zarr_of(values):
    array = zarr.create_array({}, shape=values.shape, dtype=values.dtype, chunks=(60, 3))
    array[...] = values
    return array


def assert_same_model(found, expected):
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, rtol=1e-9)
    np.testing.assert_allclose(found.objective_history_, expected.objective_history_, rtol=1e-9)
    np.testing.assert_array_equal(in_memory(found.labels_), expected.labels_)


def estimator(cls, **more):
    return cls(random_state=0, **OTHERS[cls], **more) if cls in OTHERS else quick(cls, **more)


@pytest.fixture(autouse=True)
def _computing_in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.mark.long
@pytest.mark.skipif(IS_PLANNED, reason="this process plans queries already")
def test_this_module_passes_where_dask_plans_queries():
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider"]
    folder = Path(__file__).parent
    done = subprocess.run(
        [*command, __file__, *(str(folder / name) for name in ALSO)],
        env=os.environ | {"DASK_ARRAY__QUERY_PLANNING": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]


def test_the_kind_is_the_one_that_was_asked_for():
    assert (dask.config.get("array.query-planning") is True) == IS_PLANNED


@pytest.mark.in_turn("form")
@pytest.mark.parametrize("cls", EVERY)
@pytest.mark.parametrize("form", ["array", "frame"])
def test_each_estimator_fits_on_a_cluster_as_in_memory(cls, form, local_client):
    data, expected = FORMS[form](), estimator(cls).fit(X).labels_
    model = estimator(cls).fit(data)
    np.testing.assert_array_equal(in_memory(model.labels_), expected)
    np.testing.assert_array_equal(in_memory(model.predict(data)), expected)


@once
@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_what_numpy_gives(form):
    data, expected = FORMS[form](), quick(PowerKMeans).fit(X)
    model = quick(PowerKMeans).fit(data)
    assert_same_model(model, expected)
    np.testing.assert_array_equal(in_memory(model.predict(data)), expected.labels_)
    np.testing.assert_allclose(in_memory(model.transform(data)), expected.transform(X))
    assert model.score(data) == pytest.approx(expected.score(X))


@once
@pytest.mark.parametrize("form", ["array", "frame", "filtered frame"])
def test_results_are_of_the_kind_that_dask_has(form):
    data = FORMS[form]()
    model = quick(KMeans).fit(data)
    kind = da.Array if form == "array" else dd.Series
    assert isinstance(model.labels_, kind)
    assert isinstance(model.predict(data), kind)
    assert isinstance(model.transform(data), da.Array)
    if form != "array":
        assert list(data.assign(cluster=model.labels_).columns) == [*NAMES, "cluster"]
    model.set_output(transform="pandas")
    assert isinstance(model.transform(data), dd.DataFrame)


@once
@pytest.mark.parametrize("kind", ["array", "other chunks", "series", "memory"])
def test_weights_of_any_form_give_the_same_fit(kind):
    forms = {
        "array": (lazy(), lazy(WEIGHTS)),
        "other chunks": (lazy(), lazy(WEIGHTS, 100)),
        "series": (frame(), dd.from_pandas(pd.Series(WEIGHTS), npartitions=4)),
        "memory": (X, lazy(WEIGHTS)),
    }
    data, weights = forms[kind]
    expected = quick(KMeans).fit(X, sample_weight=WEIGHTS)
    assert_same_model(quick(KMeans).fit(data, sample_weight=weights), expected)


@once
def test_persisted_rows_on_a_cluster_give_the_labels_of_those_in_memory(local_client):
    model = quick(KMeans).fit(lazy().persist())
    np.testing.assert_array_equal(in_memory(model.labels_), quick(KMeans).fit(X).labels_)


@once
def test_lazy_init_landmarks_and_rows_give_the_same_fit():
    assert_same_model(quick(KMeans, init=lazy(X[:4])).fit(lazy()), quick(KMeans, init=X[:4]).fit(X))
    for more in ({}, {"n_landmarks": 40}):
        expected = estimator(KernelPowerKMeans, **more).fit(X).labels_
        found = estimator(KernelPowerKMeans, **more).fit(lazy())
        np.testing.assert_array_equal(in_memory(found.labels_), expected)


@once
def test_lazy_matrices_give_the_same_fit():
    K = X @ X.T
    expected = KernelPowerKMeans(4, kernel="precomputed", random_state=0).fit(K)
    model = KernelPowerKMeans(4, kernel="precomputed", random_state=0).fit(lazy(K))
    np.testing.assert_array_equal(in_memory(model.labels_), expected.labels_)
    assert model.score(lazy(K)) == pytest.approx(expected.score(K))


@once
@pytest.mark.parametrize("kind", ["group", "npz"])
def test_sparse_files_are_clustered(kind, tmp_path):
    rows = scipy.sparse.random_array((300, 8), density=0.3, format="csr", rng=0)
    path = tmp_path / ("rows.npz" if kind == "npz" else "rows.zarr")
    if kind == "npz":
        scipy.sparse.save_npz(path, rows, compressed=False)
    else:
        group = zarr.create_group(path)
        group.attrs.update({"encoding-type": "csr_matrix", "shape": [300, 8]})
        for name in ("data", "indices", "indptr"):
            group.create_array(name, data=getattr(rows, name))
    table = open_data(str(path), chunks=100)
    model = quick(KMeans).fit(table)
    np.testing.assert_array_equal(in_memory(model.labels_), quick(KMeans).fit(rows).labels_)


@once
def test_lazy_mixed_columns_give_the_labels_of_those_in_memory():
    people = FRAME.assign(kind=pd.Categorical(["x", "y"] * 120))
    model = PowerKMeans(4, distortion="mixed", random_state=0)
    expected = model.fit(people).labels_
    found = model.fit(dd.from_pandas(people, npartitions=4)).labels_
    np.testing.assert_array_equal(found.compute(), expected)


@once
@pytest.mark.parametrize("cls", [KMeans, GaussianMixture])
def test_lazy_updates_equal_those_in_memory(cls):
    model, expected = estimator(cls), estimator(cls)
    for start in (0, 120):
        model.partial_fit(lazy(X[start : start + 120]))
        expected.partial_fit(X[start : start + 120])
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))


@once
def test_a_monitor_takes_lazy_batches():
    days, fitted = np.repeat(np.arange(4), 60), quick(KMeans).fit(X)
    one, two = (
        monitor(fitted, data, batches=batches).look(X)
        for data, batches in ((lazy(), lazy(days)), (X, days))
    )
    assert str(one) == str(two)


@once
def test_metrics_of_lazy_data_equal_those_in_memory():
    labels = quick(KMeans).fit(X).labels_
    expected = metrics.adjusted_rand_score(TRUTH, labels)
    for true, found in ((lazy(TRUTH), lazy(labels, 70)), (TRUTH, lazy(labels))):
        assert metrics.adjusted_rand_score(true, found) == expected
    for data in (lazy(), frame()):
        for own in (lazy(labels), labels):
            assert metrics.calinski_harabasz_score(data, own) == pytest.approx(
                metrics.calinski_harabasz_score(X, labels)
            )
    expected = selection.information_gain(X, labels, random_state=0)
    assert selection.information_gain(lazy(), lazy(labels), random_state=0) == pytest.approx(
        expected
    )


@once
def test_lazy_labels_are_written_to_disk(tmp_path):
    model = quick(KMeans).fit(frame())
    expected = quick(KMeans).fit(X).labels_
    for name, labels in (("series", model.labels_), ("array", quick(KMeans).fit(lazy()).labels_)):
        write_labels(labels, tmp_path / name)
        np.testing.assert_array_equal(zarr.open_array(tmp_path / name)[:], expected)
        write_labelled(labels, None, tmp_path / f"{name}.csv")
        found = pd.read_csv(tmp_path / f"{name}.csv")["cluster"]
        np.testing.assert_array_equal(found, expected)
    write_labelled(model.labels_, frame(), tmp_path / "all.parquet")
    found = pd.read_parquet(tmp_path / "all.parquet")["cluster"]
    np.testing.assert_array_equal(found, expected)


@once
@pytest.mark.parametrize("suffix", ["csv", pytest.param("zarr", marks=pytest.mark.long)])
def test_commands_read_csv_and_zarr(suffix, tmp_path):
    path = tmp_path / f"data.{suffix}"
    if suffix == "csv":
        FRAME.to_csv(path, index=False)
    else:
        zarr.save_array(path, X)
    fit = ["fit", str(path), "--n-clusters", "4", "--model", "kmeans", "--no-pictures"]
    assert main([*fit, "--out", str(tmp_path / "run")]) == 0
    assert main(["plan", str(path), "--n-clusters", "4"]) == 0
    out = str(tmp_path / "labels.zarr")
    assert main(["predict", str(tmp_path / "run"), str(path), "--out", out]) == 0


def test_arrays_are_made_of_tasks_and_get_known_sizes():
    graph = {("rows", 0, 0): (np.ones, (2, 3)), ("rows", 1, 0): (np.zeros, (4, 3))}
    unknown = array_of(graph, "rows", ((np.nan, np.nan), (3,)), np.empty((0, 0)))
    assert sized(unknown).chunks == ((2, 4), (3,))
    expected = np.repeat([1.0, 0.0], [2, 4])[:, None] * np.ones(3)
    np.testing.assert_array_equal(in_memory(unknown), expected)
    np.testing.assert_array_equal(with_rows(unknown, (2, 4)).compute(), expected)
    stored = zarr_of(X)
    assert array_inside(da.from_array(stored, chunks=(60, 3), name=False)) is stored


@once
def test_simulated_rows_and_their_blocks_do_not_depend_on_chunks():
    rows, labels = make_ewp_simulation2(1000, 3, 2, 4, random_state=0, chunks=300)
    others = make_ewp_simulation2(1000, 3, 2, 4, random_state=0)
    values, memory = map(in_memory, others)
    np.testing.assert_array_equal(rows.compute(), values)
    np.testing.assert_array_equal(labels.compute(), memory)
    blocks = dask.compute(*delayed_blocks(rows)[:, 0])
    np.testing.assert_array_equal(np.concatenate(blocks), values)
