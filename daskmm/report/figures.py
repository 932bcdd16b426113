"""Which figures a report has, and how to read them."""

from __future__ import annotations

import html
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from daskmm.plot.figures import BLUE, GREY, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from numpy.typing import NDArray

from daskmm import plot
from daskmm.plot.profiles import Profiles, draw_profiles

# Colours that belong to the page's theme, by the CSS variable that holds them.
_THEMED = {
    "#000000": "--ink",
    "#ffffff": "--paper",
    BLUE: "--blue",
    GREY: "--grey",
    RED: "--red",
}
# What is drawn in pixels, rather than one by one, and how finely.
_MANY_POINTS, _DPI = 100, 160
# A point is 1/72 inch, a pixel of CSS 1/96.
_PIXELS_PER_POINT = 96 / 72
# Figures are not squeezed below this share of their width, and of their letters; narrow screens
# scroll, but for figures that a telephone can show at about half their width.
_LEAST_SHARE, _PHONE, _NOT_WIDE = 0.62, 330, 700


def inline_svg(figure: Figure, name: str) -> str:
    """A figure as an ``<svg>`` element.

    Its text remains text, its points become pixels, black and white become the page's ink and
    paper, and its label is what is read out in its stead.

    Parameters
    ----------
    figure : matplotlib Figure
        Its label says what it shows.
    name : str
        Begins all ids, so that they differ from those of other figures of the page.

    Returns
    -------
    str
    """
    import matplotlib

    for axes in figure.axes:
        for points in axes.collections:
            points.set_rasterized(np.shape(points.get_offsets())[0] > _MANY_POINTS)
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name}
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = io.StringIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # The browser has other fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(text, format="svg", dpi=_DPI, transparent=True, metadata=nothing)
    drawn = text.getvalue()
    body = drawn[drawn.index(">", drawn.index("<svg")) + 1 :]
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\g<1>{name}-", body)
    # The fonts are the page's.
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    for color, variable in _THEMED.items():
        body = re.sub(rf"(fill|stroke): {color}\b", rf"\1: var({variable})", body)
    width, height = (72 * length for length in figure.get_size_inches())
    shown = round(width * _PIXELS_PER_POINT)
    least = min(shown, _PHONE) if shown < _NOT_WIDE else round(_LEAST_SHARE * shown)
    label = html.escape(str(figure.get_label()), quote=True)
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {width:g} {height:g}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'style="max-width: {shown}px; min-width: {least}px">{body.strip()}'
    )


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
