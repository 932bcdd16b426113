"""The printed tables of the four papers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class PrintedCell:
    """One number in print.

    Attributes
    ----------
    value : float, str or None
        A name where the table has names, and None where it has a dash.
    sd : float or None
        The parenthesis.
    mark : str or None
        "+" where the paper finds a significant difference, "≈" where it does not.
    rank : int or None
        Within its row.
    note : str
    """

    value: float | str | None
    sd: float | None = None
    mark: str | None = None
    rank: int | None = None
    note: str = ""


@dataclass(frozen=True)
class PrintedTable:
    """A table as it stands in print: its cells by (row, column).

    A claim has no numbers in print: its cells say in numbers what the text says of figures.
    """

    paper: str
    id: str
    where: str
    quantity: str
    protocol: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], PrintedCell]
    claim: bool = False

    def numbers(self) -> Iterator[tuple[str, str, PrintedCell]]:
        """Yield row, column and cell wherever a number stands."""
        for (row, column), cell in self.cells.items():
            if isinstance(cell.value, int | float):
                yield row, column, cell


@cache
def _file() -> dict[str, Any]:
    text = Path(__file__).with_name("printed.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def sources() -> dict[str, str]:
    """Return the reference of each paper."""
    found: dict[str, str] = _file()["sources"]
    return found


@cache
def printed_tables() -> dict[tuple[str, str], PrintedTable]:
    """Return all printed tables by paper and number ("Table 1")."""
    return {(record["paper"], record["id"]): _table(record) for record in _file()["tables"]}


def _table(record: dict[str, Any]) -> PrintedTable:
    rows, columns = record["rows"], record["columns"]
    notes = record.get("cell_notes", {})
    cells = {
        (row, column): PrintedCell(
            **{
                name: record[name][i][j]
                for name in ("value", "sd", "mark", "rank")
                if name in record
            },
            note=notes.get(f"{row} | {column}", ""),
        )
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    }
    texts = {name: record[name] for name in ("paper", "id", "where", "quantity", "protocol")}
    return PrintedTable(
        **texts, rows=tuple(rows), columns=tuple(columns), cells=cells, claim="claim" in record
    )
