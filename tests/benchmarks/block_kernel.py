"""Speed of one MM step over one block on one thread, beside one Lloyd step of scikit-learn.

Run: python tests/benchmarks/block_kernel.py [repeats]

A step at a finite power and a hard one, over rows in memory, against one iteration of
scikit-learn's Lloyd in the same type. Prints a Markdown table: medians of interleaved runs.
`DASKMM_LOOPS` holds the loops to an instruction set.
"""

import statistics
import sys
import time

import numpy as np
from sklearn.cluster._k_means_lloyd import lloyd_iter_chunked_dense
from threadpoolctl import threadpool_limits

from daskmm.compiled import dispatch
from daskmm.numerics.rows import Coordinates, SphereCoordinates

SHAPES = ((200_000, 20, 10), (200_000, 50, 100), (50_000, 100, 500), (500_000, 8, 8))
POWER = -5.0


def interleaved(jobs, repeats):
    """Median seconds of this thread for each job, run in turns."""
    seconds = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            began = time.thread_time()
            job()
            seconds[name].append(time.thread_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def problem(n_rows, n_features, n_clusters, dtype):
    """Overlapping clusters, and centres near them."""
    rng = np.random.default_rng(0)
    truth = 2.0 * rng.normal(size=(n_clusters, n_features))
    rows = truth[rng.integers(n_clusters, size=n_rows)] + rng.normal(size=(n_rows, n_features))
    centers = truth + 0.3 * rng.normal(size=truth.shape)
    return rows.astype(dtype), centers


def lloyd(rows, centers):
    """One iteration as scikit-learn's KMeans makes it, its arrays made beforehand."""
    k, dtype = len(centers), rows.dtype
    weights, labels = np.ones(len(rows), dtype), np.zeros(len(rows), np.int32)
    old, new = centers.astype(dtype), np.zeros(centers.shape, dtype)
    sizes, shift = np.zeros(k, dtype), np.zeros(k, dtype)
    return lambda: lloyd_iter_chunked_dense(rows, weights, old, new, sizes, labels, shift, 1)


def step(rows, coordinates, centers, s):
    """One MM step, its centres prepared beforehand."""
    prepared = dispatch.PreparedCenters(centers)
    return lambda: dispatch.block_sums(rows, None, coordinates, prepared, s, 16)


def compared(shape, dtype, repeats):
    """Median seconds of Lloyd's iteration, and of soft and hard steps."""
    rows, centers = problem(*shape, dtype)
    mean = rows.mean(axis=0, dtype=np.float64)
    plain = Coordinates(mean, np.ones(shape[1])), centers - mean
    sphere = SphereCoordinates(shape[1])
    on_sphere = sphere, sphere.to_model(centers)
    jobs = {
        "lloyd": lloyd(rows, centers),
        "soft": step(rows, *plain, POWER),
        "hard": step(rows, *plain, -np.inf),
        "soft, cosine": step(rows, *on_sphere, POWER),
        "hard, cosine": step(rows, *on_sphere, -np.inf),
    }
    for job in jobs.values():
        job()
    return interleaved(jobs, repeats)


def main(repeats):
    print("| rows, features, clusters | dtype | Lloyd, ms | step / Lloyd | cosine / squared |")
    print("|---|---|---|---|---|")
    for dtype in (np.float32, np.float64):
        for shape in SHAPES:
            t = compared(shape, dtype, repeats)
            print(
                f"| {shape[0]:,}, {shape[1]}, {shape[2]} | {np.dtype(dtype)} "
                f"| {1e3 * t['lloyd']:.1f} "
                f"| soft {t['soft'] / t['lloyd']:.2f}, hard {t['hard'] / t['lloyd']:.2f} "
                f"| soft {t['soft, cosine'] / t['soft']:.2f}, "
                f"hard {t['hard, cosine'] / t['hard']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    with threadpool_limits(1):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
