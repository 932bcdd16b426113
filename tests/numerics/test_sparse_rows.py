"""Sparse rows beside dense ones."""

import numpy as np
import pytest
import scipy.sparse as sp

from daskmm.numerics import annealing, sparse_rows
from daskmm.numerics.distortions.cosine import Cosine
from daskmm.numerics.sparse_rows import canonical, has_holes

ROWS = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, 3.0], [0.0, 0.0, 0.0]])


def test_values_in_any_order_and_in_parts_are_put_together():
    values, features, ends = [1.0, 2.0, 3.0, -1.0], [2, 0, 2, 0], [0, 3, 3, 4]
    given = sp.csr_array((values, features, ends), shape=(3, 3))
    rows = canonical(given)
    assert rows.has_canonical_format
    assert (rows.indices.tolist(), rows.data.tolist()) == ([0, 2, 0], [2.0, 4.0, -1.0])
    assert given.data.tolist() == values
    again = canonical(rows)
    assert np.shares_memory(again.data, rows.data)


def test_only_dense_rows_have_holes():
    assert not has_holes(ROWS)
    assert has_holes(np.where(ROWS == 3.0, np.nan, ROWS))
    assert not has_holes(canonical(ROWS))


def empty_rows(rows):
    return np.flatnonzero(Cosine.empty(rows)).tolist()


def test_rows_without_a_direction_are_the_same_ones():
    assert empty_rows(ROWS) == empty_rows(canonical(ROWS)) == [1, 3]
    assert empty_rows(ROWS[[0, 2]]) == empty_rows(canonical(ROWS[[0, 2]])) == []
    stored = canonical(ROWS)
    stored.data[:] = 0.0  # zeros that are stored are zeros
    assert empty_rows(stored) == [0, 1, 2, 3]


def test_the_critical_power_of_sparse_rows_is_that_of_dense_ones(monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.poisson(0.3, size=(240, 40)).astype(float)
    weights = rng.uniform(0.5, 2.0, len(rows))
    expected = annealing.critical_power(rows, weights)
    monkeypatch.setattr(sparse_rows, "FEW_BYTES", 0)
    found = annealing.critical_power(canonical(rows), weights)
    assert found == pytest.approx(expected, rel=1e-6)
    assert annealing.critical_power(canonical(np.ones((5, 3))), np.ones(5)) == 0.5
