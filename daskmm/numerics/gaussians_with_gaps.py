r"""Gaussian components of rows with missing values, which are integrated out.

The density of a row is that of its present values, and the E-step takes the expected values and the
covariance of the missing ones, given the present ones (Ghahramani & Jordan, "Supervised learning
from incomplete data via an EM approach", NIPS 1994). Nothing is imputed, and the M-step is the same
as for complete rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from daskmm.numerics.gaussians import (
    Components,
    EMSums,
    em_sums,
    log_joint_densities,
    mixed_densities,
)

FloatArray = NDArray[np.float64]


def log_joint_densities_with_gaps(rows: FloatArray, components: Components) -> FloatArray:
    """Return log π_j N(x_i; μ_j, Σ_j) of the present values of each row; NaN are missing."""
    if components.covariance_type in ("diag", "spherical"):
        return _independent_densities(rows, components)
    joint = np.empty((len(rows), len(components.means)))
    for own, held in _patterns(rows):
        joint[own] = log_joint_densities(rows[np.ix_(own, held)], _marginal(components, held))
    return joint


def em_sums_with_gaps(
    rows: FloatArray, weights: FloatArray | None, components: Components
) -> EMSums:
    """Compute the sums of an EM step as `em_sums` does, where NaN are missing values."""
    v = np.ones(len(rows)) if weights is None else weights
    if components.covariance_type in ("diag", "spherical"):
        return _independent_sums(rows, v, components)
    total = em_sums(np.empty((0, rows.shape[1])), None, components)
    for own, held in _patterns(rows):
        total += _sums_of_pattern(rows[own], v[own], components, held)
    return total


def expected_rows(rows: FloatArray, components: Components) -> FloatArray:
    """Return rows with missing values replaced by their expectations, given the others."""
    shares = softmax(log_joint_densities_with_gaps(rows, components), axis=1)
    if components.covariance_type in ("diag", "spherical"):
        return np.asarray(np.where(np.isnan(rows), shares @ components.means, rows))
    found = np.where(np.isnan(rows), 0.0, rows)
    for own, held in _patterns(rows):
        for j, mean in enumerate(components.means):
            slopes = _slopes(components, j, held)
            expected = mean[~held] + (rows[np.ix_(own, held)] - mean[held]) @ slopes
            found[np.ix_(own, ~held)] += shares[own, j, None] * expected
    return found


def _independent_densities(rows: FloatArray, components: Components) -> FloatArray:
    """Return joint log densities of components whose features are independent."""
    held = ~np.isnan(rows)
    scale = components.deviations
    with np.errstate(divide="ignore"):  # a share may be 0
        joint = np.log(components.shares) + held @ (np.log(scale) - 0.5 * math.log(2 * math.pi)).T
    for j, mean in enumerate(components.means):
        whitened = np.where(held, (rows - mean) * scale[j], 0.0)
        joint[:, j] -= 0.5 * np.einsum("ij,ij->i", whitened, whitened)
    return np.asarray(joint)


def _independent_sums(rows: FloatArray, weights: FloatArray, components: Components) -> EMSums:
    """Compute the sums of an EM step for components whose features are independent."""
    held, variances = ~np.isnan(rows), components.deviations**-2.0
    densities, shares = mixed_densities(_independent_densities(rows, components))
    shares *= weights[:, None]
    sums, scatters = np.zeros_like(components.means), np.zeros_like(components.means)
    for j, mean in enumerate(components.means):
        differences = np.where(held, rows - mean, 0.0)
        sums[j] = shares[:, j] @ differences
        scatters[j] = shares[:, j] @ np.square(differences) + shares[:, j] @ ~held * variances[j]
    return EMSums(shares.sum(axis=0), sums, scatters, float(weights @ densities))


def _patterns(rows: FloatArray) -> Iterator[tuple[NDArray[np.intp], NDArray[np.bool_]]]:
    """Yield each set of rows with the same features present, and the mask of these features."""
    held = ~np.isnan(rows)
    patterns, places = np.unique(held, axis=0, return_inverse=True)
    order = np.argsort(places.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(places.ravel(), minlength=len(patterns)))
    yield from zip(np.split(order, ends[:-1]), patterns, strict=True)


def _marginal(components: Components, held: NDArray[np.bool_]) -> Components:
    """Return the marginal distributions of the components in some features."""
    kind, covariances = components.covariance_type, components.covariances
    within = covariances[..., held, :][..., held]
    return Components.of(kind, components.shares, components.means[:, held], within)


def _covariance(components: Components, component: int) -> FloatArray:
    """Return the covariance matrix of a component."""
    tied = components.covariance_type == "tied"
    return components.covariances if tied else np.asarray(components.covariances[component])


def _slopes(components: Components, component: int, held: NDArray[np.bool_]) -> FloatArray:
    """Return the regression of missing values on the others, of shape (n_held, n_missing)."""
    covariance = _covariance(components, component)
    own, others = np.ix_(held, held), np.ix_(held, ~held)
    return np.asarray(np.linalg.solve(covariance[own], covariance[others]), dtype=np.float64)


def _sums_of_pattern(
    rows: FloatArray, weights: FloatArray, components: Components, held: NDArray[np.bool_]
) -> EMSums:
    """Compute the sums over rows in which the same features are present."""
    joint = log_joint_densities(rows[:, held], _marginal(components, held))
    densities, shares = mixed_densities(joint)
    shares *= weights[:, None]
    k, p = components.means.shape
    sums, scatters = np.zeros((k, p)), np.zeros((k, p, p))
    for j, mean in enumerate(components.means):
        slopes, covariance = _slopes(components, j, held), _covariance(components, j)
        differences = np.empty_like(rows)
        differences[:, held] = rows[:, held] - mean[held]
        differences[:, ~held] = differences[:, held] @ slopes
        sums[j] = shares[:, j] @ differences
        scatters[j] = (differences * shares[:, j, None]).T @ differences
        left = covariance[np.ix_(~held, ~held)] - covariance[np.ix_(~held, held)] @ slopes
        scatters[j][np.ix_(~held, ~held)] += shares[:, j].sum() * left
    if components.covariance_type == "tied":
        scatters = scatters.sum(axis=0, keepdims=True)
    return EMSums(shares.sum(axis=0), sums, scatters, float(weights @ densities))
