"""Estimators with scikit-learn's interface."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from daskmm.storage.records import known_after

if TYPE_CHECKING:
    from daskmm.cluster.entropy import EntropyPowerKMeans
    from daskmm.cluster.gaussian_mixture import GaussianMixture
    from daskmm.cluster.kernel import KernelPowerKMeans
    from daskmm.cluster.kmeans import KMeans
    from daskmm.cluster.mean_shift import WeightedBlurringMeanShift
    from daskmm.cluster.multi_kernel import MultiKernelPowerKMeans
    from daskmm.cluster.power import PowerKMeans
    from daskmm.cluster.tree import ClusterTree

__all__ = [
    "ClusterTree",
    "EntropyPowerKMeans",
    "GaussianMixture",
    "KMeans",
    "KernelPowerKMeans",
    "MultiKernelPowerKMeans",
    "PowerKMeans",
    "WeightedBlurringMeanShift",
]

_HOMES = {
    "ClusterTree": "tree",
    "EntropyPowerKMeans": "entropy",
    "GaussianMixture": "gaussian_mixture",
    "KMeans": "kmeans",
    "KernelPowerKMeans": "kernel",
    "MultiKernelPowerKMeans": "multi_kernel",
    "PowerKMeans": "power",
    "WeightedBlurringMeanShift": "mean_shift",
}


def __getattr__(name: str) -> Any:
    """Import an estimator when it is first used: the modules of all of them take .1 s."""
    if name not in _HOMES:
        raise AttributeError(f"module 'daskmm.cluster' has no attribute {name!r}")
    value = getattr(import_module(f"daskmm.cluster.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Files of models and checkpoints may hold records of estimators that have not been used yet.
known_after(lambda: [__getattr__(name) for name in __all__])
