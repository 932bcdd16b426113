"""Lloyd's k-means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskmm.cluster._centers import CenterClusterer
from daskmm.cluster._estimator import estimator
from daskmm.mm.driver import Schedule


@estimator
class KMeans(CenterClusterer):
    """k-means by Lloyd's algorithm, the s = −∞ member of the power k-means family.

    Parameters
    ----------
    [n_clusters, max_clusters, init, warm_start, n_init, sample_size, persist]
    max_iter : int, default=300
        Maximum number of iterations. Those on samples do not count.
    tol : float, default=1e-4
        Relative change that counts as convergence. A fit has converged when the objective changes
        by less, three times in a row.
    [random_state, standardize, distortion, metric_params, missing, empty_cluster, trim]
    [max_cluster_size, forget, verbose, callbacks, checkpoint]

    Attributes
    ----------
    [cluster_centers_, n_clusters_, standardize_path_, labels_, inertia_, objective_history_]
    [history_, mean_, precision_, n_features_in_]

    Notes
    -----
    [notes_on_distortions]

    References
    ----------
    Banerjee, Merugu, Dhillon & Ghosh, "Clustering with Bregman Divergences", JMLR 6, 2005.
    Chi, Chi & Baraniuk, "k-POD: A Method for k-Means Clustering of Missing Data", The American
    Statistician 70, 2016.
    Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28, 1982.
    Xu & Lange, "Power k-Means Clustering", ICML 2019: objective (1), the limit (6) of (8).

    Examples
    --------
    >>> import numpy as np
    >>> from daskmm import KMeans
    >>> X = np.array([[0.0], [1.0], [10.0], [11.0]])
    >>> np.sort(KMeans(n_clusters=2, random_state=0).fit(X).cluster_centers_.ravel())
    array([ 0.5, 10.5])
    """

    def _schedule(self, critical_power: Callable[[], float]) -> Schedule:
        return Schedule(-np.inf, max_iter=self.max_iter, tol=self.tol)
