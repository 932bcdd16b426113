"""Hard steps that leave out the rows farthest from their centres."""

import dask.array as da
import numpy as np
import pytest
from _support import ESTIMATORS, blobs, computed, quick
from hypothesis import given, settings
from hypothesis import strategies as st

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.data.blocks import row_blocks
from daskmm.engine.moments import Sample
from daskmm.engine.passes import Passes, weighted_passes
from daskmm.kmeans import trimming
from daskmm.kmeans.near_rows import near_rows
from daskmm.kmeans.seeding import greedy_rows
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trimming import trimmed_sums
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN
from daskmm.numerics.rows import Coordinates


def contaminated(seed, n=4750, k=6, p=5, separation=3.5):
    """Normal clusters whose centres are so far apart, then 5 % uniform noise; true centres."""
    rng = np.random.default_rng(seed)
    centers = []
    while len(centers) < k:
        center = rng.normal(size=p) * separation
        if all(np.linalg.norm(center - other) >= separation for other in centers):
            centers.append(center)
    rows = np.array(centers)[rng.integers(k, size=n)] + rng.normal(size=(n, p))
    noise = rng.uniform(rows.min(axis=0), rows.max(axis=0), (n // 19, p))
    return rows, np.vstack([rows, noise]), np.array(centers)


def errors(centers, found):
    """Distance of each centre to the nearest one that was found."""
    return np.linalg.norm(centers[:, None] - found, axis=2).min(axis=1)


@pytest.mark.in_turn("cls")
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_centres_of_contaminated_rows_are_those_of_clean_ones(cls):
    rows, both, centers = contaminated(seed=0)
    settings = {"standardize": False, "random_state": 0}
    clean = KMeans(6, init=centers, standardize=False).fit(rows).cluster_centers_
    assert errors(clean, cls(6, **settings).fit(both).cluster_centers_).max() > 0.1
    trimmed = cls(6, **settings, trim=0.05).fit(both)
    assert errors(clean, trimmed.cluster_centers_).max() < 0.05
    assert trimmed.cluster_sizes_.sum() == pytest.approx(0.95 * len(both), rel=1e-12)
    streamed = cls(6, **settings, trim=0.05).fit(da.from_array(both, chunks=(800, -1)))
    assert errors(clean, streamed.cluster_centers_).max() < 0.05


@pytest.mark.parametrize("share", [0.05, 0.3, 1 / 7])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gathered", [False, True])
def test_sums_are_those_of_the_nearest_rows(share, weighted, gathered, monkeypatch):
    monkeypatch.setattr(trimming, "_GATHERED_BYTES", 1000 * gathered)
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(size=(501, 3)), rng.normal(size=(4, 3))
    weights = rng.integers(0, 4, 501).astype(float) if weighted else np.ones(501)
    state = CenterState(centers, -np.inf)
    passes = weighted_passes(da.from_array(rows, chunks=(100, -1)), weights if weighted else None)
    ((found, _),) = trimmed_sums(passes, Coordinates.identity(3), [state], share)
    # Weights do not say how many rows would be gathered.
    assert passes.n_passes == (2 if gathered and not weighted else 3)
    squares = np.square(rows[:, None] - centers).sum(axis=2)
    labels, nearest = squares.argmin(axis=1), squares.min(axis=1)
    left, counts, sums, cost = (1 - share) * weights.sum(), np.zeros(4), np.zeros((4, 3)), 0.0
    for i in np.argsort(nearest):
        part = min(left, weights[i])
        left -= part
        counts[labels[i]] += part
        sums[labels[i]] += part * rows[i]
        cost += part * nearest[i]
    np.testing.assert_allclose(found.weights, counts, rtol=1e-9)
    np.testing.assert_allclose(found.sums, sums, rtol=1e-9, atol=1e-9)
    assert found.inertia == pytest.approx(cost, rel=1e-9)


def test_rows_at_one_distance_share_what_is_left():
    rows = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    passes = Passes(row_blocks(rows))
    ((found, _),) = trimmed_sums(
        passes, Coordinates.identity(1), [CenterState(np.zeros((1, 1)), -np.inf)], 0.5
    )
    assert found.weights[0] == pytest.approx(2.0)
    assert found.sums[0, 0] == pytest.approx(0.0)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_trimmed_fits_descend_and_do_not_depend_on_chunks(cls):
    X, _ = blobs(400)
    model = quick(cls, trim=0.1, init=X[:4]).fit(X)
    hard = np.array([record.objective for record in model.history_ if np.isinf(record.s)])
    assert (np.diff(hard) <= 1e-9 * np.abs(hard[:-1])).all()
    for rows in (57, 200):
        again = quick(cls, trim=0.1, init=X[:4], sample_size=None).fit(
            da.from_array(X, chunks=(rows, -1))
        )
        np.testing.assert_allclose(again.cluster_centers_, model.cluster_centers_, rtol=1e-9)
        np.testing.assert_array_equal(computed(again.labels_), model.labels_)


@pytest.mark.parametrize("distortion", ["kl", "cosine", "mahalanobis", "manhattan"])
def test_every_distortion_can_be_trimmed(distortion):
    X = np.abs(blobs(300)[0]) + 1.0
    model = KMeans(4, distortion=distortion, trim=0.1, random_state=0).fit(X)
    assert model.cluster_sizes_.sum() == pytest.approx(270, rel=1e-9)
    assert model.inertia_ < -model.score(X)


@pytest.mark.parametrize("trim", [-0.1, 1.0, "auto"])
def test_values_of_trim_that_are_no_share_are_refused(trim):
    with pytest.raises(ValueError, match="'trim' parameter"):
        KMeans(2, trim=trim).fit(np.eye(5))


def with_far_rows(seed, n=3000, n_far=12, p=4):
    """Four clusters at corners, then rows 20 to 100 standard deviations away; their mask."""
    rng = np.random.default_rng(seed)
    corners = 8.0 * np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    rows = rng.normal(size=(n, p))
    rows[:, :2] += corners[rng.integers(4, size=n)]
    away = rng.normal(size=(n_far, p))
    away *= rng.uniform(20, 100, n_far)[:, None] * 4.0 / np.linalg.norm(away, axis=1)[:, None]
    return np.vstack([rows, away]), np.arange(n + n_far) >= n


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**20), n_far=st.integers(1, 40), weighted=st.booleans())
def test_no_seed_is_a_far_row_if_their_share_is_trimmed(seed, n_far, weighted):
    rows, far = with_far_rows(seed, 400, n_far)
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2.0, len(rows)) if weighted else np.ones(len(rows))
    share = weights[far].sum() / weights.sum()
    seeds = greedy_rows(rows, weights, 4, seed, SQUARED_EUCLIDEAN, share)
    assert not (rows[far][:, None] == seeds).all(axis=2).any()
    near = near_rows(Sample(rows, weights), 4, share, seed, SQUARED_EUCLIDEAN)
    assert not near[far].any()
    assert weights[near].sum() >= (1 - share) * weights.sum() * (1 - 1e-12)


@pytest.mark.in_turn("cls")
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans, EntropyPowerKMeans])
@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_far_rows_get_no_centre_of_their_own_if_trimmed(cls, init):
    rows, far = with_far_rows(seed=1)
    model = quick(cls, init=init, trim=0.01, n_init=2).fit(rows)
    assert np.abs(model.cluster_centers_).max() < 10
    labels = model.predict(rows, outliers=0.02)
    assert (labels[far] == -1).all()
    assert np.mean(labels == -1) == pytest.approx(0.02, abs=0.002)


def test_feature_weights_are_those_without_far_rows_if_trimmed():
    rows, far = with_far_rows(seed=2)
    rows[far, 1:] = rows[: far.sum(), 1:]  # far in one feature
    options = {"lam": "0.5*variance", "n_init": 2, "random_state": 0}
    clean = EntropyPowerKMeans(4, **options).fit(rows[~far])
    trimmed = EntropyPowerKMeans(4, **options, trim=0.01).fit(rows)
    np.testing.assert_allclose(trimmed.scale_, clean.scale_, rtol=0.05)
    np.testing.assert_allclose(trimmed.feature_weights_, clean.feature_weights_, atol=0.02)
    raw = EntropyPowerKMeans(4, **options).fit(rows)
    assert np.abs(raw.feature_weights_ - clean.feature_weights_).max() > 0.1


@pytest.mark.parametrize("chunks", [None, 7])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("distortion", ["kl", "logistic"])
def test_rows_that_are_infinitely_far_can_be_left_out(distortion, weighted, chunks):
    X = np.repeat([[0.5, 0.0], [0.25, 0.0], [0.5, 0.75]], [30, 20, 4], axis=0)
    data = X if chunks is None else da.from_array(X, chunks=(chunks, -1))
    init, weights = X[[0, 30]], np.full(len(X), 2.0) if weighted else None
    model = KMeans(2, init=init, distortion=distortion, trim=0.1, standardize=False)
    model.fit(data, sample_weight=weights)
    assert model.inertia_ == pytest.approx(0.0, abs=1e-9)
    kept = 0.9 * len(X) * (2.0 if weighted else 1.0)
    assert model.cluster_sizes_.sum() == pytest.approx(kept)
    assert np.isfinite(model.objective_history_[-1])


def test_feature_weights_follow_from_the_rows_that_are_kept():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)) + [[4.0, 0.0, 0.0]] * rng.integers(2, size=(400, 1))
    model = EntropyPowerKMeans(2, lam=1.0, trim=0.25, standardize=False, tol=1e-9, random_state=0)
    model.fit(X)
    squares = np.square(X - model.cluster_centers_[model.labels_])
    own = np.argsort(squares @ model.feature_weights_)[:300]
    weights = np.exp(-squares[own].mean(axis=0))
    np.testing.assert_allclose(model.feature_weights_, weights / weights.sum(), rtol=1e-5)
    before = model.feature_weights_.copy()
    np.testing.assert_allclose(model.partial_fit(X).feature_weights_, before, rtol=1e-3)
