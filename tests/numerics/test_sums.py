"""Records of sums over rows are added and scaled field by field."""

from dataclasses import dataclass

import numpy as np

from daskmm.kmeans.sums import MeanSums
from daskmm.numerics.sums import Sums


@dataclass(frozen=True)
class Pair(Sums):
    count: float
    inner: "Sums | np.ndarray | None"


def test_fields_are_added_and_scaled_and_what_is_absent_remains_absent():
    a, b = Pair(1.0, np.array([1.0, 2.0])), Pair(2.5, np.array([4.0, 8.0]))
    assert (a + b).count == 3.5
    np.testing.assert_array_equal((a + b).inner, [5.0, 10.0])
    np.testing.assert_array_equal(a.times(3.0).inner, [3.0, 6.0])
    assert (Pair(1.0, None) + Pair(1.0, None)).inner is None
    assert Pair(1.0, None).times(2.0) == Pair(2.0, None)
    assert (Pair(0.0, Pair(1.0, None)) + Pair(0.0, Pair(2.0, None))).inner == Pair(3.0, None)


def test_sums_of_complete_rows_and_of_rows_with_missing_values_can_be_added():
    whole = MeanSums(np.array([2.0, 3.0]), np.ones((2, 2)), None, None)
    holes = MeanSums(
        np.array([1.0, 1.0]), np.ones((2, 2)), np.array([[1.0, 0.5], [0.0, 1.0]]), None
    )
    expected = [[3.0, 2.5], [3.0, 4.0]]
    np.testing.assert_array_equal((whole + holes).denominators, expected)
    np.testing.assert_array_equal((holes + whole).masses, expected)
