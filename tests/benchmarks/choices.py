"""Choices without labels, judged by labels that they do not see, or by how data were made.

Run: python tests/benchmarks/choices.py [simulations] [real] [noise] [numbers] [distortions] [cost]

Prints Markdown: λ on fresh draws of the papers' simulations; λ on real data beside every fixed
multiple of the variance and k-means; what is said of noise; numbers of clusters beside those of
the silhouette and the gap statistic; the distortion beside squared Euclidean's and the best one;
and what a choice costs. Real data are read from the folder
data/ of DASKMM_SHARED. Everything by default.
"""

import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import recovery
import sklearn.cluster
import sklearn.datasets
import zarr
from out_of_core import Metered
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import normalized_mutual_info_score, silhouette_score
from zarr.storage import LocalStore

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.auto.lam import MULTIPLES
from daskmm.datasets import make_ewp_simulation1, make_ewp_simulation2
from daskmm.selection import choose_distortion, choose_n_clusters

SHARED = Path(os.environ.get("DASKMM_SHARED", Path(__file__).parents[3] / "shared"))
DRAWS = range(100, 105)
SEEDS = range(3)
# Numbers of a table that count as many.
WIDE = 300_000
# Rows of noise and of mixtures.
ROWS = 2000


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


NOISE = {
    "Gaussian": lambda rng, p: rng.normal(size=(ROWS, p)),
    "uniform": lambda rng, p: rng.uniform(size=(ROWS, p)),
    "Student's t, 3 degrees": lambda rng, p: rng.standard_t(3, size=(ROWS, p)),
    "Cauchy": lambda rng, p: rng.standard_cauchy(size=(ROWS, p)),
    "one correlated Gaussian": lambda rng, p: rng.normal(size=(ROWS, p)) @ rng.normal(size=(p, p)),
}


def noise():
    print("\n## Noise: draws of which it is said that there are no clusters")
    head("rows", "p=2", "p=10", "p=100", "in all", "least overlap")
    for name, make in NOISE.items():
        counts, overlaps = [], []
        for p in (2, 10, 100):
            paths = [
                choose_n_clusters(make(np.random.default_rng([draw, p]), p), random_state=draw)
                for draw in DRAWS
            ]
            counts.append(sum(path.n_clusters == 1 for path in paths))
            overlaps += [path.overlaps.min() for path in paths]
        share = [f"{count} of {len(DRAWS)}" for count in counts]
        show(name, *share, f"{sum(counts)} of 15", min(overlaps))


def mixture(k, p, n_noise, apart, draw):
    """Unit Gaussian clusters, the nearest centres so far apart, and features of noise."""
    rng = np.random.default_rng([k, p, n_noise, int(10 * apart), draw])
    centers = rng.normal(size=(k, p))
    distances = np.linalg.norm(centers[:, None] - centers, axis=2)[~np.eye(k, dtype=bool)]
    centers *= apart / distances.min()
    rows = centers[rng.integers(k, size=ROWS)] + rng.normal(size=(ROWS, p))
    return np.column_stack([rows, rng.normal(size=(ROWS, n_noise))])


def by_gap_and_silhouette(X, draw):
    """Numbers that the gap statistic and the silhouette prefer, of 2 to 25."""
    numbers = range(2, 26)
    rng = np.random.default_rng(draw)
    box = X.min(axis=0) + rng.uniform(size=(2, *X.shape)) * np.ptp(X, axis=0)
    some = rng.choice(len(X), 500, replace=False)
    gaps, errors, widths = [], [], []
    for k in numbers:
        peer = sklearn.cluster.KMeans(k, n_init=2, max_iter=50, random_state=draw)
        peer.fit(X)
        widths.append(silhouette_score(X[some], peer.labels_[some]))
        inertia = peer.inertia_
        references = [np.log(peer.fit(one).inertia_) for one in box]
        gaps.append(np.mean(references) - np.log(inertia))
        errors.append(np.std(references) * np.sqrt(1 + 1 / len(box)))
    settled = [
        k
        for k, gap, following, error in zip(numbers, gaps, gaps[1:], errors[1:], strict=False)
        if gap >= following - error
    ]
    return (settled or [numbers[-1]])[0], numbers[int(np.argmax(widths))]


def numbers():
    print("\n## Numbers of clusters: share exact, and within 15 %, of three draws")
    print("\nCentres of the nearest clusters are 6 (separated), 3.5 (touching) or 2.5 standard")
    print("deviations (overlapping) apart. Gap and silhouette see the first draw only.")
    head("apart", "noise", "p", *(f"k={k}" for k in (3, 5, 10, 20)), "gap, silhouette")
    hits = {}
    for apart in (6.0, 3.5, 2.5):
        for n_noise in (0, 20):
            for p in (5, 20):
                cells, others = [], []
                for k in (3, 5, 10, 20):
                    found = []
                    for draw in range(3):
                        X = mixture(k, p, n_noise, apart, draw)
                        found.append(choose_n_clusters(X, random_state=draw).n_clusters)
                        hits.setdefault(("chosen", apart), []).append((found[-1], k))
                    cells.append(", ".join(map(str, found)))
                    if apart > 3:
                        both = by_gap_and_silhouette(mixture(k, p, n_noise, apart, 0), 0)
                        others.append("{}, {}".format(*both))
                        for name, one in zip(("gap", "silhouette"), both, strict=True):
                            hits.setdefault((name, apart), []).append((one, k))
                show(f"{apart}", f"{n_noise}", f"{p}", *cells, "; ".join(others))
    head("rule", "apart", "exact", "within 15 %")
    for (name, apart), pairs in hits.items():
        found, true = np.array(pairs).T
        close = np.abs(found - true) <= 0.15 * true
        show(name, f"{apart}", (found == true).mean(), close.mean())


def gaussian(k, p, rng):
    truth = rng.integers(k, size=recovery.N_ROWS)
    return 1.2 * rng.normal(size=(k, p))[truth] + rng.normal(size=(len(truth), p)), truth


def distortions():
    print("\n## The distortion, mean adjusted Rand index of four fresh draws")
    head("mixture", "k, p", "sqeuclidean", "the chosen one", "the best one", "chosen")
    mixtures = {name: make for name, (make, _) in recovery.MIXTURES.items()}
    mixtures |= {"heavy tails": recovery.heavy_tails, "Gaussian": gaussian}
    rows = []
    for k, p in recovery.SHAPES[:2]:
        for name, make in mixtures.items():
            scores, names = [], []
            for draw in DRAWS[:4]:
                X, truth = make(k, p, np.random.default_rng(draw))
                choice = choose_distortion(X, k, random_state=draw)
                names.append(choice.distortion)
                of = {
                    one: recovery.found(PowerKMeans, one, X, truth, k, draw, n_init=4)
                    for one in choice.distortions
                }
                scores.append([of["sqeuclidean"], of[names[-1]], max(of.values())])
            rows.append(np.mean(scores, axis=0))
            show(name, f"{k}, {p}", *rows[-1], ", ".join(names))
    show("mean", "", *np.mean(rows, axis=0), "")


def cost():
    print("\n## What choices cost: a million rows, p=50, k=20, float32, out of core")
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        centers = rng.normal(size=(20, 50)) * 1.5
        path = Path(folder) / "rows"
        store = zarr.create_array(
            path, shape=(10**6, 50), chunks=(62_500, 50), dtype=np.float32, compressors=None
        )
        for first in range(0, 10**6, 62_500):
            truth = rng.integers(20, size=62_500)
            store[first : first + 62_500] = centers[truth] + rng.normal(size=(62_500, 50))
        os.sync()
        stores = {
            "from the page cache": {},
            "from the disk": {"forgotten": True},
            "from a store of 300 MB/s": {"rate": 300e6},
        }
        for name, parameters in stores.items():
            print(f"\n### Read {name}")
            costs_of(zarr.open_array(Metered(LocalStore(path), **parameters), mode="r+"))


def costs_of(store):
    fits = {
        'lam="0.5*variance"': {"lam": "0.5*variance"},
        'lam="auto"': {},
        'lam="0.5*variance", n_clusters="auto"': {"n_clusters": "auto", "lam": "0.5*variance"},
        "k-means": {},
        'k-means, n_clusters="auto"': {"n_clusters": "auto"},
    }
    seconds = {name: [] for name in [*fits, "one reading"]}
    for _ in range(5):
        for name, parameters in fits.items():
            cls = KMeans if name.startswith("k-means") else EntropyPowerKMeans
            began = time.perf_counter()
            model = cls(**{"n_clusters": 20, "random_state": 0} | parameters).fit(store)
            seconds[name].append(time.perf_counter() - began)
            if name == "k-means":
                began = time.perf_counter()
                model.score(store)
                seconds["one reading"].append(time.perf_counter() - began)
    head("fit", "seconds (median of five)", "readings")
    reading = np.median(seconds["one reading"])
    for name, taken in seconds.items():
        show(name, np.median(taken), np.median(taken) / reading)


SECTIONS = {
    "simulations": simulations,
    "real": real,
    "noise": noise,
    "numbers": numbers,
    "distortions": distortions,
    "cost": cost,
}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        began = time.perf_counter()
        SECTIONS[section]()
        print(f"\n({time.perf_counter() - began:.0f} s)")
