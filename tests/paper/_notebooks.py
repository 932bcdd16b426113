"""Executes a notebook of the papers and reads the cells of its tables."""

from __future__ import annotations

import json

from _execution import executed


def execute(name: str, *, seconds: float = 1500.0) -> list[dict]:
    """The cells that notebook `name` leaves in its variable `tables`, after a whole run of it."""
    answer, _ = executed(name, "print(papers.as_json(*tables))", seconds=seconds)
    return json.loads(answer)


def cell(cells: list[dict], table: str, row: str, column: str) -> dict:
    """The one cell of that table, row and column."""
    (found,) = [c for c in cells if (c["table"], c["row"], c["column"]) == (table, row, column)]
    return found
