"""Progress of a fit in one line, on a stream or in a notebook."""

from __future__ import annotations

import math
import shutil
import sys
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self, TextIO

from daskmm.blurring import BlurringRecord
from daskmm.mm import IterationRecord
from daskmm.planning import readable_bytes

Record = IterationRecord | BlurringRecord

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
