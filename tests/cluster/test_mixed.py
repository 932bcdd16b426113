"""distortion="mixed": numbers, flags, categories and dates in one table."""

import math
import pickle
from datetime import timedelta, timezone
from decimal import Decimal

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow
import pytest
from _naive import power_means
from _support import (
    ESTIMATORS,
    assert_same_model,
    computed,
    fit_recording,
    quick,
    raise_if_computes,
)
from dateutil import tz
from sklearn.metrics import adjusted_rand_score

import daskmm
from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans, plot
from daskmm.cluster._mixed import _frame, learned_coding, planned
from daskmm.data.input import read_table
from daskmm.data.mixed import unseen_in

each_class = pytest.mark.parametrize("cls", ESTIMATORS)
SMOOTHING = 0.05


def table(n=400, k=4, noise=1, holes=0.0, seed=0):
    """One informative column of each kind, and `noise` others of each; and the clusters."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(k, size=n)
    own = np.where(rng.random(n) < 0.9, truth, rng.integers(6, size=n))
    columns = {
        "age": 40.0 + 15.0 * truth + 4.0 * rng.normal(size=n),
        "member": rng.random(n) < np.where(truth % 2, 0.97, 0.03),
        "city": np.array(["Basel", "Oslo", "Paris", "Rome", "Turin", "Wien"])[own],
    }
    for i in range(noise):
        columns[f"number{i}"] = rng.normal(size=n)
        columns[f"flag{i}"] = rng.random(n) < 0.5
        columns[f"color{i}"] = rng.choice(["blue", "green", "red"], size=n)
    frame = pd.DataFrame(columns)
    if holes:
        frame = frame.astype({name: "boolean" for name in frame if frame[name].dtype == bool})
        for name in frame:
            frame.loc[rng.random(n) < holes, name] = None
    return frame, truth


def naive_columns(frame):
    """Rows of features of each column as lists, None in holes: smoothed or standardised."""
    found = {}
    for name in frame:
        values = [None if pd.isna(value) else value for value in frame[name]]
        held = [value for value in values if value is not None]
        if isinstance(held[0], float):
            mean = sum(held) / len(held)
            scale = math.sqrt(sum((x - mean) ** 2 for x in held) / len(held))
            rows = [None if x is None else [(x - mean) / scale] for x in values]
            kind, middle, back = "number", [0.0], (mean, scale)
        else:
            levels = [True] if isinstance(held[0], bool | np.bool_) else sorted(set(held))
            kind = "flag" if levels == [True] else "category"
            middle = [sum(value == level for value in held) / len(held) for level in levels]
            rows = [
                None
                if value is None
                else [
                    (1 - SMOOTHING) * (value == level) + SMOOTHING * share
                    for level, share in zip(levels, middle, strict=True)
                ]
                for value in values
            ]
            back = None
        spread = [divergence(kind, row, middle) for row in rows if row is not None]
        found[name] = kind, rows, middle, sum(spread) / len(spread), len(held) / len(values), back
    return found


def divergence(kind, x, theta):
    if kind == "number":
        return (x[0] - theta[0]) ** 2
    if kind == "flag":
        (a,), (b,) = x, theta
        return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))
    return sum(a * math.log(a / b) for a, b in zip(x, theta, strict=True))


def naive_fit(frame, init, s, eta, steps, lam=None):
    """Power k-means, or EWP, by the definitions: centres in the input's units, history, weights."""
    columns = naive_columns(frame)
    n, k = len(frame), len(init)
    centers, at = [{} for _ in range(k)], 0
    for name, (kind, _, middle, _, _, back) in columns.items():
        for j in range(k):
            own = init[j, at : at + len(middle)]
            centers[j][name] = [
                (x - back[0]) / back[1] if kind == "number" else (1 - SMOOTHING) * x + SMOOTHING * m
                for x, m in zip(own, middle, strict=True)
            ]
        at += len(middle)
    weights = {name: 1.0 / len(columns) if lam else 1.0 for name in columns}

    def part(name, i, center):
        kind, rows, _, spread, share, _ = columns[name]
        if rows[i] is None:
            return 0.0
        return divergence(kind, rows[i], center[name]) / spread / (share if lam else 1.0)

    history = []
    for _ in range(steps):
        distances = np.array(
            [[sum(weights[c] * part(c, i, t) for c in columns) for t in centers] for i in range(n)]
        )
        phi, values = power_means(distances, s)
        penalty = lam * sum(w * math.log(w) for w in weights.values()) if lam else 0.0
        history.append(values.mean() + penalty)
        for j in range(k):
            for name, (_, rows, middle, _, _, _) in columns.items():
                held = [i for i in range(n) if rows[i] is not None]
                mass = sum(phi[i, j] for i in held)
                centers[j][name] = [
                    sum(phi[i, j] * rows[i][at] for i in held) / mass for at in range(len(middle))
                ]
        if lam:
            dispersion = {
                name: sum(phi[i, j] * part(name, i, centers[j]) for i in range(n) for j in range(k))
                / n
                for name in columns
            }
            shares = {name: math.exp(-value / lam) for name, value in dispersion.items()}
            weights = {name: share / sum(shares.values()) for name, share in shares.items()}
        s *= eta
    means = []
    for center in centers:
        row = []
        for name, (kind, _, middle, _, _, back) in columns.items():
            row += [
                x * back[1] + back[0] if kind == "number" else (x - SMOOTHING * m) / (1 - SMOOTHING)
                for x, m in zip(center[name], middle, strict=True)
            ]
        means.append(row)
    return np.array(means), history, list(weights.values())


def features_of(frame):
    """Rows with one column per level, as centres have them."""
    texts = frame.select_dtypes(exclude=["number", "bool"]).columns
    parts = [pd.get_dummies(frame[n]) if n in texts else frame[n] for n in frame]
    return pd.concat(parts, axis=1).to_numpy(dtype=np.float64)


@pytest.mark.parametrize("holes", [0.0, 0.15])
@pytest.mark.parametrize("lam", [None, 0.4])
def test_steps_are_those_of_the_definitions(holes, lam):
    frame, _ = table(60, 3, holes=holes)
    init = features_of(table(60, 3)[0])[:3]
    expected, history, weights = naive_fit(frame, init, -1.0, 1.4, 4, lam)
    cls = PowerKMeans if lam is None else EntropyPowerKMeans
    options = {} if lam is None else {"lam": lam}
    model = cls(
        3,
        distortion="mixed",
        missing="partial" if holes else "error",
        init=init,
        s0=-1,
        eta=1.4,
        tol=0,
        polish=False,
        max_iter=4,
        **options,
    )
    fit_recording(model, frame)
    np.testing.assert_allclose(model.cluster_centers_, expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(model.objective_history_, history, rtol=1e-9)
    if lam:
        np.testing.assert_allclose(model.feature_weights_, weights, rtol=1e-9)
        assert model.feature_weights_.shape == (len(frame.columns),)


@each_class
def test_the_objective_falls(cls):
    frame, _ = table(holes=0.1)
    options = {} if cls is KMeans else {"s0": -2.0, "eta": 1.0, "polish": False}
    model = quick(cls, distortion="mixed", missing="partial", max_iter=25, n_init=1, **options)
    fit_recording(model, frame)
    history = model.objective_history_
    assert (np.diff(history) <= 1e-12 * abs(history[0])).all()
    assert history[-1] < history[0]


@pytest.mark.in_turn("cls")
@each_class
def test_small_lazy_frames_are_annealed_on_all_their_rows_from_several_starts(cls):
    frame, _ = table()
    model = cls(3, distortion="mixed", random_state=0).fit(frame)
    other = cls(3, distortion="mixed", random_state=0).fit(dd.from_pandas(frame, npartitions=3))
    assert other.inertia_ == pytest.approx(model.inertia_, rel=1e-6)
    assert other.n_passes_ <= 8


@pytest.mark.in_turn("cls")
@each_class
@pytest.mark.parametrize("npartitions", [1, 5])
def test_lazy_frames_give_the_fit_of_those_in_memory(cls, npartitions, tmp_path):
    frame, truth = table(holes=0.05)
    frame["city"] = frame["city"].astype("category")
    options = {"distortion": "mixed", "missing": "partial", "sample_size": None}
    weights = pd.Series(np.random.default_rng(0).integers(1, 4, len(frame)), index=frame.index)
    model = quick(cls, **options).fit(frame, sample_weight=weights)
    assert adjusted_rand_score(truth, model.labels_) > 0.5
    lazy = dd.from_pandas(frame, npartitions=npartitions)
    other = quick(cls, **options).fit(lazy, sample_weight=dd.from_pandas(weights, npartitions))
    assert_same_model(other, model)
    with raise_if_computes():
        labels = other.predict(lazy)
    assigned = lazy.assign(cluster=labels).compute()
    np.testing.assert_array_equal(assigned["cluster"], model.labels_)
    np.testing.assert_allclose(computed(other.transform(lazy)), model.transform(frame), rtol=1e-9)
    assert model.score(frame, sample_weight=weights) == pytest.approx(-model.inertia_, rel=1e-9)
    assert model.plan(lazy).n_features == len(frame.columns)
    np.testing.assert_allclose(
        computed(other.predict_proba(lazy)), model.predict_proba(frame), atol=1e-6
    )
    np.testing.assert_array_equal(model.predict_proba(frame).argmax(axis=1), model.labels_)
    assert computed(other.score_samples(lazy)).shape == (len(frame),)
    shuffled = frame[frame.columns[::-1]].assign(more="text")
    np.testing.assert_array_equal(model.predict(shuffled), model.labels_)
    model.save(tmp_path / "model")
    for again in (daskmm.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict(frame), model.labels_)
        np.testing.assert_array_equal(again.transform(frame), model.transform(frame))


@each_class
def test_integer_weights_count_like_copies(cls):
    frame, _ = table()
    weights = np.random.default_rng(0).integers(1, 4, len(frame))
    options = {"distortion": "mixed", "init": features_of(frame)[:4], "n_init": 1}
    model = quick(cls, **options).fit(frame, sample_weight=weights)
    copies = quick(cls, **options).fit(frame.loc[frame.index.repeat(weights)])
    np.testing.assert_allclose(model.cluster_centers_, copies.cluster_centers_, atol=1e-9)
    np.testing.assert_array_equal(model.labels_.repeat(weights), copies.labels_)


def test_columns_are_found_and_described():
    frame, truth = table(800, noise=3)
    model = EntropyPowerKMeans(4, distortion="mixed", n_init=2, random_state=0).fit(frame)
    assert adjusted_rand_score(truth, model.labels_) > 0.9
    heaviest = np.argsort(-model.feature_weights_)[:3]
    assert set(model.feature_names_in_[heaviest]) == {"age", "member", "city"}
    assert model.feature_weights_.sum() == pytest.approx(1.0)
    summary = model.summary_
    of_truth = [np.bincount(truth[model.labels_ == j]).argmax() for j in range(4)]
    cities = np.array(["Basel", "Oslo", "Paris", "Rome"])
    assert list(summary["commonest_city"]) == list(cities[of_truth])
    np.testing.assert_allclose(summary["mean_age"], 40 + 15 * np.array(of_truth), atol=2)
    np.testing.assert_allclose(summary["share_member"], np.array(of_truth) % 2, atol=0.1)
    shares = model.level_shares_
    np.testing.assert_allclose(shares.T.groupby(level="column").sum(), 1.0)
    counted = pd.crosstab(model.labels_, frame["city"], normalize="index")
    np.testing.assert_allclose(shares["city"], counted, atol=1e-9)
    assert any("city" in name or "member" in name for name in summary["cluster_name"])
    assert "heaviest features" in model._repr_html_()


@pytest.mark.in_turn("cls")
@each_class
def test_columns_without_values_in_a_cluster_are_missing_in_its_row(cls, tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=600)
    frame = pd.DataFrame(
        {
            "x": 10.0 * truth + rng.normal(size=600),
            "y": 10.0 * (truth == 1) + rng.normal(size=600),
            "city": np.array(["Oslo", "Paris", "Rome"])[truth],
            "member": pd.array(truth == 2, dtype="boolean"),
            "z": truth + 0.1 * rng.normal(size=600),
        }
    )
    for name in ("city", "member", "z"):
        frame.loc[truth == 1, name] = None
    frame.loc[(truth == 0) & (frame["z"] > 0), "z"] = None
    options = {"distortion": "mixed", "missing": "partial", "random_state": 0}
    model = cls(3, **options).fit(frame)
    model.save(tmp_path / "model")
    later = cls(3, **options).partial_fit(frame[:300]).partial_fit(frame[300:])
    for each in (model, daskmm.load(tmp_path / "model"), later):
        order = np.argsort(each.cluster_centers_[:, 0])
        summary = each.summary_.iloc[order]
        assert list(summary["commonest_city"].isna()) == [False, True, False]
        assert [summary["commonest_city"].iloc[j] for j in (0, 2)] == ["Oslo", "Rome"]
        for name in ("share_member", "mean_z"):
            assert list(pd.isna(summary[name])) == [False, True, False]
        assert each.level_shares_.iloc[order].isna().all(axis=1).tolist() == [False, True, False]
        assert summary["cluster_name"].iloc[1] == "high y"
        shares = each.value_shares_[order]
        np.testing.assert_array_equal(shares[:, 2], [1, 0, 1])
        np.testing.assert_allclose(shares[:, 4], [0.5, 0, 1], atol=0.1)


def test_dates_count_as_the_user_says():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=300)
    summer = pd.Timestamp("2020-07-01") + pd.to_timedelta(rng.integers(-20, 20, 300), unit="D")
    year = pd.to_timedelta(365 * rng.integers(4, size=300) + 182 * truth, unit="D")
    frame = pd.DataFrame({"day": summer + year, "x": rng.normal(size=300)})

    def fit(*dates, **options):
        found = {"dates": list(dates), **options}
        return KMeans(2, distortion="mixed", metric_params=found, random_state=0).fit(frame)

    model = fit("day:season")
    assert adjusted_rand_score(truth, model.labels_) > 0.9
    days = model.summary_["mean_day:season"]
    np.testing.assert_allclose(np.sort(np.minimum(days, 365 - days)), [0, 182], atol=15)
    late = frame["day"] > pd.Timestamp("2022-03-01")
    assert adjusted_rand_score(late, fit("day:trend").labels_) > 0.3
    assert list(fit("day:trend", "day:season").feature_names_in_) == [
        "day:trend",
        "day:season",
        "x",
    ]
    with pytest.raises(TypeError, match=r"dates in column 'day'.*'day:trend'"):
        fit()
    for wrong in ("day:month", "hour:trend"):
        with pytest.raises(ValueError, match=wrong):
            fit(wrong)
    with pytest.raises(ValueError, match="'x' has no dates"):
        fit("day:trend", "x:trend")


def test_dates_of_arrow_without_a_time_are_those_of_pandas(tmp_path):
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(300, size=400), "D")
    frame = pd.DataFrame({"x": rng.normal(size=400), "day": days})
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    pyarrow.parquet.write_table(
        table.set_column(1, "day", table["day"].cast("date32")), tmp_path / "t"
    )
    settings = {"distortion": "mixed", "metric_params": {"dates": ["day:trend"]}}
    models = [
        KMeans(2, random_state=0, **settings).fit(X)
        for X in (dd.read_parquet(tmp_path / "t"), dd.from_pandas(frame, npartitions=1))
    ]
    np.testing.assert_array_equal(models[0].cluster_centers_, models[1].cluster_centers_)


@pytest.mark.parametrize("part", ["trend", "season"])
def test_dates_with_a_time_zone_are_taken_by_the_clock_of_the_fit(part, tmp_path):
    rng = np.random.default_rng(0)
    hours = pd.to_timedelta(rng.integers(2000, size=300), "h")
    local = pd.Series(pd.Timestamp("2024-01-01", tz="Europe/Berlin") + hours)
    frame = pd.DataFrame({"x": rng.normal(size=300)})
    settings = {"distortion": "mixed", "metric_params": {"dates": [f"t:{part}"]}}

    def with_dates(dates):
        return frame.assign(t=dates)

    model = KMeans(3, random_state=0, **settings).fit(with_dates(local))
    naive = KMeans(3, random_state=0, **settings).fit(with_dates(local.dt.tz_localize(None)))
    np.testing.assert_array_equal(model.cluster_centers_, naive.cluster_centers_)
    arrow = with_dates(local).convert_dtypes(dtype_backend="pyarrow")
    of_arrow = KMeans(3, random_state=0, **settings).fit(arrow)
    np.testing.assert_array_equal(of_arrow.cluster_centers_, model.cluster_centers_)
    model.save(tmp_path / "model")
    loaded = daskmm.load(tmp_path / "model")
    distances = model.transform(with_dates(local))
    utc = with_dates(local.dt.tz_convert("UTC"))
    for same in (arrow, utc, utc.convert_dtypes(dtype_backend="pyarrow")):
        np.testing.assert_array_equal(loaded.transform(same), distances)
        np.testing.assert_array_equal(of_arrow.transform(same), distances)
    with pytest.warns(UserWarning, match=r"column 't' have no time zone, and had Europe/Berlin"):
        own = model.transform(with_dates(local.dt.tz_localize(None)))
    np.testing.assert_array_equal(own, distances)
    with pytest.warns(UserWarning, match=r"have Europe/Berlin, and had no time zone at the fit"):
        np.testing.assert_array_equal(naive.transform(with_dates(local)), distances)


@pytest.mark.parametrize("zone", [tz.gettz("Europe/Berlin"), timezone(timedelta(hours=-5), "EST5")])
def test_time_zones_that_have_no_name_of_the_database_are_taken(zone):
    frame = pd.DataFrame({"t": pd.date_range("2024-01-01", periods=60, freq="D", tz=zone)})
    naive = frame.assign(t=frame["t"].dt.tz_localize(None))
    settings = {"distortion": "mixed", "metric_params": {"dates": ["t:trend"]}, "random_state": 0}
    model, alike = KMeans(3, **settings).fit(frame), KMeans(3, **settings).fit(naive)
    np.testing.assert_array_equal(model.cluster_centers_, alike.cluster_centers_)
    np.testing.assert_array_equal(model.predict(frame), alike.predict(naive))


def test_levels_that_differ_between_partitions_are_united():
    frame, _ = table()
    frame["city"] = pd.Categorical(frame["city"])
    expected = quick(KMeans, distortion="mixed").fit(frame)
    first, second = frame.iloc[:150].copy(), frame.iloc[150:].copy()
    backwards = list(second["city"].cat.categories)[::-1]
    second["city"] = second["city"].cat.set_categories(["nobody's", *backwards])
    meta = frame.iloc[:0].assign(city=dd.from_pandas(frame, 1)["city"].cat.as_unknown()._meta)
    lazy = dd.from_map(lambda part: part, [first, second], meta=meta)
    model = quick(KMeans, distortion="mixed").fit(lazy)
    np.testing.assert_array_equal(computed(model.labels_), expected.labels_)
    assert model.columns_[2].levels == tuple(frame["city"].cat.categories)


@pytest.mark.parametrize("lazy", [False, True])
def test_columns_of_names_and_keys_are_warned_of(lazy):
    frame, _ = table()
    names = [f"name {row}" for row in range(len(frame))]
    for keyed in (names, [*names[:-40], *[None] * 40]):
        X = frame.assign(who=keyed)
        X = dd.from_pandas(X, npartitions=3) if lazy else X
        options = {"missing": "partial"} if None in keyed else {}
        with pytest.warns(UserWarning, match=r"levels in column 'who', one for nearly every row"):
            quick(KMeans, distortion="mixed", **options).fit(X)
    # Few rows, and levels that are shared.
    quick(KMeans, distortion="mixed").fit(frame.assign(who=names)[:20])
    quick(KMeans, distortion="mixed").fit(frame.assign(who=[name[:-1] for name in names]))


def test_levels_that_differ_only_in_case_or_spaces_are_warned_of():
    makers = ["BOEING", "Boeing", "Airbus ", "Airbus", "Embraer", None] * 20
    frame = pd.DataFrame({"maker": makers, "size": np.arange(120.0)})
    with pytest.warns(UserWarning, match=r"'maker' .*: 'Airbus', 'Airbus '; 'BOEING', 'Boeing'\."):
        quick(KMeans, distortion="mixed", missing="partial").fit(frame)


def test_unseen_levels_are_refused_or_count_as_missing():
    frame, _ = table()
    model = quick(KMeans, distortion="mixed").fit(frame)
    new = frame.copy()
    new.loc[333, "city"] = "Riga"
    said = r"level 'Riga' in column 'city'.*block 0, row 333 .*unknown='missing'"
    with pytest.raises(ValueError, match=said):
        model.predict(new)
    lazy = model.predict(dd.from_pandas(new, npartitions=4))
    with pytest.raises(ValueError, match=r"'Riga' in column 'city'.*block 3, row 33 of the block"):
        lazy.compute()
    options = {"missing": "partial", "metric_params": {"unknown": "missing"}}
    tolerant = quick(KMeans, distortion="mixed", **options).fit(frame)
    hole = new.assign(city=new["city"].where(new["city"] != "Riga"))
    np.testing.assert_array_equal(tolerant.transform(new), tolerant.transform(hole))


@pytest.mark.parametrize("written", [str, float, bool])
def test_text_and_the_numbers_and_flags_that_it_spells_are_the_same_levels(written):
    frame, _ = table()
    values = np.arange(len(frame)) % 2
    own = pd.Series([written(value) for value in values], dtype=object)
    spelt = own.map(str)
    model = quick(KMeans, distortion="mixed").fit(frame.assign(zone=spelt))
    rows = frame.assign(zone=own.infer_objects())
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    lazy = dd.from_pandas(rows, npartitions=3)
    np.testing.assert_array_equal(model.predict(lazy).compute(), model.labels_)
    assert not unseen_in(rows, model.columns_)
    with pytest.raises(ValueError, match="level 2 in column 'zone', which the fit did not see"):
        model.predict(frame.assign(zone=2))


def test_numbers_are_no_levels_where_texts_spell_the_same_number():
    frame, _ = table()
    codes = np.array(["7", "07"])[np.arange(len(frame)) % 2]
    model = quick(KMeans, distortion="mixed").fit(frame.assign(code=codes))
    np.testing.assert_array_equal(model.predict(frame.assign(code=codes)), model.labels_)
    with pytest.raises(ValueError, match="level 7 in column 'code', which the fit did not see"):
        model.predict(frame.assign(code=7))


CALLS = [
    (KMeans, {}),
    (PowerKMeans, {"s0": -3.0, "eta": 1.0, "polish": False}),
    *(pytest.param(EntropyPowerKMeans, {"lam": x}, marks=pytest.mark.long) for x in (0.5, np.inf)),
]


@pytest.mark.in_turn("holes")
@pytest.mark.parametrize("holes", [0.0, 0.1])
@pytest.mark.parametrize(("cls", "more"), CALLS)
def test_calls_with_new_rows_find_the_clusters_of_all(cls, more, holes, tmp_path):
    frame, truth = table(1500, noise=0, holes=holes)
    frame = frame[frame.notna().any(axis=1)]
    truth = truth[frame.index]
    options = {"distortion": "mixed", "missing": "partial" if holes else "error", **more}
    parts = [frame[start : start + 300] for start in range(0, len(frame), 300)]
    of_all = adjusted_rand_score(truth, cls(4, random_state=0, **options).fit(frame).labels_)
    model, fitted = cls(4, random_state=0, **options), cls(4, random_state=0, **options)
    fitted.fit(frame[:900])
    for number, part in enumerate(parts):
        model.partial_fit(part)
        if number > 2:
            fitted.partial_fit(part)
        if number == 3:
            model.save(tmp_path / "model")
    for each in (model, fitted):
        assert adjusted_rand_score(truth, each.predict(frame)) > of_all - 0.03
        assert each.n_samples_seen_ == len(frame)
        if model.s_ == -np.inf and not holes:  # records of a fit say nothing of holes
            assert each.score(frame) == pytest.approx(-each.inertia_, rel=0.03)
    again = daskmm.load(tmp_path / "model").partial_fit(dd.from_pandas(parts[4], npartitions=1))
    np.testing.assert_array_equal(again.cluster_centers_, model.cluster_centers_)
    if cls is EntropyPowerKMeans:
        assert model.feature_weights_.shape == model.feature_gains_.shape == (len(frame.columns),)
        np.testing.assert_array_equal(again.feature_weights_, model.feature_weights_)
    assert of_all > 0.85


@pytest.mark.parametrize("holes", [0.0, 0.1])
@pytest.mark.parametrize(("cls", "more"), CALLS)
def test_the_sum_of_all_records_never_rises_and_bounds_the_objective(cls, more, holes):
    frame, _ = table(400, holes=holes)
    options = {"distortion": "mixed", "missing": "partial" if holes else "error", **more}
    # A level of a hundredth of the rows may be missing in some calls.
    frame.loc[:3, "color0"] = "violet"
    model = cls(4, init=features_of(table(400)[0].assign(color0=frame["color0"]))[4:8], **options)
    objectives = []
    for call in range(12):
        rows = frame[call % 4 :: 4]
        model.partial_fit(rows, key=call % 4)
        if call < 3:
            continue
        assert -model.score(frame) <= model.inertia_ * (1 + 1e-9)
        bound = model.inertia_ / len(frame)
        if cls is EntropyPowerKMeans and more["lam"] < np.inf:
            bound += more["lam"] * sum(w * math.log(w) for w in model.feature_weights_)
        objectives.append(bound)
    assert np.diff(objectives).max() <= 1e-12


def test_unseen_levels_in_later_calls_are_refused_or_count_as_missing():
    frame, _ = table()
    new = frame[:100].assign(city="Riga")
    strict = quick(KMeans, distortion="mixed").partial_fit(frame)
    before = strict.cluster_centers_
    with pytest.raises(ValueError, match=r"level 'Riga' in column 'city'.*block 0, row 0"):
        strict.partial_fit(new)
    assert strict.cluster_centers_ is before
    options = {"missing": "partial", "metric_params": {"unknown": "missing"}}
    lax, hole = (quick(KMeans, distortion="mixed", **options).partial_fit(frame) for _ in "ab")
    lax.partial_fit(new)
    hole.partial_fit(new.assign(city=None))
    np.testing.assert_array_equal(lax.cluster_centers_, hole.cluster_centers_)


def several_kinds(k, n=2000, seed=0):
    """Six columns of every kind that depend on `k` clusters, and six that do not."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(k, size=n)
    levels = np.array([f"level {i}" for i in range(6)])
    columns = {}
    for name, place in (("own", truth), ("other", np.zeros(n, dtype=int))):
        columns[f"{name} number"] = 4.0 * place + rng.normal(size=n)
        columns[f"{name} count"] = rng.poisson(3.0 + 9.0 * place)
        columns[f"{name} flag"] = rng.random(n) < np.where(place % 2, 0.9, 0.1)
        columns[f"{name} text"] = levels[np.where(rng.random(n) < 0.8 * (place > 0), place, 0)]
        any_level = rng.choice(6, n)
        columns[f"{name} category"] = levels[
            np.where(rng.random(n) < (0.8 if name == "own" else 0.0), place, any_level)
        ]
        year = (place / k if name == "own" else rng.random(n)) + 0.04 * rng.normal(size=n)
        columns[f"{name} day"] = pd.Timestamp("2021-01-01") + pd.to_timedelta(365 * year, unit="D")
    dates = {"dates": [f"{name} day:season" for name in ("own", "other")]}
    return pd.DataFrame(columns), {"distortion": "mixed", "metric_params": dates}


@pytest.mark.parametrize(
    ("cls", "k"),
    [
        (KMeans, 2),
        pytest.param(KMeans, 5, marks=pytest.mark.long),
        pytest.param(EntropyPowerKMeans, 3, marks=pytest.mark.long),
    ],
)
def test_the_number_of_clusters_is_found(cls, k):
    frame, options = several_kinds(k)
    more = {"lam": 0.5} if cls is EntropyPowerKMeans else {}
    model = cls("auto", random_state=0, **options, **more).fit(frame)
    assert model.n_clusters_ == k
    assert len(model.summary_) == k
    frame = frame.astype({"own flag": "boolean", "other flag": "boolean"})
    for at, name in enumerate(frame):
        frame.loc[frame.index % 15 == at, name] = None
    model = KMeans("auto", missing="partial", random_state=0, n_init=1, **options).fit(frame)
    assert model.n_clusters_ == k
    with pytest.raises(ValueError, match=r"without missing values; a sample of 600 rows has 1"):
        model.fit(frame[:600])


@pytest.mark.long
def test_independent_columns_have_no_clusters():
    frame, options = several_kinds(5)
    other = frame.drop(columns=[name for name in frame if name.startswith("own")])
    options["metric_params"] = {"dates": ["other day:season"]}
    categories = other[["other category", "other flag"]]
    for X in (other, categories, other[["other day", "other number"]]):
        given = options if "other day" in X else {"distortion": "mixed"}
        with pytest.warns(UserWarning, match="No clusters were found"):
            assert KMeans("auto", random_state=0, **given).fit(X).n_clusters_ == 1


def test_an_empty_table_is_refused_as_such():
    frame = pd.DataFrame({"town": pd.Series([], dtype=object), "age": pd.Series([], dtype=float)})
    with pytest.raises(ValueError, match="0 sample"):
        KMeans(1, distortion="mixed").fit(frame)


def test_an_empty_batch_has_no_labels():
    frame, _ = table(60)
    for X, options in ((frame, {"distortion": "mixed"}), (frame[["age"]], {})):
        model = KMeans(2, random_state=0, **options).fit(X)
        for empty in (X[:0], dd.from_pandas(X, npartitions=2).query("age > 1e6")):
            labels = np.asarray(model.predict(empty))
            assert (labels.shape, labels.dtype) == ((0,), np.int32)
        assert model.transform(X[:0]).shape == (0, 2)
        with pytest.raises(ValueError, match=r"0 sample|no row with a value"):
            daskmm.monitor(model, X).look(X[:0])


def test_frames_and_parameters_that_cannot_be_used_are_refused():
    frame, _ = table(60)

    def fit(X=frame, cls=KMeans, n_clusters=2, **options):
        return cls(n_clusters, distortion="mixed", **options).fit(X)

    with pytest.raises(TypeError, match=r"takes DataFrames.*ndarray"):
        fit(np.zeros((5, 2)))
    with pytest.raises(ValueError, match=r"got \{'days'"):
        fit(metric_params={"days": []})
    with pytest.raises(ValueError, match="needs missing='partial'"):
        fit(metric_params={"unknown": "missing"})
    both = pd.DataFrame({"key": np.arange(1500).astype(str), "day": pd.Timestamp("2026-01-01")})
    for X in (both, dd.from_pandas(both, npartitions=1)):
        with pytest.raises(TypeError, match=r"dates in column 'day'.*1,000 levels in column 'key'"):
            fit(X)
    with pytest.raises(ValueError, match="more than 1,000 levels in column 'key'"):
        fit(pd.DataFrame({"key": np.arange(1500).astype(str)}))
    with pytest.raises(TypeError, match=r"whose names are text; 0 is none"):
        fit(pd.DataFrame(np.zeros((5, 2))))
    with pytest.raises(TypeError, match=r"column 'z' of dtype complex"):
        fit(frame.assign(z=1j))
    with pytest.raises(ValueError, match=r"contains NaN: block \d+, row \d.*feature 2 \('city'\)"):
        fit(frame.assign(city=frame["city"].where(frame.index != 7)))
    with pytest.raises(ValueError, match="no column 'city', which the fit had"):
        fit().predict(frame.drop(columns="city"))
    with pytest.raises(ValueError, match=r"'old' in column 'age'.*no number.*block 0, row 0"):
        fit().predict(frame.assign(age="old"))
    plain = KMeans(2, random_state=0).fit(frame[["age"]])
    with pytest.raises(AttributeError, match="distortion='mixed'"):
        _ = plain.level_shares_


def people(n=90):
    """A column of each kind."""
    rng = np.random.default_rng(0)
    days = pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    return pd.DataFrame(
        {
            "size": rng.normal(size=n),
            "city": rng.choice(["Oslo", "Paris", "Rome"], n),
            "member": rng.random(n) < 0.5,
            "day": pd.Timestamp("2020-01-01") + days,
        }
    )


def in_three(change, meta=None):
    """People in three partitions, the second of which is not what the frame says."""
    frame = people()
    parts = [frame[:30], change(frame[30:60].copy()), frame[60:]]
    return dd.from_map(lambda part: part, parts, meta=frame[:0] if meta is None else meta)


def with_value(name, row, value):
    """Put a value of any kind into a column of objects."""

    def changed(part):
        values = part[name].astype(object).tolist()
        values[row] = value
        return part.assign(**{name: pd.Series(values, index=part.index, dtype=object)})

    return changed


def cities_unknown():
    """The meta of people whose cities are categories with levels that are not known."""
    frame = people()[:0].astype({"city": "category"})
    return (
        dd.from_pandas(frame, npartitions=1)
        .assign(city=lambda lazy: lazy["city"].cat.as_unknown())
        ._meta
    )


FAULTS = {
    "a text among numbers": (with_value("size", 4, "old"), None, r"'old' in column 'size'.*row 4"),
    "dates for numbers": (lambda p: p.assign(size=p["day"]), None, r"column 'size'.*row 0"),
    "a category of numbers": (
        lambda p: p.assign(size=pd.Categorical(p["city"])),
        None,
        r"column 'size', which is no number.*row 0",
    ),
    "numbers for texts": (lambda p: p.assign(city=1.5), None, r"has 1\.5 in column 'city'.*row 0"),
    "numbers for a category": (
        lambda p: p.assign(city=2.5),
        cities_unknown,
        r"has 2\.5 in column 'city'.*row 0",
    ),
    "numbers for flags": (lambda p: p.assign(member=p["size"]), None, r"column 'member'.*row 0"),
    "texts for dates": (lambda p: p.assign(day=p["city"]), None, r"column 'day'.*no date.*row 0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_values_of_another_kind_in_a_partition_are_named(fault):
    change, meta, said = FAULTS[fault]
    lazy = in_three(change, None if meta is None else meta())
    options = {"distortion": "mixed", "metric_params": {"dates": ["day:trend"]}, "n_init": 1}
    with pytest.raises(ValueError, match=rf"{said} of the block"), dask_texts_as_they_are():
        KMeans(2, **options).fit(lazy)
    with pytest.raises(ValueError, match="block 1, row"), dask_texts_as_they_are():
        KMeans(2, **options).fit(people()).predict(lazy).compute()


def dask_texts_as_they_are():
    return dask.config.set({"dataframe.convert-string": False})


def test_partitions_with_other_dtypes_are_read():
    frame = people()
    options = {"distortion": "mixed", "metric_params": {"dates": ["day:trend"]}, "n_init": 1}
    expected = KMeans(2, random_state=0, **options).fit(frame)
    texts = in_three(lambda part: part.assign(size=part["size"].astype(str)))
    model = KMeans(2, random_state=0, **options).fit(texts)
    np.testing.assert_array_equal(computed(model.labels_), expected.labels_)
    options["missing"] = "partial"
    holes = {"size": None, "city": np.nan, "member": None, "day": np.nan}
    for name, hole in holes.items():
        gone = in_three(lambda part, name=name, hole=hole: part.assign(**{name: hole}))
        assert computed(KMeans(2, **options).fit(gone).labels_).shape == (90,)


def test_columns_without_values_are_refused_and_constant_ones_get_no_weight():
    frame = people()
    options = {"distortion": "mixed", "metric_params": {"dates": ["day:trend"]}, "n_init": 1}
    gone = {"size": "float64", "city": "object", "member": "boolean", "day": "datetime64[ns]"}
    for name, dtype in gone.items():
        column = pd.Series([None] * len(frame), dtype=dtype)
        with pytest.raises(ValueError, match=f"without any value: .*'{name}"):
            KMeans(2, missing="partial", **options).fit(frame.assign(**{name: column}))
    alike = frame.assign(city="Oslo", member=True)
    model = EntropyPowerKMeans(2, lam=0.5, **options).fit(alike)
    np.testing.assert_array_equal(model.feature_weights_[1:3], 0.0)
    assert list(model.summary_["commonest_city"]) == ["Oslo", "Oslo"]


def test_values_that_are_no_levels_and_repeated_names_are_refused():
    frame = people()
    options = {"distortion": "mixed", "metric_params": {"dates": ["day:trend"]}, "n_init": 1}
    model = KMeans(2, **options).fit(frame)
    lists = with_value("city", 7, ["Oslo", "Rome"])(frame)
    twice = pd.concat([frame, frame[["city"]]], axis=1)
    both = with_value("city", 7, 7)(frame)
    said = r"has a list in column 'city', which is no level.*block 0, row 7 of the block"
    for failing in (KMeans(2, **options).fit, model.predict):
        with pytest.raises(ValueError, match=said):
            failing(lists)
        for X in (twice, dd.from_pandas(twice, npartitions=2)):
            with pytest.raises(ValueError, match="several columns named 'city'"):
                failing(X)
        with pytest.raises(ValueError, match=r"7 in column 'city'.*row 7"):
            failing(both)
    assert len(model.predict(twice.set_axis([*frame, "other"], axis=1))) == len(frame)


def test_levels_without_an_order_are_refused_by_the_name_of_their_column():
    spans = [pd.DateOffset(hours=row % 5) for row in range(50)]
    frame = pd.DataFrame({"age": np.arange(50.0), "span": spans})
    with pytest.raises(TypeError, match="column 'span' that have no order, such as <DateOffset"):
        KMeans(2, distortion="mixed").fit(frame)


def test_plans_count_the_levels_of_categories_or_assume_ten():
    frame = pd.DataFrame({"age": np.arange(60.0), "town": list("abcdef") * 10})
    lazy = dd.from_pandas(frame, npartitions=2)
    tables = frame, lazy, lazy.astype({"town": "category"}), lazy.categorize()
    assert [planned(X, {})[1] for X in tables] == [6, 10, 10, 6]
    wide = pd.DataFrame({f"town {j}": frame["town"] for j in range(9)} | {"age": frame["age"]})
    model = KMeans(3, distortion="mixed")
    few = model.plan(frame[["age"]].assign(**{f"age {j}": frame["age"] for j in range(9)}))
    assert model.plan(wide).peak_bytes_per_worker > few.peak_bytes_per_worker


@pytest.mark.parametrize("draw", [plot.cluster_profiles, plot.projection])
def test_pictures_of_mixed_columns_are_refused(draw):
    frame, _ = table(60)
    model = KMeans(2, distortion="mixed", n_init=1, random_state=0).fit(frame)
    with pytest.raises(ValueError, match="summary_"):
        draw(model, frame)


def as_decimals(frame):
    numbers = frame.select_dtypes("number").columns
    texts = {name: [f"{value:.4f}" for value in frame[name]] for name in numbers}
    return frame.assign(**{name: [Decimal(text) for text in texts[name]] for name in numbers})


@pytest.mark.parametrize("form", ["pandas", "arrow", "parquet", "objects in blocks"])
def test_decimals_are_numbers_in_every_form(form, tmp_path):
    frame, _ = table(n=2500, noise=0)
    frame["age"] = frame["age"].round(4)
    X = given = as_decimals(frame)
    if form == "arrow":
        X = given.astype({"age": pd.ArrowDtype(pyarrow.decimal128(12, 4))})
    elif form == "parquet":
        given.to_parquet(tmp_path / "x.parquet")
        X = dd.read_parquet(tmp_path / "x.parquet")
    elif form == "objects in blocks":
        with dask.config.set({"dataframe.convert-string": False}):
            X = dd.from_pandas(given, npartitions=3)
            _, coding = learned_coding(X, None)
            np.testing.assert_array_equal(coding.of(X).compute()["age"], frame["age"])
    _, coding = learned_coding(X, None)
    assert [column.kind for column in coding.columns] == ["number", "flag", "category"]
    np.testing.assert_array_equal(np.asarray(coding.of(_frame(X)))[:, 0], frame["age"])
    if form != "objects in blocks":  # whose dtype does not say that they are numbers
        table_of_age = read_table(KMeans(2), X[["age"]], reset=True)
        np.testing.assert_array_equal(np.asarray(table_of_age)[:, 0], frame["age"])


def test_decimals_beside_other_values_are_refused_by_block_and_row():
    frame = as_decimals(table(n=300, noise=0)[0])
    frame["age"] = frame["age"].astype(object)
    frame.loc[250, "age"] = "old"
    with dask.config.set({"dataframe.convert-string": False}):
        X = dd.from_pandas(frame, npartitions=3)
        with pytest.raises(ValueError, match=r"'old' in column 'age'.* decimals: block 2, row 50"):
            learned_coding(X, None)


def test_an_infinity_among_missing_values_is_named_by_its_column():
    frame = pd.DataFrame({"town": list("abcdef") * 20, "age": np.arange(120.0)})
    frame.loc[::9, "age"] = np.nan
    model = KMeans(2, distortion="mixed", missing="partial", random_state=0, n_init=1).fit(frame)
    with pytest.raises(ValueError, match=r"infinity: block 0, row 4 .*, feature 1 \('age'\)"):
        model.predict(frame.assign(age=frame["age"].where(frame.index != 4, np.inf)))


def test_a_plan_refuses_columns_of_dates_as_the_fit_does():
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=60), "x": np.arange(60.0)})
    model = KMeans(2, distortion="mixed")
    for data in (frame, dd.from_pandas(frame, npartitions=2)):
        for call in (model.fit, model.plan):
            with pytest.raises(TypeError, match="X has dates in column 'day'"):
                call(data)
    both = KMeans(2, distortion="mixed", metric_params={"dates": ["day:trend", "day:season"]})
    assert both.plan(frame).passes >= 1


def test_a_fit_without_categories_has_no_level_shares_and_is_displayed():
    frame = pd.DataFrame({"x": [0.0, 1.0, 8.0, 9.0], "flag": [True, False, True, True]})
    model = KMeans(2, distortion="mixed", random_state=0).fit(frame)
    assert model.level_shares_.shape == (2, 0)
    assert "level_shares_" in dir(model)
    assert "KMeans" in model._repr_html_()


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_starting_centres_of_columns_with_levels_are_found_in_each_way(init):
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=200)
    cities = np.array(["Basel", "Oslo", "Rome"])[truth]
    frame = pd.DataFrame({"x": 9.0 * truth + rng.normal(size=200), "city": cities})
    model = KMeans(3, distortion="mixed", init=init, random_state=0)
    for table in (frame, dd.from_pandas(frame, npartitions=3)):
        assert adjusted_rand_score(truth, np.asarray(model.fit(table).labels_)) == 1.0
