"""Matrix products of a tile of rows, and what brings the tile into their shape.

BLAS multiplies small matrices several times faster where neither of them is to be transposed. A
tile is therefore kept twice: as (row, feature), the left factor of the sums, and as (feature,
row), that of the distances.

Where matrices are large, `daskmm.compiled.panels` multiplies them on some processors.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import get_cython_function_address, intrinsic, overload

from daskmm.compiled.compiler import EXACT, part, wide_vectors

for _name in ("dgemm", "sgemm"):
    _address = get_cython_function_address("scipy.linalg.cython_blas", _name)
    llvmlite.binding.add_symbol(f"daskmm_{_name}", _address)
_CALL = types.void(*[types.voidptr] * 13)
_dgemm = types.ExternalFunction("daskmm_dgemm", _CALL)
_sgemm = types.ExternalFunction("daskmm_sgemm", _CALL)

# Columns of a triangular matrix that are multiplied at a time.
_COLUMNS = 16
# Rows and columns of the squares that are transposed at a time; a power of 2.
SIDE = 8
_LINE = 64
_NO_TRANSPOSE = np.frombuffer(b"N", dtype=np.uint8)
_TRANSPOSE = np.frombuffer(b"T", dtype=np.uint8)


def _gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """BLAS' general matrix product; a name for compiled code only, which takes `_gemm_of`."""
    raise TypeError("compiled code only: numba takes _gemm_of in the place of this name")


@overload(_gemm)
def _gemm_of(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    product = _sgemm if c.dtype == types.float32 else _dgemm

    def call(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        product(
            ta.ctypes,
            tb.ctypes,
            m.ctypes,
            n.ctypes,
            k.ctypes,
            alpha.ctypes,
            a.ctypes,
            lda.ctypes,
            b.ctypes,
            ldb.ctypes,
            beta.ctypes,
            c.ctypes,
            ldc.ctypes,
        )

    return call


@part(EXACT)
def whiten(rows, n_rows, whitening, z):
    """Products of the first rows with a lower triangular matrix; most of its zeros are left out."""
    p, one, zero = len(whitening), np.ones(1), np.zeros(1)
    sizes = np.array([n_rows, p, 0, 0], dtype=np.int32)
    of_rows, of_matrix, of_z = rows.ravel(), whitening.ravel(), z.ravel()
    b_, p_, columns_, left_ = sizes, sizes[1:], sizes[2:], sizes[3:]
    for first in range(0, p, _COLUMNS):
        columns_[0], left_[0] = min(_COLUMNS, p - first), p - first
        matrix, x, found = of_matrix[first * (p + 1) :], of_rows[first:], of_z[first:]
        none = _NO_TRANSPOSE
        _gemm(none, none, columns_, b_, left_, one, matrix, p_, x, p_, zero, found, p_)


@part(EXACT)
def products(by_feature, n_rows, at_once, factors, out):
    """Products of the first rows of a tile with all centres, into `out`.

    Parameters
    ----------
    by_feature : array of shape (at least n_features, tile)
    n_rows : int
    at_once : int
        Rows that BLAS multiplies at a time; few are not copied first.
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
        _gemm(none, none, b_, k_, p_, one, x, x_, factors, p_, zero, y, y_)


@part(EXACT)
def add_products(rows, n_rows, factors, out):
    """Add the products of the first rows, kept as (row, feature), with all centres to `out`."""
    sizes = np.array([n_rows, out.shape[1], *factors.shape], dtype=np.int32)
    b_, y_, k_, p_ = sizes, sizes[1:], sizes[2:], sizes[3:]
    one = np.ones(1, out.dtype)
    _gemm(_TRANSPOSE, _NO_TRANSPOSE, b_, k_, p_, one, rows, p_, factors, p_, one, out, y_)


@part(EXACT)
def sums_of_rows(d, n_rows, at_once, z, part):
    """Sums of the first rows of a tile, weighted by `d` of each centre, into `part`.

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
        _gemm(none, none, p_, k_, b_, one, x, p_, y, ld_, kept, part, p_)


@intrinsic
def _transpose_square(typing, source, start, step, target, place, target_step):
    """Transpose `SIDE` vectors of `SIDE` numbers from one flat array to another.

    They begin `step` numbers apart, those of the target `target_step`. No array is asked for its
    size. Compilers do not find these shuffles of registers in a loop over single numbers, which
    takes five times as long.
    """
    signature = types.void(source, types.intp, types.intp, target, types.intp, types.intp)

    def generate(context, builder, signature, arguments):
        source, start, step, target, place, target_step = arguments
        number = context.get_data_type(signature.args[0].dtype)
        size, vector = context.get_abi_sizeof(number), ir.VectorType(number, SIDE)
        order = ir.VectorType(ir.IntType(32), SIDE)

        def vectors(kind, array, start, step):
            data = context.make_array(kind)(context, builder, array).data
            for q in range(SIDE):
                place = builder.add(start, builder.mul(step, ir.Constant(step.type, q)))
                yield builder.bitcast(builder.gep(data, [place]), vector.as_pointer())

        rows = [
            builder.load(pointer, align=size)
            for pointer in vectors(signature.args[0], source, start, step)
        ]
        # Blocks of half the side change places across the diagonal, then theirs.
        apart = SIDE // 2
        while apart:
            upper = [q + SIDE - apart if q & apart else q for q in range(SIDE)]
            lower = [q + SIDE if q & apart else q + apart for q in range(SIDE)]
            for q in range(SIDE):
                if not q & apart:
                    pair = rows[q], rows[q + apart]
                    rows[q] = builder.shuffle_vector(*pair, ir.Constant(order, upper))
                    rows[q + apart] = builder.shuffle_vector(*pair, ir.Constant(order, lower))
            apart //= 2
        pointers = vectors(signature.args[3], target, place, target_step)
        for row, pointer in zip(rows, pointers, strict=True):
            builder.store(row, pointer, align=size)
        return context.get_dummy_value()

    return signature, generate


@part(EXACT)
def aligned(n_rows, n_columns, kind):
    """Zeros that begin where a line of the cache does, as vectors are slow that straddle two."""
    size = n_rows * n_columns
    buffer = np.zeros(size + _LINE, kind)
    first = (-buffer.ctypes.data % _LINE) // buffer.itemsize
    return buffer[first : first + size].reshape(n_rows, n_columns)


@part(EXACT)
def room(tile, p, kind, width):
    """Arrays for a tile of rows that `transpose` takes.

    One is kept as (row, feature), the other as (panel, feature, row), with `width` rows in each
    panel. `tile` is a multiple of `width`, and that of `SIDE`. Both arrays are larger than the
    tile: squares reach beyond its edges, and vectors of `daskmm.compiled.panels`.
    """
    height = p + -p % SIDE
    panels = aligned(tile // width * height, width, kind).reshape(tile // width, height, width)
    return np.zeros((tile + 2 * SIDE, p), kind), panels


@part(EXACT)
def transpose(z, n_rows, by_feature):
    """Transpose the first rows of a tile; arrays as from `room`. What is below p features is 0."""
    p, (_, height, width) = z.shape[1], by_feature.shape
    source, target = z.ravel(), by_feature.ravel()
    for i in range(0, n_rows, SIDE):
        first = i // width * height * width + i % width
        for f in range(0, p, SIDE):
            start, place = i * p + f, first + f * width
            _transpose_square(source, start, p, target, place, width)  # type: ignore[call-arg]
    by_feature[:, p:] = 0


@part(EXACT)
def squared_norms(by_feature, w, norms):
    """Σ_l w_l z_il² of every row of a tile, which is kept as (feature, row)."""
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
    """Values one after another until they fill some vectors."""
    times = 1 + 255 // len(values)
    out = np.empty(times * len(values))
    for q in range(len(out)):
        out[q] = values[q % len(values)]
    return out
