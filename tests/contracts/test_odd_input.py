"""Odd tables: stores that change, empty blocks, masked values, integers that float64 rounds."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from _support import (
    ESTIMATORS,
    assert_same_model,
    blobs,
    computed,
    fit_recording,
    quick,
    raise_if_computes,
)

from daskmm import (
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)
from daskmm.engine import resources

pytestmark = pytest.mark.in_turn("cls")

X, _ = blobs()
BLOCKED = ((60, 60, 60, 60), (5,))

each_estimator = pytest.mark.parametrize("cls", ESTIMATORS)


@pytest.fixture(autouse=True)
def _computing_in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def lazy(data=X, rows=60):
    return da.from_array(data, chunks=(rows, -1))


def changed(block, function):
    """The rows, of which one block is not what it is said to be."""

    def change(rows, block_id):
        return function(rows) if block_id[0] == block else rows

    return lazy().map_blocks(change, dtype=float, meta=np.empty((0, 0)))


# Blocks that are not what they are said to be


@each_estimator
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda rows: rows[:-1], r"block 2 has shape \(59, 5\) in place of \(60, 5\)"),
        (lambda rows: np.vstack([rows, rows]), r"block 2 has shape \(120, 5\)"),
        (lambda rows: rows[:, :4], r"block 2 has shape \(60, 4\)"),
        (lambda rows: rows[0], r"block 2 has shape \(5,\)"),
        (lambda rows: rows.astype(object), "block 2 has dtype object"),
        (lambda rows: rows.astype(str), "block 2 has dtype <U"),
        (lambda rows: rows + 1j, "block 2 has dtype complex128"),
        (lambda rows: np.ma.masked_greater(rows, 0), r"masked values \(block 2, row"),
        (lambda rows: rows.tolist(), "block 2 is a list"),
        (scipy.sparse.csr_matrix, "block 2 is a csr_matrix"),
    ],
)
def test_a_block_that_is_something_else_is_named(cls, function, words):
    data = changed(2, function)
    with pytest.raises((ValueError, TypeError), match=rf"X .*{words}"):
        quick(cls).fit(data)
    if isinstance(function(X), list) or np.ndim(function(X)) == 1:
        return  # dask itself puts such blocks together before they are seen
    model = quick(cls).fit(X)
    with pytest.raises((ValueError, TypeError), match=rf"X .*{words}"):
        model.predict(data).compute()


@each_estimator
@pytest.mark.parametrize("sample_size", [None, 100])
def test_a_store_that_shrinks_while_it_is_read_is_noticed(cls, sample_size):
    store = {"rows": X}

    def read(block_id):
        return store["rows"][60 * block_id[0] : 60 * block_id[0] + 60]

    data = da.map_blocks(read, chunks=BLOCKED, dtype=float, meta=np.empty((0, 0)))

    def shrink(record):
        store["rows"] = X[:200]

    settings = {"n_init": 1, "sample_size": sample_size, "max_iter": 50, "tol": 0}
    model = quick(cls, **settings, callbacks=[shrink])
    with pytest.raises(ValueError, match=r"changed since it was opened.* block 3 has shape"):
        fit_recording(model, data)


def test_blocks_of_other_lengths_are_noticed_by_mean_shift_and_kernels():
    data = changed(1, lambda rows: rows[:-1])
    for model in (WeightedBlurringMeanShift(1.0), KernelPowerKMeans(3)):
        with pytest.raises(ValueError, match=r"X .*block 1 has shape"):
            model.fit(data)


@each_estimator
def test_rows_that_were_counted_once_are_compared_later(cls):
    passes = []

    def read(rows, block_id):
        passes.append(block_id[0])
        return rows[: 60 if passes.count(3) < 2 else 40]

    data = lazy().map_blocks(read, dtype=float, meta=np.empty((0, 0)))
    passes.clear()
    unknown = da.Array(data.dask, data.name, ((np.nan,) * 4, (5,)), meta=data._meta)
    with pytest.raises(ValueError, match="changed since it was opened"):
        quick(cls).fit(unknown)


# Empty blocks, blocks of columns


@each_estimator
@pytest.mark.parametrize(
    "rows",
    [(0, 120, 120), (120, 0, 120), (120, 120, 0), (0, 0, 240, 0, 0), (0, 1, 0, 239, 0)],
)
@pytest.mark.parametrize("unknown", [False, True])
def test_empty_blocks_in_every_position_change_nothing(cls, rows, unknown):
    settings = {"init": X[:4], "standardize": True}
    data = da.from_array(X, chunks=(rows, (2, 0, 3)))
    if unknown:
        chunks = ((np.nan,) * len(rows), data.chunks[1])
        data = da.Array(data.dask, data.name, chunks, meta=data._meta)
    found = quick(cls, **settings).fit(data)
    assert_same_model(found, quick(cls, **settings).fit(X))
    assert found.score(data) == pytest.approx(-found.inertia_)
    assert computed(found.predict(data)).shape == (240,)


# Memory layout and number types


@each_estimator
@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i4", "<i8", "g"])
@pytest.mark.parametrize("form", ["numpy", "fortran", "lazy", "read only"])
def test_byte_order_and_layout_do_not_matter(cls, dtype, form):
    data = (X * 100).round().astype(dtype)
    plain = quick(cls).fit(data.astype("f4" if dtype == ">f4" else "f8"))
    if form == "fortran":
        data = np.asfortranarray(data)
    elif form == "read only":
        data.flags.writeable = False
        data = lazy(data, 240)
    elif form == "lazy":
        data = lazy(data, 240)
    other = quick(cls, n_init=2).fit(data)
    assert_same_model(other, plain, rtol=1e-7)


@each_estimator
def test_integers_that_float64_does_not_hold_are_refused(cls):
    data = (X * 100).astype(np.int64)
    data[200, 3] = 2**53 + 1
    words = r"X contains 9007199254740993: .*row 200 of the data\), feature 3.*offset"
    for form in (data, lazy(data), data.astype(np.uint64).copy() if (data >= 0).all() else data):
        with pytest.raises(ValueError, match=words):
            quick(cls).fit(form)
    data[200, 3] = 2**62  # held exactly
    quick(cls, n_clusters=2).fit(data)
    extremes = np.array([[2**64 - 1], [0], [5]], dtype=np.uint64)
    with pytest.raises(ValueError, match=f"X contains {2**64 - 1}"):
        quick(cls, n_clusters=2).fit(extremes)


@each_estimator
def test_masked_arrays_are_refused_where_something_is_masked(cls):
    masked = np.ma.masked_array(X, mask=np.zeros(X.shape, dtype=bool))
    assert_same_model(quick(cls).fit(masked), quick(cls).fit(X))
    assert_same_model(quick(cls, init=X[:4]).fit(lazy(masked)), quick(cls, init=X[:4]).fit(X))
    masked[7, 2] = np.ma.masked
    with pytest.raises(ValueError, match=r"X has masked values \(row 7\)"):
        quick(cls).fit(masked)
    with pytest.raises(ValueError, match=r"X has masked values \(block 0, row 7"):
        quick(cls).fit(da.ma.masked_array(lazy(), mask=lazy(masked.mask)))
    weights = np.ma.masked_array(np.ones(240), mask=np.arange(240) == 9)
    with pytest.raises(ValueError, match=r"sample_weight has masked values .*row 9"):
        quick(cls).fit(X, sample_weight=weights)


@each_estimator
@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-160])
def test_rows_of_subnormal_numbers_give_finite_centres(cls, scale):
    found = quick(cls).set_params(n_clusters=2)
    fit_recording(found, (X * scale).astype(np.float64))
    assert np.isfinite(found.cluster_centers_).all()
    assert np.isfinite(found.inertia_)


@pytest.mark.parametrize("options", [{}, {"missing": "partial"}, {"standardize": True}])
@pytest.mark.parametrize("value", [1e10, 1e150])
def test_a_huge_value_takes_no_digits_from_the_means_of_other_rows(options, value):
    rows = np.vstack([X, X[:1]])
    rows[-1, 1] = value
    if options.get("missing"):
        rows[3, 1] = np.nan
    for table in (rows, lazy(rows)):
        model = KMeans(2, random_state=0, **options).fit(table)
        labels = computed(model.labels_)
        for label in range(2):
            np.testing.assert_allclose(
                model.cluster_centers_[label], np.nanmean(rows[labels == label], axis=0), rtol=1e-9
            )


# Numbers that cannot be worked with


@each_estimator
def test_distances_that_float32_does_not_hold_are_refused(cls):
    model = quick(cls, n_clusters=2).fit(X)
    far = X.astype(np.float32)
    far[200, 3] = 3e38
    far[200, 4] = -3e38
    assert np.isfinite(model.transform(far.astype(float))).all()
    for data in (far, lazy(far)):
        if np.sqrt(2) * 3e38 / model.scale_.max() > np.finfo(np.float32).max:
            with pytest.raises(ValueError, match=r"overflow float32, in block"):
                computed(model.transform(data))


@each_estimator
def test_a_scalar_weight_holds_for_rows_that_are_not_counted(cls):
    data = lazy()
    unknown = da.Array(data.dask, data.name, ((np.nan,) * 4, (5,)), meta=data._meta)
    found = quick(cls, init=X[:4]).fit(unknown, sample_weight=2.0)
    assert found.inertia_ == pytest.approx(2 * quick(cls, init=X[:4]).fit(X).inertia_)


@each_estimator
@pytest.mark.parametrize("value", [1e101, 1e-101, 5e-324, 1e308])
def test_weights_beyond_what_sums_hold_are_refused(cls, value):
    weights = np.ones(240)
    weights[200] = value
    for data in (X, lazy()):
        with pytest.raises(ValueError, match=r"sample_weight must be 0 or between .*row 200"):
            quick(cls).fit(data, sample_weight=weights)


@each_estimator
def test_given_centers_whose_distances_overflow_are_refused(cls):
    with pytest.raises(ValueError, match="init has values so large"):
        quick(cls, init=X[:4] * 1e200).fit(X)


def test_polynomial_kernels_that_overflow_are_refused():
    model = KernelPowerKMeans(2, kernel="polynomial", standardize=False)
    with pytest.raises(ValueError, match="kernel 'polynomial' returned"):
        model.fit(X * 1e60)


# Tables that do not fit


@pytest.fixture
def _small_memory(monkeypatch):
    monkeypatch.setattr(resources, "available_bytes", lambda: 200 << 20)
    monkeypatch.setattr(resources, "_resident_bytes", lambda: 200 << 20)


@pytest.mark.usefixtures("_small_memory")
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_blocks_that_do_not_fit_are_refused_with_what_to_change(cls):
    model = cls()
    data = da.zeros((10_000_000, 10), chunks=(2_000_000, 10))
    words = r"X does not fit: .*2 blocks of up to 160 MB .* Rechunk X to at most ([\d,]+) rows"
    with raise_if_computes(), dask.config.set(num_workers=1):
        for method in (model.plan, model.fit):
            with pytest.raises(ValueError, match=words):
                method(data)
        rows = 100_000
        plan = model.plan(da.zeros((10_000_000, 10), chunks=(rows, 10)))
    assert plan.worker_memory_bytes == 400 << 20
    assert "of 419 MB" in str(plan)


@pytest.mark.usefixtures("_small_memory")
@pytest.mark.parametrize("rows", [100_000, 2_000_000])
def test_rows_of_a_mean_shift_that_do_not_fit_are_refused(rows):
    data = da.zeros((10_000_000, 10), chunks=(rows, 10))
    model = WeightedBlurringMeanShift(n_representatives=None)
    with raise_if_computes(), dask.config.set(num_workers=1):
        for method in (model.plan, model.fit):
            with pytest.raises(ValueError, match=r"10,?000,?000 rows.*n_representatives='auto'"):
                method(data)


@pytest.mark.usefixtures("_small_memory")
def test_rows_of_exact_kernels_that_do_not_fit_are_refused():
    data = da.zeros((2_000_000, 10), chunks=(100_000, 10))
    with pytest.raises(ValueError, match=r"X does not fit: .* n_landmarks"):
        KernelPowerKMeans(n_landmarks=None).plan(data)
    with dask.config.set(num_workers=1):
        assert KernelPowerKMeans().plan(data).passes
        assert KMeans().plan(data).passes


# Parameters


@pytest.mark.parametrize(
    ("cls", "parameters"),
    [
        (KMeans, {"max_cluster_size": 1.5, "checkpoint_every": 2.0, "trim": 0.0, "tol": 0.25}),
        (PowerKMeans, {"s0": -2.0, "eta": 1.5, "anneal_every": 2, "trim": 0.25, "n_init": 3}),
        (EntropyPowerKMeans, {"lam": 0.5, "sample_size": 100, "max_cluster_size": 80}),
        (KernelPowerKMeans, {"bandwidth": 4.0, "max_iter": 20}),
        (MultiKernelPowerKMeans, {"lam": 0.5, "max_iter": 20}),
        (GaussianMixture, {"reg_covar": 0.125, "max_iter": 20}),
        (WeightedBlurringMeanShift, {"bandwidth": 2.0, "lam": 1, "merge_tol": 0.125}),
    ],
)
def test_numbers_of_numpy_are_parameters_as_those_of_python(cls, parameters):
    if cls is GaussianMixture:
        parameters = {"n_components": 3, "random_state": 0, **parameters}
    elif cls is not WeightedBlurringMeanShift:
        parameters = {"n_clusters": 3, "random_state": 0, **parameters}
    numpys = {
        name: np.float32(value) if isinstance(value, float) else np.uint8(value)
        for name, value in parameters.items()
    }
    expected, found = cls(**parameters), cls(**parameters | numpys)
    for model in (expected, found):
        fit_recording(model, X)
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    assert all(found.get_params()[name] is value for name, value in numpys.items())
    assert found.plan(X).passes == expected.plan(X).passes
