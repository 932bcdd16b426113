"""Allocate arrays for a tile of rows, and multiply the tile with all centres.

BLAS multiplies small matrices several times faster if neither of them is transposed. A tile is
therefore stored twice: as (row, feature), the left factor of the sums, and as (feature, row), the
left factor of the distances.

BLAS copies large matrices at every call. On processors with AVX-512 they are multiplied in panels
instead: the sums of a few vectors of rows (or of features) times eight centres stay in the 32
vector registers while all features (rows) are added. The tile is copied into panels once for all
centres. Steps with 500 clusters and 100 features then take 11 to 14 % less time.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from daskmm.compiled.compiler import EXACT, part
from daskmm.compiled.intrinsics import (
    CENTERS,
    SIDE,
    gemm,
    one_vector,
    three_vectors,
    transpose_square,
    two_vectors,
    wide_vectors,
)
from daskmm.compiled.layout import PANEL_BYTES, VECTOR_BYTES

# Columns of the triangular matrix per product.
_COLUMNS = 16
_NO_TRANSPOSE = np.frombuffer(b"N", dtype=np.uint8)
_TRANSPOSE = np.frombuffer(b"T", dtype=np.uint8)


@part(EXACT)
def whiten(rows, n_rows, whitening, z):
    """Multiply the first rows by a lower triangular matrix, skipping most of its zeros."""
    p, one, zero = len(whitening), np.ones(1), np.zeros(1)
    sizes = np.array([n_rows, p, 0, 0], dtype=np.int32)
    of_rows, of_matrix, of_z = rows.ravel(), whitening.ravel(), z.ravel()
    b_, p_, columns_, left_ = sizes, sizes[1:], sizes[2:], sizes[3:]
    for first in range(0, p, _COLUMNS):
        columns_[0], left_[0] = min(_COLUMNS, p - first), p - first
        matrix, x, found = of_matrix[first * (p + 1) :], of_rows[first:], of_z[first:]
        none = _NO_TRANSPOSE
        gemm(none, none, columns_, b_, left_, one, matrix, p_, x, p_, zero, found, p_)


@part(EXACT)
def products(by_feature, n_rows, at_once, factors, out):
    """Write the products of the first rows of a tile with all centres to `out`.

    Parameters
    ----------
    by_feature : array of shape (at least n_features, tile)
    n_rows : int
    at_once : int
        Rows that BLAS multiplies at a time; small products are not copied first.
    factors : array of shape (n_clusters, n_features)
    out : array of shape (at least n_clusters, tile)
    """
    widths = by_feature.shape[1], out.shape[1]
    sizes = np.array([0, *widths, *factors.shape], dtype=np.int32)
    b_, x_, y_, k_, p_ = sizes, sizes[1:], sizes[2:], sizes[3:], sizes[4:]
    zero, one, none = np.zeros(1, out.dtype), np.ones(1, out.dtype), _NO_TRANSPOSE
    left, found = by_feature.ravel(), out.ravel()
    for first in range(0, n_rows, at_once):
        sizes[0] = min(at_once, n_rows - first)
        x, y = left[first:], found[first:]
        gemm(none, none, b_, k_, p_, one, x, x_, factors, p_, zero, y, y_)


@part(EXACT)
def add_products(rows, n_rows, factors, out):
    """Add the products of the first rows, kept as (row, feature), with all centres to `out`."""
    sizes = np.array([n_rows, out.shape[1], *factors.shape], dtype=np.int32)
    b_, y_, k_, p_ = sizes, sizes[1:], sizes[2:], sizes[3:]
    one = np.ones(1, out.dtype)
    gemm(_TRANSPOSE, _NO_TRANSPOSE, b_, k_, p_, one, rows, p_, factors, p_, one, out, y_)


@part(EXACT)
def sums_of_rows(d, n_rows, at_once, z, part):
    """Write the sums of the first rows of a tile, weighted by each centre's `d`, to `part`.

    Parameters
    ----------
    d : array of shape (at least n_clusters, tile)
    n_rows, at_once : int
        As in `products`.
    z : array of shape (at least n_rows, n_features)
    part : array of shape (n_clusters, n_features)
    """
    (k, p), kind = part.shape, part.dtype
    sizes = np.array([0, d.shape[1], k, p], dtype=np.int32)
    b_, ld_, k_, p_ = sizes, sizes[1:], sizes[2:], sizes[3:]
    zero, one, none = np.zeros(1, kind), np.ones(1, kind), _NO_TRANSPOSE
    rows, phi = z.ravel(), d.ravel()
    for first in range(0, n_rows, at_once):
        sizes[0] = min(at_once, n_rows - first)
        x, y, kept = rows[first * p :], phi[first:], zero if first == 0 else one
        gemm(none, none, p_, k_, b_, one, x, p_, y, ld_, kept, part, p_)


@part(EXACT)
def aligned(n_rows, n_columns, kind):
    """Return zeros aligned to cache lines: vectors across two lines are slow."""
    size = n_rows * n_columns
    buffer = np.zeros(size + VECTOR_BYTES, kind)
    first = (-buffer.ctypes.data % VECTOR_BYTES) // buffer.itemsize
    return buffer[first : first + size].reshape(n_rows, n_columns)


@part(EXACT)
def room(tile, p, kind, width):
    """Return the two arrays of a tile of rows that `transpose` takes.

    The shapes are (row, feature) and (panel, feature, row), with `width` rows in each panel.
    `tile` is a multiple of `width`, which is one of `SIDE`. Both arrays are larger than the tile,
    because transposed squares and vectors reach beyond its edges.
    """
    height = p + -p % SIDE
    panels = aligned(tile // width * height, width, kind).reshape(tile // width, height, width)
    return np.zeros((tile + 2 * SIDE, p), kind), panels


@part(EXACT)
def transpose(z, n_rows, by_feature):
    """Transpose the first rows of a tile between the arrays of `room`; padding features are 0."""
    p, (_, height, width) = z.shape[1], by_feature.shape
    source, target = z.ravel(), by_feature.ravel()
    for i in range(0, n_rows, SIDE):
        first = i // width * height * width + i % width
        for f in range(0, p, SIDE):
            start, place = i * p + f, first + f * width
            transpose_square(source, start, p, target, place, width)  # type: ignore[call-arg]
    by_feature[:, p:] = 0


@part(EXACT)
def squared_norms(by_feature, w, norms):
    """Compute Σ_l w_l z_il² of every row of a tile stored as (feature, row)."""
    wide_vectors()
    norms[:] = 0
    p = len(w)
    fours = p - p % 4
    for f in range(0, fours, 4):
        first, second = by_feature[f], by_feature[f + 1]
        third, fourth = by_feature[f + 2], by_feature[f + 3]
        w1, w2, w3, w4 = w[f], w[f + 1], w[f + 2], w[f + 3]
        for i in range(len(norms)):
            a, b, c, d = first[i], second[i], third[i], fourth[i]
            norms[i] += (w1 * a * a + w2 * b * b) + (w3 * c * c + w4 * d * d)
    for f in range(fours, p):
        weight, feature = w[f], by_feature[f]
        for i in range(len(norms)):
            norms[i] += weight * feature[i] * feature[i]


@part(EXACT)
def repeated(values):
    """Return the values repeated to at least 256 numbers, so that loops fill vectors."""
    times = 1 + 255 // len(values)
    out = np.empty(times * len(values))
    for q in range(len(out)):
        out[q] = values[q % len(values)]
    return out


@part(EXACT)
def panel_room(factors, by_panels):
    """Return the factors padded to a multiple of eight centres, and an array for the sums.

    Without panels the factors are empty, and the array has the shape that BLAS takes.
    """
    (k, p), kind = factors.shape, factors.dtype
    if not by_panels:
        return np.zeros((0, p), kind), aligned(k, p, kind)
    n_rows = k + -k % CENTERS
    padded = np.zeros((n_rows, p), kind)
    # Assigned to a slice, numba would compile an error message with the shapes for two seconds.
    for j in range(k):
        for f in range(p):
            padded[j, f] = factors[j, f]
    return padded, aligned(n_rows, p + -p % (VECTOR_BYTES // factors.itemsize), kind)


@part(EXACT)
def panel_norms(panels, w, norms):
    """Compute Σ_l w_l z_il² of the rows of a tile; `norms` has the size of whole panels."""
    wide_vectors()
    length = PANEL_BYTES // panels.itemsize
    norms[:] = 0
    p = len(w)
    for first in range(0, len(norms), length):
        features, out = panels[first // length], norms[first : first + length]
        for f in range(0, p - p % 2, 2):
            x, y, v, u = features[f], features[f + 1], w[f], w[f + 1]
            for i in range(length):
                out[i] += v * x[i] * x[i] + u * y[i] * y[i]
        if p % 2:
            x, v = features[p - 1], w[p - 1]
            for i in range(length):
                out[i] += v * x[i] * x[i]


@part(EXACT)
def panel_products(factors, j, panels, n_rows, d):
    """Write the products of eight centres, from the j-th on, with some rows of a tile to `d`.

    Parameters
    ----------
    factors : array of shape (n_clusters, n_features)
        `n_clusters` is a multiple of 8.
    j : int
        A multiple of 8.
    panels : array of shape (n_panels, at least n_features, PANEL_BYTES)
        The tile as written by `transpose`.
    n_rows : int
    d : array of shape (n_clusters, n_panels * PANEL_BYTES)
        PANEL_BYTES stands for as many bytes of numbers. Undefined beyond `n_rows`.
    """
    p, tile, (_, height, width) = factors.shape[1], d.shape[1], panels.shape
    a, b, out = factors.ravel(), panels.ravel(), d.ravel()
    for i in range(0, n_rows, width):
        three_vectors(a, j * p, p, b, i * height, width, p, out, j * tile + i, tile)


@part(EXACT)
def panel_sums(d, j, z, n_rows, part):
    """Write the sums of some rows, weighted by `d` of eight centres from the j-th on, to `part`.

    Parameters
    ----------
    d, j, n_rows
        As in `panel_products`.
    z : array of shape (more than n_rows, n_features)
        Vectors reach beyond the last feature of a row.
    part : array of shape (n_clusters, n_vectors * 64 bytes)
        Undefined beyond `n_features`.
    """
    tile, p, width = d.shape[1], z.shape[1], part.shape[1]
    a, b, out = d.ravel(), z.ravel(), part.ravel()
    length = VECTOR_BYTES // part.itemsize
    at, first = 0, j * tile
    while at < width:
        left, place = (width - at) // length, j * width + at
        if left > 4 or left == 3:
            three_vectors(a, first, tile, b, at, p, n_rows, out, place, width)
            at += 3 * length
        elif left > 1:
            two_vectors(a, first, tile, b, at, p, n_rows, out, place, width)
            at += 2 * length
        else:
            one_vector(a, first, tile, b, at, p, n_rows, out, place, width)
            at += length
