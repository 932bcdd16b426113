"""One pass: map every block to a record and tree-reduce the records, in block order."""

from __future__ import annotations

import functools
import operator
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.system import CPU_COUNT
from threadpoolctl import ThreadpoolController

from daskmm.blocks import RowBlocks

# Records merged by one task.
SPLIT_EVERY = 16


class Position(NamedTuple):
    """Where a block stands: its number, and the global index of its first row."""

    block: int
    start: int


class Passes:
    """Sweeps over the blocks of one table, counted.

    Parameters
    ----------
    blocks : RowBlocks

    Attributes
    ----------
    blocks : RowBlocks
    n_passes : int
        Sweeps so far; each loaded every block once.
    """

    def __init__(self, blocks: RowBlocks) -> None:
        self.blocks = blocks
        self.n_passes = 0

    def reduce(self, kernel: Callable[..., Any], *shared: Any) -> Any:
        """Sum of ``kernel(rows, weights, position, *shared)`` over all blocks.

        Blocks in memory are visited by threads of this process. Lazy ones go to the active dask
        scheduler in one compute, with `shared` sent once.

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
        self.n_passes += 1
        with one_blas_thread():
            if self.blocks.lazy:
                return self._reduce_lazy(kernel, shared)
            return self._reduce_in_memory(kernel, shared)

    def count_rows(self) -> None:
        """Learn the rows of each block, where they are unknown, by a pass of its own."""
        if self.blocks.rows is None:
            rows = self.reduce(_block_length)
            self.blocks = replace(self.blocks, rows=tuple(rows))

    def _arguments(self) -> Iterator[tuple[Any, Any, Position]]:
        blocks = self.blocks
        weights = blocks.weights or (None,) * len(blocks.parts)
        positions = map(Position, range(len(blocks.parts)), blocks.starts)
        return zip(blocks.parts, weights, positions, strict=True)

    def _reduce_in_memory(self, kernel: Callable[..., Any], shared: tuple[Any, ...]) -> Any:
        jobs = [functools.partial(kernel, *arguments, *shared) for arguments in self._arguments()]
        records: Sequence[Any] = run_on_threads(jobs)
        while len(records) > 1:
            records = [merge(group) for group in _groups(records)]
        return records[0]

    def _reduce_lazy(self, kernel: Callable[..., Any], shared: tuple[Any, ...]) -> Any:
        name = f"daskmm-{kernel.__name__.strip('_')}"
        state = dask.delayed(shared, name=f"{name}-state-{_unique()}", traverse=False)
        task = dask.delayed(_visit, pure=False)
        records = [
            task(kernel, part, weights, position, state, dask_key_name=f"{name}-{_unique()}")
            for part, weights, position in self._arguments()
        ]
        combine = dask.delayed(merge, pure=False)
        while len(records) > 1:
            records = [
                combine(group, dask_key_name=f"{name}-merge-{_unique()}")
                for group in _groups(records)
            ]
        return records[0].compute()


def merge(records: Sequence[Any]) -> Any:
    """Sum of records, first to last."""
    return functools.reduce(operator.add, records)


def run_on_threads(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results of some jobs, in order, on as many threads as there are cores."""
    if len(jobs) == 1:
        return [jobs[0]()]
    with ThreadPoolExecutor(min(CPU_COUNT, len(jobs))) as pool:
        return list(pool.map(operator.call, jobs))


@functools.cache
def _threadpools() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread while blocks run on threads; the two would compete for cores."""
    with _threadpools().limit(limits=1, user_api="blas"):
        yield


def _visit(
    kernel: Callable[..., Any], rows: Any, weights: Any, position: Position, shared: tuple[Any, ...]
) -> Any:
    return kernel(np.asarray(rows), weights, position, *shared)


def _block_length(rows: Any, weights: Any, position: Position) -> list[int]:
    return [len(rows)]


def _groups(records: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(records), SPLIT_EVERY):
        yield records[start : start + SPLIT_EVERY]


def _unique() -> str:
    return uuid.uuid4().hex
