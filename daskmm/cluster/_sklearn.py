"""Names of scikit-learn that are not public: constraints of parameters, and containers of output.

They are imported here and nowhere else, and were seen with scikit-learn 1.6 to 1.9. Its own
estimators declare their parameters with the constraints, and so report bad values in the same
words; and they make frames of transformed arrays with the same functions.
"""

from typing import Any

from sklearn.utils._param_validation import Interval, RealNotInt, StrOptions
from sklearn.utils._set_output import _get_output_config, _wrap_data_with_container

__all__ = ["Interval", "RealNotInt", "StrOptions", "output_container", "wrap_output"]


def output_container(estimator: Any) -> str:
    """Return what `set_output` or scikit-learn's configuration asks for, such as "pandas"."""
    return str(_get_output_config("transform", estimator)["dense"])


def wrap_output(values: Any, X: Any, estimator: Any) -> Any:
    """Return transformed values in memory in the container that is asked for."""
    return _wrap_data_with_container("transform", values, X, estimator)
