"""One pass: map every block to a record and tree-reduce the records, in block order."""

from __future__ import annotations

import functools
import operator
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        return tree_reduce(kernel, list(self._arguments()), shared, self.blocks.lazy)

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


def tree_reduce(
    kernel: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    shared: tuple[Any, ...],
    lazy: bool,
) -> Any:
    """Sum of ``kernel(*own, *shared)`` over the jobs' own arguments, merged in order.

    Parameters
    ----------
    kernel : callable
    arguments : sequence of tuple
        Of each job; may hold Delayed where `lazy`.
    shared : tuple
        Arguments of all jobs; sent once.
    lazy : bool
        Whether to run on the active dask scheduler, in one compute, or on threads here.
    """
    with one_blas_thread():
        if lazy:
            return _reduce_lazy(kernel, arguments, shared)
        jobs = [functools.partial(kernel, *own, *shared) for own in arguments]
        # One after the other as they come, so that few records are alive at once.
        return merge(run_on_threads(jobs))


def _reduce_lazy(
    kernel: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], shared: tuple[Any, ...]
) -> Any:
    name = f"daskmm-{kernel.__name__.strip('_')}"
    state = dask.delayed(shared, name=f"{name}-state-{_unique()}", traverse=False)
    task, combine = dask.delayed(_visit, pure=False), dask.delayed(merge, pure=False)
    records = [task(kernel, state, *own, dask_key_name=f"{name}-{_unique()}") for own in arguments]
    while len(records) > 1:
        records = [
            combine(group, dask_key_name=f"{name}-merge-{_unique()}") for group in _groups(records)
        ]
    return records[0].compute()


def merge(records: Iterable[Any]) -> Any:
    """Sum of records, first to last."""
    return functools.reduce(operator.add, records)


def run_on_threads(jobs: Sequence[Callable[[], Any]]) -> Iterator[Any]:
    """Results of some jobs, in order, from as many threads as there are cores."""
    if len(jobs) == 1:
        yield jobs[0]()
        return
    with ThreadPoolExecutor(min(CPU_COUNT, len(jobs))) as pool:
        yield from pool.map(operator.call, jobs)


@functools.cache
def _threadpools() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread while blocks run on threads; the two would compete for cores."""
    with _threadpools().limit(limits=1, user_api="blas"):
        yield


def _visit(kernel: Callable[..., Any], shared: tuple[Any, ...], *own: Any) -> Any:
    return kernel(*own, *shared)


def _block_length(rows: Any, weights: Any, position: Position) -> list[int]:
    return [len(rows)]


def _groups(records: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(records), SPLIT_EVERY):
        yield records[start : start + SPLIT_EVERY]


def _unique() -> str:
    return uuid.uuid4().hex
