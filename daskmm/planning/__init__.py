"""Predict what a fit will cost: seconds, passes, bytes, memory per worker, tasks."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from daskmm.data.blocks import Layout, visited_together
from daskmm.data.names import counted
from daskmm.engine.first_pass import SampleSizes, sample_size, sample_sizes
from daskmm.engine.grouping import GROUPS_PER_THREAD
from daskmm.engine.merge_tree import SPLIT_EVERY
from daskmm.engine.passes import cheaper_loaded_once
from daskmm.engine.resources import Worker, smallest_worker, this_process
from daskmm.gram.build import TILE_ROWS
from daskmm.gram.costs import GramCosts
from daskmm.kmeans.bounds import bounds_bytes
from daskmm.kmeans.costs import CenterCosts
from daskmm.kmeans.method import Method, most_polished
from daskmm.kmeans.sums import FARTHEST
from daskmm.kmeans.trials import sample_rows
from daskmm.mean_shift.costs import BlurringCosts
from daskmm.mixture.costs import MixtureCosts
from daskmm.mixture.settings import Settings, wanted_rows
from daskmm.mm.stages import Repeat, Stage, costs_of
from daskmm.numerics.mean_shift import TILE
from daskmm.numerics.rows import TILE_BYTES
from daskmm.numerics.sparse_rows import FEW_BYTES
from daskmm.storage.readable import readable_bytes, readable_seconds

# Bytes of the interpreter after a small fit. Measured: 180 MB with the packages that daskmm needs;
# 255 to 265 MB if pandas, pyarrow and xarray are installed, because dask imports them; 370 MB in a
# worker of a cluster with the package sparse, which imports numba. Plans report memory with the
# first constant, and refuse fits by the second, smaller one.
_INTERPRETER_BYTES = 350 << 20
_LEAST_INTERPRETER_BYTES = 260 << 20
# Number of arrays, each as large as all positions, that one iteration of mean shift holds besides
# two sums per thread: rows, positions and their sums before and after, tiles and merging (measured:
# 12 to 16).
_POSITION_COPIES = 20
_LEAST_POSITION_COPIES = 12
# Number of blocks in memory per thread: chunks being decoded, the block made from them, and a block
# that is read ahead (measured with blocks of 80 MB, which the allocator returns at once).
_BLOCK_COPIES = 3
# Number of records per thread that wait to be merged with their neighbours (simulated, up to 4000
# blocks).
_WAITING = 24
# Number of freed blocks that the allocator keeps, and bounds of their bytes per thread (measured
# over long fits with blocks of .4 to 20 MB).
_KEPT_COPIES = 6
_KEPT_BYTES = (56 << 20, 112 << 20)
# Seconds that a pass takes to open each block (measured with threads and with two workers).
_OPENING_SECONDS = 1e-4
# Temporary arrays of sparse rows, in units of their block; sparse rows are not processed in small
# tiles.
_SPARSE_COPIES = 5
# Number of copies of a sparse sample during the search for features that other features predict: in
# the model's coordinates, without some features, and in float32 as a whole and by halves.
_SCREENING_COPIES = 4
# Number of copies of the sample's rows while a mixture is fitted to it: standardised rows, rows in
# the input's units, and rows weighted by cluster or by component.
_MIXTURE_COPIES = 6
# Fewest blocks in memory per thread.
_LEAST_COPIES = 2


@dataclass(frozen=True, repr=False)
class Plan:
    """Predicted cost of a fit.

    Attributes
    ----------
    n_rows : int or None
        Number of rows; None if unknown, in which case one more pass counts them.
    n_features, n_blocks : int
        Number of features, and of the blocks in which rows are read.
    n_starts : int
        Number of starts; each pass advances all of them.
    bytes_per_pass : int or None
        Size of the data as they are read.
    largest_block_bytes : int or None
        Bytes of the largest block; None if unknown.
    passes : int
        Typical number of sweeps over the data, first pass and scoring included.
    max_passes : int
        Largest possible number of sweeps.
    peak_bytes_per_worker : int or None
        Peak memory of a worker process (this process, for local schedulers) with its number of
        threads, including the interpreter.
    tasks_per_pass : int
        Number of tasks of each pass, with the threads of this process.
    gram_bytes : int or None
        Size of the Gram matrix as it is kept (on disk: upper triangle, float32); None if it is
        not kept.
    worker_memory_bytes : int or None
        Memory limit of a worker process; None if unlimited or unknown.
    visits_per_pass : int or None
        Number of calls of each pass; there are fewer calls than blocks if small blocks are visited
        together. None if passes are not over rows.
    read_once : bool
        Whether this process keeps the table, because it is small and loading it again costs more.
    stages : dict of str to float, or None
        Typical seconds of each stage, in order, by the measured speed of this machine. None if
        the number of rows or of clusters is unknown.
    """

    n_rows: int | None
    n_features: int
    n_blocks: int
    n_starts: int
    bytes_per_pass: int | None
    largest_block_bytes: int | None
    passes: int
    max_passes: int
    peak_bytes_per_worker: int | None
    tasks_per_pass: int
    gram_bytes: int | None = None
    worker_memory_bytes: int | None = None
    visits_per_pass: int | None = None
    read_once: bool = False
    stages: dict[str, float] | None = None

    @property
    def seconds(self) -> float | None:
        """Typical seconds of the whole fit, if known."""
        return None if self.stages is None else sum(self.stages.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as plain numbers, ready for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        rows = "an unknown number of" if self.n_rows is None else f"{self.n_rows:,}"
        gram = (
            [] if self.gram_bytes is None else [f"Gram matrix: {readable_bytes(self.gram_bytes)}"]
        )
        return "\n".join(
            [
                f"{rows} rows × {counted(self.n_features, 'feature')} in "
                f"{counted(self.n_blocks, 'block')}",
                f"passes over the data: about {self.passes} (max_iter allows {self.max_passes})",
                f"starts, which take their steps in the same passes: {self.n_starts}",
                *self._about_bytes(),
                f"tasks per pass: {self.tasks_per_pass:,}",
                *gram,
                *self._about_time(),
                *self._about_small_blocks(),
            ]
        )

    def _about_bytes(self) -> list[str]:
        if self.n_rows is None:
            return [
                "bytes and memory are unknown, because the number of rows is unknown: "
                "X.to_dask_array(lengths=True) counts rows, and 'daskmm plan' estimates those of "
                "csv files, and of gzip files of them, from their size"
            ]
        return [
            f"read per pass: {readable_bytes(self.bytes_per_pass)}"
            f" (largest block {readable_bytes(self.largest_block_bytes)})",
            f"peak memory per worker: {readable_bytes(self.peak_bytes_per_worker)}"
            f" (of {readable_bytes(self.worker_memory_bytes)}{self._about_memory()})",
        ]

    def _about_memory(self) -> str:
        peak, memory = self.peak_bytes_per_worker, self.worker_memory_bytes
        scarce = peak is not None and memory is not None and peak > memory
        return ", which may not suffice" if scarce else ""

    def _about_time(self) -> list[str]:
        if self.stages is None and self.n_rows is None:
            return []
        if self.stages is None:
            return [
                "time is unknown, because the number of clusters is: a sample decides about the "
                "number, and the time grows with it"
            ]
        parts = [f"{name} {readable_seconds(taken)}" for name, taken in self.stages.items()]
        total = readable_seconds(sum(self.stages.values()))
        return [f"time on this machine: about {total} ({', '.join(parts)})"]

    def _about_small_blocks(self) -> list[str]:
        if self.read_once:
            return ["read once: the table is small, and this process keeps it"]
        if self.visits_per_pass in (None, self.n_blocks):
            return []
        seconds = _OPENING_SECONDS * self.n_blocks
        return [
            f"small blocks: opening them takes about {readable_seconds(seconds)} of each pass. "
            "Rechunk X to about 16 MB per block"
        ]


def plan(
    layout: Layout,
    method: Method,
    stages: Iterable[Stage[Any] | Repeat[Any]],
    *,
    wanted: int | None = None,
    timed: bool = False,
) -> Plan:
    """Predict the cost of a fit of centres.

    The costs of the stages are added. `method` are the choices of the fit, with the expected
    schedule, and `wanted` is the number of rows of the sample, if given by the user. If `timed`,
    seconds are predicted; the speed of this machine is then measured once.

    It raises ValueError if workers have too little memory for blocks or centres; the message has
    the numbers and what to change.
    """
    n_rows, worker, sizes = layout.n_rows, smallest_worker(layout.lazy), None
    if n_rows is not None:
        sizes = _sizes(layout, method, wanted)
        _refuse_centers(layout, method, wanted, worker)
    costs = CenterCosts(layout, sizes, method, worker.threads)
    summed = _summed(stages, costs, timed and sizes is not None)
    largest = _largest_block(layout, worker)
    peak = _peak_bytes(layout, largest, method, sizes, worker.threads)
    return _of_passes(layout, worker, method.n_starts, largest, peak, summed)


def _of_passes(
    layout: Layout,
    worker: Worker,
    n_starts: int,
    largest: int | None,
    peak: int | None,
    summed: tuple[int, int, dict[str, float] | None],
    together: bool = True,
) -> Plan:
    """Return the plan of a fit whose passes visit the rows, given what `_summed` returns.

    `together` says whether small blocks are visited together.
    """
    n_bytes = None if layout.n_rows is None else layout.n_rows * layout.bytes_per_row
    visits = len(visited_together(layout)) if together else None
    passes, most, seconds = summed
    return Plan(
        n_rows=layout.n_rows,
        n_features=layout.n_features,
        n_blocks=layout.n_blocks,
        n_starts=n_starts,
        bytes_per_pass=n_bytes,
        largest_block_bytes=largest,
        passes=passes,
        max_passes=most,
        peak_bytes_per_worker=peak,
        tasks_per_pass=_tasks(visits or layout.n_blocks, layout.lazy, worker.threads),
        worker_memory_bytes=worker.memory,
        visits_per_pass=visits,
        read_once=together and cheaper_loaded_once(layout, n_bytes or 0),
        stages=seconds,
    )


def _largest_block(layout: Layout, worker: Worker) -> int | None:
    """Return the bytes of the largest block, if known; raise if lazy ones do not fit a worker."""
    if layout.rows is None:
        return None
    largest = max(layout.rows) * layout.bytes_per_row
    if layout.lazy:
        _refuse_blocks(layout, largest, worker)
    return largest


def _summed(
    stages: Iterable[Stage[Any] | Repeat[Any]], costs: Any, timed: bool
) -> tuple[int, int, dict[str, float] | None]:
    """Return the typical and largest number of passes of all stages, and the seconds of each."""
    # One more pass counts the rows if their number is unknown.
    passes = most = int(costs.layout.n_rows is None)
    seconds: dict[str, float] = {}
    for name, cost in costs_of(stages, costs):
        passes, most = passes + cost.passes, most + cost.most
        if timed and cost.seconds is not None:
            seconds[name] = seconds.get(name, 0.0) + cost.seconds()
    return passes, most, seconds if timed else None


def gram_plan(
    layout: Layout,
    method: Method,
    stages: Iterable[Stage[Any] | Repeat[Any]],
    *,
    n_kernels: int,
    kept: str,
    precomputed: bool = False,
    timed: bool = False,
) -> Plan:
    """Predict the cost of a fit that sweeps over Gram matrices.

    Arguments are those of `plan`, and of `GramCosts`; starts are annealed on the Nyström features
    of the landmarks of `method`. A lazy precomputed matrix is not copied. Passes of the plan are
    sweeps over the matrices and passes over the rows.

    It raises ValueError if rows and memberships do not fit into this process; the message has the
    numbers and what to change.
    """
    here = this_process()
    costs = GramCosts(layout, method, n_kernels, kept, here.threads)
    passes, most, seconds = _summed(stages, costs, timed and bool(layout.n_rows))
    n, n_clusters, n_starts = layout.n_rows or 0, method.n_clusters, method.n_starts
    side = -(-n // TILE_ROWS)
    tile = 4 * min(n, TILE_ROWS) ** 2
    gram = {"memory": 8 * n**2, "recomputed": 0, "stored": 4 * n * (n + TILE_ROWS) // 2}[kept]
    threads = min(here.threads, max(side, 1))
    # Lazy rows are joined from the blocks, which are in memory as well.
    row_bytes = 0 if precomputed else 8 * layout.n_features * (1 + layout.lazy)
    _refuse(
        n * (row_bytes + 8 * n_clusters * n_starts),
        here,
        f"the rows, {readable_bytes(n * row_bytes)}, and the memberships of {n_starts} start(s)",
        'Take n_landmarks="auto" where there is that parameter, fewer rows, or n_init=1',
    )
    # Memory holds the rows, the memberships, products and φ of every start, and a part of the
    # products per thread.
    states = n * (row_bytes + 8 * n_clusters * n_starts * (6 * n_kernels + 2 * threads))
    # Memory holds the features, the kernel columns from which they are computed, and temporary
    # arrays of their size (measured with 60,000 and 200,000 rows).
    features = 4 * 8 * n * n_kernels * min(n, 10 * n_clusters)
    # Each thread holds a tile in float64, and the temporary arrays of the kernel function.
    working = threads * 8 * tile
    return Plan(
        n_rows=layout.n_rows,
        n_features=layout.n_features,
        n_blocks=side * (side + 1) // 2,
        n_starts=n_starts,
        bytes_per_pass=n_kernels * gram,
        largest_block_bytes=tile,
        passes=passes,
        max_passes=most,
        peak_bytes_per_worker=_INTERPRETER_BYTES
        + states
        + features
        + working
        + (n_kernels * gram if kept == "memory" else 0),
        tasks_per_pass=_tasks(side, False, here.threads),
        gram_bytes=n_kernels * gram if kept != "recomputed" else None,
        worker_memory_bytes=here.memory,
        stages=seconds,
    )


def blurring_plan(
    layout: Layout,
    stages: Iterable[Stage[Any] | Repeat[Any]],
    *,
    max_iter: int,
    n_micro_clusters: int | None,
    learns: bool,
    timed: bool = False,
) -> Plan:
    """Predict the cost of a mean shift.

    Layout, stages and `timed` are those of `plan`. `max_iter` and `n_micro_clusters` are the
    largest numbers of iterations and of micro-clusters; every row is blurred if the latter is None.
    `learns` says whether feature weights are learned. Passes of the plan are passes over the data
    and, if every row is blurred, sweeps over all pairs. Rows that have merged are left out of later
    sweeps.

    It raises ValueError if this process or a worker has too little memory; the message has the
    numbers and what to change.
    """
    worker = smallest_worker(layout.lazy)
    costs = BlurringCosts(layout, max_iter, n_micro_clusters, learns, worker.threads)
    summed = _summed(stages, costs, timed and bool(layout.n_rows))
    if n_micro_clusters is None and layout.n_rows is not None:  # smaller blocks are no remedy then
        for process in (worker, this_process()):
            _refuse_positions(layout.n_rows, layout.n_features, process)
    largest, peak = _largest_block(layout, worker), None
    if n_micro_clusters is not None:
        peak = _compressed_bytes(layout, n_micro_clusters, largest or 0, worker)
    elif largest is not None:
        peak = _blurred_bytes(layout, largest, worker)
    together = n_micro_clusters is not None
    return _of_passes(layout, worker, 1, largest, peak, summed, together)


def mixture_plan(
    layout: Layout,
    settings: Settings,
    stages: Iterable[Stage[Any] | Repeat[Any]],
    *,
    timed: bool = False,
) -> Plan:
    """Predict the cost of a fit of a Gaussian mixture; see `plan`.

    It raises ValueError if workers have too little memory; the message has the numbers and what to
    change.
    """
    worker, k = smallest_worker(layout.lazy), settings.n_components
    n_sample = sample_sizes(layout, k, wanted_rows(settings, layout), False).sample
    costs = MixtureCosts(layout, settings, n_sample, worker.threads)
    summed = _summed(stages, costs, timed and bool(layout.n_rows))
    largest, peak = _largest_block(layout, worker), None
    if largest is not None:
        peak = _mixture_bytes(layout, settings, n_sample, largest, worker)
    n_starts = max(1, settings.n_starts)
    return _of_passes(layout, worker, n_starts, largest, peak, summed)


def _mixture_bytes(
    layout: Layout, settings: Settings, n_sample: int, largest: int, worker: Worker
) -> int:
    """Return the memory of blocks, of records of covariances, and of the sample with its starts."""
    k, p = settings.n_components, layout.n_features
    threads = min(worker.threads, layout.n_blocks)
    matrix = {"full": k * p * p, "tied": p * p}.get(settings.covariance_type, k * p)
    record = 8 * (matrix + k * (p + 1))
    waiting = _waiting_bytes(layout, threads, record)
    starts = max(1, settings.n_starts)
    sample = 8 * n_sample * (_MIXTURE_COPIES * p + 3 * k) + 4 * starts * (threads + 2) * record
    _refuse(
        waiting,
        worker,
        f"sums of {k:,} covariances in {p:,} dimensions",
        "Take fewer components, a simpler covariance_type, or workers with more memory",
    )
    return _visited_bytes(layout, largest, threads) + max(waiting, sample)


def _blurred_bytes(layout: Layout, largest: int, worker: Worker) -> int | None:
    """Return the memory of a mean shift that blurs every row."""
    n = layout.n_rows
    if n is None:
        return None
    threads = min(worker.threads, max(1, -(-n // TILE)))
    loaded = threads * _loaded_bytes(largest) if layout.lazy else n * layout.bytes_per_row
    positions = 8 * n * layout.n_features
    return _INTERPRETER_BYTES + loaded + positions * (_POSITION_COPIES + 2 * threads)


def _compressed_bytes(layout: Layout, n_clusters: int, largest: int, worker: Worker) -> int:
    """Return the memory of a mean shift of micro-clusters."""
    n, p, k = layout.n_rows or 0, layout.n_features, n_clusters
    threads = min(worker.threads, layout.n_blocks)
    # A record has sums, deviations and squares of each cell.
    records = _waiting_bytes(layout, threads, 3 * 8 * k * p)
    sample = 8 * p * sample_size(n, p, 1) * (_POSITION_COPIES + 2 * threads)
    # Memory holds factors of the kernel's product, and the results of a step.
    blurred = 8 * k * (p * _POSITION_COPIES + 3 * TILE * threads)
    return _visited_bytes(layout, largest, threads) + max(records, sample, blurred)


def _refuse_positions(n_rows: int, n_features: int, worker: Worker) -> None:
    """Refuse rows that mean shift cannot keep in memory."""
    threads = min(worker.threads, max(1, -(-n_rows // TILE)))
    copies, positions = _LEAST_POSITION_COPIES + 2 * threads, 8 * n_rows * n_features
    _refuse(
        copies * positions,
        worker,
        f"{copies} arrays as large as its {n_rows:,} rows of {n_features:,} features, "
        f"{readable_bytes(positions)}",
        "Take n_representatives='auto', which blurs a few thousand micro-clusters",
    )


def _refuse_blocks(layout: Layout, largest: int, worker: Worker) -> None:
    """Raise if two blocks per thread do not fit into a worker."""
    threads = min(worker.threads, layout.n_blocks)
    rows = 0
    if worker.memory is not None:
        room = (worker.memory - _LEAST_INTERPRETER_BYTES) // (threads * _LEAST_COPIES)
        rows = room // layout.bytes_per_row
    mend = f"Rechunk X to at most {rows:,} rows per block" if rows > 0 else "Take larger workers"
    _refuse(
        threads * _LEAST_COPIES * largest,
        worker,
        f"{_LEAST_COPIES} blocks of up to {readable_bytes(largest)} for each of {threads} "
        "thread(s)",
        f"{mend}, or give workers fewer threads or more memory",
    )


def _refuse_centers(layout: Layout, method: Method, wanted: int | None, worker: Worker) -> None:
    """Refuse centres whose sums and samples do not fit, and say which ones would."""

    def needed(n_clusters: int, n_starts: int = method.n_starts) -> int:
        fewer = replace(method, n_clusters=n_clusters, n_starts=n_starts)
        return _centers_bytes(layout, fewer, _sizes(layout, fewer, wanted), worker.threads)

    mends = []
    if worker.memory is not None:
        room = worker.memory - _LEAST_INTERPRETER_BYTES
        if method.n_starts > 1 and needed(method.n_clusters, 1) <= room:
            mends.append("n_init=1")
        fewer = bisect.bisect_right(range(method.n_clusters), room, key=needed) - 1
        if fewer > 0:
            mends.append(f"at most {fewer:,} clusters")
    _refuse(
        needed(method.n_clusters),
        worker,
        f"sums of {method.n_clusters:,} centres in {layout.n_features:,} dimensions from "
        f"{method.n_starts} start(s), and samples of the rows",
        f"Take {' or '.join([*mends, 'workers with fewer threads or more memory'])}",
    )


def _refuse(least: int, worker: Worker, what: str, mend: str) -> None:
    """Raise if a worker has less memory than the least that is needed."""
    if worker.memory is not None and _LEAST_INTERPRETER_BYTES + least > worker.memory:
        raise ValueError(
            f"X does not fit: a process needs at least "
            f"{readable_bytes(_LEAST_INTERPRETER_BYTES + least)} ({what}, and "
            f"{readable_bytes(_LEAST_INTERPRETER_BYTES)} for the interpreter), and may take "
            f"{readable_bytes(worker.memory)}. {mend}."
        )


def _loaded_bytes(largest: int) -> int:
    """Return the memory taken by the blocks of one thread."""
    low, high = _KEPT_BYTES
    return _BLOCK_COPIES * largest + min(max(_KEPT_COPIES * largest, low), high)


def _visited_bytes(layout: Layout, largest: int, threads: int) -> int:
    """Return the memory of the interpreter, and of the blocks and tiles of some threads."""
    whole = (layout.n_rows or 0) * layout.bytes_per_row
    if layout.lazy:
        loaded = threads * _loaded_bytes(largest) + whole * cheaper_loaded_once(layout, whole)
    else:
        loaded = whole + threads * _KEPT_BYTES[0]
    return _INTERPRETER_BYTES + loaded + threads * TILE_BYTES


def _waiting_bytes(layout: Layout, threads: int, record: int) -> int:
    """Return the memory of the records that wait to be merged in a pass."""
    width = _WAITING * threads if layout.lazy else 2 * threads
    return min(layout.n_blocks + threads, width) * record


def _peak_bytes(
    layout: Layout,
    largest: int | None,
    method: Method,
    sizes: SampleSizes | None,
    threads: int,
) -> int | None:
    """Add up interpreter, blocks and tiles of all threads, records being merged, and samples."""
    if largest is None or layout.n_rows is None or sizes is None:
        return None
    threads, k = min(threads, layout.n_blocks), method.n_clusters
    visited = _visited_bytes(layout, largest, threads)
    if not layout.lazy:
        visited += bounds_bytes(layout.n_rows, layout.bytes_per_row, k, method.n_starts)
    if layout.sparse:
        visited += threads * _SPARSE_COPIES * largest
    return visited + _centers_bytes(layout, method, sizes, threads)


def _sizes(layout: Layout, method: Method, wanted: int | None) -> SampleSizes:
    return sample_sizes(layout, method.n_clusters, wanted, method.on_sample)


def _centers_bytes(layout: Layout, method: Method, sizes: SampleSizes, threads: int) -> int:
    """Return the memory of samples, or of the sums that wait to be merged in a pass."""
    record = 8 * layout.n_features * (method.n_clusters + FARTHEST + 1)
    states = method.n_starts
    if method.on_sample:
        states = min(states, most_polished(method.n_clusters))
    waiting = _waiting_bytes(layout, threads, states * record)
    sampled = _sample_bytes(layout, method, sizes, threads)
    # All starts, also those with hard steps only, take a step on the larger sample.
    starts = method.n_starts + method.n_hedged
    sampled += method.on_sample * starts * (threads + 2) * record
    sampled += bounds_bytes(sizes.larger, layout.bytes_per_row, method.n_clusters, starts)
    if layout.lazy and method.steps_between_reads:
        # The larger sample is kept during the passes, with bounds for the steps between them.
        waiting += sizes.larger * layout.bytes_per_row
        waiting += bounds_bytes(sizes.larger, layout.bytes_per_row, method.n_clusters, states)
    return max(waiting, sampled, _screening_bytes(layout, method, sizes))


def _sample_bytes(layout: Layout, method: Method, sizes: SampleSizes, threads: int) -> int:
    """Return the memory of the samples, and of what is computed with their rows."""
    # The sample has three copies: as read, as float64, and one during seeding. Each start that runs
    # at the same time adds three: one in the coordinates of a restart, and two during seeding and
    # scoring. The larger sample has two copies: as read, and one while it is concatenated.
    row, at_once = (
        8 * (layout.width + layout.n_levels),
        min(threads, method.n_starts + method.n_hedged),
    )
    read = 2 * layout.bytes_per_row * sizes.larger
    if not layout.sparse:
        return read + sizes.sample * 3 * (1 + at_once) * row
    # The copies of each start share the column indices of the sample.
    values = int(8 * (layout.stored or 0))
    annealing = sizes.sample * (3 * row + 3 * at_once * values)
    # Parameters are tried on a few rows in dense form; but λ is tried on sparse rows if dense ones
    # would take more than FEW_BYTES.
    tried = 8 * layout.n_features * min(sizes.sample, sample_rows(method.n_clusters))
    n_dense = 1 if method.tries_lam and tried > FEW_BYTES else 1 + 2 * threads
    return read + annealing + n_dense * FEW_BYTES


def _screening_bytes(layout: Layout, method: Method, sizes: SampleSizes) -> int:
    """Return the memory of the samples during the search for features that others predict."""
    if not (layout.sparse and method.tries_lam):
        return 0
    read = 2 * layout.bytes_per_row * sizes.larger
    return read + 8 * (layout.width + layout.n_levels) * (
        3 * sizes.sample + _SCREENING_COPIES * max(sizes)
    )


def _tasks(n_blocks: int, lazy: bool, threads: int) -> int:
    """Count the tasks of a pass: one per block in memory, or per group and merge of lazy ones."""
    if not lazy:
        return n_blocks
    tasks = width = min(n_blocks, GROUPS_PER_THREAD * threads)
    while width > 1:
        width = -(-width // SPLIT_EVERY)
        tasks += width
    return tasks
