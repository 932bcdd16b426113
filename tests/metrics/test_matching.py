"""Clusters of two labelings, matched."""

import dask.array as da
import numpy as np
import pytest

from daskmm import plot
from daskmm.metrics import match_clusters


def test_the_same_clusters_under_other_numbers_match():
    labels = np.random.default_rng(0).integers(5, size=200)
    renamed = np.array([3, 1, 4, 0, 2])[labels]
    found = match_clusters(labels, da.from_array(renamed, chunks=60))
    np.testing.assert_array_equal(found.jaccard, 1.0)
    np.testing.assert_array_equal(found.second[found.pairs[:, 1]], [3, 1, 4, 0, 2])


def test_jaccard_is_its_definition():
    a, b = np.array([0, 0, 0, 1, 1, 2]), np.array([5, 5, 7, 7, 7, 7])
    found = match_clusters(a, b)
    for (i, j), value in zip(found.pairs, found.jaccard, strict=True):
        one, other = (
            set(np.flatnonzero(a == found.first[i])),
            set(np.flatnonzero(b == found.second[j])),
        )
        assert value == pytest.approx(len(one & other) / len(one | other))
    assert len(found.pairs) == 2
    figure = plot.matching(found)
    assert "1 of 3 clusters have a Jaccard similarity" in figure.get_label()
