"""
How many clusters?
==================

``n_clusters="auto"`` chooses a number for clusters that are well apart, for clusters that overlap,
and for no clusters at all.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from daskmm import datasets, selection

tables = {
    f"{name}": datasets.make_power_kmeans_blobs(
        5_000, n_clusters=8, n_features=6, cluster_std=std, random_state=2
    )[0].compute()
    for name, std in (("apart", 0.05), ("overlapping", 0.2))
}
tables["noise"] = np.random.default_rng(0).normal(size=(5_000, 6))

figure, axes = plt.subplots(1, 3, figsize=(11, 3.2))
for ax, (name, X) in zip(axes, tables.items(), strict=True):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = selection.choose_n_clusters(X, random_state=0)
    ax.scatter(*X[:, :2].T, s=1, color="0.6")
    ax.set_title(f"{name}: {path.n_clusters}")
figure.tight_layout()
