"""Parameters that say how distances are measured: the distortion, and what missing values do."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Tags
from sklearn.utils._param_validation import StrOptions

from daskmm.mahalanobis import given_precision, total_precision, whitened
from daskmm.metric import DISTORTIONS
from daskmm.numerics.distortions import Distortion
from daskmm.survey import Survey


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
