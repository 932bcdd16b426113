"""State of a mean shift fit, and the stages that need no parameter of the estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.auto.bandwidth import SAMPLE_ROWS, BandwidthPath, starts_from_weights
from daskmm.data.blocks import Layout
from daskmm.engine.first_pass import Survey
from daskmm.engine.passes import Passes
from daskmm.kmeans.trials import thinned
from daskmm.mean_shift.blurring import Blurred, Blurring, Rows, blur, read_rows
from daskmm.mean_shift.costs import BlurringCosts
from daskmm.mean_shift.micro_clusters import DRAWS, PASSES, Compression
from daskmm.mm.context import FitContext
from daskmm.mm.journal import draw_seeds
from daskmm.mm.stages import MADE_LATER, Stage
from daskmm.numerics.entropy import softmin_weights

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ShiftFit:
    """State of a mean shift fit."""

    passes: Passes
    context: FitContext
    rng: np.random.RandomState
    seed: int = 0  # seed of all samples
    survey: Survey = MADE_LATER
    lam: float = np.inf  # penalty per unit of sample weight
    # Bandwidths that were compared; None if the bandwidth is given.
    path: BandwidthPath | None = None
    settings: Blurring = MADE_LATER
    # Feature weights of the first iteration; None for equal ones.
    first_weights: FloatArray | None = None
    weights: FloatArray = MADE_LATER  # feature weights for micro-clusters
    compression: Compression = MADE_LATER  # all rows as micro-clusters
    rows: Rows = MADE_LATER  # rows that are blurred
    # Mask of the rows of the table that are blurred.
    kept: NDArray[np.bool_] = MADE_LATER
    result: Blurred = MADE_LATER

    @property
    def layout(self) -> Layout:
        """Layout of the table."""
        return self.passes.blocks.layout


def with_seed(fit: ShiftFit) -> ShiftFit:
    """Draw the seed."""
    [seed] = draw_seeds(fit.context.journal, fit.rng, 1)
    return replace(fit, seed=seed)


def learns_on_few(fit: ShiftFit) -> bool:
    """Return whether the feature weights of the first iteration are learned on a few rows."""
    learns = starts_from_weights(fit.settings.lam, fit.settings.convention)
    return fit.path is None and learns and len(fit.survey.sample.rows) > SAMPLE_ROWS


def with_first_weights(fit: ShiftFit) -> ShiftFit:
    """Learn the feature weights of the first iteration on a few rows."""
    sample = fit.survey.sample
    some = thinned(sample.rows, sample.weights, SAMPLE_ROWS, fit.seed)
    found = fit.context.journal.once(lambda: _learned_weights(*some, fit))
    return replace(fit, first_weights=found)


def with_rows(fit: ShiftFit) -> ShiftFit:
    """Read all rows into memory."""
    rows, kept = read_rows(fit.passes, fit.survey, fit.settings.merge_tol)
    return replace(fit, rows=replace(rows, feature_weights=fit.first_weights), kept=kept)


def with_weights(fit: ShiftFit) -> ShiftFit:
    """Learn the feature weights of micro-clusters on the sample."""
    sample, varying = fit.survey.sample, fit.survey.varying
    if np.isinf(fit.settings.lam):
        return replace(fit, weights=softmin_weights(np.zeros(len(varying)), np.inf, varying))
    learned = fit.context.journal.once(lambda: _learned_weights(sample.rows, sample.weights, fit))
    return replace(fit, weights=learned)


def _learned_weights(rows: FloatArray, weights: FloatArray, fit: ShiftFit) -> FloatArray:
    """Return the feature weights that a fit to some rows of the sample learns."""
    some = Rows.of(rows, weights, fit.settings.merge_tol, fit.survey.varying)
    some = replace(some, feature_weights=fit.first_weights)
    return blur(some, replace(fit.settings, lazy=False)).feature_weights


def compression_stages(n_representatives: int) -> list[Stage[ShiftFit]]:
    """Return the stages that compress all rows to micro-clusters, one pass each."""

    def begun(fit: ShiftFit) -> ShiftFit:
        bandwidth = fit.settings.bandwidth
        rows = (fit.passes, fit.survey, fit.weights, bandwidth)
        return replace(fit, compression=Compression.of(*rows, n_representatives, fit.seed))

    def drawn(fit: ShiftFit) -> ShiftFit:
        now = fit.compression
        centers = fit.context.journal.once(now.drawn)
        return replace(fit, compression=replace(now, centers=centers, n_draws=now.n_draws + 1))

    def moved(fit: ShiftFit) -> ShiftFit:
        now = fit.compression if fit.compression.made is None else fit.compression.after()
        made = fit.context.journal.once(now.moved)
        return replace(fit, compression=replace(now, made=made))

    def gathered(fit: ShiftFit) -> ShiftFit:
        made, _ = fit.compression.result
        return replace(fit, rows=made.rows(fit.survey, fit.weights))

    return [
        Stage("sampled centres", begun),
        *[Stage("micro-cluster centres", drawn, BlurringCosts.draw)] * DRAWS,
        *[Stage("micro-clusters", moved, BlurringCosts.step)] * (PASSES - DRAWS),
        Stage("rows", gathered),
    ]


def with_clusters(fit: ShiftFit) -> ShiftFit:
    """Blur the rows."""
    blurred = blur(fit.rows, fit.settings, fit.passes.n_passes, fit.context)
    return replace(fit, result=blurred)
