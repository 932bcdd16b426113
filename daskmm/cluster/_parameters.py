"""The number of clusters as a parameter: given, or chosen on the sample of the first pass."""

from __future__ import annotations

import math
import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval, StrOptions

from daskmm.auto.n_clusters import (
    LEAST_ROWS,
    MOST_CLUSTERS,
    SOME_CLUSTERS,
    ClusterNumberPath,
    follow_n_clusters,
)
from daskmm.auto.standardize import ScaleChoice, compare_scales, in_own_units
from daskmm.data.blocks import Layout
from daskmm.engine.first_pass import Survey, first_pass, sample_size
from daskmm.engine.passes import Passes
from daskmm.engine.persisting import Persist
from daskmm.kmeans.mahalanobis import given_precision, total_precision, whitened
from daskmm.mm.driver import Schedule
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.distortions.base import Distortion

# s0="auto": the first power is at most −1.
HARMONIC = -1.0
# φ can be as large as k^(−1/s); beyond this (nats) its sums overflow.
_LARGEST_LOG = 600.0


class Annealing:
    """Mixin of the estimators that begin at a finite power."""

    _annealing_constraints: ClassVar[dict[str, list[Any]]] = {
        "s0": [StrOptions({"auto"}), Interval(Real, None, 0, closed="neither")],
        "eta": [Interval(Real, 1, None, closed="left")],
        "anneal_every": [Interval(Integral, 1, None, closed="left")],
        "polish": ["boolean"],
    }

    # s0="auto" is this multiple of the critical power: just past it, where weights of features or
    # kernels are learned while all rows still belong to all clusters.
    _critical_multiple: ClassVar[float] = 1.25

    s0: float | str
    eta: float
    anneal_every: int
    polish: bool
    max_iter: int
    tol: float

    if TYPE_CHECKING:

        @property
        def _n_at_most(self) -> int: ...

    def _schedule_past(self, critical_power: float) -> Schedule:
        """Schedule for data of a given critical power."""
        s0 = self.s0
        if isinstance(s0, str):
            s0 = min(HARMONIC, self._critical_multiple * critical_power)
        elif math.log(self._n_at_most) > -s0 * _LARGEST_LOG:
            raise ValueError(
                f"s0={s0} is too close to 0 for n_clusters={self._n_at_most}: k^(-1/s) overflows."
            )
        return Schedule(
            float(s0),
            float(self.eta),
            self.anneal_every,
            bool(self.polish),
            self.max_iter,
            self.tol,
            critical_power,
        )


class Metric:
    """Mixin of the estimators whose distortion can be chosen."""

    _metric_constraints: ClassVar[dict[str, list[Any]]] = {
        "distortion": [StrOptions(set(DISTORTIONS))],
        "metric_params": [dict, None],
        "missing": [StrOptions({"error", "partial"})],
    }

    distortion: str
    missing: str
    standardize: bool | str
    # Where there is a distortion with parameters to choose.
    metric_params: dict[str, Any] | None = None

    @property
    def _family(self) -> type[Distortion]:
        return DISTORTIONS[self.distortion]

    def _metric_of_rows(self) -> dict[str, Any]:
        """What the first pass has to know.

        Raises
        ------
        ValueError
            If features are to be standardised that a distortion needs as they are.
        """
        if self.standardize and not self._family.shifts:
            raise ValueError(
                f"standardize=True would take the values out of the domain of distortion="
                f"{self.distortion!r} ({self._family.domain}): leave it False."
            )
        if self.distortion == "mahalanobis" and (self.standardize or self.missing == "partial"):
            raise ValueError(
                "distortion='mahalanobis' mixes all features: it needs standardize=False and "
                "missing='error'."
            )
        if isinstance(self.standardize, str) and (
            self.distortion != "sqeuclidean" or self.missing == "partial"
        ):
            raise ValueError(
                "standardize='auto' compares squared distances of whole rows: it needs "
                "distortion='sqeuclidean' and missing='error'."
            )
        if self.metric_params is not None and self.distortion != "mahalanobis":
            raise ValueError("metric_params are those of distortion='mahalanobis' alone.")
        return {"family": self._family, "partial": self.missing == "partial"}

    def _in_metric(self, survey: Survey) -> Survey:
        """The survey in the coordinates where distances are measured, if they are others."""
        if self.distortion != "mahalanobis":
            return survey
        given = given_precision(self.metric_params, len(survey.variance))
        return whitened(survey, total_precision(survey.sample) if given is None else given)

    def _started(self, centers: NDArray[np.float64], survey: Survey) -> NDArray[np.float64]:
        """Given centres in the model's coordinates, off the edges of the domain.

        Raises
        ------
        ValueError
            If they are outside of it.
        """
        z, distortion = survey.coordinates.to_model(centers), survey.distortion
        if distortion.outside(z) is not None:
            raise ValueError(
                f"init has values outside of the domain of {distortion.title} "
                f"({distortion.domain})."
            )
        return distortion.off_edges(z)

    def _fitted_distortion(self, centers: NDArray[np.float64]) -> tuple[Distortion, bool]:
        """The distortion, and whether values may be missing, for assignment to given centres."""
        distortion = self._family.around(centers.mean(axis=0), centers.var(axis=0))
        return distortion, self.missing == "partial"

    def __sklearn_tags__(self) -> Tags:
        """Say where NaN are allowed."""
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = self.missing == "partial"
        tags.input_tags.positive_only = self._family.domain in ("x ≥ 0", "x > 0")
        return tags


# "auto" anneals on a sample where the table has more than this many times its rows.
_LARGE = 2


class Sampling:
    """Mixin of the estimators that anneal on a sample of a large table, or keep it in memory."""

    _sampling_constraints: ClassVar[dict[str, list[Any]]] = {
        "sample_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left"), None],
        "persist": ["boolean", StrOptions({"auto"})],
    }

    standardize: Any
    sample_size: int | str | None
    persist: Persist

    if TYPE_CHECKING:

        @property
        def _n_at_most(self) -> int: ...

        @property
        def _n_at_least(self) -> int: ...

    def _sample_rows(self) -> int | None:
        """Rows that were asked for; None for the usual number."""
        if self.sample_size is None or isinstance(self.sample_size, str):
            return None
        if self.sample_size < self._n_at_least:
            raise ValueError(
                f"sample_size={self.sample_size} should be >= n_clusters={self._n_at_least}."
            )
        return int(self.sample_size)

    def _samples(self, layout: Layout) -> bool:
        """Whether to anneal on a sample, and read the table to polish only.

        A table of unknown length passes for a small one: plans promise no more than they know.
        """
        # Without a polish there would be nothing to do over all rows.
        if self.sample_size is None or not getattr(self, "polish", True) or layout.n_rows is None:
            return False
        wanted = self._sample_rows()
        if wanted is not None:
            return layout.n_rows > wanted
        usual = sample_size(layout.n_rows, layout.n_features, self._n_at_most)
        return layout.n_rows > _LARGE * usual

    def _on_scheduler(self, layout: Layout) -> bool:
        """Whether work on the sample goes to the active dask scheduler, as its annealing does.

        Where the table itself is annealed, a compute is a pass over it.
        """
        return layout.lazy and self._samples(layout)

    def _survey(self, passes: Passes, seed: int, **metric: Any) -> Survey:
        """First pass, with the samples that are wanted; rows have been counted.

        Parameters
        ----------
        passes : Passes
        seed : int
        **metric
            Of `first_pass`, where distances are not k-means'.
        """
        layout = passes.blocks.layout
        assert layout.n_rows is not None
        usual = sample_size(layout.n_rows, layout.n_features, self._n_at_most)
        return first_pass(
            passes,
            self._n_at_least,
            bool(self.standardize),
            seed,
            wanted=self._sample_rows() or usual,
            with_reserve=self._samples(layout),
            **metric,
        )


class ScaleOfFeatures(Sampling):
    """Mixin of the estimators that can choose whether to standardise."""

    n_clusters: Any
    standardize_path_: ScaleChoice

    def _survey(self, passes: Passes, seed: int, **metric: Any) -> Survey:
        # Features are standardised first where there is a choice.
        survey = super()._survey(passes, seed, **metric)
        if not isinstance(self.standardize, str):
            return survey
        some = max(1, min(SOME_CLUSTERS, len(survey.sample.rows) // LEAST_ROWS))
        n_clusters = some if isinstance(self.n_clusters, str) else int(self.n_clusters)
        lazy = passes.blocks.layout.lazy
        self.standardize_path_ = compare_scales(survey, n_clusters, seed, lazy)
        return survey if self.standardize_path_.standardize else in_own_units(survey)


NO_CLUSTERS = (
    "No clusters were found: no partition tells more of the rows than those of noise do, and "
    "n_clusters_ is 1. Look at the path, n_clusters_path_, and give a number if there are some."
)


class ClusterNumber(ScaleOfFeatures):
    """Mixin of the estimators that can choose the number of their clusters."""

    _number_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    }

    n_clusters: Any
    n_clusters_: int
    n_clusters_path_: ClusterNumberPath

    @property
    def _n_sought(self) -> int:
        return self.n_clusters_ if isinstance(self.n_clusters, str) else int(self.n_clusters)

    @property
    def _n_at_most(self) -> int:
        return MOST_CLUSTERS if isinstance(self.n_clusters, str) else int(self.n_clusters)

    @property
    def _n_at_least(self) -> int:
        return 1 if isinstance(self.n_clusters, str) else int(self.n_clusters)

    def _survey(self, passes: Passes, seed: int, **metric: Any) -> Survey:
        survey = super()._survey(passes, seed, **metric)
        if isinstance(self.n_clusters, str):
            lazy = self._on_scheduler(passes.blocks.layout)
            weights = self._weights_for_number(survey, seed, lazy)
            self.n_clusters_path_ = follow_n_clusters(survey.sample, seed, lazy, weights)
            self.n_clusters_ = self.n_clusters_path_.n_clusters
            if self.n_clusters_ == 1:
                # From here: _survey, _minimize, fit, the caller.
                warnings.warn(NO_CLUSTERS, UserWarning, stacklevel=4)
        else:
            self.n_clusters_ = int(self.n_clusters)
        return survey

    def _weights_for_number(
        self, survey: Survey, seed: int, lazy: bool
    ) -> NDArray[np.float64] | None:
        """Weights of the features while the number is chosen; None for equal ones."""
        return None
