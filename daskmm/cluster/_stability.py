"""Stability of clusters: whether they come back when rows are drawn anew."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import check_random_state

from daskmm.data.sparse import is_sparse
from daskmm.metrics.agreement import contingency_matrix
from daskmm.metrics.matching import jaccard_matrix
from daskmm.metrics.quality import sampled_rows

FloatArray = NDArray[np.float64]


class Stability:
    """Mixin of the stability of clusters under resampling."""

    stability_: FloatArray
    n_clusters_: int

    def bootstrap(
        self, X: Any, *, n_bootstraps: int = 20, sample_size: int = 5_000, random_state: Any = 0
    ) -> Self:
        """Measure how stable each cluster is, by fits to rows drawn with replacement.

        A sample is drawn in one pass over `X`. Estimators with the parameters of this one, and its
        choices where they were "auto", are fitted to bootstrap samples of it. ``stability_`` is,
        for each cluster, the mean over the bootstraps of its largest Jaccard similarity with a
        cluster that was found. Above .85 a cluster is stable, below .6 it should not be trusted;
        `summary_` and reports show it.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Such as the rows of the fit.
        n_bootstraps : int, default=20
            Number of resamples that are clustered.
        sample_size : int, default=5000
            Number of rows of each resample.
        random_state : int, RandomState instance or None, default=0
            Determines the resamples and their starts.

        Returns
        -------
        self
            NaN for clusters of which the sample has no rows.

        References
        ----------
        Hennig, "Cluster-wise assessment of cluster stability", CSDA 52, 2007.
        """
        model: Any = self
        if is_sparse(X) or hasattr(model, "columns_"):
            raise TypeError("bootstrap takes dense rows of numbers.")
        rows, labels = sampled_rows(X, model.predict(X), sample_size)
        rng, k = check_random_state(random_state), self.n_clusters_
        found = np.full((n_bootstraps, k), np.nan)
        for similarities in found:
            drawn = rng.randint(len(rows), size=len(rows))
            again = _as_chosen(model, int(rng.randint(2**31 - 1))).fit(rows[drawn])
            occurring = np.unique(labels[drawn])
            table = contingency_matrix(labels[drawn], again.labels_)
            similarities[occurring] = jaccard_matrix(table).max(axis=1)
        seen = ~np.isnan(found)
        total = np.where(seen, found, 0.0).sum(axis=0)
        with np.errstate(invalid="ignore"):
            self.stability_ = total / seen.sum(axis=0)
        return self


def _as_chosen(model: Any, seed: int) -> Any:
    """Return an estimator like a fitted one that makes no choices but of the starts."""
    known: dict[str, Any] = {
        "n_clusters": model.n_clusters_,
        "random_state": seed,
        "callbacks": None,
        "checkpoint": None,
        "verbose": 0,
    }
    if not isinstance(model.init, str):
        known["init"] = "k-means++"
    if hasattr(model, "standardize_path_"):
        known["standardize"] = model.standardize_path_.standardize
    if hasattr(model, "lam_"):
        known["lam"] = float(model.lam_)
    return clone(model).set_params(**known)
