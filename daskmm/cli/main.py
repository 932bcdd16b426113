"""The command line: ``daskmm demo | fit | predict | update | inspect | plan | ...``."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from daskmm.cli.commands import Interrupted, UserError, build_parser
from daskmm.data.errors import SparseRowsError
from daskmm.data.names import printable, printable_lines


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
        _check_input(getattr(arguments, "input", None))
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


def _check_input(given: str | None) -> None:
    """Refuse an input that does not exist, unless it is a URL or a pattern of paths."""
    if given is None or "://" in given or any(mark in given for mark in "*?["):
        return
    path, _, _ = given.partition("::")  # what follows names a part of the file
    if not (os.path.exists(path) or os.path.exists(given)):
        raise UserError(f"{path} does not exist.")
