"""Tables of centres, and names of clusters."""

import pickle

import numpy as np
import pandas as pd
import pytest
from _support import ESTIMATORS, blobs, quick
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError

from daskmm import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    load,
)
from daskmm.cluster._naming import _Naming, _words_of, cluster_names
from daskmm.data.mixed import Column, _time
from daskmm.storage.readable import readable_day_of_year

X, _ = blobs()
WEIGHTS = np.random.default_rng(0).integers(0, 4, 240).astype(float)
NAMES = ["age", "income", "size", "name", "height"]
FRAME = pd.DataFrame(X, columns=NAMES)
EUCLIDEAN = {"distortion": "euclidean"}


@pytest.mark.parametrize(
    "model",
    [
        *map(quick, ESTIMATORS),
        quick(PowerKMeans, polish=False, tol=0, max_iter=5),
        quick(PowerKMeans, **EUCLIDEAN),
        KernelPowerKMeans(4, random_state=0),
        WeightedBlurringMeanShift(0.06),
    ],
    ids=lambda model: f"{type(model).__name__} {getattr(model, 'distortion', '')}",
)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["rows", "weights"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sizes_are_those_of_the_labels(model, weights):
    labels = model.fit(X, sample_weight=weights).labels_
    np.testing.assert_allclose(model.cluster_sizes_, np.bincount(labels, weights))


def test_the_table_of_clusters_has_names_sizes_shares_and_means(tmp_path):
    model = quick(KMeans).fit(FRAME)
    table = model.summary_
    assert table.index.name == "cluster"
    means = [f"mean_{name}" for name in NAMES]
    expected = ["cluster_name", "cluster_size", "cluster_share", *means]
    assert table.columns.tolist() == expected
    np.testing.assert_array_equal(table[means], model.cluster_centers_)
    assert table["cluster_size"].tolist() == np.bincount(model.labels_).tolist()
    assert table["cluster_share"].sum() == pytest.approx(1)
    assert table["cluster_name"].is_unique
    model.save(tmp_path / "model")
    pd.testing.assert_frame_equal(load(tmp_path / "model").summary_, table)


WINE = load_wine(as_frame=True).data
OF_WINE = [
    KMeans(5, max_iter=1),
    KMeans(5, max_iter=2, standardize=True),
    PowerKMeans(5),
    PowerKMeans(5, polish=False, max_iter=5),
    EntropyPowerKMeans(5, lam=1.0, standardize=True, max_iter=60),
    EntropyPowerKMeans(5, lam=1.0, polish=False, max_iter=30),
    EntropyPowerKMeans(5, lam=1.0, max_iter=1),
    KMeans(5, distortion="kl", max_iter=1),
    KMeans(5, distortion="mahalanobis", max_iter=3),
]


@pytest.mark.parametrize("model", OF_WINE, ids=lambda model: repr(model)[:70])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_table_has_the_means_of_the_rows_that_it_counts(model):
    model = model.set_params(n_init=1, random_state=0).fit(WINE)
    table, rows = model.summary_, WINE.groupby(model.labels_)
    assert table["cluster_size"].tolist() == rows.size().tolist()
    means = rows.mean().add_prefix("mean_")
    np.testing.assert_allclose(table[means.columns], means, rtol=1e-9)
    np.testing.assert_allclose(model.cluster_means_, means, rtol=1e-9)
    weights = table["cluster_size"] @ table[means.columns] / len(WINE)
    np.testing.assert_allclose(weights, WINE.mean(), rtol=1e-9)


def test_the_table_has_weighted_means_of_a_wide_table():
    wide = np.random.default_rng(0).normal(size=(40, 400))
    weights = np.arange(40.0)
    model = KMeans(3, n_init=1, random_state=0, max_iter=1, tol=0).fit(wide, sample_weight=weights)
    means = [
        np.average(wide[model.labels_ == j], axis=0, weights=weights[model.labels_ == j])
        for j in range(3)
    ]
    np.testing.assert_allclose(model.cluster_means_, means, atol=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_table_has_no_means_for_a_cluster_without_rows():
    model = KMeans(3, init=np.array([[0.0], [10.0], [90.0]]), empty_cluster="farthest", max_iter=1)
    model.set_params(tol=0).fit([[0.0], [10.0], [11.0]])
    empty = model.cluster_sizes_ == 0
    assert np.isnan(model.cluster_means_[empty]).all()
    assert model.summary_["mean_0"].isna().tolist() == empty.tolist()
    assert (model.summary_["cluster_name"] == "empty").tolist() == empty.tolist()


def test_clusters_without_rows_are_called_empty():
    model = quick(KMeans).fit(FRAME)
    before = cluster_names(model)
    model.cluster_sizes_[:2], model.cluster_means_[:2] = 0.0, np.nan
    names = cluster_names(model)
    assert names[:2] == ["empty", "empty (no. 2)"]
    assert "average" not in names
    assert len(before) == len(names)


def test_the_table_has_centres_where_these_are_no_means():
    median = quick(KMeans, **EUCLIDEAN).fit(FRAME)
    assert not hasattr(median, "cluster_means_")
    for model in (median, WeightedBlurringMeanShift(0.06).fit(FRAME)):
        centers = [f"center_{name}" for name in NAMES]
        assert model.summary_.columns.tolist()[3:] == centers
        np.testing.assert_array_equal(model.summary_[centers], model.cluster_centers_)
    directions = quick(KMeans, distortion="cosine").fit(FRAME).summary_
    assert directions.columns.tolist()[3:] == [f"direction_{name}" for name in NAMES]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_or_a_call_forgets_the_means_of_an_earlier_fit():
    model = KMeans(4, n_init=1, random_state=0, max_iter=1, tol=0).fit(FRAME)
    model.partial_fit(FRAME)
    np.testing.assert_array_equal(model.cluster_means_, model.cluster_centers_)
    model.set_params(**EUCLIDEAN).fit(FRAME)
    assert not hasattr(model, "cluster_means_")
    model.partial_fit(FRAME)
    assert not hasattr(model, "cluster_means_")


def test_kernel_models_have_no_table_of_clusters():
    assert not hasattr(KMeans(2), "summary_")
    with pytest.raises(NotFittedError):
        _ = KMeans(2).summary_
    with pytest.raises(AttributeError, match="has none"):
        _ = KernelPowerKMeans(4, random_state=0).fit(X).summary_


def named(centers, names=NAMES, scale=None, **attributes):
    model = KMeans(len(centers))
    model.cluster_centers_ = np.asarray(centers, dtype=float)
    model.scale_ = np.ones(model.cluster_centers_.shape[1]) if scale is None else np.array(scale)
    model.n_features_in_ = model.cluster_centers_.shape[1]
    if names:
        model.feature_names_in_ = np.array(names[: model.n_features_in_], dtype=object)
    vars(model).update(attributes)
    return cluster_names(model)


def test_names_say_what_tells_clusters_apart():
    assert named([[0, 0], [9, 0]]) == ["low age", "high age"]
    assert named([[0, 0], [9, 0]], names=None) == ["low feature 0", "high feature 0"]
    assert named([[-1, -900], [-1, 900], [1, -900], [1, 900]]) == [
        "low income, age -1",
        "high income, age -1",
        "low income, age 1",
        "high income, age 1",
    ]
    assert named([[0, 0], [9, 100]], feature_weights_=np.array([1.0, 0.0])) == [
        "low age",
        "high age",
    ]
    assert named([[5, 5]]) == ["average"]
    assert named([[5, 5], [5, 5]]) == ["average", "average (no. 2)"]


def test_clusters_along_one_feature_are_named_with_its_value():
    assert named([[-9, -1], [-8, -1], [17, 2]]) == ["low age (-9)", "low age (-8)", "high age"]
    assert named([[-9], [-9], [18]]) == ["low age", "low age (no. 2)", "high age"]


def test_alike_clusters_get_the_mean_of_the_feature_in_which_they_differ_most():
    delays = [[-5, -3], [85, 80], [210, 217]]
    sizes = {"cluster_sizes_": np.array([900, 80, 20])}
    names = ["arr_delay", "dep_delay"]
    assert named(delays, names, **sizes) == [
        "arr_delay -5",
        "high arr_delay, high dep_delay (80)",
        "high dep_delay (217), high arr_delay",
    ]
    alike = [[9, 9, 1], [9, 9, -1], [-9, -9, 0], [9, 9, 1], [-9, 5, 0], [-5, -9, 0]]
    found = named(alike, cluster_sizes_=np.full(6, 10.0))
    assert [found[cluster] for cluster in (0, 1, 3)] == [
        "high age, high income, size 1",
        "high age, high income, size -1",
        "high age, high income, size 1 (no. 2)",
    ]


def test_a_mean_that_differs_from_those_of_few_clusters_is_neither_high_nor_low():
    # One cluster raises the mean of all rows above those of all others.
    delays = [[4.3, 6], [-0.5, 15], [3.2, 6], [1.0, 15], [0.0, 6], [120.0, 10]]
    found = named(delays, ["dep_delay", "hour"], cluster_sizes_=np.full(6, 10.0))
    assert found[-1] == "high dep_delay"
    assert all("high dep_delay" not in name and "low dep_delay" not in name for name in found[:-1])
    # Most clusters have nearly the same share, and it is not that of all rows.
    shares = [[0.0, 3.0], [0.002, 5.0], [0.0, 9.0], [1.0, 5.0]]
    found = named(shares, ["repeated", "age"], [0.4, 2.0], cluster_sizes_=np.full(4, 10.0))
    assert found == ["low age", "repeated 0.002", "high age", "high repeated"]


@given(centers=arrays(float, (6, 4), elements=st.integers(-3, 3)))
def test_no_two_names_have_the_same_words(centers):
    words = [frozenset(name.split(", ")) for name in named(centers)]
    assert len(set(words)) == len(words)


def test_mixed_columns_have_names_that_people_read():
    rng = np.random.default_rng(0)
    kinds = np.arange(300) % 3
    days = pd.Timestamp("2024-01-05") + pd.to_timedelta(91 * kinds + rng.integers(5, size=300), "D")
    model = KMeans(3, distortion="mixed", metric_params={"dates": ["day:season"]}, random_state=0)
    table = model.fit(pd.DataFrame({"day": days})).summary_
    assert set(table["cluster_name"]) == {
        "day around January",
        "day around April",
        "day around July",
    }


@pytest.mark.parametrize("dtype", ["datetime64[s]", "timestamp[us][pyarrow]", "date32[pyarrow]"])
def test_dates_of_leap_years_lie_where_those_of_other_years_do(dtype):
    days = pd.date_range("2020-01-01", "2021-12-31").append(pd.DatetimeIndex([pd.NaT]))
    shares = _time(pd.Series(days).astype(dtype), Column("day:season", "day", "season"))
    angles = 2 * np.pi * shares[:-1]
    found = list(map(readable_day_of_year, np.cos(angles), np.sin(angles)))
    expected = [f"{day.day} {day.month_name()}" for day in days[:-1]]
    assert found[59] == "28 February"
    del found[59], expected[59]  # 29 February
    assert found == expected
    assert np.isnan(shares[-1])


def test_a_season_is_named_by_the_month_of_its_mean_or_as_the_whole_year():
    # All rows are of January to June: no cluster is around July, though one has a lower cosine.
    turns, lengths = 2 * np.pi * np.array([45, 148, 10]) / 365, np.array([0.9, 0.9, 0.1])
    centers = (lengths * [np.cos(turns), np.sin(turns)]).T
    words = _words_of(Column("day:season", "day", "season"))
    signs, parts = np.array([[1.0, 0], [-1, 0], [-1, 0]]), np.array([[1.0, 0]] * 3)
    yes, no_empty = np.ones(parts.shape, dtype=bool), np.zeros(len(centers), dtype=bool)
    naming = _Naming(centers, signs, parts, words, ["season"] * 2, yes, yes, no_empty)
    assert naming.names() == ["day around February", "day around May", "day all year"]


def test_a_season_names_the_clusters_of_other_times_of_the_year():
    rng = np.random.default_rng(0)
    kinds = np.arange(400) % 4
    days = pd.Timestamp("2024-01-05") + pd.to_timedelta(182 * (kinds == 3), "D")
    frame = pd.DataFrame({"day": days, "age": 9.0 * (kinds % 3) + rng.normal(size=400)})
    dates = {"dates": ["day:season"]}
    model = KMeans(4, distortion="mixed", metric_params=dates, random_state=0).fit(frame)
    found = " ".join(cluster_names(model))
    assert found.count("around") == found.count("day around July") == 1


def test_a_single_cluster_of_mixed_columns_is_average_and_shares_are_from_0_to_1():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(size=60), "paperless": rng.random(60) < 0.6})
    model = KMeans(1, distortion="mixed", random_state=0).fit(frame)
    assert cluster_names(model) == ["average"]
    model = KMeans(4, distortion="mixed", random_state=0).fit(frame)
    assert model.summary_["share_paperless"].between(0, 1).all()


def test_a_category_is_named_by_its_commonest_level():
    towns = np.array(["Bern", "Bern", "Bonn", "Bath"])[np.arange(200) % 4]
    frame = pd.DataFrame({"age": 20.0 + 9 * (towns == "Bern"), "town": towns})
    model = KMeans(2, distortion="mixed", random_state=0, n_init=1).fit(frame)
    names = dict(zip(model.summary_["commonest_town"], model.summary_["cluster_name"], strict=True))
    assert set(names.pop("Bern").split(", ")) == {"high age", "town Bern"}
    assert all(name.count("town") == 1 for name in names.values())


def test_clusters_that_are_alike_have_means_in_their_names():
    centers = [[-8, -0.3], [8, 0.9], [-7, -0.2], [-5, -0.7], [2, -0.9], [3, 0]]
    assert named(centers, ["size", "age"], [8.0, 0.4], cluster_sizes_=np.full(6, 10.0)) == [
        "low size, age -0.3",
        "high age",
        "low size, age -0.2",
        "low age, size -5",
        "low age, size 2",
        "high size, high age",
    ]


@pytest.mark.parametrize("kind", ["category", "flag"])
def test_levels_and_flags_of_a_minority_are_only_more_often_there(kind):
    shares, mean = np.array([[0.45], [0.9], [0.1], [0.55]]), np.array([0.2, 0.6, 0.5, 0.8])[:, None]
    parts, words = np.square(shares - mean), [("records yes", "not records yes", "records yes")]
    yes, no_empty = np.ones(shares.shape, dtype=bool), np.zeros(len(shares), dtype=bool)
    naming = _Naming(shares, np.sign(shares - mean), parts, words, [kind], yes, yes, no_empty)
    assert naming.names() == [
        "more often records yes",
        "records yes",
        "not records yes",
        "less often records yes",
    ]


def test_clusters_by_mahalanobis_distances_are_named_in_standard_deviations():
    rng = np.random.default_rng(0)
    kinds = np.arange(600) % 3
    distance = rng.normal(1000, 300, 600) + 150 * (kinds == 1)
    frame = pd.DataFrame({"distance": distance, "delay": rng.normal(size=600) + 9 * kinds})
    init = frame.groupby(kinds).mean().to_numpy()
    model = KMeans(3, init=init, distortion="mahalanobis", random_state=0).fit(frame)
    assert [name.split()[:2] for name in cluster_names(model)][::2] == [
        ["low", "delay"],
        ["high", "delay"],
    ]


def test_small_differences_name_no_cluster():
    sizes = {"cluster_sizes_": np.array([50, 30, 20])}
    raw = [[9.7, 1000.0], [9.1, 200.0], [8.2, 2200.0]]
    names = ["dep_delay", "distance"]
    assert named(raw, names, **sizes) == ["average", "low distance", "high distance"]
    assert named([[0.1, 0.0], [0.0, 3.0], [-0.3, -4.5]], names, [2.0, 1.0], **sizes) == [
        "average",
        "high distance",
        "low distance",
    ]


def test_clusters_that_differ_most_in_their_first_feature_are_told_apart_by_its_mean():
    flights = [[14.9, 745.0], [13.1, 226.0], [12.9, 496.0], [11.2, 2498.0], [12.1, 1039.0]]
    sizes = {"cluster_sizes_": np.array([63, 58, 50, 40, 74])}
    assert named(flights, ["delay", "distance"], **sizes) == [
        "distance 745",
        "low distance (226)",
        "low distance (496)",
        "high distance",
        "average",
    ]


def test_no_cluster_is_named_after_a_feature_that_most_of_its_rows_lack():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3))
    rows[:, 0] += 10.0 * (np.arange(300) < 150)
    rows[:149, 1], rows[149, 1] = np.nan, 40.0
    frame = pd.DataFrame(rows, columns=["age", "income", "size"])
    model = KMeans(2, missing="partial", standardize=True, random_state=0, n_init=1).fit(frame)
    table = model.summary_.set_index("cluster_name")
    assert list(table.index) in (["high age", "low age"], ["low age", "high age"])
    assert table.loc["high age", "missing_income"] == pytest.approx(149 / 150)
    assert table.loc["low age", "missing_income"] == 0
    assert "missing_age" not in table


def test_clusters_of_sparse_rows_are_named_by_high_features():
    rng = np.random.default_rng(0)
    kind = rng.integers(3, size=200)
    rows = csr_array((rng.random((200, 9)) < 0.1) + 4.0 * np.eye(3)[kind].repeat(3, axis=1))
    model = KMeans(3, distortion="cosine", random_state=0).fit(rows)
    names = cluster_names(model)
    assert all("high" in name and "low" not in name for name in names)
    assert names == cluster_names(pickle.loads(pickle.dumps(model)))


def test_clusters_of_directions_are_high_only_relative_to_the_length_of_their_rows():
    rng = np.random.default_rng(0)
    rows = np.abs(rng.normal([9, 1], 0.1, (200, 2))) * rng.uniform(1, 9, (200, 1))
    rows[::2] = rows[::2, ::-1]
    model = KMeans(2, distortion="cosine", random_state=0).fit(
        pd.DataFrame(rows, columns=["a", "b"])
    )
    words = {word for name in cluster_names(model) for word in name.split(", ")}
    assert words <= {f"relatively {way} {name}" for way in ("high", "low") for name in "ab"}


def test_means_of_zeros_are_zero():
    rng = np.random.default_rng(0)
    kind = rng.integers(5, size=20_000)
    wage = np.where(kind > 1, 700.7 * kind, 0.0) * rng.uniform(0.9, 1.1, 20_000)
    frame = pd.DataFrame({"age": 20 + 40 * (kind % 2) + rng.normal(size=20_000), "wage": wage})
    model = KMeans(5, standardize=True, random_state=0).fit(frame)
    expected = frame.groupby(model.labels_)["wage"].mean()
    assert (expected == 0).sum() == 2
    np.testing.assert_allclose(model.summary_["mean_wage"], expected, rtol=1e-9, atol=0)


def test_one_huge_mean_leaves_other_means_of_the_column_as_they_are():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(5.0, 1.0, (500, 2)), rng.normal(50.0, 1.0, (500, 2))])
    rows[0, 0] = 1e15
    model = KMeans(3, random_state=0).fit(rows)
    np.testing.assert_allclose(model.cluster_means_, model.cluster_centers_, rtol=1e-12)
    assert (np.sort(model.cluster_means_[:, 0])[:2] > 4.0).all()
