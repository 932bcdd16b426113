"""Clustering of sparse text: "cosine" beside scikit-learn's KMeans on rows of length 1.

Documents are drawn from topics over words whose frequencies follow Zipf's law, and weighted by
tf-idf. scikit-learn has no cosine distance: on rows of length 1 its squared distances are close to
it, and both results are compared by Σ (1 − cos) to the mean directions of their clusters.

    python tests/benchmarks/sparse_text.py [--rows 20000] [--words 50000] [--clusters 20]
"""

import argparse
import statistics
import time
import warnings

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans as Lloyd
from sklearn.feature_extraction.text import TfidfTransformer

from daskmm import KMeans, PowerKMeans


def documents(n_rows, n_words, n_topics, seed=0, length=120):
    """Return tf-idf rows of length 1, and the topic of each."""
    rng = np.random.default_rng(seed)
    common = 1.0 / np.arange(1, n_words + 1)
    topics = rng.integers(n_topics, size=n_rows)
    rows, columns = [], []
    for topic in range(n_topics):
        liked = common.copy()
        liked[rng.choice(n_words // 5, 300, replace=False)] *= 15
        liked /= liked.sum()
        own = np.flatnonzero(topics == topic)
        lengths = rng.poisson(length, len(own)) + 5
        rows.append(np.repeat(own, lengths))
        columns.append(rng.choice(n_words, lengths.sum(), p=liked))
    at = np.concatenate(rows), np.concatenate(columns)
    # scikit-learn takes indices of 32 bits only.
    at = tuple(index.astype(np.int32) for index in at)
    counts = sp.csr_array((np.ones(len(at[0])), at), shape=(n_rows, n_words))
    return sp.csr_array(TfidfTransformer().fit_transform(counts)), topics


def cost(rows, labels, k):
    """Return the mean of 1 − cos to the mean directions of the clusters; rows have length 1."""
    sums = (sp.csr_array((np.ones(len(labels)), (labels, np.arange(len(labels))))) @ rows).toarray()
    assert len(sums) <= k
    return 1.0 - np.sqrt(np.square(sums).sum(axis=1)).sum() / len(labels)


def main():
    """Print one line per model: medians of interleaved runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--words", type=int, default=50_000)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, truth = documents(asked.rows, asked.words, asked.clusters)
    k = asked.clusters
    models = {
        "scikit-learn KMeans, n_init=1": lambda s: Lloyd(k, n_init=1, random_state=s),
        "scikit-learn KMeans, n_init=8": lambda s: Lloyd(k, n_init=8, random_state=s),
        "daskmm KMeans cosine, n_init=1": lambda s: KMeans(
            k, n_init=1, distortion="cosine", random_state=s
        ),
        "daskmm KMeans cosine": lambda s: KMeans(k, distortion="cosine", random_state=s),
        "daskmm PowerKMeans cosine, n_init=1": lambda s: PowerKMeans(
            k, n_init=1, distortion="cosine", random_state=s
        ),
    }
    found = {name: [] for name in models}
    models["daskmm KMeans cosine, n_init=1"](0).fit(rows[:2000])
    for seed in range(asked.runs):
        for name, make in models.items():
            began = time.perf_counter()
            labels = make(seed).fit(rows).labels_
            found[name].append((cost(rows, labels, k), time.perf_counter() - began))
    print(f"{rows.shape[0]:,} × {rows.shape[1]:,}, {rows.nnz / rows.shape[0]:.0f} words per row")
    print(f"mean of 1 − cos at the true topics: {cost(rows, truth, k):.5f}\n")
    print("| model | 1 − cos, median | seconds, median |\n|---|---|---|")
    for name, runs in found.items():
        costs, seconds = zip(*runs, strict=True)
        print(f"| {name} | {statistics.median(costs):.5f} | {statistics.median(seconds):.2f} |")


if __name__ == "__main__":
    main()
