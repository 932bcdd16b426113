"""Sums over new rows that distinguish drift from sampling error."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Position
from daskmm.engine.passes import Passes
from daskmm.kmeans.assignment import nearest_of
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.drift import ClusterSums
from daskmm.numerics.rows import Rows
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Most coordinates in which shifts are measured, and fewer for thousands of clusters.
MOST_COORDINATES, _MOST_PRODUCTS = 32, 1 << 22

registered(ClusterSums)  # `numerics` does not import `storage`


def shift_axes(state: CenterState) -> FloatArray:
    """Return the coordinates in which shifts are measured, as columns.

    They are the weighted features, or random orthogonal directions if there are many features.
    """
    k, p = state.centers.shape
    q = max(1, min(p, MOST_COORDINATES, math.isqrt(_MOST_PRODUCTS // k)))
    axes = np.eye(p)
    if q < p:
        axes = np.linalg.qr(np.random.default_rng(0).normal(size=(p, q)))[0]
    weights = state.feature_weights
    return axes if weights is None else np.sqrt(weights)[:, None] * axes


def cluster_sums(
    passes: Passes, coordinates: Rows, state: CenterState, axes: FloatArray
) -> ClusterSums:
    """Compute the sums over all rows in one pass."""
    found: ClusterSums = passes.reduce(block_cluster_sums, coordinates, state, axes)
    return found


def block_cluster_sums(
    rows: NDArray,
    weights: FloatArray | None,
    position: Position,
    coordinates: Rows,
    state: CenterState,
    axes: FloatArray,
) -> ClusterSums:
    """Compute the sums over one block, without rows of weight 0."""
    labels, smallest = nearest_of(rows, position, coordinates, state)
    if weights is not None:
        labels = np.where(weights > 0, labels, -1)
    deviations = coordinates.to_model(rows) - state.centers[labels]
    if state.partial:
        deviations = np.nan_to_num(deviations, copy=False)
    distances = np.asarray(state.distortion.reported(smallest))
    return ClusterSums.of(deviations @ axes, labels, distances, len(state.centers))
