"""Open the Gram matrices of a fit: read, store or prepare them before the fit begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import Passes
from daskmm.gram.matrices import Grams
from daskmm.mm.context import FitContext
from daskmm.mm.stages import MADE_LATER
from daskmm.numerics.rows import Coordinates

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Opening:
    """State of opening the Gram matrices of a fit."""

    passes: Passes | None  # passes over the rows; None for a precomputed matrix
    sample_weight: Any  # sample weights as the user gave them
    rng: np.random.RandomState  # this draws the seeds
    scratch: Path  # folder for the duration of the fit
    context: FitContext
    table: Any  # X as given
    seeds: list[int] = field(default_factory=list)  # seeds of the stages of the fit
    grams: Grams = field(default_factory=Grams)  # one matrix per kernel
    weights: FloatArray = field(default_factory=lambda: np.empty(0))  # sample weights, (n_rows,)
    # Rows from which kernels are computed, in the model's coordinates.
    kernel_rows: FloatArray = MADE_LATER
    coordinates: Coordinates = MADE_LATER
    fitted: dict[str, Any] = field(default_factory=dict)  # attributes of the estimator

    @property
    def rows(self) -> Passes:
        """Passes over the rows; a precomputed matrix has none."""
        assert self.passes is not None
        return self.passes
