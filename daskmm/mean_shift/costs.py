"""Costs of the stages of a mean shift."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from daskmm.data.blocks import Layout, float_dtype, visited_together
from daskmm.engine.first_pass import sample_size
from daskmm.engine.speed import fastest, loading_seconds
from daskmm.kmeans.costs import VALUE_SECONDS, step_seconds
from daskmm.kmeans.method import Method
from daskmm.mm.driver import Schedule
from daskmm.mm.stages import Cost
from daskmm.numerics.mean_shift import TILE, Points, add_block_pair

# Typical number of sweeps over all pairs before rows have merged; number of bandwidths that are
# tried on 1,000 rows, and of sweeps for each.
FULL_SWEEPS, _BANDWIDTHS, _BANDWIDTH_SWEEPS = 8, 26, 60
# Typical number of iterations that learn the weights, and of those after them until rows have
# merged.
_TYPICAL_BLURRING = 30


@dataclass(frozen=True)
class BlurringCosts:
    """Costs of the stages of a mean shift; each method is the cost of one stage."""

    layout: Layout
    max_iter: int
    # The largest number of micro-clusters; None if every row is blurred.
    n_micro_clusters: int | None
    learns: bool  # whether the fit learns feature weights
    threads: int  # number of threads of a worker

    @property
    def _n(self) -> int:
        return self.layout.n_rows or 0

    @property
    def _pair(self) -> float:
        return pair_seconds(self.layout.n_features)

    @property
    def _step(self) -> float:
        """Seconds to load all rows and to find the nearest micro-cluster of each."""
        layout, k = self.layout, self.n_micro_clusters or 1
        centers = Method(k, 1, Schedule(-math.inf), on_sample=False, weighted=True)
        dtype = str(float_dtype(layout.dtype))
        step = step_seconds(-math.inf, dtype, layout.n_features, centers, self.threads)
        visits = min(self.threads, len(visited_together(layout)))
        return loading_seconds(layout, self.threads) + self._n * step / visits

    def survey(self) -> Cost:
        """Return the cost of the first pass; heavy tails may require another one."""
        values = self._n * self.layout.n_features * VALUE_SECONDS
        most = 1 + (self.n_micro_clusters is not None)
        return Cost(1, most, lambda: loading_seconds(self.layout, 1) + values)

    def bandwidth(self) -> Cost:
        """Return the cost of the choice of the bandwidth."""
        pairs = _BANDWIDTHS * _BANDWIDTH_SWEEPS * min(self._n, 1000) ** 2
        return Cost(seconds=lambda: pairs * self._pair / self.threads)

    def read_rows(self) -> Cost:
        """Return the cost of reading all rows into memory."""
        return Cost(1, 1)

    def feature_weights(self) -> Cost:
        """Return the cost of learning feature weights on the sample."""
        sample = sample_size(self._n, self.layout.n_features, 1)
        pairs = min(FULL_SWEEPS, self.max_iter) * sample**2 * self.learns
        return Cost(seconds=lambda: pairs * self._pair / self.threads)

    def draw(self) -> Cost:
        """Return the cost of drawing centres once, when half of them are there already."""
        return Cost(1, 1, lambda: 0.75 * self._step)

    def step(self) -> Cost:
        """Return the cost of moving centres to the means of their rows once."""
        return Cost(1, 1, lambda: self._step)

    def blurring(self) -> Cost:
        """Return the cost of blurring; sweeps over micro-clusters do not read the data."""
        n, k = self._n, self.n_micro_clusters
        if k is None:
            at_once = min(self.threads, max(1, n // (2 * TILE)))
            pairs = min(FULL_SWEEPS, self.max_iter) * n**2
            typical = min(_TYPICAL_BLURRING, self.max_iter)
            return Cost(typical, self.max_iter, lambda: pairs * self._pair / at_once)
        # Micro-clusters have variances, so that pairs of them take twice as long as pairs of rows.
        pairs = 4 * min(FULL_SWEEPS, self.max_iter) * k**2
        # A table of unknown length may have so few rows that each is blurred.
        most = self.max_iter if self.layout.n_rows is None else 0
        return Cost(0, most, lambda: pairs * self._pair / self.threads)

    def labels(self) -> Cost:
        """Return the cost of the labels of rows in memory; labels of lazy rows are lazy.

        If every row is blurred, rows of weight 0 get their labels in another pass.
        """
        if self.n_micro_clusters is None:
            return Cost(most=1)
        return Cost() if self.layout.lazy else Cost(1, 1, lambda: self._step)


@functools.cache
def pair_seconds(n_features: int) -> float:
    """Measure the seconds that a thread takes for a pair of rows in a sweep of mean shift."""
    p = min(n_features, 1024)
    rows = np.random.default_rng(0).standard_normal((2000, p))
    points = Points.of(rows, np.ones(2000), np.full(p, 1.0 / p), 0.1)
    total = np.zeros(points.masses.shape)
    half, other = points[slice(0, 1000)], points[slice(1000, 2000)]
    pair = fastest(lambda: add_block_pair(half, other, total[:1000], total[1000:]))
    return pair / (2 * 1000**2) * n_features / p
