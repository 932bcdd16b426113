"""What scikit-learn's checks ask of numpy input, asked of dask, zarr and frames."""

import copy
import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from _support import (
    ESTIMATORS,
    ComputeForbiddenError,
    CountingFrame,
    CountingSource,
    assert_same_model,
    blobs,
    computed,
    counting_computes,
    counting_zarr,
    fit_recording,
    quick,
    raise_if_computes,
)
from dask.base import tokenize
from dask.delayed import delayed
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

pytestmark = pytest.mark.in_turn("cls")

X, TRUTH = blobs()
NAMES = ["alpha", "beta", "gamma", "delta", "epsilon"]
FRAME = pd.DataFrame(X, columns=NAMES)

each_estimator = pytest.mark.parametrize("cls", ESTIMATORS)


@pytest.fixture(autouse=True)
def _computing_in_this_thread():
    # Schedulers are compared elsewhere; here the overhead of threads would only cost time.
    with dask.config.set(scheduler="sync"):
        yield


def lazy(data=X, rows=60):
    return da.from_array(data, chunks=(rows, -1))


def without_row_counts(data=X, partitions=4):
    frame = pd.DataFrame(data, columns=NAMES[: data.shape[1]])
    return dd.from_pandas(frame, npartitions=partitions).to_dask_array()


def filtered():
    """Unknown row counts, and partitions that have lost all of their rows."""
    spread = np.vstack([X[:60], np.full((60, 5), 1e6), X[60:], np.full((30, 5), 1e6)])
    array = lazy(spread, 30)
    kept = array[array[:, 0] < 1e5]
    assert np.isnan(kept.shape[0])
    return kept


def as_zarr(data=X, chunks=(60, 3)):
    array = zarr.create_array({}, shape=data.shape, dtype=data.dtype, chunks=chunks)
    array[...] = data
    return array


FORMS = {
    "dask Array": lazy,
    "one block": lambda: lazy(X, -1),
    "ragged rows": lambda: da.from_array(X, chunks=((1, 100, 39, 100), -1)),
    "column chunks": lambda: da.from_array(X, chunks=(70, 2)),
    "zero-length chunks": lambda: da.from_array(X, chunks=((0, 90, 0, 0, 150, 0), (5,))),
    "unknown row counts": without_row_counts,
    "unknown row counts and column chunks": lambda: da.concatenate(
        [without_row_counts()[:, :2], without_row_counts()[:, 2:]],
        axis=1,
        allow_unknown_chunksizes=True,
    ),
    "filtered": filtered,
    "dask DataFrame": lambda: dd.from_pandas(FRAME, npartitions=4),
    "dask DataFrame without divisions": lambda: dd.from_pandas(FRAME, npartitions=4, sort=False),
    "pandas DataFrame": lambda: FRAME,
    "list": X.tolist,
    "zarr array": as_zarr,
    "zarr array in shards": lambda: as_sharded_zarr(),
    "dask Array from zarr": lambda: da.from_zarr(as_zarr()),
}


def as_sharded_zarr():
    array = zarr.create_array({}, shape=X.shape, dtype=X.dtype, chunks=(10, 5), shards=(80, 5))
    array[...] = X
    return array


@pytest.fixture(scope="module")
def fitted_to_numpy():
    return {cls: quick(cls).fit(X) for cls in ESTIMATORS}


# The same results as for numpy


@each_estimator
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_gives_what_numpy_gives(cls, form, fitted_to_numpy):
    data = FORMS[form]()
    model, reference = quick(cls).fit(data), fitted_to_numpy[cls]
    assert_same_model(model, reference)
    np.testing.assert_array_equal(computed(model.predict(data)), reference.labels_)
    np.testing.assert_allclose(
        computed(model.transform(data)), reference.transform(X), rtol=1e-9, atol=1e-9
    )
    assert model.score(data) == pytest.approx(reference.score(X), rel=1e-9)


@each_estimator
@pytest.mark.parametrize("init", ["random", "k-means||", "array"])
def test_seeding_and_given_centers_do_not_depend_on_the_form(cls, init):
    settings = {"init": X[:4] + 0.5 if init == "array" else init}
    assert_same_model(quick(cls, **settings).fit(lazy()), quick(cls, **settings).fit(X))
    assert_same_model(quick(cls, **settings).fit(filtered()), quick(cls, **settings).fit(X))


@each_estimator
@pytest.mark.parametrize("as_init", [pd.DataFrame, da.from_array, np.ndarray.tolist])
def test_init_may_be_anything_that_becomes_an_array(cls, as_init):
    given = quick(cls, init=as_init(X[:4])).fit(lazy())
    assert_same_model(given, quick(cls, init=X[:4]).fit(X))


@each_estimator
@pytest.mark.parametrize("seed", range(3))
def test_of_starts_that_end_alike_the_same_one_is_kept_whatever_the_rounding(cls, seed):
    # On clear clusters all starts find the same partition, in an order of their own; which of
    # them is returned must not hang on the last bit of a sum.
    model = quick(cls, n_init=6, random_state=seed).fit(X)
    for data in (np.asfortranarray(X), lazy(X, 7), lazy(X, 120)):
        assert_same_model(quick(cls, n_init=6, random_state=seed).fit(data), model)


@each_estimator
def test_labels_are_in_the_order_of_the_rows(cls):
    order = np.random.default_rng(3).permutation(len(X))
    labels = quick(cls).fit(lazy(X[order], 37)).labels_.compute()
    # The groups are far apart, so clusters and groups correspond one to one.
    assert len(set(zip(labels, TRUTH[order], strict=True))) == 4


@each_estimator
def test_predictions_do_not_depend_on_the_other_rows(cls, fitted_to_numpy):
    model = fitted_to_numpy[cls]
    whole = model.predict(X)
    np.testing.assert_array_equal(model.predict(lazy(X[::-1], 7)).compute(), whole[::-1])
    np.testing.assert_array_equal(
        np.concatenate([model.predict(lazy(X[i : i + 1])).compute() for i in range(20)]), whole[:20]
    )


@each_estimator
def test_training_labels_equal_predictions_bit_for_bit(cls):
    model = quick(cls).fit(lazy())
    np.testing.assert_array_equal(model.labels_.compute(), model.predict(lazy()).compute())
    np.testing.assert_array_equal(model.labels_.compute(), model.predict(X))


@each_estimator
def test_results_have_dtypes_and_shapes_that_are_true_before_computing(cls):
    model = quick(cls).fit(lazy())
    for result, shape in [
        (model.labels_, (240,)),
        (model.predict(lazy()), (240,)),
        (model.transform(lazy()), (240, 4)),
    ]:
        value = result.compute()
        assert isinstance(value, np.ndarray)
        assert result.shape == value.shape == shape
        assert result.dtype == value.dtype
        assert type(result._meta) is np.ndarray
        assert result.chunks[0] == (60, 60, 60, 60)
    assert model.labels_.dtype == np.int32


# Types of numbers

DTYPES = [
    *["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    *["float16", "float32", "float64", "longdouble", ">f2", ">f4", ">f8", ">i2", ">i4", ">u8"],
]
NARROW = {"bool", "int8", "int16", "uint8", "uint16", "float16", "float32"}
NARROW |= {">f2", ">f4", ">i2"}


def of_dtype(dtype):
    if dtype == "bool":
        return X.mean(axis=0) < X
    return (X - X.min() if np.dtype(dtype).kind == "u" else X).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@each_estimator
def test_a_dtype_gives_what_its_values_give_in_float64(cls, dtype):
    narrow = of_dtype(dtype)
    wide = narrow.astype(np.float64)
    reference = quick(cls).fit(wide)
    for data in (narrow, lazy(narrow)):
        model = quick(cls).fit(data)
        assert_same_model(model, reference)
        assert model.cluster_centers_.dtype == np.float64
        assert model.labels_.dtype == np.int32
        np.testing.assert_array_equal(computed(model.predict(data)), reference.labels_)
        np.testing.assert_allclose(
            computed(model.transform(data)), reference.transform(wide), rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_distances_are_float32_for_narrow_types_and_float64_for_wide_ones(dtype, fitted_to_numpy):
    expected = np.float32 if dtype in NARROW else np.float64
    data = of_dtype(dtype)
    model = fitted_to_numpy[KMeans]
    assert model.transform(data).dtype == expected
    assert model.transform(lazy(data)).dtype == expected
    assert model.transform(lazy(data)).compute().dtype == expected


@each_estimator
@pytest.mark.parametrize("layout", ["Fortran", "strided", "reversed", "read-only"])
def test_memory_layout_does_not_matter(cls, layout, fitted_to_numpy):
    if layout == "Fortran":
        data = np.asfortranarray(X)
    elif layout == "strided":
        data = np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3]
    elif layout == "reversed":
        data = np.ascontiguousarray(X[::-1])[::-1]
    else:
        data = X.copy()
        data.flags.writeable = False
    assert_same_model(quick(cls).fit(data), fitted_to_numpy[cls])
    assert_same_model(quick(cls).fit(lazy(data)), fitted_to_numpy[cls])
    np.testing.assert_array_equal(
        fitted_to_numpy[cls].predict(lazy(data)).compute(), fitted_to_numpy[cls].labels_
    )


@pytest.mark.parametrize("kind", ["Int64", "Float64", "float32", "double[pyarrow]", "mixed"])
def test_frames_of_any_number_type_give_the_same_model(kind):
    values = X.round()
    frame = pd.DataFrame(values, columns=NAMES)
    if kind == "mixed":
        frame = frame.astype({"alpha": "int8", "beta": "float32", "gamma": "Int64"})
        frame["delta"] = values[:, 3] = values[:, 3] > 0
    else:
        frame = frame.astype(kind)
    reference = quick(KMeans).fit(values)
    assert_same_model(quick(KMeans).fit(frame), reference)
    assert_same_model(quick(KMeans).fit(dd.from_pandas(frame, npartitions=3)), reference)


# Names and numbers of features


@each_estimator
@pytest.mark.parametrize("frame", [FRAME, dd.from_pandas(FRAME, npartitions=3)], ids=["pd", "dd"])
def test_frames_name_their_features(cls, frame):
    model = quick(cls).fit(frame)
    assert model.feature_names_in_.tolist() == NAMES
    assert model.n_features_in_ == 5
    for method in (model.predict, model.transform, model.score):
        with pytest.raises(ValueError, match="feature names should match"):
            method(frame.rename(columns={"alpha": "omega"}))
        expected = computed(method(frame))
        # Rows that lie otherwise in memory may be rounded otherwise.
        found = computed(method(frame[NAMES[::-1]].assign(z="x")))
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@each_estimator
def test_arrays_have_no_feature_names(cls):
    model = quick(cls).fit(dd.from_pandas(FRAME, npartitions=3))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(lazy())
    assert not hasattr(model.fit(lazy()), "feature_names_in_")
    assert model.n_features_in_ == 5


@each_estimator
@pytest.mark.parametrize(
    "other", [lazy(X[:, :4]), X[:, :4], as_zarr(np.ascontiguousarray(X[:, 1:]))]
)
def test_another_number_of_features_is_refused_without_reading(cls, other):
    model = quick(cls).fit(lazy())
    with raise_if_computes():
        for method in (model.predict, model.transform, model.score):
            with pytest.raises(ValueError, match=r"4 features, but .* is expecting 5 features"):
                method(other)


@each_estimator
def test_columns_of_the_output_are_named_by_class_and_number(cls):
    model = quick(cls).fit(lazy())
    prefix = cls.__name__.lower()
    assert model.get_feature_names_out().tolist() == [f"{prefix}{j}" for j in range(4)]


@each_estimator
def test_pandas_output_of_data_in_memory_keeps_their_index(cls):
    model = quick(cls).set_output(transform="pandas").fit(lazy())
    index = pd.Index(np.arange(240) + 1000)
    for data in (X, FRAME.set_index(index)):
        expected = quick(cls).fit(X).transform(X)
        model.fit(data)
        output = model.transform(data)
        assert output.columns.tolist() == model.get_feature_names_out().tolist()
        np.testing.assert_allclose(output.to_numpy(), expected, rtol=1e-9)
    assert output.index.equals(index)


# Sample weights

WEIGHTS = np.random.default_rng(5).integers(0, 4, 240).astype(float)


def weighted_frame():
    return dd.from_pandas(FRAME.assign(weight=WEIGHTS), npartitions=4)


WEIGHTED = {
    "numpy": lambda: (lazy(), WEIGHTS),
    "list": lambda: (lazy(), WEIGHTS.tolist()),
    "integers": lambda: (lazy(), WEIGHTS.astype(np.int8)),
    "float32": lambda: (lazy(), WEIGHTS.astype(np.float32)),
    "pandas Series": lambda: (lazy(), pd.Series(WEIGHTS)),
    "nullable pandas Series": lambda: (lazy(), pd.Series(WEIGHTS, dtype="Int64")),
    "dask, same chunks": lambda: (lazy(), da.from_array(WEIGHTS, chunks=60)),
    "dask, other chunks": lambda: (lazy(), da.from_array(WEIGHTS, chunks=77)),
    "zarr rows, dask weights": lambda: (as_zarr(), da.from_array(WEIGHTS, chunks=77)),
    "zero-length chunks": lambda: (
        FORMS["zero-length chunks"](),
        da.from_array(WEIGHTS, chunks=100),
    ),
    "numpy rows, dask weights": lambda: (X, da.from_array(WEIGHTS, chunks=77)),
    "numpy rows, column of a dask DataFrame": lambda: (X, weighted_frame()["weight"]),
    "column of the same DataFrame": lambda: (
        (frame := weighted_frame())[NAMES],
        frame["weight"],
    ),
    "nullable column": lambda: (
        (frame := weighted_frame())[NAMES],
        frame["weight"].astype("Float64"),
    ),
    "known rows, unknown weights": lambda: (lazy(), weighted_frame()["weight"]),
    "unknown rows, known weights": lambda: (
        without_row_counts(),
        da.from_array(WEIGHTS, chunks=60),
    ),
    "both filtered": lambda: (
        (frame := weighted_frame())[frame.weight > 0][NAMES],
        frame[frame.weight > 0]["weight"],
    ),
}


@pytest.mark.filterwarnings("ignore:Dask currently has limited support:UserWarning")
@each_estimator
@pytest.mark.parametrize("form", WEIGHTED)
def test_sample_weights_of_every_form_give_the_same_model(cls, form):
    data, weights = WEIGHTED[form]()
    # From given centres, since rows without weight are not there to be drawn when filtered.
    model = quick(cls, init=X[:4] + 0.5).fit(data, sample_weight=weights)
    reference = quick(cls, init=X[:4] + 0.5).fit(X, sample_weight=WEIGHTS)
    if form == "both filtered":
        reference.labels_ = reference.labels_[WEIGHTS > 0]
    assert_same_model(model, reference)
    assert model.score(data, sample_weight=weights) == pytest.approx(-model.inertia_, rel=1e-9)


@each_estimator
def test_weights_whose_partitions_do_not_match_the_rows_are_not_used_wrongly(cls):
    # As many partitions as X, but not of the same lengths: rows must not meet wrong weights.
    frame = weighted_frame().repartition(divisions=[0, 30, 150, 160, 239])
    model, refusal = quick(cls, init=X[:4]), None
    try:
        model.fit(without_row_counts(), sample_weight=frame["weight"])
    except ValueError as error:
        refusal = error
    if refusal is None:
        assert_same_model(model, quick(cls, init=X[:4]).fit(X, sample_weight=WEIGHTS))
    else:
        assert "sample_weight" in str(refusal)


@each_estimator
def test_weights_of_one_are_no_weights(cls, fitted_to_numpy):
    assert_same_model(
        quick(cls).fit(lazy(), sample_weight=da.ones(240, chunks=100)), fitted_to_numpy[cls]
    )


# Objects: clone, pickle, parameters, fitting again


@each_estimator
def test_cloning_keeps_parameters_and_forgets_the_fit(cls):
    model = quick(cls, init=X[:4], tol=1e-3).fit(lazy())
    fresh = clone(model)
    assert not hasattr(fresh, "cluster_centers_")
    assert fresh.get_params().keys() == model.get_params().keys()
    np.testing.assert_array_equal(fresh.init, model.init)
    assert_same_model(fresh.fit(lazy()), model)


@each_estimator
@pytest.mark.parametrize("via", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy])
def test_a_pickled_model_predicts_the_same(cls, via):
    model = quick(cls).fit(lazy())
    again = via(model)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.inertia_ == model.inertia_
    assert again.history_ == model.history_
    assert again.get_params() == model.get_params()


@each_estimator
def test_a_pickled_model_does_not_carry_the_data(cls):
    rows, _ = blobs(50_000)
    weights = da.ones(50_000, chunks=7_000)
    model = quick(cls, n_init=1).fit(lazy(rows, 10_000), sample_weight=weights)
    data = pickle.dumps(model)
    assert len(data) < 30_000 < rows.nbytes
    assert not hasattr(pickle.loads(data), "labels_")
    # The model in hand keeps its labels.
    assert model.labels_.shape == (50_000,)


@each_estimator
def test_a_pickled_model_of_data_in_memory_keeps_its_labels(cls, fitted_to_numpy):
    again = pickle.loads(pickle.dumps(fitted_to_numpy[cls]))
    np.testing.assert_array_equal(again.labels_, fitted_to_numpy[cls].labels_)


@each_estimator
@pytest.mark.parametrize("form", ["dask Array", "unknown row counts", "dask DataFrame", "list"])
def test_fitting_changes_neither_parameters_nor_input(cls, form):
    data = FORMS[form]()
    before = copy.deepcopy(computed(data))
    chunks = getattr(data, "chunks", None)
    known = chunks is not None and not np.isnan(data.shape[0])
    weights = WEIGHTS.copy() if known or isinstance(data, list) else None
    model = quick(cls)
    parameters = copy.deepcopy(model.get_params())
    model.fit(data, sample_weight=weights)
    model.predict(data)
    assert model.get_params() == parameters
    if weights is not None:
        np.testing.assert_array_equal(weights, WEIGHTS)
    np.testing.assert_array_equal(computed(data), before)
    # Unknown row counts are counted for the fit, not written into the user's array.
    assert str(getattr(data, "chunks", None)) == str(chunks)


@each_estimator
def test_predicting_changes_nothing_in_the_model(cls):
    model = quick(cls).fit(lazy())
    before = {
        name: copy.deepcopy(value) for name, value in vars(model).items() if name != "labels_"
    }
    model.predict(lazy()).compute()
    model.transform(X)
    model.score(lazy())
    for name, value in before.items():
        np.testing.assert_equal(vars(model)[name], value)


@each_estimator
@pytest.mark.parametrize("form", ["dask Array", "dask DataFrame", "zarr array"])
def test_fitting_twice_gives_the_same_bits(cls, form):
    data = FORMS[form]()
    model = quick(cls).fit(data)
    again = quick(cls).fit(data)
    refitted = copy.deepcopy(model).fit(lazy(X[:100], 20)).fit(data)
    for other in (again, refitted):
        np.testing.assert_array_equal(other.cluster_centers_, model.cluster_centers_)
        np.testing.assert_array_equal(other.objective_history_, model.objective_history_)
        assert other.inertia_ == model.inertia_
        np.testing.assert_array_equal(other.labels_.compute(), model.labels_.compute())


@each_estimator
def test_fitting_other_data_leaves_nothing_behind(cls):
    model = quick(cls).fit(dd.from_pandas(FRAME, npartitions=2))
    model.set_params(n_clusters=3).fit(lazy(X[:90, :2], 30))
    assert_same_model(model, quick(cls, n_clusters=3).fit(X[:90, :2]))
    assert not hasattr(model, "feature_names_in_")
    assert model.get_feature_names_out().shape == (3,)


@each_estimator
def test_fit_predict_and_fit_transform_equal_fit_and_then_the_other(cls, fitted_to_numpy):
    reference = fitted_to_numpy[cls]
    labels = quick(cls).fit_predict(lazy())
    assert isinstance(labels, da.Array)
    np.testing.assert_array_equal(labels.compute(), reference.labels_)
    distances = quick(cls).fit_transform(lazy())
    assert isinstance(distances, da.Array)
    np.testing.assert_allclose(distances.compute(), reference.transform(X), rtol=1e-9)
    weighted = quick(cls).fit_predict(lazy(), sample_weight=WEIGHTS)
    np.testing.assert_array_equal(weighted.compute(), quick(cls).fit(X, None, WEIGHTS).labels_)


@each_estimator
def test_inertia_is_the_negative_of_the_score(cls):
    for data, weights in [(lazy(), None), (X, None), (lazy(), WEIGHTS), (X, WEIGHTS)]:
        model = quick(cls).fit(data, sample_weight=weights)
        score = model.score(data, sample_weight=weights)
        assert isinstance(score, float)
        assert score == pytest.approx(-model.inertia_, rel=1e-12)


@each_estimator
def test_distances_are_unsquared_and_in_the_scale_of_the_model(cls):
    model = quick(cls).fit(lazy())
    feature_weights = getattr(model, "feature_weights_", np.ones(5))
    differences = (X[:, None] - model.cluster_centers_) / model.scale_
    expected = np.sqrt((feature_weights * differences**2).sum(axis=2))
    distances = model.transform(lazy()).compute()
    np.testing.assert_allclose(distances, expected, rtol=1e-9)
    np.testing.assert_array_equal(distances.argmin(axis=1), model.labels_.compute())
    assert (distances.min(axis=1) ** 2).sum() == pytest.approx(model.inertia_, rel=1e-9)


# Laziness


@each_estimator
@pytest.mark.parametrize(
    "form", ["dask Array", "unknown row counts", "dask DataFrame", "zarr array"]
)
def test_results_compute_nothing_until_asked(cls, form):
    data = FORMS[form]()
    model = quick(cls).fit(data)
    with raise_if_computes():
        results = [model.labels_, model.predict(data), model.transform(data)]
        with pytest.raises(ComputeForbiddenError):
            results[0].compute()
    kind = dd.Series if form == "dask DataFrame" else da.Array
    assert [type(result) for result in results] == [kind, kind, da.Array]
    labels, predicted, distances = (result.compute() for result in results)
    np.testing.assert_array_equal(labels, predicted)
    np.testing.assert_array_equal(labels, distances.argmin(axis=1))


@each_estimator
@pytest.mark.parametrize("form", ["dask Array", "unknown row counts", "filtered"])
def test_labels_have_known_chunks_after_the_fit(cls, form):
    model = quick(cls).fit(FORMS[form]())
    assert model.labels_.shape == (240,)
    assert sum(model.labels_.chunks[0]) == 240
    with raise_if_computes():
        model.labels_.rechunk(50)
    lengths = [len(block.compute()) for block in model.labels_.to_delayed()]
    assert tuple(lengths) == model.labels_.chunks[0]


@each_estimator
def test_fits_to_lazy_rows_compute_through_dask(cls):
    with raise_if_computes(), pytest.raises(ComputeForbiddenError):
        quick(cls).fit(lazy())


@each_estimator
@pytest.mark.parametrize("data", [X, FRAME, X.tolist(), X.astype(np.float32)])
def test_data_in_memory_never_reach_a_dask_scheduler(cls, data):
    with raise_if_computes():
        model = quick(cls).fit(data, sample_weight=WEIGHTS)
        assert isinstance(model.labels_, np.ndarray)
        assert isinstance(model.predict(data), np.ndarray)
        assert isinstance(model.transform(data), np.ndarray)
        model.score(data)


def test_data_in_memory_never_reach_an_active_distributed_client():
    import distributed

    rows, _ = blobs(20_000)  # several blocks
    with (
        dask.config.set(scheduler=None),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster),
    ):
        before = cluster.scheduler.transition_counter
        model = quick(PowerKMeans).fit(rows)
        model.predict(rows)
        model.score(rows)
        assert cluster.scheduler.transition_counter == before
        # The client is indeed the one that lazy input goes to.
        model.score(lazy(rows, 5_000))
        assert cluster.scheduler.transition_counter > before


# Passes


def loads_per_block(reads, n_blocks):
    """How often each block was read, which must be the same for all."""
    assert len(reads) == n_blocks
    assert len(set(reads.values())) == 1, reads
    return next(iter(reads.values()))


@each_estimator
@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"n_init": "auto"}, None),
        ({"n_init": "auto"}, "numpy"),
        ({"n_init": "auto"}, "dask"),
        ({"n_init": 3}, None),
        ({"n_init": 2, "init": "k-means||"}, "dask"),
        ({"init": X[:4]}, None),
        ({"init": "random"}, None),
        ({"max_iter": 3, "tol": 0}, None),
    ],
    ids=[
        *["defaults", "numpy weights", "dask weights", "three starts", "k-means||"],
        *["given centers", "random", "exactly three iterations"],
    ],
)
def test_a_pass_is_one_compute_that_loads_every_block_once(cls, settings, weights):
    source = CountingSource(X)
    data = source.as_dask((50, -1))
    given = {None: None, "numpy": WEIGHTS, "dask": da.from_array(WEIGHTS, chunks=77)}[weights]
    model = cls(**{"n_clusters": 4, "random_state": 0} | settings)
    with counting_computes() as computes:
        model.fit(data, sample_weight=given)
    assert loads_per_block(source.reads, 5) == model.n_passes_ == len(computes)
    # The first pass, and one that scores unless the last hard step did; k-means|| draws in five
    # and weighs in one.
    seeding = 6 if str(settings.get("init")) == "k-means||" else 0
    scoring = 0 if model.tol > 0 else model.n_passes_ - model.n_iter_ - 1
    assert model.n_passes_ == model.n_iter_ + seeding + 1 + scoring
    assert scoring in (0, 1)
    if not isinstance(model.init, str):  # one start
        assert model.n_iter_ == len(model.history_)
    assert [record.n_passes for record in model.history_] == list(
        range(2 + seeding, 2 + seeding + len(model.history_))
    )


@each_estimator
def test_defaults_take_at_most_three_passes_more_than_iterations(cls):
    source = CountingSource(X)
    data = source.as_dask((50, -1))
    model = cls(n_clusters=4, random_state=0).fit(data)
    assert loads_per_block(source.reads, 5) == model.n_passes_ <= model.n_iter_ + 3
    in_memory = cls(n_clusters=4, random_state=0).fit(X)
    assert in_memory.n_passes_ <= in_memory.n_iter_ + 3


@each_estimator
def test_unknown_row_counts_cost_one_pass_more(cls):
    source = CountingFrame(FRAME)
    frame = source.as_dask()
    with counting_computes() as computes:
        model = cls(n_clusters=4, random_state=0).fit(frame)
    assert loads_per_block(source.reads, 4) == model.n_passes_ == len(computes)
    assert model.n_passes_ == model.n_iter_ + 2


@each_estimator
@pytest.mark.parametrize("weights", ["last column", "mapped"])
def test_weights_taken_from_the_data_do_not_read_them_twice(cls, weights):
    source = CountingSource(np.column_stack([X, WEIGHTS]))
    data = source.as_dask((50, -1))
    if weights == "last column":
        rows, given = data[:, :5], data[:, 5]
    else:
        rows, given = (
            data,
            data.map_blocks(lambda block: block[:, 5], drop_axis=1, meta=np.empty(0)),
        )
    model = quick(cls).fit(rows, sample_weight=given)
    assert loads_per_block(source.reads, 5) == model.n_passes_


@each_estimator
def test_a_column_of_weights_does_not_read_a_frame_twice(cls):
    source = CountingFrame(FRAME.assign(weight=WEIGHTS))
    frame = source.as_dask()
    model = quick(cls).fit(frame[NAMES], sample_weight=frame["weight"])
    assert loads_per_block(source.reads, 4) == model.n_passes_


@each_estimator
@pytest.mark.parametrize("chunks", [(50, 5), (50, 2), (240, 5)])
def test_every_chunk_of_a_zarr_array_is_read_once_per_pass(cls, chunks):
    array, store = counting_zarr(X, chunks)
    n_chunks = -(-240 // chunks[0]) * -(-5 // chunks[1])
    with counting_computes() as computes:
        model = quick(cls).fit(array)
    assert loads_per_block(store.reads, n_chunks) == model.n_passes_ == len(computes)


@each_estimator
def test_assignment_reads_every_block_once(cls):
    source = CountingSource(X)
    data = source.as_dask((50, -1))
    model = quick(cls).fit(lazy())
    source.reads.clear()
    for use in (
        lambda: model.predict(data).compute(),
        lambda: model.transform(data).compute(),
        lambda: model.score(data),
        lambda: model.score(data, sample_weight=WEIGHTS),
    ):
        with counting_computes() as computes:
            use()
        assert loads_per_block(source.reads, 5) == len(computes) == 1
        source.reads.clear()


def test_several_starts_share_their_passes_and_the_best_is_kept():
    rows, _ = blobs(300, 2, 30, seed=4)
    settings = {"n_clusters": 30, "init": "random", "random_state": 2}
    source = CountingSource(rows)
    model = KMeans(n_init=5, **settings)
    fit_recording(model, source.as_dask((100, -1)))
    assert loads_per_block(source.reads, 3) == model.n_passes_ == model.n_iter_ + 1
    single = KMeans(n_init=1, **settings)
    fit_recording(single, lazy(rows, 100))
    assert model.inertia_ < single.inertia_


@each_estimator
def test_callbacks_see_one_record_per_iteration(cls):
    records = []
    model = quick(cls, n_init=1, callbacks=[records.append]).fit(lazy())
    assert records == model.history_
    assert [record.iteration for record in records] == list(range(1, model.n_iter_ + 1))
    assert model.objective_history_.tolist() == [record.objective for record in records]


@each_estimator
def test_methods_before_a_fit_say_so(cls):
    for method in ("predict", "transform", "score"):
        with raise_if_computes(), pytest.raises(NotFittedError):
            getattr(cls(), method)(lazy())


def test_standardizing_lazy_data_equals_standardizing_by_hand():
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    inside = quick(KMeans, init=X[:4], standardize=True).fit(lazy())
    outside = quick(KMeans, init=z[:4]).fit(z)
    np.testing.assert_allclose(
        (inside.cluster_centers_ - X.mean(axis=0)) / X.std(axis=0),
        outside.cluster_centers_,
        rtol=1e-9,
    )
    assert inside.inertia_ == pytest.approx(outside.inertia_, rel=1e-9)
    assert isinstance(quick(EntropyPowerKMeans).fit(lazy()).scale_, np.ndarray)


@each_estimator
def test_dask_tells_fitted_models_with_equal_parameters_apart(cls):
    rows = np.random.default_rng(0).normal(size=(60, 3))
    one, other, unfitted = (quick(cls, random_state=0) for _ in range(3))
    one.fit(rows)
    other.fit(3 * rows + 5)
    assert len({tokenize(model) for model in (one, other, unfitted)}) == 3
    assert delayed(lambda model: model.labels_.sum())(one).compute() == one.labels_.sum()
