"""Results in the form of the input: series and frames for rows in frames.

Data in memory give numpy arrays, and lazy data give lazy results. Labels of a dask DataFrame are a
dask Series that is aligned with it. ``set_output(transform="pandas")`` asks for pandas objects, or
for lazy dask ones if the data are lazy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from daskmm.cluster._sklearn import output_container, wrap_output
from daskmm.data.arrow import is_arrow
from daskmm.data.blocks import float_dtype, is_frame, is_lazy
from daskmm.data.input import by_name, read_table
from daskmm.data.lazy import in_memory
from daskmm.data.names import features_named
from daskmm.data.rasters import Raster, grid_of
from daskmm.data.sparse import NamedSparse
from daskmm.engine.frames import NAME, array_as_frame, labels_in_frame, map_frame
from daskmm.kmeans.assignment import distances_of, map_rows


def labels_of_table(
    estimator: BaseEstimator, X: Any, function: Callable[..., NDArray], *shared: Any
) -> Any:
    """Compute labels of new rows with a block function, and return them in the form of `X`."""
    X = by_name(estimator, X)
    table = read_table(estimator, X, reset=False, least_rows=0)
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
    """Compute float64 values of new rows with a block function; lazy data give a lazy array.

    If there is one value per row, a dask DataFrame gives a series. Values of pixels are returned on
    their grid. Both are called `name`.
    """
    X = by_name(estimator, X)
    table = read_table(estimator, X, reset=False, least_rows=0)
    if is_frame(X) and columns is None:
        return map_frame(function, X, *shared, dtype=np.float64, name=name)
    grid = grid_of(X)
    values = map_rows(function, table, *shared, columns=columns, dtype=np.float64, grid=grid)
    if not isinstance(X, Raster):
        return values
    return X.on_grid(values, name, None if columns is None else NAME)


def fitted_labels(
    labels: Any, X: Any, function: Callable[..., NDArray] | None = None, *shared: Any
) -> dict[str, Any]:
    """Return the fitted attributes with the labels of the training rows, in the form of `X`.

    Labels are in the blocks in which the rows were read. Those of a dask DataFrame are computed by
    the block function with its arguments `shared`; without a function, the given ones are aligned
    with it.
    """
    if isinstance(X, Raster):
        return {"labels_": X.on_grid(labels, NAME)}
    if not is_frame(X):
        return {"labels_": labels}
    if function is None:
        aligned = labels_in_frame(in_memory(labels), X)
    else:
        aligned = map_frame(function, X, *shared)
    return {"labels_": aligned, "_block_labels": labels}


def as_asked(estimator: BaseEstimator, labels: Any, X: Any) -> Any:
    """Return the labels of a named table as a series if `set_output` asks for a library's types."""
    named = hasattr(X, "iloc") or isinstance(X, NamedSparse) or is_arrow(X)
    asked = output_container(estimator)
    if not (named and isinstance(labels, np.ndarray)):
        return labels
    if asked == "polars":
        import polars

        return polars.Series(NAME, labels)
    if asked == "pandas":
        import pandas as pd

        return pd.Series(labels, index=getattr(X, "index", None), name=NAME)
    return labels


def distances_of_table(estimator: Any, X: Any, *state: Any) -> Any:
    """Return the distances of a table to the centres in the form that `set_output` asks for."""
    X = by_name(estimator, X)
    table = read_table(estimator, X, reset=False, least_rows=0)
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
