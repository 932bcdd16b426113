"""Interface between the MM driver and the algorithms: states, steps, problems, history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]


class State(Protocol):
    """State of one start: a frozen dataclass that has the power `s` of its next step."""

    @property
    def s(self) -> float:
        """The power; −∞ for a hard step."""


S = TypeVar("S", bound=State)


@registered
@dataclass(frozen=True)
class Step(Generic[S]):
    """Result of one MM step: what one pass computed at a state, and the state after it."""

    state: S  # state after the step, at the same power
    objective: float  # weighted mean over the rows of M_s at the state before
    inertia: float  # weighted mean over the rows of the smallest distance at the state before
    penalty: float  # penalty term of f
    hardness: float  # mean over the rows of the nearest centre's share of a row's weight
    # Σφ per cluster, (n_clusters,); after a hard step, the sample weight of its rows.
    cluster_weights: FloatArray
    shift: float  # largest distance that a centre moved
    moved: bool  # whether anything changed at all
    # Number of centres of the state before that coincide with another one. Steps that do not count
    # them say 0.
    coincident_centers: int
    # Whether the next step depends on nothing but the state after this one.
    resumable: bool = True
    # Whether the cost at the state before is exact; steps that compare rows with few centres may
    # find a larger one.
    complete: bool = True
    # Counterpart of `cluster_weights` for the rows that have a value, (n_clusters, n_features) or
    # (n_clusters, 1); None if it is not known.
    value_weights: FloatArray | None = None


class Problem(Protocol[S]):
    """Data and algorithm, as the driver uses them."""

    # Sum of the sample weights.
    weight: float
    # Power below which coincident centres always separate.
    splitting_power: float
    # Mean distances that differ by at most this value differ by rounding only.
    rounding: float
    # Whether steps are taken over all rows, in the model's own distance.
    exact: bool
    # Name that records give to steps at the power −∞.
    hard_stage: str

    @property
    def n_passes(self) -> int:
        """Passes over the data so far."""

    def start(self, start: Any, s: float) -> S:
        """Return the state at a start and a power."""

    def steps(self, states: Sequence[S]) -> list[Step[S]]:
        """Take one MM step of each state, in one pass over the data."""


@registered
@dataclass(frozen=True)
class IterationRecord:
    """Record of one MM iteration over the data.

    Attributes
    ----------
    iteration : int
        Number of the iteration, counted from 1.
    stage : {"anneal", "hard", "EM"}
        Whether the step was taken at a finite power, was Lloyd's, or was one of EM.
    s : float
        The power of the step; −∞ in other stages than "anneal".
    objective : float
        f per unit of sample weight, at the state with which the iteration began.
    inertia : float
        Σ_i min_j d_ij at that state.
    shift : float
        Largest distance that a centre moved, in the model's coordinates.
    n_passes : int
        Passes over the data so far.
    seconds : float
        Time since the fit began.
    coincident_centers : int
        Number of centres of that state that coincide with another one.
    exact : bool
        Whether the step was taken over all rows and in the model's own distance; False for the
        annealing on a sample, or on low-rank features.
    """

    iteration: int
    stage: str
    s: float
    objective: float
    inertia: float
    shift: float
    n_passes: int
    seconds: float
    coincident_centers: int
    exact: bool


@registered
@dataclass(frozen=True)
class Run(Generic[S]):
    """State and history of one start; the history must not be mutated."""

    state: S  # state with the power of the next step or, at the end, of the last one
    stage: str  # kind of the next step: "anneal", "hard" or "done"
    history: list[IterationRecord] = field(default_factory=list)  # one record per iteration
    converged: bool = False  # whether the run ended because its changes had become negligible
    calm: int = 0  # iterations in a row with a negligible change
    # Objective or cost of the last iteration; the test of convergence uses its change.
    last: float = np.inf
    scored: Step[S] | None = None  # the hard step at the final state, if it has been taken


# Centres closer than 1e-4 of the root mean square distance of rows to their centres coincide.
COINCIDENT = 1e-8
