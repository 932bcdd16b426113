"""Entropy-weighted power k-means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskmm.auto.lam import LamPath, follow_lam, given_lam
from daskmm.auto.rare import without_rare
from daskmm.auto.related import without_unrelated
from daskmm.cluster._center_fit import some_clusters
from daskmm.cluster._centers import CenterClusterer
from daskmm.cluster._estimator import estimator
from daskmm.cluster._parameters import (
    ANNEALING,
    Constraints,
    annealing_schedule,
    cluster_range,
)
from daskmm.cluster._sklearn import Interval, StrOptions
from daskmm.engine.first_pass import Survey
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import EntropyUpdate, Update
from daskmm.mm.driver import Schedule
from daskmm.mm.journal import Journal

# If lam="auto" makes no choice, λ is this share of the mean feature variance.
AUTO_LAM = 0.5
# s0="auto", in units of the critical power.
CRITICAL_MULTIPLE = 1.25


@estimator
@dataclass(eq=False, repr=False, kw_only=True)
class EntropyPowerKMeans(CenterClusterer):
    """Entropy-weighted power k-means: learns which features make the clusters.

    The estimator minimises, while s falls,

        f(Θ, w) = (1/n) Σ_i M_s(‖x_i − θ_1‖²_w, …, ‖x_i − θ_k‖²_w) + λ Σ_l w_l log w_l

    over centres and over weights w ≥ 0 that sum to 1, where ‖·‖²_w = Σ_l w_l (·)_l². λ is counted
    per unit of sample weight, so it does not depend on the number of rows; the paper's λ is n
    times this one.

    Parameters
    ----------
    [n_clusters, max_clusters]
    lam : float, "auto" or str such as "0.5*variance", default="auto"
        Penalty λ > 0 per unit of sample weight, or a multiple of the variance such as
        "0.5*variance": small values concentrate the weight on few features, large ones spread it,
        and ``inf`` keeps all weights equal. A multiple is relative to the mean variance of the
        features, in the model's scale. "auto" chooses among .1, .2, .35, .5 and 1 times that
        variance and ``inf`` (for wide sparse rows .25, .5, 1, 2 and 4) by the information gain over
        noise (see Notes), on the sample of the first pass. It gives no weight to features in which
        fewer rows than a tenth of an average cluster differ from the commonest value, nor, in wide
        sparse rows, to features that others predict no better than chance (see Notes). For
        ``distortion="manhattan"``, "auto" is half the variance. For "mixed", the spread that all
        columns have in common takes the place of the variance, and the noise is a table with the
        same columns, made independent of each other. Each λ is judged by the clusters that are best
        for it, among those that eight starts of every λ found. Hard steps from the clusters of the
        chosen λ compete with the fit's own starts.
    [init, warm_start, n_init, sample_size, persist]
    s0 : float or "auto"
        First power, negative. "auto" is min(−1, 1.25·s_crit), just past the power above which
        all centres converge to the mean (see `PowerKMeans`), so that the weights are learned while
        rows belong to all clusters.
    [eta, anneal_every, polish, max_iter, tol, random_state]
    standardize : bool, default=True
        Divide each feature by its population standard deviation. This is done inside the block
        function, since the penalty presumes comparable scales. Centres are reported in the input's
        units. Turn it off if the features that matter are marked by a low variance.
    distortion : {"sqeuclidean", "manhattan", "mixed"}, default="sqeuclidean"
        Distance between rows and centres. With "manhattan" it is ``Σ_l w_l |x_l − θ_l|``, which is
        less sensitive to outliers; centres are medians, as in `PowerKMeans`. "mixed" learns one
        weight for each column of a DataFrame, also for each column of categories; see `KMeans`.
    metric_params : dict, optional
        Parameters of "mixed", as in `KMeans`.
    [missing, empty_cluster, trim, max_cluster_size, forget, verbose, callbacks, checkpoint]

    Attributes
    ----------
    [cluster_centers_]
    feature_weights_ : ndarray of shape (n_features,), float64
        Weights w of the features; they sum to 1, and are 0 for constant features.
    feature_gains_ : ndarray of shape (n_features,), float64
        How much more of each feature the clusters explain than clusters of noise do, in nats: the
        terms of IG (see Notes) on the sample of the fit. They show which features matter even if
        all weights are equal. `partial_fit` updates them while the model keeps a sample of all
        rows.
    lam_ : float
        The λ that was used.
    lam_path_ : LamPath
        For ``lam="auto"``: the gain of each λ over several starts, and the feature weights; see
        `daskmm.plot.lam_path`.
    [n_clusters_, labels_, inertia_, objective_history_, history_, mean_, n_features_in_]

    Notes
    -----
    **The choice of λ.** On 2,000 rows of the sample, or 100 per cluster, EWP is annealed from
    three starts for each λ. Let R_l be the share of the variance of feature l that lies between the
    clusters' means, and R⁰_l the same share for independent Gaussian features, which are scaled by
    the learned weights and divided into as many clusters. Then the information gain IG = Σ_l ½
    log[max(1 − R⁰_l, .001) / max(1 − R_l, .001)], in nats, measures how much more the clusters
    explain of all features, weighted or not, than clusters of noise do. The rule takes the largest
    λ whose mean IG is at least max IG − max{min(3σ, .07·max IG), .05}, where σ is the standard
    deviation over the starts (the median over λ). Features of up to 32 values are replaced by
    normal numbers with the same order, since clusters can too easily explain all of a flag. The
    choice makes no pass over the data and depends on `random_state`, but not on chunks.

    **Wide sparse rows.** A feature that is mostly 0 is explained by a cluster of the rows in which
    it is not 0, whatever it means. So if a sparse sample would take more than 64 MB as a dense
    array, only features that others predict are used: the share of their variance along principal
    axes of other features is larger than for independent features. λ is then judged by features
    with which the clusters were not made: the features are divided into random halves, EWP learns
    on one half, IG is taken over the other half with R⁰_l = (k − 1)/(n − 1), and both gains are
    added.

    **The restart.** After the annealing, power k-means is started again at the feature weights
    that were learned. If this lowers the weighted variance within clusters, hard steps of centres
    and weights continue from there. Fits from given centres or with ``polish=False`` are not
    restarted: with a number for `lam`, ``polish=False`` and ``sample_size=None`` the algorithm is
    that of the paper.

    References
    ----------
    Chakraborty, Paul, Das & Xu, "Entropy Weighted Power k-Means Clustering", AISTATS 2020:
    objective (7), centres (10), weights (11), Algorithm 1.
    """

    s0: float | str = "auto"
    eta: float = 1.05
    anneal_every: int = 1
    polish: bool = True
    lam: float | str = "auto"
    standardize: bool = True

    _parameter_constraints: ClassVar[Constraints] = {
        **CenterClusterer._parameter_constraints,
        **ANNEALING,
        "distortion": [StrOptions({"sqeuclidean", "manhattan", "mixed"})],
        "standardize": ["boolean"],
        "lam": [str, Interval(Real, 0, np.inf, closed="right")],
    }

    _weighs_features = True

    feature_weights_: NDArray[np.float64] = field(init=False)
    feature_gains_: NDArray[np.float64] = field(init=False)
    lam_: float = field(init=False)
    lam_path_: LamPath = field(init=False)

    def _validate_params(self) -> None:
        super()._validate_params()
        given_lam(self.lam, 1.0)  # an invalid text is refused before data are read

    def _schedule(self, critical_power: Callable[[], float]) -> Schedule:
        n_clusters = cluster_range(self)[1]
        return annealing_schedule(self, critical_power(), n_clusters, CRITICAL_MULTIPLE)

    def _of_clusters(self, survey: Survey, seed: int) -> Survey:
        if self.lam != "auto" or self.distortion != "sqeuclidean" or survey.partial:
            return survey
        some = some_clusters(survey, self.n_clusters)
        return without_unrelated(without_rare(survey, some), some, seed)

    def _update(
        self, survey: Survey, n_clusters: int, seed: int, lazy: bool, journal: Journal
    ) -> tuple[Update, dict[str, Any], CenterState | None]:
        fitted: dict[str, Any] = {}
        lam = given_lam(self.lam, survey.mean_variance)
        tried = None
        if lam is None and self.distortion != "manhattan":
            tried = follow_lam(
                survey.core, n_clusters, seed, lazy, metric=survey.metric, journal=journal
            )
            fitted["lam_path_"], lam = tried.path, tried.path.lam
        elif lam is None:
            lam = AUTO_LAM * survey.mean_variance
        fitted["lam_"] = lam
        update = EntropyUpdate(
            survey.distortion,
            survey.partial,
            self.empty_cluster == "farthest",
            lam=lam,
            varying=survey.varying,
            groups=survey.groups,
        )
        if tried is None or tried.centers is None or not self.polish:
            return update, fitted, None
        weights = tried.path.feature_weights[tried.path.chosen]
        if survey.groups is not None:
            weights = weights[survey.groups]
        found = replace(update.start(tried.centers, -np.inf), feature_weights=weights)
        return update, fitted, found

    def _later_update(self, state: CenterState) -> Update:
        # Features of weight 0 were constant, or are far from showing clusters.
        varying, groups = self.feature_weights_ > 0, None
        if self.distortion == "mixed":
            groups = self.coordinates_.expansion.groups
            varying = varying[groups]
        return EntropyUpdate(
            state.distortion, state.partial, lam=self.lam_, varying=varying, groups=groups
        )

    def _weights_for_number(
        self, survey: Survey, seed: int, lazy: bool
    ) -> NDArray[np.float64] | None:
        # The features that show clusters are found with any number of clusters.
        if self.distortion != "sqeuclidean":
            return None
        lam = given_lam(self.lam, survey.mean_variance)
        lams = None if lam is None else [lam]
        some = some_clusters(survey, self.n_clusters)
        path, _ = follow_lam(survey.core, some, seed, lazy, lams, metric=survey.metric)
        return path.feature_weights[path.chosen]
