"""Fits to tables of many more features than rows beside scikit-learn's, in one process.

Run: python tests/benchmarks/wide.py [rows] [features]

Prints Markdown: seconds of fits with defaults, medians of three in turns, and their ratio to
scikit-learn's k-means with eight starts; 500 × 20,000 by default. Few, several hundred (with heavy
tails) or all features tell four clusters apart.
"""

import sys
import time
import warnings

import numpy as np
import sklearn.cluster

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

K = 4


def tables(n, p):
    rng = np.random.default_rng(0)
    labels = rng.integers(K, size=n)
    for name, informative, apart in (("few", 10, 4.0), ("hundreds", 300, 1.5), ("all", p, 0.3)):
        X = rng.standard_normal((n, p))
        X[:, :informative] += apart * rng.standard_normal((K, informative))[labels]
        if name == "hundreds":
            X = np.exp(0.5 * X) * rng.gamma(2, 1, p) + 0.3 * rng.standard_t(3, (n, p))
        yield name, X


MODELS = {
    "scikit-learn": lambda: sklearn.cluster.KMeans(K, n_init=8, random_state=0),
    "KMeans": lambda: KMeans(K, random_state=0),
    "PowerKMeans": lambda: PowerKMeans(K, random_state=0),
    "EWP, λ = .5 variance": lambda: EntropyPowerKMeans(K, lam="0.5*variance", random_state=0),
    "EWP": lambda: EntropyPowerKMeans(K, random_state=0),
}


def main():
    warnings.simplefilter("ignore")
    n, p = (int(size) for size in sys.argv[1:] or (500, 20_000))
    print("| informative | " + " | ".join(MODELS) + " |\n|" + " --- |" * (len(MODELS) + 1))
    for name, X in tables(n, p):
        seconds = {model: [] for model in MODELS}
        for make in MODELS.values():
            make().fit(X[:50, :1000])  # imports
        for _ in range(3):
            for model, make in MODELS.items():
                began = time.perf_counter()
                make().fit(X)
                seconds[model].append(time.perf_counter() - began)
        medians = [float(np.median(times)) for times in seconds.values()]
        cells = [f"{one:.2f} s / {one / medians[0]:.1f}" for one in medians]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
