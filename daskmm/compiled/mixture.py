"""Sums of EM steps of mixtures of normal and t distributions over a block, read once.

Densities and responsibilities are float64 for rows of any type. Sums refer to the given means, so
that no digits cancel if clusters are small and far from 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.layout import call_in_parts, plain, row_dtype, tile_rows

FloatArray = NDArray[np.float64]


class Components(NamedTuple):
    """Components of a mixture; either `factors` or `inverse_deviations` is given.

    Attributes
    ----------
    means : ndarray of shape (n_components, n_features)
        The means μ, in the units of the rows.
    constants : ndarray of shape (n_components,)
        For each component, the logarithm of its share plus that of its density at the mean.
    factors : ndarray of shape (n_components or 1, n_features, n_features) or None
        Upper triangular matrices U whose U Uᵀ are the inverse covariances; a single one holds for
        all components.
    inverse_deviations : ndarray of shape (n_components, n_features) or None
        Inverse standard deviations, for components whose features are independent.
    degrees : ndarray of shape (n_components,) or None
        Degrees of freedom ν of t distributions; None for normal ones.
    """

    means: FloatArray
    constants: FloatArray
    factors: FloatArray | None = None
    inverse_deviations: FloatArray | None = None
    degrees: FloatArray | None = None


class MixtureSums(NamedTuple):
    """Sums over rows x with weights w, where γ are the responsibilities of the components.

    Rows of t distributions have a weight u = (ν + p) / (ν + δ) at a squared distance δ, and sums
    around the means have weights w γ u in place of w γ.

    Attributes
    ----------
    log_likelihood : float
        Σ w log p(x).
    n_j : ndarray of shape (n_components,)
        Σ w γ of each component.
    sums : ndarray of shape (n_components, n_features)
        Σ w γ (x − μ) of each component, around the given means.
    scatters : ndarray
        Σ w γ (x − μ)(x − μ)ᵀ of each component, in the shape of the factors; if all share one
        factor, the sum over all. If features are independent, Σ w γ (x − μ)², of shape
        (n_components, n_features).
    pulls, logs : ndarray of shape (n_components,) or None
        Σ w γ u and Σ w γ (log u − u) of t distributions.
    """

    log_likelihood: float
    n_j: FloatArray
    sums: FloatArray
    scatters: FloatArray
    pulls: FloatArray | None = None
    logs: FloatArray | None = None


def mixture_sums(
    rows: NDArray, weights: FloatArray | None, components: Components, negligible: float = 0.0
) -> MixtureSums | None:
    """Return the sums of one E- and M-step.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Rows in any numeric dtype and memory order.
    weights : ndarray of shape (n_rows,) or None
        Sample weights, finite and not negative.
    components : Components
        The components before the step.
    negligible : float
        Responsibilities up to this are left out of all sums except the log likelihood.

    Returns
    -------
    MixtureSums or None
        None if the density of a row, even of one without weight, is not finite.
    """
    k, p = components.means.shape
    total, n_j, sums = np.zeros(1), np.zeros(k), np.zeros((k, p))
    fields: dict[str, Any] = {"total": total, "n_j": n_j, "sums": sums, "negligible": negligible}
    if components.factors is None:
        scatters = fields["squares"] = np.zeros((k, p))
    else:
        scatters = fields["scatters"] = np.zeros(components.factors.shape)
    pulls = logs = None
    if components.degrees is not None:
        pulls, logs = fields["pulls"], fields["logs"] = np.zeros(k), np.zeros(k)
    of_rows = {"weights": None if weights is None else plain(weights)}
    if not _call(rows, components, of_rows, fields):
        return None
    if components.factors is not None:
        scatters += np.triu(scatters, 1).swapaxes(1, 2)
    return MixtureSums(float(total[0]), n_j, sums, scatters, pulls, logs)


def fill_memberships(
    rows: NDArray,
    components: Components,
    labels: NDArray[np.int32] | None = None,
    densities: FloatArray | None = None,
    responsibilities: FloatArray | None = None,
) -> bool:
    """Compute labels, densities or responsibilities of each row into the arrays that are given.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Rows in any numeric dtype and memory order.
    components : Components
        The components.
    labels : ndarray of int32 of shape (n_rows,), optional
        Output: the first of the most probable components.
    densities : ndarray of shape (n_rows,), optional
        Output: the log densities of the mixture.
    responsibilities : ndarray of shape (n_rows, n_components), optional
        Output: the probability of each component, given the row.

    Returns
    -------
    bool
        False if the density of a row is not finite; the output is undefined then.
    """
    of_rows = {"labels": labels, "densities": densities, "responsibilities": responsibilities}
    return _call(rows, components, of_rows, {"negligible": 0.0})


def _call(
    rows: NDArray,
    components: Components,
    of_rows: dict[str, NDArray | None],
    fields: dict[str, Any],
) -> bool:
    """Run the loop; return False if the density of a row is not finite."""
    k, p = components.means.shape
    given = {name: plain(x) for name, x in components._asdict().items() if x is not None}
    fields = fields | given | {"k": k, "n_factors": len(given.get("factors", ()))}
    # Tiles are the same for all dtypes of the rows, and so are the results.
    tile = tile_rows(len(rows), k, p, np.dtype(np.float64))
    return call_in_parts("mixture_sums", rows, row_dtype(rows), tile, of_rows, fields)
