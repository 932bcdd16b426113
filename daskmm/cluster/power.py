"""Power k-means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from daskmm.cluster._centers import CenterClusterer
from daskmm.cluster._models import registered_model
from daskmm.cluster._parameters import ANNEALING, Constraints, annealing_schedule
from daskmm.engine.persisting import Persist
from daskmm.mm.driver import IterationRecord, Schedule

# s0="auto", in units of the critical power (tests/benchmarks/annealing_rules.py).
CRITICAL_MULTIPLE = 2.0


@registered_model
class PowerKMeans(CenterClusterer):
    """Power k-means: anneal from a smooth power-mean objective to that of k-means.

    The objective Σ_i M_s(‖x_i − θ_1‖², …, ‖x_i − θ_k‖²) has fewer local minima the nearer the
    power s is to 0, and becomes that of k-means as s → −∞. k-harmonic means is
    ``PowerKMeans(s0=-1, eta=1, polish=False)``. The algorithm as it is printed, for exactly T
    iterations, is ``PowerKMeans(s0=-1, tol=0, polish=False, max_iter=T)``.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        "auto" chooses a number from 2 to 40 on the sample of the first pass, or 1, with a
        warning, where there are no clusters: see `daskmm.selection.choose_n_clusters`.
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
        First power, negative. "auto" is past the power above which all centres fall onto the
        mean: min(−1, 2·s_crit), s_crit = 1 − 1/(2 λ_max(E[uuᵀ])) with u the directions of the
        rows from their mean. Twice it did best on 22 sets of data
        (``tests/benchmarks/annealing_rules.py``).
    eta : float, default=1.05
        Factor by which the power grows in size; 1 keeps it.
    anneal_every : int, default=1
        Iterations per value of the power.
    polish : bool, default=True
        End with Lloyd steps (s = −∞).
    max_iter : int, default=300
        Iterations over the data, polish included.
    tol : float, default=1e-4
        Convergence when the k-means objective changes by less than this share, three times in a
        row, memberships being nearly hard; with tol=0 and polish=False exactly `max_iter`
        iterations are run.
    random_state : int, RandomState or None
    standardize : bool or "auto", default=False
        Divide each feature by its population standard deviation, inside the block kernel;
        centres are reported in the input's units. "auto" does so where clusters of standardised
        features tell clearly more than those of the features as they are: where their
        information gain, `daskmm.selection.information_gain`, on the sample of the first pass,
        is larger by 7 % and by .1 nats. Features whose noise is loud lose their say by it.
    distortion : str, default="sqeuclidean"
        What the distance to a centre is. "sqeuclidean"; "kl" or "poisson" (the I-divergence
        Σ x log(x/θ) − x + θ, for counts and probabilities); "itakura-saito" or "gamma"
        (Σ x/θ − log(x/θ) − 1, for positive values whose noise grows with them); "logistic" (for
        values in [0, 1]); "mahalanobis", with one matrix for all clusters. These are Bregman
        divergences, for which a centre is a mean. "euclidean" and "manhattan" are not squared,
        and mind outliers less: centres are geometric medians, and medians.
        `daskmm.selection.choose_distortion` chooses one without labels. See the notes.
    metric_params : dict, optional
        ``{"VI": matrix}``, the inverse covariance of "mahalanobis". It is learned where it is
        not given, with determinant 1.
    missing : {"error", "partial"}, default="error"
        What NaN are: an error, or missing values, which are left out of distances and means.
    empty_cluster : {"farthest", "random", "restart", "error"}, default="farthest"
        What becomes of a cluster that no row is nearest to in a Lloyd step: its centre moves to a
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
    standardize_path_ : ScaleChoice
        For ``standardize="auto"``: the gains of both scales.
    n_clusters_ : int
        The number of clusters.
    n_clusters_path_ : ClusterNumberPath
        For ``n_clusters="auto"``: what each number gains; to be looked at with
        `daskmm.plot.n_clusters_path`.
    labels_ : ndarray or lazy dask Array of shape (n_samples,), int32
        Dropped when a model of lazy data is pickled or saved.
    inertia_ : float
        Sum of the distances (squared ones, or the distortion's) to the nearest centre, in the
        model's scale.
    objective_history_ : ndarray of shape (iterations,)
        Objective f_s per unit of sample weight at the state with which each iteration began, at
        its s.
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
    precision_ : ndarray of shape (n_features, n_features)
        The matrix of "mahalanobis"; only there.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        For DataFrames.

    Notes
    -----
    The divergences are those of Poisson, binomial and gamma (exponential) distributions: twice
    the divergence is the deviance. They are measured between the values as they are, so the data
    must be in their domain, and `standardize` must be False; `mean_` is 0. A centre that is 0 in
    some feature is infinitely far from rows that are not. Therefore starting centres are
    0.95 x + 0.05 (mean of the rows), and given ones are drawn inside likewise where they have zeros
    (for "logistic", also ones).

    "mahalanobis" begins with the inverse covariance of all rows; then clusters and their pooled
    scatter take turns.

    Steps of "euclidean" and "manhattan" are weighted means too, with weights 1/(2 max(d, ε)) of
    the distances (per feature for "manhattan") to the centres before, ε being 1e-6 of the standard
    deviation, by which the objective may rise. Starting centres, given ones too, are drawn towards
    the mean as above: a centre leaves a row slowly. Streamed data end there; for data in memory,
    centres become the exact medians at last, if hard steps came before.

    With missing values, a distance is the sum over the features that a row has, and a centre is
    in each feature the mean of the values there are (k-POD). A row or feature without any value
    is an error.

    References
    ----------
    Banerjee, Merugu, Dhillon & Ghosh, "Clustering with Bregman Divergences", JMLR 6, 2005.
    Vellal, Chakraborty & Xu, "Bregman Power k-Means for Clustering Exponential Family Data",
    ICML 2022.
    Chi, Chi & Baraniuk, "k-POD: A Method for k-Means Clustering of Missing Data", The American
    Statistician 70, 2016.
    Xu & Lange, "Power k-Means Clustering", ICML 2019, Algorithm 1.
    Zhang, Hsu & Dayal, "K-Harmonic Means", 1999.
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **CenterClusterer._parameter_constraints,
        **ANNEALING,
    }

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
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
        standardize: bool | str = False,
        distortion: str = "sqeuclidean",
        metric_params: dict[str, Any] | None = None,
        missing: str = "error",
        empty_cluster: str = "farthest",
        verbose: int = 0,
        callbacks: list[Callable[[IterationRecord], object]] | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int | float | str = 1,
    ) -> None:
        self.n_clusters = n_clusters
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
        self.metric_params = metric_params
        self.missing = missing
        self.empty_cluster = empty_cluster
        self.verbose = verbose
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every

    def _schedule(self, critical_power: float) -> Schedule:
        n_clusters = self._cluster_range[1]
        return annealing_schedule(self, critical_power, n_clusters, CRITICAL_MULTIPLE)
