"""Coordinates and divergences of mixed rows, by short ways and by their definitions."""

import numpy as np
import pytest

from daskmm.numerics.columns import CATEGORY, FLAG, NUMBER, SEASON, Expansion
from daskmm.numerics.distortions.mixed import Mixed, measured

EXPANSION = Expansion(
    np.array([NUMBER, CATEGORY, FLAG, SEASON, CATEGORY]), np.array([1, 4, 1, 2, 2])
)


def coded(holes, n=300, seed=0):
    """Rows of all kinds of columns, with a level that no row has."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack(
        [
            rng.normal(2.0, 3.0, n),
            rng.integers(0, 3, n),
            rng.random(n) < 0.2,
            rng.random(n),
            rng.integers(0, 2, n),
        ]
    )
    rows[rng.random(rows.shape) < holes] = np.nan
    return rows


def around(rows):
    """Coordinates and divergence that the moments of the rows give."""
    features = EXPANSION.expand(rows)
    mean, variance = np.nanmean(features, axis=0), np.nanvar(features, axis=0)
    shares = 1.0 - np.isnan(features).mean(axis=0)
    coordinates, distortion, _ = measured(EXPANSION, mean, variance, shares, True)
    return coordinates, distortion


@pytest.mark.parametrize("holes", [0.0, 0.2])
def test_coordinates_are_shifted_and_scaled_features(holes):
    rows = coded(holes)
    coordinates, _ = around(rows)
    features = EXPANSION.expand(rows)
    expected = (features - coordinates.mean) / coordinates.scale + coordinates.shift
    np.testing.assert_array_equal(coordinates.to_model(rows), expected)


@pytest.mark.parametrize("holes", [0.0, 0.2])
def test_terms_of_rows_are_their_divergences_from_the_reference(holes, monkeypatch):
    rows = coded(holes)
    coordinates, distortion = around(rows)
    z = coordinates.to_model(rows)
    valid = np.where(np.isnan(z), distortion.reference, z)
    expected = distortion.elements(valid, distortion.reference)
    # All rows have one of the known values: the definition is asked for these alone.
    asked = []
    definition = Mixed.elements
    monkeypatch.setattr(
        Mixed, "elements", lambda self, x, m: asked.append(np.shape(x)) or definition(self, x, m)
    )
    np.testing.assert_array_equal(distortion.tile(z, holes > 0).terms, expected)
    assert asked == [(2, z.shape[1])]


def test_terms_of_means_are_their_divergences_from_the_reference():
    coordinates, distortion = around(coded(0.0))
    means = coordinates.to_model(coded(0.0)).reshape(30, 10, -1).mean(axis=1)
    np.testing.assert_array_equal(
        distortion.terms(means), distortion.elements(means, distortion.reference)
    )
    features = np.arange(len(distortion.kinds)) % 2 == 0
    np.testing.assert_array_equal(
        distortion.restricted(features).terms(means[:, features]),
        distortion.terms(means)[:, features],
    )
