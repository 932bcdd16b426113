"""What must not change a fit: chunks, row order, scheduler, the form of weights; and descent."""

import contextlib
import math
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import dask
import dask.array as da
import numpy as np
import pytest
from _naive import (
    critical_power,
    entropy_step,
    lloyd_step,
    power_k_means_step,
    squared_distances,
)
from _support import n_examples
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

pytestmark = pytest.mark.in_turn("cls")

RELATIVE = 1e-9


def examples(count):
    """Return settings for so many examples, the same each time; for a third of them outside CI."""
    return settings(
        max_examples=n_examples(count),
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),  # a seed tells nothing more when it is smaller
        suppress_health_check=[HealthCheck.too_slow],
    )


@dataclass(frozen=True)
class Table:
    """Continuous random data, starting centres, and integer weights."""

    X: np.ndarray
    init: np.ndarray
    weights: np.ndarray
    seed: int

    def _repr_pretty_(self, printer, cycle):
        # Of a failing example, say what makes it again instead of all of its numbers.
        printer.text(f"<seed {self.seed}: X {self.X.shape}, {len(self.init)} centres>")


@st.composite
def tables(draw, n_rows=(25, 60)):
    """Clouds with and without structure, on features of different scales, away from the origin."""
    seed = draw(st.integers(0, 2**32 - 1))
    n, p, k = (draw(st.integers(*bounds)) for bounds in (n_rows, (1, 6), (1, 5)))
    separation = draw(st.sampled_from([0.0, 2.0, 8.0]))
    rng = np.random.default_rng(seed)
    centers = separation * rng.normal(size=(k, p))
    X = centers[rng.integers(k, size=n)] + rng.normal(size=(n, p))
    X = X * rng.uniform(0.5, 2.0, p) + rng.normal(0.0, 5.0, p)
    init = X[rng.choice(n, k, replace=False)] + 0.1 * rng.normal(size=(k, p))
    return Table(X, init, rng.integers(0, 4, n), seed)


@st.composite
def row_chunks(draw, n):
    """From one row per block to all rows in one; ragged; with empty blocks anywhere."""
    kind = draw(st.sampled_from(["one row", "all rows", "equal", "ragged", "empty blocks"]))
    if kind == "one row":
        return (1,) * n
    if kind == "all rows":
        return (n,)
    if kind == "equal":
        size = draw(st.integers(2, n))
        return (size,) * (n // size) + ((n % size,) if n % size else ())
    cuts = sorted(draw(st.sets(st.integers(1, n - 1), max_size=8)))
    chunks = list(np.diff([0, *cuts, n]))
    if kind == "empty blocks":
        for position in draw(st.lists(st.integers(0, len(chunks)), min_size=1, max_size=4)):
            chunks.insert(position, 0)
    return tuple(int(c) for c in chunks)


@st.composite
def column_chunks(draw, p):
    cuts = sorted(draw(st.sets(st.integers(1, p - 1), max_size=2))) if p > 1 else []
    return tuple(int(c) for c in np.diff([0, *cuts, p]))


MODELS = {
    "k-means": (KMeans, {"standardize": False}),
    "standardised k-means": (KMeans, {"standardize": True}),
    "power": (PowerKMeans, {"standardize": False}),
    "standardised power": (PowerKMeans, {"standardize": True}),
    "entropy": (EntropyPowerKMeans, {"standardize": False}),
    "standardised entropy": (EntropyPowerKMeans, {"standardize": True}),
}
# The quick run tests each class either with or without standardised features.
QUICK = ("k-means", "standardised power", "entropy")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in MODELS]
each_model = pytest.mark.parametrize("name", NAMES)


def model_of(name, table, **settings):
    """An estimator of which nothing is left to be found from the data."""
    cls, own = MODELS[name]
    parameters = {"n_clusters": len(table.init), "init": table.init, "max_iter": 12, **own}
    if cls is not KMeans:
        scaled = table.X / table.X.std(axis=0) if own.get("standardize") else table.X
        parameters |= {"s0": min(-1.0, 1.5 * critical_power(scaled)), "eta": 1.3}
    if cls is EntropyPowerKMeans:
        variance = 1.0 if own["standardize"] else float(table.X.var(axis=0).mean())
        parameters["lam"] = 0.5 * variance
    return cls(**parameters | settings)


def fit(model, X, sample_weight=None):
    """Fit; random data and few iterations may well end in a warning that says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, sample_weight=sample_weight)


def values(result):
    return np.asarray(result.compute() if dask.is_dask_collection(result) else result)


def assert_close(found, expected, scale, message):
    np.testing.assert_allclose(
        found, expected, rtol=RELATIVE, atol=RELATIVE * scale, err_msg=message
    )


def assert_same_fit(found, expected, rows=slice(None), factor=1.0):
    """The same model; its rows are rows `rows` of the expected fit, `factor` times as heavy."""
    spread = np.abs(expected.cluster_centers_ - expected.mean_).max() + expected.scale_.max()
    assert_close(found.cluster_centers_, expected.cluster_centers_, spread, "centres")
    assert found.n_iter_ == expected.n_iter_
    assert found.s_ == pytest.approx(expected.s_, rel=RELATIVE)
    scale = np.abs(expected.objective_history_).max()
    assert_close(found.objective_history_, expected.objective_history_, scale, "objective history")
    inertia = factor * expected.inertia_
    assert_close(found.inertia_, inertia, 1e-3 * abs(inertia), "inertia")
    if isinstance(expected, EntropyPowerKMeans):
        assert_close(found.feature_weights_, expected.feature_weights_, 1e-3, "feature weights")
    np.testing.assert_array_equal(values(found.labels_), values(expected.labels_)[rows])


@pytest.fixture(autouse=True)
def _computing_in_this_thread():
    # The overhead of threads would only cost time where schedulers are not what is compared.
    with dask.config.set(scheduler="sync"):
        yield


# Chunks, order, weights, schedulers


@each_model
@examples(15)
@given(table=tables(), data=st.data())
def test_chunks_change_nothing(name, table, data):
    n, p = table.X.shape
    chunks = (data.draw(row_chunks(n)), data.draw(column_chunks(p)))
    weights, lazy_weights = None, None
    if data.draw(st.booleans(), label="weighted"):
        weights = table.weights + 0.5
        lazy_weights = da.from_array(weights, chunks=(data.draw(row_chunks(n)),))
    expected = fit(model_of(name, table), table.X, weights)
    found = fit(model_of(name, table), da.from_array(table.X, chunks=chunks), lazy_weights)
    assert_same_fit(found, expected)


@each_model
def test_all_regular_chunk_sizes_change_nothing(name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(11, 3)) + 4.0 * rng.integers(0, 2, (11, 1))
    table = Table(X, X[:3].copy(), np.ones(11), 0)
    expected = fit(model_of(name, table, max_iter=6), X)
    for size in range(1, 12):
        found = fit(model_of(name, table, max_iter=6), da.from_array(X, chunks=(size, -1)))
        assert_same_fit(found, expected)


@each_model
@examples(10)
@given(table=tables())
def test_row_order_changes_nothing(name, table):
    order = np.random.default_rng(table.seed).permutation(len(table.X))
    expected = fit(model_of(name, table), table.X, table.weights + 0.5)
    found = fit(model_of(name, table), table.X[order], (table.weights + 0.5)[order])
    assert_same_fit(found, expected, order)


@each_model
@examples(12)
@given(table=tables())
def test_integer_weights_are_repetition_and_weight_zero_is_absence(name, table):
    weights = table.weights.copy()
    weights[: len(table.init)] += 1  # never fewer rows than clusters
    repeats = np.repeat(np.arange(len(weights)), weights)
    expected = fit(model_of(name, table), table.X, weights)
    found = fit(model_of(name, table), table.X[repeats])
    assert_same_fit(found, expected, repeats)


@each_model
@examples(8)
@given(table=tables(), factor=st.floats(-6, 6).map(lambda e: 10.0**e))
def test_a_common_factor_of_all_weights_changes_the_inertia_alone(name, table, factor):
    weights = table.weights + 0.5
    expected = fit(model_of(name, table), table.X, weights)
    found = fit(model_of(name, table), table.X, factor * weights)
    assert_same_fit(found, expected, factor=factor)


@each_model
@examples(5)
@given(table=tables(n_rows=(40, 70)), data=st.data())
def test_clusters_that_start_empty_move_to_the_same_rows_whatever_the_chunks(name, table, data):
    # Hard steps bring centres that are far from all rows back to the worst-served ones.
    init = np.vstack([table.init, table.init[:1] + 1e3, table.init[:1] - 2e3])
    table = Table(table.X, init, table.weights, table.seed)
    chunks = (data.draw(row_chunks(len(table.X))), -1)
    steps = {} if MODELS[name][0] is KMeans else {"s0": -1e6}
    expected = fit(model_of(name, table, **steps), table.X)
    found = fit(model_of(name, table, **steps), da.from_array(table.X, chunks=chunks))
    assert_same_fit(found, expected)


@pytest.mark.parametrize("s", [-57.0, -58.5, -59.5, -60.0, -60.25, -60.375, -60.5, -63.0])
def test_a_centre_of_hardly_any_weight_moves_to_a_mean_of_rows_or_stays(s):
    # The φ of the last centre run from normal floats over such with few digits to none. As long
    # as it moves, it moves to the weighted mean: what the weights are written in is no matter.
    rng = np.random.default_rng(1)
    X, weights = rng.normal(size=(40, 2)), rng.integers(1, 4, 40)
    init = np.array([[0.0, 0.0], [1.0, 1.0], [1e3, 1e3]])
    settings = {"s0": s, "eta": 1.0, "tol": 0, "polish": False, "max_iter": 1}
    model = PowerKMeans(3, init=init, standardize=False, **settings)
    weighted = fit(clone(model), X, weights).cluster_centers_
    repeated = fit(clone(model), np.repeat(X, weights, axis=0)).cluster_centers_
    lighter = fit(clone(model), X, 1e-3 * weights).cluster_centers_
    chunked = fit(clone(model), da.from_array(X, chunks=(3, 2)), weights).cluster_centers_
    expected, _ = power_k_means_step(X, init, s, weights)
    assert_close(weighted[:2], expected[:2], 1.0, "centres of some weight")
    if not np.array_equal(weighted[2], init[2]):
        # log φ, which is far from any limit.
        logs = s * np.log(squared_distances(X, init))
        log_phi = (1 - 1 / s) * logs[:, 2] + (1 / s - 1) * np.logaddexp.reduce(logs, axis=1)
        shares = weights * np.exp(log_phi - log_phi.max())
        mean = shares @ X / shares.sum()
        assert_close(weighted[2], mean, 1.0, "the mean that the centre moves to")
    assert_close(repeated, weighted, 1.0, "repetition")
    assert_close(lighter, weighted, 1.0, "a common factor")
    assert_close(chunked, weighted, 1.0, "chunks")


@contextlib.contextmanager
def scheduler(name, request):
    """The scheduler in force; processes are started once, not once per pass."""
    with contextlib.ExitStack() as stack:
        settings = {"scheduler": name}
        if name == "processes":
            spawn = multiprocessing.get_context("spawn")
            settings["pool"] = stack.enter_context(ProcessPoolExecutor(2, mp_context=spawn))
        elif name == "distributed":
            request.getfixturevalue("client")
        stack.enter_context(dask.config.set(settings))
        yield


@pytest.mark.parametrize(
    "other",
    ["threads", *(pytest.param(o, marks=pytest.mark.long) for o in ("processes", "distributed"))],
)
def test_schedulers_change_nothing(other, request):
    # All models in one test, so that processes are started once.
    rng = np.random.default_rng(2)
    X = np.vstack([rng.normal(center, 1.0, (50, 4)) for center in (0.0, 5.0, 12.0)])
    table = Table(X, X[[0, 60, 120]].copy(), rng.integers(0, 4, 150), 2)
    lazy = da.from_array(X, chunks=((40, 0, 37, 73), (3, 1)))
    weights = da.from_array(table.weights + 0.5, chunks=60)
    models = [model_of(name, table, max_iter=5) for name in MODELS if "standardised" in name]
    seeded = (KMeans, PowerKMeans, EntropyPowerKMeans)
    models += [cls(3, n_init=2, random_state=0, max_iter=5) for cls in seeded]
    expected = [fit(clone(model), lazy, weights) for model in models]
    with scheduler(other, request):
        for model, reference in zip(models, expected, strict=True):
            assert_same_fit(fit(model, lazy, weights), reference)


# Default seeding


@pytest.mark.in_turn("init")
@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@each_model
@examples(3)
@given(table=tables(n_rows=(50, 80)), data=st.data())
def test_chunks_change_nothing_with_seeding_and_automatic_parameters(name, init, table, data):
    cls, own = MODELS[name]
    parameters = {"init": init, "n_init": 2, "random_state": table.seed % 1000, **own}
    if cls is not KMeans:
        parameters["eta"] = 1.5
    n, p = table.X.shape
    fits = [
        fit(cls(len(table.init), **parameters), da.from_array(table.X, chunks=chunks))
        for chunks in [(n, p), (data.draw(row_chunks(n)), data.draw(column_chunks(p)))]
    ]
    assert_same_fit(fits[1], fits[0])


@each_model
def test_chunks_change_nothing_with_all_defaults(name):
    cls, own = MODELS[name]
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 5)) + 6.0 * rng.normal(size=(8, 5))[rng.integers(8, size=300)]
    fits = [
        fit(cls(random_state=4, **own), da.from_array(X, chunks=chunks))
        for chunks in [(300, 5), (70, 2), ((0, 1, 199, 0, 100), (5,))]
    ]
    assert_same_fit(fits[1], fits[0])
    assert_same_fit(fits[2], fits[0])


@pytest.mark.in_turn("init")
@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@each_model
def test_chunks_change_no_seeding_where_the_sample_is_a_part_of_the_rows(name, init, monkeypatch):
    cls, own = MODELS[name]
    monkeypatch.setattr("daskmm.engine.first_pass.SAMPLE_ROWS", 100)
    monkeypatch.setattr("daskmm.engine.first_pass.SAMPLE_ROWS_PER_CLUSTER", 10)
    X = np.random.default_rng(5).normal(size=(1000, 3))
    model = cls(6, init=init, random_state=0, max_iter=5, **own)
    fits = [fit(clone(model), da.from_array(X, chunks=(rows, -1))) for rows in (1000, 137)]
    assert_same_fit(fits[1], fits[0])


# Descent


def assert_never_rises(objectives, scale):
    rises = np.diff(objectives)
    assert rises.max(initial=-math.inf) <= 1e-12 * scale, objectives


each_annealed = pytest.mark.parametrize("name", NAMES[2:])


@each_annealed
@examples(40)
@given(
    table=tables(),
    s=st.floats(math.log10(0.2), 6).map(lambda e: -(10.0**e)),
    weighted=st.booleans(),
    lam=st.floats(-3, 1).map(lambda e: 10.0**e),
)
@example(
    table=Table(np.array([[0.0], [1.0]]), np.array([[0.0], [1.0]]), np.ones(2), 0),
    s=-1.0,
    weighted=False,
    lam=1.0,
)
def test_the_objective_never_rises_at_a_fixed_power(name, table, s, weighted, lam):
    settings = {"s0": s, "eta": 1.0, "polish": False, "tol": 0, "max_iter": 30}
    scale = 0.0
    if "entropy" in name:
        settings["lam"] = lam * (1.0 if "standardised" in name else table.X.var(axis=0).mean())
        scale = settings["lam"] * math.log(table.X.shape[1])
    model = model_of(name, table, **settings)
    fit(model, table.X, table.weights + 0.5 if weighted else None)
    history = model.objective_history_
    assert len(history) == 30
    assert_never_rises(history, max(scale, np.abs(history).max()))


@each_model
@examples(25)
@given(table=tables(), weighted=st.booleans(), far=st.booleans())
def test_hard_steps_never_raise_the_objective(name, table, weighted, far):
    init = np.vstack([table.init, table.init[:1] + 1e3]) if far else table.init
    table = Table(table.X, init, table.weights, table.seed)
    settings = {"max_iter": 100, "tol": 1e-3}
    if "k-means" not in name:
        settings["eta"] = 1.5
    weights = table.weights + 0.5 if weighted else np.ones(len(table.X))
    model = fit(model_of(name, table, **settings), table.X, weights)
    hard = [record.objective for record in model.history_ if record.stage == "hard"]
    assert hard
    # The score of the last state is the last entry.
    last = model.inertia_ / weights.sum()
    scale = np.abs(hard).max()
    if "entropy" in name:
        w = model.feature_weights_[model.feature_weights_ > 0]
        last += model.lam_ * (w @ np.log(w))
        scale = max(scale, model.lam_ * math.log(table.X.shape[1]))
    assert_never_rises([*hard, last], scale)


# Limits and equivalences


@examples(25)
@given(table=tables(), weighted=st.booleans())
def test_a_step_at_a_very_low_power_is_lloyds(table, weighted):
    weights = table.weights + 0.5 if weighted else None
    one = {"max_iter": 1, "tol": 0}
    lloyd = fit(model_of("k-means", table, **one), table.X, weights)
    settings = {**one, "s0": -1e12, "eta": 1.0, "polish": False}
    power = fit(model_of("power", table, **settings), table.X, weights)
    expected = lloyd_step(table.X.tolist(), table.init.tolist(), weights)
    spread = table.X.std()
    assert_close(power.cluster_centers_, expected, spread, "power k-means")
    assert_close(lloyd.cluster_centers_, expected, spread, "k-means")
    assert_close(power.inertia_, lloyd.inertia_, 0.0, "inertia")


@examples(15)
@given(table=tables(n_rows=(20, 40)), weighted=st.booleans())
def test_a_step_of_ewp_at_a_very_low_power_is_lloyds_with_weighted_features(table, weighted):
    weights = table.weights + 0.5 if weighted else None
    p = table.X.shape[1]
    settings = {"max_iter": 1, "tol": 0, "s0": -1e12, "polish": False}
    model = fit(model_of("entropy", table, **settings), table.X, weights)
    centers, w, objective = entropy_step(
        table.X, table.init, np.full(p, 1 / p), -math.inf, model.lam, weights
    )
    assert_close(model.cluster_centers_, centers, table.X.std(), "centres")
    assert_close(model.feature_weights_, w, 1e-3, "feature weights")
    assert_close(model.objective_history_, [objective], abs(model.lam), "objective")


@pytest.mark.parametrize("name", ["k-means", "power", "entropy"])
@examples(15)
@given(table=tables())
def test_standardising_is_clustering_z_scored_data(name, table):
    mean, deviation = table.X.mean(axis=0), table.X.std(axis=0)
    z = Table((table.X - mean) / deviation, (table.init - mean) / deviation, table.weights, 0)
    settings = {} if name == "k-means" else {"s0": model_of(f"standardised {name}", table).s0}
    if name == "entropy":
        settings["lam"] = 0.5
    inside = fit(model_of(f"standardised {name}", table, **settings), table.X)
    outside = fit(model_of(name, z, **settings), z.X)
    centers = outside.cluster_centers_ * deviation + mean
    assert_close(inside.cluster_centers_, centers, table.X.std(), "centres")
    assert_close(inside.inertia_, outside.inertia_, 0.0, "inertia")
    assert_close(inside.objective_history_, outside.objective_history_, 1.0, "objective history")
    np.testing.assert_array_equal(inside.labels_, outside.labels_)


@each_model
@examples(12)
@given(table=tables(), seeded=st.booleans())
def test_a_shift_by_a_million_changes_no_label(name, table, seeded):
    # On this grid the shifted rows have the same digits, so what changes is our rounding alone.
    X, init = (np.round(a * 2**28) / 2**28 for a in (table.X, table.init))
    table = Table(X, init, table.weights, table.seed)
    start = {"init": "k-means++", "n_init": 1, "random_state": 0} if seeded else {}
    moved = {} if seeded else {"init": init + 1e6}
    here = fit(model_of(name, table, **start), X)
    there = fit(model_of(name, table, **start | moved), X + 1e6)
    np.testing.assert_array_equal(there.labels_, here.labels_)
    np.testing.assert_allclose(
        there.cluster_centers_ - 1e6, here.cluster_centers_, atol=1e-6 * X.std(), rtol=0
    )


def test_restarts_that_end_alike_are_told_apart_by_their_order():
    # Two restarts find the same clusters in another order, at a cost that differs by rounding.
    rng = np.random.default_rng(3793615)
    n, p, k = 74, 5, 5
    rng.normal(size=(k, p)), rng.integers(k, size=n)
    X = rng.normal(size=(n, p)) * rng.uniform(0.5, 2.0, p) + rng.normal(0.0, 5.0, p)
    parameters = {"init": "k-means||", "n_init": 2, "random_state": 615, "eta": 1.5}
    fits = [
        fit(EntropyPowerKMeans(k, standardize=False, **parameters), da.from_array(X, chunks=chunks))
        for chunks in [(n, p), ((30, 30, 14), (4, 1))]
    ]
    assert_same_fit(fits[1], fits[0])
