"""Generate code that numba does not: BLAS calls, AVX-512 vectors, transposed squares.

These functions work inside functions compiled by numba only. This module and `sparse` are the
only ones that import llvmlite and `numba.core.cgutils`. Run with numba 0.68.1.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic, overload

from daskmm.compiled.layout import PANEL_VECTORS, VECTOR_BYTES


def processor_has(*features: str) -> bool:
    """Return whether this processor has all the given features, in LLVM's names."""
    there = llvmlite.binding.get_host_cpu_features()
    return all(there.get(feature) for feature in features)


def everywhere(builder: Any, number: Any, vector: ir.VectorType) -> Any:
    """Generate a vector with the number in all places."""
    undefined, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    order = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(
        builder.insert_element(undefined, number, first), undefined, order
    )


@intrinsic
def _wide_vectors(typing):
    """Make the compiler use vectors of 512 bits in the function that calls this.

    For Intel processors it prefers 256 bits, because occasional wider vectors slow some of them
    down. Loops that use nothing else are faster with 512: steps at a finite power by a tenth to a
    quarter.
    """

    def generate(context, builder, signature, arguments):
        # The `add` method of the attributes accepts none with a value.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


wide_vectors: Any = _wide_vectors

for _name in ("dgemm", "sgemm"):
    _address = get_cython_function_address("scipy.linalg.cython_blas", _name)
    llvmlite.binding.add_symbol(f"daskmm_{_name}", _address)
_CALL = types.void(*[types.voidptr] * 13)
_dgemm = types.ExternalFunction("daskmm_dgemm", _CALL)
_sgemm = types.ExternalFunction("daskmm_sgemm", _CALL)


def gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """Multiply matrices by BLAS, in compiled code only, where `_gemm_of` takes its place."""
    raise TypeError("compiled code only: numba takes _gemm_of in the place of this name")


@overload(gemm)
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


# Rows and columns of the squares transposed at a time; a power of 2.
SIDE = 8


@intrinsic
def transpose_square(typing, source, start, step, target, place, target_step):
    """Transpose `SIDE` vectors of `SIDE` numbers from one flat array to another.

    The vectors begin `step` numbers apart in the source, `target_step` in the target. Bounds are
    not checked. Compilers do not find these register shuffles in a loop over single numbers,
    which takes five times as long.
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
        # Swap blocks of half the side across the diagonal, then recurse into the blocks.
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


# Whether the processor has the 32 registers that panels need.
PANELS_PAY = processor_has("avx512f")


# Centres per product of a panel.
CENTERS = 8


def _micro_kernel(n_vectors):
    """Return an intrinsic that writes Σ_q a[c, q] b[q, i] for eight c and `n_vectors` vectors of i.

    Arrays are flat: `a` begins at `a_start`, and its rows begin `a_step` numbers apart; likewise
    `b` and `out`. Bounds are not checked.
    """

    @intrinsic
    def multiply_panel(typing, a, a_start, a_step, b, b_start, b_step, n, out, o_start, o_step):
        size = types.intp
        signature = types.void(a, size, size, b, size, size, size, out, size, size)

        def generate(context, builder, signature, arguments):
            _, a_start, a_step, _, b_start, b_step, n, _, o_start, o_step = arguments
            number = context.get_data_type(signature.args[0].dtype)
            align = context.get_abi_sizeof(number)
            length = VECTOR_BYTES // align
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


one_vector, two_vectors, three_vectors = (_micro_kernel(n) for n in (1, 2, PANEL_VECTORS))


# Whether the processor has the instructions of `weigh_vectors`.
VECTORS_PAY = processor_has("avx512f", "avx512dq")


# Number of parts of [1, 2), and of an octave of exponents, in look-up tables; a power of 2.
_PARTS = 16


# Approximate reciprocals of the parts' centres, in so few bits that all types hold them. The first
# is 1, so that logarithms near 0 keep their relative accuracy.
_RECIPROCALS = np.round(256.0 / (1.0 + (np.arange(_PARTS) + 0.5) / _PARTS)) / 256.0
_RECIPROCALS[0] = 1.0


# Minimax polynomials of the relative error (Remez' algorithm in 60 digits), as in `fast_math`.
# log2(1 + z)/z for z in [−1/32, 1/16]: 3.8e-16 (double), 2.2e-9 (single).
_LOG2 = {
    64: (
        1.4426950408889634,
        -0.7213475204445915,
        0.48089834696461947,
        -0.3606737594852623,
        0.2885389952013436,
        -0.24045038723092318,
        0.206128654503769,
        -0.179879890610203,
        0.14199217212140325,
    ),
    32: (1.442695, -0.7213476, 0.48091874, -0.36076555, 0.27108726),
}


# (2^f − 1)/f for |f| ≤ 1/32, of 2^f: 1.4e-17 (double), 2.3e-9 (single).
_EXP2 = {
    64: (
        0.6931471805599457,
        0.24022650695910094,
        0.05550410865663929,
        0.009618129106131825,
        0.0013333781576905601,
        0.00015403788510250262,
    ),
    32: (0.6931472, 0.24023356, 0.055505738),
}


def _roots(number, whole, mantissa_bits):
    """Return 2^(i/16), with i, shifted to the front of the fraction, subtracted from the bits."""
    i = np.arange(_PARTS)
    bits = np.exp2(i / _PARTS).astype(number).view(whole)
    return (bits - (i << (mantissa_bits - 4)).astype(whole)).view(number)


_ROOTS = {64: _roots(np.float64, np.int64, 52), 32: _roots(np.float32, np.int32, 23)}


class _Abreast:
    """Generate instructions for several vectors of one floating type at a time.

    Each instruction is generated for all vectors in turn. Processors look only some hundred
    instructions ahead, too few to overlap the vectors' chains if these came one after another.
    """

    def __init__(self, builder, number):
        self.builder, self.double = builder, isinstance(number, ir.DoubleType)
        self.bits, self.mantissa_bits = (64, 52) if self.double else (32, 23)
        self.length = 8 * VECTOR_BYTES // self.bits
        self.vector = ir.VectorType(number, self.length)
        self.whole = ir.VectorType(ir.IntType(self.bits), self.length)
        self.flag = ir.IntType(32)
        self.one, self.zero = self.constant(1.0), self.constant(0.0)

    def constant(self, value):
        return ir.Constant(self.vector, [float(value)] * self.length)

    def each(self, write, *operands):
        """Apply `write` to each vector; operands that are not lists are shared by all."""
        n = max(len(values) for values in operands if isinstance(values, list))
        lists = [values if isinstance(values, list) else [values] * n for values in operands]
        return [write(*values) for values in zip(*lists, strict=True)]

    def add(self, a, b):
        return self.each(lambda x, y: self.builder.fadd(x, y, flags=("contract",)), a, b)

    def subtract(self, a, b):
        return self.each(lambda x, y: self.builder.fsub(x, y, flags=("contract",)), a, b)

    def multiply(self, a, b):
        return self.each(lambda x, y: self.builder.fmul(x, y, flags=("contract",)), a, b)

    def compare(self, a, relation, b):
        return self.each(lambda x, y: self.builder.fcmp_ordered(relation, x, y), a, b)

    def choose(self, held, a, b):
        return self.each(self.builder.select, held, a, b)

    def fused(self, a, b, c):
        """Return a b + c."""
        return self.each(self._fused, a, b, c)

    def _fused(self, a, b, c):
        product = self.builder.fmul(a, b, flags=("contract",))
        return self.builder.fadd(product, c, flags=("contract",))

    def series(self, x, coefficients):
        """Return a polynomial of x; the constant coefficient comes first."""
        total = coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            total = self.fused(x, total, coefficient)
        return total

    def table(self, numbers):
        """Return a table of 16 numbers for `looked_up`."""
        return [
            ir.Constant(self.vector, [float(x) for x in numbers[first : first + self.length]])
            for first in range(0, _PARTS, self.length)
        ]

    def looked_up(self, table, places):
        """Look up numbers in a table; only the last four bits of the places count."""
        if self.double:
            return self.each(lambda at: self._call("vpermi2var.pd", table[0], at, table[1]), places)
        return self.each(lambda at: self._call("permvar.sf", table[0], at), places)

    def _call(self, name, *arguments):
        """Generate an AVX-512 instruction, by its name in LLVM."""
        kind = ir.FunctionType(self.vector, [argument.type for argument in arguments])
        name = f"llvm.x86.avx512.{name}.512"
        return self.builder.call(
            cgutils.get_or_insert_function(self.builder.module, kind, name), arguments
        )

    def exponents(self, x):
        """Return floor(log2 x)."""
        name, mask = "pd" if self.double else "ps", ir.IntType(self.length)
        # Mask out no number; use the current rounding mode.
        options = self.zero, ir.Constant(mask, -1), ir.Constant(self.flag, 4)
        return self.each(lambda y: self._call(f"mask.getexp.{name}", y, *options), x)

    def whole_numbers(self, value):
        """Return a vector of one integer."""
        return ir.Constant(self.whole, [int(value)] * self.length)

    def to_bits(self, x):
        return self.each(lambda y: self.builder.bitcast(y, self.whole), x)

    def from_bits(self, x):
        return self.each(lambda y: self.builder.bitcast(y, self.vector), x)

    def load(self, places):
        return self.each(lambda at: self.builder.load(at, align=self.bits // 8), places)

    def store(self, values, places):
        self.each(lambda x, at: self.builder.store(x, at, align=self.bits // 8), values, places)

    def compress(self, values, held):
        """Return vectors that begin with the numbers that are held, in order; then come zeros."""
        kind = ir.FunctionType(self.vector, [self.vector, self.vector, held[0].type])
        name = f"llvm.x86.avx512.mask.compress.v{self.length}f{self.bits}"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.each(lambda x, h: self.builder.call(function, [x, self.zero, h]), values, held)

    def count(self, held):
        """Return how many numbers of one vector are held."""
        bits = self.builder.bitcast(held, ir.IntType(self.length))
        return self.builder.ctpop(bits)

    def fetch(self, place):
        """Prefetch a cache line."""
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, self.flag, self.flag, self.flag])
        prefetch = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        # For reading; into the second-level cache and beyond; data, not instructions.
        how = (ir.Constant(self.flag, number) for number in (0, 2, 1))
        self.builder.call(prefetch, [self.builder.bitcast(place, byte), *how])

    def logarithm(self, power):
        """Return the factor, table and series from which `log2` computes power · log2."""
        multiples = [self.builder.fmul(power, x) for x in self.table(-np.log2(_RECIPROCALS))]
        coefficients = [self.constant(coefficient) for coefficient in _LOG2[self.bits]]
        return power, multiples, [self.builder.fmul(power, x) for x in coefficients]

    def log2(self, logarithm, excess, ratio):
        """Return power · log2(1 + e) for e in [0, ∞] from e and 1 + e."""
        power, multiples, coefficients = logarithm
        bits, unused = self.to_bits(ratio), self.whole_numbers(self.mantissa_bits - 4)
        places = self.each(self.builder.lshr, bits, unused)
        # Set the exponent to that of 1: the mantissa in [1, 2).
        fraction = self.whole_numbers((1 << self.mantissa_bits) - 1)
        of_one = self.builder.bitcast(self.one, self.whole)
        bits = self.each(self.builder.or_, self.each(self.builder.and_, bits, fraction), of_one)
        reciprocals = self.looked_up(self.table(_RECIPROCALS), places)
        z = self.subtract(self.multiply(self.from_bits(bits), reciprocals), self.one)
        # Use e near 1, because 1 + e is rounded.
        small = self.compare(ratio, "<", self.constant(1.0 + 1.0 / _PARTS))
        z = self.choose(small, excess, z)
        whole = self.fused(self.exponents(ratio), power, self.looked_up(multiples, places))
        return self.fused(z, self.series(z, coefficients), whole)

    def exp2(self, power, held):
        """Return 2^y where `held`, else 0, for y in the exponents of normal numbers."""
        # Adding this rounds to sixteenths, whose number is then in the lowest bits.
        large = self.constant(1.5 * 2.0 ** (self.mantissa_bits - 4))
        shifted = self.add(power, large)
        f = self.subtract(power, self.subtract(shifted, large))
        places, left = self.to_bits(shifted), self.whole_numbers(self.mantissa_bits - 4)
        # Shift the whole part to the exponent. The table has subtracted the sixteenths, which are
        # shifted to the front of the fraction.
        bits = self.to_bits(self.looked_up(self.table(_ROOTS[self.bits]), places))
        number = self.each(self.builder.shl, places, left)
        root = self.from_bits(self.each(self.builder.add, bits, number))
        series = self.series(f, [self.constant(x) for x in _EXP2[self.bits]])
        return self.choose(held, self.fused(self.multiply(f, root), series, root), self.zero)


@intrinsic
def weigh_vectors(typing, d, row, counts, limits, of_rows, later, first):
    """Compute `weigh_all` for pairs of centres and groups of `PANEL_VECTORS` vectors of rows.

    Bounds are not checked. The distances to successive centres begin `row` numbers apart.
    `counts` are the numbers of pairs, of groups, and of cache lines to prefetch with each group;
    `limits` are the power and the lowest exponent.
    """
    signature = types.void(d, types.intp, counts, limits, of_rows, later, types.intp)

    def generate(context, builder, signature, arguments):
        use = _Abreast(builder, context.get_data_type(d.dtype))
        n_pairs, n_groups, n_lines = cgutils.unpack_tuple(builder, arguments[2], 3)
        power, lowest = (
            everywhere(builder, limit, use.vector)
            for limit in cgutils.unpack_tuple(builder, arguments[3], 2)
        )
        place_of = functools.partial(ir.Constant, n_pairs.type)

        def vectors(kind, value, start=None):
            values = context.make_array(kind)(context, builder, value).data
            values = values if start is None else builder.gep(values, [start])
            return builder.bitcast(values, use.vector.as_pointer())

        def group_of(pointer, index):
            begin = builder.mul(index, place_of(PANEL_VECTORS))
            return [
                builder.gep(pointer, [builder.add(begin, place_of(q))])
                for q in range(PANEL_VECTORS)
            ]

        phi, lines = vectors(d, arguments[0]), vectors(later, arguments[5], arguments[6])
        m, inverse, tie, total, tied = (
            vectors(of_rows.dtype, value)
            for value in cgutils.unpack_tuple(builder, arguments[4], len(of_rows))
        )
        logarithm = use.logarithm(power)
        step = builder.udiv(arguments[1], place_of(use.length))
        with cgutils.for_range(builder, n_pairs) as pair:
            start = builder.mul(pair.index, builder.add(step, step))
            centers = [builder.gep(phi, [at]) for at in (start, builder.add(start, step))]
            with cgutils.for_range(builder, n_groups) as loop:
                turn = builder.add(builder.mul(pair.index, n_groups), loop.index)
                line = builder.gep(lines, [builder.mul(turn, n_lines)])
                with cgutils.for_range(builder, n_lines) as fetched:
                    use.fetch(builder.gep(line, [fetched.index]))
                at = [place for center in centers for place in group_of(center, loop.index)]
                # The data of the rows serve both centres.
                smallest, factor, nearby = (
                    2 * use.load(group_of(values, loop.index)) for values in (m, inverse, tie)
                )
                e = use.multiply(use.subtract(use.load(at), smallest), factor)
                # e is NaN if all distances are 0, or all are ∞.
                e = use.choose(use.compare(e, ">", use.zero), e, use.zero)
                ratio = use.add(e, use.one)
                exponent = use.log2(logarithm, e, ratio)
                held = use.compare(exponent, ">", lowest)
                # Beyond the normal numbers, bits of any kind would turn up, subnormal ones among
                # them, for which some processors take a hundred cycles.
                weight = use.exp2(use.choose(held, exponent, lowest), held)
                use.store(weight, at)
                u = use.choose(held, use.multiply(weight, ratio), use.zero)
                close = use.compare(e, "<=", nearby)
                target = group_of(total, loop.index)
                use.store(
                    use.add(use.load(target), use.add(u[:PANEL_VECTORS], u[PANEL_VECTORS:])), target
                )
                target = group_of(tied, loop.index)
                sums = use.load(target)
                for first in (0, PANEL_VECTORS):
                    of_center = slice(first, first + PANEL_VECTORS)
                    sums = use.choose(close[of_center], use.add(sums, u[of_center]), sums)
                use.store(sums, target)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def list_vectors(typing, d, start, n_rows, limit, smallest, inverse, rows, excess, place):
    """Compute `list_relevant` for one centre, whose distances begin at `start`.

    `place` is where the list goes on; the place after its end is returned. Bounds are not checked.
    """
    signature = types.intp(
        d, types.intp, types.intp, limit, smallest, inverse, rows, excess, types.intp
    )

    def generate(context, builder, signature, arguments):
        use = _Abreast(builder, context.get_data_type(d.dtype))
        size = arguments[1].type
        limit = everywhere(builder, arguments[3], use.vector)
        lanes = ir.Constant(use.vector, [float(lane) for lane in range(use.length)])
        end = builder.sitofp(arguments[2], use.vector.element)
        end = everywhere(builder, end, use.vector)
        place = cgutils.alloca_once_value(builder, arguments[8])

        def vector_at(argument, index):
            data = context.make_array(signature.args[argument])
            data = data(context, builder, arguments[argument]).data
            return [builder.bitcast(builder.gep(data, [index]), use.vector.as_pointer())]

        length = ir.Constant(size, use.length)
        n_vectors = builder.udiv(
            builder.add(arguments[2], ir.Constant(size, use.length - 1)), length
        )
        with cgutils.for_range(builder, n_vectors) as loop:
            first = builder.mul(loop.index, length)
            distances = use.load(vector_at(0, builder.add(arguments[1], first)))
            nearest = use.load(vector_at(4, first))
            begin = builder.sitofp(first, use.vector.element)
            of_rows = use.add([everywhere(builder, begin, use.vector)], lanes)
            near = use.each(
                lambda x, y: builder.fcmp_unordered("<=", x, y),
                distances,
                use.multiply(nearest, limit),
            )
            held = use.each(builder.and_, near, use.compare(of_rows, "<", end))
            e = use.multiply(use.subtract(distances, nearest), use.load(vector_at(5, first)))
            e = use.choose(use.compare(e, ">", use.zero), e, use.zero)
            at = builder.load(place)
            use.store(use.compress(of_rows, held), vector_at(6, at))
            use.store(use.compress(e, held), vector_at(7, at))
            found = builder.zext(use.count(held[0]), size)
            builder.store(builder.add(at, found), place)
        return builder.load(place)

    return signature, generate
