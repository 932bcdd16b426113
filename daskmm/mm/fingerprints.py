"""What tells one fit from another: its parameters, and what the first pass saw of its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from daskmm.storage.digests import digest

# Parameters that say nothing of the numbers of a fit.
_APART = ("callbacks", "verbose", "checkpoint", "checkpoint_every", "persist")
# Parameters that may be raised: a fit goes on to the new bound.
RAISABLE = ("max_iter",)
# Moments of the same rows differ by no more than this, in units of the standard deviation, when
# blocks are grouped otherwise.
_SAME = 1e-9


def described_parameters(estimator: BaseEstimator) -> dict[str, Any]:
    """Class and parameters of an estimator, those that its numbers depend on.

    Functions are known by their names, arrays by a digest, random generators and the paths of
    Gram stores not at all: they differ between processes.
    """
    described = {"model": type(estimator).__name__}
    for name, value in estimator.get_params(deep=False).items():
        if name in _APART:
            continue
        if name == "gram" and value not in ("auto", "recompute"):
            value = "a store"
        described[name] = _described(value)
    return described


def _described(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
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
    except ValueError:
        return False


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """In what two fits differ, in words; nothing where one can go on with the other.

    Parameters
    ----------
    there, here : mapping
        Parameters, or data, as they are described here, of the earlier fit and of this one.
    """
    found = []
    for name in dict.fromkeys([*there, *here]):
        if name not in there or name not in here:
            found.append(f"{name} is not known {'here' if name in there else 'there'}")
        elif name in RAISABLE and there[name] <= here[name]:
            continue
        elif isinstance(here[name], np.ndarray):
            found += _apart(name, there, here)
        elif isinstance(here[name], float) and isinstance(there[name], float):
            if not np.isclose(there[name], here[name], rtol=_SAME, atol=0.0):
                found.append(f"{name} is {there[name]} there and {here[name]} here")
        elif there[name] != here[name]:
            found.append(_told(name, there[name], here[name]))
    return found


def _apart(name: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The first feature whose moment differs by more than another order of sums explains."""
    a, b = np.asarray(there[name]), np.asarray(here[name])
    if a.shape != b.shape:
        return [f"{name} has shape {a.shape} there and {b.shape} here"]
    variance = np.asarray(here["variance"])
    # The mean is compared with the deviation, the variance with itself.
    unit = np.sqrt(variance) if name == "mean" else variance
    different = np.flatnonzero(np.abs(a - b) > _SAME * (unit + np.abs(b)))
    if not len(different):
        return []
    first = int(different[0])
    return [f"the {name} of feature {first} is {a[first]:.9g} there and {b[first]:.9g} here"]


def _told(name: str, there: Any, here: Any) -> str:
    if name == "rows":
        return "rows of the data, or their weights, have changed"
    if name == "chunks":
        return f"the data have {_cut(there)} there and {_cut(here)} here"
    return f"{name} is {there!r} there and {here!r} here"


def _cut(chunks: list[int]) -> str:
    sizes = sorted({*chunks}, reverse=True)
    rows = " or ".join(map(str, sizes[:3])) + (" or fewer" if len(sizes) > 3 else "")
    return f"{len(chunks)} block(s) of {rows} rows"
