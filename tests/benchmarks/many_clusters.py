"""Thousands of clusters in memory beside faiss and scikit-learn, as ratios.

Run: python tests/benchmarks/many_clusters.py [--rows N] [--features P] [--clusters K] [--kinds ...]

Mixtures with as many clusters as are sought: in groups with heavy tails and unequal sizes (also
normalised to the sphere), alike and overlapping, or well apart; and 8 × 8 patches of the papers'
images. All fits of one table run in one process, one after the other, on two threads; seconds (of
the wall, and of the processors) and costs are divided by those of faiss.Kmeans with 25 iterations
over all rows. Ours also say after which share of faiss's seconds they are at its cost, and how low
they are after twice its seconds. faiss-cpu has to be installed.
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import faiss
import numpy as np
from sklearn.cluster import KMeans as ScikitKMeans
from sklearn.cluster import MiniBatchKMeans
from threadpoolctl import threadpool_limits

from daskmm import KMeans, PowerKMeans

N_GROUPS = 60


def grouped(n, p, k, rng):
    groups = 2.0 * rng.normal(size=(N_GROUPS, p))
    centers = groups[rng.integers(N_GROUPS, size=k)] + rng.normal(size=(k, p))
    labels = rng.choice(k, size=n, p=rng.dirichlet(np.ones(k)))
    return centers[labels] + 0.7 * rng.standard_t(5, size=(n, p))


def alike(n, p, k, rng):
    return rng.normal(size=(k, p))[rng.integers(k, size=n)] + rng.normal(size=(n, p))


def apart(n, p, k, rng):
    return 3.0 * rng.normal(size=(k, p))[rng.integers(k, size=n)] + rng.normal(size=(n, p))


def sphere(n, p, k, rng):
    X = grouped(n, p, k, rng)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def patches(n, p, k, rng):
    """Draw `n` of the 8 × 8 patches of all image sets (p is 64), in shades from 0 to 1."""
    shared = Path(os.environ.get("DASKMM_SHARED", "../shared"))
    shapes = {"orl": (32, 32), "yale": (32, 32), "coil20": (32, 32)}
    found = []
    for name, shape in (shapes | {"warpar10p": (60, 40), "warppie10p": (55, 44)}).items():
        pixels = np.load(shared / "data" / f"{name}.npz")["X"].astype(np.float32)
        images = (pixels / pixels.max()).reshape(-1, *shape)
        cut = np.lib.stride_tricks.sliding_window_view(images, (8, 8), axis=(1, 2))
        found.append(cut.reshape(-1, 64))
    X = np.concatenate(found)
    return X if n >= len(X) else X[rng.choice(len(X), size=n, replace=False)]


KINDS = {
    "grouped": grouped,
    "alike": alike,
    "apart": apart,
    "sphere": sphere,
    "patches": patches,
}


def cost(X, centers):
    """Return the sum of squared distances to the nearest centres."""
    index = faiss.IndexFlatL2(X.shape[1])
    index.add(np.ascontiguousarray(centers, dtype=np.float32))
    return float(index.search(X, 1)[0].sum(dtype=float))


def by_faiss(X, k):
    model = faiss.Kmeans(X.shape[1], k, niter=25, max_points_per_centroid=len(X), seed=1)
    model.train(X)
    return model.centroids


def estimators(k):
    """Return the estimators by name."""
    return {
        "KMeans": KMeans(k, random_state=0),
        "KMeans, n_init=1": KMeans(k, n_init=1, random_state=0),
        "PowerKMeans": PowerKMeans(k, random_state=0),
        "PowerKMeans, n_init=1": PowerKMeans(k, n_init=1, random_state=0),
        "scikit-learn KMeans, n_init=1": ScikitKMeans(k, n_init=1, random_state=0),
        "scikit-learn MiniBatchKMeans": MiniBatchKMeans(k, n_init=1, random_state=0),
    }


def timed(fit):
    """Return what `fit` returns, its seconds, and the processors' seconds."""
    began = time.perf_counter(), time.process_time()
    with threadpool_limits(2):
        value = fit()
    return value, time.perf_counter() - began[0], time.process_time() - began[1]


def on_the_way(model, target, limit):
    """Return the seconds until the cost is `target`, and the cost after `limit` seconds.

    None where it is never that low, or where no step over all rows was done by then.
    """
    steps = [r for r in getattr(model, "history_", []) if r.exact]
    at_target = min((r.seconds for r in steps if r.inertia <= target), default=None)
    in_time = min((r.inertia for r in steps if r.seconds <= limit), default=None)
    return at_target, in_time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=2000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--without", nargs="*", default=[], help="names of fits to leave out")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    faiss.omp_set_num_threads(2)
    n, p, k = arguments.rows, arguments.features, arguments.clusters
    # Imports of the first fit are not timed.
    KMeans(2, random_state=0).fit(np.random.default_rng(0).normal(size=(500, 3)))
    beside = []
    print(f"\n{n:,} × {p}, k = {k:,}\n")
    print("| rows | fit | seconds | of the processors | cost | at faiss's cost | cost in time 2 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind in arguments.kinds:
        X = KINDS[kind](n, p, k, np.random.default_rng(0)).astype(np.float32)
        centers, seconds, cpu_seconds = timed(lambda X=X: by_faiss(X, k))
        least = cost(X, centers)
        print(f"| {kind} | faiss | {seconds:.1f} s | {cpu_seconds:.1f} s | 1 | 1 | 1 |", flush=True)
        hard = None
        for name, model in estimators(k).items():
            if name in arguments.without:
                continue
            _, wall, cpu = timed(lambda model=model, X=X: model.fit(X))
            at_target, in_time = on_the_way(model, least, 2 * seconds)
            cells = [
                f"{wall / seconds:.2f}",
                f"{cpu / cpu_seconds:.2f}",
                f"{cost(X, model.cluster_centers_) / least:.4f}",
                "" if at_target is None else f"{at_target / seconds:.2f}",
                "" if in_time is None else f"{in_time / least:.4f}",
            ]
            print(f"| {kind} | {name} | {' | '.join(cells)} |", flush=True)
            if name == "KMeans":
                hard = model, wall
            elif name == "PowerKMeans" and hard is not None:
                reached, low = on_the_way(model, hard[0].inertia_, 2 * hard[1])
                beside.append((kind, wall, reached, low, *hard))
    if beside:
        print("\n| rows | PowerKMeans' seconds | at KMeans' cost | cost in time 2 |")
        print("| --- | --- | --- | --- |")
    for kind, wall, reached, low, model, seconds in beside:
        cells = [
            f"{wall / seconds:.2f}",
            "" if reached is None else f"{reached / seconds:.2f}",
            "" if low is None else f"{low / model.inertia_:.4f}",
        ]
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
