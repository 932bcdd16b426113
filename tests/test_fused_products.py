"""The parts of the compiled products against loops over their definitions."""

import numpy as np
import pytest
from numba import njit

from daskmm.numerics.fused_products import SIDE, room, squared_norms, transpose

KINDS = (np.float32, np.float64)
SIZES = [(1, 1), (5, 3), (8, 8), (16, 7), (17, 9), (39, 16), (64, 21), (3, 50)]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_size = pytest.mark.parametrize(("n_rows", "p"), SIZES)


@njit
def turned(rows, tile):
    z, by_feature = room(tile, rows.shape[1], rows.dtype)
    z[:] = -1.0
    z[: len(rows)] = rows
    transpose(z, len(rows), by_feature)
    return by_feature


def problem(n_rows, p, kind):
    rows = np.random.default_rng(n_rows + p).normal(size=(n_rows, p)).astype(kind)
    tile = -(-n_rows // SIDE) * SIDE + 2 * SIDE
    return rows, turned(rows, tile)


@each_kind
@each_size
def test_transposed_tiles_hold_each_number_of_the_rows(n_rows, p, kind):
    rows, by_feature = problem(n_rows, p, kind)
    assert by_feature.dtype == kind
    for i in range(n_rows):
        for f in range(p):
            assert by_feature[f, i] == rows[i, f]


@each_kind
@each_size
def test_squared_norms_are_sums_over_the_features(n_rows, p, kind):
    rows, by_feature = problem(n_rows, p, kind)
    w = np.random.default_rng(p).uniform(0.0, 2.0, p).astype(kind)
    found = np.full(n_rows, np.nan, kind)
    squared_norms(by_feature, w, found)
    for i in range(n_rows):
        expected = sum(float(w[f]) * float(rows[i, f]) ** 2 for f in range(p))
        assert found[i] == pytest.approx(expected, rel=p * float(np.finfo(kind).eps))
