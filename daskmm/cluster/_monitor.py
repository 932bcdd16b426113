"""Watch partitions that arrive one after the other for drift; public as `daskmm.monitor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from daskmm.engine.passes import one_blas_thread
from daskmm.kmeans.drift import cluster_sums, shift_axes
from daskmm.numerics.drift import ClusterSums, center_shifts, cost_p_values, share_p_values
from daskmm.storage.digests import digest
from daskmm.storage.records import read_state, registered, write_state

FloatArray = NDArray[np.float64]

# What is tested, in the order of `Look.p_values`.
TESTED = ("share", "cost", "centre")


@registered
@dataclass(frozen=True, eq=False)
class Look:
    """What one partition did to the clusters, beside the rows that they are compared with.

    Attributes
    ----------
    number : int
        1 for the first partition.
    n_rows : int
        Number of rows that were looked at.
    level : float
        Probability of a false alarm over all looks.
    cost, reference_cost : float
        Mean distance (unsquared) of the rows to their centres.
    shares, reference_shares : ndarray of shape (n_clusters,)
        Share of the rows in each cluster.
    cost_ratios : ndarray of shape (n_clusters,)
        Mean distance over that of the reference; NaN for clusters without rows.
    shifts : ndarray of shape (n_clusters,)
        How far the mean has moved, in standard deviations of the cluster along the shift; NaN for
        clusters of fewer than 30 rows.
    p_values : ndarray of shape (3, n_clusters)
        Of share, cost and centre of each cluster, adjusted for all tests and all looks: where the
        smallest ever is at most p, sampling error alone would have led to it with probability p.
    """

    number: int
    n_rows: int
    level: float
    cost: float
    reference_cost: float
    shares: FloatArray
    reference_shares: FloatArray
    cost_ratios: FloatArray
    shifts: FloatArray
    p_values: FloatArray

    @property
    def drifted(self) -> bool:
        """Whether some cluster differs by more than sampling error explains."""
        return bool((self.p_values <= self.level).any())

    @property
    def reasons(self) -> list[str]:
        """What differs, the most certain first, how much, and how certain it is.

        Such as "centre of cluster 3 (0.6 standard deviations away, p = 1e-09)".
        """
        tests, clusters = np.nonzero(self.p_values <= self.level)
        order = np.argsort(self.p_values[tests, clusters], kind="stable")
        return [
            f"{TESTED[tests[i]]} of cluster {clusters[i]} ({self._size(tests[i], clusters[i])}, "
            f"p = {self.p_values[tests[i], clusters[i]]:.2g})"
            for i in order
        ]

    def _size(self, test: int, cluster: int) -> str:
        """Say how much something differs in this partition."""
        if TESTED[test] == "share":
            before = self.reference_shares[cluster]
            return f"{self.shares[cluster]:.1%} of the rows instead of {before:.1%}"
        if TESTED[test] == "cost":
            return f"distances {self.cost_ratios[cluster]:.3g} times as long"
        return f"{self.shifts[cluster]:.2g} standard deviations away"

    @property
    def table(self) -> Any:
        """The clusters as a pandas DataFrame."""
        import pandas as pd

        columns = {
            "share": self.shares,
            "reference share": self.reference_shares,
            "cost ratio": self.cost_ratios,
            "shift": self.shifts,
        }
        tests = zip(TESTED, self.p_values, strict=True)
        return pd.DataFrame(columns | {f"p of {name}": p for name, p in tests})


@dataclass
class Monitor:
    """Compares partitions with reference rows; made by `daskmm.monitor`.

    Attributes
    ----------
    model : fitted estimator
        Model whose clusters are compared.
    reference : ClusterSums
        Sums over the clusters of the reference.
    level : float
        Probability of a false alarm over all looks.
    so_far : ClusterSums or None
        Sums of all partitions so far but those that drifted by themselves.
    looks : list of Look
        All looks so far, the latest last.
    measured_at : str
        Digest of the clusters that the sums were measured at; by default those of the model now.
    """

    model: Any
    reference: ClusterSums
    level: float
    so_far: ClusterSums | None = None
    looks: list[Look] = field(default_factory=list)
    measured_at: str = ""

    def __post_init__(self) -> None:
        self.measured_at = self.measured_at or _digest_of(self.model)

    @property
    def stale(self) -> bool:
        """Whether the model has changed since the reference was measured."""
        return self.measured_at != _digest_of(self.model)

    def renew(self, X: Any, feature_dim: str | None = None) -> Self:
        """Compare with other reference rows from now on, in one pass over them.

        That is needed when the model has changed, as by `partial_fit`: sums over rows belong to
        the centres that they were measured at. Looks count on, and each may spend less of the
        level than the one before, so that the probability of any false alarm, over all references,
        stays at most `level`. Partitions so far are no longer looked at together.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Such as the rows that changed the model.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        self
        """
        self.reference = _sums_of(self.model, X, feature_dim)
        self.so_far, self.measured_at = None, _digest_of(self.model)
        return self

    def look(self, X: Any, feature_dim: str | None = None) -> Look:
        """Compare a new partition with the reference, in one pass over it.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows of what the model was fitted to.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        Look
            Also appended to `looks`.

        Raises
        ------
        ValueError
            If the model has changed since the reference was measured: see `renew`.
        """
        if self.stale:
            raise ValueError(
                "The model has changed since the reference was measured. Call renew(X) with the "
                "rows to compare with from now on, such as those that changed it."
            )
        new = _sums_of(self.model, X, feature_dim)
        together = new if self.so_far is None else self.so_far + new
        number = len(self.looks) + 1
        # Two comparisons of each cluster in three ways; the level is spent on all looks to come.
        times = 2 * new.counts.size * len(TESTED) * number * (number + 1)
        alone = _p_values(self.reference, new) * times
        p_values = np.minimum(np.minimum(alone, _p_values(self.reference, together) * times), 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = new.costs / self.reference.costs
        found = Look(
            number,
            int(new.counts.sum()),
            self.level,
            new.cost,
            self.reference.cost,
            new.shares,
            self.reference.shares,
            ratios,
            center_shifts(self.reference, new)[0],
            p_values,
        )
        if alone.min() > self.level:
            self.so_far = together
        self.looks.append(found)
        return found

    def save(self, path: str | Path) -> None:
        """Write all but the model to a file, in place of one that is there."""
        state = [self.reference, self.level, self.so_far, self.looks, self.measured_at]
        write_state(Path(path), state)

    @classmethod
    def load(cls, path: str | Path, model: Any) -> Monitor:
        """Read what `save` wrote, for the same model; for another one, it is `stale`."""
        return cls(model, *read_state(Path(path)))


def monitor(model: Any, X: Any, *, level: float = 0.05, feature_dim: str | None = None) -> Monitor:
    """Watch partitions that arrive one after the other for drift, against reference rows.

    Each partition is compared with the reference by the clusters of the model: their shares of the
    rows (likelihood ratio), mean distances to the centre (Student's t) and means (Hotelling's T²,
    with the covariance of the cluster), once by itself and once together with the partitions
    before, but for those that differed by themselves, which finds slow drift. Both sides' sampling
    error counts. Look t may spend level / (t (t + 1)) on all of its tests together (Bonferroni), so
    the probability of any false alarm in any number of looks is at most `level`, whatever the
    dependence of the tests.

    Parameters
    ----------
    model : fitted KMeans, PowerKMeans or EntropyPowerKMeans
        Model whose clusters are compared.
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        Reference rows, such as those of the fit: one pass over them.
    level : float, default=0.05
        Probability of any false alarm ever.
    feature_dim : str, optional
        Of an xarray DataArray or Dataset; by default that of the fit.

    Returns
    -------
    Monitor
        Whose `look` takes the next partition, and `renew` another reference when the model has
        changed.

    Notes
    -----
    Rows are taken for independent draws, and means of at least 30 rows for normal. Shifts of more
    than 32 features are looked for along 32 random directions.

    Examples
    --------
    >>> import numpy as np
    >>> import daskmm
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> watch = daskmm.monitor(daskmm.KMeans(2, random_state=0).fit(X[:1000]), X[:1000])
    >>> watch.look(X[1000:]).drifted
    False
    >>> watch.look(X[1000:] + 1).drifted
    True
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be a probability between 0 and 1, got {level!r}.")
    check_is_fitted(model, "cluster_centers_")
    if not hasattr(model, "_fitted_passes"):
        raise TypeError(f"monitor needs a model with centres, not {type(model).__name__}.")
    return Monitor(model, _sums_of(model, X, feature_dim), float(level))


def _sums_of(model: Any, X: Any, feature_dim: str | None) -> ClusterSums:
    passes = model._fitted_passes(X, None, feature_dim)
    coordinates, state = model._fitted_state()
    with one_blas_thread():
        return cluster_sums(passes, coordinates, state, shift_axes(state))


def _digest_of(model: Any) -> str:
    _, state = model._fitted_state()
    weights = state.feature_weights
    return digest(state.centers, *([] if weights is None else [weights]))


def _p_values(reference: ClusterSums, new: ClusterSums) -> FloatArray:
    return np.stack(
        [
            share_p_values(reference, new),
            cost_p_values(reference, new),
            center_shifts(reference, new)[1],
        ]
    )
