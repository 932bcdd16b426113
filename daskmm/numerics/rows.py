"""Transform the rows of a block to the coordinates of the model, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrmm

from daskmm.numerics.columns import MixedCoordinates
from daskmm.numerics.sparse_rows import SparseRows, dense, made_of, sums_of_rows

FloatArray = NDArray[np.float64]

# Bytes of the temporaries of a tile. Tiles that stay in a core's cache are fastest.
TILE_BYTES = 4 << 20
# Bytes of the temporaries of a tile of sparse rows. A tile is made dense if at least this share of
# its values is stored.
_SPARSE_BYTES, DENSE_FROM = 64 << 20, 0.25
# Bytes of a tile of lifted rows: the sums of thousands of clusters are added once per tile.
_LIFTED_BYTES = 32 << 20
# Sums of squares between this and its inverse have all their digits.
_LEAST_SQUARE = 1e-290


class Rows(Protocol):
    """Coordinates in which a model measures distances."""

    def to_model(self, rows: NDArray) -> FloatArray:
        """Transform rows of any numeric dtype to the model's coordinates: a new float64 array."""


@dataclass(frozen=True)
class Coordinates:
    """The model's coordinates z = (x − mean) / scale.

    The mean is subtracted because distances from matrix products lose digits far from the origin.
    Coordinates of sparse rows have a mean of 0, since the rows would become dense otherwise.
    Distances do not depend on the mean. `scale` is all ones unless the features are standardised.
    """

    # Shift and scale of each feature, in the input's units, (n_features,).
    mean: FloatArray
    scale: FloatArray

    @classmethod
    def identity(cls, n_features: int) -> Self:
        """Return coordinates that leave rows unchanged."""
        return cls(np.zeros(n_features), np.ones(n_features))

    def to_model(self, rows: NDArray) -> FloatArray:
        """Transform rows of any numeric dtype to the model's coordinates: a new float64 array.

        Sparse rows remain sparse.
        """
        if isinstance(rows, SparseRows):
            if self.mean.any():
                raise TypeError(
                    "Rows are sparse, but the model was fitted to dense ones. Give dense rows."
                )
            return rows.with_data(rows.data / self.scale[rows.indices])
        z = np.subtract(rows, self.mean, dtype=np.float64)
        z /= self.scale
        return z

    def to_input(self, rows: FloatArray) -> FloatArray:
        """Transform rows back to the input's units."""
        return rows * self.scale + self.mean


@dataclass(frozen=True)
class WhitenedCoordinates:
    """Coordinates z = (x − mean) W in which a Mahalanobis distance is Euclidean."""

    mean: FloatArray  # shift of each feature, in the input's units, (n_features,)
    # Lower triangular matrix W, where W Wᵀ is the matrix of the distance, (n_features, n_features).
    whitening: FloatArray

    @classmethod
    def of(cls, mean: FloatArray, precision: FloatArray) -> Self:
        """Return the coordinates of the distance (x − y)ᵀ P (x − y)."""
        return cls(mean, np.asarray(np.linalg.cholesky(precision), dtype=np.float64))

    @property
    def scale(self) -> FloatArray:
        """Ones, since features are not scaled one by one."""
        return np.ones_like(self.mean)

    @property
    def inverse(self) -> FloatArray:
        """W⁻¹."""
        return np.asarray(np.linalg.inv(self.whitening), dtype=np.float64)

    def to_model(self, rows: NDArray) -> FloatArray:
        """Transform rows of any numeric dtype to the model's coordinates: a new float64 array."""
        z = np.subtract(rows, self.mean, dtype=np.float64, order="C")
        # BLAS works in place on zᵀ and skips the zeros of W.
        whitened: FloatArray = dtrmm(1.0, self.whitening.T, z.T, overwrite_b=1).T
        return whitened

    def to_input(self, rows: FloatArray) -> FloatArray:
        """Transform rows back to the input's units."""
        return rows @ self.inverse + self.mean


@dataclass(frozen=True)
class SphereCoordinates:
    """Directions z = x / (√2 ‖x‖), whose squared distances are 1 − cos of the angles between rows.

    A row of zeros remains a row of zeros.
    """

    n_features: int

    @property
    def mean(self) -> FloatArray:
        """Zeros, since angles are measured at the origin."""
        return np.zeros(self.n_features)

    @property
    def scale(self) -> FloatArray:
        """Ones, since features are not scaled one by one."""
        return np.ones(self.n_features)

    def to_model(self, rows: NDArray) -> FloatArray:
        """Transform rows of any numeric dtype to the model's coordinates: a new float64 array.

        Sparse rows remain sparse.
        """
        if isinstance(rows, SparseRows):
            return _sparse_directions(rows)
        z: FloatArray = np.array(rows, dtype=np.float64, order="C")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->i", z, z)
            # These rows overflow, underflow, are zero or are not finite.
            odd = np.flatnonzero(~((squares > _LEAST_SQUARE) & (squares < 1 / _LEAST_SQUARE)))
            largest = np.abs(z[odd]).max(axis=1, keepdims=True, initial=0.0)
            z[odd] /= np.where(largest == 0.0, 1.0, largest)
            squares[odd] = np.square(z[odd]).sum(axis=1)
            squares[squares == 0.0] = 1.0
            z *= np.sqrt(0.5 / squares)[:, None]
        return z

    def to_input(self, rows: FloatArray) -> FloatArray:
        """Scale directions to length 1."""
        return np.sqrt(2.0) * rows


@dataclass(frozen=True)
class LiftedCoordinates:
    """Coordinates with one more value, 0, in which centres have the square root of an offset.

    ‖(z, 0) − (θ, √o)‖² = ‖z − θ‖² + o, so distances in these coordinates have offsets.
    """

    inner: Rows

    def to_model(self, rows: NDArray) -> FloatArray:
        """Transform rows of any numeric dtype to the model's coordinates: a new float64 array.

        Sparse rows remain sparse.
        """
        z = self.inner.to_model(rows)
        if isinstance(z, SparseRows):
            return made_of(z.data, z.indices, z.indptr, z.shape[1] + 1)
        return np.column_stack([z, np.zeros(len(z))])

    def tiles(self, rows: NDArray) -> Iterator[slice]:
        """Yield slices of rows that are lifted at once; one is empty if there are no rows."""
        n, p = rows.shape
        return tiles(max(1, n), max(1, _LIFTED_BYTES // (8 * (p + 1))))


def _sparse_directions(rows: SparseRows) -> SparseRows:
    """Scale sparse rows to length 1/√2, except rows of zeros."""
    if not rows.nnz:
        return rows.with_data(rows.data.astype(np.float64))
    data = rows.data.astype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = sums_of_rows(rows.with_data(np.square(data)))
    counts = np.diff(rows.indptr)
    if ((squares > _LEAST_SQUARE) & (squares < 1 / _LEAST_SQUARE) | (counts == 0)).all():
        squares[counts == 0] = 1.0
        data *= np.repeat(np.sqrt(0.5 / squares), counts)
        return rows.with_data(data)
    owner = rows.row_of_entry
    largest = np.zeros(len(rows))
    np.maximum.at(largest, owner, np.abs(data))
    largest[largest == 0.0] = 1.0
    with np.errstate(invalid="ignore"):
        data /= largest[owner]
        squares = sums_of_rows(rows.with_data(np.square(data)))
        squares[squares == 0.0] = 1.0
        data *= np.sqrt(0.5 / squares)[owner]
    return rows.with_data(data)


FeatureCoordinates = Coordinates | WhitenedCoordinates | SphereCoordinates | MixedCoordinates


def centers_in_model(coordinates: FeatureCoordinates, centers: FloatArray) -> FloatArray:
    """Transform centres, given as features in the input's units, to the model's coordinates."""
    if isinstance(coordinates, MixedCoordinates):
        return coordinates.from_input(centers)
    return coordinates.to_model(centers)


def tile_rows(n_features: int, n_clusters: int) -> int:
    """Return the rows per tile for which the temporaries of one start fit `TILE_BYTES`.

    Three arrays as wide as the rows (shifted, squared, weighted) and five as wide as the
    centres are in memory at once.
    """
    bytes_per_row = 8 * (3 * n_features + 5 * n_clusters)
    return max(16, TILE_BYTES // bytes_per_row)


def pieces(rows: NDArray, n_clusters: int) -> Iterator[tuple[slice, NDArray]]:
    """Yield the tiles of a block, their slices and rows; a block without rows has one empty tile.

    Tiles of sparse rows are larger, since the centres are prepared again for each tile. Sparse rows
    with few zeros are made dense, since dense rows are faster then.
    """
    n, p = rows.shape
    size = tile_rows(p, n_clusters)
    stored = rows.nnz / max(1, n * p) if isinstance(rows, SparseRows) else 1.0
    if stored < DENSE_FROM:
        size = max(_SPARSE_BYTES // (8 * (3 * int(stored * p + 1) + 5 * n_clusters)), 16)
    for part in tiles(max(1, n), size):
        some = rows[part]
        if isinstance(some, SparseRows) and stored >= DENSE_FROM:
            some = dense(some)
        yield part, some


def tiles(n_rows: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `size` rows that cover `n_rows`."""
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))
