"""Conversions of rows in memory, tile by tile."""

import numpy as np
import pytest

from daskmm.engine.conversion import converted
from daskmm.numerics.rows import Coordinates, tile_rows


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rows_are_converted_as_all_at_once_in_the_wanted_dtype(dtype):
    rng = np.random.default_rng(0)
    n_rows = 2 * tile_rows(7, 1) + 5
    rows = (1e3 + rng.normal(size=(n_rows, 7))).astype("f4")
    coordinates = Coordinates(np.full(7, 1e3), np.linspace(0.5, 2.0, 7))
    found = converted(rows, coordinates.to_model, np.dtype(dtype))
    expected = (rows.astype("f8") - coordinates.mean) / coordinates.scale
    np.testing.assert_array_equal(found, expected.astype(dtype))


def test_a_conversion_may_add_features_and_take_no_rows():
    found = converted(np.ones((0, 3)), lambda tile: np.hstack([tile, tile]), np.dtype("f4"))
    assert found.shape == (0, 6)
    assert found.dtype == np.float32
