"""
Clusters of counts
==================

The larger counts are, the more they vary. Here four large ones are the same in all clusters, and
eight small ones differ. Squared distances see the large ones only; the distance that belongs to
counts sees all of them.
"""

import matplotlib.pyplot as plt
import numpy as np

from daskmm import PowerKMeans
from daskmm.metrics import adjusted_rand_score

rng = np.random.default_rng(1)
kind = rng.integers(0, 8, 3_000)
rates = np.hstack([np.full((8, 4), 300.0), rng.gamma(1.0, 4.0, (8, 8))])
X = rng.poisson(rates[kind]).astype(float)

found = {}
for distortion in ("sqeuclidean", "manhattan", "kl"):
    scores = []
    for seed in range(4):
        model = PowerKMeans(8, distortion=distortion, random_state=seed).fit(X)
        scores.append(adjusted_rand_score(kind, model.labels_))
    found[distortion] = np.mean(scores)

figure, ax = plt.subplots(figsize=(5, 2.4))
ax.barh(list(found), list(found.values()))
ax.set(xlabel="adjusted Rand index", xlim=(0, 1))
figure.tight_layout()
