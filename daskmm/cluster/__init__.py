"""Estimators with scikit-learn's interface."""

from daskmm.cluster.entropy import EntropyPowerKMeans
from daskmm.cluster.kmeans import KMeans
from daskmm.cluster.power import PowerKMeans

__all__ = ["EntropyPowerKMeans", "KMeans", "PowerKMeans"]
