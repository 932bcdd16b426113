"""Gaussian mixtures beside scikit-learn's: likelihood and seconds.

Run: python tests/benchmarks/mixtures.py [simulations] [tables] [speed] [numbers] [out-of-core]

Prints Markdown. Likelihoods are means per row, with default parameters of `GaussianMixture` against
the best of ten starts of scikit-learn: of ten simulated mixtures, and of real tables that come with
packages. Speed is the ratio to scikit-learn with one start, fits in turn in one process. Numbers of
components are those that ``n_components="auto"`` finds in the mixtures of `n_clusters_rules.py`.
Out of core is a store of 20,000,000 × 50 numbers of float32 (4 GB), in one process.
"""

import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import zarr
from _tables import load, names
from n_clusters_rules import KINDS, LEAST, LEAST_UNEQUAL, NUMBERS, unequal
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Peer

from daskmm import GaussianMixture

# Kind, components, features, rows.
SIMULATIONS = [
    ("round", 3, 2, 1_000),
    ("round", 20, 10, 20_000),
    ("elliptical", 5, 5, 3_000),
    ("elliptical", 12, 20, 20_000),
    ("elliptical", 30, 3, 20_000),
    ("unequal 1:50", 8, 4, 5_000),
    ("unequal 1:50", 20, 10, 30_000),
    ("overlapping", 5, 2, 3_000),
    ("overlapping", 10, 10, 20_000),
    ("overlapping", 6, 50, 20_000),
]
# Real tables: how many, and of how many rows.
TABLES, LEAST_ROWS, MOST_ROWS = 8, 2_000, 20_000
# Rows, features, components and rows of a chunk of the store.
STORE = 20_000_000, 50, 20, 80_000
SPEEDS = [("full", 1_000_000, 20, 20), ("diag", 1_000_000, 20, 20), ("full", 100_000, 100, 10)]


def draw(kind, k, p, n, rng, of_mixture=None):
    """Draw rows; the mixture is drawn by a generator of its own, if there is one."""
    noise, rng = rng, of_mixture or rng
    apart = 1.0 if kind == "overlapping" else 3.0
    centers = apart * rng.normal(size=(k, p))
    sizes = np.geomspace(1, 50, k) if kind.startswith("unequal") else np.ones(k)
    labels = noise.choice(k, n, p=sizes / sizes.sum())
    rows = noise.normal(size=(n, p))
    if kind != "round":
        turns = np.linalg.qr(rng.normal(size=(k, p, p)))[0]
        spreads = np.exp(rng.uniform(np.log(0.2), np.log(2.0), (k, p)))
        for j in range(k):
            rows[labels == j] = rows[labels == j] * spreads[j] @ turns[j]
    return centers[labels] + rows


def show(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def compare(name, X, k, kind="full"):
    """Print the likelihood of both, what ours gains, and the seconds."""
    began = time.perf_counter()
    own = GaussianMixture(k, covariance_type=kind, random_state=0).fit(X)
    middle = time.perf_counter()
    peer = Peer(k, covariance_type=kind, n_init=10, random_state=0).fit(X)
    ended = time.perf_counter()
    found, best = own.score(X), peer.score(X)
    narrow = np.linalg.eigvalsh(own.covariances_).min()
    show(
        name,
        f"{len(X):,} × {X.shape[1]}",
        k,
        f"{found:.4f}",
        f"{best:.4f}",
        f"{found - best:+.4f}",
        f"{middle - began:.1f} / {ended - middle:.1f}",
        f"{narrow:.1g}, {np.linalg.eigvalsh(peer.covariances_).min():.1g}",
    )


def header():
    show(
        "mixture", "rows", "components", "daskmm", "best of 10", "gain", "seconds",
        "least variance of each",
    )  # fmt: skip
    show(*["---"] * 8)


def simulations():
    header()
    for number, (kind, k, p, n) in enumerate(SIMULATIONS):
        rows = draw(kind, k, p, n, np.random.default_rng([7, number]))
        compare(kind, rows, k)


def tables():
    header()
    left = TABLES
    for name in names():
        table = load(name).drawn(MOST_ROWS)
        if left == 0 or table.mixed or len(table.frame) < LEAST_ROWS:
            continue
        X = table.matrix()
        X = X[:, X.std(axis=0) > 0]
        compare(name, (X - X.mean(axis=0)) / X.std(axis=0), len(np.unique(table.classes)))
        left -= 1


def speed():
    show("covariances", "rows", "components", "daskmm", "scikit-learn", "ratio", "gain")
    show(*["---"] * 7)
    for kind, n, p, k in SPEEDS:
        X = draw("elliptical", k, p, n, np.random.default_rng(1))
        began = time.perf_counter()
        own = GaussianMixture(k, covariance_type=kind, random_state=0).fit(X)
        middle = time.perf_counter()
        peer = Peer(k, covariance_type=kind, random_state=0).fit(X)
        ended = time.perf_counter()
        seconds, others = middle - began, ended - middle
        gain = own.score(X) - peer.score(X)
        show(kind, f"{n:,} × {p}", k, f"{seconds:.1f}", f"{others:.1f}", f"{seconds / others:.2f}",
             f"{gain:+.4f}")  # fmt: skip


def numbers(seed=21):
    show("mixture", "exact", "misses (made of → found, rows)", "seconds, mean and longest")
    show(*["---"] * 4)
    hits = 0
    for number, (name, make) in enumerate(KINDS.items()):
        misses, seconds = [], []
        for place, k in enumerate(NUMBERS):
            rng = np.random.default_rng([seed, number, place])
            least = (LEAST_UNEQUAL if make is unequal else LEAST) * k
            n = int(np.exp(rng.uniform(np.log(max(500, least)), np.log(100_000))))
            rows = make(k, n, rng)
            began = time.perf_counter()
            model = GaussianMixture("auto", random_state=seed).fit(rows)
            seconds.append(time.perf_counter() - began)
            found = model.n_clusters_
            misses += [f"{k} → {found} ({n:,})"] if found != k else []
        hits += len(NUMBERS) - len(misses)
        taken = f"{np.mean(seconds):.1f}, {max(seconds):.1f}"
        show(name, f"{len(NUMBERS) - len(misses)} of {len(NUMBERS)}", ", ".join(misses), taken)
    show("all", f"{hits} of {len(NUMBERS) * len(KINDS)}", "", "")


def write(path):
    n, p, k, chunk = STORE
    store = zarr.create_array(path, shape=(n, p), chunks=(chunk, p), dtype="f4")
    for start in range(0, n, chunk):
        rng = np.random.default_rng([3, start])
        # All chunks are of the same mixture, as its parameters are drawn first.
        store[start : start + chunk] = draw(
            "elliptical", k, p, chunk, rng, np.random.default_rng(3)
        )
    return path


# The fit runs in a process of its own, whose peak memory is not that of the other benchmarks.
FIT = """
import resource, sys, time, zarr
from daskmm import GaussianMixture

X = zarr.open_array(sys.argv[1], mode="r")
model = GaussianMixture(int(sys.argv[2]), random_state=0)
plan = model.plan(X)
began = time.perf_counter()
model.fit(X)
seconds, planned = time.perf_counter() - began, sum(plan.stages.values())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{model.n_passes_} reads, {seconds:.0f} s (planned {planned:.0f})")
print(f"peak {peak:.0f} MB (planned {plan.peak_bytes_per_worker / 2**20:.0f})")
print(f"lower bound {model.lower_bound_:.4f}, least share {model.weights_.min():.4f}")
"""


def out_of_core():
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = write(Path(folder) / "rows.zarr")
        subprocess.run([sys.executable, "-c", FIT, str(path), str(STORE[2])], check=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", UserWarning)
    for name in sys.argv[1:] or ["simulations", "tables", "speed"]:
        {
            "simulations": simulations,
            "tables": tables,
            "speed": speed,
            "numbers": numbers,
            "out-of-core": out_of_core,
        }[name]()
