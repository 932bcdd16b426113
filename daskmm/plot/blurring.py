"""Frames of the blurring mean shift on a sample; public in `daskmm.plot`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daskmm.data.names import counted
from daskmm.engine.passes import one_blas_thread
from daskmm.mean_shift.blurring import CALM_ITERATIONS, ISOLATED
from daskmm.mean_shift.neighborhood import Neighborhood, Shift
from daskmm.numerics.rows import Coordinates
from daskmm.plot.figures import (
    cluster_colors,
    drawn_rows,
    new_figure,
    require_matplotlib,
    scatter_rows,
)
from daskmm.plot.plane import Plane

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

# Limits of the repeated blurring, for speed: number of rows, rows² times features, and iterations.
MOST_ROWS, _MOST_PRODUCTS = 1500, 2_000_000_000
_MOST_ITERATIONS = 100
# Frames are drawn when these shares of the total movement remain.
_TO_GO = (0.7, 0.4, 0.15, 0.03)


@dataclass(frozen=True)
class Replay:
    """Positions of a sample during a repeated blurring, projected on a plane."""

    frames: list[FloatArray]  # positions before the first iteration, and after each, (n_rows, 2)
    n_points: list[int]  # distinct ones in each frame

    def stages(self) -> list[int]:
        """Select frames to draw: the first, the first with final clusters, and some between."""
        way = np.array([np.abs(frame - self.frames[-1]).sum() for frame in self.frames])
        to_go = way / way[0] if way[0] > 0 else np.zeros(len(way))
        merged = np.array(self.n_points) == self.n_points[-1]
        settled = int(np.argmax(merged & (to_go <= _TO_GO[-1])))
        found = {0, settled, *(int(np.argmax(to_go <= share)) for share in _TO_GO)}
        # An even number of frames fills two rows.
        between = [frame for frame in range(settled) if frame not in found]
        if len(found) > 3 and len(found) % 2 and between:
            found.add(between[-1])
        return sorted(found)


def replay(model: Any, rows: NDArray, clusters: NDArray) -> Replay:
    """Blur rows again with the bandwidth and the feature weights of a fitted mean shift.

    Fewer rows estimate the same density, so this resembles the last stage of the fit. Rows are in
    the input's units, and `clusters` are their clusters in the fit.
    """
    plane = Plane.of(model, rows, clusters)
    start = Coordinates(model.mean_, model.scale_).to_model(rows)
    state = Neighborhood.of(start, np.ones(len(rows)), model.merge_tol)
    frames, n_points, calm = [plane.place(start, clusters)], [state.n], 0
    # The self term is included for "reference" as well, since isolated pairs would otherwise swap
    # places in every frame.
    first = 0 if model.convention == "paper" else 1
    with one_blas_thread():
        for iteration in range(_MOST_ITERATIONS):
            self_term = iteration >= first
            shift = Shift(model.bandwidth_, self_term, model.merge_tol, iteration + 1, lazy=False)
            new, attraction = state.step(model.feature_weights_, shift)
            calm = calm + 1 if new.n == state.n and attraction <= ISOLATED else 0
            state = new
            positions = state.representatives.positions[state.members]
            frames.append(plane.place(positions, clusters))
            n_points.append(state.n)
            if calm >= CALM_ITERATIONS:
                break
    return Replay(frames, n_points)


def blur_frames(model: Any, sample: ArrayLike, labels: ArrayLike | None = None) -> Figure:
    """Draw a sample at several stages of the blurring.

    The sample is blurred again with the bandwidth and the feature weights of the fit, and drawn in
    the plane in which the modes differ most.

    Parameters
    ----------
    model : fitted WeightedBlurringMeanShift
        The model.
    sample : array-like of shape (n_rows, n_features)
        Rows in the input's units; at most 1,500 (fewer if they are wide) are used.
    labels : array-like of shape (n_rows,), optional
        Cluster of each row, which determines its colour; by default that of the nearest mode.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If the model is not a mean shift.
    """
    if not hasattr(model, "bandwidth_") or not hasattr(model, "merge_tol"):
        raise ValueError(f"{type(model).__name__} has no frames: only mean shifts blur rows.")
    require_matplotlib()
    sample, labels = drawn_rows(model, sample, labels)
    rows = np.asarray(sample)
    clusters = np.asarray(model.predict(sample) if labels is None else labels)
    most = min(MOST_ROWS, math.isqrt(_MOST_PRODUCTS // rows.shape[1]))
    if len(rows) > most:
        chosen = np.random.default_rng(0).choice(len(rows), most, replace=False)
        rows, clusters = rows[chosen], clusters[chosen]
    blurred = replay(model, rows, clusters)
    stages = blurred.stages()
    n_columns = len(stages) if len(stages) <= 3 else -(-len(stages) // 2)
    figure = new_figure(figsize=(9.0, 6.2))
    axes = figure.subplots(
        -(-len(stages) // n_columns), n_columns, sharex=True, sharey=True, squeeze=False
    )
    colors = cluster_colors(model.n_clusters_)[clusters]
    size = float(np.clip(7000 / max(len(rows), 1), 6, 14))
    for axis, stage in zip(axes.flat, stages, strict=False):
        scatter_rows(axis, blurred.frames[stage], colors, size)
        when = "before" if stage == 0 else f"after {counted(stage, 'iteration')}"
        axis.set_title(f"{when}: {counted(blurred.n_points[stage], 'point')}", fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(stages) :]:
        axis.set_visible(False)
    title = f"{counted(len(rows), 'row')} of a sample, blurred: bandwidth {model.bandwidth_:.3g}"
    figure.suptitle(title, fontsize=11)
    course = ", ".join(f"{blurred.n_points[stage]:,}" for stage in stages)
    figure.set_label(
        f"{counted(len(rows), 'row')} of a sample move to the means of their neighbours and come "
        f"together: {course} distinct points after {', '.join(map(str, stages))} iterations, in "
        f"the colours of the {counted(model.n_clusters_, 'cluster')} of the fit."
    )
    return figure
