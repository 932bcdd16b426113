"""Estimators whose clusters are centres: the fit, and assignment of rows to centres."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from daskmm import planning
from daskmm.auto.n_clusters import (
    PLANNED_CLUSTERS,
    SOME_CLUSTERS,
    ClusterNumberPath,
    follow_n_clusters,
)
from daskmm.auto.separation import LEAST_ROWS
from daskmm.auto.standardize import ScaleChoice, choose_scale
from daskmm.cluster._belonging import Belonging
from daskmm.cluster._choices import Choices, warn_of_number, with_same_data, with_seeds
from daskmm.cluster._estimator import MMClusterer, warn_convergence
from daskmm.cluster._export import nearest_center_pipeline, nearest_direction_pipeline
from daskmm.cluster._mixed import checked_mixed, coded, learned_coding, planned
from daskmm.cluster._naming import means_of_rows
from daskmm.cluster._output import DistanceOutput, labels_of_table
from daskmm.cluster._parameters import (
    METRIC,
    SAMPLING,
    Constraints,
    anneals_on_sample,
    checked_distortion,
    is_small,
    wanted_rows,
)
from daskmm.cluster._partial_fit import PartialFit, found_in_columns
from daskmm.cluster._sklearn import Interval, StrOptions
from daskmm.cluster._stability import Stability
from daskmm.data.blocks import Layout
from daskmm.data.input import read_weighted
from daskmm.data.mixed import Coding, Column, expansion_of
from daskmm.data.rasters import Raster, grid_of, pixels_of
from daskmm.engine.first_pass import Survey, first_pass
from daskmm.engine.first_pass import sample_size as usual_sample_size
from daskmm.engine.passes import Passes, Persist, one_blas_thread, weighted_passes
from daskmm.kmeans.assignment import cost, labels_of, training_labels
from daskmm.kmeans.belonging import profile_of_sample
from daskmm.kmeans.costs import CenterCosts
from daskmm.kmeans.empty_clusters import RandomRows, left_in_place
from daskmm.kmeans.fit import CentersFit, center_stages
from daskmm.kmeans.mahalanobis import given_precision, total_precision, whitened
from daskmm.kmeans.method import GIVEN, Method
from daskmm.kmeans.sphere import on_sphere
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import (
    CentersProblem,
    PowerUpdate,
    Relocation,
    Update,
    to_farthest_rows,
)
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Schedule
from daskmm.mm.stages import Stage, run_stages
from daskmm.numerics.columns import Expansion, MixedCoordinates
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN
from daskmm.numerics.rows import (
    Coordinates,
    FeatureCoordinates,
    SphereCoordinates,
    WhitenedCoordinates,
    centers_in_model,
)
from daskmm.planning import Plan
from daskmm.storage.records import registered


class NearestCenter(DistanceOutput, ClassNamePrefixFeaturesOutMixin, TransformerMixin, MMClusterer):
    """Base of the estimators whose clusters have centres in the space of the rows."""

    cluster_centers_: NDArray[np.float64]
    mean_: NDArray[np.float64]
    scale_: NDArray[np.float64]
    # Parameters that not all of these estimators have.
    empty_rows: str = "error"
    metric_params: dict[str, Any] | None = None
    columns_: tuple[Column, ...]

    def _fitted_state(self) -> tuple[FeatureCoordinates, CenterState]:
        """Coordinates and state that assignment needs, from public attributes alone."""
        check_is_fitted(self, "cluster_centers_")
        model = self._snapshot()
        coordinates = model._fitted_coordinates()
        weights = getattr(model, "feature_weights_", None)
        if isinstance(coordinates, MixedCoordinates) and weights is not None:
            weights = weights[coordinates.expansion.groups]
        centers = centers_in_model(coordinates, model.cluster_centers_)
        metric = model._fitted_distortion(centers)
        state = CenterState(centers, -np.inf, weights, *metric, gaps=model.empty_rows == "label")
        return coordinates, state

    def _fitted_coordinates(self) -> FeatureCoordinates:
        precision = getattr(self, "precision_", None)
        if precision is None:
            return Coordinates(self.mean_, self.scale_)
        return WhitenedCoordinates.of(self.mean_, precision)

    def _fitted_distortion(self, centers: NDArray[np.float64]) -> tuple[Distortion, bool]:
        """Distortion at given centres, and whether values may be missing."""
        return SQUARED_EUCLIDEAN, False

    def _as_fitted(self, X: Any, feature_dim: str | None) -> Any:
        """A table of numbers, or a Raster, of what the model was fitted to."""
        check_is_fitted(self, "cluster_centers_")
        if hasattr(self, "columns_"):
            return coded(X, self.columns_, self.metric_params)
        return pixels_of(X, feature_dim, getattr(self, "feature_dim_", None))

    def _with_unknown(self, unknown: str | None) -> Self:
        """Copy that shares the fitted attributes, for rows with levels that the fit did not see.

        With ``unknown="missing"`` such levels are missing values, and NaN are allowed too.
        """
        if unknown is None:
            return self
        if not hasattr(self, "columns_"):
            raise ValueError("unknown is about columns of a fit with distortion='mixed'.")
        if unknown not in ("error", "missing"):
            raise ValueError(f"unknown must be 'error' or 'missing', got {unknown!r}.")
        own: dict[str, Any] = {"metric_params": {**(self.metric_params or {}), "unknown": unknown}}
        if unknown == "missing":
            own["missing"] = "partial"
        model = self._snapshot()
        model.__dict__ = {**self.__dict__, **own}
        return model

    def predict(self, X: Any, feature_dim: str | None = None) -> Any:
        """Predict the nearest centre of each row, in the model's distance.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Columns of a DataFrame are found by name, in any order and among others.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            Lazy for dask and zarr input: a Series aligned with a dask DataFrame, otherwise an
            array. Of a pandas DataFrame, a pandas Series if ``set_output(transform="pandas")`` asks
            for pandas. Of a raster a DataArray on its grid, with its coordinates.
        """
        X = self._as_fitted(X, feature_dim)
        return labels_of_table(self, X, labels_of, *self._fitted_state())


# Starts if annealing happens in memory; one if each iteration reads streamed data. With more
# clusters starts differ less, and take longer: all together have at most so many centres.
STARTS_IN_MEMORY, CENTERS_OF_STARTS = 8, 2048
# Seed of the rows drawn for centres of emptied clusters.
RELOCATION_SEED = 0
# Seed of the trials that choose the scale. Rows that are all in the sample get the same scale for
# any `random_state`, and so does a fit from given centres.
SCALE_SEED = 0


@registered
@dataclass(frozen=True)
class EarlierModel:
    """Attributes of the fitted model from which a fit goes on."""

    cluster_centers_: NDArray[np.float64]
    s_: float
    feature_weights_: NDArray[np.float64] | None
    # Whether it is the estimator's own, as with `warm_start`.
    own: bool


class CenterClusterer(Belonging, Stability, NearestCenter, PartialFit):
    """Base of the estimators whose clusters are centres.

    A subclass says what its schedule is and, if it is not that of power k-means, its update.
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **MMClusterer._parameter_constraints,
        **SAMPLING,
        **METRIC,
        **PartialFit._forgetting,
        "n_clusters": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_clusters": [None, Interval(Integral, 2, None, closed="left")],
        "standardize": ["boolean", StrOptions({"auto"})],
        "init": [
            StrOptions({"k-means++", "k-means||", "random"}),
            "array-like",
            NearestCenter,
            FrozenEstimator,
        ],
        "warm_start": ["boolean"],
        "empty_cluster": [StrOptions({"farthest", "random", "restart", "error"})],
        "trim": [Interval(Real, 0, 1, closed="left")],
    }
    # Whether each feature counts in distances as if it had all of its values.
    _weighs_shares: ClassVar[bool] = False
    # Whether feature weights are learned.
    _weighs_features: ClassVar[bool] = False

    max_clusters: int | None
    init: str | ArrayLike | NearestCenter | FrozenEstimator
    warm_start: bool
    sample_size: int | str | None
    persist: Persist
    distortion: str
    missing: str
    empty_cluster: str
    trim: float
    # A parameter that not all of these estimators have.
    polish: bool = True
    # The copy that is fitted has the model from which it goes on; the user's estimator never does.
    _earlier: EarlierModel | None = None

    n_clusters_: int
    n_clusters_path_: ClusterNumberPath
    standardize_path_: ScaleChoice
    precision_: NDArray[np.float64]
    feature_dim_: str
    coordinates_: MixedCoordinates
    distortion_: Distortion
    value_shares_: NDArray[np.float64]

    @abstractmethod
    def _schedule(self, critical_power: Callable[[], float]) -> Schedule:
        """Schedule of the powers on data of a critical power, computed where it is needed."""

    def _update(
        self, survey: Survey, n_clusters: int, seed: int, lazy: bool
    ) -> tuple[Update, dict[str, Any], CenterState | None]:
        """Update of the MM steps, fitted attributes that it determines, and one more start.

        The start, if there is one, is what the choice of a parameter of the update found.
        """
        return PowerUpdate(survey.distortion, survey.partial, self._relocation(survey)), {}, None

    def _weights_for_number(
        self, survey: Survey, seed: int, lazy: bool
    ) -> NDArray[np.float64] | None:
        """Feature weights with which the number of clusters is chosen; None for equal ones."""
        return None

    def _relocation(self, survey: Survey) -> Relocation:
        """Where centres of clusters go that a hard step emptied."""
        if self.empty_cluster == "farthest":
            return to_farthest_rows
        if self.empty_cluster == "random":
            return RandomRows(survey.sample, RELOCATION_SEED)
        return left_in_place

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, feature_dim: str | None = None
    ) -> Self:
        """Cluster the rows of `X`.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Or sparse: a scipy matrix, a dask array of sparse blocks, or an AnnData object, for
            ``distortion="sqeuclidean"``, "cosine" and "kl"; then ``mean_`` is 0, as rows are not
            shifted. Data in memory are clustered by threads of this process. Dask and zarr data are
            streamed through the active dask scheduler, each block loaded once per pass.
        y : ignored
            Present for scikit-learn's interface.
        sample_weight : array-like or dask Array of shape (n_samples,), optional
            Weights, not negative; chunked in any way. An integer weight counts like as many
            copies of the row. Of a raster also an array or DataArray on its grid.
        feature_dim : str, optional
            For an xarray DataArray: the dimension along which its features are, such as "band".
            The rows are the pixels along all others, and labels come back on their grid. Blocks
            are those of the cube, with all features each. The features of a Dataset are its
            variables, or those along this dimension of its only variable.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the data cannot be used; where values are at fault, with the block
            and row at which they stand.
        KeyboardInterrupt
            If the user interrupts the fit. If an iteration has been completed, the estimator is
            fitted then, with the model of the last one.
        """
        self._validate_params()
        with self._fitting() as (model, context):
            if self.warm_start or hasattr(self.init, "get_params"):
                # Journalled, as an interrupt stores another model here before the fit is resumed.
                context.journal.enter("earlier model", followed=False)
                given = context.journal.once(lambda: [self._given_model()])
                [model._earlier] = given
            model._fit(X, sample_weight, feature_dim, context)
        return self

    def _fit(
        self, X: Any, sample_weight: Any, feature_dim: str | None, context: FitContext
    ) -> None:
        """Fit this estimator, which has no fitted attributes yet."""
        X, coding = self._opened(X, feature_dim)
        table, weights = read_weighted(self, X, sample_weight, reset=True)
        expansion = None if coding is None else expansion_of(coding.columns)
        given = self._checked_init(expansion)
        passes = weighted_passes(table, weights, grid_of(X), self.empty_rows == "label")
        with one_blas_thread(), passes.persisted(self.persist):
            choices = self._choose(passes, context, expansion)
            fit = self._centers_fit(choices, given)
            fit = run_stages(center_stages(choices.method, choices.layout.lazy), fit)
        if fit.n_split:
            warn_convergence(
                f"{fit.n_split} of {len(fit.result.run.state.centers)} centres coincided with "
                f"another one after the annealing, were moved to rows ({self.empty_cluster}), and "
                "polished."
            )
        self._store(choices.fitted, fit)
        if coding is not None:
            self.columns_ = coding.columns
            passes.add(int(coding.learned))
        if isinstance(X, Raster):
            self.feature_dim_ = X.feature_dim
        run_stages([self._labelling(X)], fit)
        self.n_passes_ = passes.n_passes
        self.n_samples_seen_ = fit.survey.n_rows
        self._warn(fit.result, self.n_clusters_, context)

    def _labelling(self, X: Any) -> Stage[CentersFit]:
        """Return the last stage of a fit."""

        def labelled(fit: CentersFit) -> CentersFit:
            state, sample = self._fitted_state(), fit.survey.sample
            self._store_profile(profile_of_sample(sample, state[1]))
            self.__dict__.update(found_in_columns(sample, *state))
            nearest, bounds = labels_of, fit.bounds
            if bounds is not None:
                bounds.expect(state[1].prepared)
                nearest = bounds.labels_of
            labels = training_labels(fit.problem.passes, *state, function=nearest)
            self._set_labels(labels, X, labels_of, *state)
            return fit

        return Stage("labels", labelled, CenterCosts.labels, after_stop=True)

    def _opened(self, X: Any, feature_dim: str | None) -> tuple[Any, Coding | None]:
        """A Raster of an xarray object, a coded frame and its coding, or `X` unchanged."""
        if self.distortion != "mixed":
            return pixels_of(X, feature_dim), None
        checked_mixed(self.metric_params, self.missing)
        X, coding = learned_coding(X, self.metric_params)
        return coding.of(X), coding

    def _fitted_passes(self, X: Any, sample_weight: Any, feature_dim: str | None) -> Passes:
        """Passes over a table of what the model was fitted to."""
        X = self._as_fitted(X, feature_dim)
        table, weights = read_weighted(self, X, sample_weight, reset=False)
        return weighted_passes(table, weights, grid_of(X), self.empty_rows == "label")

    def _choose(self, passes: Passes, context: FitContext, expansion: Expansion | None) -> Choices:
        """Make the first pass, and the choices on its sample."""
        scaling = bool(self._scaling(passes.blocks.layout))
        checked_distortion(
            self.distortion, self.metric_params, self.missing, self.empty_rows, scaling
        )
        passes.count_rows()
        layout = passes.blocks.layout
        method = self._method(layout)
        context.expect(self._plan_of(layout, timed=context.followed).stages, self.tol)
        choices = Choices(passes, context, method, check_random_state(self.random_state), expansion)
        return run_stages(self._choice_stages(method), choices)

    def _choice_stages(self, method: Method) -> list[Stage[Choices]]:
        """Return the stages before starting centres are found, in their order."""
        return [
            Stage("seeds", with_seeds),
            Stage("first pass", self._surveyed, CenterCosts.survey),
            Stage("scale", self._choose_scale),
            Stage("number of clusters", self._choose_n_clusters),
            Stage("same data", with_same_data),
            Stage("metric", self._in_metric),
            Stage("feature weights", self._choose_update, CenterCosts.lam),
            Stage("powers", self._choose_schedule),
        ]

    def _centers_fit(self, choices: Choices, given: NDArray[np.float64] | None) -> CentersFit:
        """Return the fit of centres before its first stage."""
        survey, earlier = choices.survey, self._earlier
        if choices.context.followed:
            plan = self._plan_of(choices.layout, True, method=choices.method)
            choices.context.expect(plan.stages, self.tol)
        weights = earlier.feature_weights_ if earlier is not None else None
        return CentersFit(
            CentersProblem(
                choices.passes, survey.coordinates, survey.weight, choices.update, survey.spread
            ),
            survey,
            choices.method,
            choices.seeds,
            choices.rng,
            choices.context,
            given,
            weights if self._weighs_features else None,
            choices.found if given is None else None,
        )

    def _surveyed(self, choices: Choices) -> Choices:
        """Make the first pass."""
        layout, (at_least, at_most) = choices.layout, self._cluster_range
        assert layout.n_rows is not None
        usual = usual_sample_size(layout.n_rows, layout.width, at_most)
        survey = first_pass(
            choices.passes,
            at_least,
            # Features are standardised first if that is to be chosen.
            bool(self._scaling(layout)),
            choices.seeds[0],
            wanted=wanted_rows(self.sample_size, at_least) or usual,
            with_larger=choices.method.on_sample,
            family=choices.method.family,
            partial=self.missing == "partial",
            weigh_shares=self._weighs_shares,
            by_distance=choices.method.by_distance,
            expansion=choices.expansion,
        )
        return replace(choices, first_pass=self._of_clusters(survey, choices.seeds[0]))

    def _scaling(self, layout: Layout) -> bool | str:
        """Whether to standardise features, or "auto" where that is a choice.

        It is one for squared distances of whole rows. Values that are mostly 0 are counts of the
        same kind of thing, and dividing them would favour the rarest ones.
        """
        if self.standardize != "auto":
            return bool(self.standardize)
        dense = self.missing == "error" and not layout.sparse
        return "auto" if dense and self.distortion == "sqeuclidean" else False

    def _of_clusters(self, survey: Survey, seed: int) -> Survey:
        """Treat features as constant that can make no clusters; here, none."""
        return survey

    def _choose_scale(self, choices: Choices) -> Choices:
        """Choose the scale of the features, where that is a choice."""
        if self._scaling(choices.layout) != "auto":
            return choices
        survey, n_clusters = choices.survey, self.n_clusters
        some = some_clusters(survey) if isinstance(n_clusters, str) else int(n_clusters)
        chosen, path = choose_scale(survey, some, SCALE_SEED, choices.layout.lazy)
        return replace(choices, first_pass=chosen).with_fitted(standardize_path_=path)

    def _choose_n_clusters(self, choices: Choices) -> Choices:
        """Take the number of clusters that was given, or choose it on the sample."""
        if (earlier := self._earlier) is not None:
            return choices.of_clusters(len(earlier.cluster_centers_))
        if not isinstance(self.n_clusters, str):
            return choices.of_clusters(int(self.n_clusters))
        survey, seed, lazy = choices.survey, choices.seeds[0], choices.lazy
        weights = self._weights_for_number(survey, seed, lazy)
        own = survey.coordinates
        mixed = own if isinstance(own, MixedCoordinates) else None
        path = follow_n_clusters(survey.sample, seed, weights, self.max_clusters, mixed=mixed)
        warn_of_number(path, self.max_clusters)
        return choices.of_clusters(path.n_clusters).with_fitted(n_clusters_path_=path)

    def _in_metric(self, choices: Choices) -> Choices:
        """Convert the survey to the coordinates where distances are measured."""
        survey = choices.survey
        if self.distortion == "cosine":
            return replace(choices, first_pass=on_sphere(survey))
        if self.distortion != "mahalanobis":
            return choices
        given = given_precision(self.metric_params, len(survey.variance))
        precision = total_precision(survey.sample) if given is None else given
        return replace(choices, first_pass=whitened(survey, precision))

    def _choose_update(self, choices: Choices) -> Choices:
        """Choose the update of the MM steps, with its parameters."""
        survey, seed = choices.survey, choices.seeds[0]
        update, fitted, found = self._update(survey, choices.method.n_clusters, seed, choices.lazy)
        trimmed = replace(update, trim=float(self.trim))  # type: ignore[type-var]
        return replace(choices, steps=trimmed, found=found).with_fitted(**fitted)

    def _choose_schedule(self, choices: Choices) -> Choices:
        """Determine the schedule of the powers, and what depends on it."""
        survey, earlier = choices.survey, self._earlier
        schedule = self._schedule(lambda: survey.critical_power)
        if earlier is not None:
            # Its centres would all fall onto the mean at the first power of an annealing.
            s0 = -np.inf if self.polish else earlier.s_
            schedule = replace(schedule, s0=s0, critical_multiple=None)
        hedged = choices.update.hedged
        restarts = self._restarts(schedule) and not hedged
        method = replace(choices.method, schedule=schedule, hedged=hedged, restarts=restarts)
        return replace(choices, method=method)

    def _restarts(self, schedule: Schedule) -> bool:
        """Whether to anneal once more at the feature weights that were learned.

        Not from given centres, which say where clusters are to be; and for squared distances of
        whole rows only.
        """
        plain = self.distortion == "sqeuclidean" and self.missing == "error"
        return schedule.polish and self._seeds and plain

    def _given_model(self) -> EarlierModel | None:
        """Attributes of the fitted model from which a fit is to go on, if there is one."""
        own = self.warm_start and hasattr(self, "cluster_centers_")
        init = self.init.estimator if isinstance(self.init, FrozenEstimator) else self.init
        model = self if own else init
        if not isinstance(model, NearestCenter):
            return None
        check_is_fitted(model, "cluster_centers_")
        weights = getattr(model, "feature_weights_", None)
        return EarlierModel(model.cluster_centers_, getattr(model, "s_", -np.inf), weights, own)

    @property
    def _seeds(self) -> bool:
        """Whether starting centres are looked for."""
        return isinstance(self.init, str) and self._earlier is None

    @property
    def _cluster_range(self) -> tuple[int, int]:
        """Least and greatest number of clusters that a fit may come to look for."""
        if isinstance(self.n_clusters, str):
            return 1, self.max_clusters or PLANNED_CLUSTERS
        return int(self.n_clusters), int(self.n_clusters)

    def _samples(self, layout: Layout) -> bool:
        """Whether to anneal on a sample, and pass over the table to polish only."""
        coded = layout.lazy and (layout.sparse or self.distortion == "mixed")
        bounds, seeds = self._cluster_range, self._seeds
        return anneals_on_sample(
            layout,
            self.sample_size,
            self.polish,
            *bounds,
            one_start=self._most_starts == 1,
            always=coded and seeds,
        )

    @property
    def _most_starts(self) -> int:
        """Number of starts, unless a large table is read for each of their iterations."""
        if not self._seeds:
            return 1
        if self.n_init != "auto":
            return int(self.n_init)
        if isinstance(self.n_clusters, str):
            return STARTS_IN_MEMORY
        return min(STARTS_IN_MEMORY, max(1, CENTERS_OF_STARTS // int(self.n_clusters)))

    def _n_starts(self, layout: Layout) -> int:
        reads = layout.lazy and not self._samples(layout)
        large = not is_small(layout, self._cluster_range[1])
        return 1 if self.n_init == "auto" and reads and large else self._most_starts

    def _checked_init(self, expansion: Expansion | None) -> NDArray[np.float64] | None:
        """Return given centres, which must fit the data and n_clusters; None if there are none."""
        earlier = self._earlier
        if earlier is None and isinstance(self.init, str):
            return None
        try:
            given = self.init if earlier is None else earlier.cluster_centers_
            centers = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"init must be an array of numbers: {error}") from error
        n_clusters = self.n_clusters
        if isinstance(n_clusters, str) and earlier is None:
            raise ValueError("init must be the name of a method where n_clusters='auto'.")
        if isinstance(n_clusters, str):
            n_clusters = len(centers)
        n_features = self.n_features_in_ if expansion is None else len(expansion.groups)
        expected = (n_clusters, n_features)
        if centers.shape != expected:
            own = earlier is not None and earlier.own
            raise ValueError(
                f"{'The model that warm_start continues' if own else 'init'} has "
                f"shape {centers.shape}; with n_clusters={self.n_clusters} and "
                f"{n_features} features it must be {expected}."
            )
        if not np.isfinite(centers).all():
            raise ValueError("init contains NaN or infinity.")
        return centers

    def _store(self, fitted: dict[str, Any], fit: CentersFit) -> None:
        """Set the fitted attributes."""
        self.__dict__.update(fitted)
        state, coordinates = fit.result.run.state, fit.survey.coordinates
        self.mean_, self.scale_ = coordinates.mean, coordinates.scale
        self.cluster_centers_ = coordinates.to_input(state.centers)
        scored = fit.result.scored
        self.__dict__.update(means_of_rows(scored.state, scored.cluster_weights, coordinates))
        if isinstance(coordinates, MixedCoordinates):
            self.coordinates_, self.distortion_ = coordinates, fit.survey.distortion
        if isinstance(coordinates, WhitenedCoordinates):
            self.precision_ = coordinates.whitening @ coordinates.whitening.T
        self._n_features_out = len(self.cluster_centers_)
        self._store_history(fit.result, fit.before)

    def _fitted_coordinates(self) -> FeatureCoordinates:
        if self.distortion == "cosine":
            return SphereCoordinates(self.cluster_centers_.shape[1])
        if self.distortion == "mixed":
            return self.coordinates_
        return super()._fitted_coordinates()

    def _fitted_distortion(self, centers: NDArray[np.float64]) -> tuple[Distortion, bool]:
        if self.distortion == "mixed":
            return self.distortion_, self.missing == "partial"
        family = DISTORTIONS[self.distortion]
        distortion = family.around(centers.mean(axis=0), centers.var(axis=0))
        return distortion, self.missing == "partial"

    def __sklearn_tags__(self) -> Tags:
        """Say which values are allowed."""
        tags: Tags = super().__sklearn_tags__()
        squared_or_counts = ("sqeuclidean", "cosine", "kl", "poisson")
        whole = self.missing == "error" and self.distortion in squared_or_counts
        tags.input_tags.sparse = whole
        tags.input_tags.allow_nan = self.missing == "partial"
        tags.input_tags.positive_only = DISTORTIONS[self.distortion].domain in ("x ≥ 0", "x > 0")
        return tags

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, feature_dim: str | None = None
    ) -> float:
        """Return minus the sum of the distances to the nearest centres.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows of what the model was fitted to.
        y : ignored
            Present for scikit-learn's interface.
        sample_weight : array-like or dask Array of shape (n_samples,), optional
            Sample weights, not negative; all 1 by default.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        float
            The negative of `inertia_`, for the training data.
        """
        passes = self._fitted_passes(X, sample_weight, feature_dim)
        return -cost(passes, *self._fitted_state())

    def to_sklearn(self) -> BaseEstimator:
        """Return a fitted estimator of scikit-learn that assigns rows to the same clusters.

        For programs that know scikit-learn only, and for formats that are made from its estimators.

        Returns
        -------
        KMeans or Pipeline
            `sklearn.cluster.KMeans` with the centres in the units of the input; behind a
            StandardScaler if features are standardised or weighted, and behind a Normalizer for
            "cosine". Rows at equal distances of two centres may go to the other one.

        Raises
        ------
        ValueError
            If the distortion is another one, or values may be missing.
        """
        check_is_fitted(self, "cluster_centers_")
        if self.missing == "partial":
            raise ValueError("scikit-learn's KMeans takes no rows with missing='partial'.")
        if self.distortion == "cosine":
            return nearest_direction_pipeline(self.cluster_centers_)
        if self.distortion != "sqeuclidean":
            raise ValueError(f"scikit-learn's KMeans has no distortion={self.distortion!r}.")
        weights = getattr(self, "feature_weights_", None)
        return nearest_center_pipeline(self.cluster_centers_, self.mean_, self.scale_, weights)

    def plan(self, X: Any, feature_dim: str | None = None) -> Plan:
        """Return what a fit to `X` will cost. Reads no data.

        Parameters
        ----------
        X, feature_dim : as in `fit`
            Table that might be fitted, of which no value is read.

        Returns
        -------
        Plan

        Raises
        ------
        ValueError
            If workers have too little memory, with the numbers and what to change.
        """
        self._validate_params()
        X = planned(X) if self.distortion == "mixed" else pixels_of(X, feature_dim)
        model = self._unfitted()
        model._earlier = self._given_model()
        return model._plan_of(self._planned_layout(X, self._cluster_range[0]), timed=True)

    def _plan_of(self, layout: Layout, timed: bool = False, method: Method | None = None) -> Plan:
        """Cost of a fit to a table of this layout; refused if workers cannot hold it.

        After the choices of the fit, `method` says what they were.
        """
        wanted = wanted_rows(self.sample_size, self._cluster_range[0])
        timed = timed and (method is not None or not isinstance(self.n_clusters, str))
        own = self._method(layout) if method is None else method
        stages = [
            *self._choice_stages(own),
            *center_stages(own, layout.lazy),
            self._labelling(None),
        ]
        return planning.plan(layout, own, stages, wanted=wanted, timed=timed)

    def _method(self, layout: Layout) -> Method:
        """Choices of a fit to a table of this layout."""
        # The critical power of real rows lies between −1, of one direction, and that of noise.
        schedule = self._schedule(lambda: -math.sqrt(layout.n_features))
        weighted, on_sample = self._weighs_features, self._samples(layout)
        return Method(
            self._cluster_range[1],
            self._n_starts(layout),
            schedule,
            on_sample,
            str(self.init) if self._seeds else GIVEN,
            DISTORTIONS[self.distortion],
            weighted,
            not weighted,
            self.missing == "partial",
            weighted and self.distortion != "manhattan" and getattr(self, "lam", None) == "auto",
            weighted and self._restarts(schedule),
            empty_cluster=self.empty_cluster,
            trim=float(self.trim),
            learns_metric=self.distortion == "mahalanobis" and self.metric_params is None,
            # Directions have no heavy tails.
            by_distance=on_sample and self.distortion not in ("cosine", "mixed"),
        )


def some_clusters(survey: Survey) -> int:
    """Number of clusters with which choices are made before it is known."""
    return max(1, min(SOME_CLUSTERS, len(survey.sample.rows) // LEAST_ROWS))
