"""What an experiment is, what it measures, and how a cell is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from papers.data import RealData
from papers.printed import PrintedCell

REPRODUCED, EXCEEDED, MISSED = "reproduced", "exceeded", "not reproduced"
ABSENT, UNTRIED = "cannot be run", "not yet run"
VERDICTS = (REPRODUCED, EXCEEDED, MISSED, ABSENT, UNTRIED)

# Repetitions of most experiments in print.
N_PRINTED = 20
# A cell within this, or within two printed standard deviations, is reproduced.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Measured:
    """What was measured for one cell under one convention: a mean over n repetitions.

    A row or column that is not in print is a peer, shown beside it.
    """

    row: str
    column: str
    convention: str
    value: float
    sd: float | None = None
    n: int = 1


@dataclass(frozen=True)
class Left:
    """Cells that cannot be run, and why; None stands for every row or column."""

    row: str | None
    column: str | None
    why: str

    def covers(self, row: str, column: str) -> bool:
        """Return whether a cell is among them."""
        return self.row in (None, row) and self.column in (None, column)


Finding = Measured | Left
Judge = Callable[[float, float | None, float], str]


def thinned(repeats: int, most: int) -> int:
    """Return fewer repetitions where each takes long, unless all that are in print are wanted."""
    return repeats if repeats >= N_PRINTED else min(repeats, most)


def mean_of(row: str, column: str, convention: str, values: Iterable[float]) -> Measured:
    """Return mean and standard deviation of the repetitions."""
    each = np.asarray(list(values), dtype=np.float64)
    sd = float(each.std(ddof=1)) if len(each) > 1 else None
    return Measured(row, column, convention, float(each.mean()), sd, len(each))


def higher_is_better(printed: float, sd: float | None, ours: float) -> str:
    """Judge a score."""
    return _near(printed, sd, ours) or (EXCEEDED if ours > printed else MISSED)


def lower_is_better(printed: float, sd: float | None, ours: float) -> str:
    """Judge a cost."""
    return _near(printed, sd, ours) or (EXCEEDED if ours < printed else MISSED)


def _near(printed: float, sd: float | None, ours: float) -> str:
    within = max(TOLERANCE, 2.0 * (sd or 0.0))
    return REPRODUCED if abs(ours - printed) <= within + 1e-9 else ""


def equal(printed: float, sd: float | None, ours: float) -> str:
    """Judge a size or a parameter, which is the printed one or is not."""
    return REPRODUCED if ours == printed else MISSED


@dataclass(frozen=True)
class Experiment:
    """How the cells of one printed table are measured.

    Attributes
    ----------
    paper, id : str
        Those of the printed table.
    run : callable
        Given repetitions and the real data, yields what it measures and what it cannot.
    repeats : tuple of int
        Repetitions by default, and those in print.
    conventions : mapping
        Readings of what the paper leaves open, by name. A cell is judged by the first in this
        order that reproduces it, or else by the best.
    own : tuple of str
        Rows or columns of the paper's own method; the others are its peers.
    judge : callable
    remark : str
        What the paper probably did where cells do not come out, and what would settle it.
    """

    paper: str
    id: str
    run: Callable[[int, RealData], Iterator[Finding]]
    repeats: tuple[int, int]
    conventions: Mapping[str, str]
    own: tuple[str, ...]
    judge: Judge = higher_is_better
    remark: str = ""

    def is_own(self, row: str, column: str) -> bool:
        """Return whether a cell belongs to the paper's own method."""
        return row in self.own or column in self.own


@dataclass(frozen=True)
class Verdict:
    """How a cell came out: by what it was judged, all that was tried, and why it was not run."""

    verdict: str
    chosen: Measured | None = None
    tried: tuple[Measured, ...] = field(default=())
    why: str = ""


def verdict_of(
    experiment: Experiment, row: str, column: str, cell: PrintedCell, found: Iterable[Finding]
) -> Verdict:
    """Judge one printed number by all that was measured for it."""
    assert isinstance(cell.value, int | float)
    printed, tried, why = float(cell.value), [], ""
    for one in found:
        if isinstance(one, Measured) and (one.row, one.column) == (row, column):
            tried.append(one)
        elif isinstance(one, Left) and one.covers(row, column):
            why = why or one.why
    if not tried:
        return Verdict(ABSENT if why else UNTRIED, why=why)
    order = list(experiment.conventions)
    tried.sort(key=lambda one: order.index(one.convention))
    judged = [experiment.judge(printed, cell.sd, one.value) for one in tried]
    for verdict in (REPRODUCED, EXCEEDED):
        if verdict in judged:
            return Verdict(verdict, tried[judged.index(verdict)], tuple(tried))
    nearest = min(tried, key=lambda one: abs(one.value - printed))
    return Verdict(MISSED, nearest, tuple(tried))
