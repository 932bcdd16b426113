"""Write labels to disk as they are computed, a few blocks at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from daskmm._dask import is_dask_array
from daskmm.data.blocks import is_series
from daskmm.data.lazy import array_of_frame, delayed_blocks
from daskmm.engine.clients import computed
from daskmm.engine.threads import one_blas_thread
from daskmm.storage.arrays import create_array
from daskmm.storage.atomic import written_whole
from daskmm.storage.remote import is_remote, local_path, uploaded

# Labels per stored chunk of 16 MB.
LABEL_CHUNK_ROWS = 4_000_000
# Number of blocks that are computed together, and whose labels are in memory at once.
BLOCKS_TOGETHER = 32
# Names of the files of an array of labels.
_FILES = re.compile(r"zarr\.json|c/\d+")


def with_counts(counts: NDArray[np.int64], labels: NDArray) -> NDArray[np.int64]:
    """Add the number of rows with each label, except −1, to earlier counts."""
    found = np.bincount(labels[labels >= 0], minlength=len(counts))
    found[: len(counts)] += counts
    return found


def computed_in_turn(blocks: Any) -> Iterator[Any]:
    """Yield the values of Delayed; a few are computed together."""
    for start in range(0, len(blocks), BLOCKS_TOGETHER):
        with one_blas_thread():
            together = computed(*blocks[start : start + BLOCKS_TOGETHER])
        yield from together


class LabelWriter:
    """Writes labels that arrive piece by piece to a zarr array, in whole chunks."""

    def __init__(self, path: Path) -> None:
        self.n_rows = 0  # number of labels so far
        # Number of rows with each label, (largest label + 1,); rows with the label −1, outliers and
        # rows without any value, are not counted.
        self.counts = np.zeros(0, dtype=np.int64)
        self._path = path
        self._waiting: list[NDArray[np.int32]] = []
        self._array: Any = None

    def append(self, labels: NDArray) -> None:
        """Add the labels of the next rows."""
        self._waiting.append(np.asarray(labels, dtype=np.int32))
        self.n_rows += len(labels)
        self.counts = with_counts(self.counts, labels)
        waiting = sum(map(len, self._waiting))
        if waiting >= LABEL_CHUNK_ROWS:
            self._write(waiting - waiting % LABEL_CHUNK_ROWS)

    def append_all(self, labels: Any) -> None:
        """Add all labels of an array, or of a dask array or series, a few blocks at a time."""
        if is_series(labels):
            labels = array_of_frame(labels)
        if not is_dask_array(labels):
            self.append(np.asarray(labels))
            return
        for block in computed_in_turn(delayed_blocks(labels).ravel()):
            self.append(block)

    def finish(self) -> None:
        """Write the remaining labels."""
        self._write(sum(map(len, self._waiting)))

    def _write(self, rows: int) -> None:
        """Write the first `rows` waiting labels: whole chunks, except in the last call."""
        labels = np.concatenate([np.empty(0, dtype=np.int32), *self._waiting])
        self._waiting = [labels[rows:]]
        if self._array is None:
            # zarr pads the last chunk, so a short array gets a short chunk.
            chunk = min(LABEL_CHUNK_ROWS, max(rows, 1))
            self._array = create_array(self._path, (0,), (chunk,), np.int32)
        start = self._array.shape[0]
        self._array.resize((start + rows,))
        if rows:
            self._array[start:] = labels[:rows]


def holds_labels(path: str | Path) -> bool:
    """Return whether there is an array of labels at a path or a URL, and no other file in it."""
    try:
        array = zarr.open_array(str(path if is_remote(path) else local_path(path)), mode="r")
    except Exception:  # there is no readable array
        return False
    known = array.ndim == 1 and array.dtype.kind == "i"
    if not known or is_remote(path):  # a store keeps its other objects when labels are replaced
        return known
    folder = local_path(path)
    files = (file.relative_to(folder) for file in folder.rglob("*") if not file.is_dir())
    return all(_FILES.fullmatch(file.as_posix()) for file in files)


@contextmanager
def label_writer(path: str | Path, replace: bool = False) -> Iterator[LabelWriter]:
    """Yield a writer whose array appears at `path` at the end, unless an error is raised.

    FileExistsError is raised if something is at the path and `replace` is not set.
    """
    if is_remote(path):
        whole = uploaded(str(path), "zarr.json", _FILES.fullmatch if replace else None)
    else:
        whole = written_whole(local_path(path), replace)
    with whole as fresh:
        writer = LabelWriter(fresh)
        yield writer
        writer.finish()


def write_labels(
    labels: Any, path: str | Path, replace: bool = False
) -> tuple[NDArray[np.int64], int]:
    """Write labels as a zarr array, int32, in whole chunks with checksums.

    Labels are −1 for outliers and rows without any value. Lazy ones (a dask Array or Series) are
    computed a few blocks at a time by the active scheduler; chunk sizes may be unknown. The path
    gets all labels or, after an error, stays as it was; for a URL that fsspec knows, they are
    gathered in a temporary folder.

    Return the number of rows with each label, (largest label + 1,), and of those with the label −1.
    It raises FileExistsError if the path exists and is not to be replaced; nothing is computed
    then.
    """
    with label_writer(path, replace) as writer:
        writer.append_all(labels)
    return writer.counts, writer.n_rows - int(writer.counts.sum())
