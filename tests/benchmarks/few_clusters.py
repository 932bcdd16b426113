"""Cost and processor time of few clusters of real tables, beside scikit-learn's k-means.

Run: python tests/benchmarks/few_clusters.py [--file X.npy]

Tables are those of scikit-learn, most of them z-scored, colours and patches of its photographs,
and 3,000 rows of a file of embeddings if one is given. Costs are relative to the lowest of all
fits to the same rows, and means over six seeds; seconds are geometric means over tables.
"""

import argparse
import time
import warnings
from functools import partial

import numpy as np
from sklearn.cluster import KMeans as ScikitKMeans
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_sample_images,
    load_wine,
)
from sklearn.preprocessing import scale

from daskmm import KMeans

NUMBERS, SEEDS = (2, 3, 5, 8, 12, 20, 40), range(6)
MODELS = {
    "scikit-learn, 1 start": partial(ScikitKMeans, n_init=1),
    "scikit-learn, 10 starts": partial(ScikitKMeans, n_init=10),
    "defaults": partial(KMeans, standardize=False),
    "defaults without a sample": partial(KMeans, standardize=False, sample_size=None),
}


def tables(path):
    """Yield the name of each table and its rows."""
    yield "digits", load_digits().data
    yield "iris", load_iris().data
    for load in (load_digits, load_breast_cancer, load_wine, load_diabetes):
        yield f"{load.__name__[5:]}, z-scored", scale(load().data)
    for number, image in enumerate(load_sample_images().images):
        yield f"colours {number}", image.reshape(-1, 3)[::20].astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(image.mean(axis=2), (6, 6))
    yield "patches", windows[::8, ::8].reshape(-1, 36).copy()
    if path:
        yield "embeddings", np.load(path)[:3000]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--file", help="embeddings as npy")
    warnings.simplefilter("ignore")
    found = {name: [] for name in MODELS}
    for table, rows in tables(parser.parse_args().file):
        for k in NUMBERS:
            costs, seconds = {}, {}
            for name, model in MODELS.items():
                began = time.process_time()
                costs[name] = [model(k, random_state=seed).fit(rows).inertia_ for seed in SEEDS]
                seconds[name] = (time.process_time() - began) / len(SEEDS)
            lowest = min(map(min, costs.values()))
            for name, own in costs.items():
                found[name].append((k, seconds[name], np.mean(own) / lowest - 1))
            print(table, k, {n: f"{v[-1][1]:.3f} s {v[-1][2]:.2%}" for n, v in found.items()})
    print(
        "| | up to 8 clusters: seconds, cost above the lowest | 12 to 40 clusters |\n|---|---|---|"
    )
    for name, values in found.items():
        k, seconds, above = np.array(values).T
        parts = [
            f"{np.exp(np.log(seconds[own]).mean()):.3f}, {above[own].mean():.2%}"
            for own in (k < 10, k > 10)
        ]
        print(f"| {name} | {' | '.join(parts)} |")


if __name__ == "__main__":
    main()
