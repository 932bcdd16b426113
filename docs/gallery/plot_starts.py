"""
Annealing against starts
========================

k-means and power k-means begin from the same starts. The picture shows the cost at which each run
ends, relative to that of the true centres.
"""

import matplotlib.pyplot as plt
import numpy as np

from daskmm import KMeans, PowerKMeans, datasets

X, truth = datasets.make_power_kmeans_blobs(
    5_000, n_clusters=60, n_features=10, cluster_std=0.08, random_state=0
)
X, truth = X.compute(), truth.compute()
centers = np.array([X[truth == j].mean(axis=0) for j in range(60)])
best = KMeans(60, init=centers, standardize=False).fit(X).inertia_

costs = {"KMeans": [], "PowerKMeans": []}
for seed in range(15):
    for name, estimator in (("KMeans", KMeans), ("PowerKMeans", PowerKMeans)):
        model = estimator(
            60, init="random", n_init=1, sample_size=None, standardize=False, random_state=seed
        )
        costs[name].append(model.fit(X).inertia_ / best)

# %%
figure, ax = plt.subplots(figsize=(6, 3))
for place, (_name, values) in enumerate(costs.items()):
    ax.plot(values, np.full(15, place) + np.random.default_rng(0).uniform(-0.1, 0.1, 15), "o")
ax.set_yticks([0, 1], list(costs))
ax.set_ylim(-0.5, 1.5)
ax.set_xlabel("cost / cost of the true centres")
figure.tight_layout()
