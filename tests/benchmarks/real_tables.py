"""Real tables: how well clusters agree with classes that people assigned, beside peers.

    PYTHONPATH=FOLDER python tests/benchmarks/real_tables.py run results.jsonl
    PYTHONPATH=FOLDER python tests/benchmarks/real_tables.py summary results.jsonl

The tables come with packages (`_tables.py` says which ones to install). Each method is given the
number of classes where it takes a number, runs once with the seed 0 on the same rows of a table,
drawn at random if there are many, and adds one line to the results, which holds normalised mutual
information and the adjusted Rand index; a run goes on where the former one ended. All methods see
the same columns: categories as zeros and ones, except for "mixed" and k-prototypes. A method that
fails on a table has no line for it. A hash of its name puts each table into "tuning", on which
defaults are chosen, or into "held back", on which they are confirmed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from _tables import Table, half_of, load, names
from mixed import k_prototypes
from sklearn.cluster import HDBSCAN, SpectralClustering
from sklearn.cluster import KMeans as Lloyd
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.mixture import GaussianMixture as Mixture
from sklearn.preprocessing import StandardScaler

from daskmm import (
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)

# Rows of a table that methods are given, at most, and those of the slowest ones.
ROWS, FEWER = 2_000, 1_000
SLOW = ("Gaussian", "Weighted", "spectral", "k-proto", "HDBSCAN")
REFERENCE = "scikit-learn, z-scores"
TIE = 0.02
Method = Callable[[Table, int], np.ndarray]


def _model(cls: type, **settings: object) -> Method:
    return lambda table, k: cls(k, random_state=0, **settings).fit_predict(table.matrix())


def _mixed(cls: type) -> Method:
    return lambda table, k: np.asarray(
        cls(k, random_state=0, distortion="mixed").fit_predict(table.frame)
    )


def _z(table: Table) -> np.ndarray:
    return StandardScaler().fit_transform(table.matrix())


def _lloyd(rows: np.ndarray, k: int) -> np.ndarray:
    return Lloyd(k, n_init=10, random_state=0).fit_predict(rows)


def _best_mixture(table: Table, k: int) -> np.ndarray:
    """The Gaussian mixture whose kind of covariance BIC prefers."""
    rows = _z(table)
    kinds = ("full", "tied", "diag", "spherical")
    models = [Mixture(k, covariance_type=kind, reg_covar=1e-3, random_state=0) for kind in kinds]
    return min((model.fit(rows) for model in models), key=lambda model: model.bic(rows)).predict(
        rows
    )


def _prototypes(table: Table, k: int) -> np.ndarray:
    if (table.frame.dtypes == "category").all():
        return _modes(table, k)
    frame = table.frame.rename(columns=lambda name: f"column {name}")
    numbers = frame.select_dtypes("number").columns
    return k_prototypes(frame.rename(columns={name: f"number {name}" for name in numbers}), k, 0)


def _modes(table: Table, k: int) -> np.ndarray:
    from kmodes.kmodes import KModes

    return KModes(k, init="Cao", random_state=0).fit_predict(table.frame.astype(str).to_numpy())


METHODS: dict[str, Method] = {
    REFERENCE: lambda table, k: _lloyd(_z(table), k),
    "scikit-learn, raw": lambda table, k: _lloyd(table.matrix(), k),
    "KernelPowerKMeans": _model(KernelPowerKMeans),
    "KernelPowerKMeans, raw": _model(KernelPowerKMeans, standardize=False),
    "KMeans, auto": _model(KMeans),
    "PowerKMeans, auto": _model(PowerKMeans),
    "EntropyPowerKMeans": _model(EntropyPowerKMeans),
    "GaussianMixture, z-scores": lambda table, k: GaussianMixture(
        k, reg_covar=1e-3, random_state=0
    ).fit_predict(_z(table)),
    "Gaussian mixture, z-scores": lambda table, k: Mixture(
        k, reg_covar=1e-3, random_state=0
    ).fit_predict(_z(table)),
    "Gaussian mixture, z-scores, BIC": _best_mixture,
    "HDBSCAN, z-scores": lambda table, _: HDBSCAN().fit_predict(_z(table)),
    "spectral, z-scores": lambda table, k: SpectralClustering(
        k, affinity="nearest_neighbors", random_state=0
    ).fit_predict(_z(table)),
    "KMeans, mixed": _mixed(KMeans),
    "k-prototypes, mixed": _prototypes,
    "EntropyPowerKMeans, mixed": _mixed(EntropyPowerKMeans),
    "WeightedBlurringMeanShift": lambda table, _: WeightedBlurringMeanShift(
        random_state=0
    ).fit_predict(table.matrix()),
    "KMeans, raw": _model(KMeans, standardize=False),
    "KMeans, standardised": _model(KMeans, standardize=True),
    "PowerKMeans, raw": _model(PowerKMeans, standardize=False),
    "PowerKMeans, standardised": _model(PowerKMeans, standardize=True),
    "EntropyPowerKMeans, raw": _model(EntropyPowerKMeans, standardize=False),
    "WeightedBlurringMeanShift, raw": lambda table, _: WeightedBlurringMeanShift(
        random_state=0, standardize=False
    ).fit_predict(table.matrix()),
}


def main() -> None:
    """Run methods on tables, or sum up their results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("results", type=Path)
    run_.add_argument("--tables", nargs="*", default=names())
    run_.add_argument("--methods", nargs="*", default=list(METHODS))
    run_.add_argument("--rows", type=int, default=ROWS, help="rows of a table, at most")
    run_.set_defaults(
        does=lambda asked: run(asked.results, asked.tables, asked.methods, asked.rows)
    )
    summary_ = commands.add_parser("summary")
    summary_.add_argument("results", type=Path)
    summary_.set_defaults(does=lambda asked: summary(asked.results))
    asked = parser.parse_args()
    asked.does(asked)


def run(results: Path, tables: list[str], methods: list[str], n_rows: int) -> None:
    """Add a line for each table and method that has none."""
    done = set()
    if results.exists():
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        done = {(line["table"], line["method"]) for line in lines}
    for method, name in itertools.product(methods, tables):
        if (name, method) in done:
            continue
        table = _drawn(name, n_rows)
        if "mixed" in method and not table.mixed:
            continue
        try:
            line = {"table": name, "method": method, **_scores(table, method)}
        except ValueError as error:
            print(f"{method} fails on {name}: {error}", flush=True)
            continue
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


@functools.cache
def _drawn(name: str, n_rows: int) -> Table:
    return load(name).drawn(n_rows)


def _scores(table: Table, method: str) -> dict[str, object]:
    """What a method found on a table."""
    if method.startswith(SLOW):
        table = table.drawn(FEWER)
    truth = pd.factorize(table.classes)[0]
    k = int(truth.max()) + 1
    began = time.perf_counter()
    labels = np.asarray(METHODS[method](table, k))
    return {
        "rows": len(truth),
        "features": table.frame.shape[1],
        "classes": k,
        "clusters": len(np.unique(labels)),
        "nmi": round(float(normalized_mutual_info_score(truth, labels)), 4),
        "ari": round(float(adjusted_rand_score(truth, labels)), 4),
        "seconds": round(time.perf_counter() - began, 2),
    }


def summary(results: Path) -> None:
    """Print a table of all methods for each half, and where each of ours loses most."""
    lines = pd.read_json(results, lines=True)
    lines["half"] = lines["table"].map(half_of)
    for half, own in lines.groupby("half", sort=False):
        nmi = own.pivot(index="table", columns="method", values="nmi")
        print(f"\n## {half}: {len(nmi)} tables\n")
        print(f"| method | NMI | ARI | seconds | wins, ties, losses against {REFERENCE} |", end="")
        print(" losses above .05 |\n|---|---|---|---|---|---|")
        ari = own.groupby("method")["ari"].mean()
        seconds = own.groupby("method")["seconds"].sum()
        for method in [name for name in METHODS if name in nmi]:
            beside = nmi[method] - nmi[REFERENCE]
            won, lost = int((beside > TIE).sum()), int((beside < -TIE).sum())
            tied = int(beside.notna().sum()) - won - lost
            print(
                f"| {method} | {nmi[method].mean():.3f} | {ari[method]:.3f} | {seconds[method]:.0f}"
                f" | {won}, {tied}, {lost} | {int((beside < -0.05).sum())} |"
            )
        print("\nWorst ten of each, NMI less that of the reference:\n")
        for method in [name for name in METHODS if name in nmi]:
            worst = (nmi[method] - nmi[REFERENCE]).dropna().sort_values().head(10)
            print(
                f"- {method}: " + ", ".join(f"{name} {loss:+.2f}" for name, loss in worst.items())
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
