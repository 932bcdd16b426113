"""Decide whether a checkpoint belongs to a fit: compare parameters, and moments of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from daskmm.storage.digests import digest

# Parameters that do not affect the result of a fit.
_IGNORED = (
    *("callbacks", "verbose", "checkpoint", "checkpoint_every", "persist"),
    # The checkpoint holds the starts of a `warm_start`; `forget` concerns only `partial_fit`.
    *("warm_start", "forget"),
)
# Parameters that may be higher in the fit that resumes; it continues to the new bound.
_RAISABLE = ("max_iter",)
# Moments of the same rows agree to this tolerance, in units of the standard deviation: blocks that
# are grouped differently are summed in another order.
_TOLERANCE = 1e-9


def described_parameters(estimator: BaseEstimator) -> dict[str, Any]:
    """Return class and parameters of an estimator, without those that do not affect the result.

    Functions are described by their names and arrays by a digest. All random generators get the
    same description, and so do all paths of Gram stores, because they differ between processes.
    """
    described = {"model": type(estimator).__name__}
    for name, value in estimator.get_params(deep=False).items():
        if name == "gram" and value not in ("auto", "recompute"):
            value = "a store"
        if name not in _IGNORED:
            described[name] = _described(value)
    return described


def _described(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "cluster_centers_"):  # the fit starts from a model
        value = value.cluster_centers_
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return "a generator"
    if isinstance(value, list | tuple) and not _is_numeric(value):
        return [_described(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _described(item) for key, item in value.items()}
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', 'a function')}"
    return f"an array, {digest(np.asarray(value))}"


def _is_numeric(values: Any) -> bool:
    try:
        return bool(np.asarray(values).dtype.kind in "fiub")
    except ValueError:  # lists of different lengths
        return False


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """List in words how two fits differ; the list is empty if one can resume the other.

    The mappings describe the parameters, or the data, of the earlier fit and of this one.
    """
    found = []
    for name in dict.fromkeys([*there, *here]):
        if not (name in there and name in here):
            found.append(f"{name} is not known {'here' if name in there else 'there'}")
            continue
        a, b = there[name], here[name]
        if name in _RAISABLE and a <= b:
            continue
        if isinstance(b, np.ndarray):
            found += _different_moment(name, np.asarray(a), b, np.asarray(here["variance"]))
        elif isinstance(a, float) and isinstance(b, float):
            if not np.isclose(a, b, rtol=_TOLERANCE, atol=0.0):
                found.append(f"{name} is {a} there and {b} here")
        elif a != b:
            found.append(_told(name, a, b))
    return found


def _different_moment(name: str, a: Any, b: Any, variance: Any) -> list[str]:
    """Name the first feature whose mean or variance differs by more than rounding."""
    if a.shape != b.shape:
        return [f"{name} has shape {a.shape} there and {b.shape} here"]
    # The mean is compared with the standard deviation, the variance with itself.
    unit = np.sqrt(variance) if name == "mean" else variance
    different = np.flatnonzero(np.abs(a - b) > _TOLERANCE * (unit + np.abs(b)))
    if not len(different):
        return []
    first = int(different[0])
    return [f"the {name} of feature {first} is {a[first]:.9g} there and {b[first]:.9g} here"]


def _told(name: str, there: Any, here: Any) -> str:
    if name == "rows":
        return "rows of the data, or their weights, have changed"
    if name == "chunks":
        return f"the data have {_told_chunks(there)} there and {_told_chunks(here)} here"
    return f"{name} is {there!r} there and {here!r} here"


def _told_chunks(chunks: list[int]) -> str:
    sizes = sorted({*chunks}, reverse=True)
    rows = " or ".join(map(str, sizes[:3])) + (" or fewer" if len(sizes) > 3 else "")
    return f"{len(chunks)} block(s) of {rows} rows"
