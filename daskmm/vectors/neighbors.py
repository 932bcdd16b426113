"""Recall of lists, near-duplicates within clusters, and rows that represent clusters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from daskmm.data.blocks import Block
from daskmm.data.lazy import in_memory
from daskmm.data.names import counted
from daskmm.numerics.rows import tiles
from daskmm.vectors.assigned import Clusters, checked_ids, complete, named, passes_over, table_of
from daskmm.vectors.lists import SortedRows

FloatArray = NDArray[np.float64]

# Number of queries that are drawn from a table.
_QUERIES = 1_000
# Rows and columns of a tile of distances between rows.
_TILE = 2_048


@dataclass(frozen=True)
class Recall:
    """Sizes of lists, and the share of neighbours that a search in some of them finds.

    Attributes
    ----------
    sizes : ndarray of shape (n_clusters,), int64
        Number of rows in each list.
    variation : float
        Coefficient of variation of the sizes: their standard deviation divided by their mean.
    imbalance_factor : float
        k Σ sizes² / (Σ sizes)² for k lists, as faiss defines it: 1 for equal lists, k for one.
    recall : dict of int to float
        Mean share of the k nearest rows of a query that lie in the `n_probe` lists with the nearest
        centres, for each number of lists.
    scanned : dict of int to float
        Mean share of all rows that these lists hold.
    """

    sizes: NDArray[np.int64]
    variation: float
    imbalance_factor: float
    recall: dict[int, float]
    scanned: dict[int, float]

    def __repr__(self) -> str:
        found = ", ".join(
            f"{n} lists: {share:.3f} of {self.scanned[n]:.2%} of the rows"
            for n, share in self.recall.items()
        )
        return (
            f"Recall({found}; {len(self.sizes):,} lists of {self.sizes.min():,} to "
            f"{self.sizes.max():,} rows, imbalance factor {self.imbalance_factor:.3g})"
        )


def recall(
    model: Any, X: Any, queries: Any = None, *, n_probes: Sequence[int] = (1, 4, 16), k: int = 10
) -> Recall:
    """Measure how balanced the clusters are as lists, and how many neighbours a search finds.

    All rows are compared with the queries in one pass. A search that visits a list finds those of
    the k nearest rows that lie in it, so no index is built.

    Parameters
    ----------
    model : fitted estimator
        Estimator with `predict` and ``cluster_centers_``.
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        The rows.
    queries : array-like of shape (n_queries, n_features), optional
        Rows whose neighbours are sought. By default they are 1,000 rows of `X`, drawn in another
        pass, and a row is no neighbour of itself.
    n_probes : sequence of int, default=(1, 4, 16)
        Numbers of lists that a search visits.
    k : int, default=10
        Number of neighbours of each query, as the recall@k counts them. Neighbours are nearest in
        the Euclidean distance of the model's features, or by their cosine.

    Returns
    -------
    Recall

    Raises
    ------
    ValueError
        If a query has fewer than k neighbours, or values may be missing.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    clusters, passes = complete(Clusters.of(model)), passes_over(model, X)
    n_rows = passes.blocks.layout.n_rows or 0
    own: NDArray[np.int64] | None = None
    if queries is None:
        rng = np.random.default_rng(0)
        own = np.sort(rng.choice(n_rows, min(_QUERIES, n_rows), replace=False))
        queries = np.concatenate(passes.reduce(_rows_at, own))
    else:
        queries = in_memory(table_of(model, queries))
    ranks = clusters.to_centers(queries).argsort(axis=1, kind="stable").argsort(axis=1)
    found = passes.reduce(_nearest_rows, clusters, clusters.embedded(queries), own, int(k))
    sizes, total = found.sizes, found.sizes.sum()
    if (found.labels < 0).any():
        raise ValueError(f"Queries have fewer than k = {k} neighbours among {total} rows.")
    at = np.take_along_axis(ranks, found.labels, axis=1)
    held = {n: (sizes * (ranks < n)).sum(axis=1) / total for n in n_probes}
    return Recall(
        sizes,
        float(sizes.std() / sizes.mean()),
        float(len(sizes) * np.square(sizes / total).sum()),
        {int(n): float((at < n).mean()) for n in n_probes},
        {int(n): float(share.mean()) for n, share in held.items()},
    )


def _rows_at(block: Block, numbers: NDArray[np.int64]) -> list[NDArray]:
    """Return the rows of a block that have these numbers, given in ascending order."""
    start = block.position.start
    low, high = np.searchsorted(numbers, (start, start + len(block.rows)))
    return [block.rows[numbers[low:high] - start]]


@dataclass(frozen=True)
class _Found:
    """The nearest rows of each query so far, and the sizes of the lists."""

    sizes: NDArray[np.int64]
    distances: FloatArray
    labels: NDArray[np.int32]

    def __add__(self, other: Self) -> Self:
        return self.with_rows(other.distances, other.labels, other.sizes)

    def with_rows(
        self, distances: FloatArray, labels: NDArray[np.int32], sizes: NDArray[np.int64]
    ) -> Self:
        """Return the nearest among these and other rows, given the list sizes of the other rows."""
        k = self.distances.shape[1]
        distances = np.hstack([self.distances, distances])
        labels = np.hstack([self.labels, labels])
        kept = np.argpartition(distances, k - 1, axis=1)[:, :k]
        distances = np.take_along_axis(distances, kept, axis=1)
        labels = np.take_along_axis(labels, kept, axis=1)
        return type(self)(self.sizes + sizes, distances, labels)


def _nearest_rows(
    block: Block,
    clusters: Clusters,
    queries: FloatArray,
    own: NDArray[np.int64] | None,
    k: int,
) -> _Found:
    """Find the rows of a block that are nearest to each query, by their clusters.

    `own` are the numbers of the rows that the queries are, if they are rows of the table.
    """
    n = len(queries)
    none = np.zeros(clusters.n_clusters, dtype=np.int64)
    found = _Found(none, np.full((n, k), np.inf), np.full((n, k), -1, dtype=np.int32))
    labels = clusters.nearest(block)[0]
    held = np.flatnonzero(labels >= 0)
    for part in tiles(len(held), max(_TILE**2 // max(n, 1), 16)):
        some = held[part]
        z = clusters.embedded(block.rows[some])
        # The squared norm of the query is left out, since it is the same for all rows.
        distances = np.einsum("ij,ij->i", z, z) - 2.0 * (queries @ z.T)
        if own is not None:
            places = np.searchsorted(some, own - block.position.start)
            same = np.flatnonzero(np.isin(own - block.position.start, some))
            distances[same, places[same]] = np.inf
        each = np.broadcast_to(labels[some], distances.shape)
        sizes = np.bincount(labels[some], minlength=clusters.n_clusters)
        found = found.with_rows(distances, each, sizes)
    return found


@dataclass(frozen=True)
class NearDuplicates:
    """Pairs of rows of one cluster that are nearly the same, and which rows to keep.

    Attributes
    ----------
    pairs : structured ndarray of shape (n_pairs,)
        Ids ``first`` and ``second`` of each pair, in the order of the table, and its
        ``similarity`` (a cosine) or ``distance`` (Euclidean). `pandas.DataFrame` takes it.
    counts : ndarray of shape (n_clusters,), int64
        Number of pairs in each cluster.
    keep : ndarray of shape (n_samples,), bool
        Mask of the rows without duplicates and, in each group of rows that pairs connect, the one
        nearest to the centre.
    """

    pairs: NDArray
    counts: NDArray[np.int64]
    keep: NDArray[np.bool_]

    def __repr__(self) -> str:
        return (
            f"NearDuplicates({counted(len(self.pairs), 'pair')} in "
            f"{np.count_nonzero(self.counts):,} of {counted(len(self.counts), 'cluster')}; "
            f"{self.keep.sum():,} of {counted(len(self.keep), 'row')} to keep)"
        )


def near_duplicates(
    model: Any, X: Any, *, threshold: float | None = None, ids: Any = None
) -> NearDuplicates:
    """Find pairs of rows within a cluster that are nearly the same.

    Rows are first sorted by cluster on disk, in two passes, in the folder for temporary files. Then
    all rows of one cluster at a time are compared with each other in tiles, so memory is that of
    the largest cluster and of the pairs. Pairs of rows in different clusters are not found.

    Parameters
    ----------
    model : fitted estimator
        Estimator with `predict` and ``cluster_centers_``.
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        The rows.
    threshold : float, optional
        Least cosine of a pair, for a model with cosine distances; by default .95. For any other
        model it is the largest Euclidean distance of a pair, in the model's scales and weights of
        features, and must be given.
    ids : array-like or dask Array of shape (n_samples,), optional
        Id of each row; by default its number. Lazy ids are loaded into memory.

    Returns
    -------
    NearDuplicates

    Raises
    ------
    ValueError
        If a distance is not given as threshold, or values may be missing.
    """
    clusters = complete(Clusters.of(model))
    if threshold is None and not clusters.cosine:
        raise ValueError("threshold must be given for Euclidean distances; .95 is for cosines.")
    threshold = 0.95 if threshold is None else float(threshold)
    passes = passes_over(model, X)
    n_rows = passes.blocks.layout.n_rows or 0
    ids, keep = checked_ids(ids, n_rows), np.ones(n_rows, dtype=bool)
    value = "similarity" if clusters.cosine else "distance"
    kind = np.dtype(np.int64) if ids is None else ids.dtype
    dtype = np.dtype([("first", kind), ("second", kind), (value, np.float64)])
    counts = np.zeros(clusters.n_clusters, dtype=np.int64)
    pairs = [np.empty(0, dtype)]
    with tempfile.TemporaryDirectory(prefix="daskmm-lists-") as scratch:
        lists = SortedRows.of(passes, clusters, Path(scratch))
        for cluster, center in enumerate(clusters.centers):
            numbers, rows = lists.list_of(cluster)
            z = clusters.embedded(rows)
            first, second, values = _pairs_of(z, center, threshold, clusters.cosine)
            some = np.empty(len(values), dtype)
            some["first"], some["second"] = named(ids, numbers[first]), named(ids, numbers[second])
            some[value] = values
            pairs.append(some)
            counts[cluster] = len(values)
            keep[numbers[_repeated(z, center, first, second)]] = False
        del lists  # Windows removes no file that is mapped into memory
    return NearDuplicates(np.concatenate(pairs), counts, keep)


def _pairs_of(
    z: FloatArray, center: FloatArray, threshold: float, cosine: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]:
    """Return the places of both rows of each pair, and its cosine or its distance."""
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    found += _pairs_in_tiles(z, threshold) if cosine else _near_in_tiles(z - center, threshold)
    first, second, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((second, first))
    return first[order], second[order], values[order]


_Pairs = Iterator[tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]]


def _tiles_of_pairs(z: FloatArray) -> Iterator[tuple[int, int, FloatArray]]:
    """Yield inner products of rows tile by tile, with the place of the first row of each side."""
    for left in tiles(len(z), _TILE):
        for right in tiles(len(z), _TILE):
            if right.start >= left.start:
                yield left.start, right.start, z[left] @ z[right].T


def _pairs_in_tiles(z: FloatArray, threshold: float) -> _Pairs:
    """Yield pairs of directions of length 1/√2 whose cosine is large."""
    for left, right, products in _tiles_of_pairs(z):
        i, j = np.nonzero(products >= 0.5 * threshold)
        above = i + left < j + right
        i, j = i[above], j[above]
        # Rounding may take the cosine of equal rows above 1.
        yield i + left, j + right, np.minimum(2.0 * products[i, j], 1.0)


def _near_in_tiles(z: FloatArray, threshold: float) -> _Pairs:
    """Yield pairs of rows whose distance is small."""
    squares = np.einsum("ij,ij->i", z, z)
    # Products lose digits of small distances; candidates are measured again.
    slack = threshold**2 + 1e-12 * squares.max(initial=0.0)
    for left, right, products in _tiles_of_pairs(z):
        n, m = products.shape
        distances = squares[left : left + n, None] + squares[right : right + m] - 2.0 * products
        i, j = np.nonzero(distances <= slack)
        i, j = i + left, j + right
        i, j = i[i < j], j[i < j]
        exact = np.sqrt(np.square(z[i] - z[j]).sum(axis=1))
        near = exact <= threshold
        yield i[near], j[near], exact[near]


def _repeated(
    z: FloatArray, center: FloatArray, first: NDArray[np.int64], second: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows of each connected group except the one nearest to the centre."""
    n = len(z)
    graph = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(n, n))
    groups = connected_components(graph, directed=False)[1]
    order = np.lexsort((np.square(z - center).sum(axis=1), groups))
    return order[1:][groups[order[1:]] == groups[order[:-1]]]


def representatives(
    model: Any, X: Any, n_per_cluster: int = 5, *, ids: Any = None
) -> list[NDArray]:
    """Return the rows nearest to each centre, in one pass.

    Parameters
    ----------
    model : fitted estimator
        Estimator with `predict` and ``cluster_centers_``.
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        The rows.
    n_per_cluster : int, default=5
        Number of rows of each cluster; 1 for the row that stands for the centre.
    ids : array-like or dask Array of shape (n_samples,), optional
        Id of each row; by default its number. Lazy ids are loaded into memory.

    Returns
    -------
    list of ndarray
        Ids of the rows of each cluster, the nearest one first, in the model's distance; fewer for
        smaller clusters.
    """
    if n_per_cluster < 1:
        raise ValueError(f"n_per_cluster must be at least 1, got {n_per_cluster}.")
    clusters, passes = Clusters.of(model), passes_over(model, X, sparse=True)
    ids = checked_ids(ids, passes.blocks.layout.n_rows or 0)
    found = passes.reduce(_central_rows, clusters, int(n_per_cluster))
    ends = np.searchsorted(found.labels, np.arange(clusters.n_clusters + 1))
    parts = np.split(found.numbers, ends[1:-1])
    return [named(ids, numbers) for numbers in parts]


@dataclass(frozen=True)
class _Central:
    """The rows nearest to each centre so far, by cluster and distance."""

    most: int
    labels: NDArray[np.int32]
    distances: FloatArray
    numbers: NDArray[np.int64]

    def __add__(self, other: Self) -> Self:
        return self.of(
            self.most,
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.distances, other.distances]),
            np.concatenate([self.numbers, other.numbers]),
        )

    @classmethod
    def of(
        cls,
        most: int,
        labels: NDArray[np.int32],
        distances: FloatArray,
        numbers: NDArray[np.int64],
    ) -> Self:
        """Keep the nearest of some rows in each cluster."""
        order = np.lexsort((numbers, distances, labels))
        own = labels[order]
        rank = np.arange(len(own)) - np.searchsorted(own, own)
        kept = order[(rank < most) & (own >= 0)]
        return cls(most, labels[kept], distances[kept], numbers[kept])


def _central_rows(block: Block, clusters: Clusters, most: int) -> _Central:
    return _Central.of(most, *clusters.nearest(block), block.numbers)
