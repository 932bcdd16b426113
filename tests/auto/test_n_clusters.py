"""The number of clusters, chosen without labels."""

import warnings

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from _support import ESTIMATORS, CountingSource, blobs, computed, n_examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans, load, plot
from daskmm.auto.scattered import scattered
from daskmm.selection import choose_n_clusters

X, TRUTH = blobs(900, 4, 6, seed=5)


def mixture(k, p, n=1200, seed=0, apart=6.0, noise=0):
    """Clusters of unit variance whose centres are at least so far apart."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(k, p))
    distances = np.linalg.norm(centers[:, None] - centers, axis=2)[~np.eye(k, dtype=bool)]
    centers *= apart / distances.min()
    rows = centers[rng.integers(k, size=n)] + rng.normal(size=(n, p))
    return np.column_stack([rows, rng.normal(size=(n, noise))])


# The choice.


@pytest.mark.parametrize(
    ("k", "p", "noise", "apart"),
    [
        *((2, 1, 0, 9), (3, 5, 10, 6), (10, 20, 0, 6)),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((2, 2, 0, 6), (10, 5, 0, 4), (5, 20, 0, 4))
        ),
    ],
)
def test_the_number_of_clusters_of_a_mixture_is_found(k, p, noise, apart):
    rows = mixture(k, p, seed=k, noise=noise, apart=apart)
    path = choose_n_clusters(rows, max_clusters=20, random_state=0)
    assert path.n_clusters == k
    np.testing.assert_array_equal(path.numbers, np.arange(2, len(path.numbers) + 2))
    np.testing.assert_array_equal(path.overlaps < 1, path.numbers <= k)


def test_clusters_that_no_gap_divides_count_as_one():
    rows = mixture(2, 5, seed=0, apart=2.0)
    assert choose_n_clusters(rows, random_state=0).n_clusters == 1


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize("kind", ["ellipses", "tails", "sizes"])
def test_shape_spread_and_size_of_clusters_do_not_change_their_number(kind):
    rng = np.random.default_rng(1)
    truth = rng.choice(5, size=3000, p=np.geomspace(1, 20, 5) / np.geomspace(1, 20, 5).sum())
    noise = rng.standard_t(3, (3000, 8)) if kind == "tails" else rng.normal(size=(3000, 8))
    if kind != "sizes":
        truth = rng.integers(5, size=3000)
    if kind == "ellipses":
        for cluster in range(5):
            turn = np.linalg.qr(rng.normal(size=(8, 8)))[0] * np.geomspace(0.1, 3, 8)
            noise[truth == cluster] = noise[truth == cluster] @ turn.T
    rows = 15 * np.eye(8)[truth] + noise
    assert choose_n_clusters(rows, random_state=0).n_clusters == 5


@pytest.mark.long
@given(st.integers(0, 10_000), st.integers(0, 3), st.sampled_from([0.125, 2.0, 64.0]))
@settings(max_examples=n_examples(6), deadline=None)
def test_order_of_the_rows_and_units_of_a_column_change_nothing(seed, column, unit):
    order = np.random.default_rng(seed).permutation(len(X))
    rows = X[order].copy()
    rows[:, column] *= unit
    assert choose_n_clusters(rows, random_state=seed).n_clusters == 6


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, scipy.sparse.csr_array])
def test_numbers_do_not_depend_on_the_type_of_the_rows(dtype):
    rows = dtype(X) if dtype is scipy.sparse.csr_array else X.astype(dtype)
    assert KMeans("auto", random_state=0).fit(rows).n_clusters_ == 6


@pytest.mark.in_turn("p")
@pytest.mark.parametrize("kind", ["gaussian", "uniform", "t3", "correlated"])
@pytest.mark.parametrize("p", [2, 30])
def test_noise_has_no_clusters(kind, p):
    rng = np.random.default_rng(p)
    rows = {
        "gaussian": lambda: rng.normal(size=(1000, p)),
        "uniform": lambda: rng.uniform(size=(1000, p)),
        "t3": lambda: rng.standard_t(3, size=(1000, p)),
        "correlated": lambda: rng.normal(size=(1000, p)) @ rng.normal(size=(p, p)),
    }[kind]()
    path = choose_n_clusters(rows, max_clusters=20, random_state=0)
    assert path.n_clusters == 1
    assert (path.overlaps >= 1).all()


def test_one_far_row_is_no_cluster_and_two_far_ones_hide_none():
    rows = np.vstack([mixture(4, 3), [[1e4, 0, 0], [0, 1e4, 0]]])
    assert choose_n_clusters(rows, max_clusters=12, random_state=0).n_clusters == 4
    noise = np.vstack([np.random.default_rng(0).normal(size=(800, 3)), [[1e4, 0, 0]]])
    assert choose_n_clusters(noise, max_clusters=12, random_state=0).n_clusters == 1


@pytest.mark.in_turn("sides")
@pytest.mark.parametrize("sides", ["both", "one"])
@pytest.mark.parametrize("n_far", [10, pytest.param(50, marks=pytest.mark.long)])
def test_a_few_far_rows_do_not_change_the_number(n_far, sides):
    rng = np.random.default_rng(n_far)
    rows = rng.normal(size=(2000, 3))
    rows[:, :2] += 8.0 * np.array([[0, 0], [0, 1], [1, 0], [1, 1]])[rng.integers(4, size=2000)]
    distances = rng.uniform(20, 100, n_far) * rows[:, 0].std()
    rows[:n_far, 0] += distances * (1 if sides == "one" else rng.choice([-1, 1], n_far))
    assert choose_n_clusters(rows, random_state=0).n_clusters == 4


def test_scattered_rows_are_few_and_far_from_each_other():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 3))
    rows[:20] *= rng.uniform(20, 100, 20)[:, None]
    rows[20:60] += 50.0
    ones = np.ones(len(rows))
    found = scattered(rows, ones)
    assert found[:20].mean() > 0.9
    assert not found[20:].any()
    assert not scattered(rng.standard_t(1, size=(2000, 3)), ones).any()
    assert not scattered(np.repeat(rows[:1], 100, axis=0), ones[:100]).any()


@pytest.mark.in_turn("cls")
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_fits_choose_their_number(cls, tmp_path):
    model = cls("auto", n_init=2, random_state=0).fit(X)
    assert model.n_clusters_ == model.n_clusters_path_.n_clusters == 6
    assert model.cluster_centers_.shape == (6, 4)
    assert adjusted_rand_score(TRUTH, model.labels_) > 0.99
    given_it = cls(6, n_init=2, random_state=0).fit(X)
    assert given_it.n_clusters_ == 6
    assert not hasattr(given_it, "n_clusters_path_")
    assert model.n_passes_ == given_it.n_passes_
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.n_clusters_path_.overlaps, model.n_clusters_path_.overlaps)
    np.testing.assert_array_equal(again.predict(X), model.labels_)
    # Another fit of the same model knows nothing of the first.
    fresh = clone(model).fit(X[:300] * 2)
    other = model.fit(X[:300] * 2)
    np.testing.assert_array_equal(fresh.cluster_centers_, other.cluster_centers_)


@pytest.mark.in_turn("cls")
@pytest.mark.parametrize("cls", [KMeans, EntropyPowerKMeans])
def test_streamed_fits_choose_without_reading(cls):
    source = CountingSource(X)
    model = cls("auto", sample_size=300, random_state=0).fit(source.as_dask((250, -1)))
    assert set(source.reads.values()) == {model.n_passes_}
    assert model.n_clusters_ == 6
    whole = cls("auto", sample_size=300, random_state=0).fit(X)
    path, other = model.n_clusters_path_, whole.n_clusters_path_
    np.testing.assert_allclose(path.overlaps, other.overlaps)
    np.testing.assert_array_equal(computed(model.labels_), whole.labels_)


@pytest.mark.in_turn("cls")
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_fit_without_clusters_warns(cls):
    noise = np.random.default_rng(0).normal(size=(500, 3))
    with pytest.warns(UserWarning, match="No clusters were found"):
        model = cls("auto", n_init=1, random_state=0).fit(noise)
    assert model.n_clusters_ == 1
    np.testing.assert_array_equal(model.labels_, 0)
    np.testing.assert_allclose(model.cluster_centers_[0], noise.mean(axis=0), atol=1e-9)


@pytest.mark.long
def test_clusters_of_a_few_features_are_counted_among_noise():
    rng = np.random.default_rng(3)
    told = rng.uniform(size=(8, 4))[rng.integers(8, size=1600)] + 0.02 * rng.normal(size=(1600, 4))
    rows = np.column_stack([told, rng.normal(size=(1600, 30))])
    model = EntropyPowerKMeans("auto", n_init=2, random_state=0).fit(rows)
    assert model.n_clusters_ == 8


def test_few_or_equal_rows_give_a_possible_number():
    for n in (1, 2, 3, 7):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = KMeans("auto", random_state=0).fit(np.arange(2.0 * n).reshape(n, 2) ** 2)
        assert 1 <= model.n_clusters_ <= max(1, n - 1)
    path = choose_n_clusters(np.ones((50, 3)), random_state=0)
    assert path.n_clusters == 1
    with pytest.warns(UserWarning, match="No clusters were found"):
        model = EntropyPowerKMeans("auto").fit(np.ones((50, 3)))
    assert model.n_clusters_ == 1


def test_weights_lazy_rows_and_missing_values_are_accepted():
    weights = np.random.default_rng(0).integers(0, 3, len(X))
    path = choose_n_clusters(X, max_clusters=12, sample_weight=weights, random_state=0)
    assert path.n_clusters == 6
    assert path.n_rows == np.count_nonzero(weights)
    lazy = choose_n_clusters(da.from_array(X, chunks=(100, 2)), max_clusters=12, random_state=0)
    here = choose_n_clusters(X, max_clusters=12, random_state=0)
    np.testing.assert_allclose(lazy.overlaps, here.overlaps)


@pytest.mark.in_turn("share")
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_missing_values_hide_no_clusters_and_make_none(share):
    rng = np.random.default_rng(1)
    holes = np.where(rng.random(X.shape) < share, np.nan, X)
    holes = holes[~np.isnan(holes).all(axis=1)]
    model = PowerKMeans("auto", missing="partial", n_init=1, random_state=0).fit(holes)
    assert model.n_clusters_ == 6
    noise = np.where(rng.random((900, 4)) < share, np.nan, rng.normal(size=(900, 4)))
    noise = noise[~np.isnan(noise).all(axis=1)]
    with pytest.warns(UserWarning, match="No clusters"):
        KMeans("auto", missing="partial", n_init=1, random_state=0).fit(noise)


def test_bad_parameters_are_refused_by_name():
    for bad in ({"max_clusters": 1}, {"sample_size": 1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            choose_n_clusters(X, **bad)
    for weights in (np.ones(3), -np.ones(4), [np.nan] * 4):
        with pytest.raises(ValueError, match="feature_weights must be 4 numbers"):
            choose_n_clusters(X, feature_weights=weights)
    with pytest.raises(ValueError, match="n_clusters='auto'"):
        KMeans("auto", init=X[:3]).fit(X)
    with pytest.raises(ValueError, match="n_clusters"):
        KMeans("some").fit(X)


def test_the_path_is_drawn(tmp_path):
    path = choose_n_clusters(X, max_clusters=10, random_state=0)
    figure = plot.n_clusters_path(path)
    figure.savefig(tmp_path / "path.png")
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), path.overlaps)
    assert figure.axes[0].get_title().startswith("6 clusters among 900 rows")
    noise = choose_n_clusters(np.random.default_rng(0).normal(size=(300, 2)), max_clusters=4)
    assert plot.n_clusters_path(noise).axes[0].get_title().startswith("no clusters")


# Ranges.


def test_a_number_at_the_end_of_the_range_is_said_to_be_one():
    rows = mixture(14, 5, n=700, seed=1)
    path = choose_n_clusters(rows, random_state=0)
    assert path.n_clusters == 14
    assert not path.at_end
    bound = choose_n_clusters(rows, max_clusters=9, random_state=0)
    assert bound.n_clusters == bound.numbers.max() == 9
    assert bound.at_end
    assert repr(bound).startswith("<ClusterNumberPath: 9 clusters of 700 rows, among 9 numbers, at")
    with pytest.warns(UserWarning, match=r"chose 9, at the end .* raise max_clusters"):
        model = KMeans("auto", max_clusters=9, random_state=0).fit(rows)
    assert model.n_clusters_ == 9
    few = mixture(24, 5, n=480, seed=1, apart=12.0)
    with pytest.warns(UserWarning, match=r"raise sample_size, as 480 rows are too few for more"):
        KMeans("auto", random_state=0).fit(few)
    with pytest.raises(ValueError, match="max_clusters"):
        KMeans("auto", max_clusters=1).fit(rows)


@pytest.mark.long
def test_two_hundred_separated_clusters_are_counted():
    # 40 rows on average; of 30 the smallest clusters, of some 15, are missed.
    rows = mixture(200, 10, n=8000, apart=10.0)
    assert choose_n_clusters(rows, random_state=0).n_clusters == 200


@pytest.mark.in_turn("case")
@pytest.mark.parametrize("case", [(30, 4), (50, 4), (50, 10), (60, 2)])
def test_equal_rows_are_one_cluster_each(case):
    n_points, p = case
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n_points, p))[rng.integers(n_points, size=2000)]
    path = choose_n_clusters(rows, random_state=0)
    assert path.n_clusters == path.numbers.max() == n_points
    assert not path.at_end


# Features with few values.


def number_for_flags(p, share, seed):
    rows = np.random.default_rng([seed, p]).random((2000, p)) < share
    return choose_n_clusters(rows.astype(float), random_state=seed).n_clusters


@pytest.mark.parametrize(
    ("p", "share"),
    [(5, 0.5), *(pytest.param(p, 0.1, marks=pytest.mark.long) for p in (10, 20))],
)
def test_independent_flags_have_no_clusters(p, share):
    assert number_for_flags(p, share, seed=0) == 1


@pytest.mark.long
@pytest.mark.parametrize(("p", "draws"), [(5, 3), (10, 3), (20, 3), (50, 1), (100, 1), (200, 1)])
def test_independent_flags_of_any_number_have_no_clusters(p, draws):
    numbers = {number_for_flags(p, share, seed) for share in (0.1, 0.5) for seed in range(draws)}
    assert numbers == {1}


@pytest.mark.long
@pytest.mark.parametrize("unit", [1.0, 0.1])
def test_steps_between_whole_numbers_are_no_gaps(unit):
    rng = np.random.default_rng(0)
    even = rng.integers(60, size=(2000, 2)) * unit
    assert choose_n_clusters(even, random_state=0).n_clusters == 1
    assert choose_n_clusters(even[:, :1].astype("f4"), random_state=0).n_clusters == 1
    apart = np.array([[20, 50], [60, 50], [40, 90]])[rng.integers(3, size=2000)]
    rows = np.round(apart + rng.normal(0, 4, size=(2000, 2))) * unit
    assert choose_n_clusters(rows, random_state=0).n_clusters == 3


@pytest.mark.long
def test_clusters_of_equal_values_are_counted_beside_a_column_of_whole_numbers():
    rng = np.random.default_rng(0)
    weeks = rng.choice([0, 26, 52], size=2000, p=[0.5, 0.1, 0.4])
    weeks = np.where(rng.random(2000) < 0.05, rng.integers(53, size=2000), weeks)
    rows = np.column_stack([rng.integers(18, 80, size=2000), weeks]).astype(float)
    assert choose_n_clusters(rows, random_state=0).n_clusters == 3


def test_flags_that_depend_on_classes_have_clusters():
    rng = np.random.default_rng(0)
    chances = np.where(rng.random((4, 40)) < 0.5, 0.1, 0.9)
    rows = rng.random((2000, 40)) < chances[rng.integers(4, size=2000)]
    assert choose_n_clusters(rows.astype(float), random_state=0).n_clusters == 4
