"""Which distortion, chosen without labels."""

import dask.array as da
import numpy as np
import pytest
from _support import CountingSource, blobs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from daskmm import plot
from daskmm.numerics.information import normal_scores
from daskmm.selection import choose_distortion

X, _ = blobs(600, 4, 4, seed=1)


def scales(seed, n=900, k=6, p=10):
    """Positive values whose noise grows with them."""
    rng = np.random.default_rng(seed)
    means = rng.lognormal(0.0, 0.9, (k, p))
    return means[rng.integers(k, size=n)] * rng.gamma(2.0, 0.5, (n, p))


def outliers(seed, n=900, k=6, p=10):
    """Heavy tails around centres, and some rows anywhere."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(0.0, 4.0, (k, p))[rng.integers(k, size=n)] + rng.standard_t(2, (n, p))
    away = rng.random(n) < 0.05
    rows[away] = rng.uniform(-40.0, 40.0, (int(away.sum()), p))
    return rows


@settings(deadline=None, max_examples=30)
@given(
    values=st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    weights=st.lists(st.integers(1, 4), min_size=12, max_size=12),
)
def test_normal_scores_are_those_of_the_weight_below(values, weights):
    weights = np.array(weights[: len(values)], dtype=float)
    found = normal_scores(np.array(values, dtype=float)[:, None], weights)[:, 0]
    for value, score in zip(values, found, strict=True):
        below = sum(w for v, w in zip(values, weights, strict=True) if v < value)
        beside = sum(w for v, w in zip(values, weights, strict=True) if v == value)
        expected = norm.ppf((below + beside / 2) / weights.sum())
        assert score == pytest.approx(expected, abs=1e-12)


def test_normal_scores_depend_on_the_order_of_values_only():
    weights = np.ones(len(X))
    rows = np.exp(X / np.abs(X).max())
    np.testing.assert_allclose(normal_scores(X, weights), normal_scores(rows, weights))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_noise_that_grows_with_the_values_wants_itakura_saito(seed):
    choice = choose_distortion(scales(seed), 6, random_state=0)
    assert choice.distortion == "itakura-saito"
    assert "logistic" not in choice.distortions


@pytest.mark.in_turn("seed")
@pytest.mark.parametrize("seed", range(2))
def test_outliers_want_a_distance_that_is_not_squared(seed):
    assert choose_distortion(outliers(seed), 6, random_state=0).distortion in (
        "euclidean",
        "manhattan",
    )


def test_the_first_distortion_is_taken_where_others_explain_no_more():
    choice = choose_distortion(X, 4, random_state=0)
    assert choice.distortions == ("sqeuclidean", "euclidean", "manhattan")
    assert choice.distortion == "sqeuclidean"
    assert choice.gains.shape == (3, 4)
    names = ["manhattan", "sqeuclidean"]
    assert choose_distortion(X, 4, distortions=names, random_state=0).distortion == "manhattan"


def test_the_choice_reads_each_block_once_and_does_not_depend_on_chunks():
    source = CountingSource(X)
    asked = {"distortions": ["sqeuclidean", "euclidean"], "n_init": 2, "random_state": 0}
    choice = choose_distortion(source.as_dask((130, -1)), 4, **asked)
    assert set(source.reads.values()) == {1}
    other = choose_distortion(da.from_array(X, chunks=(400, -1)), 4, **asked)
    np.testing.assert_allclose(choice.gains, other.gains, rtol=1e-9)
    np.testing.assert_allclose(choice.gains, choose_distortion(X, 4, **asked).gains, rtol=1e-9)


@pytest.mark.long
def test_scales_matter_only_where_features_are_not_standardised():
    loud = X * [1, 1, 1, 1000]
    asked = {"distortions": ["sqeuclidean"], "random_state": 0}
    apart = choose_distortion(X, 4, standardize=True, **asked)
    np.testing.assert_allclose(
        apart.gains, choose_distortion(loud, 4, standardize=True, **asked).gains, rtol=1e-6
    )
    assert choose_distortion(loud, 4, **asked).gain < apart.gain
    # Those that need the features as they are take them so.
    assert choose_distortion(scales(0), 6, standardize=True, random_state=0).distortion == (
        "itakura-saito"
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"distortions": ["kl"]}, "'kl' is for values x ≥ 0"),
        ({"distortions": "canberra"}, "must be among"),
        ({"distortions": []}, "must not be empty"),
        ({"n_init": 0}, "n_init == 0"),
        ({"sample_size": 3}, "sample_size == 3"),
    ],
)
def test_distortions_that_cannot_be_tried_are_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        choose_distortion(X, 4, **asked)


def test_the_choice_has_a_picture():
    choice = choose_distortion(X, 4, n_init=1, random_state=0)
    figure = plot.distortion_choice(choice)
    assert figure.axes[0].get_title().startswith("sqeuclidean")
    assert "chosen among 3 distortions" in figure.get_label()
