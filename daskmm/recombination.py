"""New starts from what earlier ones found.

Different starts lose different clusters. Their centres together hold nearly all clusters several
times over, and choosing among them by k-means++ puts the best parts of several solutions into
one: far more of the way to the optimum than as many fresh starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from daskmm.mm import EQUALLY_GOOD, Run, cheapest_first
from daskmm.numerics.divergences import SQUARED_EUCLIDEAN
from daskmm.seeding import greedy_rows
from daskmm.stats import CenterState

FloatArray = NDArray[np.float64]

# How much more often centres of cheaper solutions are chosen.
_PRESSURE = 5.0


def are_alike(runs: Sequence[Run[CenterState]]) -> bool:
    """Whether all solutions cost the same, so that there is nothing to be combined."""
    costs = [run.last for run in runs]
    return max(costs) - min(costs) <= EQUALLY_GOOD * abs(min(costs))


def cheapest(runs: Sequence[Run[CenterState]], n_kept: int) -> list[Run[CenterState]]:
    """The cheapest solutions, the best first; earlier ones where they cost the same."""
    costs = [run.last for run in runs]
    return [runs[index] for index in cheapest_first(costs, abs(min(costs)))[:n_kept]]


def recombined(
    runs: Sequence[Run[CenterState]], seeds: Sequence[np.random.SeedSequence]
) -> list[CenterState]:
    """Hard starts whose centres are chosen among those of several solutions.

    Greedy k-means++ on all centres together, those of a solution of cost c counting
    exp(−5 (c − c_min) / (c_mean − c_min)) times (Baldassi, "Recombinator-k-means: An evolutionary
    algorithm that exploits k-means++ for recombination", IEEE Trans. Evol. Comput. 26, 2022).
    Distances, and the feature weights that new starts begin with, are those of the cheapest one.

    Parameters
    ----------
    runs : sequence of Run
        Ended by hard steps, not all of the same cost.
    seeds : sequence of SeedSequence
        One per start that is wanted.

    Returns
    -------
    list of CenterState
    """
    best = cheapest(runs, 1)[0].state
    k = len(best.centers)
    pool = np.concatenate([run.state.centers for run in runs])
    seen = pool if best.feature_weights is None else pool * np.sqrt(best.feature_weights)
    chances = np.repeat(_chances(np.array([run.last for run in runs])), k)
    starts = []
    for seed in seeds:
        if best.distortion.code != SQUARED_EUCLIDEAN.code:
            drawn = greedy_rows(pool, chances, k, seed, best.distortion)
            starts.append(replace(best, centers=drawn, s=-np.inf))
            continue
        rng = np.random.RandomState(np.random.MT19937(seed))
        _, chosen = kmeans_plusplus(seen, k, sample_weight=chances, random_state=rng)
        starts.append(replace(best, centers=pool[chosen], s=-np.inf))
    return starts


def _chances(costs: FloatArray) -> FloatArray:
    excess = costs - costs.min()
    return np.exp(-_PRESSURE * excess / excess.mean())
