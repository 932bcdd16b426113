"""Streamed quantiles."""

import numpy as np
import pytest

from daskmm.numerics.histograms import ERROR, Histogram


@pytest.mark.parametrize("level", [0.01, 0.5, 0.95, 0.9999])
def test_quantiles_are_those_of_the_sorted_numbers(level):
    rng = np.random.default_rng(0)
    values, groups = np.exp(20 * rng.normal(size=5000)), rng.integers(4, size=5000)
    whole = Histogram.of(values, groups)
    parts = Histogram.of(values[:1200], groups[:1200]) + Histogram.of(values[1200:], groups[1200:])
    found = parts.quantile(level, 5)
    np.testing.assert_array_equal(found, whole.quantile(level, 5))
    exact = [np.quantile(values[groups == j], level, method="inverted_cdf") for j in range(4)]
    np.testing.assert_allclose(found[:4], exact, rtol=ERROR)
    assert np.isnan(found[4])


def test_zeros_infinities_and_weights_are_counted():
    values = np.array([0.0, 0.0, 1.0, np.inf])
    weights = np.array([1.0, 0.0, 2.0, 1.0])
    found = Histogram.of(values, np.zeros(4, int), weights)
    assert found.quantile(0.2, 1) == 0.0
    assert found.quantile(0.5, 1) == pytest.approx(1.0, rel=ERROR)
    assert found.quantile(1.0, 1) == np.inf
    assert len(Histogram.of(values[:0], np.zeros(0, int)).pooled().codes) == 0
