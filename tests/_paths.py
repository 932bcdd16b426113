"""Paths of penalties and bandwidths on samples of tables, as fits follow them."""

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from daskmm.auto import bandwidth
from daskmm.auto.lam import STARTS, follow_lam
from daskmm.data.input import read_weighted
from daskmm.engine.first_pass import first_pass
from daskmm.engine.passes import weighted_passes
from daskmm.kmeans.trials import thinned
from daskmm.numerics.information import mean_of_varying, weighted_variance


def survey_of(X, sample_weight, n_clusters, standardize, random_state, **options):
    """The first pass over a table, whether it is lazy, and a seed."""
    seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    passes = weighted_passes(*read_weighted(BaseEstimator(), X, sample_weight, reset=True))
    survey = first_pass(passes, n_clusters, standardize, seed, **options)
    return survey, passes.blocks.layout.lazy, seed


def lam_path(X, n_clusters, *, sample_weight=None, lams=None, n_init=STARTS, random_state=None):
    """The path of penalties on a sample of standardised rows."""
    survey, lazy, seed = survey_of(
        X, sample_weight, n_clusters, True, random_state, by_distance=True
    )
    return follow_lam(survey.sample, n_clusters, seed, lazy, lams, n_init).path


def bandwidth_path(
    X,
    *,
    sample_weight=None,
    bandwidths=None,
    lam=None,
    convention="auto",
    standardize=True,
    sample_size=bandwidth.SAMPLE_ROWS,
    random_state=None,
):
    """The path of bandwidths on a sample."""
    survey, _, seed = survey_of(X, sample_weight, 1, standardize, random_state)
    rows, weights = thinned(survey.sample.rows, survey.sample.weights, sample_size, seed)
    grid = bandwidth.GRID * mean_of_varying(weighted_variance(rows, weights))
    grid = grid if bandwidths is None else np.unique(bandwidths)
    lam = bandwidth.DEFAULT_LAM * survey.mean_variance if lam is None else lam
    path, _ = bandwidth._follow(rows, weights, grid, lam, convention)
    bandwidth._warn(path)
    return path
