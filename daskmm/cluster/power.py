"""Power k-means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from daskmm.cluster._centers import CenterClusterer
from daskmm.cluster._estimator import estimator
from daskmm.cluster._parameters import (
    ANNEALING,
    Constraints,
    annealing_schedule,
    cluster_range,
)
from daskmm.mm.driver import Schedule

# s0="auto", in units of the critical power (tests/benchmarks/annealing_rules.py).
CRITICAL_MULTIPLE = 2.0


@estimator
@dataclass(eq=False, repr=False, kw_only=True)
class PowerKMeans(CenterClusterer):
    """Power k-means: anneal from a smooth power-mean objective to that of k-means.

    The objective Σ_i M_s(‖x_i − θ_1‖², …, ‖x_i − θ_k‖²) has fewer local minima the nearer the
    power s is to 0, and becomes that of k-means as s → −∞. k-harmonic means is
    ``PowerKMeans(s0=-1, eta=1, polish=False)``. The algorithm as printed, for exactly T
    iterations, is ``PowerKMeans(s0=-1, tol=0, polish=False, max_iter=T)``.

    Parameters
    ----------
    [n_clusters, max_clusters, init, warm_start, n_init, sample_size, persist]
    s0 : float or "auto", default="auto"
        First power, negative. "auto" is just past the power above which all centres converge to
        the mean: min(−1, 2·s_crit), where s_crit = 1 − 1/(2 λ_max(E[uuᵀ])) and u are the directions
        of the rows from their mean. The factor 2 did best on 22 data sets
        (``tests/benchmarks/annealing_rules.py``). For 256 clusters or more, u are the directions
        from the nearest centre of a start, so that annealing does not undo this start
        (``tests/benchmarks/many_clusters.py``).
    [eta, anneal_every, polish, max_iter, tol, random_state, standardize]
    [distortion, metric_params, missing, empty_cluster, trim, max_cluster_size, forget]
    [verbose, callbacks, checkpoint]

    Attributes
    ----------
    [cluster_centers_, n_clusters_, standardize_path_, labels_, inertia_, objective_history_]
    [history_, mean_, precision_, n_features_in_]

    Notes
    -----
    With thousands of clusters, its cost is as low as that of `KMeans` or up to 2 % lower, and it
    takes one to three times as long (``tests/benchmarks/README.md``).

    [notes_on_distortions]

    References
    ----------
    Banerjee, Merugu, Dhillon & Ghosh, "Clustering with Bregman Divergences", JMLR 6, 2005.
    Vellal, Chakraborty & Xu, "Bregman Power k-Means for Clustering Exponential Family Data",
    ICML 2022.
    Chi, Chi & Baraniuk, "k-POD: A Method for k-Means Clustering of Missing Data", The American
    Statistician 70, 2016.
    Xu & Lange, "Power k-Means Clustering", ICML 2019: objective (8),
    majorization (9), Algorithm 1.
    Zhang, Hsu & Dayal, "K-Harmonic Means", 1999.
    """

    s0: float | str = "auto"
    eta: float = 1.05
    anneal_every: int = 1
    polish: bool = True

    _parameter_constraints: ClassVar[Constraints] = {
        **CenterClusterer._parameter_constraints,
        **ANNEALING,
    }

    def _schedule(self, critical_power: Callable[[], float]) -> Schedule:
        n_clusters = cluster_range(self)[1]
        return annealing_schedule(self, critical_power(), n_clusters, CRITICAL_MULTIPLE)
