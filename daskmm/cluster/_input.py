"""The estimators' input: scikit-learn's checks in memory, the same refusals for lazy tables."""

from __future__ import annotations

import re
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from daskmm.blocks import (
    as_dask_array,
    check_columns,
    check_dtype,
    frame_and_weights,
    is_frame,
    is_lazy,
    is_series,
    refuse_masked,
    row_blocks,
)
from daskmm.passes import Passes

_OF_X = re.compile(r"\bX\b|[Ff]ound array with|Expected 2D array|[Ff]eature|Sparse")


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
    refuse_masked(X, "X")
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        check_columns(X.dtypes)
    elif isinstance(X, np.ndarray) and X.dtype == object:
        X = _from_objects(X)
    elif isinstance(X, np.ndarray) and X.dtype.kind in "cmMSUV":
        check_dtype(X.dtype, "X")
    try:
        return validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False)
    except (ValueError, TypeError) as error:
        if _OF_X.search(str(error)):
            raise
        # scikit-learn and numpy say what is wrong, but not always of what.
        raise type(error)(f"X cannot be read as a table of numbers: {error}") from error


def read_weighted(
    estimator: BaseEstimator, X: Any, sample_weight: Any, reset: bool
) -> tuple[NDArray | da.Array, Any]:
    """A table as `read_table` gives it, and its sample weights.

    A frame and weights that are a series are optimised together: they often are columns of the
    same frame, which would otherwise be loaded twice.
    """
    if is_frame(X) and is_series(sample_weight):
        check_columns(X.dtypes)
        validate_data(estimator, X._meta, reset=reset, skip_check_array=True)
        return frame_and_weights(X, sample_weight)
    return read_table(estimator, X, reset), sample_weight


def weighted_passes(table: NDArray | da.Array, sample_weight: Any) -> Passes:
    """Passes over a table whose rows have given sample weights.

    Raises
    ------
    ValueError
        If the weights do not match the rows; their values are tested as the passes meet them.
    """
    passes = Passes(row_blocks(table))
    if isinstance(table, da.Array) and is_lazy(sample_weight):
        passes.weigh(sample_weight)
    elif sample_weight is not None:
        passes.weigh(_weights_in_memory(sample_weight, passes))
    return passes


def _weights_in_memory(sample_weight: Any, passes: Passes) -> NDArray:
    refuse_masked(sample_weight, "sample_weight")
    weights = np.asarray(sample_weight)
    if weights.ndim == 0:
        passes.count_rows()
        weights = np.full(passes.blocks.layout.n_rows or 0, weights)
    if weights.ndim != 1:
        raise ValueError(
            f"sample_weight must be 1D, got {weights.ndim}D: Sample weights must be 1D"
        )
    n_rows = passes.blocks.layout.n_rows
    if n_rows is not None and len(weights) != n_rows:
        raise ValueError(f"sample_weight has {len(weights)} entries, X has {n_rows} rows.")
    return weights


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
