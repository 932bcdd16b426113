"""Predict what a fit will cost: seconds, passes, bytes, memory per worker, tasks."""

from __future__ import annotations

import bisect
from dataclasses import asdict, dataclass, replace
from typing import Any

from daskmm.data.blocks import Layout, visited_together
from daskmm.engine.first_pass import SAMPLE_BYTES, SampleSizes, sample_size, sample_sizes
from daskmm.engine.graph import SPLIT_EVERY
from daskmm.engine.grouping import GROUPS_PER_THREAD
from daskmm.engine.passes import cheaper_loaded_once
from daskmm.engine.resources import Worker, smallest_worker, this_process
from daskmm.gram.build import TILE_ROWS
from daskmm.gram.pairs import n_groups
from daskmm.gram.rows import are_streamed
from daskmm.kmeans.bounds import bounds_bytes
from daskmm.kmeans.sample_annealing import most_polished
from daskmm.kmeans.seeding import ROUNDS
from daskmm.kmeans.sums import FARTHEST
from daskmm.mean_shift.micro_clusters import PASSES as MICRO_CLUSTER_PASSES
from daskmm.numerics.mean_shift import TILE
from daskmm.numerics.rows import TILE_BYTES
from daskmm.numerics.sparse_rows import FEW_BYTES
from daskmm.planning.seconds import (
    HARD_STEPS,
    CenterSteps,
    annealing_steps,
    blurring_seconds,
    center_seconds,
    exact_sweeps,
    gram_seconds,
    micro_cluster_seconds,
    rows_tried,
    typical_reads,
)
from daskmm.storage.readable import readable_bytes, readable_seconds

# Interpreter after a small fit, bytes (measured: 180 MB with what daskmm needs, 255 to 265 where
# pandas, pyarrow and xarray are installed, which dask imports; 320 with the package sparse).
INTERPRETER_BYTES = 260 << 20
# Iterations of mean shift: to learn the weights, and until rows have merged.
_TYPICAL_BLURRING = 30
# Arrays of the size of all positions that one iteration holds, besides two sums per thread: rows,
# positions and their sums before and after, tiles and merging (measured: 12 to 16).
_POSITION_COPIES = 20
_LEAST_POSITION_COPIES = 12
# Seconds that a thread takes for a pair of rows in one sweep, without features and for each of
# them (measured).
_PAIR_SECONDS, _PAIR_FEATURE_SECONDS = 1e-9, 9e-11
# Blocks in memory per thread: chunks being decoded, the block they make, and one read ahead
# (measured with blocks of 80 MB, which the allocator returns at once).
_BLOCK_COPIES = 3
# Records per thread that wait to be merged with their neighbours (simulated, up to 4000 blocks).
_WAITING = 24
# Freed blocks that the allocator keeps, within bounds in bytes per thread (measured over long fits
# with blocks of .4 to 20 MB).
_KEPT_COPIES = 6
_KEPT_BYTES = (56 << 20, 112 << 20)
# Seconds that a pass takes for each block besides visiting it (measured: threads and two workers).
_OPENING_SECONDS = 1e-4
# Temporaries of sparse rows, which are not processed in small tiles, in units of their block.
_SPARSE_COPIES = 5
# Copies of a sparse sample while features are looked for that others predict: in the model's
# coordinates, without some features, and in float32 as a whole and by halves.
_SCREENING_COPIES = 4
# Fewest blocks in memory per thread.
_LEAST_COPIES = 2


@dataclass(frozen=True)
class Plan:
    """Predicted cost of a fit.

    Attributes
    ----------
    n_rows : int or None
        None if unknown; they are counted by one more pass.
    n_features, n_blocks : int
    n_starts : int
        All are advanced by each pass.
    bytes_per_pass : int or None
        Size of the data as they are read.
    largest_block_bytes : int or None
    passes : int
        Typical number of sweeps over the data, first pass and scoring included.
    max_passes : int
        The most there can be.
    peak_bytes_per_worker : int or None
        Of a worker process (this process, for local schedulers) with its number of threads.
        Includes the interpreter.
    tasks_per_pass : int
        With the threads of this process.
    gram_bytes : int or None
        Size of the Gram matrix as it is kept (on disk: upper triangle, float32); None if it is
        not kept.
    worker_memory_bytes : int or None
        Memory limit of a worker process; None if unlimited or unknown.
    visits_per_pass : int or None
        Calls of each pass: fewer than blocks where small ones are visited together. None for
        passes over other things than rows.
    read_once : bool
        Whether the table is so small, and loading it so slow, that this process keeps it.
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

    def __str__(self) -> str:
        rows = "an unknown number of" if self.n_rows is None else f"{self.n_rows:,}"
        gram = (
            [] if self.gram_bytes is None else [f"Gram matrix: {readable_bytes(self.gram_bytes)}"]
        )
        return "\n".join(
            [
                f"{rows} rows × {self.n_features:,} features in {self.n_blocks:,} block(s)",
                f"passes over the data: about {self.passes}, at most {self.max_passes}"
                f" ({self.n_starts} start(s) share each)",
                f"read per pass: {readable_bytes(self.bytes_per_pass)}"
                f" (largest block {readable_bytes(self.largest_block_bytes)})",
                f"peak memory per worker: {readable_bytes(self.peak_bytes_per_worker)}"
                f" (of {readable_bytes(self.worker_memory_bytes)}{self._about_memory()})",
                f"tasks per pass: {self.tasks_per_pass:,}",
                *gram,
                *self._about_time(),
                *self._about_small_blocks(),
            ]
        )

    def _about_memory(self) -> str:
        peak, memory = self.peak_bytes_per_worker, self.worker_memory_bytes
        scarce = peak is not None and memory is not None and peak > memory
        return ", which may not suffice" if scarce else ""

    def _about_time(self) -> list[str]:
        if self.stages is None:
            return []
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
    layout: Layout, steps: CenterSteps, *, wanted: int | None = None, timed: bool = False
) -> Plan:
    """Predict the cost of a fit of centers.

    Parameters
    ----------
    layout : Layout
    steps : CenterSteps
        With the expected schedule.
    wanted : int, optional
        Rows of the sample, if given by the user.
    timed : bool
        Whether to predict seconds, for which the speed of this machine is measured once.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        If workers have too little memory for blocks or centres; says the numbers and what to
        change.
    """
    n_rows, schedule = layout.n_rows, steps.schedule
    worker = smallest_worker(layout.lazy)
    counting = 1 if n_rows is None else 0
    labelling = 0 if layout.lazy else 1
    around = counting + 1 + (ROUNDS + 1) * (steps.init == "k-means||") + labelling
    sizes = None
    if n_rows is not None:
        sizes = _sizes(layout, steps, wanted)
        _refuse_centers(layout, steps, wanted, worker)
    largest = None if layout.rows is None else max(layout.rows) * layout.bytes_per_row
    if layout.lazy and largest is not None:
        _refuse_blocks(layout, largest, worker)
    visits = len(visited_together(layout))
    return Plan(
        n_rows=n_rows,
        n_features=layout.n_features,
        n_blocks=layout.n_blocks,
        n_starts=steps.n_starts,
        bytes_per_pass=None if n_rows is None else n_rows * layout.bytes_per_row,
        largest_block_bytes=largest,
        passes=around + _typical_passes(steps),
        # One more scores a fit that has not converged.
        max_passes=around + schedule.max_iter + 1,
        peak_bytes_per_worker=_peak_bytes(layout, largest, steps, sizes, worker.threads),
        tasks_per_pass=_tasks(visits, layout.lazy, worker.threads),
        worker_memory_bytes=worker.memory,
        visits_per_pass=visits,
        read_once=cheaper_loaded_once(layout, (n_rows or 0) * layout.bytes_per_row),
        stages=None
        if sizes is None or not timed
        else center_seconds(layout, sizes, steps, worker.threads),
    )


def gram_plan(
    layout: Layout,
    steps: CenterSteps,
    n_kernels: int,
    kept: str,
    *,
    precomputed: bool = False,
    timed: bool = False,
) -> Plan:
    """Predict the cost of a fit that sweeps over Gram matrices.

    Parameters
    ----------
    layout : Layout
    steps : CenterSteps
        Its landmarks are those on whose features starts are annealed.
    n_kernels : int
    kept : {"memory", "recomputed", "stored"}
        How the matrices are kept.
    precomputed : bool
        Whether the table is a kernel matrix; a lazy one is not copied.
    timed : bool
        Whether to predict seconds, for which the speed of this machine is measured once.

    Returns
    -------
    Plan
        Its passes are sweeps over the matrices, and those over the rows. A sweep of recomputed
        matrices of streamed rows reads each row several times, which its bytes say.

    Raises
    ------
    ValueError
        If rows and memberships do not fit into this process; says the numbers and what to change.
    """
    n, n_clusters, n_starts = layout.n_rows or 0, steps.n_clusters, steps.n_starts
    max_iter, here = steps.schedule.max_iter, this_process()
    side = -(-n // TILE_ROWS)
    tile = 4 * min(n, TILE_ROWS) ** 2
    gram = {"memory": 8 * n**2, "recomputed": 0, "stored": 4 * n * (n + TILE_ROWS) // 2}[kept]
    threads = min(here.threads, max(side, 1))
    streamed = are_streamed(layout) and not precomputed
    row_bytes = 0 if precomputed or streamed else 8 * layout.n_features
    least = n * (row_bytes + 8 * n_clusters * n_starts)
    _refuse(
        least,
        here,
        f"the rows, {readable_bytes(n * row_bytes)}, and the memberships of {n_starts} start(s)",
        'Take n_landmarks="auto" where there is that parameter, fewer rows, or n_init=1',
    )
    # Rows; memberships, products and φ of every start, and a share of the products per thread.
    states = n * (row_bytes + 8 * n_clusters * n_starts * (6 * n_kernels + 2 * threads))
    # The features, the columns that they are made of, and temporary arrays of their size (measured
    # with 60,000 and 200,000 rows).
    features = 4 * 8 * n * n_kernels * min(n, 10 * n_clusters)
    # A tile in float64, and the temporary arrays of the kernel function.
    working = threads * 8 * tile
    groups = min(n_groups(n, layout.n_features), max(side, 1))
    reads = 0
    if streamed:
        largest = max(layout.rows or (n,)) * layout.bytes_per_row
        _refuse_blocks(layout, largest, here)
        # Rows of two groups, and what they are joined from.
        group = 8 * layout.n_features * min(n, TILE_ROWS * -(-side // groups))
        working += threads * (3 * group + _loaded_bytes(largest)) + SAMPLE_BYTES
        # Diagonals or digests, landmarks and their columns, samples.
        reads = 1 + (5 + (kept == "stored")) * n_kernels
    return Plan(
        n_rows=layout.n_rows,
        n_features=layout.n_features,
        n_blocks=side * (side + 1) // 2,
        n_starts=n_starts,
        bytes_per_pass=n_kernels * groups * n * layout.bytes_per_row
        if streamed and kept == "recomputed"
        else n_kernels * gram,
        largest_block_bytes=tile,
        passes=exact_sweeps(steps) + 2 + reads,
        max_passes=max_iter + 2 + (layout.n_rows is None) + reads,
        peak_bytes_per_worker=INTERPRETER_BYTES
        + states
        + features
        + working
        + (n_kernels * gram if kept == "memory" else 0),
        tasks_per_pass=_tasks(side, False, here.threads),
        gram_bytes=n_kernels * gram if kept != "recomputed" else None,
        worker_memory_bytes=here.memory,
        stages=gram_seconds(layout, steps, n_kernels, kept, here.threads) if timed and n else None,
    )


def blurring_plan(
    layout: Layout, max_iter: int, *, chooses: bool = False, timed: bool = False
) -> Plan:
    """Predict the cost of a fit that sweeps over all pairs of rows, which it keeps in memory.

    Parameters
    ----------
    layout : Layout
    max_iter : int
    chooses : bool
        Whether the bandwidth is chosen on a sample.
    timed : bool
        Whether to predict seconds, for which the speed of this machine is measured once.

    Returns
    -------
    Plan
        Its passes are two over the data, and the sweeps over all pairs; rows that have merged
        drop out of later ones.

    Raises
    ------
    ValueError
        If this process or a worker has too little memory, with the numbers and what to change.
    """
    n = layout.n_rows
    worker = smallest_worker(layout.lazy)
    counting = 1 if n is None else 0
    largest = None if layout.rows is None else max(layout.rows) * layout.bytes_per_row
    peak = None
    if n is not None and largest is not None:
        threads = min(worker.threads, max(1, -(-n // TILE)))
        positions = 8 * n * layout.n_features
        for process in (worker, this_process()):
            _refuse_positions(n, layout.n_features, process)
        loaded = n * layout.bytes_per_row
        if layout.lazy:
            _refuse_blocks(layout, largest, worker)
            loaded = threads * _loaded_bytes(largest)
        peak = INTERPRETER_BYTES + loaded + positions * (_POSITION_COPIES + 2 * threads)
    return Plan(
        n_rows=n,
        n_features=layout.n_features,
        n_blocks=layout.n_blocks,
        n_starts=1,
        bytes_per_pass=None if n is None else n * layout.bytes_per_row,
        largest_block_bytes=largest,
        passes=counting + 2 + min(_TYPICAL_BLURRING, max_iter),
        max_passes=counting + 2 + max_iter,
        peak_bytes_per_worker=peak,
        tasks_per_pass=_tasks(layout.n_blocks, layout.lazy, worker.threads),
        worker_memory_bytes=worker.memory,
        stages=blurring_seconds(layout, max_iter, worker.threads, chooses=chooses)
        if timed and n
        else None,
    )


def micro_cluster_plan(
    layout: Layout,
    max_iter: int,
    n_micro_clusters: int,
    *,
    chooses: bool = False,
    learns: bool = True,
    timed: bool = False,
) -> Plan:
    """Predict the cost of a mean shift of micro-clusters.

    Parameters
    ----------
    layout : Layout
        With known rows.
    max_iter : int
    n_micro_clusters : int
    chooses : bool
        Whether the bandwidth is chosen on a sample.
    learns : bool
        Whether feature weights are learned on a sample.
    timed : bool
        Whether to predict seconds, for which the speed of this machine is measured once.

    Returns
    -------
    Plan
        Its passes are those over the data.

    Raises
    ------
    ValueError
        If workers have too little memory for blocks, with the numbers and what to change.
    """
    n, p, k = layout.n_rows or 0, layout.n_features, n_micro_clusters
    worker = smallest_worker(layout.lazy)
    largest = max(layout.rows or (n,)) * layout.bytes_per_row
    threads = min(worker.threads, layout.n_blocks)
    if layout.lazy:
        _refuse_blocks(layout, largest, worker)
        loaded = threads * _loaded_bytes(largest)
    else:
        loaded = n * layout.bytes_per_row + threads * _KEPT_BYTES[0]
    # Sums, deviations and squares of each cell.
    width = _WAITING * threads if layout.lazy else 2 * threads
    records = min(layout.n_blocks + threads, width) * 3 * 8 * k * p
    sample = 8 * p * sample_size(n, p, 1) * (_POSITION_COPIES + 2 * threads)
    # What is multiplied with the kernel, and a step's results.
    blurred = 8 * k * (p * _POSITION_COPIES + 3 * TILE * threads)
    passes = 1 + MICRO_CLUSTER_PASSES + (not layout.lazy)
    visits = len(visited_together(layout))
    return Plan(
        n_rows=n,
        n_features=p,
        n_blocks=layout.n_blocks,
        n_starts=1,
        bytes_per_pass=n * layout.bytes_per_row,
        largest_block_bytes=largest,
        passes=passes,
        # Heavy tails take a second pass for the sample, unknown rows one that counts them.
        max_passes=passes + 2,
        peak_bytes_per_worker=INTERPRETER_BYTES
        + loaded
        + threads * TILE_BYTES
        + max(records, sample, blurred),
        tasks_per_pass=_tasks(visits, layout.lazy, worker.threads),
        worker_memory_bytes=worker.memory,
        visits_per_pass=visits,
        stages=micro_cluster_seconds(
            layout, max_iter, k, worker.threads, chooses=chooses, learns=learns
        )
        if timed
        else None,
    )


def _refuse_positions(n_rows: int, n_features: int, worker: Worker) -> None:
    """Refuse rows that mean shift cannot keep in memory, with the time of a sweep over them."""
    threads = min(worker.threads, max(1, -(-n_rows // TILE)))
    copies, positions = _LEAST_POSITION_COPIES + 2 * threads, 8 * n_rows * n_features
    pair = (_PAIR_SECONDS + _PAIR_FEATURE_SECONDS * n_features) / threads
    _refuse(
        copies * positions,
        worker,
        f"{copies} arrays as large as its {n_rows:,} rows of {n_features:,} features, "
        f"{readable_bytes(positions)}",
        f"Each sweep over all pairs of rows would take about {readable_seconds(n_rows**2 * pair)}: "
        "take n_representatives='auto'",
    )


def _refuse_blocks(layout: Layout, largest: int, worker: Worker) -> None:
    """Raise if two blocks per thread do not fit into a worker."""
    threads = min(worker.threads, layout.n_blocks)
    rows = 0
    if worker.memory is not None:
        room = (worker.memory - INTERPRETER_BYTES) // (threads * _LEAST_COPIES)
        rows = room // layout.bytes_per_row
    mend = f"Rechunk X to at most {rows:,} rows per block" if rows > 0 else "Take larger workers"
    _refuse(
        threads * _LEAST_COPIES * largest,
        worker,
        f"{_LEAST_COPIES} blocks of up to {readable_bytes(largest)} for each of {threads} "
        "thread(s)",
        f"{mend}, or give workers fewer threads or more memory",
    )


def _refuse_centers(layout: Layout, steps: CenterSteps, wanted: int | None, worker: Worker) -> None:
    """Refuse centres whose sums and samples do not fit, and say which ones would."""

    def needed(n_clusters: int, n_starts: int = steps.n_starts) -> int:
        fewer = replace(steps, n_clusters=n_clusters, n_starts=n_starts)
        return _centers_bytes(layout, fewer, _sizes(layout, fewer, wanted), worker.threads)

    mends = []
    if worker.memory is not None:
        room = worker.memory - INTERPRETER_BYTES
        if steps.n_starts > 1 and needed(steps.n_clusters, 1) <= room:
            mends.append("n_init=1")
        fewer = bisect.bisect_right(range(steps.n_clusters), room, key=needed) - 1
        if fewer > 0:
            mends.append(f"at most {fewer:,} clusters")
    _refuse(
        needed(steps.n_clusters),
        worker,
        f"sums of {steps.n_clusters:,} centres in {layout.n_features:,} dimensions from "
        f"{steps.n_starts} start(s), and samples of the rows",
        f"Take {' or '.join([*mends, 'workers with fewer threads or more memory'])}",
    )


def _refuse(least: int, worker: Worker, what: str, mend: str) -> None:
    """Raise if a worker has less memory than the least that is needed."""
    if worker.memory is not None and INTERPRETER_BYTES + least > worker.memory:
        raise ValueError(
            f"X does not fit: a process needs at least "
            f"{readable_bytes(INTERPRETER_BYTES + least)} ({what}, and "
            f"{readable_bytes(INTERPRETER_BYTES)} for the interpreter), and may take "
            f"{readable_bytes(worker.memory)}. {mend}."
        )


def _loaded_bytes(largest: int) -> int:
    """Return the memory taken by the blocks of one thread."""
    low, high = _KEPT_BYTES
    return _BLOCK_COPIES * largest + min(max(_KEPT_COPIES * largest, low), high)


def _typical_passes(steps: CenterSteps) -> int:
    passes = annealing_steps(steps.schedule) or HARD_STEPS
    if steps.sampled:
        passes = typical_reads(steps.n_clusters)
    return min(passes, steps.schedule.max_iter)


def _peak_bytes(
    layout: Layout,
    largest: int | None,
    steps: CenterSteps,
    sizes: SampleSizes | None,
    threads: int,
) -> int | None:
    """Add up interpreter, blocks and tiles of all threads, records being merged, and samples."""
    if largest is None or layout.n_rows is None or sizes is None:
        return None
    threads, k = min(threads, layout.n_blocks), steps.n_clusters
    whole = layout.n_rows * layout.bytes_per_row
    if layout.lazy:
        loaded = threads * _loaded_bytes(largest) + whole * cheaper_loaded_once(layout, whole)
    else:
        loaded = whole + threads * _KEPT_BYTES[0]
        loaded += bounds_bytes(layout.n_rows, layout.bytes_per_row, k, steps.n_starts)
    if layout.sparse:
        loaded += threads * _SPARSE_COPIES * largest
    loaded += INTERPRETER_BYTES + threads * TILE_BYTES
    return loaded + _centers_bytes(layout, steps, sizes, threads)


def _sizes(layout: Layout, steps: CenterSteps, wanted: int | None) -> SampleSizes:
    return sample_sizes(layout, steps.n_clusters, wanted, steps.sampled)


def _centers_bytes(layout: Layout, steps: CenterSteps, sizes: SampleSizes, threads: int) -> int:
    """Return the memory of samples, or of the sums that wait to be merged in a pass."""
    record = 8 * layout.n_features * (steps.n_clusters + FARTHEST + 1)
    states = steps.n_starts
    if steps.sampled:
        states = min(states, most_polished(steps.n_clusters))
    width = _WAITING * threads if layout.lazy else 2 * threads
    waiting = min(layout.n_blocks + threads, width) * states * record
    sampled = _sample_bytes(layout, steps, sizes, threads)
    # All starts, and hard ones beside them, take a step on the larger sample.
    starts = steps.n_starts + steps.n_hedged
    sampled += steps.sampled * starts * (threads + 2) * record
    sampled += bounds_bytes(sizes.larger, layout.bytes_per_row, steps.n_clusters, starts)
    return max(waiting, sampled, _screening_bytes(layout, steps, sizes))


def _sample_bytes(layout: Layout, steps: CenterSteps, sizes: SampleSizes, threads: int) -> int:
    """Return the memory of the samples, and of what is computed with their rows."""
    # Copies of the sample: as read, as float64, and one while seeding; for each start at once, that
    # in the coordinates of a restart, and two while it is seeded and scored. Copies of the larger
    # sample: as read, and one while it is concatenated.
    row, at_once = 8 * layout.width, min(threads, steps.n_starts + steps.n_hedged)
    read = 2 * layout.bytes_per_row * sizes.larger
    if not layout.sparse:
        return read + sizes.sample * 3 * (1 + at_once) * row
    # Those of each start have the column indices of the sample.
    values = int(8 * (layout.stored or 0))
    annealing = sizes.sample * (3 * row + 3 * at_once * values)
    # Parameters are tried on a few rows, which are dense unless λ is, of rows that are too wide.
    tried = 8 * layout.n_features * min(sizes.sample, rows_tried(steps.n_clusters))
    n_dense = 1 if steps.tries_lam and tried > FEW_BYTES else 1 + 2 * threads
    return read + annealing + n_dense * FEW_BYTES


def _screening_bytes(layout: Layout, steps: CenterSteps, sizes: SampleSizes) -> int:
    """Return the memory of the samples while features are looked for that others predict."""
    if not (layout.sparse and steps.tries_lam):
        return 0
    read = 2 * layout.bytes_per_row * sizes.larger
    return read + 8 * layout.width * (3 * sizes.sample + _SCREENING_COPIES * max(sizes))


def _tasks(n_blocks: int, lazy: bool, threads: int) -> int:
    """Count the tasks of a pass: one per block in memory; groups of lazy blocks, and merges."""
    if not lazy:
        return n_blocks
    tasks = width = min(n_blocks, GROUPS_PER_THREAD * threads)
    while width > 1:
        width = -(-width // SPLIT_EVERY)
        tasks += width
    return tasks
