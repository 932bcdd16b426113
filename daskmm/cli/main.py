"""The command line: ``daskmm demo | fit | predict | update | inspect | plan | ...``."""

from __future__ import annotations

import argparse
import glob
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from daskmm.cli.commands import ALL, Interrupted, UserError, build_parser
from daskmm.data.errors import SparseRowsError
from daskmm.data.names import printable, printable_lines, refuse_unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, given its arguments or those of the process, and return the exit code.

    It is 0 for success, 1 for an unexpected failure (or a faulty Gram store), 2 for an error of the
    user, 3 for drift, and 130 if interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show "∞" gets "?" rather than an error.
            stream.reconfigure(errors="replace")
    try:
        arguments = build_parser().parse_args(argv)
        _check_input(arguments)
        # Importing this takes seconds; help texts and errors of options need not wait for it.
        from daskmm.cli.actions import COMMANDS

        return COMMANDS[arguments.command](arguments) or 0
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except BrokenPipeError:
        # The reader of a pipe has ended (e.g. head): discard what is still buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UserError, SparseRowsError, ValueError, OSError, ImportError) as error:
        notes = getattr(error, "__notes__", [])
        text = " ".join([f"{str(error).rstrip('.')}.", *notes] if notes else [str(error)])
        print(f"daskmm: error: {printable(' '.join(text.split()))}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Interrupted):
        print("daskmm: interrupted", file=sys.stderr)
        return 130
    except Exception:
        print(printable_lines(traceback.format_exc()), file=sys.stderr, end="")
        return 1


def _check_input(arguments: argparse.Namespace) -> None:
    """Refuse a run or an input that does not exist, and an input without a column that is named.

    Columns are those in the header of its first csv or parquet file. URLs, such as file:/run, are
    opened later.
    """
    run, given = (getattr(arguments, name, None) for name in ("folder", "input"))
    if run is not None and ":/" not in run and not os.path.exists(run):
        raise UserError(f"{run} does not exist.")
    if given is None or ":/" in given:
        return
    path, _, _ = given.partition("::")  # what follows names a part of the file
    pattern = any(mark in given for mark in "*?[")
    if not (pattern or os.path.exists(path) or os.path.exists(given)):
        raise UserError(f"{path} does not exist.")
    chosen = [getattr(arguments, name, None) or [] for name in ("columns", "keep", "categories")]
    wanted = {*itertools.chain(*chosen)} - {ALL}
    if wanted and (names := _names_in_header(given, arguments)):
        refuse_unknown(os.path.abspath(given), "column", wanted, names)


def _names_in_header(path: str, arguments: argparse.Namespace) -> list[Any]:
    """Return the columns of the first csv or parquet file; none if folders may name columns."""
    from daskmm.data.csv_files import csv_columns, is_csv

    whole = os.path.isfile(path)
    found = [path] if whole else glob.glob(f"{path}/*" if os.path.isdir(path) else path)
    if any(os.path.isdir(name) or "=" in os.path.dirname(name) for name in found):
        return []
    for name in sorted(found, key=lambda name: (not name.endswith(".parquet"), name)):
        if name.endswith(".parquet"):
            import pyarrow.parquet

            try:
                return list(pyarrow.parquet.read_schema(name).names)
            except (OSError, ValueError):  # a damaged file is refused when the table is opened
                return []
        if is_csv(name, in_folder=not whole) and not os.path.basename(name).startswith("_"):
            form = (getattr(arguments, each, None) for each in ("separator", "decimal", "encoding"))
            return csv_columns(name, *form)
    return []
