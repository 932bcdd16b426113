"""
A table that is read four times
===============================

A million rows in a zarr store are clustered block by block. The picture shows what was read when.
"""

import tempfile

import zarr

from daskmm import PowerKMeans, datasets, plot

place = tempfile.mkdtemp() + "/rows.zarr"
X, truth = datasets.make_power_kmeans_blobs(
    1_000_000, n_clusters=20, n_features=10, chunks=50_000, random_state=0
)
X.astype("float32").to_zarr(place)

model = PowerKMeans(20, random_state=0).fit(zarr.open_array(place, mode="r"))
print(f"{len(model.history_)} iterations, {model.n_passes_} readings of the table")
figure = plot.annealing_trace(model)

# %%
# Labels are lazy. Here are those of the first block.

figure = plot.projection(model, X[:4000].compute())
