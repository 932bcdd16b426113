"""Whole fits in memory beside scikit-learn, dask-ml and faiss, as ratios.

Run: python tests/benchmarks/fits.py [--rows N] [--seeds S] [--out TABLE.md]

Mixtures of Gaussian clusters that are separated, overlapping, or of unequal sizes. All fits of
one data set run in turns in this process; seconds are medians over the seeds, costs are means of
the ratio to that of scikit-learn's best of eight. dask-ml and faiss-cpu are timed if installed.
"""

import argparse
import importlib
import statistics
import time
import warnings

import dask.array as da
import numpy as np
from sklearn.cluster import KMeans as ScikitKMeans

from daskmm import PowerKMeans

N_FEATURES = 20
CASES = [
    (kind, k, dtype)
    for k in (20, 100)
    for dtype in ("float32", "float64")
    for kind in ("separated", "overlapping", "unequal")
]
SPREADS = {"separated": 3.0, "overlapping": 0.6, "unequal": 1.5}


def mixture(kind, n_rows, n_clusters, dtype, seed):
    """Rows around random centres with unit variance."""
    rng = np.random.default_rng(seed)
    centers = SPREADS[kind] * rng.normal(size=(n_clusters, N_FEATURES))
    shares = rng.dirichlet(np.ones(n_clusters)) if kind == "unequal" else None
    labels = rng.choice(n_clusters, size=n_rows, p=shares)
    rows = rng.standard_normal((n_rows, N_FEATURES), dtype=dtype)
    rows += centers[labels].astype(dtype)
    return rows


def cost(rows, centers):
    """Mean squared distance to the nearest centre, in float64, a slice of rows at a time."""
    total = 0.0
    for start in range(0, len(rows), 20_000):
        z = rows[start : start + 20_000].astype(np.float64)
        squares = np.square(z).sum(axis=1)[:, None] + np.square(centers).sum(axis=1)
        total += (squares - 2.0 * z @ centers.T).min(axis=1).sum()
    return total / len(rows)


def first_fit(model):
    """Fit a few rows, so that what the first fit imports is not timed."""
    model(2, random_state=0).fit(np.random.default_rng(0).normal(size=(500, 3)))


def present(name):
    """An optional peer."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def fits(n_clusters, seed):
    """Name and a function of the rows that returns centres."""
    faiss, dask_ml = present("faiss"), present("dask_ml.cluster")

    def by_faiss(rows):
        quantizer = faiss.Kmeans(rows.shape[1], n_clusters, niter=25, seed=seed + 1)
        quantizer.train(rows.astype(np.float32))
        return quantizer.centroids

    def by_dask_ml(rows):
        chunks = da.from_array(rows, chunks=(len(rows) // 16, -1))
        model = dask_ml.KMeans(n_clusters, random_state=seed)
        return model.fit(chunks).cluster_centers_

    def by_daskmm_of_dask(rows):
        chunks = da.from_array(rows, chunks=(len(rows) // 16, -1))
        return PowerKMeans(n_clusters, random_state=seed).fit(chunks).cluster_centers_

    def by_scikit(n_init):
        def fit(rows):
            model = ScikitKMeans(n_clusters, n_init=n_init, random_state=seed)
            return model.fit(rows).cluster_centers_

        return fit

    peers = {
        "scikit-learn n_init=8": by_scikit(8),
        "scikit-learn n_init=1": by_scikit(1),
        "daskmm": lambda X: PowerKMeans(n_clusters, random_state=seed).fit(X).cluster_centers_,
        "daskmm, dask array": by_daskmm_of_dask,
    }
    if dask_ml is not None:
        peers["dask-ml"] = by_dask_ml
    if faiss is not None:
        peers["faiss-cpu"] = by_faiss
    return peers


def measured(kind, n_clusters, dtype, n_rows, seeds):
    """Per peer: cost over that of scikit-learn's best of eight (mean), and median seconds."""
    first_fit(PowerKMeans)
    costs, seconds = {}, {}
    for seed in range(seeds):
        rows = mixture(kind, n_rows, n_clusters, dtype, seed)
        for name, fit in fits(n_clusters, seed).items():
            began = time.perf_counter()
            centers = fit(rows)
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            costs.setdefault(name, []).append(cost(rows, np.asarray(centers, dtype=np.float64)))
    best = np.array(costs["scikit-learn n_init=8"])
    return {
        name: (float(np.mean(np.array(costs[name]) / best)), statistics.median(seconds[name]))
        for name in costs
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []

    def say(line):
        print(line, flush=True)
        lines.append(line)

    say(f"Fits of {arguments.rows:,} rows × {N_FEATURES} features: cost ratio / seconds\n")
    names = list(fits(2, 0))
    say(f"| mixture | k | dtype | {' | '.join(names)} |")
    say("|---|---|---|" + "---|" * len(names))
    for kind, n_clusters, dtype in CASES:
        found = measured(kind, n_clusters, dtype, arguments.rows, arguments.seeds)
        cells = " | ".join(f"{ratio:.4f} / {took:.1f}" for ratio, took in found.values())
        say(f"| {kind} | {n_clusters} | {dtype} | {cells} |")
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
