"""Weighted blurring mean shift."""

from __future__ import annotations

import functools
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state

from daskmm import planning
from daskmm._dask import da
from daskmm.auto.bandwidth import DEFAULT_LAM, BandwidthPath, Followed, follow_bandwidths
from daskmm.cluster._estimator import MMClusterer, estimator
from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.cluster._fitting import fitting, set_fitted
from daskmm.cluster._output import fitted_labels
from daskmm.cluster._parameters import Constraints
from daskmm.cluster._shift_fit import (
    ShiftFit,
    compression_stages,
    learns_on_few,
    with_clusters,
    with_first_weights,
    with_rows,
    with_seed,
    with_weights,
)
from daskmm.cluster._sklearn import Interval, StrOptions, with_set_output
from daskmm.cluster._warnings import warn_convergence, warn_of_identifiers, was_stopped
from daskmm.data.blocks import Block, Layout
from daskmm.data.input import read_weighted
from daskmm.engine.first_pass import Survey, described_data, first_pass
from daskmm.engine.passes import Passes, weighted_passes
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.assignment import labels_of, training_labels
from daskmm.kmeans.sums import CenterState
from daskmm.mean_shift.blurring import (
    Blurred,
    Blurring,
    BlurringRecord,
    max_iterations,
    phases_of,
)
from daskmm.mean_shift.costs import BlurringCosts
from daskmm.mean_shift.micro_clusters import followed
from daskmm.mm.context import FitContext
from daskmm.mm.stages import Stage, run_stages
from daskmm.numerics.options import CONVENTIONS
from daskmm.numerics.rows import Coordinates
from daskmm.planning import Plan

# Largest number of rows for which every row is blurred: about a minute on two cores (100,000 rows
# of 10 features take 159 s).
EXACT_ROWS = 50_000
# Number of micro-clusters for larger tables; there are fewer if their positions take more bytes.
MICRO_CLUSTERS, MICRO_CLUSTER_BYTES = 5000, 16 << 20


@estimator
@with_set_output
@dataclass(eq=False, repr=False)
class WeightedBlurringMeanShift(  # type: ignore[call-arg]
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, MMClusterer, auto_wrap_output_keys=None
):
    """Weighted blurring mean shift, which finds the number of clusters and learns feature weights.

    Every row moves to the mean of its neighbours, y_i ← Σ_j v_j K_ij y_j / Σ_j v_j K_ij with
    K_ij = exp(−Σ_l w_l (y_il − y_jl)² / h) and sample weights v; features along which the rows
    move far lose weight, w_l ∝ exp(−D_l / λ) with D_l = (1/n) Σ_i v_i (x_il − y_il)². Rows that
    come together form a cluster. An iteration computes n² kernel values, and fewer once rows that
    have come together are merged into one representative. Tables of more than 50,000 rows are
    compressed to micro-clusters first, so that the time is proportional to n.

    Blurring mean shift without feature weights is ``WeightedBlurringMeanShift(lam=np.inf)``.

    Parameters
    ----------
    bandwidth : float or "auto"
        Bandwidth h > 0 of the kernel exp(−d²/h). Its unit is that of squared weighted distances,
        whose mean over pairs of rows is about 2 on standardised data. "auto" chooses it on the
        sample of the first pass.
    lam : float or "auto"
        Penalty λ > 0 per unit of sample weight: small values concentrate the weight on few
        features, and ``np.inf`` keeps all weights equal. The unit makes results independent of n.
        "auto" is .1 times the mean variance of the features, which is 1 on standardised data (.05
        to .3 are useful there).
    convention : {"auto", "paper", "reference"}
        When a row counts as its own neighbour. With "paper" it always does, as Algorithm 1 is
        printed; no row moves then if h is small. With "reference" it never does, as in the authors'
        program, which makes 20 iterations, starts again from the data with the learned feature
        weights, and makes 30 more; two rows that are far from all others then swap places in every
        iteration. With "auto", rows do not count in the 20 iterations that learn the weights, nor
        in the first one after the restart from the data, but they count in all later ones. The
        weights are updated throughout. They are equal at first; but with "auto", finite `lam` and
        more than 1,000 rows, the fit begins with weights that it has learned on 1,000 of the rows.
        Stragglers join other clusters, and columns of few values count as rounded numbers (see the
        notes), with "auto" only.
    merge_tol : float
        Rows within this distance (in the model's coordinates) are merged into one
        representative; 0 merges none.
    component_tol : float
        Rows that end within this distance of one another, directly or through a chain of other
        rows, form a cluster.
    max_iter : int
        Maximum number of iterations. Iterations that learn the weights count too (20, or half of
        `max_iter` if that is less; 5 if 1,000 rows have learned the weights before). "reference"
        takes 50. Distant representatives never stop moving, so movement is not the criterion: a fit
        has converged when no representatives have merged for five iterations, and none except
        stragglers gets more than 1e-4 of its kernel sum from others. With ``convention="auto"``,
        representatives that get up to 1e-2 from others take longer steps once no others merge,
        since they would drift for hundreds of iterations.
    n_representatives : int, "auto" or None, default="auto"
        Largest number of points to blur. Tables of more rows are compressed to this number of
        micro-clusters (see the notes), which takes six or seven passes over the data, whatever
        their size, and memory for a few blocks. None blurs every row, and keeps all rows in memory.
        "auto" blurs every row of tables of up to 50,000 rows, which takes up to a minute on two
        cores, and 5,000 micro-clusters for more rows (fewer if there are more than 400 features).
    random_state : int, RandomState instance or None, default=None
        Seed of the random numbers. They determine the sample on which the bandwidth is chosen, and
        the micro-clusters.
    standardize : bool, default=True
        Divide each feature by its population standard deviation.
    [verbose]
    callbacks : list of callable, optional
        Called once per iteration with a read-only
        `daskmm.mean_shift.blurring.BlurringRecord`. A callback that raises StopIteration ends the
        fit after this iteration.
    checkpoint : str or Path, optional
        Folder in which to save the state of the fit. The same call resumes a fit that was killed
        or interrupted, to the same bits. Other data or parameters are refused; a `max_iter` of 40
        or more may be raised. The folder of a complete fit gives the same model again. `n_passes_`
        counts the first passes of every run.
    checkpoint_every : int, float or str, default=1
        How often the state is written: after a number of iterations (an integer), after a number of
        seconds (a float), or after a duration such as "30s". The last two states are kept.

    Attributes
    ----------
    labels_ : ndarray, or lazy dask Array or Series, of shape (n_samples,), int32
        Cluster of each row. A dask DataFrame gives a series aligned with it, for
        ``frame.assign(cluster=model.labels_)``. Cluster 0 has the largest weight. Rows of sample
        weight 0 do not affect the fit, and have the labels of `predict`. Labels of lazy data are
        dropped when the model is pickled or saved. `predict` gives other labels to some rows of the
        fit, since a row may have moved to another mode than the nearest one.
    cluster_sizes_ : ndarray of shape (n_clusters,), float64
        Sum of the sample weights of each cluster's rows.
    summary_ : pandas DataFrame
        Name, size, share and mode of each cluster, named by the features that tell it apart.
    n_clusters_ : int
        Number of clusters.
    cluster_centers_ : ndarray of shape (n_clusters, n_features), float64
        The modes to which the rows converged, in the input's units.
    feature_weights_ : ndarray of shape (n_features,)
        Learned weights of the features; they sum to 1, and are 0 for constant features.
    history_ : list of BlurringRecord
        One record per iteration.
    n_iter_ : int
        Number of iterations, those that learn the weights included.
    n_passes_ : int
        Number of sweeps over the data (two, and one more if rows have to be counted) and over all
        pairs of representatives (one per iteration). Fits with micro-clusters count only sweeps
        over the data.
    bandwidth_, lam_ : float
        The bandwidth and the penalty that were used.
    bandwidth_path_ : BandwidthPath
        With ``bandwidth="auto"``: the bandwidths that were compared; see
        `daskmm.plot.bandwidth_path`.
    mean_, scale_ : ndarray of shape (n_features,)
        Distances are measured between rows ``(x − mean_) / scale_``.
    [n_features_in_]

    Notes
    -----
    `labels_` is the mode to which each row converged, while `predict` returns the nearest mode; the
    two may differ on elongated clusters.

    **Stragglers.** Rows in the tails may end alone, or in small groups. With ``convention="auto"``,
    groups of fewer than ln n rows and less than .5 % of the rows are not clusters: they join the
    cluster whose mode is nearest in the learned metric, and do not move this mode. If such groups
    hold more than a tenth of the rows, they stay as they are, since then the bandwidth is too
    small. Integer sample weights count as rows. Far rows may share a micro-cluster only because
    there are few micro-clusters. So the size of a group counts, for each of its micro-clusters, one
    row and the other rows within reach of a kernel at its centre.

    **Columns of few values.** Rows that are equal in a feature need not move in it, so that a flag,
    or a column in which nearly all rows are equal, would get all weight even if it shows no
    clusters. With ``convention="auto"``, values count as rounded normal numbers: if they determine
    the share r of the variance of such numbers (.64 for an even flag, .12 for one of 2 %, 1 if all
    values differ), the weights are those of the dispersion r D_l + (1 − r) V_l, where V_l is the
    feature's variance.

    **Micro-clusters.** A fit to the sample of the first pass learns the feature weights, beginning
    with weights that 1,000 of its rows have learned. (The sample has 10,000 rows, which are drawn
    by distance as well if tails are heavy.) All rows are then compressed in the weighted metric,
    where noise hardly counts. Half of the centres are rows of the sample; the others are drawn by
    their distance from those, so that they include far rows and the clusters that the sample has
    missed. One hard step moves all centres to the means of their rows. Each micro-cluster keeps the
    weight and the variances of its rows. Kernel sums over rows that are spread normally around a
    centre have a closed form, so the compression requires no other bandwidth or weights. Then the
    micro-clusters are blurred with these weights, and each row, far ones included, gets the label
    of its micro-cluster.

    With integer sample weights, the fit is the same as with as many copies of each row. If a weight
    v is not an integer and a row does not count as its own neighbour, min(v, 1) of its weight is
    left out.

    References
    ----------
    Chakraborty, Paul & Das, "Automated Clustering of High-dimensional Data with a Feature
    Weighted Mean Shift Algorithm", AAAI 2021: means (3), weights (4), Algorithm 1,
    clusters of section 2.3.
    """

    bandwidth: float | str = "auto"
    lam: float | str = "auto"
    _: KW_ONLY
    convention: str = "auto"
    merge_tol: float = 1e-6
    component_tol: float = 1e-5
    n_representatives: int | str | None = "auto"
    standardize: bool = True

    _parameter_constraints: ClassVar[Constraints] = {
        **MMClusterer._parameter_constraints,
        "bandwidth": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "lam": [StrOptions({"auto"}), Interval(Real, 0, np.inf, closed="right")],
        "convention": [StrOptions(set(CONVENTIONS))],
        "merge_tol": [Interval(Real, 0, None, closed="left")],
        "component_tol": [Interval(Real, 0, None, closed="left")],
        "n_representatives": [
            StrOptions({"auto"}),
            None,
            Interval(Integral, 8, None, closed="left"),
        ],
    }

    cluster_centers_: NDArray[np.float64] = field(init=False)
    n_clusters_: int = field(init=False)
    feature_weights_: NDArray[np.float64] = field(init=False)
    bandwidth_: float = field(init=False)
    bandwidth_path_: BandwidthPath = field(init=False)
    lam_: float = field(init=False)
    history_: list[BlurringRecord] = field(init=False)  # type: ignore[assignment]

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Cluster the rows of `X`.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows to be clustered. If every row is blurred, they are read twice, and kept in memory
            meanwhile; if they are compressed to micro-clusters, they are streamed. Data in memory
            are clustered by threads of this process, dask and zarr data through the active dask
            scheduler.
        [y, copies]

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
        with fitting(self) as (model, context), one_blas_thread():
            model._fit(X, sample_weight, context)
        return self

    def _fit(self, X: Any, sample_weight: Any, context: FitContext) -> None:
        """Fit this estimator, which has no fitted attributes yet."""
        passes = weighted_passes(*read_weighted(self, X, sample_weight, reset=True))
        passes.count_rows()
        layout = passes.blocks.layout
        context.expect(self._plan_of(layout, timed=context.followed).stages, 0.0)
        fit = ShiftFit(passes, context, check_random_state(self.random_state))
        run_stages(self._stages(layout, X), fit)

    def _stages(self, layout: Layout, X: Any = None) -> list[Stage[ShiftFit]]:
        """Return the stages of a fit to a table of this layout."""
        n_points = self._n_micro_clusters(layout)
        stages: list[Stage[ShiftFit]] = [
            Stage("seeds", with_seed),
            Stage(
                "first pass",
                functools.partial(self._surveyed, by_distance=n_points is not None),
                BlurringCosts.survey,
            ),
        ]
        if self.bandwidth == "auto":
            stages.append(Stage("bandwidth", self._choose_bandwidth, BlurringCosts.bandwidth))
        stages += [
            Stage("settings", self._with_settings),
            Stage("first feature weights", with_first_weights, needed=learns_on_few),
        ]
        if n_points is None:
            stages.append(Stage("rows", with_rows, BlurringCosts.read_rows))
        else:
            stages += [
                Stage("feature weights", with_weights, BlurringCosts.feature_weights),
                *compression_stages(n_points),
            ]
        return [
            *stages,
            Stage("blurring", with_clusters, BlurringCosts.blurring, after_stop=True),
            Stage(
                "labels",
                functools.partial(self._labelled, X=X),
                BlurringCosts.labels,
                after_stop=True,
            ),
        ]

    def _surveyed(self, fit: ShiftFit, by_distance: bool) -> ShiftFit:
        """Make the first pass."""
        standardize = bool(self.standardize)
        survey = first_pass(fit.passes, 1, standardize, fit.seed, by_distance=by_distance)
        fit.context.journal.resume(self._described_data(fit.layout, survey), fit.passes)
        warn_of_identifiers(self, survey.identifiers)
        lam = DEFAULT_LAM * survey.mean_variance if self.lam == "auto" else float(self.lam)
        return replace(fit, survey=survey, lam=lam)

    def _choose_bandwidth(self, fit: ShiftFit) -> ShiftFit:
        """Compare bandwidths on the sample."""
        rows, weights = fit.survey.sample.rows, fit.survey.sample.weights
        found: Followed = fit.context.journal.once(
            lambda: follow_bandwidths(rows, weights, fit.lam, self.convention, fit.seed)
        )
        return replace(fit, path=found.path, first_weights=found.first_weights)

    def _with_settings(self, fit: ShiftFit) -> ShiftFit:
        """Gather the parameters of the blurring."""
        settings = Blurring(
            float(self.bandwidth) if fit.path is None else fit.path.bandwidth,
            fit.lam,
            self.convention,
            self.max_iter,
            float(self.merge_tol),
            float(self.component_tol),
            fit.layout.lazy,
        )
        return replace(fit, settings=settings)

    def _labelled(self, fit: ShiftFit, X: Any) -> ShiftFit:
        """Set the fitted attributes, the labels last, and warn if the result may be wrong."""
        blurred, passes = fit.result, fit.passes
        set_fitted(self, _attributes_of(fit))
        if self._n_micro_clusters(fit.layout) is None:
            labels: Any = self._labels(blurred, fit.kept, passes)
            if fit.layout.lazy:
                labels = da.from_array(labels, chunks=(fit.layout.rows,))
            set_fitted(self, fitted_labels(labels, X))
            self.n_passes_ = blurred.history[-1].n_passes + (not fit.kept.all())
        else:
            _, cells = fit.compression.result
            shared = (cells, blurred.labels)
            labels = training_labels(passes, *shared, function=followed)
            set_fitted(self, fitted_labels(labels, X, followed, *shared))
            self.n_passes_ = passes.n_passes
        self._warn_of(blurred, fit.path, fit.rows.start.n, fit.context)
        return fit

    def predict(self, X: Any, feature_dim: str | None = None) -> Any:
        """Predict the nearest centre of each row, in the model's distance.

        Parameters
        ----------
        [rows_by_name, feature_dim]

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            Lazy for dask and zarr input: a Series aligned with a dask DataFrame, otherwise an
            array. A pandas DataFrame gives a pandas Series if ``set_output(transform="pandas")``
            asks for it, and a raster a DataArray on its grid, with its coordinates.
        """
        return self._clusters().labels(X, feature_dim)

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

    def _n_micro_clusters(self, layout: Layout) -> int | None:
        """Return the number of micro-clusters of a table; None if every row is blurred.

        A table of unknown length, which can be planned but not fitted, counts as a long one.
        """
        wanted = self.n_representatives
        n_rows = np.inf if layout.n_rows is None else layout.n_rows
        if wanted is None:
            return None
        if wanted == "auto":
            affordable = max(MICRO_CLUSTER_BYTES // (8 * layout.n_features), 100)
            return None if n_rows <= EXACT_ROWS else min(MICRO_CLUSTERS, affordable)
        return None if n_rows <= int(wanted) else int(wanted)

    def _described_data(self, layout: Layout, survey: Survey) -> dict[str, Any]:
        """Describe the data and the number of iterations that learn weights (see `max_iter`)."""
        stages = phases_of(self.convention, self.max_iter, fixed_weights=False)
        learning = [stage.iterations for stage in stages[:-1]]
        return {**described_data(layout, survey), "learning iterations": learning}

    def _labels(
        self, blurred: Blurred, kept: NDArray[np.bool_], passes: Passes
    ) -> NDArray[np.int32]:
        """Return the labels of all rows; rows without weight get the label of the nearest mode."""
        labels = np.empty(len(kept), dtype=np.int32)
        labels[kept] = blurred.labels
        if not kept.all():
            fitted = FittedCenters.of(self)
            found = passes.reduce(_labels_without_weight, fitted.coordinates, fitted.state)
            labels[~kept] = np.concatenate(found)
        return labels

    def _warn_of(
        self, blurred: Blurred, path: BandwidthPath | None, n_distinct: int, context: FitContext
    ) -> None:
        """Warn if no rows or all rows merged, the path disagrees, or the fit did not converge."""
        if was_stopped(context):
            return
        k, h = self.n_clusters_, self.bandwidth_
        counts = [r.n_representatives for r in self.history_ if r.stage == "blur"]
        # If the bandwidth is too small, each row moves to its nearest neighbour once, and then
        # rests.
        stuck = blurred.converged and counts[0] == counts[-1] and 10 * k > n_distinct
        if k > 1 and (k == n_distinct or stuck):
            what = "each is one of its own" if k == n_distinct else "none merged after one step"
            warn_convergence(
                f"Nothing came together: {k} clusters of {n_distinct} distinct rows, {what}. "
                f"bandwidth={h:.3g} is too small; try ten times as much."
            )
        elif k == 1 < n_distinct:
            warn_convergence(
                f"All rows came together in one cluster. bandwidth={h:.3g} may be too large; try a "
                "tenth of it, or a smaller lam."
            )
        if path is not None and not path.agrees_with(blurred.cluster_weights):
            warn_convergence(
                f"The fit found {k} clusters, but its path found {path.n_clusters[path.chosen]} on "
                f"{path.n_rows} rows at the same bandwidth={h:.3g}. Do not rely on either: look at "
                "bandwidth_path_, and give another bandwidth or a larger lam."
            )
        if not blurred.converged:
            last = self.history_[-1]
            warn_convergence(
                f"Not converged in max_iter={self.max_iter} iterations: representatives still get "
                f"up to {last.attraction:.1g} of their kernel sums from others, and more of them "
                "may come together. Raise max_iter, or try another bandwidth."
            )

    def _least_rows(self) -> int:
        return 1

    def _plan_of(self, layout: Layout, timed: bool = False) -> Plan:
        """Return the cost of a fit to such a table; raise if memory cannot hold it."""
        return planning.blurring_plan(
            layout,
            self._stages(layout),
            max_iter=max_iterations(self.convention, self.max_iter),
            n_micro_clusters=self._n_micro_clusters(layout),
            learns=self.lam == "auto" or bool(np.isfinite(float(self.lam))),
            timed=timed,
        )


def _attributes_of(fit: ShiftFit) -> dict[str, Any]:
    """Return the fitted attributes other than the labels."""
    blurred, coordinates, settings = fit.result, fit.survey.coordinates, fit.settings
    path = {} if fit.path is None else {"bandwidth_path_": fit.path}
    return {
        **path,
        "mean_": coordinates.mean,
        "scale_": coordinates.scale,
        "bandwidth_": settings.bandwidth,
        "lam_": settings.lam,
        "cluster_centers_": coordinates.to_input(blurred.modes),
        "cluster_sizes_": blurred.cluster_weights,
        "feature_weights_": blurred.feature_weights,
        "n_clusters_": len(blurred.modes),
        "_n_features_out": len(blurred.modes),
        "history_": blurred.history,
        "n_iter_": len(blurred.history),
    }


def _labels_without_weight(
    block: Block, coordinates: Coordinates, state: CenterState
) -> list[NDArray[np.int32]]:
    """Return the nearest modes of the rows of weight 0 of a block."""
    without = replace(block, rows=block.rows[block.weights == 0], weights=None)
    return [labels_of(without, coordinates, state)]
