"""Compute the weights of the MM step from the distances of a tile, two centres at a time.

Ratios r = d/m of a row's distances to its smallest one m become r^(s−1); `finish` turns their sums
into power means. Two implementations agree to rounding: loops over the polynomials of
`daskmm.compiled.fast_math`, and AVX-512 instructions with table look-ups in registers, which need
no division and series half as long. Soft steps with the second take 5 to 19 % less time than with
the first (AMD Zen 4, numba 0.68).

Of many clusters, most weights are negligible once the power is far below 0: `list_relevant` finds
the others, and `weigh_relevant` and `add_relevant` compute with them alone.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from daskmm.compiled.compiler import EXACT, part
from daskmm.compiled.fast_math import exp2, log2_1p
from daskmm.compiled.intrinsics import (
    VECTORS_PAY,
    list_vectors,
    weigh_vectors,
    wide_vectors,
)
from daskmm.compiled.layout import PANEL_BYTES, VECTOR_BYTES


@part(EXACT)
def raise_ratios(first, other, smallest, inverse, power, excess, other_excess):
    """Replace the distances to two centres by (s−1) log2 r, r = d/m = 1 + e; compute e.

    `weigh` does the rest. A single loop takes a quarter longer: its chain of dependent
    instructions is too long for processors to overlap iterations.
    """
    wide_vectors()
    zero = first.dtype.type(0)
    for i in range(len(smallest)):
        m, factor = smallest[i], inverse[i]
        e, f = (first[i] - m) * factor, (other[i] - m) * factor
        # e is NaN if all distances are 0, or all are ∞.
        e, f = e if e > zero else zero, f if f > zero else zero
        excess[i] = e
        other_excess[i] = f
        first[i] = power * log2_1p(e)
        other[i] = power * log2_1p(f)


@part(EXACT)
def weigh(first, other, excess, other_excess, tie, lowest, total, tied):
    """Replace the exponents of two centres by r^(s−1); add up r^s.

    Weights are 0 at and below the exponent `lowest`.
    """
    wide_vectors()
    zero, one = first.dtype.type(0), first.dtype.type(1)
    for i in range(len(tie)):
        exponent, other_exponent, e, f = first[i], other[i], excess[i], other_excess[i]
        phi, psi = exp2(exponent), exp2(other_exponent)
        held, other_held = exponent > lowest, other_exponent > lowest
        phi, psi = phi if held else zero, psi if other_held else zero
        first[i] = phi
        other[i] = psi
        u, v = phi * (one + e), psi * (one + f)
        u, v = u if held else zero, v if other_held else zero
        total[i] += u + v
        tied[i] += (u if e <= tie[i] else zero) + (v if f <= tie[i] else zero)


@part(EXACT)
def by_vectors(d, n_clusters, power, lowest, of_rows, later, first, size):
    """Compute `weigh_all` by AVX-512 instructions."""
    wide_vectors()
    length = PANEL_BYTES // d.itemsize
    n_pairs, n_groups = (n_clusters + 1) // 2, (len(of_rows[0]) + length - 1) // length
    turn = VECTOR_BYTES * n_pairs * n_groups
    n_lines = (size * later.itemsize + turn // 2) // turn
    counts = n_pairs, n_groups, n_lines
    weigh_vectors(  # type: ignore[call-arg]
        d, d.shape[1], counts, (power, lowest), of_rows, later, first
    )


@part(EXACT)
def by_loops(d, n_clusters, power, lowest, of_rows, later, first, size):
    """Compute `weigh_all` by loops that the compiler vectorises."""
    smallest, inverse, tie, total, tied = of_rows
    b = len(tie)
    e, f = np.empty(b, d.dtype), np.empty(b, d.dtype)
    for j in range(0, n_clusters, 2):
        phi, psi = d[j, :b], d[j + 1, :b]
        raise_ratios(phi, psi, smallest, inverse, power, e, f)
        weigh(phi, psi, e, f, tie, lowest, total, tied)


@part(EXACT)
def weigh_all(d, n_clusters, power, lowest, of_rows, later, first, size):
    """Replace all distances of a tile by r^(s−1), r = d/m; add up r^s of each row.

    Parameters
    ----------
    d : array of shape (n_clusters, one more if that is odd; tile)
        Distances, in an array of whole panels; undefined past the rows of the tile.
    n_clusters : int
    power, lowest : numbers of the rows' type
        s − 1, and the exponent to base 2 up to which weights are 0.
    of_rows : tuple of five arrays of shape (n_rows,)
        The smallest distance m of each row, 1/m, and how far above 0 a tie has d/m − 1; the sums
        of r^s, and those of ties, which are added to. The buffers behind them are as long as the
        rows of `d`.
    later : array, flat
        Array of which `size` numbers from `first` on are prefetched into the cache.
    first, size : int
    """
    _weigh(d, n_clusters, power, lowest, of_rows, later, first, size)


@part(EXACT)
def listed_by_vectors(distances, limit, smallest, inverse, rows, excess, place):
    """List as `list_relevant` does for one centre, by AVX-512 instructions; return the end."""
    n = len(smallest)
    return list_vectors(  # type: ignore[call-arg]
        distances, 0, n, limit, smallest, inverse, rows, excess, place
    )


@part(EXACT)
def listed_by_loops(distances, limit, smallest, inverse, rows, excess, place):
    """List as `list_relevant` does for one centre; return the end."""
    zero = distances.dtype.type(0)
    for i in range(len(smallest)):
        if not distances[i] > limit * smallest[i]:
            e = (distances[i] - smallest[i]) * inverse[i]
            rows[place], excess[place] = i, e if e > zero else zero
            place += 1
    return place


@part(EXACT)
def list_relevant(d, ratio_limits, smallest, inverse, entries):
    """List the weights of a tile that are not negligible; return their number, −1 if too many.

    Parameters
    ----------
    d : array of shape (at least n_clusters, tile)
        Distances.
    ratio_limits : array of shape (n_clusters,)
        Ratios d/m above which weights are negligible.
    smallest, inverse : arrays of shape (n_rows,)
        The smallest distance m of each row, 1/m.
    entries : tuple of three arrays
        Where the weights of each centre begin, of shape (n_clusters + 1,); the row of each, and
        d/m − 1, both of the rows' type and one tile longer than the list may be. Overwritten.
    """
    wide_vectors()
    firsts, rows, excess = entries
    n_clusters, most = len(ratio_limits), len(rows) - d.shape[1]
    place = 0
    for j in range(n_clusters):
        firsts[j] = place
        place = _listed(d[j], ratio_limits[j], smallest, inverse, rows, excess, place)
        if place > most:
            return -1
    firsts[n_clusters] = place
    return place


@part(EXACT)
def weigh_relevant(rows, excess, power, tie, total, tied, phi):
    """Compute r^(s−1) of the listed weights from r − 1; add up r^s of each row."""
    wide_vectors()
    one = excess.dtype.type(1)
    for c in range(len(excess)):
        phi[c] = power * log2_1p(excess[c])
    for c in range(len(excess)):
        phi[c] = exp2(phi[c])
    for c in range(len(excess)):
        i, e = int(rows[c]), excess[c]
        u = phi[c] * (one + e)
        total[i] += u
        if e <= tie[i]:
            tied[i] += u


@part(EXACT)
def add_relevant(firsts, rows, phi, factor, z, n_j, sums, mass):
    """Multiply the listed weights by the factors of their rows, and add up.

    `n_j` and `sums`, those of the centres, are added to; `mass`, that of each row, is overwritten.
    """
    wide_vectors()
    mass[:] = 0
    for j in range(len(n_j)):
        center_sums = sums[j]
        for c in range(firsts[j], firsts[j + 1]):
            i = int(rows[c])
            value = phi[c] * factor[i]
            row, v = z[i], np.float64(value)
            mass[i] += value
            n_j[j] += v
            for q in range(len(row)):
                center_sums[q] += v * row[q]


_weigh = by_vectors if VECTORS_PAY else by_loops
_listed = listed_by_vectors if VECTORS_PAY else listed_by_loops


@part(EXACT)
def finish(total, tied, smallest, weights, n_clusters, inverse_s, factor, value, hardness):
    """Compute per row v (mean u)^(1/s)/Σu, which turns r^(s−1) into v φ; M_s; and the hardness.

    `n_clusters` and `inverse_s` are of the rows' type.
    """
    wide_vectors()
    zero, most = total.dtype.type(0), total.dtype.type(1023)
    for i in range(len(total)):
        u = total[i]
        e = (n_clusters - u) / u
        exponent = -inverse_s * log2_1p(e if e > zero else zero)
        mean = exp2(exponent if exponent < most else most)
        factor[i] = weights[i] * mean / u
        value[i] = smallest[i] * mean
        hardness[i] = tied[i] / u
