"""The papers' peers: each finds what its own paper says that it finds."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from papers import peers

X, Y = make_blobs(120, 2, centers=[[0, 0], [9, 0], [0, 9]], cluster_std=0.5, random_state=0)
NOISY = np.hstack([X, 2.0 * np.random.default_rng(0).normal(size=(120, 10))])
# A row of each cluster.
FIRST = [int(np.flatnonzero(j == Y)[0]) for j in range(3)]


@pytest.mark.parametrize(
    "cluster",
    [
        lambda rows: peers.g_means(rows),
        lambda rows: peers.gap_k_means(rows, 0),
        lambda rows: peers.dp_means(rows, 3),
    ],
    ids=["G-means", "gap statistic", "DP-means"],
)
def test_the_number_of_clusters_is_found(cluster):
    assert adjusted_rand_score(Y, peers.Peer(cluster).fit(X).labels_) > 0.9


def test_robust_continuous_clustering_joins_neighbours():
    rows, truth = make_blobs(120, 10, centers=3, random_state=0)
    found = peers.robust_continuous(rows - rows.mean(axis=0))
    assert adjusted_rand_score(truth, found) == 1.0


@pytest.mark.parametrize(
    "cluster",
    [
        lambda rows: peers.wk_means(rows, rows[FIRST], 2.0),
        lambda rows: peers.sparse_k_means(rows, rows[FIRST], 1.4),
    ],
    ids=["WK-means", "sparse k-means"],
)
def test_features_are_weighed(cluster):
    assert adjusted_rand_score(Y, cluster(NOISY)) > 0.9


def test_weights_of_sparse_k_means_obey_both_bounds():
    weights = peers._bounded(np.array([4.0, 2.0, 1.0, 0.0]), 1.3)
    assert np.linalg.norm(weights) == pytest.approx(1.0)
    assert weights.sum() == pytest.approx(1.3)
    assert weights[3] == 0.0
