"""Tables whose cost is carried by few rows, beside scikit-learn's best of eight starts.

Run: python tests/benchmarks/heavy_tails.py [--seeds S]

300,000 rows of 10 independent features, 20 clusters. Prints Markdown: mean cost relative to
scikit-learn's, the largest such ratio, the readings of the table, and seconds (medians).
"""

import argparse
import statistics
import time
import warnings

import numpy as np
from fits import cost, first_fit
from sklearn.cluster import KMeans as ScikitKMeans

from daskmm import KMeans, PowerKMeans

SHAPE, N_CLUSTERS = (300_000, 10), 20
KINDS = {
    "t, 1.2 degrees of freedom": lambda rng: rng.standard_t(1.2, size=SHAPE),
    "t, 2 degrees of freedom": lambda rng: rng.standard_t(2, size=SHAPE),
    "lognormal, σ = 2": lambda rng: rng.lognormal(0.0, 2.0, size=SHAPE),
}


def run(model, rows):
    begun = time.perf_counter()
    model.fit(rows)
    return cost(rows, model.cluster_centers_), time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    warnings.simplefilter("ignore")
    print("| rows | estimator | mean cost | largest | readings | seconds | scikit-learn's |")
    print("|---|---|---|---|---|---|---|")
    first_fit(PowerKMeans)
    for name, draw in KINDS.items():
        tables = [draw(np.random.default_rng(seed)) for seed in seeds]
        peers = [
            run(ScikitKMeans(N_CLUSTERS, n_init=8, random_state=seed), rows)
            for seed, rows in zip(seeds, tables, strict=True)
        ]
        for estimator in (PowerKMeans, KMeans):
            models = [estimator(N_CLUSTERS, random_state=seed) for seed in seeds]
            found = [run(model, rows) for model, rows in zip(models, tables, strict=True)]
            ratios = [ours / best for (ours, _), (best, _) in zip(found, peers, strict=True)]
            readings = statistics.median(model.n_passes_ for model in models)
            seconds, theirs = (statistics.median(s for _, s in runs) for runs in (found, peers))
            print(
                f"| {name} | {estimator.__name__} | {statistics.mean(ratios):.4f} | "
                f"{max(ratios):.4f} | {readings:.0f} | {seconds:.1f} | {theirs:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
