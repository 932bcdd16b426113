"""Memberships of rows in clusters, and distances of rows relative to those of their cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.moments import Sample
from daskmm.kmeans.assignment import blockwise, labels_of, nearest_of, squared_distances_of
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import thinned
from daskmm.numerics.calibration import calibrated_power
from daskmm.numerics.histograms import Histogram, binned
from daskmm.numerics.information import cluster_sums
from daskmm.numerics.power_means import power_means
from daskmm.numerics.rows import Coordinates, LiftedCoordinates, Rows
from daskmm.numerics.sums import Sums

FloatArray = NDArray[np.float64]

# Largest numbers of distances, of rows and of their values from which the power of memberships is
# chosen.
_DISTANCES, _MOST_ROWS, _VALUES = 1 << 18, 1_000, 1 << 22
# The profile of a fit is computed from at most this many rows of its sample, with at most this many
# distances to centres, but from at least this many rows per cluster.
_ROWS_OF_PROFILE, _PRODUCTS_OF_PROFILE, _ROWS_PER_CLUSTER = 20_000, 5_000_000, 8
# 2^64 divided by the golden ratio.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Rounding errors may put distances of the same row into different bins. So distances are multiplied
# by this factor before they are compared with a limit.
_ROUNDED_DOWN = 1.0 - 1e-6
# Label of rows that belong to no cluster.
NO_CLUSTER = -1


class MembershipPower:
    """Power at which memberships are probabilities; see `calibrated_power`.

    The power is computed on first use, because this takes as long as a step of a short fit.
    """

    def __init__(self, distances: FloatArray, weights: FloatArray, state: CenterState) -> None:
        # Distances of some rows to all centres, (n, n_clusters), and their sample weights, (n,).
        self._distances, self._weights, self._state = distances, weights, state

    @cached_property
    def value(self) -> float:
        """The power s < 0."""
        distortion, centers = self._state.distortion, self._state.centers
        tile = distortion.tile(centers, False)
        apart = distortion.distances(tile, centers, self._state.feature_weights)
        finite = np.isfinite(self._distances).all(axis=1)
        return calibrated_power(self._distances[finite], apart, self._weights[finite])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MembershipPower) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


class DistanceProfile(NamedTuple):
    """Typical distances of rows to the centres."""

    # Median distance of each cluster's rows to its centre, as the model measures it, (n_clusters,).
    typical: FloatArray
    # The first line has the distances of all rows, as users see distances, divided by the typical
    # distance of their cluster, in ascending order. The second line has, for each of them, the
    # share of the rows that are not farther, (2, n).
    relative: FloatArray
    power: MembershipPower  # power at which memberships are probabilities

    @classmethod
    def of(cls, sample: Sample, state: CenterState) -> Self:
        """Compute the profile of rows in memory, in the model's coordinates, or of some of them."""
        k = len(state.centers)
        rows, weights = _some_rows(sample, k)
        same = Coordinates.identity(rows.shape[1])
        labels, smallest = nearest_of(Block(rows), same, state)
        if rows.dtype == np.float32:
            # Distances of rows that equal their centre are 0 but for rounding in the sample.
            rounding = np.square(np.finfo(np.float32).eps) * np.square(state.centers).sum(axis=1)
            smallest = np.where(smallest > rounding[labels], smallest, 0.0)
        held = np.where(labels < 0, 0.0, weights)
        distances = Histogram.of(smallest, np.maximum(labels, 0), held)
        typical = distances.quantile(0.5, len(state.centers))
        # Clusters that have no rows, or only equal ones, get the median of all rows.
        usual = distances.pooled().quantile(0.5, 1)[0]
        typical = np.where(typical > 0, typical, usual if usual > 0 else 1.0)
        relative = relative_distances(distances.values, distances.groups, typical, state)
        pooled = Histogram.of(relative, np.zeros(len(relative), np.int64), distances.weights)
        shares = np.cumsum(pooled.weights) / max(pooled.weights.sum(), np.finfo(float).tiny)
        some = _spread(rows.shape, k)
        to_all = squared_distances_of(Block(rows[some]), same, state)
        power = MembershipPower(to_all, weights[some], state)
        return cls(typical, np.stack([pooled.values, shares]), power)


def _some_rows(sample: Sample, n_clusters: int) -> tuple[FloatArray, FloatArray]:
    """Return rows of a sample for a profile, and their weights."""
    few = min(_ROWS_OF_PROFILE, _PRODUCTS_OF_PROFILE // n_clusters)
    return thinned(sample.rows, sample.weights, max(few, _ROWS_PER_CLUSTER * n_clusters), 0)


def soft_means(sample: Sample, state: CenterState) -> tuple[FloatArray, float]:
    """Return the mean weights φ of a sample's rows, (n_clusters,), and their mean power mean."""
    k = len(state.centers)
    rows, weights = _some_rows(sample, k)

    def phi_and_value(distances: FloatArray) -> FloatArray:
        means = power_means(distances, state.s)
        return np.column_stack([means.phi, means.value])

    same = Coordinates.identity(rows.shape[1])
    found = blockwise(Block(rows), same, state, phi_and_value, np.empty((len(rows), k + 1)))
    held = np.where(np.isnan(found[:, -1]), 0.0, weights)
    found = held / held.sum() @ np.nan_to_num(found)
    return found[:k], float(found[k])


def _spread(shape: tuple[int, int], n_clusters: int) -> NDArray[np.intp]:
    """Return the rows from which the power of memberships is chosen, spread over a table."""
    most = max(1, min(_MOST_ROWS, _DISTANCES // n_clusters, _VALUES // shape[1]))
    if shape[0] <= most:
        return np.arange(shape[0])
    priorities = np.arange(1, shape[0] + 1, dtype=np.uint64) * _GOLDEN
    drawn = np.flatnonzero(priorities < np.uint64((most << 64) // shape[0]))
    return drawn if len(drawn) <= most else drawn[np.argsort(priorities[drawn])[:most]]


def limit_of(relative: FloatArray, share: float) -> float:
    """Return the relative distance that at most the given share of a profile's rows exceeds."""
    values, shares = relative
    place = int(np.searchsorted(shares, (1.0 - share) * (1 - 1e-12)))
    return float(values[min(place, len(values) - 1)])


def relative_distances(
    distances: FloatArray, labels: NDArray, typical: FloatArray, state: CenterState
) -> FloatArray:
    """Return distances divided by the median of their cluster, as users see distances."""
    reported = state.distortion.reported
    return np.asarray(reported(distances) / reported(typical)[labels])


@dataclass(frozen=True)
class ValueSums(Sums):
    """Sample weights of the rows of each cluster, and of those of them that have a value."""

    sizes: FloatArray  # (n_clusters,)
    held: FloatArray  # (n_clusters, n_features)

    @property
    def shares(self) -> FloatArray:
        """Shares of each cluster's rows that have a value; NaN for clusters without rows."""
        sizes = self.sizes[:, None]
        return np.divide(self.held, sizes, out=np.full_like(self.held, np.nan), where=sizes > 0)


def value_sums(block: Block, coordinates: Rows, state: CenterState) -> ValueSums:
    """Count the values of one block by cluster (a block function)."""
    labels = labels_of(block, coordinates, state)
    held, within = (~np.isnan(block.rows)).astype(np.float64), labels >= 0
    weights = np.ones(len(labels)) if block.weights is None else block.weights
    held, weights, labels = held[within], weights[within], labels[within]
    k = len(state.centers)
    sizes = np.bincount(labels, weights, k).astype(np.float64)
    return ValueSums(sizes, cluster_sums(held, weights, labels, k))


def memberships_of(block: Block, coordinates: Rows, state: CenterState) -> FloatArray:
    """Return the weights φ of one block at the power of the state, by distances with offsets."""
    if state.offsets is not None:
        return memberships_of(block, LiftedCoordinates(coordinates), state.lifted)
    out = np.empty((len(block.rows), len(state.centers)))
    return blockwise(block, coordinates, state, lambda d: power_means(d, state.s).phi, out)


def probabilities_of(block: Block, coordinates: Rows, state: CenterState) -> FloatArray:
    """Return the weights φ of one block, normalised per row."""
    phi = memberships_of(block, coordinates, state)
    phi /= phi.sum(axis=1, keepdims=True)
    return phi


def scores_of(
    block: Block, coordinates: Rows, state: CenterState, typical: FloatArray
) -> FloatArray:
    """Return minus the relative distances of one block; NaN for rows without any value."""
    labels, smallest = nearest_of(block, coordinates, state)
    return np.where(labels < 0, np.nan, -relative_distances(smallest, labels, typical, state))


def labels_within_limit(
    block: Block, coordinates: Rows, state: CenterState, typical: FloatArray, limit: float
) -> NDArray[np.int32]:
    """Return the nearest centre of each row of one block; −1 beyond a relative distance.

    Distances are rounded to the bins of the profile, so that rows at the limit count as within it.
    """
    labels, smallest = nearest_of(block, coordinates, state)
    binned_distances = binned(smallest * _ROUNDED_DOWN)
    relative = binned(relative_distances(binned_distances, labels, typical, state))
    labels[relative > limit] = NO_CLUSTER
    return labels
