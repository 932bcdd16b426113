"""``daskmm reproduce``: measure the papers' tables, or show what is kept of it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daskmm.cli.papers.data import RealData
from daskmm.cli.papers.experiment import Finding
from daskmm.cli.papers.page import page
from daskmm.cli.papers.results import Key, keep, kept
from daskmm.cli.papers.tables import (
    EXPERIMENTS,
    PAPERS,
    Table,
    described,
    keys_of,
    measure,
    table_of,
)


@dataclass(frozen=True)
class Answer:
    """What the command prints: a text, or the same for JSON."""

    text: str
    found: dict[str, Any]


def reproduce(arguments: argparse.Namespace, say: Callable[[str], None]) -> Answer:
    """Run the command.

    Raises
    ------
    ValueError
        If the paper has no such table.
    """
    if arguments.page:
        return Answer(page().rstrip("\n"), {"page": page()})
    if arguments.paper is None:
        return _summary()
    keys = keys_of(arguments.paper, arguments.table)
    if arguments.kept:
        tables = [table_of(key, kept().get(key, ())) for key in keys]
    else:
        tables = [_measured(key, arguments, say) for key in keys]
    text = "\n\n".join(table.text() for table in tables)
    return Answer(text, {"tables": [table.as_dict() for table in tables]})


def _measured(key: Key, arguments: argparse.Namespace, say: Callable[[str], None]) -> Table:
    default, printed = EXPERIMENTS[key].repeats
    repeats = arguments.repeats or (printed if arguments.full else default)
    say(f"{key[0]}, {key[1]}: {repeats} of {printed} repetitions")
    found: list[Finding] = measure(key, repeats, RealData(arguments.data))
    if arguments.keep:
        keep(arguments.keep, {key: found})
    return table_of(key, found)


def _summary() -> Answer:
    """Return the counted verdicts of the kept results."""
    lines, found = [], {}
    for paper in PAPERS:
        tables = [table_of(key, kept().get(key, ())) for key in keys_of(paper)]
        counts = sum((table.counts() for table in tables), Counter[str]())
        lines.append(f"{paper:11} {described(counts)}")
        lines += [f"  {table.printed.id:16} {described(table.counts())}" for table in tables]
        found[paper] = {table.printed.id: dict(table.counts()) for table in tables}
    lines += ["", "daskmm reproduce PAPER --table N measures a table again."]
    return Answer("\n".join(lines), found)
