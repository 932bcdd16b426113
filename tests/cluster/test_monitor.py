"""Drift of batches that arrive one after the other."""

import copy

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from _support import ESTIMATORS, blobs, counting_computes, quick

import daskmm
from daskmm import KMeans, plot
from daskmm.cli.printing import describe_look
from daskmm.cluster._monitor import Monitor


def stream(k=20, p=8, seed=0, separation=8.0):
    """A function that draws rows of k normal clusters with correlated features."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(k, p)) * separation / np.sqrt(2)
    mix = np.linalg.qr(rng.normal(size=(p, p)))[0] * np.linspace(0.3, 1.0, p)

    def draw(n, shift=0.0, cluster=0):
        truth = rng.integers(k, size=n)
        rows = centers[truth] + rng.normal(size=(n, p)) @ mix
        direction = mix[-1] * shift  # along the direction of standard deviation 1
        return rows + np.where(truth == cluster, 1.0, 0.0)[:, None] * direction

    return draw, centers


def false_alarms(runs, looks, rows):
    """Share of streams without drift in which any look finds one."""
    alarms = 0
    for seed in range(runs):
        draw, centers = stream(k=5, p=4, seed=seed, separation=4.0)
        reference = draw(5000)
        model = KMeans(5, init=centers, random_state=0).fit(reference)
        watch = daskmm.monitor(model, reference)
        alarms += any(watch.look(draw(rows)).drifted for _ in range(looks))
    return alarms / runs


def test_a_quiet_stream_raises_no_alarm():
    assert false_alarms(runs=2, looks=25, rows=400) == 0


@pytest.mark.long
def test_false_alarms_over_two_hundred_looks_are_rare():
    assert false_alarms(runs=10, looks=200, rows=500) <= 0.05


@pytest.mark.parametrize("seed", range(3))
def test_a_small_shift_of_one_cluster_is_found(seed):
    draw, centers = stream(seed=seed)
    reference = draw(100_000)
    model = KMeans(20, init=centers, max_iter=20).fit(reference)
    watch = daskmm.monitor(model, reference)
    assert not any(watch.look(draw(10_000)).drifted for _ in range(5))
    look = watch.look(draw(40_000, shift=0.3, cluster=7))
    assert look.drifted
    assert {finding.cluster for finding in look.findings} == {7}
    assert " in cluster 7 is " in look.reasons[0]
    assert 0.1 < abs(look.findings[0].shift) < 0.3  # the part of it along one of eight columns


def test_one_bad_partition_does_not_spoil_those_that_follow():
    draw, centers = stream(k=5, p=4)
    reference = draw(5000)
    watch = daskmm.monitor(KMeans(5, init=centers, max_iter=20).fit(reference), reference)
    assert watch.look(draw(2000) + 0.5).drifted
    quiet = watch.look(draw(2000))
    assert not quiet.drifted
    assert repr(quiet).endswith("2,000 rows, no drift>")


def test_slow_drift_is_found_in_all_partitions_together():
    draw, centers = stream(k=5, p=4)
    reference = draw(50_000)
    model = KMeans(5, init=centers, max_iter=20).fit(reference)
    watch = daskmm.monitor(model, reference)
    found = [watch.look(draw(200, shift=0.5, cluster=2)).drifted for _ in range(60)]
    assert not found[0]
    assert found[-1]


def test_changes_of_shares_and_of_spread_are_told_apart():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=4000)
    rows = rng.normal(size=(4000, 3)) + 20.0 * truth[:, None]
    model = KMeans(2, random_state=0).fit(rows)
    low = model.predict(np.zeros((1, 3)))[0]
    noise = rng.normal(size=rows.shape)
    wide = daskmm.monitor(model, rows).look(rows + noise * (truth == 0)[:, None])
    assert [(each.kind, each.cluster) for each in wide.findings] == [("cost", low)]
    fewer = daskmm.monitor(model, rows).look(rows[(truth == 0) | (rng.random(4000) < 0.5)])
    shares = fewer.table.query("kind == 'share'").set_index("cluster")
    assert shares.loc[low, "found"] == pytest.approx(2 / 3, abs=0.03)
    assert shares.loc[low, "expected"] == pytest.approx(1 / 2, abs=0.03)
    assert "column in cluster" not in set(fewer.table["kind"])


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_lazy_partitions_take_one_pass_and_give_the_same(cls):
    X, _ = blobs(800)
    model = quick(cls).fit(X[:400])
    here = daskmm.monitor(model, X[:400])
    there = daskmm.monitor(model, da.from_array(X[:400], chunks=(90, -1)))
    with counting_computes() as computes:
        lazy = there.look(da.from_array(X[400:], chunks=(70, -1)))
    assert len(computes) == 1
    whole = here.look(X[400:])
    assert lazy.p_values == pytest.approx(whole.p_values, rel=1e-6)
    assert lazy.drifted == whole.drifted


def test_a_monitor_goes_on_after_it_was_saved(tmp_path):
    X, _ = blobs(900)
    model = quick(KMeans).fit(X[:300])
    one = daskmm.monitor(model, X[:300])
    one.look(X[300:600])
    one.save(tmp_path / "monitor")
    two = daskmm.monitor(model, tmp_path / "monitor")
    assert one.look(X[600:]).p_values == two.look(X[600:]).p_values
    assert [look.number for look in two.looks] == [1, 2]


def test_a_model_that_has_changed_needs_another_reference(tmp_path):
    X, _ = blobs(1200)
    model = quick(KMeans).fit(X[:300])
    watch = daskmm.monitor(model, X[:300])
    watch.look(X[300:600])
    moved = X[600:] + 0.5
    model.partial_fit(moved[:300])
    watch.save(tmp_path / "monitor")
    for each in (watch, Monitor.load(tmp_path / "monitor", model)):
        with pytest.raises(ValueError, match="renew"):
            each.look(moved[300:])
    look = watch.renew(moved[:300]).look(moved[300:])
    # The level that looks have spent stays spent.
    assert look.number == 2
    assert not look.drifted
    assert watch.look(X[:300]).drifted


@pytest.mark.long
def test_false_alarms_over_many_references_are_rare():
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(40):
        kind = rng.integers(3, size=2000)
        X = rng.normal(size=(2000, 3)) + 6.0 * kind[:, None]
        model = KMeans(3, n_init=1, random_state=0, forget="2 calls").fit(X[:500])
        watch = daskmm.monitor(model, X[:500])
        looks = []
        for start in range(500, 2000, 250):
            night = X[start : start + 250]
            looks.append(watch.look(night).drifted)
            model.partial_fit(night)
            watch.renew(night)
        alarms += any(looks)
    assert alarms <= 4  # 2 in the mean, at most


def test_wrong_models_and_levels_are_refused():
    X, _ = blobs()
    with pytest.raises(ValueError, match="level must be a probability"):
        daskmm.monitor(quick(KMeans).fit(X), X, level=5)
    with pytest.raises(ValueError, match="season must be a number of batches"):
        daskmm.monitor(quick(KMeans).fit(X), X, season=0)
    with pytest.raises(ValueError, match="tolerance must not be negative"):
        daskmm.monitor(quick(KMeans).fit(X), X, tolerance=-1)
    shift = daskmm.WeightedBlurringMeanShift(bandwidth=0.1).fit(X[:50])
    with pytest.raises(TypeError, match="model is a WeightedBlurringMeanShift"):
        daskmm.monitor(shift, X)
    mixture = daskmm.GaussianMixture(2, random_state=0).fit(X)
    with pytest.raises(TypeError, match=r"model is a GaussianMixture.*Follow score\(X\)"):
        daskmm.monitor(mixture, X)
    assert type(daskmm.monitor(quick(KMeans).fit(X), X, season=np.int64(3)).season) is int


@pytest.mark.long
def test_wide_rows_are_compared_by_columns_alone():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(450, 8200)) + 10 * rng.integers(2, size=(450, 1))
    model = KMeans(2, n_init=1, random_state=0).fit(rows[:150])
    watch = daskmm.monitor(model, rows[150:300])
    assert not watch.look(rows[300:]).drifted
    rows[300:, 77] += 30
    assert watch.look(rows[300:]).reasons[0].startswith("the mean of column 'feature 77' is ")


class Days:
    """Days of rows: clusters whose columns and shares have weeks, a year and noise of the day."""

    def __init__(self, seed, noise=0.05, week=0.2, year=0.4, p=4):
        rng = np.random.default_rng(seed)
        self.seed, self.noise, self.year, self.p = seed, noise, year, p
        self.centers = rng.normal(size=(3, p)) * 2
        self.week, self.phase = rng.normal(size=(7, p)) * week, rng.random(p)
        self.shares = rng.normal(size=(7, 3)) * week

    def __call__(self, number, shift=0.0, column=0):
        rng = np.random.default_rng((self.seed, number))
        shares = np.exp(self.shares[number % 7] + self.noise * rng.normal(size=3))
        kinds = rng.choice(3, int(rng.integers(400, 600)), p=shares / shares.sum())
        offset = self.year * np.sin(2 * np.pi * (number / 365 + self.phase))
        offset += self.week[number % 7] + self.noise * rng.normal(size=self.p)
        offset[column] += shift
        deviations = np.sqrt(1 + self.centers.var(axis=0))
        return self.centers[kinds] + rng.normal(size=(len(kinds), self.p)) + offset * deviations

    def reference(self, n_days):
        days = [self(number) for number in range(n_days)]
        return np.concatenate(days), np.repeat(range(n_days), [len(day) for day in days])


def watched(days, n_days, **options):
    X, batches = days.reference(n_days)
    model = KMeans(3, n_init=1, random_state=0).fit(X)
    return daskmm.monitor(model, X, batches=batches, **options)


@pytest.mark.long
def test_a_year_of_days_with_seasons_is_quiet():
    days = Days(seed=0)
    watch = watched(days, 60)
    alarms = [watch.look(days(number)).drifted for number in range(60, 365)]
    assert np.mean(alarms) <= 0.02


@pytest.mark.long
def test_what_days_have_is_learned_from_the_first_looks():
    days = Days(seed=1)
    X = days.reference(7)[0]
    watch = daskmm.monitor(KMeans(3, n_init=1, random_state=0).fit(X), X)
    alarms = [watch.look(days(number)).drifted for number in range(7, 200)]
    assert np.mean(alarms[:30]) <= 0.5
    assert np.mean(alarms[30:]) <= 0.02


def test_a_shift_of_one_column_is_found_within_a_week_and_named():
    found = named = 0
    for seed in range(3):
        days = Days(seed)
        watch = watched(days, 70)
        for column in range(2):
            own = copy.deepcopy(watch)
            looks = [own.look(days(70 + i, -0.3, column)) for i in range(7)]
            first = next((look for look in looks if look.drifted), None)
            found += first is not None
            named += first is not None and any(f"feature {column}" in r for r in first.reasons)
    assert found == 6
    assert named >= 5


def test_the_season_of_a_date_moves_with_the_calendar_and_does_not_alarm():
    rng, first = np.random.default_rng(0), pd.Timestamp("2026-01-01")
    days = first + pd.to_timedelta(np.repeat(np.arange(188), 40), "D")
    rows = pd.DataFrame({"day": days, "size": rng.normal(size=len(days))})
    given = {"distortion": "mixed", "metric_params": {"dates": ["day:season"]}}
    before = rows[days < first + pd.Timedelta(days=181)]
    model = KMeans(2, random_state=0, n_init=1, **given).fit(before)
    watch = daskmm.monitor(model, before, batches="day")
    for _, batch in rows[len(before) :].groupby("day"):
        look = watch.look(batch)
        assert not any(each.column == "day:season" for each in look.findings)
    assert watch.look(batch.assign(size=5.0)).drifted


def test_a_day_of_the_reference_does_not_alarm():
    days = Days(seed=2, noise=0.3)
    watch = watched(days, 31)
    looks = [watch.look(days(number)) for number in range(31)]
    assert not any(look.drifted for look in looks)
    assert [look.batch for look in looks] == list(range(31))
    assert not watch.look(days(9), batch=9).drifted
    assert watch.look(days(9) + 1.5, batch=9).drifted  # other rows in its place


def test_a_shift_within_the_tolerance_is_no_finding():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 2))
    model = KMeans(2, n_init=1, random_state=0).fit(X[:20_000])
    moved = X[20_000:] + 0.08
    assert not daskmm.monitor(model, X[:20_000]).look(moved).drifted
    assert daskmm.monitor(model, X[:20_000], tolerance=0.05).look(moved).drifted


def test_after_a_bad_day_a_later_shift_is_found():
    days = Days(seed=3)
    watch = watched(days, 70)
    assert watch.look(days(70) + 30).drifted
    assert not any(watch.look(days(number)).drifted for number in range(71, 90))
    assert any(watch.look(days(number, 0.3)).drifted for number in range(90, 97))


def test_a_small_shift_that_lasts_is_found_after_half_a_season():
    days = Days(seed=3, noise=0.07)
    watch = watched(days, 70)
    looks = [watch.look(days(number, 0.2)) for number in range(70, 74)]
    assert [look.drifted for look in looks] == [False, False, False, True]
    assert looks[-1].findings[0].n_batches == 4


@pytest.mark.long
@pytest.mark.parametrize("until", [125, 160])
def test_a_shift_that_lasts_becomes_ordinary(until):
    days = Days(seed=4)
    watch = watched(days, 70)
    alarms = [watch.look(days(number, 1.0)).drifted for number in range(70, until)]
    assert alarms[0]
    assert not any(alarms[45:])


def test_an_update_accepts_what_the_first_look_found():
    X, _ = blobs(900)
    model = quick(KMeans).fit(X[:300])
    watch = daskmm.monitor(model, X[:300])
    moved = X[300:] + 5.0
    assert watch.look(moved[:300]).drifted
    model.partial_fit(moved[:300])
    watch.renew(moved[:300])
    assert not watch.look(moved[300:]).drifted


def test_an_update_accepts_what_a_look_found():
    days = Days(seed=5)
    watch = watched(days, 70)
    assert watch.look(days(70, 1.0)).drifted
    watch.model.partial_fit(days(70, 1.0))
    watch.renew(days(70, 1.0))
    assert watch.series.numbers[-1] == 70
    for number in range(71, 100):
        assert not watch.look(days(number, 1.0)).drifted
        watch.model.partial_fit(days(number, 1.0))
        watch.renew(days(number, 1.0))
    assert watch.look(days(100, 0.0)).drifted


@pytest.mark.parametrize("seen", [True, False])
def test_an_update_with_earlier_or_other_rows_takes_no_date_of_a_later_look(seen):
    days = Days(seed=1)
    watch = watched(days, 70)
    assert not any(watch.look(days(day), batch=day).drifted for day in range(70, 74))
    n_batches = len(watch.series)
    rows = days(70) if seen else days(67)[::2]
    watch.model.partial_fit(rows)
    watch.renew(rows)
    assert len(watch.series) == n_batches + (not seen)
    for day in range(74, 80):
        assert not watch.look(days(day), batch=day).drifted
    assert watch.look(days(80, 1.0), batch=80).drifted
    again = watch.look(days(79), batch=79)
    assert not again.drifted
    assert (watch.series.numbers == 79).sum() == 1


@pytest.mark.parametrize(
    "kind", ["column", "dates", "times", "series", "lazy column", "lazy array"]
)
def test_batches_are_dates_or_numbers_in_any_form(kind):
    days = Days(seed=6)
    X, numbers = days.reference(5)
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = KMeans(3, n_init=1, random_state=0).fit(frame)
    dates = pd.Timestamp("2026-03-01") + pd.to_timedelta(numbers, unit="D")
    lazy = dd.from_pandas(frame.assign(day=dates), npartitions=3)
    X, batches = {
        "column": (frame.assign(day=dates + pd.to_timedelta(np.arange(len(X)) % 24, "h")), "day"),
        "dates": (frame, [str(date.date()) for date in dates]),
        "times": (frame, [f"{date.date()}T23:30:00-05:00" for date in dates]),
        "series": (frame, pd.Series(dates.date)),
        "lazy column": (lazy, "day"),
        "lazy array": (da.from_array(X, chunks=(500, -1)), da.from_array(numbers, chunks=700)),
    }[kind]
    if kind == "lazy array":
        model = KMeans(3, n_init=1, random_state=0).fit(frame.to_numpy())
    watch = daskmm.monitor(model, X, batches=batches)
    first = 0 if kind == "lazy array" else 20513
    assert watch.series.numbers.tolist() == list(range(first, first + 5))
    expected = daskmm.monitor(model, frame if first else frame.to_numpy(), batches=numbers)
    np.testing.assert_allclose(watch.series.values, expected.series.values, atol=1e-9)
    look = watch.look(X[:300] if kind == "lazy array" else frame[:300], "2026-03-07")
    assert np.datetime64(look.batch, "D") == np.datetime64("2026-03-07")


def test_huge_shifts_are_told_in_the_units_of_the_column():
    X, _ = blobs()
    frame = pd.DataFrame(X).add_prefix("x").assign(constant=2.1)
    watch = daskmm.monitor(quick(KMeans).fit(frame), frame)
    reasons = watch.look(frame.assign(constant=5.25)).reasons
    assert reasons[0].startswith("the mean of column 'constant' is 5.25 instead of 2.1 (p = ")


def test_shifts_are_told_beside_the_forecast():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(400, 1)), columns=["age"])
    watch = daskmm.monitor(KMeans(1).fit(frame), frame)
    (reason, *_) = watch.look(frame - 2 * frame.std(ddof=0)).reasons
    said = "the mean of column 'age' is 2 standard deviations of single rows below its forecast ("
    assert reason.startswith(said)


def test_labels_of_batches_that_have_no_order_are_refused():
    X, _ = blobs()
    model = quick(KMeans).fit(X)
    with pytest.raises(ValueError, match="batches must be dates or whole numbers"):
        daskmm.monitor(model, X, batches=np.repeat(["one", "two"], len(X) // 2))
    with pytest.raises(ValueError, match="X has no column 'day'"):
        daskmm.monitor(model, X, batches="day")
    with pytest.raises(ValueError, match="whole numbers, got monday"):
        daskmm.monitor(model, X).look(X, batch="monday")
    numbers = pd.Series(np.arange(len(X)) // 50)
    with pytest.raises(ValueError, match="batches has the index of X in another order"):
        daskmm.monitor(model, pd.DataFrame(X), batches=numbers[::-1])


def plans(n, seed, new=0.0):
    """Rows of three kinds, some of which have a plan that the fit did not see."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(3, size=n)
    plan = np.array(["free", "basic", "pro"])[kinds].astype(object)
    plan[rng.random(n) < new] = "gold"
    return pd.DataFrame({"age": 20.0 * kinds + rng.normal(0, 3, n), "plan": plan}), kinds


@pytest.mark.parametrize("missing", ["error", "partial"])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_level_that_the_fit_did_not_see_is_found_once(missing, lazy):
    model = KMeans(3, distortion="mixed", missing=missing, random_state=0).fit(plans(600, 0)[0])
    watch = daskmm.monitor(model, plans(600, 0)[0])
    rows = plans(500, 1, new=0.1)[0]
    share = (rows["plan"] == "gold").mean()
    look = watch.look(dd.from_pandas(rows, npartitions=3) if lazy else rows)
    assert look.reasons[0] == (
        f"column 'plan' has the level 'gold', which the fit did not see, in {share:.1%} of the rows"
    )
    assert look.drifted
    assert (look.findings[0].column, look.findings[0].level) == ("plan", "gold")
    assert look.findings[0].found == share
    again = watch.look(plans(500, 2, new=0.01)[0])
    assert not again.drifted
    assert [(each.column, each.level) for each in again.still_unseen] == [("plan", "gold")]
    assert "no drift; still: column 'plan' has the level 'gold'" in repr(again)


def test_a_monitor_is_printed_in_a_line_and_names_the_column_with_infinity():
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["age", "basket"])
    model = quick(KMeans).fit(rows)
    watch = daskmm.monitor(model, rows)
    watch.look(rows)
    assert repr(watch) == (
        "<Monitor of KMeans: 1 batch, 1 look, the last <Look 1: 200 rows, no drift>>"
    )
    with pytest.raises(ValueError, match=r"infinity: .*feature 1 \('basket'\)"):
        watch.look(rows.assign(basket=np.inf))


def test_a_share_of_a_level_that_changes_is_named():
    rows, kinds = plans(3000, 0)
    model = KMeans(3, distortion="mixed", random_state=0).fit(rows)
    fewer = rows[(kinds != 2) | (np.arange(3000) % 3 == 0)]
    look = daskmm.monitor(model, rows).look(fewer)
    assert any(reason.startswith("column 'plan' has the level '") for reason in look.reasons)
    told = next(each for each in look.findings if each.kind == "column" and each.level)
    assert told.found == pytest.approx((fewer["plan"] == told.level).mean())
    assert told.expected == pytest.approx((rows["plan"] == told.level).mean())


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (KMeans, {}),
        pytest.param(daskmm.EntropyPowerKMeans, {"lam": 1.0, "n_init": 2}, marks=pytest.mark.long),
    ],
)
def test_unseen_levels_can_be_missing_values_in_predict_and_updates(cls, options):
    rows, kinds = plans(500, 1, new=0.1)
    models = {}
    for missing in ("error", "partial"):
        model = cls(3, distortion="mixed", missing=missing, random_state=0, **options)
        model.fit(plans(600, 0)[0])
        with pytest.raises(ValueError, match=r"'gold' in column 'plan'.*unknown='missing'"):
            model.predict(rows)
        labels = model.predict(rows, unknown="missing")
        assert daskmm.metrics.adjusted_rand_score(kinds, labels) > 0.9
        model.partial_fit(rows, unknown="missing")
        # Later rows without such levels meet a sample that has them.
        for seed in (3, 4):
            model.partial_fit(plans(500, seed)[0])
        assert model.n_samples_seen_ == 2100
        assert model.get_params()["missing"] == missing
        models[missing] = model
    strict, lenient = models["error"], models["partial"]
    np.testing.assert_array_equal(strict.cluster_centers_, lenient.cluster_centers_)
    np.testing.assert_array_equal(strict.cluster_sizes_, lenient.cluster_sizes_)


def test_unknown_is_about_mixed_columns_and_has_two_values():
    X, _ = blobs()
    with pytest.raises(ValueError, match="unknown needs a model"):
        quick(KMeans).fit(X).predict(X, unknown="missing")
    model = KMeans(3, distortion="mixed", random_state=0).fit(plans(60, 0)[0])
    with pytest.raises(ValueError, match="unknown must be 'error' or 'missing'"):
        model.partial_fit(plans(60, 0)[0], unknown="ignore")


def test_a_reference_at_its_centres_is_a_cost_of_zero():
    X = np.repeat([[-1.0, 0.0], [1.0, 0.0]], 40, axis=0)
    watch = daskmm.monitor(KMeans(2, random_state=0, standardize=False).fit(X), X)
    assert watch.reference_cost == 0
    assert [watch.look(rows).cost_ratio for rows in (X, X + np.array([0.5, 0.0]))] == [1.0, np.inf]
    assert "cost 1 times that of the reference" in describe_look(watch.looks[0])
    assert "1 of 2 looks" in plot.drift(watch).get_label()
