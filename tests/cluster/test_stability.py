"""Stability of clusters under resampling."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from _support import ESTIMATORS, blobs, quick
from scipy.sparse import csr_array

from daskmm import KMeans, load

X, _ = blobs()


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_separated_clusters_are_stable(cls):
    model = quick(cls, n_init=4).fit(X)
    model.bootstrap(X, n_bootstraps=3)
    assert model.stability_.min() > 0.9


def test_a_cluster_cut_in_two_is_less_stable_than_a_separated_one(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.vstack([rng.normal(size=(400, 2)), rng.normal(size=(200, 2)) + 15])
    model = KMeans(3, standardize=False, random_state=0).fit(rows)
    model = model.bootstrap(rows, n_bootstraps=10)
    apart = model.predict([[15.0, 15.0]])[0]
    assert model.stability_[apart] == 1.0
    assert np.delete(model.stability_, apart).max() < 0.9
    np.testing.assert_array_equal(model.summary_["cluster_stability"], model.stability_)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").stability_, model.stability_)
    assert not hasattr(model.fit(rows), "stability_")


def test_chunks_do_not_matter():
    model = quick(KMeans).fit(X)
    expected = model.bootstrap(X, n_bootstraps=2, sample_size=100).stability_
    lazy = da.from_array(X, chunks=(70, -1))
    found = model.bootstrap(lazy, n_bootstraps=2, sample_size=100).stability_
    np.testing.assert_array_equal(found, expected)
    frame = pd.DataFrame(X, columns=list("abcde"))
    named = quick(KMeans).fit(frame)
    np.testing.assert_array_equal(
        named.bootstrap(frame, n_bootstraps=2, sample_size=100).stability_, expected
    )


def test_mixed_and_sparse_rows_are_resampled_too():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=300)
    frame = pd.DataFrame(
        {"size": 5.0 * truth + rng.normal(size=300), "kind": np.array(["a", "b"])[truth]}
    )
    model = KMeans(2, distortion="mixed", random_state=0).fit(frame)
    lazy = dd.from_pandas(frame, npartitions=3)
    for rows in (frame, lazy):
        assert model.bootstrap(rows, n_bootstraps=3).stability_.min() > 0.9
    sparse = KMeans(4, standardize=False, random_state=0).fit(csr_array(X))
    assert sparse.bootstrap(csr_array(X), n_bootstraps=3).stability_.min() > 0.9


def test_a_bound_in_rows_is_that_share_of_the_rows_of_resamples():
    rows = np.exp(0.6 * np.random.default_rng(3).normal(size=(2000, 3)))
    settings = {"n_clusters": 8, "random_state": 0}
    of_rows = KMeans(**settings, max_cluster_size=300).fit(rows)
    of_mean = KMeans(**settings, max_cluster_size=1.2).fit(rows)
    np.testing.assert_array_equal(of_rows.labels_, of_mean.labels_)
    few = {"n_bootstraps": 2, "sample_size": 500}
    found = [model.bootstrap(rows, **few).stability_ for model in (of_rows, of_mean)]
    np.testing.assert_array_equal(*found)
