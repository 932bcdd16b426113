"""Parameters that several estimators share: their constraints and derived values."""

from __future__ import annotations

import math
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.auto.n_clusters import PLANNED_CLUSTERS
from daskmm.cluster._sklearn import Interval, StrOptions
from daskmm.data.blocks import Layout
from daskmm.data.lazy import in_memory
from daskmm.engine.first_pass import sample_size as usual_sample_size
from daskmm.mm.driver import Schedule
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.distortions.base import Distortion

Constraints = dict[str, list[Any]]

CHECKPOINT: Constraints = {
    "checkpoint": [str, Path, None],
    "checkpoint_every": [
        Interval(Integral, 1, None, closed="left"),
        Interval(Real, 0, None, closed="neither"),
        str,
    ],
}
ANNEALING: Constraints = {
    "s0": [StrOptions({"auto"}), Interval(Real, None, 0, closed="neither")],
    "eta": [Interval(Real, 1, None, closed="left")],
    "anneal_every": [Interval(Integral, 1, None, closed="left")],
    "polish": ["boolean"],
}
SAMPLING: Constraints = {
    "sample_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left"), None],
    "persist": ["boolean", StrOptions({"auto"})],
}
METRIC: Constraints = {
    "distortion": [StrOptions(set(DISTORTIONS))],
    "metric_params": [dict, None],
    "missing": [StrOptions({"error", "partial"})],
    "empty_rows": [StrOptions({"error", "label"})],
}

# s0="auto": the first power is at most −1.
HARMONIC = -1.0
# φ can be as large as k^(−1/s); if the logarithm of that exceeds this limit, sums of φ overflow.
_LARGEST_LOG = 600.0
# Least number of clusters with which the starts of small tables differ enough to be worth
# recombining: this lowers the cost of unequal or heavy-tailed clusters by 1 to 4 %, but not at all
# with 12 clusters (tests/benchmarks/README.md).
_WORTH_RECOMBINING = 16
# Least number of elements of a table of fewer clusters whose starts race on a sample.
_WORTH_RACING = 1 << 18


def annealing_schedule(
    model: Any, critical_power: float, n_clusters: int, multiple: float
) -> Schedule:
    """Return the schedule of an annealing.

    ``s0="auto"`` starts at a multiple of the critical power of the data. If feature or kernel
    weights are learned, it starts just past that power, while all rows still belong to all
    clusters. An `s0` so close to 0 that sums of φ overflow raises ValueError.
    """
    s0, chosen = model.s0, None
    if isinstance(s0, str):
        chosen = multiple
        s0 = min(HARMONIC, multiple * critical_power)
    elif math.log(n_clusters) > -s0 * _LARGEST_LOG:
        raise ValueError(
            f"s0={s0} is too close to 0 for n_clusters={n_clusters}: k^(-1/s) overflows."
        )
    return Schedule(
        float(s0),
        float(model.eta),
        model.anneal_every,
        bool(model.polish),
        model.max_iter,
        model.tol,
        critical_power,
        chosen,
    )


def wanted_rows(sample_size: int | str | None, n_clusters: int) -> int | None:
    """Return the number of rows that `sample_size` asks for; None for "auto" and None.

    It raises ValueError if there would be fewer rows than clusters.
    """
    if sample_size is None or isinstance(sample_size, str):
        return None
    if sample_size < n_clusters:
        raise ValueError(f"sample_size={sample_size} should be >= n_clusters={n_clusters}.")
    return int(sample_size)


def anneals_on_sample(
    layout: Layout,
    sample_size: int | str | None,
    polish: bool,
    at_least: int,
    at_most: int,
    *,
    alone: bool = False,
    races: bool = False,
    always: bool = False,
) -> bool:
    """Return whether a fit anneals on a sample, and takes only Lloyd steps over the table.

    Without polishing, there would be no steps over all rows. A table of unknown length, which
    occurs in plans only, counts as large, since passes over a small table cost little. A small
    table of many clusters is its own sample, unless it is in memory and has one start (`alone`),
    which can neither be recombined with others nor exchange clusters. So is a small table of few
    clusters with many values, if the starts race (`races`). Streamed rows that are sparse or of
    mixed columns are annealed on a sample, however few they are (`always`): if every iteration read
    them, there would be time for one start only, which is too few with thousands of features or
    levels.
    """
    if sample_size is None or not polish:
        return False
    wanted, n_rows = wanted_rows(sample_size, at_least), layout.n_rows
    if always or n_rows is None:
        return True
    size = wanted or usual_sample_size(n_rows, layout.width, at_most)
    many = at_least >= _WORTH_RECOMBINING or (races and n_rows * layout.width >= _WORTH_RACING)
    return n_rows > size or (many and (layout.lazy or not alone))


def is_small(layout: Layout, at_most: int) -> bool:
    """Return whether a sample holds all rows of a table; False if that is unknown."""
    n_rows = layout.n_rows
    return n_rows is not None and n_rows <= usual_sample_size(n_rows, layout.width, at_most)


def checked_distortion(
    distortion: str,
    metric_params: dict[str, Any] | None,
    missing: str,
    empty_rows: str,
    standardize: bool,
) -> type[Distortion]:
    """Return the class of a distortion; raise ValueError if other parameters do not fit it."""
    family = DISTORTIONS[distortion]
    if distortion == "cosine" and (standardize or missing == "partial"):
        raise ValueError(
            "distortion='cosine' compares the directions of whole rows, seen from the origin: it "
            "needs standardize=False and missing='error'."
        )
    if standardize and not family.shifts:
        raise ValueError(
            f"standardize=True would take the values out of the domain of distortion="
            f"{distortion!r} ({family.domain}): leave it False."
        )
    if distortion == "mahalanobis" and (standardize or missing == "partial"):
        raise ValueError(
            "distortion='mahalanobis' mixes all features: it needs standardize=False and "
            "missing='error'."
        )
    if empty_rows == "label" and missing != "partial" and distortion != "cosine":
        raise ValueError(
            "empty_rows='label' is about rows in which all values are missing, or rows of zeros "
            "with distortion='cosine': it needs missing='partial' or the cosine distance."
        )
    if metric_params is not None and distortion not in ("mahalanobis", "mixed"):
        raise ValueError("metric_params are those of distortion='mahalanobis' and 'mixed' alone.")
    return family


def given_array(values: Any, name: str) -> NDArray[np.float64]:
    """Return a parameter as an array of finite numbers."""
    try:
        array: NDArray[np.float64] = in_memory(values).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers: {error}") from error
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinity.")
    return array


def cluster_range(estimator: Any) -> tuple[int, int]:
    """Return the smallest and the largest number of clusters that a fit may look for."""
    if isinstance(estimator.n_clusters, str):
        return 1, estimator.max_clusters or PLANNED_CLUSTERS
    return int(estimator.n_clusters), int(estimator.n_clusters)
