"""What all pictures share: figures, colours, axes, names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Features beyond which a picture cannot be read.
MOST_FEATURES = 60
BLUE, GREY, RED = "#1f5fa8", "#a8b0b8", "#b8442a"
# Ten colours that remain apart for colour-blind eyes (Petroff, "Accessible Color Sequences for
# Data Visualization", 2021).
_TEN_COLORS = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
# Letters of a name that are drawn.
_NAME_LENGTH = 18


def new_figure(**options: Any) -> Figure:
    """An empty figure.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib, the extra 'plot': pip install 'daskmm[plot]'."
        ) from error
    return Figure(**{"layout": "constrained", "dpi": 120, **options})


def log_formatter() -> Any:
    """Plain numbers on a log axis, with more of them where it spans less than a decade."""
    from matplotlib.ticker import LogFormatter

    return LogFormatter(minor_thresholds=(1, 0.4))


def cluster_colors(n_clusters: int) -> NDArray[np.float64]:
    """Colours that differ between clusters of neighbouring numbers, (n_clusters, 3)."""
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
    """A name that fits beside an axis."""
    plain = "".join(letter if letter.isprintable() else " " for letter in name)
    return plain if len(plain) <= _NAME_LENGTH else f"{plain[: _NAME_LENGTH - 1]}…"


def name_ticks(axis: Any, names: Sequence[str]) -> None:
    """Names instead of numbers along an axis; dollar signs are no formulas in them."""
    labels = [short_name(name) for name in names]
    axis.set_ticks(range(len(names)), labels, parse_math=False)
