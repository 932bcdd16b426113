"""Draw the figures of a report, with captions, as SVG within the page."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daskmm import plot
from daskmm.data.names import spaced
from daskmm.plot.figures import BLUE, GREY, RED, drawn_with_fonts_of_readers
from daskmm.report.means import Sampled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PROJECTION = (
    "Rows of a sample, coloured and numbered by cluster, in the plane in which the centres differ "
    "most by the model's own distance. Clusters that overlap here may be separated along other "
    "axes."
)
_WEIGHTS = "How much each feature counts in the distance. Features without weight do not count."
_GAINS = "The lower bars show how much more of each feature clusters explain than noise does."
_TRACE = "What the fit minimizes, by iteration."
_ANNEALED = (
    "During annealing the power s falls and the objective itself changes, so it need not decrease "
    "before the Lloyd steps at the end."
)
_LOOKS = (
    "The mean distance of each batch's rows to their centres, relative to that of the reference "
    "rows; and how certain it is that each column and each cluster differs by more than batches "
    "usually do. Values above the line in the scale are drift."
)
_PATHS: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    (
        "n_clusters_path_",
        "How the number of clusters was chosen",
        "The overlap of the two least separated clusters, for each number of clusters. A gap "
        "divides these two if the overlap lies below the broken line; the dotted line is the "
        "choice.",
        plot.n_clusters_path,
    ),
    (
        "lam_path_",
        "How the penalty λ was chosen",
        "How much more the clusters explain of all features than clusters of noise do, and the "
        "features' weights. The largest λ above the broken line is chosen: the dotted line.",
        plot.lam_path,
    ),
    (
        "bandwidth_path_",
        "How the bandwidth was chosen",
        "Number of clusters, their gain, and the features' weights over a grid of bandwidths. The "
        "dotted line is the choice; shaded bandwidths give as many clusters.",
        plot.bandwidth_path,
    ),
)
# Colours of the figures that follow the page's theme, with their CSS variables.
_THEMED = {
    "#000000": "--ink",
    "#ffffff": "--paper",
    BLUE: "--blue",
    GREY: "--grey",
    RED: "--red",
}
# More points than this are drawn as one image with this resolution.
_MANY_POINTS, _DPI = 100, 160
# A point is 1/72 inch, a pixel of CSS 1/96.
_PIXELS_PER_POINT = 96 / 72
# Figures shrink to this share of their width and then scroll; those narrower than _NOT_WIDE (in
# pixels) shrink to the width of a telephone.
_LEAST_SHARE, _PHONE, _NOT_WIDE = 0.62, 330, 700


@dataclass(frozen=True)
class Picture:
    """A figure of a report; its name is its id in the page."""

    name: str
    title: str
    caption: str
    figure: Figure


def pictures(model: Any, sampled: Sampled | None) -> list[Picture]:
    """Draw all figures that apply to a fitted model; none of rows without a sample of them."""
    found = []

    def add(name: str, title: str, caption: str, draw: Callable[..., Figure], *what: Any) -> None:
        with drawn_with_fonts_of_readers():
            found.append(Picture(name, title, caption, draw(*what)))

    if sampled is not None and not hasattr(model, "columns_"):
        add("projection", "Where the clusters lie", _PROJECTION, plot.projection, model, *sampled)
    if hasattr(model, "feature_weights_"):
        caption = f"{_WEIGHTS} {_GAINS}" if hasattr(model, "feature_gains_") else _WEIGHTS
        add("weights", "Feature weights", caption, plot.feature_weights, model)
    for attribute, title, caption, draw in _PATHS:
        if hasattr(model, attribute):
            add(attribute.strip("_"), title, caption, draw, getattr(model, attribute))
    if hasattr(model, "objective_history_"):
        annealed = any(np.isfinite(record.s) for record in model.history_)
        caption = f"{_TRACE} {_ANNEALED}" if annealed else _TRACE
        add("trace", "How the fit went", caption, plot.annealing_trace, model)
    return found


def drift_picture(monitor: Any) -> Picture:
    """Draw the batches that a monitor compared."""
    with drawn_with_fonts_of_readers():
        figure = plot.drift(monitor)
    return Picture("looks", "Batches beside those before", _LOOKS, figure)


def inline_svg(figure: Figure, name: str) -> str:
    """Draw a figure as an ``<svg>`` element.

    Text remains text, many points become an image, black and white become the page's ink and paper,
    and the figure's label becomes its accessible name. `name` is a prefix of all ids, which
    distinguishes them from the ids of other figures of the page.
    """
    import matplotlib

    for axes in figure.axes:
        for points in axes.collections:
            points.set_rasterized(np.shape(points.get_offsets())[0] > _MANY_POINTS)
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name}
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = io.StringIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # The browser has characters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(text, format="svg", dpi=_DPI, transparent=True, metadata=nothing)
    drawn = text.getvalue()
    body = drawn[drawn.index(">", drawn.index("<svg")) + 1 :]
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\g<1>{name}-", body)
    # The page sets the fonts.
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    for color, variable in _THEMED.items():
        body = re.sub(rf"(fill|stroke): {color}\b", rf"\1: var({variable})", body)
    width, height = (72 * length for length in figure.get_size_inches())
    shown = round(width * _PIXELS_PER_POINT)
    least = min(shown, _PHONE) if shown < _NOT_WIDE else round(_LEAST_SHARE * shown)
    label = html.escape(spaced(figure.get_label()), quote=True)
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {width:g} {height:g}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'style="max-width: {shown}px; min-width: {least}px">{body.strip()}'
    )
