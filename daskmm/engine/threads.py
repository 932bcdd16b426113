"""Visit blocks on threads of this process, while BLAS uses one thread."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from threadpoolctl import ThreadpoolController

from daskmm._dask import cpu_count


def run_on_threads(calls: Sequence[Callable[[], Any]]) -> Iterator[Any]:
    """Yield the results of some calls, in order, from as many threads as there are cores."""
    if len(calls) <= 1:
        yield from (call() for call in calls)
        return
    with ThreadPoolExecutor(min(cpu_count(), len(calls))) as pool:
        yield from pool.map(operator.call, calls)


class _OneBlasThread:
    """Limits BLAS to one thread while any thread is inside.

    The limit holds for the process: the first thread to enter sets it, the last to leave lifts it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    @functools.cached_property
    def _threadpools(self) -> ThreadpoolController:
        return ThreadpoolController()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = self._threadpools.limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


_ONE_BLAS_THREAD = _OneBlasThread()


def one_blas_thread() -> _OneBlasThread:
    """Limit BLAS to one thread within a context, since blocks already occupy all cores."""
    return _ONE_BLAS_THREAD
