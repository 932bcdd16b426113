"""Coordinates of the rows of a wide table in the space that they span.

A table of n rows and many more features lies in at most n dimensions. Sums of squared differences
between rows, and between rows and their means, are the same in an orthonormal basis of that space,
and each of them then costs n products instead of one per feature.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf

FloatArray = NDArray[np.float64]

# A wide table has at least this many features, and this many per row. With more than _MOST_ROWS
# rows, the matrix of their products costs more than it saves.
_LEAST_FEATURES, _FEATURES_PER_ROW, _MOST_ROWS = 1000, 4, 2000
# Smaller products lose digits to underflow.
_LEAST_PRODUCT = 1e-250


def is_wide(n_rows: int, n_features: int) -> bool:
    """Return whether a table is so wide that `in_span` saves time."""
    wide = n_features >= max(_LEAST_FEATURES, _FEATURES_PER_ROW * n_rows)
    return wide and 0 < n_rows <= _MOST_ROWS


class Span(NamedTuple):
    """The space that some rows span."""

    coordinates: FloatArray  # coordinates of the rows, (n_rows, n_dimensions)
    # Indices of rows that span the space, (n_dimensions,); their coordinates are a lower triangular
    # matrix.
    basis: NDArray[np.int64]

    def to_features(self, points: FloatArray, rows: FloatArray) -> FloatArray:
        """Return points, given by their coordinates in the space, in the features of `rows`."""
        shares = np.zeros((len(points), len(rows)))
        triangle = self.coordinates[self.basis]
        shares[:, self.basis] = solve_triangular(triangle, points.T, lower=True, trans="T").T
        return np.asarray(shares @ rows)


def span_of(rows: FloatArray) -> Span | None:
    """Return the space that the rows of a wide table span.

    The coordinates are the rows of a factor L of the matrix of the rows' products, X Xᵀ = L Lᵀ,
    which Cholesky's algorithm with pivots computes. Rows are first scaled to length 1, so that the
    error of each row is proportional to its length.

    Rows are centred near the origin, since products of rows far from it cancel. The result is None
    if the rows are not `is_wide`, have missing values, or their squares overflow or all underflow.
    """
    if not is_wide(*rows.shape):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        products = rows @ rows.T
    squares = products.diagonal()
    if not _LEAST_PRODUCT < squares.max() < np.inf:
        return None
    lengths = np.sqrt(squares)
    unit = np.where(lengths > 0, lengths, 1.0)
    factor, pivots, rank, _ = dpstrf(products / unit / unit[:, None], lower=1)
    order = pivots.astype(np.int64) - 1
    coordinates = np.empty((len(rows), rank))
    coordinates[order] = np.tril(factor)[:, :rank]
    coordinates *= lengths[:, None]
    return Span(coordinates, order[:rank])


def in_span(rows: FloatArray) -> FloatArray:
    """Return the coordinates of `span_of`, or the rows themselves if that returns None."""
    span = span_of(rows)
    return rows if span is None else span.coordinates
