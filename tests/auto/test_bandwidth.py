"""The bandwidth chosen without labels: its criterion, the path, what it finds and refuses."""

import math
import warnings
from dataclasses import replace
from functools import partial

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from _mixtures import separated
from _paths import bandwidth_path
from _support import CountingSource, counting_zarr, n_examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from daskmm import WeightedBlurringMeanShift, plot
from daskmm.auto.bandwidth import (
    GRID,
    BandwidthPath,
    classification_gain,
    follow_bandwidths,
    independent_features,
    preferred,
)
from daskmm.datasets import make_wbms_simulation1, make_wbms_toy
from daskmm.mean_shift.blurring import Blurring, Rows, blur, blur_rows


def numbers(make, *args, **parameters):
    X, y = make(*args, **parameters)
    return X.compute(scheduler="synchronous"), y.compute(scheduler="synchronous")


def standardised(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def assert_same_path(a, b, rtol=1e-9):
    np.testing.assert_allclose(a.bandwidths, b.bandwidths, rtol=1e-12)
    np.testing.assert_array_equal(a.n_clusters, b.n_clusters)
    for name in ("gain", "agreement", "feature_weights"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=rtol, atol=1e-9)
    assert (a.chosen, a.n_rows) == (b.chosen, b.n_rows)


@pytest.fixture(scope="module")
def toy():
    return numbers(make_wbms_toy, n_noise=6, random_state=0)


@pytest.fixture(scope="module")
def toy_path(toy):
    return bandwidth_path(toy[0], random_state=0)


# The criterion.


def naive_gain(rows, weights, labels, n_independent, resolved):
    """By its formula, one row and one feature at a time."""
    n, p = len(rows), len(rows[0])
    whole = sum(weights)
    clusters = sorted(set(labels))
    told = []
    for l in range(p):  # noqa: E741
        mean = sum(weights[i] * rows[i][l] for i in range(n)) / whole
        total = sum(weights[i] * (rows[i][l] - mean) ** 2 for i in range(n))
        if len({rows[i][l] for i in range(n)}) == 1:
            continue
        between = 0.0
        for j in clusters:
            mine = [i for i in range(n) if labels[i] == j]
            size = sum(weights[i] for i in mine)
            center = sum(weights[i] * rows[i][l] for i in mine) / size
            between += size * (center - mean) ** 2
        explained = 0.5 * math.log(1 / max(1 - between / total, 1e-3, 0.1 * (1 - resolved[l])))
        told.append(explained - (len(clusters) - 1) * math.log(n) / (2 * n))
    if not told:
        return 0.0
    shares = [sum(weights[i] for i in range(n) if labels[i] == j) / whole for j in clusters]
    return n_independent * sum(told) / len(told) + sum(s * math.log(s) for s in shares)


@settings(max_examples=n_examples(60), deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_gain_follows_its_formula(n, p, k, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-2, 3, size=(n, p)) + rng.choice([0.0, 0.25], size=p)
    weights = rng.uniform(0.5, 3, size=n)
    labels = rng.integers(k, size=n).astype(np.int32)
    resolved = rng.uniform(size=p)
    got = classification_gain(rows, weights, labels, 1.7, resolved)
    expected = naive_gain(rows.tolist(), weights.tolist(), labels.tolist(), 1.7, resolved)
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_gain_does_not_depend_on_scale_place_or_names():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=60).astype(np.int32)
    rows = rng.normal(size=(60, 4)) + 3 * labels[:, None]
    ones = np.ones(60)
    gain = classification_gain(rows, ones, labels, 2.0, np.ones(4))
    assert gain > 0.5
    assert classification_gain(1e3 * rows - 40, ones, labels, 2.0, np.ones(4)) == pytest.approx(
        gain
    )
    assert classification_gain(rows, ones, 2 - labels, 2.0, np.ones(4)) == pytest.approx(gain)
    assert classification_gain(rows, 7 * ones, labels, 2.0, np.ones(4)) == pytest.approx(gain)
    # A number of a cluster that has no rows is none.
    assert classification_gain(rows, ones, 2 * labels, 2.0, np.ones(4)) == pytest.approx(gain)
    assert classification_gain(rows, ones, np.zeros(60, np.int32), 2.0, np.ones(4)) == 0


def test_noise_cut_into_clusters_has_a_negative_gain():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(400, 6))
    halves = (rows[:, 0] > 0).astype(np.int32)
    worth = independent_features(rows, np.ones(400))
    assert classification_gain(rows, np.ones(400), halves, worth, np.ones(6)) < 0


def test_independent_features_are_counted_by_eigenvalues():
    rng = np.random.default_rng(2)
    for shape in ((50, 7), (20, 60)):
        rows = rng.normal(size=shape) @ rng.normal(size=(shape[1], shape[1]))
        values = np.linalg.eigvalsh(np.corrcoef(rows.T))
        expected = values.sum() ** 2 / np.square(values).sum()
        assert independent_features(rows, np.ones(shape[0])) == pytest.approx(expected)


def test_a_feature_that_is_repeated_counts_once():
    rng = np.random.default_rng(3)
    feature = rng.normal(size=(100, 1))
    ones = np.ones(100)
    assert independent_features(feature @ [[1.0, -2.0, 5.0]], ones) == pytest.approx(1)
    assert independent_features(np.hstack([feature, np.full((100, 2), 3.0)]), ones) == 1
    assert independent_features(np.ones((100, 3)), ones) == 0
    # Weights are multiplicities.
    rows, copies = rng.normal(size=(40, 3)), rng.integers(1, 4, size=40)
    assert independent_features(rows, copies.astype(float)) == pytest.approx(
        independent_features(np.repeat(rows, copies, axis=0), np.ones(copies.sum()))
    )


@pytest.mark.parametrize(
    ("n_clusters", "gain", "n_rows", "expected"),
    [
        # The middle of the run, not of all equal numbers; the later one of two.
        ([9, 3, 3, 3, 3, 2, 3], [0, 1.97, 2, 1.98, 1.98, 1.5, 0], 100, 3),
        ([9, 3, 3, 3, 2], [0, 1.08, 1.09, 1.1, 0.9], 100, 2),
        # Other clusters of the same number, which gain less, are not part of the run.
        ([16, 15, 15, 15, 14], [1.15, 1.2, -0.56, -0.77, 0.84], 500, 1),
        # Too many clusters do not count, a tenth of the rows or their root.
        ([11, 10, 2], [5, 3, 1], 100, 1),
        ([6, 2, 2], [5, 1, 1], 25, 2),
        ([101, 90, 2], [5, 3, 1], 1000, 1),
        ([50, 40], [5, 6], 100, 1),
        # One cluster, worth nothing, is better than clusters worth less.
        ([9, 4, 1, 1, 1], [-2, -0.1, 0, 0, 0], 100, 3),
    ],
)
def test_the_rule_prefers_the_expected_bandwidth(n_clusters, gain, n_rows, expected):
    assert preferred(np.array(n_clusters), np.array(gain, float), n_rows) == expected


# The path.


def test_the_path_of_the_toy_finds_its_two_clusters(toy, toy_path):
    X, y = toy
    path = toy_path
    m = len(GRID)
    np.testing.assert_allclose(path.bandwidths, GRID)
    assert path.n_clusters.shape == path.gain.shape == (m,)
    assert path.agreement.shape == (m - 1,)
    assert path.feature_weights.shape == (m, X.shape[1])
    np.testing.assert_allclose(path.feature_weights.sum(axis=1), 1)
    assert path.n_rows == len(X)
    assert path.bandwidth == path.bandwidths[path.chosen]
    first, last = path.plateau
    assert first < path.chosen < last
    assert set(path.n_clusters[first : last + 1]) == {2}
    assert path.feature_weights[path.chosen, :2].sum() > 0.95
    # Each entry is a fit of its own.
    rows = standardised(X)
    fits = [blur_rows(rows, np.ones(len(X)), Blurring(h, 0.1)) for h in path.bandwidths[-9:]]
    assert [len(fit.modes) for fit in fits] == path.n_clusters[-9:].tolist()
    assert adjusted_rand_score(y, fits[path.chosen - m + 9].labels) > 0.98
    for i in range(8):
        expected = adjusted_rand_score(fits[i].labels, fits[i + 1].labels)
        assert path.agreement[m - 9 + i] == pytest.approx(expected)


@pytest.mark.long
def test_choice_for_a_sample_is_that_of_the_path(toy, toy_path):
    X, _ = toy
    chosen = follow_bandwidths(standardised(X), np.ones(len(X)), 0.1, "auto", 0).path.bandwidth
    assert chosen == pytest.approx(toy_path.bandwidth)


def ragged_chunks(X):
    return da.from_array(X, chunks=((3, 0, 120, len(X) - 123), (1, X.shape[1] - 1)))


def zarr_array(X):
    return counting_zarr(X, (70, 3))[0]


@pytest.mark.long
@pytest.mark.parametrize("read", [ragged_chunks, zarr_array, pd.DataFrame])
def test_any_input_has_the_same_path(toy, toy_path, read):
    assert_same_path(bandwidth_path(read(toy[0]), random_state=0), toy_path)


def test_a_sample_is_drawn_by_random_state_alone():
    X, _ = numbers(make_wbms_simulation1, 3000, 5, random_state=0)
    few = {"bandwidths": GRID[10::3], "sample_size": 150}
    path = bandwidth_path(X, random_state=1, **few)
    assert path.n_rows == 150
    chunked = da.from_array(X, chunks=((1, 1499, 1500), -1))
    assert_same_path(bandwidth_path(chunked, random_state=1, **few), path)
    other = bandwidth_path(X, random_state=2, **few)
    assert not np.allclose(other.feature_weights, path.feature_weights, rtol=1e-6)
    # What the sample says holds for all rows.
    fit = blur_rows(standardised(X), np.ones(len(X)), Blurring(path.bandwidth, 0.1))
    assert len(fit.modes) == path.n_clusters[path.chosen] == 5


def test_blocks_are_loaded_once(toy):
    source = CountingSource(toy[0])
    bandwidth_path(source.as_dask((50, -1)), bandwidths=[0.05, 0.1], random_state=0)
    assert set(source.reads.values()) == {1}


@pytest.mark.long
def test_the_path_does_not_depend_on_units(toy, toy_path, monkeypatch):
    X = toy[0]
    in_metres = bandwidth_path(1e3 * X + 5, random_state=0)
    assert_same_path(in_metres, toy_path, rtol=1e-6)
    # Neither when features keep their scales: the grid and the penalty follow the variance.
    grid = GRID[12::3]
    small = bandwidth_path(X, standardize=False, bandwidths=grid, random_state=0)
    # The tolerance of merging is a distance.
    monkeypatch.setattr("daskmm.auto.bandwidth.Blurring", partial(Blurring, merge_tol=1e-5))
    large = bandwidth_path(10 * X, standardize=False, bandwidths=100 * grid, random_state=0)
    np.testing.assert_array_equal(small.n_clusters, large.n_clusters)
    np.testing.assert_allclose(small.feature_weights, large.feature_weights, atol=1e-6)
    whole = bandwidth_path(X, standardize=False, random_state=0)
    np.testing.assert_allclose(whole.bandwidths, GRID * X.var(axis=0).mean())


def test_weights_count_like_copies(toy):
    X, _ = toy
    copies = np.random.default_rng(0).integers(1, 3, size=len(X))
    some = {"bandwidths": [0.1, 0.11, 0.3], "random_state": 0, "convention": "paper"}
    weighted = bandwidth_path(X, sample_weight=copies, **some)
    repeated = bandwidth_path(np.repeat(X, copies, axis=0), **some)
    np.testing.assert_array_equal(weighted.n_clusters, repeated.n_clusters)
    np.testing.assert_allclose(weighted.feature_weights, repeated.feature_weights, atol=1e-6)


def test_grid_is_sorted(toy):
    path = bandwidth_path(toy[0], bandwidths=[0.1, 0.05, 0.1], random_state=0)
    np.testing.assert_array_equal(path.bandwidths, [0.05, 0.1])
    assert path.agreement.shape == (1,)


def test_an_infinite_penalty_keeps_weights_equal(toy):
    path = bandwidth_path(toy[0][:, :2], bandwidths=[0.1, 0.2], lam=np.inf, random_state=0)
    np.testing.assert_allclose(path.feature_weights, 0.5)


def test_weights_of_a_larger_bandwidth_are_tried_where_equal_ones_stall():
    X, _, _ = separated("10 clusters, 1 % outliers", 1000)
    rows = standardised(X)
    small, large = 0.0063, 0.0155
    assert len(blur_rows(rows, np.ones(1000), Blurring(small, 0.1, max_iter=100)).modes) > 100
    path = bandwidth_path(X, bandwidths=[small, large], random_state=0)
    np.testing.assert_array_equal(path.n_clusters, [10, 10])
    assert path.feature_weights[0, :4].sum() > 0.99


@pytest.mark.long
def test_a_fit_to_more_rows_starts_from_the_weights_of_the_path_and_to_as_many_repeats_it():
    X, _, _ = separated("3 clusters in 2 of 4 features", 1100)
    rows = standardised(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        more, same = (follow_bandwidths(rows[:n], np.ones(n), 0.1, "auto", 0) for n in (1100, 300))
        paper = follow_bandwidths(rows, np.ones(1100), 0.1, "paper", 0)
    np.testing.assert_array_equal(more.first_weights, more.path.feature_weights[more.path.chosen])
    assert paper.first_weights is None
    first = Rows.of(rows[:300], np.ones(300), 1e-6)
    first = replace(first, feature_weights=same.first_weights)
    found = blur(first, Blurring(same.path.bandwidth, 0.1))
    expected = same.path.feature_weights[same.path.chosen]
    np.testing.assert_allclose(found.feature_weights, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("cluster_weights", "agrees"),
    [
        ([500, 500], True),
        ([400, 300, 200, 100], True),
        ([1000], True),
        ([250, 250, 200, 200, 100], False),
        # Clusters that a sample of 1,000 rows may not know do not count, unless they are many.
        ([50_000, 50_000, 90, 80, 70], True),
        ([2] * 9000, False),
        ([9000, 9000] + [2] * 2000, False),
    ],
)
def test_a_fit_agrees_with_its_path_from_half_to_twice_the_number(cluster_weights, agrees):
    two = BandwidthPath(
        np.ones(1), np.array([2]), np.ones(1), np.empty(0), np.full((1, 2), 0.5), 0, 1000
    )
    assert two.agrees_with(np.array(cluster_weights, float)) == agrees


# What it says when there is nothing to be found.


@pytest.mark.parametrize("p", [3, 20])
@pytest.mark.long
def test_noise_has_no_clusters(p):
    X = np.random.default_rng(0).normal(size=(200, p))
    with pytest.warns(UserWarning, match="worth more than one cluster.*bandwidth_path"):
        path = bandwidth_path(X, random_state=0)
    assert path.n_clusters[path.chosen] == 1
    with pytest.warns(UserWarning, match="worth more than one cluster"):
        assert follow_bandwidths(X, np.ones(200), 0.1, "auto", 0).path.bandwidth > 0


@pytest.mark.parametrize("X", [np.ones((30, 3)), np.zeros((1, 2))])
def test_rows_that_do_not_differ_are_one_cluster_with_a_warning(X):
    with pytest.warns(UserWarning, match="worth more than one cluster"):
        path = bandwidth_path(X, random_state=0)
    assert set(path.n_clusters) == {1}
    assert set(path.gain) == {0.0}
    assert path.bandwidth > 0


def test_bandwidths_that_are_far_too_small_are_warned_of():
    X = np.random.default_rng(0).normal(size=(100, 3))
    with pytest.warns(UserWarning, match="all bandwidths give too many clusters for 100 rows"):
        path = bandwidth_path(X, bandwidths=[1e-6, 1e-5], random_state=0)
    assert path.chosen == 1


def test_a_number_found_at_one_bandwidth_only_is_warned_of(toy):
    with pytest.warns(UserWarning, match="2 clusters are found at one bandwidth only"):
        bandwidth_path(toy[0], bandwidths=[1e-3, 0.1, 50.0], random_state=0)


# What it finds.


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 4, 6])
def test_a_flag_that_two_clusters_equal_does_not_hide_the_third(seed):
    rng = np.random.default_rng(seed)
    blobs = np.concatenate([rng.normal(size=(150, 2)) + 6 * i for i in range(3)])
    X = np.column_stack([blobs, rng.normal(size=450), blobs[:, 0] > 3])
    path = bandwidth_path(X, random_state=0)
    assert path.n_clusters[path.chosen] == 3


def judged(make, relevant, *args, random_state):
    """ARI, number of clusters, and weight of the relevant features of a default model."""
    X, y = numbers(make, *args, random_state=random_state)
    rows, ones = standardised(X), np.ones(len(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        h = follow_bandwidths(rows, ones, 0.1, "auto", 0).path.bandwidth
    fit = blur_rows(rows, ones, Blurring(h, 0.1))
    score = adjusted_rand_score(y, fit.labels)
    return score, len(fit.modes), fit.feature_weights[:relevant].sum()


SIMULATED = {
    "toy": (make_wbms_toy, 2, 2),
    "5 clusters": (make_wbms_simulation1, 10, 5, 250, 5),
    "10 clusters": (make_wbms_simulation1, 10, 10, 500, 10),
    "5 of 20 features": (make_wbms_simulation1, 5, 10, 200, 10, 5, 15),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SIMULATED)
def test_clusters_and_features_are_found(name):
    make, relevant, k, *args = SIMULATED[name]
    score, found, weight = judged(make, relevant, *args, random_state=0)
    assert score > 0.95
    assert found == k
    assert weight > 0.95


@pytest.mark.long
@pytest.mark.parametrize("name", SIMULATED)
def test_three_draws_of_each_simulation_are_clustered_right(name):
    make, relevant, k, *args = SIMULATED[name]
    results = [judged(make, relevant, *args, random_state=seed) for seed in range(100, 103)]
    scores, found, weights = map(np.array, zip(*results, strict=True))
    assert scores.mean() >= (0.98 if name == "toy" else 0.95)
    assert (found == k).mean() >= 0.8
    assert weights.min() >= 0.95


@pytest.mark.in_turn("n_noise")
@pytest.mark.parametrize("n_noise", [3, 80])
def test_the_path_is_drawn(tmp_path, n_noise):
    X, _ = numbers(make_wbms_simulation1, 100, 5, 10, n_noise, random_state=0)
    path = bandwidth_path(X, bandwidths=GRID[8::3], random_state=0)
    figure = plot.bandwidth_path(path)
    figure.savefig(tmp_path / "path.png")
    axes = figure.axes
    np.testing.assert_array_equal(axes[0].lines[0].get_ydata(), path.n_clusters)
    np.testing.assert_array_equal(axes[1].lines[0].get_ydata(), path.gain)
    assert len(axes[2].lines) == min(10 + n_noise, 60) + 1
    assert ("not drawn" in axes[2].get_ylabel()) == (n_noise > 50)
    assert f"{path.bandwidth:.3g}: {path.n_clusters[path.chosen]} clusters" in axes[0].get_title()


def test_a_path_is_printed_as_its_choice():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(100, 2)) + 20 * i for i in range(3)])
    path = WeightedBlurringMeanShift(random_state=0).fit(rows).bandwidth_path_
    assert repr(path) == (
        f"<BandwidthPath: h = {path.bandwidth:.3g} of {len(path.bandwidths)} bandwidths, where 300 "
        "rows are in 3 clusters>"
    )
