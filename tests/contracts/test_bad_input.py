"""Input that cannot be used is refused at once and clearly; odd input that can be, is used."""

import re
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from _support import (
    ANNEALED,
    ESTIMATORS,
    ComputeForbiddenError,
    assert_same_model,
    blobs,
    computed,
    fit_recording,
    quick,
    raise_if_computes,
)
from sklearn.exceptions import NotFittedError

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

pytestmark = pytest.mark.in_turn("cls")

X, TRUTH = blobs()
NAMES = ["alpha", "beta", "gamma", "delta", "epsilon"]
FRAME = pd.DataFrame(X, columns=NAMES)

each_estimator = pytest.mark.parametrize("cls", ESTIMATORS)
each_annealed = pytest.mark.parametrize("cls", ANNEALED)


@pytest.fixture(autouse=True)
def _computing_in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def lazy(data=X, rows=60):
    return da.from_array(data, chunks=(rows, -1))


def refusal(estimator, X, error=ValueError, **fit):
    """Message of the error that a fit raises before its first iteration."""
    iterations = []
    estimator.set_params(callbacks=[iterations.append])
    with pytest.raises(error) as caught:
        estimator.fit(X, **fit)
    assert not iterations
    return str(caught.value)


def with_value(value, row=200, feature=3, data=X):
    spoiled = data.copy()
    spoiled[row, feature] = value
    return spoiled


# Values that are not finite

BAD_VALUES = [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")]


@each_estimator
@pytest.mark.parametrize(("value", "name"), BAD_VALUES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ">f4"])
def test_values_that_are_not_finite_are_named_with_block_and_row(cls, value, name, dtype):
    data = with_value(value).astype(dtype)
    message = refusal(quick(cls), lazy(data))
    assert f"X contains {name}" in message
    assert "block 3, row 20 of the block (row 200 of the data), feature 3" in message
    message = refusal(quick(cls), data)
    assert f"X contains {name}" in message
    assert "row 200 of the data), feature 3" in message


@each_estimator
@pytest.mark.parametrize("form", ["dask DataFrame", "unknown row counts", "filtered"])
def test_the_row_is_right_where_row_counts_were_unknown(cls, form):
    frame = dd.from_pandas(pd.DataFrame(with_value(np.nan), columns=NAMES), npartitions=4)
    if form == "unknown row counts":
        frame = frame.to_dask_array()
    if form == "filtered":
        array = lazy(with_value(np.nan))
        frame = array[da.arange(240, chunks=60) % 2 == 0]
        message = refusal(quick(cls), frame)
        assert "block 3, row 10 of the block (row 100 of the data), feature 3" in message
        return
    message = refusal(quick(cls), frame)
    assert "block 3, row 20 of the block (row 200 of the data), feature 3" in message


def test_the_first_bad_value_of_a_large_table_in_memory_is_found():
    rows, _ = blobs(60_000, 4)
    rows[41_000, 2] = rows[59_999, 0] = np.nan
    assert "(row 41000 of the data), feature 2" in refusal(quick(KMeans), rows)


def test_infinities_of_both_signs_do_not_hide_each_other():
    data = with_value(np.inf)
    data[201, 3] = -np.inf
    assert "row 200 of the data" in refusal(quick(KMeans), data)


@each_estimator
@pytest.mark.parametrize(("value", "name"), BAD_VALUES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_values_that_are_not_finite_are_refused_by_predict(cls, value, name, dtype):
    model = quick(cls).fit(X)
    data = with_value(value).astype(dtype)
    for method in (model.predict, model.transform, model.score):
        with pytest.raises(ValueError, match=rf"X contains {name}.*row 200 of the data"):
            method(data)
        with pytest.raises(ValueError, match=rf"X contains {name}: block 3, row 20 of the block"):
            computed(method(lazy(data)))


@each_estimator
def test_predict_claims_no_row_of_the_data_where_it_cannot_know_it(cls):
    model = quick(cls).fit(X)
    unknown = dd.from_pandas(pd.DataFrame(with_value(np.nan)), npartitions=4).to_dask_array()
    for method in (model.predict, model.transform, model.score):
        with pytest.raises(ValueError, match="block 3, row 20 of the block") as caught:
            computed(method(unknown))
        assert "row 20 of the data" not in str(caught.value)


@each_estimator
@pytest.mark.parametrize("value", [1e300, -1e200])
def test_values_whose_squares_overflow_are_refused(cls, value):
    for data in (with_value(value), lazy(with_value(value))):
        message = refusal(quick(cls), data)
        assert "X has values so large that their squares overflow" in message
        assert "feature 3" in message


@each_estimator
def test_overflow_between_blocks_is_refused_too(cls):
    # Each block is constant, so only the merging of their moments overflows.
    rows = np.repeat([[1e300] * 3, [-1e300] * 3], 120, axis=0)
    assert "overflow" in refusal(quick(cls), lazy(rows, 120))


@each_estimator
@pytest.mark.parametrize("value", [1e300, 1.7e308])
def test_predict_refuses_values_whose_distances_overflow(cls, value):
    model = quick(cls).fit(X / 100)
    for data in (with_value(value), lazy(with_value(value))):
        for method in (model.predict, model.transform, model.score):
            with pytest.raises(ValueError, match=r"X .*(large|overflow)"):
                computed(method(data))


# Tables that are none


@each_estimator
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (X[:, 0], "Expected 2D array"),
        (lazy()[:, 0], "Expected 2D array"),
        (X[None], "dim 3"),
        (lazy()[None], "Expected 2D array"),
        (pd.Series(X[:, 0]), "2-dimensional|2D"),
        (dd.from_pandas(pd.Series(X[:, 0]), npartitions=2), "2-dimensional|2D"),
        (np.float64(3.0), "2D array"),
        (X[:0], "0 sample"),
        (lazy()[:0], "0 sample"),
        (FRAME.iloc[:0], "0 sample"),
        (dd.from_pandas(FRAME, npartitions=3).query("alpha > 1e6"), "0 sample"),
        (X[:, :0], "0 feature"),
        (lazy()[:, :0], "0 feature"),
        (FRAME[[]], "0 feature|no columns"),
        (dd.from_pandas(FRAME, npartitions=3)[[]], "0 feature|no columns"),
        (X * 1j, "Complex data not supported"),
        (lazy() * 1j, "Complex data not supported"),
        (dd.from_pandas(FRAME * 1j, npartitions=2), "Complex data not supported"),
        (X.astype("U"), "numeric"),
        (X.astype("S"), "numeric"),
        (lazy().astype("U"), "X has dtype .* not numeric"),
        (X.astype("M8[s]"), "X has dtype|numeric"),
        (lazy().astype("M8[s]"), "X has dtype .* not numeric"),
        (np.array([["a", 1.0], ["b", 2.0]], dtype=object), "X has dtype object, and row 0"),
        (np.array([[1, 2], [3, 4], ["c", 5]], dtype=object), "X has dtype object, and row 2"),
        (np.array([[1, 2], [3, None]], dtype=object), "X .*row 1"),
        (lazy().astype(object), "X has dtype object"),
        (lazy(np.array([["a", 1], ["b", 2]], dtype=object), 1), "X has dtype object"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__module__.split(".")[0],
)
def test_what_is_no_table_of_numbers_is_refused(cls, data, words):
    estimator = quick(cls, n_clusters=1)
    with pytest.raises((ValueError, TypeError), match=words):
        estimator.fit(data)
    # Not by chance in some block: nothing that a fit stores is there.
    assert not hasattr(estimator, "cluster_centers_")


@each_estimator
def test_objects_that_are_numbers_are_read_as_numbers(cls):
    assert_same_model(quick(cls).fit(X.astype(object)), quick(cls).fit(X))


@each_estimator
@pytest.mark.parametrize("kind", ["text", "category", "time"])
@pytest.mark.parametrize("library", ["pandas", "dask"])
def test_columns_that_are_not_numbers_are_named(cls, kind, library):
    values = {
        "text": "a",
        "category": pd.Categorical(["a"] * 240),
        "time": pd.Timestamp("2020-01-01"),
    }
    frame = FRAME.assign(**{f"a {kind} column": values[kind]})
    if library == "dask":
        frame = dd.from_pandas(frame, npartitions=3)
    with raise_if_computes():
        message = refusal(quick(cls), frame)
    assert f"X has columns that are not numeric: 'a {kind} column'" in message
    assert 'distortion="mixed"' in message
    assert "alpha" not in message


@pytest.mark.parametrize("library", ["pandas", "dask"])
def test_columns_of_one_name_are_named(library):
    frame = pd.DataFrame(np.zeros((10, 3)), columns=["a", "b", "a"])
    if library == "dask":
        frame = dd.from_pandas(frame, npartitions=2)
    with pytest.raises(ValueError, match="X has several columns named 'a'"):
        quick(KMeans).fit(frame)


@pytest.mark.parametrize("kind", ["Int64", "Float64", "double[pyarrow]"])
@pytest.mark.parametrize("library", ["pandas", "dask"])
def test_missing_values_of_nullable_columns_are_found(kind, library):
    frame = FRAME.round().astype(kind)
    frame.iloc[200, 3] = pd.NA
    if library == "dask":
        frame = dd.from_pandas(frame, npartitions=4)
    message = refusal(quick(KMeans), frame)
    assert "X contains NaN" in message
    assert "(row 200 of the data), feature 3" in message


@each_estimator
@pytest.mark.parametrize("collection", [dask.delayed(X), dask.delayed(X.tolist())])
def test_other_dask_collections_are_refused(cls, collection):
    assert "X must be a numpy array, a dask array" in refusal(quick(cls), collection, TypeError)


# Parameters

WRONG = [
    (ESTIMATORS, "n_clusters", [0, -1, 2.0, "3", None]),
    (ESTIMATORS, "init", ["kmeans++", None, 3]),
    (ESTIMATORS, "n_init", [0, -1, 1.5, "all"]),
    (ESTIMATORS, "max_iter", [0, -1, 10.0]),
    (ESTIMATORS, "tol", [-1e-9, np.nan, "small"]),
    (ESTIMATORS, "random_state", [-1, "seed", 1.5]),
    (ESTIMATORS, "standardize", [None, "yes"]),
    (ESTIMATORS, "empty_cluster", ["drop", None]),
    (ESTIMATORS, "callbacks", [print, 3]),
    (ANNEALED, "s0", [0, 0.0, 0.5, 1, 1.0, 2, np.inf, np.nan, "hot", None]),
    (ANNEALED, "eta", [0.999, 0, -1, np.nan, "1.05"]),
    (ANNEALED, "anneal_every", [0, -1, 1.5]),
    (ANNEALED, "polish", [None, "no"]),
    ([EntropyPowerKMeans], "lam", [0, 0.0, -1, np.nan, "large", None]),
]


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [(cls, name, v) for classes, name, values in WRONG for cls in classes for v in values],
)
def test_wrong_parameters_are_named_without_reading_data(cls, name, value):
    with raise_if_computes():
        for data in (X, lazy()):
            with pytest.raises(ValueError, match=f"The '{name}' parameter of {cls.__name__}"):
                cls(**{name: value}).fit(data)


@pytest.mark.parametrize("path", ["table.csv", Path("table.zarr")])
def test_a_path_as_x_is_refused_with_how_to_open_it(path):
    with pytest.raises(TypeError, match=r"X is a path\. Open it first"):
        KMeans(2).fit(path)


@each_estimator
def test_a_callback_that_cannot_be_called_is_refused_before_reading(cls):
    with raise_if_computes(), pytest.raises((ValueError, TypeError), match="callbacks"):
        cls(callbacks=["print"]).fit(lazy())


@each_estimator
@pytest.mark.parametrize(
    ("init", "words"),
    [
        (X[:3], r"init has shape \(3, 5\); with n_clusters=4 and 5 features it must be \(4, 5\)"),
        (X[:5], r"init has shape \(5, 5\)"),
        (X[:4, :4], r"init has shape \(4, 4\)"),
        (X[0], r"init has shape \(5,\)"),
        (X[None, :4], r"init has shape \(1, 4, 5\)"),
        (np.empty((0, 5)), r"init has shape \(0, 5\)"),
        ([], r"init has shape \(0,\)"),
        (np.where(np.arange(20).reshape(4, 5) == 7, np.nan, X[:4]), "init contains NaN"),
        (np.where(np.arange(20).reshape(4, 5) == 7, np.inf, X[:4]), "init contains .*infinity"),
        ([["a"] * 5] * 4, "init must be an array of numbers"),
        (np.full((4, 5), None), "init must be an array of numbers|init contains NaN"),
        ([[1.0, 2.0], [3.0]], "init must be an array of numbers"),
        (scipy.sparse.csr_array(X[:4]), "init"),
    ],
    ids=range(13),
)
def test_wrong_given_centers_are_refused_without_reading_data(cls, init, words):
    with raise_if_computes():
        for data in (X, lazy()):
            with pytest.raises((ValueError, TypeError), match=words):
                quick(cls, init=init).fit(data)


@each_estimator
@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random", "given"])
def test_more_clusters_than_rows_are_refused(cls, init):
    settings = {"n_clusters": 6, "init": np.ones((6, 5)) if init == "given" else init}
    expected = "n_samples=5 should be >= n_clusters=6"
    assert expected in refusal(quick(cls, **settings), X[:5])
    with raise_if_computes():  # the number of rows is known
        assert expected in refusal(quick(cls, **settings), lazy(X[:5], 2))
    frame = dd.from_pandas(FRAME[:5], npartitions=2)
    assert expected in refusal(quick(cls, **settings), frame)


@each_estimator
@pytest.mark.parametrize(
    "method", ["predict", "transform", "score", "save", "get_feature_names_out"]
)
def test_methods_before_a_fit_raise_not_fitted_error(cls, method, tmp_path):
    arguments = {"save": [tmp_path / "model"], "get_feature_names_out": []}.get(method, [X])
    with pytest.raises(NotFittedError, match="not fitted"):
        getattr(cls(), method)(*arguments)
    assert not (tmp_path / "model").exists()


@each_estimator
def test_a_refused_fit_leaves_no_half_fitted_model(cls):
    estimator = quick(cls)
    refusal(estimator, with_value(np.nan))
    with pytest.raises(NotFittedError):
        estimator.predict(X)


# Sample weights


def weights_with(value):
    return np.where(np.arange(240) == 200, value, 1.0)


@each_estimator
@pytest.mark.parametrize("value", [-1.0, -np.inf, np.nan, np.inf])
@pytest.mark.parametrize("rows", [X, lazy()], ids=["numpy", "dask"])
def test_bad_sample_weights_are_named_with_their_row(cls, value, rows):
    message = refusal(quick(cls), rows, sample_weight=weights_with(value))
    assert "sample_weight" in message
    assert "row 200 of the data" in message


@each_estimator
@pytest.mark.parametrize("rows", [X, lazy()], ids=["numpy", "dask"])
@pytest.mark.parametrize(
    "weights",
    [
        np.ones(239),
        np.ones(241),
        np.ones((240, 1)),
        np.ones((240, 2)),
        np.zeros(240),
        da.ones(239, chunks=60),
        da.ones(260, chunks=65),
        da.ones((240, 1), chunks=60),
        da.zeros(240, chunks=60),
        np.array(["heavy"] * 240),
        np.array([None] * 240),
        np.full(240, 1j),
        2.0 * np.arange(1, 241).reshape(2, 120),
    ],
    ids=lambda w: f"{type(w).__module__.split('.')[0]} {w.dtype} {w.shape}",
)
def test_sample_weights_that_cannot_be_used_are_refused(cls, rows, weights):
    with pytest.raises((ValueError, TypeError), match=r"(?i)sample.weight"):
        quick(cls).fit(rows, sample_weight=weights)


@each_estimator
@pytest.mark.parametrize("length", [200, 280])
@pytest.mark.parametrize("unknown", ["rows", "weights", "both"])
def test_weights_of_another_length_are_refused_where_counts_are_unknown(cls, length, unknown):
    # As many blocks as X has, so that only their lengths tell.
    rows, weights = lazy(), da.ones(length, chunks=length // 4)
    if unknown != "weights":
        rows = dd.from_pandas(FRAME, npartitions=4)
    if unknown != "rows":
        weights = dd.from_pandas(pd.Series(np.ones(length)), npartitions=4)
    assert "sample_weight" in refusal(quick(cls), rows, sample_weight=weights)
    model = quick(cls).fit(FRAME if unknown != "weights" else X)
    with pytest.raises(ValueError, match="sample_weight"):
        model.score(rows, sample_weight=weights)


@each_estimator
def test_weights_in_another_number_of_blocks_are_refused_where_counts_are_unknown(cls):
    rows = dd.from_pandas(FRAME, npartitions=4)
    weights = dd.from_pandas(pd.Series(np.ones(240)), npartitions=6)
    message = refusal(quick(cls), rows, sample_weight=weights)
    assert "sample_weight cannot be matched to X" in message


@each_estimator
def test_bad_sample_weights_are_refused_by_score(cls):
    model = quick(cls).fit(X)
    for rows in (X, lazy()):
        for value in (-1.0, np.nan):
            with pytest.raises(ValueError, match="sample_weight"):
                model.score(rows, sample_weight=weights_with(value))


@each_estimator
def test_fewer_weighted_rows_than_clusters_are_refused(cls):
    weights = np.zeros(240)
    weights[:3] = 1.0
    for rows in (X, lazy()):
        message = refusal(quick(cls), rows, sample_weight=weights)
        assert "Only 3 row(s) have a value and a sample_weight" in message
        assert "fewer than n_clusters=4" in message


# Odd, but usable: weights


@each_estimator
def test_rows_without_weight_are_as_good_as_absent(cls):
    weights = np.ones(240)
    weights[::3] = 0.0
    spoiled = X.copy()
    spoiled[::3] = 1e5  # far away, so that it would show
    kept = weights > 0
    reference = quick(cls, init=X[:4] + 0.5).fit(X[kept])
    for rows in (spoiled, lazy(spoiled)):
        model = quick(cls, init=X[:4] + 0.5).fit(rows, sample_weight=weights)
        np.testing.assert_allclose(model.cluster_centers_, reference.cluster_centers_, rtol=1e-9)
        assert model.inertia_ == pytest.approx(reference.inertia_, rel=1e-9)
        np.testing.assert_array_equal(computed(model.labels_)[kept], reference.labels_)


@each_estimator
@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_only_ratios_of_sample_weights_count(cls, factor):
    weights = np.random.default_rng(1).random(240)
    a = quick(cls, init=X[:4]).fit(X, sample_weight=weights)
    b = quick(cls, init=X[:4]).fit(X, sample_weight=weights * factor)
    np.testing.assert_allclose(a.cluster_centers_, b.cluster_centers_, rtol=1e-9)
    np.testing.assert_allclose(a.objective_history_, b.objective_history_, rtol=1e-9, atol=1e-12)
    assert b.inertia_ == pytest.approx(a.inertia_ * factor, rel=1e-9)


# Odd, but usable: features

CONSTANTS = np.array([0.0, 7.0, 0.1, 1e6 + 0.1, -1e-7])


@each_estimator
@pytest.mark.parametrize("init", ["k-means++", "given"])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("form", [np.asarray, lazy])
def test_constant_features_change_nothing(cls, init, standardize, form):
    wide = np.column_stack([X[:, :2], np.tile(CONSTANTS, (240, 1)), X[:, 2:]])
    varying = np.ptp(wide, axis=0) > 0
    settings = {"n_init": 1, "standardize": standardize}
    a, b = quick(cls, **settings), quick(cls, **settings)
    if init == "given":
        a.set_params(init=X[:4])
        b.set_params(init=wide[:4])
    a.fit(X)
    b.fit(form(wide))
    np.testing.assert_allclose(b.cluster_centers_[:, varying], a.cluster_centers_, rtol=1e-9)
    np.testing.assert_allclose(
        b.cluster_centers_[:, ~varying], np.tile(CONSTANTS, (4, 1)), rtol=1e-12
    )
    np.testing.assert_array_equal(computed(b.labels_), a.labels_)
    assert b.inertia_ == pytest.approx(a.inertia_, rel=1e-9)
    if cls is EntropyPowerKMeans:
        np.testing.assert_allclose(b.feature_weights_[varying], a.feature_weights_, rtol=1e-9)
        assert (b.feature_weights_[~varying] == 0.0).all()
        assert b.lam_ == pytest.approx(a.lam_, rel=1e-9)


@each_estimator
@pytest.mark.parametrize("constant", [1e15 / 3, 1e30, 1e100])
def test_a_constant_feature_may_be_huge(cls, constant):
    # What rounding leaves of such a constant about its mean may exceed all other features.
    wide = np.column_stack([X, np.full(240, constant)])
    reference = quick(cls, n_init=1, init=X[:4]).fit(X)
    model = quick(cls, n_init=1, init=wide[:4]).fit(wide)
    np.testing.assert_array_equal(model.labels_, reference.labels_)
    np.testing.assert_allclose(model.cluster_centers_[:, :5], reference.cluster_centers_, rtol=1e-9)
    assert model.inertia_ == pytest.approx(reference.inertia_, rel=1e-9)


@pytest.mark.parametrize("constant", [0.1, 1 / 3, -7.7, 1e6 + 0.1, 1e-8])
@pytest.mark.parametrize("form", ["numpy", "dask", "weighted"])
def test_a_constant_feature_of_many_rows_is_recognised(constant, form):
    # The mean of n equal numbers is off by more than a few units in the last place when n is
    # large; the feature is constant all the same, and must not attract the weight.
    rows, _ = blobs(120_000, 2, 2)
    data = np.column_stack([rows, np.full(len(rows), constant)])
    weights = np.random.default_rng(0).random(len(rows)) if form == "weighted" else None
    model = quick(EntropyPowerKMeans, n_clusters=2, n_init=1, eta=2.0)
    model.fit(lazy(data, 50_000) if form == "dask" else data, sample_weight=weights)
    assert model.feature_weights_[2] == 0.0
    assert model.scale_[2] == 1.0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_small_variance_far_from_the_origin_is_no_constant(dtype):
    # Timestamps, say: the variance is resolved by the type, if not by much.
    rows = (X + 1e6).astype(dtype)
    model = quick(EntropyPowerKMeans).fit(rows)
    assert (model.feature_weights_ > 0).all()
    seconds = np.column_stack([1.7e9 + 1e-3 * X[:, 0], X[:, 1:]])
    model = quick(EntropyPowerKMeans).fit(seconds)
    assert (model.feature_weights_ > 0).all()


@each_estimator
@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1])
@pytest.mark.parametrize("rows", [np.full((40, 3), 1.0), da.ones((40, 3), chunks=(9, 3))])
def test_when_all_features_are_constant_there_is_one_cluster(cls, value, rows):
    model = quick(cls)
    messages = fit_recording(model, rows * value)
    assert messages[0].startswith("Number of distinct clusters (1) found smaller than n_clusters")
    assert not any("Not converged" in message for message in messages)
    np.testing.assert_allclose(model.cluster_centers_, value, rtol=1e-12)
    assert model.inertia_ == 0.0
    assert len(set(computed(model.labels_))) == 1
    if cls is EntropyPowerKMeans:
        assert np.isfinite(model.feature_weights_).all()
        assert model.feature_weights_.sum() == pytest.approx(1.0)


@each_estimator
@pytest.mark.parametrize("form", [np.asarray, lazy])
def test_a_single_column_is_clustered(cls, form):
    rng = np.random.default_rng(8)
    truth = rng.integers(3, size=200)
    column = 50.0 * truth[:, None] + rng.normal(size=(200, 1))
    model = quick(cls, n_clusters=3).fit(form(column))
    assert model.cluster_centers_.shape == (3, 1)
    assert len(set(zip(computed(model.labels_), truth, strict=True))) == 3
    if cls is EntropyPowerKMeans:
        assert model.feature_weights_.tolist() == [1.0]


# Odd, but usable: rows


@each_estimator
def test_duplicated_rows_count_twice(cls):
    settings = {"init": X[:4] + 0.5}
    once = quick(cls, **settings).fit(X)
    twice = quick(cls, **settings).fit(np.repeat(X, 2, axis=0))
    np.testing.assert_allclose(twice.cluster_centers_, once.cluster_centers_, rtol=1e-9)
    np.testing.assert_allclose(twice.objective_history_, once.objective_history_, rtol=1e-9)
    assert twice.inertia_ == pytest.approx(2 * once.inertia_, rel=1e-9)


@each_estimator
@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@pytest.mark.parametrize("form", [np.asarray, lazy, "weighted"])
def test_fewer_distinct_rows_than_clusters_are_fitted_exactly(cls, init, form):
    distinct = np.array([[1.0, 3.0], [2.0, 1.0], [3.0, 3.0], [4.0, 1.0]])
    rows = np.repeat(distinct, 20, axis=0)
    weights = np.where(np.arange(80) == 0, 10.0, 1.0) if form == "weighted" else None
    model = quick(cls, n_clusters=8, init=init)
    messages = fit_recording(
        model, rows if form == "weighted" else form(rows), sample_weight=weights
    )
    assert messages[0].startswith("Number of distinct clusters (4) found smaller than n_clusters")
    # There is nothing left to improve, so the fit must see that it is done.
    assert not any("Not converged" in message for message in messages)
    assert model.n_iter_ < 300
    assert np.isfinite(model.cluster_centers_).all()
    assert model.inertia_ == pytest.approx(0.0, abs=1e-20)
    labels = computed(model.labels_)
    assert len(set(labels)) == 4
    np.testing.assert_allclose(model.cluster_centers_[labels], rows, rtol=1e-12)


@each_estimator
def test_a_single_row_is_one_cluster(cls):
    for rows in (X[:1], lazy(X[:1])):
        model = quick(cls, n_clusters=1).fit(rows)
        np.testing.assert_allclose(model.cluster_centers_, X[:1], rtol=1e-12)
        assert model.inertia_ == 0.0
        assert computed(model.labels_).tolist() == [0]
        assert computed(model.predict(X[:1])).tolist() == [0]


@each_estimator
@pytest.mark.parametrize("form", [np.asarray, lazy])
def test_one_cluster_is_the_mean(cls, form):
    model = quick(cls, n_clusters=1).fit(form(X))
    np.testing.assert_allclose(model.cluster_centers_[0], X.mean(axis=0), rtol=1e-9)
    assert not computed(model.labels_).any()


@each_estimator
@pytest.mark.parametrize("form", [np.asarray, lazy])
def test_as_many_clusters_as_rows_have_one_row_each(cls, form):
    model = quick(cls, n_clusters=12)
    messages = fit_recording(model, form(X[:12]))
    assert not messages
    assert len(set(computed(model.labels_))) == 12
    assert model.inertia_ == pytest.approx(0.0, abs=1e-20)
    order = np.argsort(model.cluster_centers_[:, 0])
    np.testing.assert_allclose(
        model.cluster_centers_[order], X[:12][np.argsort(X[:12, 0])], rtol=1e-9
    )


# Odd, but usable: scales


@each_estimator
@pytest.mark.parametrize("form", [np.asarray, lazy])
def test_float32_far_from_the_origin_loses_nothing(cls, form):
    near, truth = blobs(400, 4, 4, seed=2)
    far = (near + 1e6).astype(np.float32)
    # What the type itself can hold of the rows:
    exact = far.astype(np.float64) - 1e6
    reference = quick(cls).fit(exact)
    model = quick(cls).fit(form(far))
    np.testing.assert_array_equal(computed(model.labels_), reference.labels_)
    np.testing.assert_array_equal(computed(model.labels_), quick(cls).fit(near).labels_)
    assert len(set(zip(reference.labels_, truth, strict=True))) == 4
    assert model.inertia_ == pytest.approx(reference.inertia_, rel=1e-8)
    np.testing.assert_allclose(model.cluster_centers_ - 1e6, reference.cluster_centers_, rtol=1e-7)
    np.testing.assert_allclose(
        computed(model.transform(form(far))), reference.transform(exact), rtol=1e-5, atol=1e-6
    )


@each_estimator
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e30, 1e100])
def test_rows_in_huge_and_tiny_units_are_clustered(cls, standardize, scale):
    settings = {"n_init": 1, "standardize": standardize}
    reference = quick(cls, **settings).fit(X)
    for rows in (X * scale, lazy(X * scale)):
        model = quick(cls, **settings).fit(rows)
        np.testing.assert_allclose(
            model.cluster_centers_, reference.cluster_centers_ * scale, rtol=1e-9
        )
        np.testing.assert_array_equal(computed(model.labels_), reference.labels_)
        unit = 1.0 if standardize else scale**2
        assert model.inertia_ / unit == pytest.approx(reference.inertia_, rel=1e-9)


@each_estimator
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_give_means_not_truncated_ones(cls, dtype):
    rows = (X - X.min()).astype(dtype) if dtype != "bool" else X > 0
    model = quick(cls).fit(rows)
    labels = model.labels_
    means = [rows[labels == j].mean(axis=0) for j in range(4)]
    assert model.cluster_centers_.dtype == np.float64
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-9, atol=1e-9)


# Empty clusters, short fits, centres that coincide


@each_estimator
@pytest.mark.parametrize("n_far", [1, 3])
@pytest.mark.parametrize("form", [np.asarray, lazy])
def test_an_empty_cluster_moves_to_rows_and_never_to_the_origin(cls, n_far, form):
    rows, truth = blobs(offset=500.0)
    # Some given centres are so far away that no row is nearest to them.
    init = np.array([rows[truth == j][0] for j in range(4)])
    init[4 - n_far :] = 1e7 * np.arange(1, n_far + 1)[:, None]
    settings = {"init": init}
    if cls in ANNEALED:
        settings["s0"] = -1e6  # at a hotter power a far centre is drawn in by itself
    model = quick(cls, **settings).fit(form(rows))
    assert len(set(computed(model.labels_))) == 4
    assert (model.cluster_centers_ > rows.min(axis=0)).all()
    assert (model.cluster_centers_ < rows.max(axis=0)).all()
    if n_far == 1:
        # The worst-served row belongs to the group that had no centre.
        assert len(set(zip(computed(model.labels_), truth, strict=True))) == 4


@each_estimator
def test_an_empty_cluster_is_placed_although_the_farthest_rows_are_copies_of_one(cls):
    rows, _ = blobs(200, 2, 3, seed=5, offset=100.0)
    rows = np.vstack([rows, np.full((40, 2), 200.0)])
    init = np.vstack([rows[:1], np.full((5, 2), 1e6) * np.arange(1, 6)[:, None]])
    settings = {"n_clusters": 6, "init": init}
    if cls in ANNEALED:
        settings["s0"] = -1e6
    model = quick(cls, **settings)
    assert not fit_recording(model, rows)
    assert len(set(model.labels_)) == 6
    assert np.abs(model.cluster_centers_).max() <= 200.0 + 1e-9


@each_estimator
@pytest.mark.parametrize("max_iter", [1, 2])
def test_a_fit_cut_short_says_so_and_agrees_with_itself(cls, max_iter):
    for rows in (X, lazy()):
        model = quick(cls, max_iter=max_iter, n_init=1, init=X[:4] + 3.0)
        messages = fit_recording(model, rows)
        assert any(f"Not converged in max_iter={max_iter}" in message for message in messages)
        assert model.n_iter_ == len(model.history_) == max_iter
        np.testing.assert_array_equal(computed(model.labels_), model.predict(X))
        assert model.score(X) == pytest.approx(-model.inertia_, rel=1e-12)


def test_one_iteration_of_k_means_is_one_lloyd_step():
    labels = ((X[:, None] - X[:4]) ** 2).sum(axis=2).argmin(axis=1)
    model = KMeans(4, init=X[:4], max_iter=1, tol=0).fit(X)
    means = [X[labels == j].mean(axis=0) for j in range(4)]
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-9)


@each_annealed
@pytest.mark.parametrize("form", [np.asarray, lazy])
def test_centers_that_coincide_at_the_end_are_warned_about_and_recorded(cls, form):
    # On isotropic rows in 50 dimensions s = -1 is far above the critical power: every centre
    # falls onto the mean.
    rows = np.random.default_rng(0).normal(size=(400, 50))
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    settings = {"s0": -1.0, "eta": 1.05, "polish": False, "max_iter": 30, "n_init": 1}
    model = quick(cls, n_clusters=5, **settings)
    messages = fit_recording(model, form(rows))
    assert any("centres coincide with another one" in message for message in messages)
    assert any("Not converged" in message for message in messages)
    assert model.history_[-1].coincident_centers > 0
    # From just past the critical power they do not.
    assert not fit_recording(quick(cls, n_clusters=5, n_init=1, eta=1.05), form(rows))


@each_estimator
def test_rows_that_are_copies_of_a_few_are_a_fit_that_converges(cls):
    rows = np.repeat(np.random.default_rng(0).normal(size=(5, 3)), 20_000, axis=0)
    model = cls(5, random_state=0)
    assert fit_recording(model, rows) == []
    assert model.n_iter_ < 10


@pytest.mark.parametrize("polish", [True, False])
@each_estimator
def test_warnings_advise_what_the_estimator_can_do(cls, polish):
    own = {} if cls is KMeans else {"polish": polish, "s0": -1.0, "eta": 1.05}
    cloud = np.random.default_rng(0).normal(size=(400, 50))
    known = {*PowerKMeans().get_params(), *EntropyPowerKMeans().get_params()}
    for rows, max_iter in ((np.ones((100, 3)), 300), (cloud, 3)):
        model = quick(cls, n_clusters=5, n_init=1, max_iter=max_iter, **own)
        notes = fit_recording(model, rows)
        assert notes
        for note in notes:
            named = known & set(re.findall(r"\w+", note))
            assert named <= set(model.get_params()), note
            assert "polish=True" not in note or not polish
            assert "inf" not in note


@each_annealed
def test_a_collapse_is_never_taken_for_convergence(cls):
    rows = np.random.default_rng(0).normal(size=(400, 50))
    model = quick(cls, n_clusters=5, s0=-1.0, eta=1.05, max_iter=40, n_init=1, polish=True)
    messages = fit_recording(model, rows)
    assert any("Not converged" in message for message in messages)


# The same fit twice


@each_estimator
@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@pytest.mark.parametrize("form", [np.asarray, lazy])
def test_a_random_state_fixes_every_bit(cls, init, form):
    rows, _ = blobs(20_000, 4)  # several blocks in memory, and a true sample for seeding
    rows = rows[:20_000]
    settings = {"init": init, "random_state": 3, "eta": 2.0} if cls in ANNEALED else {"init": init}
    a, b = (quick(cls, **settings).fit(form(rows, 6_000) if form is lazy else rows) for _ in "ab")
    assert a.cluster_centers_.tobytes() == b.cluster_centers_.tobytes()
    assert a.objective_history_.tobytes() == b.objective_history_.tobytes()
    assert a.inertia_ == b.inertia_
    np.testing.assert_array_equal(computed(a.labels_), computed(b.labels_))


@each_estimator
def test_random_states_differ_and_instances_move_on(cls):
    rows = np.random.default_rng(0).normal(size=(300, 3))
    settings = {"init": "random", "n_init": 1, "max_iter": 2, "tol": 0}
    fits = [quick(cls, random_state=seed, **settings).fit(rows) for seed in (1, 2, None)]
    assert fits[0].inertia_ != fits[1].inertia_
    state = np.random.RandomState(1)
    first, second = (quick(cls, random_state=state, **settings).fit(rows) for _ in range(2))
    assert first.inertia_ == fits[0].inertia_
    assert second.inertia_ != first.inertia_


def test_checks_of_lazy_values_happen_in_the_first_pass_only():
    # Refusing to compute shows that nothing is looked at before that pass.
    with raise_if_computes(), pytest.raises(ComputeForbiddenError):
        PowerKMeans(4).fit(lazy(with_value(np.nan)))
