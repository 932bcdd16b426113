"""Run weighted blurring mean shift: iterations, feature weights, convergence, clusters."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.first_pass import Survey
from daskmm.engine.passes import Passes
from daskmm.engine.threads import one_blas_thread
from daskmm.mean_shift.neighborhood import Labels, Neighborhood, Shift
from daskmm.mean_shift.representatives import STRAGGLING_EACH, stragglers
from daskmm.mm.context import FitContext
from daskmm.numerics.distances import squared_distances
from daskmm.numerics.entropy import negative_entropy, softmin_weights
from daskmm.numerics.information import resolution
from daskmm.numerics.mean_shift import group_sums
from daskmm.numerics.rows import Coordinates
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

logger = logging.getLogger("daskmm")

# Number of iterations that learn the feature weights before the data are blurred again from the
# start, and number of iterations of the second stage of the authors' program.
LEARNING_ITERATIONS = 20
REFERENCE_ITERATIONS = 30
# Blurring has converged when no representatives have merged for this many iterations, and none got
# more than this share of its kernel sum from others. Movement is not the criterion, since distant
# representatives attract each other for ever. Representatives that get little more than this share
# would drift for hundreds of iterations before they merge, so they take longer steps. In 130 fits
# (six kinds of data, five bandwidths) the clusters were those of 300 iterations every time; with
# 1e-3, every fifth fit differed.
CALM_ITERATIONS = 5
ISOLATED = 1e-4
# Number of iterations that learn the weights if they have been learned on fewer rows before.
_RELEARNING = 5


@registered
@dataclass(frozen=True)
class BlurringRecord:
    """Record of one iteration.

    Attributes
    ----------
    iteration : int
        Number of the iteration, counted from 1 over both stages.
    stage : {"learn", "blur"}
        Stage of the iteration.
    n_representatives : int
        Number of distinct points, after merging.
    spread : float
        Upper bound of the distances between these points: the diagonal of their bounding box, in
        the model's coordinates.
    attraction : float
        Largest share of a kernel sum that came from other representatives; 1 if rows are not their
        own neighbours.
    entropy : float
        Entropy of the feature weights, −Σ w ln w, in nats.
    n_passes : int
        Passes over the data and sweeps over all pairs so far.
    seconds : float
        Time since the fit began.
    """

    iteration: int
    stage: str
    n_representatives: int
    spread: float
    attraction: float
    entropy: float
    n_passes: int
    seconds: float


@dataclass(frozen=True)
class Phase:
    """A series of iterations that starts from the data."""

    name: str  # name of the stage in records
    iterations: int  # largest number of iterations
    self_term_from: int  # first iteration (from 0) in which a row is its own neighbour
    stops: bool  # whether the phase ends on convergence


def phases_of(convention: str, max_iter: int, fixed_weights: bool) -> list[Phase]:
    """Return the stages of a convention.

    `max_iter` is the largest number of iterations, which "reference" ignores.
    """
    if convention == "reference":
        learn = Phase("learn", LEARNING_ITERATIONS, LEARNING_ITERATIONS, stops=False)
        blur = Phase("blur", REFERENCE_ITERATIONS, REFERENCE_ITERATIONS, stops=False)
        return [learn, blur]
    if convention == "paper":
        return [Phase("blur", max_iter, 0, stops=True)]
    learning = 0 if fixed_weights else min(LEARNING_ITERATIONS, max_iter // 2)
    return [
        Phase("learn", learning, learning, stops=False),
        Phase("blur", max_iter - learning, 1, stops=True),
    ]


def max_iterations(convention: str, max_iter: int) -> int:
    """Return the largest number of iterations of all phases."""
    return sum(phase.iterations for phase in phases_of(convention, max_iter, False))


@dataclass(frozen=True)
class Blurring:
    """Parameters of weighted blurring mean shift."""

    bandwidth: float  # h in exp(−‖·‖²_w / h)
    lam: float  # penalty per unit of sample weight; inf keeps the weights equal
    convention: str = "auto"  # "paper" or "reference": see `WeightedBlurringMeanShift`
    max_iter: int = 300  # largest number of iterations of all stages
    # Distances in the model's coordinates within which points merge, and within which they form a
    # cluster.
    merge_tol: float = 1e-6
    component_tol: float = 1e-5
    lazy: bool = False  # whether the active dask scheduler computes

    def least_weight(self, weight: float) -> float:
        """Return the least weight of a cluster that is not a straggler, given the total weight.

        About ln n rows in a sparse region may merge by chance.
        """
        if self.convention != "auto":
            return 0.0
        return min(np.log(max(weight, 1.0)), STRAGGLING_EACH * weight)


@dataclass(frozen=True)
class Rows:
    """The rows to be blurred, before the first iteration."""

    start: Neighborhood
    squares: FloatArray  # Σ_i v_i x_il², (n_features,)
    weight: float  # Σ_i v_i
    # Features that are not constant; the others get weight 0, (n_features,).
    varying: NDArray[np.bool_]
    # Weights w of the first iteration; equal by default, (n_features,).
    feature_weights: FloatArray | None = None
    learned: bool = False  # whether these weights are fixed, so that no stage learns them

    @classmethod
    def of(
        cls,
        rows: FloatArray,
        weights: FloatArray,
        merge_tol: float,
        varying: NDArray[np.bool_] | None = None,
    ) -> Self:
        """Prepare rows for `blur`.

        Rows are in the model's coordinates, centred near the origin, and have positive sample
        weights.
        """
        if varying is None:
            varying = np.ptp(rows, axis=0) > 0
        start = Neighborhood.of(rows, weights, merge_tol)
        return cls(start, weights @ (rows * rows), float(weights.sum()), varying)

    @functools.cached_property
    def resolution(self) -> FloatArray:
        """The resolution of each feature, as `information.resolution` defines it, (n_features,)."""
        first = self.start.representatives
        return resolution(first.positions, first.multiplicity)

    def unrounded(self, dispersion: FloatArray) -> FloatArray:
        """Return the dispersion of the numbers that became the features' values by rounding.

        Rows with equal values of a feature need not move in it. If nearly all rows are equal in a
        feature, it would get all the weight.
        """
        told, variance = self.resolution, self.squares / self.weight
        return (1.0 - told) * variance + told * dispersion


def read_rows(passes: Passes, survey: Survey, merge_tol: float) -> tuple[Rows, NDArray[np.bool_]]:
    """Read the table into memory, in one pass.

    The result is the rows of positive weight in the model's coordinates, and their mask in the
    table.
    """
    pieces: list[_Piece] = passes.reduce(_piece, survey.coordinates)
    rows = np.concatenate([piece.rows for piece in pieces])
    weights = np.concatenate([piece.weights for piece in pieces])
    kept = np.concatenate([piece.kept for piece in pieces])
    return Rows.of(rows, weights, merge_tol, survey.varying), kept


class _Piece(NamedTuple):
    """Rows of positive weight of one block."""

    rows: FloatArray
    weights: FloatArray
    kept: NDArray[np.bool_]


def _piece(block: Block, coordinates: Coordinates) -> list[_Piece]:
    kept = block.masses > 0
    return [_Piece(coordinates.to_model(block.rows[kept]), block.masses[kept], kept)]


@dataclass(frozen=True)
class Blurred:
    """Result of blurring."""

    final: Neighborhood  # representatives after the last iteration
    feature_weights: FloatArray  # weights after the last iteration
    labels: Labels  # cluster of each row, the heaviest first, (n_rows,)
    modes: FloatArray  # mode of each cluster in the model's coordinates, (n_clusters, n_features)
    cluster_weights: FloatArray  # sum of the sample weights of each cluster, (n_clusters,)
    history: list[BlurringRecord]
    converged: bool  # False if more iterations might have changed the clusters


@registered
@dataclass(frozen=True)
class Progress:
    """State after some iterations; the history must not be mutated."""

    state: Neighborhood
    feature_weights: FloatArray  # weights of the next iteration
    stage: int  # index of the stage
    taken: int  # iterations of this stage so far
    calm: int  # iterations in a row without merging or noticeable attraction
    history: list[BlurringRecord]


def blur(
    rows: Rows,
    settings: Blurring,
    n_passes: int = 0,
    context: FitContext | None = None,
) -> Blurred:
    """Run weighted blurring mean shift (Algorithm 1 of Chakraborty, Paul & Das, AAAI 2021).

    y_i ← Σ_j v_j K_ij y_j / Σ_j v_j K_ij with K_ij = exp(−‖y_i − y_j‖²_w / h), then w from the
    dispersion D_l = (1/n) Σ_i v_i (x_il − y_il)²: w_l ∝ exp(−D_l / λ).

    `n_passes` is the number of passes over the data so far. Without a context of the fit, an
    interrupt is raised at once.
    """
    if context is None:
        context = FitContext(holds_interrupts=False)
    fixed = bool(np.isinf(settings.lam))
    stages = phases_of(settings.convention, settings.max_iter, fixed)
    if rows.learned:
        stages = stages[-1:]
    elif rows.feature_weights is not None:
        few = min(stages[0].iterations, _RELEARNING)
        stages = [replace(stages[0], iterations=few, self_term_from=few), *stages[1:]]
    stages = [stage for stage in stages if stage.iterations > 0]
    progress = _iterate(rows, settings, stages, n_passes, context)
    state, last = progress.state, stages[progress.stage]
    n_components, components = state.components(settings.component_tol)
    modes, masses = state.modes(components, n_components)
    met = group_sums(_met(state, progress, rows, settings), components.astype(np.intp))
    small = stragglers(masses, settings.least_weight(rows.weight), met)
    kept, joined = _without_stragglers(modes, progress.feature_weights, small)
    modes, cluster_weights = modes[kept], group_sums(masses, joined)
    order = _heaviest_first(modes, cluster_weights)
    rank = np.empty(len(kept), dtype=np.int32)
    rank[order] = np.arange(len(kept), dtype=np.int32)
    return Blurred(
        state,
        progress.feature_weights,
        rank[joined][components][state.members],
        modes[order],
        cluster_weights[order],
        progress.history,
        converged=not last.stops or progress.calm >= CALM_ITERATIONS,
    )


def _iterate(
    rows: Rows, settings: Blurring, stages: Sequence[Phase], n_passes: int, context: FitContext
) -> Progress:
    """Take all iterations, or those before a request to stop."""
    first = rows.feature_weights
    if first is None:
        first = softmin_weights(np.zeros(len(rows.varying)), np.inf, rows.varying)
    progress: Progress = context.journal.recall() or Progress(rows.start, first, 0, 0, 0, [])
    try:
        while context.stopped is None:
            if _is_over(stages[progress.stage], progress):
                if progress.stage + 1 == len(stages):
                    break
                stage = progress.stage + 1
                progress = replace(progress, state=rows.start, stage=stage, taken=0, calm=0)
            progress = _after(progress, rows, settings, stages[progress.stage], n_passes, context)
            context.journal.keep(progress)
            record = progress.history[-1]
            logger.debug("%s", record)
            context.tell(record)
    except KeyboardInterrupt as interrupt:
        context.stop(interrupt)
    return progress


def _is_over(stage: Phase, progress: Progress) -> bool:
    settled = stage.stops and progress.calm >= CALM_ITERATIONS
    return settled or progress.taken >= stage.iterations


def _after(
    old: Progress,
    rows: Rows,
    settings: Blurring,
    stage: Phase,
    n_passes: int,
    context: FitContext,
) -> Progress:
    """Take one iteration: move and merge, then update the feature weights if they are learned."""
    number = len(old.history) + 1
    self_term = old.taken >= stage.self_term_from
    least, met = settings.least_weight(rows.weight), _met(old.state, old, rows, settings)
    far = stragglers(old.state.representatives.multiplicity, least, met)
    # A small group that is not a straggler shows that clusters are still forming.
    formed = settings.convention == "auto" and not (met[~far] < least).any()
    shift = Shift(
        settings.bandwidth,
        self_term,
        settings.merge_tol,
        number,
        settings.lazy,
        ~far,
        ISOLATED if formed else np.inf,
    )
    state, attraction = old.state.step(old.feature_weights, shift)
    weights = old.feature_weights
    if not rows.learned:
        dispersion = state.representatives.dispersion(rows.squares, rows.weight)
        if settings.convention == "auto":
            dispersion = rows.unrounded(dispersion)
        weights = softmin_weights(dispersion, settings.lam, rows.varying)
    record = BlurringRecord(
        iteration=number,
        stage=stage.name,
        n_representatives=state.n,
        spread=state.representatives.diagonal,
        attraction=attraction,
        entropy=-negative_entropy(weights),
        n_passes=n_passes + number * state.passes_per_step,
        seconds=time.perf_counter() - context.began,
    )
    met = _met(state, old, rows, settings)
    still = (~stragglers(state.representatives.multiplicity, least, met)).sum() == (~far).sum()
    calm = old.calm + 1 if still and attraction <= ISOLATED else 0
    return Progress(state, weights, old.stage, old.taken + 1, calm, [*old.history, record])


def _met(state: Neighborhood, progress: Progress, rows: Rows, settings: Blurring) -> FloatArray:
    """Return the weight of the rows that have merged into each representative."""
    return state.met(rows.start, progress.feature_weights, settings.bandwidth)


def _without_stragglers(
    modes: FloatArray, feature_weights: FloatArray, small: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Let stragglers join the clusters with the nearest modes.

    The result is the indices of the clusters that are not stragglers and, for each cluster, the
    index among these of the cluster that it joins.
    """
    kept, root = np.flatnonzero(~small), np.sqrt(feature_weights)
    joined = np.empty(len(modes), dtype=np.intp)
    joined[kept] = np.arange(len(kept))
    if small.any():
        joined[small] = squared_distances(modes[small] * root, modes[kept] * root).argmin(axis=1)
    return kept, joined


def _heaviest_first(modes: FloatArray, weights: FloatArray) -> NDArray[np.intp]:
    """Order clusters by weight, and by position in a tie, independently of the rows' order."""
    keys = [*modes.T[::-1].round(6), -weights]
    return np.lexsort(keys)


def blur_rows(rows: FloatArray, weights: FloatArray, settings: Blurring) -> Blurred:
    """Run `blur` on rows in memory, in the model's coordinates and with positive weights."""
    with one_blas_thread():
        return blur(Rows.of(rows, weights, settings.merge_tol), settings)
