"""Missing values: what a fit makes of them, and what it does not."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from _naive import power_means
from _support import ESTIMATORS, computed, fit_recording, quick
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score

import daskmm
from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

each_class = pytest.mark.parametrize("cls", ESTIMATORS)


def clusters(n=240, p=6, k=4, share=0.2, seed=0, offset=0.0):
    """Separated clusters with holes, their complete rows, and the truth."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(0.0, 6.0, (k, p))
    truth = rng.integers(k, size=n)
    rows = centers[truth] + rng.normal(size=(n, p)) + offset
    holes = rng.random((n, p)) < share
    holes[np.arange(n), rng.integers(p, size=n)] = False
    return np.where(holes, np.nan, rows), rows, truth


@each_class
@pytest.mark.parametrize("chunks", [None, (50, 3)])
def test_complete_rows_give_the_same_fit_with_missing_partial(cls, chunks):
    _, rows, _ = clusters()
    X = rows if chunks is None else da.from_array(rows, chunks)
    plain, partial = (quick(cls, missing=missing).fit(X) for missing in ("error", "partial"))
    np.testing.assert_allclose(partial.cluster_centers_, plain.cluster_centers_, rtol=1e-12)
    assert partial.inertia_ == pytest.approx(plain.inertia_, rel=1e-12)
    np.testing.assert_array_equal(computed(partial.labels_), computed(plain.labels_))
    np.testing.assert_allclose(partial.transform(rows), plain.transform(rows), rtol=1e-12)


def test_a_step_over_complete_rows_is_the_same_with_room_for_holes():
    from daskmm.kmeans.sums import CenterState, center_sums
    from daskmm.numerics.rows import Coordinates

    _, rows, _ = clusters()
    coordinates = Coordinates(rows.mean(axis=0), np.ones(6))
    for s in (-2.0, -np.inf):
        a, b = (
            center_sums(
                rows, None, coordinates, (CenterState(rows[:4] * 0.9, s, partial=partial),)
            ).records[0]
            for partial in (False, True)
        )
        np.testing.assert_allclose(b.sums, a.sums, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(b.denominators, a.weights[:, None] * np.ones(6), rtol=1e-12)
        assert b.objective == pytest.approx(a.objective, rel=1e-12)


def naive_step(rows, centers, s):
    """One step of power k-means on the observed values, by loops."""
    distances = np.array([[np.nansum((x - c) ** 2) for c in centers] for x in rows])
    phi, values = power_means(distances, s)
    new = centers.copy()
    for j in range(len(centers)):
        for f in range(rows.shape[1]):
            held = ~np.isnan(rows[:, f])
            mass = phi[held, j].sum()
            if mass > 0:
                new[j, f] = (phi[held, j] * rows[held, f]).sum() / mass
    return new, values.mean()


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_steps_are_those_of_loops_over_the_observed_values(offset):
    rows, _, _ = clusters(n=60, offset=offset)
    init = np.where(np.isnan(rows[:4]), np.nanmean(rows, axis=0), rows[:4])
    expected, history, s = init, [], -1.0
    for _ in range(6):
        expected, value = naive_step(rows, expected, s)
        history.append(value)
        s *= 1.3
    model = PowerKMeans(
        4, init=init, missing="partial", s0=-1, eta=1.3, tol=0, polish=False, max_iter=6
    )
    fit_recording(model, rows)
    np.testing.assert_allclose(model.cluster_centers_, expected, rtol=1e-7 if offset else 1e-10)
    np.testing.assert_allclose(model.objective_history_, history, rtol=1e-7 if offset else 1e-10)


@each_class
def test_clusters_are_found_whatever_the_input_and_its_chunks(cls, tmp_path):
    rows, complete, truth = clusters(share=0.3)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(rows))
    model = quick(cls, missing="partial").fit(rows, sample_weight=weights)
    assert adjusted_rand_score(truth, model.labels_) > 0.95
    assert np.isfinite(model.cluster_centers_).all()
    assert model.score(rows, sample_weight=weights) == pytest.approx(-model.inertia_, rel=1e-9)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    frame = pd.DataFrame(rows, columns=list("abcdef"))
    for X in (da.from_array(rows, (50, 4)), da.from_array(rows, (240, 6)), frame):
        other = quick(cls, missing="partial").fit(X, sample_weight=weights)
        np.testing.assert_allclose(other.cluster_centers_, model.cluster_centers_, rtol=1e-9)
        np.testing.assert_array_equal(computed(other.labels_), model.labels_)
    model.save(tmp_path / "model")
    again = daskmm.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(rows), model.labels_)
    np.testing.assert_allclose(again.transform(rows), model.transform(rows))
    assert np.isfinite(model.transform(complete)).all()


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_seeding_handles_holes(init):
    rows, _, truth = clusters(n=400, share=0.3)
    model = PowerKMeans(4, init=init, missing="partial", random_state=0, n_init=4)
    fit_recording(model, da.from_array(rows, (90, 6)))
    assert adjusted_rand_score(truth, computed(model.labels_)) > 0.97


@each_class
def test_rows_and_features_without_any_value_are_named(cls):
    rows, complete, _ = clusters()
    bad = rows.copy()
    bad[77] = np.nan
    where = r"row without any value: block 1, row 27 of the block \(row 77 of the data\)"
    with pytest.raises(ValueError, match=where):
        quick(cls, missing="partial").fit(da.from_array(bad, (50, 6)))
    model = quick(cls, missing="partial").fit(complete)
    with pytest.raises(ValueError, match=where):
        quick(cls, missing="partial").fit(complete).partial_fit(da.from_array(bad, (50, 6)))
    expected = np.where(np.arange(len(bad)) == 77, -1, model.predict(rows))
    with pytest.warns(UserWarning, match="1 row of X has no value at all; it gets the label -1"):
        np.testing.assert_array_equal(model.predict(bad), expected)
    lazy = da.from_array(bad, (50, 6))
    np.testing.assert_array_equal(model.predict(lazy).compute(), expected)
    for found in (model.transform(bad), model.predict_proba(bad), model.score_samples(bad)):
        assert np.isnan(found[77]).all()
        assert np.isfinite(found[:77]).all()
    bad = rows.copy()
    bad[:, 4] = np.nan
    with pytest.raises(ValueError, match="feature without any value: feature 4"):
        quick(cls, missing="partial").fit(da.from_array(bad, (50, 6)))
    bad = rows.copy()
    bad[60, 2] = np.inf
    with pytest.raises(ValueError, match=r"infinity: block 1, row 10 .* feature 2"):
        quick(cls, missing="partial").fit(da.from_array(bad, (50, 6)))
    with pytest.raises(ValueError, match=r"NaN"):
        quick(cls).fit(rows)


def test_features_with_few_values_get_no_weight_for_that():
    rng = np.random.default_rng(2)
    truth = rng.integers(3, size=1500)
    rows = rng.normal(size=(1500, 8))
    rows[:, :3] += 5.0 * rng.normal(size=(3, 3))[truth]
    holes = np.zeros(rows.shape, dtype=bool)
    holes[:, 7] = rng.random(1500) < 0.9
    rows[holes] = np.nan
    model = EntropyPowerKMeans(3, missing="partial", random_state=0).fit(rows)
    assert set(np.argsort(model.feature_weights_)[-3:]) == {0, 1, 2}
    assert adjusted_rand_score(truth, model.labels_) > 0.9


@pytest.mark.in_turn("seed")
@pytest.mark.parametrize("cls", [PowerKMeans, EntropyPowerKMeans])
@pytest.mark.parametrize("seed", range(4))
def test_steps_at_a_fixed_power_never_raise_the_objective(cls, seed):
    rows, _, _ = clusters(n=80, p=4, share=0.4, seed=seed)
    model = cls(
        4, s0=-2, eta=1, tol=0, polish=False, max_iter=25, missing="partial", n_init=1,
        random_state=seed,
    )  # fmt: skip
    fit_recording(model, rows)
    history = model.objective_history_
    assert (np.diff(history) <= 1e-12 * np.abs(history).max()).all()


@pytest.mark.long
@pytest.mark.parametrize("share", [0.2, 0.4])
def test_leaving_values_out_finds_more_than_imputing_means(share):
    rows = load_iris(return_X_y=True)[0]
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    whole = PowerKMeans(3, random_state=0).fit(rows).labels_
    ours, imputed = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        holes = rng.random(rows.shape) < share
        holes[np.arange(len(rows)), rng.integers(4, size=len(rows))] = False
        data = np.where(holes, np.nan, rows)
        filled = np.where(holes, np.nanmean(data, axis=0), data)
        model = PowerKMeans(3, missing="partial", random_state=0).fit(data)
        ours.append(adjusted_rand_score(whole, model.labels_))
        labels = KMeans(3, random_state=0).fit(filled).labels_
        imputed.append(adjusted_rand_score(whole, labels))
    assert np.mean(ours) > np.mean(imputed)


def test_large_tables_with_holes_are_annealed_on_a_sample():
    rows, _, truth = clusters(n=9000, share=0.3)
    model = PowerKMeans(4, missing="partial", sample_size=600, random_state=0)
    model.fit(da.from_array(rows, (2000, 6)))
    assert adjusted_rand_score(truth, computed(model.labels_)) > 0.97
    assert model.n_passes_ < 15


def test_few_missing_values_do_not_change_the_chosen_scale():
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    rows = np.column_stack([6.0 * (labels == 0), 6.0 * (labels == 1), np.zeros(300)])
    rows = (rows + rng.normal(size=rows.shape)) * [1.0, 1.0, 400.0]
    whole = KMeans(3, random_state=0).fit(rows)
    assert whole.standardize_path_.standardize
    rows[::29, 0] = np.nan
    holed = KMeans(3, missing="partial", random_state=0).fit(rows)
    assert holed.standardize_path_.standardize
    assert adjusted_rand_score(labels, holed.labels_) > 0.9


@pytest.mark.parametrize("distortion", ["sqeuclidean", "gamma", "manhattan", "mixed"])
def test_a_block_of_empty_rows_beside_complete_rows_changes_nothing(distortion):
    rows = np.abs(clusters()[1]) + 1.0
    empty = np.full((40, rows.shape[1]), np.nan)
    X = np.vstack([rows[:80], empty, rows[80:]])
    lazy = da.from_array(X, chunks=(40, -1))
    if distortion == "mixed":
        lazy = dd.from_dask_array(lazy, columns=list("abcdef"))
    own = {"missing": "partial", "empty_rows": "label", "distortion": distortion}
    model = KMeans(4, random_state=0, **own).fit(lazy)
    labels = computed(model.labels_)
    np.testing.assert_array_equal(labels == -1, np.isnan(X).all(axis=1))
    assert model.cluster_sizes_.sum() == len(rows)
    np.testing.assert_allclose(-model.score(lazy), model.inertia_, rtol=1e-9)
