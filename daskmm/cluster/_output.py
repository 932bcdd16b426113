"""Results in the form of the input: series and frames where rows came in frames.

Data in memory give numpy arrays, lazy data lazy results. Labels of a dask DataFrame are a dask
Series that is aligned with it. ``set_output(transform="pandas")`` asks for pandas objects, which of
lazy data are lazy as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from daskmm.cluster._sklearn import output_container, wrap_output
from daskmm.data.blocks import float_dtype, is_frame, is_lazy
from daskmm.data.input import by_name, read_table
from daskmm.data.names import features_named
from daskmm.data.rasters import Raster, grid_of
from daskmm.data.sparse import NamedSparse
from daskmm.engine.frames import NAME, array_as_frame, map_frame
from daskmm.kmeans.assignment import distances_of, map_rows


def labels_of_table(
    estimator: BaseEstimator, X: Any, function: Callable[..., NDArray], *shared: Any
) -> Any:
    """Return the labels of new rows by a block function, in the form of `X`."""
    X = by_name(estimator, X)
    table = read_table(estimator, X, reset=False)
    if isinstance(X, Raster):
        return X.on_grid(map_rows(function, table, *shared, grid=grid_of(X)), NAME)
    if is_frame(X):
        return map_frame(function, X, *shared)
    with features_named(estimator):
        return as_asked(estimator, map_rows(function, table, *shared), X)


def values_of_table(
    estimator: BaseEstimator,
    X: Any,
    function: Callable[..., NDArray],
    *shared: Any,
    name: str,
    columns: int | None = None,
) -> Any:
    """Return float64 values of new rows by a block function: an array, lazy for lazy data.

    Those of pixels lie on their grid, and are called `name`.
    """
    X = by_name(estimator, X)
    table = read_table(estimator, X, reset=False)
    grid = grid_of(X)
    values = map_rows(function, table, *shared, columns=columns, dtype=np.float64, grid=grid)
    if not isinstance(X, Raster):
        return values
    return X.on_grid(values, name, None if columns is None else NAME)


def as_asked(estimator: BaseEstimator, labels: Any, X: Any) -> Any:
    """Return labels of rows with names as a series, if `set_output` asks for pandas."""
    named = hasattr(X, "iloc") or isinstance(X, NamedSparse)
    if not (named and isinstance(labels, np.ndarray) and output_container(estimator) == "pandas"):
        return labels
    import pandas as pd

    return pd.Series(labels, index=X.index, name=NAME)


class DistanceOutput:
    """Mixin of transformers to distances, whose output of lazy input stays lazy.

    It stands before scikit-learn's mixins, which would gather such output to make a frame of it.
    """

    def transform(self, X: Any, feature_dim: str | None = None) -> Any:
        """Compute the distances to the centres in the model's scale: unsquared, or divergences.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Columns of a DataFrame are found by name, in any order and among others.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        ndarray or dask Array of shape (n_samples, number of centres)
            float32 for float32, float16 and integers of 8 or 16 bits, float64 otherwise; lazy
            for dask and zarr input. With ``set_output(transform="pandas")`` a DataFrame: of lazy
            input a lazy dask DataFrame. Of a raster a DataArray with the dimension "cluster".

        Raises
        ------
        ValueError
            If `set_output` asks for polars, and the input is lazy.
        """
        estimator: Any = self
        X = estimator._as_fitted(X, feature_dim)
        return _distances_of_table(estimator, X, *estimator._fitted_state())

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and compute the distances of the rows to the centres, as `transform` does.

        Parameters
        ----------
        X : as in `fit`
            Rows to be clustered.
        y : ignored
            Present for scikit-learn's interface.
        **fit_params
            Such as `sample_weight`.
        """
        estimator: Any = self
        return estimator.fit(X, y, **fit_params).transform(X)


def _distances_of_table(estimator: Any, X: Any, *state: Any) -> Any:
    """Return the distances of a table in the form that `set_output` asks for."""
    X = by_name(estimator, X)
    table = read_table(estimator, X, reset=False)
    names, dtype = estimator.get_feature_names_out(), float_dtype(table.dtype)
    if isinstance(X, Raster):
        values = map_rows(
            distances_of, table, *state, columns=len(names), dtype=dtype, grid=grid_of(X)
        )
        return X.on_grid(values, "distance", NAME)
    asked = output_container(estimator) if is_lazy(X) else "default"
    if asked not in ("default", "pandas"):
        raise ValueError(
            f"set_output(transform={asked!r}) has no lazy form. Ask for 'pandas', which gives a "
            "dask DataFrame, or for 'default', a dask array."
        )
    if asked == "pandas" and is_frame(X):
        return map_frame(distances_of, X, *state, columns=names, dtype=dtype)
    values = map_rows(distances_of, table, *state, columns=len(names), dtype=dtype)
    if asked == "pandas":
        return array_as_frame(values, names)
    return values if is_lazy(X) else wrap_output(values, X, estimator)
