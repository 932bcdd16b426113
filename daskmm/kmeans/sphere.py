"""The survey of a table in the coordinates of cosine distances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from daskmm.engine.first_pass import Survey
from daskmm.engine.moments import Moments, Sample
from daskmm.numerics.rows import SphereCoordinates
from daskmm.numerics.sparse_rows import SparseRows


def on_sphere(survey: Survey) -> Survey:
    """Return a survey, given in the input's units, in the coordinates of directions."""
    coordinates = SphereCoordinates(len(survey.variance))
    core, whole = survey.core, survey.sample
    rows, weights = coordinates.to_model(core.rows), core.weights
    if isinstance(rows, SparseRows):
        variance = Moments.of_sparse(rows, weights).variance
    else:
        mean = np.average(rows, axis=0, weights=weights)
        variance = np.average(np.square(rows - mean), axis=0, weights=weights)
    return replace(
        survey,
        coordinates=coordinates,
        variance=variance,
        sample=Sample(coordinates.to_model(whole.rows), whole.weights),
        spread=survey.distortion.spread(rows, weights),
    )
