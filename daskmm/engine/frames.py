"""Map block functions over dask DataFrames; results keep their partitions and index."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import da
from daskmm.data.blocks import Block, Position, common_dtype
from daskmm.data.names import features_named
from daskmm.data.validation import checked_rows

# Name of a series of labels.
NAME = "cluster"


@dataclass(frozen=True)
class _Mapped:
    """A function of partitions with an identity for dask.

    Its arguments may be too large to digest, or callables without a token.
    """

    token: str = field(default_factory=lambda: uuid.uuid4().hex, kw_only=True)

    def __dask_tokenize__(self) -> str:
        return self.token

    def __repr__(self) -> str:
        return NAME  # dask's keys contain this


@dataclass(frozen=True, repr=False)
class _Partition(_Mapped):
    """A block function that takes a pandas frame, and returns a series or frame with its index."""

    function: Callable[..., NDArray]
    shared: tuple[Any, ...]
    columns: Sequence[str] | None
    name: str

    def __call__(self, part: Any, partition_info: dict[str, Any] | None = None) -> Any:
        number = 0 if partition_info is None else int(partition_info["number"])
        # dask may join partitions of files, so the number of rows is unknown.
        place = Position(number, 0, False, (None, part.shape[1]))
        with features_named(part):
            block = Block(checked_rows(part.to_numpy(), place), position=place)
            values = self.function(block, *self.shared)
        return self.framed(values, part.index)

    def framed(self, values: NDArray, index: Any) -> Any:
        import pandas as pd

        if self.columns is None:
            return pd.Series(values, index=index, name=self.name)
        return pd.DataFrame(values, index=index, columns=list(self.columns))


def map_frame(
    function: Callable[..., NDArray],
    frame: Any,
    *shared: Any,
    columns: Sequence[str] | None = None,
    dtype: Any = np.int32,
    name: str = NAME,
) -> Any:
    """Return ``function(block, *shared)`` of all partitions, aligned with the frame.

    The frame has columns of numbers, and the function is one for
    `daskmm.kmeans.assignment.map_rows`. The lazy result is a DataFrame with the given columns;
    without them it is a series with the given name. It can be assigned to the frame, or to the
    frame from which this one was selected, even if divisions and lengths of partitions are unknown.
    """
    numbers = frame.astype(common_dtype(frame.dtypes))
    mapped = _Partition(function, shared, columns, name)
    shape = (0,) if columns is None else (0, len(columns))
    meta = mapped.framed(np.empty(shape, dtype=dtype), frame._meta.index)
    return numbers.map_partitions(mapped, meta=meta)


def labels_in_frame(labels: NDArray[np.int32], frame: Any) -> Any:
    """Return the labels of all rows of a dask DataFrame as a lazy series aligned with it.

    Rows are counted when the series is computed, because dask may join partitions until then.
    """
    import pandas as pd

    def meta(dtype: Any) -> Any:
        return pd.Series(np.empty(0, dtype=dtype), index=frame._meta.index, name=NAME)

    ones = frame.map_partitions(_ones, meta=meta(np.int64))
    picked = _Picked(labels)
    return ones.cumsum().map_partitions(picked, meta=meta(np.int32))


def _ones(part: Any) -> Any:
    import pandas as pd

    return pd.Series(np.ones(len(part), dtype=np.int64), index=part.index, name=NAME)


@dataclass(frozen=True, repr=False)
class _Picked(_Mapped):
    """Take the labels of rows, given a series of their numbers, counted from 1."""

    labels: NDArray[np.int32]

    def __call__(self, numbers: Any) -> Any:
        import pandas as pd

        return pd.Series(self.labels[numbers.to_numpy() - 1], index=numbers.index, name=NAME)


def array_as_frame(array: NDArray | da.Array, columns: Sequence[str]) -> Any:
    """Return a lazy table as a dask DataFrame with these columns."""
    try:
        import dask.dataframe as dd
    except ImportError as error:
        raise ImportError(
            "set_output(transform='pandas') of lazy data needs the extra 'dataframe': "
            "pip install 'daskmm[dataframe]'."
        ) from error
    return dd.from_dask_array(array, columns=list(columns))
