"""The scale of the features as a parameter: given, or chosen on the sample of the first pass."""

from __future__ import annotations

from typing import Any

from daskmm.cluster._sampling import Sampling
from daskmm.cluster_number import LEAST_ROWS, SOME_CLUSTERS
from daskmm.passes import Passes
from daskmm.scale_choice import ScaleChoice, compare_scales, in_own_units
from daskmm.survey import Survey


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
