"""Search for better clusters on a sample of the rows that `partial_fit` has visited.

Steps from the present centres cannot split a cluster that turns out to be two, nor follow clusters
that jump. So a sample of all rows is kept, in which earlier rows fade as in the records. Now and
then, fresh starts on the sample and recombinations of all starts compete with the present centres.
If one of them wins, the records are divided among its clusters in the proportions of the sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.moments import Sample
from daskmm.kmeans.near_rows import near_rows
from daskmm.kmeans.sample_annealing import (
    SEARCH,
    SampledRows,
    Search,
    cheapest,
    drawn_starts,
)
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import filled, nearest
from daskmm.kmeans.updates import Update, sample_problem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Schedule, iterate
from daskmm.mm.stages import run_stages
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Rows of the sample: number per cluster, least and largest number in all, and largest number of
# bytes.
_PER_CLUSTER, _LEAST, _MOST, _BYTES = 200, 2000, 10_000, 8 << 20
# Number of fresh starts, and least share by which one of them must lower the cost: smaller gains on
# the sample do not carry over to all rows.
_STARTS, _GAIN = 6, 2e-3
_MAX_ITER, _TOL = 100, 1e-4


def capacity(n_clusters: int, n_features: int) -> int:
    """Return the number of rows of the sample."""
    wanted = min(max(_PER_CLUSTER * n_clusters, _LEAST), _MOST)
    return max(min(wanted, _BYTES // (8 * n_features)), 2 * n_clusters)


@registered
@dataclass(frozen=True)
class Reservoir:
    """Rows drawn by weight from all rows (Efraimidis & Spirakis 2006).

    A row of weight v has the priority log(e/v), where e is drawn from the exponential distribution.
    The rows with the lowest priorities are kept. Fading raises priorities.
    """

    size: int  # largest number of rows
    rows: FloatArray  # rows in the model's coordinates, (n_rows, n_features)
    priorities: FloatArray  # priorities of the rows, (n_rows,)
    origins: NDArray[np.int64]  # number of the key of each row's call, (n_rows,)

    @classmethod
    def empty(cls, size: int, n_features: int) -> Self:
        """Return the sample of no rows."""
        return cls(size, np.empty((0, n_features)), np.empty(0), np.empty(0, np.int64))

    @property
    def bound(self) -> float:
        """Priority below which new rows are kept."""
        return float(self.priorities.max()) if len(self.rows) == self.size else np.inf

    @property
    def sample(self) -> Sample:
        """The rows of the sample, with equal weights."""
        return Sample(self.rows, np.ones(len(self.rows)))

    def __add__(self, other: Self) -> Self:
        priorities = np.concatenate([self.priorities, other.priorities])
        kept = np.sort(np.argsort(priorities, kind="stable")[: self.size])
        rows = np.concatenate([self.rows, other.rows])[kept]
        origins = np.concatenate([self.origins, other.origins])[kept]
        return replace(self, rows=rows, priorities=priorities[kept], origins=origins)

    def faded(self, factor: float) -> Self:
        """Return the sample with all weights multiplied by a factor."""
        return replace(self, priorities=self.priorities - np.log(factor))

    def without(self, origin: int) -> Self:
        """Return the sample without the rows of a key's number."""
        return self.only(self.origins != origin)

    def only(self, kept: NDArray[np.bool_]) -> Self:
        """Return the sample restricted to some of its rows."""
        return replace(
            self,
            rows=self.rows[kept],
            priorities=self.priorities[kept],
            origins=self.origins[kept],
        )


@dataclass(frozen=True)
class Renewal:
    """Better clusters, and how the sample divides earlier clusters among them."""

    state: CenterState  # the better clusters
    # Earlier cluster of each part, and better cluster that the part goes to, (n_parts,).
    earlier: NDArray[np.int64]
    later: NDArray[np.int64]
    shares: FloatArray  # the part's share of the earlier cluster's rows, (n_parts,)
    # Mean of the part's rows minus the mean of the earlier cluster, (n_parts, n_features).
    offsets: FloatArray
    change: float  # change of the mean cost per row

    def divide(self, masses: FloatArray, sums: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Divide masses (per cluster, or per cluster and feature) and sums among new clusters."""
        shares = self.shares[:, None]
        own = masses[self.earlier]
        divided = np.zeros_like(masses), np.zeros_like(sums)
        np.add.at(divided[0], self.later, shares * own)
        # Parts have the proportions of the sample, and their sums add up to those of the clusters.
        np.add.at(divided[1], self.later, shares * (sums[self.earlier] + own * self.offsets))
        return divided


def renewed(reservoir: Reservoir, state: CenterState, update: Update, seed: int) -> Renewal | None:
    """Look for better clusters on the sample; return None if there are none.

    The state must be that of a hard step.
    """
    rows, sample = reservoir.rows, reservoir.sample
    if len(rows) < 2 * len(state.centers):
        return None
    kept = sample
    if update.trim:
        near = near_rows(sample, len(state.centers), update.trim, seed, state.distortion)
        kept = Sample(rows[near], sample.weights[near])
    schedule = Schedule(-np.inf, max_iter=_MAX_ITER, tol=_TOL)
    problem = sample_problem(rows, sample.weights, update)
    (own,) = iterate(problem, [state], schedule)
    seeds = np.random.SeedSequence(seed).spawn(_STARTS)
    pool = filled(rows, sample.weights)
    starts = drawn_starts(filled(kept.rows, kept.weights), kept.weights, state, seeds)
    dtype, k = rows.dtype, len(state.centers)
    own_rows = SampledRows(kept, update, problem.spread, dtype, k)
    context = FitContext(holds_interrupts=False)
    search = Search(own_rows, [own.state, *starts], schedule, seed, context)
    candidates = run_stages(SEARCH, search).candidates
    found = iterate(problem, [run.state for run in candidates], schedule)
    best = cheapest(found, 1)[0]
    if own.last - best.last <= _GAIN * abs(own.last):
        return None
    change = (best.history[-1].inertia - own.history[0].inertia) / len(rows)
    return divided(pool, state, best.state, change)


def divided(rows: FloatArray, before: CenterState, after: CenterState, change: float) -> Renewal:
    """Compute how rows of each earlier cluster are divided among the new ones."""
    k = len(before.centers)
    old, new = (nearest(rows, state) for state in (before, after))
    # A cluster without rows in the sample is represented by its centre.
    unseen = np.setdiff1d(np.arange(k), old)
    rows = np.concatenate([rows, before.centers[unseen]])
    old = np.concatenate([old, unseen])
    new = np.concatenate([new, nearest(before.centers[unseen], after)])
    pairs, part, counts = np.unique(old * k + new, return_inverse=True, return_counts=True)
    earlier, later = pairs // k, pairs % k
    sums, sizes = np.zeros((len(pairs), rows.shape[1])), np.bincount(old, minlength=k)
    np.add.at(sums, part, rows)
    means = np.zeros_like(before.centers)
    np.add.at(means, earlier, sums)
    means /= sizes[:, None]
    offsets = sums / counts[:, None] - means[earlier]
    return Renewal(after, earlier, later, counts / sizes[earlier], offsets, change)
