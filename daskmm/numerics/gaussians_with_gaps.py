r"""Gaussian components of rows with missing values, which are integrated out.

The density of a row is that of its present values, and the E-step takes the expected values and the
covariance of the missing ones, given the present ones (Ghahramani & Jordan, "Supervised learning
from incomplete data via an EM approach", NIPS 1994). Nothing is imputed, and the M-step is the same
as for complete rows. Expected values are linear in the present ones, so the sums over rows that
lack the same features follow from those of their present values.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from daskmm.numerics.gaussians import Components, EMSums, factors_of, log_joint_densities
from daskmm.numerics.rows import tiles

FloatArray = NDArray[np.float64]

# Number of rows among which those with the same features present are sought. Components are
# prepared for each such group, and the group is a copy of its rows.
ROWS_AT_ONCE = 1 << 16


def patterns(rows: NDArray) -> Iterator[tuple[NDArray[np.intp], NDArray[np.bool_]]]:
    """Yield the places of rows with the same features present, and the mask of these features."""
    for part in tiles(len(rows), ROWS_AT_ONCE):
        held = ~np.isnan(rows[part])
        whole = held.all(axis=1)
        if whole.any():
            yield part.start + np.flatnonzero(whole), np.ones(rows.shape[1], dtype=np.bool_)
        others = np.flatnonzero(~whole)
        if not len(others):
            continue
        bits = np.packbits(held[others], axis=1)
        _, firsts, groups = np.unique(bits, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(groups.ravel(), kind="stable")
        ends = np.cumsum(np.bincount(groups.ravel(), minlength=len(firsts)))
        for own, first in zip(np.split(order, ends[:-1]), firsts, strict=True):
            yield part.start + others[own], held[others[first]]


def marginal(components: Components, held: NDArray[np.bool_]) -> Components:
    """Return the marginal distributions of normal components in some features."""
    if held.all():
        return components
    kind = components.covariance_type
    covariances, factors = components.covariances, components.factors
    if kind == "diag":
        covariances, factors = covariances[:, held], factors[:, held]
    elif kind != "spherical":
        covariances = covariances[..., held, :][..., held]
        factors = _factors(covariances, kind)
    return Components(kind, components.shares, components.means[:, held], covariances, factors)


def with_expectations(
    sums: EMSums, components: Components, own: Components, held: NDArray[np.bool_]
) -> EMSums:
    """Return the sums of all features, given those of the present ones at marginals `own`."""
    if held.all():
        return sums
    k, p = components.means.shape
    if components.covariance_type in ("diag", "spherical"):
        firsts, scatters = np.zeros((k, p)), np.zeros((k, p))
        firsts[:, held], scatters[:, held] = sums.sums, sums.scatters
        left = components.deviations[:, ~held] ** -2.0
        scatters[:, ~held] = sums.weights[:, None] * left
        return EMSums(sums.weights, firsts, scatters, sums.log_likelihood)
    slopes, left = _regression(components, own, held)
    filling = np.zeros((len(slopes), np.count_nonzero(held), p))
    filling[..., held], filling[..., ~held] = np.eye(filling.shape[1]), slopes
    firsts = (sums.sums[:, None, :] @ filling)[:, 0]
    scatters = filling.swapaxes(1, 2) @ sums.scatters @ filling
    weights = sums.weights.sum(keepdims=True) if len(slopes) < k else sums.weights
    down, across = np.ix_(~held, ~held)
    scatters[:, down, across] += weights[:, None, None] * left
    return EMSums(sums.weights, firsts, scatters, sums.log_likelihood)


def expected_rows(rows: FloatArray, components: Components) -> FloatArray:
    """Return rows with missing values replaced by their expectations, given the others."""
    found = rows.copy()
    for own, held in patterns(rows):
        seen, part = rows[np.ix_(own, held)], marginal(components, held)
        shares = softmax(log_joint_densities(seen, part), axis=1)
        expected = shares @ components.means[:, ~held]
        if components.covariance_type in ("full", "tied"):
            slopes, _ = _regression(components, part, held)
            for j, mean in enumerate(part.means):
                expected += shares[:, j, None] * ((seen - mean) @ slopes[j % len(slopes)])
        found[np.ix_(own, ~held)] = expected
    return found


def _factors(covariances: FloatArray, kind: str) -> FloatArray:
    """Return `factors_of` of covariance matrices, all at once."""
    try:
        lower = np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        return factors_of(covariances, kind)  # this names the component
    return np.asarray(np.triu(np.linalg.inv(lower).swapaxes(-1, -2)))


def _regression(
    components: Components, own: Components, held: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """Return slopes of missing values on the present ones, and the covariances that they leave.

    The slopes have the shape (n_matrices, n_held, n_missing), where `own` are the marginals.
    """
    p, n_held = len(held), np.count_nonzero(held)
    covariances = components.covariances.reshape(-1, p, p)
    factors = own.factors.reshape(-1, n_held, n_held)
    whitened = factors.swapaxes(1, 2) @ covariances[:, held][..., ~held]
    left = covariances[:, ~held][..., ~held] - whitened.swapaxes(1, 2) @ whitened
    return factors @ whitened, left
