"""Mixed columns: EWP beside k-means of one-hot columns and k-prototypes, on ten mixtures.

    python tests/benchmarks/mixed.py

Six clusters of 12 columns, four numbers, four flags and four categories, of which one each tells
clusters apart: the number has three places, the flag separates the two clusters at each, and each
cluster has a level of its own in the category.
Prints agreement with the truth (adjusted Rand index).
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import numpy as np
import pandas as pd
from sklearn.cluster import KMeans as Lloyd
from sklearn.metrics import adjusted_rand_score

from daskmm import EntropyPowerKMeans, KMeans

INFORMATIVE = {"number0", "flag0", "category0"}


def mixture(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of 12 columns, 3 of them informative, and their clusters."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(6, size=n)
    place, half = truth % 3, truth // 3
    columns: dict[str, np.ndarray] = {
        "number0": 6.0 * place + rng.normal(size=n),
        "flag0": rng.random(n) < np.where(half, 0.99, 0.01),
    }
    levels = np.array([f"level{i}" for i in range(6)])
    # Every cluster has a level of its own, which one row in twenty has not.
    own = np.where(rng.random(n) < 0.95, truth, rng.integers(6, size=n))
    columns["category0"] = levels[own]
    for i in range(1, 4):
        columns[f"number{i}"] = rng.normal(size=n)
        columns[f"flag{i}"] = rng.random(n) < rng.uniform(0.3, 0.7)
        columns[f"category{i}"] = rng.choice(levels, p=rng.dirichlet(np.full(6, 4.0)), size=n)
    return pd.DataFrame(columns), truth


def one_hot(frame: pd.DataFrame, all_scaled: bool) -> np.ndarray:
    """Numbers standardised, one column per level; all of them scaled if asked."""
    wide = pd.get_dummies(frame).astype(float)
    scale = wide.std(ddof=0)
    if not all_scaled:
        scale[[name for name in wide if not name.startswith("number")]] = 1.0
    return ((wide - wide.mean()) / scale).to_numpy()


def k_prototypes(frame: pd.DataFrame, k: int, seed: int) -> np.ndarray:
    """k-prototypes (kmodes on PyPI) of standardised numbers, with its own weight of categories."""
    from kmodes.kprototypes import KPrototypes

    numbers = [name for name in frame if name.startswith("number")]
    rest = [name for name in frame if name not in numbers]
    scaled = (frame[numbers] - frame[numbers].mean()) / frame[numbers].std(ddof=0)
    rows = pd.concat([scaled, frame[rest].astype(str)], axis=1).to_numpy(dtype=object)
    model = KPrototypes(k, init="Cao", n_init=1, max_iter=30, random_state=seed)
    return model.fit_predict(rows, categorical=list(range(len(numbers), rows.shape[1])))


def main() -> None:
    """Print one line per mixture, and medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--skip", nargs="*", default=[], help="models to leave out")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    k = 6
    models = {
        "EWP": lambda frame, seed: EntropyPowerKMeans(k, distortion="mixed", random_state=seed).fit(
            frame
        ),
        "daskmm KMeans": lambda frame, seed: (
            KMeans(k, distortion="mixed", random_state=seed).fit(frame).labels_
        ),
        "one-hot, k-means": lambda frame, seed: Lloyd(k, n_init=10, random_state=seed).fit_predict(
            one_hot(frame, False)
        ),
        "one-hot scaled, k-means": lambda frame, seed: Lloyd(
            k, n_init=10, random_state=seed
        ).fit_predict(one_hot(frame, True)),
        "k-prototypes": lambda frame, seed: k_prototypes(frame, k, seed),
    }
    models = {name: model for name, model in models.items() if name not in asked.skip}
    found: dict[str, list[float]] = {name: [] for name in models}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    print("| draw | λ | columns found | " + " | ".join(models) + " |")
    print("|---" * (3 + len(models)) + "|")
    for seed in range(asked.draws):
        frame, truth = mixture(asked.rows, seed)
        cells = []
        for name, fit in models.items():
            began = time.perf_counter()
            labels = fit(frame, seed)
            seconds[name].append(time.perf_counter() - began)
            if name == "EWP":
                heaviest = np.argsort(-labels.feature_weights_)[:3]
                right = set(labels.feature_names_in_[heaviest]) == INFORMATIVE
                cells += [f"{labels.lam_:g}", "yes" if right else "no"]
                labels = labels.labels_
            found[name].append(adjusted_rand_score(truth, labels))
            cells.append(f"{found[name][-1]:.3f}")
        print(f"| {seed} | " + " | ".join(cells) + " |", flush=True)
    print(
        "| median | | | " + " | ".join(f"{statistics.median(a):.3f}" for a in found.values()) + " |"
    )
    print(
        "| seconds | | | "
        + " | ".join(f"{statistics.median(a):.1f}" for a in seconds.values())
        + " |"
    )


if __name__ == "__main__":
    main()
