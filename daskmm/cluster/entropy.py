"""Entropy-weighted power k-means."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from daskmm.auto.lam import LamPath, follow_lam
from daskmm.cluster._centers import CenterClusterer, some_clusters
from daskmm.cluster._models import registered_model
from daskmm.cluster._parameters import ANNEALING, Constraints, annealing_schedule
from daskmm.engine.first_pass import Survey
from daskmm.engine.persisting import Persist
from daskmm.kmeans.fit import CentersFit
from daskmm.kmeans.updates import EntropyUpdate, Update
from daskmm.mm.driver import IterationRecord, Schedule

# lam="auto" where there is no choice: this share of the mean feature variance.
AUTO_LAM = 0.5
# s0="auto", in units of the critical power.
CRITICAL_MULTIPLE = 1.25
# λ in units of the mean feature variance, as in "0.5*variance".
_MULTIPLE = re.compile(r"\s*(?:([^*]+)\*)?\s*variance\s*")


@registered_model
class EntropyPowerKMeans(CenterClusterer):
    """Entropy-weighted power k-means: learns which features make the clusters.

    Minimises, while s falls,

        f(Θ, w) = (1/n) Σ_i M_s(‖x_i − θ_1‖²_w, …, ‖x_i − θ_k‖²_w) + λ Σ_l w_l log w_l

    over centres and over weights w ≥ 0 that sum to 1, ‖·‖²_w being Σ_l w_l (·)_l². λ is counted
    per unit of sample weight, so it does not depend on the number of rows; the paper's λ is
    n times this one.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        "auto" chooses a number from 2 to 40 on the sample of the first pass, or 1, with a
        warning, where there are no clusters: see `daskmm.selection.choose_n_clusters`.
    lam : float, "auto", or a multiple of the variance such as "0.5*variance"
        λ > 0. Small values concentrate the weight on few features, large ones keep it even;
        ``inf`` keeps it equal. A multiple is one of the mean variance of the features, in the
        model's scale. "auto" chooses among .1, .2, .35, .5 and 1 times that variance and ``inf``
        by the information gain over noise (see Notes), on the sample of the first pass; for
        distortion="manhattan" it is half the variance.
    init : {"k-means++", "k-means||", "random"} or array of shape (n_clusters, n_features)
        Greedy k-means++ on a sample drawn in the first pass; scalable k-means++ by six passes of
        its own; rows of that sample; or centres in the input's units.
    n_init : int or "auto"
        Starts; "auto" is 8, but 1 where every iteration reads streamed data. An `init` array is
        one start.
    sample_size : int, "auto" or None
        Rows to anneal the starts on, in memory and side by side. The best of them take hard
        steps on a larger sample and then, together, over all rows, until the cost has come to
        rest: a handful of readings. "auto" is 10,000 to 20,000 rows (200 per cluster), or 50 per
        cluster if that is more, in tables of more than twice as many; smaller ones are annealed
        whole. None anneals over all rows, as does ``polish=False``.
    persist : bool or "auto", default=False
        Keep streamed data in memory for the time of the fit: a cluster's with the workers that
        loaded them. "auto" does so when they take less than a third of it.
    s0 : float or "auto"
        First power, negative; "auto" is min(−1, 1.25·s_crit), just past the power above which
        all centres fall onto the mean (see `PowerKMeans`): weights are learned while rows belong
        to all clusters.
    eta : float, default=1.05
        Factor by which the power grows in size; 1 keeps it.
    anneal_every : int, default=1
        Iterations per value of the power.
    polish : bool, default=True
        End with hard steps (s = −∞) of centres and weights.
    max_iter : int, default=300
        Iterations over the data, polish included.
    tol : float, default=1e-4
        As in `PowerKMeans`.
    random_state : int, RandomState or None
    standardize : bool, default=True
        Divide each feature by its population standard deviation, inside the block kernel: the
        penalty presumes comparable scales. Centres are reported in the input's units. Turn it
        off where low variance is what tells a feature that matters.
    distortion : {"sqeuclidean", "manhattan"}, default="sqeuclidean"
        "manhattan" takes Σ_l w_l |x_l − θ_l| for the distance, which minds outliers less; centres
        are medians, as in `PowerKMeans`.
    missing : {"error", "partial"}, default="error"
        What NaN are: an error, or missing values. These are left out of distances and means, and
        what a feature adds to a distance is divided by the share of its values that are there:
        without that, features with few values would get the largest weights.
    empty_cluster : {"farthest", "random", "restart", "error"}, default="farthest"
        What becomes of a cluster that no row is nearest to in a hard step: its centre moves to a
        row that is served worst, or to a random one; "restart" begins again from other starts
        (ten times at most; given centres are the only start) and "error" raises a ValueError
        where the best start ends with such a cluster.
        Centres that coincide at the end are split likewise ("farthest" and "random"), polished
        once more, and warned about.
    verbose : int, default=0
        Report each iteration: in a notebook on one line that is kept up to date, elsewhere by the
        logger "daskmm" at level INFO.
    callbacks : list of callable, optional
        Called once per iteration over all rows with a read-only `daskmm.mm.driver.IterationRecord`.
        One that raises StopIteration ends the fit after this iteration.
    checkpoint : str or Path, optional
        A folder to put the state of the fit down in, so that one that was killed or interrupted
        is gone on with by the same call: it ends with the same bits. The fit of other data or
        parameters is refused; `max_iter` may be raised. The folder of a fit that has come to its
        end gives the same model again. `n_passes_` counts the first pass of every run.
    checkpoint_every : int, float or str, default=1
        How often: after so many iterations (an integer), seconds (a float), or a duration such
        as "30s". Iterations on samples count too. The last two states are kept.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features), float64
        In the input's units.
    feature_weights_ : ndarray of shape (n_features,), float64
        w; they sum to 1, and are 0 for constant features.
    lam_ : float
        The λ that was used.
    lam_path_ : LamPath
        For ``lam="auto"``: the gain of each λ, over several starts, and the feature weights; to
        be looked at with `daskmm.plot.lam_path`.
    n_clusters_ : int
        The number of clusters.
    n_clusters_path_ : ClusterNumberPath
        For ``n_clusters="auto"``: what each number gains; to be looked at with
        `daskmm.plot.n_clusters_path`.
    labels_ : ndarray or lazy dask Array of shape (n_samples,), int32
        Dropped when a model of lazy data is pickled or saved.
    inertia_ : float
        Sum of the weighted squared distances to the nearest centre, in the model's scale.
    objective_history_ : ndarray of shape (iterations,)
        f at the state with which each iteration began, at its s.
    history_ : list of IterationRecord
        One per iteration, those on samples (``exact=False``) included.
    n_iter_ : int
        Iterations over the data.
    n_passes_ : int
        Sweeps over the data, each loading every block once; first pass and scoring included.
    s_ : float
        The last power; −∞ after polishing.
    mean_, scale_ : ndarray of shape (n_features,)
        Distances are measured between (x − mean_) / scale_; scale_ is 1 unless standardised.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        For DataFrames.

    Notes
    -----
    **The choice of λ.** On 2,000 rows of the sample, or 100 per cluster, EWP is annealed from
    three starts for each λ. With R_l the share of the variance of feature l that lies between
    the clusters' means, and R⁰_l the same of independent Gaussian features, scaled by the
    weights that were learned and cut into as many clusters,
    IG = Σ_l ½ log[max(1 − R⁰_l, .001) / max(1 − R_l, .001)] nats are what the clusters tell of
    all features, weighted or not, beyond what clusters of noise do. The largest λ is taken whose
    mean IG is at least max IG − max{min(3σ, .07·max IG), .05}, where σ is the standard deviation
    over the starts (the median over λ). The choice costs no reading of the data, depends on
    `random_state`, and not on chunks.

    **The restart.** After the annealing, power k-means starts afresh with the feature weights
    that were learned; where this lowers the weighted variance within clusters, hard steps of
    centres and weights go on from there. Neither given centres nor ``polish=False`` are
    restarted: with a number for `lam`, ``polish=False`` and ``sample_size=None`` the algorithm
    is the paper's.

    References
    ----------
    Chakraborty, Paul, Das & Xu, "Entropy Weighted Power k-Means Clustering", AISTATS 2020,
    Algorithm 1.
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **CenterClusterer._parameter_constraints,
        **ANNEALING,
        "distortion": [StrOptions({"sqeuclidean", "manhattan"})],
        "standardize": ["boolean"],
        "lam": [str, Interval(Real, 0, np.inf, closed="right")],
    }

    _weighs_shares = True

    feature_weights_: NDArray[np.float64]
    lam_: float
    lam_path_: LamPath

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        lam: float | str = "auto",
        init: str | ArrayLike = "k-means++",
        n_init: int | str = "auto",
        sample_size: int | str | None = "auto",
        persist: Persist = False,
        s0: float | str = "auto",
        eta: float = 1.05,
        anneal_every: int = 1,
        polish: bool = True,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Any = None,
        standardize: bool = True,
        distortion: str = "sqeuclidean",
        missing: str = "error",
        empty_cluster: str = "farthest",
        verbose: int = 0,
        callbacks: list[Callable[[IterationRecord], object]] | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int | float | str = 1,
    ) -> None:
        self.n_clusters = n_clusters
        self.lam = lam
        self.init = init
        self.n_init = n_init
        self.sample_size = sample_size
        self.persist = persist
        self.s0 = s0
        self.eta = eta
        self.anneal_every = anneal_every
        self.polish = polish
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.standardize = standardize
        self.distortion = distortion
        self.missing = missing
        self.empty_cluster = empty_cluster
        self.verbose = verbose
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every

    def _schedule(self, critical_power: float) -> Schedule:
        n_clusters = self._cluster_range[1]
        return annealing_schedule(self, critical_power, n_clusters, CRITICAL_MULTIPLE)

    def _update(
        self, survey: Survey, n_clusters: int, seed: int, lazy: bool
    ) -> tuple[Update, dict[str, Any]]:
        multiple = _multiple_of_variance(self.lam)
        fitted: dict[str, Any] = {}
        if isinstance(self.lam, str) and multiple is None and self.distortion == "sqeuclidean":
            path = follow_lam(survey.sample, n_clusters, seed, lazy)
            fitted["lam_path_"], lam = path, path.lam
        elif isinstance(self.lam, str):
            lam = (AUTO_LAM if multiple is None else multiple) * survey.mean_variance
        else:
            lam = float(self.lam)
        fitted["lam_"] = lam
        relocation = self._relocation(survey)
        return (
            EntropyUpdate(lam, survey.varying, survey.distortion, survey.partial, relocation),
            fitted,
        )

    def _weights_for_number(
        self, survey: Survey, seed: int, lazy: bool
    ) -> NDArray[np.float64] | None:
        # The features that make clusters are found with any number of them.
        if self.distortion != "sqeuclidean":
            return None
        multiple = _multiple_of_variance(self.lam)
        lams = None
        if multiple is not None:
            lams = [multiple * survey.mean_variance]
        elif not isinstance(self.lam, str):
            lams = [float(self.lam)]
        path = follow_lam(survey.sample, some_clusters(survey), seed, lazy, lams)
        return path.feature_weights[path.chosen]

    def _store(self, fitted: dict[str, Any], fit: CentersFit) -> None:
        super()._store(fitted, fit)
        weights = fit.outcome.run.state.feature_weights
        assert weights is not None
        self.feature_weights_ = weights


def _multiple_of_variance(lam: float | str) -> float | None:
    """The factor of a penalty like "0.5*variance"; None for a number or "auto".

    Raises
    ------
    ValueError
        For any other word.
    """
    if not isinstance(lam, str) or lam == "auto":
        return None
    match = _MULTIPLE.fullmatch(lam)
    try:
        factor = float(match[1] or 1.0) if match else math.nan
    except ValueError:
        factor = math.nan
    if not factor > 0:
        raise ValueError(
            "The 'lam' parameter of EntropyPowerKMeans must be a positive number, 'auto', or a "
            f"multiple of the variance such as '0.5*variance'. Got {lam!r} instead."
        )
    return factor
