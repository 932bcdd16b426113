"""Exchange clusters: divide those that gain most, and merge pairs whose merger costs less.

Hard steps move centres between neighbours only, so they cannot take a centre from a place that has
too many to one that has too few. An exchange does, and keeps the number of clusters (iterative
split-and-merge: Kaukoranta, Fränti & Nevalainen, "Iterative split-and-merge algorithm for vector
quantization codebook generation", Opt. Eng. 37, 1998).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.numerics.rows import tiles

FloatArray = NDArray[np.float64]

# Number of hard steps after an exchange, and number of steps before the first exchange if there is
# one start: exchanges gain more than further steps would.
EXCHANGE_STEPS, FIRST_STEPS = 4, 2
# An exchange divides one cluster and merges two others.
LEAST_CLUSTERS = 3
# Largest number of rows that show how to divide a cluster, and number of steps that divide it.
_MOST_ROWS, _STEPS = 64, 3
# Number of steps that find the direction in which the rows of a cluster vary most.
_POWER_STEPS = 2
# Number of values in a tile of clusters, which are divided at once.
_TILE = 1 << 20
# Number of clusters with which a merger of each cluster is considered.
_PARTNERS = 4
# A division gains more than estimated, and a merger costs less, since rows of other clusters move
# too. So an exchange is made if its division gains at least this share of the cost of its merger.
_SHARE = 0.6


class Divisions(NamedTuple):
    """Two parts of each cluster, and what the division gains."""

    first: FloatArray  # centres of the first parts, (n_clusters, n_features)
    second: FloatArray  # centres of the second parts, (n_clusters, n_features)
    gains: FloatArray  # how much each division lowers the cost, (n_clusters,)


def with_exchanged_clusters(
    rows: NDArray, weights: FloatArray, labels: NDArray[np.integer], centers: FloatArray
) -> FloatArray | None:
    """Divide some clusters, and merge as many pairs of others; return the new centres.

    Distances are squared Euclidean ones, and `labels` are the nearest centres. None is returned if
    no exchange promises to lower the cost.
    """
    k = len(centers)
    if k < LEAST_CLUSTERS:
        return None
    sizes = np.bincount(labels, weights, k).astype(np.float64)
    parts = divided_in_two(rows, weights, labels, centers)
    mergers = iter(_mergers(centers, sizes))
    moved, taken = centers.copy(), np.zeros(k, np.bool_)
    for cluster in np.argsort(-parts.gains, kind="stable"):
        if taken[cluster]:
            continue
        cost, kept, freed = next(
            (m for m in mergers if not (taken[[m[1], m[2]]].any() or cluster in m[1:])),
            (np.inf, 0, 0),
        )
        if not parts.gains[cluster] > _SHARE * cost:
            break
        taken[[cluster, kept, freed]] = True
        both = sizes[[kept, freed]]
        if both.sum() > 0:
            moved[kept] = both / both.sum() @ centers[[kept, freed]]
        moved[cluster], moved[freed] = parts.first[cluster], parts.second[cluster]
    return moved if taken.any() else None


def divided_in_two(
    rows: NDArray, weights: FloatArray, labels: NDArray[np.integer], centers: FloatArray
) -> Divisions:
    """Divide every cluster across the direction in which its rows vary most, then by hard steps."""
    k = len(centers)
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(k + 1))
    counts = np.diff(ends)
    most = min(_MOST_ROWS, int(counts.max(initial=1)))
    # These rows are taken at equal distances in the order of the table.
    ranks = np.minimum(np.arange(most) * np.maximum(counts, most)[:, None] // most, counts[:, None])
    drawn = ranks < counts[:, None]
    index = order[np.minimum(ends[:-1, None] + ranks, len(order) - 1)]
    totals = np.bincount(labels, weights, k)
    v = np.where(drawn, weights[index], 0.0)
    found = v.sum(axis=1)
    v *= np.divide(totals, found, out=np.zeros(k), where=found > 0)[:, None]

    def divide(own: slice) -> Divisions:
        return _divided(rows[index[own]] - centers[own, None].astype(rows.dtype), v[own])

    size = max(1, _TILE // (most * rows.shape[1]))
    with one_blas_thread():
        pieces = list(run_on_threads([functools.partial(divide, own) for own in tiles(k, size)]))
    a, b, gains = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return Divisions(centers + a, centers + b, gains)


def _divided(z: NDArray, v: FloatArray) -> Divisions:
    """Divide clusters; rows, (n_clusters, n_rows, n_features), are relative to their centres.

    Rows and weights are scaled to at most 1, since their products may exceed single precision.
    """
    tiny = float(np.finfo(z.dtype).tiny)
    unit, heaviest = max(float(np.abs(z).max(initial=0.0)), tiny), v.max(initial=0.0) or 1.0
    first, second, gains = _divided_in_units(z / z.dtype.type(unit), v / heaviest)
    gains = gains.astype(np.float64) * unit**2 * heaviest
    return Divisions(first.astype(np.float64) * unit, second.astype(np.float64) * unit, gains)


def _divided_in_units(z: NDArray, v: FloatArray) -> Divisions:
    v = v.astype(z.dtype)
    spread = v * np.einsum("crp,crp->cr", z, z)
    direction = z[np.arange(len(z)), spread.argmax(axis=1)]
    for _ in range(_POWER_STEPS):
        along = v * np.matmul(z, direction[:, :, None])[:, :, 0]
        direction = np.matmul(along[:, None], z)[:, 0]
        norm = np.sqrt(np.einsum("cp,cp->c", direction, direction))
        direction /= np.where(norm > 0, norm, 1.0)[:, None]
    cut = np.zeros(len(z), z.dtype)
    for _ in range(1 + _STEPS):
        second = v * (np.matmul(z, direction[:, :, None])[:, :, 0] > cut[:, None])
        both = np.stack([v - second, second], axis=1)
        n = both.sum(axis=2)
        means = np.matmul(both, z) / np.where(n > 0, n, 1.0)[:, :, None]
        direction = means[:, 1] - means[:, 0]
        cut = np.einsum("cp,cp->c", direction, means.sum(axis=1)) / 2
    apart = np.einsum("cp,cp->c", direction, direction)
    gains = n.prod(axis=1) / np.where(n.sum(axis=1) > 0, n.sum(axis=1), 1.0) * apart
    return Divisions(means[:, 0], means[:, 1], gains)


def _mergers(centers: FloatArray, sizes: FloatArray) -> list[tuple[float, int, int]]:
    """Return the cost of mergers, by Ward's rule, and their clusters; the cheapest first."""
    k, found = len(centers), []
    squares = np.einsum("ij,ij->i", centers, centers)
    for own in tiles(k, max(1, _TILE // k)):
        here = np.arange(own.stop - own.start)
        apart = squares[own, None] + squares - 2.0 * (centers[own] @ centers.T)
        both = sizes[own, None] + sizes
        costs = np.maximum(apart, 0.0) * sizes[own, None] * sizes / np.where(both > 0, both, 1.0)
        costs[here, own.start + here] = np.inf
        for _ in range(min(_PARTNERS, k - 1)):
            partners = costs.argmin(axis=1)
            found.append(np.column_stack([costs[here, partners], own.start + here, partners]))
            costs[here, partners] = np.inf
    ordered = np.concatenate(found)
    ordered = ordered[np.argsort(ordered[:, 0], kind="stable")]
    # A pair is found from both of its clusters; their order must not depend on rounding.
    return [(float(cost), int(min(i, j)), int(max(i, j))) for cost, i, j in ordered]
