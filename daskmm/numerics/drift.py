"""Statistics of a batch of rows: means of features, shares and costs of clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from daskmm.numerics.sums import Sums

FloatArray = NDArray[np.float64]

# The mean of at least this many rows is assumed to be normal.
LEAST_ROWS = 30
# The unit of a feature that was constant is this share of its value.
_CONSTANT = 1e-6


@dataclass(frozen=True)
class BatchSums(Sums):
    """Sums over the rows of a batch, which can be added."""

    sizes: FloatArray  # number of rows of each cluster, (n_clusters,)
    # Number of values, their sum, and the sum of their squares, (1 + n_clusters, n_features): in
    # the first line for all rows, in the others for each cluster; (1, n_features) without clusters.
    counts: FloatArray
    sums: FloatArray
    squares: FloatArray
    # Sums of the distances to the centre, and of their squares, (n_clusters,).
    distances: FloatArray
    distance_squares: FloatArray
    # Number of values that are not missing but have a level that the fit did not see,
    # (n_features,).
    unseen: FloatArray

    @classmethod
    def of(
        cls, values: Any, labels: NDArray, distances: FloatArray, k: int, by_cluster: bool
    ) -> Self:
        """Add up rows; NaN are missing values."""
        sizes, added, squares = (
            np.bincount(labels, weights, k).astype(np.float64)
            for weights in (None, distances, np.square(distances))
        )
        place = labels if by_cluster else np.zeros_like(labels)
        n_groups = k if by_cluster else 1
        members = csr_array(
            (np.ones(len(labels)), (place, np.arange(len(labels)))), (n_groups, len(labels))
        )
        groups = np.bincount(place, minlength=n_groups).astype(np.float64)
        counts = np.repeat(groups[:, None], values.shape[1], axis=1)
        if not issparse(values) and (missing := np.isnan(values)).any():
            counts -= members @ missing.astype(np.float64)
            values = np.where(missing, 0.0, values)
        sums = [members @ values, members @ (values * values)]
        sums = [each.toarray() if issparse(each) else each for each in sums]
        if by_cluster:
            counts, *sums = (np.vstack([each.sum(axis=0), each]) for each in (counts, *sums))
        return cls(sizes, counts, sums[0], sums[1], added, squares, np.zeros(values.shape[1]))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.sizes.sum())

    @property
    def cost(self) -> float:
        """Mean distance of all rows to their centres."""
        return float(self.distances.sum() / max(self.sizes.sum(), 1.0))

    def statistics(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the statistics, and for each the variance of one row and the number of rows."""
        n, k = max(self.sizes.sum(), 1.0), len(self.sizes)
        counts = np.maximum(self.counts, 1.0)
        means = self.sums / counts
        spreads = np.maximum(self.squares / counts - np.square(means), 0.0)
        # Shares are smoothed, so that a share of 0 has a positive variance.
        shares = np.concatenate([1.0 - (self.counts[0] + self.unseen) / n, self.sizes / n])
        smooth = (shares * n + 1.0) / (n + 2.0)
        sizes = np.maximum(self.sizes, 1.0)
        costs = self.distances / sizes
        p = len(shares) - k
        values = [means[0], shares[:p], shares[p:], costs, means[1:].ravel()]
        own = smooth * (1.0 - smooth)
        of_costs = np.maximum(self.distance_squares / sizes - np.square(costs), 0.0)
        variances = [spreads[0], own[:p], own[p:], of_costs, spreads[1:].ravel()]
        rows = [
            self.counts[0],
            np.full(len(shares), self.sizes.sum()),
            self.sizes,
            self.counts[1:].ravel(),
        ]
        found = tuple(np.concatenate(each) for each in (values, variances, rows))
        return found[0], found[1], found[2]


def units_of(reference: BatchSums) -> tuple[FloatArray, FloatArray]:
    """Return origins of statistics (their values) and units (standard deviations of one row)."""
    values, variances, _ = reference.statistics()
    least = np.where(values == 0.0, _CONSTANT, _CONSTANT * np.abs(values))
    return values, np.maximum(np.sqrt(variances), least)


def in_units(
    batch: BatchSums, origin: FloatArray, units: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the statistics of a batch in standard deviations, and their sampling variances.

    The variance is infinite if there are fewer than `LEAST_ROWS` rows. If the rows of a batch vary
    more than those of the reference, their own variance is used.
    """
    values, variances, rows = batch.statistics()
    enough = rows >= LEAST_ROWS
    own = np.maximum(variances / np.square(units), 1.0) / np.maximum(rows, 1.0)
    return np.where(enough, (values - origin) / units, 0.0), np.where(enough, own, np.inf)
