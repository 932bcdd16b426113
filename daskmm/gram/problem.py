"""Power k-means in feature space: one sweep K·W per MM step (a `daskmm.mm.driver.Problem`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.gram.matrices import GramSource
from daskmm.mm.driver import Step
from daskmm.mm.problem import COINCIDENT
from daskmm.numerics.entropy import negative_entropy, softmin_weights
from daskmm.numerics.feature_space import feature_distances, normalized_memberships
from daskmm.numerics.power_means import power_means
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]


@registered
@dataclass(frozen=True)
class KernelState:
    """Cluster means as weighted sums of the rows' images, and what the last sweep told of them.

    Attributes
    ----------
    memberships : ndarray of shape (n_rows, n_clusters)
        W; its columns sum to 1: θ_j = Σ_i W_ij φ(x_i).
    s : float
        The power of the next step.
    kernel_weights : ndarray of shape (n_kernels,)
        α at the last sweep.
    row_phi, cluster_phi : ndarray or None
        Σ_j φ_ij and Σ_i φ_ij of the step that made W; with the next sweep they give the
        dispersion S_l of each kernel. None at the start.
    labels : ndarray of shape (n_rows,) or None
        Nearest mean per row before the step.
    norms : ndarray of shape (n_kernels, n_clusters) or None
        ‖θ_j‖² in each kernel before the step.
    """

    memberships: FloatArray
    s: float
    kernel_weights: FloatArray
    row_phi: FloatArray | None = None
    cluster_phi: FloatArray | None = None
    labels: NDArray[np.int32] | None = None
    norms: FloatArray | None = None


class KernelProblem:
    """Cluster means in the feature space of one kernel, or of a weighted sum of several.

    With several, y_ij = Σ_l α_l d²_ijl takes the place of the distance, and
    α_l ∝ exp(−S_l/λ) with S_l = Σ_ij φ_ij d²_ijl per unit of sample weight. (Paul, Chakraborty,
    Das & Xu 2020 print the norm without its square, which can raise the objective.)

    Parameters
    ----------
    grams : sequence of GramSource
    sample_weight : ndarray of shape (n_rows,)
    critical_power : float
        s_crit of a sample.
    lam : float
        Entropy penalty of the kernel weights; does not matter for one kernel.
    exact : bool
        Whether these are the kernels themselves, not features of low rank.
    """

    def __init__(
        self,
        grams: Sequence[GramSource],
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
        # The feature space has no small dimension to bound it; twice the first one is measured
        # to be enough.
        self.splitting_power = 2.0 * critical_power
        # Eq. 7 cancels: nothing below this share of the diagonal can be told.
        self.rounding = 1e-14 * float(np.mean([gram.diagonal.mean() for gram in grams]))

    @property
    def n_passes(self) -> int:
        """Sweeps over the Gram matrix so far."""
        return max(gram.n_sweeps for gram in self.grams)

    def start(self, start: FloatArray | KernelState, s: float) -> KernelState:
        """State at given memberships (columns summing to 1), or where another problem ended."""
        if isinstance(start, KernelState):
            return replace(start, s=s)
        n_kernels = len(self.grams)
        return KernelState(start, s, np.full(n_kernels, 1.0 / n_kernels))

    def steps(self, states: Sequence[KernelState]) -> list[Step[KernelState]]:
        """One MM step of each state, in one sweep."""
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
        """Whether the kernel weights changed, or will with the first dispersion."""
        if len(self.grams) == 1:
            return False
        return before.row_phi is None or not np.array_equal(weights, before.kernel_weights)

    def _moved(self, phi: FloatArray, smallest: FloatArray, before: KernelState) -> FloatArray:
        """New memberships; clusters emptied by a hard step go to the worst-served rows."""
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
        """α at the means of `before`: S_l = Σ_i φ_i· K_l,ii − Σ_j N_j ‖θ_j‖²_l."""
        if before.row_phi is None or before.cluster_phi is None or len(self.grams) == 1:
            return before.kernel_weights
        diagonals = np.array([gram.diagonal for gram in self.grams])
        dispersion = diagonals @ before.row_phi - norms @ before.cluster_phi
        return softmin_weights(np.maximum(dispersion, 0.0) / self.weight, self.lam)


def _coincident(
    W: FloatArray, products: list[FloatArray], weights: FloatArray, mean_distance: float
) -> int:
    """Means that lie on another one: ‖θ_j − θ_l‖² from Wᵀ K W."""
    gram = sum(weight * (W.T @ product) for weight, product in zip(weights, products, strict=True))
    norms = np.diag(gram)
    apart = norms[:, None] + norms - 2.0 * gram
    # The products cancel, which no two means can be told apart below.
    bound = max(COINCIDENT * mean_distance, 1e-12 * float(np.abs(norms).max()))
    return int(np.tril(apart <= bound, -1).any(axis=1).sum())
