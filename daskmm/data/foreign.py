"""Convert tables of other libraries: those with an Arrow stream, modin, xarray, AnnData."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from scipy.sparse import issparse

from daskmm._dask import da, is_dask_array
from daskmm.data.arrow import frame_of, is_arrow
from daskmm.data.blocks import check_columns
from daskmm.data.sparse import NamedSparse, has_sparse_columns
from daskmm.data.sparse_files import open_h5_rows

# Bytes of a block if an AnnData object is backed by a file.
_BLOCK_BYTES = 16 << 20


def unwrapped(X: Any, names: Sequence[str] | None = None) -> Any:
    """Return the table inside an object of another library, with plain columns.

    The result is the pandas DataFrame of a modin one or of a table with an Arrow stream (such as
    polars'; `names` are the columns to read, as in `daskmm.data.arrow.frame_of`), the numpy or dask
    array of an xarray DataArray, or the array of an AnnData object. An AnnData array in memory
    becomes a DataFrame or `NamedSparse` with the names of observations and variables. A pandas
    DataFrame of sparse columns only becomes `NamedSparse`; beside dense columns, they become dense.
    Decimals become floats. Any other object is returned unchanged. None of these libraries is
    imported here.

    It raises ValueError if a DataArray is not two-dimensional, if the sparse matrix in the file of
    an AnnData object is stored by columns, or if the fill value of sparse columns is not 0, and
    TypeError for an xarray Dataset.
    """
    if is_arrow(X):
        return frame_of(X, names)
    library, kind = type(X).__module__.partition(".")[0], type(X).__name__
    if library == "modin" and kind == "DataFrame":
        return unwrapped(X.modin.to_pandas())
    if library == "pandas" and kind == "DataFrame":
        X = _with_flat_names(X)
        if has_sparse_columns(X):
            return _of_sparse_columns(X)
        return _with_plain_columns(X)
    if library == "xarray" and kind == "DataArray":
        if X.ndim != 2:
            raise ValueError(
                f"Expected 2D array for X, got a DataArray with the dimensions {X.dims} instead. "
                "Name the one of the features, as in fit(X, feature_dim='band'). Or stack the "
                "others, for instance X.stack(pixel=('y', 'x')).transpose('pixel', 'band')."
            )
        return X.data
    if library == "xarray" and kind == "Dataset":
        raise TypeError(
            "X is an xarray Dataset, which KMeans, PowerKMeans, EntropyPowerKMeans and ClusterTree "
            f"take. Make a table of it: X.to_dataarray().stack(pixel={tuple(X.sizes)})"
            ".transpose('pixel', 'variable')."
        )
    if library == "anndata" and kind == "AnnData":
        return _of_anndata(X)
    return X


def _of_sparse_columns(frame: Any) -> NamedSparse:
    """Return a pandas frame of sparse columns as sparse rows with its names."""
    check_columns(frame.dtypes.map(lambda dtype: dtype.subtype))
    if any(dtype.fill_value != 0 for dtype in frame.dtypes):
        raise ValueError(
            "X has sparse columns whose fill value is not 0. Convert them: X.sparse.to_dense()."
        )
    return NamedSparse.of(frame.sparse.to_coo(), frame.index, frame.columns)


def are_decimals(series: Any) -> bool:
    """Return whether a pandas series has decimals: Arrow's, or Python objects.

    pandas makes such objects from the decimals of a parquet file or of a database.
    """
    if series.dtype != object:
        return str(series.dtype).startswith("decimal")
    values = series.dropna()
    return len(values) > 0 and all(isinstance(value, Decimal) for value in values)


def _with_flat_names(frame: Any) -> Any:
    """Return a pandas frame in which column names of several levels are joined."""
    if frame.columns.nlevels == 1:
        return frame
    return frame.set_axis(["_".join(map(str, name)) for name in frame.columns], axis=1)


def _with_plain_columns(frame: Any) -> Any:
    """Return a pandas frame with floats in place of decimals, and without sparse columns."""
    if not frame.columns.is_unique:  # `check_columns` raises for it later
        return frame
    kinds = {name: np.float64 for name in frame.columns if are_decimals(frame[name])}
    kinds |= {n: kind.subtype for n, kind in frame.dtypes.items() if hasattr(kind, "fill_value")}
    return frame.astype(kinds) if kinds else frame


def _of_anndata(data: Any) -> Any:
    import pandas as pd

    array = data.X
    if array is None:
        raise ValueError("X is an AnnData object without X. Give one of its obsm or layers.")
    if issparse(array):
        return NamedSparse.of(array, data.obs_names, data.var_names)
    if isinstance(array, np.ndarray):
        return pd.DataFrame(array, index=data.obs_names, columns=data.var_names)
    if is_dask_array(array):
        return array
    if hasattr(array, "format"):
        # Each task opens the sparse group by itself.
        return open_h5_rows(str(data.filename), array.group.name)
    # The dataset belongs to an open file (AnnData is "backed").
    rows = max(1, _BLOCK_BYTES // max(1, array.shape[1] * array.dtype.itemsize))
    return da.from_array(array, chunks=(rows, -1), name=False, lock=True)
