"""Names of scikit-learn that are not public: constraints of parameters, and containers of output.

They are used in this module only, and were checked with scikit-learn 1.6 to 1.9. scikit-learn's
own estimators use these constraints, so bad values are reported in the same words, and use the same
functions to make frames of transformed arrays.
"""

from typing import Any, TypeVar

from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils._set_output import _get_output_config, _wrap_data_with_container

from daskmm.data.sparse import NamedSparse

__all__ = [
    "Interval",
    "StrOptions",
    "output_container",
    "with_set_output",
    "wrap_output",
]

T = TypeVar("T", bound=type)


def with_set_output(cls: T) -> T:
    """Class decorator: add `set_output` to a class whose `transform` scikit-learn does not wrap.

    The wrapper would compute lazy distances. Without it, only subclasses have the method.
    """
    cls._sklearn_auto_wrap_output_keys = {"transform"}  # type: ignore[attr-defined]
    return cls


def output_container(estimator: Any) -> str:
    """Return the container that `set_output` or the configuration asks for, such as "pandas"."""
    return str(_get_output_config("transform", estimator)["dense"])


def wrap_output(values: Any, X: Any, estimator: Any) -> Any:
    """Return transformed values in memory in the container that is asked for."""
    if isinstance(X, NamedSparse):
        X = X.index.to_frame()  # scikit-learn uses only the index
    return _wrap_data_with_container("transform", values, X, estimator)
