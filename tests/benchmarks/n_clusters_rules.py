"""Numbers of clusters that ``n_clusters="auto"`` finds, beside those that data were made of.

Run: python tests/benchmarks/n_clusters_rules.py [kinds] [shapes] [real] [seed=10]

Prints Markdown: mixtures of six kinds with 1 to 30 clusters; single clusters of ten shapes; real
tables (of scikit-learn, and from the folder data/ of DASKMM_SHARED) beside their numbers of labels.
Everything by default. Constants of the rule were tuned with seeds 0 to 9, which are not to be
reported.
"""

import sys
import time

import numpy as np
from choices import real_sets

from daskmm.selection import choose_n_clusters

NUMBERS = [1, 2, 3, 5, 8, 15, 20, 30]
DRAWS, P = 16, 10
# Rows per cluster at least; of unequal clusters on average, so that the smallest has some dozens.
LEAST, LEAST_UNEQUAL = 50, 300


def centers_apart(k, p, apart, rng):
    """Draw centres, the nearest two of which are so far apart."""
    centers = rng.normal(size=(k, p))
    if k > 1:
        distances = np.linalg.norm(centers[:, None] - centers, axis=2)[~np.eye(k, dtype=bool)]
        centers *= apart / distances.min()
    return centers


def round_clusters(k, n, rng, p=P, apart=6.0):
    return centers_apart(k, p, apart, rng)[rng.integers(k, size=n)] + rng.normal(size=(n, p))


def elliptical(k, n, rng):
    """Standard deviations of .2 to 3 along axes of each cluster's own; 18 between centres."""
    truth, rows = rng.integers(k, size=n), rng.normal(size=(n, P))
    for cluster in range(k):
        turn = np.linalg.qr(rng.normal(size=(P, P)))[0]
        spread = np.exp(rng.uniform(np.log(0.2), np.log(3), P))
        rows[truth == cluster] = rows[truth == cluster] * spread @ turn
    return centers_apart(k, P, 18.0, rng)[truth] + rows


def unequal(k, n, rng):
    sizes = np.geomspace(1, 50, k) if k > 1 else np.ones(1)
    truth = rng.choice(k, size=n, p=sizes / sizes.sum())
    return centers_apart(k, P, 6.0, rng)[truth] + rng.normal(size=(n, P))


def heavy_tails(k, n, rng):
    return centers_apart(k, P, 8.0, rng)[rng.integers(k, size=n)] + rng.standard_t(3, size=(n, P))


def overlapping(k, n, rng):
    return round_clusters(k, n, rng, apart=3.5)


def half_noise(k, n, rng):
    return np.column_stack([round_clusters(k, n, rng, P // 2), rng.normal(size=(n, P // 2))])


KINDS = {
    "round, 6 standard deviations apart": round_clusters,
    "elliptical": elliptical,
    "unequal, 1:50": unequal,
    "heavy tails (t, 3 degrees of freedom)": heavy_tails,
    "overlapping, 3.5 standard deviations apart": overlapping,
    "half of the features noise": half_noise,
}


def show(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def kinds(seed):
    show("mixture", "exact", "misses (made of → found, rows)", "seconds, mean and longest")
    show(*["---"] * 4)
    hits = 0
    for number, (name, make) in enumerate(KINDS.items()):
        misses, seconds = [], []
        for draw in range(DRAWS):
            rng = np.random.default_rng([seed, number, draw])
            k = NUMBERS[draw % len(NUMBERS)]
            least = (LEAST_UNEQUAL if make is unequal else LEAST) * k
            n = int(np.exp(rng.uniform(np.log(max(500, least)), np.log(100_000))))
            rows = make(k, n, rng)
            began = time.process_time()
            found = choose_n_clusters(rows, random_state=seed).n_clusters
            seconds.append(time.process_time() - began)
            misses += [f"{k} → {found} ({n:,})"] if found != k else []
        hits += DRAWS - len(misses)
        taken = f"{np.mean(seconds):.1f}, {max(seconds):.1f}"
        show(name, f"{DRAWS - len(misses)} of {DRAWS}", ", ".join(misses), taken)
    show("all", f"{hits} of {DRAWS * len(KINDS)}", "", "")


def single_shapes(n, p, rng):
    def normal():
        return rng.normal(size=(n, p))

    ball, elongated, bent = normal(), normal(), normal()
    ball *= rng.uniform(size=(n, 1)) ** (1 / p) / np.linalg.norm(ball, axis=1, keepdims=True)
    elongated[:, 0] *= 30
    bent[:, 0] = bent[:, 1] ** 2 + 0.5 * bent[:, 0]
    return {
        "normal": normal(),
        "t, 2 degrees": rng.standard_t(2, size=(n, p)),
        "cube": rng.uniform(size=(n, p)),
        "ball": ball,
        "elongated 30:1": elongated @ np.linalg.qr(rng.normal(size=(p, p)))[0],
        "exponential": rng.exponential(size=(n, p)),
        "lognormal": np.exp(normal()),
        "correlated": normal() @ rng.normal(size=(p, p)),
        "Laplace": rng.laplace(size=(n, p)),
        "bent": bent,
    }


def shapes(seed):
    features, draws = (2, 5, 10, 30, 100), 2
    show("one cluster", *(f"p={p}" for p in features))
    show(*["---"] * (len(features) + 1))
    found = {}
    for p in features:
        for draw in range(draws):
            rng = np.random.default_rng([seed, p, draw])
            n = int(np.exp(rng.uniform(np.log(500), np.log(20_000))))
            for name, rows in single_shapes(n, p, rng).items():
                number = choose_n_clusters(rows, random_state=seed).n_clusters
                found.setdefault(name, {}).setdefault(p, []).append(number)
    for name, of in found.items():
        show(name, *(", ".join(map(str, of[p])) for p in features))
    numbers = [number for of in found.values() for each in of.values() for number in each]
    print(f"\nOne: {numbers.count(1)} of {len(numbers)}.")


def real(seed):
    show("table", "labels", "as it is", "standardised")
    show(*["---"] * 4)
    for name, X, y in real_sets():
        both = [
            choose_n_clusters(X, standardize=scale, random_state=seed).n_clusters
            for scale in (False, True)
        ]
        show(name, len(np.unique(y)), *both)


SECTIONS = {"kinds": kinds, "shapes": shapes, "real": real}

if __name__ == "__main__":
    options = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
    for section in [word for word in sys.argv[1:] if "=" not in word] or SECTIONS:
        print(f"\n## {section}\n")
        SECTIONS[section](int(options.get("seed", 10)))
