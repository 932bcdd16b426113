"""Loop over the rows of one tile; parts of `daskmm.compiled.block_sums`.

The loops run along the rows, or along contiguous numbers, without branches where possible, so
that they are vectorised; distances and `phi` are stored as (centre, row). Functions are compiled
for the floating type of the rows, together with the loops that call them.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np

from daskmm.compiled.compiler import EXACT, REORDERED, part
from daskmm.compiled.divergences import exact_distance
from daskmm.compiled.intrinsics import CENTERS, wide_vectors
from daskmm.compiled.layout import ON_SPHERE, WHITENED
from daskmm.compiled.products import (
    add_products,
    panel_norms,
    panel_products,
    products,
    squared_norms,
    transpose,
    whiten,
)
from daskmm.numerics.power_means import TIE


@part(EXACT)
def to_model(rows, mean, scale, scaled, z):
    """Transform contiguous rows to the model's coordinates; mean and scale are `repeated`."""
    wide_vectors()
    length = len(mean)
    for start in range(0, len(rows), length):
        size = min(length, len(rows) - start)
        x, out = rows[start : start + size], z[start : start + size]
        if scaled:
            for q in range(size):
                out[q] = (np.float64(x[q]) - mean[q]) / scale[q]
        else:
            for q in range(size):
                out[q] = np.float64(x[q]) - mean[q]


@part(EXACT)
def to_model_in_type(rows, mean, rest, scale, scaled, z):
    """Compute as `to_model` in the rows' type, with the mean as `mean` + `rest`."""
    wide_vectors()
    length = len(mean)
    for start in range(0, len(rows), length):
        size = min(length, len(rows) - start)
        x, out = rows[start : start + size], z[start : start + size]
        if scaled:
            for q in range(size):
                out[q] = ((x[q] - mean[q]) - rest[q]) / scale[q]
        else:
            for q in range(size):
                out[q] = (x[q] - mean[q]) - rest[q]


@part(EXACT)
def assign(values, out):
    """Copy numbers to an array of another type."""
    wide_vectors()
    for q in range(len(values)):
        out[q] = values[q]


@part(EXACT)
def split(z, held):
    """Replace NaN in `z` by 0; write 1 to `held` where there is a value, else 0."""
    one, zero = held.dtype.type(1), held.dtype.type(0)
    for q in range(len(z)):
        value = z[q]
        full = value == value
        held[q] = one if full else zero
        z[q] = value if full else z.dtype.type(0)


@part(EXACT)
def separate(rows, edges, lowest, highest, d):
    """Set the distances of centres at an edge of the domain to ∞ for rows not at that edge."""
    for j in range(len(edges)):
        at = np.flatnonzero(edges[j])
        if len(at):
            for i in range(len(rows)):
                for f in at:
                    x = rows[i, f]
                    if x > lowest if edges[j, f] == 1 else x < highest:
                        d[j, i] = np.inf
                        break


@part(REORDERED)
def complete(d, j, norms, center_norms, reaches, cancelled, smallest):
    """Turn −2 zᵀθ of centres j and j + 1 into distances; return how many rows have cancelled ones.

    Update the smallest distance of each row that is not cancelled. Centres are processed in pairs
    to halve the memory traffic of the rows' data.
    """
    wide_vectors()
    first, other, norm, other_norm = d[j], d[j + 1], center_norms[j], center_norms[j + 1]
    reach, other_reach = reaches[j], reaches[j + 1]
    count = d.dtype.type(0)
    one, zero = d.dtype.type(1), d.dtype.type(0)
    for i in range(len(norms)):
        m, n = smallest[i], norms[i]
        a = first[i] + (n + norm)
        b = other[i] + (n + other_norm)
        far_a, far_b = a >= cancelled * (n + reach), b >= cancelled * (n + other_reach)
        first[i] = a
        other[i] = b
        count += zero if far_a & far_b else one
        m = a if far_a & (a < m) else m
        smallest[i] = b if far_b & (b < m) else m
    return count


@part(REORDERED)
def two_nearest(d, j, center_norms, smallest, second, nearest):
    """Update the two smallest −2 zᵀθ + ‖θ‖² of each row, and its nearest centre, by j and j + 1."""
    wide_vectors()
    first, other, norm, other_norm = d[j], d[j + 1], center_norms[j], center_norms[j + 1]
    this, following = d.dtype.type(j), d.dtype.type(j + 1)
    for i in range(len(smallest)):
        a, b, m, n = first[i] + norm, other[i] + other_norm, smallest[i], second[i]
        low = b if b < a else a
        high = a if b < a else b
        closest = following if b < a else this
        loser = m if low < m else low
        n = high if high < n else n
        second[i] = loser if loser < n else n
        nearest[i] = closest if low < m else nearest[i]
        smallest[i] = low if low < m else m


@part(REORDERED)
def dot(a, b):
    """Return Σ a b in double precision."""
    wide_vectors()
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@part(REORDERED)
def multiply(d, j, factor):
    """Multiply the weights of centre j by the rows' factors in place; return their sum."""
    wide_vectors()
    phi, total = d[j], d.dtype.type(0)
    for i in range(len(factor)):
        value = phi[i] * factor[i]
        total += value
        phi[i] = value
    return total


@part(EXACT)
def add_up(phi, mass):
    """Compute Σ_j v φ of each row."""
    wide_vectors()
    for i in range(len(mass)):
        mass[i] = 0
    for j in range(len(phi)):
        for i in range(len(mass)):
            mass[i] += phi[j, i]


@part(EXACT)
def add_squares(z, mass, squares):
    """Add Σ_ij v φ z² per feature; `mass` is Σ_j v φ of each row."""
    wide_vectors()
    for i in range(len(mass)):
        row, share = z[i], np.float64(mass[i])
        for q in range(len(squares)):
            value = np.float64(row[q])
            squares[q] += share * value * value


@part(REORDERED)
def prepare(smallest, norms, slack, low, high, rounding, exact, inverse, tie):
    """Compute 1/m and the tie of each row; return how many rows are out of the regular range."""
    wide_vectors()
    count = norms.dtype.type(0)
    one, zero, least = norms.dtype.type(1), norms.dtype.type(0), norms.dtype.type(TIE)
    two, three = norms.dtype.type(2), norms.dtype.type(3)
    for i in range(len(norms)):
        m = smallest[i]
        exact[i] = m
        inverse[i] = one / m
        # Centres at a distance d from a row have norms of at most 2 ‖z‖² + 2 d.
        doubt = rounding * (three * norms[i] + two * m + slack) / m if m > zero else zero
        tie[i] = least + doubt
        regular = (m == zero) | ((m >= low) & (norms[i] <= high))
        count += zero if regular else one
    return count


@part(EXACT)
def redo(code, rows, z, mean, scale, centers, w, norms, reaches, cancelled, low, j, d, smallest):
    """Recompute the cancelled distances to two centres."""
    for c in range(j, min(j + 2, len(centers))):
        row = d[c]
        for i in range(len(norms)):
            if not row[i] >= cancelled * (norms[i] + reaches[c]):
                near = exact_distance(code, rows[i], z[i % len(z)], mean, scale, centers[c], w)
                # Do not let the distance underflow to zero in a narrow type.
                row[i] = near if near == 0.0 else max(near, 1e-3 * low)
                smallest[i] = min(smallest[i], row[i])


@part(EXACT)
def redo_row(code, row, z, mean, scale, centers, w, distances):
    """Compute the distances of one row from the differences; return the smallest."""
    smallest = np.inf
    for j in range(len(centers)):
        distances[j] = exact_distance(code, row, z, mean, scale, centers[j], w)
        smallest = min(smallest, distances[j])
    return smallest


@part(EXACT)
def ratios(distances, smallest, out):
    """Scale distances by a power of 2 near the smallest, to fit `out`; return the smallest."""
    if smallest == 0.0 or smallest == np.inf:
        for j in range(len(out)):
            out[j] = smallest if distances[j] == smallest else np.inf
        return smallest
    exponent = math.frexp(smallest)[1]
    for j in range(len(out)):
        out[j] = math.ldexp(distances[j], -exponent)
    return math.ldexp(smallest, -exponent)


@part(EXACT)
def scatter(z, nearest, weights, n_j, sums, squares):
    """Add rows to the sums of their centres."""
    for i in range(len(z)):
        row, v, j = z[i], weights[i], int(nearest[i])
        n_j[j] += v
        center_sums = sums[j]
        for q in range(len(row)):
            center_sums[q] += v * row[q]
    if len(squares):
        for i in range(len(z)):
            row, v = z[i], weights[i]
            for q in range(len(squares)):
                squares[q] += v * row[q] * row[q]


@part(EXACT)
def keep_farthest(distance, i, far_distances, far_rows):
    """Insert a row into the list of the largest distances, after equal ones."""
    place = len(far_distances) - 1
    while place > 0 and far_distances[place - 1] < distance:
        far_distances[place] = far_distances[place - 1]
        far_rows[place] = far_rows[place - 1]
        place -= 1
    far_distances[place] = distance
    far_rows[place] = i


@part(REORDERED)
def settle(smallest, second, norms, slack, rounding, cancelled, worst, served):
    """Compute the distances to the nearest centres; return for how many rows `settled` is false."""
    wide_vectors()
    count = norms.dtype.type(0)
    one, zero = norms.dtype.type(1), norms.dtype.type(0)
    two, three = norms.dtype.type(2), norms.dtype.type(3)
    for i in range(len(norms)):
        d = smallest[i] + norms[i]
        span = three * norms[i] + two * d + slack
        fine = (second[i] - smallest[i] > rounding * span) & (d >= cancelled * span) & (d <= worst)
        served[i] = d
        count += zero if fine else one
    return count


@part(EXACT)
def settled(smallest, second, norm, slack, rounding, cancelled, worst):
    """Return whether products determine the nearest centre and an accurate distance.

    Centres at a distance d from a row have norms of at most 2 ‖z‖² + 2 d; where that does not
    hold, no reach is above `slack`. Distances above `worst` may be listed, so must be exact.
    """
    two, three = type(norm)(2), type(norm)(3)
    d = smallest + norm
    span = three * norm + two * d + slack
    return second - smallest > rounding * span and d >= cancelled * span and d <= worst


@part(EXACT)
def decide(code, row, z, mean, scale, centers, w, dots, center_norms, limit):
    """Return the nearest of the centres whose distance by products is not above `limit`."""
    least, nearest = np.inf, 0
    for j in range(len(centers)):
        if not (dots[j] + center_norms[j] > limit):
            d = exact_distance(code, row, z, mean, scale, centers[j], w)
            if d < least:
                least, nearest = d, j
    return nearest


@part(EXACT)
def to_model_exactly(block, code, frame, raw, z):
    """Transform a tile to the model's coordinates in double precision.

    Parameters
    ----------
    block : array of shape (n_rows, n_features)
    code : int
        Code of the distortion.
    frame : tuple
        Mean and scale, `repeated`; whether the scale is not 1; whitening matrix.
    raw : array of shape (at least n_rows, n_features), or empty if rows are not whitened
        Buffer for the rows before whitening.
    z : array of shape (at least n_rows, n_features)
        The result.
    """
    means, scales, scaled, whitening = frame
    if code == WHITENED:
        to_model(block.ravel(), means, scales, scaled, raw.ravel())
        whiten(raw, len(block), whitening, z)
    else:
        to_model(block.ravel(), means, scales, scaled, z.ravel())
        if code == ON_SPHERE:
            normalize(z[: len(block)])


@part(REORDERED)
def normalize(z):
    """Divide rows by √2 times their length; those of zeros remain, and others have NaN then."""
    wide_vectors()
    n, p = z.shape
    factors = np.empty(n)
    for i in range(n):
        square = 0.0
        for f in range(p):
            square += z[i, f] * z[i, f]
        factors[i] = square
    for i in range(n):
        if not (factors[i] > 1e-290 and factors[i] < 1e290):
            factors[i] = normalizable(z[i])
    for i in range(n):
        factors[i] = np.sqrt(0.5 / factors[i])
    for i in range(n):
        for f in range(p):
            z[i, f] *= factors[i]


@part(EXACT)
def normalizable(row):
    """Scale a row whose squares overflow or underflow; return the sum of its squares, ½ for 0."""
    largest = np.abs(row).max()
    if largest > 0.0:
        row /= largest
    square = dot(row, row)
    return square if square != 0.0 else 0.5


@part(EXACT)
def search(block, z, held, by_feature, shared, norms, d, found):
    """Find the two smallest −2 zᵀθ + ‖θ‖² of each row of a tile, and its nearest centre.

    Parameters
    ----------
    block, z, held, by_feature, norms, d
        As in `norms_and_products`.
    shared : tuple
        terms, planes, w and at_once, as there; factors of `daskmm.compiled.products.panel_room`.
    found : tuple of three arrays of shape (n_rows,)
        The smallest, the second, and the index of the nearest centre; overwritten.
    """
    terms, planes, w, at_once, padded = shared
    norms_and_products(block, z, held, by_feature, terms, planes, w, at_once, norms, d)
    smallest, second, nearest = found
    smallest[:] = np.inf
    second[:] = np.inf
    nearest[:] = 0
    center_norms = planes[2]
    for j in range(0, len(center_norms), 2):
        if at_once == 0 and j % CENTERS == 0:
            panel_products(padded, j, by_feature, len(block), d)
        two_nearest(d, j, center_norms, smallest, second, nearest)


@part(EXACT)
def norms_and_products(block, z, held, by_feature, terms, planes, w, at_once, norms, d):
    """Compute the parts of the distances of a tile: a term of each row, and products with centres.

    Parameters
    ----------
    block : array of shape (n_rows, n_features)
        In the input's units.
    z, by_feature : arrays
        As from `daskmm.compiled.products.room`; the second is overwritten.
    held : array of shape (at least n_rows, n_features), or empty if no values are missing
        1 where there is a value.
    terms : array of shape (n_rows,), or empty if they are squared norms
    planes, w, at_once
        As in `daskmm.compiled.block_sums.soft_sums`. If `at_once` is 0, no products are computed;
        `daskmm.compiled.products.panel_products` does so later.
    norms : array of shape (tile,)
        Overwritten by the terms; undefined beyond `n_rows`.
    d : array of shape (at least n_clusters, tile)
        Overwritten by the products; undefined beyond `n_rows`.
    """
    b = len(block)
    factors, constants, _, _, _, edges, ends = planes
    transpose(z, b, by_feature)
    if at_once == 0:
        panel_norms(by_feature, w, norms)
    else:
        if len(terms):
            assign(terms, norms)
        else:
            squared_norms(by_feature[0], w, norms)
        products(by_feature[0], b, at_once, factors, d)
    if len(held):
        add_products(held, b, constants, d)
    if len(edges):
        separate(block, edges, ends[0], ends[1], d)
