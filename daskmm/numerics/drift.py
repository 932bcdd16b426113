"""Test for each cluster whether two sets of rows differ by more than sampling error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FloatArray = NDArray[np.float64]

# The mean of at least this many rows of a cluster is assumed to be normal.
LEAST_ROWS = 30
# Directions whose variance is below this share of the largest are left out.
_RANK = 1e-10


@dataclass(frozen=True)
class ClusterSums:
    """Sums over the rows of each cluster.

    Attributes
    ----------
    counts : ndarray of shape (n_clusters,)
        Number of rows.
    sums : ndarray of shape (n_clusters, q)
        Sums of the rows' deviations from their centre, in q coordinates.
    products : ndarray of shape (n_clusters, q, q)
        Sums of the outer products of these deviations.
    distances, squares : ndarray of shape (n_clusters,)
        Sums of the distances to the centre, and of their squares.
    """

    counts: FloatArray
    sums: FloatArray
    products: FloatArray
    distances: FloatArray
    squares: FloatArray

    @classmethod
    def of(cls, deviations: FloatArray, labels: NDArray, distances: FloatArray, k: int) -> Self:
        """Add up rows, except those with a negative label."""
        order = np.argsort(labels, kind="stable")
        ends = np.searchsorted(labels[order], np.arange(k + 1))
        q = deviations.shape[1]
        sums, products = np.zeros((k, q)), np.zeros((k, q, q))
        for j in np.flatnonzero(np.diff(ends)):
            own = deviations[order[ends[j] : ends[j + 1]]]
            sums[j], products[j] = own.sum(axis=0), own.T @ own
        held = labels >= 0
        labels, distances = labels[held], distances[held]
        counts, added, squares = (
            np.bincount(labels, w, k).astype(np.float64)
            for w in (None, distances, np.square(distances))
        )
        return cls(counts, sums, products, added, squares)

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.counts + other.counts,
            self.sums + other.sums,
            self.products + other.products,
            self.distances + other.distances,
            self.squares + other.squares,
        )

    @property
    def shares(self) -> FloatArray:
        """Share of the rows in each cluster."""
        return self.counts / max(self.counts.sum(), 1.0)

    @property
    def costs(self) -> FloatArray:
        """Mean distance of each cluster's rows; NaN for an empty cluster."""
        with np.errstate(invalid="ignore"):
            return self.distances / self.counts

    @property
    def cost(self) -> float:
        """Mean distance of all rows."""
        return float(self.distances.sum() / max(self.counts.sum(), 1.0))


def share_p_values(reference: ClusterSums, new: ClusterSums) -> FloatArray:
    """Test whether each cluster has the same share of the rows, by the likelihood ratio.

    A correction for continuity makes the test conservative for small counts.
    """
    n, m = reference.counts.sum(), new.counts.sum()
    if not (n and m):
        return np.ones(len(new.counts))
    pooled = (reference.counts + new.counts) / (n + m)
    apart = new.counts - m * pooled
    nearer = new.counts - np.sign(apart) * np.minimum(0.5, np.abs(apart))
    there = reference.counts + (new.counts - nearer)
    deviance = 2.0 * sum(
        _entropy_terms(count, total, pooled) for count, total in ((there, n), (nearer, m))
    )
    return stats.chi2.sf(np.maximum(deviance, 0.0), 1)


def _entropy_terms(count: FloatArray, total: float, share: FloatArray) -> FloatArray:
    """Return the log likelihood ratio of a binomial count at its own share and at another one."""
    from scipy.special import rel_entr

    own = count / total
    return total * (rel_entr(own, share) + rel_entr(1.0 - own, 1.0 - share))


def cost_p_values(reference: ClusterSums, new: ClusterSums) -> FloatArray:
    """Test whether the rows of each cluster have the same mean distance, by Student's t."""
    n, m = reference.counts, new.counts
    enough = np.minimum(n, m) >= LEAST_ROWS
    n, m = np.where(enough, n, LEAST_ROWS), np.where(enough, m, LEAST_ROWS)
    spread = sum(
        each.squares - np.square(each.distances) / np.maximum(each.counts, 1.0)
        for each in (reference, new)
    )
    variance = np.maximum(spread, 0.0) / (n + m - 2.0) * (1.0 / n + 1.0 / m)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (new.distances / m - reference.distances / n) / np.sqrt(variance)
    p = 2.0 * stats.t.sf(np.abs(np.nan_to_num(t, posinf=1e9, neginf=-1e9)), n + m - 2.0)
    return np.where(enough, p, 1.0)


def center_shifts(reference: ClusterSums, new: ClusterSums) -> tuple[FloatArray, FloatArray]:
    """Test whether the rows of each cluster have the same mean, by Hotelling's T².

    Returns
    -------
    shifts : ndarray of shape (n_clusters,)
        Length of the shift in standard deviations of the cluster along it; NaN for clusters with
        fewer than `LEAST_ROWS` rows in either set, or q + `LEAST_ROWS` in both.
    p_values : ndarray of shape (n_clusters,)
        Probabilities of a longer shift by chance; 1 where the shift is NaN.
    """
    k, q = new.sums.shape
    n, m = reference.counts, new.counts
    enough = (np.minimum(n, m) >= LEAST_ROWS) & (n + m >= q + LEAST_ROWS)
    shifts, p_values = np.full(k, np.nan), np.ones(k)
    if not enough.any():
        return shifts, p_values
    n, m = n[enough, None], m[enough, None]
    means = [each.sums[enough] / size for each, size in ((reference, n), (new, m))]
    scatter = sum(
        each.products[enough] - size[:, :, None] * mean[:, :, None] * mean[:, None, :]
        for each, size, mean in zip((reference, new), (n, m), means, strict=True)
    )
    n, m = n[:, 0], m[:, 0]
    values, axes = np.linalg.eigh(scatter / (n + m - 2.0)[:, None, None])
    along = np.einsum("jab,ja->jb", axes, means[1] - means[0])
    used = values > _RANK * values[:, -1:]
    squares = np.divide(np.square(along), values, out=np.zeros_like(along), where=used).sum(axis=1)
    rank = used.sum(axis=1)
    left = n + m - rank - 1.0
    f = n * m / (n + m) * squares * left / (np.maximum(rank, 1) * (n + m - 2.0))
    shifts[enough] = np.sqrt(squares)
    p_values[enough] = np.where(rank > 0, stats.f.sf(f, np.maximum(rank, 1), left), 1.0)
    return shifts, p_values
