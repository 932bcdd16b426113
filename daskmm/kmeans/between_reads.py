"""Hard steps on kept rows between the reads of a streamed table.

A read at centres c gives the sums S(c) over all rows. Rows that are kept in memory, with sums s,
say how these change at other centres: S(c′) ≈ S(c) + α (s(c′) − s(c)), where α is the weight of
all rows relative to that of the kept ones. Steps with such sums follow each read. They lower an
estimate of the cost that has the right gradient at c, so the next reads correct less and less
(control variates: Johnson & Zhang, "Accelerating stochastic gradient descent using predictive
variance reduction", NeurIPS 2013; Shamir, Srebro & Zhang, "Communication-efficient distributed
optimization using an approximate Newton-type method", ICML 2014).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.kmeans.bounds import Bounds
from daskmm.kmeans.sums import CenterState, CenterSums
from daskmm.kmeans.updates import CentersProblem
from daskmm.mm.driver import Step

FloatArray = NDArray[np.float64]

# At most this many steps follow a read, and together they compare at most this many times the rows
# of the read. They also end once one of them gains less than a share of the cost. More steps would
# fit the centres to the kept rows: their gains are those of a sample.
_MOST_STEPS, _MOST_WORK, _WORTH_A_STEP = 7, 1.0, 1e-4
# Reads end once one of them gains less than this multiple of `tol`. Each read gains several times
# less than the one before, so later ones would lower the cost by .1 % at most.
WORTH_A_READ = 4.0
# A cluster whose weight is estimated to fall below this share of that at the read keeps its mean of
# the read, because a small difference of large sums is a poor estimate.
_LEAST_WEIGHT = 0.5


def steps_between_reads(n_rows: int, n_kept: int) -> int:
    """Return the largest number of steps on the kept rows of a table after each read."""
    return max(1, min(_MOST_STEPS, int(_MOST_WORK * n_rows / n_kept)))


@dataclass(frozen=True)
class _Estimate:
    """Estimate of the sums and the cost of all rows near the centres of a read."""

    read: CenterSums  # sums of all rows at the centres of the read
    kept: CenterSums  # sums of the kept rows at these centres
    share: float  # weight of all rows, relative to that of the kept ones

    def sums(self, kept: CenterSums) -> CenterSums:
        """Return the sums at centres at which those of the kept rows are given."""
        weights = self.read.weights + self.share * (kept.weights - self.kept.weights)
        sums = self.read.sums + self.share * (kept.sums - self.kept.sums)
        poor = weights < _LEAST_WEIGHT * self.read.weights
        weights[poor], sums[poor] = self.read.weights[poor], self.read.sums[poor]
        return replace(self.read, weights=weights, sums=sums)

    def cost(self, kept: CenterSums, centers: FloatArray) -> float:
        """Return the cost at these centres up to a constant; each step lowers it."""
        weights = self.read.weights - self.share * self.kept.weights
        sums = self.read.sums - self.share * self.kept.sums
        others = weights @ np.square(centers).sum(axis=1) - 2.0 * np.vdot(centers, sums)
        return self.share * kept.inertia + float(others)


@dataclass(eq=False)
class StreamedProblem(CentersProblem):
    """Centres of a streamed table's rows; steps on kept rows follow each hard step."""

    kept: CentersProblem | None = None  # problem of the kept rows
    n_steps: int = 0  # largest number of steps after each read
    # Smallest cost of a read so far. A read that costs more is followed by no steps on kept rows.
    least: float = np.inf

    @classmethod
    def of(cls, problem: CentersProblem, kept: CentersProblem) -> StreamedProblem:
        """Return the problem of a table with kept rows, which are in the same coordinates."""
        passes, update = problem.passes, problem.update
        n_rows, n_kept = (each.blocks.layout.n_rows for each in (passes, kept.passes))
        n_steps = steps_between_reads(n_rows or 0, n_kept or 1)
        return cls(
            passes,
            problem.coordinates,
            problem.weight,
            update,
            problem.spread,
            kept=kept,
            n_steps=n_steps,
        )

    def _step(
        self, before: CenterState, sums: CenterSums, bounds: Bounds | None
    ) -> Step[CenterState]:
        step = super()._step(before, sums, bounds)
        risen, self.least = step.inertia > self.least, min(self.least, step.inertia)
        if risen or not step.moved:
            return step
        after = self._between_reads(before, sums, step.state)
        shift = float(np.sqrt(np.square(after.centers - before.centers).sum(axis=1).max()))
        return replace(step, state=after, shift=shift)

    def _between_reads(
        self, before: CenterState, sums: CenterSums, after: CenterState
    ) -> CenterState:
        """Return the state after steps on the kept rows, which begin at the means of all rows."""
        kept, state = self.kept, after
        assert kept is not None
        (first,) = kept.sums([before])
        kept.follow([state])
        estimate = _Estimate(sums, first, self.weight / kept.weight)
        last = estimate.cost(first, before.centers)
        for _ in range(self.n_steps):
            (found,) = kept.sums([state])
            cost = estimate.cost(found, state.centers)
            worth = last - cost >= _WORTH_A_STEP * sums.inertia
            if worth:
                state = self.update.update(estimate.sums(found), state, self.weight)
            kept.follow([state])
            if not worth:
                break
            last = cost
        return state
