"""Coordinates in the space that the rows of a wide table span, against differences of the rows."""

import numpy as np
import pytest

from daskmm.numerics.annealing import critical_power
from daskmm.numerics.span import in_span, is_wide, span_of


def differences(rows):
    return np.array([[np.square(x - y).sum() for y in rows] for x in rows])


def wide(n=40, p=1000, seed=0):
    return np.random.default_rng(seed).standard_normal((n, p))


@pytest.mark.parametrize("length", [1e-8, 1.0, 1e8], ids=["short", "like the others", "long"])
def test_distances_are_kept_also_of_equal_rows_and_of_rows_of_other_lengths(length):
    rows = wide()
    rows[3] *= length
    rows[5], rows[6], rows[7] = rows[4], 0.0, rows[8] + 1e-6 * rows[9]
    found, squares = in_span(rows), np.square(rows).sum(axis=1)
    assert found.shape == (40, 37)
    error = np.abs(differences(found) - differences(rows))
    assert (error <= 1e-13 * (squares[:, None] + squares)).all()
    assert not found[6].any()


def test_points_in_the_span_are_converted_back_to_features():
    rows = wide()
    shares = np.random.default_rng(1).dirichlet(np.ones(40), 3)
    span = span_of(rows)
    np.testing.assert_allclose(
        span.to_features(shares @ span.coordinates, rows), shares @ rows, atol=1e-13
    )


def test_rows_that_cannot_be_multiplied_stay_as_they_are():
    rows = wide()
    holes = rows.copy()
    holes[2, 3] = np.nan
    for these in (rows[:, :999], rows.repeat(7, axis=0), holes, 1e160 * rows, 1e-160 * rows):
        assert in_span(these) is these
    assert not is_wide(0, 5000)
    assert is_wide(250, 1000)


def test_the_critical_power_is_that_of_all_features():
    rows = wide()
    rows -= rows.mean(axis=0)
    lengths = np.linalg.norm(rows, axis=1)[:, None]
    eigenvalue = np.linalg.eigvalsh((rows / lengths) @ (rows / lengths).T / 40)[-1]
    np.testing.assert_allclose(critical_power(rows, np.ones(40)), 1 - 0.5 / eigenvalue, rtol=1e-12)
