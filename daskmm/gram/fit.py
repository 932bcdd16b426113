"""Fit kernel power k-means on open Gram matrices: starts, annealing on features, exact sweeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from daskmm.gram.matrices import FactoredGram, Grams, GramSource
from daskmm.gram.problem import KernelProblem, KernelState
from daskmm.mm.context import FitContext
from daskmm.mm.driver import IterationRecord, Outcome, Schedule, iterate, minimize
from daskmm.numerics.feature_space import critical_power_of_gram, one_hot

FloatArray = NDArray[np.float64]

# Number of rows from which the critical power in feature space is estimated.
_CRITICAL_ROWS = 1000
# Name of a stage in the journal of a fit.
_LOW_RANK = "low rank"


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
    """Return one start per seed: memberships whose means are single rows.

    Parameters
    ----------
    method : {"k-means++", "random"}
        How the rows are drawn.
    features : ndarray of shape (n_rows, n_features)
        Nyström features of the rows.
    weights : ndarray of shape (n_rows,)
        Sample weights.
    n_clusters : int
        Number of rows to draw.
    seeds : sequence of int
        Seed of each start.

    Returns
    -------
    list of ndarray of shape (n_rows, n_clusters)
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
    """Return the memberships of the weighted means of a label vector.

    Raises
    ------
    ValueError
        If it is not one integer label per row, or a label from 0 to n_clusters - 1 has no row of
        positive weight.
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


def fit_memberships(
    grams: Grams,
    factors: Sequence[FloatArray],
    weights: FloatArray,
    starts: Sequence[FloatArray],
    schedule: Schedule,
    lam: float,
    context: FitContext,
) -> tuple[Outcome[KernelState], list[list[IterationRecord]]]:
    """Anneal on Nyström features and polish by exact sweeps, or anneal by exact sweeps.

    One start, or a schedule without polish, is annealed exactly.

    Parameters
    ----------
    grams : Grams
        The exact matrices.
    factors : sequence of ndarray of shape (n_rows, rank)
        Nyström features of each kernel.
    weights : ndarray of shape (n_rows,)
        Sample weights.
    starts : sequence of ndarray of shape (n_rows, n_clusters)
        Memberships of each start.
    schedule : Schedule
        Schedule of the power.
    lam : float
        Entropy penalty of the kernel weights.
    context : FitContext
        Journal, callbacks and clock of the fit.

    Returns
    -------
    outcome : Outcome
        The best start after exact sweeps.
    before : list of list of IterationRecord
        Annealing of each start on Nyström features, if there was any.
    """
    critical = schedule.critical_power
    exact = KernelProblem(grams, weights, critical, lam)
    if len(starts) == 1 or not schedule.polish:
        return minimize(exact, starts, schedule, context), []
    low_rank = Grams(FactoredGram(factor) for factor in factors)
    cheap = KernelProblem(low_rank, weights, critical, lam, exact=False)
    annealed = iterate(cheap, starts, schedule, context, stage=_LOW_RANK)
    if context.stopped is not None:  # only the best start gets an exact sweep
        annealed = [min(annealed, key=lambda run: run.last)]
    hard = Schedule(-np.inf, max_iter=schedule.max_iter, tol=schedule.tol)
    outcome = minimize(exact, [run.state for run in annealed], hard, context)
    return outcome, [run.history for run in annealed]
