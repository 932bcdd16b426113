"""What all centre-based estimators share: input, the fit, assignment."""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from daskmm import planning
from daskmm.cluster._estimator import MMClusterer, warn_convergence
from daskmm.cluster._parameters import ClusterNumber, Metric
from daskmm.data.blocks import Layout, float_dtype
from daskmm.data.input import read_table, read_weighted
from daskmm.engine.first_pass import Survey, described_data
from daskmm.engine.passes import Passes, one_blas_thread, weighted_passes
from daskmm.kmeans.assignment import cost, distances_of, labels_of, map_rows, training_labels
from daskmm.kmeans.empty_clusters import METHODS, RandomRows, left_in_place, split_coincident
from daskmm.kmeans.mahalanobis import learned
from daskmm.kmeans.medians import with_exact_medians
from daskmm.kmeans.restarts import Restarts, refined
from daskmm.kmeans.sample_annealing import SampleAnnealing
from daskmm.kmeans.seeding import starting_centers
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, PowerUpdate, Relocation, Update, to_worst_served
from daskmm.mm.context import FitContext
from daskmm.mm.driver import IterationRecord, Outcome, Schedule, minimize
from daskmm.mm.journal import draw_seeds
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN
from daskmm.numerics.rows import Coordinates, WhitenedCoordinates
from daskmm.planning import Plan


class NearestCenter(ClassNamePrefixFeaturesOutMixin, TransformerMixin, MMClusterer):
    """Base of the estimators whose clusters have centres in the space of the rows."""

    cluster_centers_: NDArray[np.float64]
    mean_: NDArray[np.float64]
    scale_: NDArray[np.float64]

    def _fitted_state(self) -> tuple[Coordinates | WhitenedCoordinates, CenterState]:
        """What assignment needs, from public attributes alone."""
        check_is_fitted(self, "cluster_centers_")
        coordinates = self._fitted_coordinates()
        weights = getattr(self, "feature_weights_", None)
        centers = coordinates.to_model(self.cluster_centers_)
        metric = self._fitted_distortion(centers)
        return coordinates, CenterState(centers, -np.inf, weights, *metric)

    def _fitted_coordinates(self) -> Coordinates | WhitenedCoordinates:
        precision = getattr(self, "precision_", None)
        if precision is None:
            return Coordinates(self.mean_, self.scale_)
        return WhitenedCoordinates.of(self.mean_, precision)

    def _fitted_distortion(self, centers: NDArray[np.float64]) -> tuple[Distortion, bool]:
        """The distortion, and whether values may be missing; k-means' unless overridden."""
        return SQUARED_EUCLIDEAN, False

    def predict(self, X: Any) -> Any:
        """Index of the nearest centre, in the model's distance.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)

        Returns
        -------
        ndarray or dask Array of int32, of shape (n_samples,)
            Lazy for dask and zarr input.
        """
        state = self._fitted_state()
        return map_rows(labels_of, read_table(self, X, reset=False), *state)

    def transform(self, X: Any) -> Any:
        """Distances to the centres in the model's scale: unsquared ones, or divergences.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)

        Returns
        -------
        ndarray or dask Array of shape (n_samples, number of centres)
            float32 for float32, float16 and integers of 8 or 16 bits, float64 otherwise; lazy
            for dask and zarr input.
        """
        state = self._fitted_state()
        table = read_table(self, X, reset=False)
        columns, dtype = len(self.cluster_centers_), float_dtype(table.dtype)
        return map_rows(distances_of, table, *state, columns=columns, dtype=dtype)


# Starts where annealing happens in memory; one where each iteration reads a disk.
STARTS_IN_MEMORY = 8
# Sums of squares that leave room for sums over rows.
_LARGEST_SQUARE = 1e290
# empty_cluster="restart": fits until one has no empty cluster.
RESTARTS = 10
# Draws rows for centres of emptied clusters.
RELOCATION_SEED = 0


class CenterClusterer(Metric, ClusterNumber, NearestCenter):
    """Base of the estimators whose clusters are centres.

    A subclass says what its schedule is and, where it is not power k-means', its update.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MMClusterer._parameter_constraints,
        **ClusterNumber._sampling_constraints,
        **ClusterNumber._number_constraints,
        **Metric._metric_constraints,
        "standardize": ["boolean", StrOptions({"auto"})],
        "init": [StrOptions({"k-means++", "k-means||", "random"}), "array-like"],
        "empty_cluster": [StrOptions(set(METHODS))],
    }

    init: str | ArrayLike
    empty_cluster: str

    @abstractmethod
    def _schedule(self, survey: Survey) -> Schedule:
        """How the power falls on these data."""

    @abstractmethod
    def _expected_schedule(self, n_features: int) -> Schedule:
        """Schedule on rows without any direction, for plans made before data are read."""

    def _update(self, survey: Survey) -> Update:
        """Update and penalty; power k-means' unless overridden."""
        return PowerUpdate(survey.distortion, survey.partial, self._relocation(survey))

    def _relocation(self, survey: Survey) -> Relocation:
        """What becomes of the centres of clusters that a hard step emptied."""
        if self.empty_cluster == "farthest":
            return to_worst_served
        if self.empty_cluster == "random":
            return RandomRows(survey.sample, RELOCATION_SEED)
        return left_in_place

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Cluster the rows of `X`.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Data in memory are clustered by threads of this process. Dask and zarr data are
            streamed through the active dask scheduler, each block loaded once per pass.
        y : ignored
        sample_weight : array-like or dask Array of shape (n_samples,), optional
            Weights, not negative; chunked in any way. An integer weight counts like as many
            copies of the row.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the data cannot be used; where values are at fault, with the block
            and row at which they stand.
        KeyboardInterrupt
            If the user interrupts the fit. Where an iteration has been completed, the estimator
            is fitted then, with the model of the last one.
        """
        self._validate_params()
        with self._context() as context:
            table, weights = read_weighted(self, X, sample_weight, reset=True)
            init = self._checked_init()
            passes = weighted_passes(table, weights)
            with one_blas_thread(), passes.persisted(self.persist):
                survey, outcome = self._minimize(passes, init, context)
            self._store(outcome, survey)
            self.labels_ = training_labels(table, passes, *self._fitted_state())
            self.n_passes_ = passes.n_passes
            self._warn(outcome, context)
        return self

    def _minimize(
        self,
        passes: Passes,
        init: str | NDArray[np.float64],
        context: FitContext,
    ) -> tuple[Survey, Outcome[CenterState]]:
        """First pass, seeding and the MM iterations."""
        journal = context.journal
        rng = check_random_state(self.random_state)
        passes.count_rows()
        layout = passes.blocks.layout
        self._plan_of(layout)
        seed, *seeds = draw_seeds(journal, rng, 1 + self._n_starts(layout))
        survey = self._survey(passes, seed, **self._metric_of_rows())
        passes.add(journal.resume(described_data(layout, survey), lambda: passes.n_passes))
        survey = self._in_metric(survey)
        starts = journal.once("starts", lambda: self._starts(init, passes, survey, seeds))
        update, schedule = self._update(survey), self._schedule(survey)
        spread = survey.spread
        problem = CentersProblem(passes, survey.coordinates, survey.weight, update, spread)
        annealing = None
        if self._samples(layout):
            annealing = SampleAnnealing(
                survey.sample,
                survey.reserve,
                survey.coordinates,
                update,
                spread,
                _annealed_dtype(survey, layout),
                schedule,
                seed,
                self._restarts(schedule, update),
            )
        outcome, before = _minimized(problem, starts, schedule, context, annealing)
        if annealing is None and self._restarts(schedule, update) and context.stopped is None:
            restarts = Restarts(survey.sample, len(starts), seed, lazy=False)
            outcome = refined(outcome, problem, restarts, schedule, context)
        for _ in range(RESTARTS if self.empty_cluster == "restart" else 0):
            whole = outcome.scored.cluster_weights.all()
            if whole or context.stopped is not None or not isinstance(init, str):
                break
            again = draw_seeds(journal, rng, len(seeds))
            starts = journal.once(
                "starts", functools.partial(self._starts, init, passes, survey, again)
            )
            outcome, before = _minimized(problem, starts, schedule, context, annealing)
        if context.stopped is None:
            survey, outcome = self._finished(problem, survey, outcome, schedule, context)
        self._store_history(outcome, before)
        return survey, outcome

    def _starts(
        self, init: str | NDArray[np.float64], passes: Passes, survey: Survey, seeds: list[int]
    ) -> list[NDArray[np.float64]]:
        """Centres to start from, in the model's coordinates."""
        if isinstance(init, str):
            return starting_centers(init, passes, survey, self._n_sought, np.asarray(seeds))
        with np.errstate(over="ignore", invalid="ignore"):  # found below
            start = self._started(init, survey)
            return [_in_range(start)]

    def _finished(
        self,
        problem: CentersProblem,
        survey: Survey,
        outcome: Outcome[CenterState],
        schedule: Schedule,
        context: FitContext,
    ) -> tuple[Survey, Outcome[CenterState]]:
        """What follows the steps: empty clusters, coincident centres, a matrix, exact medians."""
        empty = np.flatnonzero(outcome.scored.cluster_weights == 0)
        if len(empty) and self.empty_cluster == "error":
            raise ValueError(
                f"{len(empty)} of {self._n_sought} clusters became empty (first: cluster "
                f"{empty[0]}), which empty_cluster='error' refuses. Ask for fewer clusters, or "
                "set empty_cluster to 'farthest'."
            )
        outcome, n_split = split_coincident(problem, outcome, schedule, context)
        if n_split:
            warn_convergence(
                f"{n_split} of {self._n_sought} centres coincided with another one after the "
                f"annealing, were moved to rows ({self.empty_cluster}), and polished.",
                depth=2,
            )
        if self.distortion == "mahalanobis" and self.metric_params is None:
            coordinates, outcome = learned(problem, outcome, schedule, context)
            survey = replace(survey, coordinates=coordinates)
        lazy = problem.passes.blocks.layout.lazy
        if problem.degree == 1 and not lazy and outcome.run.state.s == -np.inf:
            outcome = with_exact_medians(problem, outcome)
        return survey, outcome

    def _restarts(self, schedule: Schedule, update: Update) -> bool:
        """Whether to anneal once more with the feature weights that were learned.

        Not from given centres: they say where clusters are to be. And for squared distances of
        whole rows alone.
        """
        plain = self.distortion == "sqeuclidean" and self.missing == "error"
        return schedule.polish and not update.hedged and isinstance(self.init, str) and plain

    def _n_starts(self, layout: Layout) -> int:
        if not isinstance(self.init, str):
            return 1
        if self.n_init == "auto":
            return 1 if layout.lazy and not self._samples(layout) else STARTS_IN_MEMORY
        return int(self.n_init)

    def _checked_init(self) -> str | NDArray[np.float64]:
        """The name of a method, or given centres, which must fit the data and n_clusters."""
        if isinstance(self.init, str):
            return self.init
        try:
            centers = np.asarray(self.init, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"init must be an array of numbers: {error}") from error
        if isinstance(self.n_clusters, str):
            raise ValueError("init must be the name of a method where n_clusters='auto'.")
        expected = (self.n_clusters, self.n_features_in_)
        if centers.shape != expected:
            raise ValueError(
                f"init has shape {centers.shape}; with n_clusters={self.n_clusters} and "
                f"{self.n_features_in_} features it must be {expected}."
            )
        if not np.isfinite(centers).all():
            raise ValueError("init contains NaN or infinity.")
        return centers

    def _store(self, outcome: Outcome[CenterState], survey: Survey) -> None:
        state = outcome.run.state
        self.mean_ = survey.coordinates.mean
        self.scale_ = survey.coordinates.scale
        self.cluster_centers_ = survey.coordinates.to_input(state.centers)
        if isinstance(survey.coordinates, WhitenedCoordinates):
            whitening = survey.coordinates.whitening
            self.precision_ = whitening @ whitening.T
        elif hasattr(self, "precision_"):
            del self.precision_
        self._n_features_out = len(self.cluster_centers_)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the sum of the distances to the nearest centres, the negative of `inertia_`.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        y : ignored
        sample_weight : array-like or dask Array of shape (n_samples,), optional

        Returns
        -------
        float
        """
        state = self._fitted_state()
        table, weights = read_weighted(self, X, sample_weight, reset=False)
        return -cost(weighted_passes(table, weights), *state)

    def plan(self, X: Any) -> Plan:
        """What a fit to `X` will cost. Reads no data.

        Parameters
        ----------
        X : as in `fit`

        Returns
        -------
        Plan

        Raises
        ------
        ValueError
            If workers have too little memory, with the numbers and what to change.
        """
        return self._plan_of(self._planned_layout(X))

    def _plan_of(self, layout: Layout) -> Plan:
        """Cost of a fit to a table of this layout; refused where workers cannot hold it."""
        return planning.plan(
            layout,
            self._n_at_most,
            self._n_starts(layout),
            self._expected_schedule(layout.n_features),
            planning.SEEDING_PASSES if _is(self.init, "k-means||") else 0,
            sampled=self._samples(layout),
            wanted=self._sample_rows(),
        )


def _annealed_dtype(survey: Survey, layout: Layout) -> np.dtype:
    """Floating type of the blocks' distances, which will do for the sample's."""
    mixed = isinstance(survey.coordinates, WhitenedCoordinates)
    return np.dtype(np.float64) if mixed else float_dtype(layout.dtype)


def _in_range(start: NDArray[np.float64]) -> NDArray[np.float64]:
    """Given centres in the model's coordinates, in which their distances must not overflow."""
    if not np.square(start).sum(axis=1).max() < _LARGEST_SQUARE:
        raise ValueError(
            "init has values so large that squares of their distances overflow float64. Give "
            "centres in the units of X."
        )
    return start


def _minimized(
    problem: CentersProblem,
    starts: list[NDArray[np.float64]],
    schedule: Schedule,
    context: FitContext,
    annealing: SampleAnnealing | None,
) -> tuple[Outcome[CenterState], list[list[IterationRecord]]]:
    """Steps over all rows, or on samples first; and what each start went through there."""
    if annealing is not None:
        return annealing.minimize(problem, starts, context)
    return minimize(problem, starts, schedule, context), []


def _is(value: Any, name: str) -> bool:
    return isinstance(value, str) and value == name
