"""Hard steps that leave out the share of the rows farthest from their centres (trimmed k-means).

The threshold is a quantile of the rows' distances. A first pass makes a histogram of the distances,
with bins of 1/256 of an octave. A second pass sums the rows below the bin of the quantile, and
gathers the rows in this bin. These are sorted into fine bins of 2^-32 of a distance, and the
nearest ones are added to the sums. Rows in the last fine bin keep the part of their weight that
makes the share exact. This bin is so narrow that a choice among its rows would change the cost less
than rounding does. If there are too many rows to gather, as in a table with few different
distances, another pass counts them in fine bins.

References
----------
Cuesta-Albertos, Gordaliza & Matrán, "Trimmed k-means: an attempt to robustify quantizers", Annals
of Statistics 25, 1997.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.moments import Sample
from daskmm.engine.passes import Passes
from daskmm.kmeans.assignment import nearest_of
from daskmm.kmeans.sums import CenterState, CenterSums, PerStart, center_sums
from daskmm.numerics.histograms import Histogram
from daskmm.numerics.rows import Rows
from daskmm.numerics.sums import Sums

FloatArray = NDArray[np.float64]

# Number of low bits of a distance that coarse histograms (`Histogram.of`) and fine ones drop.
_COARSE, _FINE = 44, 20
# Largest number of bytes of the rows that are gathered, as float64.
_GATHERED_BYTES = 64 << 20


class Threshold(NamedTuple):
    """The largest distance that is kept."""

    bits: int  # high bits of the distances (doubles) in the bin of this distance
    dropped: int  # number of low bits, which vary within the bin
    # Weight of the rows below the bin, and in it.
    below: float
    inside: float
    wanted: float  # weight of all rows that are to be kept

    def kept(self, distances: FloatArray) -> FloatArray:
        """Return the share of each row's weight that is kept."""
        bins = distances.view(np.int64) >> self.dropped
        part = (self.wanted - self.below) / self.inside
        return np.where(bins < self.bits, 1.0, np.where(bins == self.bits, part, 0.0))


@dataclass(frozen=True)
class _Parted(Sums):
    """Sums of the rows below the bin of a threshold, and the rows in the bin."""

    below: CenterSums
    inside: Sample


def trimmed_sums(
    passes: Passes, coordinates: Rows, states: Sequence[CenterState], share: float
) -> list[tuple[CenterSums, Threshold]]:
    """Compute the sums of a hard step for each state without its farthest rows, a given share.

    Return the threshold of each state, too. It takes two passes, or three if the rows in the first
    bin of a threshold are not gathered. Parameters are those of `daskmm.kmeans.sums.center_sums`.
    """
    # States allow rows without distances here, since the first pass has refused such rows with
    # weight.
    shared = coordinates, tuple(replace(state, gaps=True) for state in states)
    coarse = passes.reduce(_bins, *shared, [None] * len(states)).records
    totals = [each.weights.sum() for each in coarse]
    first = [
        _threshold(each, _COARSE, 0.0, (1.0 - share) * total)
        for each, total in zip(coarse, totals, strict=True)
    ]
    n_rows, n_features = passes.blocks.layout.n_rows, passes.blocks.layout.n_features
    shares = sum(limit.inside / total for limit, total in zip(first, totals, strict=True))
    # The number of rows in a bin follows from its weight only if rows have no sample weights.
    known = n_rows is not None and passes.blocks.weights is None
    if known and 8 * shares * n_rows * n_features <= _GATHERED_BYTES:
        parts = passes.reduce(_parted, *shared, first).records
        return [_whole(*each, coordinates) for each in zip(parts, first, shared[1], strict=True)]
    fine = passes.reduce(_bins, *shared, first).records
    limits = [
        _threshold(each, _FINE, before.below, before.wanted)
        for each, before in zip(fine, first, strict=True)
    ]
    sums = passes.reduce(_kept_sums, *shared, limits).records
    return list(zip(sums, limits, strict=True))


def _threshold(found: Histogram, dropped: int, below: float, wanted: float) -> Threshold:
    """Return the bin in which the cumulative weight, from `below`, reaches `wanted`."""
    reached = below + np.cumsum(found.weights)
    place = min(int(np.searchsorted(reached, wanted * (1 - 1e-15))), len(reached) - 1)
    inside = float(found.weights[place])
    return Threshold(
        int(found.codes[place]), dropped, float(reached[place]) - inside, inside, wanted
    )


def _distances(
    block: Block,
    coordinates: Rows,
    state: CenterState,
) -> tuple[FloatArray, FloatArray]:
    """Return distances and weights of one block; rows without any value have no weight."""
    labels, smallest = nearest_of(block, coordinates, state)
    return smallest, np.where(labels < 0, 0.0, block.masses)


def _bins(
    block: Block,
    coordinates: Rows,
    states: tuple[CenterState, ...],
    within: Sequence[Threshold | None],
) -> PerStart[Histogram]:
    """Return coarse histograms of one block's distances, or fine ones of those in a coarse bin."""
    records = []
    for state, threshold in zip(states, within, strict=True):
        smallest, held = _distances(block, coordinates, state)
        if threshold is None:
            found = Histogram.of(smallest, np.zeros(len(smallest), dtype=np.int64), held)
        else:
            inside = smallest.view(np.int64) >> threshold.dropped == threshold.bits
            found = _fine(smallest[inside], held[inside])
        records.append(found)
    return PerStart(tuple(records))


def _fine(distances: FloatArray, weights: FloatArray) -> Histogram:
    return Histogram.of_codes(distances.view(np.int64) >> _FINE, weights)


def _parted(
    block: Block,
    coordinates: Rows,
    states: tuple[CenterState, ...],
    limits: list[Threshold],
) -> PerStart[_Parted]:
    """For each threshold, return the sums of a block's rows below its bin, and the rows in it."""
    records = []
    for state, threshold in zip(states, limits, strict=True):
        smallest, held = _distances(block, coordinates, state)
        bins = smallest.view(np.int64) >> threshold.dropped
        kept = np.where(bins < threshold.bits, held, 0.0)
        below = _sums_of(block.rows, kept, smallest, coordinates, state)
        inside = (bins == threshold.bits) & (held > 0)
        records.append(_Parted(below, Sample(block.rows[inside], held[inside])))
    return PerStart(tuple(records))


def _whole(
    part: _Parted, before: Threshold, state: CenterState, coordinates: Rows
) -> tuple[CenterSums, Threshold]:
    """Add the nearest of the gathered rows to the sums of the others; return the threshold, too."""
    block = Block(part.inside.rows, part.inside.weights)
    limit = _threshold(
        _fine(*_distances(block, coordinates, state)), _FINE, before.below, before.wanted
    )
    (sums,) = _kept_sums(block, coordinates, (state,), [limit]).records
    return part.below + sums, limit


def _kept_sums(
    block: Block,
    coordinates: Rows,
    states: tuple[CenterState, ...],
    limits: list[Threshold],
) -> PerStart[CenterSums]:
    records: list[CenterSums] = []
    for state, threshold in zip(states, limits, strict=True):
        smallest, held = _distances(block, coordinates, state)
        kept = held * threshold.kept(smallest)
        records.append(_sums_of(block.rows, kept, smallest, coordinates, state))
    return PerStart(tuple(records))


def _sums_of(
    rows: NDArray, kept: FloatArray, smallest: FloatArray, coordinates: Rows, state: CenterState
) -> CenterSums:
    """Return the sums of rows with the weights that are kept.

    The cost of a row that is infinitely far and has no weight would not be a number.
    """
    if np.isinf(smallest).any():
        rows, kept = rows[kept > 0], kept[kept > 0]
    (found,) = center_sums(rows, kept, coordinates, (state,)).records
    return found
