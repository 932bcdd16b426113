"""Tables of centres, and names of clusters."""

import numpy as np
import pandas as pd
import pytest
from _support import ESTIMATORS, blobs, quick
from sklearn.exceptions import NotFittedError

from daskmm import KernelPowerKMeans, KMeans, PowerKMeans, WeightedBlurringMeanShift, load
from daskmm.cluster._naming import cluster_names

X, _ = blobs()
WEIGHTS = np.random.default_rng(0).integers(0, 4, 240).astype(float)
NAMES = ["age", "income", "size", "name", "height"]
FRAME = pd.DataFrame(X, columns=NAMES)
EUCLIDEAN = {"distortion": "euclidean"}


@pytest.mark.parametrize(
    "model",
    [
        *map(quick, ESTIMATORS),
        quick(PowerKMeans, polish=False, tol=0, max_iter=5),
        quick(PowerKMeans, **EUCLIDEAN),
        KernelPowerKMeans(4, random_state=0),
        WeightedBlurringMeanShift(0.06),
    ],
    ids=lambda model: f"{type(model).__name__} {getattr(model, 'distortion', '')}",
)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["rows", "weights"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sizes_are_those_of_the_labels(model, weights):
    labels = model.fit(X, sample_weight=weights).labels_
    np.testing.assert_allclose(model.cluster_sizes_, np.bincount(labels, weights))


def test_the_table_of_centres(tmp_path):
    model = quick(KMeans).fit(FRAME)
    table = model.summary_
    assert table.index.name == "cluster"
    expected = ["cluster_name", "cluster_size", "cluster_share", *NAMES]
    assert table.columns.tolist() == expected
    np.testing.assert_array_equal(table[NAMES], model.cluster_centers_)
    assert table["cluster_size"].tolist() == np.bincount(model.labels_).tolist()
    assert table["cluster_share"].sum() == pytest.approx(1)
    assert table["cluster_name"].is_unique
    model.save(tmp_path / "model")
    pd.testing.assert_frame_equal(load(tmp_path / "model").summary_, table)


def test_no_table_without_centres():
    assert not hasattr(KMeans(2), "summary_")
    with pytest.raises(NotFittedError):
        _ = KMeans(2).summary_
    with pytest.raises(AttributeError, match="has none"):
        _ = KernelPowerKMeans(4, random_state=0).fit(X).summary_


def named(centers, names=NAMES, scale=None, **attributes):
    model = KMeans(len(centers))
    model.cluster_centers_ = np.asarray(centers, dtype=float)
    model.scale_ = np.ones(model.cluster_centers_.shape[1]) if scale is None else np.array(scale)
    model.n_features_in_ = model.cluster_centers_.shape[1]
    if names:
        model.feature_names_in_ = np.array(names[: model.n_features_in_], dtype=object)
    vars(model).update(attributes)
    return cluster_names(model)


def test_names_say_what_tells_clusters_apart():
    assert named([[0, 0], [9, 0]]) == ["low age", "high age"]
    assert named([[0, 0], [9, 0]], names=None) == ["low feature 0", "high feature 0"]
    assert named([[-1, -900], [-1, 900], [1, -900], [1, 900]]) == [
        "low income, low age",
        "high income, low age",
        "low income, high age",
        "high income, high age",
    ]
    assert named([[0, 0], [9, 100]], feature_weights_=np.array([1.0, 0.0])) == [
        "low age",
        "high age",
    ]
    assert named([[5, 5]]) == ["average"]
    assert named([[5, 5], [5, 5]]) == ["average", "average (2)"]


def test_values_where_clusters_are_in_a_row():
    assert named([[-9, -1], [-8, -1], [17, 2]]) == [
        "low age (age -9)",
        "low age (age -8)",
        "high age",
    ]
    assert named([[-9], [-9], [18]]) == ["low age (age -9)", "low age (age -9) (2)", "high age"]


def test_names_of_more_features_where_two_do_not_suffice():
    names = named([[9, 9, 1, 0], [9, 9, -1, 0], [-9, -9, 0, 0]], scale=[1, 1, 1, 2])
    assert names == [
        "high age, high income, high size",
        "high age, high income, low size",
        "low age, low income",
    ]
