"""
Directions
==========

The length of some rows, such as embeddings, means nothing. ``distortion="cosine"`` compares angles.
"""

import matplotlib.pyplot as plt
import numpy as np

from daskmm import KMeans
from daskmm.metrics import adjusted_rand_score

rng = np.random.default_rng(0)
kind = rng.integers(0, 6, 1_500)
angle = 2 * np.pi * kind / 6 + rng.normal(0, 0.12, 1_500)
length = rng.lognormal(0, 0.8, 1_500)
X = length[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])

figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharex=True, sharey=True)
for ax, distortion in zip(axes, ("sqeuclidean", "cosine"), strict=True):
    model = KMeans(6, distortion=distortion, random_state=0).fit(X)
    ax.scatter(*X.T, c=model.labels_, s=4, cmap="tab10")
    ax.set_title(f"{distortion}, ARI {adjusted_rand_score(kind, model.labels_):.2f}")
    ax.set_aspect("equal")
figure.tight_layout()
