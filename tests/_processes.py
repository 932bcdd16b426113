"""Processes forked from one that has imported the library: they start seconds sooner."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver

_PRELOADED = ["daskmm.cluster", "daskmm.compiled.dispatch", "distributed", "sklearn.cluster"]
# A process forked beside a thread may inherit a lock that nobody releases; pyarrow, which pandas
# imports, starts a thread where its allocator is not told otherwise.
_WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


def ready():
    """Return a context of multiprocessing whose processes have imported what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    os.environ.update(_WITHOUT_THREADS)
    # Others that use this context in the same session would preload something else.
    forkserver.ensure_running()
    return context


def exit_code(function, *arguments, seconds=120.0):
    """Call a function of a module in a process of its own; return how that process ended."""
    process = ready().Process(target=function, args=arguments)
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"{function.__name__} takes longer than {seconds} s")
    return process.exitcode
