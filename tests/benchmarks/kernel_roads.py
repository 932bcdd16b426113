"""Nyström features beside weighted micro-clusters, for kernels of many rows: quality and time.

Run: python tests/benchmarks/kernel_roads.py [n_rows ...]

Prints a Markdown table: agreement with the truth (ARI, NMI on real data), the objective of the
labels in the kernel's own feature space as a ratio to the best, processor seconds; means over
draws. Micro-clusters are those of k-means, to which the exact fit is given with their weights; rows
follow theirs. Real data (COIL20, Isolet) are looked for in `../shared` or DASKMM_SHARED.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from daskmm import KernelPowerKMeans, KMeans
from daskmm.datasets import make_rings, make_vmf
from daskmm.numerics.kernels import Kernel

SHARED = Path(os.environ.get("DASKMM_SHARED", Path(__file__).parents[3] / "shared"))
REPRESENTATIVES = (200, 1000)


def micro_clusters(X, n_representatives, seed):
    """Few rows drawn by k-means++, moved by hard steps: centres, weights, and who follows whom."""
    rng = np.random.RandomState(seed)
    some = X[rng.choice(len(X), min(len(X), 20_000), replace=False)]
    starts, _ = kmeans_plusplus(some, n_representatives, random_state=rng)
    model = KMeans(n_representatives, init=starts, max_iter=3, tol=0).fit(X)
    return model.cluster_centers_, model.cluster_sizes_, model.labels_


def by_representatives(X, k, n_representatives, seed, **kernel):
    centers, sizes, follows = micro_clusters(X, n_representatives, seed)
    there = sizes > 0
    model = KernelPowerKMeans(k, n_landmarks=None, random_state=seed, **kernel)
    labels = np.zeros(len(sizes), dtype=int)
    labels[there] = model.fit(centers[there], sample_weight=sizes[there]).labels_
    return labels[follows]


def roads(n, k):
    """Each road, as a function of rows, seed and kernel that returns labels."""

    def nystrom(n_landmarks):
        return lambda X, seed, **kernel: (
            KernelPowerKMeans(k, n_landmarks=n_landmarks, random_state=seed, **kernel)
            .fit(X)
            .labels_
        )

    def representatives(count):
        return lambda X, seed, **kernel: by_representatives(X, k, count, seed, **kernel)

    found = {"exact": nystrom(None)} if n <= 5000 else {}
    found |= {f"Nyström, {m} k": nystrom(m * k) for m in (10, 30) if m * k < n}
    found |= {f"{m:,} micro-clusters": representatives(m) for m in REPRESENTATIVES if m < n / 1.4}
    return found


def objective(X, labels, kernel, n_rows=3000):
    """Mean squared distance in feature space to the means of the labels, among some rows."""
    rows = np.random.default_rng(0).choice(len(X), min(len(X), n_rows), replace=False)
    gram = kernel.block(X[rows], X[rows])
    members = np.eye(labels.max() + 1)[labels[rows]]
    within = np.einsum("ij,il,lj->j", members, gram, members, optimize=True)
    sizes = members.sum(axis=0)
    return (np.trace(gram) - (within / np.maximum(sizes, 1)).sum()) / len(rows)


def compared(name, draw, k, score, draws=3, **kernel):
    """Print a line for each road."""
    rows = {}
    for seed in range(draws):
        X, truth = draw(seed)
        kernel.setdefault("bandwidth", float(np.sqrt(2 * X.var(axis=0).sum())))
        own = Kernel(kernel.get("kernel", "rbf"), kernel["bandwidth"])
        for road, labels_of in roads(len(X), k).items():
            began = time.process_time()
            labels = labels_of(X, seed, **kernel)
            seconds = time.process_time() - began
            centred = X - X.mean(axis=0) if own.name == "rbf" else X
            found = (score(truth, labels), objective(centred, labels, own), seconds)
            rows.setdefault(road, []).append(found)
    means = {road: np.mean(found, axis=0) for road, found in rows.items()}
    best = min(mean[1] for mean in means.values())
    for road, (agreement, cost, seconds) in means.items():
        least = min(found[0] for found in rows[road])
        print(
            f"| {name} | {road} | {agreement:.4f} ({least:.4f}) | {cost / best:.4f} "
            f"| {seconds:.1f} |",
            flush=True,
        )


def real(name):
    """A table of real data, each feature z-scored, with its truth."""
    with np.load(SHARED / "data" / f"{name}.npz") as data:
        X, y = data["X"].astype(float), data["y"]
    scale = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0), y


def circles(n, seed):
    """Two circles around one another."""
    rng = np.random.default_rng(seed)
    y, angles = rng.integers(2, size=n), rng.uniform(0, 2 * np.pi, n)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    return (1.0 - 0.6 * y)[:, None] * directions + rng.normal(0, 0.05, (n, 2)), y


def in_memory(pair):
    return tuple(each.compute() for each in pair)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sizes = [int(n) for n in sys.argv[1:]] or [20_000, 1_000_000]
    print("| data | road | agreement, mean (least) | objective | processor s |")
    print("|---|---|---|---|---|")
    for n in sizes:
        compared(
            f"circles, {n:,}",
            lambda seed, n=n: circles(n, seed),
            2,
            adjusted_rand_score,
            draws=3 if n < 200_000 else 1,
            bandwidth=0.4,
        )
        compared(
            f"rings, {n:,}",
            lambda seed, n=n: in_memory(make_rings(n, random_state=seed)),
            10,
            adjusted_rand_score,
            draws=3 if n < 200_000 else 1,
            bandwidth=1.0,
        )
        for concentration in (100.0, 30.0):
            compared(
                f"sphere in 20, κ = {concentration:.0f}, {n:,}",
                lambda seed, n=n, spread=concentration: in_memory(
                    make_vmf(n, 10, 20, concentration=spread, random_state=seed)
                ),
                10,
                adjusted_rand_score,
                draws=3 if n < 200_000 else 1,
                kernel="angular",
                bandwidth=0.5,
            )
    for name, k in (("coil20", 20), ("isolet", 26)):
        table = real(name)
        compared(name, lambda seed, table=table: table, k, normalized_mutual_info_score)
