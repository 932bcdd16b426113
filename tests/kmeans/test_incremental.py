"""Incremental MM: descent, its limit, and a naive implementation for comparison."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.kmeans import incremental
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.entropy import negative_entropy

BLOCKS, ROWS = 5, 80


def rows_of(distortion, missing, seed=0):
    """Rows in the domain of all distortions, in four clusters that overlap a little."""
    rng = np.random.default_rng(seed)
    centers, truth = rng.uniform(0.15, 0.85, (4, 4)), np.arange(BLOCKS * ROWS) % 4
    X = np.clip(centers[truth] + 0.1 * rng.normal(size=(len(truth), 4)), 1e-3, 1 - 1e-3)
    if missing == "partial":
        X[4:][rng.random((len(X) - 4, 4)) < 0.1] = np.nan
        X[np.isnan(X).all(axis=1)] = 0.5
    return X


def objective(model):
    """The majorizing function of all rows at a model's state."""
    if not isinstance(model, EntropyPowerKMeans):
        return model.inertia_
    weight = model.cluster_sizes_.sum() if model.s_ == -np.inf else model.n_samples_seen_
    return model.inertia_ / weight + model.lam_ * negative_entropy(model.feature_weights_)


def cycled(model, X, rounds, weights=None):
    """Visit all blocks in turn; yield after each call once all have been seen."""
    for call in range(rounds * BLOCKS):
        part = slice(call % BLOCKS * ROWS, (call % BLOCKS + 1) * ROWS)
        v = None if weights is None else weights[part]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of the first call's fit
            model.partial_fit(X[part], sample_weight=v, key=call % BLOCKS)
        if call >= BLOCKS - 1:
            yield model


FIXED = {"s0": -3.0, "eta": 1.0, "polish": False}
CASES = [
    *[(KMeans, distortion, "partial", {}) for distortion in ("sqeuclidean", "kl", "manhattan")],
    *[(PowerKMeans, distortion, "error", FIXED) for distortion in ("sqeuclidean", "logistic")],
    (PowerKMeans, "cosine", "error", {}),
    (PowerKMeans, "euclidean", "partial", FIXED),
    (EntropyPowerKMeans, "sqeuclidean", "error", {"lam": 0.01}),
    (EntropyPowerKMeans, "sqeuclidean", "partial", {"lam": 0.01, **FIXED}),
    (EntropyPowerKMeans, "manhattan", "error", {"lam": 0.1}),
    *[
        pytest.param(KMeans, distortion, "error", {}, marks=pytest.mark.long)
        for distortion in DISTORTIONS
        if distortion != "mixed"
    ],
]


@pytest.mark.parametrize(("cls", "distortion", "missing", "more"), CASES)
def test_the_sum_of_all_records_never_rises_and_bounds_the_objective(
    cls, distortion, missing, more
):
    X = rows_of(distortion, missing)
    model = cls(4, init=X[:4], distortion=distortion, missing=missing, max_iter=30, **more)
    objectives = []
    for each in cycled(model, X, 4):
        objectives.append(objective(each))
        assert each.n_samples_seen_ == min(len(X), each.updates_.n_calls * ROWS)
        # Costs at the present centres are below what the records say.
        assert -each.score(X) <= each.inertia_ * (1 + 1e-9)
    # That of norms may rise by a share of their ε.
    size = np.abs(objectives).max()
    assert np.diff(objectives).max() <= 1e-9 * size


LIMITS = [
    *[
        (KMeans, distortion, "error", {})
        for distortion in DISTORTIONS
        if DISTORTIONS[distortion].degree == 2 and distortion != "mixed"
    ],
    (KMeans, "sqeuclidean", "partial", {}),
    (PowerKMeans, "sqeuclidean", "error", FIXED),
]


@pytest.mark.in_turn("distortion")
@pytest.mark.parametrize(("cls", "distortion", "missing", "more"), LIMITS)
def test_repeated_calls_converge_to_a_fit_to_all_rows(cls, distortion, missing, more):
    X = rows_of(distortion, missing)
    metric = (
        {"metric_params": {"VI": np.diag([1.0, 2, 3, 4])}} if distortion == "mahalanobis" else {}
    )
    settings = {"distortion": distortion, "missing": missing, **metric, **more}
    model = [*cycled(cls(4, init=X[:4], **settings), X, 25)][-1]
    whole = cls(4, init=model.cluster_centers_, tol=1e-12, **settings).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, whole.cluster_centers_, rtol=1e-6)
    if not more:
        np.testing.assert_allclose(model.inertia_, whole.inertia_, rtol=1e-9)


@pytest.mark.long
def test_medians_are_approached():
    X = rows_of("manhattan", "error")
    model = [*cycled(KMeans(4, init=X[:4], distortion="manhattan"), X, 100)][-1]
    whole = KMeans(4, init=model.cluster_centers_, distortion="manhattan").fit(X)
    np.testing.assert_allclose(model.inertia_, whole.inertia_, rtol=2e-3)


def naive_incremental(blocks, centers, factor):
    """Assignments of all rows seen, each with a weight; centres are the weighted means."""
    rows, labels, weights = np.empty((0, blocks[0].shape[1])), np.empty(0, int), np.empty(0)
    for block in blocks:
        nearest = np.square(block[:, None] - centers).sum(axis=2).argmin(axis=1)
        rows = np.concatenate([rows, block])
        labels = np.concatenate([labels, nearest])
        weights = np.concatenate([factor * weights, np.ones(len(block))])
        centers = np.stack(
            [
                np.average(rows[labels == j], axis=0, weights=weights[labels == j])
                for j in range(len(centers))
            ]
        )
    costs = weights * np.square(rows - centers[labels]).sum(axis=1)
    return centers, costs.sum(), np.bincount(labels, weights)


@pytest.mark.parametrize(
    ("forget", "factor"), [(None, 1.0), ("3 calls", 0.5 ** (1 / 3)), (160, 0.5**0.5)]
)
def test_calls_are_those_of_a_naive_implementation(forget, factor, monkeypatch):
    monkeypatch.setattr(incremental, "_WINS", np.inf)  # however much rows cost
    X = rows_of("sqeuclidean", "error")
    blocks = np.split(X, BLOCKS)
    model = KMeans(4, init=X[:4], forget=forget)
    for block in blocks:
        model.partial_fit(block)
    first = KMeans(4, init=X[:4]).fit(blocks[0])
    centers, cost, sizes = naive_incremental(blocks, first.cluster_centers_, factor)
    np.testing.assert_allclose(model.cluster_centers_, centers, rtol=1e-12)
    np.testing.assert_allclose(model.inertia_, cost, rtol=1e-9)
    np.testing.assert_allclose(model.cluster_sizes_, sizes, rtol=1e-12)


def test_a_shorter_memory_takes_over_where_new_rows_cost_less():
    """Its records are those of a half-life of a quarter; it never does while rows are alike."""
    X = rows_of("sqeuclidean", "error")
    blocks = [*np.split(X, BLOCKS), *np.split(X[:, ::-1] + 0.2, BLOCKS)]
    first = KMeans(4, init=X[:4]).fit(blocks[0]).cluster_centers_
    model = KMeans(4, init=X[:4], forget="4 calls")
    sizes = []
    for block in blocks:
        sizes.append(model.partial_fit(block).cluster_sizes_.sum())
    longer = ROWS * np.cumsum(0.5 ** (np.arange(BLOCKS) / 4))
    np.testing.assert_allclose(sizes[:BLOCKS], longer)
    taken = np.argmax(sizes[BLOCKS:] < longer[-1]) + BLOCKS
    shorter, _, _ = naive_incremental(blocks[: taken + 1], first, 0.5)
    model = KMeans(4, init=X[:4], forget="4 calls")
    for block in blocks[: taken + 1]:
        model.partial_fit(block)
    np.testing.assert_allclose(model.cluster_centers_, shorter, rtol=1e-12)


def test_integer_weights_count_as_repeated_rows():
    X = rows_of("sqeuclidean", "error")
    v = np.random.default_rng(1).integers(0, 3, len(X))
    v[:4] = 1
    weighted, repeated = (KMeans(4, init=X[:4], forget=200) for _ in range(2))
    for part in np.split(np.arange(len(X)), BLOCKS):
        weighted.partial_fit(X[part], sample_weight=v[part])
        repeated.partial_fit(np.repeat(X[part], v[part], axis=0))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-10)
    np.testing.assert_allclose(weighted.inertia_, repeated.inertia_, rtol=1e-9)


def test_the_rows_of_a_fit_are_the_first_record():
    """The record that is made of a fitted model's attributes is nearly the exact one."""
    X = rows_of("sqeuclidean", "error")
    for cls, more in ((KMeans, {}), (EntropyPowerKMeans, {"lam": 0.01})):
        settings = {"n_clusters": 4, "init": X[:4], "tol": 1e-9, **more}
        known, told = (cls(**settings) for _ in range(2))
        known.partial_fit(X[:200])
        told.fit(X[:200])
        assert told.n_samples_seen_ == 200
        for model in (known, told):
            model.partial_fit(X[200:])
        for name in ("cluster_centers_", "cluster_sizes_", "inertia_", "n_samples_seen_"):
            np.testing.assert_allclose(getattr(told, name), getattr(known, name), rtol=1e-5)
