"""Progress of a fit in a notebook: one display, kept up to date."""

from __future__ import annotations

import html
import logging
import math
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TextIO

from daskmm.mean_shift.blurring import BlurringRecord
from daskmm.mm.driver import IterationRecord
from daskmm.planning import readable_bytes

Record = IterationRecord | BlurringRecord

logger = logging.getLogger("daskmm")

# Seconds between lines where a line cannot be refreshed in place, and between refreshes.
_LINE_INTERVAL = 5.0
_REFRESH_INTERVAL = 0.1


class ProgressReport(ABC):
    """Callback of an estimator that reports each iteration; how, its subclasses say.

    Use it as a context: it says that reading begins, and how it ended.

    Parameters
    ----------
    name : str
        What is being fitted.
    max_iter : int
        Iterations at most, for the time left.
    bytes_per_pass : int or None
        For the bytes read per second; None leaves them out.
    interval : float
        Least seconds between reports.
    """

    def __init__(
        self, name: str, max_iter: int, bytes_per_pass: int | None, interval: float
    ) -> None:
        self.name = name
        self.max_iter = max_iter
        self.bytes_per_pass = bytes_per_pass
        self.interval = interval
        self._shown_at = -math.inf
        self._first: Record | None = None
        self._last: Record | None = None

    def __enter__(self) -> Self:
        self._report(f"{self.name}: first look at the data")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._last is not None:
            self._report(self.describe(self._last))

    def __call__(self, record: Record) -> None:
        """Report an iteration, unless the last report is too recent."""
        if self._first is None:
            self._first = record
        self._last = record
        if time.monotonic() - self._shown_at >= self.interval:
            self._report(self.describe(record))

    def describe(self, record: Record) -> str:
        """The line for a record: iteration, how far it has come, passes, speed and time left.

        Time left is an upper bound: all iterations that are allowed, at the pace so far.
        """
        parts = [
            f"{self.name}: iteration {record.iteration}/{self.max_iter}",
            *progress_of(record),
            f"{record.n_passes} passes",
        ]
        if self.bytes_per_pass is not None and record.seconds > 0:
            speed = record.n_passes * self.bytes_per_pass / record.seconds
            parts.append(f"{readable_bytes(speed)}/s")
        left = (self.max_iter - record.iteration) * self._pace(record)
        parts.append(f"at most {readable_seconds(left)} left")
        return " · ".join(parts)

    def _pace(self, record: Record) -> float:
        """Seconds per iteration; the first one, which also surveyed the data, counts alone."""
        first = self._first
        if first is None or record.iteration <= first.iteration:
            return record.seconds / max(record.n_passes, 1)
        return (record.seconds - first.seconds) / (record.iteration - first.iteration)

    def _report(self, text: str) -> None:
        self._shown_at = time.monotonic()
        self._show(text)

    @abstractmethod
    def _show(self, text: str) -> None:
        """Put a report where it is seen."""


class ProgressLine(ProgressReport):
    """Progress on a stream.

    On a terminal one line is refreshed in place; elsewhere a line is added every few seconds.

    Parameters
    ----------
    name, max_iter, bytes_per_pass
        As in `ProgressReport`.
    stream : text stream
        Standard error by default.
    interval : float, optional
        Least seconds between reports.
    """

    def __init__(
        self,
        name: str,
        max_iter: int,
        bytes_per_pass: int | None = None,
        stream: TextIO | None = None,
        interval: float | None = None,
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.in_place = self.stream.isatty()
        default = _REFRESH_INTERVAL if self.in_place else _LINE_INTERVAL
        super().__init__(name, max_iter, bytes_per_pass, default if interval is None else interval)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if self.in_place:
            self.stream.write("\n")
            self.stream.flush()

    def _show(self, text: str) -> None:
        if self.in_place:
            width = shutil.get_terminal_size().columns
            # Back to the line's start, and clear what was longer before.
            self.stream.write(f"\r{text[: width - 1]}\x1b[K")
        else:
            self.stream.write(f"{text}\n")
        self.stream.flush()


def progress_of(record: Record) -> list[str]:
    """How far an iteration has come, in the terms of its algorithm."""
    if isinstance(record, BlurringRecord):
        return [record.stage, f"{record.n_representatives:,} distinct points"]
    return [f"s {_power(record.s)}", f"objective {record.objective:.6g}"]


def _power(s: float) -> str:
    return "−∞" if s == -math.inf else f"{s:.4g}"


def readable_seconds(seconds: float) -> str:
    """A duration in words, e.g. "4 min 10 s"."""
    if seconds < 1:
        return f"{max(seconds, 0):.1g} s"
    total = round(seconds)
    hours, minutes, rest = total // 3600, total % 3600 // 60, total % 60
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {rest} s"
    return f"{rest} s"


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


@contextmanager
def reported(name: str, max_iter: int) -> Iterator[Callable[[Any], None]]:
    """Provide a callback that reports each iteration, for ``verbose=1``.

    In a notebook it keeps one line up to date; elsewhere it logs at level INFO, to which the
    logger "daskmm" is set meanwhile.

    Parameters
    ----------
    name : str
        Class of the estimator.
    max_iter : int
    """
    if in_notebook():
        with NotebookProgress(name, max_iter) as report:
            yield report
        return
    level, handler = logger.level, logging.StreamHandler()
    added = not logger.hasHandlers()
    if added:
        logger.addHandler(handler)
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    try:
        yield lambda record: logger.info("%s", record)
    finally:
        logger.setLevel(level)
        if added:
            logger.removeHandler(handler)
