"""Sums over the rows of each batch, by which a monitor detects drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.passes import Passes
from daskmm.kmeans.assignment import nearest_of
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.columns import MixedCoordinates
from daskmm.numerics.drift import BatchSums
from daskmm.numerics.rows import Rows
from daskmm.numerics.sparse_rows import SparseRows

FloatArray = NDArray[np.float64]

# Features are compared within clusters too, unless there are more pairs of feature and cluster.
MOST_PAIRS = 1 << 14


@dataclass(frozen=True)
class SumsByBatch:
    """Sums over the rows of several batches, by the number of the batch."""

    sums: dict[int, BatchSums]

    def __add__(self, other: Self) -> Self:
        sums = dict(self.sums)
        for batch, own in other.sums.items():
            sums[batch] = sums[batch] + own if batch in sums else own
        return type(self)(sums)


def batch_sums(passes: Passes, coordinates: Rows, state: CenterState) -> dict[int, BatchSums]:
    """Compute the sums over the rows of each batch in one pass.

    The weights of the passes are numbers of batches, counted from 1. Without weights, all rows are
    in batch 1.
    """
    found: SumsByBatch = passes.reduce(block_batch_sums, coordinates, state)
    return found.sums


def block_batch_sums(block: Block, coordinates: Rows, state: CenterState) -> SumsByBatch:
    """Compute the sums over one block, without rows of weight 0."""
    labels, smallest = nearest_of(block, coordinates, state)
    distances = np.asarray(state.distortion.reported(smallest))
    values, k = _features(block.rows, coordinates), len(state.centers)
    by_cluster = values.shape[1] * k <= MOST_PAIRS
    batches, held = block.masses, labels >= 0
    sums = {}
    for batch in np.unique(batches[held & (batches > 0)]):
        own = np.flatnonzero(held & (batches == batch))
        sums[int(batch)] = BatchSums.of(values[own], labels[own], distances[own], k, by_cluster)
    return SumsByBatch(sums)


def _features(rows: NDArray, coordinates: Rows) -> NDArray:
    """Return features in the units of the input; those of dense rows are centred."""
    if isinstance(rows, SparseRows):
        return rows.astype(np.float64)
    if isinstance(coordinates, MixedCoordinates):
        rows = coordinates.expansion.expand(rows)
    return np.subtract(rows, getattr(coordinates, "mean", 0.0), dtype=np.float64)
