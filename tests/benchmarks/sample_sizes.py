"""Rows to anneal on, compared by mean rank over mixtures of many rows.

Run: python tests/benchmarks/sample_sizes.py [--rows N] [--seeds S]

Whole fits of power k-means with defaults but for `sample_size`, so many rows per cluster. Costs are
relative to the lowest found on those data; "readings" are passes over the table.
"""

import argparse
import statistics
import time
import warnings

import numpy as np
from scipy.stats import rankdata

from daskmm import PowerKMeans

PER_CLUSTER = (20, 50, 100, 200, 400)
# Clusters, features and spread of their centres, in standard deviations of the clusters.
MIXTURES = [
    (20, 20, 3.0),
    (20, 20, 0.6),
    (50, 2, 8.0),
    (100, 10, 1.5),
    (100, 10, 0.8),
    (30, 50, 0.4),
]


def mixtures(n_rows, seed):
    """Name, rows and number of clusters; of equal and of unequal sizes."""
    for index, (k, p, spread) in enumerate(MIXTURES):
        rng = np.random.default_rng((index, seed))
        for shares in (None, rng.dirichlet(np.ones(k))):
            labels = rng.choice(k, size=n_rows, p=shares)
            rows = (spread * rng.normal(size=(k, p)))[labels] + rng.normal(size=(n_rows, p))
            sizes = "equal" if shares is None else "unequal"
            yield f"k={k} p={p} sd {spread} {sizes}", rows, k


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    names = [*(f"{size} per cluster" for size in PER_CLUSTER), "auto"]
    costs, seconds, readings = ({name: [] for name in names} for _ in range(3))
    for seed in range(arguments.seeds):
        for title, rows, k in mixtures(arguments.rows, seed):
            for name, size in zip(
                names, [*(k * each for each in PER_CLUSTER), "auto"], strict=True
            ):
                began = time.perf_counter()
                model = PowerKMeans(k, sample_size=size, random_state=seed).fit(rows)
                seconds[name].append(time.perf_counter() - began)
                costs[name].append(model.inertia_)
                readings[name].append(model.n_passes_)
            lowest = min(costs[name][-1] for name in names)
            for name in names:
                costs[name][-1] /= lowest
            print(title, *(f"{costs[name][-1]:.4f}" for name in names), flush=True)
    ranks = rankdata(np.round([costs[name] for name in names], 5), axis=0).mean(axis=1)
    print("| sample | mean cost | worst | mean rank | median readings | seconds |")
    print("|---|---|---|---|---|---|")
    for name, rank in zip(names, ranks, strict=True):
        print(
            f"| {name} | {np.mean(costs[name]):.4f} | {max(costs[name]):.4f} | {rank:.1f} "
            f"| {statistics.median(readings[name]):.0f} | {sum(seconds[name]):.0f} |"
        )


if __name__ == "__main__":
    main()
