"""scikit-learn's own estimator checks, for the kernel estimators."""

import warnings
from functools import partial

import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from daskmm import KernelPowerKMeans, MultiKernelPowerKMeans

pytestmark = pytest.mark.in_turn("estimator")
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "random seeding draws from a different number of rows when rows are repeated; from a "
        "label vector, integer weights equal repetition"
    ),
}
# Nyström models keep their landmarks, and do predict when unpickled.
WITHOUT_ROWS = {
    "check_estimators_pickle": (
        "a pickled model leaves its training rows behind, and says so when asked to predict"
    ),
}


def _expected_failures(estimator):
    exact = getattr(estimator, "n_landmarks", "auto") == "auto"
    return EXPECTED_FAILURES | (WITHOUT_ROWS if exact else {})


# These fit fewer distinct rows than the default number of clusters, which is warned about.
FEW_DISTINCT_ROWS = {"check_sample_weights_shape", "check_sample_weights_not_overwritten"}


def _name(check):
    return check.func.__name__ if isinstance(check, partial) else check.__name__


@parametrize_with_checks(
    [
        KernelPowerKMeans(),
        KernelPowerKMeans(n_landmarks=8, n_init=2),
        MultiKernelPowerKMeans(kernels=["rbf", "cosine"], n_init=2),
        MultiKernelPowerKMeans(),
    ],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_estimator_checks_pass(estimator, check):
    with warnings.catch_warnings():
        if _name(check) in FEW_DISTINCT_ROWS:
            warnings.filterwarnings(
                "ignore", "Number of distinct clusters|. of 8 centres coincide", ConvergenceWarning
            )
        check(estimator)
