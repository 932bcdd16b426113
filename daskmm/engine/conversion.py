"""Convert rows in memory tile by tile, on threads."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.threads import run_on_threads
from daskmm.numerics.rows import tile_rows, tiles


def converted(
    rows: NDArray,
    change: Callable[[NDArray], NDArray],
    dtype: np.dtype,
    out: NDArray | None = None,
) -> NDArray[np.floating]:
    """Return ``change(rows)`` in a floating dtype, for a function that changes each row by itself.

    No other array of its size is made: the first use of new memory takes longer than the change.
    The result is written to `out` if it is given, which may be `rows`.
    """
    found = np.empty((len(rows), change(rows[:0]).shape[1]), dtype) if out is None else out

    def convert(own: slice) -> None:
        found[own] = change(rows[own])

    size = tile_rows(rows.shape[1], 1)
    for _ in run_on_threads([functools.partial(convert, own) for own in tiles(len(rows), size)]):
        pass
    return found
