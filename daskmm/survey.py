"""The first pass over the data: everything a fit has to know before it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.annealing import critical_power
from daskmm.numerics.rows import Coordinates, tile_rows, tiles
from daskmm.passes import Passes, Position
from daskmm.stats import Moments, Sample

FloatArray = NDArray[np.float64]

# Rows drawn for seeding and for the critical power: this many, or this many per cluster,
# within a byte budget that wide tables must not exceed.
SAMPLE_ROWS = 10_000
SAMPLE_ROWS_PER_CLUSTER = 50
SAMPLE_BYTES = 64 << 20
_LEAST_ROWS_PER_CLUSTER = 10
# A standard deviation of this many units in the last place of the mean is that of a constant.
_ROUNDING = 32


@dataclass(frozen=True)
class Survey:
    """What the first pass found.

    Attributes
    ----------
    n_rows : int
    weight : float
        Sum of the sample weights (the number of rows without them).
    coordinates : Coordinates
        The model's coordinates.
    variance : ndarray of shape (n_features,)
        Population variance in the model's coordinates; exactly 0 for a constant feature.
    sample : Sample
        Uniform sample without replacement, in the model's coordinates; rows without weight are
        left out.
    critical_power : float
        s_crit of the sample.
    """

    n_rows: int
    weight: float
    coordinates: Coordinates
    variance: FloatArray
    sample: Sample
    critical_power: float

    @property
    def varying(self) -> NDArray[np.bool_]:
        """Features that are not constant."""
        return self.variance > 0

    @property
    def mean_variance(self) -> float:
        """V, the mean variance of the features that vary (1 if none does)."""
        return float(self.variance[self.varying].mean()) if self.varying.any() else 1.0


@dataclass(frozen=True)
class _Finding:
    """Record of the first pass."""

    moments: Moments
    sample: Sample

    def __add__(self, other: Self) -> Self:
        return type(self)(self.moments + other.moments, self.sample + other.sample)


def first_pass(passes: Passes, n_clusters: int, standardize: bool, seed: int) -> Survey:
    """Visit every block once: finiteness, moments and a sample for seeding.

    Row counts that are unknown are counted first, because the sample is drawn by global row
    index: it depends on `seed` and the number of rows, not on the chunks.

    Parameters
    ----------
    passes : Passes
    n_clusters : int
    standardize : bool
        Whether the model's coordinates divide by the population standard deviation.
    seed : int

    Returns
    -------
    Survey

    Raises
    ------
    ValueError
        If there are no rows, fewer rows of positive weight than clusters, or values that are not
        finite (naming the block and row), or so large that their squares overflow.
    """
    passes.count_rows()
    n_rows = passes.blocks.n_rows
    assert n_rows is not None
    check_row_count(n_rows, n_clusters)
    chosen = _sample_indices(n_rows, passes.blocks.n_features, n_clusters, seed)
    finding: _Finding = passes.reduce(_first_look, chosen)
    moments = finding.moments
    if moments.n_positive < n_clusters:
        raise ValueError(
            f"sample_weight is positive for {moments.n_positive} row(s), fewer than "
            f"n_clusters={n_clusters}."
        )
    variance = _clean_variance(moments)
    scale = np.sqrt(variance) if standardize else np.ones_like(variance)
    scale[scale == 0] = 1.0
    coordinates = Coordinates(moments.mean, scale)
    weighted = finding.sample.weights > 0
    sample = Sample(
        coordinates.to_model(finding.sample.rows[weighted]), finding.sample.weights[weighted]
    )
    if len(sample.rows) < n_clusters:
        raise ValueError(
            f"sample_weight is zero for so many rows that a uniform sample of {len(chosen)} has "
            f"{len(sample.rows)} left, fewer than n_clusters={n_clusters}. Drop those rows first."
        )
    return Survey(
        n_rows,
        moments.weight,
        coordinates,
        variance / scale**2,
        sample,
        critical_power(sample.rows, sample.weights),
    )


def check_row_count(n_rows: int, n_clusters: int) -> None:
    """Refuse an empty table, and more clusters than rows.

    Raises
    ------
    ValueError
        In either case.
    """
    if n_rows == 0:
        raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: X.")
    if n_rows < n_clusters:
        raise ValueError(f"n_samples={n_rows} should be >= n_clusters={n_clusters}.")


def sample_size(n_rows: int, n_features: int, n_clusters: int) -> int:
    """Rows of the seeding sample."""
    wanted = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * n_clusters)
    affordable = max(SAMPLE_BYTES // (8 * n_features), _LEAST_ROWS_PER_CLUSTER * n_clusters)
    return min(n_rows, wanted, affordable)


def _sample_indices(n_rows: int, n_features: int, n_clusters: int, seed: int) -> NDArray[np.int64]:
    size = sample_size(n_rows, n_features, n_clusters)
    if size == n_rows:
        return np.arange(n_rows)
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(n_rows, size, replace=False, shuffle=False))


def _first_look(
    rows: NDArray, weights: NDArray | None, position: Position, chosen: NDArray[np.int64]
) -> _Finding:
    """Kernel of the first pass."""
    if not isinstance(rows, np.ndarray):
        raise TypeError(
            f"X must have numpy blocks; block {position.block} is a {type(rows).__name__}."
        )
    n_rows, n_features = rows.shape
    v = None if weights is None else np.asarray(weights, dtype=np.float64)
    if v is not None:
        _check_weights(v, position)
    moments = Moments.empty(n_features)
    for tile in tiles(n_rows, tile_rows(n_features, 1)):
        wide = rows[tile].astype(np.float64)
        check_finite(wide, position, tile.start)
        with np.errstate(over="ignore", invalid="ignore"):  # reported after the pass
            moments = moments + Moments.of(wide, None if v is None else v[tile])
    first, last = np.searchsorted(chosen, (position.start, position.start + n_rows))
    local = chosen[first:last] - position.start
    picked = rows[local]
    return _Finding(moments, Sample(picked, np.ones(len(local)) if v is None else v[local]))


def check_finite(rows: NDArray, position: Position, offset: int = 0) -> None:
    """Refuse NaN and infinities, naming where the first one stands.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
    position : Position
        Of the block.
    offset : int
        Row of the block at which `rows` begin.

    Raises
    ------
    ValueError
        Naming block, row and feature (all counted from 0).
    """
    # A sum is finite unless an entry is not, or it overflows; only then is each entry tested.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum()):
            return
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        row, feature = (int(index) for index in bad[0])
        value = "NaN" if np.isnan(rows[row, feature]) else "infinity"
        local = offset + row
        raise ValueError(
            f"Input X contains {value}: block {position.block}, row {local} of the block (row "
            f"{position.start + local} of the data), feature {feature}. Remove or impute such "
            "rows first."
        )


def _check_weights(weights: NDArray, position: Position) -> None:
    """Refuse sample weights that are negative or not finite."""
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"sample_weight must be finite and not negative; it is {weights[row]} in block "
            f"{position.block}, row {row} of the block (row {position.start + row} of the data). "
            "Negative values in data passed to `sample_weight`."
        )


def _clean_variance(moments: Moments) -> FloatArray:
    """Variances, with what rounding leaves of a constant set to exactly 0."""
    variance = moments.variance
    if not np.isfinite(variance).all():
        feature = int(np.flatnonzero(~np.isfinite(variance))[0])
        raise ValueError(
            f"Input X has values so large that their squares overflow float64 (feature "
            f"{feature}). Scale the data first."
        )
    rounding = _ROUNDING * np.finfo(np.float64).eps * moments.mean
    return np.where(variance <= rounding**2, 0.0, variance)
