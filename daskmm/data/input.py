"""Check the input of the estimators, as scikit-learn does for tables in memory."""

from __future__ import annotations

import re
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import validate_data

from daskmm._dask import da, is_dask_array, scheduler
from daskmm.data.blocks import (
    as_dask_array,
    check_columns,
    check_dtype,
    frame_and_weights,
    is_frame,
    is_lazy,
    is_series,
    no_features,
    refuse_masked,
    refuse_other_order,
)
from daskmm.data.errors import SparseRowsError
from daskmm.data.foreign import unwrapped
from daskmm.data.rasters import Raster, in_strips, pixels_of
from daskmm.data.sparse import NamedSparse, is_sparse, sparse_rows
from daskmm.data.variables import header_of
from daskmm.data.zarr_chunks import check_chunks_of, is_zarr_group
from daskmm.numerics.sparse_rows import SparseRows

_OF_X = re.compile(r"\bX\b|[Ff]ound array with|Expected 2D array|[Ff]eature|Sparse")


def check_synchronous() -> None:
    """Raise RuntimeError if the active dask client is asynchronous."""
    try:
        scheduler()
    except RuntimeError as error:
        if "asynchronous" not in str(error):
            raise
        raise RuntimeError(
            "The active distributed.Client is asynchronous, and a fit waits for its results. Fit "
            "in another thread, `await asyncio.to_thread(model.fit, X)`, or use a client that is "
            "made without asynchronous=True."
        ) from error


def read_table(
    estimator: BaseEstimator, X: Any, reset: bool, least_rows: int = 1
) -> NDArray | da.Array:
    """Return a table as a numpy array, as sparse rows, or as a dask array of whole rows.

    `X` is array-like, a sparse matrix, a dask Array, a DataFrame of pandas or dask, a zarr Array, a
    Raster, or a table of another library that `unwrapped` converts. The estimator's
    ``n_features_in_`` and ``feature_names_in_`` are set if `reset` (fit); otherwise `X` is checked
    against them (predict). A dense table in memory has at least `least_rows` rows. Finiteness is
    tested later, block by block in the passes.

    It raises ValueError or TypeError if `X` is not a two-dimensional numeric table, or has other
    features than the estimator, and RuntimeError if `reset`, and the active client is asynchronous.
    """
    if reset:
        check_synchronous()
    if isinstance(X, Raster):
        validate_data(estimator, X.header, reset=reset, skip_check_array=True)
        return X.table
    if isinstance(X, str | PathLike):
        raise TypeError(
            "X is a path. Open it first, for instance by dask.dataframe.read_csv, read_parquet or "
            "zarr.open_array; the command `daskmm fit` takes paths."
        )
    if is_zarr_group(X):
        raise TypeError(
            "X is a zarr Group. Choose one of its arrays, such as X['name'], or open it by "
            "xarray.open_zarr, which makes features of its arrays."
        )
    X = unwrapped(X)
    if is_lazy(X):
        check_chunks_of(X)
        table = as_dask_array(X)
        if is_sparse(table):
            _refuse_sparse(estimator)
        # The meta of a dask frame, an empty pandas frame, has its column names.
        names = X._meta if hasattr(X, "columns") else table
        if reset or hasattr(estimator, "feature_names_in_"):
            names = header_of(X) if is_dask_array(X) else names
        validate_data(estimator, names, reset=reset, skip_check_array=True)
        return table
    if is_sparse(X):
        return _read_sparse(estimator, X, reset)
    refuse_masked(X, "X")
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        check_columns(X.dtypes)
    elif isinstance(X, np.ndarray) and X.dtype == object:
        X = _from_objects(X)
    elif isinstance(X, np.ndarray) and X.dtype.kind in "cmMSUV":
        check_dtype(X.dtype, "X")
    try:
        return validate_data(
            estimator,
            X,
            reset=reset,
            dtype="numeric",
            ensure_all_finite=False,
            ensure_min_samples=least_rows,
        )
    except (ValueError, TypeError) as error:
        if _OF_X.search(str(error)):
            raise
        # scikit-learn and numpy do not always name the argument.
        raise type(error)(f"X cannot be read as a table of numbers: {error}") from error


def _read_sparse(estimator: BaseEstimator, X: Any, reset: bool) -> SparseRows:
    """Return a sparse table in memory as rows."""
    check_dtype(X.dtype, "X")
    _refuse_sparse(estimator)
    rows = sparse_rows(X)
    if rows.shape[1] == 0:
        raise ValueError(no_features(rows.shape, "X"))
    names = X.columns.to_frame().T[:0] if isinstance(X, NamedSparse) else rows
    validate_data(estimator, names, reset=reset, skip_check_array=True)
    return rows


def _refuse_sparse(estimator: BaseEstimator) -> None:
    """Raise SparseRowsError if an estimator does not take sparse rows with its parameters."""
    if get_tags(estimator).input_tags.sparse:
        return
    raise SparseRowsError(
        f"Sparse rows are not supported by {type(estimator).__name__} with these parameters. "
        "KMeans and PowerKMeans take them with distortion='sqeuclidean', 'cosine', 'kl' and "
        "'poisson', and EntropyPowerKMeans with 'sqeuclidean'; none of them takes sparse rows with "
        "missing='partial'. Give dense rows, such as those of sklearn.decomposition.TruncatedSVD, "
        "or X.toarray() (of a DataFrame, X.sparse.to_dense()) where that fits into memory."
    )


def by_name(estimator: BaseEstimator, X: Any) -> Any:
    """Return the columns of a frame that a fitted estimator knows by name, in the order of the fit.

    Tables of other libraries are unwrapped. `X` is returned unchanged if it is not a frame, if the
    estimator knows no names, or if `X` has none of them. `read_table` reports missing and repeated
    names.
    """
    names = getattr(estimator, "feature_names_in_", None)
    X = unwrapped(X, names)
    if isinstance(X, Raster):
        return X if names is None else X.chosen(list(names))
    sparse = isinstance(X, NamedSparse)
    if names is None or not (sparse or (hasattr(X, "columns") and hasattr(X, "dtypes"))):
        return X
    columns = set(X.columns)
    known = [name for name in names if name in columns]
    if not known or list(X.columns) == known:
        return X
    return X.chosen(known) if sparse else X[known]


def raster_of(estimator: BaseEstimator, X: Any) -> Raster | None:
    """Return the pixels of a cube, with the features of the fit and in the order of the cube.

    The result is None for another table, and if the estimator was not fitted to a cube.
    """
    fitted_dim = getattr(estimator, "feature_dim_", None)
    if fitted_dim is None:
        return None
    raster = pixels_of(in_strips(X), None, fitted_dim)
    return by_name(estimator, raster) if isinstance(raster, Raster) else None


def read_weighted(
    estimator: BaseEstimator, X: Any, sample_weight: Any, reset: bool
) -> tuple[NDArray | da.Array, Any]:
    """Return a table as `read_table` does, and its sample weights.

    A frame and a series of weights are optimized together: if they are columns of one frame, it
    would otherwise be loaded twice.
    """
    X = unwrapped(X) if reset else by_name(estimator, X)
    refuse_other_order(X, sample_weight, "sample_weight")
    if isinstance(X, Raster):
        return read_table(estimator, X, reset), X.rows_of(sample_weight)
    if is_frame(X) and is_series(sample_weight):
        check_synchronous()
        check_columns(X.dtypes)
        validate_data(estimator, X._meta, reset=reset, skip_check_array=True)
        return frame_and_weights(X, sample_weight)
    return read_table(estimator, X, reset), sample_weight


def _from_objects(X: NDArray) -> NDArray[np.float64]:
    """Convert an object array to numbers; raise for the first row with anything else."""
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
