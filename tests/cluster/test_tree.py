"""Trees of clusters."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from daskmm import ClusterTree, KMeans, PowerKMeans, load
from daskmm.kmeans.branches import shared_out

UNSCALED = KMeans(n_init=1, standardize=False)


@pytest.fixture(scope="module")
def digits():
    return load_digits().data.astype(np.float32)


@pytest.fixture(scope="module")
def tree(digits):
    return ClusterTree((8, 6), estimator=UNSCALED, random_state=0).fit(digits)


def blobs(seed=0):
    """Five groups of four clusters each, and the cluster of each row."""
    rng = np.random.default_rng(seed)
    centers = np.repeat(40.0 * rng.normal(size=(5, 3)), 4, axis=0) + 6.0 * rng.normal(size=(20, 3))
    labels = rng.integers(20, size=3000)
    return centers[labels] + 0.3 * rng.normal(size=(3000, 3)), labels


def test_bounded_sizes_are_refused():
    with pytest.raises(ValueError, match="max_cluster_size=None"):
        ClusterTree((2, 2), estimator=KMeans(max_cluster_size=2.0)).fit(np.eye(9))


def test_levels_have_the_numbers_of_clusters_asked_for(tree):
    assert tree.cluster_centers_.shape == (48, 64)
    assert [len(own) for own in tree.parents_] == [48]
    assert set(tree.ancestors(0)) == set(range(8))
    np.testing.assert_array_equal(tree.ancestors(-1), np.arange(48))


def test_the_cost_is_near_that_of_as_many_clusters_at_once(tree, digits):
    flat = KMeans(48, n_init=8, standardize=False, random_state=0).fit(digits)
    assert tree.inertia_ < 1.04 * flat.inertia_


def test_labels_are_the_nearest_leaves_and_levels_their_ancestors(tree, digits):
    distances = np.square(digits[:, None] - tree.cluster_centers_).sum(axis=2)
    np.testing.assert_array_equal(tree.predict(digits), distances.argmin(axis=1))
    np.testing.assert_array_equal(tree.labels_, distances.argmin(axis=1))
    np.testing.assert_array_equal(tree.predict(digits, 0), tree.ancestors(0)[tree.labels_])


def test_walking_compares_rows_with_the_parts_of_the_nearest_cluster(tree, digits):
    sizes = np.bincount(tree.labels_, minlength=48)
    means = [
        np.average(tree.cluster_centers_[own], axis=0, weights=sizes[own])
        for own in (tree.ancestors(0) == label for label in range(8))
    ]
    walked = tree.predict(digits[:100], walk=True)
    for row, found in zip(digits[:100], walked, strict=True):
        top = np.square(row - means).sum(axis=1).argmin()
        parts = np.flatnonzero(tree.ancestors(0) == top)
        assert found == parts[np.square(row - tree.cluster_centers_[parts]).sum(axis=1).argmin()]


@pytest.mark.parametrize("divide_by", ["cost", "size", "equal"])
def test_groups_of_clusters_are_found_level_by_level(divide_by):
    X, labels = blobs()
    tree = ClusterTree((5, 4), divide_by=divide_by, refine=3, random_state=0).fit(X)
    groups = pd.crosstab(labels // 4, tree.predict(X, 0))
    assert ((groups > 0).sum() == 1).all()
    clusters = pd.crosstab(labels, tree.labels_)
    assert clusters.max(axis=1).sum() > 0.85 * len(X)


def test_three_levels_of_a_lazy_table_are_those_in_memory():
    X, _ = blobs()
    settings = {"estimator": KMeans(n_init=1, sample_size=None), "random_state": 0}
    tree = ClusterTree((2, 3, 2), **settings).fit(X)
    lazy = ClusterTree((2, 3, 2), **settings).fit(da.from_array(X, chunks=(700, 3)))
    assert [len(own) for own in tree.parents_] == [6, 12]
    assert lazy.cluster_centers_.shape == tree.cluster_centers_.shape
    assert lazy.inertia_ == pytest.approx(tree.inertia_, rel=0.1)
    assert lazy.n_passes_ < 40
    np.testing.assert_array_equal(lazy.labels_.compute(), lazy.predict(X))
    by_chunks = ClusterTree((2, 3, 2), **settings).fit(da.from_array(X, chunks=(1000, 3)))
    np.testing.assert_allclose(by_chunks.cluster_centers_, lazy.cluster_centers_, rtol=1e-9)


def test_rows_without_weight_do_not_count():
    X, _ = blobs()
    weights = np.where(np.arange(len(X)) % 2, 2.0, 0.0)
    tree = ClusterTree((3, 2), estimator=UNSCALED, random_state=0)
    tree.fit(X, sample_weight=weights)
    kept = X[1::2]
    apart = np.square(kept[:, None] - tree.cluster_centers_).sum(axis=2).min(axis=1)
    assert tree.inertia_ == pytest.approx(2.0 * apart.sum())


def test_clusters_of_few_distinct_rows_have_fewer_parts():
    X = np.repeat(np.array([[0.0, 0.0], [1.0, 0.0], [50.0, 0.0]]), 20, axis=0)
    tree = ClusterTree((2, 4), divide_by="equal", random_state=0).fit(X)
    assert len(tree.cluster_centers_) == 3
    assert tree.inertia_ == 0.0


def test_frames_keep_their_index_and_cosine_distances_are_taken(digits):
    frame = pd.DataFrame(digits[:500], index=np.arange(500) + 7)
    estimator = PowerKMeans(n_init=2, distortion="cosine")
    tree = ClusterTree((4, 3), estimator=estimator, random_state=0).fit(frame)
    assert isinstance(tree.root_, PowerKMeans)
    assert tree.leaves_.distortion == "cosine"
    assert len(tree.predict(frame, 0)) == 500


def test_rows_of_zeros_are_in_no_leaf_if_the_estimator_labels_them(digits):
    estimator = KMeans(n_init=1, distortion="cosine", empty_rows="label")
    rows = np.vstack([digits[:300], np.zeros((2, digits.shape[1]))])
    tree = ClusterTree((4, 3), estimator=estimator, random_state=0).fit(rows)
    known = ClusterTree((4, 3), estimator=estimator, random_state=0).fit(digits[:300])
    assert tree.inertia_ == pytest.approx(known.inertia_, rel=0.1)
    for labels in (tree.labels_, tree.predict(rows, 0), tree.predict(rows, walk=True)):
        assert np.flatnonzero(labels < 0).tolist() == [300, 301]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_clusters": 10}, "n_clusters must be a tuple"),
        ({"n_clusters": (3, 0)}, "n_clusters must be a tuple"),
        ({"divide_by": "rows"}, "divide_by must be one of"),
        ({"refine": 0}, "refine must be a positive number"),
        ({"estimator": KMeans(missing="partial")}, "estimator must be a KMeans or PowerKMeans"),
        ({"estimator": KMeans(distortion="mixed")}, "other than 'mixed'"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused_before_reading(settings, words):
    with pytest.raises(ValueError, match=words):
        ClusterTree(**settings).fit("no table")


def test_levels_beyond_the_tree_are_refused(tree, digits):
    with pytest.raises(ValueError, match="level must be from -2 to 1, got 2"):
        tree.predict(digits, 2)


def test_trees_are_saved_planned_and_summarised(tree, digits, tmp_path):
    tree.save(tmp_path / "tree")
    loaded = load(tmp_path / "tree")
    for level in (0, -1):
        np.testing.assert_array_equal(loaded.predict(digits, level), tree.predict(digits, level))
    assert loaded.estimator.get_params() == tree.estimator.get_params()
    assert len(tree.summary_) == 48
    plan = tree.plan(digits)
    assert list(plan.stages) == ["first level", "other levels", "leaves"]
    assert abs(plan.passes - tree.n_passes_) <= 25
    assert plan.max_passes >= tree.n_passes_


def test_a_tree_that_is_not_fitted_says_so(digits):
    with pytest.raises(AttributeError, match="not fitted"):
        _ = ClusterTree().labels_
    clone(ClusterTree((2, 2), estimator=KMeans(n_init=1)))


def test_shares_are_divided_by_the_largest_remainders():
    np.testing.assert_array_equal(shared_out(np.array([1.0, 2.0, 5.0]), 11), [2, 3, 6])
    np.testing.assert_array_equal(shared_out(np.array([0.0, 1.0]), 2), [1, 1])
