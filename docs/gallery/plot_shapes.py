"""
Six toy tables, seven estimators
================================

The tables are rings, moons, blobs of different widths, elongated blobs, round blobs and no clusters
at all. Each estimator has its default parameters and the number of clusters; its seconds are in the
picture.
"""

import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs, make_circles, make_moons

import daskmm

warnings.simplefilter("ignore")
N = 300
round_blobs, _ = make_blobs(N, random_state=8)
tables = [
    (make_circles(N, factor=0.5, noise=0.05, random_state=30)[0], 2),
    (make_moons(N, noise=0.05, random_state=30)[0], 2),
    (make_blobs(N, cluster_std=[1.0, 2.5, 0.5], random_state=170)[0], 3),
    (make_blobs(N, random_state=170)[0] @ np.array([[0.6, -0.6], [-0.4, 0.8]]), 3),
    (round_blobs, 3),
    (np.random.default_rng(30).random((N, 2)), 3),
]
estimators = {
    "KMeans": lambda k: daskmm.KMeans(k, random_state=0),
    "PowerKMeans": lambda k: daskmm.PowerKMeans(k, random_state=0),
    "EntropyPowerKMeans": lambda k: daskmm.EntropyPowerKMeans(k, random_state=0),
    "GaussianMixture": lambda k: daskmm.GaussianMixture(k, random_state=0),
    "KernelPowerKMeans": lambda k: daskmm.KernelPowerKMeans(k, random_state=0),
    "MultiKernel…": lambda k: daskmm.MultiKernelPowerKMeans(k, random_state=0),
    "WeightedBlurring…": lambda k: daskmm.WeightedBlurringMeanShift(random_state=0),
}
for make in estimators.values():  # what is imported late does not count
    make(2).fit(tables[0][0])

figure, axes = plt.subplots(len(tables), len(estimators), figsize=(14, 12), layout="constrained")
for row, (X, k) in zip(axes, tables, strict=True):
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    for ax, (name, make) in zip(row, estimators.items(), strict=True):
        began = time.perf_counter()
        labels = make(k).fit(X).labels_
        seconds = time.perf_counter() - began
        ax.scatter(*X.T, c=labels % 10, s=4, cmap="tab10", vmin=0, vmax=9)
        ax.set(xlim=(-2.5, 2.5), ylim=(-2.5, 2.5), xticks=[], yticks=[])
        ax.text(0.98, 0.02, f"{seconds:.2f} s", transform=ax.transAxes, ha="right", fontsize=9)
        if ax in axes[0]:
            ax.set_title(name, fontsize=10)
