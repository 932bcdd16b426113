"""A printed table beside what was measured: as text, as HTML for notebooks, and as Markdown."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from html import escape

from papers.data import RealData
from papers.ewp import EXPERIMENTS as EWP
from papers.experiment import (
    MATCHED,
    MISSED,
    REPRODUCED,
    UNTRIED,
    VERDICTS,
    Experiment,
    Finding,
    Left,
    Measured,
    Planned,
    Verdict,
    verdict_of,
)
from papers.kernel import EXPERIMENTS as KERNEL
from papers.mean_shift import EXPERIMENTS as MEAN_SHIFT
from papers.power import EXPERIMENTS as POWER
from papers.printed import PrintedCell, PrintedTable, printed_tables
from papers.results import Key, kept

EXPERIMENTS: dict[Key, Experiment] = {
    (each.paper, each.id): each for each in (*EWP, *POWER, *KERNEL, *MEAN_SHIFT)
}
PAPERS = ("ewp", "power", "kernel", "mean-shift")


def keys_of(paper: str, table: str | None = None) -> list[Key]:
    """Return the tables of a paper, or the one of a number ("2", "Table 2", "figure 1").

    Raises
    ------
    ValueError
        If the paper has no such table; names those that it has.
    """
    keys = [key for key in EXPERIMENTS if key[0] == paper]
    if table is None:
        return keys
    wanted = {table.lower(), f"table {table}".lower()}
    found = [key for key in keys if key[1].lower() in wanted]
    if not found:
        known = ", ".join(key[1] for key in keys)
        raise ValueError(f"{paper} has no table {table!r}; it has {known}.")
    return found


@dataclass(frozen=True)
class Cell:
    """One printed number and how it came out."""

    row: str
    column: str
    printed: PrintedCell
    own: bool
    verdict: Verdict


@dataclass(frozen=True)
class Evidence:
    """Count how many of the cells run are reproduced, and how many by any choice.

    A chance is how many would be if each print were replaced by a wrong one.
    """

    cells: int
    real: int
    chance: float
    by_choice: int
    chance_by_choice: float

    @property
    def counts(self) -> bool:
        """Whether more came out than wrong prints would, by more than one cell."""
        return self.real > self.chance + 1.0


@dataclass(frozen=True)
class Table:
    """A printed table with verdicts, and the peers measured beside it.

    Attributes
    ----------
    experiment : Experiment
    printed : PrintedTable
    cells : tuple of Cell
        Every printed number.
    peers : tuple of Measured
        What is not in print: other libraries, and the defaults of this one.
    seconds : float or None
        Processor time of all that was measured, if it was kept.
    """

    experiment: Experiment
    printed: PrintedTable
    cells: tuple[Cell, ...]
    peers: tuple[Measured, ...]
    seconds: float | None

    @property
    def title(self) -> str:
        """Paper, number and quantity."""
        return f"{self.printed.paper}, {self.printed.id}: {self.printed.quantity}"

    @property
    def conventions(self) -> dict[str, str]:
        """Those under which a cell or a peer was measured, and what they are."""
        tried = {one.convention for c in self.cells for one in c.verdict.tried}
        tried |= {one.convention for one in self.peers}
        return {name: text for name, text in self.experiment.conventions.items() if name in tried}

    def counts(self, own: bool | None = None) -> Counter[str]:
        """Return how many cells have each verdict: all, or those of the own method or of peers."""
        return Counter(c.verdict.verdict for c in self.cells if own is None or c.own == own)

    def evidence(self, own: bool) -> Evidence:
        """Return what the verdicts on the own method, or on its peers, are worth."""
        of = [c.verdict for c in self.cells if c.own == own and c.verdict.tried]
        real = sum(verdict.verdict == REPRODUCED for verdict in of)
        return Evidence(
            len(of),
            real,
            sum(verdict.chance for verdict in of),
            real + sum(verdict.verdict == MATCHED for verdict in of),
            sum(verdict.chance_by_choice for verdict in of),
        )

    def counted(self, cell: Cell) -> bool:
        """Return whether a cell is reproduced, in a group that wrong prints would not match."""
        return cell.verdict.verdict == REPRODUCED and self.evidence(cell.own).counts

    def text(self) -> str:
        """Return lines for a terminal; cells that were not asked for are left out."""
        lines = [self.title, ""]
        part = any(c.verdict.verdict == UNTRIED for c in self.cells)
        shown = [c for c in self.cells if c.verdict.tried] if part else self.cells
        width = max(len(f"{c.row}, {c.column}") for c in self.cells)
        for c in shown:
            name = f"{c.row}, {c.column}"
            lines.append(f"{name:{width}}  {'  '.join(_columns(c))}")
        if self.peers:
            lines += ["", "not in print, beside it:"]
            for one in self.peers:
                name = f"{one.row}, {one.column}"
                lines.append(f"{name:{width}}  {_digits(one.value)}  {one.convention}")
        lines += ["", "conventions:"]
        lines += [f"  {name}: {text}" for name, text in self.conventions.items()]
        return "\n".join([*lines, "", described(Counter(c.verdict.verdict for c in shown))])

    def _repr_html_(self) -> str:
        head = ("row", "column", "print", "here", "verdict", "by")
        lines = [f"<tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>"]
        for c in self.cells:
            cells = (c.row, c.column, *_columns(c))
            lines.append(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in cells)}</tr>")
        for one in self.peers:
            cells = (one.row, one.column, "–", _digits(one.value), "not in print", one.convention)
            lines.append(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in cells)}</tr>")
        caption = f"<caption>{escape(self.title)}</caption>"
        return f"<table>{caption}{''.join(lines)}</table>{escape(described(self.counts()))}"


def table_of(key: Key, found: Iterable[Finding]) -> Table:
    """Judge every number of a printed table by what was measured."""
    experiment, printed, found = EXPERIMENTS[key], printed_tables()[key], tuple(found)
    cells = tuple(
        Cell(
            row,
            column,
            cell,
            experiment.is_own(row, column),
            verdict_of(experiment, row, column, cell, found),
        )
        for row, column, cell in printed.numbers()
    )
    peers = tuple(
        one
        for one in found
        if isinstance(one, Measured) and (one.row, one.column) not in printed.cells
    )
    times = [one.seconds for one in found if isinstance(one, Measured)]
    kept = [time for time in times if time is not None]
    seconds = sum(kept) if len(kept) == len(times) else None
    return Table(experiment, printed, cells, peers, seconds)


@cache
def kept_table(paper: str, table: str) -> Table:
    """Return a table judged by the kept results."""
    [key] = keys_of(paper, table)
    return table_of(key, kept().get(key, ()))


def measure(
    key: Key,
    repeats: int,
    data: RealData,
    wanted: Callable[[Planned], bool] = lambda cell: True,
) -> Iterator[Finding]:
    """Run the experiment of a table, or the wanted cells of it."""
    began = time.process_time()
    for one in EXPERIMENTS[key].run(repeats, data):
        if isinstance(one, Left):
            yield one
        elif wanted(one):
            measured = one.measured()
            yield replace(measured, seconds=time.process_time() - began)
            began = time.process_time()


def described(counts: Counter[str]) -> str:
    """Return counted verdicts in words: "84 cells: 82 reproduced, 2 exceeded"."""
    parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    return f"{sum(counts.values())} cells: {', '.join(parts)}"


def _columns(cell: Cell) -> tuple[str, str, str, str]:
    """Return the printed number, ours, the verdict, and by what or why."""
    chosen, sd = cell.verdict.chosen, cell.printed.sd
    assert isinstance(cell.printed.value, int | float)
    printed = _digits(cell.printed.value) + (f" ({sd:g})" if sd is not None else "")
    if chosen is None:
        return printed, "–", cell.verdict.verdict, cell.verdict.why
    ours = _digits(chosen.value) + (f" ({chosen.sd:.2g})" if chosen.sd is not None else "")
    by = chosen.convention
    if cell.verdict.verdict == MISSED:
        each = (f"{one.convention} {_digits(one.value)}" for one in cell.verdict.tried)
        by = f"tried: {'; '.join(each)}"
    return printed, ours, cell.verdict.verdict, by


def _digits(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:g}" if value == int(value) and abs(value) >= 2 else f"{value:.4g}"
