"""Costs of the stages of a fit that sweeps over Gram matrices."""

from __future__ import annotations

from dataclasses import dataclass

from daskmm.data.blocks import Layout
from daskmm.engine.speed import loading_seconds, product_seconds
from daskmm.kmeans.costs import LAST_STEPS, VALUE_SECONDS, annealing_steps
from daskmm.kmeans.method import Method
from daskmm.mm.stages import Cost

# Number of exact sweeps after annealing on Nyström features (measured: 1 to 4).
_POLISHING_SWEEPS = 3
# Seconds that a thread takes per value of a matrix that it reads from memory, per value of a kernel
# (without products), and per membership.
_MATRIX_SECONDS, _KERNEL_SECONDS, _MEMBERSHIP_SECONDS = 2e-9, 1.4e-8, 5e-8


@dataclass(frozen=True)
class GramCosts:
    """Costs of the stages of a kernel fit; each method is the cost of one stage."""

    layout: Layout  # layout of the table, or of the precomputed matrix
    method: Method  # starts are annealed on the features of its landmarks
    n_kernels: int
    kept: str  # how the matrices are kept: "memory", "recomputed" or "stored"
    threads: int  # number of threads of this process

    @property
    def _n(self) -> int:
        return self.layout.n_rows or 0

    @property
    def _threads(self) -> int:
        return 1 if self.kept == "memory" else self.threads

    def _kernel_values(self, n_columns: int) -> float:
        """Return the seconds of all kernels between the rows and some of them."""
        each = self.layout.n_features * product_seconds() + _KERNEL_SECONDS
        return self.n_kernels * self._n * n_columns * each / self._threads

    @property
    def _states(self) -> float:
        memberships = self.method.n_starts * self._n * self.method.n_clusters
        return memberships * _MEMBERSHIP_SECONDS * (3 + self.n_kernels) / 4

    @property
    def _sweep(self) -> float:
        own = self.method
        per_value = max(own.n_clusters * own.n_starts * product_seconds(), _MATRIX_SECONDS)
        sweep = self._states + self.n_kernels * self._n**2 * per_value / self._threads
        if self.kept == "recomputed":  # tiles on and above the diagonal
            sweep += self._kernel_values(self._n) / 2
        return sweep

    @property
    def _anneals_on_features(self) -> bool:
        return self.method.n_starts > 1 and self.method.schedule.polish

    def survey(self) -> Cost:
        """Return the cost of the first pass."""
        values = self._n * self.layout.n_features * VALUE_SECONDS
        return Cost(1, 1, lambda: loading_seconds(self.layout, self._threads) + values)

    def matrices(self) -> Cost:
        """Return the cost of making the matrices."""
        if self.kept == "recomputed":
            return Cost()
        return Cost(seconds=lambda: self._kernel_values(self._n))

    def starts(self) -> Cost:
        """Return the cost of landmarks, of Nyström features, and of starting memberships."""
        own, rank = self.method, self.method.n_landmarks
        products = self.n_kernels * self._n * rank * (rank + 10 * own.n_starts * own.n_clusters)
        return Cost(seconds=lambda: self._kernel_values(rank) + products * product_seconds())

    def annealing(self) -> Cost:
        """Return the cost of annealing on Nyström features."""
        own = self.method
        products = 2 * self.n_kernels * self._n * own.n_landmarks * own.n_clusters * own.n_starts
        n_steps = annealing_steps(own.schedule) + LAST_STEPS
        if not self._anneals_on_features:
            return Cost()
        return Cost(seconds=lambda: n_steps * (self._states + products * product_seconds()))

    def sweeps(self) -> Cost:
        """Return the cost of exact sweeps, and of one more for the cost of unconverged runs."""
        schedule = self.method.schedule
        annealing = 0 if self._anneals_on_features else annealing_steps(schedule)
        n_sweeps = min(annealing + _POLISHING_SWEEPS, schedule.max_iter)
        return Cost(n_sweeps + 1, schedule.max_iter + 1, lambda: n_sweeps * self._sweep)
