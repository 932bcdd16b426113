"""Power k-means in feature space by one sweep K·W per MM step, and distances of new rows.

`daskmm.mm.driver` minimises `KernelProblem`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.data.validation import check_finite
from daskmm.gram.matrices import Grams
from daskmm.gram.store import row_cuts
from daskmm.mm.driver import Step
from daskmm.mm.problem import COINCIDENT
from daskmm.numerics.entropy import negative_entropy, softmin_weights
from daskmm.numerics.feature_space import feature_distances, normalized_memberships
from daskmm.numerics.kernels import Kernel
from daskmm.numerics.power_means import power_means
from daskmm.numerics.rows import TILE_BYTES, Coordinates, tiles
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Number of training rows that are compared with new rows at once.
_PREDICT_ROWS = 1 << 15


@registered
@dataclass(frozen=True)
class KernelState:
    """Cluster means as weighted sums of the rows' images, and results of the last sweep."""

    # W, (n_rows, n_clusters), whose columns sum to 1: θ_j = Σ_i W_ij φ(x_i).
    memberships: FloatArray
    s: float  # power of the next step
    kernel_weights: FloatArray  # α at the last sweep, (n_kernels,)
    # Σ_j φ_ij and Σ_i φ_ij of the step that made W. The next sweep computes from them the
    # dispersion S_l of each kernel. None at the start.
    row_phi: FloatArray | None = None
    cluster_phi: FloatArray | None = None
    labels: NDArray[np.int32] | None = None  # nearest mean of each row before the step, (n_rows,)
    # ‖θ_j‖² in each kernel before the step, (n_kernels, n_clusters).
    norms: FloatArray | None = None


class KernelProblem:
    """Cluster means in the feature space of one kernel, or of a weighted sum of several.

    With several kernels, y_ij = Σ_l α_l d²_ijl replaces the distance, and α_l ∝ exp(−S_l/λ) with
    S_l = Σ_ij φ_ij d²_ijl per unit of sample weight. (Paul, Chakraborty, Das & Xu 2020: objective
    (4), Algorithm 1 for one kernel; (8), Algorithm 2 for several. The printed norm lacks its
    square, without which the objective can rise.)

    `critical_power` is s_crit of a sample. `lam` is λ, the entropy penalty of the kernel weights; a
    single kernel has none. The matrices are `exact` if they are those of the kernels themselves,
    and not of features of low rank.
    """

    hard_stage = "hard"

    def __init__(
        self,
        grams: Grams,
        sample_weight: FloatArray,
        critical_power: float,
        lam: float = 1.0,
        exact: bool = True,
    ) -> None:
        self.grams = grams
        self.sample_weight = sample_weight
        self.weight = float(sample_weight.sum())
        self.lam = lam
        self.exact = exact
        # The dimension of the feature space may be infinite, so it gives no bound of the critical
        # power. Twice the critical power was low enough in all measurements.
        self.splitting_power = 2.0 * critical_power
        # Eq. 7 cancels: distances below this share of the diagonal are rounding errors.
        self.rounding = 1e-14 * float(np.mean([gram.diagonal.mean() for gram in grams]))

    @property
    def n_passes(self) -> int:
        """Sweeps over the Gram matrices so far."""
        return self.grams.n_passes

    def start(self, start: FloatArray | KernelState, s: float) -> KernelState:
        """Return a given state, or that of given memberships, with the power `s`."""
        if isinstance(start, KernelState):
            return replace(start, s=s)
        n_kernels = len(self.grams)
        return KernelState(start, s, np.full(n_kernels, 1.0 / n_kernels))

    def steps(self, states: Sequence[KernelState]) -> list[Step[KernelState]]:
        """Take one MM step of each state, in one sweep."""
        right = np.concatenate([state.memberships for state in states], axis=1)
        products = [gram.product(right) for gram in self.grams]
        if not all(np.isfinite(product).all() for product in products):
            raise ValueError("The Gram matrix contains NaN or infinity.")
        width = states[0].memberships.shape[1]
        return [
            self._step(state, [product[:, i * width : (i + 1) * width] for product in products])
            for i, state in enumerate(states)
        ]

    def _step(self, before: KernelState, products: list[FloatArray]) -> Step[KernelState]:
        W = before.memberships
        norms = np.array([np.einsum("ij,ij->j", W, product) for product in products])
        weights = self._kernel_weights(before, norms)
        distances = np.zeros_like(W)
        for gram, product, weight in zip(self.grams, products, weights, strict=True):
            distances += weight * feature_distances(product, W, gram.diagonal)
        means = power_means(distances, before.s)
        phi = means.phi * self.sample_weight[:, None]
        after = KernelState(
            self._moved(phi, means.smallest, before),
            before.s,
            weights,
            phi.sum(axis=1),
            phi.sum(axis=0),
            distances.argmin(axis=1).astype(np.int32),
            norms,
        )
        shift = np.abs(after.memberships - W).sum(axis=0).max()
        return Step(
            state=after,
            objective=float(self.sample_weight @ means.value) / self.weight,
            inertia=float(self.sample_weight @ means.smallest) / self.weight,
            penalty=self.lam * negative_entropy(weights) if len(weights) > 1 else 0.0,
            hardness=float(self.sample_weight @ means.hardness) / self.weight,
            cluster_weights=phi.sum(axis=0),
            shift=float(shift),
            moved=bool(shift > 0) or self._weights_follow(before, weights),
            coincident_centers=_coincident(W, products, weights, means.smallest.mean()),
        )

    def _weights_follow(self, before: KernelState, weights: FloatArray) -> bool:
        """Return whether the kernel weights have changed, or will once dispersions are known."""
        if len(self.grams) == 1:
            return False
        return before.row_phi is None or not np.array_equal(weights, before.kernel_weights)

    def _moved(self, phi: FloatArray, smallest: FloatArray, before: KernelState) -> FloatArray:
        """Return new memberships; clusters that a hard step emptied get the farthest rows."""
        memberships = normalized_memberships(phi, before.memberships)
        empty = np.flatnonzero(phi.sum(axis=0) == 0)
        if before.s == -np.inf and len(empty):
            served = np.where(self.sample_weight > 0, smallest, 0.0)
            farthest = np.argsort(-served, kind="stable")[: len(empty)]
            farthest = farthest[served[farthest] > 0]
            for cluster, row in zip(empty, farthest, strict=False):
                memberships[:, cluster] = 0.0
                memberships[row, cluster] = 1.0
        return memberships

    def _kernel_weights(self, before: KernelState, norms: FloatArray) -> FloatArray:
        """Return α at the means of `before`: S_l = Σ_i φ_i· K_l,ii − Σ_j N_j ‖θ_j‖²_l."""
        if before.row_phi is None or before.cluster_phi is None or len(self.grams) == 1:
            return before.kernel_weights
        diagonals = np.array([gram.diagonal for gram in self.grams])
        dispersion = diagonals @ before.row_phi - norms @ before.cluster_phi
        return softmin_weights(np.maximum(dispersion, 0.0) / self.weight, self.lam)


def _coincident(
    W: FloatArray, products: list[FloatArray], weights: FloatArray, mean_distance: float
) -> int:
    """Count the means that coincide with another one; Wᵀ K W gives ‖θ_j − θ_l‖²."""
    gram = sum(weight * (W.T @ product) for weight, product in zip(weights, products, strict=True))
    norms = np.diag(gram)
    apart = norms[:, None] + norms - 2.0 * gram
    # The products cancel: means closer than the second bound cannot be distinguished.
    bound = max(COINCIDENT * mean_distance, 1e-12 * float(np.abs(norms).max()))
    return int(np.tril(apart <= bound, -1).any(axis=1).sum())


def distances_to_means(
    block: Block,
    coordinates: Coordinates | None,
    kernels: list[Kernel],
    X_fit: FloatArray | None,
    weights: FloatArray,
    memberships: FloatArray,
    norms: FloatArray,
) -> FloatArray:
    """Compute Σ_l α_l (k_l(x, x) − 2 k_l(x, X) W + ‖θ_j‖²_l) of each row of a block.

    Without coordinates, the rows are kernel values, and k(x, x) is left out.
    """
    if coordinates is None or X_fit is None:
        return _distances_by_values(block, memberships, norms[0])
    out = np.empty((len(block.rows), memberships.shape[1]))
    for cut in row_cuts(len(memberships), _PREDICT_ROWS):
        fitted = X_fit[cut]
        for tile, z in _wide_tiles(block, len(fitted)):
            z = coordinates.to_model(z)
            if cut.start == 0:
                own = [kernel.diagonal(z)[:, None] for kernel in kernels]
                out[tile] = sum(
                    weight * (diagonal + norm)
                    for weight, diagonal, norm in zip(weights, own, norms, strict=True)
                )
            for kernel, weight in zip(kernels, weights, strict=True):
                out[tile] -= 2.0 * weight * (kernel.block(z, fitted) @ memberships[cut])
    return out


def _distances_by_values(block: Block, memberships: FloatArray, norms: FloatArray) -> FloatArray:
    """Compute −2 k(x, X) W + ‖θ_j‖² of rows of kernel values."""
    out = np.empty((len(block.rows), memberships.shape[1]))
    for tile, z in _wide_tiles(block, len(memberships)):
        out[tile] = norms - 2.0 * z @ memberships
    return out


def _wide_tiles(block: Block, n_columns: int) -> Iterator[tuple[slice, FloatArray]]:
    """Yield float64 tiles of a block, so small that their kernel values fit `TILE_BYTES`."""
    for tile in tiles(len(block.rows), max(1, TILE_BYTES // (8 * n_columns))):
        z = np.asarray(block.rows[tile], dtype=np.float64)
        check_finite(z, block.position, tile.start)
        yield tile, z
