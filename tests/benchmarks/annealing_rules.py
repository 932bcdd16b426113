"""First powers and cooling factors for power k-means, compared by mean rank over data sets.

Run: python tests/benchmarks/annealing_rules.py [--shared DIR] [--out TABLE.md]

Every rule anneals the same eight k-means++ starts of each set, all rows, and ends with hard
steps. Costs are relative to the lowest that any rule found there: the mean over the starts (what
one start gives) and the smallest (what the best of eight gives). "lloyd" takes hard steps only;
"both" is the best of four annealed and four hard starts.
"""

import argparse
import pathlib
import time
import warnings

import numpy as np
from scipy.stats import rankdata
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from daskmm import PowerKMeans
from daskmm.numerics.annealing import critical_power

SEEDS = 8
RULES = {
    f"{multiple}·s_crit, eta {eta}": (multiple, eta)
    for multiple in (1.25, 2, 4, 8)
    for eta in (1.05, 1.1, 1.2)
}


def simulated():
    """Name, rows and number of clusters."""
    for index, (k, p, spread) in enumerate(
        [(20, 20, 3.0), (20, 20, 0.6), (50, 2, 8.0), (100, 10, 1.5), (100, 10, 0.8), (30, 50, 0.4)]
    ):
        rng = np.random.default_rng(index)
        for shares in (None, rng.dirichlet(np.ones(k))):
            labels = rng.choice(k, size=4000, p=shares)
            rows = (spread * rng.normal(size=(k, p)))[labels] + rng.normal(size=(4000, p))
            sizes = "equal" if shares is None else "unequal"
            yield f"mixture k={k} p={p} sd {spread} {sizes}", rows, k


def real(shared):
    """The same, z-scored."""
    for name, load in {
        "iris": load_iris,
        "wine": load_wine,
        "wdbc": load_breast_cancer,
        "digits": load_digits,
    }.items():
        X, y = load(return_X_y=True)
        yield name, X, len(np.unique(y))
    for name in ("movement_libras", "isolet", "coil20", "yale", "lung_small", "mammographic"):
        path = pathlib.Path(shared) / "data" / f"{name}.npz"
        if path.exists():
            with np.load(path) as data:
                yield name, data["X"], len(np.unique(data["y"]))


def costs_of(X, k, s0, eta):
    """Cost of each start, and the seconds of all."""
    costs, began = [], time.perf_counter()
    for seed in range(SEEDS):
        model = PowerKMeans(k, s0=s0, eta=eta, n_init=1, sample_size=None, random_state=seed)
        costs.append(model.fit(X).inertia_)
    return np.array(costs), time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    single, best, seconds = {}, {}, {}
    for name, X, k in (*simulated(), *real(arguments.shared)):
        X = np.asarray(X, dtype=np.float64)
        if not name.startswith("mixture"):
            X = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
        critical = critical_power(X - X.mean(axis=0), np.ones(len(X)))
        found = {"lloyd": costs_of(X, k, -1e300, 1.05)}
        for rule, (multiple, eta) in RULES.items():
            found[rule] = costs_of(X, k, min(-1.0, multiple * critical), eta)
        for multiple in (1.25, 2, 4):
            annealed = found[f"{multiple}·s_crit, eta 1.1"]
            found[f"both: {multiple}·s_crit, eta 1.1"] = (
                np.concatenate([annealed[0][:4], found["lloyd"][0][:4]]),
                (annealed[1] + found["lloyd"][1]) / 2,
            )
        lowest = min(costs.min() for costs, _ in found.values())
        for rule, (costs, took) in found.items():
            single.setdefault(rule, []).append(costs.mean() / lowest)
            best.setdefault(rule, []).append(costs.min() / lowest)
            seconds.setdefault(rule, []).append(took)
        print(name, f"s_crit {critical:.1f}", flush=True)
        for rule in found:
            print(f"    {rule}: {single[rule][-1]:.4f} {best[rule][-1]:.4f}", flush=True)
    rules = list(single)
    ranks = [
        rankdata(np.round([table[rule] for rule in rules], 5), axis=0).mean(axis=1)
        for table in (single, best)
    ]
    lines = [
        "| rule | mean cost, one start | rank | mean cost, best of 8 | rank | seconds |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {rule} | {np.mean(single[rule]):.4f} | {ranks[0][i]:.1f} "
        f"| {np.mean(best[rule]):.4f} | {ranks[1][i]:.1f} | {np.sum(seconds[rule]):.0f} |"
        for i, rule in enumerate(rules)
    ]
    print("\n".join(lines))
    if arguments.out:
        pathlib.Path(arguments.out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
