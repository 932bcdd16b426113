"""Incremental MM for `partial_fit`: one record of sums per call.

The majorizing function of a block's rows depends on the rows only through the sums (Σφ, φᵀX, Σφx²)
at the state at which these were computed. So records of sums stand for earlier rows, and can be
replaced, faded and merged; after each call centres and feature weights minimise the sum of all
(MISO: Mairal, "Incremental Majorization-Minimization Optimization with Application to Large-Scale
Machine Learning", SIAM J. Optim. 25, 2015). That sum never rises while records are replaced by
later ones of the same rows, and bounds the objective from above. There is no learning rate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.first_pass import checked_moments, mean_and_variance, row_uniforms
from daskmm.engine.moments import Moments
from daskmm.engine.passes import Passes
from daskmm.kmeans.assignment import nearest_of
from daskmm.kmeans.renewal import Renewal, Reservoir, renewed
from daskmm.kmeans.sums import CenterState, CenterSums, Farthest, MeanSums, PerStart, center_sums
from daskmm.kmeans.trimming import trimmed_sums
from daskmm.kmeans.updates import EntropyUpdate, Update
from daskmm.mm.keyed_records import KeyedRecords
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import Bregman
from daskmm.numerics.distortions.cosine import Cosine
from daskmm.numerics.entropy import negative_entropy
from daskmm.numerics.rows import Coordinates, Rows
from daskmm.numerics.sums import Sums
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Better clusters are looked for once the rows since the last search have the first share of the
# weight of all rows. While new rows cost _COSTLY times as much as the rows of all calls, the
# smaller second share suffices.
_RENEWED, _SOONER, _COSTLY = 0.3, 0.1, 1.25
# Clusters are looked for on the sample, as long as rows of a fit, which are not in it, have at most
# this share of the weight.
_UNSAMPLED = 0.1
# The shorter memory fades this many times as fast. It replaces the longer one when new rows, before
# they are added, cost less at its centres by more than this share.
_FASTER, _WINS = 4.0, 5e-3


@registered
@dataclass(frozen=True)
class Majorizer(MeanSums):
    """Majorizing function of the rows of one call or several, as a function of the state."""

    n_rows: int  # number of these rows, however much their weights have faded
    weight: float  # sum of the sample weights of these rows
    constant: float  # part of `cost` that does not depend on the state
    kept: float = 1.0  # share of their sample weights that the rows of a single call still have

    @classmethod
    def of(cls, sums: CenterSums, state: CenterState, weight: float, n_rows: int) -> Self:
        """Return the record of sums that were computed at a state."""
        found = cls(sums.weights, sums.sums, sums.denominators, sums.squares, n_rows, weight, 0.0)
        # A majorizing function equals the objective at the state at which it was made.
        return replace(found, constant=sums.objective - found.cost(state))

    def cost(self, state: CenterState) -> float:
        """Return the majorizing function at a state, an upper bound of the rows' objective.

        After hard steps it is the sum of the distances of the rows to the centres of the clusters
        that they were assigned to. Penalties are not included.
        """
        centers, w, distortion = state.centers, state.feature_weights, state.distortion
        if isinstance(distortion, Bregman) and (self.squares is None or not distortion.squared):
            # The divergence is linear in the rows, up to a term without the centres.
            planes = distortion.planes(centers, w)
            linear = float((self.masses * planes.constants + self.sums * planes.factors).sum())
            own = 0.0 if self.squares is None or w is None else float(w @ self.squares)
            return self.constant + linear + own
        parts = ((self.masses * centers - 2.0 * self.sums) * centers).sum(axis=0)
        if self.squares is not None:
            parts += self.squares
        return self.constant + float(parts.sum() if w is None else w @ parts)

    def __add__(self, other: Self) -> Self:
        return replace(super().__add__(other), kept=1.0)

    def faded(self, factor: float) -> Self:
        """Return the record of the same rows with their sample weights multiplied by a factor."""
        return replace(self.times(factor), n_rows=self.n_rows)

    def divided(self, renewal: Renewal, before: CenterState) -> Self:
        """Return the record for better clusters, among which rows are divided as in a sample."""
        weights, sums = renewal.divide(self.weights[:, None], self.sums)
        masses = self.denominators
        if masses is not None:
            masses, sums = renewal.divide(masses, self.sums)
        found = replace(self, weights=weights[:, 0], sums=sums, denominators=masses)
        if self.squares is not None:
            return found
        cost = self.cost(before) + self.weight * renewal.change
        return replace(found, constant=found.constant + cost - found.cost(renewal.state))

    def as_sums(self, farthest: Farthest) -> CenterSums:
        """Return the sums for an update, with rows to which centres of empty clusters may move."""
        parts = (self.weights, self.sums, self.denominators, self.squares)
        return CenterSums(*parts, np.nan, np.nan, np.nan, farthest)


# Returns the factor by which earlier rows fade in a call, given the weight of the call's rows.
Fading = Callable[[float], float]


@registered
@dataclass(frozen=True)
class Updates:
    """Records of all rows so far."""

    s: float  # the power of all records
    distortion: Distortion  # distortion in the model's coordinates
    reservoir: Reservoir  # sample of the rows
    records: KeyedRecords[Majorizer] = field(default_factory=KeyedRecords)  # records of the calls
    weight_since: float = 0.0  # weight of the rows that came after the last search
    shorter: ShorterMemory | None = None  # records that fade faster; None without a half-life
    searches: bool = True  # whether better clusters are looked for
    unsampled: float = 0.0  # weight that the rows of a fit still have; the sample has none of them

    @property
    def keyed(self) -> dict[str, Majorizer]:
        """Key of a call -> its record."""
        return self.records.keyed

    @property
    def n_calls(self) -> int:
        """Number of calls."""
        return self.records.n_calls

    @property
    def total(self) -> Majorizer:
        """Sum of all records."""
        return self.records.total

    @property
    def samples_all(self) -> bool:
        """Whether the sample is at least half full; after a fit it is empty."""
        kept = self.reservoir
        return 2 * len(kept.rows) >= min(kept.size, self.total.n_rows)

    @property
    def samples_fit(self) -> bool:
        """Whether hardly any weight is that of the rows of a fit, which the sample lacks."""
        return self.unsampled <= _UNSAMPLED * self.total.weight

    @property
    def has_gaps(self) -> bool:
        """Whether values are missing in rows of the sample."""
        return bool(np.isnan(self.reservoir.rows).any())

    def costs_more(self, record: Majorizer, state: CenterState) -> bool:
        """Return whether new rows cost much more than those of all calls."""
        if self.records.unkeyed is None and not self.keyed:
            return False
        total = self.total
        usual = total.cost(state) / total.weight
        return record.cost(state) / record.weight > _COSTLY * usual > 0

    def after(self, record: Majorizer, key: str | None, factor: float = 1.0) -> Updates:
        """Return the records after a call: earlier ones fade, and one with its key is replaced."""
        records = self.records.after(record, key, factor)
        return replace(self, records=records, unsampled=factor * self.unsampled)


@registered
@dataclass(frozen=True)
class ShorterMemory:
    """Second set of records, which fades faster, and the state that minimises their sum.

    While the clusters of the data stay the same, the shorter memory has the larger sampling error,
    and new rows cost more at its centres than at those of the longer memory. After a change they
    cost less, since the shorter memory has forgotten the rows from before.
    """

    updates: Updates  # the records
    state: CenterState  # the state that minimises their sum
    # Costs of the rows of all calls, with earlier rows faded, at this state and at the state of the
    # longer memory. The rows of a call are scored before they are added.
    cost: float = 0.0
    longer_cost: float = 0.0

    @property
    def wins(self) -> bool:
        """Whether new rows have cost less at the centres of the shorter memory."""
        return self.longer_cost > (1.0 + _WINS) * self.cost


# Records, and the state that minimises their sum.
Memory = tuple[Updates, CenterState]


def updated(
    updates: Updates,
    passes: Passes,
    coordinates: Rows,
    state: CenterState,
    update: Update,
    key: str | None = None,
    fading: Fading | None = None,
) -> Memory:
    """Visit new rows once, and return all records and the state that minimises their sum.

    The record of an earlier call with the same key is replaced. `fading` returns the factor by
    which earlier rows fade; without it they keep their weight. A call with a known key fades
    nothing, and its rows get the weight that the replaced rows had. Values that cannot be used
    raise ValueError, whose message names block and row.
    """
    state = replace(state, s=updates.s, distortion=updates.distortion)
    memories = [(replace(updates, shorter=None), state)]
    shorter = updates.shorter or ShorterMemory(*memories[0])
    if fading is not None:
        memories.append((shorter.updates, shorter.state))
    visit, memories = _visited(passes, coordinates, memories, key)
    weight = visit.moments.weight
    seen_by: Sequence[_Seen] = visit.seen.records
    if update.trim and updates.s == -np.inf:
        weight *= 1.0 - update.trim
        seen_by = _trimmed(seen_by, passes, coordinates, [state for _, state in memories], update)
    n_rows = passes.blocks.layout.n_rows
    assert n_rows is not None
    again = key is not None and key in updates.keyed
    factor = 1.0 if fading is None or again else fading(visit.moments.weight)
    factors = (factor, factor**_FASTER)[: len(memories)]
    after = [
        _stepped(
            memory, seen, Majorizer.of(seen.sums, memory[1], weight, n_rows), update, key, each
        )
        for memory, seen, each in zip(memories, seen_by, factors, strict=True)
    ]
    if fading is None:
        return after[0]
    shorter = replace(shorter, updates=after[1][0], state=after[1][1])
    if not again:  # otherwise the rows of this key have been compared before
        longer_cost, cost = (
            seen.sums.objective + weight * update.penalty(state)
            for (_, state), seen in zip(memories, seen_by, strict=True)
        )
        shorter = replace(
            shorter,
            cost=factors[1] * shorter.cost + cost,
            longer_cost=factors[1] * shorter.longer_cost + longer_cost,
        )
    if shorter.wins and not again:
        return replace(shorter.updates, shorter=ShorterMemory(*after[1])), shorter.state
    return replace(after[0][0], shorter=shorter), after[0][1]


def _stepped(
    memory: Memory,
    seen: _Seen,
    record: Majorizer,
    update: Update,
    key: str | None,
    factor: float,
) -> Memory:
    """Add the record of new rows to earlier ones; return the state that minimises their sum."""
    updates, state = memory
    sooner = updates.costs_more(record, state)
    kept = updates.records.kept(key)
    updates = updates.after(record, key, factor)
    total = updates.total
    reservoir = _without_call(updates.reservoir, key).faded(factor) + seen.drawn.faded(kept)
    since = updates.weight_since + record.weight
    updates = replace(updates, reservoir=reservoir, weight_since=since)
    enough = since >= (_SOONER if sooner else _RENEWED) * total.weight
    if updates.searches and updates.samples_fit and enough:
        updates, state = _renewed(updates, state, update)
        total = updates.total
    return updates, update.update(total.as_sums(seen.sums.farthest), state, total.weight)


def _renewed(updates: Updates, state: CenterState, update: Update) -> Memory:
    """Search for better clusters on the sample, and divide the records among them."""
    updates = replace(updates, weight_since=0.0)
    better = renewed(updates.reservoir, state, update, updates.n_calls)
    if better is None:
        return updates, state
    divided = updates.records.each(lambda record: record.divided(better, state))
    return replace(updates, records=divided), better.state


@dataclass(frozen=True)
class _Seen(Sums):
    """Sums of new rows at the state of one memory, and rows for its sample."""

    sums: CenterSums
    drawn: Reservoir


def _trimmed(
    seen: Sequence[_Seen],
    passes: Passes,
    coordinates: Rows,
    states: Sequence[CenterState],
    update: Update,
) -> list[_Seen]:
    """Leave out the rows farthest from their centres, in two or three more passes."""
    sums = trimmed_sums(passes, coordinates, states, update.trim)
    found = []
    for each, state, (own, limit) in zip(seen, states, sums, strict=True):
        drawn = each.drawn
        if len(drawn.rows):
            same = Coordinates.identity(drawn.rows.shape[1])
            _, distances = nearest_of(Block(drawn.rows), same, state)
            drawn = drawn.only(limit.kept(distances) > 0)
        found.append(_Seen(own, drawn))
    return found


@dataclass(frozen=True)
class _Visit(Sums):
    """Record of the pass over new rows."""

    moments: Moments
    seen: PerStart[_Seen]


class _Drawing(NamedTuple):
    """How rows are drawn for a sample: its size, the bound of priorities, and the seed."""

    size: int
    bound: float
    origin: int
    call: int

    def of(self, block: Block, coordinates: Rows) -> Reservoir:
        """Draw rows of a block, independently of the chunks."""
        rows, weights, n = block.rows, block.weights, len(block.rows)
        uniform = row_uniforms((self.origin, self.call), block.position.start + np.arange(n))
        with np.errstate(divide="ignore"):
            priorities = np.log(-np.log(uniform))
            if weights is not None:
                priorities -= np.log(weights)
        bound = self.bound
        if len(rows) > self.size:
            bound = min(bound, float(np.partition(priorities, self.size)[self.size]))
        drawn = np.flatnonzero(priorities < bound)
        z = coordinates.to_model(rows[drawn])
        return Reservoir(self.size, z, priorities[drawn], np.full(len(drawn), self.origin))


def _origin(key: str | None) -> int:
    """Return a number for a key; 0 without a key."""
    if key is None:
        return 0
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little")


def _without_call(reservoir: Reservoir, key: str | None) -> Reservoir:
    """Return the sample without the rows of the earlier call with a key."""
    return reservoir if key is None else reservoir.without(_origin(key))


def _drawing(updates: Updates, key: str | None) -> _Drawing:
    kept = _without_call(updates.reservoir, key)
    return _Drawing(kept.size, kept.bound, _origin(key), updates.n_calls)


def _visited(
    passes: Passes, coordinates: Rows, memories: Sequence[Memory], key: str | None
) -> tuple[_Visit, list[Memory]]:
    """Test all values and compute the sums at each state, in one pass.

    The memories, with the states that were used, are returned too. ValueError is raised if there
    are no rows, none has weight, or values cannot be used.
    """
    passes.count_rows()
    if passes.blocks.layout.n_rows == 0:
        raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: X.")
    drawings = tuple(_drawing(updates, key) for updates, _ in memories)

    def visit(memories: Sequence[Memory]) -> _Visit:
        states = tuple(state for _, state in memories)
        found: _Visit = passes.reduce(_visit, coordinates, states, drawings)
        mean_and_variance(found.moments)
        return found

    memories = list(memories)
    found = visit(memories)
    if not all(np.isfinite(each.sums.objective) for each in found.seen.records):
        # If all centres are at an edge of the domain, new rows may be infinitely far from them.
        for i, (updates, state) in enumerate(memories):
            off = updates.distortion.off_edges(state.centers)
            memories[i] = updates, replace(state, centers=off)
        found = visit(memories)
    for each in found.seen.records:
        if not (np.isfinite(each.sums.objective) and np.isfinite(each.sums.sums).all()):
            raise ValueError(
                "Input X has values so far from those of the earlier rows that squares of their "
                "distances overflow float64."
            )
    if found.moments.weight == 0.0:
        raise ValueError("sample_weight is zero for all rows.")
    return found, memories


def _visit(
    block: Block,
    coordinates: Rows,
    states: tuple[CenterState, ...],
    drawings: tuple[_Drawing, ...],
) -> _Visit:
    """Visit one block (the block function)."""
    first = states[0]
    moments = checked_moments(block, type(first.distortion), first.partial)
    with np.errstate(over="ignore", invalid="ignore"):  # `_visited` tests the totals
        found = center_sums(block.rows, block.weights, coordinates, states).records
    drawn = [drawing.of(block, coordinates) for drawing in drawings]
    return _Visit(moments, PerStart(tuple(map(_Seen, found, drawn))))


def record_of_fit(
    state: CenterState,
    means: FloatArray,
    weights: FloatArray,
    value_shares: FloatArray | None,
    objective: float,
    update: Update,
    n_rows: int,
    weight: float,
) -> Majorizer:
    """Return the record of the rows of a fit, computed from the fitted model.

    The record is that of the last step: `weights` are Σφ, which are the sizes of the clusters after
    hard steps, and `weight` is the weight of the rows. Sums follow from the means of the clusters,
    or from the directions of these for cosine distances. EWP's dispersions D follow from the
    weights w ∝ exp(−D/λ) and from the mean cost Σ_l w_l D_l. For norms, whose means are not known,
    the centres take their place, and all rows are assumed to be at the mean distance from their
    centre.

    `value_shares`, (n_clusters, n_features), are the shares of each cluster's rows that have a
    value; None if no value is missing.
    """
    w = state.feature_weights
    masses = np.broadcast_to(weights[:, None], means.shape).astype(np.float64)
    mean_distance = objective / weights.sum()
    if value_shares is not None:
        masses = masses * np.nan_to_num(value_shares)
    if state.distortion.degree == 1:
        apart = mean_distance / (1.0 if w is None else means.shape[1])
        masses = masses * (0.5 / apart if apart > 0 else 1.0)
    squares = None
    if w is not None:
        assert isinstance(update, EntropyUpdate)
        dispersion = np.full(len(w), objective / weight)
        if np.isfinite(update.lam):
            dispersion += update.lam * (
                negative_entropy(update.of_groups(w)) - np.log(np.maximum(w, np.finfo(float).tiny))
            )
        squares = weight * np.maximum(update.per_feature(dispersion), 0.0)
        squares += state.distortion.between(masses, means)
    whole = state.distortion.degree == 2 and not state.partial
    sums = masses * means
    if isinstance(state.distortion, Cosine):
        # Means of directions are shorter than centres, by the mean cosine of rows and centres.
        sums *= 1.0 - mean_distance
    record = Majorizer(weights, sums, None if whole else masses, squares, n_rows, weight, 0.0)
    return replace(record, constant=objective - record.cost(state))
