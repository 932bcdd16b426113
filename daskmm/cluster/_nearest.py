"""Estimators that assign each row to the nearest centre."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from daskmm.cluster._docs import documented
from daskmm.cluster._estimator import MMClusterer
from daskmm.cluster._fitted_centers import FittedCenters


# `transform` is not wrapped, since scikit-learn would compute lazy distances to make a frame of
# them.
@documented
@dataclass(eq=False, repr=False)
class NearestCenter(  # type: ignore[call-arg]
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, MMClusterer, auto_wrap_output_keys=None
):
    """Base of the estimators whose clusters have centres in the space of the rows."""

    cluster_centers_: NDArray[np.float64] = field(init=False)

    def predict(self, X: Any, feature_dim: str | None = None) -> Any:
        """Predict the nearest centre of each row, in the model's distance.

        Parameters
        ----------
        [rows_by_name, feature_dim]

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            Lazy for dask and zarr input: a Series aligned with a dask DataFrame, otherwise an
            array. A pandas DataFrame gives a pandas Series if ``set_output(transform="pandas")``
            asks for it, and a raster a DataArray on its grid, with its coordinates.
        """
        return self._clusters().labels(X, feature_dim)

    def transform(self, X: Any, feature_dim: str | None = None) -> Any:
        """Compute the distances (unsquared) or divergences to the centres, in the model's scale.

        Parameters
        ----------
        [rows_by_name, feature_dim]

        Returns
        -------
        [distances]

        Raises
        ------
        ValueError
            If `set_output` asks for polars, and the input is lazy.
        """
        return self._clusters().distances(X, feature_dim)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and compute the distances of the rows to the centres, as `transform` does.

        Parameters
        ----------
        X : as in `fit`
            Rows to be clustered.
        [y, fit_params]
        """
        return self.fit(X, y, **fit_params).transform(X)

    def _clusters(self) -> FittedCenters:
        return FittedCenters.of(self).lenient
