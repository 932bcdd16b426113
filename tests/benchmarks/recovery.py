"""Clusters found by the distortion that matches the data, beside squared Euclidean's.

Run: python tests/benchmarks/recovery.py [draws]

Mean adjusted Rand index over draws. "hard" is k-means and "power" power k-means, one start each
from the same seeds. Prints a Markdown table for mixtures of Poisson, binomial, gamma and
multinomial variables, one for heavy tails with outliers, and one for digits as counts.
"""

import sys
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from daskmm import KMeans, PowerKMeans

N_ROWS = 2000
SHAPES = ((10, 10), (15, 20), (20, 50))
OUTLIERS = 0.05


def poisson(k, p, rng):
    means = rng.gamma(0.6, 6.0 * np.sqrt(10 / p), (k, p))
    truth = rng.integers(k, size=N_ROWS)
    return rng.poisson(means[truth]).astype(float), truth


def binomial(k, p, rng):
    chances = rng.beta(0.6, 6.0, (k, p))
    truth = rng.integers(k, size=N_ROWS)
    return rng.binomial(10, chances[truth]) / 10, truth


def gamma(k, p, rng):
    means = rng.lognormal(0.0, 0.8 * np.sqrt(10 / p), (k, p))
    truth = rng.integers(k, size=N_ROWS)
    return means[truth] * rng.gamma(2.0, 0.5, (N_ROWS, p)), truth


def multinomial(k, p, rng):
    chances = rng.dirichlet(np.full(p, 0.3), k)
    truth = rng.integers(k, size=N_ROWS)
    lengths = rng.integers(15, 100, N_ROWS)
    counts = np.array([rng.multinomial(n, chances[j]) for n, j in zip(lengths, truth, strict=True)])
    return counts / lengths[:, None], truth


MIXTURES = {
    "Poisson": (poisson, "kl"),
    "binomial": (binomial, "logistic"),
    "gamma": (gamma, "gamma"),
    "multinomial": (multinomial, "kl"),
}


def heavy_tails(k, p, rng):
    """Student's t with 2 degrees of freedom around centres, and uniform outliers (label −1)."""
    centers = rng.normal(0.0, 4.0, (k, p))
    truth = rng.integers(k, size=N_ROWS)
    rows = centers[truth] + rng.standard_t(2, (N_ROWS, p))
    away = rng.random(N_ROWS) < OUTLIERS
    rows[away] = rng.uniform(-40.0, 40.0, (int(away.sum()), p))
    return rows, np.where(away, -1, truth)


def found(cls, distortion, rows, truth, k, seed, **parameters):
    """Adjusted Rand index over the rows that have a cluster."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = cls(k, distortion=distortion, random_state=seed, **{"n_init": 1} | parameters)
        labels = model.fit(rows).labels_
    return adjusted_rand_score(truth[truth >= 0], labels[truth >= 0])


def mean_scores(make, k, p, distortions, draws, **parameters):
    """Mean over the draws, per estimator and distortion."""
    scores = {}
    for seed in range(draws):
        rows, truth = make(k, p, np.random.default_rng(seed))
        for distortion in distortions:
            for cls in (KMeans, PowerKMeans):
                score = found(cls, distortion, rows, truth, k, seed, **parameters)
                scores.setdefault((cls, distortion), []).append(score)
    return {key: float(np.mean(values)) for key, values in scores.items()}


def mixtures(draws):
    print("| mixture | k, p | start | sqeuclidean: hard, power | the matching one: hard, power |")
    print("|---|---|---|---|---|")
    for name, (make, distortion) in MIXTURES.items():
        for k, p in SHAPES:
            for init in ("k-means++", "random"):
                m = mean_scores(make, k, p, ("sqeuclidean", distortion), draws, init=init)
                cells = [
                    f"{m[KMeans, d]:.3f}, {m[PowerKMeans, d]:.3f}"
                    for d in ("sqeuclidean", distortion)
                ]
                line = " | ".join(cells)
                print(f"| {name} ({distortion}) | {k}, {p} | {init} | {line} |", flush=True)


def tails(draws):
    names = ("sqeuclidean", "euclidean", "manhattan")
    print("\n| heavy tails, k, p | " + " | ".join(f"{name}: hard, power" for name in names) + " |")
    print("|---|---|---|---|")
    for k, p in SHAPES[:2]:
        m = mean_scores(heavy_tails, k, p, names, draws, n_init=4)
        cells = [f"{m[KMeans, d]:.3f}, {m[PowerKMeans, d]:.3f}" for d in names]
        print(f"| {k}, {p} | " + " | ".join(cells) + " |", flush=True)


def digits(draws):
    names = ("sqeuclidean", "kl", "manhattan", "euclidean")
    X, y = load_digits(return_X_y=True)
    print("\n| digits as counts | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for cls in (KMeans, PowerKMeans):
        scores = [
            np.mean([found(cls, d, X, y, 10, seed, n_init=8) for seed in range(draws)])
            for d in names
        ]
        cells = " | ".join(f"{score:.3f}" for score in scores)
        print(f"| {cls.__name__} | {cells} |", flush=True)


if __name__ == "__main__":
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    mixtures(draws)
    tails(draws)
    digits(min(draws, 5))
