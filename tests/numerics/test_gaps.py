"""Gaps in density between groups, and merging of groups without one."""

import itertools

import numpy as np
import pytest
from sklearn.cluster import KMeans

from daskmm.numerics.gaps import DENSITY, EVIDENCE, PER_FEATURE, WIDEST, merged, scatter_of


def halves_of(labels, rng):
    orders = (rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels))
    return [(np.sort(order[::2]), np.sort(order[1::2])) for order in orders]


def pair(apart, n=400, p=3, seed=0):
    """Rows of two normal groups whose means are so far apart, and the groups."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    rows = rng.normal(size=(n, p))
    rows[:, 0] += apart * labels
    return rows, halves_of(labels, rng)


def overlap(rows, groups, weights=None):
    weights = np.ones(len(rows)) if weights is None else weights
    return merged(scatter_of(rows, weights, groups), groups).overlaps[2]


def naive_overlap(rows, groups):
    """The definition, in one feature, row by row."""
    places = []
    for learned, seen in ((0, 1), (1, 0)):
        low, high = (rows[halves[learned], 0].mean() for halves in groups)
        places.append([(rows[halves[seen], 0] - low) / (high - low) for halves in groups])
    near, far = (np.concatenate(each) for each in zip(*places, strict=True))
    low, high = (np.sort(each)[len(each) // 2] for each in (near, far))
    t = (np.concatenate([near, far]) - low) / (high - low)

    def count(center):
        return np.count_nonzero((t >= center - 0.1) & (t < center + 0.1))

    side = min(np.mean([count(c + d) for d in (-0.05, 0, 0.05)]) for c in (0, 1))
    between = min(count(c) for c in np.linspace(0.3, 0.7, 9))
    found = np.sqrt(2) * (np.sqrt(side) - np.sqrt(between))
    needed = EVIDENCE + PER_FEATURE / len(rows)
    ratio = (between + 1) / (side + 1) / DENSITY
    return WIDEST if found <= 0 else min(max(ratio, needed / found), WIDEST)


@pytest.mark.parametrize("seed", range(5))
def test_overlap_is_what_its_definition_says(seed):
    rows, groups = pair(2.0 + 0.5 * seed, n=301, p=1, seed=seed)
    assert overlap(rows, groups) == pytest.approx(naive_overlap(rows, groups))


@pytest.mark.parametrize("p", [1, 3, 10])
@pytest.mark.parametrize(("apart", "divided"), [(0, False), (2, False), (4.5, True), (8, True)])
def test_groups_that_are_apart_have_a_gap(p, apart, divided):
    assert (overlap(*pair(apart, 2000, p)) < 1) == divided


def test_overlap_falls_with_the_distance_and_stays_within_its_bounds():
    overlaps = [overlap(*pair(apart, 4000)) for apart in (0, 1, 3, 4, 5, 6, 10)]
    assert overlaps[2:] == sorted(overlaps[2:], reverse=True)
    assert max(overlaps) <= WIDEST
    assert min(overlaps) > 0


@pytest.mark.parametrize("p", [10, 20, 50])
def test_few_rows_in_many_dimensions_make_no_gap(p):
    """A direction that few rows determine divides those rows, but not the others."""
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(40, p))
        labels = (rows[:, 0] > 0).astype(int)
        found.append(overlap(rows, halves_of(labels, rng)))
    assert np.count_nonzero(np.array(found) < 1) <= 1


def test_weights_count_like_copies():
    rows, groups = pair(4, 600)
    copies = np.repeat(np.arange(len(rows)), 2)
    doubled = [tuple(np.flatnonzero(np.isin(copies, half)) for half in each) for each in groups]
    weighted = overlap(rows, groups, np.full(len(rows), 2.0))
    assert weighted == pytest.approx(overlap(rows[copies], doubled), rel=1e-3)


@pytest.mark.parametrize("n_cells", [9, 30])
def test_cells_of_two_clusters_are_merged_to_two_groups(n_cells):
    rng = np.random.default_rng(0)
    rows = np.vstack([rng.normal(size=(900, 2)), rng.normal((7, 0), size=(900, 2))])
    seeds = rows[rng.choice(len(rows), n_cells, replace=False)]
    labels = ((rows[:, None] - seeds) ** 2).sum(axis=2).argmin(axis=1)
    labels[np.isin(labels, np.flatnonzero(np.bincount(labels, minlength=n_cells) < 8))] = -1
    groups = halves_of(labels, rng)[1 if (labels == -1).any() else 0 :]
    found = merged(scatter_of(rows, np.ones(len(rows)), groups), groups)
    assert list(found.overlaps) == list(range(len(groups), 1, -1))
    assert [number for number, value in found.overlaps.items() if value < 1] == [2]
    sides = [np.unique(np.concatenate(halves) >= 900) for halves in found.groups]
    assert sorted(len(side) for side in sides) == [1, 1]


@pytest.mark.parametrize("n_cells", [15, 30])
def test_cells_of_a_cube_that_hardly_merge_are_one_cluster(n_cells):
    """Nearly all pairs have a gap, and the first unions overlap by less than 2."""
    rng = np.random.default_rng(5)
    rows = rng.uniform(size=(9000, 30))
    cells = KMeans(n_cells, n_init=1, max_iter=20, random_state=5).fit_predict(rows)
    groups = halves_of(cells, rng)
    found = merged(scatter_of(rows, np.ones(9000), groups), groups)
    assert 1.0 < found.overlaps[n_cells - 1] < 2.0
    assert len(found.groups) == 1


def test_groups_far_from_all_neighbours_are_merged_in_the_end():
    """Of many groups only neighbours are compared; here they fall into three that are not."""
    rng = np.random.default_rng(0)
    centers = [(1000 * i + 20 * j, 0.0) for i, j in itertools.product(range(3), range(10))]
    rows = np.repeat(centers, 30, axis=0) + rng.normal(size=(900, 2))
    groups = halves_of(np.repeat(np.arange(30), 30), rng)
    found = merged(scatter_of(rows, np.ones(900), groups), groups)
    assert len(found.groups) == 30
    assert list(found.overlaps) == list(range(30, 1, -1))


def test_covariance_within_groups_ignores_tails_and_differences_of_means():
    rows, groups = pair(50, 4000)
    rows[7] += 100
    within = scatter_of(rows, np.ones(len(rows)), groups).within
    np.testing.assert_allclose(within, np.eye(3), atol=0.1)


def test_a_feature_that_is_constant_changes_nothing():
    rows, groups = pair(6.0)
    constant = np.column_stack([rows, np.full(len(rows), 3.0)])
    assert overlap(constant, groups) == pytest.approx(overlap(rows, groups), rel=0.1)
