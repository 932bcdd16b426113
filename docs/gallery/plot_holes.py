"""
Missing values
==============

The curves show how much of the clustering of complete data is left if more and more values are
missing.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans as ScikitLearnKMeans
from sklearn.datasets import load_breast_cancer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from daskmm import PowerKMeans
from daskmm.metrics import adjusted_rand_score

X = StandardScaler().fit_transform(load_breast_cancer().data)
complete = PowerKMeans(2, random_state=0).fit_predict(X)
shares = np.arange(0.1, 0.8, 0.1)
scores = []
for share in shares:
    holes = X.copy()
    holes[np.random.default_rng(0).uniform(size=X.shape) < share] = np.nan
    left_out = PowerKMeans(2, missing="partial", random_state=0).fit_predict(holes)
    imputed = ScikitLearnKMeans(2, n_init=8, random_state=0).fit_predict(
        SimpleImputer().fit_transform(holes)
    )
    scores.append([adjusted_rand_score(complete, labels) for labels in (left_out, imputed)])

figure, ax = plt.subplots(figsize=(6, 3.2))
ax.plot(shares, scores, "o-", label=["left out", "imputed means"])
ax.set(xlabel="share of values that are missing", ylabel="adjusted Rand index")
ax.legend(frameon=False)
figure.tight_layout()
