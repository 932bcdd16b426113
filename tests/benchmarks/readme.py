"""The numbers of the README: where each comes from, and those that a few minutes measure again.

Run: python tests/benchmarks/readme.py [NAME ...]

Without a NAME it prints the README's table as kept in readme.json, which says for each line the
commit, the machine and the command that measured it. With NAMEs (ewp-2, ewp-1, power, kernel,
mean-shift, gamma) it measures those lines and keeps them. The kernel line needs yale.npz,
isolet.npz and coil20.npz with X and y in the folder data of DASKMM_SHARED.
"""

import json
import os
import platform
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans as ScikitKMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.preprocessing import scale

from daskmm import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    datasets,
)

FILE = Path(__file__).with_name("readme.json")
HEAD = ("what", "daskmm", "scikit-learn `KMeans`, `n_init=8`")


def kept():
    """Return the numbers of the README and of the docs, with where they come from."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def table(lines):
    """Return the table of the README."""
    rows = [HEAD, ("---",) * 3, *([one["what"], *one["cells"]] for one in lines.values())]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return text.replace("| --- | --- | --- |", "|---|---|---|").replace("|  |", "| |")


def drawn(make, *sizes, n=5, **options):
    for seed in range(n):
        yield seed, *(a.compute() for a in make(*sizes, random_state=seed, **options))


def information(models, draws):
    """Return the mean NMI of each model over draws."""
    found = [
        [normalized_mutual_info_score(y, m(random_state=seed).fit(X).labels_) for m in models]
        for seed, X, y in draws
    ]
    return np.mean(found, axis=0)


def short(value, digits=3):
    return f"{value:.{digits}f}".removeprefix("0" if value < 1 else "")


def ewp(make, k, prepare, **settings):
    models = (partial(EntropyPowerKMeans, k, **settings), partial(ScikitKMeans, k, n_init=8))
    return information(models, ((seed, prepare(X), y) for seed, X, y in drawn(make)))


def ewp_2():
    ours, theirs = ewp(datasets.make_ewp_simulation2, 20, scale)
    return f"**{short(ours)}** (EWP, defaults)", short(theirs)


def ewp_1():
    ours, theirs = ewp(datasets.make_ewp_simulation1, 100, np.asarray, standardize=False)
    return f"**{short(ours)}** (EWP, `standardize=False`)", short(theirs)


def power():
    found = []
    for seed, X, _ in drawn(datasets.make_power_kmeans_blobs, 10_000, 100, 10, n=10):
        plain = {"standardize": False, "random_state": seed}
        one = ScikitKMeans(100, n_init=1, random_state=seed).fit(X).inertia_
        usual, single, best = (
            model.fit(X).inertia_ / one
            for model in (
                PowerKMeans(100, **plain),
                PowerKMeans(100, n_init=1, **plain),
                ScikitKMeans(100, n_init=8, random_state=seed),
            )
        )
        found.append((usual, single, best))
    usual, single, best = np.mean(found, axis=0)
    ours = f"{short(usual)} (power k-means); {short(single)} (one start)"
    return ours, short(best)


def kernel():
    # Kernel k-means is the limit s = −∞.
    hard = {"s0": -1e12, "eta": 1.0, "n_init": 4, "polish": False}
    ours, theirs = [], []
    for name in ("yale", "isolet", "coil20"):
        with np.load(Path(os.environ["DASKMM_SHARED"]) / "data" / f"{name}.npz") as file:
            X, y = scale(file["X"].astype(float)), file["y"]
        k = len(np.unique(y))
        models = (partial(KernelPowerKMeans, k), partial(KernelPowerKMeans, k, **hard))
        one, other = information(models, ((seed, X, y) for seed in range(10)))
        ours.append(short(one))
        theirs.append(short(other))
    peer = f"kernel k-means from the same starts, best of 4: {' / '.join(theirs)}"
    return f"**{' / '.join(ours)}**", peer


def mean_shift():
    cases = {2: (datasets.make_wbms_toy,)}
    cases |= {k: (datasets.make_wbms_simulation1, 20 * k, k) for k in (5, 10)}
    scores, right = [], 0
    for k, (make, *sizes) in cases.items():
        found = []
        for seed, X, y in drawn(make, *sizes):
            model = WeightedBlurringMeanShift(random_state=seed).fit(X)
            found.append(adjusted_rand_score(y, model.labels_))
            right += model.n_clusters_ == k
        scores.append(short(np.mean(found), 2))
    ours = f"{', '.join(scores)}, the number of clusters found in {right} of 15"
    return ours, "`MeanShift` does not weigh features"


def gammas():
    from recovery import gamma  # beside this script, which tests import as a part of a package

    found = []
    for seed in range(10):
        X, y = gamma(15, 20, np.random.default_rng(seed))
        models = (
            PowerKMeans(15, distortion="gamma", n_init=1, random_state=seed),
            KMeans(15, n_init=1, random_state=seed),
        )
        found.append([adjusted_rand_score(y, model.fit(X).labels_) for model in models])
    ours, theirs = np.mean(found, axis=0)
    return f'**{short(ours)}** (`distortion="gamma"`)', f"{short(theirs)} (squared distances)"


MEASURED = {"ewp-2": ewp_2, "ewp-1": ewp_1, "power": power, "kernel": kernel}
MEASURED |= {"mean-shift": mean_shift, "gamma": gammas}


def machine():
    """Return the name of the processor, and how many of its cores measured."""
    models = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x]
    return f"{models[0].split(':')[1].strip() if models else platform.machine()}, two cores"


def main(names):
    all_of = kept()
    lines = all_of["table"]
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
    )
    for name in names:
        with warnings.catch_warnings(action="ignore"):
            lines[name]["cells"] = list(MEASURED[name]())
        lines[name] |= {"commit": commit.stdout.strip(), "machine": machine()}
        lines[name]["command"] = f"python tests/benchmarks/readme.py {name}"
        FILE.write_text(json.dumps(all_of, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(table(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
