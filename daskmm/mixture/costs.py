"""Costs of the stages of a fit of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daskmm.data.blocks import Layout, Position
from daskmm.engine.speed import fastest, loading_seconds
from daskmm.kmeans.costs import VALUE_SECONDS, seeding_seconds
from daskmm.mixture.em import block_sums
from daskmm.mixture.settings import TRIAL_STEPS, Settings
from daskmm.mixture.starts import labelled_components
from daskmm.mm.stages import Cost

# Typical numbers of EM steps: over the table, after a sample and from given components; on the
# sample, for the best starts and for splits and merges.
_PASSES, _PASSES_FROM_GIVEN = 6, 30
_STEPS_ON_SAMPLE, _STEPS_OF_MOVES = 60, 60
# Typical number of EM steps in the comparison of covariance types; simpler types take less time.
_STEPS_OF_TYPES = 120
# Number of rows of the block on which the time of a step is measured.
_ROWS = 2048


@dataclass(frozen=True)
class MixtureCosts:
    """Costs of the stages of a fit of a mixture; each method is the cost of one stage.

    Attributes
    ----------
    layout : Layout
        Layout of the table.
    settings : Settings
        Parameters of the fit.
    n_sample : int
        Number of rows of the sample.
    threads : int
        Number of threads of a worker.
    """

    layout: Layout
    settings: Settings
    n_sample: int
    threads: int

    @property
    def _n(self) -> int:
        return self.layout.n_rows or 0

    @cached_property
    def _step(self) -> float:
        """Seconds that an EM step of one start takes per row, on one thread."""
        own, p = self.settings, self.layout.n_features
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((_ROWS, p))
        labels = rng.integers(0, own.n_components, _ROWS)
        ones = np.ones(_ROWS)
        state = labelled_components(
            rows, ones, labels, own.n_components, own.covariance_type, own.reg_covar
        )
        seconds = fastest(lambda: block_sums(rows, None, Position(0, 0), (state,)))
        return seconds / _ROWS

    @property
    def _on_sample(self) -> float:
        return self._step * self.n_sample / self.threads

    def survey(self) -> Cost:
        """Return the cost of the first pass."""
        values = self._n * self.layout.n_features * VALUE_SECONDS / self.threads
        return Cost(1, 1, lambda: loading_seconds(self.layout, self.threads) + values)

    def starts(self) -> Cost:
        """Return the cost of clustering the sample, once per start."""
        own = self.settings
        if not own.n_starts:
            return Cost()
        each = self.n_sample * own.n_components
        return Cost(
            seconds=lambda: (
                own.n_first * each * seeding_seconds(own.n_components, self.layout.n_features)
            )
        )

    def types(self) -> Cost:
        """Return the cost of fits of each covariance type to the sample."""
        return Cost(seconds=lambda: _STEPS_OF_TYPES * self._on_sample)

    def trials(self) -> Cost:
        """Return the cost of the first EM steps of all starts on the sample."""
        return Cost(seconds=lambda: TRIAL_STEPS * self.settings.n_first * self._on_sample)

    def other_starts(self) -> Cost:
        """Return the cost of clustering the sample for the other starts, which most fits need."""
        own = self.settings
        if own.n_first == own.n_starts:
            return Cost()
        each = (own.n_starts - own.n_first) * self.n_sample * own.n_components
        return Cost(
            seconds=lambda: each * seeding_seconds(own.n_components, self.layout.n_features)
        )

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
