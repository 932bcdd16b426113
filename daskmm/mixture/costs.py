"""Costs of the stages of a fit of a mixture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from daskmm.data.blocks import Block, Layout
from daskmm.engine.speed import fastest, loading_seconds
from daskmm.kmeans.costs import TRIAL_STEPS as STEPS_OF_CENTERS
from daskmm.kmeans.costs import VALUE_SECONDS, step_seconds
from daskmm.kmeans.method import Method
from daskmm.mixture.em import block_sums
from daskmm.mixture.settings import FIRST_DEGREES, TRIAL_STEPS, Settings
from daskmm.mixture.starts import labelled_components
from daskmm.mm.driver import Schedule
from daskmm.mm.stages import Cost

# Typical numbers of EM steps: over the table, after a sample and from given components; on the
# sample, for the best starts and for splits and merges.
_PASSES, _PASSES_FROM_GIVEN = 6, 30
_STEPS_ON_SAMPLE, _STEPS_OF_MOVES = 60, 60
# Typical number of EM steps in the comparison of covariance types; simpler types take less time.
_STEPS_OF_TYPES = 120
# Assumed share of missing values, if values may be missing.
_MISSING = 0.1
# Number of rows of the block on which the time of a step is measured.
_ROWS = 2048
# Number of rows times squared number of features of such a block, if values may be missing.
_OPERATIONS = 2_000_000


@dataclass(frozen=True)
class MixtureCosts:
    """Costs of the stages of a fit of a mixture; each method is the cost of one stage."""

    layout: Layout
    settings: Settings
    n_sample: int  # rows of the sample
    threads: int  # number of threads of a worker

    @property
    def _n(self) -> int:
        return self.layout.n_rows or 0

    @cached_property
    def _step(self) -> float:
        """Seconds that an EM step of one start takes per row, on one thread."""
        own, p = self.settings, self.layout.n_features
        n = _ROWS
        if own.partial:  # rows that lack the same values are summed together: take many rows
            n = max(1, min(self.n_sample // self.threads, _OPERATIONS // p**2))
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((n, p))
        labels = rng.integers(0, own.n_components, n)
        shape = own.n_components, own.covariance_type, own.reg_covar
        state = labelled_components(rows, np.ones(n), labels, *shape)
        tails = np.full(own.n_components, FIRST_DEGREES) if own.student else None
        state = replace(state, partial=own.partial, degrees=tails)
        if own.partial:
            rows[:, 1:][rng.random((n, p - 1)) < _MISSING] = np.nan
        seconds = fastest(lambda: block_sums(Block(rows), (state,)))
        return seconds / n

    @property
    def _on_sample(self) -> float:
        return self._step * self.n_sample / self.threads

    def survey(self) -> Cost:
        """Return the cost of the first pass."""
        values = self._n * self.layout.n_features * VALUE_SECONDS / self.threads
        return Cost(1, 1, lambda: loading_seconds(self.layout, self.threads) + values)

    def number(self) -> Cost:
        """Return the cost of the choice of the number of components, whose seconds are unknown."""
        return Cost()

    def starts(self) -> Cost:
        """Return the cost of clustering the sample, once per start."""
        own = self.settings
        return Cost(seconds=lambda: own.n_first * self._start) if own.n_starts else Cost()

    @cached_property
    def _start(self) -> float:
        """Seconds in which the sample is clustered once; seeding takes as long as half a trial."""
        centers = Method(self.settings.n_components, 1, Schedule(-np.inf), on_sample=False)
        step = step_seconds(-8.0, "float64", self.layout.n_features, centers, 1)
        return self.n_sample * STEPS_OF_CENTERS * step

    def types(self) -> Cost:
        """Return the cost of fits of each covariance type to the sample."""
        return Cost(seconds=lambda: _STEPS_OF_TYPES * self._on_sample)

    def trials(self) -> Cost:
        """Return the cost of the first EM steps of all starts on the sample."""
        return Cost(seconds=lambda: TRIAL_STEPS * self.settings.n_first * self._on_sample)

    def other_starts(self) -> Cost:
        """Return the cost of clustering the sample for the other starts, which most fits need."""
        n_others = self.settings.n_starts - self.settings.n_first
        return Cost(seconds=lambda: n_others * self._start) if n_others else Cost()

    def other_trials(self) -> Cost:
        """Return the cost of the first EM steps of the other starts on the sample."""
        n_others = self.settings.n_starts - self.settings.n_first
        return Cost(seconds=lambda: TRIAL_STEPS * n_others * self._on_sample)

    def on_sample(self) -> Cost:
        """Return the cost of EM of the best starts on the sample."""
        return Cost(seconds=lambda: _STEPS_ON_SAMPLE * self._on_sample)

    def moves(self) -> Cost:
        """Return the cost of splits and merges on the sample."""
        if self.settings.n_components < 3:
            return Cost()
        return Cost(seconds=lambda: _STEPS_OF_MOVES * self._on_sample)

    def passes(self) -> Cost:
        """Return the cost of EM over the table.

        A fit that has not converged is scored in one more pass, so there may be one pass more than
        steps.
        """
        own = self.settings
        n_steps = min(_PASSES if own.n_starts else _PASSES_FROM_GIVEN, own.max_iter)
        step = self._step * self._n / self.threads

        def seconds() -> float:
            return n_steps * (step + loading_seconds(self.layout, self.threads))

        return Cost(n_steps, own.max_iter + 1, seconds)

    def labels(self) -> Cost:
        """Return the cost of the labels, which are lazy for lazy data."""
        reads = 0 if self.layout.lazy else 1
        return Cost(reads, reads, lambda: reads * self._n * self._step / self.threads)
