"""Weights of a tile, by vectors and by loops, against their definition in long doubles."""

import numpy as np
import pytest
from numba import njit

from daskmm.compiled.intrinsics import VECTORS_PAY
from daskmm.compiled.layout import PANEL_BYTES
from daskmm.compiled.products import aligned
from daskmm.compiled.weights import (
    by_loops,
    by_vectors,
    list_relevant,
    listed_by_loops,
    listed_by_vectors,
    weigh_all,
)

LOWEST = {np.float32: -126.0, np.float64: -1000.0}
needs_vectors = pytest.mark.skipif(
    not VECTORS_PAY, reason="the processor does not have the registers of AVX-512"
)
each_way = pytest.mark.parametrize(
    "way",
    [
        weigh_all,  # calls one of the others
        pytest.param(by_loops, marks=pytest.mark.long),
        pytest.param(by_vectors, marks=[needs_vectors, pytest.mark.long]),
    ],
)
each_kind = pytest.mark.parametrize("kind", LOWEST)


@njit
def weighed(way, distances, breadth, power, lowest, smallest, inverse, tie):
    """Weights, their sums and those of ties, from exact numbers."""
    k, n = distances.shape
    kind = distances.dtype
    d, of_rows = aligned(k + k % 2, breadth, kind), aligned(5, breadth, kind)
    d[:] = np.inf
    d[:k, :n] = distances
    m, factor, nearby, total, tied = (
        of_rows[0, :n],
        of_rows[1, :n],
        of_rows[2, :n],
        of_rows[3, :n],
        of_rows[4, :n],
    )
    m[:], factor[:], nearby[:] = smallest, inverse, tie
    way(d, k, power, lowest, (m, factor, nearby, total, tied), distances.ravel(), 0, k * n)
    return d[:, :n].copy(), total.copy(), tied.copy()


def found(way, distances, s, tie=0.0):
    kind = distances.dtype.type
    n = distances.shape[1]
    smallest = distances.min(axis=0)
    with np.errstate(divide="ignore"):
        inverse = (1 / smallest).astype(kind)
    length = PANEL_BYTES // distances.itemsize
    nearby = np.full(n, tie, kind)
    limits = kind(s - 1.0), kind(LOWEST[kind])
    return weighed(way, distances, -(-n // length) * length, *limits, smallest, inverse, nearby)


def excesses(distances):
    """What the loops are given of r = d/m = 1 + e, in their type: its rounding is not theirs."""
    m = distances.min(axis=0)
    return ((distances - m) * (1 / m).astype(distances.dtype)).astype(np.longdouble)


@pytest.mark.in_turn("kind")
@each_way
@each_kind
@pytest.mark.parametrize("s", [-0.5, -3.0, -50.0, -1e4])
def test_weights_are_powers_of_the_ratios(way, kind, s):
    rng = np.random.default_rng(0)
    near = 1.0 + 10.0 ** rng.uniform(-7.0, 1.0, size=(7, 61))
    far = 10.0 ** rng.uniform(0.0, 30.0, size=(4, 61))
    distances = np.concatenate([np.ones((1, 61)), near, far]).astype(kind)
    distances *= rng.uniform(0.5, 9.0, 61).astype(kind)
    phi, total, _ = found(way, distances, s)
    e = excesses(distances)
    exponents = (s - 1.0) * np.log1p(e) / np.log(np.longdouble(2))
    expected = np.exp2(exponents)
    inside = exponents > LOWEST[kind] + 1
    error = np.abs(phi[: len(e)][inside] / expected[inside] - 1)
    # Relative errors of exponents are of a few units in the last place, more where 1 + e, which
    # is rounded, is little above 1 + 1/16.
    assert (error <= np.finfo(kind).eps * (4 + 6 * np.abs(exponents[inside]))).all()
    assert (phi[: len(e)][exponents < LOWEST[kind] - 1] == 0).all()
    assert (phi[len(e) :] == 0).all()
    u = np.where(phi[: len(e)] > 0, phi[: len(e)] * (1 + e), 0)
    np.testing.assert_allclose(total, u.sum(axis=0).astype(kind), rtol=30 * np.finfo(kind).eps)


@each_way
@each_kind
@pytest.mark.parametrize("n", [1, 8, 47, 48, 49, 100])
@pytest.mark.parametrize("k", [2, 3, 8])
def test_tiles_of_all_sizes_are_weighed_whole(way, kind, n, k):
    distances = np.random.default_rng(n + k).uniform(1.0, 9.0, size=(k, n)).astype(kind)
    phi, total, tied = found(way, distances, -2.0)
    r = distances / distances.min(axis=0)
    np.testing.assert_allclose(phi[:k], r**-3.0, rtol=50 * np.finfo(kind).eps)
    np.testing.assert_allclose(total, (r**-2.0).sum(axis=0), rtol=50 * np.finfo(kind).eps)
    np.testing.assert_allclose(tied, 1.0)


@each_way
@each_kind
def test_rows_on_a_center_and_centers_at_infinity(way, kind):
    distances = np.array(
        [[0.0, 0.0, 2.0, 1.0], [0.0, 3.0, np.inf, 1.0], [5.0, np.inf, 4.0, 1.0]], kind
    )
    phi, total, tied = found(way, distances, -1.0)
    np.testing.assert_allclose(
        phi[:3], [[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 0.25, 1]], rtol=4 * np.finfo(kind).eps
    )
    np.testing.assert_allclose(total, [2, 1, 1.5, 3], rtol=4 * np.finfo(kind).eps)
    np.testing.assert_allclose(tied, [2, 1, 1, 3], rtol=4 * np.finfo(kind).eps)


@each_way
@each_kind
def test_what_is_within_the_tie_counts_as_tied(way, kind):
    distances = np.array([[1.0], [1.0 + 2.0**-10], [1.0 + 2.0**-8], [3.0]], kind)
    _, _, tied = found(way, distances, -1.0, tie=2.0**-9)
    np.testing.assert_allclose(tied, [1.0 + 1.0 / (1.0 + 2.0**-10)], rtol=8 * np.finfo(kind).eps)


@njit
def listed(d, limits, smallest, inverse, firsts, rows, excess):
    """List what matters of a whole tile."""
    return list_relevant(d, limits, smallest, inverse, (firsts, rows, excess))


@njit
def listed_of_center(way, distances, limit, smallest, inverse, rows, excess):
    """List what matters of one centre."""
    return way(distances, limit, smallest, inverse, rows, excess, 2)


def tile_of(kind, n, k):
    """Distances of a tile, some 0 or infinite; the smallest, their inverse, limits of ratios."""
    rng = np.random.default_rng(n + k)
    breadth = -(-n // 48) * 48
    d = np.full((k, breadth), np.nan, kind)
    d[:, :n] = rng.uniform(1.0, 20.0, (k, n))
    d[0, : n // 3] = np.inf
    d[-1, n // 2 :: 7] = 0.0
    smallest = d[:, :n].min(axis=0)
    with np.errstate(divide="ignore"):
        inverse = (1 / smallest).astype(kind)
    return d, smallest, inverse, rng.uniform(1.0, 9.0, k).astype(kind)


def expected_list(d, limits, smallest, inverse):
    with np.errstate(invalid="ignore"):
        near = ~(d[:, : len(smallest)] > limits[:, None] * smallest)
        e = (d[:, : len(smallest)] - smallest) * inverse
    return near, np.where(e > 0, e, 0)


@pytest.mark.parametrize(
    "way", [listed_by_loops, pytest.param(listed_by_vectors, marks=needs_vectors)]
)
@each_kind
@pytest.mark.parametrize("n", [1, 8, 15, 16, 17, 48, 100])
def test_what_matters_of_a_center_is_listed(way, kind, n):
    d, smallest, inverse, limits = tile_of(kind, n, 4)
    near, e = expected_list(d, limits, smallest, inverse)
    for j, limit in enumerate(limits):
        rows, excess = np.full(200, -1, kind), np.full(200, -1, kind)
        end = listed_of_center(way, d[j], limit, smallest, inverse, rows, excess)
        assert end == 2 + near[j].sum()
        np.testing.assert_array_equal(rows[:2], -1)
        np.testing.assert_array_equal(rows[2:end], np.flatnonzero(near[j]))
        np.testing.assert_allclose(excess[2:end], e[j][near[j]], rtol=2 * np.finfo(kind).eps)


@each_kind
@pytest.mark.parametrize(("n", "k"), [(1, 3), (48, 5), (100, 8)])
def test_what_matters_of_a_tile_is_listed_by_center_up_to_some_length(kind, n, k):
    d, smallest, inverse, limits = tile_of(kind, n, k)
    near, e = expected_list(d, limits, smallest, inverse)
    firsts = np.zeros(k + 1, np.int64)
    length = near.sum() + d.shape[1]
    rows, excess = np.zeros(length, kind), np.zeros(length, kind)
    assert listed(d, limits, smallest, inverse, firsts, rows, excess) == near.sum()
    np.testing.assert_array_equal(firsts, np.concatenate([[0], near.sum(axis=1).cumsum()]))
    np.testing.assert_array_equal(rows[: near.sum()], np.nonzero(near)[1])
    np.testing.assert_allclose(excess[: near.sum()], e[near], rtol=2 * np.finfo(kind).eps)
    assert listed(d, limits, smallest, inverse, firsts, rows[:-1], excess[:-1]) == -1
