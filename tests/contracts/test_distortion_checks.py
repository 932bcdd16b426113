"""scikit-learn's own estimator checks over distortions and missing modes, pair by pair."""

import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks
from test_sklearn_checks import EXPECTED_FAILURES, SPARSE_FAILURES

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

pytestmark = [pytest.mark.in_turn("estimator"), pytest.mark.long]
PAIRS = [
    KMeans(distortion="kl"),
    KMeans(distortion="euclidean", missing="partial"),
    PowerKMeans(distortion="poisson", missing="partial"),
    PowerKMeans(distortion="mahalanobis", n_init=2),
    KMeans(distortion="cosine"),
    EntropyPowerKMeans(distortion="manhattan", missing="partial", n_init=2, eta=1.3),
]


def expected_failures(estimator):
    expected = dict(EXPECTED_FAILURES)
    if get_tags(estimator).input_tags.sparse:
        expected |= SPARSE_FAILURES
    if estimator.distortion == "cosine":
        zeros = "one of its rows is zero in all features, and so refused"
        expected |= dict.fromkeys(("check_estimators_dtypes", "check_estimator_sparse_tag"), zeros)
    if estimator.distortion in ("kl", "poisson"):
        expected |= {"check_clustering": "its rows are negative, and so refused"}
    return expected


@parametrize_with_checks(PAIRS, expected_failed_checks=expected_failures)
def test_scikit_learn_estimator_checks_pass(estimator, check):
    with warnings.catch_warnings():
        # Some checks have fewer distinct rows than clusters, or rows in a hurry.
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)
