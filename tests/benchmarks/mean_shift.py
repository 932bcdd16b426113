"""Speed of weighted blurring mean shift: passes, merging, whole fits, time against n.

Run: python tests/benchmarks/mean_shift.py [picture.png]

Prints Markdown tables: also of micro-clusters beside the exact fit, of the processor time from
100,000 rows on, and of what other programs do with as many rows. Ratios are medians of
runs in turns, in one process.
"""

import os

# Before numpy: a pass has its own threads.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import itertools
import multiprocessing
import queue
import statistics
import sys
import time
import warnings

import numpy as np
from sklearn.cluster import DBSCAN, HDBSCAN, Birch, MeanShift, SpectralClustering
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline

from daskmm import WeightedBlurringMeanShift
from daskmm.datasets import make_wbms_simulation1, make_wbms_simulation2, make_wbms_toy
from daskmm.engine.resources import peak_memory_bytes
from daskmm.mean_shift.blurring import Blurring, blur_rows
from daskmm.mean_shift.neighborhood import _balanced_strips, _sums_of_strips
from daskmm.numerics.mean_shift import TILE, Points
from daskmm.numerics.rows import tiles

REPEATS = 5
BANDWIDTH, LAM = 0.02, 0.1


def standardized(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def simulation(n, p, seed=0, n_clusters=20):
    X, y = make_wbms_simulation1(n, n_clusters, 5, p - 5, random_state=seed)
    return standardized(X.compute()), y.compute()


def whole_pass(points):
    own = np.ones(len(points))
    for strips in _balanced_strips(len(points)):
        _sums_of_strips(strips, points, own)


def own_products(points):
    """The products of a pass by themselves: exponents once, kernel times masses on both sides."""
    total = np.zeros(points.masses.shape)
    for a in tiles(len(points), TILE):
        for b in tiles(len(points), TILE):
            if b.start < a.start:
                continue
            exponents = points.left[a] @ points.right[b].T
            total[a] += exponents @ points.masses[b]
            if a != b:
                total[b] += exponents.T @ points.masses[a]


def two_products(points):
    """YYᵀ and KY, tile by tile, without symmetry."""
    rows, masses = points.left[:, :-2].copy(), points.masses[:, :-1].copy()
    total = np.zeros(masses.shape)
    for a in tiles(len(rows), TILE):
        for b in tiles(len(rows), TILE):
            total[a] += (rows[a] @ rows[b].T) @ masses[b]


def passes(n=20_000, p=20):
    X, _ = simulation(n, p)
    points = Points.of(X, np.ones(n), np.full(p, 1 / p), BANDWIDTH)
    jobs = {"pass": whole_pass, "its own products": own_products, "YYᵀ and KY": two_products}
    seconds = {name: [] for name in jobs}
    for _ in range(REPEATS):
        for name, job in jobs.items():
            began = time.perf_counter()
            job(points)
            seconds[name].append(time.perf_counter() - began)
    print(f"\n### One full pass, n = {n:,}, p = {p}, tiles of {TILE}, one thread\n")
    print("| | seconds | pass / this |\n|---|---|---|")
    for name, values in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds["pass"], values, strict=True))
        print(f"| {name} | {statistics.median(values):.2f} | {ratio:.2f} |")


def merging(n=3000):
    toy, _ = make_wbms_toy(n, random_state=0)
    settings = {
        "toy, h = .1": (standardized(toy.compute()), 0.1),
        "simulation 1, 10 clusters, h = .02": (simulation(n, 20, n_clusters=10)[0], 0.02),
        "simulation 1, 20 clusters, h = .05": (simulation(n, 20)[0], 0.05),
    }
    print(f"\n### Merging, n = {n:,}, 50 iterations (convention 'reference')\n")
    print(
        "| data | off, s | on, s | faster | labels differ | largest ΔY |\n|---|---|---|---|---|---|"
    )
    for name, (X, h) in settings.items():
        seconds, found = {0.0: [], 1e-6: []}, {}
        for _ in range(3):
            for tol in seconds:
                began = time.perf_counter()
                found[tol] = blur_rows(X, np.ones(n), Blurring(h, LAM, "reference", merge_tol=tol))
                seconds[tol].append(time.perf_counter() - began)
        off, on = found[0.0], found[1e-6]
        moved = [f.final.representatives.positions[f.final.members] for f in (off, on)]
        times = [statistics.median(seconds[tol]) for tol in (0.0, 1e-6)]
        differ = int((off.labels != on.labels).sum())
        print(
            f"| {name} | {times[0]:.2f} | {times[1]:.2f} | {times[0] / times[1]:.1f}× | {differ} "
            f"| {np.abs(moved[0] - moved[1]).max():.1e} |"
        )


def fit_in_passes(n=20_000, p=20):
    noisy, _ = simulation(n, p)
    clean, _ = make_wbms_simulation1(n, 20, p, 0, random_state=0)
    print(f"\n### Stages of 20 iterations, n = {n:,}, p = {p}\n")
    print("| data, stage | time / full pass | pairs / full pass | distinct points |")
    print("|---|---|---|---|")
    for name, X, convention, max_iter in (
        ("5 of 20 features informative, h = .02", noisy, "auto", 40),
        ("all features informative, h = .02", standardized(clean.compute()), "auto", 40),
        ("all features informative, h = .02", standardized(clean.compute()), "paper", 20),
    ):
        found = blur_rows(X, np.ones(n), Blurring(BANDWIDTH, LAM, convention, max_iter))
        times = [0.0, *(record.seconds for record in found.history)]
        seconds = np.diff(times)
        full = statistics.median(seconds[:3])
        for stage in ("learn", "blur"):
            chosen = [i for i, record in enumerate(found.history) if record.stage == stage]
            if not chosen:
                continue
            counts = [n, *(found.history[i].n_representatives for i in chosen)]
            work = sum((count / n) ** 2 for count in counts[:-1])
            print(
                f"| {name}, {convention}: {stage} | {seconds[chosen].sum() / full:.2f} "
                f"| {work:.2f} | {runs_of(counts[1:])} |"
            )


def runs_of(counts):
    """Counts in words, e.g. "500 ×3, 20"."""
    groups = [(count, len(list(group))) for count, group in itertools.groupby(counts)]
    return ", ".join(f"{count}" + f" ×{length}" * (length > 1) for count, length in groups)


def large_fit(n, p, results):
    warnings.simplefilter("ignore")
    X, y = simulation(n, p)
    began = time.perf_counter()
    model = WeightedBlurringMeanShift(BANDWIDTH).fit(X)
    seconds = time.perf_counter() - began
    counts = [record.n_representatives for record in model.history_]
    # Every true cluster in one found, and the other way round.
    pairs = len(np.unique(np.column_stack([y, model.labels_]), axis=0))
    results.put((seconds, peak_memory_bytes(), model.n_clusters_, pairs, counts))


def large(n=100_000, p=10):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=large_fit, args=(n, p, results))
    process.start()
    seconds, memory, n_clusters, pairs, counts = results.get()
    process.join()
    print(f"\n### A whole fit, n = {n:,}, p = {p}, two stages\n")
    print(f"{seconds:.0f} s on {os.cpu_count()} cores, peak memory {memory / 1e9:.2f} GB, ")
    print(f"{n_clusters} clusters (20 in truth, {pairs} pairs of a true and a found one), ")
    print(f"distinct points by iteration: {runs_of(counts)}")


def against_n(picture, p=20):
    print("\n### Whole fits against n\n")
    print("| n | seconds | iterations | clusters |\n|---|---|---|---|")
    sizes, times = (5_000, 10_000, 20_000, 40_000), []
    for n in sizes:
        X, _ = simulation(n, p)
        began = time.perf_counter()
        model = WeightedBlurringMeanShift(BANDWIDTH).fit(X)
        times.append(time.perf_counter() - began)
        print(f"| {n:,} | {times[-1]:.1f} | {model.n_iter_} | {model.n_clusters_} |", flush=True)
    slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
    print(f"\nTime grows as n^{slope:.2f}.")
    if picture is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 4), layout="constrained", dpi=120)
    axis = figure.subplots()
    axis.loglog(sizes, times, marker="o", label="whole fit, two stages")
    square = [times[-1] * (n / sizes[-1]) ** 2 for n in sizes]
    axis.loglog(sizes, square, linestyle="--", color="grey", label="n²")
    axis.set_xlabel("rows")
    axis.set_ylabel("seconds")
    axis.set_title(f"Weighted blurring mean shift, p = {p}, h = {BANDWIDTH}", fontsize=11)
    axis.legend()
    axis.grid(alpha=0.25, which="both")
    figure.savefig(picture)


def compressed_and_exact():
    """The road of many rows, forced, beside the fit of every row."""
    print("\n### Micro-clusters beside the exact fit\n")
    print("| data | micro-clusters | ARI with exact | clusters, exact | found | largest Δw |")
    print("|---|---|---|---|---|---|")
    for seed, points in itertools.product(range(3), (500, 2000)):
        toy, _ = make_wbms_toy(5000, random_state=seed)
        tables = {
            "toy, 5,000": toy.compute(),
            "simulation 1, 20 clusters, 20,000": simulation(20_000, 20, seed)[0],
            "simulation 2, 10 clusters, 5,000": make_wbms_simulation2(5000, 10, random_state=seed)[
                0
            ].compute(),
        }
        for name, X in tables.items():
            exact, found = (
                WeightedBlurringMeanShift(n_representatives=n, random_state=seed).fit(X)
                for n in (None, points)
            )
            difference = np.abs(exact.feature_weights_ - found.feature_weights_).max()
            print(
                f"| {name} | {points:,} | {adjusted_rand_score(exact.labels_, found.labels_):.4f} "
                f"| {exact.n_clusters_} | {found.n_clusters_} | {difference:.4f} |",
                flush=True,
            )


def unequal_clusters(n, seed=0, p=20, k=20, informative=5):
    """Clusters of n/10,000 to about n/5 rows, and 1 % of outliers (labelled −1)."""
    rng = np.random.default_rng(seed)
    centers = [rng.random(informative)]
    while len(centers) < k:
        other = rng.random(informative)
        if np.linalg.norm(np.array(centers) - other, axis=1).min() > 0.25:
            centers.append(other)
    n_outliers, shares = n // 100, np.geomspace(1, 2000, k)
    sizes = np.maximum((n - n_outliers) * shares / shares.sum(), n / 10_000).astype(int)
    sizes[-1] = n - n_outliers - sizes[:-1].sum()
    y = rng.permutation(np.repeat(np.arange(-1, k), [n_outliers, *sizes]))
    X = rng.standard_normal((n, p), dtype=np.float32)
    X[:, :informative] = np.array(centers)[y] + 0.015 * X[:, :informative]
    X[y < 0, :informative] = rng.random((n_outliers, informative)) * 1.6 - 0.3
    return X, y


def processor_time(sizes=(100_000, 300_000, 1_000_000, 3_000_000)):
    print("\n### Micro-clusters against n, 20 clusters and outliers, p = 20\n")
    print("| n | processor seconds | clusters, those of outliers apart (20) | ARI |")
    print("|---|---|---|---|")
    times = []
    for n in sizes:
        X, y = unequal_clusters(n)
        began = time.process_time()
        model = WeightedBlurringMeanShift(random_state=0).fit(X)
        times.append(time.process_time() - began)
        inside = y >= 0
        shares = np.bincount(model.labels_, inside) / np.bincount(model.labels_)
        large = int((shares > 0.5).sum())
        ari = adjusted_rand_score(y[inside], model.labels_[inside])
        print(f"| {n:,} | {times[-1]:.0f} | {large} | {ari:.4f} |", flush=True)
    print(f"\nTime grows as n^{np.polyfit(np.log(sizes), np.log(times), 1)[0]:.2f}.")


def peer(name):
    """Make another program's estimator, with the number of clusters where it needs one."""
    return {
        "WeightedBlurringMeanShift": lambda: WeightedBlurringMeanShift(random_state=0),
        "HDBSCAN": lambda: HDBSCAN(min_cluster_size=10, copy=True),
        "DBSCAN": lambda: DBSCAN(eps=2.5),
        "MeanShift, bin seeding": lambda: MeanShift(bandwidth=3.0, bin_seeding=True),
        "BIRCH": lambda: Birch(n_clusters=20),
        "Nyström + k-means": lambda: make_pipeline(
            Nystroem(gamma=0.05, n_components=200, random_state=0),
            SklearnKMeans(20, n_init=3, random_state=0),
        ),
        "spectral": lambda: SpectralClustering(20, affinity="nearest_neighbors", random_state=0),
    }[name]()


def fit_peer(name, n, results):
    warnings.simplefilter("ignore")
    X, y = unequal_clusters(n)
    began = time.process_time()
    labels = peer(name).fit_predict(standardized(X.astype(np.float64)))
    inside = y >= 0
    taken = time.process_time() - began
    ari = adjusted_rand_score(y[inside], np.asarray(labels)[inside])
    results.put((taken, peak_memory_bytes(), ari))


def peers(limit=60.0, sizes=(10_000, 30_000, 100_000, 300_000, 1_000_000)):
    """The largest size that each can do within a limit of seconds."""
    print(f"\n### The largest table within {limit:.0f} s: 20 clusters, 5 of 20 features\n")
    print("| | rows | processor seconds | peak, GB | ARI |\n|---|---|---|---|---|")
    names = ["WeightedBlurringMeanShift", "HDBSCAN", "DBSCAN", "MeanShift, bin seeding", "BIRCH"]
    for name in [*names, "Nyström + k-means", "spectral"]:
        done = "| none | | | |"
        for n in sizes:
            context = multiprocessing.get_context("spawn")
            results = context.Queue()
            process = context.Process(target=fit_peer, args=(name, n, results))
            process.start()
            try:
                seconds, memory, ari = results.get(timeout=limit)
                done = f"| {n:,} | {seconds:.1f} | {memory / 1e9:.2f} | {ari:.3f} |"
            except queue.Empty:
                process.terminate()
                break
            finally:
                process.join()
        print(f"| {name} {done}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    passes()
    merging()
    fit_in_passes()
    against_n(sys.argv[1] if len(sys.argv) > 1 else None)
    large()
    compressed_and_exact()
    processor_time()
    peers()
