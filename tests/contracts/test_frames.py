"""Frames in, aligned series and frames out."""

import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from _support import ESTIMATORS, CountingFrame, blobs, quick, raise_if_computes

from daskmm import (
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    metrics,
)
from daskmm.engine.labels import write_labels

X, TRUTH = blobs()
NAMES = ["alpha", "beta", "gamma", "delta", "epsilon"]
FRAME = pd.DataFrame(X, columns=NAMES, index=np.arange(240) // 2)
PEOPLE = FRAME.assign(id=[f"r{i}" for i in range(240)], kind=pd.Categorical(["a", "b"] * 120))
OTHERS = {
    KernelPowerKMeans: {"n_clusters": 4},
    MultiKernelPowerKMeans: {"n_clusters": 4, "eta": 1.3},
    WeightedBlurringMeanShift: {"bandwidth": 0.06},
}
each_estimator = pytest.mark.parametrize("cls", [*ESTIMATORS, *OTHERS])


@pytest.fixture(autouse=True)
def _computing_in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Parquet files, which dask joins where it reads few of their columns; one has no rows."""
    folder = tmp_path_factory.mktemp("frames")
    for part in range(7):
        rows = PEOPLE.iloc[0:0] if part == 3 else PEOPLE.iloc[40 * (part - (part > 3)) :][:40]
        rows.to_parquet(folder / f"part-{part}.parquet")
    return folder


def estimator(cls):
    return cls(random_state=0, **OTHERS[cls]) if cls in OTHERS else quick(cls)


@each_estimator
@pytest.mark.in_turn("cls")
def test_labels_are_assigned_to_the_frame_that_was_read(cls, folder):
    frame = dd.read_parquet(folder)
    model = estimator(cls).fit(frame[NAMES])
    expected = estimator(cls).fit(FRAME)
    with raise_if_computes():
        labelled = frame.assign(cluster=model.labels_, again=model.predict(frame))
    found = labelled.compute()
    assert found["cluster"].dtype == found["again"].dtype == np.int32
    pd.testing.assert_index_equal(found.index, FRAME.index)
    np.testing.assert_array_equal(found["cluster"], expected.labels_)
    np.testing.assert_array_equal(found["again"], expected.predict(FRAME))
    np.testing.assert_array_equal(found["id"], PEOPLE["id"])


@pytest.mark.parametrize(
    "keeps",
    [
        lambda frame: frame["alpha"] > FRAME["alpha"].quantile(0.3),
        lambda frame: frame["id"].isin([f"r{i}" for i in range(0, 240, 3)]),
    ],
)
@pytest.mark.parametrize("cls", [KMeans, KernelPowerKMeans])
def test_labels_are_aligned_with_the_rows_that_a_filter_keeps(cls, keeps, folder):
    frame = dd.read_parquet(folder)
    frame = frame[keeps(frame)]
    model = estimator(cls).fit(frame[NAMES])
    found = frame.assign(cluster=model.labels_).compute()
    expected = model.predict(found)
    np.testing.assert_array_equal(found["cluster"], expected)


def test_labels_do_not_read_the_frame_a_second_time():
    source = CountingFrame(FRAME)
    frame = source.as_dask()
    model = quick(KMeans).fit(frame)
    source.reads.clear()
    frame.assign(cluster=model.labels_, again=model.predict(frame[NAMES[::-1]])).compute()
    assert set(source.reads.values()) == {1}
    assert len(source.reads) == 4


@pytest.mark.in_turn("columns")
@pytest.mark.parametrize("columns", [NAMES, NAMES[:2]])
@pytest.mark.parametrize("form", ["numbers", "weighted", "mixed"])
def test_rows_of_files_are_not_counted_by_a_pass(form, columns, folder):
    frame = dd.read_parquet(folder)
    array = da.from_array(FRAME[columns].to_numpy(), chunks=(40, -1))
    weights = {}
    if form == "weighted":
        weights["sample_weight"] = frame["epsilon"].abs()
    distortion = "mixed" if form == "mixed" else "sqeuclidean"
    model = PowerKMeans(4, sample_size=40, distortion=distortion, random_state=0, persist=False)
    found = model.fit(frame[columns], **weights)
    if weights:
        weights["sample_weight"] = FRAME["epsilon"].abs().to_numpy()
    model = PowerKMeans(4, sample_size=40, random_state=0, persist=False)
    expected = model.fit(array, **weights)
    assert found.n_passes_ - found.n_iter_ == expected.n_passes_ - expected.n_iter_
    if form != "mixed":
        assert found.n_passes_ == expected.n_passes_
        np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_)


@pytest.mark.parametrize("cls", [KMeans, GaussianMixture])
def test_scores_of_rows_are_a_series_of_the_frame(cls, folder):
    frame = dd.read_parquet(folder)
    model = cls(4, random_state=0).fit(FRAME)
    with raise_if_computes():
        scores = model.score_samples(frame)
        scored = frame.assign(score=scores)
    assert isinstance(scores, dd.Series)
    assert scores.name == "score"
    np.testing.assert_allclose(scored.compute()["score"], model.score_samples(FRAME))


def test_a_plan_of_a_csv_frame_says_what_is_known_and_what_is_not(tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    told = str(KMeans(4).plan(dd.read_csv(tmp_path / "rows.csv")))
    assert "an unknown number of rows × 5 features in 1 block" in told
    assert "X.to_dask_array(lengths=True)" in told
    assert "unknown (" not in told


@pytest.mark.parametrize("dtype", ["float64[pyarrow]", "Float64"])
def test_columns_of_pandas_own_types_give_the_same_labels(dtype):
    frame = dd.from_pandas(FRAME.reset_index(drop=True).astype(dtype), npartitions=3)
    model = quick(KMeans).fit(frame)
    np.testing.assert_array_equal(model.labels_.compute(), quick(KMeans).fit(X).labels_)
    np.testing.assert_array_equal(model.predict(frame).compute(), model.predict(frame.compute()))


def test_faults_name_block_row_and_column():
    model = quick(KMeans).fit(FRAME)
    bad = FRAME.reset_index(drop=True)
    bad.loc[130, "beta"] = np.nan
    lazy = dd.from_pandas(bad, npartitions=4)
    place = r"NaN: block 2, row 10 of the block.*, feature 1 \('beta'\)"
    with pytest.raises(ValueError, match=place):
        model.predict(lazy).compute()
    for cls in (KMeans, KernelPowerKMeans):
        with pytest.raises(ValueError, match=place):
            estimator(cls).fit(lazy)
    here = r"NaN: block 0, row 130 .*feature 1 \('beta'\)"
    for failing in (model.predict, model.partial_fit, estimator(KMeans).fit):
        with pytest.raises(ValueError, match=here):
            failing(bad)
    with pytest.raises(ValueError, match=r"row 130 .*feature 1\. Remove"):
        quick(KMeans).fit(bad.to_numpy())


@pytest.mark.parametrize("cls", [KMeans, KernelPowerKMeans])
def test_columns_are_found_by_name(cls):
    model = estimator(cls).fit(FRAME)
    expected = model.predict(FRAME)
    mixed = PEOPLE[["kind", *NAMES[::-1], "id"]]
    assert isinstance(expected, np.ndarray)
    np.testing.assert_array_equal(model.predict(mixed), expected)
    np.testing.assert_array_equal(model.predict(dd.from_pandas(mixed, 3)).compute(), expected)
    assert model.score(mixed) == pytest.approx(model.score(FRAME))
    with pytest.raises(ValueError, match="yet now missing"):
        model.predict(mixed.drop(columns="beta"))
    twice = pd.concat([mixed, FRAME[["beta"]]], axis=1)
    with pytest.raises(ValueError, match="several columns named 'beta'"):
        model.predict(twice)


def test_labels_of_a_pandas_frame_are_a_series_where_pandas_is_asked_for():
    model = quick(KMeans).set_output(transform="pandas")
    labels = model.fit_predict(FRAME)
    pd.testing.assert_series_equal(labels, model.predict(FRAME))
    pd.testing.assert_index_equal(labels.index, FRAME.index)
    assert isinstance(model.labels_, np.ndarray)
    assert isinstance(quick(KMeans).fit_predict(X), np.ndarray)
    np.testing.assert_array_equal(PEOPLE.assign(cluster=labels)["cluster"], model.labels_)


LAZY = {
    "frame": lambda: dd.from_pandas(FRAME, npartitions=4, sort=False),
    "array": lambda: da.from_array(X, chunks=(70, -1)),
    "array of unknown length": lambda: dd.from_pandas(FRAME, npartitions=4).to_dask_array(),
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("form", LAZY)
def test_pandas_output_of_lazy_data_is_lazy(form):
    data = LAZY[form]()
    model = quick(KMeans).fit(FRAME)
    expected = model.transform(FRAME)
    assert isinstance(model.transform(data), da.Array)
    model.set_output(transform="pandas")
    with raise_if_computes():
        output = model.transform(data)
    assert isinstance(output, dd.DataFrame)
    assert output.columns.tolist() == model.get_feature_names_out().tolist()
    np.testing.assert_array_equal(output.compute().to_numpy(), expected)
    if form == "frame":
        pd.testing.assert_index_equal(output.compute().index, FRAME.index)
        together = data.assign(far=output["kmeans0"]).compute()
        np.testing.assert_array_equal(together["far"], expected[:, 0])
    again = quick(KMeans).set_output(transform="pandas").fit_transform(data)
    assert isinstance(again, dd.DataFrame)
    model.set_output(transform="polars")
    with pytest.raises(ValueError, match="no lazy form"):
        model.transform(data)


def test_labels_of_frames_are_written_compared_and_not_pickled(folder, tmp_path):
    model = quick(KMeans).fit(dd.read_parquet(folder)[NAMES])
    assert write_labels(model.labels_, tmp_path / "labels.zarr")[0].sum() == 240
    expected = metrics.adjusted_rand_score(TRUTH, quick(KMeans).fit(FRAME).labels_)
    assert metrics.adjusted_rand_score(TRUTH, model.labels_) == expected
    assert metrics.adjusted_rand_score(model.labels_, TRUTH) == expected
    assert not {"labels_", "_block_labels"} & set(vars(pickle.loads(pickle.dumps(model))))


@pytest.mark.long
def test_labels_of_frames_are_computed_on_a_cluster(folder):
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
        dask.config.set(scheduler=client),
    ):
        frame = dd.read_parquet(folder)
        for cls in (KMeans, KernelPowerKMeans):
            model = estimator(cls).fit(frame[NAMES])
            found = frame.assign(cluster=model.labels_, again=model.predict(frame)).compute()
            expected = estimator(cls).fit(FRAME).labels_
            np.testing.assert_array_equal(found["cluster"], expected)
            np.testing.assert_array_equal(found["again"], expected)
