"""Division of rows into groups with gaps in density between them."""

import numpy as np
import pytest

from daskmm.auto.separation import separation


def ball(n, p, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, p))
    return rows * rng.uniform(size=(n, 1)) ** (1 / p) / np.linalg.norm(rows, axis=1, keepdims=True)


def test_overlaps_say_which_numbers_have_gaps():
    rng = np.random.default_rng(0)
    rows = 8 * np.eye(5)[rng.integers(4, size=1200)] + rng.normal(size=(1200, 5))
    found = separation(rows, np.ones(1200), 0)
    assert found.n_groups == 4
    assert list(found.overlaps) == list(range(2, len(found.overlaps) + 2))
    assert all((found.overlaps[number] < 1) == (number <= 4) for number in found.overlaps)


def test_the_same_seed_finds_the_same():
    rows = ball(600, 3, 0)
    assert separation(rows, np.ones(600), 5) == separation(rows, np.ones(600), 5)


@pytest.mark.in_turn("seed")
@pytest.mark.parametrize("seed", range(3))
def test_cells_of_a_ball_in_many_dimensions_are_no_groups(seed):
    """Rows between two of its cells belong to others, so that each pair has a gap."""
    rows = ball(4000, 20, seed)
    assert separation(rows, np.ones(4000), seed).n_groups == 1


def test_long_strips_beside_one_another_are_groups():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 2)) * [30, 1]
    rows[:, 1] += 10 * rng.integers(3, size=2000)
    assert separation(rows, np.ones(2000), 0).n_groups == 3


@pytest.mark.long
def test_a_small_group_beside_a_large_one_is_found_and_a_few_far_rows_are_not():
    rng = np.random.default_rng(0)
    large, small = rng.normal(size=(2000, 4)), rng.normal(size=(40, 4)) + 8
    assert separation(np.vstack([large, small]), np.ones(2040), 0).n_groups == 2
    assert separation(np.vstack([large, small[:5]]), np.ones(2005), 0).n_groups == 1


def test_equal_rows_are_one_group():
    rows = np.repeat([[0.0, 0.0], [52.0, 7.0], [30.0, 3.0]], 200, axis=0)
    assert separation(rows, np.ones(600), 0).n_groups == 3
