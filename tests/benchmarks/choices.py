"""Choices without labels, judged by labels that they do not see, or by how data were made.

Run: python tests/benchmarks/choices.py [simulations] [real] [noise] [numbers] [cost]

Prints Markdown: λ on fresh draws of the papers' simulations; λ on real data beside every fixed
multiple of the variance and k-means; what is said of noise; numbers of clusters beside those of
the silhouette and the gap statistic; and what a choice costs. Real data are read from the folder
data/ of DASKMM_SHARED. Everything by default.
"""

import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import sklearn.cluster
import sklearn.datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import normalized_mutual_info_score

from daskmm import EntropyPowerKMeans
from daskmm.datasets import make_ewp_simulation1, make_ewp_simulation2
from daskmm.lam_path import MULTIPLES

SHARED = Path(os.environ.get("DASKMM_SHARED", Path(__file__).parents[3] / "shared"))
DRAWS = range(100, 105)
SEEDS = range(3)
# Numbers of a table that count as many.
WIDE = 300_000


def standardised(X):
    X = np.asarray(X, dtype=np.float64)
    deviation = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def nmi(truth, model, X, **parameters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = model(len(np.unique(truth)), **parameters).fit(X)
    return normalized_mutual_info_score(truth, fitted.labels_)


def show(*cells):
    print("| " + " | ".join(c if isinstance(c, str) else f"{c:.3f}" for c in cells) + " |")
    sys.stdout.flush()


def head(*cells):
    print()
    show(*cells)
    show(*["---"] * len(cells))


def with_heavy_tails(X, informative, seed):
    noise = np.random.default_rng(seed).standard_t(3, (len(X), X.shape[1] - informative))
    return np.column_stack([X[:, :informative], noise])


def simulations():
    print("\n## λ on fresh draws of the papers' simulations, NMI")
    head("set", *(f"draw {i + 1}" for i in range(len(DRAWS))), "mean", "k-means")
    cases = {
        "simulation 1, 1,000 rows, raw": (make_ewp_simulation1, 1000, 100, False, False),
        "simulation 1, 5,000 rows, raw": (make_ewp_simulation1, 5000, 100, False, False),
        "simulation 1, 5,000 rows, z-scored": (make_ewp_simulation1, 5000, 100, True, False),
    }
    for k in (20, 50):
        rows = 100 * k
        for tails in (False, True):
            noise = ", t3 noise" if tails else ""
            for z in (False, True):
                name = f"simulation 2, k={k}{noise}, {'z-scored' if z else 'raw'}"
                cases[name] = (make_ewp_simulation2, rows, k, z, tails)
    for name, (make, rows, k, z, tails) in cases.items():
        found, plain = [], []
        for draw in DRAWS:
            X, y = (a.compute() for a in make(rows, k, random_state=draw))
            X = with_heavy_tails(X, 5, draw) if tails else X
            found.append(nmi(y, EntropyPowerKMeans, X, standardize=z, random_state=draw))
            coordinates = standardised(X) if z else X
            plain.append(nmi(y, sklearn.cluster.KMeans, coordinates, random_state=draw))
        show(name, *found, np.mean(found), np.mean(plain))


def real_sets():
    loaders = {"iris": "iris", "wine": "wine", "wdbc": "breast_cancer", "digits": "digits"}
    for name, loader in loaders.items():
        yield name, *getattr(sklearn.datasets, f"load_{loader}")(return_X_y=True)
    for path in sorted((SHARED / "data").glob("*.npz")):
        with np.load(path) as data:
            yield path.stem, data["X"].astype(np.float64), data["y"].ravel()


def real():
    print("\n## λ on real data, z-scored, mean NMI of three seeds")
    multiples = [f"{c}*variance" if np.isfinite(c) else np.inf for c in MULTIPLES]
    names = [*(f"c={c}" for c in MULTIPLES), "chosen", "k-means", "chosen - k-means"]
    head("set", *names, "chosen λ/V")
    rows = []
    for name, X, y in real_sets():
        scores, lams = [], []
        for seed in SEEDS:
            # Very wide data take long; one start tells the multiples apart as well as eight.
            starts = {"n_init": 1 if X.size > WIDE else 8, "random_state": seed}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = EntropyPowerKMeans(len(np.unique(y)), **starts).fit(X)
            chosen = normalized_mutual_info_score(y, model.labels_)
            fixed = [
                # The same λ makes the same fit.
                chosen
                if index == model.lam_path_.chosen
                else nmi(y, EntropyPowerKMeans, X, lam=lam, **starts)
                for index, lam in enumerate(multiples)
            ]
            lams.append(f"{model.lam_path_.lam:.2g}")
            plain = nmi(y, sklearn.cluster.KMeans, standardised(X), **starts)
            scores.append([*fixed, chosen, plain, chosen - plain])
        rows.append(np.mean(scores, axis=0))
        show(name, *rows[-1], ", ".join(lams))
    show("mean", *np.mean(rows, axis=0), "")
    show("worst", *[""] * (len(names) - 1), min(row[-1] for row in rows), "")


SECTIONS = {"simulations": simulations, "real": real}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        began = time.perf_counter()
        SECTIONS[section]()
        print(f"\n({time.perf_counter() - began:.0f} s)")
