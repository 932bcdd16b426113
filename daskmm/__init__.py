"""Majorization-minimization clustering of data larger than memory, on Dask."""

from daskmm.cluster import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.persistence import load

__version__ = "0.1.0"

__all__ = ["EntropyPowerKMeans", "KMeans", "PowerKMeans", "load"]
