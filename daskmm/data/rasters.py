"""Rasters: xarray objects whose pixels are the rows, and results on the same grid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import da, is_dask_array
from daskmm.data.blocks import check_dtype
from daskmm.data.errors import warn_user
from daskmm.data.grids import Grid
from daskmm.data.variables import with_names
from daskmm.data.zarr_chunks import packing_of

# Dimension of the variables of a Dataset, as xarray's `Dataset.to_dataarray` calls it.
_VARIABLES = "variable"


@dataclass(frozen=True)
class Raster:
    """The pixels of a cube as rows of a table, in blocks that follow the cube's chunks."""

    # The pixels, (n_pixels, n_features). Each block of a lazy cube has all features, and becomes a
    # block of rows.
    table: NDArray | da.Array
    grid: Grid  # the cube's other dimensions, on whose grid the rows lie
    pixels: Any  # one feature of the cube, which has the dimensions and coordinates of the grid
    feature_dim: str  # dimension of the features
    names: list[str] | None  # names of the features; None unless their coordinate is text

    @property
    def header(self) -> Any:
        """The table, or an empty frame with the features' names."""
        if self.names is None:
            return self.table
        import pandas as pd

        return pd.DataFrame(columns=self.names, dtype=np.float64)

    @property
    def named(self) -> Any:
        """The table, with the features' names if there are any: a dask array or a frame."""
        if is_dask_array(self.table):
            return with_names(self.table, self.names)
        if self.names is None:
            return self.table
        import pandas as pd

        return pd.DataFrame(self.table, columns=self.names)

    def chosen(self, names: list[str]) -> Raster:
        """Return a raster of the features with these names, or of all if one is missing."""
        own = self.names
        if own is None or own == names or not set(names) <= set(own):
            return self
        order = [own.index(name) for name in names]
        return replace(self, table=_columns(self.table, order), names=names)

    def rows_of(self, values: Any) -> Any:
        """Return an array or DataArray on the grid as one value per row; other values unchanged."""
        if hasattr(values, "dims"):
            if not {*values.dims} <= {*self.pixels.dims}:
                raise ValueError(
                    f"An array with the dimensions {values.dims} does not lie on the pixels of X, "
                    f"which have {self.pixels.dims}."
                )
            values = values.broadcast_like(self.pixels).transpose(*self.pixels.dims).data
        if getattr(values, "shape", None) not in (self.grid.shape, (len(self.table),)):
            return values
        if not is_dask_array(self.table):
            return values.reshape(-1)
        if values.ndim == 1:
            values = values.reshape(self.grid.shape)
        values = da.asarray(values).rechunk(self.grid.chunks)
        return _flat(values, 0)

    def on_grid(self, values: NDArray | da.Array, name: str, dim: str | None = None) -> Any:
        """Return values of the rows as a DataArray on the grid, which is lazy if the values are.

        `dim` is the dimension of the columns of a matrix.
        """
        import xarray

        rest = values.shape[1:]
        shape = (*self.grid.shape, *rest)
        if is_dask_array(values):
            values = da.reshape_blockwise(values, shape, (*self.grid.chunks, *values.chunks[1:]))
        else:
            values = values.reshape(shape)
        dims = (*self.pixels.dims, dim) if rest else self.pixels.dims
        return xarray.DataArray(values, dims=dims, coords=self.pixels.coords, name=name)


def grid_of(X: Any) -> Grid | None:
    """Return the grid of a lazy Raster, whose blocks are windows of the grid; otherwise None."""
    return X.grid if isinstance(X, Raster) and is_dask_array(X.table) else None


def in_strips(X: Any) -> Any:
    """Cut a lazy xarray object along its first dimension only; return other tables unchanged.

    Rows of its blocks are then in C order, so that values of the rows can be reshaped to the grid.
    """
    chunks = getattr(X, "chunksizes", None)
    return X.chunk(dict.fromkeys(list(chunks)[1:], -1)) if chunks else X


def pixels_of(X: Any, feature_dim: str | None, fitted_dim: str | None = None) -> Any:
    """Return an xarray object as a `Raster`; otherwise `X` unchanged.

    The features of a Dataset are its variables, or lie along a dimension of its only variable.
    `feature_dim` is the dimension of the features, if the user has given it; otherwise it is that
    of the fit, `fitted_dim`.

    It raises TypeError if `feature_dim` is given with another kind of table, and ValueError if `X`
    does not have the dimension, or its values are not numeric.
    """
    kind = type(X).__name__
    if type(X).__module__.partition(".")[0] != "xarray" or kind not in ("DataArray", "Dataset"):
        if feature_dim is not None:
            raise TypeError(
                f"feature_dim={feature_dim!r} is a dimension of an xarray DataArray or Dataset; X "
                f"is a {kind}, whose columns are the features."
            )
        return X
    for variable in X.data_vars.values() if kind == "Dataset" else [X]:
        _warn_of_packed(variable)
    name = feature_dim or fitted_dim
    if kind == "Dataset":
        name = name or _VARIABLES
        X = _cube(X, name)
    if name is None:
        return X
    if name not in X.dims:
        given = "feature_dim" if feature_dim else "the feature_dim of the fit,"
        raise ValueError(f"X has the dimensions {X.dims}, and not {given} {name!r}.")
    if X.ndim < 2:
        raise ValueError(f"X has no dimension besides the one of the features, {name!r}.")
    return _raster(X, name)


def _warn_of_packed(variable: Any) -> None:
    """Warn if the values of a variable are packed, or marked as missing by a number."""
    if packed := packing_of(variable.attrs):
        name = "X" if variable.name is None else f"X ({variable.name})"
        warn_user(
            f"{name} has packed values ({packed}), which are taken as they are. Unpack them first, "
            "by xarray.decode_cf(dataset) or rioxarray.open_rasterio(path, mask_and_scale=True).",
            UserWarning,
        )


def _cube(data: Any, name: str) -> Any:
    """Return a Dataset as one DataArray."""
    with_it = [key for key, variable in data.data_vars.items() if name in variable.dims]
    if len(with_it) == 1 and len(data.data_vars) == 1:
        return data[with_it[0]]
    if with_it:
        raise ValueError(
            f"X is a Dataset in which {len(with_it)} of {len(data.data_vars)} variables have the "
            f"dimension {name!r}. Choose one, or omit feature_dim, so that the variables are the "
            "features."
        )
    if not data.data_vars:
        raise ValueError("X is a Dataset without variables.")
    for key, variable in data.data_vars.items():
        check_dtype(variable.dtype, f"X[{key!r}]")
    return data.to_dataarray(dim=name)


def _raster(cube: Any, name: str) -> Raster:
    check_dtype(cube.dtype, "X")
    array, axis = cube.data, cube.dims.index(name)
    if not is_dask_array(array):
        array = np.asarray(array)
    elif any(np.isnan(sizes).any() for sizes in array.chunks):
        raise ValueError("X has blocks of unknown size. Call compute_chunk_sizes() first.")
    labels = cube.coords[name].values if name in cube.coords else np.empty(0)
    names = [str(label) for label in labels]
    is_text = len(names) > 0 and all(isinstance(label, str) for label in labels)
    pixels = cube.isel({name: 0}).drop_vars(
        [key for key, own in cube.coords.items() if not set(own.dims) <= set(cube.dims) - {name}]
    )
    if is_dask_array(array):
        chunks = tuple(tuple(map(int, c)) for i, c in enumerate(array.chunks) if i != axis)
    else:
        chunks = tuple((length,) for i, length in enumerate(array.shape) if i != axis)
    grid = Grid(tuple(map(str, pixels.dims)), chunks)
    return Raster(_flat_rows(array, axis), grid, pixels, name, names if is_text else None)


def _columns(table: NDArray | da.Array, order: list[int]) -> Any:
    """Return columns of a table; dask's expressions cannot be indexed by lists."""
    if not is_dask_array(table):
        return table[:, order]
    map_blocks: Any = table.map_blocks
    return map_blocks(_columns, order, chunks=(table.chunks[0], (len(order),)), meta=table._meta)


def _flat_rows(array: Any, axis: int) -> Any:
    """Return an array as a table of the pixels, with the features along an axis."""
    n_features, others = array.shape[axis], [i for i in range(array.ndim) if i != axis]
    if not is_dask_array(array):
        if axis == 0:  # this is a view if the array is in C order
            return array.reshape(n_features, -1).T
        return np.moveaxis(array, axis, -1).reshape(-1, n_features)
    return _flat(array.rechunk({axis: -1}).transpose((*others, axis)), 1)


def _flat(array: da.Array, n_last: int) -> da.Array:
    """Join the leading dimensions within each block."""
    # dask does not drop a dimension of length 1 if the last dimension has that length, too.
    single = [chunks == (1,) for chunks in array.chunks[: array.ndim - n_last]]
    single[-1] &= not all(single)
    array = array[tuple(0 if one else slice(None) for one in single)]
    kept = array.ndim - n_last
    if kept == 1:
        return array
    grid = Grid((), array.chunks[:kept])
    n_rows = sum(grid.rows)
    return da.reshape_blockwise(array, (n_rows, *array.shape[kept:]))
