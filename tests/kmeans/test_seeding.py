"""Starting centres of greedy k-means++."""

import numpy as np
import pytest

from daskmm.kmeans import seeding
from daskmm.kmeans.seeding import greedy_rows
from daskmm.numerics.distortions import DISTORTIONS


def rows_and(name, n=400):
    rows = np.random.default_rng(0).uniform(0.1, 0.9, (n, 3))
    return rows, DISTORTIONS[name].around(rows.mean(axis=0), rows.var(axis=0))


@pytest.mark.parametrize("name", ["sqeuclidean", "kl", "cosine", "manhattan"])
@pytest.mark.parametrize("trim", [0.0, 0.05])
def test_distances_at_once_give_the_centres_of_a_call_for_each(name, trim, monkeypatch):
    rows, distortion = rows_and(name)
    if name == "cosine":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    at_once = greedy_rows(rows, np.ones(len(rows)), 50, 0, distortion, trim)
    monkeypatch.setattr(seeding, "_FEW_ROWS", 0)
    one_by_one = greedy_rows(rows, np.ones(len(rows)), 50, 0, distortion, trim)
    np.testing.assert_allclose(at_once, one_by_one, rtol=1e-12)


@pytest.mark.parametrize("n_clusters", [4, 16, 50, 150])
def test_few_more_distances_are_computed_than_draws_need(n_clusters, monkeypatch):
    rows, distortion = rows_and("manhattan", 1000)
    computed, distances = [], type(distortion).distances

    def counting(self, tile, centers, feature_weights):
        computed.append(len(centers))
        return distances(self, tile, centers, feature_weights)

    monkeypatch.setattr(type(distortion), "distances", counting)
    greedy_rows(rows, np.ones(len(rows)), n_clusters, 0, distortion)
    draws = n_clusters * (2 + int(np.log(n_clusters)))
    assert sum(computed) <= 2 * draws + 1
