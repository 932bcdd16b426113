"""Processes forked from one that has imported the package, which saves seconds for each of them."""

from __future__ import annotations

import contextlib
import multiprocessing
from multiprocessing import forkserver

import dask

_PRELOADED = ["daskmm.cluster", "daskmm.compiled.block_sums", "distributed", "sklearn.cluster"]


def ready():
    """Return a context of multiprocessing whose processes have imported what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    # Others that use this context in the same session would preload something else.
    forkserver.ensure_running()
    return context


@contextlib.contextmanager
def of_workers(**more):
    """Within, clusters of `distributed` start their workers from such a process."""
    ready()
    settings = {"scheduler": None, "distributed.worker.multiprocessing-method": "forkserver"}
    with dask.config.set(settings | more):
        yield


def exit_code(function, *arguments, seconds=120.0):
    """Call a function of a module in a process of its own; return how that process ended."""
    process = ready().Process(target=function, args=arguments)
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"{function.__name__} takes longer than {seconds} s")
    return process.exitcode
