"""Compare cost and processor time of fits to real rows with exchanges of clusters and without.

Run: python tests/benchmarks/exchanges.py [--file X.npy]

Rows are handwritten digits, the colours and the 6 × 6 patches of an image (all from scikit-learn),
and embeddings if a file of them is given (see `vectors.py`). Costs and seconds are means over three
seeds, relative to one start without exchanges.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits, load_sample_image

from daskmm import KMeans, PowerKMeans
from daskmm.kmeans import sample_annealing
from daskmm.kmeans.exchange import with_exchanged_clusters

SEEDS = range(3)


def tables(path):
    """Yield the name of each table, its rows and its number of clusters."""
    yield "digits", load_digits().data, 50
    yield "digits", load_digits().data, 100
    image = load_sample_image("china.jpg").astype(np.float32)
    yield "colours", image.reshape(-1, 3)[::4], 400
    windows = np.lib.stride_tricks.sliding_window_view(image, (6, 6), (0, 1))
    patches = windows[::3, ::3].reshape(-1, 108).copy()
    yield "patches", patches, 100
    yield "patches", patches, 300
    if path:
        yield "embeddings", np.load(path)[:20_000], 500


def fitted(estimator, rows, exchanges):
    """Return mean cost and processor time of fits with exchanges or without."""
    sample_annealing.with_exchanged_clusters = (
        with_exchanged_clusters if exchanges else lambda *arguments: None
    )
    costs, began = [], time.process_time()
    for seed in SEEDS:
        costs.append(estimator.set_params(random_state=seed).fit(rows).inertia_)
    return np.array([np.mean(costs), (time.process_time() - began) / len(SEEDS)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--file", help="embeddings as npy")
    warnings.simplefilter("ignore")
    KMeans(3).fit(np.random.default_rng(0).normal(size=(100, 2)))
    print("| rows | one start | 8 starts | one start with exchanges | defaults | PowerKMeans |")
    print("|---|---|---|---|---|---|")
    for name, rows, k in tables(parser.parse_args().file):
        cells = []
        for cls, n_init, exchanges in (
            (KMeans, 1, False),
            (KMeans, 8, False),
            (KMeans, 1, True),
            (KMeans, "auto", True),
            (PowerKMeans, "auto", True),
        ):
            cells.append(fitted(cls(k, n_init=n_init, standardize=False), rows, exchanges))
        size = f"{name}, {len(rows):,} × {rows.shape[1]}, k = {k}"
        ratios = np.array(cells) / cells[0]
        shown = [f"{cost:.4f}; {seconds:.1f}" for cost, seconds in ratios]
        print(f"| {size} | {cells[0][1]:.2f} s | {' | '.join(shown[1:])} |", flush=True)


if __name__ == "__main__":
    main()
