"""The journal of a fit: what each stage has computed so far, so that a fit can be resumed."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from daskmm._dask import dask

# Seconds between reports of work in tasks, each of which costs some milliseconds.
_REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class Pace:
    """How often something is due: after a number of iterations, or of seconds."""

    iterations: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, every: int | float | str) -> Self:
        """Return the pace that the parameter `checkpoint_every` stands for.

        Integers are iterations, floating-point numbers are seconds, and texts are durations such as
        "30s" or "5 minutes". ValueError is raised if a text is not a duration, or the duration is
        not positive.
        """
        if isinstance(every, Integral):
            return cls(iterations=int(every))
        try:
            seconds = float(dask.utils.parse_timedelta(every))
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ValueError(
                f"checkpoint_every={every!r} is no duration: give a number of iterations (an "
                'integer), of seconds (a float), or a text such as "30s" or "5 minutes".'
            ) from error
        if not 0 < seconds < float("inf"):
            raise ValueError(f"checkpoint_every={every!r} must be a positive duration.")
        return cls(seconds=seconds)

    def due(self, iterations: int, since: float) -> bool:
        """Return whether something is due, given iterations and a start time (monotonic clock)."""
        if self.iterations is not None:
            return iterations >= self.iterations
        return self.seconds is not None and time.monotonic() - since >= self.seconds


class PassCounter(Protocol):
    """Makes passes over the data, and counts them."""

    @property
    def n_passes(self) -> int:
        """Passes over the data so far."""

    def add(self, n_passes: int) -> None:
        """Count further passes, such as those of earlier runs of the fit."""


class Journal:
    """Log of the stages of a fit, in memory.

    `daskmm.mm.checkpoint.Checkpoint` is the same log on disk.
    """

    def __init__(self) -> None:
        # Latest result of each stage, in the order in which the stages were entered: numbers,
        # arrays, and records of them.
        self.stages: dict[str, Any] = {}
        # How often work in tasks, such as annealing, reports its results to this process. After an
        # interrupt, the fit continues from the last report.
        self.pace = Pace(seconds=_REPORT_SECONDS)
        self.n_iter = 0  # iterations that have been reported
        self.seconds = 0.0  # time that earlier runs of a resumed fit took
        self._entered: Counter[str] = Counter()
        # Name of the present stage, and its key among the results.
        self._name, self._stage, self._followed = "", "", False
        # Called with each stage that is entered or entered again, and with each result.
        self.follow: Callable[[str, Any], None] = lambda stage, found: None

    def resume(self, data: Mapping[str, Any], passes: PassCounter) -> None:
        """Add the passes that earlier runs of this fit made; called once the first pass is done.

        The first pass describes the data, and the description is compared with that of the earlier
        run. The number of passes is recorded with each state.
        """

    def enter(self, stage: str, *, followed: bool = True) -> None:
        """Enter a stage; `recall`, `keep` and `once` refer to it from now on.

        A stage that is entered several times gets a number. The numbers of a resumed fit agree
        with those of its first run, because each run of a fit goes through its stages in the same
        order.

        Progress reports name the stage if it is `followed`; otherwise it counts as part of the one
        before.
        """
        self._entered[stage] += 1
        times = self._entered[stage]
        self._stage, self._followed = f"{stage}, {times}" if times > 1 else stage, followed
        self._name = stage
        self._report(self.recall())

    def _report(self, found: Any) -> None:
        if self._followed:
            self.follow(self._name, found)

    def recall(self) -> Any:
        """Return the latest result of the present stage; None if it has not been reached before."""
        return self.stages.get(self._stage)

    def keep(self, value: Any, iterations: int = 1) -> None:
        """Record the present result of the stage, and drop the results of later stages.

        Outside of all stages, this only counts the iterations since the last report. The result
        consists of numbers, arrays, and records of them, which must not be changed afterwards.
        """
        self.n_iter += iterations
        if not self._stage:
            return
        names = list(self.stages)
        for name in names[names.index(self._stage) + 1 :] if self._stage in names else ():
            del self.stages[name]
        self.stages[self._stage] = value
        self._report(value)

    def once(self, make: Callable[[], Any]) -> Any:
        """Return ``make()``, computed in the first run of a fit only."""
        found = self.recall()
        if found is None:
            found = make()
            self.keep(found, iterations=0)
        return found

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Provide a folder on disk for the duration of the fit."""
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch)

    def close(self, error: BaseException | None, stopped: BaseException | None) -> None:
        """Finish the log at the end of a fit.

        `error` is the error that ended the fit, if any, and `stopped` the exception that asked it
        to stop early.
        """


def draw_seeds(journal: Journal, rng: np.random.RandomState, size: int) -> list[int]:
    """Draw seeds; a resumed fit gets those that its first run drew."""
    drawn = rng.randint(np.iinfo(np.int32).max, size=size)
    return [int(seed) for seed in journal.once(lambda: drawn)]
