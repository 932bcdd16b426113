"""Rows of unit covariance, and rows whose tails are clipped."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskmm.numerics.whitening import whitened, without_tails


@given(st.integers(0, 10_000), st.integers(5, 40), st.integers(1, 8), st.booleans())
@settings(max_examples=30, deadline=None)
def test_whitened_rows_have_unit_covariance(seed, n, p, flat):
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(n, p)) * rng.uniform(0.1, 10, p), rng.uniform(0.5, 2, n)
    if flat:
        rows[:, 0] = rows[:, -1]
    white = whitened(rows, weights)
    assert white.shape[1] <= max(2, n // 10)
    covariance = np.cov(white.T, aweights=weights / weights.sum(), bias=True)
    np.testing.assert_allclose(np.atleast_2d(covariance), np.eye(white.shape[1]), atol=1e-9)
    assert whitened(np.ones((n, p)), weights).shape == (n, 0)


def test_tails_are_clipped():
    rows = np.column_stack([np.r_[np.arange(-5.0, 6), 1e6], np.r_[np.zeros(11), 1.0]])
    cut = without_tails(rows)
    np.testing.assert_array_equal(cut[:11], rows[:11])
    assert cut[11, 0] == pytest.approx(0.5 + 3 * 1.4826 * 3)
    # Half of the values are alike: who is to say what is rare?
    assert cut[11, 1] == 1
