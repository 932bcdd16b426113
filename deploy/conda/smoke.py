"""What an installed daskmm must do: import lightly, fit rows in memory and in chunks, save."""

import sys
import tempfile
from importlib.resources import files

import daskmm
from daskmm import EntropyPowerKMeans, PowerKMeans

LATER = ("matplotlib", "distributed", "pandas")
early = [name for name in LATER if name in sys.modules]
assert not early, f"import daskmm has imported {early}"

compiled = [file.name for file in files("daskmm.compiled").iterdir() if "_loops." in file.name]
assert len(compiled) == 1, f"libraries of compiled loops: {compiled}"

import dask.array as da  # noqa: E402
import numpy as np  # noqa: E402

rows = np.random.default_rng(0).normal(size=(3000, 4)) + np.repeat([0.0, 9.0, 18.0], 1000)[:, None]
for X in (rows, da.from_array(rows, chunks=(700, -1))):
    for estimator in (PowerKMeans, EntropyPowerKMeans):
        model = estimator(3, random_state=0).fit(X)
        labels = np.asarray(model.labels_).reshape(3, 1000)
        assert (labels == labels[:, :1]).all()
        assert len(set(labels[:, 0])) == 3
with tempfile.TemporaryDirectory() as folder:
    model.save(f"{folder}/model")
    again = daskmm.load(f"{folder}/model")
    assert (again.predict(rows) == labels.ravel()).all()
print(
    f"daskmm {daskmm.__version__} on Python {sys.version.split()[0]}, numpy {np.__version__}: works"
)
