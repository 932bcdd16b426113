"""Weighted blurring mean shift: stages, feature weights, stopping and history."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import one_blas_thread
from daskmm.mean_shift.neighborhood import Labels, MemoryNeighborhood, Neighborhood, Shift
from daskmm.mm.context import FitContext
from daskmm.numerics.entropy import negative_entropy, softmin_weights
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

logger = logging.getLogger("daskmm")

CONVENTIONS = ("auto", "paper", "reference")
# Iterations that learn the feature weights before the data are blurred anew, and those that the
# authors' program blurs.
LEARNING_ITERATIONS = 20
REFERENCE_ITERATIONS = 30
# The end: as many representatives for this many iterations, none of which gets more than this
# share of its kernel sum from others, so that gaps are wide. Movement is no test: distant
# representatives attract each other for ever. Over 130 fits (six kinds of data, five bandwidths)
# an end so found was that of 300 iterations every time; with 1e-3, every fifth was not.
CALM_ITERATIONS = 5
ISOLATED = 1e-4
# The stage of a fit, as its journal knows it.
BLUR = "blur"


@registered
@dataclass(frozen=True)
class BlurringRecord:
    """What one iteration did.

    Attributes
    ----------
    iteration : int
        Counted from 1 over both stages.
    stage : {"learn", "blur"}
    n_representatives : int
        Distinct points, after merging.
    spread : float
        No two of them are farther apart: the diagonal of the box that holds them, in the model's
        coordinates.
    attraction : float
        Largest share of a kernel sum that came from other representatives; 1 where rows do not
        count for themselves.
    entropy : float
        Of the feature weights, −Σ w ln w (nats).
    n_components : int or None
        Connected components, where they are asked for in every iteration.
    n_passes : int
        Sweeps over the data and over all pairs so far.
    seconds : float
        Since the fit began.
    """

    iteration: int
    stage: str
    n_representatives: int
    spread: float
    attraction: float
    entropy: float
    n_components: int | None
    n_passes: int
    seconds: float


Callback = Callable[[BlurringRecord], object]


@dataclass(frozen=True)
class Stage:
    """Iterations from the rows where they are.

    Attributes
    ----------
    name : str
    iterations : int
        At most.
    self_term_from : int
        First iteration (from 0) in which a row counts for itself.
    stops : bool
        Whether it ends when nothing can happen any more.
    """

    name: str
    iterations: int
    self_term_from: int
    stops: bool


def stages_of(convention: str, max_iter: int, fixed_weights: bool) -> list[Stage]:
    """What is run under a convention.

    Parameters
    ----------
    convention : {"auto", "paper", "reference"}
    max_iter : int
        Iterations at most; "reference" does not look at it.
    fixed_weights : bool
        Whether there is nothing to learn.
    """
    if convention == "reference":
        learn = Stage("learn", LEARNING_ITERATIONS, LEARNING_ITERATIONS, stops=False)
        blur = Stage("blur", REFERENCE_ITERATIONS, REFERENCE_ITERATIONS, stops=False)
        return [learn, blur]
    if convention == "paper":
        return [Stage("blur", max_iter, 0, stops=True)]
    learning = 0 if fixed_weights else min(LEARNING_ITERATIONS, max_iter // 2)
    return [
        Stage("learn", learning, learning, stops=False),
        Stage("blur", max_iter - learning, 1, stops=True),
    ]


def max_iterations(convention: str, max_iter: int) -> int:
    """Iterations at most, of all stages."""
    return sum(stage.iterations for stage in stages_of(convention, max_iter, False))


@dataclass(frozen=True)
class Blurring:
    """Parameters of the algorithm.

    Attributes
    ----------
    bandwidth : float
        h in exp(−‖·‖²_w / h).
    lam : float
        Entropy penalty λ per unit of sample weight; inf keeps the weights equal.
    convention : {"auto", "paper", "reference"}
    max_iter : int
    merge_tol, component_tol : float
        Distances in the model's coordinates.
    count_components : bool
        Whether each iteration counts the components.
    lazy : bool
        Whether to compute on the active dask scheduler.
    """

    bandwidth: float
    lam: float
    convention: str = "auto"
    max_iter: int = 300
    merge_tol: float = 1e-6
    component_tol: float = 1e-5
    count_components: bool = False
    lazy: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows to be blurred, before the first iteration.

    Attributes
    ----------
    start : Neighborhood
    squares : ndarray of shape (n_features,)
        Σ_i v_i x_il².
    weight : float
        Σ_i v_i.
    varying : ndarray of bool of shape (n_features,)
        Features that are not constant; the others get weight 0.
    """

    start: Neighborhood
    squares: FloatArray
    weight: float
    varying: NDArray[np.bool_]


@dataclass(frozen=True)
class Blurred:
    """What blurring led to.

    Attributes
    ----------
    final : Neighborhood
    feature_weights : ndarray of shape (n_features,)
    labels : ndarray of shape (n_rows,), int32
        Cluster of each row, the heaviest first.
    modes : ndarray of shape (n_clusters, n_features)
        In the model's coordinates.
    cluster_weights : ndarray of shape (n_clusters,)
        Sum of the sample weights.
    history : list of BlurringRecord
    converged : bool
        False if more iterations might have changed the clusters.
    """

    final: Neighborhood
    feature_weights: FloatArray
    labels: Labels
    modes: FloatArray
    cluster_weights: FloatArray
    history: list[BlurringRecord]
    converged: bool


@registered
@dataclass(frozen=True)
class Progress:
    """Iterations so far; the history is not to be changed.

    Attributes
    ----------
    state : Neighborhood
        After the last one.
    feature_weights : ndarray of shape (n_features,)
    stage : int
        Number of the stage.
    taken : int
        Iterations of this stage.
    calm : int
        Iterations in a row that changed nothing, nor could.
    history : list of BlurringRecord
    """

    state: Neighborhood
    feature_weights: FloatArray
    stage: int
    taken: int
    calm: int
    history: list[BlurringRecord]


class _Iterations:
    """Takes iterations, one after the other."""

    def __init__(self, rows: Rows, settings: Blurring, n_passes: int, began: float) -> None:
        self.rows = rows
        self.settings = settings
        # Sweeps but for those of the iterations.
        self.n_passes = n_passes
        self.began = began
        fixed = bool(np.isinf(settings.lam))
        stages = stages_of(settings.convention, settings.max_iter, fixed)
        self.stages = [stage for stage in stages if stage.iterations > 0]

    def start(self) -> Progress:
        """Before the first iteration."""
        weights = softmin_weights(np.zeros(len(self.rows.varying)), np.inf, self.rows.varying)
        return Progress(self.rows.start, weights, 0, 0, 0, [])

    def over(self, progress: Progress) -> bool:
        """Whether all stages have been gone through."""
        return progress.stage + 1 == len(self.stages) and self._stage_over(progress)

    def converged(self, progress: Progress) -> bool:
        """Whether the last stage came to its end before its budget."""
        return not self.stages[progress.stage].stops or progress.calm >= CALM_ITERATIONS

    def _stage_over(self, progress: Progress) -> bool:
        stage = self.stages[progress.stage]
        return progress.taken >= stage.iterations or (
            stage.stops and progress.calm >= CALM_ITERATIONS
        )

    def after(self, old: Progress) -> Progress:
        """One iteration later."""
        if self._stage_over(old):
            old = replace(old, state=self.rows.start, stage=old.stage + 1, taken=0, calm=0)
        settings, number, stage = self.settings, len(old.history) + 1, self.stages[old.stage]
        self_term = old.taken >= stage.self_term_from
        shift = Shift(settings.bandwidth, self_term, settings.merge_tol, number, settings.lazy)
        state, spread = old.state.step(old.feature_weights, shift)
        dispersion = spread.dispersion(self.rows.squares, self.rows.weight)
        weights = softmin_weights(dispersion, settings.lam, self.rows.varying)
        components = None
        if settings.count_components:
            components, _ = state.components(settings.component_tol, settings.lazy)
        record = BlurringRecord(
            iteration=number,
            stage=stage.name,
            n_representatives=spread.n,
            spread=spread.diagonal,
            attraction=spread.attraction,
            entropy=-negative_entropy(weights),
            n_components=components,
            n_passes=self.n_passes + number,
            seconds=time.perf_counter() - self.began,
        )
        unchanged = spread.n == old.state.n and spread.attraction <= ISOLATED
        calm, history = old.calm + 1 if unchanged else 0, [*old.history, record]
        return Progress(state, weights, old.stage, old.taken + 1, calm, history)


def _run(iterations: _Iterations, context: FitContext) -> Progress:
    """Take all iterations, or those up to a request to stop."""
    progress: Progress = context.journal.recall(BLUR) or iterations.start()
    progress = replace(progress, state=progress.state.within(iterations.rows.start))
    try:
        while not iterations.over(progress) and context.stopped is None:
            progress = iterations.after(progress)
            context.journal.keep(BLUR, progress, files=progress.state.files)
            record = progress.history[-1]
            logger.debug("%s", record)
            context.tell(record)
    except KeyboardInterrupt as interrupt:
        context.stop(interrupt)
    return progress


def blur(
    rows: Rows,
    settings: Blurring,
    n_passes: int = 0,
    context: FitContext | None = None,
) -> Blurred:
    """Weighted blurring mean shift.

    y_i ← Σ_j v_j K_ij y_j / Σ_j v_j K_ij with K_ij = exp(−‖y_i − y_j‖²_w / h), then w from the
    dispersion D_l = (1/n) Σ_i v_i (x_il − y_il)²: w_l ∝ exp(−D_l / λ).

    Parameters
    ----------
    rows : Rows
    settings : Blurring
    n_passes : int
        Passes over the data so far.
    context : FitContext, optional
        Its callbacks are called once per iteration. Without one, an interrupt is raised at once.

    Returns
    -------
    Blurred

    References
    ----------
    Chakraborty, Paul & Das, "Automated Clustering of High-dimensional Data with a Feature
    Weighted Mean Shift Algorithm", AAAI 2021, Algorithm 1.
    """
    if context is None:
        context = FitContext(holds_interrupts=False)
    iterations = _Iterations(rows, settings, n_passes, context.began)
    run = _run(iterations, context)
    n_clusters, labels = run.state.components(settings.component_tol, settings.lazy)
    modes, cluster_weights = run.state.modes(labels, n_clusters)
    order = _heaviest_first(modes, cluster_weights)
    rank = np.empty(n_clusters, dtype=np.int32)
    rank[order] = np.arange(n_clusters, dtype=np.int32)
    return Blurred(
        run.state,
        run.feature_weights,
        run.state.row_labels(rank[labels]),
        modes[order],
        cluster_weights[order],
        run.history,
        iterations.converged(run),
    )


def _heaviest_first(modes: FloatArray, weights: FloatArray) -> NDArray[np.intp]:
    """Order of the clusters: by weight, ties by place. It does not depend on that of the rows."""
    keys = [*modes.T[::-1].round(6), -weights]
    return np.lexsort(keys)


def rows_in_memory(
    rows: FloatArray,
    weights: FloatArray,
    merge_tol: float,
    varying: NDArray[np.bool_] | None = None,
) -> Rows:
    """Rows in memory as `blur` takes them.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        In the model's coordinates, centred near the origin.
    weights : ndarray of shape (n_rows,)
        Sample weights, positive.
    merge_tol : float
    varying : ndarray of bool of shape (n_features,), optional
        Features that are not constant; found here when absent.
    """
    if varying is None:
        varying = np.ptp(rows, axis=0) > 0
    start = MemoryNeighborhood.of(rows, weights, merge_tol)
    return Rows(start, weights @ (rows * rows), float(weights.sum()), varying)


def blur_rows(rows: FloatArray, weights: FloatArray, settings: Blurring) -> Blurred:
    """`blur` of rows in memory, from beginning to end.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        In the model's coordinates, centred near the origin.
    weights : ndarray of shape (n_rows,)
        Sample weights, positive.
    settings : Blurring

    Returns
    -------
    Blurred
    """
    with one_blas_thread():
        return blur(rows_in_memory(rows, weights, settings.merge_tol), settings)
