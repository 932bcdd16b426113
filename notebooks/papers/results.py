"""Results of long runs, kept as a file, so that pages and tests need not run everything again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from papers.experiment import Finding, Left, Measured
from papers.printed import printed_tables

Key = tuple[str, str]
FILE = Path(__file__).with_name("results.json")
_DIGITS = 5


@cache
def kept() -> dict[Key, tuple[Finding, ...]]:
    """Return the kept results of each table."""
    return {key: tuple(found) for key, found in _parsed(FILE.read_text(encoding="utf-8")).items()}


def keep(path: str | Path, key: Key, found: Iterable[Finding], whole: bool = True) -> None:
    """Write results into a file of kept ones: in place of a whole table, or of the same cells."""
    path, found = Path(path), list(found)
    all_of = _parsed(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not whole:
        # Cells that cannot be run are reported again each time.
        names = {_name(one) for one in found}
        before = [one for one in all_of.get(key, []) if isinstance(one, Measured)]
        found = [one for one in before if _name(one) not in names] + found
    all_of[key] = found
    known = [key for key in printed_tables() if key in all_of]
    tables = ",\n".join(
        f"{json.dumps(' / '.join(key))}: [\n"
        + ",\n".join(json.dumps(_record(one), ensure_ascii=False) for one in all_of[key])
        + "\n]"
        for key in known
    )
    path.write_text(f"{{\n{tables}\n}}\n", encoding="utf-8")


def _name(one: Finding) -> tuple[str | None, ...]:
    return one.row, one.column, getattr(one, "convention", None)


def _parsed(text: str) -> dict[Key, list[Finding]]:
    return {
        (paper, table): [_finding(record) for record in records]
        for name, records in json.loads(text).items()
        for paper, table in [name.split(" / ")]
    }


def _record(one: Finding) -> list[Any]:
    if isinstance(one, Left):
        return [one.row, one.column, one.why]
    sd = None if one.sd is None else _rounded(one.sd)
    seconds = None if one.seconds is None else round(one.seconds, 2)
    return [one.row, one.column, one.convention, _rounded(one.value), sd, one.n, seconds]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _finding(record: list[Any]) -> Finding:
    return Left(*record) if len(record) == 3 else Measured(*record)
