"""Rules for the bandwidth of weighted blurring mean shift, judged by labels they do not see.

Run: python tests/benchmarks/bandwidth_rules.py [OUT.md]

Writes Markdown: for each data set and rule the adjusted Rand index and the number of clusters at
the bandwidth that the rule chooses, on one grid, beside the best on that grid; then the default
model's checks. Real data are read from the folder data/ of DASKMM_SHARED.
"""

import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import dask
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score, silhouette_score

from daskmm.auto.bandwidth import (
    GRID,
    classification_gain,
    follow_bandwidths,
    independent_features,
    preferred,
)
from daskmm.datasets import make_wbms_simulation1, make_wbms_simulation2, make_wbms_toy
from daskmm.mean_shift.blurring import Blurring, blur_rows
from daskmm.numerics.information import resolution

SHARED = Path(os.environ.get("DASKMM_SHARED", Path(__file__).parents[3] / "shared"))
LAM = 0.1
DRAWS = range(100, 105)
OF_SCIKIT_LEARN = {
    "iris": load_iris,
    "wine": load_wine,
    "wdbc": load_breast_cancer,
    "digits (1,000 rows)": load_digits,
}
OF_THE_PAPERS = (
    *("zoo", "appendicitis", "glioma", "lung_small"),
    *("mammographic", "movement_libras", "yale", "orl"),
)


@dataclass
class Followed:
    """What a rule may look at, and the labels by which it is judged."""

    rows: np.ndarray
    truth: np.ndarray
    labels: list
    feature_weights: np.ndarray

    def __post_init__(self):
        self.n_clusters = np.array([len(np.unique(labels)) for labels in self.labels])
        self.ari = np.array([adjusted_rand_score(self.truth, labels) for labels in self.labels])
        self.few = (self.n_clusters >= 2) & (self.n_clusters <= np.sqrt(len(self.rows)))


def standardised(X):
    X = np.asarray(X, dtype=np.float64)
    deviation = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def follow(X, truth):
    rows = standardised(X)
    found = [blur_rows(rows, np.ones(len(rows)), Blurring(float(h), LAM)) for h in GRID]
    return Followed(
        rows,
        truth,
        [one.labels for one in found],
        np.array([one.feature_weights for one in found]),
    )


def best_where_few(path, score):
    return int(np.argmax(np.where(path.few, score, -np.inf)))


def largest_gain(path):
    """daskmm's rule."""
    return most_gain(path, independent_features(path.rows, np.ones(len(path.rows))))


def correlated_gain(path):
    """The same with every feature counted as independent."""
    return most_gain(path, int((np.ptp(path.rows, axis=0) > 0).sum()))


def most_gain(path, n_independent):
    ones = np.ones(len(path.rows))
    resolved = resolution(path.rows, ones)
    gain = [
        classification_gain(path.rows, ones, labels, n_independent, resolved)
        for labels in path.labels
    ]
    return preferred(path.n_clusters, np.array(gain), len(path.rows))


def longest_run(path):
    """The middle of the longest run of equal k, 2 ≤ k ≤ √n."""
    edges = np.flatnonzero(np.diff(path.n_clusters)) + 1
    runs = [run for run in np.split(np.arange(len(GRID)), edges) if path.few[run[0]]]
    longest = max(runs, key=len, default=[len(GRID) - 1])
    return longest[len(longest) // 2]


def most_agreed(path):
    """The partition that agrees best with those of all other bandwidths."""
    agreement = [
        sum(
            adjusted_rand_score(one, other)
            for other, k in zip(path.labels, path.n_clusters, strict=True)
            if k > 1
        )
        for one in path.labels
    ]
    return best_where_few(path, agreement)


def silhouette(path, weighted):
    weights = path.feature_weights if weighted else np.ones_like(path.feature_weights)
    scores = [
        silhouette_score(path.rows * np.sqrt(w), labels) if few else -np.inf
        for w, labels, few in zip(weights, path.labels, path.few, strict=True)
    ]
    return best_where_few(path, scores)


RULES = {
    "information gain (default)": largest_gain,
    "gain, features as independent": correlated_gain,
    "longest run of equal k": longest_run,
    "most agreed with": most_agreed,
    "silhouette": lambda path: silhouette(path, weighted=False),
    "silhouette, weighted": lambda path: silhouette(path, weighted=True),
    "best on the grid (labels)": lambda path: int(np.argmax(path.ari)),
}


def simulated():
    """Name, number of clusters, and a maker of one draw."""
    yield "toy", lambda seed: make_wbms_toy(random_state=seed)
    for k, n, informative, noise in (
        (5, 250, 10, 10),
        (10, 500, 10, 10),
        (20, 1000, 10, 10),
        (5, 100, 5, 15),
        (10, 200, 5, 15),
        (20, 400, 5, 15),
    ):
        name = f"simulation 1, k={k}, n={n}, {informative}+{noise} features"
        yield (
            name,
            lambda seed, a=(n, k, informative, noise): make_wbms_simulation1(*a, random_state=seed),
        )
    name = "simulation 1, k=10, n=500, 10+10 features, std .1"
    yield name, lambda seed: make_wbms_simulation1(cluster_std=0.1, random_state=seed)
    yield (
        "simulation 2, k=10, n=500, 10+90 features",
        lambda seed: make_wbms_simulation2(500, 10, 10, 90, random_state=seed),
    )
    for name, draw in (("normal", "standard_normal"), ("uniform", "random")):
        yield (
            f"{name} noise, n=300, 5 features",
            lambda seed, d=draw: (getattr(np.random.default_rng(seed), d)((300, 5)), np.zeros(300)),
        )


def real():
    for name, load in OF_SCIKIT_LEARN.items():
        X, y = load(return_X_y=True)
        kept = np.random.default_rng(0).permutation(len(X))[:1000]
        yield name, X[kept], y[kept]
    for name in OF_THE_PAPERS:
        with np.load(SHARED / "data" / f"{name}.npz") as data:
            yield name, data["X"], data["y"]


def table(report, names, judged):
    report(f"| data | {' | '.join(RULES)} |")
    report("|---" * (len(RULES) + 1) + "|")
    for name in names:
        report(f"| {name} | {' | '.join(judged(name))} |")


def judge_simulated(report):
    makers = dict(simulated())

    def judged(name):
        paths = []
        for seed in DRAWS:
            X, y = dask.compute(*makers[name](seed), scheduler="synchronous")
            paths.append(follow(X, y))
        for rule in RULES.values():
            chosen = [rule(path) for path in paths]
            ari = [path.ari[i] for path, i in zip(paths, chosen, strict=True)]
            right = sum(
                path.n_clusters[i] == len(np.unique(path.truth))
                for path, i in zip(paths, chosen, strict=True)
            )
            yield f"{np.mean(ari):.2f} ({right}/5)"

    report("\n### Simulated: mean ARI of five draws (k exact)\n")
    table(report, makers, judged)


def judge_real(report):
    sets = {name: (X, y) for name, X, y in real()}

    def judged(name):
        path = follow(*sets[name])
        for rule in RULES.values():
            chosen = rule(path)
            yield f"{path.ari[chosen]:.2f} ({path.n_clusters[chosen]})"

    titled = {f"{name}, k={len(np.unique(y))}": name for name, (_, y) in sets.items()}
    report("\n### Real, z-scored: ARI (k found)\n")
    table(report, titled, lambda title: judged(titled[title]))


def check_defaults(report):
    """The default model: five fresh draws each."""
    report("\n### Defaults (bandwidth and lam automatic, z-scored), five draws\n")
    report("| data | h | ARI | k | weight on the relevant features |")
    report("|---|---|---|---|---|")
    cases = [("toy", 2, lambda seed: make_wbms_toy(random_state=seed))]
    for k, informative, noise in ((5, 10, 10), (10, 10, 10), (5, 5, 15), (10, 5, 15)):
        cases.append(
            (
                f"simulation 1, k={k}, {informative}+{noise}",
                informative,
                lambda seed, a=(50 * k, k, informative, noise): make_wbms_simulation1(
                    *a, random_state=seed
                ),
            )
        )
    for name, relevant, make in cases:
        chosen, fits = [], []
        for seed in DRAWS:
            X, y = dask.compute(*make(seed), scheduler="synchronous")
            rows, ones = standardised(X), np.ones(len(X))
            chosen.append(follow_bandwidths(rows, ones, LAM, "auto", 0).path.bandwidth)
            fits.append((y, blur_rows(rows, ones, Blurring(chosen[-1], LAM))))
        report_fits(report, name, chosen, fits, relevant)
    for informative, noise in ((10, 10), (5, 15)):
        fits = []
        for seed in DRAWS:
            X, y = dask.compute(
                *make_wbms_simulation1(1000, 20, informative, noise, random_state=seed),
                scheduler="synchronous",
            )
            fits.append((y, blur_rows(standardised(X), np.ones(len(X)), Blurring(0.02, LAM))))
        name = f"simulation 1, k=20, {informative}+{noise}, h given"
        report_fits(report, name, [0.02] * len(fits), fits, informative)
    with np.load(SHARED / "data" / "zoo.npz") as data:
        X, y = data["X"], data["y"]
    fit = blur_rows(standardised(X), np.ones(len(X)), Blurring(0.14, 300 / len(X), "reference"))
    report_fits(report, 'zoo, "reference", h and lam given', [0.14], [(y, fit)], X.shape[1])


def report_fits(report, name, chosen, fits, relevant):
    ari = [adjusted_rand_score(y, fit.labels) for y, fit in fits]
    weight = [fit.feature_weights[:relevant].sum() for _, fit in fits]
    columns = (
        ", ".join(f"{h:.3f}" for h in chosen),
        f"{np.mean(ari):.3f} (least {min(ari):.3f})",
        ", ".join(str(len(fit.modes)) for _, fit in fits),
        f"least {min(weight):.3f}",
    )
    report(f"| {name} | {' | '.join(columns)} |")


def main():
    lines = []

    def report(line):
        lines.append(line)
        print(line, flush=True)

    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check_defaults(report)
        judge_real(report)
        judge_simulated(report)
    report(f"\n{time.perf_counter() - began:.0f} s in all.")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
