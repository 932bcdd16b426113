"""The command line: ``daskmm demo | fit | predict | update | inspect | plan | ...``."""

from __future__ import annotations

import argparse
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
        text = " ".join([str(error), *getattr(error, "__notes__", [])])
        print(f"daskmm: error: {printable(' '.join(text.split()))}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Interrupted):
        print("daskmm: interrupted", file=sys.stderr)
        return 130
    except Exception:
        print(printable_lines(traceback.format_exc()), file=sys.stderr, end="")
        return 1


def _check_input(arguments: argparse.Namespace) -> None:
    """Refuse an input that does not exist, unless it is a URL or a pattern of paths.

    Columns are compared with the header of a csv or parquet file; other tables are opened later.
    """
    given = getattr(arguments, "input", None)
    if given is None or "://" in given or any(mark in given for mark in "*?["):
        return
    path, _, _ = given.partition("::")  # what follows names a part of the file
    if not (os.path.exists(path) or os.path.exists(given)):
        raise UserError(f"{path} does not exist.")
    chosen = [getattr(arguments, name, None) or [] for name in ("columns", "keep", "categories")]
    wanted = {*itertools.chain(*chosen)} - {ALL}
    if wanted and os.path.isfile(given) and (names := _names_in_header(given, arguments)):
        refuse_unknown(os.path.abspath(given), "column", wanted, names)


def _names_in_header(path: str, arguments: argparse.Namespace) -> list[Any]:
    """Return the names of the columns of a csv or parquet file; none for other files."""
    from daskmm.data.csv_files import csv_columns, is_csv

    if path.endswith(".parquet"):
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)
    form = (getattr(arguments, name, None) for name in ("separator", "decimal", "encoding"))
    return csv_columns(path, *form) if is_csv(path) else []
