"""State of a fit of centres before starting centres are found: the choices made so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from daskmm.auto.n_clusters import ClusterNumberPath
from daskmm.data.blocks import Layout
from daskmm.data.errors import warn_user
from daskmm.engine.first_pass import Survey, described_data
from daskmm.engine.passes import Passes
from daskmm.kmeans.method import Method
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import Update
from daskmm.mm.context import FitContext
from daskmm.mm.journal import draw_seeds
from daskmm.mm.stages import MADE_LATER
from daskmm.numerics.columns import Expansion


@dataclass(frozen=True)
class Choices:
    """The first pass of a fit of centres, and the choices made on its sample."""

    passes: Passes  # passes over a table whose rows have been counted
    context: FitContext
    method: Method  # method chosen by the parameters and the table's layout
    rng: np.random.RandomState
    expansion: Expansion | None = None  # features of coded columns
    seeds: list[int] = field(default_factory=list)  # seed of the first pass, then of each start
    survey: Survey = MADE_LATER  # survey in the coordinates chosen so far
    update: Update = MADE_LATER
    found: CenterState | None = None  # clusters that were found while a parameter was chosen
    fitted: dict[str, Any] = field(default_factory=dict)  # attributes that the choices determine

    @property
    def layout(self) -> Layout:
        """Layout of the table."""
        return self.passes.blocks.layout

    @property
    def lazy(self) -> bool:
        """Whether trials run on the active dask scheduler.

        They do not if the table itself is annealed, since a trial would count as a pass over it.
        """
        return self.layout.lazy and self.method.on_sample

    def of_clusters(self, n_clusters: int) -> Choices:
        """Return the choices with a number of clusters."""
        method = replace(self.method, n_clusters=n_clusters)
        return replace(self, method=method).with_fitted(n_clusters_=n_clusters)

    def with_fitted(self, **attributes: Any) -> Choices:
        """Return the choices with more fitted attributes."""
        return replace(self, fitted={**self.fitted, **attributes})


C = TypeVar("C", bound=Choices)


def with_seeds(choices: C) -> C:
    """Draw the seed of the first pass, and one per start."""
    journal, size = choices.context.journal, 1 + choices.method.n_starts
    return replace(choices, seeds=draw_seeds(journal, choices.rng, size))


def with_same_data(choices: C) -> C:
    """Resume the journal of an earlier run; raise if that run had other data."""
    described = described_data(choices.layout, choices.survey)
    choices.context.journal.resume(described, choices.passes)
    return choices


_NO_CLUSTERS = (
    "No clusters were found: no gap in density divides the rows, so they count as one cluster. "
    "Look at {path}. Clusters may overlap without a gap: if there are such, give a number."
)
_FEW_TRIED = (
    "{parameter}='auto' chose {chosen}, at the end of what was tried, and there may be more "
    "clusters: raise {bound}."
)


def warn_of_number(path: ClusterNumberPath, most: int | None, what: str = "clusters") -> None:
    """Warn if no clusters were found, or the largest number that the choice allowed.

    `most` is the largest number that the parameters allow; `what` is the estimator's word for
    clusters.
    """
    if path.n_clusters == 1:
        warn_user(_NO_CLUSTERS.format(path=f"n_{what}_path_"), UserWarning)
    elif path.at_end:
        by_rows = f"sample_size, as {path.n_rows:,} rows are too few for more"
        bound = f"max_{what}" if path.n_clusters == most else by_rows
        message = _FEW_TRIED.format(parameter=f"n_{what}", chosen=path.n_clusters, bound=bound)
        warn_user(message, UserWarning)
