"""One pass: map every block to a record and tree-reduce the records, in block order."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
from dask.system import CPU_COUNT
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from daskmm.data.blocks import (
    Position,
    RowBlocks,
    is_lazy,
    needs_row_counts,
    positions,
    refuse_masked,
    row_blocks,
    with_weights,
)
from daskmm.data.validation import checked_rows, checked_weights
from daskmm.engine.distributed import ATTEMPTS, LostFuturesError
from daskmm.engine.graph import JobGraph
from daskmm.engine.grouping import merge
from daskmm.engine.persisting import Persist, held
from daskmm.engine.worker_task import SPLIT_EVERY

__all__ = [
    "SPLIT_EVERY",
    "Passes",
    "Position",
    "checked_rows",
    "checked_weights",
    "merge",
    "one_blas_thread",
    "positions",
    "run_on_threads",
    "tree_reduce",
]


class Passes:
    """Sweeps over the blocks of one table, counted.

    Parameters
    ----------
    blocks : RowBlocks

    Attributes
    ----------
    blocks : RowBlocks
    """

    def __init__(self, blocks: RowBlocks) -> None:
        self.blocks = blocks
        self._n_passes = 0
        self._graph_of: tuple[RowBlocks, JobGraph] | None = None
        # What is streamed where blocks are kept in memory.
        self._streamed: RowBlocks | None = None

    @property
    def n_passes(self) -> int:
        """Number of passes so far; each loaded every block once."""
        return self._n_passes

    def add(self, n_passes: int) -> None:
        """Count passes made otherwise: by the run that is resumed, or without `reduce`."""
        self._n_passes += n_passes

    def reduce(self, kernel: Callable[..., Any], *shared: Any) -> Any:
        """Sum of ``kernel(rows, weights, position, *shared)`` over all blocks.

        Blocks in memory are visited by threads of this process. Lazy ones go to the active dask
        scheduler in one compute, a few tasks that load the blocks one by one.

        Parameters
        ----------
        kernel : callable
            Pure; returns a record with ``+``, also for a block without rows.
        *shared
            The same for every block.

        Returns
        -------
        record
            Merged in block order: the same blocks give the same bits.
        """
        self._n_passes += 1
        visit = functools.partial(_visit_block, kernel)
        if not self.blocks.layout.lazy:
            return _reduce_here(visit, self._arguments(), shared)
        name = _task_name(kernel.__name__)
        with one_blas_thread():
            for _ in range(ATTEMPTS - 1):
                try:
                    return self._graph().reduce(visit, shared, name)
                except LostFuturesError:
                    if self._streamed is None:
                        raise  # not ours to keep
                    # The cluster was restarted, and has forgotten what it kept.
                    kept = replace(self._streamed, layout=self.blocks.layout)
                    self.blocks = held(kept, True)
            return self._graph().reduce(visit, shared, name)

    def count_rows(self) -> None:
        """Learn the rows of each block, where they are unknown, by a pass of its own."""
        if self.blocks.layout.rows is None:
            rows = tuple(self.reduce(_block_length))
            self.blocks = replace(self.blocks, layout=replace(self.blocks.layout, rows=rows))

    def weigh(self, sample_weight: Any) -> None:
        """Give every row a sample weight from now on.

        Rows are counted first if they must be to cut the weights.

        Parameters
        ----------
        sample_weight : ndarray, dask Array or dask Series of shape (n_rows,), or None

        Raises
        ------
        ValueError
            If the weights do not match the rows.
        """
        if sample_weight is None:
            return
        if needs_row_counts(self.blocks, sample_weight):
            self.count_rows()
        self.blocks = with_weights(self.blocks, sample_weight)

    @contextmanager
    def persisted(self, persist: Persist) -> Iterator[None]:
        """Keep the blocks, and their weights, in memory for a while.

        Within, sweeps visit the blocks that are kept: on a cluster by its workers, else by this
        process. What is kept is let go at the end, and blocks are streamed again. To be entered
        once the rows have their weights.

        Parameters
        ----------
        persist : bool or "auto"
            "auto" keeps them when they take less than a third of the memory there is. Rows that
            are unknown are counted for that, by a pass of its own.
        """
        if persist == "auto" and self.blocks.layout.lazy:
            self.count_rows()
        streamed = self.blocks
        with one_blas_thread():
            self.blocks = held(streamed, persist)
        if self.blocks is not streamed:
            self._streamed = streamed
        try:
            yield
        finally:
            layout = self.blocks.layout
            self.blocks, self._graph_of = replace(streamed, layout=layout), None
            self._streamed = None

    def _graph(self) -> JobGraph:
        """Graph of the blocks as they are now."""
        if self._graph_of is None or self._graph_of[0] is not self.blocks:
            self._graph_of = self.blocks, JobGraph(self._arguments(), self.blocks.table)
        return self._graph_of[1]

    def _arguments(self) -> list[tuple[Any, Any, Position]]:
        blocks = self.blocks
        places = positions(blocks.layout)
        return [(*own, place) for own, place in zip(blocks.pairs, places, strict=True)]


def tree_reduce(
    kernel: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    shared: tuple[Any, ...],
    lazy: bool,
    name: str,
) -> Any:
    """Sum of ``kernel(*own, *shared)`` over the jobs' own arguments, merged in order.

    Parameters
    ----------
    kernel : callable
    arguments : sequence of tuple
        Of each job; may hold Delayed where `lazy`.
    shared : tuple
        Arguments of all jobs.
    lazy : bool
        Whether to run on the active dask scheduler, in one compute, or on threads here.
    name : str
        Of the tasks, as dask's dashboard shows them.
    """
    if not lazy:
        return _reduce_here(kernel, arguments, shared)
    with one_blas_thread():
        return JobGraph(arguments).reduce(kernel, shared, _task_name(name))


def _reduce_here(
    kernel: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], shared: tuple[Any, ...]
) -> Any:
    jobs = [functools.partial(kernel, *own, *shared) for own in arguments]
    with one_blas_thread():
        # One after the other as they come, so that few records are alive at once.
        return merge(run_on_threads(jobs))


def _task_name(name: str) -> str:
    return name.strip("_").replace("_", "-")


def run_on_threads(jobs: Sequence[Callable[[], Any]]) -> Iterator[Any]:
    """Results of some jobs, in order, from as many threads as there are cores."""
    if len(jobs) == 1:
        yield jobs[0]()
        return
    with ThreadPoolExecutor(min(CPU_COUNT, len(jobs))) as pool:
        yield from pool.map(operator.call, jobs)


class _OneBlasThread:
    """BLAS limited to one thread while anybody is within.

    The limit is the process': whoever comes in first sets it, and the last one lifts it.
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
    """Keep BLAS to one thread while blocks run on threads; the two would compete for cores."""
    return _ONE_BLAS_THREAD


def _visit_block(
    kernel: Callable[..., Any], rows: Any, weights: Any, position: Position, *shared: Any
) -> Any:
    """A kernel on one block, whose rows and weights are known to match."""
    rows = checked_rows(rows, position)
    if weights is not None:
        weights = checked_weights(weights, len(rows), position)
    return kernel(rows, weights, position, *shared)


def _block_length(rows: Any, weights: Any, position: Position) -> list[int]:
    return [len(rows)]


def weighted_passes(table: NDArray | da.Array, sample_weight: Any) -> Passes:
    """Passes over a table whose rows have given sample weights.

    Raises
    ------
    ValueError
        If the weights do not match the rows; their values are tested as the passes meet them.
    """
    passes = Passes(row_blocks(table))
    if isinstance(table, da.Array) and is_lazy(sample_weight):
        passes.weigh(sample_weight)
    elif sample_weight is not None:
        passes.weigh(_weights_in_memory(sample_weight, passes))
    return passes


def _weights_in_memory(sample_weight: Any, passes: Passes) -> NDArray:
    refuse_masked(sample_weight, "sample_weight")
    weights = np.asarray(sample_weight)
    if weights.ndim == 0:
        passes.count_rows()
        weights = np.full(passes.blocks.layout.n_rows or 0, weights)
    if weights.ndim != 1:
        raise ValueError(
            f"sample_weight must be 1D, got {weights.ndim}D: Sample weights must be 1D"
        )
    n_rows = passes.blocks.layout.n_rows
    if n_rows is not None and len(weights) != n_rows:
        raise ValueError(f"sample_weight has {len(weights)} entries, X has {n_rows} rows.")
    return weights
