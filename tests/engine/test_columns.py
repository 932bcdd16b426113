"""Lists that are packed by columns come back as they were."""

import pickle
from typing import NamedTuple

import numpy as np
import pytest

from daskmm.engine.columns import packed, unpacked


class Place(NamedTuple):
    number: int
    shape: tuple
    known: bool = True


LISTS = [
    [],
    [7],
    [3, 5, 7, 9],
    [9, 7, 5],
    [3, 5, 8],
    [1, True, 1],
    [True, True],
    [0.0, -0.0],
    [float("nan")] * 2,
    ["a", "a"],
    ["a", None],
    [()] * 3,
    [(1, 2), (1,)],
    [("x", number, 0) for number in range(9)],
    [(slice(2 * number, 2 * number + 2), slice(0, 3)) for number in range(4)],
    [Place(number, (None, 4)) for number in range(5)],
    [Place(1, (1,)), (1, (1,), True)],
    [Place(number, (number**2, 4), number == 3) for number in range(5)],
]


@pytest.mark.parametrize("values", LISTS, ids=str)
def test_values_come_back_as_they_were(values):
    found = list(unpacked(pickle.loads(pickle.dumps(packed(values)))))
    assert repr(found) == repr(values)
    assert list(map(type, found)) == list(map(type, values))


def test_other_objects_are_left_alone():
    arrays = [np.ones(2), np.ones(2)]
    assert packed(arrays) is arrays


def test_regular_values_are_short():
    def size(n):
        return len(pickle.dumps(packed([Place(7 * number, (4, 4)) for number in range(n)])))

    assert size(100_000) < size(100) + 20
