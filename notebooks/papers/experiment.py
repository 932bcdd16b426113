"""What an experiment is, what it measures, and how a cell is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from papers.data import RealData
from papers.printed import PrintedCell

REPRODUCED, MATCHED, EXCEEDED = "reproduced", "matched by choice", "exceeded"
MISSED, ABSENT, UNTRIED = "not reproduced", "cannot be run", "not yet run"
VERDICTS = (REPRODUCED, MATCHED, EXCEEDED, MISSED, ABSENT, UNTRIED)

# Repetitions of most experiments in print.
N_PRINTED = 20
# A cell within this, or within two printed standard deviations, is reproduced.
TOLERANCE = 0.05
# Prints are made wrong by this much, up or down, to see whether they would be matched too.
OFFSETS = tuple(round(0.1 + 0.01 * step, 2) for step in range(11))


@dataclass(frozen=True)
class Measured:
    """What was measured for one cell under one convention: a mean over n repetitions.

    A row or column that is not in print is a peer, shown beside it. Seconds are those of the
    processor, for all repetitions.
    """

    row: str
    column: str
    convention: str
    value: float
    sd: float | None = None
    n: int = 1
    seconds: float | None = None


@dataclass(frozen=True)
class Left:
    """Cells that cannot be run, and why; None stands for every row or column."""

    row: str | None
    column: str | None
    why: str

    def covers(self, row: str, column: str) -> bool:
        """Return whether a cell is among them."""
        return self.row in (None, row) and self.column in (None, column)


@dataclass(frozen=True)
class Planned:
    """A cell that is measured once its values, one for each repetition, are drawn from it."""

    row: str
    column: str
    convention: str
    values: Iterable[float]
    n: int | None = None

    def measured(self) -> Measured:
        """Return mean and standard deviation of the repetitions."""
        each = np.asarray(list(self.values), dtype=np.float64)
        sd = float(each.std(ddof=1)) if len(each) > 1 else None
        n = self.n or len(each)
        return Measured(self.row, self.column, self.convention, float(each.mean()), sd, n)


Finding = Measured | Left


def mean_of(
    row: str, column: str, convention: str, values: Iterable[float], n: int | None = None
) -> Planned:
    """Plan a cell: the mean of the values, of n repetitions if that is not their number."""
    return Planned(row, column, convention, values, n)


def thinned(repeats: int, most: int) -> int:
    """Return fewer repetitions where each takes long, unless all that are in print are wanted."""
    return repeats if repeats >= N_PRINTED else min(repeats, most)


@dataclass(frozen=True)
class Judge:
    """A rule for a printed number, and numbers that would be wrong in its place."""

    # Given print, its standard deviation and ours, the verdict.
    rule: Callable[[float, float | None, float], str]
    # Given column and print, wrong prints.
    wrong: Callable[[str, float], Sequence[float]]

    def __call__(self, printed: float, sd: float | None, ours: float) -> str:
        """Return the verdict."""
        return self.rule(printed, sd, ours)


def _near(printed: float, sd: float | None, ours: float) -> str:
    within = max(TOLERANCE, 2.0 * (sd or 0.0))
    return REPRODUCED if abs(ours - printed) <= within + 1e-9 else ""


def _higher(printed: float, sd: float | None, ours: float) -> str:
    return _near(printed, sd, ours) or (EXCEEDED if ours > printed else MISSED)


def _lower(printed: float, sd: float | None, ours: float) -> str:
    return _near(printed, sd, ours) or (EXCEEDED if ours < printed else MISSED)


def _equal(printed: float, sd: float | None, ours: float) -> str:
    return REPRODUCED if ours == printed else MISSED


def _off(most: float) -> Callable[[str, float], list[float]]:
    """Return prints that are off by .1 to .2 and still scores, between 0 and the most."""
    return lambda column, printed: [
        each
        for offset in OFFSETS
        for each in (printed - offset, printed + offset)
        if 0.0 <= each <= most
    ]


def _other_size(column: str, printed: float) -> list[float]:
    return [printed + sign * max(1, round(o * printed)) for o in OFFSETS for sign in (-1, 1)]


higher_is_better = Judge(_higher, _off(1.0))
lower_is_better = Judge(_lower, _off(np.inf))
equal = Judge(_equal, _other_size)


@dataclass(frozen=True)
class Experiment:
    """How the cells of one printed table are measured.

    Attributes
    ----------
    paper, id : str
        Those of the printed table.
    run : callable
        Given repetitions and the real data, yields what it plans to measure and what it cannot.
    repeats : tuple of int
        Repetitions by default, and those in print.
    conventions : mapping
        Readings of what the paper leaves open, by name.
    protocol : tuple of str
        The conventions, one for each method, that the whole table is judged by.
    protocol_reason : str
        Place of each of them in the text; if it says nothing, the choice that was fixed.
    own : tuple of str
        Rows or columns of the paper's own method; the others are its peers.
    judge : Judge
    labelled : frozenset of str
        Conventions that look at the labels: the best of a grid, or of several starts.
    remark : str
        What the paper probably did where cells do not come out, and what would settle it.
    """

    paper: str
    id: str
    run: Callable[[int, RealData], Iterator[Planned | Left]]
    repeats: tuple[int, int]
    conventions: Mapping[str, str]
    protocol: tuple[str, ...]
    protocol_reason: str
    own: tuple[str, ...]
    judge: Judge = higher_is_better
    labelled: frozenset[str] = frozenset()
    remark: str = ""

    def is_own(self, row: str, column: str) -> bool:
        """Return whether a cell belongs to the paper's own method."""
        return row in self.own or column in self.own


@dataclass(frozen=True)
class Verdict:
    """How a cell came out: what it was judged by, what the protocol gave, and all that was tried.

    A chance is the share of wrong prints that the protocol, or any convention, would match.
    """

    verdict: str
    chosen: Measured | None = None
    protocol: Measured | None = None
    tried: tuple[Measured, ...] = ()
    chance: float = 0.0
    chance_by_choice: float = 0.0
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
    by_name = {one.convention: one for one in tried}
    protocol = next((by_name[name] for name in experiment.protocol if name in by_name), None)
    own = [] if protocol is None else [protocol]
    verdict, chosen = _outcome(experiment.judge, printed, cell.sd, protocol, tried)
    wrong = experiment.judge.wrong(column, printed)
    chance, by_choice = (
        sum(_hit(experiment.judge, each, cell.sd, of) is not None for each in wrong) / len(wrong)
        for of in (own, tried)
    )
    return Verdict(verdict, chosen, protocol, tuple(tried), chance, by_choice)


def _outcome(
    judge: Judge, printed: float, sd: float | None, own: Measured | None, tried: list[Measured]
) -> tuple[str, Measured]:
    """Return the verdict, and what gave it."""
    verdict = MISSED if own is None else judge(printed, sd, own.value)
    if own is not None and verdict == REPRODUCED:
        return verdict, own
    if (match := _hit(judge, printed, sd, tried)) is not None:
        return MATCHED, match
    return verdict, own or min(tried, key=lambda one: abs(one.value - printed))


def _hit(judge: Judge, printed: float, sd: float | None, of: list[Measured]) -> Measured | None:
    """Return the first measurement that reproduces a print."""
    return next((one for one in of if judge(printed, sd, one.value) == REPRODUCED), None)
