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
    weigh_all,
)

LOWEST = {np.float32: -126.0, np.float64: -1000.0}
needs_vectors = pytest.mark.skipif(
    not VECTORS_PAY, reason="the processor does not have the registers of AVX-512"
)
each_way = pytest.mark.parametrize(
    "way", [by_loops, weigh_all, pytest.param(by_vectors, marks=needs_vectors)]
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
