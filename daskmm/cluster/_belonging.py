"""Memberships, and rows that belong to no cluster, for estimators with centres."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.cluster._output import labels_of_table, values_of_table
from daskmm.engine.passes import one_blas_thread
from daskmm.kmeans.assignment import labels_of
from daskmm.kmeans.belonging import (
    DistanceProfile,
    MembershipPower,
    distance_profile,
    labels_within_limit,
    limit_of,
    memberships_of,
    probabilities_of,
    scores_of,
)

# Attributes that are set from a profile.
OF_THE_PROFILE = "typical_distances_", "relative_distances_", "membership_power_"


class Belonging:
    """Mixin of what rows have to do with the clusters beyond the nearest one."""

    typical_distances_: NDArray[np.float64]
    relative_distances_: NDArray[np.float64]

    @property
    def membership_power_(self) -> float:
        """Power at which memberships are probabilities."""
        if "membership_power_" not in vars(self):
            raise AttributeError("This model has no membership_power_; it is not fitted.")
        power: MembershipPower | float = vars(self)["membership_power_"]
        return power.value if isinstance(power, MembershipPower) else power

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, a pickle or a saved model."""
        state = dict(super().__getstate__())  # type: ignore[call-overload]
        if "membership_power_" in state:
            state["membership_power_"] = self.membership_power_
        return state

    def predict(
        self,
        X: Any,
        feature_dim: str | None = None,
        *,
        outliers: float | None = None,
        unknown: str | None = None,
    ) -> Any:
        """Predict the nearest centre of each row, in the model's distance.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Columns of a DataFrame are found by name, in any order and among others.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.
        outliers : float, optional
            Share of the training rows, in (0, 1), taken for outliers: rows whose `score_samples` is
            below the score of the worst such share of them get the label −1.
        unknown : {"error", "missing"}, optional
            Whether levels of mixed columns that the fit did not see raise an error, or are left out
            of the distances as missing values are; by default as the fit says.

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            Lazy for dask and zarr input: a Series aligned with a dask DataFrame, otherwise an
            array. Of a pandas DataFrame, a pandas Series if ``set_output(transform="pandas")`` asks
            for pandas. Of a raster a DataArray on its grid, with its coordinates.
        """
        estimator: Any = self._with_unknown(unknown)  # type: ignore[attr-defined]
        X = estimator._as_fitted(X, feature_dim)
        if outliers is None:
            return labels_of_table(estimator, X, labels_of, *estimator._fitted_state())
        if not (isinstance(outliers, Real) and 0.0 < outliers < 1.0):
            raise ValueError(f"outliers must be a share between 0 and 1, got {outliers!r}.")
        limit = limit_of(self.relative_distances_, float(outliers))
        shared = *estimator._fitted_state(), self.typical_distances_, limit
        return labels_of_table(estimator, X, labels_within_limit, *shared)

    def predict_proba(self, X: Any, feature_dim: str | None = None) -> Any:
        """Compute the probability of each cluster for each row.

        They are the normalised weights φ of power means, at a power that was chosen in the fit
        (``membership_power_``) so that they agree best with the posteriors of clusters that
        are equally large and equally wide (`daskmm.numerics.calibration.calibrated_power`). Where
        these differ much, probabilities of the small and the narrow clusters are too high.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows of what the model was fitted to.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        ndarray, or lazy dask Array, of shape (n_samples, n_clusters), float64
            Rows sum to 1. ``set_output`` does not apply.
        """
        return self._memberships(X, feature_dim, None, probabilities_of, "probability")

    def memberships(
        self, X: Any, feature_dim: str | None = None, *, power: float | None = None
    ) -> Any:
        """Compute the weights φ of the rows in the MM step, as they are.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows of what the model was fitted to.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.
        power : float, optional
            s < 0; −∞ for hard memberships. By default that of `predict_proba`.

        Returns
        -------
        ndarray, or lazy dask Array, of shape (n_samples, n_clusters), float64
            φ_ij = ∂M_s/∂d_ij; rows sum to between 1 and n_clusters^(−1/s).
        """
        if power is not None and not (isinstance(power, Real) and power < 0):
            raise ValueError(f"power must be a negative number, got {power!r}.")
        return self._memberships(X, feature_dim, power, memberships_of, "membership")

    def _memberships(
        self,
        X: Any,
        feature_dim: str | None,
        power: float | None,
        function: Callable[..., NDArray],
        name: str,
    ) -> Any:
        estimator: Any = self
        X = estimator._as_fitted(X, feature_dim)
        coordinates, state = estimator._fitted_state()
        power = self.membership_power_ if power is None else float(power)
        shared = coordinates, replace(state, s=power)
        k = len(state.centers)
        return values_of_table(estimator, X, function, *shared, name=name, columns=k)

    def score_samples(self, X: Any, feature_dim: str | None = None) -> Any:
        """Compute how well each row belongs to its cluster: the lower, the more of an outlier.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows of what the model was fitted to.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        ndarray, or lazy dask Array, of shape (n_samples,), float64
            Minus the distance to the nearest centre (unsquared) in units of the median distance of
            that cluster's rows: −1 for a typical row.
        """
        estimator: Any = self
        X = estimator._as_fitted(X, feature_dim)
        shared = *estimator._fitted_state(), self.typical_distances_
        return values_of_table(estimator, X, scores_of, *shared, name="score")

    def calibrate(self, X: Any, sample_weight: Any = None, feature_dim: str | None = None) -> Self:
        """Compute from given rows, in one pass, what outliers are measured by.

        Sets the three attributes from which `predict_proba`, `score_samples` and outliers are
        computed. A fit and `partial_fit` do so with their samples of the rows.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows of what the model was fitted to.
        sample_weight : array-like or dask Array of shape (n_samples,), optional
            Sample weights, not negative; all 1 by default.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        self
        """
        estimator: Any = self
        passes = estimator._fitted_passes(X, sample_weight, feature_dim)
        with one_blas_thread():
            self._store_profile(distance_profile(passes, *estimator._fitted_state()))
        return self

    def _store_profile(self, profile: DistanceProfile) -> None:
        """Set the attributes that a profile determines."""
        vars(self).update(zip(OF_THE_PROFILE, profile, strict=True))
