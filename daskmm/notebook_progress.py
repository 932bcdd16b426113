"""Progress of a fit in a notebook: one display, kept up to date."""

from __future__ import annotations

import html
import math
import sys
from types import TracebackType
from typing import Any

from daskmm.blurring import BlurringRecord
from daskmm.progress import ProgressReport, Record, progress_of, readable_seconds

# Seconds between updates, each of which goes to the browser.
_INTERVAL = 0.2
# Of the picture of the course, in pixels, and iterations in it.
_WIDTH, _HEIGHT, _MOST_POINTS = 160, 22, 160


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which can update what it has shown."""
    ipython = sys.modules.get("IPython")  # not imported for the question
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookProgress(ProgressReport):
    """Progress below the cell that fits: a line of text, and the course of the objective.

    Parameters
    ----------
    name, max_iter
        As in `ProgressReport`.
    """

    def __init__(self, name: str, max_iter: int) -> None:
        super().__init__(name, max_iter, None, _INTERVAL)
        self._course: list[float] = []
        self._display: Any = None

    def __call__(self, record: Record) -> None:
        """Update the display, unless that was done just now."""
        if isinstance(record, BlurringRecord):
            self._course.append(record.n_representatives)
        else:
            self._course.append(record.objective)
        super().__call__(record)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        last = self._last
        if error is not None:
            self._report(f"{self.name}: stopped by {type(error).__name__}")
        elif last is not None:
            parts = [
                f"{self.name}: {last.iteration} iterations",
                *progress_of(last),
                f"{last.n_passes} passes",
                readable_seconds(last.seconds),
            ]
            self._report(" · ".join(parts))

    def _show(self, text: str) -> None:
        from IPython.display import display

        shown = f'<div style="white-space: pre-wrap">{_sparkline(self._course)}{html.escape(text)}'
        content = {"text/plain": text, "text/html": f"{shown}</div>"}
        if self._display is None:
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)


def _sparkline(values: list[float]) -> str:
    """The course of a number, as a small picture; nothing before there are two values."""
    step = -(-len(values) // _MOST_POINTS)
    kept = [value for value in values[::-1][:: max(step, 1)] if math.isfinite(value)][::-1]
    if len(kept) < 2:
        return ""
    low, high = min(kept), max(kept)
    height = _HEIGHT / (high - low) if high > low else 0.0
    points = " ".join(
        f"{_WIDTH * place / (len(kept) - 1):.0f},{(high - value) * height + 1:.1f}"
        for place, value in enumerate(kept)
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT + 2}" aria-hidden="true" '
        'style="vertical-align: middle; margin-right: .6em"><polyline fill="none" '
        f'stroke="currentColor" stroke-width="1.3" points="{points}"/></svg>'
    )
