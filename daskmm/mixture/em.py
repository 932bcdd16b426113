"""EM steps of Gaussian mixtures, each in one pass over the data for all starts together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from daskmm.compiled import library
from daskmm.compiled import mixture as loops
from daskmm.data.blocks import Block, row_blocks
from daskmm.data.validation import check_domain, check_empty, check_finite
from daskmm.engine.passes import Passes
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.sums import PerStart
from daskmm.mm.driver import Step
from daskmm.numerics.distortions.bregman import SquaredEuclidean
from daskmm.numerics.gaussians import (
    Components,
    EMSums,
    SingularComponentError,
    em_sums,
    log_joint_densities,
    maximized,
)
from daskmm.numerics.gaussians_with_gaps import marginal, patterns, with_expectations
from daskmm.numerics.rows import tile_rows, tiles
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Responsibilities up to this are left out of the sums; the rounding of larger ones exceeds them.
_NEGLIGIBLE = 1e-18


@registered
@dataclass(frozen=True)
class MixtureState(Components):
    """Components of one start."""

    s: float = -np.inf  # always −∞: at this power, the driver ends once the objective is stationary
    # What is wrong with the components after the step; empty if nothing is. If something is wrong,
    # the start ends at the state before the step.
    singular: str = ""
    partial: bool = False  # whether values may be missing (NaN)


class MixtureProblem:
    """EM steps over a table (a `daskmm.mm.problem.Problem`), whose objective is −log p(x) per row.

    The sample weights sum to `weight`. A step that gains less than `tol` in the mean log-likelihood
    ends the fit. Passes that are not `exact` read a sample.
    """

    splitting_power = 0.0
    hard_stage = "EM"

    def __init__(
        self, passes: Passes, weight: float, reg_covar: float, tol: float, exact: bool
    ) -> None:
        self.passes = passes
        self.weight = weight
        self.reg_covar = reg_covar
        # Steps continue at a tolerance of 0 even if the likelihood no longer changes.
        self.rounding = tol or -np.inf
        self.exact = exact

    @property
    def n_passes(self) -> int:
        """Number of passes over all rows so far."""
        return self.passes.n_passes if self.exact else 0

    def start(self, start: MixtureState, s: float) -> MixtureState:
        """Return a given state."""
        return replace(start, s=s)

    def steps(self, states: Sequence[MixtureState]) -> list[Step[MixtureState]]:
        """Take one EM step of each state, in one pass."""
        with one_blas_thread():
            found: PerStart[EMSums] = self.passes.reduce(block_sums, tuple(states))
            return [self._step(*pair) for pair in zip(states, found.records, strict=True)]

    def _step(self, before: MixtureState, sums: EMSums) -> Step[MixtureState]:
        try:
            after = stated(maximized(sums, before, self.reg_covar), before.partial)
        except SingularComponentError as error:
            after = replace(before, singular=str(error))
        moved = not after.singular and _differ(before, after)
        return Step(
            state=after,
            objective=0.0,
            inertia=0.0,
            penalty=-sums.log_likelihood / self.weight,
            hardness=1.0,
            cluster_weights=sums.weights,
            shift=float(np.sqrt(np.square(after.means - before.means).sum(axis=1).max())),
            moved=moved,
            coincident_centers=0,
        )


def _differ(a: Components, b: Components) -> bool:
    """Return whether two states differ in any number."""
    pairs = (a.means, b.means), (a.covariances, b.covariances), (a.degrees, b.degrees)
    return any(x is not None and y is not None and (x != y).any() for x, y in pairs)


def stated(components: Components, partial: bool) -> MixtureState:
    """Return components as the state of a start."""
    return MixtureState(
        components.covariance_type,
        components.shares,
        components.means,
        components.covariances,
        components.factors,
        components.degrees,
        partial=partial,
    )


def block_sums(block: Block, states: tuple[MixtureState, ...]) -> PerStart[EMSums]:
    """Compute the sums of an EM step over one block, for every start."""
    return PerStart(tuple(_sums(block, state) for state in states))


def _sums(block: Block, state: MixtureState) -> EMSums:
    rows, weights = block.rows, block.weights
    if not (state.partial and has_gaps(block)):
        return _sums_of_values(rows, weights, state, block)
    total = em_sums(np.empty((0, rows.shape[1])), None, state)
    for own, held in patterns(rows):
        seen, part = rows[np.ix_(own, held)], marginal(state, held)
        found = _sums_of_values(seen, None if weights is None else weights[own], part, block)
        total += with_expectations(found, state, part, held)
    return total


def _sums_of_values(
    rows: NDArray, weights: FloatArray | None, components: Components, block: Block
) -> EMSums:
    """Compute the sums of an EM step over rows of a block, none of whose values is missing."""
    if library.available():
        found = loops.mixture_sums(rows, weights, _prepared(components), _NEGLIGIBLE)
        if found is None:
            raise _too_far(block)
        return found
    k, p = components.means.shape
    total = em_sums(np.empty((0, p)), None, components)
    for part in tiles(len(rows), tile_rows(p, k)):
        own = None if weights is None else weights[part]
        total += em_sums(rows[part].astype(np.float64), own, components)
    if not np.isfinite(total.log_likelihood):
        raise _too_far(block)
    return total


def _prepared(components: Components) -> loops.Components:
    """Return components in the form that the compiled loops need."""
    means, constants, degrees = components.means, components.constants, components.degrees
    if components.covariance_type in ("diag", "spherical"):
        return loops.Components(means, constants, None, components.deviations, degrees)
    factors = components.factors.reshape(-1, *components.factors.shape[-2:])
    return loops.Components(means, constants, factors, None, degrees)


def has_gaps(block: Block) -> bool:
    """Return whether a block has missing values; raise for rows without any value."""
    rows = block.rows
    missing = np.isnan(rows) if rows.dtype.kind == "f" else np.zeros((0, 1), bool)
    if missing.any():
        check_domain(rows, block.position, 0, SquaredEuclidean, True)
        check_empty(replace(block, weights=None), SquaredEuclidean)
    return bool(missing.any())


def _too_far(block: Block) -> ValueError:
    """Return the error for a block in which a row has no density."""
    check_finite(block.rows.astype(np.float64), block.position)
    return ValueError(
        f"Input X has values so far from all components that their density vanishes, in the block "
        f"from {block.position.of_row(0)}. Remove outliers, or take a larger reg_covar."
    )


def sample_problem(
    rows: NDArray, weights: FloatArray, reg_covar: float, tol: float, n_blocks: int = 1
) -> MixtureProblem:
    """Return the problem of rows in memory, cut into blocks that threads share."""
    passes = Passes(row_blocks(rows, least_rows=-(-len(rows) // n_blocks)))
    passes.weigh(None if (weights == 1).all() else weights)
    return MixtureProblem(passes, float(weights.sum()), reg_covar, tol, exact=False)


def log_likelihood(block: Block, components: MixtureState) -> FloatArray:
    """Return Σ w log p(x) and Σ w of one block."""
    densities = log_densities_of(block, components)
    if block.weights is None:
        return np.array([densities.sum(), len(densities)])
    return np.array([block.weights @ densities, block.weights.sum()])


# Values of each row that depend on the components


def labels_of(block: Block, components: MixtureState) -> NDArray[np.int32]:
    """Return the component of the largest responsibility of each row, the first in a tie."""
    out = np.empty(len(block.rows), dtype=np.int32)
    return _filled("labels", block, components, out)


def log_densities_of(block: Block, components: MixtureState) -> FloatArray:
    """Return log p(x) of each row."""
    return _filled("densities", block, components, np.empty(len(block.rows)))


def responsibilities_of(block: Block, components: MixtureState) -> FloatArray:
    """Return the responsibility of each component for each row; they sum to 1 for each row."""
    out = np.empty((len(block.rows), len(components.means)))
    return _filled("responsibilities", block, components, out)


# Definitions of these values as functions of log π_j N(x_i; μ_j, Σ_j), of shape (n_rows,
# n_components).
_BY_JOINT: dict[str, Callable[[FloatArray], NDArray]] = {
    "labels": lambda joint: joint.argmax(axis=1),
    "densities": lambda joint: logsumexp(joint, axis=1),
    "responsibilities": lambda joint: softmax(joint, axis=1),
}


def _filled(what: str, block: Block, components: MixtureState, out: NDArray) -> NDArray:
    """Fill `out` with a result for each row of a block; return it."""
    rows = block.rows
    if not (components.partial and has_gaps(block)):
        return _filled_of_values(what, rows, components, out, block)
    for own, held in patterns(rows):
        seen, part = rows[np.ix_(own, held)], marginal(components, held)
        out[own] = _filled_of_values(what, seen, part, np.empty_like(out[: len(own)]), block)
    return out


def _filled_of_values(
    what: str, rows: NDArray, components: Components, out: NDArray, block: Block
) -> NDArray:
    """Fill `out` as `_filled` does, for rows of a block none of whose values is missing."""
    if library.available():
        if not loops.fill_memberships(rows, _prepared(components), **{what: out}):
            raise _too_far(block)
        return out
    k, p = components.means.shape
    for part in tiles(len(rows), tile_rows(p, k)):
        joint = log_joint_densities(rows[part].astype(np.float64), components)
        if not np.isfinite(joint.max(axis=1)).all():
            raise _too_far(block)
        out[part] = _BY_JOINT[what](joint)
    return out
