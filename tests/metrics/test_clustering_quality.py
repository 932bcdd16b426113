"""Quality of a clustering, against scikit-learn and loops."""

import pickle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from _support import blobs, counting_computes
from scipy.sparse import csr_array
from sklearn.metrics.pairwise import nan_euclidean_distances
from sklearn.model_selection import GridSearchCV

from daskmm import ClusterTree, GaussianMixture, KMeans, PowerKMeans
from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.metrics import (
    calinski_harabasz_score,
    quality,
    silhouette_score,
    simplified_silhouette_score,
)

X, LABELS = blobs(300, p=3, k=4)
NOISY = np.where(np.random.default_rng(0).random(300) < 0.2, (LABELS + 1) % 4, LABELS)
SCORES = [
    calinski_harabasz_score,
    simplified_silhouette_score,
    silhouette_score,
]


def forms():
    """The same rows and labels in several containers."""
    lazy, labels = da.from_array(X, chunks=(70, 2)), da.from_array(NOISY, chunks=110)
    yield lazy, NOISY
    yield lazy, labels
    yield X, labels
    yield X, dd.from_pandas(pd.Series(NOISY), npartitions=3)
    yield pd.DataFrame(X), labels[labels >= 0]  # the lengths of the blocks are unknown
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=3)
    yield frame, dd.from_pandas(pd.Series(NOISY), npartitions=3)
    yield frame, NOISY


@pytest.mark.parametrize("score", SCORES)
def test_scores_of_lazy_rows_are_those_of_rows_in_memory(score):
    expected = score(X, NOISY)
    for rows, labels in forms():
        found = score(rows, labels)
        if isinstance(rows, dd.DataFrame) and score is silhouette_score:
            # Groups of rows differ where their numbers are not known.
            assert found.standard_error == pytest.approx(expected.standard_error, rel=0.5)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_scores_are_those_of_scikit_learn():
    for shift in (0.0, 1e6):
        expected = sklearn.metrics.calinski_harabasz_score(X, NOISY)
        assert calinski_harabasz_score(X + shift, NOISY) == pytest.approx(expected, rel=1e-6)
    expected = sklearn.metrics.silhouette_score(X, NOISY)
    assert silhouette_score(X, NOISY) == pytest.approx(expected, abs=1e-9)


def test_the_simplified_silhouette_is_its_definition():
    centers = np.random.default_rng(0).normal(size=(4, 3))
    distances = np.linalg.norm(X[:, None] - centers, axis=2)
    values = []
    for row, j in zip(distances, NOISY, strict=True):
        a, b = row[j], np.delete(row, j).min()
        values.append((b - a) / max(a, b))
    found = simplified_silhouette_score(X, NOISY, centers=centers)
    assert found == pytest.approx(np.mean(values))
    assert found.standard_error == pytest.approx(np.std(values) / np.sqrt(300))


def test_one_pass_and_a_sample_that_does_not_depend_on_chunks():
    whole = silhouette_score(X, NOISY, sample_size=100)
    for rows in (60, 300):
        lazy = da.from_array(X, chunks=(rows, -1))
        with counting_computes() as computes:
            found = silhouette_score(lazy, NOISY, sample_size=100)
            calinski_harabasz_score(lazy, NOISY)
        assert len(computes) == 2
        np.testing.assert_allclose(found, whole, rtol=1e-9)


def test_the_standard_error_is_that_of_fresh_rows():
    rng = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(40):
        labels = rng.integers(3, size=400)
        rows = rng.normal(size=(400, 2)) + 2.5 * np.eye(3, 2)[labels]
        found = silhouette_score(rows, labels)
        values.append(found)
        errors.append(found.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.35)


def test_rows_of_negative_labels_are_left_out():
    some = np.where(np.arange(300) < 50, -1, NOISY)
    for score in SCORES:
        np.testing.assert_allclose(score(X, some), score(X[50:], NOISY[50:]), rtol=0.2)
    assert calinski_harabasz_score(X, some) == pytest.approx(
        calinski_harabasz_score(X[50:], NOISY[50:])
    )


@pytest.mark.parametrize("score", SCORES)
def test_labels_and_rows_without_a_score_are_refused(score):
    with pytest.raises(ValueError, match="A score of 300 rows needs 2 to 299 clusters, not 1"):
        score(X, np.zeros(300, int))
    with pytest.raises(ValueError, match=r"do not match|differ in length"):
        score(da.from_array(X), NOISY[:20])
    with pytest.raises(ValueError, match="labels must be integers"):
        score(X, NOISY / 2)
    with pytest.raises(ValueError, match="labels has the index of X in another order"):
        score(pd.DataFrame(X), pd.Series(NOISY)[::-1])
    holes = X.copy()
    holes[250, 1] = np.nan
    with pytest.raises(ValueError, match=r"NaN.*block 2, row 50 of the block"):
        score(da.from_array(holes, chunks=(100, -1)), NOISY)


def test_scores_behave_as_floats_that_have_a_standard_error():
    for score in SCORES:
        assert isinstance(score(X, NOISY), float)
    found = silhouette_score(X, NOISY)
    assert round(found, 3) == round(float(found), 3)
    again = pickle.loads(pickle.dumps(found))
    assert (again, again.standard_error) == (found, found.standard_error)
    assert repr(found).startswith(f"Estimate({float(found)!r}, standard_error=")
    search = GridSearchCV(
        KMeans(random_state=0),
        {"n_clusters": [2, 3]},
        scoring=silhouette_score,
        cv=2,
    ).fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def mixed_rows(n=200):
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=n)
    return pd.DataFrame(
        {
            "size": 4.0 * truth + rng.normal(size=n),
            "color": np.array(["red", "blue", "green"])[(truth + (rng.random(n) < 0.1)) % 3],
        }
    ).mask(rng.random((n, 2)) < 0.05)


@pytest.mark.parametrize("score", [calinski_harabasz_score, silhouette_score])
def test_scores_of_labels_say_what_measures_sparse_rows(score):
    with pytest.raises(ValueError, match=r"no sparse rows\. A model measures .*\(X, model\)"):
        score(csr_array(np.eye(6)), [0, 0, 0, 1, 1, 1])


def test_a_model_measures_silhouettes_in_its_own_scale_whatever_its_rows_are():
    units = X * [1.0, 50.0, 1000.0]
    model = KMeans(4, standardize=True, random_state=0).fit(units)
    for rows, given in [
        (units, model),
        (csr_array(units), model),
        (da.from_array(units, 70), model),
    ]:
        scaled = units / model.scale_
        expected = sklearn.metrics.silhouette_score(scaled, model.labels_)
        assert silhouette_score(rows, given) == pytest.approx(expected, abs=1e-6)
        expected = simplified_silhouette_score(
            scaled, model.labels_, centers=model.cluster_centers_ / model.scale_
        )
        found = simplified_silhouette_score(rows, given)
        assert found == pytest.approx(expected, abs=1e-6)
        assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-3)
    holes = np.where(np.random.default_rng(0).random(units.shape) < 0.1, np.nan, units)
    holes = holes[~np.isnan(holes).all(axis=1)]
    gaps = KMeans(4, standardize=True, missing="partial", random_state=0).fit(holes)
    apart = nan_euclidean_distances(holes / gaps.scale_)
    apart = np.where(np.isnan(apart), np.sqrt(np.nanmean(apart**2)), apart)
    np.fill_diagonal(apart, 0.0)
    expected = sklearn.metrics.silhouette_score(apart, gaps.labels_, metric="precomputed")
    assert silhouette_score(holes, gaps) == pytest.approx(expected, abs=0.01)
    more = np.vstack([holes, np.full((1, holes.shape[1]), np.nan)])
    for score in (silhouette_score, simplified_silhouette_score):
        assert score(more, gaps) == pytest.approx(score(holes, gaps))
    for cls, distortion in [(PowerKMeans, "manhattan"), (PowerKMeans, "kl"), (KMeans, "mixed")]:
        rows = mixed_rows() if distortion == "mixed" else np.abs(X)
        missing = "partial" if distortion == "mixed" else "error"
        model = cls(2, distortion=distortion, missing=missing, random_state=0).fit(rows)
        assert 0.2 < silhouette_score(rows, model) < 1.0
        assert 0.2 < simplified_silhouette_score(rows, model) < 1.0
    frame = dd.from_pandas(rows, npartitions=3)
    assert silhouette_score(frame, model) == pytest.approx(silhouette_score(rows, model), abs=0.05)
    with pytest.raises(TypeError, match="GaussianMixture does not measure distances"):
        silhouette_score(X, GaussianMixture(2))
    tree = ClusterTree((2, 2), random_state=0).fit(X)
    with pytest.raises(TypeError, match=r"give tree\.leaves_"):
        silhouette_score(X, tree)


@pytest.mark.parametrize("distortion", ["euclidean", "poisson"])
def test_silhouettes_with_a_model_hold_the_distances_of_a_slice_of_rows(monkeypatch, distortion):
    rows = np.random.default_rng(0).poisson(3.0, size=(40, 3)).astype(float)
    rows[0] = 60.0  # a cluster of one row
    model = KMeans(3, distortion=distortion, random_state=0).fit(rows)
    labels, distances = model._clusters().between(rows)
    assert 1 in np.bincount(labels)
    apart = distances(slice(None))
    np.fill_diagonal(apart, 0.0)
    expected = sklearn.metrics.silhouette_samples(apart, labels, metric="precomputed")
    sizes = []

    def noted(part):
        sizes.append(len(range(40)[part]))
        return distances(part)

    monkeypatch.setattr(quality, "_DISTANCES", 7 * 40)
    monkeypatch.setattr(FittedCenters, "between", lambda self, rows: (labels, noted))
    found = silhouette_score(rows, model)
    assert sizes == [7, 7, 7, 7, 7, 5]
    assert found == pytest.approx(expected.mean(), abs=1e-12)
    assert found.standard_error == pytest.approx(expected.std() / np.sqrt(40), rel=1e-9)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_rows_that_are_not_numbers_are_refused_with_the_scores_that_take_a_model(score, lazy):
    frame = pd.DataFrame({"a": np.arange(60.0), "island": ["Torgersen", "Dream"] * 30})
    X = dd.from_pandas(frame, npartitions=2) if lazy else frame
    with pytest.raises(ValueError, match=r"(Torgersen|island).*silhouette_score\(X, model\)"):
        score(X, np.arange(60) % 2)
    if "silhouette" not in score.__name__:
        with pytest.raises(TypeError, match="takes labels"):
            score(frame[["a"]], KMeans(2).fit(frame[["a"]]))


@pytest.mark.parametrize("chunks", [None, {"y": 7, "x": 4}])
@pytest.mark.parametrize("kind", ["cube", "dataset"])
def test_cubes_have_the_scores_of_their_pixels(kind, chunks):
    xarray = pytest.importorskip("xarray")
    values = X.T.reshape(3, 20, 15).copy()
    values[:, 3, 4] = np.nan
    cube = xarray.DataArray(values, dims=("band", "y", "x"), coords={"band": list("abc")})
    cube = cube if chunks is None else cube.chunk(chunks)
    dim, data = ("band", cube) if kind == "cube" else (None, cube.to_dataset("band"))
    own = {"missing": "partial", "empty_rows": "label", "standardize": False}
    model = KMeans(4, random_state=0, **own).fit(data, feature_dim=dim)
    kept = model.labels_.values.ravel() >= 0
    for score in SCORES:
        expected = score(X[kept], model.labels_.values.ravel()[kept])
        assert score(data, model.labels_) == pytest.approx(expected, rel=1e-9)
        if score is silhouette_score:
            assert score(data, model) == pytest.approx(expected, rel=1e-6)
    assert simplified_silhouette_score(data, model) == pytest.approx(
        simplified_silhouette_score(data, model.labels_, centers=model.cluster_centers_), rel=1e-6
    )


@pytest.mark.parametrize("centers", [None, np.array([[0.1, 0.0], [0.0, 0.3], [0.2, 0.2]])])
def test_simplified_silhouettes_are_the_same_far_from_the_origin(centers):
    rng = np.random.default_rng(0)
    X, labels = np.round(rng.normal(size=(30, 2)), 2) * 1e-2, rng.integers(3, size=30)
    near = simplified_silhouette_score(X, labels, centers=centers)
    far = simplified_silhouette_score(
        X + 2.0**14, labels, centers=None if centers is None else centers + 2.0**14
    )
    assert far == pytest.approx(near, abs=1e-6)
