"""Figures that a notebook shows once, whether or not a cell ends with them."""

from __future__ import annotations

from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure


class CellFigure(Figure):
    """A figure that the notebook shows at the end of the cell, through pyplot."""

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """Close the figure when the notebook displays it, so that it is not shown twice."""
        pyplot.close(self)
        return {}


def figure_of_cell(**options: Any) -> Figure:
    """Create an empty figure, which becomes the current one of pyplot."""
    return pyplot.figure(FigureClass=CellFigure, **options)
