"""Recall, near-duplicates and representatives, against loops over all rows."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from _support import blobs, quick
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans as SklearnKMeans

from daskmm import EntropyPowerKMeans, KMeans
from daskmm.vectors import (
    near_duplicates,
    neighbors,
    read_list,
    recall,
    representatives,
    write_lists,
)

RNG = np.random.default_rng(0)
ROWS, _ = blobs(400, p=5, k=6)
# A quarter of the rows are repeated, nearly.
X = np.concatenate([ROWS, ROWS[:100] + 0.02 * RNG.normal(size=(100, 5))])
MODELS = {
    "plain": KMeans(9, n_init=1, random_state=0, standardize=False).fit(X),
    "cosine": KMeans(9, n_init=1, random_state=0, distortion="cosine").fit(X),
    "weighted": EntropyPowerKMeans(6, n_init=1, random_state=0, lam="0.5*variance").fit(X),
    "manhattan": quick(KMeans, distortion="manhattan").fit(X),
    "scikit-learn": SklearnKMeans(6, n_init=1, random_state=0).fit(X),
}
LAZY = da.from_array(X, chunks=(130, 5))


def space(model):
    """Rows whose Euclidean distances are those of a model; unit rows for cosines."""
    if getattr(model, "distortion", "") == "cosine":
        return X / np.linalg.norm(X, axis=1, keepdims=True)
    weights = getattr(model, "feature_weights_", 1.0)
    return X / getattr(model, "scale_", 1.0) * np.sqrt(weights)


def to_centers(model):
    """Distances of the rows to the centres, in the model's distance."""
    return model.transform(X)


@pytest.fixture(params=[None, 3], ids=["one tile", "small tiles"])
def tile(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(neighbors, "_TILE", request.param * 7)


@pytest.mark.in_turn("tile")
@pytest.mark.parametrize("name", MODELS)
def test_recall_is_that_of_searches_in_the_nearest_lists(name, tile):
    model, k = MODELS[name], 4
    labels, apart = model.predict(X), cdist(space(model), space(model))
    np.fill_diagonal(apart, np.inf)
    probes = np.argsort(to_centers(model), axis=1)
    sizes = np.bincount(labels, minlength=len(model.cluster_centers_))
    for rows in (X, LAZY):
        found = recall(model, rows, n_probes=(1, 2, 100), k=k)
        np.testing.assert_array_equal(found.sizes, sizes)
        assert found.variation == pytest.approx(sizes.std() / sizes.mean())
        factor = len(sizes) * (sizes**2).sum() / sizes.sum() ** 2
        assert found.imbalance_factor == pytest.approx(factor)
        assert found.recall[100] == pytest.approx(1.0)
        assert found.scanned[100] == pytest.approx(1.0)
        for n in (1, 2):
            hits = scanned = 0
            for row in range(500):
                seen = np.flatnonzero(np.isin(labels, probes[row, :n]))
                scanned += len(seen)
                nearest = seen[np.argsort(apart[row, seen])[:k]]
                hits += np.isin(nearest, np.argsort(apart[row])[:k]).sum()
            assert found.recall[n] == pytest.approx(hits / (500 * k))
            assert found.scanned[n] == pytest.approx(scanned / 500**2)


def test_recall_of_given_queries_counts_a_row_that_equals_the_query():
    found = recall(MODELS["plain"], LAZY, X[:50], n_probes=[1], k=1)
    assert found.recall == {1: 1.0}


def test_recall_draws_queries_from_larger_tables(monkeypatch):
    monkeypatch.setattr(neighbors, "_QUERIES", 60)
    some, every = (recall(MODELS["plain"], rows, k=5) for rows in (LAZY, X))
    assert some.recall == every.recall
    assert 0.0 < some.recall[1] < 1.0


def test_recall_refuses_more_neighbours_than_rows_and_bad_queries():
    model = MODELS["plain"]
    with pytest.raises(ValueError, match="fewer than k = 500 neighbours among 500"):
        recall(model, X, k=500)
    with pytest.raises(ValueError, match="k must be at least 1"):
        recall(model, X, X[:3], k=0)
    with pytest.raises(ValueError, match="4 features, but KMeans is expecting 5"):
        recall(model, X, X[:3, :4])
    with pytest.raises(ValueError, match="contains NaN: block 0, row 1"):
        recall(model, X, np.where(np.arange(3)[:, None] == 1, np.nan, X[:3]))


def naive_duplicates(model, labels, threshold, cosine):
    """Pairs, and the rows to keep, by loops."""
    z = space(model)
    value = z @ z.T if cosine else cdist(z, z)
    near = (value >= threshold) if cosine else (value <= threshold)
    pairs = [
        (i, j, value[i, j])
        for i in range(len(X))
        for j in range(i + 1, len(X))
        if labels[i] == labels[j] and near[i, j]
    ]
    group = np.arange(len(X))
    for i, j, _ in pairs:
        group[group == group[j]] = group[i]
    keep = np.zeros(len(X), dtype=bool)
    for each in np.unique(group):
        rows = np.flatnonzero(group == each)
        own = z[rows] - centers_in_space(model)[labels[rows[0]]]
        keep[rows[np.square(own).sum(axis=1).argmin()]] = True
    return pairs, keep


def centers_in_space(model):
    centers = model.cluster_centers_
    if getattr(model, "distortion", "") == "cosine":
        return centers / np.linalg.norm(centers, axis=1, keepdims=True)
    return (
        centers / getattr(model, "scale_", 1.0) * np.sqrt(getattr(model, "feature_weights_", 1.0))
    )


@pytest.mark.parametrize("name", MODELS)
def test_near_duplicates_are_the_pairs_of_loops(name, tile):
    model = MODELS[name]
    cosine = name == "cosine"
    threshold = 0.9999 if cosine else 0.3 * space(model).std()
    labels = model.predict(X)
    expected, keep = naive_duplicates(model, labels, threshold, cosine)
    assert len(expected) > 20
    ids = 10 * np.arange(500)
    for rows in (X, LAZY):
        found = near_duplicates(model, rows, threshold=threshold, ids=ids)
        value = found.pairs.dtype.names[2]
        assert value == ("similarity" if cosine else "distance")
        order = np.lexsort((found.pairs["second"], found.pairs["first"]))
        pairs = found.pairs[order]
        np.testing.assert_array_equal(pairs["first"], [10 * i for i, _, _ in expected])
        np.testing.assert_array_equal(pairs["second"], [10 * j for _, j, _ in expected])
        np.testing.assert_allclose(pairs[value], [v for _, _, v in expected], atol=1e-9)
        sizes = np.bincount([labels[i] for i, _, _ in expected], minlength=len(found.counts))
        np.testing.assert_array_equal(found.counts, sizes)
        np.testing.assert_array_equal(found.keep, keep)


def test_small_distances_far_from_the_origin_are_exact():
    rows = 1e6 + np.repeat(RNG.normal(size=(50, 3)), 2, axis=0)
    rows[1::2] += 1e-6
    model = KMeans(2, random_state=0, standardize=False).fit(rows)
    found = near_duplicates(model, rows, threshold=2e-6, ids=np.arange(100).astype(str))
    assert len(found.pairs) == 50
    assert set(found.pairs["first"]) == set(np.arange(0, 100, 2).astype(str))
    assert found.keep.sum() == 50


def test_a_cosine_has_a_default_threshold_and_a_distance_has_none():
    found = near_duplicates(MODELS["cosine"], X)
    assert found.pairs["similarity"].min() >= 0.95
    assert len(pd.DataFrame(found.pairs).columns) == 3
    with pytest.raises(ValueError, match="threshold must be given"):
        near_duplicates(MODELS["plain"], X)
    for given in ({"missing": "partial"}, {"missing": "partial", "empty_rows": "label"}):
        for function in (recall, near_duplicates):
            with pytest.raises(ValueError, match="complete rows"):
                function(quick(KMeans, **given).fit(X), X)


@pytest.mark.parametrize("name", MODELS)
def test_representatives_are_the_rows_nearest_to_each_centre(name):
    model = MODELS[name]
    labels, apart = model.predict(X), to_centers(model)
    names = np.array([f"row {number}" for number in range(500)])
    for n in (1, 7, 1000):
        for rows in (X, LAZY):
            found = representatives(model, rows, n, ids=names)
            assert len(found) == len(model.cluster_centers_)
            for cluster, ids in enumerate(found):
                own = np.flatnonzero(labels == cluster)
                best = own[np.argsort(apart[own, cluster], kind="stable")[:n]]
                np.testing.assert_array_equal(ids, names[best])


def test_frames_and_rows_without_cluster_have_representatives():
    frame = pd.DataFrame(X.copy(), columns=list("abcde"))
    frame.iloc[::9] = np.nan
    model = quick(KMeans, missing="partial", empty_rows="label").fit(frame)
    lazy = dd.from_pandas(frame, npartitions=4)
    for found, same in zip(
        representatives(model, frame, 500), representatives(model, lazy, 500), strict=True
    ):
        assert (found % 9 != 0).all()
        np.testing.assert_array_equal(found, same)
    with pytest.raises(ValueError, match="n_per_cluster must be at least 1"):
        representatives(model, frame, 0)


def test_sparse_rows_have_representatives_only():
    rows = scipy.sparse.random_array((200, 30), density=0.2, rng=0, format="csr")
    model = quick(KMeans, standardize=False).fit(rows)
    expected = representatives(model, rows.toarray(), 3)
    for found, same in zip(representatives(model, rows, 3), expected, strict=True):
        np.testing.assert_array_equal(found, same)
    with pytest.raises(TypeError, match="X is sparse, which only representatives takes"):
        recall(model, rows)


def test_representations_of_results_are_one_line_with_their_numbers():
    rows = np.concatenate([X, X[:50]])
    found = near_duplicates(MODELS["cosine"], rows)
    assert 1.0 - 1e-12 < found.pairs["similarity"].max() <= 1.0
    assert repr(found).startswith(f"NearDuplicates({len(found.pairs):,} pairs in ")
    assert f"{found.keep.sum()} of 550 rows to keep" in str(found)
    told = repr(recall(MODELS["plain"], X, n_probes=(1, 9), k=3))
    assert told.startswith("Recall(1 lists: ")
    assert "9 lists: 1.000 of 100.00% of the rows" in told


def test_a_pass_loads_each_block_once(tmp_path):
    loaded = []

    def load(block):
        loaded.append(len(block))
        return block

    table = LAZY.map_blocks(load, meta=np.empty((0, 0)))
    model = MODELS["cosine"]
    for expected, function in [
        (1, representatives),
        (1, lambda model, rows: recall(model, rows, X[:3])),
        (2, recall),
        (2, near_duplicates),
        (2, lambda model, rows: write_lists(model, rows, tmp_path / "a")),
    ]:
        loaded.clear()
        function(model, table)
        assert len(loaded) == 4 * expected


def test_a_cluster_finds_the_lists_recall_and_duplicates_of_rows_in_memory(local_client, tmp_path):
    for name in ("cosine", "scikit-learn"):
        model = MODELS[name]
        write_lists(model, LAZY, tmp_path / name)
        labels = model.predict(X)
        np.testing.assert_array_equal(read_list(tmp_path / name, 2)[0], np.flatnonzero(labels == 2))
        assert recall(model, LAZY).recall == recall(model, X).recall
        pairs = near_duplicates(model, LAZY, threshold=0.5).pairs
        np.testing.assert_array_equal(pairs, near_duplicates(model, X, threshold=0.5).pairs)
        for found, same in zip(
            representatives(model, LAZY), representatives(model, X), strict=True
        ):
            np.testing.assert_array_equal(found, same)
