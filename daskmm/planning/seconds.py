"""Seconds of each stage of a fit, from the speed of this machine.

The steps of each stage are counted; what a step costs is measured by running the block function on
simulated rows, on all threads at once, which takes some tens of milliseconds per shape and process.
How many iterations a stage takes is not known beforehand: the numbers here are typical ones.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from daskmm.data.blocks import Layout, Position, float_dtype, visited_together
from daskmm.engine.first_pass import MANY_CLUSTERS, SampleSizes, sample_size
from daskmm.engine.passes import cheaper_loaded_once, one_blas_thread
from daskmm.gram.pairs import n_groups
from daskmm.gram.rows import are_streamed
from daskmm.kmeans.cells import CELLS, CLUSTERS_PER_CELL, PARTITIONS, STEPS_IN_CELLS
from daskmm.kmeans.sample_annealing import most_polished
from daskmm.kmeans.seeding import ROUNDS
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import block_sums
from daskmm.mean_shift.micro_clusters import DRAWS, PASSES
from daskmm.mm.driver import Schedule
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import SquaredEuclidean
from daskmm.numerics.mean_shift import TILE, Points, add_block_pair
from daskmm.numerics.rows import Coordinates

FloatArray = NDArray[np.float64]

# Power at which memberships have become hard, and hard steps that follow, until they converge.
LAST_POWER = -250.0
LAST_STEPS = 3
# Hard steps until convergence from seeds, and on the larger sample.
HARD_STEPS, _LARGER_STEPS = 30, 60
# Generations of recombined starts, and hard steps of each; starts that go on to the larger sample
# and to the table.
_GENERATIONS, _RECOMBINED_STEPS, _SURVIVORS = 1.5, 14, 3
# Many clusters have few rows each, and are annealed from a power near the last one. Steps from
# seeds per root of the rows per cluster (measured: 1 to 3.5 hard ones, 2 to 6 of an annealing), and
# steps of recombined starts, of which there is one generation.
_STEPS_OF_MANY, _RECOMBINED_STEPS_OF_MANY = 3.0, 4
# Share of the seconds of a hard step in those that bounds of distances make cheaper (measured: .4
# to .9).
_BOUNDED = 0.65
# Factor of seconds within cells, where distances are in single precision.
_IN_CELLS = 0.5
# Passes over the table after annealing on a sample, with a larger one and without.
# Samples have few rows for each of many clusters, and leave more to be settled.
_READS, _READS_OF_MANY, _MORE_READS = 5, 7, 10
# Iterations of a trial (`daskmm.kmeans.trials`), and trials of all penalties (`auto.lam`).
_TRIAL_STEPS, _LAM_TRIALS = 40, 42
# Exact sweeps after annealing on Nyström features (measured: 1 to 4).
_POLISHING_SWEEPS = 3
# Sweeps of mean shift over all pairs, before rows have merged; bandwidths that are tried on 1,000
# rows, and sweeps of each.
FULL_SWEEPS, _BANDWIDTHS, _BANDWIDTH_SWEEPS = 8, 26, 60
# Seconds of a thread per byte that is loaded and decoded, per value of the first pass, per distance
# in k-means||, and per value of a matrix that is read from memory.
_LOAD_SECONDS, _VALUE_SECONDS, _SEEDING_SECONDS, _MATRIX_SECONDS = 1e-9, 1.5e-9, 4e-9, 2e-9
# Per centre that is drawn within a cell, besides its distances.
_DRAW_SECONDS = 1.5e-4
# Besides products: per value of a Gaussian and of other kernels, and per membership.
_KERNEL_SECONDS, _KERNELS_SECONDS, _MEMBERSHIP_SECONDS = 1e-8, 1.8e-8, 5e-8
# Rows of a measured block in double and single precision, which is used for many rows only, and
# multiplications in it.
_ROWS, _MANY_ROWS, _PRODUCTS = 1024, 4096, 1 << 29
# Shortest time of a measurement: others may have the cores meanwhile.
_MEASURED_SECONDS = 0.03


@dataclass(frozen=True)
class CenterSteps:
    """What a fit of centres does with each row.

    Attributes
    ----------
    n_clusters, n_starts : int
    schedule : Schedule
    sampled : bool
        Whether starts are annealed on a sample.
    init : str
        How starts are seeded.
    family : type of Distortion
    weighted : bool
        Whether feature weights are learned.
    partial : bool
        Whether values may be missing.
    tries_lam : bool
        Whether penalties are tried.
    restarts : bool
        Whether to restart at the learned weights.
    n_landmarks : int
        Nyström features that are computed of each row; 0 if the rows themselves are clustered.
    """

    n_clusters: int
    n_starts: int
    schedule: Schedule
    sampled: bool
    init: str = "k-means++"
    family: type[Distortion] = SquaredEuclidean
    weighted: bool = False
    partial: bool = False
    tries_lam: bool = False
    restarts: bool = False
    n_landmarks: int = 0

    @property
    def n_hedged(self) -> int:
        """Number of starts that take hard steps only, beside the annealed ones, on samples."""
        annealed = annealing_steps(self.schedule) > 0
        return self.n_starts * (annealed and not self.weighted and self.sampled)


def rows_tried(n_clusters: int) -> int:
    """Return the number of rows on which parameters are tried (`daskmm.auto.lam.sample_rows`)."""
    return max(2000, 100 * n_clusters)


def annealing_steps(schedule: Schedule) -> int:
    """Return how many iterations an annealing typically takes; 0 for Lloyd's algorithm."""
    if schedule.s0 == -math.inf:
        return 0
    if schedule.eta == 1.0:
        return min(HARD_STEPS, schedule.max_iter)
    if schedule.tol == 0.0:
        return schedule.max_iter
    powers = math.log(max(LAST_POWER / schedule.s0, schedule.eta)) / math.log(schedule.eta)
    return min(math.ceil(powers) * schedule.anneal_every, schedule.max_iter)


def typical_reads(n_clusters: int) -> int:
    """Return how many passes over the table typically follow annealing on samples."""
    return _READS_OF_MANY if n_clusters >= MANY_CLUSTERS else _READS


def center_seconds(
    layout: Layout, sizes: SampleSizes, steps: CenterSteps, threads: int
) -> dict[str, float]:
    """Return the seconds of each stage of a fit of centres, in their order."""
    # A stored value of sparse rows is taken to cost what one of dense rows does.
    n, p, k, starts = layout.n_rows or 0, layout.width, steps.n_clusters, steps.n_starts
    width = steps.n_landmarks or p
    own = (k, width, steps.family, steps.weighted, steps.partial, threads)
    dtype = str(float_dtype(layout.dtype))
    many = min(n, sizes.sample) >= _MANY_ROWS
    soft, hard = (step_seconds(s, many, dtype, *own) for s in (-8.0, -math.inf))
    if k >= MANY_CLUSTERS:
        # About half of an annealing's steps find most weights negligible, and cost as hard ones.
        soft = (soft + hard) / 2
    product = product_seconds()
    to_features = steps.n_landmarks * (p + width) * product
    visits = min(threads, len(visited_together(layout)))
    loading = _loading(layout, threads)

    def pass_over(states: float, step: float = hard) -> float:
        return loading + n * (states * step + to_features) / visits

    sample, annealing = sizes.sample, annealing_steps(steps.schedule)
    hard_steps, generations, recombined = HARD_STEPS, _GENERATIONS, _RECOMBINED_STEPS
    if k >= MANY_CLUSTERS:
        hard_steps = min(HARD_STEPS, math.ceil(_STEPS_OF_MANY * math.sqrt(sample / k)))
        generations, recombined = 1, _RECOMBINED_STEPS_OF_MANY
        if steps.schedule.critical_multiple is not None:
            annealing = min(annealing, hard_steps)
    polishing = LAST_STEPS if annealing else min(hard_steps, steps.schedule.max_iter)
    # Threads share the rows of each start where there are many clusters.
    at_once = threads if k >= MANY_CLUSTERS else min(threads, starts + steps.n_hedged)
    trial = sample * _TRIAL_STEPS * step_seconds(-8.0, False, "float64", *own)
    plain = steps.family is SquaredEuclidean and not (steps.partial or steps.weighted)
    bounded = k >= MANY_CLUSTERS and plain and not (layout.lazy or layout.sparse)
    later = hard * (_BOUNDED if bounded else 1.0)
    stages = {
        "first pass": loading
        + n * p * _VALUE_SECONDS / visits
        + sample * (min(sample, p) * p + width * (width + p) * (width != p)) * product
    }
    if steps.tries_lam:
        rows = min(1.0, rows_tried(k) / sample)
        stages["choices"] = _LAM_TRIALS * rows * trial / min(threads, 6)
    stages["starting centres"] = (
        pass_over(0) * ROUNDS
        + ROUNDS**2 * n * starts * k * (width * product + _SEEDING_SECONDS) / visits
        if steps.init == "k-means||"
        else starts * _plus_plus(sample, k, width, threads) * (steps.init == "k-means++")
    )
    restart = trial * starts / min(threads, starts) if steps.restarts else 0.0
    if not steps.sampled:
        if annealing and bounded and starts == 1:  # some hard steps from the start, too
            polishing += hard_steps // 2
        stages["passes"] = annealing * pass_over(starts, soft)
        stages["passes"] += polishing * pass_over(starts, later) + restart
    else:
        work = starts * (annealing * soft + polishing * hard) + steps.n_hedged * hard_steps * hard
        stages["annealing"] = sample * work / at_once
        if steps.restarts:
            stages["restarts"] = restart
        if starts > 1:
            pool = (starts + steps.n_hedged) * k
            born = generations * starts
            stages["recombination"] = born * recombined * sample * hard / at_once
            stages["recombination"] += born * _chosen(pool, k, p)
            # The best one of sparse rows is then restarted as often as there are starts.
            stages["recombination"] += restart * layout.sparse
        survivors = min(_SURVIVORS, starts, most_polished(k))
        if sizes.larger:
            states = starts + steps.n_hedged + survivors * min(_LARGER_STEPS, hard_steps)
            stages["larger sample"] = sizes.larger * states * (hard + to_features) / threads
        reads = min(typical_reads(k) if sizes.larger else _MORE_READS, steps.schedule.max_iter)
        first = survivors if sizes.larger or k >= MANY_CLUSTERS else starts + steps.n_hedged
        stages["passes"] = pass_over(first) + (reads - 1) * pass_over(survivors, later)
    if not layout.lazy:
        # Bounds tell most labels; distances on the sample are computed in double precision.
        stages["labels"] = 2 * sample * hard / threads if bounded else pass_over(1)
    return stages


def gram_seconds(
    layout: Layout, steps: CenterSteps, n_kernels: int, kept: str, threads: int
) -> dict[str, float]:
    """Return the seconds of each stage of a kernel fit, in their order."""
    n, p, k, starts = layout.n_rows or 0, layout.n_features, steps.n_clusters, steps.n_starts
    product = product_seconds()
    value = p * product + (_KERNEL_SECONDS if n_kernels == 1 else _KERNELS_SECONDS)
    if kept == "memory":
        threads = 1
    # Tiles on and above the diagonal are recomputed; those of a store are written as well.
    pairs = n_kernels * n * n * (0.5 if kept == "recomputed" else 1.0)
    rank, values = steps.n_landmarks, pairs * value / threads
    states = starts * n * k * _MEMBERSHIP_SECONDS * (3 + n_kernels) / 4
    sweep = states + n_kernels * n * n * max(k * starts * product, _MATRIX_SECONDS) / threads
    reading = _loading(layout, threads) if are_streamed(layout) else 0.0
    if kept == "recomputed":
        sweep += values + n_kernels * n_groups(n, p) * reading
    stages = {"first pass": _loading(layout, threads) + n * p * _VALUE_SECONDS}
    stages["Gram matrices"] = 0.0 if kept == "recomputed" else values
    stages["starting centres"] = n_kernels * n * rank * (value + rank * product) + (
        starts * n * k * seeding_seconds(k, rank * n_kernels)
    )
    stages["starting centres"] += 5 * n_kernels * reading
    if _anneals_on_features(steps):
        step = states + 2 * n_kernels * n * rank * k * starts * product
        stages["annealing"] = (annealing_steps(steps.schedule) + LAST_STEPS) * step
    stages["passes"] = exact_sweeps(steps) * sweep
    return stages


def exact_sweeps(steps: CenterSteps) -> int:
    """Return how many sweeps over exact Gram matrices a kernel fit typically takes."""
    annealing = 0 if _anneals_on_features(steps) else annealing_steps(steps.schedule)
    return min(annealing + _POLISHING_SWEEPS, steps.schedule.max_iter)


def _anneals_on_features(steps: CenterSteps) -> bool:
    return steps.n_starts > 1 and steps.schedule.polish


def blurring_seconds(
    layout: Layout, max_iter: int, threads: int, *, chooses: bool
) -> dict[str, float]:
    """Return the seconds of each stage of a mean shift, in their order."""
    n, p = layout.n_rows or 0, layout.n_features
    at_once = min(threads, max(1, n // (2 * TILE)))
    stages = {"first pass": _loading(layout, 1) + n * p * _VALUE_SECONDS}
    if chooses:
        pairs = _BANDWIDTH_SWEEPS * min(n, 1000) ** 2
        stages["bandwidth"] = _BANDWIDTHS * pairs * pair_seconds(p) / threads
    stages["blurring"] = min(FULL_SWEEPS, max_iter) * n**2 * pair_seconds(p) / at_once
    return stages


def micro_cluster_seconds(
    layout: Layout,
    max_iter: int,
    n_micro_clusters: int,
    threads: int,
    *,
    chooses: bool,
    learns: bool,
) -> dict[str, float]:
    """Return the seconds of each stage of a mean shift of micro-clusters, in their order."""
    n, p = layout.n_rows or 0, layout.n_features
    stages = blurring_seconds(layout, max_iter, threads, chooses=chooses)
    del stages["blurring"]
    sample = sample_size(n, p, 1)
    stages["feature weights"] = (
        learns * min(FULL_SWEEPS, max_iter) * sample**2 * pair_seconds(p) / threads
    )
    visits = min(threads, len(visited_together(layout)))
    own = (n_micro_clusters, p, SquaredEuclidean, True, False, threads)
    step = step_seconds(-math.inf, n >= _MANY_ROWS, str(float_dtype(layout.dtype)), *own)
    # Rows are drawn while there are half of the centres, and more.
    nearest = (0.75 * DRAWS + PASSES - DRAWS) * n * step / visits
    stages["micro-clusters"] = PASSES * _loading(layout, threads) + nearest
    # Five products per feature and pair, and about a tenth of the points after some sweeps.
    sweep = n_micro_clusters**2 * (7 * p * product_seconds() + _KERNEL_SECONDS) / threads
    stages["blurring"] = min(2 * FULL_SWEEPS, max_iter) * sweep
    if not layout.lazy:
        stages["labels"] = n * step / visits
    return stages


def _plus_plus(n_rows: int, n_clusters: int, n_features: int, threads: int) -> float:
    """Return the seconds of k-means++ for one start (within cells of the rows for many centres)."""
    if n_clusters < MANY_CLUSTERS or n_rows <= PARTITIONS * n_clusters:
        return n_rows * n_clusters * seeding_seconds(n_clusters, n_features)
    n_cells = CELLS * math.isqrt(n_clusters)
    rivals = n_clusters / n_cells
    steps = n_rows * (STEPS_IN_CELLS * rivals + 2 * n_cells) * n_features * product_seconds()
    drawing = _IN_CELLS * n_rows * rivals * seeding_seconds(n_clusters, n_features)
    partition = steps + drawing + n_clusters * _DRAW_SECONDS
    choosing = _chosen(PARTITIONS * n_clusters, n_clusters, n_features)
    return partition * PARTITIONS / min(threads, PARTITIONS) + choosing


def _chosen(n_candidates: int, n_clusters: int, n_features: int) -> float:
    """Return the seconds of choosing centres among candidates (within cells for many)."""
    drawing = n_candidates * seeding_seconds(n_clusters, n_features)
    if n_clusters < MANY_CLUSTERS:
        return n_clusters * drawing
    to_cells = n_candidates * n_clusters * n_features * product_seconds()
    return to_cells + _IN_CELLS * CLUSTERS_PER_CELL * drawing + n_clusters * _DRAW_SECONDS


def _loading(layout: Layout, threads: int) -> float:
    """Return the seconds in which all blocks are loaded, where each pass does so."""
    n_bytes = (layout.n_rows or 0) * layout.bytes_per_row
    if not layout.lazy or cheaper_loaded_once(layout, n_bytes):
        return 0.0
    return n_bytes * _LOAD_SECONDS / min(threads, layout.n_blocks)


def _fastest(call: Callable[[], object], threads: int = 1) -> float:
    """Return the processor seconds of a thread in a call that all threads make: the best round."""

    def timed() -> float:
        began = time.thread_time()
        call()
        return time.thread_time() - began

    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        call()  # imports, and gets memory from the system
        rounds: list[float] = []
        while len(rounds) < 2 or sum(rounds) < _MEASURED_SECONDS:
            calls = [pool.submit(timed) for _ in range(threads)]
            rounds.append(sum(done.result() for done in calls) / threads + 1e-6)
    return min(rounds)


@functools.cache
def step_seconds(
    s: float,
    many: bool,
    dtype: str,
    n_clusters: int,
    n_features: int,
    family: type[Distortion],
    weighted: bool,
    partial: bool,
    threads: int,
) -> float:
    """Measure the seconds that a thread takes for a step of one start, per row."""
    n_rows = _MANY_ROWS if many and dtype == "float32" else _ROWS
    p = min(n_features, 4096)
    k = min(n_clusters, max(16, _PRODUCTS // (n_rows * p)))
    # In the domain of every distortion.
    rows = np.random.default_rng(0).uniform(0.2, 0.8, (n_rows, p)).astype(dtype)
    origin = 0.5 * family.shifts
    coordinates = Coordinates(np.full(p, origin), np.ones(p))
    centers = np.resize(rows, (k, p)).astype(np.float64) - origin
    distortion = family.around(centers.mean(axis=0), np.full(p, 0.03))
    weights = np.full(p, 1.0 / p) if weighted else None
    states = (CenterState(centers, s, weights, distortion, partial),)
    position = Position(0, 0, False, (None, p))
    seconds = _fastest(lambda: block_sums(rows, None, position, coordinates, states), threads)
    return seconds / n_rows * (n_clusters / k) * (n_features / p)


@functools.cache
def seeding_seconds(n_clusters: int, n_features: int) -> float:
    """Measure the seconds of k-means++ per row and centre; those who draw more centres try more."""
    p, trials = min(n_features, 1024), 2 + int(math.log(n_clusters))
    rows: FloatArray = np.random.default_rng(0).random((_MANY_ROWS, p))
    seconds = _fastest(lambda: kmeans_plusplus(rows, 16, random_state=0, n_local_trials=trials))
    return seconds / _MANY_ROWS / 16 * n_features / p


@functools.cache
def product_seconds() -> float:
    """Measure the seconds that a thread takes for a multiplication in a product of matrices."""
    a = np.random.default_rng(0).random((400, 400))
    return _fastest(lambda: a @ a) / 400**3


@functools.cache
def pair_seconds(n_features: int) -> float:
    """Measure the seconds that a thread takes for a pair of rows in a sweep of mean shift."""
    p = min(n_features, 1024)
    rows = np.random.default_rng(0).standard_normal((2000, p))
    points = Points.of(rows, np.ones(2000), np.full(p, 1.0 / p), 0.1)
    total = np.zeros(points.masses.shape)
    half, other = points[slice(0, 1000)], points[slice(1000, 2000)]
    pair = _fastest(lambda: add_block_pair(half, other, total[:1000], total[1000:]))
    return pair / (2 * 1000**2) * n_features / p
