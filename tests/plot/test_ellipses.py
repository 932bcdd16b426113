"""Ellipses of a mixture's components."""

import numpy as np
import pytest
from matplotlib.patches import Ellipse

from daskmm import GaussianMixture
from daskmm.numerics.gaussians import COVARIANCE_TYPES
from daskmm.plot import projection


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_an_ellipse_holds_the_rows_within_two_standard_deviations(kind):
    rng = np.random.default_rng(0)
    X = 8.0 * rng.integers(2, size=(2_000, 1)) + rng.normal(size=(2_000, 2)) @ [[1, 0.6], [0, 0.5]]
    X *= [1, 100]
    model = GaussianMixture(2, covariance_type=kind, random_state=0, reg_covar=1e-9).fit(X)
    [axis] = projection(model, X).axes
    ellipses = [patch for patch in axis.patches if isinstance(patch, Ellipse)]
    assert len(ellipses) == 2
    points = np.asarray(axis.collections[0].get_offsets())
    inside = np.zeros(len(points), bool)
    for ellipse in ellipses:
        turn = np.radians(ellipse.angle)
        across = (points - ellipse.center) @ [
            [np.cos(turn), -np.sin(turn)],
            [np.sin(turn), np.cos(turn)],
        ]
        inside |= (np.square(2 * across / [ellipse.width, ellipse.height])).sum(axis=1) < 1
    # A normal distribution has 86 % of its rows within two standard deviations.
    expected = 0.86 if kind in ("full", "tied") else 0.5
    assert inside.mean() > expected - 0.03
