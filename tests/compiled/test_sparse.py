"""Compiled products of sparse rows beside their definition."""

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

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
