"""What a fit has come to, stage by stage: where it can stop, and from where it can go on."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from dask.utils import parse_timedelta

logger = logging.getLogger("daskmm")

# A report of work in tasks costs some milliseconds.
_REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class Pace:
    """After how much work something is due: iterations, or seconds.

    Attributes
    ----------
    iterations : int or None
    seconds : float or None
    """

    iterations: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, every: int | float | str) -> Self:
        """The pace that the parameter `checkpoint_every` stands for.

        Parameters
        ----------
        every : int, float or str
            Iterations; seconds; or a duration such as "30s" or "5 minutes".

        Raises
        ------
        ValueError
            If a text is no duration, or not a positive one.
        """
        if isinstance(every, Integral):
            return cls(iterations=int(every))
        try:
            seconds = float(parse_timedelta(every))
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ValueError(
                f"checkpoint_every={every!r} is no duration: give a number of iterations (an "
                'integer), of seconds (a float), or a text such as "30s" or "5 minutes".'
            ) from error
        if not 0 < seconds < float("inf"):
            raise ValueError(f"checkpoint_every={every!r} must be a positive duration.")
        return cls(seconds=seconds)

    def due(self, iterations: int, since: float) -> bool:
        """Whether it is time, after some iterations since an instant of the monotonic clock."""
        if self.iterations is not None:
            return iterations >= self.iterations
        return self.seconds is not None and time.monotonic() - since >= self.seconds


class Journal:
    """Stages of a fit, in the order in which they are gone through, and how far each has come.

    This one is forgotten with the fit; `daskmm.mm.checkpoint.Checkpoint` is kept on disk. As a
    context it ends a fit: an interrupt that was held back, so that the fit could leave a model, is
    raised at its end.

    Attributes
    ----------
    stages : dict
        What each stage has come to: numbers, arrays, and records of them.
    stopped : BaseException or None
        What asked the fit to stop before its end.
    pace : Pace
        How often work that is out of sight, such as annealing in tasks, has to report.
    n_iter : int
        Iterations that have been reported.
    seconds : float
        That earlier runs of a resumed fit took.
    """

    def __init__(self) -> None:
        self.stages: dict[str, Any] = {}
        self.stopped: BaseException | None = None
        # An interrupt leaves what the last report told.
        self.pace = Pace(seconds=_REPORT_SECONDS)
        self.n_iter = 0
        self.seconds = 0.0
        self._created = time.perf_counter()
        self._entered: Counter[str] = Counter()
        self._files: tuple[str, ...] = ()
        self._folder = Path()

    @property
    def began(self) -> float:
        """``time.perf_counter()`` when the fit would have begun, had it not been resumed."""
        return self._created - self.seconds

    def resume(self, data: Mapping[str, Any], n_passes: Callable[[], int]) -> int:
        """Sweeps that earlier runs of this fit made, once the data have been looked at.

        Parameters
        ----------
        data : mapping
            What the first pass told of the data, to be compared with what it told before.
        n_passes : callable
            The sweeps that have been made, whenever it is asked.
        """
        return 0

    def recall(self, stage: str) -> Any:
        """Enter a stage: what it had come to, or None where it has not begun.

        One that is entered again is another one, whose number it gets: a fit goes through its
        stages in the same order in every run.
        """
        self._entered[stage] += 1
        return self.stages.get(self._name(stage))

    def _name(self, stage: str) -> str:
        times = self._entered[stage]
        return f"{stage}, {times}" if times > 1 else stage

    def keep(self, stage: str, value: Any, iterations: int = 1, files: Sequence[str] = ()) -> None:
        """Put down what the stage that was entered has come to. What followed it is void.

        Parameters
        ----------
        stage : str
        value : numbers, arrays, and records of them
            Not to be changed afterwards.
        iterations : int
            Taken since the last report.
        files : sequence of str
            What the value takes on disk besides, by names within the folder of the fit. It is
            removed when it is needed no longer.
        """
        own, names = self._name(stage), list(self.stages)
        for name in names[names.index(own) + 1 :] if own in names else ():
            del self.stages[name]
        self.stages[own] = value
        self.n_iter += iterations
        superseded, self._files = self._files, tuple(files)
        self._remove(superseded)

    def _remove(self, files: Iterable[str]) -> None:
        """Remove files that are needed no longer."""
        for name in set(files) - self._needed():
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def _needed(self) -> set[str]:
        return set(self._files)

    def once(self, stage: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, made in the first run of a fit only."""
        found = self.recall(stage)
        if found is None:
            found = make()
            self.keep(stage, found, iterations=0)
        return found

    def draw(self, rng: np.random.RandomState, size: int) -> list[int]:
        """Seeds; a resumed fit goes on with those that were drawn in its first run."""
        drawn = rng.randint(np.iinfo(np.int32).max, size=size)
        return [int(seed) for seed in self.once("seeds", lambda: drawn)]

    def stop(self, reason: BaseException) -> None:
        """End the fit with what it has come to.

        Raises
        ------
        BaseException
            The reason, where that is nothing: no iteration has been completed.
        """
        if self.n_iter == 0:
            raise reason
        logger.info("%s: the fit ends with what it has come to.", type(reason).__name__)
        self.stopped = reason

    def tell(self, record: Any, callbacks: Sequence[Callable[[Any], object]]) -> None:
        """Call the callbacks; one that raises StopIteration asks for the end."""
        for callback in callbacks:
            try:
                callback(record)
            except StopIteration as asked:
                self.stop(asked)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Room on disk for the time of the fit."""
        with tempfile.TemporaryDirectory() as scratch:
            self._folder = Path(scratch)
            yield self._folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and isinstance(self.stopped, KeyboardInterrupt):
            self.stopped.add_note("The estimator holds the model of the last whole iteration.")
            raise self.stopped
