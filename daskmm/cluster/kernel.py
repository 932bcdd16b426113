"""Kernel power k-means."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils._tags import Tags

from daskmm.cluster._kernel_base import KernelClusterer
from daskmm.mm import IterationRecord
from daskmm.numerics.kernels import KERNELS, Kernel
from daskmm.survey import Survey


class KernelPowerKMeans(KernelClusterer):
    """Kernel power k-means: power k-means in the feature space of a kernel.

    By default four starts are annealed on Nyström features (about ten per cluster) and finished
    by hard steps over the exact Gram matrix; the best one is kept. With ``n_init=1``, an `init`
    of labels, or ``polish=False`` the annealing itself runs over the exact matrix, as printed.
    Kernel k-means is ``KernelPowerKMeans(s0=-1e12, eta=1)``, whose every step is hard to
    rounding.

    Parameters
    ----------
    n_clusters : int, default=8
    kernel : {"rbf", "laplacian", "polynomial", "linear", "cosine", "angular", "precomputed"} or \
callable
        exp(−‖x−y‖²/(2σ²)), exp(−‖x−y‖₁/σ), (xᵀy + coef0)^degree, xᵀy, the cosine, and
        exp(−∠(x,y)/(2σ²)), with σ the bandwidth; a Gram matrix given as X; or a function of two
        blocks of rows that returns the matrix of their kernel values. Rows are centred (and
        scaled, with `standardize`) before a kernel sees them.
    bandwidth : float or "auto"
        "auto" is the root mean squared distance between rows.
    degree, coef0 : float
        Of the polynomial kernel.
    gram : "auto", "recompute", or a path
        Where the n × n matrix is kept. A path names a Gram store, made or completed there.
        "auto" keeps it in memory when small, recomputes tiles in every sweep when rows have few
        features, and else stores it for the time of the fit; `gram_` says which and why.
    init : {"k-means++", "random"} or array of int of shape (n_samples,)
        Greedy k-means++ in feature space, single rows, or labels to begin with.
    n_init : int or "auto"
        Starts; "auto" is 4.
    s0, eta, anneal_every, polish, max_iter, tol, random_state, standardize, verbose, callbacks
        As in `PowerKMeans`; "auto" s0 takes the critical power in feature space.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,), int32
    memberships_ : ndarray of shape (n_samples, n_clusters)
        W: the mean of cluster j is Σ_i W_ij φ(x_i).
    inertia_ : float
        Sum of the squared feature-space distances to the nearest mean.
    objective_history_, history_, n_iter_, n_passes_, s_, n_features_in_
        As in `PowerKMeans`; a pass is a sweep over the Gram matrix. `history_` begins with the
        annealing on Nyström features, if there was one.
    gram_ : str
        How the Gram matrix was kept, and why.
    X_fit_ : ndarray of shape (n_samples, n_features)
        Training rows as the kernel saw them; left behind when a model is pickled or saved.

    References
    ----------
    Paul, Chakraborty, Das & Xu, "Kernel k-Means, By All Means: Algorithms and Strong
    Consistency", 2020, Algorithm 1.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **KernelClusterer._parameter_constraints,
        "kernel": [StrOptions({*KERNELS, "precomputed"}), callable],
        "bandwidth": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "degree": [Interval(Real, 0, None, closed="neither")],
        "coef0": [Interval(Real, None, None, closed="neither")],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        kernel: str | Callable[..., Any] = "rbf",
        bandwidth: float | str = "auto",
        degree: float = 3.0,
        coef0: float = 1.0,
        gram: str | Path = "auto",
        init: str | ArrayLike = "k-means++",
        n_init: int | str = "auto",
        s0: float | str = "auto",
        eta: float = 1.05,
        anneal_every: int = 1,
        polish: bool = True,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Any = None,
        standardize: bool = False,
        verbose: int = 0,
        callbacks: list[Callable[[IterationRecord], object]] | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.degree = degree
        self.coef0 = coef0
        self.gram = gram
        self.init = init
        self.n_init = n_init
        self.s0 = s0
        self.eta = eta
        self.anneal_every = anneal_every
        self.polish = polish
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.standardize = standardize
        self.verbose = verbose
        self.callbacks = callbacks

    def _precomputed(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _kernels(self, survey: Survey) -> list[Kernel]:
        if not isinstance(self.kernel, str):
            return [Kernel("callable", function=self.kernel)]
        return [
            Kernel(
                self.kernel,
                root_mean_squared_distance(survey)
                if isinstance(self.bandwidth, str)
                else float(self.bandwidth),
                float(self.degree),
                float(self.coef0),
            )
        ]

    def _penalty(self) -> float:
        return 1.0  # of no effect: there is one kernel

    def __sklearn_tags__(self) -> Tags:
        """Say that a precomputed X is a matrix of pairs."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._precomputed()
        return tags


def root_mean_squared_distance(survey: Survey) -> float:
    """√(mean ‖x − y‖²) over all pairs of rows, which is √(2 Σ_l V_l); 1 if all coincide."""
    return float(np.sqrt(2.0 * survey.variance.sum())) or 1.0
