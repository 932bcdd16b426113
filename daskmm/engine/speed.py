"""Measure the speed of this machine: the seconds of a call that all threads make at once."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from daskmm.data.blocks import Layout
from daskmm.engine.passes import cheaper_loaded_once, one_blas_thread

# Shortest time of a measurement; it covers several rounds, as other processes may use the cores.
_MEASURED_SECONDS = 0.03
# Seconds that a thread takes to load and decode a byte.
_LOAD_SECONDS = 1e-9


def fastest(call: Callable[[], object], threads: int = 1) -> float:
    """Return the processor seconds per thread of the best round of a call that all threads make."""

    def timed() -> float:
        began = time.thread_time()
        call()
        return time.thread_time() - began

    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        call()  # the first call imports modules, and gets memory from the system
        rounds: list[float] = []
        while len(rounds) < 2 or sum(rounds) < _MEASURED_SECONDS:
            calls = [pool.submit(timed) for _ in range(threads)]
            rounds.append(sum(done.result() for done in calls) / threads + 1e-6)
    return min(rounds)


@functools.cache
def product_seconds() -> float:
    """Measure the seconds that a thread takes for a multiplication in a product of matrices."""
    a = np.random.default_rng(0).random((400, 400))
    return fastest(lambda: a @ a) / 400**3


def loading_seconds(layout: Layout, threads: int) -> float:
    """Return the seconds of loading all blocks; 0 if passes do not load them."""
    n_bytes = (layout.n_rows or 0) * layout.bytes_per_row
    if not layout.lazy or cheaper_loaded_once(layout, n_bytes):
        return 0.0
    return n_bytes * _LOAD_SECONDS / min(threads, layout.n_blocks)
