"""dask's modules, imported when one of their names is first used.

A fit of an array in memory needs none of these names, and importing dask and its arrays takes .25 s
of processor time, longer than the rest of a first fit of a small table.
"""

from __future__ import annotations

import functools
import os
import site
import sys
from collections.abc import Callable
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib


class LazyModule:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import dask
    import dask.array as da
    from dask.typing import Key
    from typing_extensions import TypeIs
else:
    dask, da, Key = LazyModule("dask"), LazyModule("dask.array"), Any


def is_dask_array(values: Any) -> TypeIs[da.Array]:
    """Return whether values are a dask Array, which exists only if dask has been imported."""
    return "dask.array" in sys.modules and isinstance(values, da.Array)


def is_dask_collection(values: Any) -> bool:
    """Return whether values are a collection of dask, such as an Array, DataFrame or Delayed."""
    return "dask" in sys.modules and dask.is_dask_collection(values)


def scheduler() -> Callable[..., Any] | None:
    """Return the function that runs dask's graphs, or None if nobody has configured dask."""
    if not is_configured():
        return None
    from dask.base import get_scheduler
    from dask.delayed import Delayed

    return get_scheduler(cls=Delayed)


@functools.cache
def cpu_count() -> int:
    """Return the number of cores that this process may use, as its cgroup and affinity allow."""
    return int(joblib.cpu_count())


@functools.cache
def _has_settings() -> bool:
    """Return whether the environment or a file holds settings of dask."""
    if any(name.startswith("DASK_") for name in os.environ):
        return True
    folders = ("/etc", *(os.path.join(each, "etc") for each in site.PREFIXES), "~/.config")
    return any(
        _holds_settings(os.path.join(folder, file))
        for folder in (os.path.expanduser(f"{each}/dask") for each in folders)
        for file in glob("*.[yj]*", root_dir=folder)
    )


def _holds_settings(file: str) -> bool:
    """Return whether a file can be read and has a line other than comments, which dask writes."""
    try:
        lines = Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return False  # dask ignores such files, too
    return any(line.strip() and not line.lstrip().startswith("#") for line in lines)


def is_configured() -> bool:
    """Return whether dask is imported, or has settings of the user that must be read."""
    return "dask" in sys.modules or _has_settings()
