"""The first power of an annealing to many clusters."""

import numpy as np
import pytest

from daskmm import PowerKMeans
from daskmm.kmeans.seeding import MANY_CLUSTERS


def first_power(k, **parameters):
    rng = np.random.default_rng(0)
    # Neighbours differ in all features, the whole table mostly in one.
    places = rng.normal(size=(k, 6)) * [50, 1, 1, 1, 1, 1]
    X = (places[:, None] + 0.2 * rng.normal(size=(k, 12, 6))).reshape(-1, 6)
    model = PowerKMeans(k, n_init=1, sample_size=None, random_state=0, **parameters).fit(X)
    return model.history_[0].s


def test_it_is_chosen_around_the_starting_centres_of_many_clusters():
    assert first_power(MANY_CLUSTERS // 4) == -1
    # Isotropic noise of 6 features: about 2·(1 − 6 / 2).
    assert first_power(MANY_CLUSTERS) == pytest.approx(-4, abs=1)


def test_it_is_as_given():
    assert first_power(MANY_CLUSTERS, s0=-1.5) == -1.5
