"""Clusters of a few far rows, which fits warn of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.data.errors import warn_user
from daskmm.data.names import listed
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.rows import tiles

FloatArray = NDArray[np.float64]

# A cluster holds nearly no rows if it has at most the share _SHARE of them, or at most _ROWS rows.
# It must also have at most the share _OF_AVERAGE of an average cluster. Tables of fewer than
# _LEAST_ROWS rows are not judged.
_SHARE, _ROWS, _OF_AVERAGE, _LEAST_ROWS = 1e-3, 5, 0.1, 1000
# A cluster is far if two conditions hold for the distance of its centre from that of every larger
# cluster. It is at least _FAR times the median distance of the larger cluster's rows to their
# centre, and at least _OF_GAPS times the median distance between a larger cluster and the nearest
# other one.
_FAR, _OF_GAPS = 5.0, 2.0
# A typical distance below this share of the distances between centres is a rounding error: the rows
# of such a cluster are equal.
_EQUAL = 1e-6
# All distances between ten thousand centres would take gigabytes, so these are compared at a time.
_CENTERS_AT_ONCE = 512


def far_clusters(model: Any) -> NDArray[np.int64]:
    """Return the clusters of a model that hold nearly no rows and are far from all others."""
    sizes, n_rows = model.cluster_sizes_, model.n_samples_seen_
    largest = min(max(_SHARE, _ROWS / n_rows), _OF_AVERAGE / len(sizes))
    few = (sizes > 0) & (sizes <= largest * sizes.sum())
    large = (sizes > 0) & ~few
    if n_rows < _LEAST_ROWS or not few.any() or not large.any():
        return np.empty(0, dtype=np.int64)
    state = FittedCenters.of(model).state
    typical = state.distortion.reported(model.typical_distances_[large])
    far = [
        ((apart >= _FAR * typical) & (typical > _EQUAL * apart)).all(axis=1)
        for apart in _distances(state, few, large)
    ]
    found = np.flatnonzero(few)[np.concatenate(far)]
    if not len(found):
        return found
    gaps: list[float] = []
    for apart in _distances(state, large, large):
        lines = np.arange(len(apart))
        apart[lines, lines + len(gaps)] = np.inf
        gaps += apart.min(axis=1).tolist()
    least = _OF_GAPS * float(np.median(gaps)) if len(gaps) > 1 else 0.0
    beyond = [(apart >= least).all(axis=1) for apart in _distances(state, found, large)]
    return found[np.concatenate(beyond)]


def _distances(
    state: CenterState, some: NDArray[Any], others: NDArray[np.bool_]
) -> Iterator[FloatArray]:
    """Yield the distances of some centres from others, as users see them, a few lines at a time."""
    distortion, centers = state.distortion, state.centers[others]
    lines = state.centers[some]
    for part in tiles(len(lines), _CENTERS_AT_ONCE):
        tile = distortion.tile(lines[part], False)
        yield distortion.reported(distortion.distances(tile, centers, state.feature_weights))


def warn_of_far_clusters(model: Any) -> None:
    """Warn if far rows have centres of their own."""
    found = far_clusters(model)
    if not len(found):
        return
    n_far, n_rows = float(model.cluster_sizes_[found].sum()), float(model.cluster_sizes_.sum())
    weighted = n_rows != model.n_samples_seen_
    held = (
        f"{n_far / n_rows:.2%} of the weight" if weighted else f"{n_far:,.0f} of {n_rows:,.0f} rows"
    )
    sizes = [f"{size:,.6g}" for size in model.cluster_sizes_[found]]
    # Trim twice the share of these rows, since other far rows may lie in large clusters.
    share = 2.0 * n_far / n_rows
    digits = 10.0 ** math.floor(math.log10(share))
    trim = model.trim + max(math.ceil(share / digits) * digits, 1e-3)
    said = (
        f"{len(found)} of {len(model.cluster_sizes_)} clusters are far from all others, and hold "
        f"{held} together ({listed(sizes)})."
    )
    if len(found) == 1:
        said = (
            f"1 of {len(model.cluster_sizes_)} clusters is far from all others, and holds {held}."
        )
    warn_user(
        f"{said} If these rows are errors or outliers, leave the farthest rows out of the fit by "
        f"trim={trim:.3g} (on the command line --trim {trim:.3g}).",
        UserWarning,
    )
