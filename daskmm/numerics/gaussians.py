r"""Components of a mixture: densities, and the sums and the update of an EM step.

A component has a share :math:`\pi_j`, a mean and a covariance. EM raises the mean log-likelihood
:math:`\frac1n \sum_i \log \sum_j \pi_j N(x_i; \mu_j, \Sigma_j)`: the E-step computes the
responsibilities :math:`\gamma_{ij} \propto \pi_j N(x_i; \mu_j, \Sigma_j)` of the present
components. They define a minorizing function of the likelihood, and the M-step takes the components
that maximise it (Dempster, Laird & Rubin 1977). Sums refer to the means before the step, so that no
digits cancel however far the rows are from the origin. Components with heavier tails are
multivariate t distributions; see `daskmm.numerics.student`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from daskmm.numerics.student import log_constants, log_kernels, pulls, updated_degrees
from daskmm.numerics.sums import Sums

FloatArray = NDArray[np.float64]

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
# This is added to the weight of each component, as in scikit-learn.
_TINY_WEIGHT = 10 * np.finfo(np.float64).eps
# Components with less weight keep their mean and covariance.
_EMPTY = 1e-12


class SingularComponentError(ValueError):
    """A component has a covariance that is not positive definite."""


@dataclass(frozen=True)
class Components:
    """Normal components, or t distributions."""

    # "full" (one matrix per component), "tied" (one for all), "diag" (one variance per component
    # and feature) or "spherical" (one variance per component).
    covariance_type: str
    shares: FloatArray  # shares, which sum to 1, (n_components,)
    means: FloatArray  # means of the components, (n_components, n_features)
    # (n_components, n_features, n_features), (n_features, n_features), (n_components, n_features)
    # or (n_components,), depending on the type.
    covariances: FloatArray
    # Upper triangular matrices U, where U Uᵀ is the inverse covariance, or inverse standard
    # deviations, in the same shape.
    factors: FloatArray
    # Degrees of freedom of t distributions, (n_components,); None for normal components. The
    # `covariances` of t distributions are the matrices Σ of their distances.
    degrees: FloatArray | None = None

    @classmethod
    def of(
        cls,
        covariance_type: str,
        shares: FloatArray,
        means: FloatArray,
        covariances: FloatArray,
        degrees: FloatArray | None = None,
    ) -> Self:
        """Return components with the factors of their covariances.

        SingularComponentError is raised if a covariance is not positive definite.
        """
        factors = factors_of(covariances, covariance_type)
        return cls(covariance_type, shares, means, covariances, factors, degrees)

    @property
    def n_parameters(self) -> int:
        """Number of free parameters."""
        k, p = self.means.shape
        each = {"full": k * p * (p + 1) // 2, "tied": p * (p + 1) // 2, "diag": k * p}
        tails = 0 if self.degrees is None else k
        return each.get(self.covariance_type, k) + k * p + k - 1 + tails

    @property
    def deviations(self) -> FloatArray:
        """Inverse standard deviations of shape (n_components, n_features), for diagonal types."""
        own = self.factors if self.covariance_type == "diag" else self.factors[:, None]
        return np.ascontiguousarray(np.broadcast_to(own, self.means.shape))

    @property
    def log_determinants(self) -> FloatArray:
        """Logarithm of the determinant of U, of shape (n_components,)."""
        k, p = self.means.shape
        if self.covariance_type in ("full", "tied"):
            diagonals = np.diagonal(self.factors, axis1=-2, axis2=-1)
            return np.broadcast_to(np.log(diagonals).sum(axis=-1), (k,))
        if self.covariance_type == "diag":
            return np.asarray(np.log(self.factors).sum(axis=1))
        return np.asarray(p * np.log(self.factors))

    @property
    def constants(self) -> FloatArray:
        """Logarithm of share times density at the mean, of shape (n_components,)."""
        with np.errstate(divide="ignore"):  # a share may be 0
            shares = np.log(self.shares)
        p = self.means.shape[1]
        if self.degrees is not None:
            return np.asarray(shares + self.log_determinants + log_constants(self.degrees, p))
        return np.asarray(shares + self.log_determinants - 0.5 * p * math.log(2 * math.pi))

    def log_kernels(self, squares: FloatArray) -> FloatArray:
        """Return log densities relative to those at the means, given squared distances."""
        if self.degrees is None:
            return -0.5 * squares
        return log_kernels(squares, self.degrees, self.means.shape[1])

    @property
    def precisions(self) -> FloatArray:
        """Inverse covariances, of the shape of `covariances`."""
        if self.covariance_type in ("full", "tied"):
            return np.asarray(self.factors @ np.swapaxes(self.factors, -1, -2))
        return np.asarray(self.factors**2)

    @property
    def least_variances(self) -> FloatArray:
        """Variance of each component along its shortest axis, of shape (n_components,)."""
        k = len(self.means)
        if self.covariance_type in ("full", "tied"):
            return np.broadcast_to(np.linalg.eigvalsh(self.covariances)[..., 0], (k,))
        return np.asarray(self.covariances.reshape(k, -1).min(axis=1))

    def colored(self, noise: FloatArray, component: int) -> FloatArray:
        """Turn independent standard normal numbers into rows of a normal component."""
        mean, kind = self.means[component], self.covariance_type
        if kind in ("diag", "spherical"):
            return np.asarray(mean + noise * np.sqrt(self.covariances[component]))
        covariance = self.covariances[component] if kind == "full" else self.covariances
        return np.asarray(mean + noise @ np.linalg.cholesky(covariance).T)


def factors_of(covariances: FloatArray, covariance_type: str) -> FloatArray:
    """Return upper triangular U with U Uᵀ = Σ⁻¹ for each covariance, or 1/σ for variances.

    SingularComponentError is raised if a covariance is not positive definite; its message says
    which.
    """
    if covariance_type in ("diag", "spherical"):
        bad = np.flatnonzero(~(covariances.reshape(len(covariances), -1) > 0).all(axis=1))
        if len(bad):
            raise SingularComponentError(_singular(int(bad[0])))
        return np.asarray(1.0 / np.sqrt(covariances))
    factors = []
    for component, matrix in enumerate(np.atleast_3d(covariances.T).T):
        try:
            lower = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            raise SingularComponentError(_singular(component)) from None
        inverse = solve_triangular(lower, np.eye(len(matrix)), lower=True)
        factors.append(np.triu(inverse.T))
    return np.asarray(factors).reshape(covariances.shape)


def factors_of_precisions(precisions: FloatArray, covariance_type: str) -> FloatArray:
    """Return upper triangular U with U Uᵀ = P for each precision matrix P, or square roots."""
    if covariance_type in ("diag", "spherical"):
        return np.asarray(np.sqrt(precisions))
    # Reversing rows and columns turns a lower triangular factor into an upper one.
    return np.asarray(np.linalg.cholesky(precisions[..., ::-1, ::-1])[..., ::-1, ::-1])


def are_positive(precisions: FloatArray, covariance_type: str) -> bool:
    """Return whether matrices are symmetric and positive definite, or numbers are positive."""
    if covariance_type in ("diag", "spherical"):
        return bool((precisions > 0).all())
    symmetric = np.allclose(precisions, np.swapaxes(precisions, -1, -2))
    return bool(symmetric and (np.linalg.eigvalsh(precisions) > 0).all())


def _singular(component: int) -> str:
    return (
        f"The covariance of component {component} is not positive definite: its rows coincide, or "
        "lie in fewer dimensions than there are features. Ask for fewer components, a simpler "
        "covariance_type, or a larger reg_covar (in squared units of the features)."
    )


def log_joint_densities(rows: FloatArray, components: Components) -> FloatArray:
    """Return log π_j N(x_i; μ_j, Σ_j) of all rows and components, (n_rows, n_components)."""
    return components.constants + components.log_kernels(squared_distances(rows, components))


def squared_distances(rows: FloatArray, components: Components) -> FloatArray:
    """Return δ_ij = (x_i − μ_j)ᵀ Σ_j⁻¹ (x_i − μ_j) of all rows and components."""
    kind = components.covariance_type
    found = np.empty((len(rows), len(components.means)))
    for j, mean in enumerate(components.means):
        if kind in ("full", "tied"):
            factor = components.factors[j] if kind == "full" else components.factors
            whitened = (rows - mean) @ factor
        else:
            whitened = (rows - mean) * components.factors[j]
        found[:, j] = np.einsum("ij,ij->i", whitened, whitened)
    return found


def mixed_densities(joint: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log density and responsibilities of each row, given the joint log densities."""
    densities = np.asarray(logsumexp(joint, axis=1))
    with np.errstate(under="ignore"):
        return densities, np.exp(joint - densities[:, None])


@dataclass(frozen=True)
class EMSums(Sums):
    """Sums of an EM step over rows, which can be added.

    If components are t distributions, `sums` and `scatters` have weights w γ u in place of w γ,
    where u is defined in `daskmm.numerics.student`.
    """

    weights: FloatArray  # Σ w γ_j, (n_components,)
    # Σ w γ_j (x − μ_j), around the means before the step, (n_components, n_features).
    sums: FloatArray
    # Σ w γ_j (x − μ_j)(x − μ_j)ᵀ, of shape (n_components, n_features, n_features). For "tied" they
    # are summed over the components, with shape (1, n_features, n_features); for "diag" and
    # "spherical" they are the diagonals only, with shape (n_components, n_features).
    scatters: FloatArray
    log_likelihood: float  # Σ w log p(x) at the components before the step
    # Σ w γ u and Σ w γ (log u − u) of t distributions, (n_components,).
    pulls: FloatArray | None = None
    logs: FloatArray | None = None

    @property
    def masses(self) -> FloatArray:
        """Sum of the weights of the rows in each component's mean."""
        return self.weights if self.pulls is None else self.pulls


def em_sums(rows: FloatArray, weights: FloatArray | None, components: Components) -> EMSums:
    """Compute the sums of an EM step, given the components before it; weights are 1 by default."""
    squares = squared_distances(rows, components)
    densities, shares = mixed_densities(components.constants + components.log_kernels(squares))
    if weights is not None:
        shares *= weights[:, None]
    total = float(densities.sum() if weights is None else weights @ densities)
    n_j, means, kind = shares.sum(axis=0), components.means, components.covariance_type
    if components.degrees is None:
        return EMSums(n_j, *scatter(rows, shares, means, kind), total)
    u = pulls(squares, components.degrees, means.shape[1])
    logs = (shares * (np.log(u) - u)).sum(axis=0)
    shares = shares * u
    return EMSums(n_j, *scatter(rows, shares, means, kind), total, shares.sum(axis=0), logs)


def scatter(
    rows: FloatArray, shares: FloatArray, means: FloatArray, covariance_type: str
) -> tuple[FloatArray, FloatArray]:
    """Return sums and scatters of `EMSums` for given w γ, of shape (n_rows, n_components)."""
    k, p = means.shape
    sums = np.zeros((k, p))
    matrices = covariance_type in ("full", "tied")
    scatters = np.zeros((1 if covariance_type == "tied" else k, p, p) if matrices else (k, p))
    for j, mean in enumerate(means):
        differences = rows - mean
        sums[j] = shares[:, j] @ differences
        if matrices:
            weighted = differences * shares[:, j, None]
            scatters[j if covariance_type == "full" else 0] += weighted.T @ differences
        else:
            scatters[j] = shares[:, j] @ np.square(differences)
    return sums, scatters


def maximized(sums: EMSums, before: Components, reg_covar: float) -> Components:
    """Return the components that maximise the expected log-likelihood: the M-step.

    `sums` are those over all rows at the components before the step. A component without weight
    keeps its mean and, unless the covariance is tied, its covariance. `reg_covar` is added to all
    variances. SingularComponentError is raised if a covariance is not positive definite.
    """
    weights, kind = sums.weights + _TINY_WEIGHT, before.covariance_type
    empty = sums.weights <= _EMPTY * weights.sum()
    masses = sums.masses + _TINY_WEIGHT
    shift = np.where(empty[:, None], 0.0, sums.sums / masses[:, None])
    means, degrees = before.means + shift, before.degrees
    # Mean of u over the weight of each component; 1 for normal components.
    pulled = masses / weights
    if kind == "tied":
        between = (sums.masses[:, None] * shift).T @ shift
        covariances = (sums.scatters[0] - between) / weights.sum()
        covariances.flat[:: len(covariances) + 1] += reg_covar
    elif kind == "full":
        covariances = sums.scatters / weights[:, None, None]
        covariances -= pulled[:, None, None] * shift[:, :, None] * shift[:, None, :]
        covariances.reshape(len(means), -1)[:, :: means.shape[1] + 1] += reg_covar
        covariances[empty] = before.covariances[empty]
    else:
        between = pulled[:, None] * np.square(shift)
        covariances = sums.scatters / weights[:, None] - between + reg_covar
        if kind == "spherical":
            covariances = covariances.mean(axis=1)
        covariances[empty] = before.covariances[empty]
    if degrees is not None and sums.logs is not None:
        degrees = updated_degrees(sums.logs, sums.weights, degrees, means.shape[1])
    return Components.of(kind, weights / weights.sum(), means, covariances, degrees)
