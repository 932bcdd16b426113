"""Majorization-minimization clustering of data larger than memory, on Dask."""

from daskmm._version import __version__
from daskmm.cluster import (
    EntropyPowerKMeans,
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
    "DeadlyBlockError",
    "EntropyPowerKMeans",
    "KMeans",
    "KernelPowerKMeans",
    "MultiKernelPowerKMeans",
    "PowerKMeans",
    "WeightedBlurringMeanShift",
    "__version__",
    "load",
    "monitor",
]
