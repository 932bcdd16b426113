"""Estimate of the time that a fit will still take, from its plan and its progress."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from daskmm.auto.lam import TriedSoFar
from daskmm.kmeans.costs import LAST_POWER, LAST_STEPS, READS
from daskmm.mean_shift.blurring import CALM_ITERATIONS, Progress
from daskmm.mean_shift.costs import FULL_SWEEPS
from daskmm.mm.driver import CALM_ITERATIONS as CALM_STEPS
from daskmm.mm.driver import IterationRecord, Run

# Number of hard steps that are assumed to be left while no change of the objective is known.
# Changes fall as a negative power of the number of steps; this exponent is assumed while few
# changes are known (measured: 1.3 to 2).
_FIRST_STEPS, _FALL = 10, 1.4
# Share of its iterations that an annealing is assumed to have left when it takes longer than
# planned.
_LATE = 0.15
# Share of a stage after which only its own pace predicts the rest.
_TELLING = 0.2
# Before any stage has ended, this share of the planned seconds counts as if it had passed as
# planned.
_TRUST = 0.02


class TimeLeft:
    """Seconds that a fit will still take.

    The rest of the present stage is predicted by its own pace, with a weight that grows as the
    stage proceeds. The remaining weight, and the later stages, use the planned seconds times the
    ratio of measured to planned seconds so far.
    """

    def __init__(self, max_iter: int) -> None:
        self.max_iter, self.tol = max_iter, 0.0
        # Name of the present stage in the plan (empty before the first), and how much of it is
        # done.
        self.stage, self.share = "", 0.0
        self._planned: dict[str, float] = {}
        # Planned and measured seconds of the stages that have ended.
        self._ended: dict[str, tuple[float, float]] = {}
        self._times: Counter[str] = Counter()
        # When the stage was entered and last reported, and how much of it was done then.
        self._entered, self._reported, self._resumed = 0.0, 0.0, 0.0

    def expect(self, stages: Mapping[str, float] | None, tol: float) -> None:
        """Take the planned seconds of all stages, and the tolerance of the fit."""
        self._planned, self.tol = dict(stages or {}), tol

    def follow(self, stage: str, found: Any, now: float) -> None:
        """Take the present stage of the fit, and its latest result.

        The result is None if the stage has just begun. Otherwise it is a list of runs, the share of
        the stage that is done, or any other result. `now` is in seconds on any clock.
        """
        if self._planned and stage not in self._planned:
            return  # such a stage counts as part of the one before it
        share = 0.0 if found is None else self._share_of(found)
        if found is None:
            self._times[stage] += 1
        if stage == "recombination":
            times = self._times[stage]
            share = (times - 1 + share) / max(times, 1.5)
        if stage != self.stage:
            self._leave(now)
            self.stage, self._entered, self._resumed = stage, now, share
        self.share, self._reported = share, now

    def _leave(self, now: float) -> None:
        if not self.stage:
            return
        planned = self._planned.get(self.stage, 0.0) * (1.0 - self._resumed)
        self._ended[self.stage] = planned, now - self._entered

    def seconds(self, now: float) -> float | None:
        """Return the seconds left at the time `now`; None without a plan."""
        if self.stage not in self._planned:
            return None
        spent, new = self._reported - self._entered, self.share - self._resumed
        own = self._planned[self.stage]
        planned, measured = map(sum, zip(*self._ended.values(), (own * new, spent), strict=True))
        trust = _TRUST * sum(self._planned.values()) or 1e-9
        ratio = (measured + trust) / (planned + trust)
        left = own * (1.0 - self.share) * ratio
        if new > 0.0:
            told = min(1.0, new / _TELLING)
            left += told * (spent * (1.0 - self.share) / new - left)
        names = list(self._planned)
        later = sum(self._planned[name] for name in names[names.index(self.stage) + 1 :])
        return max(left - (now - self._reported), 0.0) + later * ratio

    def _share_of(self, found: Any) -> float:
        """Return how much of its stage has been done, given its latest result."""
        if isinstance(found, TriedSoFar):
            return found.share
        if isinstance(found, Progress):
            done, left = _sweeps(found)
        elif isinstance(found, list) and all(isinstance(run, Run) for run in found):
            done = sum(len(run.history) for run in found)
            left = sum(self._steps_left(run) for run in found)
        else:
            return found if isinstance(found, float) else 1.0
        return done / (done + left) if done else 0.0

    def _steps_left(self, run: Run[Any]) -> float:
        """Return how many steps a run will probably still take."""
        history = run.history
        if run.stage == "done":
            return 0.0
        if not history:
            return _FIRST_STEPS
        first, last = history[0], history[-1]
        if run.stage == "hard":
            left = self._until_calm(run, [each for each in history if each.s == -math.inf])
        elif len(history) > 1 and last.s < first.s:
            growth = math.log(last.s / first.s) / (len(history) - 1)
            powers = math.log(min(LAST_POWER / last.s, 1e9)) / growth
            left = max(powers, _LATE * len(history)) + LAST_STEPS
        else:
            left = self._until_calm(run, history)
        return min(left, self.max_iter - len(history))

    def _until_calm(self, run: Run[Any], history: Sequence[IterationRecord]) -> float:
        """Return how many steps are left if changes fall as a power of the number of steps."""
        costs = [each.objective for each in history]
        changes = [abs(a - b) for a, b in zip(costs[1:], costs[:-1], strict=True)]
        known = len(changes)
        if not known:
            after_sample = self.stage == "passes" and "annealing" in self._planned
            return READS if after_sample else _FIRST_STEPS
        excess = max(changes[-1] / max(self.tol * abs(costs[-1]), 1e-300), 1.0)
        fall = _FALL
        if known > 3 and 0.0 < changes[-1] < changes[known // 2 - 1]:
            halved = math.log(changes[known // 2 - 1] / changes[-1])
            fall = min(max(halved / math.log(known / (known // 2)), 1.3), 5.0)
        return max(known * (excess ** (1.0 / fall) - 1.0), CALM_STEPS - run.calm, 1)


def _sweeps(progress: Progress) -> tuple[float, float]:
    """Return how many sweeps over all pairs were made, and how many are probably left.

    In each of the two stages, rows merge all at once after about the same number of sweeps; later
    sweeps are cheap.
    """
    history = progress.history
    first, last = history[0].n_representatives, history[-1]
    costs = [(record.n_representatives / first) ** 2 for record in history]
    own = sum(
        cost for cost, record in zip(costs, history, strict=True) if record.stage == last.stage
    )
    left = max(FULL_SWEEPS / 2 - own, 1.0) if costs[-1] > 0.5 else CALM_ITERATIONS * costs[-1]
    return sum(costs), left + (FULL_SWEEPS / 2 if last.stage == "learn" else 0.0)
