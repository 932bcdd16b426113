"""Figures that a notebook shows once, however the call that draws them is written."""

from __future__ import annotations

from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure


class CellFigure(Figure):
    """A figure that pyplot keeps, and the notebook shows at the end of the cell."""

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """Leave the formats to the notebook, and close: a figure on show is not shown again."""
        pyplot.close(self)
        return {}


def figure_of_cell(**options: Any) -> Figure:
    """Create an empty figure, the current one of pyplot."""
    return pyplot.figure(FigureClass=CellFigure, **options)
