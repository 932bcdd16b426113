"""State shared by all stages of one fit: journal, callbacks, start time, request to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from daskmm.mm.journal import Journal

logger = logging.getLogger("daskmm")


class FitContext:
    """State shared by the stages of one fit.

    It is used as a context manager around the fit. If a KeyboardInterrupt was held back so that the
    fit could still produce a model, it is raised at the end of the context.

    A journal in memory is the default. Callbacks get the record of each iteration over the full
    data; those with methods `expect` and `follow`, such as progress bars, are also informed of all
    stages. `began` is ``time.perf_counter()`` at the start of the fit; now by default.

    `stop` ends a fit that `holds_interrupts` with the model of the last completed iteration. Tasks
    do not hold them: they raise an interrupt at once, and the fit that runs them handles it.
    `within` is the context of the whole fit, which `stop` stops too.
    """

    def __init__(
        self,
        journal: Journal | None = None,
        callbacks: Sequence[Callable[[Any], object]] = (),
        *,
        began: float | None = None,
        holds_interrupts: bool = True,
        within: FitContext | None = None,
    ) -> None:
        self.journal = Journal() if journal is None else journal
        # The start of the fit, less the time that earlier runs of a resumed fit took.
        self.began = (time.perf_counter() if began is None else began) - self.journal.seconds
        # The exception that asked the fit to stop early: a KeyboardInterrupt, or a StopIteration
        # from a callback.
        self.stopped: BaseException | None = None
        self._callbacks = tuple(callbacks)
        self._followers: list[Any] = [each for each in callbacks if hasattr(each, "follow")]
        self.journal.follow = self.follow
        self._holds_interrupts = holds_interrupts
        self._within = within

    def apart(self) -> FitContext:
        """Return a context with a journal of its own, for a stage that a resumed fit repeats."""
        holds = self._holds_interrupts
        return FitContext(
            None, self._callbacks, began=self.began, holds_interrupts=holds, within=self
        )

    @property
    def followed(self) -> bool:
        """Whether a callback reports the stages of the fit, and wants to know their seconds."""
        return bool(self._followers)

    def expect(self, stages: Mapping[str, float] | None, tol: float) -> None:
        """Tell callbacks the planned seconds of all stages, and the tolerance of the fit."""
        for follower in self._followers:
            follower.expect(stages, tol)

    def follow(self, stage: str, found: Any = None) -> None:
        """Inform callbacks that have a method `follow` of the stage, and of its result."""
        for follower in self._followers:
            follower.follow(stage, found)

    def stop(self, reason: BaseException) -> None:
        """Ask the fit to end with the result of the last completed iteration.

        The reason itself is raised if no iteration has been completed.
        """
        if self.journal.n_iter == 0 or not self._holds_interrupts:
            raise reason
        logger.info("%s: ending the fit after the last iteration.", type(reason).__name__)
        self.stopped = reason
        if self._within is not None:
            self._within.stopped = reason

    @property
    def interrupted(self) -> bool:
        """Whether the user interrupted the fit."""
        return isinstance(self.stopped, KeyboardInterrupt)

    def tell(self, record: Any, before: int = 0) -> None:
        """Call the callbacks; StopIteration raised by one of them stops the fit.

        `before`, the number of iterations of earlier stages, is added to the record's number.
        """
        if before:
            record = replace(record, iteration=record.iteration + before)
        for callback in self._callbacks:
            try:
                callback(record)
            except StopIteration as asked:
                self.stop(asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.journal.close(error, self.stopped)
        if error is None and self.stopped is not None and self.interrupted:
            self.stopped.add_note("The estimator holds the model of the last whole iteration.")
            raise self.stopped
