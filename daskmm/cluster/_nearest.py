"""Estimators that assign each row to the nearest centre."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from daskmm.cluster._docs import documented
from daskmm.cluster._estimator import MMClusterer
from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.cluster._output import distances_of_table, labels_of_table, values_of_table
from daskmm.data.blocks import Block
from daskmm.data.input import by_name, read_table
from daskmm.engine.frames import NAME
from daskmm.kmeans.assignment import labels_of, unsquared_distances_of
from daskmm.kmeans.between_rows import distances_between


# `transform` is not wrapped, since scikit-learn would compute lazy distances to make a frame of
# them.
@documented
@dataclass(eq=False, repr=False)
class NearestCenter(  # type: ignore[call-arg]
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, MMClusterer, auto_wrap_output_keys=None
):
    """Base of the estimators whose clusters have centres in the space of the rows."""

    cluster_centers_: NDArray[np.float64] = field(init=False)
    mean_: NDArray[np.float64] = field(init=False)
    scale_: NDArray[np.float64] = field(init=False)

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
        fitted = FittedCenters.of(self).lenient
        X = fitted.table(X, feature_dim)
        return labels_of_table(self, X, labels_of, fitted.coordinates, fitted.state)

    def transform(self, X: Any, feature_dim: str | None = None) -> Any:
        """Compute the distances (unsquared) or divergences to the centres, in the model's scale.

        Parameters
        ----------
        [rows_by_name, feature_dim]

        Returns
        -------
        ndarray or dask Array of shape (n_samples, number of centres)
            The type is float32 for float32, float16 and integers of 8 or 16 bits, and float64
            otherwise. The result is lazy for dask and zarr input. With
            ``set_output(transform="pandas")`` it is a DataFrame, for lazy input a lazy dask
            DataFrame. A raster gives a DataArray with the dimension "cluster".

        Raises
        ------
        ValueError
            If `set_output` asks for polars, and the input is lazy.
        """
        fitted = FittedCenters.of(self).lenient
        X = fitted.table(X, feature_dim)
        return distances_of_table(self, X, fitted.coordinates, fitted.state)

    def _distances_to_centers(self, X: Any) -> Any:
        """Return the distances of rows to the centres, for silhouettes."""
        fitted = FittedCenters.of(self).lenient
        shared, k = (fitted.coordinates, fitted.state), len(fitted.state.centers)
        X = fitted.table(X)
        return values_of_table(self, X, unsquared_distances_of, *shared, name=NAME, columns=k)

    def _distances_between(
        self, rows: Any
    ) -> tuple[NDArray[np.int32], Callable[[slice], NDArray[np.float64]]]:
        """Return labels of rows in memory, and a function for the distances between the rows.

        Rows that have no label are left out.
        """
        fitted = FittedCenters.of(self).lenient
        table: Any = read_table(self, by_name(self, fitted.table(rows)), reset=False)
        labels = labels_of(Block(table), fitted.coordinates, fitted.state)
        kept = labels >= 0
        return labels[kept], distances_between(table[kept], fitted.coordinates, fitted.state)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and compute the distances of the rows to the centres, as `transform` does.

        scikit-learn's method would compute lazy distances for ``set_output(transform="pandas")``.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows to be clustered.
        [y]
        **fit_params
            Further arguments of `fit`, such as `sample_weight`.
        """
        return self.fit(X, y, **fit_params).transform(X)
