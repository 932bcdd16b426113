"""
Several views of the same rows
==============================

Multi-kernel power k-means learns how much each kernel counts. Here two views of the digits tell
something, rows and columns of the image, and one is noise.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import rbf_kernel

from daskmm import MultiKernelPowerKMeans
from daskmm.metrics import normalized_mutual_info_score

images, digits = load_digits(n_class=6, return_X_y=True)
images, digits = images[:600].reshape(-1, 8, 8), digits[:600]
noise = np.random.default_rng(0).normal(0, 20, size=(600, 8))
X = np.hstack([images.sum(axis=2), images.sum(axis=1), noise])


def view(first):
    """Kernel of eight of the features, about half as wide as the rows are apart."""
    columns = slice(first, first + 8)
    gamma = 1.0 / (0.6 * X[:, columns].var(axis=0).sum())
    return lambda a, b: rbf_kernel(a[:, columns], b[:, columns], gamma)


views = {"row sums": view(0), "column sums": view(8), "noise": view(16)}
model = MultiKernelPowerKMeans(6, kernels=list(views.values()), lam=0.1, random_state=0).fit(X)
print(f"NMI {normalized_mutual_info_score(digits, model.labels_):.2f}")

figure, ax = plt.subplots(figsize=(5, 2.4))
ax.barh(list(views), model.kernel_weights_)
ax.set_xlabel("weight of the kernel")
figure.tight_layout()
