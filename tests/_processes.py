"""Processes forked from one that has imported the package, which saves seconds for each of them."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver

# What all fits need. Nothing that imports pyarrow, as pandas does: it starts a thread.
_PRELOADED = ["daskmm.compiled.block_sums", "distributed"]


def ready():
    """Return a context of multiprocessing whose processes have imported what they need."""
    # Where pyarrow is imported all the same.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
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
