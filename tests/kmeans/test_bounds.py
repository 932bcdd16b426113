"""Hard steps that leave rows with their nearest centre give the bits of those that compare all."""

from dataclasses import replace

import numpy as np
import pytest
from _naive import exact_squared_distances
from scipy.spatial.distance import cdist

from daskmm import KMeans
from daskmm.compiled import dispatch, layout, library
from daskmm.compiled.bounds import update_nearest
from daskmm.compiled.dispatch import PreparedCenters
from daskmm.data.blocks import Block, positions
from daskmm.engine.passes import weighted_passes
from daskmm.kmeans import bounds
from daskmm.kmeans.assignment import labels_of
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import (
    CentersProblem,
    PowerUpdate,
    coincident_centers,
    sample_problem,
)
from daskmm.numerics.rows import Coordinates

INPUTS = [
    *range(8),
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 200)),
]


def odd_rows(seed):
    """Rows with ties, duplicates, an offset, or far-off ones, in either precision."""
    rng = np.random.default_rng(seed)
    k, p = int(rng.integers(bounds.LEAST_CLUSTERS, 300)), int(rng.integers(1, 9))
    n = int(rng.integers(16 * k, 20 * k))
    kind = seed % 4
    if kind == 0:  # a lattice: most distances are tied
        X = rng.integers(-4, 5, size=(n, p)).astype(float)
    elif kind == 1:  # clusters well apart
        X = 30.0 * rng.normal(size=(k, p))[rng.integers(k, size=n)] + rng.normal(size=(n, p))
    elif kind == 2:
        X = rng.standard_t(2, size=(n, p))
    else:
        X = rng.normal(size=(n // 4, p))[rng.integers(n // 4, size=n)]
    X = (X + rng.choice([0.0, 100.0, 1e4])).astype(rng.choice(["f4", "f8"]))
    weights = None if rng.random() < 0.5 else rng.integers(0, 3, n).astype(float)
    return X, weights, X[rng.integers(n, size=k)].astype(float)  # some of them twice


def table(X, weights=None, scale=None):
    scale = np.ones(X.shape[1]) if scale is None else scale
    coordinates = Coordinates(X.mean(axis=0, dtype=float), scale)
    total = float(len(X) if weights is None else weights.sum())
    return CentersProblem(weighted_passes(X, weights), coordinates, total, PowerUpdate(), 1.0)


def searched(problem):
    """Numbers of rows that the latest step of each start compared with all centres."""
    return [sum(start.bounds.searched) for _, start in problem._bounds._starts if start.bounds]


def steps_of(problem, start, n_steps):
    state, found = CenterState(problem.coordinates.to_model(start), -np.inf), []
    for _ in range(n_steps):
        (step,) = problem.steps([state])
        found.append((step, searched(problem)))
        state = step.state
    return found


@pytest.mark.in_turn("seed")
@pytest.mark.parametrize("seed", INPUTS)
def test_steps_with_bounds_have_the_bits_of_steps_without(seed, monkeypatch):
    X, weights, start = odd_rows(seed)
    scale = None if seed % 3 else np.random.default_rng(seed).uniform(0.5, 2.0, X.shape[1])
    found = steps_of(table(X, weights, scale), start, 8)
    monkeypatch.setattr(bounds, "LEAST_CLUSTERS", 10**9)
    expected = steps_of(table(X, weights, scale), start, 8)
    assert not any(number for _, number in expected)
    for (a, _), (b, _) in zip(found, expected, strict=True):
        assert (a.objective, a.inertia, a.shift) == (b.objective, b.inertia, b.shift)
        np.testing.assert_array_equal(a.cluster_weights, b.cluster_weights)
        np.testing.assert_array_equal(a.state.centers, b.state.centers)


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i1"])
def test_rows_that_are_copied_in_parts_have_the_same_bits(kind, monkeypatch):
    monkeypatch.setattr(layout, "TILE_BYTES", 1 << 16)
    rng = np.random.default_rng(0)
    X, centers = apart(n=100_000)
    X = np.asfortranarray(X.astype(kind))
    weights = rng.random(len(X))
    problem = table(X, weights)
    calls, call = [], library.call
    monkeypatch.setattr(
        library, "call", lambda name, **with_: calls.append(name) or call(name, **with_)
    )
    found = steps_of(problem, centers + 0.5, 4)
    assert calls.count("known_sums") > 4 * len(problem.passes.blocks.parts)
    monkeypatch.setattr(bounds, "LEAST_CLUSTERS", 10**9)
    expected = steps_of(table(X, weights), centers + 0.5, 4)
    for (a, _), (b, _) in zip(found, expected, strict=True):
        assert (a.objective, a.inertia, a.shift) == (b.objective, b.inertia, b.shift)
        np.testing.assert_array_equal(a.state.centers, b.state.centers)


@pytest.mark.in_turn("seed")
@pytest.mark.parametrize("seed", range(4))
def test_nearest_centres_are_those_of_the_definition(seed):
    X, _, start = odd_rows(seed)
    coordinates = Coordinates(X.mean(axis=0, dtype=float), np.ones(X.shape[1]))
    rng = np.random.default_rng(seed)
    rows, before = X[:80], coordinates.to_model(start)
    labels, lower, upper = np.zeros(len(rows), np.int32), np.zeros(len(rows)), np.zeros(len(rows))
    known = labels, lower, upper
    assert update_nearest(rows, coordinates, PreparedCenters(before), None, *known) == len(rows)
    for scale in (0.0, 1e-3, 1.0):
        # Some centres move, some onto others.
        moving = rng.random(len(before)) < 0.1
        after = before + scale * moving[:, None] * rng.normal(size=before.shape)
        after[rng.integers(len(after), size=3)] = after[0]
        moved = bounds.moves(before, after)
        update_nearest(rows, coordinates, PreparedCenters(after), moved, *known)
        distances = exact_squared_distances(coordinates.to_model(rows), after, None)
        smallest = np.array([min(row) for row in distances])
        of_label = np.array([row[j] for row, j in zip(distances, labels, strict=True)])
        np.testing.assert_allclose(of_label, smallest, rtol=1e-13, atol=0)
        others = [
            min(d for j, d in enumerate(row) if j != own)
            for row, own in zip(distances, labels, strict=True)
        ]
        assert (lower <= np.sqrt(others) * (1 + 1e-12)).all()
        assert (upper >= np.sqrt(of_label) * (1 - 1e-12)).all()
        before = after


def test_lists_hold_the_nearest_centres():
    rng = np.random.default_rng(0)
    centers = np.concatenate([rng.normal(size=(300, 5)), 1e3 * rng.normal(size=(4, 5))])
    centers[7] = centers[3]
    found = bounds.moves(centers, centers)
    for own, (around, apart) in enumerate(zip(found.around, found.apart, strict=True)):
        exact = np.sqrt(np.square(centers - centers[own]).sum(axis=1))
        exact[own] = np.inf
        listed = around[around >= 0]
        assert len(set(listed)) == len(listed) > 0
        np.testing.assert_allclose(apart[: len(listed)], exact[listed], rtol=1e-6, atol=1e-6)
        assert (np.diff(apart) >= 0).all()
        others = np.setdiff1d(np.arange(len(centers)), listed)
        assert (exact[others] >= apart[len(listed) :].max() * (1 - 1e-9)).all()


def test_a_full_list_of_coincident_centres_bounds_all_others_by_0():
    # Their products with one another are rounded to either side of 0.
    centers = np.tile(1e4 + np.random.default_rng(0).normal(size=(2, 7)), (150, 1))
    found = bounds.moves(centers, centers)
    assert (centers[found.around] == centers[:, None]).all()
    assert (found.apart <= 1e-3 * np.linalg.norm(centers[0] - centers[1])).all()


def test_two_centres_in_one_cluster_make_few_rows_compare_all_centres():
    X, centers = apart()
    problem = table(X)
    start = centers.copy()
    start[:100] = centers[100:200] + 0.2  # two centres in each of a hundred clusters
    counts = [number for _, number in steps_of(problem, start, 3)]
    assert all(number[0] < 0.1 * len(X) for number in counts[1:])


def apart(n=6000, p=6, k=300, seed=0):
    rng = np.random.default_rng(seed)
    centers = 30.0 * rng.normal(size=(k, p))
    X = centers[rng.integers(k, size=n)] + rng.normal(size=(n, p))
    return X.astype(np.float32), centers


def test_rows_of_clusters_that_are_apart_are_not_searched_again():
    X, centers = apart()
    counts = [number for _, number in steps_of(table(X), centers + 0.5, 4)]
    assert counts[0] == [len(X)]
    assert all(number[0] < 0.01 * len(X) for number in counts[1:])


def test_bounds_that_exclude_few_centres_are_dropped_for_some_steps():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 12))
    problem = table(X)
    found = [bool(number) for _, number in steps_of(problem, X[:300], 9)]
    # A step that fills them and one that tests them, then pauses of 1, 2, 4, … steps.
    assert found[:5] == [True, False, False, True, False]


def test_what_has_not_changed_is_not_computed_again(monkeypatch):
    X, centers = apart()
    start = centers.copy()
    start[:9] = centers[9:18] + 0.2
    computed, compute = [], dispatch.known_sums

    def counted(*arguments):
        *_, moved, changed, before = arguments
        computed.append((moved.mean(), 1.0 if before is None else changed.mean()))
        return compute(*arguments)

    monkeypatch.setattr(dispatch, "known_sums", counted)
    steps_of(table(X), start, 6)
    assert computed[0] == (1.0, 1.0)
    assert max(computed[-1]) < 0.1


@pytest.mark.parametrize("way", [0.0, 1e-12, 0.1, 5.0])
def test_labels_near_the_last_centres_are_those_without_bounds(way):
    X, centers = apart()
    problem = table(X)
    state = CenterState(problem.coordinates.to_model(centers + 0.5), -np.inf)
    for _ in range(3):
        last = state
        (step,) = problem.steps([last])
        state = step.state
        known = problem.bounds_at(last)
        moved = last.centers + way * np.random.default_rng(0).normal(size=centers.shape)
        asked, blocks = replace(last, centers=moved), problem.passes.blocks
        for place, rows in zip(positions(blocks.layout), blocks.parts, strict=True):
            block = Block(rows, position=place)
            found = known.labels_of(block, problem.coordinates, asked)
            expected = labels_of(block, problem.coordinates, asked)
            np.testing.assert_array_equal(found, expected)


def test_starts_keep_their_own_bounds():
    X, centers = apart()
    problem = table(np.tile(X, 4))
    starts = [
        CenterState(problem.coordinates.to_model(np.tile(c, 4)), -np.inf)
        for c in (centers + 0.5, centers - 0.5)
    ]
    first = problem.steps(starts)
    problem.steps([first[1].state, first[0].state])
    assert len(searched(problem)) == 2
    assert max(searched(problem)) < 0.01 * len(X)


def test_memory_of_bounds_is_at_most_that_of_the_rows():
    X, centers = apart()
    problem = table(X.astype(float))  # 48 bytes per row
    states = [CenterState(problem.coordinates.to_model(centers + c), -np.inf) for c in range(3)]
    problem.steps(states)
    assert not searched(problem)
    problem.steps(states[:2])
    assert len(searched(problem)) == 2


def test_fits_are_the_same_without_bounds(monkeypatch):
    X, _ = apart(n=5000, p=4)
    found = KMeans(300, n_init=2, standardize=False, random_state=0).fit(X)
    monkeypatch.setattr(bounds, "LEAST_CLUSTERS", 10**9)
    expected = KMeans(300, n_init=2, standardize=False, random_state=0).fit(X)
    assert found.inertia_ == expected.inertia_
    np.testing.assert_array_equal(found.labels_, expected.labels_)


@pytest.mark.parametrize("seed", range(4))
def test_labels_of_a_fit_are_those_of_predict_though_few_rows_are_searched_again(seed, monkeypatch):
    X, weights, start = odd_rows(seed)
    found = []

    def counted(block, *arguments):
        found.append(len(block.rows))
        return labels_of(block, *arguments)

    monkeypatch.setattr(bounds, "labels_of", counted)
    model = KMeans(len(start), init=start, standardize=False).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(model.labels_, model.predict(X))
    if seed == 1:  # clusters well apart
        assert sum(found) < 0.1 * len(X)


@pytest.mark.parametrize("gap", [0.0, 1e-9, 1.0])
def test_bounds_tell_whether_centres_coincide(gap):
    start = 10.0 * np.random.default_rng(0).normal(size=(300, 4))
    start[1] = start[0] + gap
    X = np.repeat(start, 20, axis=0)
    problem = table(X)
    state = CenterState(problem.coordinates.to_model(start), -np.inf)
    problem.steps([replace(state, centers=state.centers + 1e-3)])
    # The second step knows what is around each centre.
    problem._bounds._starts = [(state.centers, own) for _, own in problem._bounds._starts]
    problem.sums([state])
    (known,) = problem._bounds.present(1)
    separation = known.separation
    nearest = exact_squared_distances(state.centers, state.centers)
    np.fill_diagonal(nearest, np.inf)
    assert separation <= nearest.min() * (1 + 1e-12)
    assert separation == pytest.approx(nearest.min(), rel=1e-6, abs=1e-9)
    expected = coincident_centers(state, 1.0)
    assert coincident_centers(state, 1.0, separation) == expected == (gap < 1e-4)


@pytest.mark.parametrize("relaxation", [1.0, 1.5])
def test_last_labels_are_the_nearest_centres_of_the_step_that_led_to_a_state(relaxation):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9000, 12)).astype("f4")
    problem = sample_problem(X, np.ones(len(X)), PowerUpdate())
    before = CenterState(X[:300].astype(float), -np.inf, relaxation=relaxation)
    assert problem.last_labels(before) is None
    (step,) = problem.steps([before])
    expected = cdist(X.astype(float), before.centers).argmin(axis=1)
    np.testing.assert_array_equal(problem.last_labels(step.state), expected)
    assert problem.last_labels(before) is None
