"""The penalty λ of entropy-weighted power k-means, chosen without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce
from daskmm.kmeans.trials import OverStarts, Trials, nearest, spawned
from daskmm.numerics.information import gain_over
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Penalties that are tried, in units of the mean variance of the features; without an end, the
# features are not weighted.
MULTIPLES = (0.1, 0.2, 0.35, 0.5, 1.0, np.inf)
# Starts of each.
STARTS = 3
# Rows to try them on: so many, or so many per cluster.
SAMPLE_ROWS, ROWS_PER_CLUSTER = 2000, 100
# The largest penalty wins whose gain is as good as the best: not further from it than starts are
# from each other, by so many standard deviations, within a share of it, but for these nats.
SPREADS = 3.0
TOLERANCE, LEAST_TOLERANCE = 0.07, 0.05


@registered
@dataclass(frozen=True)
class LamPath(OverStarts):
    """Information gain and feature weights over a grid of penalties.

    Attributes
    ----------
    lams : ndarray of shape (n_lams,), float64
        λ per unit of sample weight, increasing; the last may be infinite (equal weights).
    gains : ndarray of shape (n_lams, n_starts), float64
        Information gain over the null, in nats, of each start.
    feature_weights : ndarray of shape (n_lams, n_features), float64
        Mean over the starts.
    chosen : int
        Index of the penalty that the rule prefers.
    n_clusters, n_rows : int
        Clusters, and rows of the sample.
    """

    lams: FloatArray
    gains: FloatArray
    feature_weights: FloatArray
    chosen: int
    n_clusters: int
    n_rows: int

    @property
    def lam(self) -> float:
        """The chosen penalty."""
        return float(self.lams[self.chosen])

    @property
    def threshold(self) -> float:
        """Least gain that the rule accepts."""
        return _threshold(self.gains)


def sample_rows(n_clusters: int) -> int:
    """Rows on which penalties are tried."""
    return max(SAMPLE_ROWS, ROWS_PER_CLUSTER * n_clusters)


def follow_lam(
    sample: Sample,
    n_clusters: int,
    seed: int,
    lazy: bool,
    lams: Sequence[float] | None = None,
    n_starts: int = STARTS,
    n_rows: int | None = None,
) -> LamPath:
    """The path over a grid of penalties; see :func:`daskmm.selection.lam_path`.

    Parameters
    ----------
    sample : Sample
        Of the first pass, in the model's coordinates.
    n_clusters : int
    seed : int
        Of the starts and the null; the same for every penalty.
    lazy : bool
        Whether to run on the active dask scheduler, or on threads here; one task for each
        penalty.
    lams : sequence of float, optional
        Increasing; `MULTIPLES` of the mean variance by default.
    n_starts : int
    n_rows : int, optional
        Rows of the sample to use at most.
    """
    trials = Trials.of(sample, n_rows or sample_rows(n_clusters), seed)
    grid = [c * trials.mean_variance for c in MULTIPLES] if lams is None else list(lams)
    jobs = [(float(lam),) for lam in grid]
    learning, fresh, noise = zip(*(spawned(one, 3) for one in spawned(seed, n_starts)), strict=True)
    # The same starts for every penalty, and drawn once.
    shared = (trials, trials.starts(n_clusters, learning), fresh, noise[0])
    found: list[tuple[FloatArray, FloatArray]] = tree_reduce(
        _try_lam, jobs, shared, lazy, "try-lam"
    )
    gains, weights = (np.array(values) for values in zip(*found, strict=True))
    chosen = preferred_lam(gains)
    return LamPath(np.array(grid), gains, weights, chosen, n_clusters, len(trials.rows))


def preferred_lam(gains: FloatArray) -> int:
    """Index of the penalty that the rule prefers: the largest whose gain is as good as the best.

    Parameters
    ----------
    gains : ndarray of shape (n_lams, n_starts)
        In the order of increasing penalties.
    """
    return int(np.flatnonzero(gains.mean(axis=1) >= _threshold(gains))[-1])


def _threshold(gains: FloatArray) -> float:
    best = float(gains.mean(axis=1).max())
    share = TOLERANCE * best
    if gains.shape[1] > 1:
        share = min(share, SPREADS * float(np.median(gains.std(axis=1))))
    return best - max(share, LEAST_TOLERANCE)


def _try_lam(
    lam: float, trials: Trials, starts: Sequence[FloatArray], seeds: Sequence[int], null_seed: int
) -> list[tuple[FloatArray, FloatArray]]:
    """Task of one penalty: the gain of every start, and the mean feature weights.

    All starts are held against one null, with the weights of the first: it costs as much as a
    start, and what differs among the gains of a penalty is then the starts alone.
    """
    n_clusters = len(starts[0])
    if np.isinf(lam):
        weights = [trials.equal_weights] * len(seeds)
        labels = trials.with_weights(weights[0], n_clusters, seeds)
        found = [trials.partition(own) for own in labels]
    else:
        weights, found = [], []
        for state, seed in zip(trials.learn(starts, lam), seeds, strict=True):
            w = state.feature_weights
            assert w is not None
            labels = [nearest(trials.rows, state), *trials.with_weights(w, n_clusters, [seed])]
            both = [trials.partition(own) for own in labels]
            weights.append(w)
            found.append(both[int(np.argmin([trials.cost(one, w) for one in both]))])
    mean = np.mean(weights, axis=0)
    most = max(len(clusters.shares) for clusters in found)
    null = trials.null_within(weights[0], most, null_seed)
    gains = [gain_over(clusters.within, null, trials.varying) for clusters in found]
    return [(np.array(gains), mean)]
