"""Which figures a report has, and how to read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm import plot
from daskmm.profile_plots import Profiles, draw_profiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Sampled(NamedTuple):
    """Rows of the data drawn at random, with their clusters.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_features)
        In the input's units.
    labels : ndarray of shape (n_rows,), int32
    """

    rows: NDArray
    labels: NDArray[np.int32]


@dataclass(frozen=True)
class Picture:
    """A figure of a report.

    Attributes
    ----------
    name : str
        Its id in the page.
    title, caption : str
    figure : matplotlib Figure
        Its label says what it shows.
    """

    name: str
    title: str
    caption: str
    figure: Figure


def pictures(model: Any, sampled: Sampled | None, profiles: Profiles | None) -> list[Picture]:
    """All figures that a fitted model has something to show for.

    Parameters
    ----------
    model : fitted estimator
    sampled : Sampled or None
        Rows of the data; without them, figures of rows are left out.
    profiles : Profiles or None

    Returns
    -------
    list of Picture
    """
    found = []

    def add(name: str, title: str, caption: str, draw: Callable[..., Figure], *what: Any) -> None:
        found.append(Picture(name, title, caption, draw(*what)))

    if sampled is not None:
        add("projection", "The clusters", _PROJECTION, plot.projection, model, *sampled)
    if profiles is not None:
        add("profiles", "Cluster profiles", _PROFILES, draw_profiles, profiles)
    if hasattr(model, "feature_weights_"):
        add("weights", "Feature weights", _WEIGHTS, plot.feature_weights, model)
    if sampled is not None and hasattr(model, "bandwidth_") and hasattr(model, "merge_tol"):
        add("frames", "Rows coming together", _FRAMES, plot.blur_frames, model, *sampled)
    for attribute, title, caption, draw in _PATHS:
        if hasattr(model, attribute):
            add(attribute.strip("_"), title, caption, draw, getattr(model, attribute))
    if hasattr(model, "objective_history_"):
        annealed = any(np.isfinite(record.s) for record in model.history_)
        caption = f"{_TRACE} {_ANNEALED}" if annealed else _TRACE
        add("trace", "How the fit went", caption, plot.annealing_trace, model)
    return found


_PROJECTION = (
    "Rows of a sample, coloured and numbered by cluster, in the plane in which the centres differ "
    "most by the model's own distance. Clusters that overlap here may lie apart along other axes."
)
_PROFILES = (
    "How far the centre of each cluster lies from the mean, feature by feature: red above, blue "
    "below, white close to the mean. Features that tell the clusters apart come first."
)
_WEIGHTS = (
    "What each feature counts for in the distance. Features without weight do not matter for these "
    "clusters."
)
_FRAMES = (
    "Rows of a sample, blurred again with the bandwidth and the feature weights of the fit: each "
    "moves to the mean of its neighbours. Those that come together are a cluster."
)
_TRACE = "What the fit minimizes, by iteration."
_ANNEALED = (
    "While it anneals, the power s falls and the objective itself changes; it need not fall before "
    "the Lloyd steps at the end."
)
_PATHS: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    (
        "n_clusters_path_",
        "How the number of clusters was chosen",
        "What each number of clusters gains, and explains beyond noise. Above the broken lines "
        "there are clusters; the dotted line is the choice.",
        plot.n_clusters_path,
    ),
    (
        "lam_path_",
        "How the penalty λ was chosen",
        "What the clusters tell of all features, beyond clusters of noise, and the features' "
        "weights. The largest λ above the broken line is taken: the dotted line.",
        plot.lam_path,
    ),
    (
        "bandwidth_path_",
        "How the bandwidth was chosen",
        "Clusters, what they gain, and the features' weights over a grid of bandwidths. The dotted "
        "line is the choice, on the shaded run of bandwidths with as many clusters.",
        plot.bandwidth_path,
    ),
)
