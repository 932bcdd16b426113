"""Speed of sweeps over a Gram matrix, side by side in one process, as ratios.

Run: python tests/benchmarks/kernel_sweeps.py [n_rows]

Prints a Markdown table: medians of interleaved runs. tslearn, if installed, is timed too.
"""

import functools
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import dask.array as da
import numpy as np

from daskmm import KernelPowerKMeans
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.gram.build import build
from daskmm.gram.matrices import RecomputedGram, StoredGram
from daskmm.numerics.feature_space import one_hot
from daskmm.numerics.kernels import Kernel

K = 20
REPEATS = 5


def interleaved(jobs, repeats=REPEATS):
    """Median seconds of each job, run in turns."""
    seconds = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def rows_of(n_rows, n_features):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(K, n_features))
    return centers[rng.integers(K, size=n_rows)] + rng.normal(size=(n_rows, n_features))


def read_all(store):
    """Merely read every tile."""
    with one_blas_thread():
        jobs = [functools.partial(store.read, tile) for tile in store.tiles]
        for _ in run_on_threads(jobs):
            pass


def multiply_all(store, tile, right):
    """Merely multiply as many tiles, of one that is in memory, from both sides."""

    def multiply(a, b):
        part = right[: len(tile)]
        tile @ part
        if a != b:
            tile.T @ part

    with one_blas_thread():
        jobs = [functools.partial(multiply, a, b) for a, b in store.tiles]
        for _ in run_on_threads(jobs):
            pass


def sweeps(n_rows, folder):
    print(f"\n### One sweep, n = {n_rows:,}, k = {K} (seconds)\n")
    print("| p | stored | read tiles | products | stored / larger | recomputed |")
    print("|---|---|---|---|---|---|")
    for n_features in (10, 100, 1000):
        rows = rows_of(n_rows, n_features)
        kernel = Kernel("rbf", float(np.sqrt(2 * rows.var(axis=0).sum())))
        store = build(folder / str(n_features), rows, kernel)
        right = one_hot(np.arange(n_rows) % K, K)
        stored = StoredGram(store, rows, kernel, lazy=False)
        again = RecomputedGram(rows, kernel, lazy=False)
        tile = store.read((0, 0)).astype(np.float64)
        found = interleaved(
            {
                "stored": functools.partial(stored.product, right),
                "read": functools.partial(read_all, store),
                "products": functools.partial(multiply_all, store, tile, right),
                "recomputed": functools.partial(again.product, right),
            }
        )
        larger = max(found["read"], found["products"])
        print(
            f"| {n_features} | {found['stored']:.2f} | {found['read']:.2f} | "
            f"{found['products']:.2f} | {found['stored'] / larger:.2f} | "
            f"{found['recomputed']:.2f} |",
            flush=True,
        )


def fit_anew(rows, store, chosen, gram):
    """One fit with defaults, its store not there before; remembers how the matrix was kept."""
    shutil.rmtree(store, ignore_errors=True)
    chosen[gram] = KernelPowerKMeans(K, gram=gram, random_state=0).fit(rows).gram_


def whole_fits(n_rows, folder):
    print(f"\n### Whole fits with defaults, n = {n_rows:,}, k = {K} (seconds, medians of 3)\n")
    print("| p | recomputed | stored | auto | auto / better | auto chose |")
    print("|---|---|---|---|---|---|")
    for n_features in (10, 100, 1000):
        rows = rows_of(n_rows, n_features)
        chosen = {}
        fit = functools.partial(fit_anew, rows, folder / "fit", chosen)
        found = interleaved(
            {
                "recompute": functools.partial(fit, "recompute"),
                "stored": functools.partial(fit, str(folder / "fit")),
                "auto": functools.partial(fit, "auto"),
            },
            repeats=3,
        )
        better = min(found["recompute"], found["stored"])
        print(
            f"| {n_features} | {found['recompute']:.1f} | {found['stored']:.1f} | "
            f"{found['auto']:.1f} | {found['auto'] / better:.2f} | {chosen['auto']} |",
            flush=True,
        )


def landmarks(n_rows):
    print("\n### Nyström features out of core, 20 features, k = 20, 200 landmarks\n")
    print("| rows | seconds | passes | rows per second and pass |")
    print("|---|---|---|---|")
    for n in (n_rows // 4, n_rows):
        X = da.from_array(rows_of(n, 20).astype("f4"), chunks=(100_000, -1))
        began = time.perf_counter()
        model = KernelPowerKMeans(K, n_landmarks="auto", n_init=1, random_state=0).fit(X)
        seconds = time.perf_counter() - began
        rate = n * model.n_passes_ / seconds
        print(f"| {n:,} | {seconds:.0f} | {model.n_passes_} | {rate:,.0f} |", flush=True)


def against_tslearn(n_rows=5000, n_clusters=4):
    """Few clusters without structure: with more, tslearn's random starts lose clusters and stop."""
    try:
        from tslearn.clustering import KernelKMeans
    except ImportError:
        print("\ntslearn is not installed: not compared.")
        return
    rows = np.random.default_rng(0).normal(size=(n_rows, 10))
    bandwidth = float(np.sqrt(20.0))
    iterations = {}

    def peer():
        options = {"kernel_params": {"gamma": 0.5 / bandwidth**2}, "tol": 0.0, "random_state": 0}
        model = KernelKMeans(n_clusters, kernel="rbf", max_iter=20, **options)
        iterations["tslearn"] = model.fit(rows[:, None, :]).n_iter_ + 1

    def ours():
        options = {"tol": 0, "polish": False, "max_iter": 20, "random_state": 0}
        model = KernelPowerKMeans(n_clusters, bandwidth=bandwidth, n_init=1, **options)
        iterations["daskmm"] = model.fit(rows).n_iter_

    found = interleaved({"tslearn": peer, "daskmm": ours})
    print(f"\n### A whole fit, n = {n_rows:,}, p = 10, k = {n_clusters}, building K included\n")
    print("| | seconds | iterations | per iteration |")
    print("|---|---|---|---|")
    for name in ("tslearn", "daskmm"):
        each = found[name] / iterations[name]
        print(f"| {name} | {found[name]:.2f} | {iterations[name]} | {each:.3f} |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as scratch:
        sweeps(n, Path(scratch))
        whole_fits(n, Path(scratch))
    against_tslearn()
    landmarks(50 * n)
