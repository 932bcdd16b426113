"""Read cubes on disk, whose pixels are the rows, through xarray.

Cubes are NetCDF files, or zarr groups as xarray writes them. They are read in strips along the
first dimension. So the pixels keep the order of the file, and labels can be put on its grid.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from daskmm._dask import da
from daskmm.data.names import refuse_unknown
from daskmm.data.rasters import pixels_of
from daskmm.data.variables import with_names
from daskmm.data.zarr_chunks import check_chunks, packing_of
from daskmm.storage.zarr_stores import zarr_store

SUFFIXES = (".nc", ".nc4", ".cdf")
# First bytes of NetCDF 4, which is HDF5; scipy reads older files.
_HDF5 = b"\x89HDF"
_OF_HDF5 = ("h5netcdf", "netcdf4")
# Approximate bytes of the values of a block.
_BLOCK_BYTES = 16_000_000


def open_cube(
    path: str,
    component: str | None,
    feature_dim: str | None,
    columns: Sequence[str] | None,
    chunks: int | str,
) -> da.Array:
    """Open the pixels of a NetCDF file or a zarr group as a table, without reading them.

    The pixels, (n_pixels, n_features), are in the order of the file, which is C order. `path` may
    be a URL of a zarr group. `component` is the variable with the features along `feature_dim`; if
    both are None, the variables are the features. `columns` are the features to use (all if None).
    Blocks have `chunks` pixels along the first dimension of the pixels; "auto" makes blocks of
    about 16 MB.

    It raises ValueError if the file cannot be read, or does not have the given variable, dimension
    or features, and ImportError without xarray, or its backend for this file.
    """
    data = _dataset(path) if is_netcdf(path) else _group(path)
    if component is not None:
        refuse_unknown(path, "variable", [component], data.data_vars)
        data = data[component]
        if feature_dim is None:
            raise ValueError(
                f"{path}::{component} has the dimensions {', '.join(map(str, data.dims))}. Choose "
                "that of the features (feature_dim=, on the command line --feature-dim)."
            )
    elif feature_dim is None and columns is not None:
        refuse_unknown(path, "variable", columns, data.data_vars)
        data = data[list(columns)]
    elif feature_dim is None and not is_netcdf(path):
        data = data[sorted(data.data_vars)]  # a store lists its arrays in any order
    if not is_netcdf(path):
        _check_stored(path, [data] if component is not None else data.data_vars.values())
    raster = pixels_of(_in_strips(data, feature_dim, chunks), feature_dim)
    if columns is not None:
        refuse_unknown(path, "feature", columns, raster.names or ())
        raster = raster.chosen(list(columns))
    return with_names(raster.table, raster.names)


def _dataset(path: str) -> Any:
    """Open a file with xarray: missing values are NaN, variables of the grid are coordinates."""
    if "://" in path:
        raise ValueError(f"{path}: NetCDF files are read from local disks only.")
    xarray = _xarray(path)
    with Path(path).open("rb") as file:
        is_hdf5 = file.read(len(_HDF5)) == _HDF5
    if is_hdf5 and not set(_OF_HDF5) & set(xarray.backends.list_engines()):
        raise ImportError(_needs(path))
    try:
        return xarray.open_dataset(path, decode_times=False, decode_coords="all")
    except Exception as error:  # engines have their own errors
        raise ValueError(f"{path} cannot be read as NetCDF: {error}") from error


def _group(path: str) -> Any:
    """Open a zarr group with xarray, as `_dataset` opens a file."""
    xarray = _xarray(path)
    try:
        with warnings.catch_warnings():
            # Warnings are expected: metadata may be unconsolidated, and zarr 3 has no type for text
            # yet.
            warnings.simplefilter("ignore")
            return xarray.open_zarr(path, chunks=None, decode_times=False, decode_coords="all")
    except Exception as error:  # json, codecs, zarr and xarray have their own errors
        raise ValueError(
            f"{path} cannot be read as a cube with named dimensions, which xarray writes to zarr: "
            f"{error}"
        ) from error


def _check_stored(path: str, variables: Iterable[Any]) -> None:
    """Check that chunks of variables are in the group, unless xarray reads absent ones as NaN."""
    for one in variables:
        array: Any = zarr.open_array(path, path=str(one.name), mode="r")
        if "_FillValue" not in one.encoding or one.encoding["_FillValue"] != array.fill_value:
            check_chunks(array, f"{path}::{one.name}")


def _xarray(path: str) -> Any:
    try:
        import xarray
    except ImportError as error:
        raise ImportError(_needs(path)) from error
    return xarray


def is_netcdf(path: str) -> bool:
    """Return whether the name of a path is that of a NetCDF file."""
    return Path(path).suffix.lower() in SUFFIXES


def is_dataset(path: str) -> bool:
    """Return whether a zarr group has several variables on the same named dimensions.

    xarray writes a Dataset in this way.
    """
    try:
        node = zarr.open(zarr_store(path), mode="r")
        arrays = [] if isinstance(node, zarr.Array) else [one for _, one in node.arrays()]
    except Exception:  # opening the path raises the error later
        return False
    grids = [_dims(one) for one in arrays if one.ndim > 1]
    return len(grids) > 1 and None not in grids[0] and len(set(grids)) == 1


def refuse_packed(array: zarr.Array, described: str) -> None:
    """Raise ValueError for an array whose numbers are not its values until xarray unpacks them."""
    packed = packing_of(array.attrs)
    if not packed:
        return
    dims = [f"{name!r}" for name in _dims(array) if name is not None]
    raise ValueError(
        f"{described} has packed values ({packed}), which only xarray unpacks. "
        + (
            "Say which dimension holds the features (feature_dim=, on the command line "
            f"--feature-dim): {' or '.join(dims)}."
            if dims
            else "Write it unpacked first."
        )
    )


def _dims(array: zarr.Array) -> tuple[str | None, ...]:
    """Return the names of the dimensions of an array, which are None if it has none."""
    names: Any = getattr(array.metadata, "dimension_names", None)
    names = names or array.attrs.get("_ARRAY_DIMENSIONS") or [None] * array.ndim
    return tuple(names)


def _needs(path: str) -> str:
    kind = "NetCDF file" if is_netcdf(path) else "zarr group of a cube"
    return f"{path} is a {kind}, which needs the extra 'netcdf': pip install 'daskmm[netcdf]'."


def _in_strips(data: Any, feature_dim: str | None, chunks: int | str) -> Any:
    """Cut a cube into blocks along the first dimension of its pixels only."""
    variables = [data] if hasattr(data, "name") else list(data.data_vars.values())
    pixels = [name for one in variables for name in one.dims if name != feature_dim]
    if not pixels:
        return data
    first = pixels[0]
    if chunks == "auto":
        values = sum(math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in variables)
        length = int(_BLOCK_BYTES * data.sizes[first] // max(values, 1))
    elif isinstance(chunks, int) and chunks >= 1:
        length = chunks
    else:
        raise ValueError(f'chunks must be "auto" or a number of at least 1; got {chunks!r}.')
    stored = [_stored_length(one, first) for one in variables]
    unit = max(stored, default=1)
    return data.chunk({first: max(-(-length // unit), 1) * unit})


def _stored_length(variable: Any, dim: str) -> int:
    """Return the length of the stored chunks of a variable along a dimension."""
    encoding = variable.encoding
    # NetCDF and zarr have different names for the chunks; shards are read whole.
    sizes = encoding.get("chunksizes") or encoding.get("shards") or encoding.get("chunks")
    return int(sizes[variable.dims.index(dim)]) if sizes and dim in variable.dims else 1
