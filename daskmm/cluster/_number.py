"""The number of clusters as a parameter: given, or chosen on the sample of the first pass."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from daskmm.cluster._scale import ScaleOfFeatures
from daskmm.cluster_number import MOST_CLUSTERS, ClusterNumberPath, follow_n_clusters
from daskmm.passes import Passes
from daskmm.survey import Survey

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
