"""Figures as SVG within a page: in its colours, in light and dark, and apart from one another."""

from __future__ import annotations

import html
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from daskmm.figures import BLUE, GREY, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
