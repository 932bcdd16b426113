"""Numbers of batches: days since 1970 for dates, and whole numbers as they are."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import is_series
from daskmm.data.foreign import unwrapped
from daskmm.engine.distributed import computed


def batch_number(batch: Any) -> int:
    """Return the number of a batch, given its number or date.

    Raises
    ------
    ValueError
        If it is neither.
    """
    return int(_numbers(np.array([batch]))[0])


def numbered_batches(X: Any, batches: Any) -> tuple[NDArray[np.int64], Any]:
    """Return the numbers of the batches in their order, and the place of each row's, from 1.

    Parameters
    ----------
    X : table
        The rows.
    batches : str or array-like of shape (n_samples,)
        Name of a column of `X`, or the batch of each row; lazy ones stay lazy.
    """
    if isinstance(batches, str):
        X = unwrapped(X)
        if not hasattr(X, "columns") or batches not in set(X.columns):
            raise ValueError(f"batches: X has no column {batches!r}.")
        batches = X[batches]
    if is_series(batches):
        (labels,) = computed(batches.unique())
        codes = batches.map_partitions(_places_in_series, _ordered(labels), meta=(None, np.float64))
    elif isinstance(batches, da.Array):
        (labels,) = computed(da.unique(batches))
        codes = batches.map_blocks(_places, _ordered(labels), dtype=np.float64)
    else:
        labels = np.unique(np.asarray(batches))
        codes = _places(np.asarray(batches), labels)
    return _numbers(_ordered(labels)), codes


def _ordered(labels: Any) -> NDArray:
    return np.unique(np.asarray(labels))


def _places(batches: NDArray, labels: NDArray) -> NDArray[np.float64]:
    return np.searchsorted(labels, batches) + 1.0


def _places_in_series(batches: Any, labels: NDArray) -> Any:
    import pandas as pd

    return pd.Series(_places(batches.to_numpy(), labels), index=batches.index)


def _numbers(labels: NDArray) -> NDArray[np.int64]:
    """Return numbers as they are, and dates as days since 1970."""
    if labels.dtype.kind in "iu":
        return labels.astype(np.int64)
    try:
        if labels.dtype.kind not in "MUO":
            raise ValueError
        days = labels.astype("datetime64[D]")
    except ValueError:
        days = np.array(["NaT"], dtype="datetime64[D]")
    if np.isnat(days).any():
        raise ValueError(f"batches must be dates or whole numbers, such as no {labels[0]!r}.")
    return days.astype(np.int64)
