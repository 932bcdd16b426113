"""Compute the critical power; above it, annealing leaves all centres at the mean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN, SquaredEuclidean
from daskmm.numerics.span import in_span
from daskmm.numerics.sparse_rows import SparseRows, few_dense, fit_dense

# Up to this size, computing all eigenvalues takes less time than an iterative solver, which needs
# up to a hundred products with all rows if eigenvalues are similar.
_DENSE = 1024


def critical_power(
    rows: NDArray[np.float64],
    row_weights: NDArray[np.float64],
    distortion: Distortion = SQUARED_EUCLIDEAN,
) -> float:
    """Return the power above which all centres fall onto the mean.

    Differences between centres that all sit near the mean μ grow by 2(1 − s)·λ_max(E[uuᵀ]) per
    step, with u = (x − μ)/‖x − μ‖; so the collapsed state is stable for
    s > s_crit = 1 − 1/(2 λ_max), which lies between 1 − p/2 (isotropic rows) and 1/2 (rows on a
    line). Other distortions define this growth in their method `growth`.

    Rows are a sample in the model's coordinates, where NaN are missing values; only some rows of a
    large sparse sample are used. The result is 1/2 when all rows coincide.
    """
    plain = type(distortion) is SquaredEuclidean
    if plain and isinstance(rows, SparseRows) and not fit_dense(rows):
        largest = _largest_growth(rows, row_weights)
        return 0.5 if largest is None else 1.0 - 1.0 / largest
    rows, row_weights = few_dense(rows, row_weights)
    if distortion.squared:
        rows = in_span(rows)
    offset, factor = distortion.growth(rows, row_weights)
    return 0.5 if factor is None else offset - 1.0 / _largest_eigenvalue(factor)


def _largest_growth(rows: SparseRows, row_weights: NDArray[np.float64]) -> float | None:
    """Return 2 λ_max(E[uuᵀ]) of sparse rows; None if all rows coincide."""
    shares = row_weights / row_weights.sum()
    mean = np.asarray(shares @ rows)
    # Distances from the mean, computed without a dense row.
    squares = np.bincount(rows.row_of_entry, np.square(rows.data), minlength=len(rows))
    distances = squares - 2.0 * (rows @ mean) + mean @ mean
    directed = distances > 1e-12 * squares.max(initial=0.0)
    if not directed.any():
        return None
    factor = np.zeros(len(rows))
    factor[directed] = np.sqrt(2.0 * shares[directed] / shares[directed].sum())
    factor[directed] /= np.sqrt(distances[directed])
    transposed = rows.T.tocsr()

    def product(v: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return AᵀA v, with A = factor (x − mean)."""
        u = np.square(factor) * (rows @ v - mean @ v)
        return np.asarray(transposed @ u - mean * u.sum())

    return _largest_of(product, rows.shape[1])


def _largest_eigenvalue(a: NDArray[np.float64]) -> float:
    """Return the largest eigenvalue of aᵀa, computed from the smaller one of aᵀa and aaᵀ."""
    if a.shape[0] < a.shape[1]:
        a = a.T
    size = a.shape[1]
    if size <= _DENSE:
        return float(np.linalg.eigvalsh(a.T @ a)[-1])
    return _largest_of(lambda v: a.T @ (a @ v), size)


def _largest_of(product: Callable[[NDArray[np.float64]], NDArray[np.float64]], size: int) -> float:
    """Return the largest eigenvalue of a matrix, given its product with a vector."""
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    # A fixed starting vector keeps the result reproducible; a ramp is unlikely to be orthogonal to
    # the eigenvector.
    start = np.linspace(1.0, 2.0, size)
    return float(eigsh(operator, k=1, v0=start, tol=1e-6, return_eigenvectors=False)[0])
