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
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from daskmm.blocks import RowBlocks, needs_row_counts, with_weights

# Records merged by one task.
SPLIT_EVERY = 16


class Position(NamedTuple):
    """Where a block stands: its number, and the global index of its first row, where known."""

    block: int
    start: int
    known: bool = True

    def of_row(self, row: int) -> str:
        """A row of the block in words, for messages."""
        place = f"block {self.block}, row {row} of the block"
        return f"{place} (row {self.start + row} of the data)" if self.known else place


def positions(rows: Sequence[int] | None, n_blocks: int) -> list[Position]:
    """Position of each block, given the rows of each where they are known."""
    if rows is None:
        return [Position(block, 0, known=False) for block in range(n_blocks)]
    starts = np.cumsum([0, *rows])
    return [Position(block, int(starts[block])) for block in range(n_blocks)]


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
        jobs = [(kernel, *arguments) for arguments in self._arguments()]
        return tree_reduce(_visit_block, jobs, shared, self.blocks.layout.lazy, kernel.__name__)

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

    def _arguments(self) -> Iterator[tuple[Any, Any, Position]]:
        blocks = self.blocks
        weights = blocks.weights or (None,) * len(blocks.parts)
        places = positions(blocks.layout.rows, len(blocks.parts))
        return zip(blocks.parts, weights, places, strict=True)


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
        Arguments of all jobs; sent once.
    lazy : bool
        Whether to run on the active dask scheduler, in one compute, or on threads here.
    name : str
        Of the tasks, as dask's dashboard shows them.
    """
    with one_blas_thread():
        if lazy:
            return _reduce_lazy(kernel, arguments, shared, f"daskmm-{name.strip('_')}")
        jobs = [functools.partial(kernel, *own, *shared) for own in arguments]
        # One after the other as they come, so that few records are alive at once.
        return merge(run_on_threads(jobs))


def _reduce_lazy(
    kernel: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    shared: tuple[Any, ...],
    name: str,
) -> Any:
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


def _visit_block(
    kernel: Callable[..., Any], rows: Any, weights: Any, position: Position, *shared: Any
) -> Any:
    """A kernel on one block, whose rows and weights are known to match."""
    if not isinstance(rows, np.ndarray):
        raise TypeError(
            f"X must have numpy blocks; block {position.block} is a {type(rows).__name__}."
        )
    if weights is not None:
        weights = checked_weights(weights, len(rows), position)
    return kernel(rows, weights, position, *shared)


def checked_weights(weights: Any, n_rows: int, position: Position) -> NDArray[np.float64]:
    """Sample weights of one block as float64.

    Raises
    ------
    ValueError
        If they are not numbers, finite and not negative, one per row.
    """
    where = f"block {position.block}"
    values = np.asarray(weights)
    if values.dtype.kind not in "fiubO":
        raise ValueError(f"sample_weight has dtype {values.dtype}, which is not numeric ({where}).")
    if values.shape != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {values.shape} where X has {n_rows} rows ({where})."
        )
    try:
        values = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must be numbers ({where}): {error}") from error
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"sample_weight must be finite and not negative; it is {values[row]} in "
            f"{position.of_row(row)}. Negative values in data passed to `sample_weight`."
        )
    return values


def _block_length(rows: Any, weights: Any, position: Position) -> list[int]:
    return [len(rows)]


def _groups(records: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(records), SPLIT_EVERY):
        yield records[start : start + SPLIT_EVERY]


def _unique() -> str:
    return uuid.uuid4().hex
