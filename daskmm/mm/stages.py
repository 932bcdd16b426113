"""A fit is a list of stages, from first to last; `run_stages` runs them.

The same list says what a fit does and what it costs. It also has the names of the stages in the
journal and in progress reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from daskmm.mm.context import FitContext

__all__ = ["MADE_LATER", "Cost", "Repeat", "Stage", "costs_of", "nothing", "run_stages"]


class FitSoFar(Protocol):
    """Parameters of a fit and the results of its stages so far: a frozen record."""

    @property
    def context(self) -> FitContext:
        """Journal, callbacks and request to stop."""


F = TypeVar("F", bound=FitSoFar)
# Default of a field of a fit that is set by one of its stages. It has the type of the field.
MADE_LATER: Any = None


@dataclass(frozen=True)
class Cost:
    """Predicted cost of a stage."""

    passes: int = 0  # typical number of passes over the data
    most: int = 0  # the largest number of passes there can be
    # Measures the speed of this machine, and returns typical seconds. None if the stage takes next
    # to no time.
    seconds: Callable[[], float] | None = None


def nothing(costs: Any) -> Cost:
    """Return the cost of a stage that takes next to nothing."""
    return Cost()


def _always(fit: Any) -> bool:
    return True


@dataclass(frozen=True)
class Stage(Generic[F]):
    """One part of a fit."""

    name: str  # name in the journal, in progress reports and in plans
    # Takes the fit so far, and returns it with the result of this stage. The journal of the fit has
    # entered the stage by then.
    run: Callable[[F], F]
    # Returns the `Cost` of the stage, given what is known before any data are read.
    cost: Callable[[Any], Cost] = nothing
    # Returns whether the stage is run, given the results of the stages before it. A stage that is
    # known to be needless before any data are read is not in the list.
    needed: Callable[[F], bool] = _always
    after_stop: bool = False  # whether the stage is run even if the fit has been asked to stop


@dataclass(frozen=True)
class Repeat(Generic[F]):
    """Stages that are repeated until a condition holds, or the fit has been asked to stop."""

    stages: Sequence[Stage[F] | Repeat[F]]  # stages of one round
    until: Callable[[F], bool]  # returns whether the fit so far needs no further round
    most: int  # the largest number of rounds
    # Returns the `Cost` of all rounds; by default the cost of one round.
    cost: Callable[[Any], Cost] | None = None


def run_stages(stages: Iterable[Stage[F] | Repeat[F]], fit: F) -> F:
    """Run the stages in their order, and return the fit with all results.

    The journal of the fit's context enters each stage before it is run.
    """
    for stage in stages:
        if isinstance(stage, Repeat):
            for _ in range(stage.most):
                if fit.context.stopped is not None or stage.until(fit):
                    break
                fit = run_stages(stage.stages, fit)
        elif (stage.after_stop or fit.context.stopped is None) and stage.needed(fit):
            # Progress reports name the stages that take time.
            fit.context.journal.enter(stage.name, followed=stage.cost is not nothing)
            fit = stage.run(fit)
    return fit


def costs_of(stages: Iterable[Stage[Any] | Repeat[Any]], known: Any) -> Iterator[tuple[str, Cost]]:
    """Yield name and cost of each stage of a list, given what is known before data are read."""
    for stage in stages:
        if isinstance(stage, Stage):
            yield stage.name, stage.cost(known)
        elif stage.cost is None:
            yield from costs_of(stage.stages, known)
        else:
            yield "", stage.cost(known)
