"""Whether to standardise, chosen without labels."""

import dask.array as da
import numpy as np
import pytest
from _support import CountingSource, blobs
from scipy.sparse import csr_array
from sklearn.datasets import load_wine
from sklearn.metrics import adjusted_rand_score

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans, load
from daskmm.auto.standardize import ScaleChoice, choose_scale, far_rows
from daskmm.engine.first_pass import first_pass
from daskmm.engine.moments import Sample
from daskmm.engine.passes import weighted_passes
from daskmm.kmeans.trials import Trials, spawned

X, TRUTH = blobs(600, 4, 4, seed=1)
LOUD = np.column_stack([X, 300 * np.random.default_rng(0).normal(size=(600, 2))])


@pytest.mark.parametrize(
    ("before", "after", "standardize"),
    [(5.0, 5.2, False), (5.0, 5.3, True), (0.0, 0.04, False), (0.0, 0.06, True), (3.0, 1.0, False)],
)
def test_only_a_clear_gain_counts(before, after, standardize):
    choice = ScaleChoice(np.array([before]), np.array([after]), 3, 10)
    assert choice.standardize is standardize


def test_one_start_in_a_bad_local_optimum_decides_nothing():
    usual = np.array([5.0, 5.0, 5.0])
    assert not ScaleChoice(usual, np.array([5.1, 5.1, 9.0]), 3, 10).standardize
    assert ScaleChoice(usual, np.array([6.0, 1.0, 6.0]), 3, 10).standardize


def at_corners(n, rng):
    """Rows around the corners of a square, which no feature tells apart by itself."""
    return 8.0 * rng.integers(2, size=(n, 2)) + rng.normal(size=(n, 2))


def in_other_units(rows, rng):
    return rows * 10.0 ** np.array([-3, 3])


def beside_loud_noise(rows, rng):
    return np.column_stack([rows, 300 * rng.normal(size=(len(rows), 2))])


def beside_quiet_noise(rows, rng):
    return np.column_stack([rows, 0.1 * rng.normal(size=(len(rows), 6))])


def one_outlier(rows, rng):
    rows[7, rng.integers(rows.shape[1])] += 1e5 * rows.std()


def clump_of_a_hundredth(rows, rng):
    there = 100 * rows.std(axis=0) * rng.choice([-1, 1], size=rows.shape[1])
    rows[: len(rows) // 100] = there * rng.normal(1, 0.01, size=(len(rows) // 100, 1))


def ten_outliers(rows, rng):
    rows[:: len(rows) // 10] += 30 * rows.std(axis=0) * rng.standard_t(1, size=(10, rows.shape[1]))


def scale_chosen(rows, weights=None):
    survey = first_pass(weighted_passes(rows, weights), 4, True, 0)
    return choose_scale(survey, 4, 0, lazy=False)[1].standardize


@pytest.mark.in_turn("seed")
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("spoil", [one_outlier, clump_of_a_hundredth, ten_outliers])
@pytest.mark.parametrize(
    ("make", "standardize"),
    [(in_other_units, True), (beside_loud_noise, True), (beside_quiet_noise, False)],
)
def test_few_far_rows_do_not_change_the_choice(make, standardize, spoil, seed):
    rng = np.random.default_rng(seed)
    rows = make(at_corners(600, rng), rng)
    assert scale_chosen(rows) is standardize
    spoil(rows, rng)
    assert scale_chosen(rows) is standardize


def test_starts_that_share_their_steps_gain_as_much_as_single_ones():
    ones = np.ones(len(LOUD))
    survey = first_pass(weighted_passes(LOUD, None), 4, True, 0)
    choice = choose_scale(survey, 4, 0, lazy=False)[1]
    near = LOUD[~far_rows(LOUD, ones)]
    for scale, gains in (
        (1.0, choice.gains_as_they_are),
        (near.std(axis=0), choice.gains_standardized),
    ):
        trials = Trials.of(Sample((near - LOUD.mean(axis=0)) / scale, ones[: len(near)]), 600, 0)
        starts = [spawned(start, 2) for start in spawned(0, 3)]
        null = trials.null_within(trials.equal_weights, 4, starts[0][1])
        for gain, (start, _) in zip(gains, starts, strict=True):
            (labels,) = trials.with_weights(trials.equal_weights, 4, [start])
            alone = trials.gains_over(trials.partition(labels).within, null).sum()
            assert gain == pytest.approx(alone, rel=1e-9)


def test_weights_count_as_copies_where_far_rows_are_looked_for():
    rng = np.random.default_rng(0)
    rows, copies = rng.standard_t(2, size=(200, 3)), rng.integers(1, 5, size=200)
    found = far_rows(rows, copies.astype(float))
    np.testing.assert_array_equal(
        np.repeat(found, copies), far_rows(np.repeat(rows, copies, axis=0), np.ones(copies.sum()))
    )
    assert 0 < copies[found].sum() <= 0.05 * copies.sum()


def test_a_heavy_far_row_is_not_far():
    rows = np.append(np.random.default_rng(0).normal(size=100), 50.0)[:, None]
    weights = np.ones(101)
    assert far_rows(rows, weights).nonzero()[0].tolist() == [100]
    weights[100] = 20
    assert not far_rows(rows, weights).any()


def test_rows_are_not_far_because_of_rare_flags_or_constant_features():
    rows = np.zeros((500, 3))
    rows[:5, 0] = 1
    rows[:, 2] = 7
    assert not far_rows(rows, np.ones(500)).any()
    rows[100, 0] = 1000
    assert far_rows(rows, np.ones(500)).nonzero()[0].tolist() == [100]


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_features_with_loud_noise_are_standardised(cls, tmp_path):
    model = cls(4, random_state=0).fit(LOUD)
    same = cls(4, standardize=True, random_state=0).fit(LOUD)
    np.testing.assert_array_equal(model.cluster_centers_, same.cluster_centers_)
    assert adjusted_rand_score(TRUTH, model.labels_) > 0.99
    raw = cls(4, standardize=False, random_state=0)
    assert adjusted_rand_score(TRUTH, raw.fit_predict(LOUD)) < 0.1
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").standardize_path_.standardize


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_features_stay_as_they_are_where_nothing_is_gained(cls):
    model = cls(4, standardize="auto", n_init=2, random_state=0).fit(X)
    same = cls(4, standardize=False, n_init=2, random_state=0).fit(X)
    np.testing.assert_array_equal(model.scale_, 1)
    np.testing.assert_allclose(model.cluster_centers_, same.cluster_centers_, rtol=1e-9)
    assert model.inertia_ == pytest.approx(same.inertia_, rel=1e-9)
    assert model.n_passes_ == same.n_passes_


def test_wine_is_standardised():
    rows, truth = load_wine(return_X_y=True)
    model = KMeans(3, standardize="auto", random_state=0).fit(rows)
    assert adjusted_rand_score(truth, model.labels_) > 0.85


def test_the_choice_reads_nothing_and_does_not_depend_on_chunks():
    source = CountingSource(LOUD)
    settings = {"n_clusters": "auto", "standardize": "auto", "sample_size": 300}
    model = KMeans(random_state=0, **settings).fit(source.as_dask((130, -1)))
    assert set(source.reads.values()) == {model.n_passes_}
    assert model.n_clusters_ == 4
    other = KMeans(random_state=0, **settings).fit(da.from_array(LOUD, chunks=(400, -1)))
    for name in ("gains_as_they_are", "gains_standardized"):
        a, b = (getattr(one.standardize_path_, name) for one in (model, other))
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def test_estimators_and_distortions_without_a_choice_of_scale_make_none():
    with pytest.raises(ValueError, match="'standardize' parameter"):
        EntropyPowerKMeans(4, standardize="auto").fit(X)
    rows = np.abs(LOUD)
    for settings in (
        {"distortion": "kl"},
        {"distortion": "cosine"},
        {"distortion": "mahalanobis"},
        {"distortion": "euclidean"},
    ):
        model = KMeans(4, random_state=0, **settings).fit(rows)
        np.testing.assert_array_equal(model.scale_, 1)
        assert not hasattr(model, "standardize_path_")
    assert not hasattr(KMeans(4, random_state=0).fit(csr_array(rows)), "standardize_path_")


@pytest.mark.parametrize("lazy", [False, True])
def test_given_centres_are_in_the_units_of_the_input(lazy):
    centers = np.array([LOUD[j == TRUTH].mean(axis=0) for j in range(4)])
    rows = da.from_array(LOUD, chunks=(200, -1)) if lazy else LOUD
    model = KMeans(4, init=centers, warm_start=True).fit(rows)
    assert model.standardize_path_.standardize
    assert adjusted_rand_score(TRUTH, np.asarray(model.labels_)) > 0.99
    found = model.cluster_centers_.copy()
    np.testing.assert_allclose(model.fit(rows).cluster_centers_, found, rtol=1e-9)
    np.testing.assert_allclose(found, centers, atol=30)


def test_hundreds_of_clusters_are_tried_with_few():
    rows = np.random.default_rng(0).normal(size=(2000, 3)) * [1, 1, 1000]
    model = KMeans(300, n_init=1, tol=1, random_state=0).fit(rows)
    assert model.standardize_path_.n_clusters == 32


def test_the_choice_says_in_words_what_was_chosen():
    model = KMeans(4, n_init=1, random_state=0).fit(LOUD)
    words = str(model.standardize_path_)
    assert words.startswith("standardised: clusters gain ")
    assert words in model._repr_html_()
    fewer = ScaleChoice(np.array([2.0]), np.array([1.0]), 4, 10)
    assert str(fewer) == (
        "as they are: clusters gain 1 nats on standardised features, 2 on features as they are"
    )


def test_the_scale_does_not_depend_on_the_random_state():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(240, 3)) + 4 * rng.integers(2, size=(240, 1))
    fits = [KMeans(2, init=rows[:2], random_state=seed).fit(rows) for seed in range(6)]
    for model in fits[1:]:
        np.testing.assert_array_equal(model.cluster_centers_, fits[0].cluster_centers_)


def test_features_of_nearly_equal_deviations_are_left_as_they_are_without_a_trial():
    rng = np.random.default_rng(0)
    model = KMeans(3, random_state=0).fit(rng.normal(size=(500, 4)) * [1.0, 1.1, 1.2, 1.3])
    path = model.standardize_path_
    assert not path.standardize
    assert len(path.gains_standardized) == 0
    assert str(path) == "as they are: standard deviations of the features hardly differ"


def test_a_few_features_that_are_zero_but_for_noise_do_not_matter():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 40))
    X[:, 7] *= 1e-12
    assert len(KMeans(3, random_state=0).fit(X).standardize_path_.gains_standardized) == 0
    X[:, 8] *= 1e3  # one large feature does
    assert len(KMeans(3, random_state=0).fit(X).standardize_path_.gains_standardized) > 0
