"""The estimators' input: scikit-learn's checks in memory, the same refusals for lazy tables."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, validate_data

from daskmm.blocks import as_dask_array, check_columns, is_lazy


def read_table(estimator: BaseEstimator, X: Any, reset: bool) -> NDArray | da.Array:
    """A table as a numpy array, or as a dask array of whole rows.

    Finiteness is not tested here: the passes do, block by block.

    Parameters
    ----------
    estimator : BaseEstimator
        Its ``n_features_in_`` and ``feature_names_in_`` are set or compared.
    X : array-like, dask Array, dask DataFrame, pandas DataFrame or zarr Array
    reset : bool
        Whether to set (fit) or to compare (predict) them.

    Raises
    ------
    ValueError, TypeError
        If it is not a two-dimensional numeric table that fits the estimator.
    """
    if is_lazy(X):
        table = as_dask_array(X)
        # An empty pandas frame carries a dask frame's column names.
        names = X._meta if hasattr(X, "columns") else table
        validate_data(estimator, names, reset=reset, skip_check_array=True)
        return table
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        check_columns(X.dtypes)
    elif isinstance(X, np.ndarray) and X.dtype == object:
        X = _from_objects(X)
    return validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False)


def read_weights(sample_weight: Any, table: NDArray | da.Array) -> Any:
    """Sample weights that go with a table; values are tested by the first pass."""
    if sample_weight is None or isinstance(table, da.Array):
        return sample_weight
    return _check_sample_weight(np.asarray(sample_weight), table, dtype=np.float64)


def _from_objects(X: NDArray) -> NDArray[np.float64]:
    """Numbers of an object array.

    Raises
    ------
    ValueError, TypeError
        Naming the first row that holds something else.
    """
    try:
        return X.astype(np.float64)
    except (TypeError, ValueError) as error:
        row = next(i for i, values in enumerate(X) if not _is_numeric(values))
        raise type(error)(
            f"X has dtype object, and row {row} cannot be read as numbers: {error}"
        ) from error


def _is_numeric(values: Any) -> bool:
    try:
        np.asarray(values).astype(np.float64)
    except (TypeError, ValueError):
        return False
    return True
