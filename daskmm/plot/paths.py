"""Pictures of the choices of parameters; public in `daskmm.plot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from daskmm.auto.bandwidth import BandwidthPath
from daskmm.auto.distortion import DistortionChoice
from daskmm.auto.lam import LamPath
from daskmm.auto.n_clusters import ClusterNumberPath
from daskmm.data.names import counted
from daskmm.plot.figures import (
    BLUE,
    GREY,
    MARKS,
    MOST_FEATURES,
    RED,
    checked,
    log_y,
    mark_choice,
    new_figure,
    open_frame,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def bandwidth_path(path: BandwidthPath) -> Figure:
    """Draw clusters, their gain and the feature weights over a grid of bandwidths.

    Parameters
    ----------
    path : BandwidthPath
        The ``bandwidth_path_`` of a model. The plateau around the choice is shaded. At most 60
        features, those with the largest weights at the choice, are drawn.

    Returns
    -------
    matplotlib Figure
    """
    checked(path, BandwidthPath, "the bandwidth_path_ of a model")
    figure = new_figure(figsize=(7.2, 7.6))
    axes = figure.subplots(3, sharex=True)
    axes[0].plot(path.bandwidths, path.n_clusters, color=BLUE, **MARKS)
    log_y(axes[0])
    axes[0].set_ylabel("clusters (log scale)")
    axes[1].plot(path.bandwidths, path.gain, color=BLUE, **MARKS)
    axes[1].axhline(0.0, color=GREY, linewidth=1)
    # Partitions that are far too fine have very low gains, so the range shows the gains near the
    # choice.
    top = max(float(path.gain.max()), 0.1)
    axes[1].set_ylim(max(float(path.gain.min()), -top) - 0.1 * top, 1.1 * top)
    axes[1].set_ylabel("gain (nats per row)", color=BLUE)
    beside = axes[1].twinx()
    between = np.sqrt(path.bandwidths[:-1] * path.bandwidths[1:])
    beside.plot(between, path.agreement, color=RED, linewidth=1, linestyle="--")
    beside.set_ylim(-0.05, 1.05)
    beside.set_ylabel("agreement of neighbours", color=RED)
    beside.spines["top"].set_visible(False)
    _draw_weights(axes[2], path.bandwidths, path)
    axes[2].set_xscale("log")
    axes[2].set_xlabel("bandwidth (log scale)")
    first, last = path.plateau
    for axis in axes:
        axis.axvspan(path.bandwidths[first], path.bandwidths[last], color=GREY, alpha=0.25)
        mark_choice(axis, path.bandwidth)
        open_frame(axis, "top", *["right"] * (axis is not axes[1]))
    found = int(path.n_clusters[path.chosen])
    axes[0].set_title(
        f"bandwidth {path.bandwidth:.3g}: {counted(found, 'cluster')} of {path.n_rows:,} rows",
        fontsize=11,
    )
    figure.set_label(
        f"Over {len(path.bandwidths)} bandwidths from {path.bandwidths[0]:.3g} to "
        f"{path.bandwidths[-1]:.3g} the number of clusters falls from {path.n_clusters[0]:,} to "
        f"{path.n_clusters[-1]:,}; {path.bandwidth:.3g} is chosen, with {found:,}, where they gain "
        f"{path.gain[path.chosen]:.3g} nats per row."
    )
    return figure


def lam_path(path: LamPath) -> Figure:
    """Draw the information gain and the feature weights over a grid of penalties.

    Parameters
    ----------
    path : LamPath
        The ``lam_path_`` of a model. The rule takes the largest penalty with a gain above the
        broken line. At most 60 features, those with the largest weights at the choice, are drawn.

    Returns
    -------
    matplotlib Figure
    """
    checked(path, LamPath, "the lam_path_ of a model with lam='auto'")
    figure = new_figure(figsize=(7.2, 5.6))
    axes = figure.subplots(2, sharex=True)
    places = np.arange(len(path.lams))
    axes[0].errorbar(
        places, path.gain, path.spread, color=BLUE, marker="o", markersize=4, capsize=3
    )
    axes[0].axhline(path.threshold, color=RED, linewidth=1, linestyle="--")
    axes[0].axhline(0.0, color=GREY, linewidth=1)
    axes[0].set_ylabel("information gain (nats)")
    _draw_weights(axes[1], places, path)
    axes[1].set_xticks(places, [_readable(lam) for lam in path.lams])
    axes[1].set_xlabel("λ per unit of sample weight")
    for axis in axes:
        mark_choice(axis, path.chosen)
        open_frame(axis)
    axes[0].set_title(
        f"λ = {_readable(path.lam)}: {path.gain[path.chosen]:.3g} nats, "
        f"{path.n_clusters} clusters of {path.n_rows:,} rows",
        fontsize=11,
    )
    best = int(path.gain.argmax())
    figure.set_label(
        f"Over {len(path.lams)} penalties λ from {_readable(path.lams[0])} to "
        f"{_readable(path.lams[-1])} the gain is largest at {_readable(path.lams[best])}, "
        f"{path.gain[best]:.3g} nats; {_readable(path.lam)} is chosen, the largest with more than "
        f"{path.threshold:.3g}."
    )
    return figure


def n_clusters_path(path: ClusterNumberPath) -> Figure:
    """Draw the overlap of the two least separated clusters, for each number of clusters.

    Parameters
    ----------
    path : ClusterNumberPath
        The result of :func:`daskmm.selection.choose_n_clusters`, or the ``n_clusters_path_`` of a
        model. At numbers whose overlap lies below the broken line, gaps divide all clusters; the
        largest such number is chosen.

    Returns
    -------
    matplotlib Figure
    """
    origin = "the n_clusters_path_ of a model with n_clusters='auto', or of selection"
    checked(path, ClusterNumberPath, f"{origin}.choose_n_clusters")
    figure = new_figure(figsize=(7.2, 3.4))
    axis = figure.subplots()
    axis.plot(path.numbers, path.overlaps, color=BLUE, **MARKS)
    axis.axhline(1.0, color=RED, linewidth=1, linestyle="--")
    axis.set_ylim(0.0, 3.0)
    axis.set_ylabel("largest overlap of two clusters")
    axis.set_xlabel("number of clusters")
    axis.locator_params(axis="x", integer=True)
    open_frame(axis)
    if path.n_clusters > 1:
        mark_choice(axis, path.n_clusters)
    found = "no clusters" if path.n_clusters == 1 else f"{path.n_clusters} clusters"
    axis.set_title(
        f"{found} among {path.n_rows:,} rows of {path.n_features:,} features", fontsize=11
    )
    near = np.isin(path.numbers, [path.n_clusters, path.n_clusters + 1])
    overlaps = "".join(
        f"Two of {number} clusters overlap by {overlap:.2g}. "
        for number, overlap in zip(path.numbers[near], path.overlaps[near], strict=True)
    )
    figure.set_label(
        f"{overlaps}A gap is an overlap of less than 1. {found} are found among {path.n_rows:,} "
        "rows."
    )
    return figure


def distortion_choice(choice: DistortionChoice) -> Figure:
    """Draw the information gain of the clusters that each distortion finds.

    Parameters
    ----------
    choice : DistortionChoice
        The result of :func:`daskmm.selection.choose_distortion`.

    Returns
    -------
    matplotlib Figure
    """
    checked(choice, DistortionChoice, "of selection.choose_distortion")
    figure = new_figure(figsize=(7.2, 0.4 * len(choice.distortions) + 1.6))
    axis = figure.subplots()
    places = np.arange(len(choice.distortions))
    colors = [RED if place == choice.chosen else BLUE for place in places]
    axis.errorbar(choice.gain, places, xerr=choice.spread, fmt="none", color=GREY, capsize=3)
    axis.scatter(choice.gain, places, color=colors, zorder=3)
    axis.set_yticks(places, choice.distortions)
    axis.invert_yaxis()
    axis.set_xlabel("information gain of the ranks (nats)")
    open_frame(axis)
    axis.set_title(
        f"{choice.distortion}: {choice.gain[choice.chosen]:.3g} nats, "
        f"{choice.n_clusters} clusters of {choice.n_rows:,} rows",
        fontsize=11,
    )
    figure.set_label(
        f"{choice.distortion} is chosen among {len(choice.distortions)} distortions: its clusters "
        f"gain {choice.gain[choice.chosen]:.3g} nats on the ranks of the features; the largest "
        f"gain is {choice.gain.max():.3g}, the least {choice.gain.min():.3g}."
    )
    return figure


def _draw_weights(axis: Axes, places: NDArray, path: BandwidthPath | LamPath) -> None:
    """Draw a line for each feature, for at most 60 with the largest weights at the choice."""
    heaviest = np.argsort(-path.feature_weights[path.chosen], kind="stable")[:MOST_FEATURES]
    axis.plot(places, path.feature_weights[:, np.sort(heaviest)], linewidth=1, alpha=0.8)
    rest = path.feature_weights.shape[1] - len(heaviest)
    axis.set_ylabel(
        f"feature weights\n({rest:,} small ones not drawn)" if rest else "feature weights"
    )


def _readable(lam: float) -> str:
    return f"{lam:.3g}" if np.isfinite(lam) else "∞ (equal)"
