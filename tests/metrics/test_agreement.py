"""Clustering metrics against scikit-learn, on labels in memory, lazy and mixed."""

from collections.abc import Callable
from types import SimpleNamespace

import dask
import dask.array as da
import dask.bag
import numpy as np
import pytest
import sklearn.metrics
import zarr
from _support import n_examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.metrics.cluster import contingency_matrix as sklearn_contingency

from daskmm.metrics.agreement import (
    _mutual_information,
    adjusted_rand_score,
    contingency_matrix,
    normalized_mutual_info_score,
    variation_of_information,
)

SCORES = [
    contingency_matrix,
    normalized_mutual_info_score,
    adjusted_rand_score,
    variation_of_information,
]
AVERAGES = ["arithmetic", "geometric", "min", "max"]


def naive_variation(labels_true, labels_pred) -> float:
    """H(U|V) + H(V|U) from its definition, pair by pair."""
    n = len(labels_true)
    total = 0.0
    for u in set(labels_true):
        for v in set(labels_pred):
            in_u = sum(a == u for a in labels_true) / n
            in_v = sum(b == v for b in labels_pred) / n
            both = sum((a, b) == (u, v) for a, b in zip(labels_true, labels_pred, strict=True)) / n
            if both:
                total -= both * (np.log(both / in_u) + np.log(both / in_v))
    return total


def assert_like_sklearn(labels_true, labels_pred, true, pred) -> None:
    """Scores of some labelings equal scikit-learn's of the same labels in memory."""
    np.testing.assert_array_equal(
        contingency_matrix(labels_true, labels_pred), sklearn_contingency(true, pred)
    )
    for average in AVERAGES:
        assert normalized_mutual_info_score(
            labels_true, labels_pred, average_method=average
        ) == pytest.approx(
            sklearn.metrics.normalized_mutual_info_score(true, pred, average_method=average),
            abs=1e-12,
        )
    assert adjusted_rand_score(labels_true, labels_pred) == pytest.approx(
        sklearn.metrics.adjusted_rand_score(true, pred), abs=1e-12
    )
    assert variation_of_information(labels_true, labels_pred) == pytest.approx(
        naive_variation(list(true), list(pred)), abs=1e-12
    )


@pytest.fixture
def labels() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    true = rng.integers(-4, 5, 300)
    return true, np.where(rng.random(300) < 0.7, 3 * true, rng.integers(-9, 9, 300))


@pytest.fixture
def count_computes() -> Callable[[], int]:
    """Computes that reached the scheduler of the user's configuration so far."""
    calls = []

    def scheduler(graph, keys, **kwargs):
        calls.append(keys)
        return dask.get(graph, keys, **kwargs)

    with dask.config.set(scheduler=scheduler):
        yield lambda: len(calls)


@st.composite
def labelings(draw):
    """Two labelings of one length, and chunks for each."""
    n = draw(st.integers(1, 25))
    kind = draw(
        st.sampled_from([st.integers(-(2**40), 2**40), st.integers(-2, 2), st.sampled_from("abc")])
    )
    vectors = [np.array(draw(st.lists(kind, min_size=n, max_size=n))) for _ in range(2)]
    cuts = [sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else [] for _ in range(2)]
    chunks = [tuple(int(rows) for rows in np.diff([0, *cut, n])) for cut in cuts]
    return (*vectors, *chunks)


@settings(max_examples=n_examples(40), deadline=None)
@given(labelings())
def test_any_labels_in_any_chunks_score_as_in_sklearn(case):
    true, pred, true_chunks, pred_chunks = case
    with dask.config.set(scheduler="synchronous"):
        lazy_true = da.from_array(true, chunks=(true_chunks,))
        lazy_pred = da.from_array(pred, chunks=(pred_chunks,))
        lazy = contingency_matrix(lazy_true, lazy_pred)
    np.testing.assert_array_equal(lazy, sklearn_contingency(true, pred))
    assert_like_sklearn(true, pred, true, pred)


def test_lists_and_mixtures_of_memory_and_dask_are_compared(labels):
    true, pred = labels
    lazy_true, lazy_pred = da.from_array(true, chunks=37), da.from_array(pred, chunks=(299, 1))
    for pair in [(true.tolist(), pred.tolist()), (true, lazy_pred), (lazy_true, pred.tolist())]:
        assert_like_sklearn(*pair, true, pred)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", "float64", "U3", object])
def test_labels_of_any_dtype_are_compared(labels, dtype):
    true, pred = (np.abs(vector).astype(dtype) for vector in labels)
    assert_like_sklearn(true, da.from_array(pred, chunks=40), true, pred)


def test_strings_of_different_width_per_block_are_compared():
    true = da.concatenate([da.from_array(np.array(["b", "a"])), da.from_array(np.array(["long"]))])
    np.testing.assert_array_equal(contingency_matrix(true, [0, 1, 1]), [[0, 1], [1, 0], [0, 1]])


def test_series_and_zarr_arrays_are_compared(labels):
    import dask.dataframe as dd
    import pandas as pd

    true, pred = labels
    expected = sklearn.metrics.adjusted_rand_score(true, pred)
    series = [dd.from_pandas(pd.Series(vector), npartitions=3) for vector in (true, pred)]
    strings = dd.from_pandas(pd.Series(true.astype(str)), npartitions=3)
    assert adjusted_rand_score(*series) == pytest.approx(expected, abs=1e-12)
    assert adjusted_rand_score(strings, series[1]) == pytest.approx(expected, abs=1e-12)
    assert adjusted_rand_score(zarr.array(true, chunks=(100,)), pd.Series(pred)) == pytest.approx(
        expected, abs=1e-12
    )
    with pytest.raises(ValueError, match="labels_true must be 1D, got 2D"):
        adjusted_rand_score(series[0].to_frame(), pred)


@pytest.mark.parametrize("lazy", [False, True])
def test_empty_labelings_score_as_in_sklearn(lazy):
    empty = da.from_array(np.empty(0, dtype=int)) if lazy else []
    assert contingency_matrix(empty, []).shape == sklearn_contingency([], []).shape == (0, 0)
    assert adjusted_rand_score(empty, []) == sklearn.metrics.adjusted_rand_score([], []) == 1.0
    nmi = sklearn.metrics.normalized_mutual_info_score([], [])
    assert normalized_mutual_info_score(empty, []) == nmi == 1.0
    assert variation_of_information(empty, []) == 0.0


def test_extreme_labelings_have_the_extreme_scores(labels):
    true, _ = labels
    renamed = np.array([f"cluster {label}" for label in true])
    assert variation_of_information(true, renamed) == 0.0
    assert adjusted_rand_score(true, renamed) == 1.0
    assert normalized_mutual_info_score(true, renamed) == pytest.approx(1.0, abs=1e-15)
    whole, apart = np.zeros(64, dtype=int), np.arange(64)
    assert variation_of_information(whole, apart) == pytest.approx(np.log(64), abs=1e-14)
    for average in AVERAGES:
        assert normalized_mutual_info_score(whole, apart, average_method=average) == 0.0
        assert normalized_mutual_info_score(whole, whole, average_method=average) == 1.0


def test_empty_blocks_of_labels_are_skipped(labels):
    true, pred = labels
    lazy = da.from_array(true, chunks=((0, 150, 0, 150, 0),))
    assert_like_sklearn(lazy, da.from_array(pred, chunks=70), true, pred)


def test_labels_of_unknown_chunk_sizes_are_compared(labels):
    true, pred = labels
    lazy_true, lazy_pred = (da.from_array(vector, chunks=50) for vector in labels)
    keep = lazy_true > -3
    expected = sklearn.metrics.adjusted_rand_score(true[true > -3], pred[true > -3])
    assert adjusted_rand_score(lazy_true[keep], lazy_pred[keep]) == pytest.approx(
        expected, abs=1e-12
    )
    whole = lazy_true.rechunk(-1)
    assert adjusted_rand_score(whole[whole > -9], pred) == pytest.approx(
        sklearn.metrics.adjusted_rand_score(true, pred), abs=1e-12
    )


def test_unknown_chunk_sizes_that_cannot_be_matched_are_refused(labels):
    lazy_true, lazy_pred = (da.from_array(vector, chunks=50) for vector in labels)
    with pytest.raises(ValueError, match=r"6 and 1 blocks.*compute_chunk_sizes"):
        adjusted_rand_score(lazy_true[lazy_true > -9], lazy_pred.rechunk(-1))
    assert adjusted_rand_score(lazy_true[lazy_true > -9], labels[1]) == pytest.approx(
        adjusted_rand_score(*labels), abs=1e-12
    )
    with pytest.raises(ValueError, match="differ in length within a block: 50 and"):
        adjusted_rand_score(lazy_true, lazy_pred[lazy_true > 0])


@pytest.mark.parametrize("score", SCORES)
def test_labels_of_other_lengths_and_dimensions_are_refused(score, labels):
    true, pred = labels
    lazy = da.from_array(true, chunks=50)
    for first in (true, lazy):
        with pytest.raises(ValueError, match="differ in length: 300 and 299"):
            score(first, pred[1:])
        with pytest.raises(ValueError, match="labels_pred must be 1D, got 2D"):
            score(first, pred[:, None])
        with pytest.raises(ValueError, match="labels_pred contains NaN"):
            score(first, np.where(pred == 0, np.nan, pred))
    with pytest.raises(ValueError, match="labels_true must be 1D, got 0D"):
        score(3, pred)
    for collection in (dask.delayed(true), dask.bag.from_sequence([1, 2])):
        with pytest.raises(TypeError, match="labels_true must be an array"):
            score(collection, pred)


def test_an_unknown_average_method_is_refused(labels):
    with pytest.raises(ValueError, match=r"average_method.*'median'"):
        normalized_mutual_info_score(*labels, average_method="median")


@pytest.mark.parametrize("score", SCORES)
def test_lazy_labels_are_scored_in_one_compute_on_the_users_scheduler(
    score, labels, count_computes
):
    true, pred = labels
    score(da.from_array(true, chunks=7), da.from_array(pred, chunks=11))
    assert count_computes() == 1
    score(da.from_array(true, chunks=7), pred)
    assert count_computes() == 2
    score(true, pred)
    assert count_computes() == 2


@pytest.mark.parametrize("score", SCORES)
def test_each_block_is_loaded_once_and_never_gathered(score):
    loads = []

    def load(block_info=None):
        start, stop = block_info[None]["array-location"][0]
        loads.append(start)
        return np.arange(start, stop) % 5

    largest = []

    class LargestResult(dask.callbacks.Callback):
        def _posttask(self, key, result, dsk, state, worker_id):
            largest.append(result.nbytes if isinstance(result, np.ndarray) else 0)

    true = da.map_blocks(load, chunks=((10,) * 40,), dtype=int, meta=np.empty(0, dtype=int))
    with dask.config.set(scheduler="synchronous"), LargestResult():
        score(true, true // 2)
    assert sorted(loads) == list(range(0, 400, 10))
    assert max(largest, default=0) <= 10 * 8


def test_billions_of_rows_do_not_overflow():
    table = np.array([[5, 1, 0], [2, 7, 3]], dtype=np.int64)
    small, large = csr_array(table), csr_array(table * 10**9)
    assert _mutual_information(large) == pytest.approx(_mutual_information(small), abs=1e-14)


def test_the_rand_score_of_billions_of_rows_does_not_overflow(monkeypatch):
    table = np.array([[5, 1, 0], [2, 7, 3]], dtype=np.int64) * 10**9

    merged = SimpleNamespace(table=csr_array(table))
    monkeypatch.setattr("daskmm.metrics.agreement.contingency", lambda *_: merged)
    # With n → ∞ pairs are drawn with replacement: the score from squared frequencies.
    p = table / table.sum()
    both, true, pred = ((q**2).sum() for q in (p, p.sum(axis=1), p.sum(axis=0)))
    expected = (both - true * pred) / ((true + pred) / 2 - true * pred)
    assert adjusted_rand_score([], []) == pytest.approx(expected, rel=1e-8)
