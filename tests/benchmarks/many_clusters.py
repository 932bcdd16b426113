"""Thousands of clusters in memory beside faiss and scikit-learn, as ratios.

Run: python tests/benchmarks/many_clusters.py [--rows N] [--features P] [--clusters K] [--kinds ...]

Mixtures with as many clusters as are sought: in groups with heavy tails and unequal sizes, alike
and overlapping, or well apart. All fits of one mixture run in one process, one after the other, on
two threads; seconds (of the wall, and of the processors) and costs are divided by those of
faiss.Kmeans with 25 iterations over all rows. faiss-cpu has to be installed.
"""

import argparse
import time
import warnings

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


KINDS = {"grouped": grouped, "alike": alike, "apart": apart}


def cost(X, centers):
    """Return the sum of squared distances to the nearest centres."""
    index = faiss.IndexFlatL2(X.shape[1])
    index.add(np.ascontiguousarray(centers, dtype=np.float32))
    return float(index.search(X, 1)[0].sum(dtype=float))


def by_faiss(X, k):
    model = faiss.Kmeans(X.shape[1], k, niter=25, max_points_per_centroid=len(X), seed=1)
    model.train(X)
    return model.centroids


def fits(k):
    """Return each fit by its name; all give the centres of X."""
    ours = {
        "KMeans": KMeans(k, random_state=0),
        "KMeans, n_init=1": KMeans(k, n_init=1, random_state=0),
        "PowerKMeans": PowerKMeans(k, random_state=0),
        "PowerKMeans, n_init=1": PowerKMeans(k, n_init=1, random_state=0),
        "scikit-learn KMeans, n_init=1": ScikitKMeans(k, n_init=1, random_state=0),
        "scikit-learn MiniBatchKMeans": MiniBatchKMeans(k, n_init=1, random_state=0),
    }
    return {"faiss": by_faiss} | {
        name: lambda X, k, model=model: model.fit(X).cluster_centers_
        for name, model in ours.items()
    }


def compile_loops(k):
    """Have the loops of a fit compiled before it is timed."""
    X = np.random.default_rng(0).normal(size=(20_000, 3)).astype(np.float32)
    for rows in (X[:500], X):
        KMeans(2, random_state=0).fit(rows)
        PowerKMeans(2, random_state=0).fit(rows)


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
    compile_loops(k)
    print(f"\n{n:,} × {p}, k = {k:,}\n\n| rows | fit | seconds | processor seconds | cost |")
    print("| --- | --- | --- | --- | --- |")
    for kind in arguments.kinds:
        X = KINDS[kind](n, p, k, np.random.default_rng(0)).astype(np.float32)
        first = None
        for name, fit in fits(k).items():
            if name in arguments.without:
                continue
            began = time.perf_counter(), time.process_time()
            with threadpool_limits(2):
                centers = fit(X, k)
            taken = time.perf_counter() - began[0], time.process_time() - began[1], cost(X, centers)
            if first is None:
                first = taken
                print(f"| {kind} | {name} | {taken[0]:.1f} s | {taken[1]:.1f} s | 1 |", flush=True)
                continue
            ratios = [f"{mine / its:.2f}" for mine, its in zip(taken[:2], first[:2], strict=True)]
            print(
                f"| {kind} | {name} | {' | '.join(ratios)} | {taken[2] / first[2]:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
