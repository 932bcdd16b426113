"""Starting centres: greedy k-means++, random rows, given centres.

All centres are in the model's coordinates.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.sparse import fast_rows
from daskmm.engine.first_pass import MANY_CLUSTERS, Survey
from daskmm.engine.passes import one_blas_thread, run_on_threads
from daskmm.kmeans.cells import (
    PARTITIONS,
    candidates_by_cells,
    chosen_by_cells,
    partitions_for,
)
from daskmm.numerics.distortions.base import Distortion, observed_mean
from daskmm.numerics.rows import centers_in_model
from daskmm.numerics.span import in_span
from daskmm.numerics.sparse_rows import SparseRows, has_holes

FloatArray = NDArray[np.float64]

# Squares up to this size can be summed over rows without overflow.
_LARGEST_SQUARE = 1e290


def starting_centers(
    method: str,
    survey: Survey,
    n_clusters: int,
    seeds: NDArray[np.int64],
    exchanges: bool = False,
) -> list[FloatArray]:
    """Choose starting centres among the rows of the sample, one set per seed.

    The method is "k-means++" (greedy) or "random". If `exchanges` of clusters follow, a faster start
    is as good.
    """
    rows, weights = survey.core.rows, survey.core.weights
    if method == "random":
        return [_random_rows(rows, weights, n_clusters, seed, survey.distortion) for seed in seeds]
    return starting_rows(rows, weights, n_clusters, seeds, survey.distortion, exchanges)


def given_centers(centers: FloatArray, survey: Survey) -> FloatArray:
    """Convert given centres to the model's coordinates, and move them off the edges of the domain.

    Centres, (n_clusters, n_features), are in the input's units. ValueError is raised if they are
    outside of the distortion's domain, or their squares overflow.
    """
    distortion = survey.distortion
    with np.errstate(over="ignore", invalid="ignore"):  # values are tested below
        start = centers_in_model(survey.coordinates, centers)
        if distortion.outside(start) is not None:
            raise ValueError(
                f"init has values outside of the domain of {distortion.title} "
                f"({distortion.domain})."
            )
        if distortion.empty(start).any():
            raise ValueError(f"init has a row {distortion.emptiness}.")
        start = distortion.off_edges(start)
        largest = np.square(start).sum(axis=1).max()
    if not largest < _LARGEST_SQUARE:
        raise ValueError(
            "init has values so large that squares of their distances overflow float64. Give "
            "centres in the units of X."
        )
    return start


def starting_rows(
    rows: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    seeds: Sequence[int] | NDArray[np.int64],
    distortion: Distortion,
    exchanges: bool = False,
) -> list[FloatArray]:
    """Run greedy k-means++ (Arthur & Vassilvitskii 2007), by scikit-learn if possible.

    For at least `MANY_CLUSTERS` clusters, it chooses among centres found within cells of the rows:
    those of several partitions into cells, or those of one if `exchanges` of clusters follow.
    """
    plain = distortion.squared and not isinstance(rows, SparseRows)
    if not plain or has_holes(rows):
        return [greedy_rows(rows, weights, n_clusters, seed, distortion) for seed in seeds]
    if n_clusters < MANY_CLUSTERS or len(rows) <= PARTITIONS * n_clusters:
        return plus_plus(rows, weights, n_clusters, seeds)
    n_partitions = 1 if exchanges else partitions_for(rows.shape[1])
    pools = [
        _at_least(
            *candidates_by_cells(rows, weights, n_clusters, int(seed), n_partitions), n_clusters
        )
        for seed in seeds
    ]
    with one_blas_thread():
        chosen = run_on_threads(
            [
                functools.partial(chosen_by_cells, *pool, n_clusters, [int(seed)])
                for pool, seed in zip(pools, seeds, strict=True)
            ]
        )
        return [pool[0][own] for pool, (own,) in zip(pools, chosen, strict=True)]


def plus_plus(
    rows: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    seeds: Sequence[int] | NDArray[np.int64],
) -> list[FloatArray]:
    """Run scikit-learn's greedy k-means++, once per seed."""
    # Importing scikit-learn takes half of the time that a worker needs to start, and few tasks
    # call this.
    from sklearn.cluster import kmeans_plusplus

    seen = in_span(rows)
    draws = [
        kmeans_plusplus(
            seen, n_clusters, sample_weight=weights, random_state=np.random.RandomState(seed)
        )
        for seed in seeds
    ]
    return [rows[chosen] for _, chosen in draws]


def greedy_rows(
    rows: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    seed: int | np.random.SeedSequence,
    distortion: Distortion,
    trim: float = 0.0,
) -> FloatArray:
    """Run greedy k-means++ for any distortion, and for rows with missing values.

    As in scikit-learn for squared distances, each centre is the best of 2 + log k rows that are
    drawn with probability proportional to weight and distance.

    Rows are in the coordinates of the distortion, where NaN are missing values. The rows farthest
    from the centres so far (from the mean, before the first) with the share `trim` of the weight
    are never drawn. The chosen rows, (n_clusters, n_features), are moved to the inside of the
    domain.
    """
    rng = np.random.default_rng(seed)
    tile = distortion.tile(fast_rows(rows), has_holes(rows))
    trials = 2 + int(np.log(n_clusters))
    rate = weights
    if trim:
        mean = distortion.inside(observed_mean(rows, weights)[None, :])
        rate = _of_near(weights, distortion.distances(tile, mean, None)[:, 0], weights, trim)
    first = rng.choice(len(rows), 1, p=rate / rate.sum())
    centers = distortion.inside(rows[first])
    smallest = distortion.distances(tile, centers, None)[:, 0]
    for _ in range(1, n_clusters):
        rate = weights * smallest
        if trim:
            rate = _of_near(rate, smallest, weights, trim)
        if not rate.sum() > 0:  # every near row coincides with a centre
            rate = _of_near(weights, smallest, weights, trim) if trim else weights
        drawn = rng.choice(len(rows), trials, p=rate / rate.sum())
        candidates = distortion.inside(rows[drawn])
        reduced = np.minimum(distortion.distances(tile, candidates, None), smallest[:, None])
        best = int(np.argmin(weights @ reduced))
        smallest = reduced[:, best]
        centers = np.concatenate([centers, candidates[best : best + 1]])
    return centers


def _of_near(
    rate: FloatArray, distances: FloatArray, weights: FloatArray, trim: float
) -> FloatArray:
    """Return the rates of the rows, 0 for the farthest ones."""
    return np.where(farthest_share(distances, weights, trim), 0.0, rate)


def farthest_share(distances: FloatArray, weights: FloatArray, share: float) -> NDArray[np.bool_]:
    """Return a mask of the farthest rows that have at most a share of the weight together."""
    order = np.argsort(-distances, kind="stable")
    far = np.zeros(len(distances), dtype=np.bool_)
    reached = np.cumsum(weights[order])
    far[order[reached <= share * reached[-1] * (1.0 + 1e-12)]] = True
    return far


def _random_rows(
    rows: FloatArray, weights: FloatArray, n_clusters: int, seed: int, distortion: Distortion
) -> FloatArray:
    """Draw distinct rows of the sample, with probability proportional to their weight."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(rows), n_clusters, replace=False, p=weights / weights.sum())
    return distortion.inside(rows[chosen])


def _at_least(
    centers: FloatArray, counts: FloatArray, n_clusters: int
) -> tuple[FloatArray, FloatArray]:
    """Repeat candidates if there are fewer than clusters, because few rows are distinct."""
    repeats = -(-n_clusters // len(centers))
    return np.tile(centers, (repeats, 1)), np.tile(counts, repeats) + np.finfo(float).tiny
