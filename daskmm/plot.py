"""Pictures of a fitted model, on matplotlib (the extra ``plot``)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.extmath import randomized_svd

from daskmm.figures import BLUE, GREY, MOST_FEATURES, RED, log_formatter, new_figure
from daskmm.numerics.rows import Coordinates
from daskmm.path_plots import bandwidth_path, lam_path, n_clusters_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "annealing_trace",
    "bandwidth_path",
    "feature_weights",
    "lam_path",
    "n_clusters_path",
    "projection",
]

# Numbered clusters beyond which a picture cannot be read.
_MOST_NUMBERS = 100
# Share of the rows' own spread in the axes, which counts only where centres span too few.
_OWN_SPREAD = 1e-3


def require_matplotlib() -> None:
    """Say which extra is missing, before time is spent on what is to be drawn.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    new_figure()


def annealing_trace(model: Any) -> Figure:
    """Objective and power by iteration.

    Parameters
    ----------
    model : fitted estimator
        Its ``history_`` is drawn. Lloyd steps are shaded; without annealing there is no power
        to show.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    history = model.history_
    annealed = [record for record in history if math.isfinite(record.s)]
    figure = new_figure(figsize=(7.2, 5.2 if annealed else 3.6))
    axes = figure.subplots(2 if annealed else 1, sharex=True, squeeze=False)[:, 0]
    iterations = [record.iteration for record in history]
    marks = {"marker": "o", "markersize": 3, "linewidth": 1.4, "color": BLUE}
    axes[0].plot(iterations, [record.objective for record in history], **marks)
    axes[0].set_ylabel("objective per unit weight")
    if annealed:
        axes[1].plot(
            [record.iteration for record in annealed], [-record.s for record in annealed], **marks
        )
        axes[1].set_yscale("log")
        for level in (axes[1].yaxis.set_major_formatter, axes[1].yaxis.set_minor_formatter):
            level(log_formatter())
        axes[1].set_ylabel("−s (power, log scale)")
    hard = [record.iteration for record in history if not math.isfinite(record.s)]
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if hard and annealed:
            axis.axvspan(hard[0] - 0.5, hard[-1] + 0.5, color=GREY, alpha=0.25, linewidth=0)
    steps = f"{len(annealed)} annealing and {len(hard)} Lloyd steps (shaded)"
    steps = steps if annealed and hard else "annealing steps" if annealed else "Lloyd steps"
    axes[0].set_title(f"{type(model).__name__}: {steps}", fontsize=11)
    axes[-1].set_xlabel("iteration")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    return figure


def feature_weights(model: Any) -> Figure:
    """Weights of the features, largest first.

    Parameters
    ----------
    model : fitted estimator with ``feature_weights_``
        Beyond 60 features only the 60 largest weights are drawn.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If the model has no feature weights.
    ImportError
        If matplotlib is not installed.
    """
    weights = getattr(model, "feature_weights_", None)
    if weights is None:
        raise ValueError(f"{type(model).__name__} has no feature weights to draw.")
    names = feature_names(model)
    order = np.argsort(-weights, kind="stable")[:MOST_FEATURES]
    equal = 1.0 / len(weights)
    figure = new_figure(figsize=(max(5.0, 2.0 + 0.17 * len(order)), 4.0))
    axis = figure.subplots()
    colors = [BLUE if weights[index] > equal else GREY for index in order]
    axis.bar(range(len(order)), weights[order], color=colors, width=0.8)
    axis.axhline(equal, color=RED, linewidth=1, linestyle="--")
    axis.annotate(
        "equal weights",
        (1.0, equal),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        color=RED,
        fontsize=9,
    )
    axis.set_xticks(range(len(order)), [_short(names[index]) for index in order])
    axis.tick_params(axis="x", labelsize=8, rotation=90, length=0)
    axis.set_xlim(-0.7, len(order) - 0.3)
    axis.set_xlabel("feature")
    axis.set_ylabel("weight")
    axis.spines[["top", "right"]].set_visible(False)
    above = int(np.count_nonzero(weights > equal))
    rest = len(weights) - len(order)
    more = f"; {rest:,} small ones not drawn" if rest else ""
    axis.set_title(f"{above} of {len(weights):,} features above an equal share{more}", fontsize=11)
    return figure


def feature_names(model: Any) -> list[str]:
    """Names of the features of a fitted model, or their numbers, counted from 0."""
    names = getattr(model, "feature_names_in_", None)
    return [str(name) for name in (range(model.n_features_in_) if names is None else names)]


def _short(name: str, length: int = 18) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def projection(model: Any, sample: ArrayLike, labels: ArrayLike | None = None) -> Figure:
    """Rows in the plane in which the cluster centres differ most.

    The model's own distance decides: features are scaled and weighted as the model does, and
    the axes are the principal ones of the rows' centres.

    Parameters
    ----------
    model : fitted estimator
    sample : array-like of shape (n_rows, n_features)
        A few thousand rows, in the input's units.
    labels : array-like of shape (n_rows,), optional
        Cluster of each row; by default the nearest centre.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    rows = np.asarray(sample)
    clusters = np.asarray(model.predict(rows) if labels is None else labels)
    points, centers, shares = _plane(model, rows, clusters)
    figure = new_figure(figsize=(6.6, 6.0))
    axis = figure.subplots()
    colors = _colors(len(centers))
    size = float(np.clip(28_000 / max(len(points), 1), 5, 25))
    axis.scatter(points[:, 0], points[:, 1], s=size, c=colors[clusters], alpha=0.6, linewidths=0)
    if len(centers) <= _MOST_NUMBERS:
        _number(axis, centers[np.unique(clusters)], np.unique(clusters))
    else:
        axis.scatter(centers[:, 0], centers[:, 1], s=14, c="black", marker="+", linewidths=0.8)
    axis.set_xlabel(f"axis 1 ({shares[0]:.0%} of the spread between clusters)")
    axis.set_ylabel(f"axis 2 ({shares[1]:.0%})")
    axis.margins(0.05)
    axis.set_aspect("equal", adjustable="datalim")
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.2)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(
        f"{type(model).__name__}: {len(points):,} rows, {len(centers)} clusters", fontsize=11
    )
    return figure


def _plane(
    model: Any, rows: NDArray, clusters: NDArray
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows and centres on two axes, and the axes' shares of the spread between clusters."""
    coordinates = Coordinates(model.mean_, model.scale_)
    weights = np.sqrt(getattr(model, "feature_weights_", np.ones(model.n_features_in_)))
    points = coordinates.to_model(rows) * weights
    if hasattr(model, "cluster_centers_"):
        centers = coordinates.to_model(model.cluster_centers_) * weights
    else:  # means of a feature space have no place among the rows; those of the sample have
        present = np.bincount(clusters, minlength=model.n_clusters)[:, None]
        sums = np.zeros((model.n_clusters, points.shape[1]))
        np.add.at(sums, clusters, points)
        centers = sums / np.maximum(present, 1)
    # A value that is missing is drawn where its cluster's centre has it.
    points = np.where(np.isnan(points), centers[clusters], points)
    if points.shape[1] == 1:
        # A single feature; the second axis tells clusters apart by their number.
        level = np.linspace(-1, 1, len(centers))[:, None] * max(float(np.ptp(points)), 1e-12) / 4
        return np.hstack([points, level[clusters]]), np.hstack([centers, level]), np.array([1, 0])
    served = centers[clusters]
    middle = served.mean(axis=0)
    spread = np.vstack([served - middle, _OWN_SPREAD * (points - points.mean(axis=0))])
    axes = randomized_svd(spread, 2, random_state=0)[2].T
    between = np.square(served - middle)
    shares = np.square((served - middle) @ axes).sum(axis=0) / max(between.sum(), 1e-300)
    return (points - middle) @ axes, (centers - middle) @ axes, shares


def _number(axis: Any, centers: NDArray, numbers: NDArray) -> None:
    """Write the clusters' numbers at their centres."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2, foreground="white")]
    size = 10 if len(numbers) <= 20 else 8 if len(numbers) <= 50 else 6
    for (x, y), number in zip(centers, numbers, strict=True):
        axis.text(
            *(x, y, str(number)),
            ha="center",
            va="center",
            fontsize=size,
            fontweight="bold",
            path_effects=halo,
        )


def _colors(n_clusters: int) -> NDArray[np.float64]:
    """Colours that differ between clusters of neighbouring numbers."""
    from matplotlib import colormaps
    from matplotlib.colors import hsv_to_rgb

    if n_clusters <= 10:
        return np.asarray(colormaps["tab10"](np.arange(n_clusters)))
    # Steps of the golden ratio spread the hues; brightness alternates.
    number = np.arange(n_clusters)
    hue = number * (math.sqrt(5) - 1) / 2 % 1
    saturation = np.choose(number % 3, [0.9, 0.6, 0.75])
    value = np.choose(number % 2, [0.85, 0.65])
    return hsv_to_rgb(np.column_stack([hue, saturation, value]))
