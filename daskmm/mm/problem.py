"""What the MM driver works with: states, the steps that a problem takes, and what they told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]


class State(Protocol):
    """State of one start: a frozen dataclass with the power `s` of its next step."""

    @property
    def s(self) -> float:
        """The power; −∞ for a hard step."""


S = TypeVar("S", bound=State)


@registered
@dataclass(frozen=True)
class Step(Generic[S]):
    """What one reading of the data told of a state, and the state that follows.

    Attributes
    ----------
    state : State
        After the step, at the same power.
    objective : float
        Mean over the rows (by sample weight) of M_s at the state before.
    inertia : float
        Mean of the smallest distance at the state before.
    penalty : float
        What f adds to them.
    hardness : float
        Mean share of a row's weight that its nearest centre holds.
    cluster_weights : ndarray of shape (n_clusters,)
        Σφ per cluster; after a hard step, the sample weight it serves.
    shift : float
        Largest distance that a centre moved.
    moved : bool
        Whether anything changed at all.
    coincident_centers : int
        Centres of the state before that lie on another one.
    """

    state: S
    objective: float
    inertia: float
    penalty: float
    hardness: float
    cluster_weights: FloatArray
    shift: float
    moved: bool
    coincident_centers: int


class Problem(Protocol[S]):
    """Data and algorithm, as the driver sees them."""

    # Sum of the sample weights.
    weight: float
    # Power below which no group of coincident centres can stay together.
    splitting_power: float
    # Mean distance that is nothing but rounding.
    rounding: float
    # Whether steps are taken over all rows, in the model's own distance.
    exact: bool

    @property
    def n_passes(self) -> int:
        """Sweeps over the data so far."""

    def start(self, start: Any, s: float) -> S:
        """State at a start and a power."""

    def steps(self, states: Sequence[S]) -> list[Step[S]]:
        """One MM step of each state, in one reading of the data."""


@registered
@dataclass(frozen=True)
class IterationRecord:
    """What one MM iteration over the data saw and did.

    Attributes
    ----------
    iteration : int
        Counted from 1.
    stage : {"anneal", "hard"}
        Whether the step was taken at a finite power, or was Lloyd's.
    s : float
        The power of the step; −∞ in the hard stage.
    objective : float
        f per unit of sample weight, at the state with which the iteration began.
    inertia : float
        Σ_i min_j d_ij at that state.
    shift : float
        Largest distance that a centre moved, in the model's coordinates.
    n_passes : int
        Sweeps over the data so far.
    seconds : float
        Since the fit began.
    coincident_centers : int
        Centres of that state that lie on another one.
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
    """One start on its way; its history is not to be changed.

    Attributes
    ----------
    state : State
        Its power is that of the next step; once done, of the last.
    stage : {"anneal", "hard", "done"}
    history : list of IterationRecord
    converged : bool
    calm : int
        Iterations in a row without a change worth the name.
    last : float
        The value whose change is watched, in the last iteration.
    scored : Step or None
        The hard step at the final state, where it has been taken.
    """

    state: S
    stage: str
    history: list[IterationRecord] = field(default_factory=list)
    converged: bool = False
    calm: int = 0
    last: float = np.inf
    scored: Step[S] | None = None


# Centres closer than 1e-4 of the root mean square distance of the rows to theirs coincide.
COINCIDENT = 1e-8
