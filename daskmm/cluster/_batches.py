"""Numbers of batches: days since 1970 for dates, and whole numbers as they are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import dask, is_dask_array
from daskmm.data.blocks import is_series, refuse_other_order
from daskmm.data.foreign import unwrapped
from daskmm.data.lazy import delayed_rows
from daskmm.engine.clients import computed

_OFFSET = re.compile(r"([T ].*?) *(?:Z|[+-]\d\d(?::?\d\d)?)$")


def batch_number(batch: Any) -> int:
    """Return the number of a batch, given its number or date; raise ValueError for others."""
    return int(_numbers(np.array([batch]))[0])


def numbered_batches(X: Any, batches: Any) -> tuple[NDArray[np.int64], Any]:
    """Return the sorted numbers of the batches, and for each row the place of its batch, from 1.

    `batches` is the name of a column of `X`, or the batch of each row; the places of lazy batches
    are lazy.
    """
    if isinstance(batches, str):
        X = unwrapped(X)
        if not hasattr(X, "columns") or batches not in set(X.columns):
            raise ValueError(f"batches: X has no column {batches!r}.")
        batches = X[batches]
    refuse_other_order(X, batches, "batches")
    if is_series(batches):
        (labels,) = computed(batches.unique())
    else:
        batches = batches if is_dask_array(batches) else np.asarray(batches)
        blocks = delayed_rows(batches) if is_dask_array(batches) else (batches,)
        labels = np.concatenate(computed(*map(dask.delayed(np.unique), blocks)))
    labels = np.unique(np.asarray(labels))
    # All times of one day are one batch.
    numbers, places = np.unique(_numbers(labels), return_inverse=True)
    shared = labels, places.astype(np.float64) + 1.0
    if is_series(batches):
        return numbers, batches.map_partitions(_of_series, *shared, meta=(None, np.float64))
    if is_dask_array(batches):
        map_blocks: Any = batches.map_blocks
        return numbers, map_blocks(_of_rows, *shared, dtype=np.float64)
    return numbers, _of_rows(batches, *shared)


def _of_rows(batches: NDArray, labels: NDArray, places: NDArray[np.float64]) -> NDArray[np.float64]:
    return places[np.searchsorted(labels, batches)]


def _of_series(batches: Any, labels: NDArray, places: NDArray[np.float64]) -> Any:
    import pandas as pd

    return pd.Series(_of_rows(batches.to_numpy(), labels, places), index=batches.index)


def _numbers(labels: NDArray) -> NDArray[np.int64]:
    """Return numbers as they are, and dates as days since 1970."""
    if labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and (labels % 1 == 0).all()):
        return labels.astype(np.int64)
    try:
        if labels.dtype.kind not in "MUO":
            raise ValueError
        if labels.dtype.kind in "UO":  # the day as written, whatever the offset from UTC
            labels = np.array([_OFFSET.sub(r"\1", str(label)) for label in labels])
        days = labels.astype("datetime64[D]")
    except ValueError:
        days = np.array(["NaT"], dtype="datetime64[D]")
    if np.isnat(days).any():
        raise ValueError(f"batches must be dates or whole numbers, got {labels[0]}.")
    return days.astype(np.int64)
