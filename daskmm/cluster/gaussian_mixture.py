"""Gaussian mixtures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from daskmm import planning
from daskmm.auto.n_clusters import PLANNED_CLUSTERS, ClusterNumberPath, follow_n_clusters
from daskmm.cluster._choices import warn_of_number
from daskmm.cluster._estimator import MMClusterer, estimator
from daskmm.cluster._export import mixture_of, with_names
from daskmm.cluster._fitting import fitting, lock_of, replace_fitted, set_fitted
from daskmm.cluster._output import fitted_labels, labels_of_table, values_of_table
from daskmm.cluster._parameters import SAMPLING, Constraints, given_array
from daskmm.cluster._partial_fit import name_of_call
from daskmm.cluster._partial_mixture import attributes_of_components, updated_mixture
from daskmm.cluster._sklearn import Interval, StrOptions
from daskmm.cluster._warnings import (
    warn_convergence,
    warn_of_identifiers,
    was_stopped,
)
from daskmm.data.blocks import Layout
from daskmm.data.errors import warn_user
from daskmm.data.input import read_weighted
from daskmm.engine.passes import Persist, weighted_passes
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.assignment import training_labels
from daskmm.mixture.costs import MixtureCosts
from daskmm.mixture.em import (
    MixtureState,
    labels_of,
    log_densities_of,
    log_likelihood,
    responsibilities_of,
)
from daskmm.mixture.fit import MixtureFit, mixture_stages
from daskmm.mixture.settings import Given, Settings
from daskmm.mm.context import FitContext
from daskmm.mm.stages import Stage, run_stages
from daskmm.numerics.gaussians import COVARIANCE_TYPES, are_positive
from daskmm.planning import Plan

FloatArray = NDArray[np.float64]

# Number of starts on the sample, and largest number of components of all starts together, since
# starts with more components take longer.
_STARTS, _COMPONENTS_OF_STARTS = 8, 256
# Number of starts that are tried first, one by each method; if they agree, no others are tried.
_FIRST_STARTS = 2
# A component is narrow if its least standard deviation is at most this multiple of the root of
# `reg_covar`.
_NARROW = 2.0


@estimator
@dataclass(eq=False, repr=False)
class GaussianMixture(DensityMixin, MMClusterer):
    """Gaussian mixture: clusters of any size, width and orientation, by expectation-maximization.

    A row belongs to each component with a probability, its responsibility
    γ_ij ∝ π_j N(x_i; μ_j, Σ_j), and the components maximise the likelihood
    Σ_i log Σ_j π_j N(x_i; μ_j, Σ_j). Parameters and attributes are those of
    `sklearn.mixture.GaussianMixture`, and the same starting components lead to the same results.
    Starts are compared on a sample, where components are also split and merged; EM then continues
    over the table, which takes a handful of passes.

    Parameters
    ----------
    n_components : int or "auto", default=1
        Number of components; "auto" chooses one on the sample of the first pass, as
        ``n_clusters="auto"`` does for other estimators: it counts groups that gaps in density
        divide. Each group counts once, even if it has heavy tails or any other shape.
    max_components : int, optional
        Largest number of components that "auto" chooses. By default only the sample bounds it.
    covariance_type : {"full", "tied", "diag", "spherical", "auto"}, default="full"
        Form of the covariances: a matrix for each component ("full"), the same matrix for all
        ("tied"), a variance per feature for each component ("diag"), or one variance for each
        component ("spherical"). "auto" takes the type with the smallest Bayesian information
        criterion on the sample.
    tol : float, default=1e-3
        Least gain of the mean log-likelihood of a row; an EM step that gains less ends the fit.
    reg_covar : float, default=1e-6
        Number that is added to all variances, in squared units of the features. It keeps
        components from shrinking to single rows, so it has to suit the units.
    max_iter : int, default=100
        Maximum number of EM steps over the table. Those on the sample do not count.
    n_init : int or "auto", default="auto"
        Number of starts on the sample. "auto" is 8, or fewer for more than 32 components; it is 2
        if the first two starts end at the same likelihood.
    init_params : {"kmeans", "k-means++", "random_from_data"}, default="kmeans"
        How a start divides the standardised rows of the sample: "kmeans" uses power k-means for
        every other start and "k-means++" for the rest; "k-means++" assigns each row to the nearest
        of rows that k-means++ draws, and "random_from_data" to the nearest of random rows.
    weights_init : array-like of shape (n_components,), optional
        Shares of the starting components, which sum to 1.
    means_init : array-like of shape (n_components, n_features), optional
        Means of the starting components. Shares and precisions that are not given are computed from
        the rows nearest to each mean. There are no other starts.
    precisions_init : array-like, optional
        Inverse covariances of the starting components, in the shape of `precisions_`. If all three
        are given, no start is looked for.
    sample_size : int or "auto", default="auto"
        Number of rows on which starts are compared. "auto" is at least 10,000 rows and 200 per
        component; for covariance matrices also 20 per component and feature. A table of at most
        twice as many rows is its own sample.
    [persist, random_state]
    warm_start : bool, default=False
        Whether `fit` continues from the components of the last fit of this estimator.
    tails : {"normal", "student"}, default="normal"
        Whether components are normal or multivariate t distributions, whose degrees of freedom are
        learned. Their heavier tails keep outliers from moving means and from widening covariances.
    missing : {"error", "partial"}, default="error"
        Whether NaN are an error ("error"), or missing values ("partial"), for which EM takes
        expectations given the other values in their row. Rows without any value are refused. With
        covariance matrices, each set of missing features that occurs takes time. "partial" cannot
        be combined with ``tails="student"``.
    [forget, verbose, callbacks, checkpoint]

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        Shares of the components, which sum to 1.
    means_ : ndarray of shape (n_components, n_features)
        Means of the components. `cluster_centers_` is another name of them.
    covariances_ : ndarray
        Covariances, of shape (n_components, n_features, n_features) for "full", (n_features,
        n_features) for "tied", (n_components, n_features) for "diag" and (n_components,) for
        "spherical".
    covariance_type_ : str
        The type that was used.
    covariance_type_bic_ : dict of str to float
        For ``covariance_type="auto"``: the criterion of each type on the sample, which is infinite
        if components have too few rows.
    precisions_ : ndarray
        Inverse covariances, of the same shape.
    degrees_of_freedom_ : ndarray of shape (n_components,)
        For ``tails="student"``: degrees of freedom of each component, from .5 to 200. Its
        covariance is `covariances_` times ν / (ν − 2).
    precisions_cholesky_ : ndarray
        Upper triangular factors U of the inverse covariances U Uᵀ, or inverse standard deviations,
        of the same shape.
    labels_ : ndarray, or lazy dask Array or Series, of shape (n_samples,), int32
        Component of the largest responsibility of each row. Labels of lazy data are dropped when
        the model is pickled or saved.
    lower_bound_ : float
        Mean log-likelihood of a row at the last EM step over the table.
    lower_bounds_ : ndarray of shape (n_steps,)
        Mean log-likelihood of a row at each of the `n_iter_` steps over the table.
    converged_ : bool
        Whether the last step gained less than `tol`.
    n_iter_ : int
        Number of EM steps over the table.
    n_passes_ : int
        Passes over the data.
    history_ : list of IterationRecord
        One record per step of the best start; its objective is minus the mean log-likelihood. Steps
        on the sample come first, with `exact` False.
    cluster_sizes_ : ndarray of shape (n_components,)
        Sum of the responsibilities of all rows, multiplied by the sample weights.
    summary_ : pandas DataFrame
        Name, size, share and mean of each component.
    n_components_path_ : ClusterNumberPath
        For ``n_components="auto"``: how much groups overlap at each number; see
        `daskmm.plot.n_clusters_path`.
    mean_, scale_ : ndarray of shape (n_features,)
        Mean and population standard deviation of each feature over the table.
    n_samples_seen_ : int
        Number of rows of the fit and of all updates.
    updates_ : KeyedRecords
        After `partial_fit`: the records of all calls.
    [n_features_in_]

    Notes
    -----
    Starts are found on standardised features. So results do not depend on the units of the
    features, except through `reg_covar` and ``"spherical"``.

    A component whose rows coincide, or lie in fewer dimensions than there are features, has a
    likelihood without bound. `reg_covar` bounds it, and a warning names such components.

    References
    ----------
    Dempster, Laird & Rubin, "Maximum likelihood from incomplete data via the EM algorithm", J. R.
    Stat. Soc. B 39, 1977. Ueda, Nakano, Ghahramani & Hinton, "SMEM algorithm for mixture models",
    Neural Computation 12, 2000. Ghahramani & Jordan, "Supervised learning from incomplete data via
    an EM approach", NIPS 1994: missing values. Peel & McLachlan, "Robust mixture modelling using
    the t distribution", Statistics and Computing 10, 2000.
    """

    n_components: int | str = 1
    _: KW_ONLY
    max_components: int | None = None
    covariance_type: str = "full"
    tol: float = 1e-3
    reg_covar: float = 1e-6
    max_iter: int = 100
    n_init: int | str = "auto"
    init_params: str = "kmeans"
    weights_init: ArrayLike | None = None
    means_init: ArrayLike | None = None
    precisions_init: ArrayLike | None = None
    sample_size: int | str = "auto"
    persist: Persist = False
    warm_start: bool = False
    tails: str = "normal"
    missing: str = "error"
    forget: float | str | None = None

    _parameter_constraints: ClassVar[Constraints] = {
        **MMClusterer._parameter_constraints,
        **SAMPLING,
        "n_components": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_components": [None, Interval(Integral, 2, None, closed="left")],
        "covariance_type": [StrOptions({*COVARIANCE_TYPES, "auto"})],
        "reg_covar": [Interval(Real, 0, None, closed="left")],
        "init_params": [StrOptions({"kmeans", "k-means++", "random_from_data"})],
        "weights_init": [None, "array-like"],
        "means_init": [None, "array-like"],
        "precisions_init": [None, "array-like"],
        "sample_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "tails": [StrOptions({"normal", "student"})],
        "missing": [StrOptions({"error", "partial"})],
        "forget": [None, str, Interval(Real, 0, None, closed="neither")],
    }

    weights_: FloatArray = field(init=False)
    means_: FloatArray = field(init=False)
    covariance_type_: str = field(init=False)
    covariance_type_bic_: dict[str, float] = field(init=False)
    covariances_: FloatArray = field(init=False)
    precisions_cholesky_: FloatArray = field(init=False)
    lower_bound_: float = field(init=False)
    lower_bounds_: FloatArray = field(init=False)
    degrees_of_freedom_: FloatArray = field(init=False)
    converged_: bool = field(init=False)
    n_components_path_: ClusterNumberPath = field(init=False)

    def _validate_params(self) -> None:
        super()._validate_params()
        if self.tails == "student" and self.missing == "partial":
            raise ValueError("tails='student' takes no missing values: remove missing='partial'.")

    @property
    def n_clusters_(self) -> int:
        """Number of components."""
        check_is_fitted(self, "means_")
        return len(self.means_)

    @property
    def cluster_centers_(self) -> FloatArray:
        """Means of the components, of shape (n_components, n_features)."""
        check_is_fitted(self, "means_")
        return self.means_

    cluster_means_ = cluster_centers_

    @property
    def precisions_(self) -> FloatArray:
        """Inverse covariances."""
        return self._components().precisions

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Estimate the components from the rows of `X`.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Data in memory are read by threads of this process. Dask and zarr data are streamed
            through the active dask scheduler, each block loaded once per pass.
        [y, copies]

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the data cannot be used (the message names the block and row of a bad
            value), or if a covariance is singular (the message says what to change).
        KeyboardInterrupt
            If the user interrupts the fit. If at least one step has been completed, the estimator
            is fitted, with the components after the last complete step.
        """
        self._validate_params()
        with fitting(self) as (model, context):
            earlier = None
            if self.warm_start:
                # The journal keeps the earlier components, because an interrupted fit replaces
                # those of the estimator before it is resumed.
                context.journal.enter("earlier model", followed=False)
                [earlier] = context.journal.once(lambda: [self._fitted_or_none()])
            model._fit(X, sample_weight, context, earlier)
        return self

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, key: str | int | None = None
    ) -> Self:
        """Update the components with new rows, in one pass over them.

        This is incremental EM: the sums of each call are kept as the record of its rows, and the
        components maximise the sum of the minorizing functions of all rows so far, each row with
        the weight that it still has (see `forget`). There is no learning rate. If the estimator is
        not fitted, the first call is a fit to `X`, which chooses the values of "auto" parameters.
        Calls after `fit`, or on a loaded model, continue from that model, with the rows of its fit
        as the first record.

        Parameters
        ----------
        [arrived, y, sample_weight]
        key : str or int, optional
            Name of these rows, such as a date or a path. A call with a key that was used before
            replaces the record of that call, so its rows are not counted twice; visiting all keys
            again and again converges to a maximum of the likelihood of all rows.

        Returns
        -------
        self
            If the call fails or is killed, the estimator is as it was before.

        Raises
        ------
        ValueError
            If a parameter or the data cannot be used, or a covariance has become singular.

        References
        ----------
        Neal & Hinton, "A view of the EM algorithm that justifies incremental, sparse, and other
        variants", Learning in Graphical Models, 1998.
        """
        self._validate_params()
        name = name_of_call(key)
        with lock_of(self):
            replace_fitted(self, updated_mixture(self, X, sample_weight, name))
        return self

    def _fit(
        self, X: Any, sample_weight: Any, context: FitContext, earlier: MixtureState | None
    ) -> None:
        """Fit this estimator, which has no fitted attributes yet."""
        passes = weighted_passes(*read_weighted(self, X, sample_weight, reset=True))
        passes.count_rows()
        layout, settings = passes.blocks.layout, self._settings(earlier)
        _check_given(settings, layout.n_features, self._choice is not None)
        plan = self._plan_of(layout, context.followed and self._choice is None, settings)
        context.expect(plan.stages, 0.0)
        fit = MixtureFit(passes, context, check_random_state(self.random_state), settings)
        with one_blas_thread(), passes.persisted(self.persist):
            fit = run_stages(mixture_stages(settings, self._choice), fit)
        run_stages([self._labelling(X)], fit)
        self._warn_of(fit)

    @property
    def _choice(self) -> Callable[[MixtureFit], MixtureFit] | None:
        """Return the function that chooses the number of components; None if it is given."""
        known = self.n_components != "auto" or (self.warm_start and "means_" in vars(self))
        return None if known else self._choose_n_components

    def _choose_n_components(self, fit: MixtureFit) -> MixtureFit:
        """Choose the number of components on the sample."""
        sample, seed = fit.survey.sample, fit.seed
        path = follow_n_clusters(sample, seed, None, self.max_components)
        warn_of_number(path, self.max_components, "components")
        self.n_components_path_ = path
        settings = replace(fit.settings, n_components=path.n_clusters)
        if fit.context.followed:
            plan = self._plan_of(fit.passes.blocks.layout, True, settings)
            fit.context.expect(plan.stages, 0.0)
        return replace(fit, settings=settings)

    def _labelling(self, X: Any) -> Stage[MixtureFit]:
        """Return the last stage of a fit, which sets the fitted attributes."""

        def labelled(fit: MixtureFit) -> MixtureFit:
            components = fit.result.run.state
            labels = training_labels(fit.passes, components, function=labels_of)
            found = fitted_labels(labels, X, labels_of, components)
            set_fitted(self, _attributes_of(fit), found, {"n_passes_": fit.passes.n_passes})
            return fit

        return Stage("labels", labelled, MixtureCosts.labels, after_stop=True)

    def _settings(self, earlier: MixtureState | None) -> Settings:
        """Return the parameters of a fit, which may continue from earlier components."""
        given = Given(
            *(
                None if (own := getattr(self, name)) is None else given_array(own, name)
                for name in ("weights_init", "means_init", "precisions_init")
            )
        )
        n_components = self.max_components or PLANNED_CLUSTERS
        if isinstance(self.n_components, Integral):
            n_components = int(self.n_components)
        elif earlier is not None:
            n_components = len(earlier.means)
        n_starts = min(_STARTS, max(1, _COMPONENTS_OF_STARTS // n_components))
        if self.n_init != "auto":
            n_starts = int(self.n_init)
        if earlier is not None or given.complete:
            n_starts = 0
        elif given.means is not None:
            n_starts = 1
        unknown = self.covariance_type == "auto"
        return Settings(
            n_components,
            "full" if unknown else self.covariance_type,
            float(self.reg_covar),
            float(self.tol),
            int(self.max_iter),
            n_starts,
            min(n_starts, _FIRST_STARTS) if self.n_init == "auto" else n_starts,
            self.init_params,
            given,
            earlier,
            None if isinstance(self.sample_size, str) else int(self.sample_size),
            least_rows=1 if self.n_components == "auto" else n_components,
            chooses_type=unknown,
            partial=self.missing == "partial",
            student=self.tails == "student",
        )

    def to_sklearn(self) -> BaseEstimator:
        """Return scikit-learn's `GaussianMixture` with the same components.

        Returns
        -------
        sklearn.mixture.GaussianMixture
            A fitted estimator. It predicts, scores and samples, and a new fit of it begins anew.

        Raises
        ------
        ValueError
            If components are t distributions, or values may be missing.
        """
        check_is_fitted(self, "means_")
        if self.tails == "student" or self.missing == "partial":
            raise ValueError(
                "scikit-learn's GaussianMixture has no tails='student' and no missing='partial'."
            )
        return with_names(mixture_of(self), self)

    def _fitted_or_none(self) -> MixtureState | None:
        return self._components() if "means_" in vars(self) else None

    def _components(self) -> MixtureState:
        """Return the fitted components."""
        fitted = vars(self)  # a fit in another thread replaces this dictionary
        check_is_fitted(self, "means_")
        names = "covariance_type_", "weights_", "means_", "covariances_", "precisions_cholesky_"
        degrees, partial = fitted.get("degrees_of_freedom_"), fitted["missing"] == "partial"
        state = MixtureState(*(fitted[name] for name in names))
        return replace(state, degrees=degrees, partial=partial)

    def _warn_of(self, fit: MixtureFit) -> None:
        """Warn of identifiers, narrow components, and of a fit that has not converged."""
        warn_of_identifiers(self, fit.survey.identifiers)
        if was_stopped(fit.context):
            return
        state = fit.result.run.state
        if fit.criteria and np.isinf(list(fit.criteria.values())).all():
            warn_user(
                "covariance_type='auto' had nothing to compare: with each type, some component has "
                f"too few rows for a covariance. {state.covariance_type!r} was taken, the simplest "
                "type. Ask for fewer components, or give the type.",
                UserWarning,
            )
        narrow = np.flatnonzero(state.least_variances <= _NARROW**2 * self.reg_covar)
        if len(narrow):
            warn_user(
                f"{len(narrow)} component(s) (first: {narrow[0]}) are as narrow in some direction "
                f"as reg_covar={self.reg_covar:g} allows: their rows coincide, or lie in fewer "
                "dimensions than there are features, and the likelihood says little. Ask for fewer "
                "components, a simpler covariance_type, or a larger reg_covar.",
                UserWarning,
            )
        if not self.converged_ and self.tol > 0:
            warn_convergence(
                f"Not converged in max_iter={self.max_iter} steps: the last one gained more than "
                f"tol={self.tol:g}. Raise max_iter or tol."
            )

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags, which say which values are allowed."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "partial"
        return tags

    def _least_rows(self) -> int:
        return 1 if isinstance(self.n_components, str) else self.n_components

    def _plan_of(
        self, layout: Layout, timed: bool = False, settings: Settings | None = None
    ) -> Plan:
        """Return the cost of a fit to such a table; its settings may be known."""
        if settings is None:
            settings = self._settings(self._fitted_or_none() if self.warm_start else None)
            timed = timed and self._choice is None
        stages = [*mixture_stages(settings, self._choice), self._labelling(None)]
        return planning.mixture_plan(layout, settings, stages, timed=timed)

    def predict(self, X: Any) -> Any:
        """Predict the component of the largest responsibility of each row.

        Parameters
        ----------
        [rows_by_name]

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            Lazy for dask and zarr input.
        """
        return labels_of_table(self, X, labels_of, self._components())

    def predict_proba(self, X: Any) -> Any:
        """Compute the responsibility of each component for each row.

        Parameters
        ----------
        [rows]

        Returns
        -------
        ndarray, or lazy dask Array, of shape (n_samples, n_components), float64
            Rows sum to 1.
        """
        components = self._components()
        k = len(components.means)
        return values_of_table(
            self, X, responsibilities_of, components, name="probability", columns=k
        )

    def score_samples(self, X: Any) -> Any:
        """Compute the log-likelihood of each row; outliers have the lowest values.

        Parameters
        ----------
        [rows]

        Returns
        -------
        ndarray, or lazy dask Array or Series, of shape (n_samples,), float64
        """
        return values_of_table(self, X, log_densities_of, self._components(), name="score")

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the mean log-likelihood of a row, in one pass.

        Parameters
        ----------
        [rows, y, sample_weight]

        Returns
        -------
        float
        """
        total, weight = self._likelihood(X, sample_weight)
        return total / weight

    def _likelihood(self, X: Any, sample_weight: Any = None) -> tuple[float, float]:
        """Return the log-likelihood of all rows, and the sum of their weights."""
        components = self._components()
        passes = weighted_passes(*read_weighted(self, X, sample_weight, reset=False))
        total, weight = passes.reduce(log_likelihood, components)
        return float(total), float(weight)

    def bic(self, X: Any) -> float:
        """Compute the Bayesian information criterion of the model on rows; lower is better.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows, read in one pass.

        Returns
        -------
        float
            −2 log-likelihood plus the number of free parameters times log n.
        """
        total, n = self._likelihood(X)
        return -2.0 * total + self._components().n_parameters * math.log(n)

    def aic(self, X: Any) -> float:
        """Compute the Akaike information criterion of the model on rows; lower is better.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows, read in one pass.

        Returns
        -------
        float
            −2 log-likelihood plus twice the number of free parameters.
        """
        total, _ = self._likelihood(X)
        return -2.0 * total + 2.0 * self._components().n_parameters

    def sample(self, n_samples: int = 1) -> tuple[FloatArray, NDArray[np.int32]]:
        """Draw rows from the fitted mixture, by the estimator's `random_state`.

        Parameters
        ----------
        n_samples : int, default=1
            Number of rows.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Rows, sorted by component.
        y : ndarray of int32 of shape (n_samples,)
            Component of each row.

        Raises
        ------
        ValueError
            If `n_samples` is less than 1.
        """
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}.")
        components, rng = self._components(), check_random_state(self.random_state)
        counts = rng.multinomial(n_samples, components.shares)
        labels = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        rows = rng.standard_normal((n_samples, components.means.shape[1]))
        if components.degrees is not None:
            degrees = components.degrees[labels]
            rows *= np.sqrt(degrees / rng.chisquare(degrees))[:, None]
        for component in range(len(counts)):
            rows[labels == component] = components.colored(rows[labels == component], component)
        return rows, labels


def _attributes_of(fit: MixtureFit) -> dict[str, Any]:
    """Return the fitted attributes other than the labels and the number of passes."""
    outcome, coordinates = fit.result, fit.survey.coordinates
    state, history = outcome.run.state, outcome.run.history
    return {
        **attributes_of_components(state),
        "covariance_type_": state.covariance_type,
        "history_": [*(record for run in fit.runs for record in run.history), *history],
        "lower_bounds_": np.array([-record.objective for record in history]),
        # A fit that was stopped on the sample has taken no step over the table.
        "lower_bound_": -history[-1].objective if history else -outcome.scored.penalty,
        "converged_": outcome.run.converged,
        "n_iter_": outcome.n_iter,
        "cluster_sizes_": outcome.scored.cluster_weights,
        "mean_": coordinates.mean,
        "scale_": coordinates.scale,
        "n_samples_seen_": fit.survey.n_rows,
        **({"covariance_type_bic_": fit.criteria} if fit.criteria else {}),
    }


def _check_given(settings: Settings, n_features: int, unknown_number: bool) -> None:
    """Check that given starting components fit the data and the parameters."""
    given, k, p = settings.given, settings.n_components, n_features
    if settings.chooses_type and (given.precisions is not None or settings.earlier is not None):
        raise ValueError("precisions_init and warm_start need a covariance_type, and it is 'auto'.")
    if unknown_number and not given.empty:
        raise ValueError(
            "weights_init, means_init and precisions_init need a number as n_components, and it is "
            "'auto'."
        )
    shapes = {"full": (k, p, p), "tied": (p, p), "diag": (k, p), "spherical": (k,)}
    expected = {
        "weights_init": (given.shares, (k,)),
        "means_init": (given.means, (k, p)),
        "precisions_init": (given.precisions, shapes[settings.covariance_type]),
    }
    for name, (array, shape) in expected.items():
        if array is not None and array.shape != shape:
            raise ValueError(
                f"{name} has shape {array.shape}; with n_components={k}, covariance_type="
                f"{settings.covariance_type!r} and {p} features it must be {shape}."
            )
    if given.shares is not None and (
        (given.shares < 0).any() or abs(given.shares.sum() - 1.0) > 1e-8
    ):
        raise ValueError(
            f"weights_init must be shares that are not negative and sum to 1; they sum to "
            f"{given.shares.sum():g}."
        )
    if given.precisions is not None and not are_positive(
        given.precisions, settings.covariance_type
    ):
        raise ValueError("precisions_init must be symmetric and positive definite.")
    if settings.earlier is not None and settings.earlier.means.shape != (k, p):
        raise ValueError(
            f"The model that warm_start continues has means of shape "
            f"{settings.earlier.means.shape}; with n_components={k} and {p} features they must "
            f"have shape {(k, p)}."
        )
