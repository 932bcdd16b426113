"""Figures, axes, colours and names that all pictures share."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import as_dask_array, is_lazy
from daskmm.data.input import by_name, raster_of
from daskmm.data.lazy import in_memory, sized
from daskmm.data.names import spaced
from daskmm.data.variables import header_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Largest number of rows that are taken from a lazy table.
_MOST_ROWS = 10_000
# Largest number of features in a picture.
MOST_FEATURES = 60
BLUE, GREY, RED = "#1f5fa8", "#a8b0b8", "#b8442a"
# Ten colours that colour-blind readers can distinguish: Petroff, "Accessible Color Sequences for
# Data Visualization", 2021.
_TEN_COLORS = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
# Style of lines with points.
MARKS: dict[str, Any] = {"marker": "o", "markersize": 3, "linewidth": 1.4}
# Largest number of characters of a name in a picture.
_NAME_LENGTH = 18
# Whether the reader's browser draws the names with its own fonts.
_READERS_FONTS = ContextVar("readers_fonts", default=False)


def checked(path: object, kind: type, origin: str) -> None:
    """Raise TypeError if `path` is not of a kind; the message says where such objects come from."""
    if not isinstance(path, kind):
        raise TypeError(f"Expected a {kind.__name__}, got {type(path).__name__}. It is {origin}.")


def new_figure(**options: Any) -> Figure:
    """Create an empty figure, which a notebook shows at the end of its cell.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    require_matplotlib()
    options = {"layout": "constrained", "dpi": 120, **options}
    if _in_notebook() and not _READERS_FONTS.get():
        from daskmm.plot.notebooks import figure_of_cell

        return figure_of_cell(**options)
    from matplotlib.figure import Figure

    return Figure(**options)


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def require_matplotlib() -> None:
    """Raise ImportError, which names the extra, if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib, the extra 'plot': pip install 'daskmm[plot]'."
        ) from error


def refuse_mixed(model: Any) -> None:
    """Raise ValueError for a model of mixed columns, whose centres are not points on axes."""
    if hasattr(model, "columns_"):
        raise ValueError("Mixed columns are not drawn: see the tables summary_ and level_shares_.")


def open_frame(axes: Axes, *hidden: str) -> None:
    """Draw a light grid, and hide some sides of the frame: by default top and right."""
    axes.grid(alpha=0.25)
    axes.spines[list(hidden or ("top", "right"))].set_visible(False)


def mark_choice(axes: Axes, place: float) -> None:
    """Mark the chosen value by a dotted line."""
    axes.axvline(place, color="black", linewidth=1, linestyle=":")


def log_y(axes: Axes) -> None:
    """Scale the y axis logarithmically, with plain numbers even within one decade."""
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log")
    for level in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        level(LogFormatter(minor_thresholds=(1, 0.4)))


def scatter_rows(axes: Axes, points: NDArray, colors: NDArray, size: float) -> None:
    """Draw rows as points in a plane."""
    axes.scatter(points[:, 0], points[:, 1], s=size, c=colors, alpha=0.6, linewidths=0)
    axes.margins(0.05)
    open_frame(axes)


def cluster_colors(n_clusters: int) -> NDArray[np.float64]:
    """Return a colour for each cluster, of shape (n_clusters, 3); neighbouring numbers differ."""
    from matplotlib.colors import hsv_to_rgb, to_rgb

    if n_clusters <= len(_TEN_COLORS):
        return np.array([to_rgb(color) for color in _TEN_COLORS[:n_clusters]])
    # Steps of the golden ratio spread the hues; brightness alternates.
    number = np.arange(n_clusters)
    hue = number * (math.sqrt(5) - 1) / 2 % 1
    saturation = np.choose(number % 3, [0.9, 0.6, 0.75])
    value = np.choose(number % 2, [0.85, 0.65])
    return hsv_to_rgb(np.column_stack([hue, saturation, value]))


def short_name(name: str) -> str:
    """Shorten a name so that it fits beside an axis."""
    plain = spaced(name)
    return plain if len(plain) <= _NAME_LENGTH else f"{plain[: _NAME_LENGTH - 1]}…"


def name_ticks(axis: Any, names: Sequence[str]) -> None:
    """Write names instead of numbers along an axis; dollar signs in names do not start formulas."""
    labels = [short_name(name) for name in names]
    fonts: dict[str, list[str]] = {}
    if not _READERS_FONTS.get():
        labels, fonts = _with_fonts(labels)
    axis.set_ticks(range(len(names)), labels, parse_math=False, **fonts)


@contextmanager
def drawn_with_fonts_of_readers() -> Iterator[None]:
    """Leave names unchanged in pictures whose text the browser draws."""
    token = _READERS_FONTS.set(True)
    try:
        yield
    finally:
        _READERS_FONTS.reset(token)


def _with_fonts(labels: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return labels, with escapes for characters that no font has, and fonts for the others."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties, findfont

    usual = list(rcParams["font.family"])
    known = [_characters(findfont(FontProperties(family=[family]))) for family in usual]
    lacking = frozenset(map(ord, "".join(labels))).difference(*known)
    if not lacking:
        return labels, {}
    fonts, lacked = _fonts_with(lacking)
    escapes = {letter: ascii(chr(letter))[1:-1] for letter in lacked}
    return [short_name(label.translate(escapes)) for label in labels], {
        "fontfamily": [*usual, *fonts]
    }


@functools.lru_cache
def _fonts_with(letters: frozenset[int]) -> tuple[list[str], set[int]]:
    """Return families of fonts with some of the characters, and the characters that none has."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    families, left = [], set(letters)
    for font in fontManager.ttflist:
        # The font of last resort has a box for every character.
        if left & _characters(font.fname) and "Last Resort" not in font.name:
            # matplotlib may take another file of the family.
            has = _characters(findfont(FontProperties(family=[font.name])))
            if left & has:
                families.append(font.name)
                left -= has
    return families, left


@functools.cache
def _characters(path: str) -> frozenset[int]:
    """Return the characters that a font draws; fonts of bitmaps (emoji) draw none."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
    except (OSError, RuntimeError):  # the font is damaged, or of an unknown format
        return frozenset()
    return frozenset(font.get_charmap() if font.scalable else ())


def drawn_rows(model: Any, sample: Any, labels: Any) -> tuple[Any, Any]:
    """Return rows in memory, and their labels if given; those of a lazy table are spread evenly.

    The rows of a frame are a frame, since `predict` looks at its names.
    """
    refuse_mixed(model)
    raster = raster_of(model, sample)
    if raster is not None:
        sample, labels = raster.named, raster.rows_of(labels)
    table = by_name(model, sample)
    if not is_lazy(table):  # a frame of numbers and flags would be an array of objects
        return table.astype(np.float64) if hasattr(table, "dtypes") else table, labels
    rows = sized(as_dask_array(table))
    spread = slice(None, None, max(1, -(-rows.shape[0] // _MOST_ROWS)))
    chosen = rows[spread].compute()
    columns = getattr(header_of(table), "columns", None)
    if columns is not None:
        import pandas as pd

        chosen = pd.DataFrame(chosen, columns=columns)
    return chosen, None if labels is None else in_memory(labels)[spread]


def cluster_means(
    rows: NDArray[np.float64], clusters: NDArray, n_clusters: int
) -> NDArray[np.float64]:
    """Compute the mean of the values of each cluster; NaN where there are none."""
    held = ~np.isnan(rows)
    sums = np.zeros((n_clusters, rows.shape[1]))
    counts = np.zeros_like(sums)
    np.add.at(counts, clusters, held)
    np.add.at(sums, clusters, np.where(held, rows, 0.0))
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
