"""Over-relaxed steps that compare rows with the centres near them only."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from daskmm import KMeans
from daskmm.compiled import library
from daskmm.compiled.dispatch import PreparedCenters
from daskmm.compiled.labels import nearest_centers, nearest_listed
from daskmm.data.blocks import row_blocks
from daskmm.engine.passes import Passes, weighted_passes
from daskmm.kmeans import bounds
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, PowerUpdate
from daskmm.numerics.rows import Coordinates

pytestmark = pytest.mark.skipif(not library.available(), reason="needs the compiled loops")

K = 300


def overlapping(n, p, dtype, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(K, p))
    return (centers[rng.integers(K, size=n)] + rng.normal(size=(n, p))).astype(dtype)


def squares(X, centers):
    X = X.astype(float)
    return np.square(X[:, None] - centers).sum(axis=2)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("p", [5, 80], ids=["all distances", "partial distances"])
def test_lists_hold_the_nearest_centres(p, dtype):
    X = overlapping(700, p, dtype)
    centers = X[:K].astype(float)
    centers[7] = centers[3]
    identity = Coordinates.identity(p)
    labels, lists = np.empty(len(X), np.int32), np.empty((len(X), 6), np.int32)
    assert nearest_centers(X, identity, PreparedCenters(centers), labels, lists=lists)
    distances = squares(X, centers)
    np.testing.assert_array_equal(labels, distances.argmin(axis=1))
    assert (lists == labels[:, None]).any(axis=1).all()
    listed = np.sort(np.take_along_axis(distances, lists, axis=1), axis=1)
    nearest = np.sort(distances, axis=1)[:, :6]
    if p == 5:
        np.testing.assert_allclose(listed, nearest, rtol=1e-4, atol=1e-4)
    else:  # those that partial distances exclude are not listed
        np.testing.assert_allclose(listed[:, 0], nearest[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_nearest_listed_centre_is_that_of_the_definition(dtype):
    rng = np.random.default_rng(0)
    X = overlapping(500, 9, dtype)
    centers, lists = X[:K].astype(float), rng.integers(K, size=(500, 7)).astype(np.int32)
    scale = rng.uniform(0.5, 2.0, 9)
    labels = lists[:, 3].copy()
    coordinates = Coordinates(np.zeros(9), scale)
    nearest_listed(X, coordinates, PreparedCenters(centers / scale), labels, lists)
    listed = np.take_along_axis(squares(X / scale, centers / scale), lists, axis=1)
    expected = lists[np.arange(500), listed.argmin(axis=1)]
    np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize("p", [6, 70])
def test_costs_of_near_steps_do_not_rise(p):
    X = overlapping(16 * K, p, "f4" if p == 70 else "f8")
    coordinates = Coordinates(X.mean(axis=0, dtype=float), np.ones(p))
    problem = CentersProblem(
        weighted_passes(X, None), coordinates, float(len(X)), PowerUpdate(), 1.0
    )
    start = problem.start(coordinates.to_model(X[:K].astype(float)), -np.inf)
    state, costs, near = replace(start, relaxation=1.5), [], []
    for _ in range(9):
        (step,) = problem.steps([state])
        costs.append(step.inertia)
        near.append(problem._bounds._starts[0][1].bounds.near)
        state = step.state
    assert near == [False, True, False, True, True, True, False, True, True]
    assert (np.diff(costs) < 0).all()


def test_blocks_whose_distances_overflow_are_compared_with_all_centres(monkeypatch):
    X = overlapping(16 * K, 4, "f8")
    monkeypatch.setattr(bounds, "update_nearest", lambda *_: None)
    options = {"n_init": 1, "standardize": False, "random_state": 0, "sample_size": None}
    found = KMeans(K, **options).fit(X)
    monkeypatch.setattr(bounds, "LEAST_CLUSTERS", 10**9)
    np.testing.assert_array_equal(found.labels_, KMeans(K, **options).fit(X).labels_)


@pytest.mark.long
@pytest.mark.parametrize("p", [6, 70])
def test_fits_end_where_those_over_all_centres_do(p, monkeypatch):
    X = overlapping(20 * K, p, "f4" if p == 70 else "f8")
    options = {"n_init": 1, "standardize": False, "random_state": 0, "sample_size": None}
    found = KMeans(K, **options).fit(X)
    np.testing.assert_array_equal(found.labels_, found.predict(X))
    monkeypatch.setattr(CenterState, "is_turn_of_lists", False)
    expected = KMeans(K, **options).fit(X)
    assert found.inertia_ == pytest.approx(expected.inertia_, rel=2e-3)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rows_far_from_the_mean_are_told_apart_in_near_steps(dtype):
    X = np.random.default_rng(0).normal(size=(6000, 12))
    X[:3000, 0] += 1e4 if dtype == "f4" else 1e9
    options = {"n_init": 1, "random_state": 0, "standardize": False, "max_iter": 80}
    model = KMeans(256, sample_size=None, **options).fit(X.astype(dtype))
    costs = [record.inertia for record in model.history_]
    assert len(costs) < 80
    assert (np.diff(costs) <= 1e-6 * costs[0]).all()


@pytest.mark.parametrize("call", [4, 5])
def test_a_fit_that_a_callback_stops_has_the_cost_of_the_nearest_centres(call):
    X = overlapping(20 * K, 12, "f4")

    def stop(record):
        if record.iteration == call:
            raise StopIteration

    options = {"n_init": 1, "random_state": 0, "standardize": False}
    model = KMeans(K, sample_size=None, callbacks=[stop], **options)
    with pytest.warns(ConvergenceWarning, match="asked the fit to stop"):
        model.fit(X)
    assert model.inertia_ == pytest.approx(-model.score(X), rel=1e-6)


@pytest.mark.long
def test_reports_on_the_way_do_not_change_a_fit(tmp_path):
    X = da.from_array(overlapping(40 * K, 12, "f4"), chunks=(20 * K, 12))
    options = {"n_init": 1, "random_state": 0, "standardize": False, "max_iter": 25}
    expected = KMeans(K, **options).fit(X).inertia_
    options |= {"checkpoint": str(tmp_path / "fit"), "checkpoint_every": 1}
    assert KMeans(K, **options).fit(X).inertia_ == expected


def test_directions_are_chosen_on_the_first_block():
    rng = np.random.default_rng(0)
    X = np.concatenate([s * rng.normal(size=(8 * K, 64)) for s in (0.3, 1.6)]).astype("f4")
    passes = Passes(row_blocks(X, least_rows=8 * K))
    problem = CentersProblem(passes, Coordinates.identity(64), 16.0 * K, PowerUpdate(), 1.0)
    start = replace(problem.start(X[::16][:K].astype(float), -np.inf), relaxation=1.5)
    alone = replace(start, relaxation=1.5)
    first, second = passes.blocks.parts
    expected = alone.prepared.leading(np.dtype("f4"), first, None)["n_leading"]
    problem._bounds.before([start])
    problem._bounds.choose_directions(passes.blocks.parts)
    assert start.prepared.leading(np.dtype("f4"), second, None)["n_leading"] == expected
