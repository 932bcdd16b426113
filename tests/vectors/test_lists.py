"""Lists of clusters on disk, and an index of faiss, against the labels of `predict`."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from _support import blobs, computed, quick
from sklearn.cluster import KMeans as SklearnKMeans
from zarr.storage import MemoryStore

from daskmm import ClusterTree, EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.vectors import assigned, lists, read_list, to_faiss, write_lists

ROWS, _ = blobs(300, p=6, k=5)
X = ROWS.astype(np.float32)
MODEL = KMeans(12, n_init=1, random_state=0, standardize=False).fit(X)
LABELS = MODEL.predict(X)


def forms():
    """The same rows in the containers that `predict` takes."""
    yield X
    yield da.from_array(X, chunks=(70, 4))
    stored = zarr.create_array(MemoryStore(), shape=X.shape, chunks=(64, 6), dtype=X.dtype)
    stored[:] = X
    yield stored
    frame = pd.DataFrame(X, columns=list("abcdef"))
    yield dd.from_pandas(frame, npartitions=3)
    yield frame


@pytest.mark.parametrize("form", range(5))
def test_lists_hold_the_rows_that_predict_assigns_in_order(form, tmp_path):
    table = list(forms())[form]
    model = KMeans(12, n_init=1, random_state=0, standardize=False).fit(table)
    labels = computed(model.predict(table))
    for name in ("lists", "lists.parquet"):
        write_lists(model, table, tmp_path / name)
        for cluster in range(12):
            ids, rows = read_list(tmp_path / name, cluster)
            expected = np.flatnonzero(labels == cluster)
            np.testing.assert_array_equal(ids, expected)
            np.testing.assert_array_equal(rows, X[expected])
            assert rows.dtype == np.float32
        assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int64"])
@pytest.mark.parametrize("format", ["zarr", "parquet"])
def test_rows_keep_their_dtype_and_ids_are_those_given(dtype, format, tmp_path):
    rows = np.abs(X).astype(dtype)
    ids = 1000 + 3 * np.arange(300)
    own = ids if format == "zarr" else da.from_array(ids.astype(str).astype(object), chunks=50)
    write_lists(MODEL, da.from_array(rows, chunks=(90, 6)), tmp_path / "a", ids=own, format=format)
    labels = MODEL.predict(rows)
    for cluster in range(12):
        found, vectors = read_list(tmp_path / "a", cluster)
        assert vectors.dtype == dtype
        np.testing.assert_array_equal(vectors, rows[labels == cluster])
        np.testing.assert_array_equal(found.astype(np.int64), ids[labels == cluster])


def test_rows_without_cluster_are_in_no_list(tmp_path):
    rows = ROWS.copy()
    rows[::7] = np.nan
    model = quick(KMeans, missing="partial", empty_rows="label").fit(rows)
    write_lists(model, da.from_array(rows, chunks=(40, 6)), tmp_path / "a")
    found = np.concatenate([read_list(tmp_path / "a", cluster)[0] for cluster in range(4)])
    np.testing.assert_array_equal(np.sort(found), np.flatnonzero(np.arange(300) % 7))


def test_blocks_and_files_of_any_size_give_the_same_lists(tmp_path, monkeypatch):
    monkeypatch.setattr(assigned, "_TOGETHER_BYTES", 1)
    monkeypatch.setattr(lists, "_CHUNK_BYTES", 240)
    monkeypatch.setattr(lists, "_CHUNKS_PER_FILE", 4)
    write_lists(MODEL, da.from_array(X, chunks=(70, 6)), tmp_path / "a")
    assert len(list((tmp_path / "a" / "rows").rglob("0"))) == 8 + 1  # files, and the folder c/…/0
    for cluster in range(12):
        ids, rows = read_list(tmp_path / "a", cluster)
        np.testing.assert_array_equal(ids, np.flatnonzero(cluster == LABELS))
        np.testing.assert_array_equal(rows, X[ids])


def test_lists_of_estimators_of_scikit_learn_find_columns_by_name(tmp_path):
    frame = pd.DataFrame(ROWS, columns=list("abcdef"))
    model = SklearnKMeans(5, n_init=1, random_state=0).fit(frame)
    write_lists(model, dd.from_pandas(frame[list("fedcba")], npartitions=4), tmp_path / "a")
    labels = model.predict(frame)
    for cluster in range(5):
        ids, rows = read_list(tmp_path / "a", cluster)
        np.testing.assert_array_equal(ids, np.flatnonzero(labels == cluster))
        np.testing.assert_array_equal(rows, ROWS[ids])


def test_what_exists_is_never_overwritten(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(FileExistsError, match="Choose another path, or remove it first"):
        write_lists(MODEL, X, tmp_path / "a")
    assert list(tmp_path.rglob("*")) == [tmp_path / "a"]


def test_bad_arguments_are_refused_and_leave_nothing(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(ValueError, match="format must be 'zarr' or 'parquet'"):
        write_lists(MODEL, X, path, format="csv")
    with pytest.raises(ValueError, match=r"ids must have shape \(300,\)"):
        write_lists(MODEL, X, path, ids=[1, 2])
    with pytest.raises(ValueError, match="ids in zarr must be integers"):
        write_lists(MODEL, X, path, ids=np.full(300, "a"))
    bad = X.copy()
    bad[100, 2] = np.nan
    with pytest.raises(ValueError, match="row 100"):
        write_lists(MODEL, bad, path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match="has no lists"):
        read_list(path, 0)
    for name in ("a", "a.parquet"):
        write_lists(MODEL, X, tmp_path / name)
        with pytest.raises(ValueError, match="cluster must be 0 to 11"):
            read_list(tmp_path / name, 12)


def indexed():
    return pytest.importorskip("faiss", reason="faiss-cpu is not installed")


def searched(index, queries, n_probe, k=5):
    """Ids and distances that an index finds."""
    indexed().extract_index_ivf(index).nprobe = n_probe
    distances, ids = index.search(np.ascontiguousarray(queries, np.float32), k)
    return ids, distances


MODELS = {
    "plain": MODEL,
    "scaled": PowerKMeans(6, n_init=1, random_state=0, standardize=True).fit(X),
    "weighted": EntropyPowerKMeans(6, n_init=1, random_state=0, lam="0.5*variance").fit(X),
    "whitened": quick(KMeans, distortion="mahalanobis").fit(X),
    "cosine": quick(KMeans, distortion="cosine").fit(X),
    "medians": quick(KMeans, distortion="euclidean").fit(X),
    "tree": ClusterTree((2, 3), random_state=0).fit(X),
    "scikit-learn": SklearnKMeans(6, n_init=1, random_state=0).fit(X),
}


@pytest.mark.parametrize("name", MODELS)
def test_faiss_lists_are_the_clusters_and_a_search_of_all_is_exact(name, tmp_path):
    faiss, model = indexed(), MODELS[name]
    write_lists(model, X, tmp_path / "a")
    labels = model.predict(X)
    z = assigned.Clusters.of(model).embedded(X)
    queries = X[:40] + np.float32(0.1)
    apart = assigned.Clusters.of(model).embedded(queries)[:, None] - z
    expected = np.argsort(np.square(apart).sum(axis=2), axis=1)[:, :5]
    for source in (X, da.from_array(X, chunks=(80, 6)), tmp_path / "a"):
        index = to_faiss(model, source)
        ivf = faiss.extract_index_ivf(index)
        assert index.is_trained
        assert index.ntotal == ivf.ntotal == 300
        for cluster in range(ivf.nlist):
            n = ivf.invlists.list_size(cluster)
            ids = faiss.rev_swig_ptr(ivf.invlists.get_ids(cluster), n)
            np.testing.assert_array_equal(np.sort(ids), np.flatnonzero(labels == cluster))
        found, _ = searched(index, queries, ivf.nlist)
        assert (found == expected).mean() > 0.99  # float32 may swap two rows
        nearest = ivf.quantizer
        assert nearest.ntotal == len(model.cluster_centers_)
        first, _ = searched(index, X, 1, k=1)
        np.testing.assert_array_equal(first[:, 0], np.arange(300))


def test_plain_models_give_an_ivf_index_whose_distances_are_those_of_the_rows():
    faiss = indexed()
    index = to_faiss(MODEL, X, ids=np.arange(300) + 7)
    assert isinstance(index, faiss.IndexIVFFlat)
    ids, distances = searched(index, X[:5], 12, k=2)
    np.testing.assert_array_equal(ids[:, 0], np.arange(5) + 7)
    second = X[ids[:, 1] - 7]
    np.testing.assert_allclose(distances[:, 1], np.square(X[:5] - second).sum(axis=1), rtol=1e-4)


def test_faiss_refuses_what_it_cannot_hold(tmp_path, monkeypatch):
    indexed()
    write_lists(MODEL, X, tmp_path / "a")
    with pytest.raises(ValueError, match="12 lists, and the model 6 clusters"):
        to_faiss(MODELS["scaled"], tmp_path / "a")
    with pytest.raises(ValueError, match="their own ids"):
        to_faiss(MODEL, tmp_path / "a", ids=np.arange(300))
    with pytest.raises(ValueError, match="ids in faiss must be integers"):
        to_faiss(MODEL, X, ids=np.full(300, "a"))
    with pytest.raises(ValueError, match="no index for"):
        to_faiss(quick(KMeans, distortion="manhattan").fit(X), X)
    with pytest.raises(ValueError, match="complete rows"):
        to_faiss(quick(KMeans, missing="partial").fit(X), X)
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        to_faiss(MODEL, X)
