"""The parts of the compiled products against loops over their definitions."""

import numpy as np
import pytest
from numba import njit

from daskmm.numerics import fused, fused_products
from daskmm.numerics.divergences import SQUARED_EUCLIDEAN
from daskmm.numerics.fused_products import (
    SIDE,
    aligned,
    products_of_four,
    room,
    squared_norms,
    sums_of_four,
    transpose,
)
from daskmm.numerics.rows import Coordinates

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


@njit
def by_fours(rows, centers, phi):
    """Products of rows and centres, and sums weighted by `phi`, of sizes that four divides."""
    z, by_feature = room(fused.MOST_ROWS, rows.shape[1], rows.dtype)
    z[: len(rows)] = rows
    transpose(z, len(rows), by_feature)
    d = aligned(len(centers), fused.MOST_ROWS, rows.dtype)
    sums = np.empty_like(centers)
    for j in range(0, len(centers), 4):
        products_of_four(centers, j, by_feature, len(rows), d)
    products = d[:, : len(rows)].copy()
    d[:, : len(rows)] = phi
    for j in range(0, len(centers), 4):
        sums_of_four(d, j, by_feature, len(rows), sums)
    return products, sums


@each_kind
@pytest.mark.parametrize(("n_rows", "p", "k"), [(1, 1, 1), (7, 5, 3), (33, 9, 6), (384, 12, 10)])
def test_products_by_fours_are_sums_of_products(n_rows, p, k, kind):
    rng = np.random.default_rng(p)
    rows = rng.normal(size=(n_rows, p)).astype(kind)
    centers, phi = np.zeros((k + -k % 4, p + -p % 4), kind), np.zeros((k + -k % 4, n_rows), kind)
    centers[:k, :p] = rng.normal(size=(k, p))
    phi[:k] = rng.uniform(size=(k, n_rows))
    products, sums = by_fours(rows, centers, phi)
    atol = (p + n_rows) * float(np.finfo(kind).eps)
    for j in range(len(centers)):
        for i in range(n_rows):
            expected = sum(float(centers[j, f]) * float(rows[i, f]) for f in range(p))
            assert products[j, i] == pytest.approx(expected, abs=10 * atol)
        for f in range(p):
            expected = sum(float(phi[j, i]) * float(rows[i, f]) for i in range(n_rows))
            assert sums[j, f] == pytest.approx(expected, abs=10 * atol)


@each_kind
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("p", "k"), [(1, 2), (6, 5), (13, 12), (61, 203)])
def test_soft_sums_by_fours_are_those_of_blas(p, k, weighted, kind, monkeypatch):
    rng = np.random.default_rng(k)
    rows = (rng.normal(size=(4997, p)) + 3.0).astype(kind)
    v, w = (rng.integers(0, 3, len(rows)) * 0.3, rng.dirichlet(np.ones(p)))
    coordinates = Coordinates(np.full(p, 3.0), rng.uniform(0.5, 2.0, p))
    centers = coordinates.to_model(rows[:k].astype(float) + 0.3 * rng.normal(size=(k, p)))
    found = []
    for chosen in (False, True):
        monkeypatch.setattr(fused_products, "FOURS_PAY", chosen)
        monkeypatch.setattr(fused, "_by_fours", lambda *_: True)
        weights = (v, w) if weighted else (None, None)
        model = (weights[0], coordinates, centers, -3.0, weights[1], 0, SQUARED_EUCLIDEAN)
        found.append(fused.block_sums(rows, *model))
    blas, fours = found
    rtol = 1e-11 if kind == np.float64 else 1e-4
    np.testing.assert_allclose(fours.weights, blas.weights, rtol=rtol)
    np.testing.assert_allclose(fours.sums, blas.sums, atol=rtol * blas.weights.max())
    for name in ("objective", "inertia", "hardness"):
        assert getattr(fours, name) == pytest.approx(getattr(blas, name), rel=rtol)
    if weighted:
        np.testing.assert_allclose(fours.squares, blas.squares, rtol=rtol)
