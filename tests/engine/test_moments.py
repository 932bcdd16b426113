"""Moments of blocks merge to those of all rows."""

import numpy as np
import pytest

from daskmm.engine.moments import Moments


@pytest.mark.parametrize("weighted", [False, True], ids=["equal rows", "weighted rows"])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_merged_moments_are_those_of_all_rows(weighted, offset):
    rng = np.random.default_rng(12)
    rows = rng.normal(size=(100, 4)) * [1e-3, 1, 1e3, 1] + offset
    v = rng.integers(0, 3, 100).astype(float) if weighted else None
    total = Moments.empty(4)
    for a, b in [(0, 0), (0, 1), (1, 40), (40, 40), (40, 99), (99, 100), (100, 100)]:
        total = total + Moments.of(rows[a:b], None if v is None else v[a:b])
    counted = rows if v is None else np.repeat(rows, v.astype(int), axis=0)
    assert total.n_positive == (100 if v is None else np.count_nonzero(v))
    assert total.weight == len(counted)
    shifted = counted - offset  # exact, and free of the cancellation under test
    np.testing.assert_allclose(total.mean, shifted.mean(axis=0) + offset, rtol=1e-14, atol=1e-14)
    # The means of two blocks differ by rounding of the size of the mean, and so do their
    # squared differences; the textbook formula would lose the square of that.
    deviation = shifted.std(axis=0)
    allowed = 1e-13 + 4 * np.finfo(float).eps * offset / deviation
    assert (np.abs(total.variance / deviation**2 - 1) <= allowed).all()


def test_moments_merge_in_any_grouping_and_empty_ones_are_neutral():
    rng = np.random.default_rng(13)
    a, b, c = (Moments.of(rng.normal(i, 1 + i, (9 + i, 2)), None) for i in range(3))
    for merged in ((a + b) + c, a + (b + c), c + b + a, a + Moments.empty(2) + b + c):
        np.testing.assert_allclose(merged.mean, (a + b + c).mean, rtol=1e-13)
        np.testing.assert_allclose(merged.deviations, (a + b + c).deviations, rtol=1e-13)
    empty = Moments.empty(2)
    assert (a + empty) is a
    assert (empty + a) is a
    assert (empty + empty).weight == 0


def test_moments_of_rows_without_weight_are_empty():
    rows = np.array([[1e300, 1.0]])
    moments = Moments.of(rows, np.zeros(1))
    assert (moments.n_positive, moments.weight) == (0, 0.0)
    np.testing.assert_array_equal(moments.mean, 0.0)
