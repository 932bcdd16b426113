"""A scheduler and workers that deploy/local.sh starts, as a user would."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# A shell that is begun with SIGINT ignored, as in the background of another one, cannot trap it.
_WITH_SIGNALS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def environment(**more):
    """That of this process, with its python, and with the package of this checkout."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHON": sys.executable, "PYTHONPATH": path} | more


def start(*options, **more):
    """Begin deploy/local.sh; its output can be read."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", _WITH_SIGNALS, str(ROOT / "deploy" / "local.sh"), *options]
    return subprocess.Popen(command, env=environment(**more), start_new_session=True, **pipes)


@contextlib.contextmanager
def local_cluster(workers=2, **more):
    """A cluster of deploy/local.sh on free ports.

    Yields
    ------
    script : Popen
        The shell script, still to be ended if it lives at the end.
    told : list of str
        The lines that it printed, the first of which is the scheduler's address.
    """
    options = ["--workers", str(workers), "--memory-limit", "1GB"]
    with start(*options, "--port", "0", "--dashboard", "0", **more) as script:
        try:
            told = [script.stdout.readline().strip() for _ in range(4)]
            assert all(told), script.stderr.read()
            yield script, told
        finally:
            script.terminate()
