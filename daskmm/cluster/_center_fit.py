"""A fit of centres: the choices on the sample of the first pass, the stages and the cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from daskmm import planning
from daskmm.auto.n_clusters import SOME_CLUSTERS, follow_n_clusters
from daskmm.auto.separation import LEAST_ROWS
from daskmm.auto.standardize import choose_scale
from daskmm.cluster._choices import Choices, warn_of_number, with_same_data, with_seeds
from daskmm.cluster._far_clusters import warn_of_far_clusters
from daskmm.cluster._fitted_centers import (
    FittedCenters,
    attributes_of_clusters,
    attributes_of_sample,
)
from daskmm.cluster._fitting import attributes_of_outcome, set_fitted
from daskmm.cluster._mixed import checked_mixed, learned_coding
from daskmm.cluster._output import fitted_labels
from daskmm.cluster._parameters import (
    HARMONIC,
    anneals_on_sample,
    checked_distortion,
    cluster_range,
    given_array,
    is_small,
    wanted_rows,
)
from daskmm.cluster._warnings import warn_convergence, warn_of_identifiers, warn_of_outcome
from daskmm.data.blocks import Layout, float_dtype
from daskmm.data.input import read_weighted
from daskmm.data.mixed import Coding, expansion_of
from daskmm.data.rasters import Raster, grid_of, pixels_of
from daskmm.engine.first_pass import Survey, first_pass
from daskmm.engine.first_pass import sample_size as usual_sample_size
from daskmm.engine.passes import Passes, weighted_passes
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.assignment import labels_of, training_labels
from daskmm.kmeans.belonging import ValueSums, soft_means, value_sums
from daskmm.kmeans.costs import CenterCosts
from daskmm.kmeans.exchange import EXCHANGE_STEPS, FIRST_STEPS
from daskmm.kmeans.fit import CentersFit, center_stages
from daskmm.kmeans.mahalanobis import given_precision, total_precision, whitened
from daskmm.kmeans.method import GIVEN, Method
from daskmm.kmeans.near_rows import without_far_rows
from daskmm.kmeans.updates import CentersProblem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Schedule
from daskmm.mm.stages import Cost, Stage, nothing, run_stages
from daskmm.numerics.columns import Expansion, MixedCoordinates
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.rows import Coordinates, SphereCoordinates, WhitenedCoordinates
from daskmm.planning import Plan
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Number of starts if annealing happens in memory (it is 1 if each iteration reads streamed data),
# and largest number of centres of all starts together: with more clusters, starts differ less and
# take longer. If clusters are exchanged, the exchanges gain more than several starts do.
STARTS_IN_MEMORY, CENTERS_OF_STARTS, CENTERS_WITH_EXCHANGE = 8, 2048, 256
# Seed of the trials that choose the scale. It is fixed: if all rows are in the sample, their scale
# is the same for any `random_state`, and in a fit from given centres.
SCALE_SEED = 0


@registered
@dataclass(frozen=True)
class EarlierModel:
    """Attributes of the fitted model from which a fit continues."""

    cluster_centers_: NDArray[np.float64]
    s_: float
    feature_weights_: NDArray[np.float64] | None
    # Whether the model is an earlier fit of the same estimator, as with `warm_start`.
    own: bool


def earlier_model(estimator: Any) -> EarlierModel | None:
    """Return the fitted model from which a fit of an estimator continues, if there is one."""
    own = estimator.warm_start and "cluster_centers_" in vars(estimator)
    init = estimator.init
    model = estimator if own else init.estimator if isinstance(init, FrozenEstimator) else init
    if not hasattr(model, "_clusters"):
        return None
    check_is_fitted(model, "cluster_centers_")
    values = vars(model)
    weights, s = values.get("feature_weights_"), values.get("s_", -np.inf)
    return EarlierModel(values["cluster_centers_"], s, weights, own)


@dataclass(frozen=True)
class CenterRecipe:
    """How an estimator is fitted: the stages before the starting centres, and their cost."""

    model: Any  # copy of the `CenterClusterer` that is fitted
    earlier: EarlierModel | None = None  # the model from which the fit continues

    def fit(self, X: Any, sample_weight: Any, feature_dim: str | None, context: FitContext) -> None:
        """Fit the estimator, which has no fitted attributes yet."""
        model = self.model
        X, coding = self._opened(X, feature_dim)
        table, weights = read_weighted(model, X, sample_weight, reset=True)
        expansion = None if coding is None else expansion_of(coding.columns)
        given = self._checked_init(model.n_features_in_, expansion)
        family = DISTORTIONS[model.distortion] if model.empty_rows == "label" else None
        passes = weighted_passes(table, weights, grid_of(X), family)
        with one_blas_thread(), passes.persisted(model.persist):
            choices = self._choose(passes, context, expansion)
            fit = self._centers_fit(choices, given)
            fit = run_stages(center_stages(choices.method, choices.layout.lazy), fit)
        if fit.n_split:
            warn_convergence(
                f"{fit.n_split} of {len(fit.result.run.state.centers)} centres coincided with "
                f"another one after the annealing, were moved to rows ({model.empty_cluster}), and "
                "polished."
            )
        found = {**choices.fitted, **attributes_of_fit(fit)}
        if coding is not None:
            found["columns_"] = coding.columns
            passes.add(int(coding.learned))
        if isinstance(X, Raster):
            found["feature_dim_"] = X.feature_dim
        if choices.layout.sparse:
            found["_sparse_rows"] = True
        set_fitted(model, found)
        run_stages([self._labelling(X)], fit)
        model.n_passes_, model.n_samples_seen_ = passes.n_passes, fit.survey.n_rows
        warn_of_outcome(vars(model), fit.result, found["n_clusters_"], found["s_"], context)
        warn_of_far_clusters(model)
        self._warn_of_sizes(fit)

    def _check_sizes(self) -> None:
        """Raise ValueError if sizes cannot be bounded with these parameters."""
        own = self.model
        if own.max_cluster_size is None:
            return
        plain = own.distortion in ("sqeuclidean", "cosine") and own.missing == "error"
        if not plain or own.trim or not own.polish:
            raise ValueError(
                f"max_cluster_size={own.max_cluster_size!r} needs complete rows "
                "(missing='error'), distortion 'sqeuclidean' or 'cosine', trim=0 and hard steps "
                "(polish=True)."
            )

    def _warn_of_sizes(self, fit: CentersFit) -> None:
        largest = float(fit.result.scored.cluster_weights.max())
        if largest > fit.most and fit.context.stopped is None:
            warn_convergence(
                f"max_cluster_size={self.model.max_cluster_size!r} is not met: the largest cluster "
                f"has size {largest:.6g}, and the bound is {fit.most:.6g}. Identical rows cannot "
                "be divided, and bounds close to the mean size may be out of reach."
            )

    def _opened(self, X: Any, feature_dim: str | None) -> tuple[Any, Coding | None]:
        """Return a Raster of an xarray object, a coded frame and its coding, or `X` unchanged."""
        parameters = self.model
        if parameters.distortion != "mixed":
            return pixels_of(X, feature_dim), None
        checked_mixed(parameters.metric_params, parameters.missing)
        X, coding = learned_coding(X, parameters.metric_params)
        return coding.of(X), coding

    def _labelling(self, X: Any) -> Stage[CentersFit]:
        """Return the last stage of a fit, in the coordinates of the fitted model."""

        def labelled(fit: CentersFit) -> CentersFit:
            model = self.model
            fitted, sample = FittedCenters.of(model), fit.survey.sample
            coordinates, state = fitted.coordinates, fitted.state
            nearest, bounds = labels_of, fit.bounds
            # Bounds cannot describe rows without distances, whose label is −1.
            if bounds is not None and not state.gaps:
                nearest = bounds.labels_of
            labels = training_labels(fit.problem.passes, coordinates, state, function=nearest)
            if not model.polish:  # for `partial_fit`, whose later steps are soft, too
                model._soft_means = soft_means(sample, replace(state, s=model.s_))
            set_fitted(
                model,
                attributes_of_sample(sample, coordinates, state),
                fitted_labels(labels, X, labels_of, coordinates, state),
            )
            if state.counts_values_apart:
                sums: ValueSums = fit.problem.passes.reduce(value_sums, coordinates, state)
                model.value_shares_ = sums.shares
            return fit

        return Stage("labels", labelled, CenterCosts.labels, after_stop=True)

    def _choose(self, passes: Passes, context: FitContext, expansion: Expansion | None) -> Choices:
        """Make the first pass, and the choices on its sample."""
        own = self.model
        scaling = bool(self._scaling(passes.blocks.layout))
        checked_distortion(own.distortion, own.metric_params, own.missing, own.empty_rows, scaling)
        self._check_sizes()
        passes.count_rows()
        layout = passes.blocks.layout
        method = self._method(layout)
        context.expect(self.plan(layout, timed=context.followed).stages, own.tol)
        rng = check_random_state(own.random_state)
        choices = Choices(passes, context, method, rng, expansion)
        return run_stages(self._choice_stages(), choices)

    def _choice_stages(self) -> list[Stage[Choices]]:
        """Return the stages before starting centres are found, in their order."""
        return [
            Stage("seeds", with_seeds),
            Stage("first pass", self._surveyed, CenterCosts.survey),
            Stage("scale", self._choose_scale),
            Stage("number of clusters", self._choose_n_clusters, self._cost_of_number),
            Stage("same data", with_same_data),
            Stage("metric", self._in_metric),
            Stage("feature weights", self._choose_update, CenterCosts.lam),
            Stage("powers", self._choose_schedule),
        ]

    def _centers_fit(self, choices: Choices, given: FloatArray | None) -> CentersFit:
        """Return the fit of centres before its first stage."""
        survey, earlier = choices.survey, self.earlier
        if choices.context.followed:
            plan = self.plan(choices.layout, True, method=choices.method)
            choices.context.expect(plan.stages, self.model.tol)
        weights = earlier.feature_weights_ if earlier is not None else None
        fit = CentersFit(
            CentersProblem(
                choices.passes, survey.coordinates, survey.weight, choices.update, survey.spread
            ),
            survey,
            choices.method,
            choices.seeds,
            choices.rng,
            choices.context,
            given,
            weights if self.model._weighs_features else None,
            choices.found if given is None else None,
        )
        if fit.most < survey.weight / choices.method.n_clusters:
            raise ValueError(
                f"max_cluster_size={self.model.max_cluster_size!r} is too small: rows of weight "
                f"{survey.weight:.6g} in {choices.method.n_clusters} clusters have "
                f"{survey.weight / choices.method.n_clusters:.6g} each on average."
            )
        return fit

    def _surveyed(self, choices: Choices) -> Choices:
        """Make the first pass."""
        layout, (at_least, at_most) = choices.layout, cluster_range(self.model)
        assert layout.n_rows is not None
        usual = usual_sample_size(layout.n_rows, layout.width, at_most)
        survey = first_pass(
            choices.passes,
            at_least,
            # If the scale is to be chosen, the survey is made in standardised features.
            bool(self._scaling(layout)),
            choices.seeds[0],
            wanted=wanted_rows(self.model.sample_size, at_least) or usual,
            with_larger=choices.method.on_sample,
            family=choices.method.family,
            partial=self.model.missing == "partial",
            weigh_shares=self.model._weighs_features,
            by_distance=choices.method.by_distance,
            expansion=choices.expansion,
            dtype=self._dtype_of_sample(choices),
        )
        warn_of_identifiers(self.model, survey.identifiers)
        survey = self._without_far_rows(survey, choices)
        return replace(choices, survey=self.model._of_clusters(survey, choices.seeds[0]))

    def _dtype_of_sample(self, choices: Choices) -> np.dtype:
        """Return the dtype of the sample: that of all steps over many clusters, else float64.

        A sample for many clusters has many rows, and copies of it in float64 would take longer
        than the choices that are made on it.
        """
        plain = self.model.distortion == "sqeuclidean" and choices.method.exchanges
        many = plain and choices.method.many and not isinstance(self.model.n_clusters, str)
        return float_dtype(choices.layout.dtype) if many else np.dtype(np.float64)

    def _without_far_rows(self, survey: Survey, choices: Choices) -> Survey:
        """Mark the rows of the sample that `trim` leaves out of all choices and starts."""
        if not self.model.trim:
            return survey
        return without_far_rows(
            survey,
            some_clusters(survey, self.model.n_clusters),
            float(self.model.trim),
            choices.seeds[0],
            bool(self._scaling(choices.layout)),
            self.model._weighs_features,
        )

    def _scaling(self, layout: Layout) -> bool | str:
        """Return whether to standardise features, or "auto" where the sample decides.

        The sample decides only for squared distances of dense rows. Values that are mostly 0 are
        counts of the same kind of thing, and standardising would favour the rarest ones.
        """
        if self.model.standardize != "auto":
            return bool(self.model.standardize)
        return "auto" if self.model.distortion == "sqeuclidean" and not layout.sparse else False

    def _choose_scale(self, choices: Choices) -> Choices:
        """Choose the scale of the features, if the sample decides about it."""
        survey = choices.survey
        if self._scaling(choices.layout) != "auto":
            return choices
        some = some_clusters(survey, self.model.n_clusters)
        chosen, path = choose_scale(survey, some, SCALE_SEED, choices.layout.lazy)
        return replace(choices, survey=chosen).with_fitted(standardize_path_=path)

    def _choose_n_clusters(self, choices: Choices) -> Choices:
        """Take the number of clusters that was given, or choose it on the sample."""
        if (earlier := self.earlier) is not None:
            return choices.of_clusters(len(earlier.cluster_centers_))
        if not isinstance(self.model.n_clusters, str):
            return choices.of_clusters(int(self.model.n_clusters))
        survey, seed, lazy = choices.survey, choices.seeds[0], choices.lazy
        weights = self.model._weights_for_number(survey, seed, lazy)
        own = survey.coordinates
        mixed = own if isinstance(own, MixedCoordinates) else None
        path = follow_n_clusters(survey.core, seed, weights, self.model.max_clusters, mixed=mixed)
        warn_of_number(path, self.model.max_clusters)
        return choices.of_clusters(path.n_clusters).with_fitted(n_clusters_path_=path)

    @property
    def _cost_of_number(self) -> Callable[[Any], Cost]:
        """Return the cost of choosing the number of clusters, if it is "auto"."""
        return CenterCosts.number if isinstance(self.model.n_clusters, str) else nothing

    def _in_metric(self, choices: Choices) -> Choices:
        """Convert the survey to the coordinates where distances are measured."""
        survey = choices.survey
        if self.model.distortion == "cosine":
            sphere = SphereCoordinates(len(survey.variance))
            return replace(choices, survey=survey.transformed(sphere, sphere.to_model))
        if self.model.distortion != "mahalanobis":
            return choices
        given = given_precision(self.model.metric_params, len(survey.variance))
        precision = total_precision(survey.core) if given is None else given
        return replace(choices, survey=whitened(survey, precision))

    def _choose_update(self, choices: Choices) -> Choices:
        """Choose the update of the MM steps, with its parameters."""
        survey, seed = choices.survey, choices.seeds[0]
        update, fitted, found = self.model._update(
            survey, choices.method.n_clusters, seed, choices.lazy, choices.context.journal
        )
        trimmed = replace(update, trim=float(self.model.trim))
        return replace(choices, update=trimmed, found=found).with_fitted(**fitted)

    def _choose_schedule(self, choices: Choices) -> Choices:
        """Determine the schedule of the powers and whatever depends on it."""
        survey, earlier = choices.survey, self.earlier
        schedule = self.model._schedule(lambda: survey.critical_power)
        if earlier is not None:
            # The first power of an annealing would move all centres of the earlier model to the
            # mean.
            s0 = -np.inf if self.model.polish else earlier.s_
            schedule = replace(schedule, s0=s0, critical_multiple=None)
        hedged = choices.update.hedged
        restarts = self._restarts(schedule) and not hedged
        method = replace(choices.method, schedule=schedule, hedged=hedged, restarts=restarts)
        return replace(choices, method=method)

    def _restarts(self, schedule: Schedule) -> bool:
        """Return whether to anneal once more at the feature weights that were learned.

        Fits from given centres do not anneal again, since these say where the clusters are; nor do
        fits with other distances than squared ones, or with missing values.
        """
        plain = self.model.distortion == "sqeuclidean" and self.model.missing == "error"
        return schedule.polish and self._seeds and plain

    @property
    def _seeds(self) -> bool:
        """Return whether starting centres have to be found."""
        return isinstance(self.model.init, str) and self.earlier is None

    def _samples(self, layout: Layout) -> bool:
        """Return whether to anneal on a sample, and to take only Lloyd steps over the table."""
        coded = layout.lazy and (layout.sparse or self.model.distortion == "mixed")
        # Far rows are known in the sample only, so annealing over the table would count them.
        trimmed = self.model.trim > 0
        bounds, seeds, exchanges = cluster_range(self.model), self._seeds, self._exchanges(layout)
        hard = self.model._schedule(lambda: HARMONIC).s0 == -math.inf
        return anneals_on_sample(
            layout,
            self.model.sample_size,
            self.model.polish,
            *bounds,
            alone=self._most_starts(layout) == 1 and not exchanges,
            races=hard and exchanges,
            always=(coded or trimmed) and seeds,
        )

    def _may_exchange(self, layout: Layout) -> bool:
        """Return whether distances, rows and start allow exchanges of clusters."""
        squared = DISTORTIONS[self.model.distortion].squared and not self.model._weighs_features
        complete = self.model.missing == "error" and not layout.sparse
        return squared and complete and self._seeds

    def _exchanges(self, layout: Layout) -> bool:
        """Return whether a fit on a sample has enough iterations to exchange clusters."""
        enough = self.model.max_iter >= FIRST_STEPS + EXCHANGE_STEPS
        return enough and self._may_exchange(layout)

    def _most_starts(self, layout: Layout) -> int:
        """Return the number of starts of a fit whose iterations do not read a large table."""
        if not self._seeds:
            return 1
        if self.model.n_init != "auto":
            return int(self.model.n_init)
        if isinstance(self.model.n_clusters, str):
            return STARTS_IN_MEMORY
        most = CENTERS_WITH_EXCHANGE if self._may_exchange(layout) else CENTERS_OF_STARTS
        return min(STARTS_IN_MEMORY, max(1, most // int(self.model.n_clusters)))

    def _n_starts(self, layout: Layout) -> int:
        reads = layout.lazy and not self._samples(layout)
        large = not is_small(layout, cluster_range(self.model)[1])
        return 1 if self.model.n_init == "auto" and reads and large else self._most_starts(layout)

    def _checked_init(self, n_features: int, expansion: Expansion | None) -> FloatArray | None:
        """Return given centres, checked against the data and n_clusters; None if none are given."""
        earlier = self.earlier
        if earlier is None and isinstance(self.model.init, str):
            return None
        given = self.model.init if earlier is None else earlier.cluster_centers_
        centers = given_array(given, "init")
        n_clusters = self.model.n_clusters
        if isinstance(n_clusters, str) and earlier is None:
            raise ValueError("init must be the name of a method where n_clusters='auto'.")
        if isinstance(n_clusters, str):
            n_clusters = len(centers)
        n_features = n_features if expansion is None else len(expansion.groups)
        expected = (n_clusters, n_features)
        if centers.shape != expected:
            own = earlier is not None and earlier.own
            raise ValueError(
                f"{'The model that warm_start continues' if own else 'init'} has "
                f"shape {centers.shape}; with n_clusters={self.model.n_clusters} and "
                f"{n_features} features it must be {expected}."
            )
        return centers

    def plan(self, layout: Layout, timed: bool = False, method: Method | None = None) -> Plan:
        """Return the cost of a fit to a table of this layout; raise if workers cannot hold it.

        Once the fit has made its choices, `method` holds them.
        """
        wanted = wanted_rows(self.model.sample_size, cluster_range(self.model)[0])
        timed = timed and (method is not None or not isinstance(self.model.n_clusters, str))
        own = self._method(layout) if method is None else method
        stages = [
            *self._choice_stages(),
            *center_stages(own, layout.lazy),
            self._labelling(None),
        ]
        return planning.plan(layout, own, stages, wanted=wanted, timed=timed)

    def _method(self, layout: Layout) -> Method:
        """Return the method for a table of this layout."""
        model = self.model
        self._check_sizes()
        # The critical power of real rows lies between −1 (rows along one direction) and that of
        # noise.
        schedule = model._schedule(lambda: -math.sqrt(layout.n_features))
        weighted, on_sample = model._weighs_features, self._samples(layout)
        chooses_lam = vars(model).get("lam") == "auto" and model.distortion != "manhattan"
        return Method(
            cluster_range(model)[1],
            self._n_starts(layout),
            schedule,
            on_sample,
            str(model.init) if self._seeds else GIVEN,
            DISTORTIONS[model.distortion],
            weighted,
            not weighted,
            model.missing == "partial",
            weighted and chooses_lam,
            weighted and self._restarts(schedule),
            empty_cluster=model.empty_cluster,
            trim=float(model.trim),
            max_cluster_size=model.max_cluster_size,
            learns_metric=model.distortion == "mahalanobis" and model.metric_params is None,
            exchanges=on_sample and self._exchanges(layout),
            # Rows on the unit sphere have no heavy tails.
            by_distance=on_sample and model.distortion not in ("cosine", "mixed"),
        )


def attributes_of_fit(fit: CentersFit) -> dict[str, Any]:
    """Return the fitted attributes of centres, their coordinates and the history."""
    outcome, coordinates = fit.result, fit.survey.coordinates
    state, scored = outcome.run.state, outcome.scored
    found = {
        **attributes_of_outcome(outcome, fit.before),
        **attributes_of_clusters(
            coordinates, state, scored.state, scored.cluster_weights, scored.value_weights
        ),
        "mean_": coordinates.mean,
        "scale_": coordinates.scale,
        "_n_features_out": len(state.centers),
    }
    if state.offsets is not None:
        found["offsets_"] = state.offsets
    if isinstance(coordinates, MixedCoordinates):
        found.update(coordinates_=coordinates, distortion_=fit.survey.distortion)
    if isinstance(coordinates, Coordinates) and fit.survey.near is None:
        # Reports need the variance of the values that are not missing.
        variance = fit.survey.variance / fit.survey.shares
        found["_variance"] = variance * np.square(coordinates.scale)
    if isinstance(coordinates, WhitenedCoordinates):
        found["precision_"] = coordinates.whitening @ coordinates.whitening.T
    return found


def some_clusters(survey: Survey, n_clusters: int | str) -> int:
    """Return the number of clusters that choices assume before "auto" has been decided."""
    if not isinstance(n_clusters, str):
        return int(n_clusters)
    return max(1, min(SOME_CLUSTERS, len(survey.sample.rows) // LEAST_ROWS))
