"""Tables of a few thousand rows: annealed on a sample, which may be all rows, or as a whole.

Prints a Markdown table: for mixtures of several kinds, cost of `KMeans` and `PowerKMeans` with
``sample_size="auto"`` and None relative to scikit-learn's best of eight starts, mean and largest of
the draws, and seconds of all draws.
"""

import time
import warnings

import numpy as np
from sklearn.cluster import KMeans as ScikitKMeans

from daskmm import KMeans, PowerKMeans

SIZES = (
    (1500, 20, 8, 6),
    (3000, 12, 6, 6),
    (8000, 20, 8, 3),
    (18_000, 100, 8, 3),
    (30_000, 300, 8, 1),
)
SPREADS = {
    "separated": 0.3,
    "overlapping": 2.0,
    "unequal": 0.5,
    "heavy tails": 0.3,
    "far rows": 0.3,
}


def mixture(kind, n_rows, n_clusters, n_features, rng):
    """Rows of a mixture; as many far rows as clusters are asked for in addition."""
    centers = 3 * rng.normal(size=(n_clusters, n_features))
    chances = np.ones(n_clusters)
    if kind == "unequal":
        chances = 1 / np.arange(1, n_clusters + 1)
    labels = rng.choice(n_clusters, n_rows, p=chances / chances.sum())
    noise = rng.normal(size=(n_rows, n_features))
    if kind == "heavy tails":
        noise = rng.standard_t(1.5, size=noise.shape)
    rows = centers[labels] + SPREADS[kind] * noise
    if kind == "far rows":
        rows[:5] = 1e3 * rng.normal(size=(5, n_features))
    return rows


def main():
    """Fit all tables and print one line for each."""
    models = [
        (f"{cls.__name__}, {size}", cls, size)
        for cls in (KMeans, PowerKMeans)
        for size in ("auto", None)
    ]
    print("| rows, clusters | mixture |", " | ".join(name for name, *_ in models), "|")
    print("|---|" + "---|" * (len(models) + 1))
    for n, k, p, n_draws in SIZES:
        for kind in SPREADS:
            found = [[] for _ in models]
            seconds = np.zeros(len(models))
            for draw in range(n_draws):
                rows = mixture(kind, n, k, p, np.random.default_rng(draw))
                wanted = k + 5 * (kind == "far rows")
                best = ScikitKMeans(wanted, n_init=8, random_state=0).fit(rows).inertia_
                for i, (_, cls, size) in enumerate(models):
                    began = time.perf_counter()
                    model = cls(wanted, sample_size=size, random_state=0).fit(rows)
                    seconds[i] += time.perf_counter() - began
                    found[i].append(model.inertia_ / best)
            cells = [
                f"{np.mean(costs):.4f} ({np.max(costs):.4f}), {own:.1f} s"
                for costs, own in zip(found, seconds, strict=True)
            ]
            print(f"| {n:,}, {k} | {kind} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
