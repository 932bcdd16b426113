"""Features in which too few rows differ from the others to separate clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from daskmm.engine.first_pass import Survey
from daskmm.engine.moments import Sample
from daskmm.numerics.sparse_rows import SparseRows, zeroed

# Least number of rows that have to differ, as a share of an average cluster's rows.
LEAST_SHARE = 0.1


def without_rare(survey: Survey, n_clusters: int) -> Survey:
    """Treat a feature as constant if too few rows differ from its commonest value.

    Too few means less than a tenth of an average cluster's rows. If a standardised feature differs
    in a single row, a cluster of that row explains it completely, so EWP gives all weight to such
    features. For six types among 5,000 cells with 2,000 genes, the adjusted Rand index is 0 with
    these features, and .99 without them.
    """
    rows, weights = survey.core.rows, survey.core.weights
    rare = survey.varying & (_uncommon(rows, weights) < LEAST_SHARE / n_clusters)
    if not rare.any() or (rare == survey.varying).all():
        return survey
    return without_features(survey, rare)


def without_features(survey: Survey, left_out: NDArray[np.bool_]) -> Survey:
    """Treat the features of a mask, (n_features,), as constant."""
    sample, larger = _without(survey.sample, left_out), survey.larger_sample
    if larger is not None and isinstance(larger.rows, SparseRows):
        larger = _without(larger, left_out)
    variance = np.where(left_out, 0.0, survey.variance)
    return replace(
        survey,
        variance=variance,
        sample=sample,
        larger_sample=larger,
        spread=float(variance.sum()),
    )


def _without(sample: Sample, left_out: NDArray[np.bool_]) -> Sample:
    rows = sample.rows
    if isinstance(rows, SparseRows):
        return Sample(zeroed(rows, left_out), sample.weights)
    return Sample(np.where(left_out, 0.0, rows), sample.weights)


def _uncommon(rows: NDArray | SparseRows, weights: NDArray) -> NDArray[np.float64]:
    """Return, per feature, the weight share of the rows that differ from its commonest value.

    The commonest value is taken to be the median, which it is if more than half of the rows have
    it; otherwise the share is large in any case.
    """
    if isinstance(rows, SparseRows):
        held = weights[rows.row_of_entry] * (rows.data != 0)
        shares = np.bincount(rows.indices, held, rows.shape[1]) / weights.sum()
        # These features are mostly not 0, so their commonest value has to be found.
        often = np.flatnonzero(shares > 0.5)
        if len(often):
            shares[often] = _uncommon(rows.tocsc()[:, often].toarray(), weights)
        return shares
    middle = np.partition(rows, len(rows) // 2, axis=0)[len(rows) // 2]
    return np.asarray(weights @ (rows != middle) / weights.sum())
