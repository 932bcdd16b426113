"""Agreement of two labelings, numpy or dask, from their contingency table.

Every score is a function of the counts of pairs of labels. Each block of labels becomes a small
table of counts, and the tables are added in a tree, so labels may be larger than memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.special import rel_entr
from scipy.stats import entropy
from sklearn.metrics import mutual_info_score

from daskmm._dask import da, is_dask_array
from daskmm.data.blocks import is_lazy
from daskmm.data.lazy import array_of_frame, delayed_blocks, in_memory
from daskmm.engine.passes import tree_reduce

_AVERAGES: dict[str, Callable[[float, float], float]] = {
    "arithmetic": lambda u, v: (u + v) / 2,
    "geometric": lambda u, v: math.sqrt(u * v),
    "max": max,
    "min": min,
}


def contingency_matrix(labels_true: Any, labels_pred: Any) -> NDArray[np.int64]:
    """Count how often each pair of labels occurs together.

    Parameters
    ----------
    labels_true, labels_pred : array-like, dask or zarr array, or dask series, of shape (n_samples,)
        Labels of any sortable kind: integers, strings, objects. One labeling may be in memory and
        the other lazy, and their chunks may differ. A labeling of unknown chunk sizes is loaded if
        the other is in memory; otherwise both must have the same number of blocks, which are
        matched one to one.

    Returns
    -------
    ndarray of shape (n_classes_true, n_classes_pred), int64
        Counts; rows and columns are the labels that occur, sorted. The shape is (0, 0) for empty
        labelings.

    Raises
    ------
    ValueError
        If the labelings differ in length, are not one-dimensional, hold NaN or infinity, or
        cannot be matched because chunk sizes are unknown.
    TypeError
        If a labeling is a dask collection other than an array or a series.

    Notes
    -----
    Lazy labels are counted by the active dask scheduler in one compute, in the memory of a few
    blocks and the non-zero entries of the table; only the returned matrix is dense.
    """
    return contingency(labels_true, labels_pred).table.toarray()


def normalized_mutual_info_score(
    labels_true: Any, labels_pred: Any, *, average_method: str = "arithmetic"
) -> float:
    """Compute the mutual information of two labelings over a mean of their entropies.

    The score equals :func:`sklearn.metrics.normalized_mutual_info_score`, for labels of any length.

    Parameters
    ----------
    labels_true, labels_pred : array-like or dask array of shape (n_samples,)
        As in :func:`contingency_matrix`.
    average_method : {"arithmetic", "geometric", "max", "min"}, default="arithmetic"
        The mean of the two entropies by which the mutual information is divided.

    Returns
    -------
    float
        A number between 0 (independent) and 1 (the same partition). It is 1 if both labelings are
        empty or have a single cluster, and 0 if only one of them has a single cluster.

    Raises
    ------
    ValueError
        If `average_method` is unknown, or as in :func:`contingency_matrix`.
    """
    if average_method not in _AVERAGES:
        raise ValueError(
            f"average_method must be one of {', '.join(map(repr, _AVERAGES))}; "
            f"got {average_method!r}."
        )
    table = contingency(labels_true, labels_pred).table
    if max(table.shape) <= 1:
        return 1.0
    information = _mutual_information(table)
    if information == 0.0:
        return 0.0
    entropies = (float(entropy(table.sum(axis=axis))) for axis in (1, 0))
    return information / _AVERAGES[average_method](*entropies)


def adjusted_rand_score(labels_true: Any, labels_pred: Any) -> float:
    """Compute the share of pairs of samples on which two labelings agree, adjusted for chance.

    The score equals :func:`sklearn.metrics.adjusted_rand_score`, for labels of any length.

    Parameters
    ----------
    labels_true, labels_pred : array-like or dask array of shape (n_samples,)
        As in :func:`contingency_matrix`.

    Returns
    -------
    float
        A number between -0.5 and 1: about 0 for independent labelings, 1 for the same partition
        and for empty labelings.

    Raises
    ------
    ValueError
        As in :func:`contingency_matrix`.

    Notes
    -----
    Pairs are counted in exact integers, so that billions of samples do not overflow.

    References
    ----------
    Hubert and Arabie, "Comparing partitions", Journal of Classification 2, 1985.
    """
    table = contingency(labels_true, labels_pred).table
    together = _sum_of_squares(table.data)
    in_true = _sum_of_squares(table.sum(axis=1))
    in_pred = _sum_of_squares(table.sum(axis=0))
    n_samples = int(table.sum())
    # Numbers of ordered pairs that are together in both labelings, in one only, in neither.
    both = together - n_samples
    only_true, only_pred = in_true - together, in_pred - together
    neither = n_samples**2 - in_true - in_pred + together
    if only_true == only_pred == 0:
        return 1.0
    return (
        2.0
        * (both * neither - only_true * only_pred)
        / ((both + only_true) * (only_true + neither) + (both + only_pred) * (only_pred + neither))
    )


def variation_of_information(labels_true: Any, labels_pred: Any) -> float:
    """Compute the distance between two partitions: H(U) + H(V) - 2 I(U, V).

    Parameters
    ----------
    labels_true, labels_pred : array-like or dask array of shape (n_samples,)
        As in :func:`contingency_matrix`.

    Returns
    -------
    float
        The distance in nats, between 0 (the same partition, exactly) and log(n_samples); 0 for
        empty labelings.

    Raises
    ------
    ValueError
        As in :func:`contingency_matrix`.

    Notes
    -----
    The distance is computed as H(U|V) + H(V|U), whose terms all have the same sign, so that no
    digits cancel near 0.

    References
    ----------
    Meilă, "Comparing clusterings - an information based distance", Journal of Multivariate
    Analysis 98, 2007.
    """
    joint, of_true, of_pred = _frequencies(contingency(labels_true, labels_pred).table)
    return float(np.abs(rel_entr(joint, of_true) + rel_entr(joint, of_pred)).sum())


@dataclass(frozen=True)
class Contingency:
    """Counts of label pairs in some rows, which can be added."""

    true: NDArray  # distinct labels of one labeling, sorted
    pred: NDArray  # distinct labels of the other one, sorted
    table: csr_array  # number of rows with each pair of labels, (len(true), len(pred))

    @classmethod
    def of(cls, labels_true: NDArray, labels_pred: NDArray) -> Contingency:
        """Count the pairs of one block of labels."""
        true, rows = np.unique(labels_true, return_inverse=True)
        pred, columns = np.unique(labels_pred, return_inverse=True)
        ones = np.ones(len(rows), dtype=np.int64)
        return cls(true, pred, _sparse_sum(ones, rows, columns, (len(true), len(pred))))

    def __add__(self, other: Contingency) -> Contingency:
        true = np.unique(np.concatenate([self.true, other.true]))
        pred = np.unique(np.concatenate([self.pred, other.pred]))
        parts = [(part, part.table.tocoo()) for part in (self, other)]
        rows = [np.searchsorted(true, part.true)[coo.row] for part, coo in parts]
        columns = [np.searchsorted(pred, part.pred)[coo.col] for part, coo in parts]
        counts = np.concatenate([coo.data for _, coo in parts])
        shape = (len(true), len(pred))
        return Contingency(
            true,
            pred,
            _sparse_sum(counts, np.concatenate(rows), np.concatenate(columns), shape),
        )


def _sparse_sum(
    counts: NDArray[np.int64], rows: NDArray, columns: NDArray, shape: tuple[int, int]
) -> csr_array:
    """Return a sparse matrix in which counts at the same place are added."""
    return coo_array((counts, (rows, columns)), shape=shape).tocsr()


def contingency(labels_true: Any, labels_pred: Any) -> Contingency:
    """Count the pairs of two labelings, in one compute if either is lazy."""
    true = as_labels(labels_true, "labels_true")
    pred = as_labels(labels_pred, "labels_pred")
    # Lengths of the partitions of a dask DataFrame are unknown.
    if isinstance(pred, np.ndarray) and _is_unmatchable(true):
        true = in_memory(true)
    if isinstance(true, np.ndarray) and _is_unmatchable(pred):
        pred = in_memory(pred)
    lengths = true.shape[0], pred.shape[0]
    if not np.isnan(lengths).any() and lengths[0] != lengths[1]:
        raise ValueError(
            f"labels_true and labels_pred differ in length: {lengths[0]} and {lengths[1]}."
        )
    if isinstance(true, np.ndarray) and isinstance(pred, np.ndarray):
        return _count_block(true, pred)
    true, pred = _match_blocks(true, pred)
    pairs = zip(
        delayed_blocks(true, together=True), delayed_blocks(pred, together=True), strict=True
    )
    return tree_reduce(_count_block, list(pairs), (), True, "agreement")


def as_labels(labels: Any, name: str) -> Any:
    """Return labels as a one-dimensional numpy or dask array; lazy ones stay lazy."""
    if not is_lazy(labels):
        labels = np.asarray(labels)
    # The attribute is looked up in the type, since a Delayed object claims to have every attribute.
    elif not hasattr(type(labels), "ndim"):
        raise TypeError(
            f"{name} must be an array, a list or a dask array; got {type(labels).__name__}."
        )
    if labels.ndim != 1:
        raise ValueError(f"{name} must be 1D, got {labels.ndim}D.")
    if hasattr(labels, "to_dask_array"):
        if not isinstance(labels.dtype, np.dtype):
            labels = labels.astype(object)
        return array_of_frame(labels)
    if not isinstance(labels, np.ndarray | da.Array):
        labels = da.from_array(labels, name=False)
    return labels


def _is_unmatchable(labels: NDArray | da.Array) -> bool:
    """Return whether labels have several blocks of unknown lengths."""
    return is_dask_array(labels) and np.isnan(labels.shape[0]) and labels.numblocks[0] > 1


def _match_blocks(true: Any, pred: Any) -> tuple[da.Array, da.Array]:
    """Return both labelings as dask arrays whose blocks hold the same rows."""
    if isinstance(true, np.ndarray):
        true = _chunked_like(true, pred)
    if isinstance(pred, np.ndarray):
        pred = _chunked_like(pred, true)
    if np.isnan(true.shape[0]) or np.isnan(pred.shape[0]):
        if true.numblocks != pred.numblocks:
            raise ValueError(
                "labels_true and labels_pred cannot be matched: chunk sizes are unknown and they "
                f"have {true.numblocks[0]} and {pred.numblocks[0]} blocks. Call "
                "compute_chunk_sizes() on the one whose sizes are unknown."
            )
        return true, pred
    finer = max(true.chunks, pred.chunks, key=lambda chunks: len(chunks[0]))
    return true.rechunk(finer), pred.rechunk(finer)


def _chunked_like(labels: NDArray, other: da.Array) -> da.Array:
    """Return labels in memory with the chunks of others; one chunk if these are unknown."""
    chunks = -1 if np.isnan(other.shape[0]) else other.chunks
    # Without `name`, dask would hash all labels.
    return da.from_array(labels, chunks=chunks, name=False)


def _count_block(labels_true: Any, labels_pred: Any) -> Contingency:
    """Count the pairs of one block; raise if lengths differ or labels are not finite."""
    true, pred = np.asarray(labels_true), np.asarray(labels_pred)
    if len(true) != len(pred):
        raise ValueError(
            f"labels_true and labels_pred differ in length within a block: {len(true)} and "
            f"{len(pred)}. Where chunk sizes are unknown, blocks are matched one to one; "
            "compute_chunk_sizes() on both lets their chunks differ."
        )
    for name, labels in (("labels_true", true), ("labels_pred", pred)):
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise ValueError(f"{name} contains NaN or infinity, which are no labels.")
    return Contingency.of(true, pred)


def _frequencies(
    table: csr_array,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the frequency of each pair that occurs, and those of its two labels."""
    n_samples = table.sum()
    pairs = table.tocoo()
    return (
        pairs.data / n_samples,
        table.sum(axis=1)[pairs.row] / n_samples,
        table.sum(axis=0)[pairs.col] / n_samples,
    )


def _mutual_information(table: csr_array) -> float:
    """Compute the mutual information in nats."""
    largest = int(table.sum(axis=1).max()) * int(table.sum(axis=0).max())
    if largest <= np.iinfo(np.int64).max:
        return mutual_info_score(None, None, contingency=table)
    # scikit-learn multiplies cluster sizes in 64 bits, which overflow for billions of rows.
    joint, of_true, of_pred = _frequencies(table)
    return max(0.0, float(rel_entr(joint, of_true * of_pred).sum()))


def _sum_of_squares(counts: NDArray[np.int64]) -> int:
    """Sum squares exactly, in Python integers, because 64 bits may overflow."""
    return sum(count * count for count in counts.tolist())
