r"""Gaps in density between groups of rows, and merging of groups that no gap divides.

Two groups A and B are compared along the direction :math:`(C_A + C_B)^{-1}(m_B - m_A)`, where m
are their means and C their covariances. The direction is learned on one half of the rows, and the
rows of the other half are projected on it, so that noise does not make gaps. The axis is scaled
such that the medians of the two groups lie at 0 and 1. Rows are counted in windows of ± .1: *side*
is the smaller of the counts at 0 and 1, *between* the smallest of those at .3, .35, …, .7. There is
a gap if both

.. math::

    \frac{\mathrm{between} + 1}{\mathrm{side} + 1} < 0.65
    \quad\text{and}\quad
    \sqrt 2 \left(\sqrt{\mathrm{side}} - \sqrt{\mathrm{between}}\right)
    > 2.4 + \frac{5 p}{n_A + n_B}.

The first condition says that the density is low between the groups. The second says that this is
not by chance: its left side has variance 1 for Poisson counts. The term in p / n is needed because
a direction that is learned from few rows in many dimensions divides these rows even without a gap.
The *overlap* of the groups is the larger of the ratios of the two conditions to their thresholds;
there is a gap if it is less than 1.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.distances import squared_distances
from daskmm.numerics.whitening import without_tails

FloatArray = NDArray[np.float64]
# Row numbers of a group, divided into two halves: a direction is learned on the first half and
# tested on the second.
Halves = tuple[NDArray[np.int64], NDArray[np.int64]]

# Thresholds of the two conditions for a gap: the ratio of the densities between and within two
# groups, and the evidence that it is not chance.
DENSITY, EVIDENCE, PER_FEATURE = 0.65, 2.4, 5.0
# Largest overlap; also the overlap of groups whose medians are not in the order of their means.
WIDEST = 10.0
# Groups are cells of one cluster if unions of them overlap by this much or more. Hardly any cells
# count as merged if more than this share of them, and more than this number, are left.
_NO_CELLS, _HARDLY_MERGED, _FEW_CELLS = 2.0, 0.9, 3
# Windows consist of four bins of this width; the centres of the windows are -.05, 0, ….
_BIN, _FIRST, _N_BINS = 0.05, -0.15, 26
_LOW, _HIGH, _BETWEEN = slice(0, 3), slice(20, 23), slice(7, 16)
# Largest number of groups of which all pairs are compared, and number of neighbours with which each
# group is compared if there are more groups.
_ALL_PAIRS, _NEIGHBORS = 12, 8
# Least variance within groups, relative to that of all rows.
_LEAST_WITHIN = 1e-6


class Scatter(NamedTuple):
    """The rows that are divided into groups."""

    rows: FloatArray  # rows in any units, (n_rows, n_features)
    weights: FloatArray  # number of rows for which each row counts, (n_rows,)
    # Covariance within groups, (n_features, n_features); the covariances of small groups are shrunk
    # towards it.
    within: FloatArray


def scatter_of(rows: FloatArray, weights: FloatArray, groups: Sequence[Halves]) -> Scatter:
    """Estimate the covariance within groups.

    Deviations from the groups' means are clipped at three robust standard deviations, and
    covariances between features are shrunk by p / (p + n).
    """
    members = [np.concatenate(halves) for halves in groups]
    used = weights[np.concatenate(members)]
    deviations = np.concatenate(
        [rows[own] - np.average(rows[own], axis=0, weights=weights[own]) for own in members]
    )
    deviations = without_tails(deviations)
    n, p = deviations.shape
    within = (used[:, None] * deviations).T @ deviations / used.sum()
    variances = np.diag(within) + _LEAST_WITHIN * rows.var(axis=0)
    within *= n / (n + p)
    # A constant feature divides nothing, whatever its variance.
    within[np.diag_indices(p)] = np.where(variances > 0, variances, 1.0)
    return Scatter(rows, weights, within)


@dataclass(frozen=True)
class _Group:
    """Rows of a group, and the moments of each half."""

    halves: Halves
    sizes: FloatArray
    sums: FloatArray
    squares: FloatArray
    within: FloatArray

    @classmethod
    def of(cls, data: Scatter, halves: Halves) -> _Group:
        pairs = [(data.rows[half], data.weights[half]) for half in halves]
        sizes = np.array([weights.sum() for _, weights in pairs])
        sums = np.array([weights @ rows for rows, weights in pairs])
        squares = np.array([(weights[:, None] * rows).T @ rows for rows, weights in pairs])
        return cls(halves, sizes, sums, squares, data.within)

    def joined(self, other: _Group) -> _Group:
        first, second = zip(self.halves, other.halves, strict=True)
        halves = np.concatenate(first), np.concatenate(second)
        moments = self.sizes + other.sizes, self.sums + other.sums, self.squares + other.squares
        return _Group(halves, *moments, self.within)

    @functools.cached_property
    def mean(self) -> FloatArray:
        return np.asarray(self.sums.sum(axis=0) / self.sizes.sum())

    @functools.cached_property
    def means(self) -> FloatArray:
        """Mean of each half."""
        return self.sums / self.sizes[:, None]

    @functools.cached_property
    def covariances(self) -> FloatArray:
        """Covariance of each half, shrunk towards the covariance within groups."""
        sizes, means, prior = self.sizes[:, None, None], self.means, len(self.within) + 2
        scatter = self.squares - sizes * means[:, :, None] * means[:, None, :]
        return np.asarray((scatter + prior * self.within) / (sizes + prior))


def _overlaps(data: Scatter, pairs: Sequence[tuple[_Group, _Group]]) -> FloatArray:
    """Compute the overlap of each pair of groups.

    The rows of all pairs are projected, sorted and counted together, since groups are small and
    each call of numpy takes as long as the numbers of some hundred rows.
    """
    means = np.array([[a.means, b.means] for a, b in pairs])
    apart = means[:, 1] - means[:, 0]
    within = np.array([a.covariances + b.covariances for a, b in pairs])
    axes = np.linalg.solve(within, apart[..., None])[..., 0]
    lengths = (axes * apart).sum(axis=2)
    n, found = np.array([a.sizes.sum() + b.sizes.sum() for a, b in pairs]), lengths.min(axis=1) > 0
    axes /= np.where(found[:, None], lengths, 1.0)[..., None]
    starts = (axes * means[:, 0]).sum(axis=2)
    # Each group of a pair has two parts: a direction found on one half is tested on the other.
    parts = [group.halves[1 - half] for pair in pairs for group in pair for half in (0, 1)]
    counts = np.array([len(part) for part in parts])
    rows, part = np.concatenate(parts), np.repeat(np.arange(len(parts)), counts)
    pair, half = part // 4, part % 2
    values = np.einsum("ij,ij->i", data.rows[rows], axes[pair, half]) - starts[pair, half]
    low, high = _middles(values, part // 2, counts.reshape(-1, 2).sum(axis=1)).reshape(-1, 2).T
    found &= high > low
    width = np.where(found, high - low, 1.0)
    places = (values - low[pair]) / width[pair]
    side, between = _counts(places, data.weights[rows], pair, len(pairs))
    evidence = np.sqrt(2.0) * (np.sqrt(side) - np.sqrt(between))
    needed = EVIDENCE + PER_FEATURE * len(data.within) / n
    overlaps = np.maximum(
        (between + 1) / (side + 1) / DENSITY, needed / np.maximum(evidence, needed / WIDEST)
    )
    return np.where(found, np.minimum(overlaps, WIDEST), WIDEST)


def _middles(values: FloatArray, groups: NDArray[np.int64], counts: NDArray) -> FloatArray:
    """Return the median of each group, or the larger of its two middle values."""
    order = np.lexsort((values, groups))
    return values[order[np.cumsum(counts) - counts + counts // 2]]


def _counts(
    places: FloatArray, weights: FloatArray, pair: NDArray[np.int64], n_pairs: int
) -> tuple[FloatArray, FloatArray]:
    """Return, for each pair, the counts *side* and *between* of rows at and between its groups."""
    bins = np.clip(np.floor((places - _FIRST) / _BIN), -1, _N_BINS).astype(np.int64) + 1
    n_bins = _N_BINS + 2
    below = np.bincount(pair * n_bins + bins, weights, minlength=n_pairs * n_bins)
    below = below.reshape(n_pairs, n_bins).cumsum(axis=1)
    inside = below[:, 4:-1] - below[:, :-5]
    side = np.minimum(inside[:, _LOW].mean(axis=1), inside[:, _HIGH].mean(axis=1))
    return side, inside[:, _BETWEEN].min(axis=1)


class Merging(NamedTuple):
    """Result of merging groups."""

    # For each number of groups down to 2: the overlap of the two groups that were merged then.
    overlaps: dict[int, float]
    # Row numbers of each group that gaps separate from the others; a single group if there are no
    # gaps.
    groups: list[Halves]


def merged(data: Scatter, groups: Sequence[Halves]) -> Merging:
    """Merge groups that no gap divides, and then the other groups, until one is left.

    Pairs without a gap are merged first, in the order of their overlap (1 at most) relative to
    their Mahalanobis distance. Pairs with gaps follow in the order of their overlap.

    Cells of one cluster in many dimensions can have gaps between all pairs, since the rows between
    two cells belong to other cells. But unions of such cells overlap strongly. So three groups or
    more count as divided only if the overlap is also less than 2 for one of the three next lower
    numbers of groups; or less than 1, if hardly any of more than three cells had been merged.
    """
    queue = _Queue(data, groups)
    overlaps: dict[int, float] = {}
    divided: list[Halves] | None = None
    while len(queue.alive) > 1:
        overlap, i, j = queue.next_pair()
        if overlap < 1 and divided is None:
            divided = [group.halves for group in queue.alive.values()]
        overlaps[len(queue.alive)] = overlap
        queue.merge(i, j)
    one = [group.halves for group in queue.alive.values()]
    if divided is None:
        return Merging(overlaps, one)
    lower = [overlaps[number] for number in range(max(2, len(divided) - 3), len(divided))]
    whole = len(divided) > max(_FEW_CELLS, _HARDLY_MERGED * len(groups))
    limit = 1.0 if whole else _NO_CELLS
    return Merging(overlaps, divided if min(lower, default=0.0) < limit else one)


class _Queue:
    """Groups, and the pairs of them that may be merged.

    A pair with a union gets the priority of the pairs of its parts. Its overlap is computed only
    when it comes first in the queue, which avoids most of the comparisons.
    """

    def __init__(self, data: Scatter, groups: Sequence[Halves]) -> None:
        self._data = data
        self._precision = np.linalg.inv(data.within)
        self.alive = {number: _Group.of(data, halves) for number, halves in enumerate(groups)}
        self._neighbors: dict[int, dict[int, float]] = {number: {} for number in self.alive}
        # Whether there is a gap (False if unknown); priority; numbers of the pair; overlap, or None
        # if unknown.
        self._heap: list[tuple[bool, float, int, int, float | None]] = []
        self._compare_near()

    def next_pair(self) -> tuple[float, int, int]:
        """Return overlap and numbers of the pair to be merged next."""
        while True:
            if not self._heap:
                # None of the groups that are left have been compared with each other.
                self._compare_near()
            _, _, i, j, overlap = heapq.heappop(self._heap)
            if i in self.alive and j in self.alive:
                if overlap is not None:
                    return overlap, i, j
                self._compare([(i, j)])

    def merge(self, i: int, j: int) -> None:
        """Put the union of two groups in their place."""
        new = max(self.alive) + 1
        union = self.alive.pop(i).joined(self.alive.pop(j))
        others: dict[int, float] = {}
        for gone in (i, j):
            for other, priority in self._neighbors.pop(gone).items():
                if other in self.alive:
                    others[other] = min(priority, others.get(other, 0.0))
        self.alive[new], self._neighbors[new] = union, others
        for other, priority in others.items():
            self._neighbors[other][new] = priority
            heapq.heappush(self._heap, (False, priority, other, new, None))

    def _compare(self, pairs: Sequence[tuple[int, int]]) -> None:
        groups = [(self.alive[i], self.alive[j]) for i, j in pairs]
        if not groups:
            return
        apart = np.array([a.mean - b.mean for a, b in groups])
        squares = np.einsum("ij,jk,ik->i", apart, self._precision, apart)
        distances = np.sqrt(np.maximum(squares, np.finfo(float).tiny))
        overlaps = _overlaps(self._data, groups)
        priorities = -np.minimum(overlaps * DENSITY, 1.0) / distances
        for (i, j), overlap, priority in zip(
            pairs, overlaps.tolist(), priorities.tolist(), strict=True
        ):
            self._neighbors[i][j] = self._neighbors[j][i] = priority
            divided = overlap < 1
            heapq.heappush(self._heap, (divided, -overlap if divided else priority, i, j, overlap))

    def _compare_near(self) -> None:
        self._compare(self._near())

    def _near(self) -> list[tuple[int, int]]:
        """Pairs of all groups or, if there are many groups, of those with neighbouring means."""
        numbers = np.array(sorted(self.alive))
        means = np.array([self.alive[number].mean for number in numbers])
        white = means @ np.linalg.cholesky(self._precision)
        nearest = squared_distances(white, white).argsort(axis=1)
        n_near = _NEIGHBORS if len(numbers) > _ALL_PAIRS else len(numbers)
        pairs = {
            (min(i, j), max(i, j))
            for i, near in zip(numbers.tolist(), numbers[nearest].tolist(), strict=True)
            for j in near[: n_near + 1]
            if i != j
        }
        return sorted(pairs)
