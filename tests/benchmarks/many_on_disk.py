"""Thousands of clusters of a float16 store on disk: reads, memory and cost beside faiss.

Run: python tests/benchmarks/many_on_disk.py [--rows N] [--clusters K] [--threads T]

Groups of clusters with heavy tails, 64 features, written to zarr in chunks of 200,000 rows.
`KMeans` reads them in blocks; faiss.Kmeans (25 iterations) trains on a fifth of the rows, which it
has to hold in memory, and is scored on all. faiss-cpu has to be installed.
"""

import argparse
import resource
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import faiss
import numpy as np
import zarr
from threadpoolctl import threadpool_limits

from daskmm import KMeans

N_FEATURES, N_GROUPS, CHUNK = 64, 60, 200_000


def write(path: Path, n: int, k: int, n_threads: int) -> None:
    """Write rows of `k` clusters in groups, of unequal sizes and with heavy tails."""
    rng = np.random.default_rng(0)
    groups = 2.0 * rng.normal(size=(N_GROUPS, N_FEATURES))
    centers = groups[rng.integers(N_GROUPS, size=k)] + rng.normal(size=(k, N_FEATURES))
    centers, ends = centers.astype(np.float32), np.cumsum(rng.dirichlet(np.ones(k)))
    store = zarr.create_array(
        path, shape=(n, N_FEATURES), chunks=(CHUNK, N_FEATURES), dtype="f2", compressors=None
    )

    def fill(first: int) -> None:
        own = np.random.default_rng((1, first))
        size = min(CHUNK, n - first)
        labels = np.minimum(np.searchsorted(ends, own.random(size)), k - 1)
        # Student's t with 5 degrees of freedom.
        tails = own.standard_normal((size, N_FEATURES), dtype=np.float32)
        tails /= np.sqrt(own.chisquare(5, (size, N_FEATURES)) / 5).astype(np.float32)
        tails *= np.float32(0.7)
        tails += centers[labels]
        store[first : first + size] = tails.astype(np.float16)

    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(fill, range(0, n, CHUNK)))


def peak() -> float:
    """Largest memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cost(store: zarr.Array, centers: np.ndarray) -> float:
    """Return the mean squared distance to the nearest centre over all rows, by faiss."""
    index = faiss.IndexFlatL2(N_FEATURES)
    index.add(np.ascontiguousarray(centers, dtype=np.float32))
    n = store.shape[0]
    found = (
        index.search(store[i : i + CHUNK].astype(np.float32), 1)[0] for i in range(0, n, CHUNK)
    )
    return sum(float(d.sum(dtype=float)) for d in found) / n


def main() -> None:
    """Print one line per fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--clusters", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/many"))
    parser.add_argument("--without", nargs="*", default=[])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    n, k, threads = asked.rows, asked.clusters, asked.threads
    path = asked.folder / f"{n}x{k}.zarr"
    if not path.exists():
        write(path, n, k, threads)
    store = zarr.open_array(path, mode="r")
    print(f"\n{n:,} × {N_FEATURES} float16, k = {k:,}, {threads} threads\n")
    print("| fit | seconds | of the processors | cost | reads | peak, MB | plan, MB | plan, s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    costs = {}
    with dask.config.set(num_workers=threads), threadpool_limits(threads):
        small = da.from_zarr(store)[:20_000]
        KMeans(2, random_state=0).fit(small)  # imports
        X = da.from_zarr(store)
        model = KMeans(k, random_state=0)
        planned = model.plan(X)
        began = time.perf_counter(), time.process_time()
        model.fit(X)
        wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        memory = peak()
        costs["KMeans"] = cost(store, model.cluster_centers_)
        print(
            f"| KMeans | {wall:.0f} | {cpu:.0f} | {costs['KMeans']:.4f} | {model.n_passes_} | "
            f"{memory:.0f} | {planned.peak_bytes_per_worker / 2**20:.0f} | {planned.seconds:.0f} |",
            flush=True,
        )
        if "faiss" in asked.without:
            return
        faiss.omp_set_num_threads(threads)
        began = time.perf_counter(), time.process_time()
        some = np.sort(np.random.default_rng(2).choice(n, n // 5, replace=False))
        rows = np.concatenate(
            [
                store[i : i + CHUNK][some[(some >= i) & (some < i + CHUNK)] - i].astype(np.float32)
                for i in range(0, n, CHUNK)
            ]
        )
        other = faiss.Kmeans(N_FEATURES, k, niter=25, max_points_per_centroid=len(rows), seed=1)
        other.train(rows)
        wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        costs["faiss"] = cost(store, other.centroids)
        print(f"| faiss, a fifth | {wall:.0f} | {cpu:.0f} | {costs['faiss']:.4f} | | | | |")
        print(f"\nKMeans ends at {costs['KMeans'] / costs['faiss']:.4f} of faiss's cost.")


if __name__ == "__main__":
    main()
