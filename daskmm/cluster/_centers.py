"""Estimators whose clusters are centres."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from daskmm.auto.n_clusters import ClusterNumberPath
from daskmm.auto.standardize import ScaleChoice
from daskmm.cluster._center_fit import CenterRecipe, earlier_model
from daskmm.cluster._docs import documented
from daskmm.cluster._estimator import MMClusterer
from daskmm.cluster._export import nearest_center_pipeline, nearest_direction_pipeline, with_names
from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.cluster._fitting import fitting, lock_of, replace_fitted, unfitted
from daskmm.cluster._mixed import planned
from daskmm.cluster._parameters import METRIC, SAMPLING, Constraints
from daskmm.cluster._partial_fit import name_of_call, updated_model
from daskmm.cluster._sklearn import Interval, StrOptions
from daskmm.cluster._stability import stability
from daskmm.cluster._warnings import warn_of_empty_rows
from daskmm.data.blocks import Layout
from daskmm.data.errors import SparseRowsError
from daskmm.data.mixed import Column
from daskmm.data.rasters import pixels_of
from daskmm.data.sparse import is_sparse, taken_rows
from daskmm.engine.first_pass import Survey
from daskmm.engine.passes import Persist
from daskmm.kmeans.assignment import cost
from daskmm.kmeans.belonging import (
    MembershipPower,
    labels_within_limit,
    limit_of,
    memberships_of,
    probabilities_of,
    scores_of,
)
from daskmm.kmeans.incremental import Updates
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import PowerUpdate, Update
from daskmm.metrics.quality import sampled_table
from daskmm.mm.driver import Schedule
from daskmm.mm.journal import Journal
from daskmm.numerics.columns import MixedCoordinates
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.distortions.base import Distortion
from daskmm.planning import Plan


# `transform` is not wrapped, since scikit-learn would compute lazy distances to make a frame of
# them.
@documented
@dataclass(eq=False, repr=False)
class CenterClusterer(  # type: ignore[call-arg]
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, MMClusterer, auto_wrap_output_keys=None
):
    """Base of the estimators whose clusters are centres.

    A subclass defines its schedule of powers and, if it differs from power k-means, its update.
    """

    n_clusters: int | str = 8
    _: KW_ONLY
    max_clusters: int | None = None
    init: str | ArrayLike | MMClusterer | FrozenEstimator = "k-means++"
    warm_start: bool = False
    n_init: int | str = "auto"
    sample_size: int | str | None = "auto"
    persist: Persist = False
    tol: float = 1e-4
    standardize: bool | str = "auto"
    distortion: str = "sqeuclidean"
    metric_params: dict[str, Any] | None = None
    missing: str = "error"
    empty_rows: str = "error"
    empty_cluster: str = "farthest"
    trim: float = 0.0
    max_cluster_size: float | None = None
    forget: float | str | None = None

    _parameter_constraints: ClassVar[Constraints] = {
        **MMClusterer._parameter_constraints,
        **SAMPLING,
        **METRIC,
        "n_clusters": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_clusters": [None, Interval(Integral, 2, None, closed="left")],
        "standardize": ["boolean", StrOptions({"auto"})],
        "init": [
            StrOptions({"k-means++", "k-means||", "random"}),
            "array-like",
            TransformerMixin,
            FrozenEstimator,
        ],
        "warm_start": ["boolean"],
        "forget": [None, str, Interval(Real, 0, None, closed="neither")],
        "empty_cluster": [StrOptions({"farthest", "restart", "error"})],
        "trim": [Interval(Real, 0, 1, closed="left")],
        "max_cluster_size": [
            None,
            Interval(Integral, 1, None, closed="left"),
            Interval(Real, 1, None, closed="left"),
        ],
    }
    # Whether feature weights are learned. Features with missing values then count in distances as
    # much as those without.
    _weighs_features: ClassVar[bool] = False

    # Estimators that do not anneal have no parameter of this name.
    polish = True

    cluster_centers_: NDArray[np.float64] = field(init=False)
    n_clusters_: int = field(init=False)
    n_clusters_path_: ClusterNumberPath = field(init=False)
    standardize_path_: ScaleChoice = field(init=False)
    precision_: NDArray[np.float64] = field(init=False)
    feature_dim_: str = field(init=False)
    columns_: tuple[Column, ...] = field(init=False)
    coordinates_: MixedCoordinates = field(init=False)
    distortion_: Distortion = field(init=False)
    value_shares_: NDArray[np.float64] = field(init=False)
    n_samples_seen_: int = field(init=False)
    updates_: Updates = field(init=False)
    typical_distances_: NDArray[np.float64] = field(init=False)
    relative_distances_: NDArray[np.float64] = field(init=False)
    stability_: NDArray[np.float64] = field(init=False)

    @abstractmethod
    def _schedule(self, critical_power: Callable[[], float]) -> Schedule:
        """Return the schedule of the powers; `critical_power` is called only if it is needed."""

    def _update(
        self, survey: Survey, n_clusters: int, seed: int, lazy: bool, journal: Journal
    ) -> tuple[Update, dict[str, Any], CenterState | None]:
        """Return the update of the MM steps, its fitted attributes, and a further start if any.

        The further start is the clusters found while a parameter of the update was chosen.
        """
        relocates = self.empty_cluster == "farthest"
        return PowerUpdate(survey.distortion, survey.partial, relocates), {}, None

    def _weights_for_number(
        self, survey: Survey, seed: int, lazy: bool
    ) -> NDArray[np.float64] | None:
        """Return feature weights for choosing the number of clusters; None for equal ones."""
        return None

    def _of_clusters(self, survey: Survey, seed: int) -> Survey:
        """Return the survey; subclasses may make features constant that cannot show clusters."""
        return survey

    def _later_update(self, state: CenterState) -> Update:
        """Return the update of the MM steps of a fitted model."""
        return PowerUpdate(state.distortion, state.partial)

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, feature_dim: str | None = None
    ) -> Self:
        """Cluster the rows of `X`.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows may be sparse for ``distortion="sqeuclidean"``, "cosine" and "kl": a scipy matrix,
            a dask array of sparse blocks, or an AnnData object; then ``mean_`` is 0, as sparse rows
            are not shifted. Data in memory are clustered by threads of this process. Dask and zarr
            data are streamed through the active dask scheduler, each block loaded once per pass.
        [y]
        sample_weight : array-like or dask Array of shape (n_samples,), optional
            Weights, not negative; chunked in any way. A row of integer weight v counts like v
            copies of it. For a raster, the weights may also be an array or DataArray on its grid.
        feature_dim : str, optional
            Dimension of an xarray DataArray along which its features lie, such as "band". The rows
            are the pixels along all other dimensions, and labels are returned on their grid. Blocks
            are the chunks of the DataArray, each with all features. The features of a Dataset are
            its variables; if it has only one variable, they may lie along this dimension of it.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the data cannot be used. If a value is at fault, the message names its
            block and row.
        [interrupt]
        """
        self._validate_params()
        with fitting(self) as (model, context):
            earlier = None
            if self.warm_start or hasattr(self.init, "get_params"):
                # The journal keeps the earlier model, because an interrupted fit replaces the
                # estimator's model before it is resumed.
                context.journal.enter("earlier model", followed=False)
                [earlier] = context.journal.once(lambda: [earlier_model(self)])
            CenterRecipe(model, earlier).fit(X, sample_weight, feature_dim, context)
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        key: str | int | None = None,
        feature_dim: str | None = None,
        unknown: str | None = None,
    ) -> Self:
        """Update the clusters with new rows, in one pass over them.

        This is incremental MM: the sums of each call are kept as the record of its rows, and
        centres and feature weights minimise the sum of the majorizing functions of all rows so far,
        each row with the weight that it still has (see `forget`). There is no learning rate.

        If the estimator is not fitted, the first call is a fit to `X`. It chooses the values of
        "auto" parameters, the scale of the features, λ and the number of clusters, and later calls
        keep them. Calls after `fit`, or on a loaded model, continue from that model, with the rows
        of its fit as the first record. If the fit ended with Lloyd steps (`polish`), calls take
        hard steps too; otherwise they take steps at the power with which it ended.

        A sample of all rows (200 per cluster, from 2,000 to 10,000) is kept, and saved with the
        model. Memberships and outliers are measured by this sample; after a `fit`, only once it is
        half full. Unless `init` is an array of centres, fresh starts on the sample compete with the
        present clusters whenever new rows make up three tenths of all rows, or one tenth if their
        mean cost is a quarter higher than that of all rows. If a fresh start wins, the records are
        divided among its clusters in the proportions of the sample. The rows of a `fit` are not in
        the sample, so after one, fresh starts compete only once those rows have less than a tenth
        of the weight.

        If there is a half-life (`forget`), a second set of records fades four times as fast. If new
        rows, before they enter either set, cost less at the centres of the second set, it replaces
        the first. So the model follows data that change abruptly, and keeps the longer memory for
        data that do not change.

        Hard steps leave out the share `trim` of the rows of each call, which takes two or three
        more passes over them.

        Columns, levels and their scale are those of the fit or of the first call if
        ``distortion="mixed"``. Later levels are treated as in `predict`.

        Parameters
        ----------
        [arrived, y, sample_weight]
        key : str or int, optional
            Name of these rows, such as a date or a path. A call with a key that was used before
            replaces the record of that call, so its rows are not counted twice; visiting all keys
            again and again converges to a fit to all of the rows, whatever their order. Until then
            the order matters, since each record is made at the centres of its call. With a
            half-life, a call with a known key makes no records fade: its rows get the weight to
            which the replaced rows had faded. So a call can be repeated safely, and rows of another
            day need another key.
        [feature_dim]
        unknown : {"error", "missing"}, optional
            Whether levels of mixed columns that the fit did not see raise an error, or are taken as
            missing values; by default as in the fit. It cannot be given in a first call, which is a
            fit.

        Returns
        -------
        self
            If the call fails or is killed, the estimator is as it was before.

        Raises
        ------
        ValueError
            As `fit`.

        References
        ----------
        Mairal, "Incremental Majorization-Minimization Optimization with Application to
        Large-Scale Machine Learning", SIAM J. Optim. 25, 2015.
        """
        self._validate_params()
        name = name_of_call(key)
        if is_sparse(X) and self.distortion != "mixed":
            raise SparseRowsError("partial_fit takes dense rows, and X is sparse: fit to all rows.")
        with lock_of(self):
            model = updated_model(self, X, sample_weight, name, feature_dim, unknown)
            replace_fitted(self, model)
        return self

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags, which say which values are allowed."""
        tags: Tags = super().__sklearn_tags__()
        squared_or_counts = ("sqeuclidean", "cosine", "kl", "poisson")
        whole = self.missing == "error" and self.distortion in squared_or_counts
        tags.input_tags.sparse = whole
        tags.input_tags.allow_nan = self.missing == "partial"
        tags.input_tags.positive_only = DISTORTIONS[self.distortion].domain in ("x ≥ 0", "x > 0")
        return tags

    @property
    def membership_power_(self) -> float:
        """Power at which memberships are probabilities."""
        if "membership_power_" not in vars(self):
            raise AttributeError("This model has no membership_power_; it is not fitted.")
        power: MembershipPower | float = vars(self)["membership_power_"]
        return power.value if isinstance(power, MembershipPower) else power

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, a pickle or a saved model."""
        state = dict(super().__getstate__())
        if "membership_power_" in state:
            state["membership_power_"] = self.membership_power_
        return state

    def predict(
        self,
        X: Any,
        feature_dim: str | None = None,
        *,
        outliers: float | None = None,
        unknown: str | None = None,
    ) -> Any:
        """Predict the cluster of each row: the nearest centre in the model's distance.

        Distances include ``offsets_``, if the sizes of the clusters are bounded by these.

        Parameters
        ----------
        [rows_by_name, feature_dim]
        outliers : float, optional
            Share of the training rows, in (0, 1), that counts as outliers. Rows get the label −1 if
            their `score_samples` lie below the quantile of the training rows at this share.
        unknown : {"error", "missing"}, optional
            Whether levels of mixed columns that the fit did not see raise an error, or are left out
            of the distances like missing values; by default as in the fit.

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            Lazy for dask and zarr input: a Series aligned with a dask DataFrame, otherwise an
            array. A pandas DataFrame gives a pandas Series if ``set_output(transform="pandas")``
            asks for it, and a raster a DataArray on its grid, with its coordinates. If values may
            be missing, rows without any value get the label −1, with a warning unless the labels
            are lazy or ``empty_rows="label"`` expects such rows.
        """
        fitted = FittedCenters.of(self, unknown).lenient
        if outliers is None:
            labels = fitted.labels(X, feature_dim)
            if self.empty_rows == "error":
                warn_of_empty_rows(labels, fitted.coding is not None)
            return labels
        if not (isinstance(outliers, Real) and 0.0 < outliers < 1.0):
            raise ValueError(f"outliers must be a share between 0 and 1, got {outliers!r}.")
        limit = limit_of(self.relative_distances_, float(outliers))
        shared = self.typical_distances_, limit
        return fitted.labels(X, feature_dim, labels_within_limit, *shared)

    def transform(self, X: Any, feature_dim: str | None = None) -> Any:
        """Compute the distances (unsquared) or divergences to the centres, in the model's scale.

        Parameters
        ----------
        [rows_by_name, feature_dim]

        Returns
        -------
        [distances]

        Raises
        ------
        ValueError
            If `set_output` asks for polars, and the input is lazy.
        """
        return self._clusters().distances(X, feature_dim)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and compute the distances of the rows to the centres, as `transform` does.

        Parameters
        ----------
        X : as in `fit`
            Rows to be clustered.
        [y, fit_params]
        """
        return self.fit(X, y, **fit_params).transform(X)

    def _clusters(self) -> FittedCenters:
        return FittedCenters.of(self).lenient

    def predict_proba(self, X: Any, feature_dim: str | None = None) -> Any:
        """Compute the probability of each cluster for each row.

        The probabilities are the normalised weights φ of power means. The fit chose their power
        (``membership_power_``) so that they agree best with the posteriors of clusters that are
        equally large and equally wide (`daskmm.numerics.calibration.calibrated_power`). If clusters
        differ much in size or width, probabilities of the small and the narrow ones are too high.

        Parameters
        ----------
        [rows, feature_dim]

        Returns
        -------
        ndarray, or lazy dask Array, of shape (n_samples, n_clusters), float64
            Rows sum to 1. ``set_output`` does not apply.
        """
        return self._memberships(X, feature_dim, None, probabilities_of, "probability")

    def memberships(
        self, X: Any, feature_dim: str | None = None, *, power: float | None = None
    ) -> Any:
        """Compute the weights φ of the rows in the MM step, without normalising them.

        Parameters
        ----------
        [rows, feature_dim]
        power : float, optional
            The power s < 0; −∞ for hard memberships. By default it is that of `predict_proba`.

        Returns
        -------
        ndarray, or lazy dask Array, of shape (n_samples, n_clusters), float64
            φ_ij = ∂M_s/∂d_ij; each row's sum lies between 1 and n_clusters^(−1/s).
        """
        if power is not None and not (isinstance(power, Real) and power < 0):
            raise ValueError(f"power must be a negative number, got {power!r}.")
        return self._memberships(X, feature_dim, power, memberships_of, "membership")

    def _memberships(
        self,
        X: Any,
        feature_dim: str | None,
        power: float | None,
        function: Callable[..., NDArray],
        name: str,
    ) -> Any:
        fitted = self._clusters()
        power = self.membership_power_ if power is None else float(power)
        fitted = replace(fitted, state=replace(fitted.state, s=power))
        k = len(fitted.state.centers)
        return fitted.values(X, feature_dim, function, name=name, columns=k)

    def score_samples(self, X: Any, feature_dim: str | None = None) -> Any:
        """Compute how well each row belongs to its cluster; outliers have the lowest scores.

        Parameters
        ----------
        [rows, feature_dim]

        Returns
        -------
        ndarray, or lazy dask Array or Series, of shape (n_samples,), float64
            Minus the distance to the centre of its cluster (unsquared) in units of the median
            distance of that cluster's rows: −1 for a typical row.
        """
        typical = self.typical_distances_
        return self._clusters().values(X, feature_dim, scores_of, typical, name="score")

    def bootstrap(
        self, X: Any, *, n_bootstraps: int = 20, sample_size: int = 5_000, random_state: Any = 0
    ) -> Self:
        """Measure how stable each cluster is, by fits to rows drawn with replacement.

        A sample is drawn in one pass over `X`. Estimators with the parameters of this one (and, for
        "auto", with the values that it chose) are fitted to bootstrap samples of it. ``stability_``
        is, for each cluster, the mean over the bootstraps of its largest Jaccard similarity with a
        cluster of the bootstrap. Above .85 a cluster is stable, below .6 it should not be trusted;
        `summary_` and reports show these values.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows from which the sample is drawn, such as those of the fit.
        n_bootstraps : int, default=20
            Number of resamples that are clustered.
        sample_size : int, default=5000
            Number of rows of each resample.
        random_state : int, RandomState instance or None, default=0
            Determines the resamples and their starts.

        Returns
        -------
        self
            The estimator with ``stability_``, which is NaN for clusters without rows in the sample.

        References
        ----------
        Hennig, "Cluster-wise assessment of cluster stability", CSDA 52, 2007.
        """
        rows = sampled_table(X, sample_size)
        labels = np.asarray(self.predict(rows))
        kept = np.flatnonzero(labels >= 0)
        rows, labels = taken_rows(rows, kept), labels[kept]
        self.stability_ = stability(self, rows, labels, n_bootstraps, random_state)
        return self

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, feature_dim: str | None = None
    ) -> float:
        """Return minus the sum of the distances of the rows to the centres of their clusters.

        Parameters
        ----------
        [rows, y, sample_weight, feature_dim]

        Returns
        -------
        float
            The negative of `inertia_`, for the training data.
        """
        fitted = FittedCenters.of(self)
        passes = fitted.passes(X, sample_weight, feature_dim)
        return -cost(passes, fitted.coordinates, fitted.state)

    def to_sklearn(self) -> BaseEstimator:
        """Return a fitted estimator of scikit-learn that assigns rows to the same clusters.

        It serves programs that know only scikit-learn, and formats that are made from its
        estimators.

        Returns
        -------
        KMeans or Pipeline
            `sklearn.cluster.KMeans` with the centres in the units of the input, after a
            StandardScaler if features are standardised or weighted, or after a Normalizer for
            "cosine". A row at equal distances of two centres may get the other label. Rows must be
            float64: scikit-learn's KMeans refuses another type than that of its centres.

        Raises
        ------
        ValueError
            If the distortion is neither "sqeuclidean" nor "cosine", if values may be missing, or if
            the model has ``offsets_``.
        """
        check_is_fitted(self, "cluster_centers_")
        if self.missing == "partial":
            raise ValueError("scikit-learn's KMeans takes no rows with missing='partial'.")
        if "offsets_" in vars(self):
            raise ValueError("scikit-learn's KMeans has no offsets, which bound the sizes here.")
        if self.distortion == "cosine":
            return with_names(nearest_direction_pipeline(self.cluster_centers_), self)
        if self.distortion != "sqeuclidean":
            raise ValueError(f"scikit-learn's KMeans has no distortion={self.distortion!r}.")
        weights = vars(self).get("feature_weights_")
        fitted = self.cluster_centers_, self.mean_, self.scale_
        return with_names(nearest_center_pipeline(*fitted, weights), self)

    def plan(self, X: Any, feature_dim: str | None = None, *, measure: bool = False) -> Plan:
        """Return what a fit to `X` will cost.

        Parameters
        ----------
        X, feature_dim : as in `fit`
            Table that might be fitted.
        [measure]

        Returns
        -------
        Plan

        Raises
        ------
        ValueError
            If workers have too little memory. The message has the numbers and says what to change.
        """
        self._validate_params()
        mixed = self.distortion == "mixed"
        X, n_levels = planned(X, self.metric_params) if mixed else (pixels_of(X, feature_dim), 0)
        return self._planned(X, measure, n_levels)

    def _plan_of(self, layout: Layout, timed: bool = False) -> Plan:
        return CenterRecipe(unfitted(self), earlier_model(self)).plan(layout, timed)
