"""scikit-learn's own estimator checks."""

from functools import partial

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from _support import ESTIMATORS

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "random seeding draws from a different number of rows when rows are repeated; from an "
        "init array, integer weights equal repetition"
    ),
}

# These two fit fewer distinct rows than the default number of clusters, which is warned about.
FEW_DISTINCT_ROWS = {"check_sample_weights_shape", "check_sample_weights_not_overwritten"}


def _expected_failures(estimator):
    return EXPECTED_FAILURES


def _name(check):
    return check.func.__name__ if isinstance(check, partial) else check.__name__


@parametrize_with_checks(
    [cls() for cls in ESTIMATORS], expected_failed_checks=_expected_failures
)
def test_scikit_learn_estimator_check(estimator, check, recwarn):
    if _name(check) not in FEW_DISTINCT_ROWS:
        check(estimator)
        return
    with pytest.warns(match="Number of distinct clusters") as caught:
        check(estimator)
    assert {str(item.message).split(" (")[0] for item in caught} <= {
        "Number of distinct clusters",
    } | {f"{n} of 8 centres coincide with another one" for n in range(8)}
