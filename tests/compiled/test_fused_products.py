"""The parts of the compiled products against loops over their definitions."""

import numpy as np
import pytest

from daskmm.compiled import dispatch, intrinsics
from daskmm.compiled.compiler import entry
from daskmm.compiled.intrinsics import CENTERS, SIDE
from daskmm.compiled.layout import PANEL_BYTES
from daskmm.compiled.products import (
    aligned,
    panel_norms,
    panel_products,
    panel_room,
    panel_sums,
    products,
    room,
    squared_norms,
    sums_of_rows,
    transpose,
)
from daskmm.numerics.rows import Coordinates

KINDS = (np.float32, np.float64)
SIZES = [(1, 1), (5, 3), (8, 8), (16, 7), (17, 9), (39, 16), (64, 21), (3, 50)]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_size = pytest.mark.parametrize(("n_rows", "p"), SIZES)


@entry
def norms_of_tile(z, w, out):
    squared_norms(z, w, out)


@entry
def norms_of_panels(panels, w, out):
    panel_norms(panels, w, out)


@entry
def turned(rows, tile, width):
    z, by_feature = room(tile, rows.shape[1], rows.dtype, width)
    z[:] = -1.0
    z[: len(rows)] = rows
    transpose(z, len(rows), by_feature)
    return by_feature


def problem(n_rows, p, kind):
    """Some rows; as one panel, and as panels of AVX-512."""
    rows = np.random.default_rng(n_rows + p).normal(size=(n_rows, p)).astype(kind)
    tile = -(-n_rows // SIDE) * SIDE + 2 * SIDE
    width = PANEL_BYTES // rows.itemsize
    whole = -(-n_rows // width) * width
    return rows, turned(rows, tile, tile), turned(rows, whole, width)


@each_kind
@each_size
def test_transposed_tiles_hold_each_number_of_the_rows(n_rows, p, kind):
    rows, *ways = problem(n_rows, p, kind)
    for by_feature in ways:
        width = by_feature.shape[2]
        assert by_feature.dtype == kind
        for i in range(n_rows):
            for f in range(p):
                assert by_feature[i // width, f, i % width] == rows[i, f]


@each_kind
@each_size
def test_squared_norms_are_sums_over_the_features(n_rows, p, kind):
    rows, by_feature, panels = problem(n_rows, p, kind)
    w = np.random.default_rng(p).uniform(0.0, 2.0, p).astype(kind)
    found = np.full(n_rows, np.nan, kind)
    norms_of_tile(by_feature[0], w, found)
    in_panels = np.full(len(panels) * panels.shape[2], np.nan, kind)
    norms_of_panels(panels, w, in_panels)
    for i in range(n_rows):
        expected = sum(float(w[f]) * float(rows[i, f]) ** 2 for f in range(p))
        assert found[i] == pytest.approx(expected, rel=p * float(np.finfo(kind).eps))
        assert in_panels[i] == pytest.approx(expected, rel=p * float(np.finfo(kind).eps))


@entry
def by_panels(rows, centers, phi, tile):
    """Products of rows and centres, and sums weighted by `phi`."""
    z, panels = room(tile, rows.shape[1], rows.dtype, PANEL_BYTES // rows.itemsize)
    z[: len(rows)] = rows
    transpose(z, len(rows), panels)
    factors, sums = panel_room(centers, True)
    d = aligned(len(factors), tile, rows.dtype)
    for j in range(0, len(factors), CENTERS):
        panel_products(factors, j, panels, len(rows), d)
    found = d[: len(centers), : len(rows)].copy()
    d[: len(centers), : len(rows)] = phi
    for j in range(0, len(factors), CENTERS):
        panel_sums(d, j, z, len(rows), sums)
    return found, sums


@entry
def by_blas(rows, centers, phi, tile, at_once):
    """As `by_panels`, so many rows at a time."""
    z, by_feature = room(tile, rows.shape[1], rows.dtype, tile)
    z[: len(rows)] = rows
    transpose(z, len(rows), by_feature)
    _, sums = panel_room(centers, False)
    d = aligned(len(centers), tile, rows.dtype)
    products(by_feature[0], len(rows), at_once, centers, d)
    found = d[:, : len(rows)].copy()
    d[:, : len(rows)] = phi
    sums_of_rows(d, len(rows), at_once, z, sums)
    return found, sums


@each_kind
@pytest.mark.parametrize(
    ("n_rows", "p", "k"),
    [(1, 1, 1), (7, 5, 3), (33, 17, 8), (101, 40, 13), (384, 70, 10), (50, 110, 9)],
)
@pytest.mark.parametrize("at_once", [None, 32, 384])
def test_products_are_sums_of_products(n_rows, p, k, at_once, kind):
    rng = np.random.default_rng(p)
    rows, centers = rng.normal(size=(n_rows, p)).astype(kind), rng.normal(size=(k, p)).astype(kind)
    phi = rng.uniform(size=(k, n_rows)).astype(kind)
    if at_once is None:
        found, sums = by_panels(rows, centers, phi, 384)
    else:
        found, sums = by_blas(rows, centers, phi, 384, at_once)
    atol = (p + n_rows) * float(np.finfo(kind).eps)
    for j in range(k):
        for i in range(n_rows):
            expected = sum(float(centers[j, f]) * float(rows[i, f]) for f in range(p))
            assert found[j, i] == pytest.approx(expected, abs=10 * atol)
        for f in range(p):
            expected = sum(float(phi[j, i]) * float(rows[i, f]) for i in range(n_rows))
            assert sums[j, f] == pytest.approx(expected, abs=10 * atol)


@each_kind
@pytest.mark.parametrize("s", [-3.0, -np.inf])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("p", "k"), [(1, 2), (6, 5), (13, 12), (61, 203)])
def test_sums_by_panels_are_those_of_blas(p, k, weighted, s, kind, monkeypatch):
    rng = np.random.default_rng(k)
    rows = (rng.normal(size=(4997, p)) + 3.0).astype(kind)
    v, w = (rng.integers(0, 3, len(rows)) * 0.3, rng.dirichlet(np.ones(p)))
    coordinates = Coordinates(np.full(p, 3.0), rng.uniform(0.5, 2.0, p))
    centers = coordinates.to_model(rows[:k].astype(float) + 0.3 * rng.normal(size=(k, p)))
    found = []
    for chosen in (False, True):
        monkeypatch.setattr(intrinsics, "PANELS_PAY", chosen)
        monkeypatch.setattr(dispatch, "takes_panels", lambda *_: True)
        weights = (v, w) if weighted else (None, None)
        prepared = dispatch.PreparedCenters(centers, weights[1])
        found.append(dispatch.block_sums(rows, weights[0], coordinates, prepared, s, 4))
    blas, panels = found
    rtol = 1e-11 if kind == np.float64 else 1e-4
    np.testing.assert_allclose(panels.weights, blas.weights, rtol=rtol)
    np.testing.assert_allclose(panels.sums, blas.sums, atol=rtol * blas.weights.max())
    np.testing.assert_array_equal(panels.farthest_rows, blas.farthest_rows)
    for name in ("objective", "inertia", "hardness"):
        assert getattr(panels, name) == pytest.approx(getattr(blas, name), rel=rtol)
    if weighted:
        np.testing.assert_allclose(panels.squares, blas.squares, rtol=rtol)
