"""The page of all verdicts, as Markdown."""

from __future__ import annotations

from collections import Counter

from papers.experiment import ABSENT, MISSED, UNTRIED, VERDICTS
from papers.printed import sources
from papers.tables import EXPERIMENTS, PAPERS, Cell, Table, kept_table

_HEAD = """\
# The papers' tables, beside ours

<!-- Written by `python -m papers --page > README.md`; do not edit. -->

Every number that the four papers print in their tables, and what this library measures in its
place. `python -m papers power --table 1` in this folder measures a table again, with fewer
repetitions than in print (`--full` has as many); this page is made of kept results, which `--keep`
writes.

A cell is **reproduced** (✓) within 0.05 or two printed standard deviations (sizes and parameters:
if equal; p-values: on the same side of 5 %; seconds: within a factor of two), **exceeded** (▲) if
better, **not reproduced** (✗) if neither under any of the conventions that are listed, and
**cannot be run** (∅) where data or a program are not at hand. *Own* cells are those of the paper's
own method, the others those of its peers: a peer that is exceeded is one that does better here
than in print. Where several conventions were tried, a cell is judged by the first that reproduces
it, or else by the best; each table names them.
"""


def page() -> str:
    """Return the page of the kept results."""
    tables = [kept_table(*key) for key in EXPERIMENTS]
    lines = [_HEAD, "## Counts", "", _row("paper", "cells", *VERDICTS), _row(*["---"] * 7)]
    for paper in PAPERS:
        of = [table for table in tables if table.printed.paper == paper]
        for name, own in (("own", True), ("peers", False)):
            counts = sum((table.counts(own) for table in of), Counter[str]())
            numbers = [counts[verdict] for verdict in VERDICTS]
            lines.append(_row(f"{paper}, {name}", sum(numbers), *numbers))
    total = sum((table.counts() for table in tables), Counter[str]())
    numbers = [total[verdict] for verdict in VERDICTS]
    lines.append(_row("**all**", sum(numbers), *numbers))
    for paper in PAPERS:
        lines += ["", f"## {paper}", "", sources()[paper] + "."]
        for table in tables:
            if table.printed.paper == paper:
                lines += _section(table)
    return "\n".join(lines) + "\n"


def _section(table: Table) -> list[str]:
    printed, counts = table.printed, table.counts()
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    lines = ["", f"### {printed.id}: {printed.quantity}", "", f"*{printed.protocol}* **{said}.**"]
    lines += ["", _row("", *printed.columns), _row(*["---"] * (len(printed.columns) + 1))]
    cells = {(c.row, c.column): c for c in table.cells}
    for row in printed.rows:
        texts = [_cell(cells.get((row, column))) for column in printed.columns]
        lines.append(_row(row, *texts))
    beside = dict.fromkeys(one.row for one in table.peers)
    for row in beside:
        of = {one.column: one for one in table.peers if one.row == row}
        texts = [f"{of[c].value:.3g}" if c in of else "" for c in printed.columns]
        if any(texts):
            lines.append(_row(f"*{row}*", *texts))
    repeats = sorted({one.n for c in table.cells for one in c.verdict.tried})
    if repeats:
        lines += ["", f"Print → here, repetitions here: {', '.join(map(str, repeats))}."]
    if table.conventions:
        lines += [""] + [f"- **{name}**: {text}" for name, text in table.conventions.items()]
    missed = [c for c in table.cells if c.verdict.verdict == MISSED]
    if missed:
        lines += ["", "Not reproduced:", ""] + [_tried(c) for c in missed]
    whys = dict.fromkeys(c.verdict.why for c in table.cells if c.verdict.verdict == ABSENT)
    if whys:
        lines += ["", "Cannot be run: " + "; ".join(whys) + "."]
    if table.experiment.remark:
        lines += ["", table.experiment.remark]
    return lines


_SIGNS = {"reproduced": "✓", "exceeded": "▲", MISSED: "✗", ABSENT: "∅", UNTRIED: "…"}


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    sign, chosen = _SIGNS[cell.verdict.verdict], cell.verdict.chosen
    ours = f" → {chosen.value:.3g}" if chosen is not None else ""
    assert isinstance(cell.printed.value, int | float)
    return f"{cell.printed.value:.4g}{ours} {sign}"


def _tried(cell: Cell) -> str:
    each = (f"{one.convention} {one.value:.3g}" for one in cell.verdict.tried)
    return f"- {cell.row}, {cell.column}: {cell.printed.value} in print; {', '.join(each)}"


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
