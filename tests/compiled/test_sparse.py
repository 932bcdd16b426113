"""Products of sparse rows beside their definition."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from compiled._blocks import forms, off_lines
from daskmm.compiled.sparse import fast_rows
from daskmm.numerics.sparse_rows import canonical


def naive_product(rows, other):
    """Σ_l x_il b_lj, number by number."""
    found = np.zeros((rows.shape[0], other.shape[1]))
    for i, row in enumerate(rows):
        for x, line in zip(row, other, strict=True):
            for j, b in enumerate(line):
                found[i, j] += x * b
    return found


@given(
    seed=st.integers(0, 1000),
    n_columns=st.sampled_from([1, 3, 8, 9, 16, 25, 33, 70]),
    density=st.sampled_from([0.0, 0.1, 0.6]),
    wide=st.booleans(),
)
def test_products_are_those_of_the_definition(seed, n_columns, density, wide):
    rng = np.random.default_rng(seed)
    rows = sp.random_array((9, 7), density=density, format="csr", rng=rng)
    if wide:
        rows.indices, rows.indptr = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
    fast = fast_rows(canonical(rows))
    other, weights = rng.normal(size=(7, n_columns)), rng.normal(size=(9, n_columns))
    np.testing.assert_allclose(
        fast @ other, naive_product(rows.toarray(), other), rtol=1e-12, atol=1e-14
    )
    expected = naive_product(weights.T, rows.toarray())
    np.testing.assert_allclose(weights.T @ fast, expected, rtol=1e-12, atol=1e-14)
    # Of hard steps: at most one column of a row is not 0.
    hard = np.zeros((9, n_columns))
    hard[np.arange(8), rng.integers(n_columns, size=8)] = rng.random(8)
    np.testing.assert_allclose(
        hard.T @ fast, naive_product(hard.T, rows.toarray()), rtol=1e-12, atol=1e-14
    )


def test_other_products_are_scipys():
    rows = canonical(sp.random_array((20, 6), density=0.4, format="csr", rng=0))
    fast = fast_rows(rows)
    np.testing.assert_array_equal(fast @ np.arange(6.0), rows @ np.arange(6.0))
    np.testing.assert_array_equal(np.arange(20.0) @ fast, np.arange(20.0) @ rows)
    np.testing.assert_array_equal((fast @ fast.T).toarray(), (rows @ rows.T).toarray())
    single = canonical(rows.astype(np.float32))
    assert fast_rows(single) is single
    dense = rows.toarray()
    assert fast_rows(dense) is dense


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (5, 3)])
@pytest.mark.parametrize("n_columns", [0, 1, 8])
def test_rows_and_columns_that_are_empty_have_products_of_zeros(shape, n_columns):
    fast = fast_rows(canonical(sp.csr_array(shape)))
    np.testing.assert_array_equal(
        fast @ np.ones((shape[1], n_columns)), np.zeros((shape[0], n_columns))
    )
    np.testing.assert_array_equal(
        np.ones((n_columns, shape[0])) @ fast, np.zeros((n_columns, shape[1]))
    )


@given(seed=st.integers(0, 1000), n_columns=st.integers(1, 70))
def test_the_form_of_the_dense_array_changes_no_bit(seed, n_columns):
    rng = np.random.default_rng(seed)
    fast = fast_rows(canonical(sp.random_array((13, 6), density=0.4, format="csr", rng=rng)))
    right, left = rng.normal(size=(6, n_columns)), rng.normal(size=(n_columns, 13))
    for form in forms(right):
        np.testing.assert_array_equal(fast @ form, fast @ right)
    for form in forms(left):
        np.testing.assert_array_equal(form @ fast, left @ fast)


def test_arrays_that_are_not_aligned_give_the_same_products():
    rows = canonical(sp.random_array((13, 6), density=0.4, format="csr", rng=0))
    other = np.random.default_rng(0).normal(size=(6, 5))
    expected = fast_rows(rows) @ other
    rows.data = off_lines(rows.data)
    np.testing.assert_array_equal(fast_rows(rows) @ other, expected)
