"""What the notebooks of the papers share: data, and tables whose cells say how they came out."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path

import numpy as np
from sklearn import datasets

SHARED = Path(os.environ.get("DASKMM_SHARED", Path(__file__).parents[2] / "shared"))
TOLERANCE = 0.05  # a cell within this of the printed one is reproduced


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows, raw, and the labels of one of the papers' real data sets."""
    own = {"iris": "load_iris", "wine": "load_wine", "wdbc": "load_breast_cancer"}
    if name in own or name == "digits":
        return getattr(datasets, own.get(name, "load_digits"))(return_X_y=True)
    path = SHARED / "data" / f"{name}.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: DASKMM_SHARED names the folder whose data/ holds the papers' "
            "data sets, npz files with X and y"
        )
    with np.load(path) as file:
        return np.asarray(file["X"], dtype=np.float64), file["y"]


def zscore(X: np.ndarray) -> np.ndarray:
    """X with every feature at mean 0 and variance 1; constant features become 0."""
    spread = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


@dataclass(frozen=True)
class Cell:
    """One cell of a printed table beside what is measured here.

    paper is None where the printed figure is not at hand; peers are what other libraries measure
    on the same rows; convention says which of the readings that the paper leaves open was taken.
    """

    table: str
    row: str
    column: str
    paper: float | None
    ours: float
    peers: dict[str, float]
    convention: str
    lower_is_better: bool = False

    @property
    def verdict(self) -> str:
        """Reproduced (within 0.05), exceeded, not reproduced, or no printed figure at hand."""
        if self.paper is None:
            return "no printed figure at hand"
        ahead = self.paper - self.ours if self.lower_is_better else self.ours - self.paper
        if abs(ahead) <= TOLERANCE + 1e-9:
            return "reproduced"
        return "exceeded" if ahead > 0 else "not reproduced"


@dataclass
class Table:
    """A table of a paper: cells of one measure under one convention, drawn by notebooks as HTML."""

    title: str
    measure: str
    convention: str
    lower_is_better: bool = False
    cells: list[Cell] = field(default_factory=list)

    def add(
        self,
        row: str,
        column: str,
        paper: float | None,
        ours: float,
        convention: str = "",
        **peers: float,
    ) -> None:
        """Append a cell; its convention is the table's unless it has one of its own."""
        self.cells.append(
            Cell(
                self.title,
                row,
                column,
                paper,
                float(ours),
                {name: float(value) for name, value in peers.items()},
                convention or self.convention,
                self.lower_is_better,
            )
        )

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for cell in self.cells for name in cell.peers))
        head = ["", "", "paper", "daskmm", *names, "verdict", "convention"]
        lines = [f"<tr>{''.join(f'<th>{escape(h)}</th>' for h in head)}</tr>"]
        for cell in self.cells:
            texts = [cell.row, cell.column, _digits(cell.paper), _digits(cell.ours)]
            texts += [_digits(cell.peers.get(name)) for name in names]
            texts += [cell.verdict, cell.convention]
            lines.append(f"<tr>{''.join(f'<td>{escape(t)}</td>' for t in texts)}</tr>")
        caption = f"{self.title}: {self.measure}"
        return f"<table><caption>{escape(caption)}</caption>{''.join(lines)}</table>"


def as_json(*tables: Table) -> str:
    """Every cell of the tables with its verdict, as the tests of the notebooks read them."""
    return json.dumps(
        [{**asdict(cell), "verdict": cell.verdict} for table in tables for cell in table.cells]
    )


def _digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
