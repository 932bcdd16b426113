"""The information gain over noise, and the choice of λ by it."""

import math
import re

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from _paths import lam_path
from _support import CountingSource, blobs, computed, fit_recording
from sklearn.metrics import normalized_mutual_info_score

from daskmm import EntropyPowerKMeans, KMeans, load, plot
from daskmm.auto.lam import MULTIPLES, LamPath, follow_lam, preferred_lam
from daskmm.datasets import make_ewp_simulation2
from daskmm.engine.moments import Sample
from daskmm.kmeans.restarts import Restarts, cheaper
from daskmm.kmeans.trials import Trials, nearest, power_labels
from daskmm.kmeans.updates import EntropyUpdate, sample_problem
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Schedule, minimize
from daskmm.numerics.information import feature_gains, partition, weighted_variance
from daskmm.selection import information_gain


def few_features(n=600, k=5, informative=3, noise=12, seed=0):
    """Clusters in few of many features of the same variance."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(k, size=n)
    told = rng.normal(size=(k, informative))[truth] + 0.1 * rng.normal(size=(n, informative))
    rows = np.column_stack([told, rng.normal(size=(n, noise))])
    return (rows - rows.mean(axis=0)) / rows.std(axis=0), truth


X, TRUTH = few_features()


# The criterion.


def naive_within(rows, weights, labels):
    """1 − R of every feature, one row at a time."""
    shares = []
    for feature in range(len(rows[0])):
        values = [row[feature] for row in rows]
        mean = math.fsum(v * w for v, w in zip(values, weights, strict=True)) / math.fsum(weights)
        total = math.fsum(w * (v - mean) ** 2 for v, w in zip(values, weights, strict=True))
        left = 0.0
        for cluster in set(labels):
            mine = [i for i, label in enumerate(labels) if label == cluster]
            size = math.fsum(weights[i] for i in mine)
            center = math.fsum(weights[i] * values[i] for i in mine) / size
            left += math.fsum(weights[i] * (values[i] - center) ** 2 for i in mine)
        shares.append(left / total if len(set(values)) > 1 else 1.0)
    return shares


@pytest.mark.parametrize("seed", range(4))
def test_variance_within_clusters_is_that_of_naive_loops(seed):
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(40, 4)) * [1, 5, 0.1, 0] + 3, rng.uniform(0.1, 2, 40)
    labels = rng.integers(5, size=40) * 3
    found = partition(rows, weights, labels)
    expected = naive_within(rows.tolist(), weights.tolist(), labels.tolist())
    np.testing.assert_allclose(found.within, expected, rtol=1e-10)
    sizes = [weights[labels == label].sum() for label in np.unique(labels)]
    np.testing.assert_allclose(found.shares, sizes / weights.sum())
    variance = weighted_variance(rows, weights)
    mean = np.average(rows, axis=0, weights=weights)
    expected = np.average((rows - mean) ** 2, axis=0, weights=weights)
    np.testing.assert_allclose(variance[:3], expected[:3], rtol=1e-10)
    assert variance[3] == 0
    known = partition(rows, weights, labels, variance)
    np.testing.assert_array_equal(known.within, found.within)
    np.testing.assert_array_equal(partition(rows, weights, 0 * labels).within, np.ones(4))


def test_gains_follow_their_formula():
    within, null = np.array([0.5, 1e-9, 0.25, 0.3]), np.array([1.0, 0.5, 1e-6, 0.9])
    varying = np.array([True, True, True, False])
    expected = [math.log(ratio) / 2 for ratio in (1 / 0.5, 0.5 / 1e-3, 1e-3 / 0.25)]
    np.testing.assert_allclose(feature_gains(within, null, varying), [*expected, 0])


def test_clusters_gain_and_noise_does_not():
    rows, truth = blobs(600, 5, 4, seed=1)
    assert information_gain(rows, truth, random_state=0) > 3
    noise = np.random.default_rng(0).normal(size=(1500, 5))
    cut = KMeans(4, random_state=0).fit(noise)
    assert abs(information_gain(noise, cut, random_state=0)) < 0.15
    assert information_gain(noise, np.arange(1500) % 4, random_state=0) < 0


def test_labels_gain_as_much_as_the_model_that_gave_them():
    rows, _ = blobs(500, 4, 3, seed=2)
    rows = np.round(rows * 10).astype(np.int16)
    model = KMeans(3, random_state=0).fit(rows)
    gain = information_gain(rows, model, random_state=3)
    assert information_gain(rows, model.labels_, random_state=3) == pytest.approx(gain)
    # The scale of a feature is nothing to labels.
    scaled = rows * np.array([1, 100.0, 1, 0.01])
    by_scale = information_gain(scaled, model.labels_, standardize=True, random_state=3)
    by_none = information_gain(rows, model.labels_, standardize=True, random_state=3)
    assert by_scale == pytest.approx(by_none)
    lazy, labels = da.from_array(rows, chunks=(90, 2)), da.from_array(model.labels_, chunks=70)
    assert information_gain(lazy, labels, random_state=3) == pytest.approx(gain)
    assert information_gain(lazy, model, random_state=3) == pytest.approx(gain)
    weights = np.full(500, 2.5)
    weighted = information_gain(rows, model, sample_weight=weights, random_state=3)
    assert weighted == pytest.approx(gain)
    few = information_gain(rows, model, sample_size=300, random_state=3)
    assert few != gain
    assert few == pytest.approx(gain, rel=0.1)


@pytest.mark.parametrize("lazy", [False, True])
def test_labels_that_do_not_match_are_refused(lazy):
    rows = da.from_array(X, chunks=(100, -1)) if lazy else X
    with pytest.raises(ValueError, match=r"labels have shape \(7,\); X has 600 rows"):
        information_gain(rows, np.zeros(7))
    with pytest.raises(ValueError, match="n_draws"):
        information_gain(rows, TRUTH, n_draws=0)


def test_the_null_is_clustered_like_the_rows():
    trials = Trials.of(Sample(X, np.ones(len(X))), len(X), 0)
    weights = np.where(np.arange(15) < 3, 1 / 3, 0.0)
    null = trials.null_within(weights, 5, 7)
    np.testing.assert_allclose(null[3:], 1 - 4 / 599)
    noise = np.random.default_rng(7).standard_normal((600, 3))
    scale = np.sqrt(weights[:3] * trials.variance[:3])
    (labels,) = power_labels(noise * scale, np.ones(600), 5, [7])
    np.testing.assert_allclose(null[:3], partition(noise, np.ones(600), labels).within)
    assert (null[:3] < 0.9).all()


# The choice of λ.


@pytest.mark.parametrize(
    ("gain", "spread", "chosen"),
    [
        ([5.0, 4.0, 3.0, 1.0], 1.0, 0),
        ([5.0, 4.7, 3.0, 1.0], 1.0, 1),  # within .07 of the best
        ([5.0, 4.7, 3.0, 1.0], 0.11, 1),  # within three spreads
        ([5.0, 4.7, 3.0, 1.0], 0.09, 0),
        ([0.0, 0.05, 0.02, 0.01], 0.5, 3),  # nothing to choose from
        ([0.0, 0.05, 0.02, -0.01], 0.5, 2),
        ([14.0, 13.5, 12.0, 13.03], 1.0, 3),
        ([-1.0, -2.0], 0.1, 0),
    ],
)
def test_the_largest_penalty_as_good_as_the_best_wins(gain, spread, chosen):
    assert preferred_lam(np.add.outer(gain, [-spread, spread])) == chosen


def test_gains_of_a_single_start_are_judged_by_a_share_of_the_best():
    assert preferred_lam(np.array([[5.0], [4.7], [3.0]])) == 1


def test_the_path_finds_the_features():
    path = lam_path(X, 5, random_state=0)
    np.testing.assert_allclose(path.lams, MULTIPLES)
    assert path.gains.shape == (6, 3)
    np.testing.assert_allclose(path.feature_weights.sum(axis=1), 1)
    np.testing.assert_allclose(path.feature_weights[-1], 1 / 15)
    assert set(np.argsort(path.feature_weights[path.chosen])[-3:]) == {0, 1, 2}
    assert path.lam < 1
    assert path.gain[path.chosen] >= path.threshold > path.gain[-1]
    assert (path.n_clusters, path.n_rows) == (5, 600)
    np.testing.assert_allclose(path.spread, path.gains.std(axis=1))


def test_the_path_on_noise_weighs_no_features():
    noise = np.random.default_rng(1).normal(size=(500, 8))
    path = lam_path(noise, 5, random_state=0)
    assert path.lam == np.inf
    assert abs(path.gain[-1]) < 0.2


@pytest.mark.parametrize(
    ("within", "beyond", "n_values"),
    [
        *((0.95, 0.03, 2), (0.9, 0.02, 3)),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((0.8, 0.1, 2), (0.05, 0.05, 2), (0.5, 0.5, 2))
        ),
    ],
)
def test_a_column_of_few_values_takes_no_more_than_half_of_the_weight(within, beyond, n_values):
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=1500)
    rows = 3 * np.eye(3, 4)[truth] + rng.normal(size=(1500, 4))
    flag = rng.binomial(n_values - 1, np.where(truth == 0, within, beyond))
    model = EntropyPowerKMeans(3, random_state=0).fit(np.column_stack([rows, flag]))
    assert model.feature_weights_[-1] < 0.5
    assert normalized_mutual_info_score(truth, model.labels_) > 0.8


def test_penalties_that_are_given_are_tried_in_order():
    whole = lam_path(X, 5, random_state=0)
    path = lam_path(X, 5, lams=[0.2, 0.5], random_state=0)
    np.testing.assert_array_equal(path.lams, [0.2, 0.5])
    # The same starts and null for every penalty, whatever the others are.
    np.testing.assert_allclose(path.gains, whole.gains[[1, 3]])


@pytest.mark.long
def test_the_choice_reads_nothing_and_does_not_depend_on_chunks_or_schedulers():
    model = EntropyPowerKMeans(5, sample_size=400, random_state=0).fit(X)
    numeric = EntropyPowerKMeans(5, sample_size=400, lam=model.lam_, random_state=0).fit(X)
    assert model.n_passes_ == numeric.n_passes_
    np.testing.assert_array_equal(model.cluster_centers_, numeric.cluster_centers_)
    assert not hasattr(numeric, "lam_path_")
    source = CountingSource(X)
    other = EntropyPowerKMeans(5, sample_size=400, random_state=0).fit(source.as_dask((77, -1)))
    assert set(source.reads.values()) == {other.n_passes_}
    np.testing.assert_allclose(other.lam_path_.gains, model.lam_path_.gains, rtol=1e-6)
    assert other.lam_path_.chosen == model.lam_path_.chosen
    with dask.config.set(scheduler="processes"):
        third = lam_path(da.from_array(X, chunks=(200, -1)), 5, n_init=1, random_state=0)
    path = lam_path(X, 5, n_init=1, random_state=0)
    np.testing.assert_allclose(third.gains, path.gains, rtol=1e-6)


@pytest.mark.long
def test_fits_with_the_chosen_penalty_find_the_clusters(tmp_path):
    rows, truth = (a.compute() for a in make_ewp_simulation2(1000, 10, random_state=0))
    scores = []
    for standardize in (False, True):
        model = EntropyPowerKMeans(10, standardize=standardize, random_state=0)
        scores.append(normalized_mutual_info_score(truth, model.fit(rows).labels_))
        assert model.lam_ == model.lam_path_.lam
        assert set(np.argsort(model.feature_weights_)[-5:]) == set(range(5))
    assert min(scores) > 0.95
    model.save(tmp_path / "model")
    path = load(tmp_path / "model").lam_path_
    np.testing.assert_array_equal(path.gains, model.lam_path_.gains)
    assert path.lam == model.lam_


def test_weights_count_like_copies_and_constant_features_get_no_weight():
    weights = np.random.default_rng(0).integers(0, 3, 600)
    rows = np.column_stack([X, np.full(600, 7.0)])
    path = lam_path(rows, 5, sample_weight=weights, random_state=0)
    copies = lam_path(np.repeat(X, weights, axis=0), 5, random_state=0)
    assert path.n_rows == np.count_nonzero(weights)
    assert (path.feature_weights[:, -1] == 0).all()
    np.testing.assert_allclose(path.gain, copies.gain, atol=0.8)
    constant = lam_path(np.ones((20, 3)), 2, random_state=0)
    np.testing.assert_array_equal(constant.gains, 0)


@pytest.mark.parametrize(
    ("lam", "factor"),
    [
        ("variance", 1),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("0.5*variance", 0.5), (" 2e-1 * variance ", 0.2))
        ),
    ],
)
def test_lam_may_be_a_multiple_of_the_mean_variance(lam, factor):
    rows = X * 3
    model = EntropyPowerKMeans(5, lam=lam, standardize=False, random_state=0).fit(rows)
    assert model.lam_ == pytest.approx(factor * rows.var(axis=0).mean())
    same = EntropyPowerKMeans(5, lam=model.lam_, standardize=False, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.cluster_centers_, same.cluster_centers_)


@pytest.mark.parametrize("lam", ["", "V", "x*variance", "0*variance", "-1*variance", "variance*2"])
def test_words_that_are_no_penalty_are_refused(lam):
    with pytest.raises(ValueError, match=re.escape(repr(lam))):
        EntropyPowerKMeans(5, lam=lam).fit(X)


def test_an_infinite_penalty_is_no_weighting():
    rows, truth = blobs(300, 4, 4, seed=0)
    model = EntropyPowerKMeans(4, lam=np.inf, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.feature_weights_, 0.25)
    assert np.isfinite(model.objective_history_).all()
    assert model.objective_history_[-1] == pytest.approx(model.inertia_ / 300)
    assert normalized_mutual_info_score(truth, model.labels_) == 1


# Tests of `feature_gains_`, which says how much of each feature the clusters explain.


@pytest.mark.parametrize("lam", [0.2, np.inf])
def test_gains_tell_features_that_matter_from_noise_at_any_penalty(lam):
    rows = np.column_stack([X, np.ones(600)])
    model = EntropyPowerKMeans(5, lam=lam, random_state=0).fit(rows)
    gains = model.feature_gains_
    assert gains[:3].min() > 0.3
    assert abs(gains[3:15]).max() < 0.1
    assert gains[15] == 0
    expected = information_gain(rows, model, random_state=0)
    assert gains.sum() == pytest.approx(expected, rel=0.05)


def test_gains_of_a_flag_are_those_of_the_number_that_may_lie_behind_it():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=1000)
    rows = np.column_stack([6 * truth + rng.normal(size=1000), truth])
    gains = EntropyPowerKMeans(2, lam=np.inf, random_state=0).fit(rows).feature_gains_
    # Two halves of a normal number explain 2/π of its variance, and so do halves of noise.
    assert gains[0] > 0.5
    assert -0.1 < gains[1] < 0.5 * math.log(1 / (1 - 2 / math.pi))


@pytest.mark.parametrize("distortion", ["sqeuclidean", "mixed"])
def test_gains_of_features_that_matter_alike_are_alike(distortion):
    # Three clusters of noise explain some features and not others; one such null moved gains by .3.
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(2.0 * rng.integers(3, size=600)[:, None] + rng.normal(size=(600, 6)))
    rows.columns = [*"abcdef"]
    model = EntropyPowerKMeans(3, lam=np.inf, distortion=distortion, n_init=1, random_state=0)
    gains = model.fit(rows).feature_gains_
    assert gains.min() > 0.4
    assert np.ptp(gains) < 0.2


def test_gains_follow_the_rows_of_later_calls():
    rows = np.column_stack([X, np.random.default_rng(1).normal(size=600)])
    model = EntropyPowerKMeans(5, lam=0.5, random_state=0).partial_fit(rows[:300])
    first = model.feature_gains_
    whole = model.partial_fit(rows[300:]).feature_gains_
    assert (first != whole).all()
    np.testing.assert_allclose(first, whole, atol=0.5)
    assert set(np.argsort(whole)[-3:]) == {0, 1, 2}


# The restart with fixed weights.


def bad_state(k=5):
    """Good weights, but two centres in one cluster and one between two others."""
    weights = np.where(np.arange(15) < 3, 1 / 3, 0.0)
    means = np.array([X[j == TRUTH].mean(axis=0) for j in range(k)])
    middle = (means[0] + means[1]) / 2
    centers = np.vstack([middle, means[2] - 1e-2, means[2] + 1e-2, means[3], means[4]])
    return EntropyUpdate(lam=0.2, varying=np.ones(15, bool)).start(centers, -np.inf), weights


def test_a_restart_finds_the_clusters_that_were_missed():
    start, weights = bad_state()
    state = type(start)(start.centers, -np.inf, weights)
    (better,) = restarts(3).of([state], FitContext())
    assert better is not None
    np.testing.assert_array_equal(better.feature_weights, weights)
    found = nearest(X, better)
    assert normalized_mutual_info_score(TRUTH, found) > 0.93
    np.testing.assert_allclose(better.centers[found[0]], X[found == found[0]].mean(axis=0))
    (again,) = restarts(1).of([better], FitContext())
    if again is not None:
        assert trial_cost(again) < trial_cost(better)


def restarts(n_starts):
    return Restarts(Sample(X, np.ones(len(X))), n_starts, 0, lazy=False)


def trial_cost(state):
    trials = Trials.of(Sample(X, np.ones(len(X))), len(X), 0)
    return trials.cost(trials.partition(nearest(X, state)), state.feature_weights)


def refined(outcome, problem, restarts, schedule, context):
    """The cheaper of an outcome and its best restart, if there is a better state."""
    (better,) = restarts.of([outcome.run.state], context)
    return outcome if better is None else cheaper(outcome, problem, better, schedule, context)


def test_an_outcome_goes_on_from_a_better_state_and_from_no_other():
    start, weights = bad_state()
    problem = sample_problem(X, np.ones(len(X)), EntropyUpdate(lam=0.2, varying=np.ones(15, bool)))
    schedule = Schedule(-np.inf, max_iter=40)
    state = type(start)(start.centers, -np.inf, weights)
    problem.exact = True  # callbacks are not told of steps on samples
    outcome = minimize(problem, [state], schedule)
    heard = []
    final = refined(outcome, problem, restarts(3), schedule, FitContext(callbacks=[heard.append]))
    assert final.inertia < outcome.inertia
    numbers = [record.iteration for record in final.run.history]
    assert numbers == list(range(1, final.n_iter + 1))
    assert [record.iteration for record in heard] == numbers[outcome.n_iter :]
    settled = refined(final, problem, restarts(1), schedule, FitContext())
    assert settled.inertia <= final.inertia


def test_a_restart_can_be_stopped():
    start, weights = bad_state()
    problem = sample_problem(X, np.ones(len(X)), EntropyUpdate(lam=0.2, varying=np.ones(15, bool)))
    problem.exact = True
    state = type(start)(start.centers, -np.inf, weights)
    outcome = minimize(problem, [state], Schedule(-np.inf, max_iter=40))

    def stop(record):
        raise reason

    for reason in (StopIteration(), KeyboardInterrupt()):
        context = FitContext(callbacks=[stop])
        context.journal.n_iter = outcome.n_iter
        final = refined(outcome, problem, restarts(3), Schedule(-np.inf), context)
        assert context.stopped is reason
        assert final.inertia <= outcome.inertia


def test_neither_given_centres_nor_the_printed_algorithm_are_restarted(monkeypatch):
    def refuse(*args):
        raise AssertionError

    monkeypatch.setattr(Restarts, "of", refuse)
    start = X[:5]
    for given in (
        {"init": start},
        {"init": start, "sample_size": 300},
        {"polish": False, "sample_size": None},
        {"lam": np.inf},
    ):
        fit_recording(EntropyPowerKMeans(5, **{"lam": 0.2, "random_state": 0} | given), X)
    with pytest.raises(AssertionError):
        EntropyPowerKMeans(5, lam=0.2, random_state=0).fit(X)


def test_a_restarted_fit_counts_every_pass():
    source = CountingSource(X)
    model = EntropyPowerKMeans(5, lam=0.2, sample_size=None, n_init=1, random_state=0)
    model.fit(source.as_dask((200, -1)))
    assert set(source.reads.values()) == {model.n_passes_}
    assert model.inertia_ == pytest.approx(-model.score(X), rel=1e-12)
    assert normalized_mutual_info_score(TRUTH, computed(model.labels_)) > 0.95


def test_the_path_is_drawn(tmp_path):
    path = lam_path(X, 5, lams=[0.1, 0.5, np.inf], n_init=2, random_state=0)
    figure = plot.lam_path(path)
    figure.savefig(tmp_path / "path.png")
    gain, weights = figure.axes
    np.testing.assert_array_equal(gain.lines[0].get_ydata(), path.gain)
    assert [tick.get_text() for tick in weights.get_xticklabels()][-1] == "∞ (equal)"
    assert f"{path.n_rows:,} rows" in gain.get_title()


def test_the_rule_holds_on_a_weighted_sample():
    sample = Sample(X, np.random.default_rng(0).uniform(0.5, 2, 600))
    one = follow_lam(sample, 5, 3, False, [0.2, np.inf], 2).path
    other = follow_lam(Sample(X, 8 * sample.weights), 5, 3, False, [0.2, np.inf], 2).path
    np.testing.assert_allclose(one.gains, other.gains, rtol=1e-6)


def test_a_path_says_in_words_what_was_chosen():
    lams, gains = np.array([0.1, np.inf]), np.array([[2.0, 2.5], [1.0, 1.1]])
    path = LamPath(lams, gains, np.full((2, 3), 1 / 3), 0, 4, 1200)
    expected = "<LamPath: λ = 0.1 of 2 penalties, where 4 clusters of 1,200 rows gain 2.25 nats>"
    assert repr(path) == expected
