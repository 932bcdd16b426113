"""MM updates of the centre-based algorithms, from the sums that a pass computes.

- `PowerUpdate`: power k-means, and Lloyd's algorithm at s = −∞. θ_j = Σ_i φ_ij x_i / Σ_i φ_ij
  (Xu & Lange 2019, Algorithm 1, step 4).
- `EntropyUpdate`: entropy weighted power k-means (EWP). The centres are the same (Chakraborty et
  al. 2020, eq. 10), and the feature weights are w_l ∝ exp(−D_l / λ) with D_l = Σ_ij φ_ij
  (x_il − θ_jl)² at the new θ (eq. 11); `daskmm.numerics.entropy` computes D and w.

The φ_ij are defined in `daskmm.numerics.power_means`; their sums are in `daskmm.kmeans.sums`.
`CentersProblem` is the problem that the driver in `daskmm.mm` minimises.

References
----------
J. Xu, K. Lange, "Power k-Means Clustering", ICML 2019.
S. Chakraborty, D. Paul, S. Das, J. Xu, "Entropy Weighted Power k-Means Clustering", AISTATS 2020.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled import library
from daskmm.compiled.layout import have_waned
from daskmm.compiled.partial import directions_for
from daskmm.data.blocks import Block, row_blocks
from daskmm.engine.changes import compare
from daskmm.engine.first_pass import MANY_CLUSTERS
from daskmm.engine.passes import Passes
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.kmeans.bounds import Bounds, KeptBounds
from daskmm.kmeans.sums import CenterState, CenterSums, PerStart, center_sums, showing
from daskmm.kmeans.trimming import trimmed_sums
from daskmm.mm.driver import Step
from daskmm.mm.problem import COINCIDENT
from daskmm.numerics.distances import CANCELLATION
from daskmm.numerics.distortions.base import Distortion, over_features
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN, Bregman
from daskmm.numerics.entropy import negative_entropy, softmin_weights
from daskmm.numerics.information import weighted_variance
from daskmm.numerics.rows import Coordinates, Rows, tile_rows, tiles
from daskmm.numerics.sparse_rows import dense

FloatArray = NDArray[np.float64]

# Squared distances below this share of the rows' spread, or of their norm, are rounding errors.
ROUNDING = 1e-26

# All pairs of centres are compared directly if n_clusters² · n_features is at most this number.
_FEW_ELEMENTS = 1 << 14
# Single precision distinguishes centres, up to the share `CANCELLATION`, if there are at most this
# many features, and if coordinates and squared norms are below this value.
_FEATURES_IN_SINGLE, _LARGEST_IN_SINGLE = 1024, 1e30


def relocated(centers: FloatArray, sums: CenterSums, distortion: Distortion) -> FloatArray:
    """Return the centres; the centre of each empty cluster is moved to one of the farthest rows.

    The farthest rows are recorded in hard steps only. A centre without rows can be moved anywhere
    without raising the objective. Only one of several equal rows gets a centre, so no centres
    coincide.
    """
    empty = np.flatnonzero(sums.weights == 0)
    if not (len(empty) and len(sums.farthest.rows)):
        return centers
    rows = dense(sums.farthest.rows)
    rows = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
    empty = empty[: len(rows)]
    moved = centers.copy()
    moved[empty] = distortion.inside(rows[: len(empty)])
    return moved


@dataclass(frozen=True)
class Update(ABC):
    """The part of an algorithm that differs between the centre-based algorithms."""

    distortion: Distortion = SQUARED_EUCLIDEAN  # distortion in the model's coordinates
    partial: bool = False  # whether values may be missing
    relocates: bool = True  # whether centres of emptied clusters move to the farthest rows
    trim: float = 0.0  # share of the rows that hard steps leave out

    @property
    @abstractmethod
    def hedged(self) -> bool:
        """Whether starts are also run with hard steps alone, and the cheaper result is kept.

        It is False if feature weights are learned: hard steps can find weights with a low cost that
        are wrong.
        """

    def placed(self, centers: FloatArray, sums: CenterSums, state: CenterState) -> FloatArray:
        """Return new centres; those of clusters that a hard step emptied may be `relocated`."""
        return relocated(centers, sums, state.distortion) if self.relocates else centers

    @abstractmethod
    def start(self, centers: FloatArray, s: float) -> CenterState:
        """Return the state at given centres and power."""

    @abstractmethod
    def update(self, sums: CenterSums, state: CenterState, weight: float) -> CenterState:
        """Return the state that minimises the majorizing function given by `sums`."""

    @abstractmethod
    def penalty(self, state: CenterState) -> float:
        """Return the penalty, which the objective adds to the mean of the power means."""


class PowerUpdate(Update):
    """Update of power k-means (Xu & Lange 2019, Algorithm 1); at s = −∞ (hard φ) that of Lloyd."""

    hedged = True

    def start(self, centers: FloatArray, s: float) -> CenterState:
        """Return the state at given centres and power."""
        allowed = self.distortion.allowed(centers, centers)
        # Later steps take the directions of the first, because finding them takes time.
        found = None if self.partial else directions_for(allowed, self.distortion)
        return CenterState(allowed, s, None, self.distortion, self.partial, directions=found)

    def update(self, sums: CenterSums, state: CenterState, weight: float) -> CenterState:
        """Move the centres to the weighted means, and those of emptied clusters as `placed`."""
        return replace(state, centers=self.placed(moved_centers(sums, state), sums, state))

    def penalty(self, state: CenterState) -> float:
        """Return 0."""
        return 0.0


@dataclass(frozen=True)
class EntropyUpdate(Update):
    """Update of EWP: the centres of power k-means, then the feature weights w ∝ exp(−D/λ).

    This is Algorithm 1 of Chakraborty et al. 2020 for its objective (7): eq. 10 for the centres,
    and eq. 11 for the weights, with the new centres in D.
    """

    # λ per unit of sample weight (the paper's λ is for the sum over rows); infinite for equal
    # weights, which have no penalty.
    lam: float = field(kw_only=True)
    # Features that are not constant, (n_features,); the others get weight 0.
    varying: NDArray[np.bool_] = field(kw_only=True)
    # Group of each feature, (n_features,); the weight of a group follows from the sum of its
    # features' dispersions.
    groups: NDArray[np.int64] | None = None

    @property
    def hedged(self) -> bool:
        """Whether the feature weights are fixed (equal)."""
        return bool(np.isinf(self.lam))

    def start(self, centers: FloatArray, s: float) -> CenterState:
        """Return the state at given centres and power, with equal feature weights."""
        equal = self._weights(np.zeros(centers.shape[1]))
        return CenterState(centers, s, equal, self.distortion, self.partial)

    def update(self, sums: CenterSums, state: CenterState, weight: float) -> CenterState:
        """Compute the centres (eq. 10), then the feature weights at these centres (eq. 11)."""
        assert sums.squares is not None
        means = moved_centers(sums, state)
        dispersion = state.distortion.dispersion(sums.squares, sums.masses, means) / weight
        weights = self._weights(dispersion)
        return replace(state, centers=self.placed(means, sums, state), feature_weights=weights)

    def penalty(self, state: CenterState) -> float:
        """Return λ Σ_l w_l log w_l (eq. 7)."""
        assert state.feature_weights is not None
        if np.isinf(self.lam):
            return 0.0
        return self.lam * negative_entropy(self.of_groups(state.feature_weights))

    def of_groups(self, feature_weights: FloatArray) -> FloatArray:
        """Return the weight of each group, or of each feature if there are no groups."""
        if self.groups is None:
            return feature_weights
        return feature_weights[np.unique(self.groups, return_index=True)[1]]

    def per_feature(self, dispersion: FloatArray) -> FloatArray:
        """Divide each group's dispersion, which each of its features holds, by their number."""
        if self.groups is None:
            return dispersion
        return dispersion / np.bincount(self.groups)[self.groups]

    def _weights(self, dispersion: FloatArray) -> FloatArray:
        """Return the weights of the features; features of a group share its weight."""
        if self.groups is None:
            return softmin_weights(dispersion, self.lam, self.varying)
        varying = np.bincount(self.groups, self.varying) > 0
        whole = np.asarray(np.bincount(self.groups, dispersion), dtype=np.float64)
        return softmin_weights(whole, self.lam, varying)[self.groups]


def moved_centers(sums: CenterSums, state: CenterState) -> FloatArray:
    """Return the centres that minimise the majorizing function.

    They are the weighted means, scaled to the sphere for cosine distances. A coordinate without any
    weight keeps its value.
    """
    masses = sums.masses
    if (masses > 0).all():
        means = sums.sums / masses
    else:
        means = np.divide(sums.sums, masses, out=state.centers.copy(), where=masses > 0)
    means = state.distortion.allowed(means, state.centers)
    if state.relaxation == 1.0:
        return means
    # Means of directions are short, so the way to them is taken on the sphere: a step beyond a
    # short mean would turn a centre away from its rows.
    beyond = state.centers + state.relaxation * (means - state.centers)
    return state.distortion.allowed(beyond, state.centers)


def coincident_centers(state: CenterState, mean_distance: float, separation: float = 0.0) -> int:
    """Count the centres that coincide with an earlier one; see `repeated_centers`."""
    return int(repeated_centers(state, mean_distance, separation).sum())


def repeated_centers(
    state: CenterState, mean_distance: float, separation: float = 0.0
) -> NDArray[np.bool_]:
    """Return a mask of the centres that coincide with an earlier one.

    Centres coincide if they are closer than a small share of the mean distance of the rows to their
    nearest centre. `separation` is a lower bound of the distortion (a squared distance) between any
    two centres; 0 if unknown.
    """
    distortion, centers, w = state.distortion, state.centers, state.feature_weights
    limit = COINCIDENT ** (distortion.degree / 2) * mean_distance
    same = np.zeros(len(centers), dtype=np.bool_)
    if separation > limit:
        return same
    if isinstance(distortion, Bregman) and len(centers) * centers.size <= _FEW_ELEMENTS:
        # For few centres, the matrix products below would take longer than all differences.
        later, earlier = _pairs(len(centers))
        terms = distortion.elements(centers[later], centers[earlier])
        same[later[over_features(terms, w) <= limit]] = True
        return same

    factors = None
    if distortion.squared:
        factors = _factors_of_distances(centers, w, limit)

    def compare(own: slice) -> None:
        if factors is not None and _clearly_apart(factors, own, limit):
            return
        earlier = centers[: own.stop]
        apart = distortion.distances(distortion.tile(centers[own], False), earlier, w)
        same[own] = np.tril(apart <= limit, own.start - 1).any(axis=1)

    # All distances of ten thousand centres at once would take gigabytes, so parts of them are
    # computed on threads. The threads of BLAS would mostly wait for each other.
    parts = tiles(len(centers), tile_rows(centers.shape[1], len(centers)))
    with one_blas_thread():
        for _ in run_on_threads([functools.partial(compare, own) for own in parts]):
            pass
    return same


@functools.cache
def _pairs(n_centers: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of all pairs of centres, the later centre of each pair first."""
    return np.tril_indices(n_centers, -1)


# Centres, centres times feature weights, and weighted squared norms.
_Factors = tuple[NDArray, NDArray, NDArray]


def _factors_of_distances(
    centers: FloatArray, feature_weights: FloatArray | None, limit: float
) -> _Factors:
    """Return the factors of `_clearly_apart`, in single precision if that suffices."""
    weighted = centers if feature_weights is None else centers * feature_weights
    squares = np.einsum("ij,ij->i", weighted, centers)
    largest = max(squares.max(), np.abs(centers).max(), limit)
    if centers.shape[1] > _FEATURES_IN_SINGLE or not largest < _LARGEST_IN_SINGLE:
        return centers, weighted, squares
    single = centers.astype(np.float32)
    return (
        single,
        single if weighted is centers else weighted.astype(np.float32),
        squares.astype(np.float32),
    )


def _clearly_apart(factors: _Factors, own: slice, limit: float) -> bool:
    """Return True if all centres of a part are certainly farther than a limit from earlier ones."""
    centers, weighted, squares = factors
    sizes = squares[own, None] + squares[: own.stop]
    apart = sizes - 2.0 * (centers[own] @ weighted[: own.stop].T)
    near = apart <= float(limit) + CANCELLATION * sizes
    return np.count_nonzero(near) == len(near)


@dataclass(eq=False)
class CentersProblem:
    """Centres of a table's rows; one pass per step (a `daskmm.mm.problem.Problem`)."""

    passes: Passes
    coordinates: Rows  # coordinates in which distances are measured
    weight: float  # sum of the sample weights
    update: Update
    spread: float  # mean distance of the rows from their mean
    exact: bool = True  # whether steps are taken over all rows; False for a sample
    # Number of passes over all rows that other problems made; passes over a sample do not count.
    n_before: int = 0

    hard_stage = "hard"
    splitting_power = 0.0

    def __post_init__(self) -> None:
        layout, distortion = self.passes.blocks.layout, self.update.distortion
        self.degree = distortion.degree
        self.rounding = ROUNDING ** (self.degree / 2) * max(self.spread, distortion.norm)
        self._bounds = KeptBounds(layout, self.coordinates)
        # Sums of all rows and their weight, and tolerances with which later sums must agree.
        self._totals: tuple[FloatArray, FloatArray] | None = None
        # Soft steps of complete rows by the compiled loops leave out negligible weights.
        compiled = distortion.code is not None and not layout.sparse and library.available()
        self._leaves_out = compiled and not self.update.trim

    @property
    def n_passes(self) -> int:
        """Passes over all rows so far."""
        return self.n_before + (self.passes.n_passes if self.exact else 0)

    def start(self, start: FloatArray | CenterState, s: float) -> CenterState:
        """Return a given state, or that of centres in the model's coordinates, at power `s`."""
        centers = start.centers if isinstance(start, CenterState) else start
        # The lowest possible critical power for p features: a bound for squared Euclidean
        # distances, and a rule of thumb for others.
        common = 2.0 if self.update.distortion.squared else 1.0
        self.splitting_power = 1.0 - centers.shape[1] / common
        if isinstance(start, CenterState):
            return replace(start, s=s)
        return self.update.start(start, s)

    def steps(self, states: Sequence[CenterState]) -> list[Step[CenterState]]:
        """Take one MM step of each state, in one pass."""
        with one_blas_thread():  # entering this context takes as long as a short step
            found, bounds = self.sums(states), self._bounds.present(len(states))
            steps = [self._step(*of_one) for of_one in zip(states, found, bounds, strict=True)]
        if not self.update.trim:
            self.follow([step.state for step in steps])
        return steps

    def follow(self, states: Sequence[CenterState]) -> None:
        """Keep the bounds of the step that led to these states for the steps from them."""
        self._bounds.after([state.centers for state in states])

    def sums(self, states: Sequence[CenterState]) -> tuple[CenterSums, ...]:
        """Compute the sums for each state, in one pass, or in two or three if rows are trimmed."""
        if self.update.trim:
            return self._trimmed(states)
        bounds = self._bounds.before(states)
        self._bounds.choose_directions(self.passes.blocks.parts)
        shared = (self.coordinates, tuple(states), *([bounds] if any(bounds) else []))
        found: PerStart[CenterSums] = self.passes.reduce(block_sums, *shared)
        records = list(found.records)
        again = [i for i, state in enumerate(states) if self._waned(state, records[i])]
        if again:
            whole = tuple(replace(states[i], shares=None) for i in again)
            found = self.passes.reduce(block_sums, self.coordinates, whole)
            for i, record in zip(again, found.records, strict=True):
                records[i] = record
        for state, record in zip(states, records, strict=True):
            self._check_totals(state, record)
        return tuple(records)

    def _check_totals(self, state: CenterState, sums: CenterSums) -> None:
        """Raise ValueError if the sums over all clusters, equal in all hard steps, have changed."""
        known = self.passes.known
        if known is None or state.s > -np.inf:
            return
        found = np.append(sums.sums.sum(axis=0), sums.weights.sum())
        if not isinstance(state.distortion, Bregman):
            found[:-1] = 0.0  # sums of norms change with the distances
        elif self._totals is None and isinstance(self.coordinates, Coordinates):
            self._totals = known.of_rows(self.coordinates)
        if self._totals is None:
            self._totals = known.of_first_step(found, self.weight * np.sqrt(self.spread))
        compare(self._totals[0], found, self._totals[1], self.passes.n_passes)

    def bounds_at(self, state: CenterState) -> Bounds | None:
        """Return the bounds of rows in memory, if the last step began at this state."""
        return self._bounds.at(state.centers) if state.plain else None

    def last_labels(self, state: CenterState) -> NDArray[np.int32] | None:
        """Return the labels in the step that led to this state, if rows in memory have bounds."""
        return self._bounds.last_labels(state.centers)

    def _waned(self, state: CenterState, sums: CenterSums) -> bool:
        """Return whether a soft step may have left out weights that count."""
        if state.shares is None or state.s == -np.inf:
            return False
        return have_waned(state.shares, sums.weights / self.weight)

    def _trimmed(self, states: Sequence[CenterState]) -> tuple[CenterSums, ...]:
        """Compute the sums of each state; hard steps take only the rows that are kept."""
        hard = [state.s == -np.inf for state in states]
        kept = [state for state, is_hard in zip(states, hard, strict=True) if is_hard]
        soft = tuple(state for state, is_hard in zip(states, hard, strict=True) if not is_hard)
        here = self.passes, self.coordinates
        of_kept = iter(trimmed_sums(*here, kept, self.update.trim) if kept else ())
        of_soft = iter(
            self.passes.reduce(block_sums, self.coordinates, soft).records if soft else ()
        )
        return tuple(next(of_kept)[0] if is_hard else next(of_soft) for is_hard in hard)

    def yardstick(self, sums: CenterSums) -> float:
        """Return the mean distance with which `repeated_centers` compares centres."""
        return max(sums.inertia / self.weight, self.rounding / COINCIDENT ** (self.degree / 2))

    def _step(
        self, before: CenterState, sums: CenterSums, bounds: Bounds | None
    ) -> Step[CenterState]:
        # The penalty counts as much as the rows that hard steps keep.
        kept = 1.0 - self.update.trim if before.s == -np.inf else 1.0
        after = self.update.update(sums, before, kept * self.weight)
        soft_of_many = len(before.centers) >= MANY_CLUSTERS and before.s > -np.inf
        if soft_of_many and self._leaves_out and not before.partial:
            after = replace(after, shares=sums.weights / self.weight)
        if before.relaxation > 1.0:
            after = replace(after, n_relaxed=before.n_relaxed + 1)
        inertia = sums.inertia / self.weight
        # Counting takes as long as a step that compares rows with few centres.
        near, n_coincident = bounds is not None and bounds.near, 0
        if not near:
            separation = 0.0 if bounds is None else bounds.separation
            n_coincident = coincident_centers(before, self.yardstick(sums), separation)
        # The next step may compare rows with the centres of their lists only.
        listed = bounds is not None and bounds.lists is not None
        return Step(
            state=after,
            objective=sums.objective / self.weight,
            inertia=inertia,
            penalty=kept * self.update.penalty(before),
            hardness=sums.hardness / self.weight,
            cluster_weights=sums.weights,
            shift=float(np.sqrt(np.square(after.centers - before.centers).sum(axis=1).max())),
            moved=near or _moved(before, after),
            coincident_centers=n_coincident,
            resumable=not (listed and after.is_turn_of_lists),
            complete=not near,
            value_weights=None if before.distortion.degree == 1 else sums.masses,
        )


def _moved(before: CenterState, after: CenterState) -> bool:
    """Return whether a step changed the state; if it did not, no later step will."""
    if not np.array_equal(before.centers, after.centers):
        return True
    if before.feature_weights is None or after.feature_weights is None:
        return False
    return not np.array_equal(before.feature_weights, after.feature_weights)


def block_sums(
    block: Block,
    coordinates: Rows,
    states: tuple[CenterState, ...],
    bounds: tuple[Bounds | None, ...] | None = None,
) -> PerStart[CenterSums]:
    """Compute `center_sums` of one block (the block function of an iteration).

    If rows in memory have `bounds` of each start, these are updated.
    """
    rows, weights = block.rows, block.weights
    if bounds is None:
        return center_sums(rows, weights, coordinates, states)
    records: list[CenterSums] = []
    for state, own in zip(states, bounds, strict=True):
        found = None if own is None else own.sums(block, coordinates)
        records += (
            center_sums(rows, weights, coordinates, (state,)).records if found is None else [found]
        )
    return PerStart(tuple(records), shows=showing(coordinates, states[0]))


def sample_problem(
    rows: NDArray,
    weights: FloatArray,
    update: Update,
    spread: float | None = None,
    exact: bool = False,
    n_before: int = 0,
    n_blocks: int = 1,
) -> CentersProblem:
    """Return the problem of clustering rows in memory, which are in the model's coordinates.

    Rows are float32 or float64, in at most `n_blocks` blocks, which threads share. `spread` is
    their mean distance from their mean; the sum of their variances by default.
    """
    if spread is None:
        spread = float(weighted_variance(rows, weights).sum())
    p, total = rows.shape[1], float(weights.sum())
    identity = Coordinates.identity(p)
    # Weights are often all 1; leaving them out saves time.
    given = None if (weights == 1).all() else weights
    passes = Passes(row_blocks(rows, least_rows=-(-len(rows) // n_blocks)))
    passes.weigh(given)
    return CentersProblem(passes, identity, total, update, spread, exact, n_before)
