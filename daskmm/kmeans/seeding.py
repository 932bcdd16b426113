"""Starting centres: greedy k-means++, k-means|| (Bahmani et al. 2012), random rows, given centres.

All centres are in the model's coordinates.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.sparse import fast_rows
from daskmm.data.blocks import Block
from daskmm.engine.first_pass import MANY_CLUSTERS, Survey, row_uniforms
from daskmm.engine.passes import Passes
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.kmeans.cells import (
    PARTITIONS,
    candidates_by_cells,
    chosen_by_cells,
    partitions_for,
)
from daskmm.kmeans.sums import PerStart
from daskmm.numerics.distortions.base import Distortion, observed_mean
from daskmm.numerics.rows import Rows, centers_in_model, pieces
from daskmm.numerics.span import in_span
from daskmm.numerics.sparse_rows import SparseRows, dense, has_holes

FloatArray = NDArray[np.float64]

# Number of rounds of k-means||, and of rows drawn per round and cluster.
ROUNDS = 5
OVERSAMPLING = 2
# Greedy k-means++ computes the distances between all rows at once if there are at most this many
# rows, and at most this many per drawn row, since a call for each centre then takes longer.
_FEW_ROWS, _ROWS_PER_DRAW = 1024, 2
# Squares up to this size can be summed over rows without overflow.
_LARGEST_SQUARE = 1e290


def starting_centers(
    method: str,
    passes: Passes,
    survey: Survey,
    n_clusters: int,
    seeds: NDArray[np.int64],
    exchanges: bool = False,
) -> list[FloatArray]:
    """Choose starting centres, one set per seed.

    "k-means++" (greedy) and "random" choose among the sample of the first pass; "k-means||" takes
    passes of its own, shared by all seeds. If `exchanges` of clusters follow, a faster start is as
    good.
    """
    if method == "k-means||":
        return _scalable(passes, survey, n_clusters, seeds)
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
    few = len(rows) <= min(_FEW_ROWS, _ROWS_PER_DRAW * trials * n_clusters)
    at_once = few and isinstance(rows, np.ndarray)
    apart = distortion.distances(tile, distortion.inside(rows), None) if at_once else None
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
        own = distortion.distances(tile, candidates, None) if apart is None else apart[:, drawn]
        reduced = np.minimum(own, smallest[:, None])
        best = int(np.argmin(weights @ reduced))
        smallest = reduced[:, best]
        centers = np.concatenate([centers, candidates[best : best + 1]])
    return centers


def _of_near(
    rate: FloatArray, distances: FloatArray, weights: FloatArray, trim: float
) -> FloatArray:
    """Return the rates at which rows are drawn; the farthest rows have rate 0."""
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


def _scalable(
    passes: Passes, survey: Survey, n_clusters: int, seeds: NDArray[np.int64]
) -> list[FloatArray]:
    """Run k-means|| (Bahmani et al., "Scalable k-means++", VLDB 2012).

    It starts from a random row. Each of a few rounds adds 2·k rows, drawn with probability
    proportional to their weighted distance from the candidates so far. Finally greedy k-means++
    chooses among the candidates, weighted by the rows nearest to them. A round draws without
    replacement, by the smallest exponential keys, in one pass; independent draws would need the
    total cost in advance.
    """
    rows, weights = survey.core.rows, survey.core.weights
    metric = (survey.coordinates, survey.distortion, survey.partial)
    candidates = [_random_rows(rows, weights, 1, seed, survey.distortion) for seed in seeds]
    draws = OVERSAMPLING * n_clusters
    for round_number in range(ROUNDS):
        keys = tuple((int(seed), round_number) for seed in seeds)
        limits = tuple(_farthest_near(survey, each) for each in candidates)
        drawn = passes.reduce(_draw, *metric, tuple(candidates), limits, keys, draws)
        candidates = [
            np.concatenate([old, survey.distortion.inside(new.rows)])
            for old, new in zip(candidates, drawn.records, strict=True)
        ]
    masses = passes.reduce(_candidate_weights, *metric, tuple(candidates))
    starts = []
    for centers, counts, seed in zip(candidates, masses.records, seeds, strict=True):
        pool = _at_least(centers, counts, n_clusters)
        starts += starting_rows(*pool, n_clusters, [seed], survey.distortion)
    return starts


def _farthest_near(survey: Survey, candidates: FloatArray) -> float:
    """Return the largest distance of a near row of the sample from its candidate."""
    if survey.near is None:
        return np.inf
    farthest = 0.0
    for _, some in pieces(survey.core.rows, len(candidates)):
        tile = survey.distortion.tile(fast_rows(some), survey.partial)
        nearest = survey.distortion.distances(tile, candidates, None).min(axis=1)
        farthest = max(farthest, float(nearest.max(initial=0.0)))
    return farthest


def _at_least(
    centers: FloatArray, counts: FloatArray, n_clusters: int
) -> tuple[FloatArray, FloatArray]:
    """Repeat candidates if there are fewer than clusters, because few rows are distinct."""
    repeats = -(-n_clusters // len(centers))
    return np.tile(centers, (repeats, 1)), np.tile(counts, repeats) + np.finfo(float).tiny


@dataclass(frozen=True)
class _Draw:
    """Rows with the smallest keys so far, at most `size`."""

    keys: FloatArray
    rows: FloatArray
    size: int

    def __add__(self, other: Self) -> Self:
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys, kind="stable")[: self.size]
        return type(self)(keys[order], np.concatenate([self.rows, other.rows])[order], self.size)


def _draw(
    block: Block,
    coordinates: Rows,
    distortion: Distortion,
    partial: bool,
    candidates: tuple[FloatArray, ...],
    limits: tuple[float, ...],
    keys: tuple[tuple[int, int], ...],
    size: int,
) -> PerStart[_Draw]:
    """Draw the rows of one block with the smallest keys, drawn from Exp(weight × distance).

    Rows beyond the limit of a start are not drawn.
    """
    rows, weights, numbers = block.rows, block.weights, block.numbers
    draws = [_Draw(np.empty(0), centers[:0], size) for centers in candidates]
    for tile, some in pieces(rows, max(map(len, candidates))):
        z = coordinates.to_model(some)
        held = distortion.tile(z, partial)
        starts = zip(candidates, limits, keys, strict=True)
        for index, (centers, limit, key) in enumerate(starts):
            rate = distortion.distances(held, centers, None).min(axis=1)
            rate[rate > limit] = 0.0
            if weights is not None:
                rate *= weights[tile]
            drawable = np.flatnonzero(rate > 0)
            uniform = row_uniforms(key, numbers[tile][drawable])
            waits = -np.log(uniform) / rate[drawable]
            first = np.argsort(waits, kind="stable")[:size]
            found = _Draw(waits[first], dense(z[drawable[first]]), size)
            draws[index] = draws[index] + found
    return PerStart(tuple(draws))


def _candidate_weights(
    block: Block,
    coordinates: Rows,
    distortion: Distortion,
    partial: bool,
    candidates: tuple[FloatArray, ...],
) -> PerStart[FloatArray]:
    """Sum the weights of the rows of one block nearest to each candidate, in the last pass."""
    counts = [np.zeros(len(centers)) for centers in candidates]
    for tile, some in pieces(block.rows, max(map(len, candidates))):
        held = distortion.tile(coordinates.to_model(some), partial)
        v = None if block.weights is None else block.weights[tile]
        for count, centers in zip(counts, candidates, strict=True):
            nearest = distortion.distances(held, centers, None).argmin(axis=1)
            count += np.bincount(nearest, v, minlength=len(centers))
    return PerStart(tuple(counts))
