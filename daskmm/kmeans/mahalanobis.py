"""Mahalanobis distance with one matrix for all clusters, given or learned.

After whitening by the matrix, this is k-means with squared Euclidean distances. A learned matrix
has determinant 1, since otherwise the matrix 0 would be optimal. For given clusters the best matrix
is the scaled inverse of their pooled scatter. Alternating between clusters and matrix never raises
the cost. Xu & Lange 2019, section 3.2, suggest a shared matrix Ω.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.first_pass import Survey
from daskmm.engine.moments import Sample
from daskmm.kmeans.assignment import labels_of
from daskmm.kmeans.empty_clusters import continued
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Outcome, Schedule, minimize
from daskmm.numerics.rows import WhitenedCoordinates, tile_rows, tiles

FloatArray = NDArray[np.float64]

# Variances of directions are raised to this share of the largest one.
_LEAST_VARIANCE = 1e-10


def given_precision(parameters: dict[str, Any] | None, n_features: int) -> FloatArray | None:
    """Return the matrix given as ``metric_params={"VI": matrix}``; None if it is to be learned.

    ValueError is raised if another parameter is given, or VI is not a symmetric positive definite
    matrix.
    """
    if parameters is None:
        return None
    if set(parameters) != {"VI"}:
        raise ValueError(f"metric_params must be {{'VI': matrix}} or None; got {parameters!r}.")
    precision = np.asarray(parameters["VI"], dtype=np.float64)
    if precision.shape != (n_features, n_features):
        raise ValueError(
            f"VI has shape {precision.shape}; for {n_features} features it must be "
            f"({n_features}, {n_features})."
        )
    symmetric = np.allclose(precision, precision.T, rtol=1e-10)
    if not (symmetric and np.isfinite(precision).all() and np.linalg.eigvalsh(precision)[0] > 0):
        raise ValueError("VI must be a symmetric positive definite matrix.")
    return precision


def unit_precision(scatter: FloatArray) -> FloatArray:
    """Return the inverse of a scatter matrix, scaled to determinant 1."""
    variances, directions = np.linalg.eigh(scatter)
    if variances[-1] <= 0:
        return np.eye(len(scatter))
    variances = np.maximum(variances, _LEAST_VARIANCE * variances[-1])
    inverse = np.exp(np.log(variances).mean() - np.log(variances))
    precision: FloatArray = (directions * inverse) @ directions.T
    return 0.5 * (precision + precision.T)


def total_precision(sample: Sample) -> FloatArray:
    """Return the initial matrix, for which all rows are one cluster."""
    centred = sample.rows - np.average(sample.rows, axis=0, weights=sample.weights)
    return unit_precision(centred.T @ (centred * sample.weights[:, None]))


def whitened(survey: Survey, precision: FloatArray) -> Survey:
    """Transform a survey to coordinates in which the distance is Euclidean."""
    coordinates = WhitenedCoordinates.of(survey.coordinates.mean, precision)
    return survey.transformed(coordinates, lambda rows: rows @ coordinates.whitening)


def turned(
    problem: CentersProblem,
    outcome: Outcome[CenterState],
    schedule: Schedule,
    context: FitContext,
) -> tuple[CentersProblem, Outcome[CenterState], bool] | None:
    """Learn the matrix from the clusters, and take hard steps in its coordinates.

    The outcome so far has fewer iterations than the schedule's `max_iter`, which limits all
    iterations together. The result is the problem and the outcome in the coordinates of the new
    matrix, where histories continue the earlier ones, and whether the cost fell by no more than the
    schedule's `tol`. It is None if the cost did not fall.
    """
    coordinates = problem.coordinates
    assert isinstance(coordinates, WhitenedCoordinates)
    state = replace(outcome.run.state, s=-np.inf)
    scatter = problem.passes.reduce(_scatter, coordinates, state)
    other = WhitenedCoordinates.of(coordinates.mean, unit_precision(scatter))
    state = replace(state, centers=other.to_model(coordinates.to_input(state.centers)))
    after = CentersProblem(problem.passes, other, problem.weight, problem.update, problem.spread)
    hard = Schedule(-np.inf, max_iter=schedule.max_iter - outcome.n_iter, tol=schedule.tol)
    then = minimize(after, [state], hard, context)
    gain = outcome.inertia - then.inertia
    if gain <= 0.0:
        return None
    outcome = continued(outcome, then)
    return after, outcome, gain <= schedule.tol * outcome.inertia


def _scatter(block: Block, coordinates: WhitenedCoordinates, state: CenterState) -> FloatArray:
    """Compute Σ_i v_i (x_i − θ)(x_i − θ)ᵀ of a block in the input's units, θ the nearest centre."""
    k, p = state.centers.shape
    total, offsets = np.zeros((p, p)), state.centers @ coordinates.inverse
    nearest, rows, weights = labels_of(block, coordinates, state), block.rows, block.weights
    for part in tiles(len(rows), tile_rows(p, k)):
        x = np.subtract(rows[part], coordinates.mean, dtype=np.float64)
        x -= offsets[nearest[part]]
        total += x.T @ (x if weights is None else x * weights[part][:, None])
    return total
