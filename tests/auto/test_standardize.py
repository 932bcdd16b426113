"""Whether to standardise, chosen without labels."""

import dask.array as da
import numpy as np
import pytest
from _support import CountingSource, blobs
from sklearn.datasets import load_wine
from sklearn.metrics import adjusted_rand_score

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans, load
from daskmm.auto.standardize import ScaleChoice

X, TRUTH = blobs(600, 4, 4, seed=1)
LOUD = np.column_stack([X, 300 * np.random.default_rng(0).normal(size=(600, 2))])


@pytest.mark.parametrize(
    ("before", "after", "standardize"),
    [(5.0, 5.3, False), (5.0, 5.5, True), (0.0, 0.09, False), (0.0, 0.2, True), (3.0, 1.0, False)],
)
def test_only_a_clear_gain_counts(before, after, standardize):
    choice = ScaleChoice(np.array([before]), np.array([after]), 3, 10)
    assert choice.standardize is standardize


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_loud_noise_is_told_to_be_quiet(cls, tmp_path):
    model = cls(4, standardize="auto", random_state=0).fit(LOUD)
    same = cls(4, standardize=True, random_state=0).fit(LOUD)
    np.testing.assert_array_equal(model.cluster_centers_, same.cluster_centers_)
    assert adjusted_rand_score(TRUTH, model.labels_) > 0.99
    assert adjusted_rand_score(TRUTH, cls(4, random_state=0).fit_predict(LOUD)) < 0.1
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").standardize_path_.standardize


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_features_stay_as_they_are_where_nothing_is_gained(cls):
    model = cls(4, standardize="auto", n_init=2, random_state=0).fit(X)
    same = cls(4, n_init=2, random_state=0).fit(X)
    np.testing.assert_array_equal(model.scale_, 1)
    np.testing.assert_allclose(model.cluster_centers_, same.cluster_centers_, rtol=1e-9)
    assert model.inertia_ == pytest.approx(same.inertia_, rel=1e-9)
    assert model.n_passes_ == same.n_passes_


def test_wine_is_standardised():
    rows, truth = load_wine(return_X_y=True)
    model = KMeans(3, standardize="auto", random_state=0).fit(rows)
    assert adjusted_rand_score(truth, model.labels_) > 0.85


def test_nothing_is_read_for_it_and_chunks_do_not_matter():
    source = CountingSource(LOUD)
    settings = {"n_clusters": "auto", "standardize": "auto", "sample_size": 300}
    model = KMeans(random_state=0, **settings).fit(source.as_dask((130, -1)))
    assert set(source.reads.values()) == {model.n_passes_}
    assert model.n_clusters_ == 4
    other = KMeans(random_state=0, **settings).fit(da.from_array(LOUD, chunks=(400, -1)))
    for name in ("gains_as_they_are", "gains_standardized"):
        a, b = (getattr(one.standardize_path_, name) for one in (model, other))
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def test_where_there_is_no_choice():
    with pytest.raises(ValueError, match="'standardize' parameter"):
        EntropyPowerKMeans(4, standardize="auto").fit(X)
    with pytest.raises(ValueError, match="standardize='auto'"):
        PowerKMeans(4, standardize="auto", missing="partial").fit(X)
    with pytest.raises(ValueError, match="standardize"):
        PowerKMeans(4, standardize="auto", distortion="euclidean").fit(X)
