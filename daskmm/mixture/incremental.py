"""Incremental EM for `partial_fit`: one record of sums per call.

The M-step needs only the sums of an E-step over the rows of a call. These records are kept, and can
be replaced, faded and merged; the components after a call maximise the sum of all minorizing
functions (Neal & Hinton, "A view of the EM algorithm that justifies incremental, sparse, and other
variants", 1998). There is no learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.passes import Passes
from daskmm.kmeans.sums import PerStart
from daskmm.mixture.em import MixtureState, block_sums, stated
from daskmm.mm.keyed_records import KeyedRecords
from daskmm.numerics.gaussians import EMSums, maximized
from daskmm.numerics.student import expected_logs
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# It is registered here because `numerics` does not import storage.
registered(EMSums)


@registered
@dataclass(frozen=True)
class EMRecord:
    """Sums over the rows of one or several calls."""

    n_rows: int  # number of rows, which does not fade
    weight: float  # sum of their sample weights
    sums: EMSums  # sums of an E-step
    # Centres to which the sums refer, one per component.
    means: FloatArray
    kept: float = 1.0  # share of their weights that the rows still have after fading

    @classmethod
    def of_fit(cls, state: MixtureState, sizes: FloatArray, fit: tuple[int, float, float]) -> Self:
        """Return the record of the rows of a fit, computed from its components.

        `sizes` are the sums of the responsibilities of each component, and `fit` is the number of
        rows, their mean log-likelihood, and the number that was added to variances.
        """
        n_rows, likelihood, reg_covar = fit
        weight, kind, p = float(sizes.sum()), state.covariance_type, state.means.shape[1]
        if kind == "full":
            scatters = sizes[:, None, None] * (state.covariances - reg_covar * np.eye(p))
        elif kind == "tied":
            scatters = weight * (state.covariances - reg_covar * np.eye(p))[None]
        else:
            variances = state.covariances.reshape(len(sizes), -1) - reg_covar
            scatters = sizes[:, None] * np.broadcast_to(variances, state.means.shape)
        pulls = logs = None
        if state.degrees is not None:
            # The fit is at a maximum of the likelihood, where the mean of u is 1.
            pulls, logs = sizes, expected_logs(sizes, state.degrees, p)
        still = np.zeros_like(state.means)
        sums = EMSums(sizes, still, scatters, weight * likelihood, pulls, logs)
        return cls(n_rows, weight, sums, state.means)

    def around(self, means: FloatArray) -> Self:
        """Return the record with its sums taken around other centres."""
        own, shift = self.sums, means - self.means
        weights = own.masses[:, None]
        if own.scatters.ndim == 2:
            scatters = own.scatters - 2.0 * own.sums * shift + weights * np.square(shift)
        else:
            cross = own.sums[:, :, None] * shift[:, None, :]
            change = weights[:, None] * shift[:, :, None] * shift[:, None, :]
            change -= cross + np.swapaxes(cross, 1, 2)
            tied = len(own.scatters) < len(change)
            scatters = own.scatters + (change.sum(axis=0) if tied else change)
        sums = replace(own, sums=own.sums - weights * shift, scatters=scatters)
        return replace(self, sums=sums, means=means)

    def faded(self, factor: float) -> Self:
        """Return the record with the sample weights of its rows multiplied by a factor."""
        weight, sums = factor * self.weight, self.sums.times(factor)
        return replace(self, weight=weight, sums=sums, kept=factor * self.kept)

    def __add__(self, other: Self) -> Self:
        n_rows, weight = self.n_rows + other.n_rows, self.weight + other.weight
        return type(self)(n_rows, weight, self.sums + other.around(self.means).sums, self.means)


def record_of(passes: Passes, state: MixtureState) -> EMRecord:
    """Return the record of new rows for the given components, from one pass over the rows.

    It raises ValueError if there are no rows, no row has weight, or a value cannot be used.
    """
    passes.count_rows()
    n_rows = passes.blocks.layout.n_rows
    if not n_rows:
        raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: X.")
    found: PerStart[EMSums] = passes.reduce(block_sums, (state,))
    [sums] = found.records
    weight = float(sums.weights.sum())
    if weight == 0.0:
        raise ValueError("sample_weight is zero for all rows.")
    return EMRecord(n_rows, weight, sums, state.means)


def after_records(
    records: KeyedRecords[EMRecord], state: MixtureState, reg_covar: float
) -> MixtureState:
    """Return the components that maximise the sum of all records, given the earlier components.

    It raises SingularComponentError if a covariance is not positive definite.
    """
    total = records.total.around(state.means)
    return stated(maximized(total.sums, state, reg_covar), state.partial)
