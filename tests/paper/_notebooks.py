"""Executes a notebook of notebooks/ in a kernel of its own and reads the cells of its tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def execute(name: str, *, seconds: float = 1500.0) -> list[dict]:
    """The cells that notebook `name` leaves in its variable `tables`, after a whole run of it."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("print(papers.as_json(*tables))"))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": sys.executable}
    place = {"metadata": {"path": NOTEBOOKS}}
    client.NotebookClient(
        notebook, timeout=seconds, kernel_name="python3", resources=place
    ).execute()
    return json.loads(notebook.cells[-1].outputs[0]["text"])


def cell(cells: list[dict], table: str, row: str, column: str) -> dict:
    """The one cell of that table, row and column."""
    (found,) = [c for c in cells if (c["table"], c["row"], c["column"]) == (table, row, column)]
    return found
