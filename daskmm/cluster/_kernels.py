"""Base class of the kernel estimators: fit, plan, assignment of new rows, score."""

from __future__ import annotations

import copy
import logging
import tempfile
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from daskmm import planning
from daskmm.cluster._docs import documented
from daskmm.cluster._estimator import MMClusterer
from daskmm.cluster._fitting import attributes_of_outcome, fitting, set_fitted
from daskmm.cluster._output import fitted_labels, labels_of_table
from daskmm.cluster._parameters import (
    ANNEALING,
    HARMONIC,
    annealing_schedule,
)
from daskmm.cluster._sklearn import StrOptions
from daskmm.cluster._warnings import warn_of_identifiers, warn_of_outcome
from daskmm.data.blocks import Block, Layout, as_dask_array, is_lazy
from daskmm.data.input import by_name, read_table, read_weighted
from daskmm.data.lazy import in_memory
from daskmm.data.validation import check_positive_weights, check_row_count
from daskmm.engine.clients import computed
from daskmm.engine.first_pass import Survey, described_data, first_pass
from daskmm.engine.passes import Passes, weighted_passes, weights_in_memory
from daskmm.engine.threads import one_blas_thread
from daskmm.gram.costs import GramCosts
from daskmm.gram.fit import MEMBERSHIPS, KernelFit
from daskmm.gram.matrices import Grams
from daskmm.gram.opening import Opening
from daskmm.gram.precomputed import described_gram, precomputed
from daskmm.gram.problem import KernelState, distances_to_means
from daskmm.gram.sources import choose_source, kernel_rows, open_sources, stored_coordinates
from daskmm.kmeans.assignment import map_rows
from daskmm.kmeans.method import Method
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Outcome, Schedule
from daskmm.mm.journal import draw_seeds
from daskmm.mm.stages import Stage, run_stages
from daskmm.numerics.kernels import Kernel
from daskmm.numerics.rows import Coordinates
from daskmm.planning import Plan

logger = logging.getLogger("daskmm")
FloatArray = NDArray[np.float64]

# Number of starts that are annealed on Nyström features, and number of landmarks per cluster.
STARTS = 4
LANDMARKS_PER_CLUSTER = 10
# s0="auto", in units of the critical power.
CRITICAL_MULTIPLE = 1.25


@documented
@dataclass(eq=False, repr=False)
class KernelClusterer(MMClusterer):
    """Base of kernel and multi-kernel power k-means.

    A subclass defines the kernels and the penalty of their weights.
    """

    n_clusters: int = 8
    _: KW_ONLY
    s0: float | str = "auto"
    eta: float = 1.05
    anneal_every: int = 1
    polish: bool = True
    gram: str | Path = "auto"
    init: str | ArrayLike = "k-means++"
    n_init: int | str = "auto"
    tol: float = 1e-4

    # Penalty of the kernel weights, which has no effect on a single kernel.
    lam = 1.0

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MMClusterer._parameter_constraints,
        **ANNEALING,
        "init": [StrOptions({"k-means++", "random"}), "array-like"],
        "gram": [str, Path],
    }

    memberships_: FloatArray = field(init=False)
    kernel_norms_: FloatArray = field(init=False)
    kernel_weights_: FloatArray = field(init=False)
    gram_: str = field(init=False)
    X_fit_: FloatArray = field(init=False)
    kernels_: list[Kernel] = field(init=False)

    @abstractmethod
    def _kernels(self, survey: Survey) -> list[Kernel]:
        """Return the kernels, to be evaluated on rows in the model's coordinates."""

    @abstractmethod
    def _centers(self) -> bool:
        """Return whether the kernels are given centred rows."""

    def _scales(self) -> bool:
        """Return whether features are standardised."""
        return bool(self.standardize)

    def _n_kernels(self) -> int:
        return 1

    def _schedule(self, critical_power: float) -> Schedule:
        return annealing_schedule(self, critical_power, self.n_clusters, CRITICAL_MULTIPLE)

    def _precomputed(self) -> bool:
        return False

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Cluster the rows of `X`.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows to be clustered; with ``kernel="precomputed"`` the Gram matrix itself. Exact fits
            keep the rows in memory, as float64.
        [y, sample_weight]

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter, the data, a kernel's values or a Gram store cannot be used.
        [interrupt]
        """
        self._validate_params()
        with fitting(self) as (model, context), one_blas_thread():
            passes = None
            if not model._precomputed():
                table, sample_weight = read_weighted(model, X, sample_weight, reset=True)
                passes = weighted_passes(table, sample_weight)
                passes.count_rows()
            model._fit(X, sample_weight, passes, context)
        return self

    def _fit(self, X: Any, sample_weight: Any, passes: Passes | None, context: FitContext) -> None:
        """Run kernel power k-means on the Gram matrices of the rows, or on the one given as `X`."""
        if passes is not None:
            plan = self._plan_of(passes.blocks.layout, timed=context.followed)
            context.expect(plan.stages, self.tol)
        with context.journal.folder() as scratch:
            rng = check_random_state(self.random_state)
            opening = Opening(passes, sample_weight, rng, scratch, context, X)
            opened = run_stages(self._opening_stages(passes is None), opening)
            fit = run_stages(MEMBERSHIPS, self._kernel_fit(opened))
            n_passes = 1 if passes is None else passes.n_passes
            found = {
                **opened.fitted,
                **attributes_of_outcome(fit.result, fit.before),
                **_attributes_of(fit.result),
                **fitted_labels(fit.result.scored.state.labels, X),
                "n_passes_": n_passes + opened.grams.n_passes,
            }
            set_fitted(self, found)
            warn_of_outcome(vars(self), fit.result, self.n_clusters, found["s_"], context)

    def _opening_stages(self, precomputed: bool) -> list[Stage[Opening]]:
        """Return the stages that open the matrix of each kernel."""
        drawn = Stage("seeds", self._drawn)
        if precomputed:
            return [drawn, Stage("given matrix", self._open_matrix, GramCosts.survey)]
        return [
            drawn,
            Stage("first pass", self._surveyed, GramCosts.survey),
            Stage("place of the matrices", self._choose_place),
            Stage("Gram matrices", self._open_rows, GramCosts.matrices),
        ]

    def _drawn(self, opening: Opening) -> Opening:
        """Draw the seeds of the first pass (if there is one), of landmarks and of each start."""
        first = opening.passes is not None
        size = first + 1 + self._n_starts()
        return replace(opening, seeds=draw_seeds(opening.context.journal, opening.rng, size))

    def _open_matrix(self, opening: Opening) -> Opening:
        """Check a precomputed Gram matrix."""
        X = opening.table
        table = read_table(self, X, reset=True)
        # A lazy matrix is taken in the user's own blocks; `table` has rechunked them to whole rows.
        gram = precomputed(X if is_lazy(X) else table)
        weights = weights_in_memory(opening.sample_weight, len(gram.diagonal))
        check_row_count(len(weights), self.n_clusters)
        check_positive_weights(int(np.count_nonzero(weights)), self.n_clusters)
        grams = Grams([gram])
        opening.context.journal.resume(described_gram(gram, weights), grams)
        return replace(opening, grams=grams, weights=weights, fitted={"gram_": "precomputed"})

    def _surveyed(self, opening: Opening) -> Opening:
        """Make the first pass."""
        passes, context = opening.rows, opening.context
        seed, centered = opening.seeds[0], self._centers()
        survey = first_pass(passes, self.n_clusters, self._scales(), seed, centered=centered)
        warn_of_identifiers(self, survey.identifiers)
        layout, grams = passes.blocks.layout, Grams()
        context.journal.resume(described_data(layout, survey), grams)
        assert isinstance(survey.coordinates, Coordinates)
        coordinates = survey.coordinates
        if self._n_kernels() == 1:
            coordinates = stored_coordinates(self.gram, coordinates)
        rows = kernel_rows(passes.blocks.table, coordinates)
        weights = weights_in_memory(opening.sample_weight, survey.n_rows)
        passes.check_gathered(rows, weights, coordinates)
        fitted = {
            "mean_": coordinates.mean,
            "scale_": coordinates.scale,
            "X_fit_": rows,
            "kernels_": self._kernels(survey),
        }
        return replace(
            opening,
            seeds=opening.seeds[1:],
            grams=grams,
            weights=weights,
            kernel_rows=rows,
            coordinates=coordinates,
            fitted=fitted,
        )

    def _choose_place(self, opening: Opening) -> Opening:
        """Choose where the matrices are kept."""
        n_rows, scratch = len(opening.weights), opening.scratch
        n_kernels = len(opening.fitted["kernels_"])
        choice = opening.context.journal.once(
            lambda: choose_source(self.gram, n_rows, n_kernels, scratch)
        )
        logger.info("gram: %s", choice)
        return replace(opening, fitted={**opening.fitted, "gram_": choice})

    def _open_rows(self, opening: Opening) -> Opening:
        """Open the Gram matrix of each kernel."""
        rows, coordinates, fitted = opening.kernel_rows, opening.coordinates, opening.fitted
        origin = {"mean": coordinates.mean.tolist(), "scale": coordinates.scale.tolist()}
        opening.grams.extend(
            open_sources(
                fitted["gram_"],
                self.gram,
                fitted["kernels_"],
                rows,
                opening.scratch,
                opening.rows.blocks.layout.lazy,
                origin,
            )
        )
        return opening

    def _kernel_fit(self, opened: Opening) -> KernelFit:
        """Return the fit on open matrices before its first stage."""
        return KernelFit(
            opened.grams,
            opened.weights,
            opened.seeds,
            self.n_clusters,
            LANDMARKS_PER_CLUSTER * self.n_clusters,
            self.init if isinstance(self.init, str) else in_memory(self.init),
            self._schedule,
            float(self.lam),
            opened.context,
        )

    def _n_starts(self) -> int:
        if not isinstance(self.init, str):
            return 1
        return STARTS if self.n_init == "auto" else int(self.n_init)

    def _plan_of(self, layout: Layout, timed: bool = False) -> Plan:
        """Return the cost of a fit to such a table; raise if this process cannot hold it."""
        scratch = Path(tempfile.gettempdir())
        choice = choose_source(self.gram, layout.n_rows or 0, self._n_kernels(), scratch)
        kept = choice.replace(":", " ").split()[0]
        # The critical power in a kernel's feature space is near -1 to -20.
        schedule, precomputed = self._schedule(HARMONIC * 4), self._precomputed()
        stages: list[Stage[Any]] = [*self._opening_stages(precomputed), *MEMBERSHIPS]
        return planning.gram_plan(
            layout,
            self._method(layout, schedule, on_sample=False),
            stages,
            n_kernels=self._n_kernels(),
            kept=kept,
            precomputed=precomputed,
            timed=timed,
        )

    def _method(self, layout: Layout, schedule: Schedule, *, on_sample: bool) -> Method:
        """Return the choices of a fit to a table of this layout."""
        n_landmarks = min(LANDMARKS_PER_CLUSTER * self.n_clusters, layout.n_rows or 0)
        n_starts = self._n_starts()
        return Method(self.n_clusters, n_starts, schedule, on_sample, n_landmarks=n_landmarks)

    def _distance_function(self) -> tuple[Callable[..., NDArray], tuple[Any, ...]]:
        """Return the block function of squared distances to the means, and its arguments."""
        check_is_fitted(self, "memberships_")
        if self._precomputed():
            means: tuple[Any, ...] = (None, [], None)
        elif "X_fit_" not in vars(self):
            raise ValueError(
                "This model was loaded or unpickled without its training rows, which kernels of "
                "new rows need. Fit it again, or use n_landmarks, whose models keep what they need."
            )
        else:
            means = (Coordinates(self.mean_, self.scale_), self.kernels_, self.X_fit_)
        shared = (*means, self.kernel_weights_, self.memberships_, self.kernel_norms_)
        return distances_to_means, shared

    def predict(self, X: Any) -> Any:
        """Return the index of the nearest mean in feature space, among those of clusters with rows.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            New rows. With ``kernel="precomputed"``, these are their kernel values with the training
            rows, of shape (n_samples, n_training_samples). Columns of a DataFrame are found by
            name, in any order and among others.

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            Lazy for dask and zarr input: a Series aligned with a dask DataFrame, otherwise an
            array.

        Raises
        ------
        ValueError
            If the model was loaded without its training rows.
        """
        function, shared = self._distance_function()
        # Means of clusters without rows may equal others, and rounding would choose among them.
        empty = self.cluster_sizes_ == 0
        return labels_of_table(self, X, _nearest, function, empty, *shared)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return minus the sum of the distances to the nearest means, the negative of `inertia_`.

        Parameters
        ----------
        X : as in `predict`; with ``kernel="precomputed"`` the training Gram matrix itself
            Rows whose distances are added up.
        [y, sample_weight]

        Returns
        -------
        float
        """
        function, shared = self._distance_function()
        table = read_table(self, by_name(self, X), reset=False)
        columns = self.n_clusters
        distances = map_rows(function, table, *shared, columns=columns, dtype=np.float64)
        smallest = in_memory(distances).min(axis=1)
        if self._precomputed():
            smallest = smallest + _diagonal_of(X)
        return -float(weights_in_memory(sample_weight, len(smallest)) @ np.maximum(smallest, 0.0))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy with the training rows, which a pickle leaves out."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update({k: copy.deepcopy(v, memo) for k, v in vars(self).items()})
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the training rows."""
        state = super().__getstate__()
        state.pop("X_fit_", None)
        return state


def _attributes_of(outcome: Outcome[KernelState]) -> dict[str, Any]:
    """Return the fitted attributes of memberships and kernel weights."""
    scored = outcome.scored.state
    assert scored.norms is not None
    return {
        "memberships_": outcome.run.state.memberships,
        "kernel_norms_": scored.norms,
        "kernel_weights_": scored.kernel_weights,
    }


def _nearest(
    block: Block, function: Callable[..., NDArray], empty: NDArray[np.bool_], *shared: Any
) -> NDArray[np.int32]:
    """Return the cluster at the smallest distance per row of one block, one that is not empty."""
    distances = np.where(empty, np.inf, function(block, *shared))
    return distances.argmin(axis=1).astype(np.int32)


def _own_entries(block: Block) -> FloatArray:
    """Return the diagonal entry of each row of a block of a square table."""
    n = np.arange(len(block.rows))
    return np.asarray(block.rows[n, block.position.start + n], dtype=np.float64)


def _diagonal_of(matrix: Any) -> FloatArray:
    """Return the diagonal of a square table, computed lazily for a lazy one."""
    if is_lazy(matrix):
        own = map_rows(_own_entries, as_dask_array(matrix), dtype=np.float64)
        return np.asarray(computed(own)[0])
    return np.diag(np.asarray(matrix, dtype=np.float64))
