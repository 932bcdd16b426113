"""Streams: each row visited once, beside a full fit and MiniBatchKMeans; and mixtures that jump.

Run: python tests/benchmarks/streams.py [rows] [draws] [block]

Rows of a mixture of 20 clusters of unequal sizes arrive in blocks. `partial_fit` of KMeans and
PowerKMeans takes the blocks, scikit-learn's MiniBatchKMeans.partial_fit the same blocks, whole or
in batches of 1,024 rows. All costs are those of all rows, relative to a full fit (PowerKMeans on
all rows). With a half-life, the mixture stands still, or all its centres are drawn anew half way.
Prints Markdown.
"""

import sys
import time
import warnings

import numpy as np
from sklearn.cluster import MiniBatchKMeans

from daskmm import KMeans, PowerKMeans
from daskmm.metrics import adjusted_rand_score

K, P = 20, 8
HALF_LIFE_BLOCKS = 10


class Mixture:
    """Clusters of unequal sizes with Gaussian noise, their centres ``spread`` times as wide."""

    def __init__(self, seed, spread=2):
        rng = np.random.default_rng(seed)
        self.centers = rng.normal(size=(K, P)).astype(np.float32) * spread
        self.shares = rng.dirichlet(np.full(K, 5.0))

    def rows(self, n, rng):
        truth = rng.choice(K, n, p=self.shares)
        return self.centers[truth] + rng.standard_normal((n, P), dtype=np.float32), truth


def cost(model, X):
    return -model.score(X)


def streamed(model, blocks, batch=None):
    """Visit the blocks once; return seconds."""
    start = time.perf_counter()
    for block in blocks:
        for first in range(0, len(block), batch or len(block)):
            model.partial_fit(block[first : first + (batch or len(block))])
    return time.perf_counter() - start


def still(rows, draws, block):
    peers = {
        "PowerKMeans": (lambda seed: PowerKMeans(K, random_state=seed), None),
        "KMeans": (lambda seed: KMeans(K, random_state=seed), None),
        "MiniBatchKMeans, blocks": (lambda seed: MiniBatchKMeans(K, random_state=seed), None),
        "MiniBatchKMeans, 1,024": (lambda seed: MiniBatchKMeans(K, random_state=seed), 1024),
    }
    print(f"\n{rows:,} rows in blocks of {block:,}: cost over the full fit's, and seconds\n")
    print("| draw | " + " | ".join(peers) + " | full fit |\n|---|" + "---|" * (len(peers) + 1))
    for seed in range(draws):
        X = np.concatenate(
            [
                Mixture(seed).rows(min(block, rows - first), np.random.default_rng((seed, first)))[
                    0
                ]
                for first in range(0, rows, block)
            ]
        )
        blocks = [X[first : first + block] for first in range(0, rows, block)]
        start = time.perf_counter()
        whole = PowerKMeans(K, random_state=seed).fit(X)
        seconds = time.perf_counter() - start
        cells = []
        for make, batch in peers.values():
            model = make(seed)
            taken = streamed(model, blocks, batch)
            cells.append(f"{cost(model, X) / whole.inertia_:.5f}, {taken:.1f} s")
        print(f"| {seed} | " + " | ".join(cells) + f" | {seconds:.1f} s |", flush=True)


def jumping(draws, block, spread):
    """A jump after five half-lives; ARI on new rows after one and two more; and no jump."""
    half = HALF_LIFE_BLOCKS
    print(f"\nHalf-life of {half} blocks of {block:,} rows, centres of sd {spread}\n")
    print("| draw | ARI before | just after | one half-life | two | ideal | cost, no jump |")
    print("|---|---|---|---|---|---|---|")
    for seed in range(draws):
        before, after = Mixture(seed, spread), Mixture(1000 + seed, spread)
        rng = np.random.default_rng(seed)
        model = PowerKMeans(K, random_state=seed, forget=half * block)
        scores = []

        def score(mixture, model=model, rng=rng, scores=scores):
            X, truth = mixture.rows(20_000, rng)
            scores.append(f"{adjusted_rand_score(truth, model.predict(X)):.3f}")

        for _ in range(5 * half):
            model.partial_fit(before.rows(block, rng)[0])
        score(before)
        X = np.concatenate([before.rows(block, rng)[0] for _ in range(20)])
        relative = cost(model, X) / PowerKMeans(K, random_state=seed).fit(X).inertia_
        for call in range(2 * half):
            model.partial_fit(after.rows(block, rng)[0])
            if call + 1 in (1, half, 2 * half):
                score(after)
        X, truth = after.rows(20_000, rng)
        ideal = adjusted_rand_score(truth, PowerKMeans(K, random_state=seed).fit(X).labels_)
        print(f"| {seed} | {' | '.join(scores)} | {ideal:.3f} | {relative:.4f} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rows, draws, block = (
        int(arg) for arg in [*sys.argv[1:], *(10**7, 10, 20_000)[len(sys.argv) - 1 :]]
    )
    still(rows, draws, block)
    for spread in (2, 3):
        jumping(draws, block // 10, spread)
