"""Clusters found where values are missing, beside imputed means and k-means.

Run: python tests/benchmarks/missing.py [draws]

Mean adjusted Rand index between the clusters of data with holes and those of the complete data,
over draws of the holes. Prints a Markdown table.
"""

import sys
import warnings

import numpy as np
from sklearn.cluster import KMeans as ScikitKMeans
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

SHARES = (0.05, 0.2, 0.4)
# Name, loader, clusters, whether features are standardised.
SETS = (
    ("wine", load_wine, 3, True),
    ("wdbc", load_breast_cancer, 2, True),
    ("digits", load_digits, 10, False),
)
ESTIMATORS = {
    "KMeans": lambda k, standardize: KMeans(k, standardize=standardize),
    "PowerKMeans": lambda k, standardize: PowerKMeans(k, standardize=standardize),
    "EntropyPowerKMeans": lambda k, standardize: EntropyPowerKMeans(k, standardize=standardize),
}


def perforated(rows, share, rng):
    """Holes at random, a value being left in every row."""
    holes = rng.random(rows.shape) < share
    holes[np.arange(len(rows)), rng.integers(rows.shape[1], size=len(rows))] = False
    return np.where(holes, np.nan, rows)


def imputed(rows, k, standardize, seed):
    """Labels of k-means after missing values are replaced by means of the others."""
    mean, scale = np.nanmean(rows, axis=0), np.ones(rows.shape[1])
    if standardize:
        scale = np.nanstd(rows, axis=0)
        scale[scale == 0] = 1.0
    filled = np.where(np.isnan(rows), 0.0, (rows - mean) / scale)
    return ScikitKMeans(k, n_init=8, random_state=seed).fit(filled).labels_


def labels(make, k, standardize, rows, seed, **parameters):
    """Labels of an estimator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = make(k, standardize).set_params(random_state=seed, n_init=8, **parameters)
        return model.fit(rows).labels_


def main(draws):
    print("| set, share missing | imputed means + k-means | " + " | ".join(ESTIMATORS) + " |")
    print("|---|---|" + "---|" * len(ESTIMATORS))
    for name, load, k, standardize in SETS:
        rows = load().data
        whole = {one: labels(make, k, standardize, rows, 0) for one, make in ESTIMATORS.items()}
        complete = imputed(rows, k, standardize, 0)
        for share in SHARES:
            scores = {one: [] for one in ("imputed", *ESTIMATORS)}
            for seed in range(draws):
                holed = perforated(rows, share, np.random.default_rng(seed))
                found = imputed(holed, k, standardize, 0)
                scores["imputed"].append(adjusted_rand_score(complete, found))
                for one, make in ESTIMATORS.items():
                    found = labels(make, k, standardize, holed, 0, missing="partial")
                    scores[one].append(adjusted_rand_score(whole[one], found))
            cells = " | ".join(f"{np.mean(values):.3f}" for values in scores.values())
            print(f"| {name}, {share:.0%} | {cells} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
