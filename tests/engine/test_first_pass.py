"""Samples of the first pass: uniform, and by distance where few rows carry most of the cost."""

import dask.array as da
import numpy as np
import pytest
from sklearn.cluster import KMeans as ScikitKMeans

from daskmm import KMeans, PowerKMeans
from daskmm.data.blocks import row_blocks
from daskmm.engine.first_pass import first_pass, row_uniforms, sample_size
from daskmm.engine.passes import Passes, weighted_passes
from daskmm.numerics.distortions.bregman import KullbackLeibler

N_ROWS, SIZE = 5_000, 400
HEAVY = np.random.default_rng(0).standard_t(1.3, size=(N_ROWS, 4))


def surveyed(X, weights=None, **options):
    passes = weighted_passes(X, weights)
    options = {"wanted": SIZE, "by_distance": True} | options
    return first_pass(passes, 3, False, 5, **options), passes.n_passes


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_drawn_as_the_definition_says(weighted):
    rng = np.random.default_rng(1)
    v = rng.integers(0, 4, N_ROWS).astype(float) if weighted else np.ones(N_ROWS)
    survey, n_passes = surveyed(HEAVY, v if weighted else None)
    assert n_passes == 2

    # Each row by itself, from the definition of priority sampling.
    mean = (v[:, None] * HEAVY).sum(axis=0) / v.sum()
    distances = ((HEAVY - mean) ** 2).sum(axis=1)
    rates = SIZE * (v / v.sum() + v * distances / (v * distances).sum())
    found = survey.sample.rows + survey.coordinates.mean
    drawn = abs(HEAVY[:, 0] - found[:, :1]).argmin(axis=1)
    np.testing.assert_allclose(HEAVY[drawn], found, rtol=1e-9, atol=1e-9)
    assert (np.diff(drawn) > 0).all()
    assert len(drawn) == SIZE
    bound = (v[drawn] / survey.sample.weights / rates[drawn]).max()
    np.testing.assert_allclose(
        survey.sample.weights, v[drawn] / np.minimum(1.0, rates[drawn] * bound), rtol=1e-9
    )
    assert 0 < np.count_nonzero(rates * bound >= 1) < SIZE / 2
    assert set(np.flatnonzero(rates * bound >= 1)) <= set(drawn)


def test_weighted_sums_are_unbiased():
    distances = (HEAVY**2).sum(axis=1)
    estimates = []
    for seed in range(40):
        survey = first_pass(
            Passes(row_blocks(HEAVY)), 3, False, seed, wanted=SIZE, by_distance=True
        )
        sample = survey.sample
        squares = ((sample.rows + survey.coordinates.mean) ** 2).sum(axis=1)
        estimates.append([sample.weights.sum(), sample.weights @ squares])
    ratios = np.array(estimates) / [N_ROWS, distances.sum()]
    assert (abs(ratios.mean(axis=0) - 1) < 4 * ratios.std(axis=0) / np.sqrt(40) + 1e-3).all()
    assert (ratios.std(axis=0) < [0.1, 0.02]).all()


@pytest.mark.parametrize("larger", [False, True])
def test_the_sample_does_not_depend_on_chunks(larger, monkeypatch):
    monkeypatch.setattr("daskmm.engine.first_pass.LARGER_SAMPLE_BYTES", 8 * 4 * 900)
    options = {"with_larger": larger}
    expected, _ = surveyed(HEAVY, **options)
    for chunks in (700, (1, 4000, 999), 50):
        survey, n_passes = surveyed(da.from_array(HEAVY, chunks=(chunks, -1)), **options)
        assert n_passes == 2
        for a, b in [
            (survey.sample, expected.sample),
            (survey.larger_sample, expected.larger_sample),
        ]:
            assert (a is None) == (b is None)
            if a is not None:
                # Means are merged block by block, and so rounded differently.
                np.testing.assert_allclose(a.rows, b.rows, rtol=1e-9, atol=1e-9)
                np.testing.assert_allclose(a.weights, b.weights, rtol=1e-9)
    if larger:
        assert len(expected.larger_sample.rows) == N_ROWS // 2
        inner = expected.coordinates.to_input(expected.sample.rows)
        assert {*np.round(inner[:, 0], 6)} <= {*np.round(expected.larger_sample.rows[:, 0], 6)}


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal(size=(N_ROWS, 2)),
        lambda rng: rng.normal(size=(N_ROWS, 4)) + 50 * rng.integers(3, size=(N_ROWS, 1)),
        lambda rng: rng.standard_t(5, size=(N_ROWS, 10)),
        lambda rng: rng.uniform(size=(N_ROWS, 1)),
        lambda rng: np.ones((N_ROWS, 3)),
    ],
    ids=["normal", "clusters", "t5", "uniform", "constant"],
)
def test_light_tails_are_sampled_uniformly_in_one_pass(draw):
    X = draw(np.random.default_rng(2))
    survey, n_passes = surveyed(X)
    plain, _ = surveyed(X, by_distance=False)
    assert n_passes == 1
    np.testing.assert_array_equal(survey.sample.rows, plain.sample.rows)
    assert (survey.sample.weights == 1).all()


def test_a_far_row_that_a_uniform_sample_missed_is_drawn():
    X = np.random.default_rng(3).normal(size=(N_ROWS, 4))
    plain, _ = surveyed(X)
    missed = 17
    assert not (plain.sample.rows + plain.coordinates.mean == X[missed]).all(axis=1).any()
    X[missed, 2] = 500.0
    survey, n_passes = surveyed(X)
    assert n_passes == 2
    (place,) = np.flatnonzero(survey.sample.rows[:, 2] > 400)
    assert survey.sample.weights[place] == 1.0


def test_other_distortions_and_holes():
    rng = np.random.default_rng(4)
    counts = np.ceil(rng.pareto(1.1, size=(N_ROWS, 4)))
    survey, n_passes = surveyed(counts, family=KullbackLeibler)
    assert n_passes == 2
    assert SIZE / 2 < len(survey.sample.rows) <= SIZE
    holes = np.where(rng.random(HEAVY.shape) < 0.1, np.nan, HEAVY)
    holes[:, 0] = HEAVY[:, 0]
    survey, n_passes = surveyed(holes, partial=True)
    assert n_passes == 2
    assert len(survey.sample.rows) == SIZE


def test_uniform_numbers_of_rows():
    numbers = row_uniforms((1, 2), np.arange(20_000))
    assert 0 < numbers.min() < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    np.testing.assert_array_equal(numbers[100:200], row_uniforms((1, 2), np.arange(100, 200)))
    assert (numbers != row_uniforms((1, 3), np.arange(20_000))).all()


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**63 - 1])
def test_integers_that_float64_does_not_hold_are_named(value):
    rows = np.ones((5, 2), dtype=np.int64)
    rows[2, 0] = 2**54
    surveyed(rows)
    rows[3, 1] = value
    with pytest.raises(ValueError, match=rf"contains {value}: .*row 3.*, feature 1\."):
        surveyed(rows)


@pytest.mark.parametrize(
    ("n_rows", "n_features", "n_clusters", "size"),
    [
        (1_000_000, 10, 10, 10_000),
        (1_000_000, 10, 60, 12_000),
        (1_000_000, 10, 120, 20_000),
        (1_000_000, 10, 1000, 50_000),
        (1_000_000, 10_000, 10, 838),
        (1_000_000, 10_000, 1000, 10_000),
        (300, 10, 10, 300),
        (20_000, 10, 10, 20_000),
        (20_001, 10, 10, 10_000),
    ],
)
def test_sample_sizes_follow_clusters_and_bytes_of_rows(n_rows, n_features, n_clusters, size):
    assert sample_size(n_rows, n_features, n_clusters) == size


@pytest.mark.parametrize("estimator", [KMeans, PowerKMeans])
def test_heavy_tails_cost_no_more_than_with_scikit_learn(estimator):
    X = np.random.default_rng(5).standard_t(1.3, size=(50_000, 6))
    best = ScikitKMeans(8, n_init=4, random_state=0).fit(X).inertia_
    model = estimator(8, random_state=0, sample_size=2_000).fit(X)
    assert model.inertia_ < 1.05 * best
