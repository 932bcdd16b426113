"""Rows sorted by cluster, on disk."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.passes import Passes
from daskmm.storage.arrays import create_array
from daskmm.storage.atomic import written_whole
from daskmm.storage.remote import check_new, local_path
from daskmm.vectors.assigned import Clusters, checked_ids, labelled_blocks, named, passes_over

# Bytes of a chunk of rows, which is read as a whole, and number of chunks in a file.
_CHUNK_BYTES, _CHUNKS_PER_FILE = 512 << 10, 64


@dataclass(frozen=True)
class SortedRows:
    """The rows of a table sorted by cluster, in files that are mapped into memory."""

    rows: NDArray  # rows in the dtype of the table, (n_rows, n_features)
    numbers: NDArray[np.int64]  # row numbers in the table, (n_rows,), ascending within a cluster
    # First row of each cluster, and the number of rows at the end, (n_clusters + 1,).
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, passes: Passes, clusters: Clusters, folder: Path) -> Self:
        """Sort the rows of a table into new files in a folder, in two passes."""
        counts = passes.reduce(counts_of_block, clusters)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        n, layout = int(offsets[-1]), passes.blocks.layout
        rows = _mapped(folder / "rows", layout.dtype, (n, layout.n_features))
        numbers = _mapped(folder / "numbers", np.dtype(np.int64), (n,))
        free = offsets[:-1].copy()
        for start, block, labels in labelled_blocks(passes, clusters):
            order = np.argsort(labels, kind="stable")[np.count_nonzero(labels < 0) :]
            own = labels[order]
            inside = np.bincount(own, minlength=len(free))
            begins = np.cumsum(inside) - inside
            places = (free - begins)[own] + np.arange(len(own))
            rows[places], numbers[places] = block[order], start + order
            free += inside
        if (free != offsets[1:]).any():
            raise ValueError("X has changed between two passes: other rows are in the clusters.")
        return cls(rows, numbers, offsets)

    def list_of(self, cluster: int) -> tuple[NDArray[np.int64], NDArray]:
        """Return the numbers and the rows of one cluster."""
        part = slice(self.offsets[cluster], self.offsets[cluster + 1])
        return np.asarray(self.numbers[part]), np.asarray(self.rows[part])


def counts_of_block(block: Block, clusters: Clusters) -> NDArray[np.int64]:
    """Return the number of rows of a block in each cluster."""
    labels = clusters.nearest(block)[0]
    return np.bincount(labels[labels >= 0], minlength=clusters.n_clusters)


def _mapped(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> NDArray:
    """Return an array in a new file; in memory if it is empty, as its file cannot be mapped."""
    return np.memmap(path, dtype, "w+", shape=shape) if shape[0] else np.empty(shape, dtype)


def write_lists(
    model: Any, X: Any, path: str | Path, *, ids: Any = None, format: str | None = None
) -> None:
    """Write the rows of a table sorted by cluster, which are the lists of an inverted file (IVF).

    Rows are read twice, first to count those of each cluster and then to copy them; if the lengths
    of dask's blocks are unknown, they are counted in a pass before. While rows are copied, the disk
    holds them twice. Rows without a cluster (label −1) are left out.

    Parameters
    ----------
    model : fitted estimator
        Estimator with `predict` and ``cluster_centers_``.
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        The rows, which keep their dtype.
    path : str or Path
        Path of the new folder, which appears when it is complete.
    ids : array-like or dask Array of shape (n_samples,), optional
        Id of each row; by default its number. Lazy ids are loaded into memory.
    format : {"zarr", "parquet"}, optional
        "zarr" is a group of three arrays: ``rows`` and ``ids``, sorted by cluster, and
        ``offsets``; the rows of cluster j are ``rows[offsets[j]:offsets[j + 1]]``. "parquet" is a
        dataset with the columns ``id`` and ``row``, partitioned by ``cluster``. By default the
        format is "parquet" if `path` ends so, otherwise "zarr".

    Raises
    ------
    FileExistsError
        If the path exists; nothing is computed then.
    ValueError
        If `ids` do not match the rows, or are not integers in the format "zarr".
    """
    path = local_path(path, "A folder of lists")
    check_new(path)
    if format is None:
        format = "parquet" if path.suffix == ".parquet" else "zarr"
    if format not in _WRITERS:
        raise ValueError(f"format must be 'zarr' or 'parquet', got {format!r}.")
    clusters, passes = Clusters.of(model), passes_over(model, X)
    ids = checked_ids(ids, passes.blocks.layout.n_rows or 0)
    if format == "zarr" and ids is not None and ids.dtype.kind not in "iu":
        raise ValueError(f"ids in zarr must be integers, got {ids.dtype}; parquet takes any.")
    with (
        written_whole(path) as fresh,
        tempfile.TemporaryDirectory(prefix=".daskmm-lists-", dir=path.parent) as scratch,
    ):
        _WRITERS[format](fresh, SortedRows.of(passes, clusters, Path(scratch)), ids)


def _write_zarr(folder: Path, lists: SortedRows, ids: NDArray | None) -> None:
    import zarr

    zarr.open_group(folder, mode="w-", zarr_format=3)
    n, p = lists.rows.shape
    dtype, kind = lists.rows.dtype, np.dtype(np.int64) if ids is None else ids.dtype
    chunk = max(_CHUNK_BYTES // (p * dtype.itemsize), 1)
    file = chunk * max(min(_CHUNKS_PER_FILE, -(-n // chunk)), 1)
    rows = create_array(folder / "rows", (n, p), (chunk, p), dtype, (file, p))
    own = create_array(folder / "ids", (n,), (chunk,), kind, (file,))
    for first in range(0, n, file):
        part = slice(first, first + file)
        rows[part], own[part] = lists.rows[part], named(ids, lists.numbers[part])
    size = (len(lists.offsets),)
    create_array(folder / "offsets", size, size, np.int64)[:] = lists.offsets


def _write_parquet(folder: Path, lists: SortedRows, ids: NDArray | None) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    width = lists.rows.shape[1]
    for cluster in range(len(lists.offsets) - 1):
        numbers, rows = lists.list_of(cluster)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), width)
        columns = {"id": pa.array(named(ids, numbers)), "row": vectors}
        file = _parquet_file(folder, cluster)
        file.parent.mkdir(parents=True)
        parquet.write_table(pa.table(columns), file)


_WRITERS = {"zarr": _write_zarr, "parquet": _write_parquet}


def _parquet_file(folder: Path, cluster: int) -> Path:
    return folder / f"cluster={cluster}" / "part-0.parquet"


def _stored(folder: Path, name: str) -> Any:
    import zarr

    return zarr.open_array(folder / name, mode="r")


def n_lists(path: str | Path) -> int:
    """Return the number of lists in a folder that `write_lists` wrote.

    It raises FileNotFoundError if there are no lists at the path.
    """
    folder = local_path(path, "A folder of lists")
    if (folder / "offsets").is_dir():
        return int(_stored(folder, "offsets").shape[0]) - 1
    found = len(list(folder.glob("cluster=*")))
    if not found:
        raise FileNotFoundError(f"{folder} has no lists. Write them by write_lists.")
    return found


def read_list(path: str | Path, cluster: int) -> tuple[NDArray, NDArray]:
    """Read the rows of one cluster.

    Parameters
    ----------
    path : str or Path
        Folder that `write_lists` wrote.
    cluster : int
        Number of the cluster.

    Returns
    -------
    ids : ndarray of shape (n_rows,)
        Id of each row, in the order of the table.
    rows : ndarray of shape (n_rows, n_features)
        The rows.

    Raises
    ------
    FileNotFoundError
        If there are no lists at the path.
    ValueError
        If there is no such cluster.
    """
    folder, count = local_path(path, "A folder of lists"), n_lists(path)
    if not 0 <= cluster < count:
        raise ValueError(f"cluster must be 0 to {count - 1}, got {cluster}.")
    if (folder / "offsets").is_dir():
        begin, end = (int(place) for place in _stored(folder, "offsets")[cluster : cluster + 2])
        return _stored(folder, "ids")[begin:end], _stored(folder, "rows")[begin:end]
    from pyarrow import parquet

    # A path in the dataset would add the column of its partition.
    with parquet.ParquetFile(_parquet_file(folder, cluster)) as file:
        table = file.read().combine_chunks()
    column = table["row"].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return table["id"].to_numpy(), flat.reshape(len(table), column.type.list_size)
