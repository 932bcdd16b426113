"""Centre-based algorithms: the MM update from the sums over all rows, and the problem it solves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Position
from daskmm.engine.passes import Passes
from daskmm.kmeans.sums import CandidateSums, CenterState, CenterSums, candidate_sums
from daskmm.mm.driver import Step
from daskmm.mm.problem import COINCIDENT
from daskmm.numerics.distances import CANCELLATION
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN
from daskmm.numerics.entropy import negative_entropy, softmin_weights, within_dispersion
from daskmm.numerics.rows import Rows

FloatArray = NDArray[np.float64]

# Distances below 1e-13 of the rows' spread, squared, are rounding.
ROUNDING = 1e-26


# What becomes of the centres of clusters that a hard step emptied: the next state, from the new
# centres, the sums and the state before.
Relocation = Callable[[FloatArray, CenterSums, CenterState], CenterState]


def to_worst_served(centers: FloatArray, sums: CenterSums, state: CenterState) -> CenterState:
    """Centres of emptied clusters go to the worst-served rows (a `Relocation`)."""
    return replace(state, centers=relocated(centers, sums, state.distortion))


def relocated(centers: FloatArray, sums: CenterSums, distortion: Distortion) -> FloatArray:
    """Centres of empty clusters moved to the worst-served rows, one each.

    Such rows are known after hard steps only. A centre that serves no row may go anywhere
    without raising the objective.
    """
    rows = sums.farthest.rows
    if not len(rows):
        return centers
    empty = np.flatnonzero(sums.weights == 0)[: len(rows)]
    moved = centers.copy()
    moved[empty] = distortion.inside(rows[: len(empty)])
    return moved


class Update(Protocol):
    """What differs between the centre-based algorithms."""

    @property
    def hedged(self) -> bool:
        """Whether hard steps alone, from the same start, may win over an annealing by their cost.

        Where they may not, weights are learned while it anneals, and a restart with these
        weights may find better clusters.
        """

    @property
    def distortion(self) -> Distortion:
        """The distortion, in the model's coordinates."""

    @property
    def relocation(self) -> Relocation:
        """Where centres of emptied clusters go."""

    def start(self, centers: FloatArray, s: float) -> CenterState:
        """State at given centres and power."""

    def update(self, sums: CenterSums, state: CenterState, weight: float) -> CenterState:
        """State that minimises the majorizing function given by `sums`."""

    def penalty(self, state: CenterState) -> float:
        """What the objective adds to the mean of the power means."""


@dataclass(frozen=True)
class PowerUpdate:
    """Power k-means: θ_j = Σ_i φ_ij x_i / Σ_i φ_ij (Xu & Lange 2019, Algorithm 1).

    Lloyd's algorithm is the same with hard φ.

    Attributes
    ----------
    distortion : Distortion
        In the model's coordinates.
    partial : bool
        Whether values may be missing.
    relocation : Relocation
    """

    distortion: Distortion = SQUARED_EUCLIDEAN
    partial: bool = False
    relocation: Relocation = to_worst_served

    hedged: ClassVar[bool] = True

    def start(self, centers: FloatArray, s: float) -> CenterState:
        """State at given centres."""
        return CenterState(centers, s, None, self.distortion, self.partial)

    def update(self, sums: CenterSums, state: CenterState, weight: float) -> CenterState:
        """Weighted means; the centres of clusters that a hard step emptied go elsewhere."""
        return self.relocation(moved_centers(sums, state), sums, state)

    def penalty(self, state: CenterState) -> float:
        """No penalty."""
        return 0.0


@dataclass(frozen=True)
class EntropyUpdate:
    """EWP: the centres of power k-means, then w ∝ exp(−D/λ) with the new centres.

    Chakraborty, Paul, Das & Xu 2020, Algorithm 1.

    Attributes
    ----------
    lam : float
        λ per unit of sample weight; infinite for equal weights, which have no penalty.
    varying : ndarray of bool of shape (n_features,)
        Features that are not constant; the others get weight 0.
    distortion : Distortion
        In the model's coordinates.
    partial : bool
        Whether values may be missing.
    relocation : Relocation
    """

    lam: float
    varying: NDArray[np.bool_]
    distortion: Distortion = SQUARED_EUCLIDEAN
    partial: bool = False
    relocation: Relocation = to_worst_served

    @property
    def hedged(self) -> bool:
        """Only of equal weights; those that hard steps learn can be cheap and wrong."""
        return bool(np.isinf(self.lam))

    def start(self, centers: FloatArray, s: float) -> CenterState:
        """State at given centres, with equal weights."""
        equal = softmin_weights(np.zeros(centers.shape[1]), self.lam, self.varying)
        return CenterState(centers, s, equal, self.distortion, self.partial)

    def update(self, sums: CenterSums, state: CenterState, weight: float) -> CenterState:
        """Centres as in power k-means, weights by their dispersion per unit of sample weight."""
        assert sums.squares is not None
        means = moved_centers(sums, state)
        masses = sums.weights[:, None] if sums.denominators is None else sums.denominators
        dispersion = within_dispersion(sums.squares, masses, means) / weight
        weights = softmin_weights(dispersion, self.lam, self.varying)
        return replace(self.relocation(means, sums, state), feature_weights=weights)

    def penalty(self, state: CenterState) -> float:
        """λ Σ_l w_l log w_l."""
        assert state.feature_weights is not None
        if np.isinf(self.lam):
            return 0.0
        return self.lam * negative_entropy(state.feature_weights)


def moved_centers(sums: CenterSums, state: CenterState) -> FloatArray:
    """Weighted means of the clusters; what has no weight in a centre keeps its place."""
    masses = sums.weights[:, None] if sums.denominators is None else sums.denominators
    return np.divide(sums.sums, masses, out=state.centers.copy(), where=masses > 0)


def coincident_centers(state: CenterState, mean_distance: float) -> int:
    """Centres that lie where another one does.

    Parameters
    ----------
    state : CenterState
    mean_distance : float
        Mean distance of the rows to their nearest centre, the yardstick.

    Returns
    -------
    int
        0 when all are apart; otherwise the number of centres that could be dropped.
    """
    return int(repeated_centers(state, mean_distance).sum())


def repeated_centers(state: CenterState, mean_distance: float) -> NDArray[np.bool_]:
    """Which centres lie where an earlier one does; parameters as in `coincident_centers`."""
    distortion, centers, w = state.distortion, state.centers, state.feature_weights
    limit = COINCIDENT ** (distortion.degree / 2) * mean_distance
    if distortion.code == SQUARED_EUCLIDEAN.code and _clearly_apart(centers, w, limit):
        return np.zeros(len(centers), dtype=np.bool_)
    apart = distortion.distances(distortion.tile(centers, False), centers, w)
    same: NDArray[np.bool_] = np.tril(apart <= limit, -1).any(axis=1)
    return same


def _clearly_apart(centers: FloatArray, feature_weights: FloatArray | None, limit: float) -> bool:
    """Whether a product, which may cancel, tells that no two centres are as near as a limit."""
    weighted = centers if feature_weights is None else centers * feature_weights
    products = weighted @ centers.T
    squares = products.diagonal()
    sizes = squares[:, None] + squares
    near = sizes - 2.0 * products <= limit + CANCELLATION * sizes
    return np.count_nonzero(near) == len(centers)


class CentersProblem:
    """Centres among the rows of a table, one pass per step (a `daskmm.mm.driver.Problem`).

    Parameters
    ----------
    passes : Passes
    coordinates : Rows
        The model's.
    weight : float
        Sum of the sample weights.
    update : Update
    spread : float
        Mean distance of the rows from their mean.
    exact : bool
        Whether these are all rows, not a sample.
    """

    def __init__(
        self,
        passes: Passes,
        coordinates: Rows,
        weight: float,
        update: Update,
        spread: float,
        exact: bool = True,
    ) -> None:
        self.passes = passes
        self.coordinates = coordinates
        self.weight = weight
        self.update = update
        self.degree = update.distortion.degree
        self.spread = spread
        self.rounding = ROUNDING ** (self.degree / 2) * spread
        self.exact = exact
        self.splitting_power = 0.0

    @property
    def n_passes(self) -> int:
        """Sweeps over the data so far."""
        return self.passes.n_passes

    def start(self, start: FloatArray | CenterState, s: float) -> CenterState:
        """State at given centres (in the model's coordinates), or where another problem ended."""
        centers = start.centers if isinstance(start, CenterState) else start
        # The lowest critical power that rows of p features have, of squared distances ever, of
        # others as a rule.
        common = self.update.distortion.code == SQUARED_EUCLIDEAN.code
        self.splitting_power = 1.0 - centers.shape[1] / (2.0 if common else 1.0)
        if isinstance(start, CenterState):
            return replace(start, s=s)
        return self.update.start(start, s)

    def steps(self, states: Sequence[CenterState]) -> list[Step[CenterState]]:
        """One MM step of each state, in one pass."""
        return [self._step(*pair) for pair in zip(states, self.sums(states), strict=True)]

    def sums(self, states: Sequence[CenterState]) -> tuple[CenterSums, ...]:
        """Sums over the rows for each state, in one pass."""
        found: CandidateSums = self.passes.reduce(mm_step, self.coordinates, tuple(states))
        return found.candidates

    def yardstick(self, sums: CenterSums) -> float:
        """Distance of which a small share separates coincident centres from others."""
        return max(sums.inertia / self.weight, self.rounding / COINCIDENT ** (self.degree / 2))

    def _step(self, before: CenterState, sums: CenterSums) -> Step[CenterState]:
        after = self.update.update(sums, before, self.weight)
        inertia = sums.inertia / self.weight
        return Step(
            state=after,
            objective=sums.objective / self.weight,
            inertia=inertia,
            penalty=self.update.penalty(before),
            hardness=sums.hardness / self.weight,
            cluster_weights=sums.weights,
            shift=float(np.sqrt(np.square(after.centers - before.centers).sum(axis=1).max())),
            moved=_moved(before, after),
            coincident_centers=coincident_centers(before, self.yardstick(sums)),
        )


def _moved(before: CenterState, after: CenterState) -> bool:
    """Whether a step changed anything at all; if not, no later one will."""
    if not np.array_equal(before.centers, after.centers):
        return True
    if before.feature_weights is None or after.feature_weights is None:
        return False
    return not np.array_equal(before.feature_weights, after.feature_weights)


def mm_step(
    rows: NDArray,
    weights: NDArray | None,
    position: Position,
    coordinates: Rows,
    states: tuple[CenterState, ...],
) -> CandidateSums:
    """Kernel of an iteration: `candidate_sums` of one block."""
    return candidate_sums(rows, weights, coordinates, states)
