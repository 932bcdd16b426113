"""Check and multiply kernel matrices given by users, in memory or as dask or zarr arrays."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import da, dask, is_dask_array
from daskmm.data.blocks import as_dask_array, is_lazy
from daskmm.data.lazy import delayed_blocks, sized
from daskmm.engine.clients import computed
from daskmm.engine.passes import tree_reduce
from daskmm.gram.matrices import MEMORY_BYTES, DenseGram, GramSource
from daskmm.gram.pairs import Pair, RowSums, pair_tasks, row_groups
from daskmm.numerics.kernels import ASYMMETRY
from daskmm.storage.digests import digest

FloatArray = NDArray[np.float64]

# Size of the blocks in which a zarr array with smaller chunks is read.
_BLOCK = "32MiB"
# Number of rows in the digest of a matrix.
_DESCRIBED_ROWS = 256


def precomputed(matrix: Any) -> GramSource:
    """Return a kernel matrix given by the user as a `GramSource`.

    The matrix is array-like, a dask Array or DataFrame, or a zarr Array, (n_rows, n_rows). A lazy
    one is loaded into memory if it is small, and otherwise read in every sweep. It raises
    ValueError if the matrix is not square, not symmetric, not finite, has a negative entry on its
    diagonal (the message names the entry), or has the diagonal 0.
    """
    if not is_lazy(matrix):
        matrix = np.asarray(matrix, dtype=np.float64)
        _check_square(matrix.shape)
        _look(matrix, matrix, (0, 0)).check_symmetric()
        return _checked(DenseGram(matrix))
    matrix = _in_blocks(matrix)
    if 8 * matrix.shape[0] ** 2 <= MEMORY_BYTES:
        return precomputed(computed(matrix.astype(np.float64))[0])
    return _checked(BlockedGram(matrix))


def _checked(gram: GramSource) -> GramSource:
    """Raise ValueError if the diagonal is 0, as in a matrix of distances."""
    if len(gram.diagonal) and not gram.diagonal.any():
        raise ValueError(
            "The Gram matrix is 0 on its whole diagonal, as a matrix of distances is: all rows "
            "would coincide in its feature space. Give similarities, such as "
            "exp(-D**2 / (2 * bandwidth**2)) of distances D."
        )
    return gram


def described_gram(gram: GramSource, weights: FloatArray) -> dict[str, Any]:
    """Return the identity of a matrix for a resumed fit: a digest of its diagonal and some rows."""
    n_rows = len(weights)
    some = np.linspace(0, n_rows - 1, min(n_rows, _DESCRIBED_ROWS)).astype(np.int64)
    return {
        "shape": [n_rows, n_rows],
        "rows": digest(gram.diagonal, weights, gram.submatrix(some)),
    }


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"A precomputed Gram matrix must be square, got shape {shape}.")


def _in_blocks(matrix: Any) -> da.Array:
    """Return a lazy matrix as a dask array with the same chunks in rows and columns."""
    if not is_dask_array(matrix):
        if hasattr(matrix, "chunks"):
            _check_square(matrix.shape)
            with dask.config.set({"array.chunk-size": _BLOCK}):
                matrix = da.from_array(matrix, chunks="auto")
        else:
            matrix = as_dask_array(matrix)
    matrix = sized(matrix)
    _check_square(matrix.shape)
    rows, columns = matrix.chunks
    # Rows and columns both get the smaller of their chunks, because a block of whole rows may
    # exceed a worker's memory.
    cut = rows if len(rows) >= len(columns) else columns
    return matrix.rechunk((cut, cut))


class BlockedGram(GramSource):
    """A kernel matrix in the blocks of a dask array; sweeps read its upper triangle.

    The array has the same chunks in rows and columns. It is checked in a sweep that is not counted,
    which raises ValueError if it cannot be a kernel matrix.
    """

    def __init__(self, matrix: da.Array) -> None:
        self.matrix = matrix
        self.blocks = delayed_blocks(matrix)
        ends = np.cumsum([0, *matrix.chunks[0]])
        cuts = [slice(int(i), int(j)) for i, j in itertools.pairwise(ends)]
        self.groups = row_groups(cuts, len(cuts))
        tasks = [
            (pair, self._block(pair), self._block(Pair(pair.second, pair.first)))
            for pair, *_ in pair_tasks(self.groups, (), lazy=False)
        ]
        look: _Look = tree_reduce(_look_at_pair, tasks, (), True, "gram-look")
        look.check_symmetric()
        super().__init__(look.diagonal.joined())

    def _block(self, pair: Pair) -> Any:
        return self.blocks[pair.first.number, pair.second.number]

    def _product(self, right: FloatArray) -> FloatArray:
        tasks = [
            (self._block(pair), pair, *rows)
            for pair, *rows in pair_tasks(self.groups, (right,), lazy=True)
        ]
        sums: RowSums = tree_reduce(_pair_product, tasks, (), True, "gram-sweep")
        return sums.joined()

    def submatrix(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return the submatrix of K of some rows, by a sweep."""
        return self._entries(rows, rows)

    def columns(self, rows: NDArray[np.int_]) -> FloatArray:
        """Return some columns of K, by a sweep."""
        return self._entries(np.arange(len(self.diagonal)), rows)

    def _entries(self, rows: NDArray[np.int_], columns: NDArray[np.int_]) -> FloatArray:
        """Return the entries in some rows and columns; only the blocks that have any are loaded.

        dask's expressions do not support index arrays.
        """
        self.n_sweeps += 1
        ends = np.cumsum([0, *self.matrix.chunks[0]])
        of_row, of_column = (
            np.searchsorted(ends, index, side="right") - 1 for index in (rows, columns)
        )
        found, places, parts = np.empty((len(rows), len(columns))), [], []
        for i, j in itertools.product(np.unique(of_row), np.unique(of_column)):
            down, across = np.flatnonzero(of_row == i), np.flatnonzero(of_column == j)
            places.append(np.ix_(down, across))
            inside = np.ix_(rows[down] - ends[i], columns[across] - ends[j])
            parts.append(dask.delayed(operator.getitem)(self.blocks[i, j], inside))
        for place, part in zip(places, computed(*parts), strict=True):
            found[place] = part
        _refuse_lost(found, rows, columns)
        return found


def _pair_product(
    block: NDArray, pair: Pair, first: tuple[FloatArray], second: tuple[FloatArray]
) -> RowSums:
    sums = pair.product([block], first[0], second[0])
    if not all(np.isfinite(part.sum()) for part in sums.parts.values()):
        _refuse_lost(block, _numbers(pair.first.rows), _numbers(pair.second.rows))
    return sums


class _Asymmetry(NamedTuple):
    """The largest absolute difference of K_ij and K_ji, with its row and column."""

    apart: float
    row: int
    column: int


@dataclass(frozen=True)
class _Look:
    """Result of checking a matrix, or blocks of it."""

    diagonal: RowSums
    largest: float
    asymmetry: _Asymmetry

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.diagonal + other.diagonal,
            max(self.largest, other.largest),
            max(self.asymmetry, other.asymmetry, key=lambda a: a.apart),
        )

    def check_symmetric(self) -> None:
        apart, row, column = self.asymmetry
        if apart > ASYMMETRY * self.largest:
            raise ValueError(
                f"The Gram matrix is not symmetric: entries ({row}, {column}) and "
                f"({column}, {row}) differ by {apart:.3g}."
            )


def _look_at_pair(pair: Pair, block: NDArray, mirrored: NDArray) -> _Look:
    """Check the blocks between two groups (the task of the checking sweep)."""
    look = _look(block, mirrored, (pair.first.rows.start, pair.second.rows.start))
    if not pair.of_one_group:
        return replace(look, diagonal=RowSums({}))
    return replace(look, diagonal=RowSums({pair.first.number: np.diag(block).astype(np.float64)}))


def _numbers(some: slice) -> NDArray[np.int_]:
    return np.arange(some.start, some.stop)


def _refuse_lost(values: NDArray, rows: NDArray[np.int_], columns: NDArray[np.int_]) -> None:
    """Raise ValueError if values between some rows and columns are no longer finite."""
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"The Gram matrix has changed since it was checked: it contains NaN or infinity at "
            f"({rows[row]}, {columns[column]})."
        )


def _look(block: NDArray, mirrored: NDArray, origin: tuple[int, int]) -> _Look:
    """Check finiteness, diagonal and symmetry of a block whose first entry is at `origin`.

    It raises ValueError if an entry is not finite, or one of the diagonal is negative.
    """
    for values, start in ((block, origin), (mirrored, origin[::-1])):
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0] + start
            raise ValueError(f"The Gram matrix contains NaN or infinity at ({row}, {column}).")
    diagonal = np.diag(block) if origin[0] == origin[1] else np.empty(0)
    if (diagonal < 0).any():
        row = int(np.flatnonzero(diagonal < 0)[0])
        raise ValueError(
            f"The Gram matrix has a negative diagonal entry, {diagonal[row]}, at {origin[0] + row}."
        )
    apart = np.abs(block - mirrored.T)
    at = np.unravel_index(apart.argmax(), apart.shape) if apart.size else (0, 0)
    asymmetry = _Asymmetry(
        float(apart.max(initial=0.0)), int(at[0]) + origin[0], int(at[1]) + origin[1]
    )
    return _Look(RowSums({}), float(np.abs(block).max(initial=0.0)), asymmetry)
