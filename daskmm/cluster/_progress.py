"""Progress of a fit, shown on a stream, in a notebook, or in the log (``verbose=1``)."""

from __future__ import annotations

import html
import logging
import math
import shutil
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TextIO

from daskmm.cluster._time_left import TimeLeft
from daskmm.data.names import counted
from daskmm.mean_shift.blurring import BlurringRecord
from daskmm.mm.driver import IterationRecord
from daskmm.storage.readable import readable_bytes, readable_seconds

Record = IterationRecord | BlurringRecord

logger = logging.getLogger("daskmm")

# Seconds between reports: new lines of a stream, refreshes of a line on a terminal, and updates of
# a notebook's display, each of which is sent to the browser.
_LINE_INTERVAL = 5.0
_REFRESH_INTERVAL = 0.1
_INTERVAL = 0.2
# Stages whose iterations are reported, since their records say more than the stage does.
_ITERATED = ("passes", "blurring")
# Seconds between refreshes of a line while no report arrives.
_TICK = 0.5
# Separator of the parts of a report. A terminal line ends with the last part that fits.
_BETWEEN = " · "


class ProgressReport(ABC):
    """Callback of an estimator that reports iterations; subclasses show the reports.

    As a context manager, it also reports the start and the end of the fit. At least `interval`
    seconds lie between reports; the bytes of a pass serve to tell how many are read per second.
    """

    def __init__(
        self, name: str, max_iter: int, bytes_per_pass: int | None, interval: float
    ) -> None:
        self.name = name
        self.max_iter = max_iter
        self.bytes_per_pass = bytes_per_pass
        self.interval = interval
        self.left, self._lock = TimeLeft(max_iter), threading.Lock()
        self._shown_at = -math.inf
        self._last: Record | None = None

    def __enter__(self) -> Self:
        self._report(f"{self.name}: first look at the data")
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._last is not None:
            self._report(self.describe(self._last))

    def __call__(self, record: Record) -> None:
        """Report an iteration, unless the last report was less than `interval` seconds ago."""
        self._last = record
        self._refresh()

    def expect(self, stages: Mapping[str, float] | None, tol: float) -> None:
        """Take the planned seconds of all stages, and the tolerance of the fit."""
        with self._lock:
            self.left.expect(stages, tol)

    def follow(self, name: str, found: Any) -> None:
        """Report a stage that has no iterations over the data, unless a report was just made."""
        with self._lock:
            self.left.follow(name, found, time.monotonic())
        if self._last is None and self.left.stage not in _ITERATED:
            self._refresh()

    def _refresh(self) -> None:
        if time.monotonic() - self._shown_at >= self.interval:
            self._report(self._described())

    def _described(self) -> str:
        if self._last is not None:
            return self.describe(self._last)
        done = f"{self.left.stage} {self.left.share:.0%}"
        return _BETWEEN.join([f"{self.name}: {done}", *self._time_left()])

    def describe(self, record: Record) -> str:
        """Return a line about a record: iteration, time left, state, passes and speed."""
        parts = [
            f"{self.name}: iteration {record.iteration}/{self.max_iter}",
            *self._time_left(),
            *progress_of(record),
            f"{record.n_passes} passes",
        ]
        if self.bytes_per_pass is not None and record.seconds > 0:
            speed = record.n_passes * self.bytes_per_pass / record.seconds
            parts.append(f"{readable_bytes(speed)}/s")
        return _BETWEEN.join(parts)

    def _time_left(self) -> list[str]:
        with self._lock:
            left = self.left.seconds(time.monotonic())
        return [] if left is None else [f"about {readable_seconds(left)} left"]

    def _report(self, text: str) -> None:
        self._shown_at = time.monotonic()
        self._show(text)

    @abstractmethod
    def _show(self, text: str) -> None:
        """Show a report."""


class ProgressLine(ProgressReport):
    """Progress on a stream.

    On a terminal, one line is refreshed in place; elsewhere, a line is written every few seconds.
    The stream is standard error by default. Other parameters are those of `ProgressReport`.
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
        # Messages that are logged meanwhile get their own lines.
        self._logged = _Logged(self)
        self._ended = threading.Event()
        # The thread refreshes the line even while a stage reports nothing.
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._level = logger.level
        logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
        logger.addHandler(self._logged)
        super().__enter__()
        self._clock.start()
        return self

    def _tick(self) -> None:
        while not self._ended.wait(max(self.interval, _TICK)):
            if self.left.stage:
                self._refresh()

    def __exit__(self, *raised: Any) -> None:
        self._ended.set()
        self._clock.join()
        logger.removeHandler(self._logged)
        logger.setLevel(self._level)
        super().__exit__(*raised)
        if self.in_place:
            self.stream.write("\n")
            self.stream.flush()

    def _show(self, text: str) -> None:
        if self.in_place:
            width = shutil.get_terminal_size().columns - 1
            while len(text) > width and _BETWEEN in text:
                text = text.rpartition(_BETWEEN)[0]
            # Return to the start of the line, and clear the rest of a longer one.
            self.stream.write(f"\r{text[:width]}\x1b[K")
        else:
            self.stream.write(f"{text}\n")
        self.stream.flush()


class _Logged(logging.Handler):
    """Write log messages to the stream of a progress line."""

    def __init__(self, line: ProgressLine) -> None:
        super().__init__(logging.INFO)
        self.line = line

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message in place of the progress line."""
        clear = "\r\x1b[K" * self.line.in_place
        self.line.stream.write(f"{clear}{self.line.name}: {record.getMessage()}\n")
        self.line.stream.flush()


def progress_of(record: Record) -> list[str]:
    """Describe the state of a fit in the terms of its algorithm."""
    if isinstance(record, BlurringRecord):
        return [record.stage, f"{record.n_representatives:,} distinct points"]
    if record.stage == "EM":
        return [f"log-likelihood {-record.objective:.6g} per row"]
    return [f"s {_power(record.s)}", f"objective {record.objective:.6g}"]


def line_of(beginning: str, record: Record) -> str:
    """Describe a record in a line: state, passes and time so far."""
    passes, seconds = f"{record.n_passes} passes", readable_seconds(record.seconds)
    return _BETWEEN.join([beginning, *progress_of(record), passes, seconds])


def _power(s: float) -> str:
    return "−∞" if s == -math.inf else f"{s:.4g}"


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which can update its output."""
    ipython = sys.modules.get("IPython")  # a notebook has imported it already
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookProgress(ProgressReport):
    """Progress below a notebook cell: a line of text."""

    def __init__(self, name: str, max_iter: int) -> None:
        super().__init__(name, max_iter, None, _INTERVAL)
        self._display: Any = None

    def __exit__(self, *raised: Any) -> None:
        last = self._last
        if raised[0] is not None:
            self._report(f"{self.name}: stopped by {raised[0].__name__}")
        elif last is not None:
            self._report(line_of(f"{self.name}: {counted(last.iteration, 'iteration')}", last))

    def _show(self, text: str) -> None:
        from IPython.display import display

        shown = f'<div style="white-space: pre-wrap">{html.escape(text)}</div>'
        content = {"text/plain": text, "text/html": shown}
        if self._display is None:
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)


@contextmanager
def reported(name: str, max_iter: int) -> Iterator[Callable[[Any], None]]:
    """Provide a callback that reports each iteration, for ``verbose=1``.

    In a notebook it keeps one line up to date; elsewhere it logs at level INFO. The level of the
    logger "daskmm" is lowered to INFO meanwhile, and restored at the end.
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
        yield lambda record: logger.info(line_of(f"{name}: iteration {record.iteration}", record))
    finally:
        logger.setLevel(level)
        if added:
            logger.removeHandler(handler)
