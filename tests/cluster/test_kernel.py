"""Kernel and multi-kernel power k-means: oracles, descent, behaviour, quality, bad input."""

import functools
import pickle
import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pytest
import zarr
from _naive import kernel_distances, kernel_fit
from _shared import SHARED
from _support import CountingSource, blobs, computed, fit_recording, n_examples, raise_if_computes
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import daskmm.gram.precomputed
from daskmm import KernelPowerKMeans, MultiKernelPowerKMeans, PowerKMeans
from daskmm.gram import sources
from daskmm.gram.build import GramStoreError, build
from daskmm.gram.matrices import DenseGram, Grams, RecomputedGram, StoredGram
from daskmm.gram.problem import KernelProblem
from daskmm.mm.driver import Schedule, minimize
from daskmm.numerics.entropy import negative_entropy, softmin_weights
from daskmm.numerics.feature_space import feature_distances
from daskmm.numerics.kernels import Kernel
from daskmm.numerics.power_means import power_means

N, P, K, STEPS = 40, 3, 3, 8
PRINTED = {"s0": -2.5, "eta": 1.2, "max_iter": STEPS, "tol": 0, "polish": False}

X = np.random.default_rng(5).normal(size=(N, P)) * [1.0, 2.0, 0.5] + 3.0
LABELS = np.arange(N) % K
WEIGHTS = np.random.default_rng(6).uniform(0.2, 3.0, N)
CENTRED = X - X.mean(axis=0)


def squared(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(axis=-1)


def laplacian(x, y):
    return np.exp(-np.abs(x[:, None] - y[None]).sum(axis=-1) / 2.0)


def angular(x, y):
    length = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=1)
    gram = np.exp(-np.arccos(np.clip(x @ y.T / length, -1.0, 1.0)) / 0.5)
    np.fill_diagonal(gram, 1.0)  # acos turns one ulp below 1 into an angle of 1e-8
    return gram


# Parameters of the estimator, and the matrix that they stand for.
KERNELS = {
    "rbf": ({"bandwidth": 1.5}, lambda z: np.exp(-squared(z, z) / (2 * 1.5**2))),
    "laplacian": ({"bandwidth": 2.0}, lambda z: laplacian(z, z)),
    "polynomial": ({"degree": 2, "coef0": 0.5}, lambda z: (z @ z.T + 0.5) ** 2),
    "linear": ({}, lambda z: z @ z.T),
    "cosine": ({}, lambda z: z @ z.T / np.outer(*[np.linalg.norm(z, axis=1)] * 2)),
    "angular": ({"bandwidth": 0.5}, lambda z: angular(z, z)),
}
each_kernel = pytest.mark.parametrize("name", KERNELS)


def printed(labels=LABELS, **parameters):
    return KernelPowerKMeans(K, **{**PRINTED, "init": labels, "n_init": 1, **parameters})


def starting(labels=LABELS, weights=None, k=K):
    """Label means as memberships."""
    mass = np.eye(k)[labels] * (1.0 if weights is None else weights[:, None])
    return mass / mass.sum(axis=0)


def seen_by(name):
    """The rows that a kernel is given: as they are, where moving them changes its distances."""
    return X if name in ("polynomial", "cosine", "angular") else CENTRED


@functools.cache
def expected(name):
    return kernel_fit([KERNELS[name][1](seen_by(name))], starting(), -2.5, 1.2, STEPS)


def agrees(model, naive, tolerance=1e-10):
    for attribute in ("objective_history_", "memberships_", "inertia_", "kernel_norms_"):
        np.testing.assert_allclose(
            getattr(model, attribute),
            naive[attribute],
            rtol=tolerance,
            atol=tolerance,
            err_msg=attribute,
        )
    np.testing.assert_array_equal(model.labels_, naive["labels_"])


@pytest.fixture
def small_tiles(monkeypatch):
    """Several tiles of 7 rows, wherever tiles are made."""
    monkeypatch.setattr("daskmm.gram.matrices.TILE_ROWS", 7)
    monkeypatch.setattr("daskmm.gram.build.TILE_ROWS", 7)
    monkeypatch.setattr(sources, "build", functools.partial(build, tile_rows=7))


# The definitions


@pytest.mark.in_turn("gram")
@each_kernel
@pytest.mark.parametrize("gram", ["auto", "recompute"])
def test_fit_is_the_algorithm_as_printed(name, gram, small_tiles):
    model = printed(kernel=name, gram=gram, **KERNELS[name][0]).fit(X)
    agrees(model, expected(name))
    assert model.n_iter_ == STEPS
    assert model.gram_.startswith({"auto": "memory", "recompute": "recomputed"}[gram])


@pytest.mark.in_turn("dtype")
@each_kernel
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fit_on_a_store_is_the_algorithm_as_printed(
    name, dtype, small_tiles, monkeypatch, tmp_path
):
    if dtype == "float64":
        exact = functools.partial(build, tile_rows=7, dtype="float64")
        monkeypatch.setattr(sources, "build", exact)
    parameters = {"kernel": name, "gram": tmp_path / "gram", **KERNELS[name][0]}
    agrees(printed(**parameters).fit(X), expected(name), 1e-10 if dtype == "float64" else 1e-5)
    tiles = -(-N // 7)
    files = [path for path in (tmp_path / "gram/tiles/c").rglob("*") if path.is_file()]
    assert len(files) == tiles * (tiles + 1) // 2
    before = {path: path.stat().st_mtime_ns for path in files}
    printed(**parameters).fit(X)
    assert before == {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.in_turn("chunks")
@pytest.mark.parametrize("gram", ["auto", "recompute", "stored"])
@pytest.mark.parametrize("chunks", [(40, 3), (11, 2), ((1, 0, 38, 1), (3,))])
def test_fit_to_dask_input_is_the_algorithm_as_printed(gram, chunks, small_tiles, tmp_path):
    gram = str(tmp_path / "gram") if gram == "stored" else gram
    model = printed(bandwidth=1.5, gram=gram).fit(da.from_array(X, chunks=chunks))
    agrees(model, expected("rbf"), 1e-5 if gram.startswith(str(tmp_path)) else 1e-10)


@pytest.mark.parametrize("gram", ["auto", "recompute"])
def test_sample_weights_act_as_in_the_naive_definition(gram, small_tiles):
    model = printed(bandwidth=1.5, gram=gram).fit(X, sample_weight=WEIGHTS)
    gram = KERNELS["rbf"][1](CENTRED)
    naive = kernel_fit([gram], starting(weights=WEIGHTS), -2.5, 1.2, STEPS, WEIGHTS)
    agrees(model, naive)


def test_weighted_steps_from_given_memberships_are_those_of_the_definition():
    gram = KERNELS["rbf"][1](CENTRED)
    problem = KernelProblem(Grams([DenseGram(gram)]), WEIGHTS, 0.5)
    schedule = Schedule(-2.5, 1.2, max_iter=STEPS, tol=0.0)
    outcome = minimize(problem, [starting()], schedule)
    naive = kernel_fit([gram], starting(), -2.5, 1.2, STEPS, WEIGHTS)
    history = [record.objective for record in outcome.run.history]
    np.testing.assert_allclose(history, naive["objective_history_"], rtol=1e-10)
    np.testing.assert_allclose(outcome.run.state.memberships, naive["memberships_"], atol=1e-12)
    assert outcome.inertia == pytest.approx(naive["inertia_"], rel=1e-10)


@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 5))
@settings(max_examples=n_examples(40), deadline=None)
def test_distances_in_feature_space_are_those_of_equation_7(seed, n, k):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, rng.integers(1, n + 1)))
    gram = root @ root.T
    W = rng.dirichlet(np.full(n, 0.3), k).T
    found = feature_distances(gram @ W, W, np.diag(gram))
    np.testing.assert_allclose(found, kernel_distances(gram, W), atol=1e-10 * np.diag(gram).max())
    # And those between the images themselves.
    np.testing.assert_allclose(found, squared(root, W.T @ root), atol=1e-10 * np.diag(gram).max())


@pytest.mark.in_turn("tile_rows")
@each_kernel
@pytest.mark.parametrize("tile_rows", [5, 13, 40, 64])
def test_sweeps_are_matrix_products_for_any_tiling(name, tile_rows, monkeypatch, tmp_path):
    monkeypatch.setattr("daskmm.gram.matrices.TILE_ROWS", tile_rows)
    parameters, explicit = KERNELS[name]
    kernel, gram = Kernel(name, **parameters), explicit(CENTRED)
    scale = np.abs(gram).max()
    right = np.random.default_rng(0).normal(size=(N, 4))
    rows = np.array([3, 39, 0, 17])
    store = build(tmp_path / "gram", CENTRED, kernel, dtype="float64", tile_rows=tile_rows)
    for lazy in (False, True):
        for source in (
            StoredGram(store, CENTRED, kernel, lazy),
            RecomputedGram(CENTRED, kernel, lazy),
        ):
            near = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-11 * scale)
            with dask.config.set(scheduler="sync"):
                near(source.product(right), gram @ right)
            near(source.diagonal, np.diag(gram))
            near(source.columns(rows), gram[:, rows])
            near(source.submatrix(rows), gram[np.ix_(rows, rows)])
            assert source.n_sweeps == 1


def test_a_callable_is_evaluated_block_by_block(small_tiles):
    shapes = set()

    def kernel(x, y):
        shapes.add((len(x), len(y)))
        return np.exp(-squared(x, y) / (2 * 1.5**2))

    agrees(printed(kernel=kernel, gram="recompute").fit(X), expected("rbf"))
    assert (7, 7) in shapes
    agrees(printed(kernel=kernel).fit(X), expected("rbf"))


def test_the_automatic_bandwidth_is_the_root_mean_squared_distance():
    bandwidth = np.sqrt(squared(X, X).mean())
    model = printed(standardize=False).fit(X)
    explicit = printed(bandwidth=bandwidth).fit(X)
    assert model.kernels_[0].bandwidth == pytest.approx(bandwidth, rel=1e-12)
    np.testing.assert_allclose(model.objective_history_, explicit.objective_history_, rtol=1e-10)


@pytest.mark.parametrize("n_landmarks", [None, 20])
@pytest.mark.parametrize(
    ("parameters", "standardised"),
    [
        ({}, True),
        ({"kernel": "laplacian"}, True),
        ({"bandwidth": 2.0}, False),
        ({"kernel": "cosine"}, False),
        ({"kernel": lambda x, y: x @ y.T}, False),
    ],
)
def test_features_are_standardised_where_one_automatic_bandwidth_is_for_all(
    parameters, standardised, n_landmarks
):
    model = quick(n_landmarks=n_landmarks, **parameters).fit(DATA)
    given = quick(n_landmarks=n_landmarks, standardize=standardised, **parameters).fit(DATA)
    assert standardised == bool((model.scale_ != 1).any())
    np.testing.assert_array_equal(model.labels_, given.labels_)
    assert model.inertia_ == given.inertia_


# Explicit feature maps


def quadratic_features(z):
    """Features whose inner products are (xᵀy + 1)²."""
    i, j = np.triu_indices(z.shape[1], 1)
    ones = np.ones((len(z), 1))
    return np.hstack([ones, np.sqrt(2) * z, z**2, np.sqrt(2) * z[:, i] * z[:, j]])


@pytest.mark.parametrize(
    ("parameters", "features"),
    [
        ({"kernel": "linear"}, X),
        ({"kernel": "polynomial", "degree": 2, "coef0": 1}, quadratic_features(X)),
    ],
    ids=["linear", "polynomial"],
)
@pytest.mark.parametrize("polish", [False, True])
def test_power_k_means_on_features_of_a_kernel_gives_the_same_labels(parameters, features, polish):
    settings = {**PRINTED, "polish": polish}
    if polish:
        settings |= {"tol": 1e-4, "max_iter": 300}
    model = printed(**{**settings, **parameters}).fit(X)
    means = starting().T @ features
    reference = PowerKMeans(K, init=means, standardize=False, **settings).fit(features)
    assert model.n_iter_ == reference.n_iter_
    for name in ("objective_history_", "inertia_"):
        np.testing.assert_allclose(getattr(model, name), getattr(reference, name), rtol=1e-9)
    np.testing.assert_allclose(
        model.memberships_.T @ features, reference.cluster_centers_, rtol=1e-9, atol=1e-9
    )
    np.testing.assert_array_equal(model.labels_, reference.labels_)


# Descent


def random_grams(rng, n, n_kernels):
    """Random positive semidefinite matrices of random rank and scale."""
    roots = [rng.normal(size=(n, rng.integers(1, n + 1))) for _ in range(n_kernels)]
    grams = [root @ root.T for root in roots]
    return [gram / gram.diagonal().mean() * rng.uniform(0.2, 3.0) for gram in grams]


def objectives(grams, start, s, lam, steps=15, weights=None):
    weights = np.ones(len(start)) if weights is None else weights
    problem = KernelProblem(Grams(DenseGram(gram) for gram in grams), weights, 0.5, lam)
    outcome = minimize(problem, [start], Schedule(s, max_iter=steps, tol=0.0))
    return np.array([record.objective for record in outcome.run.history])


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(3, 25),
    k=st.integers(1, 5),
    n_kernels=st.integers(1, 4),
    s=st.floats(-20.0, -0.3),
    lam=st.floats(1e-3, 1.0),
    weighted=st.booleans(),
)
@settings(max_examples=n_examples(150), deadline=None)
def test_at_a_fixed_power_the_objective_never_rises(seed, n, k, n_kernels, s, lam, weighted):
    rng = np.random.default_rng(seed)
    grams = random_grams(rng, n, n_kernels)
    weights = rng.uniform(0.1, 5.0, n) if weighted else None
    history = objectives(grams, rng.dirichlet(np.ones(n), k).T, s, lam, weights=weights)
    scale = max(1.0, np.abs(history).max())
    assert (np.diff(history) <= 1e-12 * scale).all()


@pytest.mark.parametrize("gram", ["auto", "recompute"])
def test_at_a_fixed_power_the_estimators_objective_never_rises(gram):
    data, _ = blobs(n=90, k=3)
    settings = {"eta": 1, "s0": -4, "polish": False, "tol": 0, "max_iter": 20, "gram": gram}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # at a fixed power means may coincide
        single = KernelPowerKMeans(3, n_init=1, random_state=0, **settings).fit(data)
        several = MultiKernelPowerKMeans(3, n_init=1, random_state=0, **settings).fit(data)
    for model in (single, several):
        assert len(model.objective_history_) == 20
        assert (np.diff(model.objective_history_) <= 1e-12).all()


def objectives_with_the_printed_weights(grams, W, s, lam, steps):
    """As the paper prints MKPK: S_l = Σ φ ‖·‖, the norm not squared."""
    alpha = np.full(len(grams), 1.0 / len(grams))
    history = []
    for _ in range(steps):
        y = sum(
            a * feature_distances(g @ W, W, g.diagonal()) for a, g in zip(alpha, grams, strict=True)
        )
        means = power_means(y, s)
        history.append(means.value.mean() + lam * negative_entropy(alpha))
        W = means.phi / means.phi.sum(axis=0)
        distances = [feature_distances(g @ W, W, g.diagonal()) for g in grams]
        alpha = softmin_weights(
            np.array([(means.phi * np.sqrt(d)).sum() / len(W) for d in distances]), lam
        )
    return np.array(history)


def test_hard_steps_after_the_annealing_do_not_raise_the_objective():
    data, _ = blobs(n=120, k=6)
    for seed in range(5):
        model = MultiKernelPowerKMeans(5, random_state=seed).fit(data)
        polish = model.objective_history_[-model.n_iter_ :]
        assert (np.diff(polish) <= 1e-12).all()
        assert model.history_[-1].s == model.s_ == -np.inf


def test_the_printed_kernel_weights_raise_the_objective_and_ours_do_not():
    rises = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        grams = random_grams(rng, 15, 3)
        start = rng.dirichlet(np.ones(15), 3).T
        as_printed = objectives_with_the_printed_weights(grams, start, -2.0, 0.05, 10)
        ours = objectives(grams, start, -2.0, 0.05, 10)
        assert as_printed[0] == pytest.approx(ours[0], rel=1e-12)
        assert (np.diff(ours) <= 1e-12).all()
        rises += bool((np.diff(as_printed) > 1e-3 * np.abs(as_printed[0])).any())
    assert rises > 0


# Several kernels

THREE = [
    {"kernel": "rbf", "bandwidth": 1.5},
    {"kernel": "polynomial", "degree": 2, "coef0": 1},
    {"kernel": "laplacian", "bandwidth": 2.0},
]


def three_grams(z, normalize):
    grams = [np.exp(-squared(z, z) / (2 * 1.5**2)), (z @ z.T + 1.0) ** 2, laplacian(z, z)]
    if normalize:
        grams = [gram / np.sqrt(np.outer(gram.diagonal(), gram.diagonal())) for gram in grams]
    return grams


@pytest.mark.in_turn("gram")
@pytest.mark.parametrize("gram", ["auto", "recompute", "stored"])
@pytest.mark.parametrize("normalize", [True, False])
def test_multi_kernel_fit_is_the_definition(gram, normalize, small_tiles, monkeypatch, tmp_path):
    if gram == "stored":
        exact = functools.partial(build, tile_rows=7, dtype="float64")
        monkeypatch.setattr(sources, "build", exact)
        gram = tmp_path / "grams"
    model = MultiKernelPowerKMeans(
        K, kernels=THREE, normalize=normalize, lam=0.1, init=LABELS, gram=gram, **PRINTED
    ).fit(X)
    naive = kernel_fit(three_grams(X, normalize), starting(), -2.5, 1.2, STEPS, lam=0.1)
    np.testing.assert_allclose(model.objective_history_, naive["objective_history_"], rtol=1e-10)
    np.testing.assert_allclose(model.kernel_weights_, naive["kernel_weights_"], rtol=1e-8)
    np.testing.assert_allclose(model.memberships_, naive["memberships_"], atol=1e-10)
    assert model.inertia_ == pytest.approx(naive["inertia_"], rel=1e-10)
    assert model.kernel_weights_.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_one_kernel_among_several_is_that_kernel():
    parameters = {"n_clusters": K, "random_state": 3, "s0": -2.5}
    single = KernelPowerKMeans(bandwidth=1.5, **parameters).fit(X)
    several = MultiKernelPowerKMeans(kernels=THREE[:1], **parameters).fit(X)
    np.testing.assert_allclose(several.objective_history_, single.objective_history_, rtol=1e-12)
    np.testing.assert_array_equal(several.labels_, single.labels_)
    np.testing.assert_array_equal(several.kernel_weights_, [1.0])


def test_the_same_kernel_twice_is_that_kernel_with_equal_weights():
    settings = {**PRINTED, "init": LABELS}
    once = MultiKernelPowerKMeans(K, kernels=THREE[:1], **settings).fit(X)
    twice = MultiKernelPowerKMeans(K, kernels=THREE[:1] * 2, lam=0.1, **settings).fit(X)
    np.testing.assert_allclose(twice.kernel_weights_, [0.5, 0.5])
    np.testing.assert_allclose(
        twice.objective_history_, once.objective_history_ - 0.1 * np.log(2), rtol=1e-12
    )


def test_the_twelve_default_kernels_share_a_weight_of_1():
    data, truth = blobs(n=120, k=3)
    model = MultiKernelPowerKMeans(3, random_state=0).fit(data)
    assert len(model.kernels_) == len(model.kernel_weights_) == 12
    assert model.kernel_weights_.min() >= 0
    assert model.kernel_weights_.sum() == pytest.approx(1.0, abs=1e-12)
    assert adjusted_rand_score(truth, model.labels_) > 0.99


def test_useless_kernels_get_little_weight():
    data, truth = blobs(n=90, k=3)

    def useless(x, y):
        """Every row far from every other one."""
        return (squared(x, y) == 0).astype(float)

    kernels = [{"kernel": "rbf", "bandwidth": 10.0}, useless]
    model = MultiKernelPowerKMeans(3, kernels=kernels, random_state=0).fit(data)
    assert model.kernel_weights_[0] > 0.99
    assert adjusted_rand_score(truth, model.labels_) > 0.99


# Behaviour of the estimators

DATA, TRUTH = blobs(n=200, k=4)


def as_zarr(data, chunks):
    array = zarr.create_array({}, shape=data.shape, dtype=data.dtype, chunks=chunks)
    array[...] = data
    return array


def quick(cls=KernelPowerKMeans, **parameters):
    return cls(**{"n_clusters": 4, "random_state": 0, "eta": 1.2, **parameters})


MODELS = {
    "kernel": KernelPowerKMeans,
    "recomputed": functools.partial(KernelPowerKMeans, gram="recompute"),
    "landmarks": functools.partial(KernelPowerKMeans, n_landmarks=30),
    "standardized": functools.partial(KernelPowerKMeans, standardize=True),
    "random": functools.partial(KernelPowerKMeans, init="random"),
    "polynomial": functools.partial(KernelPowerKMeans, kernel="polynomial", degree=2),
    "multi-kernel": MultiKernelPowerKMeans,
}
each_model = pytest.mark.parametrize("name", MODELS)


@pytest.mark.in_turn("weights")
@each_model
@pytest.mark.parametrize("weights", [None, np.random.default_rng(1).uniform(0, 2, 200)])
def test_predict_and_score_repeat_the_fit(name, weights):
    model = quick(MODELS[name]).fit(DATA, sample_weight=weights)
    assert model.labels_.dtype == np.int32
    np.testing.assert_array_equal(model.predict(DATA), model.labels_)
    score = model.score(DATA, sample_weight=weights)
    assert score == pytest.approx(-model.inertia_, rel=1e-8)
    np.testing.assert_array_equal(model.predict(DATA[17:31]), model.labels_[17:31])
    np.testing.assert_array_equal(
        quick(MODELS[name]).fit_predict(DATA), quick(MODELS[name]).fit(DATA).labels_
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("landmarks", [None, "auto"])
def test_no_row_is_predicted_into_a_cluster_without_rows(landmarks):
    for seed in (1, 3, 15, 19):  # more clusters than distinct rows
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(4, 2))[rng.integers(4, size=50)]
        model = KernelPowerKMeans(6, n_landmarks=landmarks, random_state=0).fit(X)
        assert (model.cluster_sizes_ == 0).any()
        np.testing.assert_array_equal(model.predict(X), model.labels_)


@pytest.mark.in_turn("gram")
@pytest.mark.parametrize("gram", ["auto", "recompute"])
@pytest.mark.parametrize("kernel", ["cosine", "angular", "linear", "polynomial"])
@pytest.mark.parametrize("center", ["exact", "rounded"])
def test_a_row_at_the_mean_is_the_same_in_fit_and_score(kernel, gram, center):
    """Its direction is none, or one of rounding; kernels of angles must not see both."""
    half = np.random.default_rng(0).normal(size=(30, 4))
    if center == "exact":
        half = np.round(8 * half) / 8  # sums without rounding
        data = np.vstack([half, -half, np.zeros((1, 4))])
        assert not data.mean(axis=0).any()
    else:
        data = np.vstack([half, np.zeros((1, 4)) + half.mean(axis=0)])
        assert 0 < np.abs(data[-1] - data.mean(axis=0)).max() < 1e-15
    model = quick(kernel=kernel, gram=gram, n_clusters=3).fit(data)
    assert model.score(data) == pytest.approx(-model.inertia_, rel=1e-6)
    np.testing.assert_array_equal(model.predict(data), model.labels_)
    multi = quick(MultiKernelPowerKMeans, kernels=[kernel], gram=gram, n_clusters=3).fit(data)
    assert multi.score(data) == pytest.approx(-multi.inertia_, rel=1e-6)


@each_model
def test_a_seed_makes_a_fit_reproducible(name):
    first, second = (quick(MODELS[name]).fit(DATA) for _ in range(2))
    np.testing.assert_array_equal(first.objective_history_, second.objective_history_)
    np.testing.assert_array_equal(first.labels_, second.labels_)


@pytest.mark.parametrize("cls", [KernelPowerKMeans, MultiKernelPowerKMeans])
def test_the_order_of_rows_does_not_matter(cls):
    order = np.random.default_rng(0).permutation(N)
    settings = {"n_clusters": K, **PRINTED}
    model = cls(init=LABELS, **settings).fit(X)
    shuffled = cls(init=LABELS[order], **settings).fit(X[order])
    np.testing.assert_allclose(
        shuffled.objective_history_, model.objective_history_, rtol=1e-9, atol=1e-11
    )
    np.testing.assert_array_equal(shuffled.labels_, model.labels_[order])


@pytest.mark.parametrize("cls", [KernelPowerKMeans, MultiKernelPowerKMeans])
def test_an_integer_weight_counts_like_as_many_rows(cls):
    weights = np.random.default_rng(0).integers(1, 4, N)
    settings = {"n_clusters": K, **PRINTED}
    model = cls(init=LABELS, **settings).fit(X, sample_weight=weights)
    repeated = cls(init=np.repeat(LABELS, weights), **settings).fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(model.objective_history_, repeated.objective_history_, rtol=1e-9)
    assert model.inertia_ == pytest.approx(repeated.inertia_, rel=1e-9)
    np.testing.assert_array_equal(np.repeat(model.labels_, weights), repeated.labels_)


@pytest.mark.parametrize("cls", [KernelPowerKMeans, MultiKernelPowerKMeans])
def test_only_the_shares_of_the_weights_matter(cls):
    settings = {"n_clusters": K, "init": LABELS, **PRINTED}
    model = cls(**settings).fit(X, sample_weight=WEIGHTS)
    scaled = cls(**settings).fit(X, sample_weight=1000 * WEIGHTS)
    np.testing.assert_allclose(scaled.objective_history_, model.objective_history_, rtol=1e-9)
    assert scaled.inertia_ == pytest.approx(1000 * model.inertia_, rel=1e-9)


def test_rows_of_weight_zero_do_not_matter():
    weights = np.r_[np.ones(N), np.zeros(5)]
    far = np.random.default_rng(0).normal(size=(5, P)) * 50
    settings = {"n_clusters": K, "bandwidth": 1.5, **PRINTED}
    labels = np.r_[LABELS, np.zeros(5, dtype=int)]
    model = KernelPowerKMeans(init=labels, **settings).fit(np.vstack([X, far]), None, weights)
    np.testing.assert_allclose(
        model.objective_history_, expected("rbf")["objective_history_"], rtol=1e-9
    )


@pytest.mark.in_turn("read")
@pytest.mark.parametrize("name", ["kernel", "recomputed", "landmarks", "multi-kernel"])
@pytest.mark.parametrize(
    "read",
    [
        lambda data: da.from_array(data, chunks=(60, -1)),
        lambda data: da.from_array(data, chunks=((1, 0, 150, 49), (2, 3))),
        lambda data: as_zarr(data, (50, 5)),
    ],
    ids=["dask", "ragged", "zarr"],
)
def test_lazy_input_gives_what_numpy_gives(name, read):
    with dask.config.set(scheduler="sync"):
        model, lazy = quick(MODELS[name]).fit(DATA), quick(MODELS[name]).fit(read(DATA))
        np.testing.assert_allclose(lazy.objective_history_, model.objective_history_, rtol=1e-9)
        np.testing.assert_array_equal(computed(lazy.labels_), model.labels_)
        assert lazy.inertia_ == pytest.approx(model.inertia_, rel=1e-9)
        with raise_if_computes():
            labels = lazy.predict(read(DATA))
        assert isinstance(labels, da.Array)
        np.testing.assert_array_equal(labels.compute(), model.labels_)
        assert lazy.score(read(DATA)) == pytest.approx(-model.inertia_, rel=1e-8)


def test_landmarks_stream_lazy_rows():
    source = CountingSource(DATA)
    lazy = source.as_dask((40, -1))
    with dask.config.set(scheduler="sync"):
        model = quick(n_landmarks=30).fit(lazy)
        assert not any(hasattr(model, name) for name in ("X_fit_", "memberships_"))
        # Each pass loads each block once; the labels have not been asked for.
        assert source.reads == dict.fromkeys(range(0, 200, 40), model.n_passes_)
        source.reads.clear()
        with raise_if_computes():
            predicted = model.predict(lazy)
        assert not source.reads
        model.labels_.blocks[2].compute()
        predicted.blocks[4].compute()
        assert source.reads == {80: 1, 160: 1}
        np.testing.assert_array_equal(predicted.compute(), model.labels_.compute())
    assert adjusted_rand_score(TRUTH, model.labels_.compute()) > 0.99


@pytest.mark.parametrize("bandwidth", [0.7, 1.5])
def test_as_many_landmarks_as_rows_are_exact(bandwidth):
    rng = np.random.default_rng(0)
    data = np.vstack([rng.normal(scale=0.5, size=(20, 3)) + center for center in 4 * np.eye(3)])
    settings = {"n_clusters": 3, "bandwidth": bandwidth, "random_state": 0}
    exact = KernelPowerKMeans(**settings).fit(data)
    nystrom = KernelPowerKMeans(n_landmarks=len(data), **settings).fit(data)
    assert nystrom.whitening_.shape == (60, 60)  # full rank
    assert nystrom.inertia_ == pytest.approx(exact.inertia_, rel=1e-6)
    assert adjusted_rand_score(exact.labels_, nystrom.labels_) == 1.0


@pytest.mark.parametrize(
    "read",
    [np.asarray, lambda K: da.from_array(K, chunks=(13, 40)), lambda K: as_zarr(K, (9, 40))],
    ids=["numpy", "dask", "zarr"],
)
def test_a_precomputed_matrix_is_what_rows_and_kernel_are(read):
    gram = KERNELS["rbf"][1](CENTRED)
    agrees(printed(kernel="precomputed").fit(read(gram)), expected("rbf"))
    model = KernelPowerKMeans(K, kernel="precomputed", random_state=0, s0=-2.5).fit(read(gram))
    rows = KernelPowerKMeans(K, bandwidth=1.5, random_state=0, s0=-2.5).fit(X)
    assert model.inertia_ == pytest.approx(rows.inertia_, rel=1e-6)
    predicted = model.predict(read(gram))
    np.testing.assert_array_equal(computed(predicted), model.labels_)
    np.testing.assert_array_equal(computed(model.predict(gram[4:9])), model.labels_[4:9])
    assert model.score(read(gram)) == pytest.approx(-model.inertia_, rel=1e-9)


def test_predictions_for_new_rows_are_nearest_means():
    model = printed(bandwidth=1.5).fit(X)
    new = np.random.default_rng(9).normal(size=(30, P)) * 2 + 3.0
    z = new - X.mean(axis=0)
    together = np.vstack([CENTRED, z])
    W = np.vstack([model.memberships_, np.zeros((30, K))])
    distances = kernel_distances(KERNELS["rbf"][1](together), W)[N:]
    np.testing.assert_array_equal(model.predict(new), distances.argmin(axis=1))
    assert model.score(new) == pytest.approx(-distances.min(axis=1).sum(), rel=1e-10)


@pytest.mark.parametrize("cls", [KernelPowerKMeans, MultiKernelPowerKMeans])
def test_a_pickled_model_leaves_the_training_rows_behind(cls):
    model = quick(cls).fit(DATA)
    assert hasattr(model, "X_fit_")
    thawed = pickle.loads(pickle.dumps(model))
    assert not hasattr(thawed, "X_fit_")
    assert hasattr(model, "X_fit_")
    np.testing.assert_array_equal(thawed.labels_, model.labels_)
    for method in (thawed.predict, thawed.score):
        with pytest.raises(ValueError, match="without its training rows"):
            method(DATA)


@pytest.mark.parametrize("parameters", [{"n_landmarks": 30}, {"kernel": "precomputed"}])
def test_pickled_models_that_need_no_training_rows_predict(parameters):
    data = DATA if "n_landmarks" in parameters else np.exp(-squared(DATA, DATA) / 200)
    model = quick(**parameters).fit(data)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(data), model.labels_)


@pytest.mark.parametrize("name", ["landmarks", "kernel", "multi-kernel"])
def test_a_saved_model_comes_back(name, tmp_path):
    model = quick(MODELS[name]).fit(DATA)
    model.save(tmp_path / "model")
    loaded = daskmm.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.labels_, model.labels_)
    assert loaded.inertia_ == model.inertia_
    if name == "landmarks":
        np.testing.assert_array_equal(loaded.predict(DATA), model.labels_)
    else:
        with pytest.raises(ValueError, match="without its training rows"):
            loaded.predict(DATA)


@pytest.mark.parametrize("gram", ["auto", "recompute"])
def test_each_iteration_takes_one_sweep(gram):
    records = []
    model = printed(gram=gram, callbacks=[records.append]).fit(X)
    # The first look at the rows, and the scoring.
    assert model.n_passes_ == STEPS + 2
    assert [record.n_passes for record in records] == list(range(1, STEPS + 1))
    assert len(records) == model.n_iter_ == len(model.history_)


def test_a_fit_at_a_very_low_power_is_kernel_k_means():
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(200) < 0.5, TRUTH, rng.integers(4, size=200))
    model = KernelPowerKMeans(4, s0=-1e12, eta=1, init=labels).fit(DATA)
    gram = np.exp(-squared(DATA, DATA) / (2 * model.kernels_[0].bandwidth ** 2))
    previous = None
    while not np.array_equal(labels, previous):
        previous = labels
        labels = kernel_distances(gram, starting(labels, k=4)).argmin(axis=1)
    np.testing.assert_array_equal(model.labels_, labels)


def test_a_method_asked_before_fit_says_so():
    for model in (KernelPowerKMeans(), KernelPowerKMeans(n_landmarks=5), MultiKernelPowerKMeans()):
        with pytest.raises(NotFittedError):
            model.predict(DATA)
        with pytest.raises(NotFittedError):
            model.score(DATA)


def test_coincident_clusters_are_warned_of():
    rows = np.repeat(np.array([[0.0, 0.0], [5.0, 0.0]]), 10, axis=0)
    assert fit_recording(KernelPowerKMeans(4, bandwidth=1.0, random_state=0), rows)
    assert not fit_recording(KernelPowerKMeans(2, bandwidth=1.0, random_state=0), rows)


# Quality


def rings(seed):
    """Ten blobs on two circles."""
    rng = np.random.default_rng(seed)
    angles = 2 * np.pi * np.arange(5) / 5
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    truth = rng.integers(10, size=1000)
    return np.vstack([2 * circle, 5 * circle])[truth] + 0.35 * rng.normal(size=(1000, 2)), truth


@pytest.mark.long
def test_rings_are_told_apart_in_nine_of_ten_draws():
    found = []
    for seed in range(10):
        data, truth = rings(seed)
        model = KernelPowerKMeans(10, bandwidth=1.0, random_state=seed).fit(data)
        found.append(adjusted_rand_score(truth, model.labels_))
    assert sum(score >= 0.98 for score in found) >= 9, found


@pytest.mark.long
def test_rings_are_found_from_random_points_if_annealed():
    # Annealing begins hotter where starts are poor; kernel k-means takes the same starts.
    found = {-2.0: [], -1e12: []}
    for seed in range(10):
        data, truth = rings(seed)
        for s0, scores in found.items():
            model = KernelPowerKMeans(10, bandwidth=1.0, init="random", s0=s0, random_state=seed)
            scores.append(adjusted_rand_score(truth, model.fit(data).labels_))
    assert sum(score >= 0.98 for score in found[-2.0]) >= 9, found
    assert np.mean(found[-1e12]) < 0.95, found


def test_a_lazy_gram_matrix_is_not_gathered(monkeypatch):
    monkeypatch.setattr(daskmm.gram.precomputed, "MEMORY_BYTES", 0)
    lazy = da.from_array(GRAM, chunks=(16, 24))
    agrees(printed(kernel="precomputed").fit(lazy), expected("rbf"))
    model = KernelPowerKMeans(K, kernel="precomputed", random_state=0, s0=-2.5).fit(lazy)
    assert model.score(lazy) == pytest.approx(-model.inertia_)
    np.testing.assert_array_equal(model.predict(lazy).compute(), model.labels_)


def real(name):
    path = SHARED / "data" / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"needs {name}.npz in {SHARED}/data (or DASKMM_SHARED)")
    with np.load(path) as data:
        return data["X"], data["y"], len(np.unique(data["y"]))


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("name", "least"),
    [long("yale", 0.59), ("lung_small", 0.71), long("coil20", 0.78), long("isolet", 0.735)],
)
def test_kernel_power_k_means_is_as_good_as_the_paper_on_real_data(name, least):
    """As good as the paper, and at least as low as kernel k-means from the same starts."""
    data, truth, k = real(name)
    scores, wins = [], 0
    for seed in range(5):
        settings = {"n_clusters": k, "standardize": True, "random_state": seed}
        model = KernelPowerKMeans(**settings).fit(data)
        hard = KernelPowerKMeans(s0=-1e12, eta=1, polish=False, **settings).fit(data)
        scores.append(normalized_mutual_info_score(truth, model.labels_))
        wins += model.inertia_ <= hard.inertia_
        assert len(np.unique(model.labels_)) == k
    assert np.mean(scores) >= least
    assert wins >= 0.9 * len(scores)


@pytest.mark.parametrize(
    ("name", "least", "seeds"),
    [long("yale", 0.50, 5), long("orl", 0.77, 5), long("coil20", 0.77, 2)],
)
def test_multi_kernel_power_k_means_is_as_good_as_the_paper_on_real_data(name, least, seeds):
    data, truth, k = real(name)
    scores = [
        normalized_mutual_info_score(
            truth,
            MultiKernelPowerKMeans(k, standardize=True, random_state=seed).fit(data).labels_,
        )
        for seed in range(seeds)
    ]
    assert np.mean(scores) >= least


# Bad input

GRAM = KERNELS["rbf"][1](CENTRED)


def changed(row, column, value):
    spoiled = GRAM.copy()
    spoiled[row, column] = value
    return spoiled


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (changed(3, 17, 0.9), r"not symmetric.*\((3, 17|17, 3)\)"),
        (changed(5, 6, np.nan), r"NaN.*\(5, 6\)"),
        (changed(5, 6, np.inf), r"infinity.*\(5, 6\)"),
        (changed(8, 8, -0.5), r"negative diagonal.*-0\.5.*8"),
        (GRAM[:, :-1], r"square.*\(40, 39\)"),
        (GRAM[0], "1D|2D|dim"),
        (np.sqrt(squared(X, X)) * (1 - np.eye(len(X))), r"0 on its whole diagonal.*distances"),
        (np.zeros((40, 40)), r"Gram matrix is 0 on its whole diagonal"),
    ],
    ids=[
        "asymmetric",
        "NaN",
        "infinity",
        "negative diagonal",
        "not square",
        "1D",
        "distances",
        "0",
    ],
)
@pytest.mark.parametrize("read", [np.asarray, da.from_array], ids=["numpy", "dask"])
def test_a_precomputed_matrix_that_is_no_gram_matrix_is_refused(matrix, message, read):
    with pytest.raises(ValueError, match=message):
        KernelPowerKMeans(K, kernel="precomputed").fit(read(matrix))


def tilted(x, y):
    return np.exp(-squared(x, y + 0.5))


def apart(x, y):
    return np.sqrt(squared(x, y)) * (squared(x, y) > 1e-9)


@pytest.mark.parametrize("make", [KernelPowerKMeans, MultiKernelPowerKMeans])
@pytest.mark.parametrize("options", [{}, {"gram": "recompute"}, {"gram": "store"}])
def test_functions_that_are_no_kernels_are_refused_by_name(make, options, tmp_path):
    options = {name: tmp_path / "gram" if how == "store" else how for name, how in options.items()}
    name = "kernel" if make is KernelPowerKMeans else "kernels"
    own = {name: tilted if name == "kernel" else ["rbf", tilted]}
    with pytest.raises(ValueError, match=r"'tilted' is not symmetric: k\(x, y\) = .* k\(y, x\) = "):
        make(K, **own, **options).fit(X)
    own = {name: apart if name == "kernel" else ["rbf", apart]}
    with pytest.raises(ValueError, match=r"'apart' is 0 for each row with itself"):
        make(K, **own, **options).fit(X)


@pytest.mark.parametrize("function", [tilted, apart])
def test_functions_that_are_no_kernels_are_refused_among_landmarks(function):
    with pytest.raises(ValueError, match=f"kernel '{function.__name__}' is"):
        KernelPowerKMeans(K, kernel=function, n_landmarks=10).fit(X)


@pytest.mark.parametrize("n_landmarks", [None, 5])
def test_rows_that_coincide_in_feature_space_are_refused_in_words(n_landmarks):
    with pytest.raises(ValueError, match="kernel is 0 for each row with itself"):
        KernelPowerKMeans(2, kernel="linear", n_landmarks=n_landmarks).fit(np.ones((30, 3)))


def test_kernel_values_of_other_rows_are_refused():
    model = printed(kernel="precomputed").fit(GRAM)
    with pytest.raises(ValueError, match="39 features"):
        model.predict(GRAM[:, :-1])
    with pytest.raises(ValueError, match="NaN"):
        model.predict(changed(2, 5, np.nan))


@pytest.mark.parametrize("gram", ["auto", "recompute", "stored"])
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda x, y: np.where(squared(x, y) > 30, np.nan, 1.0), "returned (NaN|nan)"),
        (lambda x, y: np.full((len(x), len(y)), np.nan), "returned (NaN|nan)"),
        (lambda x, y: np.ones((len(x), len(y) + 1)), "shape"),
        (lambda x, y: np.ones(len(x)), "shape"),
        (lambda x, y: -np.ones((len(x), len(y))), "diagonal"),
        (lambda x, y: "nothing", "could not convert"),
    ],
    ids=["NaN", "all NaN", "columns", "1D", "negative", "text"],
)
def test_a_kernel_with_values_that_are_no_kernel_is_refused(
    kernel, message, gram, small_tiles, tmp_path
):
    assert squared(X, X).max() > 30
    gram = tmp_path / "gram" if gram == "stored" else gram
    with pytest.raises(ValueError, match=message):
        printed(kernel=kernel, gram=gram).fit(X)


def test_a_kernel_that_returns_nan_to_landmarks_is_refused():
    def kernel(x, y):
        return np.where(squared(x, y) > 30, np.nan, np.exp(-squared(x, y)))

    with pytest.raises(ValueError, match=r"kernel .*(NaN|nan|finite)"):
        KernelPowerKMeans(K, kernel=kernel, n_landmarks=20).fit(X)


def test_more_landmarks_than_rows_are_refused():
    with pytest.raises(ValueError, match=r"n_landmarks=41.*40"):
        KernelPowerKMeans(K, n_landmarks=41).fit(X)


@pytest.mark.parametrize(
    "labels",
    [
        LABELS[:-1],
        np.r_[LABELS, 0],
        LABELS.astype(float),
        LABELS.astype(str),
        np.minimum(LABELS, 1),
        LABELS + 1,
        LABELS - 1,
        LABELS[:, None],
        CENTRED[:K],
    ],
    ids=["short", "long", "floats", "text", "missing", "from 1", "negative", "column", "centres"],
)
@pytest.mark.parametrize("cls", [KernelPowerKMeans, MultiKernelPowerKMeans])
def test_labels_that_cannot_be_a_start_are_refused(cls, labels):
    with pytest.raises(ValueError, match="init must"):
        cls(K, init=labels).fit(X)


def test_labels_whose_rows_have_no_weight_cannot_be_a_start():
    with pytest.raises(ValueError, match=r"init|sample_weight"):
        KernelPowerKMeans(K, init=LABELS).fit(X, sample_weight=(LABELS > 0).astype(float))


@pytest.mark.parametrize(
    "parameters",
    [
        {"kernel": "gaussian"},
        {"kernel": 3},
        {"bandwidth": 0},
        {"bandwidth": -1.0},
        {"bandwidth": np.nan},
        {"bandwidth": "wide"},
        {"degree": 0},
        {"coef0": np.inf},
        {"init": "k-means||"},
        {"n_landmarks": 0},
        {"n_landmarks": "many"},
        {"n_landmarks": 2.5},
        {"gram": None},
        {"s0": 1.0},
        {"eta": 0.9},
    ],
    ids=str,
)
def test_bad_parameters_are_refused_by_name(parameters):
    (name,) = parameters
    with pytest.raises(ValueError, match=f"'?{name}'? .*must"):
        KernelPowerKMeans(K, **parameters).fit(X)


@pytest.mark.parametrize(
    "kernels",
    [
        [],
        ["gaussian"],
        [None],
        [3],
        [{"bandwidth": 1.0}],
        [{"kernel": "gaussian"}],
        [{"kernel": "rbf", "gamma": 1.0}],
        [{"kernel": "rbf", "bandwidth": 0}],
        [{"kernel": "rbf", "bandwidth": -1.0}],
        [{"kernel": "rbf", "bandwidth": np.nan}],
        [{"kernel": "rbf", "bandwidth": "auto"}],
        [{"kernel": "polynomial", "degree": -2}],
        ["precomputed"],
        "rbf",
    ],
    ids=str,
)
def test_bad_kernels_are_refused(kernels):
    with pytest.raises(ValueError, match="kernels"):
        MultiKernelPowerKMeans(K, kernels=kernels).fit(X)


@pytest.mark.parametrize("lam", [0, -1.0, np.nan, "auto"])
def test_bad_penalties_are_refused(lam):
    with pytest.raises(ValueError, match="lam"):
        MultiKernelPowerKMeans(K, lam=lam).fit(X)


@pytest.mark.parametrize("parameters", [{}, {"n_landmarks": 10}, {"kernel": "precomputed"}])
def test_more_clusters_than_rows_are_refused(parameters):
    data = GRAM if "kernel" in parameters else X
    with pytest.raises(ValueError, match="n_samples=40 should be >= n_clusters=41"):
        KernelPowerKMeans(41, **parameters).fit(data)


@pytest.mark.parametrize("parameters", [{}, {"n_landmarks": 10}, {"kernel": "precomputed"}])
@pytest.mark.parametrize(
    "weights",
    [
        np.r_[np.ones(2), np.zeros(N - 2)],
        np.zeros(N),
        -np.ones(N),
        np.full(N, np.nan),
        np.ones(N - 1),
    ],
    ids=["few positive", "zeros", "negative", "NaN", "short"],
)
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_bad_sample_weights_are_refused(parameters, weights, init):
    data = GRAM if "kernel" in parameters else X
    with pytest.raises(ValueError, match=r"[Ss]ample.?weight"):
        KernelPowerKMeans(K, init=init, **parameters).fit(data, sample_weight=weights)


@pytest.mark.parametrize("parameters", [{"kernel": "precomputed"}, {"init": LABELS}])
def test_landmarks_need_rows_and_their_own_start(parameters):
    with pytest.raises(ValueError, match="n_landmarks needs rows"):
        KernelPowerKMeans(K, n_landmarks=10, **parameters).fit(GRAM)


def test_a_store_of_another_matrix_is_refused_and_kept(tmp_path):
    path = tmp_path / "gram"
    first = KernelPowerKMeans(K, bandwidth=1.5, gram=path, random_state=0).fit(X)
    files = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    for parameters, data, message in [
        ({"bandwidth": 2.0}, X, "bandwidth is 1.5 there and 2.0 here"),
        ({"kernel": "laplacian", "bandwidth": 1.5}, X, "kernel's name is rbf there"),
        ({"bandwidth": 1.5}, X + np.eye(N, P), "data have changed"),
        ({"bandwidth": 1.5}, X[:-1], "n_rows is 40 there and 39 here"),
    ]:
        with pytest.raises(GramStoreError, match=message):
            KernelPowerKMeans(K, gram=path, **parameters).fit(data)
    assert files == {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    again = KernelPowerKMeans(K, bandwidth=1.5, gram=str(path), random_state=0).fit(X)
    np.testing.assert_array_equal(again.objective_history_, first.objective_history_)


def test_a_path_that_holds_something_else_is_refused_and_kept(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises((GramStoreError, OSError), match=r"notes\.txt"):
        KernelPowerKMeans(K, gram=path).fit(X)
    assert path.read_text() == "mine"


@pytest.mark.in_turn("value")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@each_model
def test_rows_that_are_not_finite_are_refused_by_number(name, value):
    spoiled = DATA.copy()
    spoiled[150, 2] = value
    with pytest.raises(ValueError, match="row 150"):
        quick(MODELS[name]).fit(spoiled)
    model = quick(MODELS[name]).fit(DATA)
    with pytest.raises(ValueError, match="row 150"):
        model.predict(spoiled)
    with pytest.raises(ValueError, match="row 150"):
        model.score(spoiled)


def test_sweeps_run_on_a_distributed_cluster(tmp_path, monkeypatch, request):
    monkeypatch.setattr(sources, "build", functools.partial(build, tile_rows=64))
    rng = np.random.default_rng(0)
    data = rng.normal(size=(200, 4)) + 5 * rng.integers(0, 3, (200, 1))
    lazy = da.from_array(data, chunks=(50, 2))
    options = {"n_clusters": 3, "random_state": 0}
    here = KernelPowerKMeans(gram=str(tmp_path / "here"), **options).fit(data)
    request.getfixturevalue("local_client")
    for gram in (str(tmp_path / "there"), "recompute"):
        there = KernelPowerKMeans(gram=gram, **options).fit(lazy)
        np.testing.assert_array_equal(there.labels_, here.labels_)
        np.testing.assert_allclose(there.inertia_, here.inertia_, rtol=1e-6)


def test_many_rows_go_to_landmarks_unless_the_matrix_is_asked_for(monkeypatch):
    monkeypatch.setattr("daskmm.cluster.kernel.EXACT_ROWS", len(DATA) - 1)
    model = quick().fit(DATA)
    same = quick(n_landmarks=40).fit(DATA)
    np.testing.assert_array_equal(model.labels_, same.labels_)
    assert model.landmarks_.shape == same.landmarks_.shape
    assert model.plan(DATA).gram_bytes is None
    for parameters in ({"gram": "recompute"}, {"n_landmarks": None}, {"init": TRUTH}):
        exact = clone(model).set_params(**parameters).fit(DATA)
        assert not hasattr(exact, "landmark_centers_")
    # A fit of the other kind leaves nothing behind.
    model.set_params(n_landmarks=None).fit(DATA)
    assert set(vars(model)) == set(vars(quick(n_landmarks=None).fit(DATA)))
    model.set_params(n_landmarks="auto").fit(DATA)
    assert set(vars(model)) == set(vars(same))
    frame = dd.from_dask_array(da.from_array(DATA, chunks=(60, -1)))
    counted = quick().fit(frame)
    assert counted.n_passes_ == same.n_passes_
    np.testing.assert_allclose(counted.landmarks_, same.landmarks_, rtol=1e-12)


def test_a_plan_with_landmarks_counts_passes_over_the_rows():
    data = da.zeros((10_000, 4), chunks=(1000, 4))
    plan = KernelPowerKMeans(3, n_landmarks=30).plan(data)
    assert plan.gram_bytes is None
    assert (plan.n_blocks, plan.bytes_per_pass) == (10, data.nbytes)
    assert KernelPowerKMeans(3).plan(data).gram_bytes > 0
