"""Connected components of points closer than a tolerance, without an n × n matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from daskmm.numerics.distances import squared_distances
from daskmm.numerics.rows import tiles

FloatArray = NDArray[np.float64]
Edges = NDArray[np.intp]

_TILE = 256


def projection(n_features: int) -> FloatArray:
    """Return a unit vector in an arbitrary, fixed direction.

    Points that lie close together also have close projections.
    """
    direction = np.random.default_rng(0).normal(size=n_features)
    return np.asarray(direction / np.linalg.norm(direction))


def close_edges(a: FloatArray, b: FloatArray, tol: float) -> Edges:
    """Return edges that connect the same points as all edges of at most `tol` between `a` and `b`.

    Only tiles of points whose projections are near are compared, and each tile keeps only as many
    edges as connect its components.

    `tol` is a Euclidean distance. The edges, (n_edges, 2), are indices into `a` and `b`.
    """
    direction = projection(a.shape[1])
    along_a, along_b = a @ direction, b @ direction
    order_a, order_b = np.argsort(along_a, kind="stable"), np.argsort(along_b, kind="stable")
    # Rounding of the projections must not lose a pair.
    reach = tol + 1e-12 * (np.abs(along_a).max(initial=0.0) + np.abs(along_b).max(initial=0.0))
    edges = [np.empty((0, 2), dtype=np.intp)]
    for rows in tiles(len(a), _TILE):
        i = order_a[rows]
        first = np.searchsorted(along_b[order_b], along_a[i[0]] - reach)
        last = np.searchsorted(along_b[order_b], along_a[i[-1]] + reach, side="right")
        for others in tiles(int(last - first), _TILE):
            j = order_b[first:last][others]
            near = squared_distances(a[i], b[j]) <= tol**2
            edges.append(_spanning(near, i, j))
    return np.concatenate(edges)


def _spanning(near: NDArray[np.bool_], i: NDArray[np.intp], j: NDArray[np.intp]) -> Edges:
    """Return few edges with the same components as all edges of a tile."""
    row, column = np.nonzero(near)
    if len(row) <= len(i) + len(j):
        return np.column_stack([i[row], j[column]])
    n = len(i) + len(j)
    graph = coo_array((np.ones(len(row), dtype=np.int8), (row, column + len(i))), (n, n))
    kept = minimum_spanning_tree(graph.tocsr()).tocoo()
    return np.column_stack([i[kept.row], j[kept.col - len(i)]])


def components_of(n: int, edges: Edges) -> tuple[int, NDArray[np.int32]]:
    """Return the number of connected components, and the component of each of `n` points."""
    graph = coo_array((np.ones(len(edges), dtype=np.int8), (edges[:, 0], edges[:, 1])), (n, n))
    count, labels = connected_components(graph, directed=False)
    return int(count), labels
