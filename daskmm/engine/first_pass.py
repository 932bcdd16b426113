"""The first pass: test all values, and compute moments and samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled import library
from daskmm.data.blocks import Block, Layout, Position, RowBlocks
from daskmm.data.identifiers import numbering_features
from daskmm.data.validation import (
    check_domain,
    check_empty,
    check_finite,
    check_positive_weights,
    check_row_count,
)
from daskmm.engine.conversion import converted
from daskmm.engine.moments import Moments, Sample
from daskmm.engine.passes import Passes
from daskmm.numerics.annealing import critical_power
from daskmm.numerics.columns import Expansion
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN, Metric, SquaredEuclidean
from daskmm.numerics.distortions.mixed import measured
from daskmm.numerics.information import mean_of_varying
from daskmm.numerics.rows import Coordinates, FeatureCoordinates, pieces, tile_rows, tiles
from daskmm.numerics.sparse_rows import SparseRows, has_holes, stacked
from daskmm.storage.digests import digest

FloatArray = NDArray[np.float64]

# The sample for seeding, annealing and the critical power has _PLENTY_PER_CLUSTER rows per cluster,
# but at least SAMPLE_ROWS and at most twice SAMPLE_ROWS in all; it always has at least
# SAMPLE_ROWS_PER_CLUSTER rows per cluster. In wide tables it takes at most SAMPLE_BYTES (as
# float64), unless this would leave fewer than _LEAST_ROWS_PER_CLUSTER rows per cluster.
SAMPLE_ROWS = 10_000
_PLENTY_PER_CLUSTER = 200
SAMPLE_ROWS_PER_CLUSTER = 50
SAMPLE_BYTES = 64 << 20
_LEAST_ROWS_PER_CLUSTER = 10
# If a table has at most this many times the rows of the sample, all of its rows are used.
_LARGE = 2
# Hard steps are taken on the larger sample before the table is read again. It has
# LARGER_SAMPLE_BYTES (as float64), and is drawn from tables of more than twice its size. With many
# clusters it is larger, to save passes, but has at most half of the table: either _ROWS_OF_SOME
# rows per cluster, in at most _MULTIPLE_OF_SOME times these bytes, or _ROWS_OF_MANY rows per
# cluster, in at most _BYTES_OF_MANY in the input's dtype. The larger of these two numbers of rows
# counts.
LARGER_SAMPLE_BYTES = 16 << 20
_ROWS_OF_SOME, _MULTIPLE_OF_SOME = 3000, 3
_ROWS_OF_MANY, _BYTES_OF_MANY = 400, 512 << 20
# If there are at least this many clusters, k-means++ runs within cells of the sample, and only one
# start takes steps over the table (tests/benchmarks/many_clusters.py).
MANY_CLUSTERS = 256
# For rows in memory and many clusters, Hamerly bounds make later steps cheap, so a larger sample is
# drawn only from tables of at least this many times its size.
_LARGE_IN_MEMORY = 4
# A uniform sample estimates costs too badly if the squared coefficient of variation of the rows'
# distances from the mean is above this value. It is below 1 for clusters with light tails; for
# Student's t in 10 dimensions it is 0.8 with 5 degrees of freedom, and some hundreds with 2.
_UNEVEN = 4.0
_DOUBLE = np.dtype(np.float64)
# Sums of squares over rows and features are assumed to exceed the largest square by at most the
# square of this factor.
_ROOM = 1e8
# float64 represents all integers up to this one.
_EXACT_INTEGER = 1 << 53
_EXACT_TILE_ROWS = 1000
# The origin of a feature is the median of about _ROWS_OF_ORIGIN rows if the mean is more than
# _FAR_MEAN times as far from it as the typical row, since rows minus the mean would then lose 20
# bits or more.
_ROWS_OF_ORIGIN, _FAR_MEAN = 256, 2.0**20


@dataclass(frozen=True)
class Survey:
    """Results of the first pass."""

    n_rows: int
    weight: float  # sum of the sample weights (the number of rows without them)
    coordinates: FeatureCoordinates
    # Population variance in the model's coordinates, (n_features,); exactly 0 for a constant
    # feature. If values are missing, the squared deviations of the others are divided by the weight
    # of all rows.
    variance: FloatArray
    # Rows of positive weight, drawn without replacement, in the model's coordinates. If they are
    # drawn uniformly, they keep their sample weights; if they are drawn by distance, they get
    # larger weights (see `_Draw`).
    sample: Sample
    # A larger sample that contains `sample`, in the input's units and dtype; None for tables that
    # are not much larger.
    larger_sample: Sample | None = None
    drawn: str = ""  # digest of the sampled rows and their weights in the input's units
    distortion: Distortion = SQUARED_EUCLIDEAN  # distortion in the model's coordinates
    partial: bool = False  # whether values are missing
    spread: float = 1.0  # mean distance of the rows from their mean
    # Column of each feature, (n_features,), if columns have several.
    groups: NDArray[np.int64] | None = None
    # Mask of the rows of the sample that a fit with `trim` takes into account, (n_sampled,); None
    # for all.
    near: NDArray[np.bool_] | None = None
    # Features that number the rows of the sample, as identifiers do.
    identifiers: Sequence[int] = ()
    shares: FloatArray | float = 1.0  # share of the weight that has a value, (n_features,)

    @property
    def core(self) -> Sample:
        """The rows of the sample on which choices and starts are made: those that `trim` keeps."""
        if self.near is None:
            return self.sample
        return Sample(self.sample.rows[self.near], self.sample.weights[self.near])

    def transformed(
        self, coordinates: FeatureCoordinates, change: Callable[[NDArray], NDArray]
    ) -> Survey:
        """Return the survey in other coordinates, to which a function transforms its rows."""
        rows, weights = change(self.core.rows), self.core.weights
        if isinstance(rows, SparseRows):
            variance = Moments.of_sparse(rows, weights).variance
        else:
            mean = np.average(rows, axis=0, weights=weights)
            variance = np.average(np.square(rows - mean), axis=0, weights=weights)
        return replace(
            self,
            coordinates=coordinates,
            variance=variance,
            sample=Sample(change(self.sample.rows), self.sample.weights),
            spread=self.distortion.spread(rows, weights),
        )

    @cached_property
    def critical_power(self) -> float:
        """The critical power s_crit of the sample."""
        core = self.core
        return critical_power(core.rows, core.weights, self.distortion)

    @property
    def varying(self) -> NDArray[np.bool_]:
        """Mask of the features that are not constant."""
        return self.variance > 0

    @property
    def metric(self) -> Metric:
        """The distortion and the columns of the features, in the model's coordinates."""
        return Metric(self.distortion, self.groups)

    @property
    def mean_variance(self) -> float:
        """Mean variance V of the features (or groups) that vary; 1 if none does."""
        if self.groups is None:
            return mean_of_varying(self.variance)
        whole = np.bincount(self.groups, self.variance)
        return mean_of_varying(np.asarray(whole, dtype=np.float64))


@dataclass(frozen=True)
class _Finding:
    """Record of the first pass."""

    moments: Moments
    sample: Sample
    numbers: NDArray[np.int64]
    # Moments of the features of coded columns.
    expanded: Moments | None = None
    # The error of the first block with a bad value.
    fault: ValueError | None = None

    def __add__(self, other: Self) -> Self:
        for each in (self, other):
            if each.fault is not None:
                return each
        a, b = self.expanded, other.expanded
        return type(self)(
            self.moments + other.moments,
            self.sample + other.sample,
            np.concatenate([self.numbers, other.numbers]),
            None if a is None or b is None else a + b,
        )


def first_pass(
    passes: Passes,
    n_clusters: int,
    standardize: bool,
    seed: int,
    *,
    wanted: int | None = None,
    with_larger: bool = False,
    family: type[Distortion] = SquaredEuclidean,
    partial: bool = False,
    weigh_shares: bool = False,
    by_distance: bool = False,
    centered: bool = True,
    expansion: Expansion | None = None,
    dtype: np.dtype = _DOUBLE,
) -> Survey:
    """Test all values, and compute moments and samples, in one pass.

    Unknown row counts are found first, because the sample is drawn by global row index: it depends
    on `seed` and the number of rows, not on the chunks. A uniform sample lacks the few rows that
    carry most of the cost of data with heavy tails; `by_distance` samples those by their distance
    from the mean, in a second pass, where a uniform sample would estimate costs badly.

    The sample has `wanted` rows of a `dtype`; by default `sample_size`, given `n_clusters`. A
    larger one is drawn too (`with_larger`) if the table is large. Values must be in the domain of
    `family`, and NaN are missing values if `partial`. Moments are those of the features of coded
    columns (`expansion`), for the distortion `Mixed`.

    The model's coordinates divide by the population standard deviation (`standardize`), subtract
    the mean where the distortion allows it (`centered`), and make each feature count in distances
    as if none of its values were missing (`weigh_shares`).

    It raises ValueError if there are no rows or fewer rows of positive weight than clusters; if
    values are not finite or outside of the domain (naming block and row), or so large that their
    squares overflow; or if a row or a feature has no value at all.
    """
    passes.count_rows()
    layout = passes.blocks.layout
    n_rows = layout.n_rows
    assert n_rows is not None
    check_row_count(n_rows, n_clusters)
    rng = np.random.default_rng(seed)
    size, larger = sizes = sample_sizes(layout, n_clusters, wanted, with_larger)
    # All rows of a table in memory are used without a copy.
    all_here = size == n_rows and not (layout.lazy or layout.sparse)
    chosen = np.arange(0) if all_here else _sample_indices(n_rows, larger or size, rng)
    passes.watch(family, partial)
    finding: _Finding = passes.reduce(_first_look, chosen, family, partial, expansion)
    if finding.fault is not None:
        raise finding.fault
    moments = finding.expanded or finding.moments
    check_positive_weights(moments.n_positive, n_clusters)
    shifts = centered and family.shifts and not layout.sparse
    drawn = _whole(passes.blocks) if all_here else _in_order(finding.sample, finding.numbers)
    uniform = _thinned(drawn, size, n_clusters, rng)
    weighted = _weighted(drawn) if larger else uniform
    some = weighted.rows[:: max(1, len(weighted.rows) // _ROWS_OF_ORIGIN)] if shifts else None
    coordinates, distortion, per_row = _model_coordinates(
        moments, family, expansion, standardize, weigh_shares, some
    )
    passes.expect(finding.moments)
    sample = _in_model(uniform, coordinates, _wide_enough(dtype, coordinates, moments))
    survey = Survey(
        n_rows,
        moments.weight,
        coordinates,
        per_row,
        sample,
        weighted if larger else None,
        digest(drawn.rows, drawn.weights),
        distortion,
        moments.observed is not None,
        float(per_row.sum()) if family.squared else distortion.spread(sample.rows, sample.weights),
        None if expansion is None else expansion.groups,
        shares=moments.masses / moments.weight,
        identifiers=() if expansion or layout.sparse else numbering_features(uniform.rows, n_rows),
    )
    if not (by_distance and size < n_rows):
        return survey
    return _resampled_by_distance(passes, survey, moments, sizes, n_clusters, (seed, rng))


def _in_model(sample: Sample, coordinates: FeatureCoordinates, dtype: np.dtype) -> Sample:
    """Convert a sample to the model's coordinates."""
    if isinstance(sample.rows, SparseRows):
        return Sample(coordinates.to_model(sample.rows), sample.weights)
    return Sample(converted(sample.rows, coordinates.to_model, dtype), sample.weights)


def _wide_enough(dtype: np.dtype, coordinates: FeatureCoordinates, moments: Moments) -> np.dtype:
    """Return a dtype if it holds squares of values minus the origin, scaled or not, or float64."""
    if dtype == _DOUBLE or not isinstance(coordinates, Coordinates):
        return _DOUBLE
    apart = np.abs(np.stack([moments.lowest, moments.highest]) - coordinates.mean)
    largest = np.maximum(apart, apart / coordinates.scale).max()
    return dtype if largest < np.sqrt(np.finfo(dtype).max) / _ROOM else _DOUBLE


def _model_coordinates(
    moments: Moments,
    family: type[Distortion],
    expansion: Expansion | None,
    standardize: bool,
    weigh_shares: bool,
    some: NDArray | None,
) -> tuple[FeatureCoordinates, Distortion, FloatArray]:
    """Return the model's coordinates, the distortion in them, and each feature's variance.

    The origin is 0 if `some` rows of the table are not given.
    """
    mean, variance = mean_and_variance(moments)
    shares = _observed_shares(moments, None if expansion is None else expansion.groups)
    origin = np.zeros_like(mean)
    if some is not None:
        origin = _origin(mean, some if expansion is None else expansion.expand(some))
    if expansion is not None:
        return measured(expansion, origin, variance, shares, weigh_shares)
    scale = np.sqrt(variance) if standardize else np.ones_like(variance)
    scale[scale == 0] = 1.0
    if weigh_shares:
        scale = scale * shares ** (family.degree / 2)
    coordinates = Coordinates(origin, scale)
    per_row = shares * variance / scale**2
    return coordinates, family.around(coordinates.to_model(mean), per_row), per_row


def _origin(mean: FloatArray, rows: NDArray) -> FloatArray:
    """Return the mean of each feature, or the median of some rows where far values move the mean.

    For example, one value of 1e150 among 3,000 rows moves their mean to 3e146, and subtracting it
    would leave no digits of the others.
    """
    rows = np.where(np.isnan(rows := rows.astype(np.float64)), mean, rows)
    middle = np.median(rows, axis=0)
    origin, apart = mean.copy(), np.abs(rows - middle)
    for feature in np.flatnonzero(np.abs(mean - middle) > _FAR_MEAN * np.median(apart, axis=0)):
        others = apart[apart[:, feature] > 0, feature]
        if len(others) and abs(mean - middle)[feature] > _FAR_MEAN * np.median(others):
            origin[feature] = middle[feature]
    return origin


def _resampled_by_distance(
    passes: Passes,
    survey: Survey,
    moments: Moments,
    sizes: SampleSizes,
    n_clusters: int,
    seeds: tuple[int, np.random.Generator],
) -> Survey:
    """Return the survey, with samples drawn by distance in another pass if costs are uneven."""
    coordinates, distortion, sample = survey.coordinates, survey.distortion, survey.sample
    assert isinstance(coordinates, Coordinates)
    squared = distortion.squared
    center = coordinates.to_model(mean_and_variance(moments)[0])
    distances = _distances(sample.rows, center, distortion)
    extreme = _largest_square(moments, coordinates) if squared else 0.0
    if _variation(distances, sample.weights, extreme, survey.n_rows) <= _UNEVEN:
        return survey
    size, larger = sizes
    rate = _Rate(coordinates, distortion, center, moments.weight, survey.spread, larger or size)
    seed, rng = seeds
    found: _Draw = passes.reduce(_draw_by_distance, rate, (seed, int(rng.integers(1 << 32))))
    smaller = found.sample(size)
    if len(smaller.rows) < n_clusters:
        return survey
    sample = _in_model(smaller, coordinates, sample.rows.dtype)
    spread = survey.spread if squared else distortion.spread(sample.rows, sample.weights)
    larger_sample = found.sample(larger) if larger else None
    return replace(survey, sample=sample, larger_sample=larger_sample, spread=spread)


def _whole(blocks: RowBlocks) -> Sample:
    """Return all rows of a table in memory, without a copy."""
    assert isinstance(blocks.table, np.ndarray)
    weights = blocks.weights
    return Sample(
        blocks.table, np.ones(len(blocks.table)) if weights is None else np.concatenate(weights)
    )


def _in_order(sample: Sample, numbers: NDArray[np.int64]) -> Sample:
    """Sort rows by their global index, since blocks of a grid are not consecutive rows."""
    order = np.argsort(numbers, kind="stable")
    return Sample(sample.rows[order], sample.weights[order])


def _thinned(drawn: Sample, size: int, n_clusters: int, rng: np.random.Generator) -> Sample:
    """Return some rows of a uniform sample, those with a weight; raise if they are too few."""
    if len(drawn.rows) > size:
        part = _sample_indices(len(drawn.rows), size, rng)
        drawn = Sample(drawn.rows[part], drawn.weights[part])
    found = _weighted(drawn)
    if len(found.rows) < n_clusters:
        raise ValueError(
            f"sample_weight is zero for so many rows that a uniform sample of {size} has "
            f"{len(found.rows)} left, fewer than n_clusters={n_clusters}. Drop those rows first."
        )
    return found


def _weighted(sample: Sample) -> Sample:
    """Drop the rows of weight 0."""
    weighted = sample.weights > 0
    return sample if weighted.all() else Sample(sample.rows[weighted], sample.weights[weighted])


def sample_size(n_rows: int, n_features: int, n_clusters: int) -> int:
    """Return the default number of rows of the sample."""
    plenty = min(max(SAMPLE_ROWS, _PLENTY_PER_CLUSTER * n_clusters), 2 * SAMPLE_ROWS)
    wanted = max(plenty, SAMPLE_ROWS_PER_CLUSTER * n_clusters)
    affordable = max(SAMPLE_BYTES // (8 * n_features), _LEAST_ROWS_PER_CLUSTER * n_clusters)
    size = min(wanted, affordable)
    return n_rows if n_rows <= _LARGE * size else size


class SampleSizes(NamedTuple):
    """Numbers of rows of the sample for annealing and of the larger sample (0: there is none)."""

    sample: int
    larger: int


def sample_sizes(
    layout: Layout, n_clusters: int, wanted: int | None, with_larger: bool
) -> SampleSizes:
    """Return the numbers of rows that `first_pass` draws from a table of this layout."""
    n_rows, p = layout.n_rows or 0, layout.width
    size = min(n_rows, wanted or sample_size(n_rows, p, n_clusters))
    affordable = LARGER_SAMPLE_BYTES // (8 * p)
    least = max(affordable, 2 * size)
    if not with_larger or n_rows <= 2 * least:
        return SampleSizes(size, 0)
    some = min(_ROWS_OF_SOME * n_clusters, _MULTIPLE_OF_SOME * affordable)
    many = min(_ROWS_OF_MANY * n_clusters, _BYTES_OF_MANY // layout.bytes_per_row)
    larger = max(least, min(max(some, many), n_rows // 2))
    bounded = n_clusters >= MANY_CLUSTERS and not (layout.lazy or layout.sparse)
    return SampleSizes(size, 0 if bounded and n_rows < _LARGE_IN_MEMORY * larger else larger)


def _sample_indices(n_rows: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if size == n_rows:
        return np.arange(n_rows)
    return np.sort(rng.choice(n_rows, size, replace=False, shuffle=False))


def _first_look(
    block: Block,
    chosen: NDArray[np.int64],
    family: type[Distortion],
    partial: bool,
    expansion: Expansion | None,
) -> _Finding:
    """Compute the record of one block.

    An error in its values is raised at the end of the pass, so that the first row at fault is
    named.
    """
    try:
        moments = checked_moments(block, family, partial)
    except ValueError as error:
        nothing = np.empty(0, dtype=np.int64)
        return _Finding(Moments.empty(0), Sample(block.rows[:0], np.empty(0)), nothing, fault=error)
    expanded = None
    if expansion is not None:
        expanded = _expanded_moments(block, expansion, moments.observed is not None)
    local, numbers = _drawn(chosen, block)
    weights = np.ones(len(local)) if block.weights is None else block.weights[local]
    picked = Sample(block.rows[local], weights)
    return _Finding(moments, picked, numbers, expanded)


def _drawn(chosen: NDArray[np.int64], block: Block) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the chosen rows of a block; return their positions in it and their numbers."""
    start = block.position.start
    if block.position.window is None:  # consecutive numbers
        first, last = np.searchsorted(chosen, (start, start + len(block.rows)))
        return chosen[first:last] - start, chosen[first:last]
    numbers = block.numbers
    found = np.searchsorted(chosen, numbers)
    local = np.flatnonzero(chosen[np.minimum(found, len(chosen) - 1)] == numbers)
    return local, numbers[local]


def checked_moments(block: Block, family: type[Distortion], partial: bool) -> Moments:
    """Return the moments of a block, and test all of its values.

    It raises ValueError if a value is not finite or outside of the domain, or an integer that
    float64 does not represent; the message names block and row.
    """
    moments = _block_moments(block, partial)
    check_domain(block.rows, block.position, 0, family, False)
    check_empty(block, family)
    return moments


def _expanded_moments(block: Block, expansion: Expansion, partial: bool) -> Moments:
    """Return the moments of the features of coded rows, whose values have been tested."""
    rows, weights, n_features = block.rows, block.weights, len(expansion.groups)
    moments = Moments.empty(n_features)
    for tile in tiles(len(rows), tile_rows(n_features, 1)):
        wide, v = expansion.expand(rows[tile]), None if weights is None else weights[tile]
        moments = moments + (Moments.of_partial if partial else Moments.of)(wide, v)
    return moments


def _distances(rows: FloatArray, center: FloatArray, distortion: Distortion) -> FloatArray:
    """Compute the distances of rows in the model's coordinates from a centre."""
    tile = distortion.tile(rows, has_holes(rows))
    return distortion.distances(tile, center[None, :], None)[:, 0]


def _largest_square(moments: Moments, coordinates: Coordinates) -> float:
    """Return a lower bound of the largest squared distance of a row from the mean."""
    reach = np.maximum(moments.highest - moments.mean, moments.mean - moments.lowest)
    return float(np.square(reach / coordinates.scale).max())


def _variation(distances: FloatArray, weights: FloatArray, extreme: float, n_rows: int) -> float:
    """Estimate the squared coefficient of variation of the rows' shares of the cost.

    `distances` and `weights` are those of a uniform sample. `extreme` is a lower bound of the
    largest distance of all rows, which the sample may lack.
    """
    costs = weights * distances
    total = n_rows * costs.mean() + extreme * weights.mean()
    if total == 0.0:
        return 0.0
    seen = len(costs) * float(np.square(costs / costs.sum()).sum()) if costs.any() else 0.0
    return max(seen, n_rows * (extreme * weights.mean() / total) ** 2) - 1.0


class _Rate(NamedTuple):
    """Expected number of times that a row is drawn, from its shares of the weight and of the cost.

    These are the probabilities of lightweight coresets (Bachem, Lucic & Krause, "Scalable k-means
    clustering via lightweight coresets", KDD 2018; Lucic, Bachem & Krause 2016 for Bregman
    divergences), but each row is drawn at most once.
    """

    coordinates: Coordinates
    distortion: Distortion
    center: FloatArray
    weight: float
    spread: float
    n_drawn: int

    def of(self, rows: NDArray, weights: FloatArray) -> FloatArray:
        """Compute the rates at which rows of the input are drawn."""
        distances = _distances(self.coordinates.to_model(rows), self.center, self.distortion)
        return np.asarray(self.n_drawn / self.weight * weights * (1.0 + distances / self.spread))


@dataclass(frozen=True)
class _Draw:
    """Rows drawn by distance, with their sample weights, rates and numbers, in the blocks' order.

    They are a priority sample (Duffield, Lund & Thorup, J. ACM 54, 2007): a row of rate r has the
    key u/r, with u uniform on (0, 1), and the rows with the smallest keys are drawn. If the next
    key is τ, a row of weight v gets the weight v/min(1, r τ), and weighted sums are unbiased. Rows
    with keys above 1 are left out.
    """

    rows: NDArray
    weights: FloatArray
    rates: FloatArray
    keys: FloatArray
    numbers: NDArray[np.int64]
    n_drawn: int

    def __add__(self, other: Self) -> Self:
        joined = type(self)(
            stacked([self.rows, other.rows]),
            np.concatenate([self.weights, other.weights]),
            np.concatenate([self.rates, other.rates]),
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.numbers, other.numbers]),
            self.n_drawn,
        )
        return joined._below(joined._bound(self.n_drawn + 1))

    def _bound(self, n_drawn: int) -> float:
        """Return the key that follows the `n_drawn` smallest ones; 1 if there is none."""
        return float(np.partition(self.keys, n_drawn)[n_drawn]) if len(self.keys) > n_drawn else 1.0

    def _below(self, bound: float) -> Self:
        """Return the rows with keys below a bound."""
        kept = self.keys < bound
        return type(self)(
            self.rows[kept],
            self.weights[kept],
            self.rates[kept],
            self.keys[kept],
            self.numbers[kept],
            self.n_drawn,
        )

    def sample(self, n_drawn: int) -> Sample:
        """Return the rows with the smallest keys and their weights."""
        bound = self._bound(n_drawn)
        kept = self._below(bound)
        drawn = Sample(kept.rows, kept.weights / np.minimum(1.0, kept.rates * bound))
        return _in_order(drawn, kept.numbers)


def _draw_by_distance(block: Block, rate: _Rate, key: tuple[int, int]) -> _Draw:
    """Draw rows of one block by distance."""
    rows, v, numbers = block.rows, block.masses, block.numbers
    rates = np.empty(len(rows))
    for tile, some in pieces(rows, 1):
        rates[tile] = rate.of(some, v[tile])
    uniform = row_uniforms(key, numbers)
    drawn = np.flatnonzero(uniform < rates)
    rates, v = rates[drawn], v[drawn]
    return _Draw(rows[drawn], v, rates, uniform[drawn] / rates, numbers[drawn], rate.n_drawn)


def row_uniforms(key: tuple[int, int], rows: NDArray[np.int64]) -> FloatArray:
    """Hash global row numbers to uniform numbers in (0, 1) that do not depend on chunks."""
    seed = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        x = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return ((x >> np.uint64(11)).astype(np.float64) + 0.5) / (1 << 53)


def _observed_shares(moments: Moments, groups: NDArray[np.int64] | None) -> FloatArray:
    """Return the share of the weight of the rows with a value, per feature; raise if it is 0."""
    if not moments.masses.all():
        feature = int(np.flatnonzero(moments.masses == 0)[0])
        feature = feature if groups is None else int(groups[feature])
        raise ValueError(
            f"Input X has a feature without any value: feature {feature}. Leave it out."
        )
    return moments.masses / moments.weight


def _block_moments(block: Block, partial: bool) -> Moments:
    """Return the moments of one block; raise ValueError for bad values."""
    rows, weights, position = block.rows, block.weights, block.position
    if isinstance(rows, SparseRows):
        check_finite(rows, position)
        _check_exact(rows.data[:, None], position)
        return Moments.of_sparse(rows, weights)
    _check_exact(rows, position)
    if library.available():
        moments = Moments.of_block(rows, weights)
        if moments is not None:
            return moments
        # The tests below find the bad value.
    n_rows, n_features = rows.shape
    moments = Moments.empty(n_features)
    for tile in tiles(n_rows, tile_rows(n_features, 1)):
        wide = rows[tile].astype(np.float64)
        v = None if weights is None else weights[tile]
        if partial and np.isnan(wide).any():
            check_domain(wide, position, tile.start, SquaredEuclidean, partial)
            moments = moments + Moments.of_partial(wide, v)
            continue
        check_finite(wide, position, tile.start)
        moments = moments + Moments.of(wide, v)
    return moments


def _check_exact(rows: NDArray, position: Position) -> None:
    """Raise ValueError for the first integer that float64 cannot represent."""
    if rows.dtype.kind not in "iu" or rows.dtype.itemsize < 8 or not rows.size:
        return
    if rows.max() <= _EXACT_INTEGER and rows.min() >= -_EXACT_INTEGER:
        return
    for start in range(0, len(rows), _EXACT_TILE_ROWS):
        tile = rows[start : start + _EXACT_TILE_ROWS]
        # Python integers are compared, as float64 may round up to a value beyond the dtype.
        inexact = np.argwhere(
            (np.abs(tile.astype(np.float64)) >= _EXACT_INTEGER)
            & (tile.astype(np.float64).astype(object) != tile.astype(object))
        )
        if len(inexact):
            row, feature = (int(index) for index in inexact[0])
            raise ValueError(
                f"Input X contains {tile[row, feature]}: {position.of_row(start + row)}, feature "
                f"{feature}. float64 does not represent such integers (beyond 2**53) exactly. "
                "Subtract an offset; or, if rounding is harmless, pass X.astype('float64')."
            )


def mean_and_variance(moments: Moments) -> tuple[FloatArray, FloatArray]:
    """Return mean and population variance; those of a constant feature are exact.

    It raises ValueError if squares of the values overflow.
    """
    constant = moments.constant
    mean = np.where(constant, moments.lowest, moments.mean)
    variance = np.where(constant, 0.0, moments.variance)
    if not np.isfinite(variance).all():
        feature = int(np.flatnonzero(~np.isfinite(variance))[0])
        raise ValueError(
            f"Input X has values so large that their squares overflow float64 (feature "
            f"{feature}). Scale the data first."
        )
    return mean, variance


def described_data(layout: Layout, survey: Survey) -> dict[str, Any]:
    """Return the identity of the data of a fit: shape, dtype, chunks, moments, digest of rows."""
    return {
        "shape": [survey.n_rows, layout.n_features],
        "dtype": str(layout.dtype),
        "kind": "streamed" if layout.lazy else "in memory",
        "chunks": list(layout.rows or ()),
        "total weight": survey.weight,
        "mean": survey.coordinates.mean,
        "variance": survey.variance * survey.coordinates.scale**2,
        "rows": survey.drawn,
    }
