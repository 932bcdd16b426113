"""An index of faiss whose lists are clusters."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.vectors.assigned import (
    Clusters,
    checked_ids,
    complete,
    labelled_blocks,
    named,
    passes_over,
)
from daskmm.vectors.lists import n_lists, read_list

# Ids, rows and labels of some rows.
_Some = tuple[NDArray, NDArray, NDArray]


def to_faiss(model: Any, X: Any, *, ids: Any = None) -> Any:
    """Return a faiss index whose inverted lists are the clusters of a model.

    The centres are the quantizer, and each row is in the list of its cluster, so faiss neither
    trains nor assigns anything. The index holds all rows in memory, in float32.

    Parameters
    ----------
    model : fitted estimator
        Estimator with `predict` and ``cluster_centers_``, whose distances are Euclidean (perhaps
        with scales and weights of features) or cosine.
    X : table, str or Path
        What `predict` takes, or the path of lists that `write_lists` wrote from this model.
    ids : array-like or dask Array of shape (n_samples,), optional
        Integer id of each row of a table; by default its number. Lists have their own ids.

    Returns
    -------
    faiss.IndexIVFFlat or faiss.IndexPreTransform
        A trained and filled index. It takes queries in the units of `X`: where the model scales,
        weights or normalises features, a transform before the IndexIVFFlat does so too.
        ``faiss.extract_index_ivf(index).nprobe`` is the number of lists that a search visits.
        The metric is the inner product of unit vectors for cosine distances, otherwise L2.

    Raises
    ------
    ImportError
        If faiss is not installed.
    ValueError
        If the model's distances are neither Euclidean nor cosine, if values may be missing, or if
        ids are not integers.
    """
    try:
        import faiss
    except ImportError as error:
        raise ImportError("to_faiss needs faiss: pip install faiss-cpu.") from error
    clusters = complete(Clusters.of(model))
    if not (clusters.euclidean or clusters.cosine):
        name = clusters.state.distortion.title
        raise ValueError(f"faiss has no index for {name}; fit with Euclidean or cosine distances.")
    if isinstance(X, str | PathLike):
        if ids is not None:
            raise ValueError("Lists on disk have their own ids; leave out ids.")
        filling = _lists_at(X, clusters)
    else:
        filling = _blocks_of(model, X, clusters, ids)
    # A shift does not change distances. An index without a shift takes queries as they are.
    shift = clusters.embedded(np.zeros((1, clusters.centers.shape[1])))
    d = shift.shape[1]
    metric = faiss.METRIC_INNER_PRODUCT if clusters.cosine else faiss.METRIC_L2
    quantizer = faiss.IndexFlat(d, metric)
    quantizer.add(_vectors(clusters.centers - shift, clusters.cosine))
    index = faiss.IndexIVFFlat(quantizer, d, clusters.n_clusters, metric)
    index.is_trained = True
    for own, rows, labels in filling:
        vectors = _vectors(clusters.embedded(rows) - shift, clusters.cosine)
        _add(faiss, index, own, vectors, labels)
    transform = _transform(faiss, clusters, shift)
    return index if transform is None else faiss.IndexPreTransform(transform, index)


def _vectors(z: NDArray[np.float64], cosine: bool) -> NDArray[np.float32]:
    """Return embedded rows as faiss compares them: of length 1 for angles."""
    if cosine:
        z = z * np.sqrt(2.0)
    return np.ascontiguousarray(z, dtype=np.float32)


def _lists_at(path: Any, clusters: Clusters) -> Iterator[_Some]:
    count = n_lists(path)
    if count != clusters.n_clusters:
        raise ValueError(f"{path} has {count} lists, and the model {clusters.n_clusters} clusters.")
    for cluster in range(count):
        own, rows = read_list(path, cluster)
        yield own, rows, np.full(len(own), cluster)


def _blocks_of(model: Any, X: Any, clusters: Clusters, ids: Any) -> Iterator[_Some]:
    passes = passes_over(model, X)
    ids = checked_ids(ids, passes.blocks.layout.n_rows or 0)
    for start, rows, labels in labelled_blocks(passes, clusters):
        kept = np.flatnonzero(labels >= 0)
        yield named(ids, start + kept), rows[kept], labels[kept]


def _add(faiss: Any, index: Any, ids: NDArray, rows: NDArray, labels: NDArray) -> None:
    """Add rows to the lists of their clusters."""
    if ids.dtype.kind not in "iu":
        raise ValueError(f"ids in faiss must be integers, got {ids.dtype}.")
    own, lists = (np.ascontiguousarray(each, dtype=np.int64) for each in (ids, labels))
    index.add_core(len(rows), *map(faiss.swig_ptr, (rows, own, lists)))


def _transform(faiss: Any, clusters: Clusters, shift: NDArray[np.float64]) -> Any:
    """Return the transform from the units of the input to those of the model; None if equal."""
    d = shift.shape[1]
    if clusters.cosine:
        return faiss.NormalizationTransform(d, 2.0)
    matrix = clusters.embedded(np.eye(d)) - shift
    if np.allclose(matrix, np.eye(d), rtol=0.0, atol=1e-12):
        return None
    transform = faiss.LinearTransform(d, d, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix.T, np.float32).ravel(), transform.A)
    transform.is_trained = True
    return transform
