"""Hard steps that leave out the share of the rows farthest from their centres (trimmed k-means).

The threshold is a quantile of the rows' distances, found by histograms in two passes: one with bins
of 1/256 of an octave, and one that divides the bin of the quantile by 2^24. Rows in the last bin
keep the part of their weight that makes the share exact. The bins are so narrow (2^-32 of a
distance) that a choice among the rows of a bin would change the cost less than rounding does. A
third pass computes the sums.

References
----------
Cuesta-Albertos, Gordaliza & Matrán, "Trimmed k-means: an attempt to robustify quantizers", Annals
of Statistics 25, 1997.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.passes import Passes
from daskmm.kmeans.assignment import nearest_of
from daskmm.kmeans.sums import CenterState, CenterSums, PerStart, center_sums
from daskmm.numerics.histograms import Histogram
from daskmm.numerics.rows import Rows

FloatArray = NDArray[np.float64]

# Number of low bits of a distance that the first and the second histogram drop.
_COARSE, _FINE = 44, 20


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


def trimmed_sums(
    passes: Passes, coordinates: Rows, states: Sequence[CenterState], share: float
) -> tuple[CenterSums, ...]:
    """Compute the sums of a hard step for each state, without a given share of its farthest rows.

    It takes three passes. Parameters are those of `daskmm.kmeans.sums.center_sums`.
    """
    return kept_sums(passes, coordinates, states, thresholds(passes, coordinates, states, share))


def thresholds(
    passes: Passes, coordinates: Rows, states: Sequence[CenterState], share: float
) -> list[Threshold]:
    """Find for each state the distance that a share of the rows exceeds, in two passes."""
    shared = coordinates, _with_gaps(states)
    coarse: PerStart[Histogram] = passes.reduce(_bins, *shared, _COARSE, [None] * len(states))
    first = [
        _threshold(each, _COARSE, 0.0, (1.0 - share) * each.weights.sum())
        for each in coarse.records
    ]
    fine: PerStart[Histogram] = passes.reduce(_bins, *shared, _FINE, first)
    return [
        _threshold(each, _FINE, before.below, before.wanted)
        for each, before in zip(fine.records, first, strict=True)
    ]


def kept_sums(
    passes: Passes, coordinates: Rows, states: Sequence[CenterState], limits: list[Threshold]
) -> tuple[CenterSums, ...]:
    """Compute the sums of a hard step for each state over the rows within its threshold."""
    found: PerStart[CenterSums] = passes.reduce(_kept_sums, coordinates, _with_gaps(states), limits)
    return found.records


def _with_gaps(states: Sequence[CenterState]) -> tuple[CenterState, ...]:
    """Return states that allow rows without distances; the first pass refused those with weight."""
    return tuple(replace(state, gaps=True) for state in states)


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
    dropped: int,
    within: Sequence[Threshold | None],
) -> PerStart[Histogram]:
    """Return histograms of one block's distances, or of those in a bin, without low bits."""
    records = []
    for state, threshold in zip(states, within, strict=True):
        smallest, held = _distances(block, coordinates, state)
        bits = smallest.view(np.int64)
        if threshold is not None:
            inside = bits >> threshold.dropped == threshold.bits
            bits, held = bits[inside], held[inside]
        records.append(Histogram.of_codes(bits >> dropped, held))
    return PerStart(tuple(records))


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
        records += center_sums(block.rows, kept, coordinates, (state,)).records
    return PerStart(tuple(records))
