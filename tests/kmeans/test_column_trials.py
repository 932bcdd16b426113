"""Trials of parameters on sparse rows and mixed columns."""

import math

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score

from daskmm import EntropyPowerKMeans
from daskmm.auto import lam as lam_rule
from daskmm.auto.lam import SPARSE_MULTIPLES, follow_lam
from daskmm.auto.n_clusters import follow_n_clusters
from daskmm.engine.moments import Sample
from daskmm.kmeans.column_trials import ColumnTrials, trials_of
from daskmm.kmeans.trials import Trials
from daskmm.mm.journal import Journal
from daskmm.numerics import sparse_rows
from daskmm.numerics.columns import CATEGORY, FLAG, NUMBER, Expansion
from daskmm.numerics.distortions.bregman import Metric
from daskmm.numerics.distortions.mixed import measured
from daskmm.numerics.sparse_rows import SparseRows, canonical, dense, rolled_columns

N, K = 240, 3


def counts(p=40, seed=0):
    """Sparse rows with 6 features that tell three clusters apart, and their clusters."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(K, size=N)
    rows = rng.poisson(0.15, size=(N, p)).astype(float)
    rows[:, :6] = rng.poisson(np.where(np.arange(6) % K == truth[:, None], 4.0, 0.2))
    return canonical(sp.csr_array(rows)), truth


def sampled(rows):
    return Sample(rows, np.random.default_rng(1).uniform(0.5, 2.0, len(rows)))


def test_sparse_trials_are_those_of_dense_rows(monkeypatch):
    monkeypatch.setattr(sparse_rows, "FEW_BYTES", 0)
    rows, truth = counts()
    sample = sampled(rows)
    sparse = trials_of(sample, N, 0)
    dense = trials_of(Sample(rows.toarray(), sample.weights), N, 0)
    assert isinstance(sparse, ColumnTrials)
    assert isinstance(dense, Trials)
    np.testing.assert_allclose(sparse.variance, dense.variance, rtol=1e-9)
    one, other = sparse.partition(truth), dense.partition(truth)
    np.testing.assert_allclose(one.within, other.within, rtol=1e-9)
    np.testing.assert_allclose(one.shares, other.shares, rtol=1e-12)
    weights = np.random.default_rng(2).dirichlet(np.ones(40))
    assert sparse.cost(one, weights) == pytest.approx(dense.cost(other, weights))
    np.testing.assert_allclose(
        sparse.means(truth, np.zeros((4, 40))), dense.means(truth, np.zeros((4, 40))), atol=1e-12
    )
    assert sparse.mean_variance == pytest.approx(dense.mean_variance)
    assert sparse.critical_power == pytest.approx(dense.critical_power, rel=1e-6)
    starts = [trials.means(truth, np.zeros((K, 40))) for trials in (sparse, dense)]
    found = [sparse.learn(starts[:1], 0.2)[0], dense.learn(starts[1:], 0.2)[0]]
    np.testing.assert_allclose(found[0].feature_weights, found[1].feature_weights, atol=1e-4)
    np.testing.assert_array_equal(sparse.nearest(found[0]), dense.nearest(found[1]))


def test_sparse_rows_are_judged_without_making_them_dense(monkeypatch):
    monkeypatch.setattr(sparse_rows, "FEW_BYTES", 0)
    rows, _ = counts()
    sample = sampled(rows)
    few_only = SparseRows.toarray

    def toarray(self):
        assert len(self) <= 16  # candidates for a centre
        return few_only(self)

    monkeypatch.setattr(SparseRows, "toarray", toarray)
    path, _ = follow_lam(sample, K, 0, False, [0.2, np.inf])
    assert np.isfinite(path.gains).all()
    monkeypatch.undo()
    wide = canonical(sp.csr_array((rows.data, rows.indices, rows.indptr), shape=(N, 140)))
    weights = np.r_[np.full(6, 1 / 6), np.zeros(134)]
    one = follow_n_clusters(Sample(wide, sample.weights), 0, weights, 12)
    other = follow_n_clusters(Sample(rows.toarray()[:, :6], sample.weights), 0, weights[:6], 12)
    np.testing.assert_allclose(one.overlaps, other.overlaps)


def test_sparse_and_dense_columns_are_rolled_alike():
    rows, _ = counts()
    rng = np.random.default_rng(0)
    order, shifts = rng.permutation(N), rng.integers(N, size=40)
    moved = rolled_columns(rows, order, shifts)
    np.testing.assert_array_equal(moved.toarray(), rolled_columns(rows.toarray(), order, shifts))
    expected = np.empty((N, 40))
    for i, row in enumerate(rows.toarray()):
        for feature, x in enumerate(row):
            expected[(order[i] + shifts[feature]) % N, feature] = x
    np.testing.assert_array_equal(moved.toarray(), expected)


def information(a, b):
    """a log(a/b) + (1 − a) log((1 − a)/(1 − b))."""
    return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))


def test_mixed_columns_are_shares_of_their_own_divergence():
    rng = np.random.default_rng(0)
    truth = rng.integers(K, size=N)
    coded = np.column_stack(
        [rng.normal(size=N) + truth, truth == 1, np.where(rng.random(N) < 0.8, truth, 0)]
    )
    coded[rng.random(coded.shape) < 0.1] = np.nan
    expansion = Expansion(np.array([NUMBER, FLAG, CATEGORY]), np.array([1, 1, K]))
    wide = expansion.expand(coded)
    shares = (~np.isnan(wide)).mean(axis=0)
    mean, variance = np.nanmean(wide, axis=0), np.nanvar(wide, axis=0)
    coordinates, distortion, spread = measured(expansion, mean, variance, shares, True)
    sample = Sample(coordinates.to_model(coded), np.ones(N))
    trials = trials_of(sample, N, 0, Metric(distortion, expansion.groups))
    np.testing.assert_allclose(trials.variance, np.bincount(expansion.groups, spread))
    np.testing.assert_allclose(trials.variance, 1.0)
    within = trials.partition(truth).within
    # The flag, by the definition: rows are smoothed, as are the means of the clusters.
    z, m = sample.rows[:, 1], mean[1]
    held = ~np.isnan(z)
    left = whole = 0.0
    for cluster in range(K):
        own = z[held & (truth == cluster)]
        left += sum(information(x, own.mean()) for x in own)
        whole += sum(information(x, m) for x in own)
    assert within[1] == pytest.approx(left / whole, rel=1e-9)
    assert trials.gains_over(within, np.ones(3)).sum() == pytest.approx(
        -0.5 * math.log(within[0]) + sum((1 - within[g]) / distortion.factors[g] for g in (1, 2)),
        rel=1e-9,
    )


def test_rows_of_a_null_may_lack_all_values():
    rng = np.random.default_rng(0)
    coded = np.column_stack([rng.normal(size=N), rng.integers(K, size=N)])
    coded[np.arange(N), rng.integers(2, size=N)] = np.nan
    expansion = Expansion(np.array([NUMBER, CATEGORY]), np.array([1, K]))
    wide = expansion.expand(coded)
    moments = np.nanmean(wide, axis=0), np.nanvar(wide, axis=0), (~np.isnan(wide)).mean(axis=0)
    coordinates, distortion, _ = measured(expansion, *moments, True)
    sample = Sample(coordinates.to_model(coded), np.ones(N))
    trials = trials_of(sample, N, 0, Metric(distortion, expansion.groups))
    within = trials.null_within(trials.equal_weights, K, 0)
    assert ((within > 0) & (within <= 1)).all()


@pytest.mark.long
def test_the_penalty_of_mixed_columns_is_chosen():
    rng = np.random.default_rng(0)
    n = 900
    truth = rng.integers(4, size=n)
    frame = pd.DataFrame({"a": 3.0 * truth + rng.normal(size=n), "b": truth % 2 == 1})
    frame["c"] = np.array(list("xyz"))[np.maximum(truth, 1) - 1]
    for i in range(4):
        frame[f"n{i}"] = rng.normal(size=n)
        frame[f"f{i}"] = rng.random(n) < 0.5
    model = EntropyPowerKMeans(4, distortion="mixed", random_state=0).fit(frame)
    assert model.lam_ == model.lam_path_.lam
    assert model.lam_path_.feature_weights.shape == (6, 11)
    assert set(model.feature_names_in_[np.argsort(-model.feature_weights_)[:3]]) == set("abc")
    assert adjusted_rand_score(truth, model.labels_) > 0.95


@pytest.mark.parametrize("few", [0, 1_000_000])
def test_halves_of_sparse_columns_judge_each_other(few, monkeypatch):
    monkeypatch.setattr(sparse_rows, "FEW_BYTES", few)
    rows, truth = counts()
    # Features that are 0 everywhere, without which halves are small.
    rows = canonical(sp.csr_array((rows.data, rows.indices, rows.indptr), shape=(N, 700)))
    sample = sampled(rows)
    trials = trials_of(sample, N, 0)
    assert trials.divisible
    (first, one), (second, other) = trials.halves(0)
    assert sorted([*first, *second]) == list(np.flatnonzero(trials.varying))
    for own, half in ((first, one), (second, other)):
        assert isinstance(half.rows, SparseRows) == (few == 0)
        np.testing.assert_array_equal(dense(half.rows), rows.toarray()[:, own])
        np.testing.assert_allclose(half.variance, trials.variance[own], rtol=1e-12)
    # The gain of the definition, of rows that count by their weights.
    expected, w = 0.0, sample.weights
    chance = (K - 1) / (w.sum() ** 2 / (w**2).sum() - 1)
    for x in rows.toarray()[:, first].T:
        means = np.array([np.average(x[truth == j], weights=w[truth == j]) for j in range(K)])
        within = np.average((x - means[truth]) ** 2, weights=w)
        share = within / np.average((x - np.average(x, weights=w)) ** 2, weights=w)
        expected += 0.5 * math.log((1 - chance) / share)
    assert one.gain_held_out(truth) == pytest.approx(expected, rel=1e-9)
    # Labels that have nothing to do with the columns gain about nothing.
    random = np.random.default_rng(3).integers(K, size=N)
    assert abs(one.gain_held_out(random)) < 0.15
    assert one.gain_held_out(truth) > 1


@pytest.mark.long
def test_weak_markers_of_sparse_rows_get_a_large_penalty(monkeypatch):
    monkeypatch.setattr(sparse_rows, "FEW_BYTES", 0)
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=1500)
    rates = np.where(np.arange(60) % 4 == truth[:, None], 0.8, 0.1)
    X = canonical(sp.csr_array(np.log1p(rng.poisson(rates))))
    scaled = canonical(sp.csr_array(X.toarray() / X.toarray().std(axis=0)))
    path, centers = follow_lam(Sample(scaled, np.ones(1500)), 4, 0, False)
    assert centers is None
    np.testing.assert_allclose(path.lams, SPARSE_MULTIPLES, rtol=1e-9)
    assert path.lam >= 2
    assert path.gain[-1] > path.gain[0] + 1
    assert path.feature_weights.sum(axis=1) == pytest.approx(1)


def three_of_twelve(n, seed):
    """Six clusters by a number with three places, a flag and a category, among noise."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(6, size=n)
    levels = np.array(list("uvwxyz"))
    frame = pd.DataFrame({"number": 6.0 * (truth % 3) + rng.normal(size=n)})
    frame["flag"] = rng.random(n) < np.where(truth // 3, 0.99, 0.01)
    frame["kind"] = levels[np.where(rng.random(n) < 0.95, truth, rng.integers(6, size=n))]
    for i in range(3):
        frame[f"n{i}"] = rng.normal(size=n)
        frame[f"f{i}"] = rng.random(n) < rng.uniform(0.3, 0.7)
        frame[f"c{i}"] = rng.choice(levels, p=rng.dirichlet(np.full(6, 4.0)), size=n)
    return frame, truth


@pytest.mark.long
def test_a_killed_choice_of_the_penalty_continues_after_the_penalties_that_were_tried(monkeypatch):
    X = np.random.default_rng(0).normal(size=(60, 3))
    coordinates, distortion, _ = measured(
        Expansion(np.full(3, NUMBER), np.ones(3, int)), np.zeros(3), np.ones(3), np.ones(3), True
    )
    sample = Sample(coordinates.to_model(X), np.ones(60))
    metric, ends, tried = Metric(distortion, np.arange(3)), lam_rule._ends, []

    def mortal(lam, *shared):
        tried.append(lam)
        if len(tried) == 3:
            raise KeyboardInterrupt
        return ends(lam, *shared)

    monkeypatch.setattr(lam_rule, "_ends", mortal)
    monkeypatch.setattr(lam_rule, "threads_here", lambda: 1)
    journal, shares = Journal(), []
    journal.follow = lambda name, found: found is not None and shares.append(found.share)
    journal.enter("feature weights")
    arguments = (sample, 2, 0, False, [0.5, 1.0, 2.0, np.inf])
    with pytest.raises(KeyboardInterrupt):
        follow_lam(*arguments, metric=metric, journal=journal)
    resumed = follow_lam(*arguments, metric=metric, journal=journal)
    assert tried == [0.5, 1.0, 2.0, 2.0, np.inf]
    assert shares == [0.25, 0.5, 0.75, 1.0]
    whole = follow_lam(*arguments, metric=metric)
    np.testing.assert_array_equal(resumed.path.gains, whole.path.gains)


def test_each_penalty_takes_the_clusters_of_its_lowest_objective(monkeypatch):
    frame, truth = three_of_twelve(400, 2)
    X = frame[["number", "flag", "n0", "f0"]].to_numpy(float)
    expansion = Expansion(np.array([NUMBER, FLAG, NUMBER, FLAG]), np.ones(4, int))
    coordinates, distortion, _ = measured(
        expansion, X.mean(axis=0), X.var(axis=0), np.ones(4), True
    )
    sample, metric = (
        Sample(coordinates.to_model(X), np.ones(400)),
        Metric(distortion, expansion.groups),
    )
    rng = np.random.default_rng(0)
    # What starts end in, in turn: the clusters, half of them, those of one noisy column, chance.
    ends = [truth % 3, truth // 3, (X[:, 2] > 0).astype(int), rng.integers(3, size=400)]

    def stopped(lam, trials, *_):
        return [lam_rule.Ended(end, trials.partition(end), None) for end in ends[int(lam < 1) :: 2]]

    monkeypatch.setattr(lam_rule, "_ends", stopped)
    lams = [0.3, 1.0, np.inf]
    path, centers = follow_lam(sample, 3, 0, False, lams, metric=metric)
    trials = trials_of(sample, 400, 0, metric)
    left = [trials.partition(end).within * trials.variance for end in ends]
    best = []
    for lam, found in zip(lams, path.feature_weights, strict=True):
        every = []
        for d in left:
            w = np.full(4, 0.25) if np.isinf(lam) else np.exp(-d / lam) / np.exp(-d / lam).sum()
            penalty = 0.0 if np.isinf(lam) else lam * sum(a * math.log(a) for a in w if a > 0)
            every.append((w @ d + penalty, w))
        best.append(min(range(4), key=lambda i: every[i][0]))
        np.testing.assert_allclose(found, every[best[-1]][1], rtol=1e-9)
    labels = ends[best[path.chosen]]
    np.testing.assert_allclose(
        centers[: labels.max() + 1],
        trials.means(labels, centers)[: labels.max() + 1],
    )


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.long
def test_clusters_found_at_any_penalty_count_at_all(seed, streamed):
    frame, truth = three_of_twelve(1500, seed)
    X = dd.from_pandas(frame, npartitions=3) if streamed else frame
    model = EntropyPowerKMeans(6, distortion="mixed", random_state=seed).fit(X)
    assert adjusted_rand_score(truth, np.asarray(model.labels_)) > 0.9
    heaviest = np.argsort(-model.feature_weights_)[:3]
    assert set(model.feature_names_in_[heaviest]) == {"number", "flag", "kind"}
    assert model.lam_path_.gains.shape == (6, 1)


@pytest.mark.long
def test_wide_sparse_rows_with_few_varying_features_are_clustered():
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=2000)
    # More than 64 MB if they were dense; three features are not 0 everywhere.
    values = rng.poisson(np.where(truth, 4.0, 0.5)[:, None], (2000, 3)).astype(float)
    X = sp.csr_array(sp.hstack([sp.csr_array(values), sp.csr_array((2000, 5000))]))
    model = EntropyPowerKMeans(2, random_state=0).fit(X)
    assert adjusted_rand_score(truth, model.labels_) > 0.8
    assert model.lam_path_.gains.shape == (6, 1)
    np.testing.assert_allclose(model.feature_weights_[:3].sum(), 1.0)
