"""What all pictures share: figures, colours, axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Features beyond which a picture cannot be read.
MOST_FEATURES = 60
BLUE, GREY, RED = "#1f5fa8", "#a8b0b8", "#b8442a"


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
