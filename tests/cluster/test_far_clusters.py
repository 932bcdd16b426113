"""Warnings of clusters of a few far rows."""

import warnings

import numpy as np
import pytest

from daskmm import KMeans


def blobs(n_far, n=3000):
    rng = np.random.default_rng(0)
    X = 12.0 * rng.integers(2, size=(n, 2)) + rng.normal(size=(n, 2))
    X[:n_far] = 500.0 + np.arange(n_far)[:, None]
    return X


def test_a_cluster_of_far_rows_is_told_with_a_remedy():
    model = KMeans(5, random_state=0, standardize=False)
    with pytest.warns(UserWarning, match=r"1 of 5 .* holds 2 of 3,000 rows.*by trim=0.00"):
        model.fit(blobs(2))
    with pytest.warns(UserWarning, match=r"holds 0\.07% of the weight"):
        model.fit(blobs(2), sample_weight=np.full(3000, 1e-4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.bootstrap(blobs(2), n_bootstraps=2)  # the fit has told it


def test_rare_flags_and_small_clusters_are_not_far():
    rng = np.random.default_rng(0)
    flags = np.column_stack([rng.random((5000, 2)) < 0.5, np.zeros(5000)]).astype(float)
    flags[:4] = [0, 0, 1]
    small = blobs(0)
    small[:3] = [24.0, 0.0] + 0.1 * rng.normal(size=(3, 2))  # as far as the others
    for X in (flags, small):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            KMeans(5, random_state=0, standardize=False).fit(X)
