"""Compute the sums of a block in compiled loops, for `daskmm.compiled.dispatch`.

Rows are processed in tiles so small that a tile's distances, stored as (centre, row), stay in the
core's cache between the matrix product that computes them and the one that uses them. The inner
loops run along the rows of a tile without branches, so that they are vectorised. Matrix products
are those that scipy's BLAS offers to compiled code. There are no locks and no memory shared
between calls, so several threads may process blocks at once.

Distances are computed in the rows' floating type (single or double), sums in double precision.
Importing this module imports numba; the machine code is cached on disk.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from daskmm.compiled.compiler import entry
from daskmm.compiled.divergences import exact_distance, separation
from daskmm.compiled.intrinsics import CENTERS, wide_vectors
from daskmm.compiled.layout import LISTED, PANEL_BYTES, PLAIN, RETRIED, SCORED
from daskmm.compiled.products import (
    aligned,
    panel_products,
    panel_room,
    panel_sums,
    repeated,
    room,
    sums_of_rows,
)
from daskmm.compiled.tile import (
    add_squares,
    add_up,
    assign,
    complete,
    decide,
    dot,
    keep_farthest,
    multiply,
    norms_and_products,
    prepare,
    ratios,
    redo,
    redo_row,
    scatter,
    search,
    settle,
    settled,
    split,
    to_model_exactly,
    to_model_in_type,
)
from daskmm.compiled.weights import (
    add_relevant,
    finish,
    list_relevant,
    weigh_all,
    weigh_relevant,
)
from daskmm.numerics.power_means import TIE


@entry
def soft_sums(
    rows,
    weights,
    mean,
    scale,
    whitening,
    centers,
    w,
    code,
    terms,
    planes,
    s,
    limits,
    ratio_limits,
    rounding,
    tile,
    at_once,
    n_j,
    sums,
    squares,
    observed,
    totals,
):
    """Add the sums of one set of centres at a finite power.

    Parameters
    ----------
    rows : array of shape (n_rows, n_features), single or double, C order
        NaN are missing values if `observed` is not empty.
    weights : array of shape (n_rows,), or empty where all are 1
    mean, scale : arrays of shape (n_features,)
    whitening : array of shape (n_features, n_features) or (0, 0)
        Lower triangular. Rows are multiplied by it after scaling, in double precision.
    centers : array of shape (n_clusters, n_features)
    w : array of shape (n_features,)
    code : int
        Code of the distortion, see `daskmm.compiled.layout`.
    terms : array of shape (n_rows,), or empty if they are squared norms
        Term of each row that its distances to all centres share.
    planes : tuple
        The fields of `daskmm.compiled.dispatch.CenterPlanes`.
    s : float
    limits : tuple of the rows' type
        Share of the norms below which a distance has lost its digits by cancellation; lowest
        exponent of a weight; smallest distance and largest norm of the regular range.
    ratio_limits : array of shape (n_clusters,), or empty
        Ratios of a row's distance to its smallest one above which the weights of a centre are
        negligible; of complete rows only. Tiles where most are negligible compute the others only.
    rounding : float of the rows' type
        Error of a product, as a share of the norms.
    tile : int
        Rows per tile; a multiple of the rows of a panel.
    at_once : int
        Rows that BLAS multiplies at a time. 0 if `daskmm.compiled.products` computes the products
        in panels, which supports neither missing values nor `terms` nor edges of the domain.
    n_j, sums, squares, observed, totals : arrays
        Updated in place. `totals` are objective, inertia and hardness; `squares` and `observed`
        may be empty.
    """
    wide_vectors()
    (n, p), k = rows.shape, len(centers)
    kind = rows.dtype
    cancelled, lowest, low, high = limits
    power, inverse_s, n_clusters = kind.type(s - 1.0), kind.type(1.0 / s), kind.type(k)
    scaled, holes, numbers = not np.all(scale == 1.0), len(observed) > 0, rows.ravel()
    # Centres are processed in pairs; an odd number is filled up by a centre at ∞.
    factors, _, center_norms, reaches, slack, _, _ = planes
    by_panels = at_once == 0
    width = PANEL_BYTES // factors.itemsize if by_panels else tile
    (z, by_feature), held = room(tile, p, kind, width), np.empty((tile if holes else 0, p), kind)
    padded, part = panel_room(factors, by_panels)
    d = aligned(max(k + k % 2, len(padded)), tile, kind)
    of_rows, of_rows_double = aligned(7, tile, kind), np.empty((4, tile))
    distances, w_ = np.empty(k), w.astype(kind)
    means, scales = repeated(mean).astype(kind), repeated(scale).astype(kind)
    rest = (repeated(mean) - means).astype(kind)
    frame = (repeated(mean), repeated(scale), scaled, whitening)
    raw = np.empty((tile if code < PLAIN else 1, p))
    whitened = np.empty_like(raw)
    few = len(ratio_limits) > 0
    most = (k // LISTED + 1) * tile if few else 0
    firsts, listed_rows = np.empty(k + 1, np.int64), np.empty(most, kind)
    excess, phi = np.empty(most, kind), np.empty(most, kind)
    tried_from = 0
    for start in range(0, n, tile):
        b = min(tile, n - start)
        block, zb = rows[start : start + b], z[:b]
        norms, m, inverse, tie = of_rows[0, :b], of_rows[1, :b], of_rows[2, :b], of_rows[3, :b]
        total, tied, factor = of_rows[4, :b], of_rows[5, :b], of_rows[6, :b]
        v, exact = of_rows_double[0, :b], of_rows_double[1, :b]
        value, hardness = of_rows_double[2, :b], of_rows_double[3, :b]
        if len(weights):
            assign(weights[start : start + b], v)
        else:
            v[:] = 1.0
        if code < PLAIN:
            to_model_exactly(block, code, frame, raw, whitened)
            assign(whitened.ravel()[: b * p], z.ravel())
        else:
            to_model_in_type(block.ravel(), means, rest, scales, scaled, z.ravel()[: b * p])
        if holes:
            split(z.ravel()[: b * p], held.ravel()[: b * p])
        own = terms[start : start + b]
        norms_and_products(block, z, held, by_feature, own, planes, w_, at_once, of_rows[0], d)
        m[:] = np.inf
        for j in range(0, k, 2):
            if by_panels and j % CENTERS == 0:
                panel_products(padded, j, by_feature, b, d)
            near = complete(d, j, norms, center_norms, reaches, cancelled, m)
            if near > 0:
                redo(
                    code,
                    block,
                    whitened,
                    mean,
                    scale,
                    centers,
                    w,
                    norms,
                    reaches,
                    cancelled,
                    low,
                    j,
                    d,
                    m,
                )
        if prepare(m, norms, slack, low, high, rounding, exact, inverse, tie) > 0:
            for i in range(b):
                if m[i] != 0.0 and not (m[i] >= low and norms[i] <= high):
                    x = whitened[i % len(whitened)]
                    exact[i] = redo_row(code, block[i], x, mean, scale, centers, w, distances)
                    m[i] = ratios(distances, exact[i], d[:k, i])
                    inverse[i], tie[i] = 1.0 / m[i], TIE
        total[:] = 0.0
        tied[:] = 0.0
        listed = -1
        if few and start >= tried_from:
            entries = firsts, listed_rows, excess
            listed = list_relevant(d, ratio_limits, m, inverse, entries)
            # Tiles after one where most weights count are not searched for long.
            tried_from = start + (RETRIED * tile if listed < 0 else 0)
        if listed >= 0:
            weigh_relevant(listed_rows, excess[:listed], power, tie, total, tied, phi)
        else:
            after = start + b
            left = (min(n, after + tile) - after) * p
            shared = (m, inverse, tie, total, tied)
            weigh_all(d, k, power, lowest, shared, numbers, after * p, left)
        finish(total, tied, exact, v, n_clusters, inverse_s, factor, value, hardness)
        totals[0] += dot(v, value)
        totals[1] += dot(v, exact)
        totals[2] += dot(v, hardness)
        if listed >= 0:
            add_relevant(firsts, listed_rows, phi, factor, zb, n_j, sums, total)
            if len(squares):
                add_squares(zb, total, squares)
            continue
        for j in range(k):
            n_j[j] += multiply(d, j, factor)
            if by_panels and (j % CENTERS == CENTERS - 1 or j == k - 1):
                panel_sums(d, j - j % CENTERS, z, b, part)
        if len(squares):
            add_up(d, total)
            add_squares(zb, total, squares)
        if not by_panels:
            sums_of_rows(d, b, at_once, z, part)
        for j in range(k):
            for f in range(p):
                sums[j, f] += part[j, f]
        if holes:
            sums_of_rows(d, b, at_once, held, part)
            for j in range(k):
                for f in range(p):
                    observed[j, f] += part[j, f]


@entry
def hard_sums(
    rows,
    weights,
    mean,
    scale,
    whitening,
    centers,
    w,
    code,
    terms,
    planes,
    rounding,
    cancelled,
    tile,
    at_once,
    n_j,
    sums,
    squares,
    observed,
    totals,
    far,
    far_rows,
):
    """Add the sums of one set of centres at s = −∞, and list the rows farthest from their centres.

    Matrix products find the nearest centres up to rounding; near ties are decided from the
    differences in double precision.

    Parameters
    ----------
    rows, weights, mean, scale, whitening, centers, w, code, terms, planes, tile, at_once
        As in `soft_sums`.
    n_j, sums, squares, observed, totals
        As in `soft_sums`.
    rounding, cancelled : float of the rows' type
        As shares of the norms: error of a product, and distance below which it is recomputed.
    far : array of shape (n_farthest,)
        Largest distances so far, descending; unused places are 0.
    far_rows : int array of shape (n_farthest,)
        Positions of these rows.
    """
    wide_vectors()
    (n, p), k = rows.shape, len(centers)
    factors, _, center_norms, _, slack, _, _ = planes
    kind = factors.dtype
    scaled, holes = not np.all(scale == 1.0), len(observed) > 0
    by_panels = at_once == 0
    width = PANEL_BYTES // factors.itemsize if by_panels else tile
    z, by_feature = room(tile, p, kind, width)
    padded, _ = panel_room(factors, by_panels)
    d = aligned(max(k + k % 2, len(padded)), tile, kind)
    held, ignored, nothing = np.empty((tile if holes else 0, p), kind), np.zeros(k), np.zeros(0)
    exact, w_ = np.empty((tile, p)), w.astype(kind)
    # The cost must equal that of scoring in double precision, and that at known centres.
    scored = factors.itemsize < exact.itemsize or (code <= PLAIN and not holes and k >= SCORED)
    raw = np.empty((tile if code < PLAIN else 0, p))
    frame = (repeated(mean), repeated(scale), scaled, whitening)
    # Indices of centres are stored in the type of the distances, for vectorised selection.
    of_rows, of_rows_double = np.empty((4, tile), kind), np.empty((2, tile))
    inertia = weight = 0.0
    for start in range(0, n, tile):
        b = min(tile, n - start)
        block, norms, smallest = rows[start : start + b], of_rows[0, :b], of_rows[1, :b]
        second, nearest = of_rows[2, :b], of_rows[3, :b]
        v, served = of_rows_double[0, :b], of_rows_double[1, :b]
        if len(weights):
            assign(weights[start : start + b], v)
        else:
            v[:] = 1.0
        to_model_exactly(block, code, frame, raw, exact)
        if holes:
            split(exact.ravel()[: b * p], held.ravel()[: b * p])
        worst = kind.type((1.0 - 1e-5) * far[-1] if len(far) else np.inf)
        limits = (slack, rounding, cancelled, worst)
        assign(exact.ravel()[: b * p], z.ravel())
        shared = terms[start : start + b], planes, w_, at_once, padded
        found = smallest, second, nearest
        search(block, z, held, by_feature, shared, of_rows[0], d, found)
        doubtful = settle(smallest, second, norms, *limits, served)
        if doubtful > 0:
            for i in range(b):
                if settled(smallest[i], second[i], norms[i], *limits):
                    continue
                span = norms[i] * 3 + 2 * (smallest[i] + norms[i]) + slack
                if not second[i] - smallest[i] > rounding * span:
                    limit = smallest[i] + rounding * span
                    nearest[i] = decide(
                        code,
                        block[i],
                        exact[i],
                        mean,
                        scale,
                        centers,
                        w,
                        d[:, i],
                        center_norms,
                        limit,
                    )
                center = centers[int(nearest[i])]
                served[i] = exact_distance(code, block[i], exact[i], mean, scale, center, w)
                if len(far) and v[i] > 0.0 and served[i] > far[-1]:
                    keep_farthest(served[i], start + i, far, far_rows)
        if scored:
            for i in range(b):
                served[i] = separation(exact[i], centers[int(nearest[i])], w)
        scatter(exact[:b], nearest, v, n_j, sums, squares)
        if holes:
            scatter(held[:b], nearest, v, ignored, observed, nothing)
        inertia += dot(v, served)
        weight += v.sum()
    totals[0] += inertia
    totals[1] += inertia
    totals[2] += weight
