"""What is tested of values and sample weights, whatever the estimator; see contracts/ for fits."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest

from daskmm.data.blocks import Block, Position, row_blocks
from daskmm.data.validation import (
    check_domain,
    check_empty,
    check_finite,
    check_positive_weights,
    check_row_count,
    checked_rows,
    checked_weights,
    needs_row_counts,
    one_dimensional,
    with_weights,
)
from daskmm.numerics.distortions.bregman import KullbackLeibler, SquaredEuclidean

HERE = Position(2, 100, True, (3, 2))
ROWS = np.arange(6.0).reshape(3, 2)


def masked(values, place):
    found = np.ma.masked_array(values, mask=np.zeros(values.shape, dtype=bool))
    found[place] = np.ma.masked
    return found


# Rows


def test_rows_of_a_block_are_returned_as_they_are():
    assert checked_rows(ROWS, HERE) is ROWS
    assert checked_rows(ROWS, Position(0, 0, False, (None, 2))) is ROWS
    unmasked = np.ma.masked_array(ROWS, mask=np.zeros(ROWS.shape, dtype=bool))
    assert type(checked_rows(unmasked, HERE)) is np.ndarray


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        (ROWS.tolist(), TypeError, "block 2 is a list"),
        (masked(ROWS, (1, 0)), ValueError, r"X has masked values \(block 2, row 1 of the block\)"),
        (ROWS.astype("M8[s]"), ValueError, "block 2 has dtype datetime64"),
        (ROWS[:2], ValueError, r"block 2 has shape \(2, 2\) in place of \(3, 2\)"),
        (ROWS[:, :1], ValueError, r"block 2 has shape \(3, 1\)"),
        (ROWS[:, 0], ValueError, r"block 2 has shape \(3,\)"),
    ],
)
def test_blocks_that_are_something_else_are_named(rows, error, words):
    with pytest.raises(error, match=words):
        checked_rows(rows, HERE)


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_the_first_value_that_is_not_finite_is_named(value, name):
    check_finite(ROWS, HERE)
    check_finite(np.full((2, 2), 1.7e308), HERE)  # only their sum overflows
    rows = ROWS.copy()
    rows[1, 1] = rows[2, 0] = value
    with pytest.raises(ValueError, match=f"{name}: block 2, row 5 .*row 105 of the data.*re 1"):
        check_finite(rows, HERE, offset=4)


def test_values_outside_of_a_domain_are_named():
    check_domain(ROWS, HERE, 0, KullbackLeibler, False)
    check_domain(-ROWS, HERE, 0, SquaredEuclidean, False)
    rows = ROWS.copy()
    rows[2, 1] = -1.5
    with pytest.raises(ValueError, match=r"Negative values in data.*-1\.5.*row 6 .*feature 1"):
        check_domain(rows, HERE, 4, KullbackLeibler, False)
    rows[2, 1] = np.nan
    check_domain(rows, HERE, 0, KullbackLeibler, True)
    rows[1, 0] = np.inf
    with pytest.raises(ValueError, match=r"infinity: block 2, row 5 .*feature 0"):
        check_domain(rows, HERE, 4, SquaredEuclidean, True)
    rows[1] = np.nan
    with pytest.raises(ValueError, match=r"without any value: block 2, row 1"):
        check_empty(Block(rows, position=HERE), SquaredEuclidean)
    light = (np.arange(len(rows)) != 1).astype(float)
    check_empty(Block(rows, light, HERE), SquaredEuclidean)


@pytest.mark.parametrize(("n_rows", "n_clusters"), [(1, 1), (4, 4), (5, 4)])
def test_enough_rows_are_not_refused(n_rows, n_clusters):
    check_row_count(n_rows, n_clusters)
    check_positive_weights(n_rows, n_clusters)


def test_fewer_rows_than_clusters_are_refused():
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        check_row_count(0, 1)
    with pytest.raises(ValueError, match="n_samples=3 should be >= n_clusters=4"):
        check_row_count(3, 4)
    with pytest.raises(ValueError, match=r"Only 3 row\(s\) .* fewer than n_clusters=4"):
        check_positive_weights(3, 4)


# Sample weights


def test_weights_of_a_block_are_float64():
    for values in ([0, 1, 2], np.array([0.0, 1e-100, 1e100]), np.array([1, 0, 3], dtype=object)):
        found = checked_weights(values, 3, HERE)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, np.asarray(values, dtype=float))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (masked(np.ones(3), 1), r"sample_weight has masked values \(block 2, row 1 of the block\)"),
        (np.array(["1"] * 3), r"dtype <U1, which is not numeric \(block 2\)"),
        (np.array(["a", 1, 2], dtype=object), r"must be numbers \(block 2\)"),
        (np.ones(2), r"shape \(2,\) where X has 3 rows \(block 2\)"),
        (np.ones((3, 1)), r"shape \(3, 1\)"),
        (np.array([1, -1e-9, 1]), r"not negative; it is -1e-09 in block 2, row 1 .*row 101"),
        (np.array([1, 1, np.nan]), "finite.*it is nan in block 2, row 2"),
        (np.array([np.inf, 1, 1]), "finite.*it is inf in block 2, row 0"),
        (np.array([1, 9e-101, 1]), r"0 or between 1e-100 and 1e\+100; it is 9e-101 in .*row 1 "),
        (np.array([1, 1, 1.1e100]), r"it is 1\.1e\+100 in block 2, row 2"),
    ],
)
def test_weights_of_a_block_that_cannot_be_used_are_refused(weights, words):
    with pytest.raises(ValueError, match=words):
        checked_weights(weights, 3, HERE)


def test_weights_become_arrays_of_at_most_one_dimension():
    lazy = da.ones(3, chunks=2)
    assert one_dimensional(lazy, True) is lazy
    assert type(one_dimensional(lazy, False)) is np.ndarray
    assert one_dimensional(2.0, True).ndim == 0
    for values in ([1, 2, 3], pd.Series([1, 2, 3])):
        np.testing.assert_array_equal(one_dimensional(values, True), [1, 2, 3])
    for values in (np.ones((3, 1)), da.ones((3, 1)), da.ones(()), masked(np.ones(3), 0)):
        with pytest.raises(ValueError, match="sample_weight"):
            one_dimensional(values, True)


def test_only_weights_of_unknown_length_need_no_row_counts():
    known = da.ones(6, chunks=2)
    assert needs_row_counts(known)
    assert needs_row_counts(np.asarray(1.0))
    assert not needs_row_counts(known[known > 0])


@pytest.mark.parametrize("lazy", [False, True])
def test_weights_are_cut_like_the_rows(lazy):
    weights = np.arange(1.0, 7.0)
    table = da.from_array(np.ones((6, 2)), chunks=((1, 3, 2), (2,)))
    blocks = with_weights(row_blocks(table), da.from_array(weights, chunks=4) if lazy else weights)
    found = [np.asarray(part.compute()) for part in blocks.weights]
    assert [part.tolist() for part in found] == [[1], [2, 3, 4], [5, 6]]
    same = with_weights(row_blocks(table), np.asarray(2.0))
    assert [part.compute().tolist() for part in same.weights] == [[2], [2, 2, 2], [2, 2]]


def test_weights_that_do_not_match_the_rows_are_refused():
    table = da.from_array(np.ones((6, 2)), chunks=(2, 2))
    with pytest.raises(ValueError, match="sample_weight has 5 entries, X has 6 rows"):
        with_weights(row_blocks(table), np.ones(5))
    halves = da.ones(6, chunks=3)
    with pytest.raises(ValueError, match="X has 3 blocks, sample_weight 2"):
        with_weights(row_blocks(table), halves[halves > 0])
