"""scikit-learn's own estimator checks."""

import warnings
from functools import partial

import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from daskmm import EntropyPowerKMeans, GaussianMixture, KMeans, PowerKMeans

pytestmark = pytest.mark.in_turn("estimator")
_REPEATED = (
    "random seeding draws from a different number of rows when rows are repeated; from an init "
    "array, integer weights equal repetition"
)
EXPECTED_FAILURES = {
    f"check_sample_weight_equivalence_on_{kind}_data": _REPEATED for kind in ("dense", "sparse")
}
MIXTURE_FAILURES = {"check_clustering": "has one component unless asked for more"}
SPARSE_FAILURES = {
    f"check_estimator_sparse_{kind}": "takes what has predict_proba for a classifier"
    for kind in ("array", "matrix")
}

# Defaults take long where they are chosen by trials, and most choose.
SETTINGS = {"n_init": 2, "standardize": False}
MODELS = [
    KMeans(),
    PowerKMeans(**SETTINGS),
    EntropyPowerKMeans(**SETTINGS, lam="0.5*variance", eta=1.3),
    KMeans(**SETTINGS),
    PowerKMeans(),
    GaussianMixture(),
]

# These two fit fewer distinct rows than the default number of clusters, which is warned about.
FEW_DISTINCT_ROWS = {"check_sample_weights_shape", "check_sample_weights_not_overwritten"}


def _name(check):
    return check.func.__name__ if isinstance(check, partial) else check.__name__


def _expected_failures(estimator):
    if isinstance(estimator, GaussianMixture):
        return MIXTURE_FAILURES
    return EXPECTED_FAILURES | SPARSE_FAILURES


@parametrize_with_checks(MODELS, expected_failed_checks=_expected_failures)
def test_scikit_learn_estimator_checks_pass(estimator, check):
    with warnings.catch_warnings():
        if isinstance(estimator, GaussianMixture):  # some tables have fewer rows than features
            warnings.filterwarnings("ignore", r"1 component\(s\) .* are as narrow", UserWarning)
        if _name(check) in FEW_DISTINCT_ROWS:
            warnings.filterwarnings(
                "ignore", "Number of distinct clusters|. of 8 centres coincide", ConvergenceWarning
            )
        check(estimator)


# Each of its fits chooses a penalty.
@pytest.mark.long
@parametrize_with_checks([EntropyPowerKMeans()], expected_failed_checks=_expected_failures)
def test_scikit_learn_estimator_checks_pass_with_a_chosen_penalty(estimator, check):
    test_scikit_learn_estimator_checks_pass(estimator, check)
