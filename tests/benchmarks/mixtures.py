"""Gaussian mixtures beside scikit-learn's: likelihood and seconds.

Run: python tests/benchmarks/mixtures.py [simulations] [tables] [speed]

Prints Markdown. Likelihoods are means per row, with default parameters of `GaussianMixture` against
the best of ten starts of scikit-learn: of ten simulated mixtures, and of real tables that come with
packages. Speed is the ratio to scikit-learn with one start, fits in turn in one process.
"""

import sys
import time
import warnings

import numpy as np
from _tables import load, names
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
SPEEDS = [("full", 1_000_000, 20, 20), ("diag", 1_000_000, 20, 20), ("full", 100_000, 100, 10)]


def draw(kind, k, p, n, rng):
    apart = 1.0 if kind == "overlapping" else 3.0
    centers = apart * rng.normal(size=(k, p))
    sizes = np.geomspace(1, 50, k) if kind.startswith("unequal") else np.ones(k)
    labels = rng.choice(k, n, p=sizes / sizes.sum())
    rows = rng.normal(size=(n, p))
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


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", UserWarning)
    for name in sys.argv[1:] or ["simulations", "tables", "speed"]:
        {"simulations": simulations, "tables": tables, "speed": speed}[name]()
