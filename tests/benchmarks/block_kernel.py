"""Speed of the block kernel on one thread, beside what it is made of and what others do.

Run: python tests/benchmarks/block_kernel.py [repeats]

One MM step at a finite power and one hard step over rows in memory, against one iteration of
scikit-learn's Lloyd in the same type and against the kernel's own two matrix products. Prints a
Markdown table: medians of interleaved runs.
"""

import statistics
import sys
import time

import numpy as np
from sklearn.cluster._k_means_lloyd import lloyd_iter_chunked_dense
from threadpoolctl import threadpool_limits

from daskmm.compiled import dispatch, layout
from daskmm.numerics.rows import Coordinates, SphereCoordinates

SHAPES = ((200_000, 20, 10), (200_000, 50, 100), (50_000, 100, 500), (500_000, 8, 8))
POWER = -5.0


def interleaved(jobs, repeats):
    """Median seconds of each job, run in turns."""
    seconds = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - began)
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


def products(rows, centers):
    """The two matrix products of a step alone by BLAS, of as many rows at a time."""
    k, p = centers.shape
    tile = layout.tile_rows(len(rows), k, p, rows.dtype)
    right = centers.astype(rows.dtype)
    d, sums = np.empty((k, tile), rows.dtype), np.empty((k, p), rows.dtype)

    def run():
        for start in range(0, len(rows) - tile + 1, tile):
            z = rows[start : start + tile]
            np.matmul(right, z.T, out=d)
            np.matmul(d, z, out=sums)

    return run


def compared(shape, dtype, repeats):
    """Median seconds of Lloyd's iteration, a soft and a hard step, and a step's products alone."""
    rows, centers = problem(*shape, dtype)
    mean = rows.mean(axis=0, dtype=np.float64)
    coordinates = Coordinates(mean, np.ones(shape[1]))
    prepared = dispatch.PreparedCenters(centers - mean)

    def step(s):
        dispatch.block_sums(rows, None, coordinates, prepared, s, 16)

    sphere = SphereCoordinates(shape[1])
    on_sphere = dispatch.PreparedCenters(sphere.to_model(centers))

    def cosine_step(s):
        dispatch.block_sums(rows, None, sphere, on_sphere, s, 16)

    jobs = {
        "lloyd": lloyd(rows, centers),
        "soft": lambda: step(POWER),
        "hard": lambda: step(-np.inf),
        "soft, cosine": lambda: cosine_step(POWER),
        "hard, cosine": lambda: cosine_step(-np.inf),
        "products": products(rows, centers),
    }
    for job in jobs.values():
        job()
    return interleaved(jobs, repeats)


def main(repeats):
    print(
        "| rows, features, clusters | dtype | Lloyd, ms | step / Lloyd | step / two products "
        "| cosine / squared |"
    )
    print("|---|---|---|---|---|---|")
    for dtype in (np.float32, np.float64):
        for shape in SHAPES:
            t = compared(shape, dtype, repeats)
            print(
                f"| {shape[0]:,}, {shape[1]}, {shape[2]} | {np.dtype(dtype)} "
                f"| {1e3 * t['lloyd']:.1f} "
                f"| soft {t['soft'] / t['lloyd']:.2f}, hard {t['hard'] / t['lloyd']:.2f} "
                f"| {t['soft'] / t['products']:.2f} "
                f"| soft {t['soft, cosine'] / t['soft']:.2f}, "
                f"hard {t['hard, cosine'] / t['hard']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    with threadpool_limits(1):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
