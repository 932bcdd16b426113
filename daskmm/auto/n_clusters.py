"""Choice of the number of clusters, without labels.

The rule counts groups of rows with gaps in density between them; groups may have any shape, size
and spread. k-means cuts the rows into cells, and cells that no gap divides are merged (see
:mod:`daskmm.auto.separation` and, for what a gap is, :mod:`daskmm.numerics.gaps`). Clusters without
a gap between them count as one: if the centres of two round clusters of equal size are 2.5 standard
deviations apart, the density between them is .88 of that at the centres.

Rows that are far from most rows and from each other, such as errors, are left out (see
:mod:`daskmm.auto.scattered`). Other values beyond five robust standard deviations from the median
of their feature are put on a logarithmic scale, so that heavy tails become short while far values
remain apart. Rows are projected on their first 20 principal axes. Features with few distinct
values, such as flags, would have gaps everywhere; so their values are replaced by normal numbers
with the same order, equal values in random order. Whole numbers, and other values of even steps,
are spread over a step. If all rows are copies of a few points, each point is a cluster.

Mixed columns are replaced by normal features that could lie behind them (see
:mod:`daskmm.numerics.latent_normals`), in the rows without missing values. Rows of numbers that
lack more than a quarter of their values are left out if 200 others remain, and the other missing
values are taken from the nearest row that has them. Weights are scaled so that they sum to the
effective number of rows: the number of rows of weight 1 that would estimate means with the same
precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from daskmm.auto.scattered import scattered
from daskmm.auto.separation import LEAST_ROWS, separation
from daskmm.engine.moments import Sample
from daskmm.kmeans.trials import thinned
from daskmm.numerics.columns import MixedCoordinates
from daskmm.numerics.latent_normals import dithered, latent_normals, without_steps
from daskmm.numerics.sparse_rows import SparseRows, few_dense
from daskmm.numerics.whitening import with_short_tails
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Assumed number of clusters while it is unknown: for the size of the sample, and for other choices.
PLANNED_CLUSTERS, SOME_CLUSTERS = 40, 20
# Largest number of rows of the sample that are used.
SAMPLE_ROWS = 10_000
# Mixed columns need at least LEAST_WHOLE rows without missing values. Rows of numbers that lack
# more than the share _MISSING of their values are left out if LEAST_WHOLE others remain.
LEAST_WHOLE, _MISSING = 200, 0.25
# Number of principal axes that are used.
_AXES = 20
# Features with less than this share of the largest weighted variance are left out.
_NEGLIGIBLE = 1e-2
# A number of clusters is at the end of the range if it exceeds this share of what the rows allow.
_END = 0.75


@registered
@dataclass(frozen=True, repr=False)
class ClusterNumberPath:
    """Overlap of the two least separated clusters, for each number of clusters.

    Attributes
    ----------
    numbers : ndarray of shape (n_numbers,), int64
        Numbers of clusters: 2, 3, …, and some beyond the number that was found.
    overlaps : ndarray of shape (n_numbers,), float64
        Overlap of the two least separated clusters, which is less than 1 if there is a gap between
        them. It is the larger of two ratios. For the first, the density between the two clusters is
        divided by that of the less dense cluster, and by the largest such quotient that counts as a
        gap. The second is the evidence that a gap needs, divided by the evidence found.
    n_rows, n_features : int
        Number of rows of the sample, and of features or principal axes, that were used.
    at_end : bool
        Whether the number is at the end of the range that was tried: `max_clusters`, or what the
        rows allow.
    """

    numbers: NDArray[np.int64]
    overlaps: FloatArray
    n_rows: int
    n_features: int
    at_end: bool

    @property
    def n_clusters(self) -> int:
        """The largest number of clusters with gaps between them; 1 if there are no clusters."""
        return int(self.numbers[self.overlaps < 1].max(initial=1))

    def __repr__(self) -> str:
        """Return the choice in words; the arrays are attributes."""
        end = ", at the end of what was tried" if self.at_end else ""
        return (
            f"<ClusterNumberPath: {self.n_clusters} clusters of {self.n_rows:,} rows, among "
            f"{len(self.numbers) + 1} numbers{end}>"
        )


def follow_n_clusters(
    sample: Sample,
    seed: int,
    feature_weights: FloatArray | None = None,
    max_clusters: int | None = None,
    n_rows: int = SAMPLE_ROWS,
    mixed: MixedCoordinates | None = None,
) -> ClusterNumberPath:
    """Count the groups of a sample with gaps between them, by the rule of this module.

    The sample, in the model's coordinates, is that of the first pass, of which at most `n_rows` are
    used. The seed draws these rows and the starts of k-means. Features with next to no variance,
    weighted by `feature_weights`, are left out. Rows of mixed columns have the coordinates `mixed`
    in place of feature weights.
    """
    if mixed is not None:
        sample = _of_mixed(sample, mixed, seed)
    rows, weights = thinned(sample.rows, sample.weights, n_rows, seed)
    rows, weights = _numbers(rows, weights, feature_weights)
    rng = np.random.default_rng(seed)
    rows = dithered(without_steps(rows, rng), weights, rng)
    apart = scattered(rows, weights)
    rows, weights = rows[~apart], weights[~apart]
    possible = max(1, len(rows) // LEAST_ROWS)
    points = len(np.unique(rows, axis=0))
    if points <= possible:
        found, overlaps, at_end = points, dict.fromkeys(range(2, points + 1), 0.0), False
    else:
        rows = _axes(rows)
        effective = weights * (weights.sum() / np.square(weights).sum())
        found, overlaps = separation(rows, effective, seed)
        at_end = found > max(1, _END * possible)
    if max_clusters is not None and found >= max_clusters:
        at_end = found > max_clusters
        overlaps = {number: overlaps[number] for number in range(2, max_clusters + 1)}
    return ClusterNumberPath(
        np.array(list(overlaps), dtype=np.int64),
        np.array(list(overlaps.values()), dtype=np.float64),
        n_rows=rows.shape[0],
        n_features=rows.shape[1],
        at_end=at_end,
    )


def _numbers(
    rows: FloatArray | SparseRows, weights: FloatArray, feature_weights: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Return dense rows without missing values, with the features that count, and their weights."""
    if feature_weights is not None:
        if isinstance(rows, SparseRows):
            squares = np.bincount(rows.indices, np.square(rows.data), minlength=rows.shape[1])
        else:
            squares = np.nansum(np.square(rows), axis=0)
        variance = feature_weights * squares
        kept = variance >= _NEGLIGIBLE * variance.max()  # if nothing varies, all features are kept
        rows, feature_weights = rows[:, kept], feature_weights[kept]
    rows, weights = few_dense(rows, weights)
    missing = np.isnan(rows)
    if missing.any():
        enough = missing.mean(axis=1) <= _MISSING
        if np.count_nonzero(enough) >= LEAST_WHOLE:
            rows, weights = rows[enough], weights[enough]
        from sklearn.impute import KNNImputer  # this takes half a second, and few tables need it

        rows = KNNImputer(n_neighbors=1, keep_empty_features=True).fit_transform(rows)
    rows = np.asarray(rows, dtype=np.float64)
    return rows if feature_weights is None else rows * np.sqrt(feature_weights), weights


def _axes(rows: FloatArray) -> FloatArray:
    """Draw far values nearer, and project rows with many features on their first principal axes."""
    rows = with_short_tails(rows)
    rows = rows[:, np.ptp(rows, axis=0) > 0]
    rows = rows - rows.mean(axis=0)
    if rows.shape[1] <= _AXES:
        return rows
    # A few eigenvectors take a small part of the time of all singular vectors.
    n, p = rows.shape
    products = rows.T @ rows if p <= n else rows @ rows.T
    last = len(products) - 1
    squares, vectors = eigh(products, subset_by_index=(max(0, last - _AXES + 1), last))
    squares, vectors = squares[::-1], vectors[:, ::-1]
    axes = rows @ vectors if p <= n else vectors * np.sqrt(np.maximum(squares, 0.0))
    return np.asarray(axes)


def _of_mixed(sample: Sample, coordinates: MixedCoordinates, seed: int) -> Sample:
    """Return normal features of the rows that have all of their values.

    Values put in place of missing ones would form separate clusters.
    """
    whole = ~np.isnan(sample.rows).any(axis=1)
    if not whole.all() and np.count_nonzero(whole) < LEAST_WHOLE:
        raise ValueError(
            f"n_clusters='auto' of mixed columns needs {LEAST_WHOLE} rows without missing values; "
            f"a sample of {len(whole):,} rows has {np.count_nonzero(whole)}. Give a number, or "
            "leave out columns that are often missing."
        )
    rows, weights = sample.rows[whole], sample.weights[whole]
    rng = np.random.default_rng(seed)
    return Sample(latent_normals(coordinates, rows, weights, rng), weights)
