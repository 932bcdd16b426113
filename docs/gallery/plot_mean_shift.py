"""
Rows that move together
=======================

Weighted blurring mean shift finds the number of clusters, and that 30 of the 32 features are noise.
"""

from daskmm import WeightedBlurringMeanShift, datasets, plot

X, truth = datasets.make_wbms_toy(random_state=0)
X = X.compute()
model = WeightedBlurringMeanShift(random_state=0).fit(X)
print(model.n_clusters_, "clusters")
figure = plot.projection(model, X)

# %%
figure = plot.feature_weights(model)
