"""Majorization-minimization clustering of data larger than memory, on Dask."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from daskmm._version import __version__

if TYPE_CHECKING:
    from daskmm.cli.run_folder import write_run
    from daskmm.cluster import (
        ClusterTree,
        EntropyPowerKMeans,
        GaussianMixture,
        KernelPowerKMeans,
        KMeans,
        MultiKernelPowerKMeans,
        PowerKMeans,
        WeightedBlurringMeanShift,
    )
    from daskmm.cluster._models import load
    from daskmm.cluster._monitor import monitor
    from daskmm.engine.distributed import ClusterLostError, DeadlyBlockError

__all__ = [
    "ClusterLostError",
    "ClusterTree",
    "DeadlyBlockError",
    "EntropyPowerKMeans",
    "GaussianMixture",
    "KMeans",
    "KernelPowerKMeans",
    "MultiKernelPowerKMeans",
    "PowerKMeans",
    "WeightedBlurringMeanShift",
    "__version__",
    "load",
    "monitor",
    "write_run",
]

# Modules of the public names that daskmm.cluster does not have.
_HOMES = {
    "ClusterLostError": "daskmm.engine.distributed",
    "DeadlyBlockError": "daskmm.engine.distributed",
    "load": "daskmm.cluster._models",
    "monitor": "daskmm.cluster._monitor",
    "write_run": "daskmm.cli.run_folder",
}
_MODULES = ("datasets", "metrics", "plot", "selection", "vectors")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: scikit-learn and dask take a second or two."""
    if name in _MODULES:
        return import_module(f"daskmm.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'daskmm' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "daskmm.cluster")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
