"""Centres without rows: where they go, and what is said of them."""

import dask.array as da
import numpy as np
import pytest
from _support import blobs, fit_recording
from sklearn.base import clone

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.data.blocks import row_blocks
from daskmm.engine.passes import Passes
from daskmm.kmeans.empty_clusters import split_coincident
from daskmm.kmeans.updates import CentersProblem, PowerUpdate, coincident_centers
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Schedule, minimize
from daskmm.numerics.rows import Coordinates


def far_start(rows, k):
    """Centres of which the last serves no row."""
    return np.vstack([rows[: k - 1], rows.max(axis=0) + 1e3])


@pytest.mark.parametrize("chunks", [None, 17, 60])
def test_emptied_clusters_are_filled_whatever_the_chunks(chunks):
    rows, _ = blobs(240, 3, 4)
    X = rows if chunks is None else da.from_array(rows, (chunks, 3))
    model = KMeans(4, init=far_start(rows, 4), standardize=False).fit(X)
    expected = KMeans(4, init=far_start(rows, 4), standardize=False).fit(rows)
    assert len(np.unique(np.asarray(model.labels_))) == 4
    np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_count_as_copies_do_where_several_clusters_are_empty():
    rows, _ = blobs(240, 3, 4)
    start = np.vstack([rows[:1], rows.max(axis=0) + 1e3 * np.arange(1, 4)[:, None]])
    # Trials of scales draw other rows where rows are repeated.
    same = KMeans(4, init=start, max_iter=1, standardize=False)
    weighted = clone(same).fit(rows, sample_weight=np.full(240, 3.0))
    copied = clone(same).fit(np.repeat(rows, 3, axis=0))
    for model in weighted, copied:
        assert len(np.unique(model.cluster_centers_, axis=0)) == 4
    np.testing.assert_allclose(copied.cluster_centers_, weighted.cluster_centers_, rtol=1e-12)


def test_an_empty_cluster_is_refused_by_its_number_if_asked():
    rows, _ = blobs(240, 3, 4)
    with pytest.raises(ValueError, match=r"1 of 4 clusters became empty \(first: cluster 3"):
        KMeans(4, init=far_start(rows, 4), standardize=False, empty_cluster="error").fit(rows)
    fine = KMeans(4, init=rows[:4], standardize=False, empty_cluster="error").fit(rows)
    assert len(np.unique(fine.labels_)) == 4


def test_restart_begins_again_until_no_cluster_is_empty():
    # Random rows of these are as often equal as not.
    rows = np.repeat([[0.0], [1.0]], 20, axis=0)
    for seed in range(5):
        parameters = {"init": "random", "n_init": 1, "standardize": False, "random_state": seed}
        assert KMeans(2, empty_cluster="restart", **parameters).fit(rows).inertia_ == 0.0
    rows, _ = blobs(240, 3, 4)
    given = KMeans(3, init=far_start(rows, 3), standardize=False, empty_cluster="restart")
    assert any("Number of distinct clusters" in note for note in fit_recording(given, rows))


def test_fewer_distinct_rows_than_clusters_still_end_in_a_warning():
    rows = np.repeat([[0.0], [1.0]], 20, axis=0)
    for method in ("farthest", "restart"):
        model = KMeans(3, empty_cluster=method, random_state=0)
        assert any("Number of distinct clusters" in note for note in fit_recording(model, rows))
        assert model.inertia_ == 0.0


def problem_of(rows):
    p = rows.shape[1]
    coordinates = Coordinates(rows.mean(axis=0), np.ones(p))
    spread = float(rows.var(axis=0).sum())
    return CentersProblem(
        Passes(row_blocks(rows)), coordinates, float(len(rows)), PowerUpdate(), spread
    )


def test_coincident_centres_at_the_end_are_split_once_and_polished():
    rows, truth = blobs(240, 3, 4)
    problem = problem_of(rows)
    schedule = Schedule(-3.0, eta=1.1, polish=True, max_iter=100)
    means = [rows[truth == j].mean(axis=0) for j in range(3)]
    # Two centres at the same place share a cluster, and another serves two.
    start = np.array([*means, means[0]]) - rows.mean(axis=0)
    outcome = minimize(problem, [start], Schedule(-9.0, max_iter=3, tol=0.0))
    assert outcome.scored.coincident_centers == 1
    found, n_split = split_coincident(problem, outcome, schedule, FitContext())
    assert n_split == 1
    assert found.inertia < 0.6 * outcome.inertia
    assert coincident_centers(found.run.state, found.inertia / len(rows)) == 0
    iterations = [record.iteration for record in found.run.history]
    assert iterations == list(range(1, len(iterations) + 1))
    # Not where the schedule says that steps end with the annealing, or are all taken.
    for other in (
        Schedule(-3.0, polish=False, max_iter=100),
        Schedule(-3.0, polish=True, max_iter=1),
        Schedule(-3.0, polish=True, max_iter=100, tol=0.0),
    ):
        assert split_coincident(problem, outcome, other, FitContext()) == (outcome, 0)


@pytest.mark.parametrize("cls", [PowerKMeans, EntropyPowerKMeans])
def test_a_fit_that_begins_too_hot_says_that_centres_were_split(cls):
    # All centres fall onto the mean of directions without structure, and cannot be told apart.
    rows = np.random.default_rng(0).normal(size=(300, 12))
    rows[:, 0] += 20.0 * (np.arange(300) % 2)
    model = cls(4, s0=-0.5, eta=1.9, init=rows[:4], max_iter=60, random_state=0)
    fit_recording(model, rows)
    assert len(np.unique(model.labels_)) == 4
