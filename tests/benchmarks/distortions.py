"""Cost of a pass with other distortions and missing values, beside squared Euclidean's.

Run: python tests/benchmarks/distortions.py [repeats] [rows] [features] [clusters]

One MM step at a finite power and one hard step over rows in memory, on one thread. Prints a
Markdown table: medians over interleaved runs of the ratio to the step of squared Euclidean beside
it, in processor time.
"""

import statistics
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from daskmm.kmeans.sums import CenterState, center_sums
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.rows import Coordinates, WhitenedCoordinates

POWERS = {"soft": -5.0, "hard": -np.inf}
NAMES = ("kl", "itakura-saito", "logistic", "mahalanobis", "euclidean", "manhattan")
HOLES = 0.2


def interleaved(jobs, repeats):
    """Seconds of each job, run in turns, after a turn that counts for nothing."""
    seconds = {name: [] for name in jobs}
    for repeat in range(repeats + 1):
        for name, job in jobs.items():
            began = time.process_time()
            job()
            if repeat:
                seconds[name].append(time.process_time() - began)
    return seconds


def data(n_rows, n_features, n_clusters, dtype):
    """Counts of a mixture, and centres near its means."""
    rng = np.random.default_rng(0)
    truth = rng.gamma(2.0, 2.0, (n_clusters, n_features))
    return rng.poisson(truth[rng.integers(n_clusters, size=n_rows)]).astype(dtype), truth + 0.1


def step(name, rows, centers, s, holes=False):
    """A step of one distortion over the rows, moved into its domain."""
    p = rows.shape[1]
    top = np.nanmax(rows) + 1.0
    if name == "logistic":
        rows, centers = (rows / top).astype(rows.dtype), centers / top
    elif name == "itakura-saito":
        rows, centers = rows + rows.dtype.type(0.5), centers + 0.5
    mean = np.nanmean(rows, axis=0, dtype=np.float64)
    variance = np.nanvar(rows, axis=0, dtype=np.float64)
    family = DISTORTIONS[name]
    shift = mean if family.shifts else np.zeros(p)
    coordinates = Coordinates(shift, np.ones(p))
    if name == "mahalanobis":
        coordinates = WhitenedCoordinates.of(mean, np.diag(1.0 / variance))
        centers = coordinates.to_model(centers)
    else:
        centers = centers - shift
    state = CenterState(centers, s, None, family.around(mean - shift, variance), holes)
    return lambda: center_sums(rows, None, coordinates, (state,))


def main(repeats, *shape):
    names = [*NAMES, "missing", "kl, missing"]
    print(f"{shape[0]:,} rows, {shape[1]} features, {shape[2]} clusters\n")
    print("| step | sqeuclidean, ns per row | " + " | ".join(names) + " |")
    print("|---|---|" + "---|" * len(names))
    for dtype in (np.float64, np.float32):
        rows, centers = data(*shape, dtype)
        holes = np.random.default_rng(1).random(rows.shape) < HOLES
        partial = np.where(holes, dtype(np.nan), rows)
        for kind, s in POWERS.items():
            jobs = {"sqeuclidean": step("sqeuclidean", rows, centers, s)}
            jobs |= {name: step(name, rows, centers, s) for name in NAMES}
            jobs["missing"] = step("sqeuclidean", partial, centers, s, holes=True)
            jobs["kl, missing"] = step("kl", partial, centers, s, holes=True)
            t = interleaved(jobs, repeats)
            base = t["sqeuclidean"]
            ratios = [
                statistics.median(a / b for a, b in zip(t[name], base, strict=True))
                for name in names
            ]
            cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            each = 1e9 * statistics.median(base) / shape[0]
            print(f"| {kind}, {np.dtype(dtype)} | {each:.0f} | {cells} |", flush=True)


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    with threadpool_limits(1):
        main(*given, *(9, 100_000, 50, 20)[len(given) :])
