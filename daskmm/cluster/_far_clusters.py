"""Clusters of a few far rows, which fits warn of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.cluster._warnings import warn_user
from daskmm.data.names import listed

# A cluster holds nearly no rows if it has at most this share of them, or this number, but also at
# most this share of an average cluster. Tables of fewer rows than the last number are not judged.
_SHARE, _ROWS, _OF_AVERAGE, _LEAST_ROWS = 1e-3, 5, 0.1, 1000
# It is far if its centre is so many times as far from the centre of any larger cluster as half of
# that cluster's rows are.
_FAR = 5.0


def far_clusters(model: Any) -> NDArray[np.int64]:
    """Return the clusters of a fitted model that hold nearly no rows and are far from all others.

    Parameters
    ----------
    model : fitted estimator with centres
        Its `typical_distances_` are known.
    """
    sizes, n_rows = model.cluster_sizes_, model.n_samples_seen_
    largest = min(max(_SHARE, _ROWS / n_rows), _OF_AVERAGE / len(sizes))
    few = (sizes > 0) & (sizes <= largest * sizes.sum())
    large = (sizes > 0) & ~few
    if n_rows < _LEAST_ROWS or not few.any() or not large.any():
        return np.empty(0, dtype=np.int64)
    state = FittedCenters.of(model).state
    distortion, centers = state.distortion, state.centers
    tile = distortion.tile(centers[few], False)
    apart = distortion.distances(tile, centers[large], state.feature_weights)
    ratios = distortion.reported(apart) / distortion.reported(model.typical_distances_[large])
    return np.flatnonzero(few)[ratios.min(axis=1) >= _FAR]


def warn_of_far_clusters(model: Any) -> None:
    """Warn if far rows have centres of their own."""
    found = far_clusters(model)
    if not len(found):
        return
    n_far, n_rows = float(model.cluster_sizes_[found].sum()), float(model.cluster_sizes_.sum())
    sizes = [f"{size:,.6g}" for size in model.cluster_sizes_[found]]
    # Other far rows may lie in large clusters.
    share = 2.0 * n_far / n_rows
    digits = 10.0 ** math.floor(math.log10(share))
    trim = model.trim + max(math.ceil(share / digits) * digits, 1e-3)
    said = (
        f"{len(found)} of {len(model.cluster_sizes_)} clusters are far from all others, and hold "
        f"{n_far:,.6g} of {n_rows:,.6g} rows together ({listed(sizes)})."
    )
    if len(found) == 1:
        said = (
            f"1 of {len(model.cluster_sizes_)} clusters is far from all others, and holds "
            f"{n_far:,.6g} of {n_rows:,.6g} rows."
        )
    warn_user(
        f"{said} If these rows are errors or outliers, leave the farthest rows out of the fit by "
        f"trim={trim:.3g}.",
        UserWarning,
    )
