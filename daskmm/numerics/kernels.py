"""Kernel functions on two blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import pairwise

FloatArray = NDArray[np.float64]
KernelFunction = Callable[[FloatArray, FloatArray], FloatArray]

KERNELS = ("rbf", "laplacian", "polynomial", "linear", "cosine", "angular")
# Kernels whose `bandwidth` matters.
SCALED = frozenset({"rbf", "laplacian", "angular"})


@dataclass(frozen=True)
class Kernel:
    """A kernel k(x, y), evaluated block against block.

    Attributes
    ----------
    name : str
        One of `KERNELS`, or "callable".
    bandwidth : float
        σ: exp(−‖x−y‖²/(2σ²)) for "rbf", exp(−‖x−y‖₁/σ) for "laplacian" and
        exp(−acos(xᵀy/‖x‖‖y‖)/(2σ²)) for "angular" (Paul, Chakraborty, Das & Xu 2020, their
        experiment on the sphere).
    degree, coef0 : float
        "polynomial" is (xᵀy + coef0)^degree.
    unit_diagonal : bool
        Divide by √(k(x,x) k(y,y)).
    function : callable, optional
        For "callable": takes two blocks, returns the matrix of kernel values.
    """

    name: str
    bandwidth: float = 1.0
    degree: float = 3.0
    coef0: float = 1.0
    unit_diagonal: bool = False
    function: KernelFunction | None = None

    def block(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """Kernel values of the rows of `x` (n × p) against those of `y` (m × p), n × m."""
        values = self._raw(x, y)
        if self.unit_diagonal and self._raw_diagonal_varies:
            values = values / np.sqrt(self._raw_diagonal(x))[:, None]
            values /= np.sqrt(self._raw_diagonal(y))
        return values

    def diagonal(self, x: FloatArray) -> FloatArray:
        """k(x_i, x_i) of each row."""
        return np.ones(len(x)) if self.unit_diagonal else self._raw_diagonal(x)

    def describe(self) -> dict[str, Any]:
        """Name and parameters, ready for JSON; a callable by its qualified name."""
        described = asdict(self)
        function = described.pop("function")
        if function is not None:
            described["function"] = getattr(function, "__qualname__", type(function).__name__)
        return described

    @property
    def _raw_diagonal_varies(self) -> bool:
        return self.name in ("polynomial", "linear", "callable")

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
            return pairwise.rbf_kernel(x, y, gamma=0.5 / self.bandwidth**2)
        if self.name == "laplacian":
            return pairwise.laplacian_kernel(x, y, gamma=1.0 / self.bandwidth)
        if self.name == "polynomial":
            return pairwise.polynomial_kernel(x, y, degree=self.degree, gamma=1.0, coef0=self.coef0)
        if self.name == "linear":
            return pairwise.linear_kernel(x, y)
        cosines = pairwise.cosine_similarity(x, y)
        if self.name == "cosine":
            return cosines
        angles = np.arccos(np.clip(cosines, -1.0, 1.0))
        return np.exp(-angles / (2.0 * self.bandwidth**2))

    def _raw_diagonal(self, x: FloatArray) -> FloatArray:
        if self.name == "polynomial":
            return (np.einsum("il,il->i", x, x) + self.coef0) ** self.degree
        if self.name == "linear":
            return np.einsum("il,il->i", x, x)
        if self.function is not None:
            return np.array([self._raw(row[None], row[None])[0, 0] for row in x])
        if self.name == "cosine":
            # A row at the origin has cosine 0 with every row, itself included.
            return (np.einsum("il,il->i", x, x) > 0).astype(np.float64)
        return np.ones(len(x))
