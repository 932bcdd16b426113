"""Open the Gram matrices of a fit: read, store or prepare them before the fit begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import Passes
from daskmm.gram.matrices import Grams
from daskmm.gram.rows import KernelRows
from daskmm.mm.context import FitContext
from daskmm.mm.stages import MADE_LATER
from daskmm.numerics.rows import Coordinates

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Opening:
    """State of opening the Gram matrices of a fit.

    Attributes
    ----------
    passes : Passes or None
        Passes over the rows; None for a precomputed matrix.
    sample_weight : array-like or None
        Sample weights as they were given.
    rng : RandomState
        Draws the seeds.
    scratch : Path
        Folder for the duration of the fit.
    context : FitContext
        Journal, callbacks and request to stop.
    table : array-like
        X as it was given.
    seeds : list of int
        Seeds of the stages of the fit.
    grams : Grams
        The matrix of each kernel.
    weights : ndarray of shape (n_rows,)
        Sample weights.
    kernel_rows : KernelRows
        Rows from which kernels are computed, in the model's coordinates.
    weight : float
        Sum of the sample weights.
    coordinates : Coordinates
        The model's coordinates.
    fitted : dict
        Fitted attributes.
    """

    passes: Passes | None
    sample_weight: Any
    rng: np.random.RandomState
    scratch: Path
    context: FitContext
    table: Any
    seeds: list[int] = field(default_factory=list)
    grams: Grams = field(default_factory=Grams)
    weights: FloatArray = field(default_factory=lambda: np.empty(0))
    kernel_rows: KernelRows = MADE_LATER
    weight: float = 0.0
    coordinates: Coordinates = MADE_LATER
    fitted: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> Passes:
        """Passes over the rows; used only if there are rows."""
        assert self.passes is not None
        return self.passes
