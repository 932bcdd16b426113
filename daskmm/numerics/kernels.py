"""Kernel functions between two blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.exponentials import exponentiate

FloatArray = NDArray[np.float64]
KernelFunction = Callable[[FloatArray, FloatArray], FloatArray]

# Cosines this close to 1 count as 1, and rows shorter than _NO_LENGTH are zero rows for
# scikit-learn.
_EQUAL_DIRECTIONS = 1e-15
_NO_LENGTH = 10 * np.finfo(np.float64).eps
# k(x, y) and k(y, x) may differ by this share of the largest value.
ASYMMETRY = 1e-6
# Kernels that do not change, up to centring in feature space, when all rows are shifted.
_MOVABLE = frozenset({"rbf", "laplacian", "linear"})


def are_movable(kernels: Iterable[Any]) -> bool:
    """Return whether a shift of all rows leaves the clusters of all these kernels unchanged."""
    return all(isinstance(kernel, str) and kernel in _MOVABLE for kernel in kernels)


@dataclass(frozen=True)
class Kernel:
    """A kernel k(x, y), evaluated between two blocks of rows."""

    name: str  # one of `daskmm.numerics.options.KERNELS`, or "callable"
    # σ: exp(−‖x−y‖²/(2σ²)) for "rbf", exp(−‖x−y‖₁/σ) for "laplacian" and
    # exp(−acos(xᵀy/‖x‖‖y‖)/(2σ²)) for "angular" (Paul, Chakraborty, Das & Xu 2020, their experiment
    # on the sphere).
    bandwidth: float = 1.0
    # Parameters of "polynomial", (xᵀy + coef0)^degree.
    degree: float = 3.0
    coef0: float = 1.0
    # Whether to divide by √(k(x,x) k(y,y)); then a row with k(x,x) = 0 has kernel value 0 with all
    # rows.
    unit_diagonal: bool = False
    # The function of "callable", which takes two blocks and returns the matrix of kernel values.
    function: KernelFunction | None = None

    def block(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """Compute the kernel of the rows of `x` (n × p) and `y` (m × p): n × m."""
        # Values that overflow are reported by `finite_block`.
        with np.errstate(over="ignore", invalid="ignore"):
            values = self._raw(x, y)
            if self.unit_diagonal and self._raw_diagonal_varies:
                values = values / self._norms(x)[:, None]
                values /= self._norms(y)
        return values

    def diagonal(self, x: FloatArray) -> FloatArray:
        """Compute k(x_i, x_i) of each row."""
        with np.errstate(over="ignore", invalid="ignore"):
            raw = self._raw_diagonal(x)
        # A diagonal that is not positive cannot be scaled to 1: callers refuse it or use 0.
        return np.where(raw > 0, 1.0, raw) if self.unit_diagonal else raw

    def _norms(self, x: FloatArray) -> FloatArray:
        """Compute √k(x_i, x_i), and 1 for rows whose image is 0."""
        raw = self._raw_diagonal(x)
        return np.sqrt(np.where(raw > 0, raw, 1.0))

    def describe(self) -> dict[str, Any]:
        """Return name and parameters for JSON; a callable becomes its qualified name."""
        # `asdict` would copy what a callable holds.
        described = dict(vars(self))
        function = described.pop("function")
        if function is not None:
            described["function"] = getattr(function, "__qualname__", type(function).__name__)
        return described

    @property
    def _raw_diagonal_varies(self) -> bool:
        return self.name in ("polynomial", "linear", "angular", "callable")

    def _raw(self, x: FloatArray, y: FloatArray) -> FloatArray:
        if self.function is not None:
            values = np.asarray(self.function(x, y), dtype=np.float64)
            if values.shape != (len(x), len(y)):
                raise ValueError(
                    f"kernel returned an array of shape {values.shape} for blocks of {len(x)} "
                    f"and {len(y)} rows."
                )
            return values
        if self.name == "rbf":
            return _gaussian(x, y, self.bandwidth)
        from sklearn.metrics import pairwise  # slow to import

        if self.name == "laplacian":
            return pairwise.laplacian_kernel(x, y, gamma=1.0 / self.bandwidth)
        if self.name == "polynomial":
            return pairwise.polynomial_kernel(x, y, degree=self.degree, gamma=1.0, coef0=self.coef0)
        if self.name == "linear":
            return pairwise.linear_kernel(x, y)
        cosines = pairwise.cosine_similarity(x, y)
        if self.name == "cosine":
            return cosines
        # acos is steep at 1: cosines within rounding of 1 are those of equal directions.
        cosines[cosines > 1.0 - _EQUAL_DIRECTIONS] = 1.0
        return self._of_angles(np.arccos(np.clip(cosines, -1.0, 1.0)))

    def _raw_diagonal(self, x: FloatArray) -> FloatArray:
        if self.name == "polynomial":
            return (np.einsum("il,il->i", x, x) + self.coef0) ** self.degree
        if self.name == "linear":
            return np.einsum("il,il->i", x, x)
        if self.function is not None:
            return np.array([self._raw(row[None], row[None])[0, 0] for row in x])
        if self.name in ("cosine", "angular"):
            # A row at the origin has cosine 0 with every row, itself included.
            lengths = np.sqrt(np.einsum("il,il->i", x, x))
            cosines = (lengths >= _NO_LENGTH).astype(np.float64)
            return cosines if self.name == "cosine" else self._of_angles(np.arccos(cosines))
        return np.ones(len(x))

    def _of_angles(self, angles: FloatArray) -> FloatArray:
        values: FloatArray = np.exp(-angles / (2.0 * self.bandwidth**2))
        return values


def _gaussian(x: FloatArray, y: FloatArray, bandwidth: float) -> FloatArray:
    """Compute exp(−‖x−y‖²/(2σ²)) in one array, in half the time of scikit-learn's function."""
    x, y = x / bandwidth, y / bandwidth
    values = x @ y.T
    values -= 0.5 * np.einsum("il,il->i", x, x)[:, None]
    values -= 0.5 * np.einsum("il,il->i", y, y)
    np.minimum(values, 0.0, out=values)
    return exponentiate(values)


def finite_block(kernel: Kernel, x: FloatArray, y: FloatArray, where: str = "") -> FloatArray:
    """Compute `Kernel.block` of two blocks of rows; raise ValueError if a value is not finite.

    The message names the kernel, the part `where` of the matrix, and the first such entry.
    """
    values = kernel.block(x, y)
    # If the sum is finite, so are all entries; otherwise each entry is tested.
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    if not np.isfinite(total) and not np.isfinite(values).all():
        row, column = (int(index) for index in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(
            f"kernel {kernel.name!r} returned {values[row, column]}{where}, "
            f"entry ({row}, {column})."
        )
    return values


def check_function(kernel: Kernel, rows: FloatArray) -> None:
    """Raise ValueError if some rows show that a user's function is not a kernel.

    A function is not a kernel if it is not symmetric, or if, like a distance, it is 0 between each
    row and itself but not between different rows. Kernels by name are not tested.
    """
    if kernel.function is None or not len(rows):
        return
    values, name = kernel.block(rows, rows), kernel.describe()["function"]
    if not np.isfinite(values).all():  # `finite_block` raises for it later
        return
    apart = np.abs(values - values.T)
    i, j = (int(index) for index in np.unravel_index(apart.argmax(), apart.shape))
    if apart[i, j] > ASYMMETRY * np.abs(values).max():
        raise ValueError(
            f"kernel {name!r} is not symmetric: k(x, y) = {values[i, j]:.10g} and k(y, x) = "
            f"{values[j, i]:.10g} for x = {_shown(rows[i])} and y = {_shown(rows[j])}."
        )
    if values.any() and not values.diagonal().any():
        raise ValueError(
            f"kernel {name!r} is 0 for each row with itself and not for others, as distances are. "
            "A kernel is a similarity, such as exp(-distance**2 / 2)."
        )


def _shown(row: FloatArray) -> str:
    return np.array2string(row, precision=4, threshold=6, edgeitems=2, separator=", ")
