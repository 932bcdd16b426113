"""Largest size and cost of clusters with `max_cluster_size`, relative to those without it.

Run: python tests/benchmarks/bounded_sizes.py [--file X.npy --clusters K]

Sizes are divided by the mean size, and costs and processor time by those of the same fit without a
bound. The variation is the standard deviation of the sizes. The data are scikit-learn's digits, its
flower and temple as pixels, rows half of which are in one of six groups, and a file of embeddings
if one is given.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits, load_sample_image
from sklearn.exceptions import ConvergenceWarning

from daskmm import KMeans

BOUNDS = (2.0, 1.5, 1.2)


def pixels(name):
    """20,000 pixels of a photograph: their colours, and where they are."""
    image = load_sample_image(name).astype(np.float32)
    y, x = np.indices(image.shape[:2], np.float32)
    rows = np.dstack([image, x, y]).reshape(-1, 5)
    return rows[np.random.default_rng(0).choice(len(rows), 20_000, replace=False)]


def one_large_group():
    """Rows of six groups; half of them are in one."""
    rng = np.random.default_rng(0)
    shares = (0.5, *[0.1] * 5)
    places = 6.0 * rng.normal(size=(6, 10))
    return places[rng.choice(6, 6000, p=shares)] + rng.normal(size=(6000, 10))


def fitted(rows, k, bound, settings):
    """Return a fit, and the processor time that it took."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # unmet bounds are what is shown
        model = KMeans(k, n_init=1, max_cluster_size=bound, random_state=0, **settings).fit(rows)
    return model, time.process_time() - began


def variation(model):
    """Return the standard deviation of the sizes relative to their mean."""
    return model.cluster_sizes_.std() / model.cluster_sizes_.mean()


def compare(name, rows, k, **settings):
    """Print one line per bound."""
    free, seconds = fitted(rows, k, None, settings)
    mean = len(rows) / k
    print(
        f"{name}, {len(rows):,} × {rows.shape[1]}, k = {k}: {free.cluster_sizes_.max() / mean:.2f}"
        f", variation {variation(free):.2f}"
    )
    for bound in BOUNDS:
        model, own = fitted(rows, k, bound, settings)
        largest, cost = model.cluster_sizes_.max() / mean, model.inertia_ / free.inertia_
        passes = model.n_passes_ - free.n_passes_
        print(
            f"  at most {bound}: {largest:.2f}, variation {variation(model):.2f}, "
            f"cost {cost:.4f}, {passes} more passes, time {own / seconds:.1f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--file", help="embeddings as npy")
    parser.add_argument("--clusters", type=int, default=979)
    given = parser.parse_args()
    compare("digits", load_digits().data, 40)
    compare("digits, not standardised", load_digits().data, 40, standardize=False)
    compare("flower", pixels("flower.jpg"), 256)
    compare("temple", pixels("china.jpg"), 256)
    compare("one large group", one_large_group(), 6)
    if given.file:
        rows = np.load(given.file)
        compare("a third of the embeddings", rows[:: len(rows) // 20_000], 200)
        compare("embeddings", rows, given.clusters)


if __name__ == "__main__":
    main()
