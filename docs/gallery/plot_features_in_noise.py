"""
Twenty clusters in five of a hundred features
=============================================

Features without clusters drown those with clusters. Entropy-weighted power k-means finds which are
which.
"""

import matplotlib.pyplot as plt

from daskmm import EntropyPowerKMeans, PowerKMeans, datasets
from daskmm.metrics import normalized_mutual_info_score

X, truth = datasets.make_ewp_simulation2(random_state=0)
plain = PowerKMeans(20, standardize=True, random_state=0).fit(X)
weighted = EntropyPowerKMeans(20, random_state=0).fit(X)

# %%
# The first picture has the feature weights. The others have the two features with the largest
# weights, coloured by the clusters of power k-means and by those of EWP.

rows = X.compute()
order = weighted.feature_weights_.argsort()[::-1]
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
axes[0].stem(weighted.feature_weights_)
axes[0].set(xlabel="feature", ylabel="weight")
for ax, model, name in zip(axes[1:], (plain, weighted), ("PowerKMeans", "EWP"), strict=True):
    found = normalized_mutual_info_score(truth, model.labels_)
    ax.scatter(rows[:, order[0]], rows[:, order[1]], c=model.labels_.compute(), s=5, cmap="tab20")
    ax.set_title(f"{name}, NMI {found:.2f}")
figure.tight_layout()
