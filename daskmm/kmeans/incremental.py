"""Incremental MM: clusters of rows that go on arriving, from one record of sums per call.

The sums (Σφ, φᵀX, Σφx²) of a block are all that the majorizing function of its rows depends on, at
the state at which they were computed. So records of earlier rows are kept, and can be replaced,
faded and merged; after each call the centres and the feature weights minimise the sum of all
(MISO: Mairal, "Incremental Majorization-Minimization Optimization with Application to Large-Scale
Machine Learning", SIAM J. Optim. 25, 2015). That sum never rises while records are replaced by
later ones of the same rows, it bounds the objective from above, and there is no learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Position
from daskmm.engine.first_pass import checked_moments, mean_and_variance
from daskmm.engine.moments import Moments
from daskmm.engine.passes import Passes
from daskmm.kmeans.sums import CenterState, CenterSums, Farthest, center_sums
from daskmm.kmeans.updates import EntropyUpdate, Update
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import Bregman
from daskmm.numerics.entropy import negative_entropy
from daskmm.numerics.rows import Rows
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]


@registered
@dataclass(frozen=True)
class Majorizer:
    """Majorizing function of the rows of one call or several, as a function of the state.

    Attributes
    ----------
    n_rows : int
        Rows that it was computed from; not faded.
    weight : float
        Sum of their sample weights.
    weights, sums, denominators, squares
        As in `CenterSums`.
    constant : float
        What `cost` adds to the terms that depend on the state.
    """

    n_rows: int
    weight: float
    weights: FloatArray
    sums: FloatArray
    denominators: FloatArray | None
    squares: FloatArray | None
    constant: float

    @classmethod
    def of(cls, sums: CenterSums, state: CenterState, weight: float, n_rows: int) -> Self:
        """Return the record of the sums that were computed at a state."""
        found = cls(n_rows, weight, sums.weights, sums.sums, sums.denominators, sums.squares, 0.0)
        # A majorizing function touches the objective at the state that it was made at.
        return replace(found, constant=sums.objective - found.cost(state))

    def cost(self, state: CenterState) -> float:
        """Return the majorizing function at a state: an upper bound of the objective of the rows.

        After hard steps it is the sum of the distances of the rows to the centres of the clusters
        that they were assigned to. A penalty is not included.
        """
        centers, w, distortion = state.centers, state.feature_weights, state.distortion
        masses = self.weights[:, None] if self.denominators is None else self.denominators
        if self.squares is None and isinstance(distortion, Bregman):
            # Linear in the rows, but for a term that does not depend on the centres.
            planes = distortion.planes(centers, w)
            return self.constant + float(
                (masses * planes.constants + self.sums * planes.factors).sum()
            )
        parts = ((masses * centers - 2.0 * self.sums) * centers).sum(axis=0)
        if self.squares is not None:
            parts += self.squares
        return self.constant + float(parts.sum() if w is None else w @ parts)

    def __add__(self, other: Self) -> Self:
        own, added = self.as_sums(), other.as_sums()
        total = own + added
        return type(self)(
            self.n_rows + other.n_rows,
            self.weight + other.weight,
            total.weights,
            total.sums,
            total.denominators,
            total.squares,
            self.constant + other.constant,
        )

    def faded(self, factor: float) -> Self:
        """Return the record of the same rows with their sample weights times a factor."""
        return replace(
            self,
            weight=factor * self.weight,
            weights=factor * self.weights,
            sums=factor * self.sums,
            denominators=None if self.denominators is None else factor * self.denominators,
            squares=None if self.squares is None else factor * self.squares,
            constant=factor * self.constant,
        )

    def as_sums(self, farthest: Farthest | None = None) -> CenterSums:
        """Return the sums that an update takes, with rows for the centres of emptied clusters."""
        farthest = Farthest.empty(self.sums.shape[1]) if farthest is None else farthest
        parts = (self.weights, self.sums, self.denominators, self.squares)
        return CenterSums(*parts, np.nan, np.nan, np.nan, farthest)


# Returns the factor by which earlier rows fade in a call, from the weight of the call's rows.
Fading = Callable[[float], float]


@registered
@dataclass(frozen=True)
class Updates:
    """Records of all rows seen so far.

    Attributes
    ----------
    s : float
        The power of all records.
    distortion : Distortion
        In the model's coordinates.
    unkeyed : Majorizer or None
        Sum of the records of the calls without a key.
    keyed : dict of str to Majorizer
    n_calls : int
    """

    s: float
    distortion: Distortion
    unkeyed: Majorizer | None = None
    keyed: dict[str, Majorizer] = field(default_factory=dict)
    n_calls: int = 0

    @property
    def total(self) -> Majorizer:
        """Sum of all records, in the order of their keys, not of the calls."""
        records = [self.keyed[key] for key in sorted(self.keyed)]
        return reduce(add, records if self.unkeyed is None else [self.unkeyed, *records])

    def after(self, record: Majorizer, key: str | None, factor: float = 1.0) -> Updates:
        """Return the records after a call: earlier ones faded, that of the same key replaced."""
        keyed = {name: own.faded(factor) for name, own in self.keyed.items()}
        unkeyed = None if self.unkeyed is None else self.unkeyed.faded(factor)
        if key is not None:
            keyed[key] = record
        else:
            unkeyed = record if unkeyed is None else unkeyed + record
        return replace(self, unkeyed=unkeyed, keyed=keyed, n_calls=self.n_calls + 1)


def updated(
    updates: Updates,
    passes: Passes,
    coordinates: Rows,
    state: CenterState,
    update: Update,
    key: str | None = None,
    fading: Fading | None = None,
) -> tuple[Updates, CenterState]:
    """Visit new rows once, and return all records and the state that minimises their sum.

    Parameters
    ----------
    updates : Updates
    passes : Passes
        Over the new rows.
    coordinates : Rows
    state : CenterState
        That of the model so far.
    update : Update
    key : str, optional
        The record of an earlier call with the same key is replaced.
    fading : callable, optional
        Without it, earlier rows keep their weight.

    Raises
    ------
    ValueError
        If values cannot be used, naming block and row.
    """
    state = replace(state, s=updates.s, distortion=updates.distortion)
    moments, sums = _visited(passes, coordinates, state)
    if not np.isfinite(sums.objective):
        # Rows have values in features where all centres are at an edge of the domain.
        state = replace(state, centers=updates.distortion.off_edges(state.centers))
        moments, sums = _visited(passes, coordinates, state)
    if not (np.isfinite(sums.objective) and np.isfinite(sums.sums).all()):
        raise ValueError(
            "Input X has values so far from those of the earlier rows that squares of their "
            "distances overflow float64."
        )
    if moments.weight == 0.0:
        raise ValueError("sample_weight is zero for all rows.")
    n_rows = passes.blocks.layout.n_rows
    assert n_rows is not None
    record = Majorizer.of(sums, state, moments.weight, n_rows)
    updates = updates.after(record, key, 1.0 if fading is None else fading(moments.weight))
    total = updates.total
    return updates, update.update(total.as_sums(sums.farthest), state, total.weight)


@dataclass(frozen=True)
class _Visit:
    """Majorizer of the pass over new rows."""

    moments: Moments
    sums: CenterSums

    def __add__(self, other: Self) -> Self:
        return type(self)(self.moments + other.moments, self.sums + other.sums)


def _visited(passes: Passes, coordinates: Rows, state: CenterState) -> tuple[Moments, CenterSums]:
    """Test all values and compute the sums at a state, in one pass."""
    passes.count_rows()
    if passes.blocks.layout.n_rows == 0:
        raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: X.")
    found: _Visit = passes.reduce(_visit, coordinates, state)
    mean_and_variance(found.moments)
    return found.moments, found.sums


def _visit(
    rows: NDArray,
    weights: NDArray | None,
    position: Position,
    coordinates: Rows,
    state: CenterState,
) -> _Visit:
    """Visit one block (the block function)."""
    moments = checked_moments(rows, weights, position, type(state.distortion), state.partial)
    with np.errstate(over="ignore", invalid="ignore"):  # tested once all blocks are known
        (sums,) = center_sums(rows, weights, coordinates, (state,)).records
    return _Visit(moments, sums)


def record_of_fit(
    state: CenterState, cluster_sizes: FloatArray, inertia: float, update: Update, n_rows: int
) -> Majorizer:
    """Return the record of the rows of a fit, from what a fitted model tells of them.

    It is that of its final hard step: the centres are the means of their clusters, and EWP's
    weights w ∝ exp(−D/λ) with Σ_l w_l D_l, the mean cost, give D. Steps of norms are taken to have
    been at the mean distance, and values to be missing nowhere.

    Parameters
    ----------
    state : CenterState
    cluster_sizes : ndarray of shape (n_clusters,)
        Weights of the clusters.
    inertia : float
    update : Update
    n_rows : int
    """
    centers, w = state.centers, state.feature_weights
    weight = float(cluster_sizes.sum())
    masses = np.broadcast_to(cluster_sizes[:, None], centers.shape).astype(np.float64)
    if state.distortion.degree == 1:
        apart = inertia / weight / (1.0 if w is None else centers.shape[1])
        masses = masses * (0.5 / apart if apart > 0 else 1.0)
    squares = None
    if w is not None:
        assert isinstance(update, EntropyUpdate)
        dispersion = np.full(len(w), inertia / weight)
        if np.isfinite(update.lam):
            dispersion += update.lam * (
                negative_entropy(w) - np.log(np.maximum(w, np.finfo(float).tiny))
            )
        squares = weight * np.maximum(dispersion, 0.0) + (masses * centers * centers).sum(axis=0)
    whole = state.distortion.degree == 2 and not state.partial
    record = Majorizer(
        n_rows, weight, cluster_sizes, masses * centers, None if whole else masses, squares, 0.0
    )
    return replace(record, constant=inertia - record.cost(state))
