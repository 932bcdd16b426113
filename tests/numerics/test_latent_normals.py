"""Numbers in place of mixed columns: normal where columns are independent."""

import numpy as np
import pytest
from scipy import stats

from daskmm.numerics.columns import CATEGORY, FLAG, NUMBER, SEASON, Expansion
from daskmm.numerics.distortions.mixed import measured
from daskmm.numerics.gaps import merged, scatter_of
from daskmm.numerics.latent_normals import dithered, latent_normals

N = 4000
EXPANSION = Expansion(np.array([NUMBER, FLAG, CATEGORY, SEASON]), np.array([1, 1, 5, 2]))


def drawn(codes, weights=None, expansion=EXPANSION):
    """Numbers of coded rows."""
    features = expansion.expand(codes)
    mean, variance = np.mean(features, axis=0), np.var(features, axis=0)
    coordinates = measured(expansion, mean, variance, np.ones_like(mean), False)[0]
    weights = np.ones(len(codes)) if weights is None else weights
    rows = coordinates.to_model(codes)
    return latent_normals(coordinates, rows, weights, np.random.default_rng(1))


def independent_codes(seed=0):
    rng = np.random.default_rng(seed)
    level = rng.choice(5, N, p=[0.015, 0.4, 0.005, 0.33, 0.25])
    return np.column_stack([rng.normal(size=N), rng.random(N) < 0.2, level, rng.random(N)])


@pytest.mark.parametrize("weighted", [False, True])
def test_independent_columns_become_independent_normals(weighted):
    codes, weights = independent_codes(), np.ones(N)
    if weighted:
        # Each level has the weight of another share of the rows.
        weights = 1.0 + codes[:, 2] + 2.0 * codes[:, 1]
    # The rarest level, and one of less than a fiftieth, have no number of their own.
    normal = drawn(codes, weights) * np.sqrt([1, 1, 3, 3, 3, 2, 2])
    covariance = np.cov(normal.T, aweights=weights)
    np.testing.assert_allclose(covariance, np.eye(7), atol=0.08)
    if not weighted:
        for feature in normal.T[1:5]:
            assert stats.kstest(feature, "norm").pvalue > 1e-3


def test_levels_keep_what_they_say_of_each_other():
    codes = independent_codes()
    codes[:, 1] = codes[:, 2] == 1
    flag, first = drawn(codes)[:, 1:3].T
    assert np.corrcoef(flag, first)[0, 1] > 0.5
    # Low where the flag is set, and the commonest level is there.
    assert flag[codes[:, 1] == 1].max() < flag[codes[:, 1] == 0].min()
    assert first[codes[:, 2] == 1].max() < first[codes[:, 2] != 1].min()


@pytest.mark.parametrize("n_sectors", [2, 3, 4, 5, 6, 8, 12])
def test_no_gaps_divide_the_sectors_of_an_even_year(n_sectors):
    year = (np.arange(N) + 0.5) / N
    found = drawn(year[:, None], expansion=Expansion(np.array([SEASON]), np.array([2])))
    labels = (year * n_sectors).astype(int)
    halves = [np.flatnonzero(labels == sector) for sector in range(n_sectors)]
    sectors = [(own[::2], own[1::2]) for own in halves]
    assert len(merged(scatter_of(found, np.ones(N), sectors), sectors).groups) == 1


def test_constant_columns_stay_finite():
    codes = np.tile([2.0, 1.0, 3.0, 0.25], (200, 1))
    found = drawn(codes)
    assert np.isfinite(found).all()
    assert (found[:, 0] == 0).all()


def test_few_values_become_normal():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=2000), rng.integers(3, size=2000), np.ones(2000)])
    weights = rng.uniform(0.5, 2, 2000)
    found = dithered(rows, weights, np.random.default_rng(1))
    np.testing.assert_array_equal(found[:, [0, 2]], rows[:, [0, 2]])
    assert len(np.unique(found[:, 1])) == 2000
    assert found[rows[:, 1] == 0, 1].max() < found[rows[:, 1] == 1, 1].min()
    for moment in (np.mean, np.std):
        assert moment(found[:, 1]) == pytest.approx(moment(rows[:, 1]), abs=0.05)
