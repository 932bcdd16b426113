r"""Choose the penalty λ of entropy-weighted power k-means (EWP) without labels.

EWP learns feature weights w on a sample for each λ of a grid and each start. Power k-means with
these weights fixed is then run from a fresh start. The partition with the lower :math:`\sum_l w_l
V_l (1 - R_l)` is kept, where V_l is the variance of feature l and R_l the share of it that lies
between the cluster means. Its information gain IG is taken over all features, unweighted (see
:func:`daskmm.selection.information_gain`). The null consists of independent Gaussian features of
variances :math:`w_l V_l`, which are clustered in the same way, with the weights of the first start.
The rule prefers the *largest* λ that is as good as the best:

.. math::

    IG(λ) \ge \max IG - \max\{\min(3 σ,\ .07 \max IG),\ .05\},

where IG is the mean over the starts, and σ is the median, over all λ, of the standard deviation
over the starts (the term 3σ is left out for a single start). So features are weighted only as
strongly as the gain clearly supports.

**Few values.** Clusters explain all of a flag if each has only one of its values; they can hardly
explain all of a feature with many values. So features of few values are replaced by normal numbers
with the same order (see :mod:`daskmm.numerics.latent_normals`): the two values of an even flag
explain at most .64 of its numbers.

**Mixed columns.** The null is the same rows without any dependence between columns (see
:mod:`daskmm.kmeans.column_trials`). A column of flags or categories gains the part of its entropy
that the clusters explain, H_g R_g, which is their mutual information: if clusters separate the two
values of a noisy flag, it gains log 2, which is less than the gain of a number that they explain
completely. Starts end in many local optima: clusters found with one penalty often cost less at a
second penalty than all clusters found with the second. So every penalty is judged by those
clusters, among all starts of all penalties, for which its own objective is lowest.

**Wide sparse rows.** Clusters are judged by features that they were not made with: the features are
split at random into two halves, EWP learns on one half, R_l is computed for the other, and the
gains of both halves are added. R⁰_l, the R_l of the null, is then (k − 1)/(n − 1).

EWP: Chakraborty, Paul, Das and Xu, "Entropy Weighted Power k-Means Clustering", AISTATS 2020.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.clients import active_client
from daskmm.engine.moments import Sample
from daskmm.engine.passes import tree_reduce
from daskmm.engine.resources import threads_here
from daskmm.kmeans.column_trials import ColumnTrials, trials_of
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import Labels, OverStarts, Trials, sample_rows, spawned
from daskmm.mm.journal import Journal
from daskmm.numerics.distortions.bregman import PLAIN, Metric
from daskmm.numerics.entropy import negative_entropy, softmin_weights
from daskmm.numerics.information import Partition
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# It is registered here because `numerics` does not import storage.
registered(Partition)

# The grid, in units of the mean variance of the features; an infinite penalty keeps their weights
# equal.
MULTIPLES = (0.1, 0.2, 0.35, 0.5, 1.0, np.inf)
# The grid for wide sparse rows, where clusters explain a tenth of a feature rather than half of it.
# The last penalty keeps weights nearly equal; an infinite one would make them equal and so lose
# their order.
SPARSE_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
# Number of starts per penalty; mixed columns have more, since only one in a few starts finds the
# clusters.
STARTS, MIXED_STARTS = 3, 8
# Tolerances of the rule: in standard deviations, as a share of the best gain, and in nats.
SPREADS, TOLERANCE, LEAST_TOLERANCE = 3.0, 0.07, 0.05
# Seed of the rows and of the nulls with which the features of a fit are judged. A few clusters of
# noise explain much of some features and nothing of others, by chance, so there are several nulls
# of few clusters and features.
_GAINS_SEED = 0
_NULLS, _NULL_MEANS = 8, 800
# Pattern of λ in units of the mean feature variance, as in "0.5*variance".
_MULTIPLE = re.compile(r"\s*(?:([^*]+)\*)?\s*variance\s*")


def given_lam(lam: float | str, mean_variance: float) -> float | None:
    """Return the penalty for a value of the parameter `lam`; None for "auto".

    A value is a number, "auto", or a multiple of the variance such as "0.5*variance" or "variance";
    any other string raises ValueError. `mean_variance` is that of the features in the model's
    coordinates.
    """
    if not isinstance(lam, str):
        return float(lam)
    if lam == "auto":
        return None
    match = _MULTIPLE.fullmatch(lam)
    try:
        factor = float(match[1] or 1.0) if match else math.nan
    except ValueError:
        factor = math.nan
    if not factor > 0:
        raise ValueError(
            "The 'lam' parameter of EntropyPowerKMeans must be a positive number, 'auto', or a "
            f"multiple of the variance such as '0.5*variance'. Got {lam!r} instead."
        )
    return factor * mean_variance


@registered
@dataclass(frozen=True)
class LamPath(OverStarts):
    """Information gain and feature weights over a grid of penalties.

    Attributes
    ----------
    lams : ndarray of shape (n_lams,), float64
        Penalties λ per unit of sample weight, increasing; the last may be infinite (equal weights).
    gains : ndarray of shape (n_lams, n_starts), float64
        Information gain of each start over the null, in nats; for mixed columns only that of the
        best start.
    feature_weights : ndarray of shape (n_lams, n_features), float64
        Mean weights over the starts, or those of the best start.
    chosen : int
        Index of the penalty that the rule prefers.
    n_clusters, n_rows : int
        Number of clusters, and number of rows of the sample.
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

    def __repr__(self) -> str:
        """Return the choice in words; the arrays are attributes."""
        gain = self.gains[self.chosen].mean()
        return (
            f"<LamPath: λ = {self.lam:.3g} of {len(self.lams)} penalties, where {self.n_clusters} "
            f"clusters of {self.n_rows:,} rows gain {gain:.3g} nats>"
        )


class Tried(NamedTuple):
    """Penalties that were tried, and the clusters at the chosen one."""

    path: LamPath  # gains and feature weights
    # Centres in the model's coordinates, (n_clusters, n_features); None if each penalty is judged
    # by its own clusters.
    centers: FloatArray | None = None


def follow_lam(
    sample: Sample,
    n_clusters: int,
    seed: int,
    lazy: bool,
    lams: Sequence[float] | None = None,
    n_starts: int = STARTS,
    n_rows: int | None = None,
    metric: Metric = PLAIN,
    journal: Journal | None = None,
) -> Tried:
    """Try every penalty of a grid on a sample, and apply the rule of this module.

    The sample, in the model's coordinates, is that of the first pass, of which `n_rows` are used
    (by default as many as `sample_rows` says). The seed, of the starts and the null, is the same
    for every penalty. Penalties increase; they are `MULTIPLES` of the mean variance by default, or
    `SPARSE_MULTIPLES` for wide sparse rows. If `lazy`, the active dask scheduler runs one task per
    penalty, and otherwise threads of this process do. The present stage of the journal keeps the
    results of each penalty.
    """
    run = functools.partial(_tried_in_parts, lazy=lazy, journal=journal or Journal())
    trials = trials_of(sample, n_rows or sample_rows(n_clusters), seed, metric)
    held_out = isinstance(trials, ColumnTrials) and trials.divisible
    multiples = SPARSE_MULTIPLES if held_out else MULTIPLES
    grid = [c * trials.mean_variance for c in multiples] if lams is None else list(lams)
    if isinstance(trials, Trials):
        trials = trials.dithered(seed)
    elif not held_out:
        return _follow_sharing(trials, grid, n_clusters, seed, lazy, run)
    learning, fresh, noise = zip(*(spawned(one, 3) for one in spawned(seed, n_starts)), strict=True)
    # All penalties share the starts.
    task: Callable[..., list[tuple[FloatArray, FloatArray]]] = _try_lam
    if isinstance(trials, ColumnTrials):
        halves, task = trials.halves(noise[0]), _try_lam_held_out
        starts = [half.starts(n_clusters, learning) for _, half in halves]
        shared: tuple[Any, ...] = (halves, starts, fresh, sample.rows.shape[1])
    else:
        shared = (trials, trials.starts(n_clusters, learning), fresh, noise[0])
    products = math.prod(trials.rows.shape) * n_clusters
    found = run(task, [(float(lam),) for lam in grid], shared, "try-lam", products=products)
    gains, weights = (np.array(values) for values in zip(*found, strict=True))
    chosen = preferred_lam(gains)
    return Tried(LamPath(np.array(grid), gains, weights, chosen, n_clusters, len(trials.rows)))


@registered
@dataclass(frozen=True)
class TriedSoFar:
    """Number of trials of a stage, in all and so far, and the results so far."""

    n_trials: int
    n_tried: int
    found: list[Any]

    @property
    def share(self) -> float:
        """Share of the trials that are done."""
        return self.n_tried / self.n_trials


def _tried_in_parts(
    task: Callable[..., list[Any]],
    arguments: Sequence[tuple[Any, ...]],
    shared: tuple[Any, ...],
    name: str,
    lazy: bool,
    journal: Journal,
    products: float = np.inf,
) -> list[Any]:
    """Run a task for each of some arguments, as many together as there are threads.

    The journal keeps the results of each part, so a resumed fit repeats at most one part. A cluster
    runs all tasks together.
    """
    so_far: TriedSoFar = journal.recall() or TriedSoFar(len(arguments), 0, [])
    on_cluster = lazy and active_client() is not None
    together = len(arguments) if on_cluster else threads_here()
    while so_far.n_tried < len(arguments):
        part = arguments[so_far.n_tried :][:together]
        found = so_far.found + tree_reduce(task, part, shared, lazy, name, products)
        so_far = TriedSoFar(len(arguments), so_far.n_tried + len(part), found)
        journal.keep(so_far, iterations=0)
    return so_far.found


def feature_gains(sample: Sample, state: CenterState, metric: Metric) -> FloatArray:
    """Compute how much more clusters explain of each column than clusters of noise do, in nats.

    Columns of few values are replaced as in the choice of λ.
    """
    trials = trials_of(sample, sample_rows(len(state.centers)), _GAINS_SEED, metric)
    labels = trials.nearest(state)
    assert state.feature_weights is not None
    weights = trials.of_columns(state.feature_weights)
    judge = trials.dithered(_GAINS_SEED) if isinstance(trials, Trials) else trials
    nulls = int(np.clip(_NULL_MEANS // (len(state.centers) * len(weights)), 1, _NULLS))
    gains = [judge.gains(labels, weights, _GAINS_SEED + null) for null in range(nulls)]
    return np.asarray(np.mean(gains, axis=0))


def preferred_lam(gains: FloatArray) -> int:
    """Return the index of the largest penalty whose gain is as good as the best.

    `gains`, of shape (n_lams, n_starts), are in the order of increasing penalties.
    """
    return int(np.flatnonzero(gains.mean(axis=1) >= _threshold(gains))[-1])


def _threshold(gains: FloatArray) -> float:
    best = float(gains.mean(axis=1).max())
    share = TOLERANCE * best
    if gains.shape[1] > 1:
        share = min(share, SPREADS * float(np.median(gains.std(axis=1))))
    return best - max(share, LEAST_TOLERANCE)


def _follow_sharing(
    trials: ColumnTrials,
    grid: Sequence[float],
    n_clusters: int,
    seed: int,
    lazy: bool,
    run: Callable[..., list[Any]],
) -> Tried:
    """Judge every penalty by the final clusters of the starts of all penalties."""
    spawn = (spawned(one, 2) for one in spawned(seed, MIXED_STARTS))
    learning, fresh = zip(*spawn, strict=True)
    starts = trials.starts(n_clusters, learning)
    ended: list[Ended] = run(
        _ends, [(float(lam),) for lam in grid], (trials, starts, fresh), "try-lam"
    )
    dispersions = [one.partition.within * trials.variance for one in ended]
    best = []
    for lam in grid:
        weights = [softmin_weights(one, lam, trials.varying) for one in dispersions]
        # An infinite penalty keeps weights equal, and adds the same to all clusters.
        scale = 0.0 if np.isinf(lam) else lam
        costs = [
            w @ one + scale * negative_entropy(w)
            for w, one in zip(weights, dispersions, strict=True)
        ]
        index = int(np.argmin(costs))
        best.append((ended[index].labels, weights[index], seed))
    found: list[float] = tree_reduce(_gain, best, (trials,), lazy, "lam-gain")
    gains = np.array(found)[:, None]
    chosen = preferred_lam(gains)
    weights = [w for _, w, _ in best]
    path = LamPath(np.array(grid), gains, np.array(weights), chosen, n_clusters, len(trials.rows))
    return Tried(path, trials.means(best[chosen][0], starts[0]))


def _gain(labels: Labels, weights: FloatArray, seed: int, trials: ColumnTrials) -> list[float]:
    """Return the gain of the clusters of one penalty (a task function)."""
    return [float(trials.gains(labels, weights, seed).sum())]


def _try_lam(
    lam: float,
    trials: Trials,
    starts: Sequence[FloatArray],
    seeds: Sequence[int],
    null_seed: int,
) -> list[tuple[FloatArray, FloatArray]]:
    """Return the gain of every start at a penalty, and the mean feature weights (a task function).

    All starts are compared with one null, which is drawn with the weights of the first start. A
    null costs as much as a start, and with one null the gains of a penalty differ only through the
    starts.
    """
    ended = _ends(lam, trials, starts, seeds)
    most = max(len(one.partition.shares) for one in ended)
    null = trials.null_within(ended[0].weights, most, null_seed)
    gains = [trials.gains_over(one.partition.within, null).sum() for one in ended]
    return [(np.array(gains), np.mean([one.weights for one in ended], axis=0))]


def _try_lam_held_out(
    lam: float,
    halves: Sequence[tuple[NDArray[np.int64], ColumnTrials]],
    starts: Sequence[Sequence[FloatArray]],
    seeds: Sequence[int],
    n_features: int,
) -> list[tuple[FloatArray, FloatArray]]:
    """Return the same as `_try_lam` for wide sparse rows (a task function).

    Clusters are found with the features of each half, and their gain is taken over the other half.
    """
    gains, mean = np.zeros(len(seeds)), np.zeros(n_features)
    for (own, trials), (_, others), first in zip(halves, halves[::-1], starts, strict=True):
        ended = _ends(lam, trials, first, seeds)
        gains += [others.gain_held_out(one.labels) for one in ended]
        mean[own] = np.mean([one.weights for one in ended], axis=0) / 2
    return [(gains, mean)]


@registered
@dataclass(frozen=True)
class Ended:
    """The clusters with which a start ends."""

    labels: Labels  # cluster of each row, (n_rows,)
    partition: Partition  # variance that the labels leave unexplained
    weights: FloatArray  # weights of the columns, (n_columns,)


def _ends(
    lam: float, trials: Trials | ColumnTrials, starts: Sequence[FloatArray], seeds: Sequence[int]
) -> list[Ended]:
    """Return the clusters with which each start ends at a penalty."""
    n_clusters = len(starts[0])
    if np.isinf(lam):
        w = trials.equal_weights
        labelings = trials.with_weights(w, n_clusters, seeds)
        return [Ended(labels, trials.partition(labels), w) for labels in labelings]
    found = []
    for state, seed in zip(trials.learn(starts, lam), seeds, strict=True):
        assert state.feature_weights is not None
        w = trials.of_columns(state.feature_weights)
        labelings = [trials.nearest(state), *trials.with_weights(w, n_clusters, [seed])]
        both = [Ended(labels, trials.partition(labels), w) for labels in labelings]
        found.append(both[int(np.argmin([trials.cost(one.partition, w) for one in both]))])
    return found
