"""Parameters of a fit of a mixture, before any data are read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Layout
from daskmm.mixture.em import MixtureState
from daskmm.mm.driver import Schedule
from daskmm.numerics.gaussians import factors_of_precisions

FloatArray = NDArray[np.float64]

# Number of EM steps of all starts on the sample, before the best starts continue.
TRIAL_STEPS = 10
# Degrees of freedom of starts, if components are t distributions.
FIRST_DEGREES = 10.0
# Rows of the sample per component and, for covariance matrices, per component and feature.
_ROWS, _ROWS_PER_FEATURE = 200, 20
_LEAST_ROWS = 10_000


@dataclass(frozen=True)
class Given:
    """Starting components that the user gives, completely or in part."""

    shares: FloatArray | None = None  # shares of the components, (n_components,)
    means: FloatArray | None = None  # means of the components, (n_components, n_features)
    precisions: FloatArray | None = None  # inverse covariances, in the shape of the covariance type

    @property
    def empty(self) -> bool:
        """Whether nothing was given."""
        return all(part is None for part in (self.shares, self.means, self.precisions))

    @property
    def complete(self) -> bool:
        """Whether everything was given."""
        return not any(part is None for part in (self.shares, self.means, self.precisions))

    def over(self, state: MixtureState) -> MixtureState:
        """Return a state in which given values replace those that were found."""
        shares = state.shares if self.shares is None else self.shares
        means = state.means if self.means is None else self.means
        if self.precisions is None:
            return replace(state, shares=shares, means=means)
        kind = state.covariance_type
        matrices = kind in ("full", "tied")
        covariances = np.linalg.inv(self.precisions) if matrices else 1.0 / self.precisions
        factors = factors_of_precisions(self.precisions, kind)
        return MixtureState(kind, shares, means, np.asarray(covariances), factors)


@dataclass(frozen=True)
class Settings:
    """Parameters of a fit."""

    n_components: int  # the number, or the largest one that may be chosen
    covariance_type: str  # "full", "tied", "diag" or "spherical"
    reg_covar: float  # number that is added to all variances
    tol: float  # least gain of the mean log-likelihood; a step that gains less ends the fit
    max_iter: int  # EM steps over the table
    n_starts: int  # starts on the sample; 0 if the components are given
    # Number of starts that are tried first; the others are tried unless these agree.
    n_first: int
    init_params: str = "kmeans"  # "kmeans", "k-means++" or "random_from_data"
    given: Given = Given()
    # Components of an earlier fit, from which this one continues.
    earlier: MixtureState | None = None
    sample_size: int | None = None  # None for the default
    least_rows: int = 1  # least number of rows of positive weight in a table
    # Whether the covariance type is chosen on the sample; until then `covariance_type` is the most
    # general one.
    chooses_type: bool = False
    partial: bool = False  # whether values may be missing
    student: bool = False  # whether components are t distributions

    @property
    def schedule(self) -> Schedule:
        """Schedule of the steps over the table."""
        return Schedule(-np.inf, max_iter=self.max_iter, tol=0.0, calm=1)


def wanted_rows(settings: Settings, layout: Layout) -> int | None:
    """Return the number of rows of the sample; None for the default of `first_pass`.

    Covariance matrices need rows for each of their p columns.
    """
    if settings.sample_size is not None or layout.n_rows is None:
        return settings.sample_size
    per_component = _ROWS
    if settings.covariance_type in ("full", "tied"):
        per_component = max(per_component, _ROWS_PER_FEATURE * layout.n_features)
    wanted = max(_LEAST_ROWS, per_component * settings.n_components)
    return layout.n_rows if layout.n_rows <= 2 * wanted else wanted
