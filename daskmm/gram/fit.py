"""Fit kernel power k-means on open Gram matrices: starts, annealing on features, exact sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from daskmm.gram.costs import GramCosts
from daskmm.gram.matrices import FactoredGram, Grams, GramSource
from daskmm.gram.nystrom import kernel_plus_plus, nystrom_factors
from daskmm.gram.problem import KernelProblem, KernelState
from daskmm.mm.context import FitContext
from daskmm.mm.driver import IterationRecord, Outcome, Run, Schedule, iterate, minimize
from daskmm.mm.stages import MADE_LATER, Stage
from daskmm.numerics.feature_space import critical_power_of_gram, one_hot

FloatArray = NDArray[np.float64]

# Number of rows from which the critical power in feature space is estimated.
_CRITICAL_ROWS = 1000


def sampled_critical_power(grams: Sequence[GramSource], weights: FloatArray, seed: int) -> float:
    """Return s_crit in the feature space of all kernels together, from a sample of rows."""
    eligible = np.flatnonzero(weights > 0)
    if len(eligible) > _CRITICAL_ROWS:
        chosen = np.random.default_rng(seed).choice(eligible, _CRITICAL_ROWS, replace=False)
        eligible = np.sort(chosen)
    together = np.mean([gram.submatrix(eligible) for gram in grams], axis=0)
    return critical_power_of_gram(together, weights[eligible])


def drawn_memberships(
    method: str,
    features: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    seeds: Sequence[int],
) -> list[FloatArray]:
    """Return one start per seed, as memberships: each cluster mean is a single row.

    The rows are drawn by their Nyström features, (n_rows, n_features), with `method` "k-means++" or
    "random". Memberships are (n_rows, n_clusters).
    """
    starts = []
    for seed in seeds:
        rng = np.random.RandomState(seed)
        if method == "random":
            probabilities = weights / weights.sum()
            rows = rng.choice(len(weights), n_clusters, replace=False, p=probabilities)
        else:
            _, rows = kmeans_plusplus(features, n_clusters, sample_weight=weights, random_state=rng)
        start = np.zeros((len(weights), n_clusters))
        start[rows, np.arange(n_clusters)] = 1.0
        starts.append(start)
    return starts


def labelled_memberships(labels: NDArray, weights: FloatArray, n_clusters: int) -> FloatArray:
    """Return memberships from labels: each mean is the weighted mean of the rows of a label.

    It raises ValueError if `labels` has not one integer per row, or a label from 0 to n_clusters -
    1 has no row of positive weight.
    """
    if labels.shape != weights.shape or labels.dtype.kind not in "iu":
        raise ValueError(
            f"init must be a label (an integer) per row, of shape ({len(weights)},); got shape "
            f"{labels.shape} and dtype {labels.dtype}."
        )
    if set(np.unique(labels)) != set(range(n_clusters)):
        raise ValueError(f"init must have all labels from 0 to {n_clusters - 1}.")
    weighted = one_hot(labels, n_clusters) * weights[:, None]
    total = weighted.sum(axis=0)
    if not (total > 0).all():
        label = int(np.flatnonzero(total == 0)[0])
        raise ValueError(f"init: all rows of label {label} have sample_weight zero.")
    return weighted / total


@dataclass(frozen=True)
class KernelFit:
    """A fit on open Gram matrices so far."""

    grams: Grams  # one matrix per kernel
    weights: FloatArray  # sample weights, (n_rows,)
    seeds: list[int]  # seed of the landmarks, then one seed per start
    n_clusters: int
    n_landmarks: int  # number of landmarks of the Nyström features
    init: str | NDArray  # name of a seeding method, or a label per row, (n_rows,)
    schedule_of: Callable[[float], Schedule]  # returns the schedule, given the critical power
    lam: float  # entropy penalty of the kernel weights
    context: FitContext
    schedule: Schedule = field(default_factory=lambda: Schedule(-np.inf))
    factors: Sequence[FloatArray] = ()  # Nyström features of each kernel, (n_rows, rank)
    starts: Sequence[FloatArray] = ()  # memberships of each start, (n_rows, n_clusters)
    runs: Sequence[Run[KernelState]] = ()  # runs on Nyström features
    result: Outcome[KernelState] = MADE_LATER  # the best of the runs on the matrices themselves

    @property
    def before(self) -> list[list[IterationRecord]]:
        """History of each start on Nyström features; empty if there was none."""
        return [run.history for run in self.runs]

    def problem(self, grams: Grams, *, exact: bool) -> KernelProblem:
        """Return the steps on Gram matrices."""
        critical = self.schedule.critical_power
        return KernelProblem(grams, self.weights, critical, self.lam, exact=exact)


def _started(fit: KernelFit) -> KernelFit:
    """Choose the schedule, landmarks and Nyström features, and find starting memberships."""
    grams, weights, (seed, *seeds) = fit.grams, fit.weights, fit.seeds
    schedule = fit.schedule_of(sampled_critical_power(grams, weights, seed))
    drawing = np.random.RandomState(seed)
    landmarks = kernel_plus_plus(grams[0], weights, fit.n_landmarks, drawing)
    factors = nystrom_factors(grams, landmarks)
    features = factors[0] if len(factors) == 1 else np.concatenate(factors, axis=1)
    if isinstance(fit.init, str):
        starts = drawn_memberships(fit.init, features, weights, fit.n_clusters, seeds)
    else:
        starts = [labelled_memberships(fit.init, weights, fit.n_clusters)]
    return replace(fit, schedule=schedule, factors=factors, starts=starts)


def _annealed(fit: KernelFit) -> KernelFit:
    """Anneal on Nyström features."""
    low_rank = Grams(FactoredGram(factor) for factor in fit.factors)
    problem = fit.problem(low_rank, exact=False)
    runs = iterate(problem, fit.starts, fit.schedule, fit.context)
    if fit.context.stopped is not None:  # then only the best start gets an exact sweep
        runs = [min(runs, key=lambda run: run.last)]
    return replace(fit, runs=runs)


def _swept(fit: KernelFit) -> KernelFit:
    """Continue the runs on Nyström features by exact sweeps; without runs, anneal exactly."""
    exact = fit.problem(fit.grams, exact=True)
    if not fit.runs:
        outcome = minimize(exact, fit.starts, fit.schedule, fit.context)
    else:
        hard = Schedule(-np.inf, max_iter=fit.schedule.max_iter, tol=fit.schedule.tol)
        outcome = minimize(exact, [run.state for run in fit.runs], hard, fit.context)
    return replace(fit, result=outcome)


# Annealing is exact if there is a single start, or if no hard steps follow it.
MEMBERSHIPS = (
    Stage("starting centres", _started, GramCosts.starts),
    Stage(
        "annealing",
        _annealed,
        GramCosts.annealing,
        needed=lambda fit: len(fit.starts) > 1 and fit.schedule.polish,
    ),
    Stage("passes", _swept, GramCosts.sweeps, after_stop=True),
)
