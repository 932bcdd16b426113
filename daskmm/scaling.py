"""Seconds of a pass on workers that are not there yet, from a few blocks measured here."""

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
from daskmm.engine.grouping import GROUPS_PER_CLUSTER_THREAD
from daskmm.engine.malloc import memory_recycled
from daskmm.engine.passes import one_blas_thread
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import mm_step
from daskmm.numerics.rows import Coordinates

# A compute on a cluster, and each of its tasks: to send, to run, to hear of (measured, one
# scheduler on a core of its own that also has workers to serve).
LATENCY_SECONDS = 0.02
TASK_SECONDS = 0.002
# Blocks that are measured.
_MEASURED_BLOCKS = 8


@dataclass(frozen=True)
class PassModel:
    """What a pass is made of.

    Each thread of a worker visits its share of the blocks, in groups of one task each; within a
    group the next block is read while this one is computed on. So, with B blocks in G groups on
    W·T threads, a thread takes

        ⌈G/WT⌉ (load + compute) + (⌈B/WT⌉ − ⌈G/WT⌉) max(load, compute),

    cores cannot do more work than there is time, B (load's processor time + compute) / cores, and
    storage gives no more than its bandwidth. A pass takes the largest of the three, the latency of
    a compute, and a share of the scheduler's time for every task.

    Attributes
    ----------
    n_blocks : int
    block_bytes : float
        Size of a block as it is read.
    load_seconds : float
        To load one block on one thread; 0 where workers hold the data.
    load_processor_seconds : float
        Of these, those that a core is busy (decoding, copying); the others wait for storage.
    compute_seconds : float
        For one hard MM step on one block, one thread.
    """

    n_blocks: int
    block_bytes: float
    load_seconds: float
    load_processor_seconds: float
    compute_seconds: float

    def persisted(self) -> Self:
        """The same table, once workers hold it."""
        return replace(self, load_seconds=0.0, load_processor_seconds=0.0)

    def seconds(
        self,
        n_workers: int,
        threads_per_worker: int = 1,
        *,
        cores: int | None = None,
        bandwidth: float = math.inf,
    ) -> float:
        """Predicted time of a pass.

        Parameters
        ----------
        n_workers, threads_per_worker : int
        cores : int, optional
            That all workers together have; one per thread by default.
        bandwidth : float
            Bytes per second that storage gives to all workers together.

        Returns
        -------
        float
            Seconds.
        """
        threads = n_workers * threads_per_worker
        groups = min(self.n_blocks, GROUPS_PER_CLUSTER_THREAD * threads)
        blocks_each = math.ceil(self.n_blocks / threads)
        groups_each = math.ceil(groups / threads)
        alone = self.load_seconds + self.compute_seconds
        behind = max(self.load_seconds, self.compute_seconds)
        one_thread = groups_each * alone + (blocks_each - groups_each) * behind
        work = self.n_blocks * (self.load_processor_seconds + self.compute_seconds)
        reading = self.n_blocks * self.block_bytes / bandwidth if self.load_seconds else 0.0
        pace = max(one_thread, work / (cores or threads), reading)
        return LATENCY_SECONDS + TASK_SECONDS * groups + pace


def measure_pass(X: Any, n_clusters: int, *, n_blocks: int = _MEASURED_BLOCKS) -> PassModel:
    """Load and compute on a few blocks of a table, one after the other, where fits would.

    On a cluster, if one is active, by one of its workers, else in this process: the two may have
    other roads to the data.

    Parameters
    ----------
    X : dask array or DataFrame, or zarr array
        Row counts may be unknown.
    n_clusters : int
        Centres of the step that is timed, taken from the rows.
    n_blocks : int
        How many blocks are timed, evenly spread; each is read once before.

    Returns
    -------
    PassModel
        Medians over the blocks that have rows.

    Raises
    ------
    ValueError
        If none of them has.
    """
    # In one piece, so that dask does not load the blocks for it.
    measured = functools.partial(_measured, row_blocks(as_dask_array(X)), n_clusters, n_blocks)
    found: PassModel = dask.delayed(measured, pure=False)().compute()
    return found


def _measured(blocks: RowBlocks, n_clusters: int, n_blocks: int) -> PassModel:
    count = blocks.layout.n_blocks
    chosen = np.unique(np.linspace(0, count - 1, min(n_blocks, count)).astype(int))
    found = []
    with memory_recycled(), one_blas_thread(), dask.config.set(scheduler="sync"):
        # The first time compiles, opens files, and asks the system for memory.
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
    """A block, and the seconds and processor seconds that it took."""
    began, busy = time.perf_counter(), time.process_time()
    rows = blocks.parts[number].compute()
    wall, processor = time.perf_counter() - began, time.process_time() - busy
    position = Position(number, 0, False, (None, blocks.layout.n_features))
    return checked_rows(rows, position), wall, min(wall, processor)


def _step_seconds(rows: NDArray, n_clusters: int) -> float:
    """Of a hard step from centres among the rows."""
    rows = rows.astype(float_dtype(rows.dtype), copy=False)
    p = rows.shape[1]
    centers = rows[np.linspace(0, len(rows) - 1, n_clusters).astype(int)].astype(np.float64)
    shift = Coordinates(centers.mean(axis=0), np.ones(p))
    state = CenterState(shift.to_model(centers), -math.inf)
    position = Position(0, 0, False, (None, p))
    began = time.perf_counter()
    mm_step(rows, None, position, shift, (state,))
    return time.perf_counter() - began
