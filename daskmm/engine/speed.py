"""Measure speeds: of a call that all threads of this machine make at once, and of loading."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import da, dask
from daskmm.data.blocks import Layout, RowBlocks, row_blocks
from daskmm.engine.clients import computed
from daskmm.engine.malloc import memory_recycled
from daskmm.engine.passes import cheaper_loaded_once
from daskmm.engine.threads import one_blas_thread

# Shortest time of a measurement; it covers several rounds, as other processes may use the cores.
_MEASURED_SECONDS = 0.03


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
    return n_bytes * layout.byte_seconds / min(threads, layout.n_blocks)


def with_measured_loading(table: NDArray | da.Array, layout: Layout) -> Layout:
    """Load a block of a lazy table twice; return the layout with the seconds that a byte takes.

    The first time is not counted, since it opens files and imports packages. If a cluster is
    active, one of its workers loads, since its access to the data may differ from that of this
    process.
    """
    if not layout.lazy:
        return layout
    # The partial hides the blocks: dask would compute them if it found them among the arguments.
    load = functools.partial(_byte_seconds, row_blocks(table), layout.bytes_per_row)
    [seconds] = computed(dask.delayed(load, pure=False)())
    return replace(layout, byte_seconds=seconds)


def _byte_seconds(blocks: RowBlocks, bytes_per_row: int) -> float:
    part = blocks.parts[len(blocks.parts) // 2]
    with memory_recycled(), one_blas_thread(), dask.config.set(scheduler="sync"):
        part.compute()
        began = time.perf_counter()
        rows = part.compute()
        taken = time.perf_counter() - began
    return taken / max(1, rows.shape[0] * bytes_per_row)
