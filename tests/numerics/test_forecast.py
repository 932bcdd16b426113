"""Forecasts of the statistics of batches."""

import numpy as np
import pytest
from scipy import stats

from daskmm.numerics.drift import BatchSums, in_units, units_of
from daskmm.numerics.forecast import Between, Series, deviation, moderated


def series(values, variance=1e-9, first=0):
    values = np.asarray(values, dtype=float)
    numbers = np.arange(first, first + len(values))
    return Series(numbers, values, np.full(values.shape, variance))


def test_a_forecast_is_the_regression_on_level_trend_and_season():
    rng = np.random.default_rng(0)
    numbers = np.arange(35)
    values = (
        rng.normal(size=(35, 5)) + 0.1 * numbers[:, None] + rng.normal(size=(7, 5))[numbers % 7]
    )
    found = deviation(series(values[:34]), series(values[34:], first=34), 7, seasonal=True)
    X = np.column_stack([numbers, numbers[:, None] % 7 == np.arange(7)]).astype(float)
    coefficients, (*_,), _, _ = np.linalg.lstsq(X[:34], values[:34], rcond=None)
    np.testing.assert_allclose(found.shifts, values[34] - X[34] @ coefficients, rtol=1e-5)
    residuals = values[:34] - X[:34] @ coefficients
    variance = np.square(residuals).sum() / (5 * (34 - 8))  # all five are alike
    leverage = X[34] @ np.linalg.inv(X[:34].T @ X[:34]) @ X[34]
    np.testing.assert_allclose(found.errors, np.sqrt(variance * (1 + leverage)), rtol=0.2)


def test_rows_that_are_independent_draws_are_compared_by_the_textbook_s_test():
    a, b = series([[0.3]], 1 / 80), series([[0.0]], 1 / 60)
    found = deviation(a, b, 7, False, Between.nothing(1))
    assert found.shifts == pytest.approx(-0.3)
    assert found.p_values == pytest.approx(2 * stats.norm.sf(0.3 / np.sqrt(1 / 80 + 1 / 60)))
    assert found.limits(found.p_values) == pytest.approx(0.3)


def test_large_batches_count_more_only_if_batches_are_alike():
    before = Series(np.arange(2), np.array([[0.0], [1.0]]), np.array([[1e-2], [1e-4]]))
    new = series([[1.0]], 1e-4, first=2)
    assert deviation(before, new, 7, False, Between.nothing(1)).shifts[0] == pytest.approx(
        0.0099, rel=0.1
    )
    assert deviation(before, new, 7, seasonal=False).shifts[0] == pytest.approx(0.5, abs=0.05)


def test_p_values_of_batches_with_noise_of_their_own_are_uniform():
    rng = np.random.default_rng(0)
    levels = rng.gamma(2, size=20)  # statistics differ in the noise of the batch
    p_values = []
    for _ in range(150):
        values = rng.normal(size=(36, 20)) * np.sqrt(levels * 0.01 + 0.001)
        known = series(values, 0.001)
        p_values.append(deviation(known[:35], known[35:], 7, seasonal=True).p_values)
        p_values.append(deviation(known[:29], known[29:], 7, seasonal=True).p_values)
    below = np.mean(np.array(p_values) < 0.01)
    assert below == pytest.approx(0.01, abs=0.005)


def test_variances_of_statistics_apart_are_moderated_among_themselves():
    rng = np.random.default_rng(0)
    deviations = np.repeat([1.0, 0.05], [6, 20])
    known = series(rng.normal(size=(36, 26)) * deviations, 1e-3)
    own = np.arange(26) < 6
    together = deviation(known[:35], known[35:], 7, seasonal=True)
    apart = deviation(known[:35], known[35:], 7, seasonal=True, apart=[own])
    columns = known.only(own)
    alone = deviation(columns[:35], columns[35:], 7, seasonal=True)
    np.testing.assert_array_equal(apart.errors[:6], alone.errors)
    np.testing.assert_array_equal(apart.shifts[:6], alone.shifts)
    assert (apart.degrees[:6] > together.degrees[:6]).all()
    np.testing.assert_array_equal(apart.errors[6:], together.errors[6:])


def test_ratios_that_are_alike_are_pooled_and_others_keep_their_own():
    rng = np.random.default_rng(0)
    degrees = np.full(400, 6.0)
    ratios, found = moderated(2.0 * rng.chisquare(6, 400) / 6, degrees)
    assert ratios.std() < 0.1 * ratios.mean()
    assert ratios.mean() == pytest.approx(2.0, rel=0.1)
    assert (found > 50).all()
    # Scaled inverse chi-squares with 8 degrees of freedom.
    truth = 8.0 / rng.chisquare(8, 4000)
    ratios, found = moderated(truth * rng.chisquare(6, 4000) / 6, np.full(4000, 6.0))
    assert found[0] == pytest.approx(14, abs=2)
    assert np.corrcoef(np.log(ratios), np.log(truth))[0, 1] > 0.6
    ratios, found = moderated(np.zeros(2), np.zeros(2))
    assert (ratios == 1).all()
    assert np.isinf(found).all()


def test_variance_between_batches_is_estimated_from_their_steps():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(20, 12))
    found = Between.of_steps(series(noise, 1.0))
    assert not found.differs
    assert found.variances.max() < 0.5
    wide = Between.of_steps(series(3 * noise, 1.0))
    assert wide.differs
    np.testing.assert_allclose(wide.variances, 8.0, rtol=0.6)
    lasting = noise + 8.0 * (np.arange(20) >= 10)[:, None]
    assert not Between.of_steps(series(lasting, 1.0)).differs
    one = np.where(np.arange(12) == 3, 4.0, 1.0) * noise
    assert Between.of_steps(series(one, 1.0)).differs


def test_sums_are_those_of_loops_and_add_up():
    rng = np.random.default_rng(0)
    rows, labels, distances = rng.normal(size=(50, 3)), rng.integers(4, size=50), rng.random(50)
    rows[rng.random((50, 3)) < 0.1] = np.nan
    whole = BatchSums.of(rows, labels, distances, 4, by_cluster=True)
    parts = [
        BatchSums.of(rows[own], labels[own], distances[own], 4, by_cluster=True)
        for own in (slice(20), slice(20, None))
    ]
    for name, total in vars(parts[0] + parts[1]).items():
        np.testing.assert_allclose(total, getattr(whole, name))
    for j in range(4):
        own = rows[labels == j]
        assert whole.sizes[j] == len(own)
        np.testing.assert_allclose(whole.counts[1 + j], (~np.isnan(own)).sum(axis=0))
        np.testing.assert_allclose(whole.sums[1 + j], np.nansum(own, axis=0))
        np.testing.assert_allclose(whole.squares[1 + j], np.nansum(own**2, axis=0))
    np.testing.assert_allclose(whole.sums[0], np.nansum(rows, axis=0))
    assert whole.n_rows == 50
    assert whole.cost == pytest.approx(distances.mean())


def test_statistics_are_measured_in_standard_deviations_of_the_reference():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(5, 2, 1000), np.full(1000, 3.0)])
    labels, distances = np.zeros(1000, int), np.ones(1000)
    origin, units = units_of(BatchSums.of(rows, labels, distances, 1, by_cluster=False))
    moved = BatchSums.of(rows + 1.0, labels, distances, 1, by_cluster=False)
    values, variances = in_units(moved, origin, units)
    assert values[0] == pytest.approx(0.5, rel=0.05)
    assert values[1] > 1e5  # a column that was constant
    assert variances[0] == pytest.approx(1e-3)
    few = BatchSums.of(rows[:20], labels[:20], distances[:20], 1, by_cluster=False)
    assert np.isinf(in_units(few, origin, units)[1]).all()
