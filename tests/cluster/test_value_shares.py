"""Shares of missing values are counted over all rows, not over a sample."""

import numpy as np
import pandas as pd
import pytest
from _support import blobs

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.report.means import means_of


def table(n_rows):
    """Rows in which one feature is missing by its cluster, another in few rows."""
    X, truth = blobs(n_rows)
    rng = np.random.default_rng(0)
    X[rng.random(n_rows) < np.where(truth == 0, 0.4, 0.01), 0] = np.nan
    X[::997, 1] = np.nan
    return X


def counted(X, labels):
    return pd.DataFrame(X).notna().groupby(labels).mean().to_numpy()


@pytest.mark.in_turn("distortion")
@pytest.mark.parametrize("distortion", ["sqeuclidean", "manhattan", "mixed"])
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans, EntropyPowerKMeans])
def test_shares_and_means_of_a_sampled_fit_are_those_of_all_rows(cls, distortion):
    X = pd.DataFrame(table(30_000)).rename(columns=str)
    own = {"missing": "partial", "distortion": distortion, "sample_size": 2_000, "n_init": 1}
    model = cls(3, random_state=0, **own).fit(X)
    np.testing.assert_allclose(model.value_shares_, counted(X, model.labels_), rtol=1e-12)
    if distortion != "manhattan":
        means = means_of(model, model.cluster_sizes_, None)
        np.testing.assert_allclose(means.overall, X.mean(), rtol=1e-6)


@pytest.mark.parametrize("distortion", ["sqeuclidean", "euclidean", "mixed"])
def test_shares_after_an_update_are_those_of_all_rows(distortion):
    X = pd.DataFrame(table(6_000)).rename(columns=str)
    model = KMeans(3, missing="partial", distortion=distortion, n_init=1, random_state=0)
    model.fit(X[:4000]).partial_fit(X[4000:])
    shares = model.cluster_sizes_ @ model.value_shares_ / model.cluster_sizes_.sum()
    np.testing.assert_allclose(shares, X.notna().mean(), rtol=1e-12)
    if distortion == "euclidean":
        return
    means = (model.cluster_sizes_[:, None] * model.value_shares_ * model.cluster_means_).sum(axis=0)
    np.testing.assert_allclose(means, X.sum(), rtol=1e-6)
