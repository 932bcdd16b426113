"""Whether estimators and every "auto" find the same clusters at any number of rows.

Run: python tests/benchmarks/sizes.py [NAME ...] [--sizes N ...] [--mixtures WORD ...]

Prints Markdown: for each of eight separated mixtures (`_mixtures.SEPARATED`) and each number of
rows the number of clusters that hold at least .1 % of the rows, the number of the others (if there
are any) and the adjusted Rand index, both without the outliers of the mixture, then seconds.
Without names all estimators run, each up to the number of rows that it takes in minutes.
"""

import os

# Before numpy: a pass has its own threads.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

sys.path.insert(0, str(Path(__file__).parents[1]))

from _mixtures import SEPARATED, separated

from daskmm import EntropyPowerKMeans, KernelPowerKMeans, PowerKMeans, WeightedBlurringMeanShift
from daskmm import KMeans as DaskKMeans

SIZES = (1000, 3000, 10_000, 30_000, 100_000, 1_000_000)
# A cluster of a smaller share of the rows is counted apart.
LEAST_SHARE = 0.001
# Makers by name: of an estimator, given the true number of clusters; and the most rows.
ESTIMATORS = {
    "mean shift": (lambda _: WeightedBlurringMeanShift(random_state=0), 1_000_000),
    'k-means, n_clusters="auto"': (lambda _: DaskKMeans("auto", random_state=0), 100_000),
    "power k-means": (lambda k: PowerKMeans(k, random_state=0), 100_000),
    'power k-means, standardize="auto"': (
        lambda k: PowerKMeans(k, standardize="auto", random_state=0),
        100_000,
    ),
    'EWP, lam="auto"': (lambda k: EntropyPowerKMeans(k, lam="auto", random_state=0), 100_000),
    "kernel power k-means": (lambda k: KernelPowerKMeans(k, random_state=0), 100_000),
}


def judged(make, name, n):
    """Large and small clusters, ARI and seconds of a fit to one mixture."""
    X, truth, centers = separated(name, n)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        labels = np.asarray(make(len(centers)).fit(X).labels_)
    seconds = time.perf_counter() - began
    inside = truth >= 0
    sizes = np.bincount(labels)
    large = int((sizes >= LEAST_SHARE * n).sum())
    ari = adjusted_rand_score(truth[inside], labels[inside])
    return large, len(sizes) - large, ari, seconds, len(caught)


def cell(large, small, ari, seconds, n_warnings):
    apart = f" + {small}" if small else ""
    warned = " (warns)" if n_warnings else ""
    return f"{large}{apart}, {ari:.3f}, {seconds:.1f} s{warned}"


def table(name, sizes, mixtures):
    make, most = ESTIMATORS[name]
    sizes = [n for n in sizes if n <= most]
    print(f"\n### {name}\n")
    print(f"| mixture | {' | '.join(f'{n:,}' for n in sizes)} |")
    print("|---" * (len(sizes) + 1) + "|")
    for mixture in mixtures:
        print(f"| {mixture} |", end="", flush=True)
        for n in sizes:
            print(f" {cell(*judged(make, mixture, n))} |", end="", flush=True)
        print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="estimators, by any part of their names")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--mixtures", nargs="+", default=[""], help="any part of their names")
    asked = parser.parse_args()
    mixtures = [name for name in SEPARATED if any(word in name for word in asked.mixtures)]
    for name in ESTIMATORS:
        if not asked.names or any(word in name for word in asked.names):
            table(name, asked.sizes, mixtures)


if __name__ == "__main__":
    main()
