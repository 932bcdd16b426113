"""Costs of the stages of a fit that sweeps over Gram matrices."""

from __future__ import annotations

from dataclasses import dataclass

from daskmm.data.blocks import Layout
from daskmm.engine.speed import loading_seconds, product_seconds
from daskmm.gram.pairs import n_groups
from daskmm.gram.rows import are_streamed
from daskmm.kmeans.costs import LAST_STEPS, VALUE_SECONDS, annealing_steps, seeding_seconds
from daskmm.kmeans.method import Method
from daskmm.mm.stages import Cost

# Number of exact sweeps after annealing on Nyström features (measured: 1 to 4).
_POLISHING_SWEEPS = 3
# Seconds that a thread takes per value of a matrix that is read from memory; and, without products,
# per value of a Gaussian kernel, per value of other kernels, and per membership.
_MATRIX_SECONDS = 2e-9
_KERNEL_SECONDS, _KERNELS_SECONDS, _MEMBERSHIP_SECONDS = 1e-8, 1.8e-8, 5e-8


@dataclass(frozen=True)
class GramCosts:
    """Costs of the stages of a kernel fit; each method is the cost of one stage."""

    layout: Layout  # of the table, or of the precomputed matrix
    method: Method  # its landmarks are those on whose features starts are annealed
    n_kernels: int
    kept: str  # how the matrices are kept: "memory", "recomputed" or "stored"
    precomputed: bool  # whether the table is a kernel matrix
    threads: int  # of this process

    @property
    def _n(self) -> int:
        return self.layout.n_rows or 0

    @property
    def _threads(self) -> int:
        return 1 if self.kept == "memory" else self.threads

    @property
    def _streamed(self) -> bool:
        return are_streamed(self.layout) and not self.precomputed

    @property
    def _reading(self) -> float:
        return loading_seconds(self.layout, self._threads) if self._streamed else 0.0

    @property
    def _value(self) -> float:
        """Seconds of one value of a kernel."""
        own = _KERNEL_SECONDS if self.n_kernels == 1 else _KERNELS_SECONDS
        return self.layout.n_features * product_seconds() + own

    @property
    def _values(self) -> float:
        """Seconds of all values; tiles on and above the diagonal are recomputed."""
        pairs = self.n_kernels * self._n**2 * (0.5 if self.kept == "recomputed" else 1.0)
        return pairs * self._value / self._threads

    @property
    def _states(self) -> float:
        memberships = self.method.n_starts * self._n * self.method.n_clusters
        return memberships * _MEMBERSHIP_SECONDS * (3 + self.n_kernels) / 4

    @property
    def _sweep(self) -> float:
        own = self.method
        per_value = max(own.n_clusters * own.n_starts * product_seconds(), _MATRIX_SECONDS)
        sweep = self._states + self.n_kernels * self._n**2 * per_value / self._threads
        if self.kept == "recomputed":
            groups = n_groups(self._n, self.layout.n_features)
            sweep += self._values + self.n_kernels * groups * self._reading
        return sweep

    @property
    def _anneals_on_features(self) -> bool:
        return self.method.n_starts > 1 and self.method.schedule.polish

    def survey(self) -> Cost:
        """Return the cost of the first pass."""
        values = self._n * self.layout.n_features * VALUE_SECONDS
        return Cost(1, 1, lambda: loading_seconds(self.layout, self._threads) + values)

    def matrices(self) -> Cost:
        """Return the cost of making the matrices; each reads streamed rows once for its digests."""
        reads = self.n_kernels * (self._streamed and self.kept == "stored")
        if self.kept == "recomputed":
            return Cost(reads, reads)
        return Cost(reads, reads, lambda: self._values)

    def starts(self) -> Cost:
        """Return the cost of landmarks, of Nyström features, and of starting memberships.

        Streamed rows are read for diagonals, landmarks, their columns, and samples.
        """

        def seconds() -> float:
            own, n, rank = self.method, self._n, self.method.n_landmarks
            features = self.n_kernels * n * rank * (self._value + rank * product_seconds())
            seeding = seeding_seconds(own.n_clusters, rank * self.n_kernels)
            starts = own.n_starts * n * own.n_clusters * seeding
            return features + starts + 5 * self.n_kernels * self._reading

        reads = (1 + 5 * self.n_kernels) * self._streamed
        return Cost(reads, reads, seconds)

    def annealing(self) -> Cost:
        """Return the cost of annealing on Nyström features."""

        def seconds() -> float:
            own = self.method
            products = own.n_landmarks * own.n_clusters * own.n_starts * product_seconds()
            step = self._states + 2 * self.n_kernels * self._n * products
            return (annealing_steps(own.schedule) + LAST_STEPS) * step

        return Cost(seconds=seconds) if self._anneals_on_features else Cost()

    def sweeps(self) -> Cost:
        """Return the cost of exact sweeps, and of one more for the cost of unconverged runs."""
        schedule = self.method.schedule
        annealing = 0 if self._anneals_on_features else annealing_steps(schedule)
        n_sweeps = min(annealing + _POLISHING_SWEEPS, schedule.max_iter)
        return Cost(n_sweeps + 1, schedule.max_iter + 1, lambda: n_sweeps * self._sweep)
