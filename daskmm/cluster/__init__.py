"""Estimators with scikit-learn's interface."""

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
