"""What the kernel estimators share: rows, Gram matrices, starts, assignment."""

from __future__ import annotations

import copy
import logging
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import kmeans_plusplus
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from daskmm import planning
from daskmm.cluster._estimator import MMClusterer
from daskmm.cluster._parameters import ANNEALING, annealing_schedule
from daskmm.cluster._sklearn import StrOptions
from daskmm.data.blocks import Layout, as_dask_array, is_lazy
from daskmm.data.input import read_table, read_weighted
from daskmm.data.validation import check_positive_weights, check_row_count
from daskmm.engine.distributed import computed
from daskmm.engine.first_pass import Survey, described_data, first_pass
from daskmm.engine.passes import one_blas_thread, weighted_passes, weights_in_memory
from daskmm.gram.assignment import distances_to_means
from daskmm.gram.build import build, checked_diagonal
from daskmm.gram.matrices import (
    MEMORY_BYTES,
    DenseGram,
    FactoredGram,
    GramSource,
    RecomputedGram,
    StoredGram,
    described_gram,
    free_bytes,
)
from daskmm.gram.nystrom import factor_of, kernel_plus_plus
from daskmm.gram.precomputed import precomputed
from daskmm.gram.problem import KernelProblem, KernelState
from daskmm.gram.store import GramStore
from daskmm.kmeans.assignment import map_rows
from daskmm.mm.context import FitContext
from daskmm.mm.driver import IterationRecord, Outcome, Schedule, iterate, minimize
from daskmm.mm.journal import Journal, draw_seeds
from daskmm.numerics.feature_space import critical_power_of_gram, one_hot
from daskmm.numerics.kernels import Kernel, finite_block
from daskmm.numerics.rows import Coordinates
from daskmm.planning import Plan

logger = logging.getLogger("daskmm")
FloatArray = NDArray[np.float64]

# Relative difference of means and scales that is rounding.
_SAME = 1e-12
# How `gram_` begins.
_MEMORY, _RECOMPUTED, _STORED_FOR_NOW = "memory", "recomputed", "stored for this fit"


class GramKeeping:
    """Mixin: memory, recomputation, or a store, by the parameter `gram`."""

    gram: str | Path
    standardize: bool

    gram_: str
    mean_: FloatArray
    scale_: FloatArray
    X_fit_: FloatArray
    kernels_: list[Kernel]

    def _n_kernels(self) -> int:
        return 1

    def _stored_coordinates(self, mine: Coordinates) -> Coordinates:
        """Those of a store that is there already, where they differ by no more than rounding.

        The mean of the same rows in other chunks differs in its last bits; the store's own lets
        its tiles be recognised.
        """
        path = Path(self.gram)
        if self.gram in ("auto", "recompute") or self._n_kernels() > 1 or not path.exists():
            return mine
        origin = GramStore(path).origin
        if origin is None:
            return mine
        stored = Coordinates(np.array(origin["mean"]), np.array(origin["scale"]))
        if stored.mean.shape != mine.mean.shape:
            return mine
        near = np.abs(stored.mean - mine.mean) <= _SAME * (mine.scale + np.abs(mine.mean))
        alike = np.abs(stored.scale - mine.scale) <= _SAME * mine.scale
        return stored if near.all() and alike.all() else mine

    def _gram_sources(self, scratch: Path, lazy: bool, journal: Journal) -> list[GramSource]:
        """Where each kernel's matrix is kept; `gram_` says why, and a resumed fit stays with it."""
        n_rows = len(self.X_fit_)
        self.gram_ = journal.once("gram", lambda: self._gram_choice(n_rows, scratch))
        logger.info("gram: %s", self.gram_)
        return [
            self._gram_source(kernel, index, scratch, lazy)
            for index, kernel in enumerate(self.kernels_)
        ]

    def _gram_source(self, kernel: Kernel, index: int, scratch: Path, lazy: bool) -> GramSource:
        rows = self.X_fit_
        diagonal = checked_diagonal(kernel, rows)
        if self.gram_.startswith(_MEMORY):
            return DenseGram(finite_block(kernel, rows, rows))
        if self.gram_.startswith(_RECOMPUTED):
            return RecomputedGram(rows, kernel, diagonal, lazy)
        path = scratch / "gram" if self.gram_.startswith(_STORED_FOR_NOW) else Path(self.gram)
        if len(self.kernels_) > 1:
            path = path / f"kernel-{index}"
        return StoredGram(self._store(path, kernel, lazy), rows, kernel, lazy)

    def _store(self, path: Path, kernel: Kernel, lazy: bool) -> GramStore:
        """A store completed, as it was begun, or a new one."""
        origin = {
            "standardize": bool(self.standardize),
            "columns": None,
            "mean": self.mean_.tolist(),
            "scale": self.scale_.tolist(),
            "bandwidth": "given",
            "root_mean_squared_distance": kernel.bandwidth,
        }
        if not path.exists():
            return build(path, self.X_fit_, kernel, lazy=lazy, origin=origin)
        begun = GramStore(path).manifest
        dtype, tile_rows = begun.dtype, begun.tile_rows
        return build(path, self.X_fit_, kernel, dtype=dtype, tile_rows=tile_rows, lazy=lazy)

    def _gram_choice(self, n_rows: int, scratch: Path) -> str:
        """Where to keep the matrices, in words."""
        if isinstance(self.gram, Path) or self.gram not in ("auto", "recompute"):
            return f"stored in {self.gram}"
        if self.gram == "recompute":
            return f"{_RECOMPUTED} in every sweep, as asked"
        dense = 8 * n_rows**2 * self._n_kernels()
        if dense <= MEMORY_BYTES:
            return f"{_MEMORY}: {dense / 1e6:.0f} MB are few"
        stored = 2 * n_rows**2 * self._n_kernels()
        free = free_bytes(scratch)
        if free < 2 * stored:
            return f"{_RECOMPUTED}: a store would take {stored / 1e9:.1f} of {free / 1e9:.1f} GB"
        return f"{_STORED_FOR_NOW}: {stored / 1e9:.1f} GB on disk"


# Starts that are annealed on Nyström features, and landmarks per cluster for it.
STARTS = 4
LANDMARKS_PER_CLUSTER = 10
# Rows from which the critical power in feature space is estimated.
_CRITICAL_ROWS = 1000
# s0="auto", in units of the critical power.
CRITICAL_MULTIPLE = 1.25
# A stage of a fit.
_LOW_RANK = "low rank"


class KernelClusterer(GramKeeping, MMClusterer):
    """Base of kernel and multi-kernel power k-means.

    A subclass says which kernels there are, and what the penalty of their weights is.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MMClusterer._parameter_constraints,
        **ANNEALING,
        "init": [StrOptions({"k-means++", "random"}), "array-like"],
        "gram": [str, Path],
    }

    init: str | ArrayLike
    gram: str | Path
    s0: float | str
    eta: float
    anneal_every: int
    polish: bool

    memberships_: FloatArray
    kernel_norms_: FloatArray
    kernel_weights_: FloatArray
    gram_: str
    mean_: FloatArray
    scale_: FloatArray
    X_fit_: FloatArray
    kernels_: list[Kernel]

    @abstractmethod
    def _kernels(self, survey: Survey) -> list[Kernel]:
        """Kernels to be used on rows in the model's coordinates."""

    @abstractmethod
    def _penalty(self) -> float:
        """λ of the kernel weights."""

    def _schedule(self, critical_power: float) -> Schedule:
        return annealing_schedule(self, critical_power, self.n_clusters, CRITICAL_MULTIPLE)

    def _precomputed(self) -> bool:
        return False

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Cluster the rows of `X`.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Brought into memory; it is the n × n Gram matrix that need not fit. With
            ``kernel="precomputed"`` the Gram matrix itself.
        y : ignored
        sample_weight : array-like or dask Array of shape (n_samples,), optional

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter, the data, a kernel's values or a Gram store cannot be used.
        KeyboardInterrupt
            If the user interrupts the fit. Where an iteration has been completed, the estimator
            is fitted then, with the model of the last one.
        """
        self._validate_params()
        with (
            self._context() as context,
            one_blas_thread(),
            context.journal.folder() as scratch,
        ):
            rng = check_random_state(self.random_state)
            # The sample of the first pass has a seed, the landmarks, and each start.
            seeds = draw_seeds(
                context.journal, rng, 1 + self._n_starts() + (not self._precomputed())
            )
            grams, weights = self._open(X, sample_weight, seeds, scratch, context.journal)
            passes_before = self.n_passes_
            outcome, before = self._minimize(grams, weights, seeds, context)
            self._store_history(outcome, before)
            self._store_means(outcome)
            self.n_passes_ = passes_before + max(gram.n_sweeps for gram in grams)
            self._warn(outcome, self.n_clusters, context)
        return self

    def _open(
        self, X: Any, sample_weight: Any, seeds: list[int], scratch: Path, journal: Journal
    ) -> tuple[list[GramSource], FloatArray]:
        """Gram matrices of the rows, and their sample weights; takes the seed that it needs."""
        grams: list[GramSource] = []

        def sweeps() -> int:
            return max((gram.n_sweeps for gram in grams), default=0)

        if self._precomputed():
            self.n_passes_ = 1
            table = read_table(self, X, reset=True)
            # In the user's own blocks, which `table` joins to whole rows.
            gram = precomputed(X if is_lazy(X) else table)
            self.gram_ = "precomputed"
            weights = weights_in_memory(sample_weight, len(gram.diagonal))
            check_row_count(len(weights), self.n_clusters)
            check_positive_weights(int(np.count_nonzero(weights)), self.n_clusters)
            grams.append(gram)
            gram.n_sweeps += journal.resume(described_gram(gram, weights), sweeps)
            return grams, weights
        table, raw_weights = read_weighted(self, X, sample_weight, reset=True)
        passes = weighted_passes(table, raw_weights)
        survey = first_pass(passes, self.n_clusters, bool(self.standardize), seeds.pop(0))
        n_sweeps = journal.resume(described_data(passes.blocks.layout, survey), sweeps)
        self.n_passes_ = passes.n_passes
        self._plan_of(passes.blocks.layout)
        assert isinstance(survey.coordinates, Coordinates)
        coordinates = self._stored_coordinates(survey.coordinates)
        self.mean_, self.scale_ = coordinates.mean, coordinates.scale
        self.X_fit_ = coordinates.to_model(np.asarray(computed(table)[0]))
        self.kernels_ = self._kernels(survey)
        weights = weights_in_memory(raw_weights, len(self.X_fit_))
        grams += self._gram_sources(scratch, is_lazy(X), journal)
        for gram in grams:
            gram.n_sweeps += n_sweeps
        return grams, weights

    def _minimize(
        self,
        grams: Sequence[GramSource],
        weights: FloatArray,
        seeds: list[int],
        context: FitContext,
    ) -> tuple[Outcome[KernelState], list[list[IterationRecord]]]:
        """Anneal cheaply and polish exactly, or anneal exactly from one start.

        Returns
        -------
        outcome : Outcome
        before : list of list of IterationRecord
            The cheap annealing of each start that was polished.
        """
        seed, *seeds = seeds
        schedule = self._schedule(_critical_power(grams, weights, seed))
        critical = schedule.critical_power
        exact = KernelProblem(grams, weights, critical, self._penalty())
        factors = self._factors(grams, weights, seed)
        starts = self._starts(factors, weights, seeds)
        if len(starts) == 1 or not self.polish:
            return minimize(exact, starts, schedule, context), []
        low_rank = [FactoredGram(factor) for factor in factors]
        cheap = KernelProblem(low_rank, weights, critical, self._penalty(), exact=False)
        annealed = iterate(cheap, starts, schedule, context, stage=_LOW_RANK)
        if context.stopped is not None:  # one sweep is enough to tell what there is
            annealed = [min(annealed, key=lambda run: run.last)]
        hard = Schedule(-np.inf, max_iter=self.max_iter, tol=self.tol)
        states = [run.state for run in annealed]
        outcome = minimize(exact, states, hard, context)
        return outcome, [run.history for run in annealed]

    def _n_starts(self) -> int:
        if not isinstance(self.init, str):
            return 1
        return STARTS if self.n_init == "auto" else int(self.n_init)

    def _factors(
        self, grams: Sequence[GramSource], weights: FloatArray, seed: int
    ) -> list[FloatArray]:
        """Nyström features of each kernel, from the same landmarks."""
        rng = np.random.RandomState(seed)
        wanted = LANDMARKS_PER_CLUSTER * self.n_clusters
        landmarks = kernel_plus_plus(grams[0], weights, wanted, rng)
        return [factor_of(gram, landmarks) for gram in grams]

    def _starts(
        self, factors: list[FloatArray], weights: FloatArray, seeds: Sequence[int]
    ) -> list[FloatArray]:
        """Memberships to start from: single rows, or the means of a label vector."""
        if not isinstance(self.init, str):
            return [self._label_means(weights)]
        features = np.concatenate(factors, axis=1)
        starts = []
        for seed in seeds:
            rng = np.random.RandomState(seed)
            if self.init == "random":
                probabilities = weights / weights.sum()
                rows = rng.choice(len(weights), self.n_clusters, replace=False, p=probabilities)
            else:
                _, rows = kmeans_plusplus(
                    features, self.n_clusters, sample_weight=weights, random_state=rng
                )
            start = np.zeros((len(weights), self.n_clusters))
            start[rows, np.arange(self.n_clusters)] = 1.0
            starts.append(start)
        return starts

    def _label_means(self, weights: FloatArray) -> FloatArray:
        """Memberships of the weighted means of a label vector."""
        weighted = one_hot(self._checked_labels(len(weights)), self.n_clusters) * weights[:, None]
        total = weighted.sum(axis=0)
        if not (total > 0).all():
            label = int(np.flatnonzero(total == 0)[0])
            raise ValueError(f"init: all rows of label {label} have sample_weight zero.")
        return weighted / total

    def _checked_labels(self, n_rows: int) -> NDArray[np.int64]:
        labels = np.asarray(self.init)
        if labels.shape != (n_rows,) or labels.dtype.kind not in "iu":
            raise ValueError(
                f"init must be a label (an integer) per row, of shape ({n_rows},); got shape "
                f"{labels.shape} and dtype {labels.dtype}."
            )
        if set(np.unique(labels)) != set(range(self.n_clusters)):
            raise ValueError(f"init must have all labels from 0 to {self.n_clusters - 1}.")
        return labels

    def plan(self, X: Any) -> Plan:
        """What a fit to `X` will cost: sweeps, memory, and disk for a Gram store. Reads no data.

        Parameters
        ----------
        X : as in `fit`

        Returns
        -------
        Plan

        Raises
        ------
        ValueError
            If there is too little memory, with the numbers and what to change.
        """
        return self._plan_of(self._planned_layout(X, self.n_clusters))

    def _plan_of(self, layout: Layout) -> Plan:
        """Cost of a fit to a table of this layout; refused where this process cannot hold it."""
        with tempfile.TemporaryDirectory() as scratch:
            choice = self._gram_choice(layout.n_rows or 0, Path(scratch))
        kept = choice.replace(":", " ").split()[0]
        return planning.gram_plan(
            layout,
            self.n_clusters,
            self._n_starts(),
            self._n_kernels(),
            self.max_iter,
            kept,
            precomputed=self._precomputed(),
        )

    def _store_means(self, outcome: Outcome[KernelState]) -> None:
        scored = outcome.scored.state
        assert scored.labels is not None
        assert scored.norms is not None
        self.labels_ = scored.labels
        self.memberships_ = outcome.run.state.memberships
        self.kernel_norms_ = scored.norms
        self.kernel_weights_ = scored.kernel_weights

    def _distances(self, X: Any) -> Any:
        """Feature-space distances of new rows to the means, (n, n_clusters), in row blocks."""
        check_is_fitted(self, "memberships_")
        table = read_table(self, X, reset=False)
        if self._precomputed():
            means: tuple[Any, ...] = (None, [], None)
        elif not hasattr(self, "X_fit_"):
            raise ValueError(
                "This model was loaded or unpickled without its training rows, which kernels of "
                "new rows need. Fit it again, or use n_landmarks, whose models keep what they need."
            )
        else:
            means = (Coordinates(self.mean_, self.scale_), self.kernels_, self.X_fit_)
        shared = (*means, self.kernel_weights_, self.memberships_, self.kernel_norms_)
        columns = self.n_clusters
        return map_rows(distances_to_means, table, *shared, columns=columns, dtype=np.float64)

    def predict(self, X: Any) -> Any:
        """Index of the nearest mean in feature space.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            New rows; or, with ``kernel="precomputed"``, their kernel values against the training
            rows, of shape (n_samples, n_training_samples).

        Returns
        -------
        ndarray or dask Array of int32, of shape (n_samples,)
            Lazy for dask and zarr input.

        Raises
        ------
        ValueError
            If the model was loaded without its training rows.
        """
        return self._distances(X).argmin(axis=1).astype(np.int32)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the sum of the distances to the nearest means, the negative of `inertia_`.

        Parameters
        ----------
        X : as in `predict`; with ``kernel="precomputed"`` the training Gram matrix itself
        y : ignored
        sample_weight : array-like or dask Array of shape (n_samples,), optional

        Returns
        -------
        float
        """
        smallest = np.asarray(self._distances(X)).min(axis=1)
        if self._precomputed():
            smallest = smallest + _diagonal_of(X)
        return -float(weights_in_memory(sample_weight, len(smallest)) @ np.maximum(smallest, 0.0))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy in memory keeps the training rows, unlike one that is pickled."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update({k: copy.deepcopy(v, memo) for k, v in vars(self).items()})
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Without the training rows."""
        state = super().__getstate__()
        state.pop("X_fit_", None)
        return state


def _critical_power(grams: Sequence[GramSource], weights: FloatArray, seed: int) -> float:
    """s_crit of a sample of rows in the feature space of all kernels together."""
    eligible = np.flatnonzero(weights > 0)
    if len(eligible) > _CRITICAL_ROWS:
        chosen = np.random.default_rng(seed).choice(eligible, _CRITICAL_ROWS, replace=False)
        eligible = np.sort(chosen)
    together = np.mean([gram.submatrix(eligible) for gram in grams], axis=0)
    return critical_power_of_gram(together, weights[eligible])


def _diagonal_of(matrix: Any) -> FloatArray:
    """Diagonal of a square table, which is not brought into memory for it."""
    if is_lazy(matrix):
        return np.asarray(computed(da.diagonal(as_dask_array(matrix)))[0], dtype=np.float64)
    return np.diag(np.asarray(matrix, dtype=np.float64))
