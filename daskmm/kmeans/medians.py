"""Exact medians of clusters of rows in memory; MM steps over blocks only approach them.

Medians minimise the Manhattan distance, geometric medians the Euclidean one (Stratos, "Notes on
k-Means", Proposition A.2).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from daskmm.kmeans.costs import MEDIAN_ROUNDS
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import nearest
from daskmm.kmeans.updates import CentersProblem
from daskmm.mm.driver import Outcome
from daskmm.numerics.distortions.norms import Euclidean, geometric_median, weighted_median

FloatArray = NDArray[np.float64]


def with_exact_medians(
    problem: CentersProblem, outcome: Outcome[CenterState]
) -> Outcome[CenterState]:
    """Replace the best start's centres by the medians of their rows while that lowers the cost.

    Rows are in memory, their distance is a norm, and the outcome is that of a fit that ended in
    hard steps. The new outcome has the same histories, and its cost is not higher.
    """
    blocks = problem.passes.blocks
    rows = np.concatenate([problem.coordinates.to_model(part) for part in blocks.parts])
    weights = np.ones(len(rows))
    if blocks.weights is not None:
        weights = np.concatenate([np.asarray(part, dtype=np.float64) for part in blocks.weights])
    best = outcome
    for _ in range(MEDIAN_ROUNDS):
        state = _medians(rows, weights, best.run.state)
        step = problem.steps([state])[0]
        if step.inertia + step.penalty >= best.scored.inertia + best.scored.penalty:
            break
        run = replace(best.run, state=state, scored=step)
        runs = [run if index == best.best else one for index, one in enumerate(best.runs)]
        best = Outcome(runs, best.best, step.inertia * problem.weight, step)
    return best


def _medians(rows: FloatArray, weights: FloatArray, state: CenterState) -> CenterState:
    """Move each centre to the median of the rows that are nearest to it."""
    labels = nearest(rows, replace(state, gaps=True))
    centers = state.centers.copy()
    for j in range(len(centers)):
        held = (labels == j) & (weights > 0)
        if held.any():
            centers[j] = _median(rows[held], weights[held], centers[j], state)
    return replace(state, centers=centers)


def _median(
    rows: FloatArray, weights: FloatArray, center: FloatArray, state: CenterState
) -> FloatArray:
    """Return the median of rows; features without any value keep the value of `center`."""
    if isinstance(state.distortion, Euclidean):
        tile = state.distortion.tile(rows, state.partial)
        median = geometric_median(tile, weights, state.distortion)
        seen = ~np.isnan(rows).all(axis=0)
        return np.where(seen, median, center)
    found = center.copy()
    for f in range(rows.shape[1]):
        held = ~np.isnan(rows[:, f])
        if held.any():
            found[f] = weighted_median(rows[held, f], weights[held])
    return found
