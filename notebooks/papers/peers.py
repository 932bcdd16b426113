"""The papers' peers that no library here has, each in the few lines that its paper needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.stats import norm
from sklearn.cluster import KMeans
from sklearn.metrics import pairwise_distances, pairwise_distances_argmin
from sklearn.neighbors import kneighbors_graph

FloatArray = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass
class Peer:
    """An algorithm with `fit` and `labels_`; it is given rows and then the settings."""

    cluster: Callable[..., Labels]
    settings: tuple[Any, ...] = ()

    def fit(self, rows: FloatArray) -> Self:
        """Cluster the rows."""
        self.labels_ = self.cluster(rows, *self.settings)
        return self


def _means(rows: FloatArray, labels: Labels, centers: FloatArray) -> FloatArray:
    """Return the mean of each cluster; an empty one stays where it was."""
    counts = np.bincount(labels, minlength=len(centers))
    members = csr_array((np.ones(len(rows)), (labels, np.arange(len(rows)))))
    members.resize((len(centers), len(rows)))
    sums = members @ rows
    return np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)


def _within(rows: FloatArray, labels: Labels, centers: FloatArray) -> FloatArray:
    """Return the within-cluster sum of squares of each feature."""
    spread: FloatArray = np.square(rows - centers[labels]).sum(axis=0)
    return spread


def wk_means(rows: FloatArray, init: FloatArray, beta: float, max_iter: int = 50) -> Labels:
    """WK-means (Huang et al. 2005): weights fall with a power of the spread within clusters."""
    centers, weights = init, np.full(rows.shape[1], 1.0 / rows.shape[1])
    before: Labels = np.empty(0, np.int64)
    for _ in range(max_iter):
        scale = weights ** (beta / 2.0)
        labels = pairwise_distances_argmin(rows * scale, centers * scale)
        if np.array_equal(labels, before):
            break
        centers, before = _means(rows, labels, centers), labels
        spread = _within(rows, labels, centers)
        seen = spread > 0  # a feature without spread has weight 0 there
        log = np.where(seen, -np.log(np.where(seen, spread, 1.0)) / (beta - 1.0), -np.inf)
        weights = np.exp(log - log.max())
        weights /= weights.sum()
    return labels


def sparse_k_means(rows: FloatArray, init: FloatArray, bound: float) -> Labels:
    """Sparse k-means (Witten and Tibshirani 2010) with a bound on the sum of the weights."""
    return _sparse(rows, init, bound)[0]


def _sparse(rows: FloatArray, init: FloatArray, bound: float) -> tuple[Labels, float]:
    """Return labels and the objective, the weighted sum of squares between clusters."""
    total = np.square(rows - rows.mean(axis=0)).sum(axis=0)
    centers, weights = init, np.full(rows.shape[1], rows.shape[1] ** -0.5)
    for _ in range(10):
        scale = np.sqrt(weights)
        model = KMeans(len(init), init=centers * scale, n_init=1, max_iter=50)
        labels = model.fit(rows * scale).labels_.astype(np.int64)
        centers = _means(rows, labels, centers)
        between = np.maximum(total - _within(rows, labels, centers), 0.0)
        before, weights = weights, _bounded(between, bound)
        if np.abs(weights - before).sum() < 1e-4 * before.sum():
            break
    return labels, float(weights @ between)


def _unit(weights: FloatArray) -> FloatArray:
    return weights / max(float(np.linalg.norm(weights)), 1e-300)


def _bounded(between: FloatArray, bound: float) -> FloatArray:
    """Return weights of norm 1 and of a sum of at most the bound, by bisection of a threshold."""
    low, high = 0.0, float(between.max())
    best = _unit(between)
    if best.sum() <= bound:
        return best
    for _ in range(50):
        middle = (low + high) / 2.0
        cut = np.maximum(between - middle, 0.0)
        best = _unit(cut)
        low, high = (middle, high) if best.sum() > bound else (low, middle)
    return best


def gap_bound(rows: FloatArray, init: FloatArray, seed: int = 0, permutations: int = 3) -> float:
    """Return the bound of sparse k-means with the largest gap to permuted features."""
    rng = np.random.default_rng(seed)
    others = [rng.permuted(rows, axis=0) for _ in range(permutations)]
    chosen = [rng.choice(len(rows), len(init), replace=False) for _ in others]

    def gap(bound: float) -> float:
        null = [_sparse(x, x[i], bound)[1] for x, i in zip(others, chosen, strict=True)]
        return float(np.log(_sparse(rows, init, bound)[1]) - np.mean(np.log(null)))

    return float(max(np.geomspace(1.2, 0.9 * rows.shape[1] ** 0.5, 5), key=gap))


def gap_k_means(rows: FloatArray, seed: int, references: int = 5) -> Labels:
    """k-means with the k of the gap statistic (Tibshirani et al. 2001)."""
    rng = np.random.default_rng(seed)
    low, high = rows.min(axis=0), rows.max(axis=0)
    null = [rng.uniform(low, high, rows.shape) for _ in range(references)]
    before = None
    for k in range(1, min(40, len(rows) - 1)):
        fit = KMeans(k, n_init=3, random_state=seed).fit(rows)
        logs = [np.log(KMeans(k, n_init=1, random_state=seed).fit(x).inertia_) for x in null]
        gap = np.mean(logs) - np.log(fit.inertia_)
        error = np.std(logs) * np.sqrt(1.0 + 1.0 / references)
        if before is not None and before[0] >= gap - error:
            break
        before = gap, fit.labels_
    assert before is not None
    labels: Labels = before[1]
    return labels


def g_means(rows: FloatArray, critical: float = 1.8692) -> Labels:
    """G-means (Hamerly and Elkan 2003): clusters split until Gaussian, at level .0001."""
    centers = rows.mean(axis=0)[None]
    while True:
        model = KMeans(len(centers), init=centers, n_init=1).fit(rows)
        parts = [rows[model.labels_ == j] for j in range(len(centers))]
        split = [_children(part, critical) for part in parts if len(part)]
        if sum(map(len, split)) == len(centers):
            labels: Labels = model.labels_
            return labels
        centers = np.vstack(split)


def _children(part: FloatArray, critical: float) -> FloatArray:
    """Return two centres, or the mean if the rows are Gaussian along the line between the two."""
    mean = part.mean(axis=0)
    if len(part) < 8:
        return mean[None]
    _, singular, axes = np.linalg.svd(part - mean, full_matrices=False)
    step = axes[0] * np.sqrt(2.0 / np.pi * singular[0] ** 2 / len(part))
    two = KMeans(2, init=np.array([mean - step, mean + step]), n_init=1).fit(part)
    along = np.sort(part @ (two.cluster_centers_[1] - two.cluster_centers_[0]))
    n, spread = len(part), along.std(ddof=1)
    if spread == 0:
        return mean[None]
    below = np.clip(norm.cdf((along - along.mean()) / spread), 1e-15, 1.0 - 1e-15)
    odd = 2 * np.arange(1, n + 1) - 1
    anderson = -n - (odd * (np.log(below) + np.log(1.0 - below[::-1]))).sum() / n
    found: FloatArray = two.cluster_centers_
    return found if anderson * (1 + 4 / n - 25 / n**2) > critical else mean[None]


def dp_means(rows: FloatArray, k: int, share: float = np.inf) -> Labels:
    """DP-means (Kulis and Jordan 2012), its penalty by k steps farthest first.

    A finite share makes it entropy weighted (Paul and Das 2020): λ/n is the share of the mean
    variance of the features, in w ∝ exp(−D/λ).
    """
    n, p = rows.shape
    weights, centers = np.full(p, 1.0 / p), rows.mean(axis=0)[None]
    lam = share * n * rows.var(axis=0).mean()
    far = np.square(rows - centers[0]).sum(axis=1)
    for _ in range(k):
        penalty = far.max() / p
        far = np.minimum(far, np.square(rows - rows[far.argmax()]).sum(axis=1))
    before: Labels = np.empty(0, np.int64)
    for _ in range(50):
        found: list[FloatArray] = list(centers)
        labels: Labels = np.empty(n, np.int64)
        for i, row in enumerate(rows):
            near = np.square(np.asarray(found) - row) @ weights
            labels[i] = near.argmin()
            if near.min() > penalty:
                labels[i] = len(found)
                found.append(row)
        labels = np.unique(labels, return_inverse=True)[1]
        if np.array_equal(labels, before):
            break
        centers, before = _means(rows, labels, np.zeros((labels.max() + 1, p))), labels
        if np.isfinite(lam):
            spread = _within(rows, labels, centers)
            weights = np.exp(-(spread - spread.min()) / lam)
            weights /= weights.sum()
    return labels


def robust_continuous(rows: FloatArray, neighbours: int = 10) -> Labels:
    """RCC (Shah and Koltun 2017): representatives that mutual neighbours draw together.

    Settings are those of its authors' program: cosine distances, ten neighbours.
    """
    n = len(rows)
    near = kneighbors_graph(rows, min(neighbours, n - 1), metric="cosine")
    tree = minimum_spanning_tree(pairwise_distances(rows, metric="cosine") + 1e-12)
    i, j = (near.minimum(near.T) + (tree + tree.T > 0)).nonzero()
    i, j = i[i < j], j[i < j]
    degree = np.bincount(np.r_[i, j], minlength=n)
    strength = degree.mean() / np.sqrt(degree[i] * degree[j])
    gaps = np.linalg.norm(rows[i] - rows[j], axis=1)
    shift, mu = np.sort(gaps)[: max(1, len(gaps) // 100)].mean(), 3.0 * gaps.max() ** 2
    signs, edge = np.r_[np.ones(len(i)), -np.ones(len(j))], np.arange(len(i))
    edges = csr_array((signs, (np.r_[edge, edge], np.r_[i, j])), shape=(len(i), n))
    u, pairs, size = rows, np.ones(len(i)), np.linalg.norm(rows, 2)
    for step in range(100):
        laplacian = ((edges.T * (strength * pairs)) @ edges).toarray()
        if step % 4 == 0:
            lam = size / eigh(laplacian, eigvals_only=True, subset_by_index=[n - 1, n - 1])[0]
            mu = max(mu / 2.0, shift**2 / 2.0)
        u = np.linalg.solve(np.eye(n) + lam * laplacian, rows)
        pairs = np.square(mu / (mu + np.square(u[i] - u[j]).sum(axis=1)))
    joined = np.linalg.norm(u[i] - u[j], axis=1) < shift
    graph = csr_array((np.ones(joined.sum()), (i[joined], j[joined])), shape=(n, n))
    return connected_components(graph, directed=False)[1].astype(np.int64)
