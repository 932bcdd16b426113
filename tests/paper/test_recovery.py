"""What other distortions, and values left out, find: with margins as measured over ten draws."""

import numpy as np
import pytest
from benchmarks.missing import imputed, labels, perforated
from benchmarks.recovery import MIXTURES, heavy_tails, mean_scores
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.metrics import adjusted_rand_score

from daskmm import KMeans, PowerKMeans

pytestmark = pytest.mark.long

# By how much the matching divergence finds more, with power k-means from greedy starts.
GAINS = {"Poisson": 0.015, "binomial": 0.06, "gamma": 0.4, "multinomial": 0.02}


@pytest.mark.parametrize("name", MIXTURES)
def test_the_matching_divergence_finds_more(name):
    make, distortion = MIXTURES[name]
    found = mean_scores(make, 15, 20, ("sqeuclidean", distortion), 10)
    power, plain = found[PowerKMeans, distortion], found[PowerKMeans, "sqeuclidean"]
    assert power >= plain + GAINS[name]
    assert power >= found[KMeans, distortion] - 0.005
    found = mean_scores(make, 15, 20, (distortion,), 10, init="random")
    assert found[PowerKMeans, distortion] > found[KMeans, distortion]


def test_unsquared_distances_mind_heavy_tails_and_outliers_less():
    names = ("sqeuclidean", "euclidean", "manhattan")
    found = mean_scores(heavy_tails, 10, 10, names, 10, n_init=4)
    for cls in (KMeans, PowerKMeans):
        plain = found[cls, "sqeuclidean"]
        assert found[cls, "euclidean"] > plain + 0.1
        assert found[cls, "manhattan"] > plain + 0.1


@pytest.mark.parametrize(("load", "k"), [(load_wine, 3), (load_breast_cancer, 2)])
@pytest.mark.parametrize("share", [0.2, 0.4])
def test_values_left_out_keep_more_of_the_clusters_than_imputed_means(load, k, share):
    rows = load().data

    def make(k, standardize):
        return PowerKMeans(k, standardize=standardize)

    whole, complete = labels(make, k, True, rows, 0), imputed(rows, k, True, 0)
    ours, theirs = [], []
    for seed in range(10):
        holed = perforated(rows, share, np.random.default_rng(seed))
        found = labels(make, k, True, holed, 0, missing="partial")
        ours.append(adjusted_rand_score(whole, found))
        theirs.append(adjusted_rand_score(complete, imputed(holed, k, True, 0)))
    assert np.mean(ours) > np.mean(theirs)
