"""Majorization-minimization clustering of data larger than memory, on Dask."""

from daskmm.cluster import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)
from daskmm.persistence import load
from daskmm.watching import ClusterLostError, DeadlyBlockError

__version__ = "0.1.0"

__all__ = [
    "ClusterLostError",
    "DeadlyBlockError",
    "EntropyPowerKMeans",
    "KMeans",
    "KernelPowerKMeans",
    "MultiKernelPowerKMeans",
    "PowerKMeans",
    "WeightedBlurringMeanShift",
    "load",
]
