"""Splits and merges lead out of poor optima."""

import numpy as np
import pytest

from daskmm.mixture.em import sample_problem
from daskmm.mixture.split_merge import moves, replaced, splits
from daskmm.mixture.starts import labelled_components, starting_labels
from daskmm.numerics.gaussians import COVARIANCE_TYPES

TRUTH = np.repeat(np.arange(4), 100)


def groups(seed=0):
    rng = np.random.default_rng(seed)
    centers = np.array([[0.0, 0.0], [12.0, 0.0], [0.0, 12.0], [12.0, 12.0]])
    return centers[TRUTH] + rng.normal(size=(400, 2))


def log_likelihood(X, state):
    [step] = sample_problem(X, np.ones(len(X)), 1e-6, 0.0).steps([state])
    return -step.penalty * len(X)


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_the_best_split_divides_the_component_that_covers_two_groups(kind):
    X, ones = groups(), np.ones(400)
    state = labelled_components(X, ones, np.maximum(TRUTH, 1) - 1, 3, kind, 1e-6)
    best, *others = splits(X, ones, state, 1e-6, 3)
    assert best.component == 0
    after = replaced(state, [0], best.halves, state.shares[0])
    assert len(after.means) == 4
    assert after.shares.sum() == pytest.approx(1.0)
    if kind != "tied":  # the common covariance is learned by later steps
        gained = log_likelihood(X, after) - log_likelihood(X, state)
        assert gained == pytest.approx(best.gain, rel=0.2)
        assert all(other.gain < best.gain for other in others)


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_the_first_move_merges_two_parts_of_a_group_and_splits_two_groups(kind):
    X, ones = groups(), np.ones(400)
    labels = np.where(TRUTH < 2, 0, TRUTH - 1)  # two groups are one
    labels[(TRUTH == 3) & (X[:, 0] > 12)] = 3  # and one is two
    state = labelled_components(X, ones, labels, 4, kind, 1e-6)
    best, *_ = moves(X, ones, state, 1e-6, 4)
    assert len(best.means) == 4
    nearest = np.linalg.norm(best.means[:, None] - X.reshape(4, 100, 2).mean(axis=1), axis=2)
    assert nearest.min(axis=0).max() < 1.0


def test_fewer_than_three_components_have_no_moves():
    X, ones = groups(), np.ones(400)
    state = labelled_components(X, ones, TRUTH // 2, 2, "full", 1e-6)
    assert moves(X, ones, state, 1e-6, 4) == []


@pytest.mark.parametrize("method", ["kmeans", "k-means++", "random_from_data"])
def test_every_method_gives_a_label_to_each_row_and_depends_on_the_seed_alone(method):
    X, ones = groups(), np.ones(400)
    found = starting_labels(method, X, ones, 4, [1, 2, 3])
    again = starting_labels(method, X, ones, 4, [1, 2, 3])
    assert len(found) == 3
    for labels, same in zip(found, again, strict=True):
        np.testing.assert_array_equal(labels, same)
        assert set(labels) <= set(range(4))


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_labelled_components_of_many_rows_have_nearly_the_moments_of_their_rows(kind):
    X = groups()
    state = labelled_components(X, np.ones(400), TRUTH, 4, kind, 0.0)
    np.testing.assert_allclose(state.means, X.reshape(4, 100, 2).mean(axis=1))
    own = np.cov(X[:100].T, bias=True)
    expected = {"full": own, "diag": np.diag(own), "spherical": np.trace(own) / 2}
    if kind in expected:
        np.testing.assert_allclose(state.covariances[0], expected[kind], atol=0.05)
