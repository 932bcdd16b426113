"""
Rings
=====

No straight line separates these clusters. A kernel finds them, and so do Nyström features that
approximate it.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_circles

from daskmm import KernelPowerKMeans, PowerKMeans

X, truth = make_circles(3_000, factor=0.35, noise=0.06, random_state=0)
models = {
    "PowerKMeans": PowerKMeans(2, random_state=0),
    "exact kernel": KernelPowerKMeans(2, bandwidth=0.4, random_state=0),
    "Nyström features": KernelPowerKMeans(2, bandwidth=0.4, n_landmarks=20, random_state=0),
}

figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharex=True, sharey=True)
for ax, (name, model) in zip(axes, models.items(), strict=True):
    ax.scatter(X[:, 0], X[:, 1], c=model.fit(X).labels_, s=4, cmap="tab10")
    ax.set_title(name)
    ax.set_aspect("equal")
figure.tight_layout()
