"""Open tables on disk lazily."""

from __future__ import annotations

import glob
import itertools
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import fsspec
import numpy as np
import zarr
from numpy.typing import NDArray

from daskmm._dask import da, dask
from daskmm.data.blocks import as_dask_array, check_columns, common_dtype
from daskmm.data.csv_files import csv_columns, estimated_rows, is_csv, open_csv
from daskmm.data.lazy import array_of_frame
from daskmm.data.mixed import to_be_coded
from daskmm.data.names import refuse_other_columns, refuse_unknown
from daskmm.data.raster_files import is_dataset, is_netcdf, open_cube, refuse_packed
from daskmm.data.sparse_files import open_sparse_group, open_sparse_npz
from daskmm.data.variables import variable_names, with_names
from daskmm.data.zarr_chunks import check_chunks, read
from daskmm.storage.remote import is_remote, local_path, patiently, refusals
from daskmm.storage.zarr_stores import is_zarr_store, zarr_store

# Bounds of the bytes of a block: small blocks save memory, large ones save tasks.
_LEAST_BLOCK_BYTES = 16_000_000
_MOST_BLOCK_BYTES = 64_000_000
_WANTED_BLOCKS = 1024

_FORMATS = (
    "a zarr array or group, .npy, .npz, .csv, .tsv, .txt, .parquet or NetCDF (text also as "
    ".csv.gz; a folder of such files, or a quoted pattern such as 'part-*.csv')"
)
_H5AD = (
    "{0} is an HDF5 file of anndata, which daskmm does not read. Write it as zarr, "
    "anndata.read_h5ad({0!r}).write_zarr('{1}.zarr'), and give {1}.zarr::X (or a layer, "
    "{1}.zarr::layers/NAME)."
)
_ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup")
# Formats with named columns that dask reads.
_FRAMES = {".parquet": "parquet", ".pq": "parquet"}


def open_data(
    path: str | Path,
    *,
    component: str | None = None,
    columns: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    chunks: int | str = "auto",
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    mixed: bool = False,
    categories: Sequence[str] = (),
    dates: Sequence[str] = (),
    feature_dim: str | None = None,
    fitted: bool = False,
) -> Any:
    """Open a table on disk without reading it.

    Parameters
    ----------
    path : str or Path
        One of these; URLs are opened by fsspec.

        - A zarr array; a zarr group with a single two-dimensional array, or ``store.zarr::name``;
          or a CSR group as anndata writes it (``store.zarr``, ``store.zarr::layers/counts``).
          Stores of icechunk and obstore are ``icechunk+file:///repository::name`` (the latest
          snapshot of the branch "main"; or ``icechunk+s3://bucket/prefix``) and ``obstore+URL``.
        - An .npy file; an .npz file with an array named X or a single two-dimensional one, or
          written by `scipy.sparse.save_npz`.
        - Csv or parquet files (extra ``dataframe``), a pattern, or a folder of them. A csv file
          whose first line is all numbers has no header.
        - A NetCDF file (extra ``netcdf``), whose variables are the features; or
          ``scene.nc::name``, or ``scene.zarr::name`` of a group that xarray wrote, for a variable
          with the features along `feature_dim`.
    component : str, optional
        Name of an array of a zarr group or .npz file, or of a variable of a NetCDF file.
    columns : sequence of str, optional
        Columns of a csv or parquet file, or features of a NetCDF file, to use; all by default.
    keep : sequence of str, optional
        Further columns of any kind, such as names of the rows, which come after the others; the
        only ones if `columns` is empty. Csv files give them as text.
    chunks : int or "auto"
        Rows per block of an array, rounded up to whole stored chunks; "auto" makes blocks of
        16 to 64 MB. Blocks of csv and parquet files follow the files.
    separator, decimal, encoding : str, optional
        Format of csv files; by default it is detected from the first lines, which must be clear.
    mixed : bool
        Whether columns may be of any kind (for ``distortion="mixed"``), not only numbers.
    categories : sequence of str, optional
        Columns of csv files that are categories, if `mixed`. Parquet files store the types of their
        columns.
    dates : sequence of str, optional
        Columns of csv files that are dates (ISO 8601), if `mixed`; all others are numbers or flags.
    feature_dim : str, optional
        Dimension of the features in a NetCDF file or in a zarr group that xarray wrote; the other
        dimensions are the rows.
    fitted : bool
        Whether the columns are those of a fitted model; messages then do not suggest other columns.

    Returns
    -------
    dask Array of shape (n_rows, n_features), or dask DataFrame
        Csv and parquet files give a DataFrame (float64 for csv), and sparse tables an array of CSR
        blocks. Pixels of cubes are in the order of the file. Arrays carry the names of an AnnData
        store's variables. Values are read when they are computed, with two exceptions: the places
        where the rows of a CSR matrix begin are read at once, and .npz files are read whole.

    Warns
    -----
    UserWarning
        If chunks of a zarr array are not in its store, and would be read as a fill value other than
        NaN.

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    ValueError
        If the table cannot be read, has an unknown format, or is not two-dimensional or not
        numeric.
    ImportError
        If the extra ``dataframe`` or ``netcdf`` is needed but not installed.
    """
    text, chunks = str(path), int(chunks) if isinstance(chunks, Integral) else chunks
    if not text:
        raise ValueError("The path of the data is empty.")
    text = text if is_remote(text) else str(local_path(text))
    if component is None and "::" in text and not Path(text).exists():
        store, _, name = text.rpartition("::")
        # fsspec also chains addresses by "::", as in simplecache::s3://…
        text, component = (text, None) if "://" in name else (store, name)
    kind = _kind(text)
    known = bool(categories or dates or fitted)
    if mixed and kind != "parquet" and not (known and kind == "csv"):
        raise ValueError(
            f"{text}: mixed columns are read from parquet files, which record the kind of each, or "
            "from csv files whose categories are named (categories=, on the command line "
            "--categories)."
        )
    if "://" not in text:
        text = str(Path(text).absolute())  # workers may have a different working directory
    if kind != "csv" and {separator, decimal, encoding} != {None}:
        raise ValueError(f"{text}: separator, decimal and encoding are options of csv files.")
    if feature_dim is not None and is_zarr_store(text):
        raise ValueError(f"{text}: cubes are read from NetCDF files and from zarr of other stores.")
    is_cube = feature_dim is not None or (component is None and is_dataset(text))
    if kind == "netcdf" or (kind == "zarr" and is_cube):
        if keep:
            raise ValueError(f"{text}: a cube has no columns to keep beside its pixels.")
        return open_cube(text, component, feature_dim, columns, chunks)
    if feature_dim is not None:
        raise ValueError(
            f"{text} is no NetCDF file and no zarr group; feature_dim is only for these."
        )
    if kind in ("csv", *_FRAMES.values()):
        if chunks != "auto":
            raise ValueError(f"{text}: chunks can be chosen for arrays, not for {kind} files.")
        _require_dataframes(kind)
        with refusals(text):
            if kind == "csv":
                form = separator, decimal, encoding
                return open_csv(text, columns, *form, keep, categories, dates, fitted)
            return _open_frame(text, kind, columns, keep, mixed, fitted)
    if columns is not None or keep:
        raise ValueError(f"{text} has no named columns; they belong to csv and parquet files.")
    return _open_array(text, kind, component, chunks)


def _open_array(text: str, kind: str, component: str | None, chunks: int | str) -> da.Array:
    """Open an array, or a sparse table in the files of arrays; .npz files are read whole."""
    if kind == "zarr" and (table := open_sparse_group(text, component, chunks)) is not None:
        return table
    if kind == "npz" and (table := open_sparse_npz(text, chunks)) is not None:
        return table
    if kind == "npz":
        array = _read_npz(text, component)
        return da.from_array(array, chunks=_row_chunks(array, 1, chunks), name=False)
    source: _Source = _Npy(text) if kind == "npy" else _Zarr(text, component)
    array = source.open()
    _check_array(array, source.described)
    if kind == "zarr":
        refuse_packed(array, source.described)
        check_chunks(array, source.described)
    stored = array.chunks if kind == "zarr" else (1,)
    unit = (getattr(array, "shards", None) or stored)[0]
    reader = _RowReader(source, array.shape, array.dtype)
    meta = np.empty((0, 0), dtype=array.dtype)
    table = da.from_array(reader, chunks=_row_chunks(array, unit, chunks), name=False, meta=meta)
    return with_names(table, variable_names(text, array.path)) if kind == "zarr" else table


def has_columns(path: str) -> bool:
    """Return whether a path or pattern means files with named columns: csv, parquet, NetCDF."""
    path = path if is_remote(path) else str(local_path(path))
    named = "::" not in path or Path(path).exists()
    return named and _kind(path) in ("csv", "netcdf", *_FRAMES.values())


def is_text(path: str) -> bool:
    """Return whether a path or pattern means csv files."""
    return has_columns(path) and _kind(path if is_remote(path) else str(local_path(path))) == "csv"


def is_parquet(path: str) -> bool:
    """Return whether a path or pattern means parquet files."""
    path = path if is_remote(path) else str(local_path(path))
    return has_columns(path) and _kind(path) == "parquet"


def column_names(
    path: str,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> list[Any]:
    """Return the names of the columns of csv or parquet files, in their order.

    It raises ValueError if the path means other files.
    """
    path = path if is_remote(path) else str(local_path(path))
    kind = _kind(path) if has_columns(path) else None
    if kind == "csv":
        return csv_columns(path, separator, decimal, encoding)
    if kind != "parquet":
        raise ValueError(f"{path} has no named columns; they belong to csv and parquet files.")
    _require_dataframes(kind)
    frame = _read_parquet(path)
    index = frame.index.name
    return [*([] if index is None or index in frame.columns else [index]), *frame.columns]


def stored_index(path: str, frame: Any) -> Any:
    """Return whether pandas stored the index of these files, or the RangeIndex to restore.

    The result is False if the index only counts the rows of each partition, or has become a column.
    It is a RangeIndex if pandas stored one in the only file, other than the default from 0 on: dask
    drops it from files that it divides.
    """
    if not is_parquet(path):
        return False
    parts = _parts(path if is_remote(path) else str(local_path(path)))
    index = _index_columns(parts)
    if len(index) == 1 and isinstance(index[0], dict):  # a RangeIndex, not from 0 perhaps
        from pandas import RangeIndex

        start, stop, step, name = (index[0][key] for key in ("start", "stop", "step", "name"))
        counts = (start, step, name) == (0, 1, None)
        known = len(parts) == 1 and not counts and name not in frame.columns
        return known and RangeIndex(start, stop, step, name=name)
    return len(index) > 0 and not {*index} & {*frame.columns}


def _index_columns(parts: Sequence[Any]) -> list[Any]:
    """Return the columns of the index that pandas stored, or a dictionary for a RangeIndex."""
    stored = (parts[0].physical_schema.metadata or {}).get(b"pandas", b"{}") if parts else b"{}"
    return list(json.loads(stored).get("index_columns", []))


def _read_parquet(path: str) -> Any:
    """Open parquet files; dask would look for a RangeIndex that has a name among the columns."""
    import dask.dataframe as dd

    # Later files may have a RangeIndex with a name, too.
    stored = any(isinstance(each, str) for each in _index_columns(_parts(path)))
    return dd.read_parquet(path, index=None if stored else False)


def planned_table(
    data: Any, path: str, encoding: str | None = None, dates: Sequence[str] | None = None
) -> tuple[Any, str]:
    """Return a table of files with a known or estimated number of rows, for plans.

    `data` is what `open_data` returned for `path`. With `dates`, the parts of dates that count,
    columns may be of any kind and will be coded. The returned table has equal blocks for csv files;
    it is `data` if row counts remain unknown.

    Also return a note if the number of rows is an estimate, from the length of the first lines of
    csv files; parquet files store the number.
    """
    if not hasattr(data, "to_dask_array"):
        return data, ""
    path = path if is_remote(path) else str(local_path(path))
    frame = data if dates is None else to_be_coded(data, dates)
    if _kind(path) != "csv":
        return as_dask_array(frame), ""
    n_rows, zipped = estimated_rows(path, encoding)
    if n_rows is None:
        return data, ""
    ends = np.linspace(0, n_rows, data.npartitions + 1).astype(int)
    check_columns(frame.dtypes)
    numbers = frame.astype(common_dtype(frame.dtypes))
    note = "rows are estimated from the size of the files"
    if zipped:
        note += "; each compressed file is read whole, and its text needs memory too"
    return array_of_frame(numbers, tuple(np.diff(ends).tolist())), note


def estimated_bytes(data: Any, path: str, encoding: str | None = None) -> float:
    """Estimate the size of the numbers of csv files from the size of the files; ∞ if unknown.

    `data` is what `open_data` returned for `path`.
    """
    n_rows, _ = estimated_rows(path if is_remote(path) else str(local_path(path)), encoding)
    return np.inf if n_rows is None else 8.0 * n_rows * len(data.columns)


def _kind(path: str) -> str:
    """Return the format of a path; raise if nothing is there, or the format is unknown."""
    place = Path(path)
    remote = "://" in path
    pattern = not remote and any(mark in path for mark in "*?[") and not place.exists()
    if pattern:
        if not glob.glob(path):
            raise FileNotFoundError(f"No file matches {path}.")
    elif not remote and not place.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if is_zarr_store(path):
        return "zarr"
    suffix = place.suffix.lower()
    if suffix == ".h5ad":
        raise ValueError(_H5AD.format(path, place.stem))
    if suffix in _FRAMES:
        return _FRAMES[suffix]
    if is_netcdf(path):
        return "netcdf"
    if is_csv(path):
        return "csv"
    if suffix in (".npy", ".npz"):
        return suffix[1:]
    if not pattern:
        if suffix == ".zarr" or any((place / name).exists() for name in _ZARR_METADATA):
            return "zarr"
        if place.is_dir():
            inside = (
                file.name for file in place.rglob("*") if not file.name.startswith(("_", "."))
            )
            found = {
                "csv" if is_csv(name, in_folder=True) else Path(name).suffix for name in inside
            }
            if ".parquet" in found:
                return "parquet"
            if "csv" in found:
                return "csv"
    raise ValueError(f"{path} is of an unknown format. Give {_FORMATS}.")


class _Source(Protocol):
    """An array on disk that any process can open, given its path."""

    @property
    def described(self) -> str:
        """Path, and the name of the array if it has one, for messages."""

    def open(self) -> Any:
        """Open the array, to slice rows of it."""


@dataclass(frozen=True)
class _Npy:
    path: str

    @property
    def described(self) -> str:
        return self.path

    def open(self) -> NDArray:
        try:
            return np.load(self.path, mmap_mode="r")
        except OSError:  # the error names the file and the reason
            raise
        except Exception as error:  # a damaged header may contain any shape and dtype
            raise ValueError(f"{self.path} cannot be read as npy: {error}") from error


@dataclass(frozen=True)
class _Zarr:
    path: str
    component: str | None

    @property
    def described(self) -> str:
        return self.path if self.component is None else f"{self.path}::{self.component}"

    def open(self) -> zarr.Array:
        try:
            node = zarr.open(zarr_store(self.path), mode="r")
        except Exception as error:  # json, codecs and zarr have their own errors
            raise ValueError(f"{self.path} cannot be read as zarr: {error}") from error
        if isinstance(node, zarr.Array):
            if self.component is not None:
                raise ValueError(f"{self.path} is a single array and has no {self.component!r}.")
            return node
        try:
            arrays: dict[str, Any] = dict(node.arrays())
            if not any(array.ndim == 2 for array in arrays.values()):
                members = node.members(max_depth=None)
                arrays = {name: one for name, one in members if isinstance(one, zarr.Array)}
            # A name such as "level/name" is found in nested groups.
            chosen = None if self.component is None else node.get(self.component)
        except Exception as error:
            raise ValueError(f"{self.path} cannot be read as zarr: {error}") from error
        if self.component is None:
            return _only_table(self.path, arrays)
        if not isinstance(chosen, zarr.Array):
            raise ValueError(
                f"{self.path} has no array named {self.component!r}; it has {_named(arrays)}."
            )
        return chosen


def _only_table(path: str, arrays: dict[str, Any]) -> Any:
    """Return the only two-dimensional array among several; raise unless there is exactly one."""
    tables = {name: array for name, array in arrays.items() if array.ndim == 2}
    if len(tables) == 1:
        return next(iter(tables.values()))
    if not tables:
        raise ValueError(f"{path} has no two-dimensional array (it has {_named(arrays)}).")
    raise ValueError(
        f"{path} has several two-dimensional arrays: {_named(tables)}. Choose one, for "
        f"instance {path}::{min(tables)}"
    )


def _named(arrays: dict[str, Any]) -> str:
    return ", ".join(sorted(arrays)) or "no arrays"


def _check_array(array: Any, described: str) -> None:
    """Raise if an array is not a two-dimensional table of numbers."""
    if array.ndim != 2:
        mend = " A single feature is X.reshape(-1, 1)." if array.ndim == 1 else ""
        if array.ndim > 2:
            mend = (
                " For a cube that xarray wrote, say which dimension holds the features "
                "(feature_dim=, on the command line --feature-dim)."
            )
        raise ValueError(
            f"{described} has {array.ndim} dimension(s); two are needed, one row per sample and "
            f"one column per feature.{mend}"
        )
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{described} has dtype {array.dtype}, which is not numeric. Store it as float32 or "
            "float64."
        )


def _read_npz(path: str, component: str | None) -> NDArray:
    try:
        with np.load(path) as archive:
            # numpy has no public function that reads the shapes without the arrays.
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # bad zip files have their own errors
        raise ValueError(f"{path} cannot be read as npz: {error}") from error
    name = component or ("X" if "X" in arrays else None)
    if name is None:
        array = _only_table(path, arrays)
    elif name in arrays:
        array = arrays[name]
    else:
        raise ValueError(f"{path} has no array named {name!r}; it has {_named(arrays)}.")
    _check_array(array, path if name is None else f"{path}::{name}")
    return array


def _row_chunks(array: Any, unit: int, chunks: int | str) -> tuple[int, int]:
    """Return chunks of whole rows, in multiples of the `unit` rows of a stored chunk."""
    n_rows, n_features = array.shape
    row_bytes = max(1, n_features * array.dtype.itemsize)
    if chunks == "auto":
        wanted = np.clip(
            n_rows * row_bytes // _WANTED_BLOCKS, _LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES
        )
        rows = max(1, int(wanted) // (row_bytes * unit)) * unit
    elif isinstance(chunks, int) and chunks >= 1:
        rows = -(-chunks // unit) * unit
    else:
        raise ValueError(f'chunks must be "auto" or rows per block, at least 1; got {chunks!r}.')
    return min(rows, max(n_rows, 1)), max(n_features, 1)


@dataclass(frozen=True)
class _RowReader:
    """Array-like that opens its source for each block, so that workers get only the path."""

    source: _Source
    shape: tuple[int, int]
    dtype: np.dtype
    ndim: int = 2

    def __getitem__(self, index: tuple[slice, slice]) -> NDArray:
        try:
            rows = patiently(lambda: _sliced(self.source.open(), index), self.source.described)
            # A copy lets a mapped file be closed and its pages freed.
            return np.array(rows) if isinstance(rows, np.memmap) else np.asarray(rows)
        except Exception as error:  # stores and codecs have their own errors
            raise ValueError(
                f"{self.source.described}: rows {index[0].start} to {index[0].stop} cannot be "
                f"read: {error}"
            ) from error


def _sliced(array: Any, index: tuple[slice, slice]) -> NDArray:
    return read(array, index) if isinstance(array, zarr.Array) else array[index]


def _require_dataframes(kind: str) -> None:
    try:
        import dask.dataframe  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{kind} files need the extra 'dataframe': pip install 'daskmm[dataframe]'."
        ) from error


def _check_files(path: str, chosen: set[str] | None) -> None:
    """Raise ValueError if parquet files differ in their columns, or in those that are chosen.

    The footer of each file is read.
    """
    parts = _parts(path)
    if len(parts) < 2:
        return
    with ThreadPoolExecutor() as threads:
        columns = list(threads.map(_columns_of_part, parts))
    wanted = None if chosen is None else chosen.intersection(columns[0])
    for part, names in zip(parts, columns, strict=True):
        refuse_other_columns(part.path, sorted(names), sorted(columns[0]), wanted)


def _parts(path: str) -> list[Any]:
    """Return the parquet files of a table, in order."""
    import pyarrow.dataset

    system, _, places = fsspec.get_fs_token_paths(path)
    found = (system.find(place) if system.isdir(place) else [place] for place in places)
    files = sorted(filter(_is_part, itertools.chain(*found)), key=dask.utils.natural_sort_key)
    return list(pyarrow.dataset.dataset(files, format="parquet", filesystem=system).get_fragments())


def _is_part(path: str) -> bool:
    """Return whether a file in a folder is one of its parquet files."""
    name = PurePosixPath(path)
    return name.suffix.lower() in _FRAMES and not name.name.startswith(("_", "."))


def _columns_of_part(part: Any) -> list[str]:
    """Return the columns of a file; an index without a name is none."""
    return [name for name in part.physical_schema.names if not name.startswith("__index_level_")]


def _open_frame(
    path: str,
    kind: str,
    columns: Sequence[str] | None,
    keep: Sequence[str],
    mixed: bool,
    fitted: bool,
) -> Any:
    read = {"parquet": _read_parquet}[kind]
    try:
        frame = read(path)
    except Exception as error:
        raise ValueError(f"{path} cannot be read as {kind}: {error}") from error
    _check_files(path, None if columns is None else {*columns, *keep})
    index = frame.index.name
    if index is not None and index in keep and index not in frame.columns:
        frame = frame.reset_index()
    used = [name for name in frame.columns if name not in keep] if columns is None else columns
    wanted = list(dict.fromkeys([*used, *keep]))
    refuse_unknown(path, "column", wanted, frame.columns)
    if columns is not None or keep:
        frame = frame[wanted]
    if mixed or not used:
        return frame
    try:
        check_columns(frame.dtypes[list(used)], path)
    except ValueError as error:
        if fitted:
            raise
        raise ValueError(
            f"{error} Or choose the columns to use (columns=, on the command line --columns)."
        ) from error
    return frame
