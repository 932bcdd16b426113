"""Pictures of the course of a fit, and of its feature weights; public in `daskmm.plot`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from daskmm.data.names import (
    ALIKE,
    counted,
    feature_names,
    features_explained,
    features_found,
    listed,
)
from daskmm.plot.figures import (
    BLUE,
    GREY,
    MARKS,
    MOST_FEATURES,
    RED,
    log_y,
    name_ticks,
    new_figure,
    open_frame,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOT_EXACT = "iteration (grey: on a sample, or on low-rank features)"


def annealing_trace(model: Any) -> Figure:
    """Draw objective and power by iteration.

    Parameters
    ----------
    model : fitted estimator
        The model. Lloyd steps are shaded; iterations on a sample, or on low-rank features, are
        grey; the power is not drawn if the fit does not anneal.

    Returns
    -------
    matplotlib Figure
    """
    check_is_fitted(model, "history_")
    history = model.history_
    steps = np.arange(1, len(history) + 1)
    objective = np.array([record.objective for record in history])
    power = np.array([-record.s for record in history])
    hard, exact = np.isinf(power), np.array([record.exact for record in history])
    annealed = not hard.all()
    figure = new_figure(figsize=(7.2, 5.2 if annealed else 3.6))
    axes = figure.subplots(2 if annealed else 1, sharex=True, squeeze=False)[:, 0]
    for run in _runs(exact):
        color, size = (BLUE if exact[run.start] else GREY), (3 if len(history) <= 150 else 0)
        marks = {**MARKS, "markersize": size, "color": color}
        axes[0].plot(steps[run], objective[run], **marks)
        soft = ~hard[run]
        if soft.any():
            axes[1].plot(steps[run][soft], power[run][soft], **marks)
    axes[0].set_ylabel("objective per unit weight")
    if annealed:
        log_y(axes[1])
        axes[1].set_ylabel("−s (power, log scale)")
    for axis in axes:
        open_frame(axis)
        for run in _runs(hard) if annealed else ():
            if hard[run.start]:
                low, high = steps[run][[0, -1]]
                axis.axvspan(low - 0.5, high + 0.5, color=GREY, alpha=0.25, linewidth=0)
    n_hard = int(hard.sum())
    kinds = f"{len(history) - n_hard} annealing and {n_hard} Lloyd steps (shaded)"
    kinds = kinds if annealed and n_hard else "annealing steps" if annealed else "Lloyd steps"
    axes[0].set_title(f"{type(model).__name__}: {kinds}", fontsize=11)
    axes[-1].set_xlabel("iteration" if exact.all() else _NOT_EXACT)
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.set_label(_course(history, n_hard))
    return figure


def _runs(flags: NDArray[np.bool_]) -> list[slice]:
    """Return the slices in which a flag does not change."""
    ends = [*(np.flatnonzero(np.diff(flags)) + 1), len(flags)]
    return [slice(int(low), int(high)) for low, high in pairwise([0, *ends])]


def _course(history: list[Any], n_hard: int) -> str:
    """Describe the course of a fit in words."""
    first, last = history[0], history[-1]
    sampled = sum(not record.exact for record in history)
    text = (
        f"The objective per unit weight goes from {first.objective:.4g} to {last.objective:.4g} "
        f"in {counted(len(history), 'iteration')}"
    )
    if sampled:
        text += f" ({sampled:,} of them not on all rows)"
    if n_hard == len(history):
        return f"{text}, all of them Lloyd steps."
    powers = [record.s for record in history if math.isfinite(record.s)]
    end = f"; {counted(n_hard, 'Lloyd step')} follow" if n_hard else ""
    return f"{text}, while the power s falls from {powers[0]:.4g} to {powers[-1]:.4g}{end}."


def feature_weights(model: Any) -> Figure:
    """Draw the weights of the features, largest first, and how much clusters explain of each.

    Parameters
    ----------
    model : fitted estimator with ``feature_weights_``
        The model; at most the 60 largest weights are drawn. If the model has ``feature_gains_``,
        they are drawn too, and order features of equal weight.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If the model has no feature weights.
    """
    weights = getattr(model, "feature_weights_", None)
    if weights is None:
        raise ValueError(f"{type(model).__name__} has no feature weights to draw.")
    names, gains = feature_names(model), getattr(model, "feature_gains_", None)
    ties = np.zeros(len(weights)) if gains is None else -gains
    order = np.lexsort((ties, -weights))[:MOST_FEATURES]
    found = features_found(weights)
    colors = [BLUE if index in set(found) else GREY for index in order]
    n_panels = 1 if gains is None else 2
    size = (max(5.0, 2.0 + 0.17 * len(order)), 2.5 + 1.5 * n_panels)
    figure = new_figure(figsize=size)
    axes = figure.subplots(n_panels, sharex=True, squeeze=False)[:, 0]
    _weight_bars(axes[0], weights[order], 1.0 / len(weights), colors)
    if gains is not None:
        axes[1].bar(range(len(order)), gains[order], color=colors, width=0.8)
        axes[1].set_ylabel("gain in nats")
    name_ticks(axes[-1].xaxis, [names[index] for index in order])
    axes[-1].tick_params(axis="x", labelsize=8, rotation=90, length=0)
    axes[-1].set_xlim(-0.7, len(order) - 0.3)
    axes[-1].set_xlabel("feature")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    rest = len(weights) - len(order)
    more = f"; {rest:,} small ones not drawn" if rest else ""
    title = f"{len(found)} of {len(weights):,} features above an equal share{more}"
    alike = f"{len(weights):,} features: {ALIKE}"
    axes[0].set_title(title if len(found) else alike, fontsize=11)
    figure.set_label(_told_by_weights(model, found))
    return figure


def _weight_bars(axis: Any, weights: NDArray[np.float64], equal: float, colors: list[str]) -> None:
    """Draw weights as bars, and a line at an equal share."""
    axis.bar(range(len(weights)), weights, color=colors, width=0.8)
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
    axis.set_ylabel("weight")


def _told_by_weights(model: Any, found: NDArray[np.int64]) -> str:
    """Say which features have more than an equal share of the weight, and the largest gains."""
    weights, names = model.feature_weights_, feature_names(model)
    equal = 1.0 / len(weights)
    if len(found):
        heaviest = [f"{names[index]} ({weights[index]:.3g})" for index in found]
        text = (
            f"{len(found)} of {len(weights):,} features weigh more than an equal share "
            f"({equal:.3g}) and have {weights[found].sum():.0%} of the weight; the heaviest: "
            f"{listed(heaviest)}."
        )
    else:
        text = (
            f"{len(weights):,} features: {ALIKE}, each with an equal share of the weight "
            f"({equal:.3g})."
        )
    explained = ", ".join(features_explained(model))
    return f"{text} Largest gains beyond noise: {explained}." if explained else text
