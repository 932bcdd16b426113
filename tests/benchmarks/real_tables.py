"""Real tables: how well clusters agree with classes that people assigned, beside peers.

    PYTHONPATH=FOLDER python tests/benchmarks/real_tables.py run results.jsonl
    python tests/benchmarks/real_tables.py summary results.jsonl

The tables come with packages (`_tables.py` says which ones to install). Each method is given the
number of classes where it takes a number, runs once with the seed 0, and adds one line to the
results, which holds normalised mutual information and the adjusted Rand index; a run goes on where
the former one ended. All methods see the same columns: categories as zeros and ones, except for
"mixed". A hash of its name puts each table into "tuning", on which defaults are chosen, or into
"held back", on which they are confirmed.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from _tables import Table, half_of, load, names
from sklearn.cluster import HDBSCAN
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

# Rows of the table that a method is given, at most.
ALL, SLOW, SLOWEST = 500_000, 5_000, 2_000
REFERENCE = "scikit-learn, z-scores"
TIE = 0.02
Method = Callable[[Table, int], np.ndarray]


def _model(cls: type, **settings: object) -> Method:
    return lambda table, k: cls(k, random_state=0, **settings).fit_predict(table.matrix())


def _mean_shift(**settings: object) -> Method:
    return lambda table, _: WeightedBlurringMeanShift(random_state=0, **settings).fit_predict(
        table.matrix()
    )


def _mixed(cls: type) -> Method:
    return lambda table, k: np.asarray(
        cls(k, random_state=0, distortion="mixed").fit_predict(table.frame)
    )


def _z(table: Table) -> np.ndarray:
    return StandardScaler().fit_transform(table.matrix())


def _mixture(table: Table, k: int) -> np.ndarray:
    return GaussianMixture(k, reg_covar=1e-3, random_state=0).fit_predict(_z(table))


METHODS: dict[str, tuple[int, Method]] = {
    "scikit-learn, raw": (
        ALL,
        lambda table, k: Lloyd(k, n_init=10, random_state=0).fit_predict(table.matrix()),
    ),
    REFERENCE: (ALL, lambda table, k: Lloyd(k, n_init=10, random_state=0).fit_predict(_z(table))),
    "KMeans, raw": (ALL, _model(KMeans, standardize=False)),
    "KMeans, auto": (ALL, _model(KMeans, standardize="auto")),
    "KMeans, standardised": (ALL, _model(KMeans, standardize=True)),
    "PowerKMeans, raw": (ALL, _model(PowerKMeans, standardize=False)),
    "PowerKMeans, auto": (ALL, _model(PowerKMeans, standardize="auto")),
    "PowerKMeans, standardised": (ALL, _model(PowerKMeans, standardize=True)),
    "EntropyPowerKMeans": (ALL, _model(EntropyPowerKMeans)),
    "EntropyPowerKMeans, raw": (ALL, _model(EntropyPowerKMeans, standardize=False)),
    "KMeans, mixed": (ALL, _mixed(KMeans)),
    "EntropyPowerKMeans, mixed": (SLOWEST, _mixed(EntropyPowerKMeans)),
    "KernelPowerKMeans": (SLOW, _model(KernelPowerKMeans)),
    "KernelPowerKMeans, standardised": (SLOW, _model(KernelPowerKMeans, standardize=True)),
    "WeightedBlurringMeanShift": (SLOWEST, _mean_shift()),
    "WeightedBlurringMeanShift, raw": (SLOWEST, _mean_shift(standardize=False)),
    "Gaussian mixture, z-scores": (
        SLOW,
        lambda table, k: Mixture(k, reg_covar=1e-3, random_state=0).fit_predict(_z(table)),
    ),
    "GaussianMixture, z-scores": (SLOW, _mixture),
    "HDBSCAN, z-scores": (SLOW, lambda table, _: HDBSCAN().fit_predict(_z(table))),
}


def main() -> None:
    """Run methods on tables, or sum up their results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("results", type=Path)
    run_.add_argument("--tables", nargs="*", default=names())
    run_.add_argument("--methods", nargs="*", default=list(METHODS))
    run_.set_defaults(does=lambda asked: run(asked.results, asked.tables, asked.methods))
    summary_ = commands.add_parser("summary")
    summary_.add_argument("results", type=Path)
    summary_.set_defaults(does=lambda asked: summary(asked.results))
    asked = parser.parse_args()
    asked.does(asked)


def run(results: Path, tables: list[str], methods: list[str]) -> None:
    """Add a line for each table and method that has none."""
    done = set()
    if results.exists():
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        done = {(line["table"], line["method"]) for line in lines}
    for name in tables:
        left = [method for method in methods if (name, method) not in done]
        if not left:
            continue
        table = load(name)
        for method in left:
            if "mixed" in method and not table.mixed:
                continue
            line = {"table": name, "method": method, **_scores(table, method)}
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)


def _scores(table: Table, method: str) -> dict[str, object]:
    """What a method found on a table."""
    most, fit = METHODS[method]
    table = table.drawn(most)
    truth = pd.factorize(table.classes)[0]
    k = int(truth.max()) + 1
    began = time.perf_counter()
    labels = np.asarray(fit(table, k))
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
