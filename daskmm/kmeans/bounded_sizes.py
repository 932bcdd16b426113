"""Bound the sizes of clusters.

Clusters far above the mean size are divided, and pairs of small ones merged; each row still has its
nearest centre. Sizes below twice the mean are then bounded by offsets (`daskmm.kmeans.offsets`).
The divisions come first because fits without a bound have too few centres where rows are dense:
offsets then raise the cost by half as much.
"""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.moments import Sample
from daskmm.kmeans.assignment import labels_of, map_rows
from daskmm.kmeans.branches import parts_of
from daskmm.kmeans.empty_clusters import continued
from daskmm.kmeans.offsets import learned_offsets
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, sample_problem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Outcome, Schedule, minimize
from daskmm.numerics.rows import Coordinates, tiles
from daskmm.numerics.sparse_rows import dense

FloatArray = NDArray[np.float64]

# Clusters up to this multiple of the mean size are divided only if offsets fail. Largest number of
# rounds of each kind, and number of hard steps after a division: two for rows in memory, and one if
# each step reads the table.
UNDIVIDED, MOST_ROUNDS = 2.0, 12
STEPS, STEPS_STREAMED = 2, 1
# Number of rows on which a cluster is divided, and number of light clusters that may be merged for
# each division.
_MOST_ROWS, _CANDIDATES = 4096, 8
# Number of clusters with which a light cluster may be merged, and of entries in a tile of merger
# costs.
_PARTNERS, _TILE = 4, 1 << 20
# Merged clusters weigh at most this share of the bound, since later steps may add rows.
_ROOM = 0.95
# Clusters of a sample get at most this share of the bound, since those of the table differ. The
# ratio of a cluster's weight in the sample to that in the table is assumed to differ by at most
# this factor from the ratio of all rows.
_ROOM_OF_SAMPLE, _MOST_ASTRAY = 0.99, 2.0
# A sample is the table itself if its weight differs from that of all rows by less than this share.
_ROUNDING = 1e-9


def largest_weight(bound: float | None, weight: float, n_clusters: int) -> float:
    """Return the largest weight that a cluster may have, given the weight of all rows.

    An integer `bound` is this weight itself, a floating-point number its ratio to the mean weight
    of a cluster; None is no bound.
    """
    if bound is None:
        return math.inf
    whole = isinstance(bound, Integral)  # this includes integers of numpy
    return float(bound) if whole else float(bound) * weight / n_clusters


def with_offsets(
    problem: CentersProblem,
    outcome: Outcome[CenterState],
    sample: Sample,
    most: float,
    context: FitContext,
) -> Outcome[CenterState]:
    """Move the centres to the means, and learn offsets that bound the weights by `most`.

    The sample is in the model's coordinates. If it does not hold all rows, each cluster's weight in
    it is corrected by the cluster's weight in the table, which the last pass computed.
    """
    before, weights = outcome.run.state, outcome.scored.cluster_weights
    same = Coordinates.identity(before.centers.shape[1])
    labels = map_rows(labels_of, sample.rows, same, before)
    in_sample = np.bincount(np.asarray(labels), sample.weights, len(weights))
    share = sample.weights.sum() / problem.weight
    ratios = np.divide(in_sample, weights, out=np.full(len(weights), share), where=weights > 0)
    ratios = np.clip(ratios, share / _MOST_ASTRAY, share * _MOST_ASTRAY)
    room = 1.0 if share > 1.0 - _ROUNDING else _ROOM_OF_SAMPLE
    means = replace(outcome.scored.state, s=-np.inf, relaxation=1.0, shares=None)
    state = replace(means, offsets=learned_offsets(sample, means, room * most * ratios))
    score = Schedule(-np.inf, max_iter=0, tol=0.0)
    return _after(outcome, minimize(problem, [state], score, context, before=outcome.n_iter))


def with_smaller_clusters(
    problem: CentersProblem,
    outcome: Outcome[CenterState],
    sample: Sample,
    most: float,
    seed: int,
    context: FitContext,
) -> Outcome[CenterState] | None:
    """Divide the clusters that weigh more than `most`, and take hard steps.

    The sample is in the model's coordinates. None is returned if no cluster that is too large can
    be divided.
    """
    state = replace(outcome.run.state, s=-np.inf, relaxation=1.0, shares=None, offsets=None)
    streamed = problem.passes.blocks.layout.lazy
    divided = with_divided_clusters(state, outcome.scored.cluster_weights, most, sample, seed)
    if divided is None:
        return None
    if streamed:
        divided = _on_sample(problem, divided, sample, most, seed, context)
    steps = Schedule(-np.inf, max_iter=STEPS_STREAMED if streamed else STEPS, tol=0.0)
    return _after(outcome, minimize(problem, [divided], steps, context, before=outcome.n_iter))


def _after(outcome: Outcome[CenterState], then: Outcome[CenterState]) -> Outcome[CenterState]:
    """Continue an outcome; it has converged if it had before, whatever ended the steps."""
    after = continued(outcome, then)
    runs = list(after.runs)
    runs[after.best] = replace(after.run, converged=outcome.run.converged)
    return replace(after, runs=runs)


def _on_sample(
    problem: CentersProblem,
    state: CenterState,
    sample: Sample,
    most: float,
    seed: int,
    context: FitContext,
) -> CenterState:
    """Bound the sizes of the clusters of a sample, so that few rounds read the table."""
    share = sample.weights.sum() / problem.weight
    inner = sample_problem(sample.rows, sample.weights, problem.update, problem.spread)
    for number in range(MOST_ROUNDS):
        steps = Schedule(-np.inf, max_iter=STEPS, tol=0.0)
        outcome = minimize(inner, [state], steps, context.apart())
        state = outcome.run.state
        limit, weights = _ROOM * share * most, outcome.scored.cluster_weights
        divided = with_divided_clusters(state, weights, limit, sample, seed + number)
        if divided is None:
            break
        state = divided
    return state


def with_divided_clusters(
    state: CenterState, weights: FloatArray, most: float, sample: Sample, seed: int
) -> CenterState | None:
    """Divide the clusters that are too large, and merge as many pairs of others.

    Weights of the clusters, (n_clusters,), are in the same unit as `most`. The sample is in the
    coordinates of the centres; its rows of a cluster show how to divide it. None is returned if no
    cluster that is too large can be divided.
    """
    too_large = np.flatnonzero(weights > most)
    too_large = too_large[np.argsort(-weights[too_large], kind="stable")]
    wanted = np.ceil(weights[too_large] / most).astype(int) - 1
    pairs = _pairs_to_merge(state, weights, most, int(wanted.sum()))
    if not pairs:
        return None
    same = Coordinates.identity(state.centers.shape[1])
    labels = labels_of(Block(sample.rows), same, state)
    centers, left = state.centers.copy(), iter(pairs)
    for cluster, more in zip(too_large, wanted, strict=True):
        own_seed = seed + int(cluster)
        rng = np.random.default_rng(own_seed)
        own = rng.permutation(np.flatnonzero(labels == cluster))[:_MOST_ROWS]
        rows, v = dense(sample.rows[own]), sample.weights[own]
        n_parts, center = 1 + min(int(more), len(pairs)), state.centers[cluster]
        parts = parts_of(rows, v, n_parts, center, state.distortion, own_seed)
        for part in parts[1:]:
            pair = next(left, None)
            if pair is None:
                break
            kept, freed = pair
            shares = weights[[kept, freed]] / max(
                weights[[kept, freed]].sum(), np.finfo(float).tiny
            )
            centers[kept] = shares @ state.centers[[kept, freed]] if shares.any() else centers[kept]
            centers[freed], centers[cluster] = part, parts[0]
    if np.array_equal(centers, state.centers):
        return None
    return replace(state, centers=centers)


def _pairs_to_merge(
    state: CenterState, weights: FloatArray, most: float, n_pairs: int
) -> list[tuple[int, int]]:
    """Return disjoint pairs of clusters whose mergers cost least, and are not too large.

    The cost of a merger is that of Ward's method, w_i w_j / (w_i + w_j) times the distance.
    """
    light = np.argsort(weights, kind="stable")[: max(_CANDIDATES * n_pairs, 1)]
    centers, found = state.centers, []
    for own in tiles(len(light), max(1, _TILE // len(weights))):
        some = light[own]
        tile = state.distortion.tile(centers[some], False)
        both = weights[some, None] + weights
        with np.errstate(invalid="ignore"):
            shares = np.where(both > 0, weights[some, None] * weights / both, 0.0)
        costs = shares * state.distortion.distances(tile, centers, state.feature_weights)
        costs[both > _ROOM * most] = np.inf
        costs[np.arange(len(some)), some] = np.inf
        for _ in range(min(_PARTNERS, len(weights) - 1)):
            partner = costs.argmin(axis=1)
            at = np.arange(len(some)), partner
            found.append(np.column_stack([costs[at], some, partner]))
            costs[at] = np.inf
    ordered = np.concatenate(found)
    pairs: list[tuple[int, int]] = []
    taken: set[int] = set()
    for cost, one, other in ordered[np.argsort(ordered[:, 0], kind="stable")]:
        pair = int(one), int(other)
        if len(pairs) == n_pairs or not np.isfinite(cost):
            break
        if taken.isdisjoint(pair):
            pairs.append(pair)
            taken.update(pair)
    return pairs
