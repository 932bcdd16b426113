"""
Distances that outliers do not bend
===================================

Five clusters and 2 % of rows that belong to none, spread far around. Means follow the outliers;
medians stay.
"""

import matplotlib.pyplot as plt
import numpy as np

from daskmm import PowerKMeans

rng = np.random.default_rng(0)
angle = 2 * np.pi * np.arange(5) / 5
places = 4 * np.column_stack([np.cos(angle), np.sin(angle)])
X = places[rng.integers(0, 5, 2_000)] + rng.normal(0, 0.7, (2_000, 2))
X[:40] = rng.uniform(-30, 30, (40, 2))

figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharex=True, sharey=True)
for ax, distortion in zip(axes, ("sqeuclidean", "euclidean"), strict=True):
    model = PowerKMeans(5, distortion=distortion, random_state=0).fit(X)
    ax.scatter(*X.T, c=model.labels_, s=3, cmap="tab10")
    ax.plot(*model.cluster_centers_.T, "k+", markersize=12)
    ax.set(title=distortion, xlim=(-10, 10), ylim=(-10, 10))
figure.tight_layout()
