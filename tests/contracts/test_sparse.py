"""Sparse rows give what the same rows give dense, in memory and lazily; bad ones are named."""

import dask.array as da
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from daskmm import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)

try:
    # Where it is installed, dask imports it: CI has it for these tests alone.
    import sparse
except ImportError:
    FORMS = [scipy.sparse.csr_array, scipy.sparse.csc_array]
else:
    FORMS = [sparse.COO, sparse.GCXS]

CSR = scipy.sparse.csr_array((0, 0))
MODELS = [
    KMeans(3),
    KMeans(3, distortion="cosine"),
    KMeans(3, distortion="kl"),
    PowerKMeans(3, eta=1.3),
    PowerKMeans(3, standardize=True, eta=1.3),
    PowerKMeans(3, distortion="cosine", eta=1.3),
    PowerKMeans(3, distortion="poisson", standardize=False, eta=1.3),
    EntropyPowerKMeans(3, lam=0.3, eta=1.3),
    EntropyPowerKMeans(3, lam=0.3, standardize=False, eta=1.3),
]


def counts(n=150, p=24, k=3, share=0.2, seed=0):
    """Counts of which few are not 0, more of them in the columns of each row's cluster."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % k
    rows = rng.poisson(1.0, (n, p)) * (rng.random((n, p)) < share)
    for cluster in range(k):
        own = np.ix_(truth == cluster, np.arange(4 * cluster, 4 * cluster + 4))
        rows[own] += rng.poisson(2.0, rows[own].shape)
    return rows.astype(np.float64), truth


def lazy(rows, chunk=40, form=scipy.sparse.csr_array):
    blocks = da.from_array(np.asarray(rows), chunks=(chunk, -1))
    return blocks.map_blocks(form, meta=form(np.zeros((0, 0))))


def messy(rows, rng):
    """A CSR matrix of the rows with explicit zeros, unsorted and duplicate int64 indices."""
    indptr, indices, data = [0], [], []
    for row in rows:
        at = [*np.flatnonzero(row), *rng.integers(len(row), size=2)]
        values = [*row[np.flatnonzero(row)], 0.0, 0.0]
        first = np.flatnonzero(row)[:1]
        if len(first):  # one value in two entries
            values[0] -= 0.25
            at, values = [*at, first[0]], [*values, 0.25]
        order = rng.permutation(len(at))
        indices += [at[i] for i in order]
        data += [values[i] for i in order]
        indptr.append(len(indices))
    arrays = np.array(data), np.array(indices, np.int64), np.array(indptr, np.int64)
    matrix = scipy.sparse.csr_matrix(rows.shape)
    matrix.data, matrix.indices, matrix.indptr = arrays
    return matrix


def assert_alike(found, expected, rows, table):
    for name in ("cluster_centers_", "inertia_", "feature_weights_", "objective_history_"):
        if hasattr(expected, name):
            np.testing.assert_allclose(
                getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9
            )
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_array_equal(found.predict(table), expected.labels_)
    # Models of dense rows take sparse ones, and the other way round.
    np.testing.assert_array_equal(expected.predict(table), expected.labels_)
    np.testing.assert_array_equal(found.predict(rows), expected.labels_)
    distances = np.asarray(found.transform(table))
    np.testing.assert_allclose(distances, expected.transform(rows), rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(found.score(table), expected.score(rows), rtol=1e-9)


@pytest.mark.in_turn("weighted")
@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_fits_to_sparse_rows_are_those_to_dense_rows(model, weighted):
    rows, _ = counts(share=0.12)
    rows = rows[rows.sum(axis=1) > 0] if model.distortion == "cosine" else rows
    weights = np.random.default_rng(1).integers(0, 3, len(rows)) if weighted else None
    start = rows[:3] + 0.1
    expected = clone(model).set_params(init=start).fit(rows, sample_weight=weights)
    for table in (scipy.sparse.csr_array(rows), lazy(rows), lazy(rows, form=FORMS[0])):
        found = clone(model).set_params(init=start).fit(table, sample_weight=weights)
        assert_alike(found, expected, rows, table)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_few_streamed_rows_are_clustered_as_well_as_those_in_memory(seed):
    rng = np.random.default_rng(seed)
    truth = np.arange(400) % 5
    means = np.tile(rng.gamma(0.5, 0.3, 200), (5, 1))
    for kind in range(5):  # 10 markers each
        own = slice(10 * kind, 10 * kind + 10)
        means[kind, own] = 3.0 * means[kind, own] + 1.0
    rows = rng.poisson(means[truth] * rng.lognormal(0.0, 0.3, (400, 1))).astype(np.float64)
    model = EntropyPowerKMeans(5, lam=0.5, random_state=0)
    for table in (scipy.sparse.csr_array(rows), lazy(rows, 100)):
        assert model.plan(table).n_starts == 8
        assert adjusted_rand_score(truth, np.asarray(model.fit(table).labels_)) >= 0.99
        assert set(np.argsort(-model.feature_weights_)[:20]) <= set(range(50))
    # The streamed ones are annealed on all rows at once, and read to polish and score them.
    assert model.n_passes_ < 10


@pytest.mark.long
@given(
    st.integers(0, 10_000),
    st.floats(0.0, 1.0),
    st.integers(1, 40),
    st.sampled_from(
        [
            # "auto" chooses a scale for dense rows only.
            KMeans(3, standardize=False, max_iter=3, tol=0),
            KMeans(3, standardize=True, max_iter=3, tol=0),
            PowerKMeans(3, distortion="kl", max_iter=3, tol=0, polish=False),
            EntropyPowerKMeans(3, lam=0.5, max_iter=3, tol=0, polish=False),
        ]
    ),
)
@example(0, 1.0, 1, KMeans(3, standardize=True, max_iter=3, tol=0))
@example(1009, 0.0, 1, PowerKMeans(3, distortion="kl", max_iter=3, tol=0, polish=False))
@example(1009, 0.644, 1, PowerKMeans(3, distortion="kl", max_iter=3, tol=0, polish=False))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_any_sparsity_chunking_and_form_give_the_same_fit(seed, share, chunk, model):
    # A few steps: whole anneals from centres that tie magnify the rounding between both.
    rng = np.random.default_rng(seed)
    rows, _ = counts(60, 16, share=share, seed=seed)
    rows[rng.random(60) < 0.1] = 0.0
    rows[:, rng.random(16) < 0.1] = 0.0
    model = clone(model).set_params(init=rows[:3] + 0.5)
    expected = clone(model).fit(rows)
    for table in (messy(rows, rng), scipy.sparse.csc_matrix(rows), lazy(rows, chunk, FORMS[1])):
        found = clone(model).fit(table)
        np.testing.assert_allclose(
            found.cluster_centers_, expected.cluster_centers_, rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(found.inertia_, expected.inertia_, rtol=1e-9)


def test_a_matrix_of_the_user_is_not_changed():
    rows, _ = counts()
    matrix = messy(rows, np.random.default_rng(0))
    before = [array.copy() for array in (matrix.data, matrix.indices, matrix.indptr)]
    KMeans(3).fit(matrix)
    for array, copy in zip((matrix.data, matrix.indices, matrix.indptr), before, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.long
@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_every_choice_works_on_sparse_rows(init):
    rows, truth = counts(400, 30)
    matrix = scipy.sparse.csr_array(rows)
    for model in (
        PowerKMeans(3, standardize="auto", n_init=2),
        EntropyPowerKMeans(3, n_init=2),
        KMeans("auto", max_clusters=12, n_init=2),
        KMeans(3, sample_size=150, n_init=2),
        KMeans(3, distortion="kl", n_init=2),
        KMeans(3, n_init=2, empty_cluster="restart"),
    ):
        model.set_params(init=init, random_state=0)
        for table in (matrix, lazy(rows, 90)):
            found = clone(model).fit(table)
            assert adjusted_rand_score(truth, found.labels_) > 0.9
            assert found.plan(table).n_features == 30


def test_several_columns_of_blocks_and_unknown_row_counts_give_the_same_fit():
    rows, _ = counts()
    start = rows[:3] + 0.1
    expected = KMeans(3, init=start).fit(rows)
    blocks = da.from_array(rows, chunks=(50, 10)).map_blocks(scipy.sparse.csr_array, meta=CSR)
    unknown = lazy(rows)
    unknown._chunks = ((np.nan,) * 4, unknown.chunks[1])
    for table in (blocks, unknown):
        found = KMeans(3, init=start).fit(table)
        np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, rtol=1e-9)


@pytest.mark.parametrize(
    "model",
    [
        KernelPowerKMeans(3),
        MultiKernelPowerKMeans(3),
        WeightedBlurringMeanShift(0.5),
        KMeans(3, distortion="mahalanobis"),
        KMeans(3, missing="partial"),
        EntropyPowerKMeans(3, distortion="manhattan"),
    ],
    ids=str,
)
def test_models_that_want_dense_rows_say_so(model):
    rows, _ = counts()
    for table in (scipy.sparse.csr_array(rows), lazy(rows)):
        with pytest.raises(TypeError, match=r"[Ss]parse rows are not supported by .*TruncatedSVD"):
            clone(model).fit(table)


def spoiled(**arrays):
    rows, _ = counts()
    matrix = scipy.sparse.csr_matrix(rows)
    for name, (place, value) in arrays.items():
        getattr(matrix, name)[place] = value
    return matrix


@pytest.mark.parametrize(
    ("matrix", "model", "words"),
    [
        (spoiled(indptr=(7, 10**6)), KMeans(3), "indptr decreases at row 7"),
        (spoiled(indptr=(0, 1)), KMeans(3), "the first of them 0"),
        (spoiled(indptr=(-1, 10**6)), KMeans(3), "indptr ends at 1000000"),
        (spoiled(indices=(0, 24)), KMeans(3), "row 0 has an entry at column 24, of 24 columns"),
        (spoiled(indices=(0, -1)), KMeans(3), "row 0 has an entry at column -1"),
        (spoiled(data=(0, -2.0)), KMeans(3, distortion="kl"), r"Negative.*block 0, row 0.*feature"),
        (spoiled(data=(0, np.nan)), KMeans(3), r"NaN: block 0, row 0 .*feature"),
        (spoiled(data=(0, np.inf)), EntropyPowerKMeans(3), r"infinity: block 0, row 0 .*feature"),
    ],
)
def test_bad_values_and_indices_are_named(matrix, model, words):
    with pytest.raises(ValueError, match=words):
        clone(model).fit(matrix)
    blocks = [scipy.sparse.csr_matrix(counts()[0]), matrix]
    table = da.map_blocks(
        lambda block_id: blocks[block_id[0]], chunks=((150, 150), 24), dtype=float, meta=CSR
    )
    words = words.replace("block 0, row 0", "block 1, row 0")
    with pytest.raises(ValueError, match=words) as caught:
        clone(model).fit(table)
    assert "block 1" in str(caught.value)


def test_a_row_of_zeros_has_no_direction():
    rows, _ = counts()
    rows[70] = 0
    for table in (scipy.sparse.csr_array(rows), lazy(rows)):
        with pytest.raises(ValueError, match=r"row of zeros.*row 70 of the data"):
            KMeans(3, distortion="cosine").fit(table)


def test_what_takes_dense_rows_says_so():
    rows = scipy.sparse.csr_array(counts(60)[0])
    model = KMeans(3, n_init=1, random_state=0).fit(rows)
    for take in (model.partial_fit, KMeans(3).partial_fit):
        with pytest.raises(TypeError, match="dense rows"):
            take(rows)
    # What rows have to do with the clusters is the same as of dense ones.
    dense = KMeans(3, n_init=1, init=model.cluster_centers_).fit(rows.toarray())
    np.testing.assert_allclose(
        model.predict_proba(rows), dense.predict_proba(rows.toarray()), atol=0.02
    )
