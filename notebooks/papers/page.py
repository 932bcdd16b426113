"""The page of all verdicts, as Markdown."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from papers.experiment import (
    ABSENT,
    EXCEEDED,
    MATCHED,
    MISSED,
    REPRODUCED,
    UNTRIED,
    Measured,
    Verdict,
)
from papers.printed import sources
from papers.tables import EXPERIMENTS, PAPERS, Cell, Evidence, Table, kept_table

# Ticks that are drawn, so that a reader may run them, and the seed of the draw.
N_TICKS, SEED = 15, 2026

_TEXT = Path(__file__).with_name("page.md")
_SIGNS = {REPRODUCED: "✓", MATCHED: "○", EXCEEDED: "▲", MISSED: "✗", ABSENT: "∅", UNTRIED: "…"}


def page() -> str:
    """Return the page of the kept results."""
    tables = [kept_table(*key) for key in EXPERIMENTS]
    parts = {"counts": _summary(tables), "worth": _worth(tables), "ticks": _drawn(tables)}
    text = _TEXT.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(part))
    lines: list[str] = []
    for paper in PAPERS:
        lines += ["", f"## {paper}", "", sources()[paper] + "."]
        for table in tables:
            if table.printed.paper == paper:
                lines += _section(table)
    return text + "\n".join(lines) + "\n"


def ticks(tables: Iterable[Table]) -> list[tuple[Table, Cell]]:
    """Return the ticks that are drawn."""
    results = [table for table in tables if table.experiment.own]
    counted = [(table, c) for table in results for c in table.cells if table.counted(c)]
    return random.Random(SEED).sample(counted, N_TICKS)


def command(table: Table, cell: Cell) -> str:
    """Return what measures a cell again, as it was measured."""
    one = cell.verdict.chosen
    assert one is not None
    parts = {"table": table.printed.id.removeprefix("Table "), "row": one.row}
    parts |= {"column": one.column, "convention": one.convention}
    options = " ".join(f'--{name} "{part}"' for name, part in parts.items())
    return f"python -m papers {table.printed.paper} {options} --repeats {one.n}"


def _summary(tables: list[Table]) -> Iterator[str]:
    """Yield what is reproduced and what is not, counted."""
    heads = ("reproduced", "as by chance", MATCHED, EXCEEDED, MISSED, ABSENT)
    yield _row("paper", "cells", *heads)
    yield _row(*["---"] * 8)
    total = [0] * 7
    for paper in PAPERS:
        all_of = [(t, c) for t in tables if t.printed.paper == paper for c in t.cells]
        for name in ("own", "peers", "sizes of data"):
            if not (of := [(t, c) for t, c in all_of if _group(t, c) == name]):
                continue
            kinds = [_kind(t, c) for t, c in of]
            numbers = [len(of), *(kinds.count(head) for head in heads)]
            total = [a + b for a, b in zip(total, numbers, strict=True)]
            yield _row(f"{paper}, {name}", *numbers)
    yield _row("**all**", *total)


def _group(table: Table, cell: Cell) -> str:
    if not table.experiment.own:
        return "sizes of data"
    return "own" if cell.own else "peers"


def _kind(table: Table, cell: Cell) -> str:
    verdict = cell.verdict.verdict
    return "as by chance" if verdict == REPRODUCED and not table.counted(cell) else verdict


def _worth(tables: list[Table]) -> Iterator[str]:
    """Yield each table's verdicts beside those of wrong prints."""
    heads = ("own cells run", "reproduced", "wrong", "by any convention", "wrong")
    yield _row("table", *heads, "peers' cells run", *heads[1:], "time")
    yield _row(*["---"] * 12)
    for table in tables:
        own, peers = table.evidence(True), table.evidence(False)
        if own.cells + peers.cells:
            name = f"{table.printed.paper}, {table.printed.id}"
            yield _row(name, *_numbers(own), *_numbers(peers), _time(table.seconds))


def _numbers(of: Evidence) -> list[str]:
    if not of.cells:
        return ["–"] * 5
    real, wrong = str(of.real), f"{of.chance:.1f}"
    if not of.counts:
        real, wrong = f"**{real}**", f"**{wrong}**"
    return [str(of.cells), real, wrong, str(of.by_choice), f"{of.chance_by_choice:.1f}"]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not kept"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _drawn(tables: list[Table]) -> Iterator[str]:
    yield _row("cell", "print", "here", "convention", "repetitions", "command")
    yield _row(*["---"] * 6)
    for table, cell in ticks(tables):
        one = cell.verdict.chosen
        assert one is not None
        name = f"{table.printed.paper}, {table.printed.id}: {cell.row}, {cell.column}"
        said = f"`{command(table, cell)}`"
        yield _row(name, cell.printed.value, _value(one), one.convention, one.n, said)


def _section(table: Table) -> list[str]:
    printed, experiment = table.printed, table.experiment
    lines = ["", f"### {printed.id}: {printed.quantity}", "", f"*{printed.protocol}*"]
    judged = [c.verdict.chosen.convention for c in table.cells if c.verdict.chosen]
    used = [name for name in table.conventions if name in judged]
    lines += ["", _row("", *printed.columns), _row(*["---"] * (len(printed.columns) + 1))]
    cells = {(c.row, c.column): c for c in table.cells}
    for row in printed.rows:
        texts = [_cell(table, cells.get((row, column)), used) for column in printed.columns]
        lines.append(_row(row, *texts))
    for row in dict.fromkeys(one.row for one in table.peers):
        of = {one.column: one for one in table.peers if one.row == row}
        texts = [f"{of[c].value:.3g}" if c in of else "" for c in printed.columns]
        if any(texts):
            lines.append(_row(f"*{row}*", *texts))
    if used:
        lines += ["", *_words(table), "", f"Protocol: {experiment.protocol_reason}.", ""]
        for number, name in enumerate(used, 1):
            mark = "†" if name in experiment.labelled else ""
            lines.append(f"{number}. **{name}**{mark}: {experiment.conventions[name]}")
        others = [name for name in table.conventions if name not in used]
        lines += ["", f"Tried as well: {'; '.join(others)}."] if others else []
    for verdict, say in ((MATCHED, _by_choice), (MISSED, _tried)):
        of_it = [say(c, experiment.labelled) for c in table.cells if c.verdict.verdict == verdict]
        lines += ["", f"{verdict.capitalize()}:", "", *of_it] if of_it else []
    whys = dict.fromkeys(c.verdict.why for c in table.cells if c.verdict.verdict == ABSENT)
    lines += ["", "Cannot be run: " + "; ".join(whys) + "."] if whys else []
    return [*lines, "", experiment.remark] if experiment.remark else lines


def _words(table: Table) -> Iterator[str]:
    """Yield what came out, and what it is worth."""
    sizes = not table.experiment.own
    for name, own in (("Own method", True), ("Sizes" if sizes else "Peers", False)):
        of = table.evidence(own)
        if not of.cells:
            continue
        yield (
            f"{name}: {of.real} of {of.cells} reproduced; of wrong prints, {of.chance:.1f} would. "
            f"By any convention {of.by_choice}, of wrong prints {of.chance_by_choice:.1f}."
        )
        if not of.counts:
            yield "**At most one more than wrong prints would give: these ticks do not count.**"
    repeats = sorted({one.n for c in table.cells for one in c.verdict.tried})
    yield f"Repetitions: {', '.join(map(str, repeats))}. Time: {_time(table.seconds)}."


def _cell(table: Table, cell: Cell | None, used: list[str]) -> str:
    if cell is None:
        return ""
    verdict = cell.verdict
    assert isinstance(cell.printed.value, int | float)
    sign = _SIGNS[verdict.verdict]
    if verdict.chosen is None:
        return f"{cell.printed.value:.4g} {sign}"
    if verdict.verdict == REPRODUCED and not table.counted(cell):
        sign = f"({sign})"
    mark = "†" if verdict.chosen.convention in table.experiment.labelled else ""
    number = used.index(verdict.chosen.convention) + 1
    return f"{cell.printed.value:.4g} → {_value(verdict.chosen)} {sign} {number}{mark}"


def _value(one: Measured) -> str:
    # Sums of equal numbers differ by rounding.
    return f"{one.value:.3g}" + ("" if one.sd is None else f" ± {round(one.sd, 9):.2g}")


def _by_choice(cell: Cell, labelled: frozenset[str]) -> str:
    verdict = cell.verdict
    assert verdict.chosen is not None
    own = "nothing" if verdict.protocol is None else _value(verdict.protocol)
    mark = ", which looks at the labels" if verdict.chosen.convention in labelled else ""
    return (
        f"- {cell.row}, {cell.column}: {cell.printed.value} in print, {own} by the protocol, "
        f"{_value(verdict.chosen)} by *{verdict.chosen.convention}*{mark}; {len(verdict.tried)} "
        f"conventions tried, which match {verdict.chance_by_choice:.0%} of wrong prints"
    )


def _tried(cell: Cell, labelled: frozenset[str]) -> str:
    each = (f"{one.convention} {one.value:.3g}" for one in _ordered(cell.verdict))
    return f"- {cell.row}, {cell.column}: {cell.printed.value} in print; {', '.join(each)}"


def _ordered(verdict: Verdict) -> list[Measured]:
    """Return what was tried, the protocol first."""
    return sorted(verdict.tried, key=lambda one: one is not verdict.protocol)


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
