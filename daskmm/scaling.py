"""Predict the time of a pass on any number of workers from a few blocks measured here."""

from __future__ import annotations

import functools
import math
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any, Self

import dask
import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Position, RowBlocks, as_dask_array, float_dtype, row_blocks
from daskmm.data.validation import checked_rows
from daskmm.engine.malloc import memory_recycled
from daskmm.engine.passes import one_blas_thread
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import block_sums
from daskmm.numerics.rows import Coordinates

# Overhead of a computation on a cluster, and of each of its tasks (measured with a hundred workers,
# tests/benchmarks/hundred_workers.py).
LATENCY_SECONDS = 0.02
TASK_SECONDS = 0.001
# Number of blocks that are measured.
_MEASURED_BLOCKS = 8


@dataclass(frozen=True)
class PassModel:
    """Model of the time of a pass.

    A worker visits its share of the blocks in one task on all its threads, and each thread reads
    the next block while it computes on the present one. With B blocks on W workers of T threads, a
    thread takes

        load + compute + (⌈B/WT⌉ − 1) max(load, compute),

    the cores take at least B (load's processor time + compute) / cores, and storage takes
    bytes / bandwidth. A pass takes the largest of the three, plus the latency of a computation and
    the scheduler's time for the task of each worker.

    Attributes
    ----------
    n_blocks : int
        Number of blocks of the table.
    block_bytes : float
        Size in bytes of a block as it is read.
    load_seconds : float
        Time to load one block on one thread; 0 if workers hold the data.
    load_processor_seconds : float
        The part of `load_seconds` in which a core is busy (decoding, copying), not waiting for
        storage.
    compute_seconds : float
        Time of one hard MM step on one block on one thread.
    """

    n_blocks: int
    block_bytes: float
    load_seconds: float
    load_processor_seconds: float
    compute_seconds: float

    def persisted(self) -> Self:
        """Return the model for the same table when workers hold it in memory."""
        return replace(self, load_seconds=0.0, load_processor_seconds=0.0)

    def seconds(
        self,
        n_workers: int,
        threads_per_worker: int = 1,
        *,
        cores: int | None = None,
        bandwidth: float = math.inf,
    ) -> float:
        """Predict the time of a pass.

        Parameters
        ----------
        n_workers, threads_per_worker : int
            Size of the cluster.
        cores : int, optional
            Number of cores of all workers together; one per thread by default.
        bandwidth : float
            Bytes per second that storage delivers to all workers together.

        Returns
        -------
        float
            Predicted seconds.
        """
        threads = n_workers * threads_per_worker
        blocks_each = math.ceil(self.n_blocks / threads)
        behind = max(self.load_seconds, self.compute_seconds)
        one_thread = self.load_seconds + self.compute_seconds + (blocks_each - 1) * behind
        work = self.n_blocks * (self.load_processor_seconds + self.compute_seconds)
        reading = self.n_blocks * self.block_bytes / bandwidth if self.load_seconds else 0.0
        pace = max(one_thread, work / (cores or threads), reading)
        return LATENCY_SECONDS + TASK_SECONDS * min(n_workers, self.n_blocks) + pace


def measure_pass(X: Any, n_clusters: int, *, n_blocks: int = _MEASURED_BLOCKS) -> PassModel:
    """Measure how long loading and computing take for a few blocks of a table, one by one.

    If a cluster is active, one of its workers measures, since its access to the data may differ
    from that of this process.

    Parameters
    ----------
    X : dask array or DataFrame, or zarr array
        The table; its number of rows may be unknown.
    n_clusters : int
        Number of centres in the step that is timed; rows of the block serve as centres.
    n_blocks : int
        Number of blocks to time, spread evenly; each is read once before it is timed.

    Returns
    -------
    PassModel
        Model with the medians over the blocks that have rows.

    Raises
    ------
    ValueError
        If none of these blocks has rows.
    """
    # The partial hides the blocks: dask would compute them if it found them among the arguments.
    measured = functools.partial(_measured, row_blocks(as_dask_array(X)), n_clusters, n_blocks)
    found: PassModel = dask.delayed(measured, pure=False)().compute()
    return found


def _measured(blocks: RowBlocks, n_clusters: int, n_blocks: int) -> PassModel:
    count = blocks.layout.n_blocks
    chosen = np.unique(np.linspace(0, count - 1, min(n_blocks, count)).astype(int))
    found = []
    with memory_recycled(), one_blas_thread(), dask.config.set(scheduler="sync"):
        # Each block is read twice, since the first time also opens files and gets memory from the
        # system.
        for number in (*chosen, *chosen):
            rows, wall, processor = _loaded(blocks, int(number))
            if not len(rows):
                continue
            found.append((rows.nbytes, wall, processor, _step_seconds(rows, n_clusters)))
    if not found:
        raise ValueError("X has no rows in any of the blocks that were measured.")
    found = found[len(found) // 2 :]
    size, wall, processor, compute = (
        statistics.median(values) for values in zip(*found, strict=True)
    )
    return PassModel(count, size, wall, processor, compute)


def _loaded(blocks: RowBlocks, number: int) -> tuple[NDArray, float, float]:
    """Load a block; return it with the seconds and processor seconds that this took."""
    began, busy = time.perf_counter(), time.process_time()
    rows = blocks.parts[number].compute()
    wall, processor = time.perf_counter() - began, time.process_time() - busy
    position = Position(number, 0, False, (None, blocks.layout.n_features))
    return checked_rows(rows, position), wall, min(wall, processor)


def _step_seconds(rows: NDArray, n_clusters: int) -> float:
    """Return the seconds of a hard step from centres among the rows."""
    rows = rows.astype(float_dtype(rows.dtype), copy=False)
    p = rows.shape[1]
    centers = rows[np.linspace(0, len(rows) - 1, n_clusters).astype(int)].astype(np.float64)
    shift = Coordinates(centers.mean(axis=0), np.ones(p))
    state = CenterState(shift.to_model(centers), -math.inf)
    position = Position(0, 0, False, (None, p))
    began = time.perf_counter()
    block_sums(rows, None, position, shift, (state,))
    return time.perf_counter() - began
