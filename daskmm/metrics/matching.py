"""Match the clusters of two labelings one to one by the rows that they share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from daskmm.metrics.agreement import contingency

FloatArray = NDArray[np.float64]


class Matching(NamedTuple):
    """Clusters of two labelings of the same rows.

    Attributes
    ----------
    first, second : ndarray
        The labels that occur in each labeling.
    table : ndarray of shape (len(first), len(second)), int64
        Number of rows with each pair of labels.
    pairs : ndarray of shape (n_pairs, 2)
        Indices into `first` and `second` of the matched clusters, in the order of `first`. The
        matching makes the sum of `jaccard` as large as possible. Clusters without a partner, or
        without rows shared with it, are left out.
    jaccard : ndarray of shape (n_pairs,)
        Number of rows in both clusters of a pair, divided by the number in at least one.
    """

    first: NDArray
    second: NDArray
    table: NDArray[np.int64]
    pairs: NDArray[np.int64]
    jaccard: FloatArray


def match_clusters(labels_a: Any, labels_b: Any) -> Matching:
    """Match the clusters of two labelings, such as those of two fits, one to one.

    Parameters
    ----------
    labels_a, labels_b : array-like or dask array of shape (n_samples,)
        As in :func:`contingency_matrix`.

    Returns
    -------
    Matching
        The matching, which :func:`daskmm.plot.matching` draws.

    Raises
    ------
    ValueError
        As in :func:`contingency_matrix`.
    """
    found = contingency(labels_a, labels_b)
    table = found.table.toarray()
    similar = jaccard_matrix(table)
    pairs = np.stack(linear_sum_assignment(similar, maximize=True), axis=1)
    shared = similar[pairs[:, 0], pairs[:, 1]]
    kept = shared > 0
    return Matching(found.true, found.pred, table, pairs[kept], shared[kept])


def jaccard_matrix(table: NDArray[np.int64]) -> FloatArray:
    """Return the Jaccard similarity of each pair of clusters."""
    union = table.sum(axis=1, keepdims=True) + table.sum(axis=0, keepdims=True) - table
    return np.asarray(table / np.maximum(union, 1))
