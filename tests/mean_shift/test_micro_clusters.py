"""Mean shift of micro-clusters against the exact one, and itself."""

from dataclasses import replace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from _support import raise_if_computes
from sklearn.metrics import adjusted_rand_score

from daskmm import WeightedBlurringMeanShift
from daskmm.cluster import mean_shift as estimators
from daskmm.datasets import make_wbms_simulation1
from daskmm.engine.first_pass import first_pass
from daskmm.engine.passes import weighted_passes
from daskmm.mean_shift import micro_clusters
from daskmm.mean_shift.micro_clusters import DRAWS, PASSES, Compression, ScatteredNeighborhood
from daskmm.mean_shift.neighborhood import Neighborhood, Shift

WEIGHTS, BANDWIDTH = np.array([0.5, 0.4, 0.05, 0.05]), 0.1


def rows_of(n=600, seed=0):
    rng = np.random.default_rng(seed)
    centers = 4 * np.eye(3, 4)
    return centers[np.arange(n) % 3] + 0.4 * rng.normal(size=(n, 4))


def compressed(X, n_points, weights=None, w=WEIGHTS):
    passes = weighted_passes(X, weights)
    survey = first_pass(passes, 1, True, 0)
    now = Compression.of(passes, survey, w, BANDWIDTH, n_points, 0)
    for number in range(DRAWS):
        now = replace(now, centers=now.drawn(), n_draws=number + 1)
    for number in range(PASSES - DRAWS):
        now = now.after() if number else now
        now = replace(now, made=now.moved())
    return *now.result, survey, passes


@pytest.mark.parametrize("self_term", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_step_of_micro_clusters_without_variance_is_the_step_of_rows(self_term, weighted):
    X = rows_of(90)
    v = np.random.default_rng(1).integers(1, 4, 90).astype(float) if weighted else np.ones(90)
    exact = Neighborhood.of(X, v, 1e-6)
    start = ScatteredNeighborhood(exact.representatives, exact.members, np.zeros_like(X))
    shift = Shift(0.3, self_term, 1e-6, 1, False)
    expected, pull = exact.step(WEIGHTS, shift)
    found, own_pull = start.step(WEIGHTS, shift)
    np.testing.assert_allclose(
        found.representatives.positions, expected.representatives.positions, atol=1e-10
    )
    np.testing.assert_array_equal(found.members, expected.members)
    assert own_pull == pytest.approx(pull)


def test_rows_of_a_micro_cluster_come_together_as_its_scatter_says():
    """Rows around one centre and their micro-cluster, step by step."""
    rng = np.random.default_rng(0)
    X = 0.2 * rng.normal(size=(4000, 2))
    X -= X.mean(axis=0)
    w, shift = np.array([0.6, 0.4]), Shift(0.2, True, 0.0, 1, False)
    rows = Neighborhood.of(X, np.ones(4000), 0.0)
    whole = Neighborhood.of(X, np.ones(4000), 1e9)
    one = ScatteredNeighborhood(whole.representatives, whole.members, X.var(axis=0)[None])
    for _ in range(2):
        rows, one = rows.step(w, shift)[0], one.step(w, shift)[0]
        spread = rows.representatives.positions.var(axis=0)
        # To first order: the map is not linear far from the centre.
        np.testing.assert_allclose(one.scatter[0], spread, rtol=0.15)
        np.testing.assert_allclose(one.representatives.positions, 0.0, atol=0.01)


@pytest.mark.parametrize("weighted", [True, False])
def test_micro_clusters_are_the_moments_of_their_rows(weighted):
    X = rows_of()
    v = np.random.default_rng(1).integers(0, 4, 600) / 2 if weighted else np.ones(600)
    made, cells, survey, passes = compressed(X, 40, v if weighted else None)
    assert passes.n_passes == 1 + micro_clusters.PASSES
    z = survey.coordinates.to_model(X)
    distances = (cells.weights * (z[:, None, cells.features] - cells.centers[None]) ** 2).sum(
        axis=2
    )
    labels = distances.argmin(axis=1)
    for j in range(len(made.multiplicity)):
        mine = labels == j
        own = v[mine]
        mean = np.average(z[mine], weights=own, axis=0)
        variance = np.average((z[mine] - mean) ** 2, weights=own, axis=0)
        assert made.multiplicity[j] == pytest.approx(own.sum())
        assert made.own[j] == pytest.approx((own * np.minimum(own, 1)).sum() / own.sum())
        np.testing.assert_allclose(made.positions[j], mean, atol=1e-12)
        used = cells.features
        np.testing.assert_allclose(made.scatter[j][used], variance[used], atol=1e-12)
    assert made.multiplicity.sum() == pytest.approx(v.sum())
    assert len(made.multiplicity) <= 40


def test_features_of_noise_are_left_out_of_distances():
    w = np.array([0.5, 0.5 - 2e-9, 1e-9, 1e-9])
    made, cells, _, _ = compressed(rows_of(), 40, w=w)
    np.testing.assert_array_equal(cells.features, [0, 1])
    assert not made.scatter[:, 2:].any()
    assert made.scatter[:, :2].any()


@pytest.mark.parametrize("compiled", [True, False])
def test_micro_clusters_do_not_depend_on_chunks(compiled, monkeypatch):
    X = rows_of()
    expected, *_ = compressed(X, 60)
    if not compiled:
        monkeypatch.setattr("daskmm.mean_shift.micro_clusters.library.available", lambda: False)
    for chunks in (37, 600):
        found, *_ = compressed(da.from_array(X, chunks=(chunks, -1)), 60)
        np.testing.assert_allclose(found.positions, expected.positions, atol=1e-9)
        np.testing.assert_allclose(found.scatter, expected.scatter, atol=1e-9)


def test_far_rows_are_micro_clusters_of_their_own():
    X = rows_of(5000)
    far = np.array([[60.0, 0, 0, 0], [0, 70.0, 0, 0], [-60.0, -40, 0, 0]])
    X[[10, 2000, 4000]] = far
    made, _, survey, _ = compressed(X, 80)
    for row in survey.coordinates.to_model(far):
        nearest = np.abs(made.positions - row).sum(axis=1).argmin()
        np.testing.assert_allclose(made.positions[nearest], row, atol=1e-9)
        assert made.multiplicity[nearest] == 1.0


def test_nan_is_refused_where_it_stands():
    X = rows_of()
    X[417, 3] = np.nan
    with pytest.raises(ValueError, match=r"NaN.*row 417"):
        WeightedBlurringMeanShift(0.1, n_representatives=40).fit(X)


@pytest.mark.parametrize(
    "convention", ["auto", "paper", pytest.param("reference", marks=pytest.mark.long)]
)
def test_labels_are_those_of_the_exact_fit(convention):
    X, y = make_wbms_simulation1(1500, 6, 5, 5, random_state=0)
    X, y = X.compute(), y.compute()
    common = {"bandwidth": 0.02, "convention": convention, "random_state": 0}
    exact = WeightedBlurringMeanShift(**common, n_representatives=None).fit(X)
    found = WeightedBlurringMeanShift(**common, n_representatives=150).fit(X)
    assert found.n_clusters_ == exact.n_clusters_ == 6
    assert adjusted_rand_score(exact.labels_, found.labels_) == 1.0
    np.testing.assert_allclose(found.feature_weights_, exact.feature_weights_, atol=0.02)
    # Modes in features of noise, which do not weigh, are means of whatever rows are around.
    difference = np.abs(found.cluster_centers_ - exact.cluster_centers_)
    assert difference[:, :5].max() < 5e-3
    np.testing.assert_array_equal(found.cluster_sizes_, np.bincount(found.labels_))
    assert exact.history_[0].stage == ("blur" if convention == "paper" else "learn")
    assert found.history_[0].stage == "blur"


@pytest.mark.long
def test_clusters_that_the_sample_has_missed_are_found():
    """One of 20 rows in 100,000: the sample of 10,000 has two of them."""
    rng = np.random.default_rng(0)
    X = np.concatenate([3.0 * np.eye(2, 4)[np.arange(99_980) % 2], np.full((20, 4), -3.0)])
    X[:, 2:] = rng.normal(size=(100_000, 2))
    X[:, :2] += 0.2 * rng.normal(size=(100_000, 2))
    model = WeightedBlurringMeanShift(0.1, n_representatives=300, random_state=0)
    model.fit(da.from_array(X, chunks=(30_000, -1)))
    labels = model.labels_.compute()
    assert np.ptp(labels[-20:]) == 0
    assert np.sum(labels == labels[-1]) == 20
    assert np.sum(model.cluster_sizes_ > 10) == 3


def test_far_rows_that_share_a_micro_cluster_are_no_cluster():
    """Fifty of 200 rows far from all others have one micro-cluster, and nothing near them."""
    rng = np.random.default_rng(0)
    X = 4.0 * np.eye(3)[np.arange(20_000) % 3] + 0.3 * rng.normal(size=(20_000, 3))
    X[rng.choice(20_000, 200, replace=False)] = 12.0 * rng.normal(size=(200, 3))
    model = WeightedBlurringMeanShift(0.02, np.inf, n_representatives=100, random_state=0).fit(X)
    assert model.n_clusters_ == 3
    assert model.cluster_sizes_.min() > 6600


def test_rows_that_have_come_together_are_counted():
    scatter = np.array([[0.0, 0.0], [0.3, 0.1], [100.0, 100.0]])
    weights = np.array([1.0, 5.0, 40.0])
    start = ScatteredNeighborhood(
        Neighborhood.of(np.eye(3, 2), weights, 0.0).representatives, np.arange(3), scatter
    )
    w, h = np.array([0.6, 0.4]), 0.5
    seen = 1 / np.sqrt((1 + 2 * 0.6 * 0.3 / h) * (1 + 2 * 0.4 * 0.1 / h))
    found = start.met(start, w, h)
    np.testing.assert_allclose(found[:2], [1.0, 1 + 4 * seen])
    assert found[2] == pytest.approx(1.0, abs=0.3)
    merged = replace(start, representatives=start.representatives, members=np.array([0, 1, 1]))
    np.testing.assert_allclose(merged.met(start, w, h)[:2], [found[0], found[1:].sum()])
    exact = Neighborhood.of(np.eye(3, 2), weights, 0.0)
    np.testing.assert_array_equal(exact.met(exact, w, h), weights)


@pytest.mark.parametrize("kind", ["memory", "dask", "frame", "unknown rows"])
def test_labels_do_not_depend_on_the_form_of_the_table_and_are_lazy_for_lazy_ones(kind):
    X = rows_of(700)
    expected = WeightedBlurringMeanShift(0.1, n_representatives=60, random_state=0).fit(X)
    assert expected.n_passes_ == 1 + micro_clusters.PASSES + 1
    table = {
        "memory": lambda: X,
        "dask": lambda: da.from_array(X, chunks=(200, -1)),
        "frame": lambda: dd.from_pandas(pd.DataFrame(X, columns=list("abcd")), npartitions=3),
        "unknown rows": lambda: da.from_array(X, chunks=(200, -1))[
            da.from_array(np.ones(700, bool), chunks=200)
        ],
    }[kind]()
    found = WeightedBlurringMeanShift(0.1, n_representatives=60, random_state=0).fit(table)
    assert dask.is_dask_collection(found.labels_) == (kind != "memory")
    np.testing.assert_array_equal(np.asarray(found.labels_), expected.labels_)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, atol=1e-9)


def test_plan_of_micro_clusters_reads_nothing_and_bounds_the_passes():
    table = da.from_array(rows_of(), chunks=(200, -1))
    model = WeightedBlurringMeanShift(0.1, n_representatives=60, random_state=0)
    with raise_if_computes():
        plan = model.plan(table)
    # Heavy tails take a second pass for the sample.
    assert plan.max_passes == 1 + plan.passes == 6
    assert model.fit(table).n_passes_ <= plan.max_passes
    assert {"feature weights", "micro-clusters", "blurring"} < set(plan.stages)
    million = da.zeros((10**6, 20), chunks=(10**5, -1))
    assert WeightedBlurringMeanShift().plan(million).peak_bytes_per_worker < 2e9
    # Few enough rows are blurred one by one.
    few = da.zeros((estimators.EXACT_ROWS, 20), chunks=(10**4, -1))
    assert WeightedBlurringMeanShift().plan(few).max_passes > 300
    table = da.from_array(np.arange(40_000.0).reshape(-1, 2), chunks=(5_000, 2))
    plan = WeightedBlurringMeanShift().plan(table[table[:, 0] >= 0])  # of unknown length
    assert plan.passes <= 8
    assert plan.max_passes > 300


def test_a_checkpoint_resumes_between_the_passes(tmp_path, monkeypatch):
    X = da.from_array(rows_of(), chunks=(200, -1))

    def model(**more):
        return WeightedBlurringMeanShift(0.1, n_representatives=60, random_state=0, **more)

    expected = model().fit(X)
    calls, whole = [], micro_clusters._cell_sums

    def failing(*arguments):
        calls.append(1)
        if len(calls) > 4:
            raise RuntimeError("stopped")
        return whole(*arguments)

    monkeypatch.setattr(micro_clusters, "_cell_sums", failing)
    with pytest.raises(RuntimeError, match="stopped"):
        model(checkpoint=tmp_path / "fit").fit(X)
    calls.clear()
    found = model(checkpoint=tmp_path / "fit").fit(X)
    assert len(calls) <= 3
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(found.labels_.compute(), expected.labels_.compute())
    assert found.n_passes_ == expected.n_passes_ + 1
