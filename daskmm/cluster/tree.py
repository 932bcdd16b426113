"""Trees of clusters: each cluster is divided into smaller ones, level by level."""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from daskmm.cluster._estimator import MMClusterer
from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.cluster._output import labels_of_table
from daskmm.cluster.kmeans import KMeans
from daskmm.cluster.power import PowerKMeans
from daskmm.data.blocks import Block
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.assignment import labels_of
from daskmm.kmeans.branches import divided, labels_along_tree
from daskmm.numerics.rows import Rows
from daskmm.planning import Plan

_DIVIDED_BY = ("cost", "size", "equal")


class ClusterTree(ClusterMixin, BaseEstimator):
    """A tree of k-means clusters, for thousands of clusters in a fraction of the time.

    The first level is a fit of an estimator. Each further level takes one pass over the data, which
    draws rows of every cluster; hard steps on these rows divide it. The clusters of the last level,
    the leaves, then take `refine` joint hard steps over all rows. So 10,000 leaves cost about as
    much as a fit of 100 clusters and a few passes with all leaves.

    Parameters
    ----------
    n_clusters : tuple of int, default=(10, 10)
        For each level, the mean number of clusters into which a cluster of the level above is
        divided. ``(100, 100)`` gives 100 clusters and 10,000 leaves.
    estimator : KMeans or PowerKMeans, optional
        Estimator of the first level, with its parameters; its `n_clusters` and `random_state` are
        not used. The leaves have its `standardize`, `distortion`, `metric_params`, `empty_rows`
        and `persist`. ``KMeans(n_init=1, tol=1e-3)`` by default.
    divide_by : {"cost", "size", "equal"}, default="cost"
        Whether clusters are divided in proportion to the cost or to the weight of their rows, or
        all into the same number of parts.
    refine : int, default=1
        Number of joint hard steps of the leaves, each one pass over the data.
    random_state : int, RandomState or None, default=None
        Seed of the first level and of the draws.

    Attributes
    ----------
    root_ : estimator
        The fitted first level.
    leaves_ : KMeans
        A fitted model of the leaves, with all that fitted models can do.
    parents_ : list of ndarray of int
        For each level below the first, the cluster of the level above that contains each cluster.
        Clusters with few distinct rows are divided into fewer parts than they should be.
    cluster_centers_ : ndarray of shape (n_leaves, n_features)
        Centres of the leaves.
    labels_ : ndarray, dask Array or Series of int32, of shape (n_samples,)
        Leaf of each row, in the form that `KMeans` gives.
    inertia_ : float
        Sum of the distances of the rows from their leaves' centres.
    n_passes_ : int
        Passes over the data, without those of later calls.

    Examples
    --------
    >>> import numpy as np
    >>> from daskmm import ClusterTree
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2)) + rng.choice([-9.0, 0.0, 9.0], size=(500, 1))
    >>> tree = ClusterTree((3, 4), random_state=0).fit(X)
    >>> tree.cluster_centers_.shape
    (12, 2)
    >>> np.unique(tree.predict(X, level=0)).tolist()
    [0, 1, 2]
    """

    root_: Any
    leaves_: KMeans
    parents_: list[NDArray[np.int64]]
    n_passes_: int

    def __init__(
        self,
        n_clusters: tuple[int, ...] = (10, 10),
        *,
        estimator: KMeans | PowerKMeans | None = None,
        divide_by: str = "cost",
        refine: int = 1,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.estimator = estimator
        self.divide_by = divide_by
        self.refine = refine
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, feature_dim: str | None = None
    ) -> Self:
        """Fit the first level, divide its clusters level by level, and refine the leaves.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows, as in `KMeans.fit`.
        y : ignored
            Present for scikit-learn's interface.
        sample_weight : array-like or dask Array of shape (n_samples,), optional
            Weights, not negative.
        feature_dim : str, optional
            Dimension of the features of an xarray DataArray or Dataset.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the data cannot be used.
        """
        levels, first = self._checked()
        rng = check_random_state(self.random_state)
        seeds = [int(seed) for seed in rng.randint(2**31 - 1, size=len(levels) + 1)]
        root = clone(first).set_params(n_clusters=levels[0], random_state=seeds[0])
        root.fit(X, sample_weight=sample_weight, feature_dim=feature_dim)
        fitted = FittedCenters.of(root)
        state, coordinates = fitted.state, fitted.coordinates
        parents, n_leaves = [], levels[0]
        passes = fitted.passes(X, sample_weight, feature_dim)
        with one_blas_thread():
            for n_parts, seed in zip(levels[1:], seeds[1:], strict=False):
                n_leaves *= n_parts
                centers, own = divided(passes, coordinates, state, n_leaves, self.divide_by, seed)
                state = fitted.at(centers)
                parents.append(own)
        leaves = self._leaves(root, coordinates.to_input(state.centers), seeds[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a few steps are intended
            leaves.fit(X, sample_weight=sample_weight, feature_dim=feature_dim)
        self.root_, self.leaves_, self.parents_ = root, leaves, parents
        self.n_passes_ = root.n_passes_ + passes.n_passes + leaves.n_passes_
        return self

    def _checked(self) -> tuple[list[int], KMeans | PowerKMeans]:
        """Return the numbers of clusters per level, and the estimator of the first level."""
        levels = list(self.n_clusters) if isinstance(self.n_clusters, tuple | list) else []
        if not levels or not all(isinstance(n, Integral) and n >= 1 for n in levels):
            raise ValueError(
                "n_clusters must be a tuple of positive numbers, one per level, such as (100, "
                f"100), got {self.n_clusters!r}."
            )
        if self.divide_by not in _DIVIDED_BY:
            raise ValueError(f"divide_by must be one of {_DIVIDED_BY}, got {self.divide_by!r}.")
        if not (isinstance(self.refine, Integral) and self.refine >= 1):
            raise ValueError(f"refine must be a positive number of steps, got {self.refine!r}.")
        first = KMeans(n_init=1, tol=1e-3) if self.estimator is None else self.estimator
        plain = isinstance(first, KMeans | PowerKMeans) and first.missing == "error"
        if not plain or first.distortion in ("mixed", "mahalanobis"):
            raise ValueError(
                "estimator must be a KMeans or PowerKMeans with complete rows and a distortion "
                f"other than 'mixed' and 'mahalanobis', got {first!r}."
            )
        if first.max_cluster_size is not None:
            raise ValueError(
                "estimator must have max_cluster_size=None: divided clusters would leave their "
                "branch of the tree. divide_by='size' makes leaves of similar sizes."
            )
        return [int(n) for n in levels], first

    def _leaves(self, root: Any, centers: NDArray[np.float64], seed: int) -> KMeans:
        """Return the estimator of the leaves, which starts from their centres."""
        chosen = getattr(root, "standardize_path_", None)
        return KMeans(
            len(centers),
            init=centers,
            max_iter=self.refine,
            sample_size=None,  # steps over a sample would leave the start that the levels found
            standardize=root.standardize if chosen is None else chosen.standardize,
            distortion=root.distortion,
            metric_params=root.metric_params,
            empty_rows=root.empty_rows,
            persist=root.persist,
            random_state=seed,
        )

    @property
    def cluster_centers_(self) -> NDArray[np.float64]:
        """Centres of the leaves, of shape (n_leaves, n_features)."""
        return self._fitted().cluster_centers_

    @property
    def labels_(self) -> Any:
        """Leaf of each row of the fit."""
        return self._fitted().labels_

    @property
    def inertia_(self) -> float:
        """Sum of the distances of the rows from their leaves' centres."""
        return self._fitted().inertia_

    def _fitted(self) -> KMeans:
        if "leaves_" not in vars(self):
            raise AttributeError("This tree is not fitted.")
        return self.leaves_

    @property
    def summary_(self) -> Any:
        """The leaves as a pandas DataFrame, as `KMeans.summary_`."""
        return self._fitted().summary_

    save = MMClusterer.save

    def plan(self, X: Any, feature_dim: str | None = None, *, measure: bool = False) -> Plan:
        """Return what a fit to `X` will cost.

        Parameters
        ----------
        X, feature_dim : as in `fit`
            Table that might be fitted.
        measure : bool
            Whether to load one block of lazy data, and to predict seconds by the time that this
            takes.

        Returns
        -------
        Plan
            Its stages are the first level, the other levels, each of one pass, and the leaves.
        """
        levels, first = self._checked()
        root = clone(first).set_params(n_clusters=levels[0])
        top = root.plan(X, feature_dim, measure=measure)
        # The pass of a level costs as much as a hard step with one leaf per cluster of the level.
        levels_of = [
            self._leaves(root, np.zeros((n_clusters, 1)), 0).plan(X, feature_dim, measure=measure)
            for n_clusters in np.cumprod(levels)
        ]
        leaves, others = levels_of[-1], levels_of[1:]
        seconds = None
        if top.seconds is not None and leaves.seconds is not None:
            passes = sum((level.stages or {}).get("passes", 0.0) for level in others)
            seconds = {
                "first level": top.seconds,
                "other levels": passes / self.refine,
                "leaves": leaves.seconds,
            }
        peaks = [each.peak_bytes_per_worker or 0 for each in (top, *levels_of)]
        return replace(
            leaves,
            n_starts=top.n_starts,
            passes=top.passes + len(others) + leaves.passes,
            max_passes=top.max_passes + len(others) + leaves.max_passes,
            peak_bytes_per_worker=max(peaks) or None,
            stages=seconds,
        )

    def ancestors(self, level: int) -> NDArray[np.int64]:
        """Return the cluster of a level that contains each leaf.

        Parameters
        ----------
        level : int
            0 for the first level; negative levels count from the leaves, −1.

        Returns
        -------
        ndarray of int of shape (n_leaves,)
        """
        check_is_fitted(self, "leaves_")
        n_levels = len(self.parents_) + 1
        if not -n_levels <= level < n_levels:
            raise ValueError(f"level must be from {-n_levels} to {n_levels - 1}, got {level}.")
        found = np.arange(len(self.cluster_centers_))
        for own in self.parents_[::-1][: n_levels - 1 - level % n_levels]:
            found = own[found]
        return found

    def predict(
        self, X: Any, level: int = -1, *, walk: bool = False, feature_dim: str | None = None
    ) -> Any:
        """Predict the cluster of each row at a level of the tree.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows, as in `KMeans.predict`.
        level : int, default=-1
            Level of the clusters: 0 for the first, −1 for the leaves.
        walk : bool, default=False
            Whether to walk down the tree, from each cluster to the nearest of its parts. Rows are
            compared with far fewer centres then, but may not reach the nearest leaf. By default,
            each row is compared with all leaves.
        feature_dim : str, optional
            Dimension of the features of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            The form is that of `KMeans.predict`.
        """
        above, fitted = self.ancestors(level), FittedCenters.of(self._fitted())
        X = fitted.table(X, feature_dim)
        shared: tuple[Any, ...] = (fitted.coordinates, fitted.state, above)
        if not walk:
            return labels_of_table(self.leaves_, X, _labels_at_level, *shared)
        levels = [fitted.at(centers) for centers in self._centers_of_levels(fitted)]
        shared = (*shared, levels, self.parents_)
        return labels_of_table(self.leaves_, X, labels_along_tree, *shared)

    def _centers_of_levels(self, fitted: FittedCenters) -> list[NDArray[np.float64]]:
        """Return, for each level, the mean of each cluster's leaves in the model's coordinates."""
        leaves, found = fitted.state.centers, []
        # Empty leaves count only if all leaves of a cluster are empty.
        sizes = np.maximum(self.leaves_.cluster_sizes_, np.finfo(float).tiny)
        for level in range(len(self.parents_) + 1):
            above = self.ancestors(level)
            shares = sizes / np.bincount(above, sizes)[above]
            centers = np.zeros((above.max() + 1, leaves.shape[1]))
            np.add.at(centers, above, shares[:, None] * leaves)
            found.append(centers)
        return found


def _labels_at_level(
    block: Block, coordinates: Rows, state: Any, above: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return the cluster of each row of one block at a level, given the leaves' ancestors there."""
    labels = labels_of(block, coordinates, state)
    return np.where(labels < 0, labels, above[labels]).astype(np.int32)
