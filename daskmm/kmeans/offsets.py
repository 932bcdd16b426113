"""Learn offsets of distances that bound the sizes of clusters.

A row goes to the cluster with the smallest sum of squared distance and offset. The offsets are the
prices of an ascending auction (Bertsekas, "The auction algorithm", Ann. Oper. Res. 14, 1988): the
price of a cluster that is too large rises until enough rows prefer another one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.moments import Sample
from daskmm.kmeans.assignment import blockwise, map_rows
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.rows import Coordinates, Rows

FloatArray = NDArray[np.float64]

# Number of clusters to which a row may go: those nearest to it.
_NEAR = 16
# Largest number of rounds of an auction, and number of rounds after which full clusters rise
# together: clusters far from all others would outbid each other for ever. A round raises an offset
# by at least this share of the mean distance, as rows of different clusters may be alike.
_MOST_ROUNDS, _APART_ROUNDS, _LEAST_RISE = 200, 100, 2e-3
# An auction begins at this share of the earlier offsets. A larger share would leave clusters too
# small; an auction that begins at 0 takes three times as long.
_KEPT = 0.7
# Offsets rise until a cluster that was too large has this share of its limit.
_AIM = 0.98


def learned_offsets(sample: Sample, state: CenterState, limits: FloatArray) -> FloatArray:
    """Return offsets with which the rows of a sample meet a limit of each cluster's weight.

    They start from a share of the offsets of the state, if it has any. The sample is in the
    coordinates of the centres; the limits are weights of its rows, (n_clusters,). Limits may be
    missed if many rows are identical.
    """
    near, distances = _nearest_clusters(sample, state)
    v, (n, m) = sample.weights, near.shape
    order = np.argsort(near, axis=None, kind="stable")
    ends = np.searchsorted(near.ravel()[order], np.arange(len(limits) + 1))
    owners = (order // m).astype(np.int32)
    del order  # this has 16 numbers per row
    offsets, labels, margins = np.zeros(len(limits)), np.zeros(n, np.int64), np.zeros(n)
    if state.offsets is not None:
        offsets += _KEPT * state.offsets
    least_rise = _LEAST_RISE * float(np.average(distances.min(axis=1), weights=v))
    changed = np.arange(n)
    for number in range(_MOST_ROUNDS):
        own, here = distances[changed] + offsets[near[changed]], np.arange(len(changed))
        best = own.argmin(axis=1)
        labels[changed], smallest = near[changed, best], own[here, best]
        own[here, best] = np.inf
        margins[changed] = own.min(axis=1) - smallest
        weights = np.bincount(labels, v, len(limits))
        large = np.flatnonzero(weights > limits)
        if not len(large):
            break
        full = weights > _AIM * limits
        if number >= _APART_ROUNDS and (weights - limits)[full].sum() > 0:
            excess = float((weights - _AIM * limits)[full].sum())
            offsets[full] += _rise(distances + offsets[near], full[near], v, excess) + least_rise
            changed = np.arange(n)
            continue
        # Rows that lose least by leaving come first.
        rows = np.flatnonzero((weights > limits)[labels])
        rows = rows[np.lexsort((margins[rows], labels[rows]))]
        begin = np.searchsorted(labels[rows], large)
        leaving = np.cumsum(v[rows])
        enough = leaving[begin] - v[rows[begin]] + (weights - _AIM * limits)[large]
        last = np.minimum(np.searchsorted(leaving, enough), len(rows) - 1)
        offsets[large] += margins[rows[last]] + least_rise
        changed = np.unique(np.concatenate([owners[ends[j] : ends[j + 1]] for j in large]))
    return offsets


def _rise(costs: FloatArray, full: NDArray[np.bool_], weights: FloatArray, excess: float) -> float:
    """Return by how much the offsets of full clusters rise until some weight leaves them."""
    margins = np.where(full, np.inf, costs).min(axis=1) - np.where(full, costs, np.inf).min(axis=1)
    inside = np.flatnonzero((margins > 0) & np.isfinite(margins))
    inside = inside[np.argsort(margins[inside], kind="stable")]
    if not len(inside):
        return 0.0
    leaving = int(np.searchsorted(np.cumsum(weights[inside]), excess))
    return float(margins[inside[min(leaving, len(inside) - 1)]])


def _nearest_clusters(sample: Sample, state: CenterState) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the clusters nearest to each row, (n_rows, n_near), and the distances to them."""
    m, same = min(_NEAR, len(state.centers)), Coordinates.identity(state.centers.shape[1])
    both = np.asarray(
        map_rows(_nearest_of, sample.rows, same, state, columns=2 * m, dtype=np.float64)
    )
    return both[:, :m].astype(np.int32), both[:, m:].copy()


def _nearest_of(block: Block, coordinates: Rows, state: CenterState) -> FloatArray:
    m = min(_NEAR, len(state.centers))

    def nearest(distances: FloatArray) -> FloatArray:
        clusters = np.argpartition(distances, m - 1, axis=1)[:, :m]
        return np.hstack([clusters, np.take_along_axis(distances, clusters, axis=1)])

    return blockwise(block, coordinates, state, nearest, np.empty((len(block.rows), 2 * m)))
