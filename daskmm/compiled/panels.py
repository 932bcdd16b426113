"""Matrix products of a tile of rows and many centres, eight centres at a time.

A few vectors of rows (or of features), times eight numbers, fill the 32 vector registers of
AVX-512. They stay there while all features (rows) are added up, so that each number is loaded once
for 24 products. BLAS does the same, but copies its matrices first, at every call. The rows of a
tile are brought into panels once for all centres, and what is made of eight centres is still in the
nearest cache when the loops that come next take it.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from daskmm.compiled.compiler import EXACT, everywhere, part, processor_has, wide_vectors
from daskmm.compiled.layout import PANEL_BYTES
from daskmm.compiled.products import aligned

# Whether the processor has the registers.
PANELS_PAY = processor_has("avx512f")
# Centres at a time.
CENTERS = 8
_VECTOR_BYTES = 64
# Vectors in a panel.
_VECTORS = PANEL_BYTES // _VECTOR_BYTES


def _micro_kernel(n_vectors):
    """Sums Σ_q a[c, q] b[q, i] for eight c, and for i that fill so many vectors.

    Arrays are flat. `a`, `b` and `out` begin at `a_start` and so on; `a_step` numbers lie between
    the rows of a, alike the others'. No array is asked for its size.
    """

    @intrinsic
    def multiply_panel(typing, a, a_start, a_step, b, b_start, b_step, n, out, o_start, o_step):
        size = types.intp
        signature = types.void(a, size, size, b, size, size, size, out, size, size)

        def generate(context, builder, signature, arguments):
            _, a_start, a_step, _, b_start, b_step, n, _, o_start, o_step = arguments
            number = context.get_data_type(signature.args[0].dtype)
            align = context.get_abi_sizeof(number)
            length = _VECTOR_BYTES // align
            vector = ir.VectorType(number, length)
            columns = [ir.Constant(n.type, v * length) for v in range(n_vectors)]

            def begin(place, start, step, rows):
                kind = signature.args[place]
                data = context.make_array(kind)(context, builder, arguments[place]).data
                first = builder.gep(data, [start])
                steps = [builder.mul(step, ir.Constant(n.type, c)) for c in range(rows)]
                return [builder.gep(first, [each]) for each in steps]

            factors, targets = (
                begin(0, a_start, a_step, CENTERS),
                begin(7, o_start, o_step, CENTERS),
            )
            (values,) = begin(3, b_start, b_step, 1)
            zero = ir.Constant(vector, [0.0] * length)
            # The compiler keeps these in registers.
            sums = [[cgutils.alloca_once(builder, vector) for _ in columns] for _ in range(CENTERS)]
            for place in (place for row in sums for place in row):
                builder.store(zero, place)
            with cgutils.for_range(builder, n) as loop:
                row = builder.gep(values, [builder.mul(b_step, loop.index)])
                found = [
                    builder.load(
                        builder.bitcast(builder.gep(row, [column]), vector.as_pointer()),
                        align=align,
                    )
                    for column in columns
                ]
                for factor, places in zip(factors, sums, strict=True):
                    single = builder.load(builder.gep(factor, [loop.index]))
                    many = everywhere(builder, single, vector)
                    for place, x in zip(places, found, strict=True):
                        product = builder.fmul(many, x, flags=("contract",))
                        total = builder.fadd(builder.load(place), product, flags=("contract",))
                        builder.store(total, place)
            for target, places in zip(targets, sums, strict=True):
                for column, place in zip(columns, places, strict=True):
                    pointer = builder.bitcast(builder.gep(target, [column]), vector.as_pointer())
                    builder.store(builder.load(place), pointer, align=align)
            return context.get_dummy_value()

        return signature, generate

    return multiply_panel


_one_vector, _two_vectors, _three_vectors = (_micro_kernel(n) for n in (1, 2, _VECTORS))


@part(EXACT)
def panel_room(factors, by_panels):
    """Factors of whole eights of centres, and an array for `panel_sums`.

    Without panels the array is as BLAS takes it, and there are no factors.
    """
    (k, p), kind = factors.shape, factors.dtype
    if not by_panels:
        return np.zeros((0, p), kind), aligned(k, p, kind)
    n_rows = k + -k % CENTERS
    padded = np.zeros((n_rows, p), kind)
    padded[:k] = factors
    return padded, aligned(n_rows, p + -p % (_VECTOR_BYTES // factors.itemsize), kind)


@part(EXACT)
def panel_norms(panels, w, norms):
    """Σ_l w_l z_il² of the rows of a tile; `norms` has room for whole panels."""
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
    """Products of eight centres, from the j-th on, with some rows of a tile, into `d`.

    Parameters
    ----------
    factors : array of shape (n_clusters, n_features)
        Clusters are a multiple of 8.
    j : int
        A multiple of 8.
    panels : array of shape (n_panels, at least n_features, PANEL_BYTES)
        Rows of the tile as `daskmm.compiled.products.transpose` puts them.
    n_rows : int
    d : array of shape (n_clusters, n_panels * PANEL_BYTES)
        Both widths are in numbers. What is beyond `n_rows` is no number in particular.
    """
    p, tile, (_, height, width) = factors.shape[1], d.shape[1], panels.shape
    a, b, out = factors.ravel(), panels.ravel(), d.ravel()
    for i in range(0, n_rows, width):
        _three_vectors(a, j * p, p, b, i * height, width, p, out, j * tile + i, tile)


@part(EXACT)
def panel_sums(d, j, z, n_rows, part):
    """Sums of some rows of a tile, weighted by `d` of eight centres from the j-th on, into `part`.

    Parameters
    ----------
    d, j, n_rows
        As in `panel_products`.
    z : array of shape (more than n_rows, n_features)
        Vectors reach beyond the last feature of a row.
    part : array of shape (n_clusters, n_vectors * 64 bytes)
        What is beyond `n_features` is no number in particular.
    """
    tile, p, width = d.shape[1], z.shape[1], part.shape[1]
    a, b, out = d.ravel(), z.ravel(), part.ravel()
    length = _VECTOR_BYTES // part.itemsize
    at, first = 0, j * tile
    while at < width:
        left, place = (width - at) // length, j * width + at
        if left > 4 or left == 3:
            _three_vectors(a, first, tile, b, at, p, n_rows, out, place, width)
            at += 3 * length
        elif left > 1:
            _two_vectors(a, first, tile, b, at, p, n_rows, out, place, width)
            at += 2 * length
        else:
            _one_vector(a, first, tile, b, at, p, n_rows, out, place, width)
            at += length
