"""``python -m papers``: measure the papers' tables, or show what is kept of it."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Sequence

from papers.data import RealData
from papers.experiment import Measured, Planned
from papers.page import page
from papers.results import FILE, Key, keep, kept
from papers.tables import EXPERIMENTS, PAPERS, Table, described, keys_of, measure, table_of

_DESCRIPTION = """\
Measure a table of one of the four papers, and print every number in print beside
ours with a verdict: reproduced, exceeded, not reproduced, cannot be run. Without a
PAPER, show the counted verdicts of the kept results. Tables of real data need those
in a folder of NAME.npz files with X and y."""

_EXAMPLE = """\
example, in the folder of the notebooks:
  python -m papers
  python -m papers power --table 1
  python -m papers power --table 1 --row Lloyd --column "d = 2" --repeats 15
  python -m papers ewp --table 5 --data folder --full"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` is that of the process by default."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.page:
        print(page(), end="")
        return
    if arguments.paper is None:
        print(_summary())
        return
    try:
        keys = keys_of(arguments.paper, arguments.table)
        # Centres that coincide are part of what is measured.
        with warnings.catch_warnings(action="ignore"):
            data = RealData(arguments.data)
            tables = [_table(key, arguments, data) for key in keys]
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print("\n\n".join(table.text() for table in tables))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m papers",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("paper", nargs="?", choices=PAPERS, metavar="PAPER", help=" | ".join(PAPERS))
    add("--table", metavar="N", help="one table: 2, or 'figure 1' (default: all)")
    add("--row", metavar="NAME", help="only cells of this row")
    add("--column", metavar="NAME", help="only cells of this column")
    add("--convention", metavar="NAME", help="only under this convention")
    add("--full", action="store_true", help="as many repetitions as in print; may take hours")
    add("--repeats", type=int, metavar="N", help="so many repetitions")
    add(
        "--data",
        metavar="FOLDER",
        help="holds NAME.npz files with X and y (default: data in the folder of the environment "
        "variable DASKMM_SHARED)",
    )
    add("--kept", action="store_true", help="show kept results; measure nothing")
    add("--keep", action="store_true", help="keep what was measured, in place of what is kept")
    add("--page", action="store_true", help="print all kept verdicts as a page of Markdown")
    return parser


def _table(key: Key, arguments: argparse.Namespace, data: RealData) -> Table:
    """Return a table with its verdicts, measured or of the kept results."""
    if arguments.kept:
        return table_of(key, kept().get(key, ()))
    default, printed = EXPERIMENTS[key].repeats
    repeats = arguments.repeats or (printed if arguments.full else default)
    print(f"{key[0]}, {key[1]}: {repeats} of {printed} repetitions", file=sys.stderr, flush=True)
    parts = {name: getattr(arguments, name) for name in ("row", "column", "convention")}
    some = {name: part for name, part in parts.items() if part is not None}

    def wanted(cell: Planned) -> bool:
        return all(getattr(cell, name) == part for name, part in some.items())

    found = list(measure(key, repeats, data, wanted))
    if some and not any(isinstance(one, Measured) for one in found):
        raise ValueError(f"{' / '.join(key)} measures no cell of {some}.")
    if arguments.keep:
        keep(FILE, key, found, whole=not some)
    return table_of(key, found)


def _summary() -> str:
    """Return the counted verdicts of the kept results."""
    lines = []
    for paper in PAPERS:
        tables = [table_of(key, kept().get(key, ())) for key in keys_of(paper)]
        counts = sum((table.counts() for table in tables), Counter[str]())
        lines.append(f"{paper:11} {described(counts)}")
        lines += [f"  {table.printed.id:16} {described(table.counts())}" for table in tables]
    return "\n".join([*lines, "", "python -m papers PAPER --table N measures a table again."])


if __name__ == "__main__":
    main()
