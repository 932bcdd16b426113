"""Scores of one clustering from rows and labels, for tables of any size.

Rows and labels may be numpy or dask; the active scheduler visits each block once per pass. Rows
with negative labels (outliers, rows without any value) are left out. Silhouettes also take a model
in place of labels, and then measure distances as it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.metrics import pairwise_distances, silhouette_samples

from daskmm._dask import da
from daskmm.data.blocks import (
    Position,
    as_dask_array,
    check_columns,
    is_frame,
    is_lazy,
    refuse_other_order,
)
from daskmm.data.foreign import unwrapped
from daskmm.data.lazy import delayed_blocks, in_memory, sized
from daskmm.data.names import counted
from daskmm.data.rasters import Raster, pixels_of
from daskmm.data.sparse import has_sparse_columns, is_sparse, joined_rows, taken_rows
from daskmm.data.validation import check_finite
from daskmm.data.variables import header_of
from daskmm.engine.passes import tree_reduce
from daskmm.metrics.agreement import as_labels

FloatArray = NDArray[np.float64]

# 2^64 divided by the golden ratio; its multiples are spread evenly.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Number of distances in memory at once.
_DISTANCES = 1 << 22


class Estimate(float):
    """A score, with its standard error as an estimate of the score of the whole population.

    Attributes
    ----------
    standard_error : float
        The standard error.
    """

    standard_error: float

    def __new__(cls, value: float, standard_error: float) -> Self:
        """Return a number with a standard error."""
        score = super().__new__(cls, value)
        score.standard_error = float(standard_error)
        return score

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (float(self), self.standard_error)

    def __repr__(self) -> str:
        return f"Estimate({float(self)!r}, standard_error={self.standard_error!r})"


def calinski_harabasz_score(X: Any, labels: Any) -> float:
    """Compute the ratio of the variances between and within clusters, per degree of freedom.

    The score equals :func:`sklearn.metrics.calinski_harabasz_score`, in one pass.

    Parameters
    ----------
    X : array-like, dask Array or dask DataFrame of shape (n_samples, n_features)
        The rows, or an xarray object whose pixels are the rows, with labels on its grid.
    labels : array-like, dask Array or Series of shape (n_samples,), or DataArray on the grid
        Cluster of each row, an integer; rows with negative labels are left out.

    Returns
    -------
    float
        The score; larger is better.

    Raises
    ------
    ValueError
        If there are fewer than 2 clusters, or as many as rows, or `X` and `labels` do not match.

    References
    ----------
    Caliński & Harabasz, "A dendrite method for cluster analysis", Comm. in Statistics 3, 1974.
    """
    found = _clusters(X, labels)
    k, n = len(found.labels), found.counts.sum()
    mean = found.counts @ found.means / n
    between = found.counts @ np.square(found.means - mean).sum(axis=1)
    within = found.scatter.sum()
    return 1.0 if within == 0.0 else float(between * (n - k) / (within * (k - 1.0)))


def simplified_silhouette_score(X: Any, labels: Any, *, centers: Any = None) -> Estimate:
    """Compute the silhouette with distances to centres in place of mean distances to rows.

    Parameters
    ----------
    X, labels
        They have the meaning that :func:`silhouette_score` gives them. With a model, distances
        are those to its centres.
    centers : array-like of shape (n_clusters, n_features), optional
        Centres of cluster 0, 1 and so on; by default the means, which take another pass.

    Returns
    -------
    Estimate
        Mean of (b − a) / max(a, b) over all rows, where a is the distance to the row's own centre
        and b the distance to the nearest other centre. It is between −1 and 1; larger is better.

    References
    ----------
    Hruschka, de Castro & Campello, "Evolutionary algorithms for clustering gene-expression data",
    ICDM 2004.
    """
    X, labels, model = _with_model(X, labels)
    if model is not None and centers is not None:
        raise ValueError("A model has centers of its own: give it without centers.")
    centers = centers if model is None else model.cluster_centers_
    if centers is None:
        found = _clusters(X, labels)
        names, centers = found.labels, found.means
    else:
        centers = np.asarray(centers, dtype=np.float64)
        names = np.arange(len(centers))
        if len(centers) < 2:
            raise ValueError("A silhouette needs at least 2 centers.")
    if model is None:
        sums = _reduced(_silhouettes, X, labels, names, centers)
    else:
        sums = _reduced(_model_silhouettes, model._clusters().unsquared_distances(X), None)
    n, total, squares = sums
    mean = total / n
    return Estimate(float(mean), float(np.sqrt(max(squares / n - mean**2, 0.0) / n)))


def silhouette_score(
    X: Any, labels: Any, *, sample_size: int = 5_000, metric: str = "euclidean"
) -> Estimate:
    """Compute the mean silhouette on a sample, in one pass over the rows.

    The score equals :func:`sklearn.metrics.silhouette_score` of the sample, which is spread evenly
    over the table.

    With a model in place of labels, rows are measured as the model measures them: with its scale,
    feature weights and distortion. It may be fitted to sparse rows, mixed columns or missing
    values. Model and rows may also be given in the order in which scikit-learn calls scorers, so
    ``GridSearchCV(KMeans(), grid, scoring=silhouette_score)`` works. Different scales are different
    yardsticks, so compare models of the same scale and features.

    Parameters
    ----------
    X : array-like, dask Array or dask DataFrame of shape (n_samples, n_features)
        The rows; with a model, whatever its `predict` takes. Or an xarray object whose pixels are
        the rows, with labels on its grid.
    labels : array-like, dask Array or Series of shape (n_samples,), or fitted estimator
        Cluster of each row, an integer; rows with negative labels are left out. Or a model with
        centres, which predicts the labels.
    sample_size : int, default=5000
        Number of rows between which all distances are computed.
    metric : str, default="euclidean"
        A metric of :func:`sklearn.metrics.pairwise_distances`; a model has its own.

    Returns
    -------
    Estimate
        The score, with the standard error of the mean over the sampled rows.

    Notes
    -----
    If values are missing, the distance of two rows is summed over the features that both have, and
    scaled up to the weight of all features, as in
    :func:`sklearn.metrics.pairwise.nan_euclidean_distances`.

    References
    ----------
    Rousseeuw, "Silhouettes", J. of Computational and Applied Mathematics 20, 1987.
    """
    X, labels, model = _with_model(X, labels)
    if model is not None:
        sampled, distances = model._clusters().between(sampled_table(X, sample_size))
        _check_clusters(len(np.unique(sampled)), len(sampled))
        values = _measured_silhouettes(sampled, distances)
    else:
        sample: _Sample = _reduced(_sampled, X, labels, int(sample_size)).in_order()
        _check_clusters(len(np.unique(sample.labels)), len(sample.labels))
        values = silhouette_samples(sample.rows, sample.labels, metric=metric)
    return Estimate(float(values.mean()), float(values.std() / np.sqrt(len(values))))


def _measured_silhouettes(labels: NDArray, distances: Callable[[slice], FloatArray]) -> FloatArray:
    """Return the silhouettes of rows, given a function for the distances of some rows to all.

    It holds the distances of a slice of the rows; scikit-learn's function takes those of all rows.
    """
    names, own = np.unique(labels, return_inverse=True)
    n, sizes = len(own), np.bincount(own)
    member = csr_array((np.ones(n), (own, np.arange(n))), (len(names), n))
    found = []
    for start in range(0, n, step := max(1, _DISTANCES // n)):
        apart = distances(slice(start, start + step))
        places, mine = np.arange(len(apart)), own[start : start + step]
        # Divergences are measured to centres inside the domain, so a row may be apart from itself.
        apart[places, start + places] = 0.0
        sums = (member @ apart.T).T
        inner = sums[places, mine] / np.maximum(sizes[mine] - 1, 1)
        means = sums / sizes
        means[places, mine] = np.inf
        margins = relative_margins(inner, means.min(axis=1))
        found.append(np.where(sizes[mine] > 1, margins, 0.0))
    return np.concatenate(found)


def sampled_table(X: Any, most: int) -> Any:
    """Draw some rows, spread evenly over a table of any kind, in one pass.

    Returns
    -------
    ndarray, sparse array or pandas DataFrame
        The rows, in memory.
    """
    rows = _reduced(_sampled, X, None, int(most)).in_order().rows
    names = getattr(header_of(X), "columns", None)  # a dask array may carry names
    if names is None or not isinstance(rows, np.ndarray):
        return rows
    import pandas as pd

    return pd.DataFrame(rows, columns=names)


def _with_model(X: Any, labels: Any) -> tuple[Any, Any, Any]:
    """Return rows, labels and model; a model takes the place of labels, so one of these is None.

    The rows of a model that was fitted to a raster are the pixels.
    """
    if hasattr(X, "predict"):  # the order of scikit-learn's scorers
        X, labels = labels, X
    if not hasattr(labels, "predict"):
        return X, labels, None
    if not hasattr(labels, "_clusters"):
        tree = hasattr(labels, "leaves_")
        given = (
            "tree.leaves_" if tree else "its labels, as in silhouette_score(X, model.predict(X))"
        )
        raise TypeError(
            f"A {type(labels).__name__} does not measure distances from centres: give {given}."
        )
    raster = pixels_of(X, None, getattr(labels, "feature_dim_", None))
    return (raster.named if isinstance(raster, Raster) else X), None, labels


def _pixels(X: Any, labels: Any) -> tuple[Any, Any]:
    """Return the pixels of a raster and their labels as rows; other rows and labels unchanged.

    The labels lie on the raster's grid, so its other dimension is that of the features.
    """
    if not (hasattr(X, "dims") and hasattr(labels, "dims")):
        return X, labels
    features = set(X.dims) - set(labels.dims)
    raster = pixels_of(X, features.pop() if len(features) == 1 else None)
    return (raster.table, raster.rows_of(labels)) if isinstance(raster, Raster) else (X, labels)


@dataclass(frozen=True)
class _Clusters:
    """Size, mean and sum of squared deviations of each cluster."""

    labels: NDArray[np.int64]
    counts: FloatArray
    means: FloatArray
    scatter: FloatArray

    def __add__(self, other: Self) -> Self:
        labels = np.union1d(self.labels, other.labels)
        k, p = len(labels), self.means.shape[1]
        counts, means, scatter = np.zeros(k), np.zeros((k, p)), np.zeros(k)
        for part in (self, other):
            # The pairwise update of Chan, Golub & LeVeque (1983).
            at = np.searchsorted(labels, part.labels)
            total = counts[at] + part.counts
            delta = part.means - means[at]
            scatter[at] += part.scatter + np.square(delta).sum(axis=1) * (
                counts[at] * part.counts / total
            )
            means[at] += delta * (part.counts / total)[:, None]
            counts[at] = total
        return type(self)(labels, counts, means, scatter)


def _clusters(X: Any, labels: Any) -> _Clusters:
    found: _Clusters = _reduced(_block_clusters, X, labels)
    _check_clusters(len(found.labels), int(found.counts.sum()))
    return found


def _check_clusters(k: int, n: int) -> None:
    if not 2 <= k < n:
        raise ValueError(
            f"A score of {counted(n, 'row')} needs 2 to {max(n - 1, 2)} clusters, not {k}."
        )


def _block_clusters(block: int, start: int, X: Any, labels: Any) -> _Clusters:
    rows, labels = _checked(block, start, X, labels)
    names, own = np.unique(labels, return_inverse=True)
    counts = np.bincount(own, minlength=len(names)).astype(np.float64)
    member = csr_array((np.ones(len(own)), (own, np.arange(len(own)))), (len(names), len(own)))
    # Sums of deviations from a row lose no digits far from the origin.
    origin = rows[:1]
    means = origin + (member @ (rows - origin)) / counts[:, None]
    squares = np.square(rows - means[own]).sum(axis=1)
    scatter = np.bincount(own, squares, len(names)).astype(np.float64)
    return _Clusters(names, counts, means, scatter)


def _silhouettes(
    block: int, start: int, X: Any, labels: Any, names: NDArray[np.int64], centers: FloatArray
) -> FloatArray:
    rows, labels = _checked(block, start, X, labels)
    # Distances by products lose no digits near the origin.
    origin = centers.mean(axis=0)
    rows, centers = rows - origin, centers - origin
    own = np.searchsorted(names, labels)
    if len(labels) and (own.max() >= len(names) or (names[own] != labels).any()):
        raise ValueError(f"labels contain numbers that have no centre, such as {labels.max()}.")
    values = []
    step = max(1, _DISTANCES // len(centers))
    for part in (slice(at, at + step) for at in range(0, len(rows), step)):
        distances = pairwise_distances(rows[part], centers)
        places = np.arange(len(distances))
        inner = distances[places, own[part]]
        distances[places, own[part]] = np.inf
        outer = distances.min(axis=1)
        values.append(relative_margins(inner, outer))
    found = np.concatenate([np.empty(0), *values])
    return np.array([len(found), found.sum(), found @ found])


def _model_silhouettes(block: int, start: int, distances: NDArray, labels: None) -> FloatArray:
    """Sum the silhouettes of rows, given their distances to the centres; NaN are left out."""
    nearest = np.partition(distances[~np.isnan(distances).any(axis=1)], 1, axis=1)
    found = relative_margins(nearest[:, 0], nearest[:, 1])
    return np.array([len(found), found.sum(), found @ found])


def relative_margins(inner: FloatArray, outer: FloatArray) -> FloatArray:
    """Return (b − a) / max(a, b) of distances a to the own centre and b to the next one."""
    widest = np.maximum(inner, outer)
    known = np.isfinite(widest) & (widest > 0)
    return np.divide(outer - inner, widest, out=np.zeros(len(inner)), where=known)


@dataclass(frozen=True)
class _Sample:
    """The rows with the lowest priorities; labels are None if they are not known."""

    most: int
    priorities: NDArray[np.uint64]
    rows: Any
    labels: Any

    def __add__(self, other: Self) -> Self:
        priorities = np.concatenate([self.priorities, other.priorities])
        labels = None if self.labels is None else np.concatenate([self.labels, other.labels])
        both = type(self)(self.most, priorities, joined_rows([self.rows, other.rows]), labels)
        return both.in_order()

    def in_order(self) -> Self:
        """Return the rows that are kept, in the order of their priorities."""
        kept = np.argsort(self.priorities, kind="stable")[: self.most]
        labels = None if self.labels is None else self.labels[kept]
        return type(self)(self.most, self.priorities[kept], taken_rows(self.rows, kept), labels)


def _sampled(block: int, start: int, X: Any, labels: Any, most: int) -> _Sample:
    if labels is None:
        rows = X if hasattr(X, "iloc") or is_sparse(X) else np.asarray(X)
    else:
        rows, labels = _checked(block, start, X, labels)
    places = np.arange(start + 1, start + 1 + rows.shape[0], dtype=np.uint64)
    return _Sample(most, places * _GOLDEN, rows, labels).in_order()


def _checked(block: int, start: int, X: Any, labels: Any) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return the rows of a block and their labels, except those with negative labels."""
    with _pointing_to_models():
        if is_sparse(X):
            raise TypeError("Scores of labels take no sparse rows")
        rows, labels = np.asarray(X, dtype=np.float64), np.asarray(labels)
    if rows.ndim != 2 or len(rows) != len(labels):
        raise ValueError(
            f"X and labels do not match in block {block}: {rows.shape} and {labels.shape}."
        )
    if labels.dtype.kind not in "iub":
        raise ValueError(f"labels must be integers, got {labels.dtype}.")
    held = labels >= 0
    rows, labels = rows[held], labels[held].astype(np.int64)
    check_finite(rows, Position(block, start))
    return rows, labels


def _reduced(function: Any, X: Any, labels: Any, *shared: Any) -> Any:
    """Sum ``function(block, start, rows, labels, *shared)`` over all blocks of rows.

    Labels may be None; then a frame may have columns of any kind.
    """
    if hasattr(labels, "predict"):
        raise TypeError("This score takes labels. Silhouettes take a model in their place.")
    X, labels = _pixels(X, labels)
    # A mixed model takes frames of sparse columns as frames.
    X = X if labels is None and has_sparse_columns(X) else unwrapped(X)
    if labels is not None and is_frame(X):
        with _pointing_to_models():
            check_columns(X.dtypes)
    refuse_other_order(X, labels, "labels")
    own = None if labels is None else as_labels(labels, "labels")
    if not is_lazy(X):
        return function(0, 0, X, None if own is None else in_memory(own), *shared)
    if own is not None:
        X, own = _matched(X, own)
    if own is None and is_frame(X):
        rows, lengths = X.to_delayed(), [np.nan]
    else:
        table = as_dask_array(X)
        rows, lengths = delayed_blocks(table).ravel(), table.chunks[0]
    known = not np.isnan(lengths).any()
    starts = np.cumsum([0, *lengths[:-1]]) if known else np.zeros(len(rows))
    blocks = [None] * len(rows) if own is None else delayed_blocks(own).ravel()
    arguments = [
        (number, int(start), *block)
        for number, (start, *block) in enumerate(zip(starts, rows, blocks, strict=True))
    ]
    return tree_reduce(function, arguments, shared, True, "quality")


@contextmanager
def _pointing_to_models() -> Iterator[None]:
    """If columns are not numbers, add to the error that a model can measure them."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{str(error).rstrip('.')}. A model measures columns of any kind: "
            "silhouette_score(X, model), or simplified_silhouette_score(X, model)."
        ) from error


def _matched(X: Any, labels: Any) -> tuple[da.Array, da.Array]:
    """Return lazy rows, and their labels, with blocks of the same rows."""
    table = as_dask_array(X)
    if isinstance(labels, np.ndarray):
        table = sized(table) if np.isnan(table.shape[0]) else table
        labels = da.from_array(labels, chunks=-1, name=False)
    if np.isnan(table.shape[0]) or np.isnan(labels.shape[0]):
        if table.numblocks[0] != labels.numblocks[0]:
            raise ValueError(
                f"X and labels cannot be matched: chunk sizes are unknown, and they have "
                f"{table.numblocks[0]} and {labels.numblocks[0]} blocks."
            )
        return table, labels
    if table.shape[0] != labels.shape[0]:
        raise ValueError(f"X and labels differ in length: {table.shape[0]} and {labels.shape[0]}.")
    return table, labels.rechunk((table.chunks[0],))
